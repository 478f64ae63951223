//! The stored record, read: the bytes of the CommitLog and of a pull answer.
//!
//! All integers are big-endian. Positions are for IPv4 hosts; each IPv6 host adds 12.
//!
//! ```text
//! position  size    field
//! 0         4       record size, this field included
//! 4         4       magic: v1 0xDAA320A7, v2 0xDAA320AB (topic longer than 127 bytes)
//! 8         4       CRC32 of the body as stored, 31 bits
//! 12        4       queue id
//! 16        4       flag, opaque
//! 20        8       queue offset
//! 28        8       physical offset
//! 36        4       sysFlag
//! 40        8       born timestamp, ms
//! 48        8 | 20  born host: address, port as 32 bits
//! 56        8       store timestamp, ms
//! 64        8 | 20  store host
//! 72        4       reconsume times
//! 76        8       prepared transaction offset
//! 84        4       body size n
//! 88        n       body
//! 88+n      1 | 2   topic size t (one byte in v1, two in v2)
//! 89+n      t       topic, UTF-8
//! 89+n+t    2       properties size p
//! 91+n+t    p       properties text
//! ```
//!
//! The last 20 bytes of the properties may be `__CRC32#` 0x01, ten digits, 0x02: the CRC32 of the
//! record without these 20 bytes, 31 bits, its digits in reverse order.

use crate::checksum::{CRC_PROPERTY_BYTES, body_crc};
use crate::record::{BORN_HOST_V6, MAGIC_V1, STORE_HOST_V6};

pub(crate) const MAGIC_V2: u32 = 0xDAA3_20AB;
const FIXED_BYTES: usize = 91;
const COMPRESSED: i32 = 0x1;
const CRC_MASK: u32 = 0x7FFF_FFFF;
const CRC_PROPERTY_HEAD: &[u8] = b"__CRC32#\x01";
const CRC_DIGITS: usize = 10;
const ENTRY_END: u8 = 2;

/// A record whose sizes are right; `checksum_holds` is a question of its own.
#[derive(Debug)]
pub struct StoredRecord<'a> {
    /// The whole record.
    pub bytes: &'a [u8],
    /// Which of the two forms it has.
    pub magic: u32,
    /// Checksum of the body as stored; the highest bit means nothing.
    pub body_crc: u32,
    /// Queue of the topic.
    pub queue_id: i32,
    /// The program's own number.
    pub flag: i32,
    /// Place in the queue.
    pub queue_offset: i64,
    /// Place in the log.
    pub physical_offset: i64,
    /// Bits that tell how the body and the hosts are stored.
    pub sys_flag: i32,
    /// When the producer made it, ms.
    pub born_timestamp_ms: i64,
    /// The producer's address, 8 or 20 bytes.
    pub born_host: &'a [u8],
    /// When the broker stored it, ms.
    pub store_timestamp_ms: i64,
    /// The broker's address, 8 or 20 bytes.
    pub store_host: &'a [u8],
    /// How often it was delivered and sent back.
    pub reconsume_times: i32,
    /// Where the half message of its transaction lies.
    pub prepared_transaction_offset: i64,
    /// The body as stored.
    pub body: &'a [u8],
    /// The topic, meant as UTF-8.
    pub topic: &'a [u8],
    /// The properties' text, the checksum among them.
    pub properties: &'a [u8],
}

impl<'a> StoredRecord<'a> {
    /// Reads the record at the beginning of some bytes; None where there is no whole one.
    #[must_use]
    pub fn read(buffer: &'a [u8]) -> Option<Self> {
        let size = usize::try_from(i32::from_be_bytes(*buffer.first_chunk()?)).ok()?;
        if size < FIXED_BYTES {
            return None;
        }
        let bytes = buffer.get(..size)?;
        let mut rest = Rest(bytes.get(4..)?);
        let magic = u32::from_be_bytes(rest.array()?);
        if magic != MAGIC_V1 && magic != MAGIC_V2 {
            return None;
        }
        let body_crc = rest.array().map(u32::from_be_bytes)?;
        let queue_id = rest.int()?;
        let flag = rest.int()?;
        let queue_offset = rest.long()?;
        let physical_offset = rest.long()?;
        let sys_flag = rest.int()?;
        let born_timestamp_ms = rest.long()?;
        let born_host = rest.host(sys_flag & BORN_HOST_V6 != 0)?;
        let store_timestamp_ms = rest.long()?;
        let store_host = rest.host(sys_flag & STORE_HOST_V6 != 0)?;
        let reconsume_times = rest.int()?;
        let prepared_transaction_offset = rest.long()?;
        let body_size = usize::try_from(rest.int()?).ok()?;
        let body = rest.take(body_size)?;
        let topic_size = if magic == MAGIC_V2 {
            rest.short()?
        } else {
            usize::from(u8::from_be_bytes(rest.array()?))
        };
        let topic = rest.take(topic_size)?;
        let properties_size = rest.short()?;
        let properties = rest.take(properties_size)?;
        rest.0.is_empty().then_some(Self {
            bytes,
            magic,
            body_crc,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_timestamp_ms,
            born_host,
            store_timestamp_ms,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            body,
            topic,
            properties,
        })
    }

