//! The CRC-32 that RocketMQ keeps of bodies, 31 bits wide.

/// Returns the checksum of a body as records hold it: CRC-32 without its highest bit.
#[must_use]
pub fn body_crc(body: &[u8]) -> u32 {
    crc32fast::hash(body) & 0x7FFF_FFFF
}

#[cfg(test)]
mod tests {
    use super::body_crc;

    #[test]
    fn the_check_value_of_crc32_loses_its_highest_bit() {
        // 0xCBF43926 is the check value that every description of CRC-32 gives.
        assert_eq!(body_crc(b"123456789"), 0x4BF4_3926);
    }
}
