//! The CRC-32 that RocketMQ keeps of bodies and of whole records, 31 bits wide.

const HEAD: &[u8; 9] = b"__CRC32#\x01";

/// Bytes of the property that holds the checksum of a whole record: `__CRC32#`, 0x01, ten digits
/// in reverse order, 0x02.
pub const CRC_PROPERTY_BYTES: usize = 20;

/// Returns the checksum of a body as records hold it: CRC-32 without its highest bit.
#[must_use]
pub fn body_crc(body: &[u8]) -> u32 {
    crc32fast::hash(body) & 0x7FFF_FFFF
}

/// Returns the checksum property of a record that goes so far without it.
#[must_use]
pub fn crc_property(record: &[u8]) -> [u8; CRC_PROPERTY_BYTES] {
    let mut property = [0; CRC_PROPERTY_BYTES];
    let mut rest = body_crc(record);
    let (head, digits) = property.split_at_mut(HEAD.len());
    head.copy_from_slice(HEAD);
    for digit in digits {
        *digit = b'0' + u8::try_from(rest % 10).unwrap_or_default();
        rest /= 10;
    }
    property[CRC_PROPERTY_BYTES - 1] = 2;
    property
}

#[cfg(test)]
mod tests {
    use super::{body_crc, crc_property};

    #[test]
    fn the_check_value_of_crc32_loses_its_highest_bit() {
        // 0xCBF43926 is the check value that every description of CRC-32 gives.
        assert_eq!(body_crc(b"123456789"), 0x4BF4_3926);
    }

    #[test]
    fn the_property_has_ten_digits_in_reverse() {
        // 0x4BF43926 is 1274296614.
        assert_eq!(&crc_property(b"123456789"), b"__CRC32#\x014166924721\x02");
        assert_eq!(&crc_property(b""), b"__CRC32#\x010000000000\x02");
    }
}
