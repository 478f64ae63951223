//! The record of a message, written; its byte table is in `stored_record`.

use crate::checksum::{CRC_PROPERTY_BYTES, body_crc, crc_property};

/// Bytes of a record beside hosts, body, topic and properties.
pub const BARE_BYTES: usize = 91 - 16;
/// Bytes of an address with IPv4.
pub const HOST_BYTES: usize = 8;
/// Bytes of an address with IPv6.
pub const HOST_V6_BYTES: usize = 20;
/// Of them, the port stands behind the address.
pub const PORT_BYTES: usize = 4;
/// Bytes that every segment keeps for what closes it.
pub const FILLER_BYTES: usize = 8;
/// Bytes of a ConsumeQueue unit.
pub const UNIT_BYTES: usize = 20;

pub(crate) const MAGIC_V1: u32 = 0xDAA3_20A7;
/// What a client may say of its message: whether and how it is compressed.
pub(crate) const CLIENT_BITS: i32 = 0x701;
pub(crate) const BORN_HOST_V6: i32 = 0x10;
pub(crate) const STORE_HOST_V6: i32 = 0x20;

/// What a record holds.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The queue.
    pub queue_id: i32,
    /// The message's own flag.
    pub flag: i32,
    /// Its place in the queue.
    pub queue_offset: i64,
    /// Its place in the CommitLog.
    pub physical_offset: i64,
    /// What is known of it, but for the sizes of its hosts.
    pub sys_flag: i32,
    /// When it was made.
    pub born_timestamp_ms: i64,
    /// Who made it, 8 or 20 bytes.
    pub born_host: &'a [u8],
    /// When it is stored.
    pub store_timestamp_ms: i64,
    /// Who stores it, 8 or 20 bytes.
    pub store_host: &'a [u8],
    /// How often it was tried.
    pub reconsume_times: i32,
    /// Where the half message lies that this one was made of; 0 for all others.
    pub prepared_transaction_offset: i64,
    /// The body.
    pub body: &'a [u8],
    /// The topic, at most 127 bytes.
    pub topic: &'a [u8],
    /// The properties but for what the broker adds.
    pub properties: &'a [u8],
    /// The properties that the broker adds to each message.
    pub suffix: &'a [u8],
    /// Whether the record's own checksum closes the properties.
    pub append_crc: bool,
}

impl Record<'_> {
    /// Fills bytes that are as many as the record has; none where they are not.
    pub fn write(&self, out: &mut [u8]) -> Option<()> {
        let crc_bytes = if self.append_crc {
            CRC_PROPERTY_BYTES
        } else {
            0
        };
        let properties_bytes = self.properties.len() + self.suffix.len() + crc_bytes;
        let properties_size = u16::try_from(properties_bytes).ok()?.to_be_bytes();
        let size = i32::try_from(out.len()).ok()?;
        let mut sys_flag = self.sys_flag;
        if self.born_host.len() != HOST_BYTES {
            sys_flag |= BORN_HOST_V6;
        }
        if self.store_host.len() != HOST_BYTES {
            sys_flag |= STORE_HOST_V6;
        }
        let mut head = [0; 48];
        let mut fields = Filler { rest: &mut head };
        fields.put(&size.to_be_bytes())?;
        fields.put(&MAGIC_V1.to_be_bytes())?;
        fields.put(&body_crc(self.body).to_be_bytes())?;
        fields.put(&self.queue_id.to_be_bytes())?;
        fields.put(&self.flag.to_be_bytes())?;
        fields.put(&self.queue_offset.to_be_bytes())?;
        fields.put(&self.physical_offset.to_be_bytes())?;
        fields.put(&sys_flag.to_be_bytes())?;
        fields.put(&self.born_timestamp_ms.to_be_bytes())?;
        let (record, crc) = out.split_at_mut_checked(out.len().checked_sub(crc_bytes)?)?;
        let mut rest = Filler { rest: &mut *record };
        rest.put(&head)?;
        rest.put(self.born_host)?;
        rest.put(&self.store_timestamp_ms.to_be_bytes())?;
        rest.put(self.store_host)?;
        rest.put(&self.reconsume_times.to_be_bytes())?;
        rest.put(&self.prepared_transaction_offset.to_be_bytes())?;
        rest.put(&i32::try_from(self.body.len()).ok()?.to_be_bytes())?;
        rest.put(self.body)?;
        rest.put(&[u8::try_from(self.topic.len()).ok()?])?;
        rest.put(self.topic)?;
        rest.put(&properties_size)?;
        rest.put(self.properties)?;
        rest.put(self.suffix)?;
        if !rest.rest.is_empty() {
            return None;
        }
        if self.append_crc {
            crc.copy_from_slice(&crc_property(record));
        }
        Some(())
    }
}