    /// Tells whether the body is compressed.
    #[must_use]
    pub fn is_compressed(&self) -> bool {
        self.sys_flag & COMPRESSED != 0
    }

    /// Checks the whole record's checksum where it has one, else the body's.
    #[must_use]
    pub fn checksum_holds(&self) -> bool {
        match whole_checksum_holds(self.bytes) {
            Some(true) => true,
            // Where it lies before the properties it is a body that ends like one.
            Some(false) if self.properties.len() >= CRC_PROPERTY_BYTES => false,
            _ => body_crc(self.body) == self.body_crc & CRC_MASK,
        }
    }
}

/// Checks a whole record against its checksum property; None when it carries none.
#[must_use]
pub fn whole_checksum_holds(record: &[u8]) -> Option<bool> {
    let (content, property) = record.split_last_chunk::<CRC_PROPERTY_BYTES>()?;
    let stored = property.strip_prefix(CRC_PROPERTY_HEAD)?;
    let mut number = body_crc(content);
    let mut expected = [ENTRY_END; CRC_DIGITS + 1];
    for digit in &mut expected[..CRC_DIGITS] {
        *digit = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
    }
    Some(stored == expected)
}

/// What is left to read of a record.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const SIZE: usize>(&mut self) -> Option<[u8; SIZE]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn short(&mut self) -> Option<usize> {
        self.array().map(u16::from_be_bytes).map(usize::from)
    }

    fn int(&mut self) -> Option<i32> {
        self.array().map(i32::from_be_bytes)
    }

    fn long(&mut self) -> Option<i64> {
        self.array().map(i64::from_be_bytes)
    }

    fn host(&mut self, is_v6: bool) -> Option<&'a [u8]> {
        self.take(if is_v6 { 20 } else { 8 })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{StoredRecord, whole_checksum_holds};
    use crate::checksum::body_crc;

    /// Written by the encoder of rocketmq 4.9.8: queue 1, queue offset 2, physical offset 1000.
    pub(crate) const JAVA_RECORD: &[u8] = b"\x00\x00\x00\x6f\xda\xa3\x20\xa7\x36\x10\xa6\x86\
        \x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\
        \x00\x00\x00\x00\x00\x00\x03\xe8\x00\x00\x00\x00\x00\x00\x01\x8b\xcf\xe5\x68\x00\
        \x0a\x00\x00\x01\x00\x00\x04\xd2\x00\x00\x01\x8b\xcf\xe5\x68\x7b\
        \x0a\x00\x00\x02\x00\x00\x2a\x9f\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\
        \x00\x00\x00\x05hello\x02T1\x00\x0dk\x01v\x02TAGS\x01TagA";

    /// Returns the same record with a checksum over all of it.
    pub(crate) fn with_checksum() -> Vec<u8> {
        let mut record = JAVA_RECORD.to_vec();
        record.push(2);
        record[3] += 21;
        let properties_size_at = 88 + 5 + 3 + 1;
        record[properties_size_at] += 21;
        let digits = format!("{:010}", body_crc(&record));
        record.extend(b"__CRC32#\x01");
        record.extend(digits.bytes().rev());
        record.push(2);
        record
    }

    #[test]
    fn a_java_record_has_the_fields_that_were_put_into_it() {
        let record = StoredRecord::read(JAVA_RECORD).expect("a record");
        assert_eq!(record.bytes, JAVA_RECORD);
        assert_eq!((record.topic, record.body), (&b"T1"[..], &b"hello"[..]));
        assert_eq!((record.queue_id, record.queue_offset), (1, 2));
        assert_eq!(record.physical_offset, 1000);
        assert_eq!(record.born_timestamp_ms, 1_700_000_000_000);
        assert_eq!(record.store_timestamp_ms, 1_700_000_000_123);
        assert_eq!(record.born_host, [10, 0, 0, 1, 0, 0, 4, 210]);
        assert_eq!(record.properties, b"k\x01v\x02TAGS\x01TagA");
        assert!(record.checksum_holds());
    }

    #[test]
    fn every_changed_byte_breaks_the_whole_checksum() {
        let record = with_checksum();
        assert_eq!(whole_checksum_holds(&record), Some(true));
        for at in 0..record.len() {
            let mut changed = record.clone();
            changed[at] ^= 0x11;
            let holds = StoredRecord::read(&changed).is_some_and(|found| found.checksum_holds());
            // Without the property's name the body's own checksum is what counts.
            let is_name = (record.len() - 20..record.len() - 11).contains(&at);
            assert_eq!(holds, is_name, "byte {at}");
        }
    }

    #[test]
    fn a_cut_record_is_none() {
        for size in 0..JAVA_RECORD.len() {
            assert!(StoredRecord::read(&JAVA_RECORD[..size]).is_none());
        }
    }
}