/// Returns the ConsumeQueue unit of a record.
#[must_use]
pub fn unit(physical_offset: i64, size: i32, tags_code: i64) -> [u8; UNIT_BYTES] {
    let mut unit = [0; UNIT_BYTES];
    unit[..8].copy_from_slice(&physical_offset.to_be_bytes());
    unit[8..12].copy_from_slice(&size.to_be_bytes());
    unit[12..].copy_from_slice(&tags_code.to_be_bytes());
    unit
}

struct Filler<'a> {
    rest: &'a mut [u8],
}

impl Filler<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        let rest = std::mem::take(&mut self.rest);
        let (place, rest) = rest.split_at_mut_checked(bytes.len())?;
        place.copy_from_slice(bytes);
        self.rest = rest;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::{BARE_BYTES, Record, unit};

    fn record() -> Record<'static> {
        Record {
            queue_id: 3,
            flag: -2,
            queue_offset: 5,
            physical_offset: 7,
            sys_flag: 0x701,
            born_timestamp_ms: 9,
            born_host: b"\x0a\0\0\x01\0\0\x04\xd2",
            store_timestamp_ms: 11,
            store_host: b"\x7f\0\0\x01\0\0\x2a\x9f",
            reconsume_times: 13,
            prepared_transaction_offset: 17,
            body: b"123456789",
            topic: b"T",
            properties: b"a\x01b\x02",
            suffix: b"c\x01d\x02",
            append_crc: false,
        }
    }

    #[test]
    fn the_fields_stand_in_order() {
        let mut out = [0; BARE_BYTES + 16 + 9 + 1 + 8];
        record().write(&mut out).expect("fits");
        let expected = [
            &b"\0\0\0\x6d\xda\xa3\x20\xa7\x4b\xf4\x39\x26\0\0\0\x03\xff\xff\xff\xfe"[..],
            b"\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\x07\0\0\x07\x01\0\0\0\0\0\0\0\x09",
            b"\x0a\0\0\x01\0\0\x04\xd2\0\0\0\0\0\0\0\x0b\x7f\0\0\x01\0\0\x2a\x9f",
            b"\0\0\0\x0d\0\0\0\0\0\0\0\x11\0\0\0\x09123456789\x01T\0\x08a\x01b\x02c\x01d\x02",
        ]
        .concat();
        assert_eq!(out.to_vec(), expected);
        let host = [1; 20];
        let v6 = Record {
            born_host: &host,
            append_crc: true,
            ..record()
        };
        let mut out = [0; BARE_BYTES + 28 + 9 + 1 + 8 + 20];
        v6.write(&mut out).expect("fits");
        assert_eq!(out[36..40], [0, 0, 7, 0x11]);
        assert_eq!(&out[out.len() - 20..out.len() - 11], b"__CRC32#\x01");
    }

    #[test]
    fn other_sizes_are_not_filled() {
        for size in [0, 10, 108, 110] {
            assert_eq!(record().write(&mut vec![0; size]), None);
        }
    }

    #[test]
    fn a_unit_has_twenty_bytes() {
        let expected = b"\0\0\0\0\0\0\x01\0\0\0\0\x02\xff\xff\xff\xff\xff\xff\xff\xfd";
        assert_eq!(&unit(256, 2, -3), expected);
    }
}
