//! Are the records that were read those of the places that a queue's units named, and unchanged?

use crate::places::Place;
use crate::record::{BORN_HOST_V6, MAGIC_V1, STORE_HOST_V6};
use crate::stored_record::{MAGIC_V2, StoredRecord, whole_checksum_holds};

// Of a record, up to the end of the physical offset.
const PLACE_BYTES: usize = 36;
// Where the body's size stands with IPv4 hosts, and how much longer an IPv6 host is.
const BODY_SIZE_AT: usize = 84;
const IPV6_EXTRA_BYTES: usize = 12;

/// The queue that is read.
#[derive(Clone, Copy, Debug)]
pub struct Queue<'a> {
    /// The topic, UTF-8.
    pub topic: &'a [u8],
    /// Queue of the topic.
    pub queue_id: i32,
}

impl Queue<'_> {
    /// Tells whether a record says that it is of this queue.
    fn has(&self, record: &[u8]) -> Option<bool> {
        let magic = u32::from_be_bytes(*record.get(4..)?.first_chunk()?);
        let queue_id = i32::from_be_bytes(*record.get(12..)?.first_chunk()?);
        let sys_flag = i32::from_be_bytes(*record.get(36..)?.first_chunk()?);
        let mut at = BODY_SIZE_AT;
        for host in [BORN_HOST_V6, STORE_HOST_V6] {
            at += if sys_flag & host == 0 {
                0
            } else {
                IPV6_EXTRA_BYTES
            };
        }
        let (body_size, rest) = record.get(at..)?.split_first_chunk()?;
        let body_size = usize::try_from(i32::from_be_bytes(*body_size)).ok()?;
        let rest = rest.get(body_size..)?;
        let (size, rest) = match magic {
            MAGIC_V1 => {
                let (size, rest) = rest.split_first_chunk()?;
                (usize::from(u8::from_be_bytes(*size)), rest)
            }
            MAGIC_V2 => {
                let (size, rest) = rest.split_first_chunk()?;
                (usize::from(u16::from_be_bytes(*size)), rest)
            }
            _ => return None,
        };
        Some(queue_id == self.queue_id && rest.get(..size)? == self.topic)
    }
}

impl Place {
    /// Returns what lies behind the record of this place, None when that is bad.
    fn check<'a>(&self, buffer: &'a [u8], queue: Queue<'_>, sums: bool) -> Option<&'a [u8]> {
        let (record, behind) = buffer.split_at_checked(usize::try_from(self.size).ok()?)?;
        let (head, _) = record.split_at_checked(PLACE_BYTES)?;
        let size = i32::from_be_bytes(*head.first_chunk()?);
        let queue_offset = i64::from_be_bytes(*head.get(20..)?.first_chunk()?);
        let physical_offset = i64::from_be_bytes(*head.get(28..)?.first_chunk()?);
        let is_here = size == self.size
            && queue_offset == self.queue_offset
            && physical_offset == self.physical_offset
            && queue.has(record) == Some(true);
        let holds = || match whole_checksum_holds(record) {
            Some(true) => true,
            _ => StoredRecord::read(record).is_some_and(|found| found.checksum_holds()),
        };
        (is_here && (!sums || holds())).then_some(behind)
    }
}

/// Checks records that lie back to back: topic, queue id, size, queue offset and physical offset,
/// and with `sums` the checksum, the whole record's where it has one, else the body's.
///
/// Returns the number of the first bad one, None when all are good. Bytes behind the last one count
/// as one bad record more.
pub fn first_bad(
    records: &[u8],
    places: impl IntoIterator<Item = Place>,
    queue: Queue<'_>,
    sums: bool,
) -> Option<usize> {
    let mut rest = records;
    let mut good = 0;
    for place in places {
        let Some(behind) = place.check(rest, queue, sums) else {
            return Some(good);
        };
        rest = behind;
        good += 1;
    }
    (!rest.is_empty()).then_some(good)
}

#[cfg(test)]
mod tests {
    use super::{Queue, first_bad};
    use crate::places::Place;
    use crate::stored_record::tests::{JAVA_RECORD, with_checksum};

    const QUEUE: Queue<'_> = Queue {
        topic: b"T1",
        queue_id: 1,
    };

    fn place(physical_offset: i64, size: usize, queue_offset: i64) -> Place {
        Place {
            physical_offset,
            size: i32::try_from(size).expect("a small size"),
            queue_offset,
        }
    }

    #[test]
    fn a_record_at_its_place_is_good_with_either_checksum() {
        for record in [JAVA_RECORD.to_vec(), with_checksum()] {
            let here = place(1000, record.len(), 2);
            assert_eq!(first_bad(&record, [here], QUEUE, true), None);
            let twice = [&record[..], &record[..]].concat();
            assert_eq!(first_bad(&twice, [here, here], QUEUE, true), None);
        }
    }

    #[test]
    fn another_place_another_size_and_bytes_too_many_are_bad() {
        let record = with_checksum();
        let size = record.len();
        let here = place(1000, size, 2);
        for wrong in [
            place(1001, size, 2),
            place(1000, size, 3),
            place(1000, size - 1, 2),
            place(1000, 35, 2),
            Place { size: -1, ..here },
        ] {
            assert_eq!(first_bad(&record, [wrong], QUEUE, false), Some(0));
        }
        let longer = [&record[..], b"x"].concat();
        assert_eq!(first_bad(&longer, [here], QUEUE, true), Some(1));
        assert_eq!(first_bad(&record, [here, here], QUEUE, true), Some(1));
        assert_eq!(first_bad(&[], [here], QUEUE, true), Some(0));
        assert_eq!(first_bad(&[], [], QUEUE, true), None);
    }

    /// The same record with both hosts IPv6 and the topic's size in two bytes.
    fn in_the_longest_form() -> Vec<u8> {
        let mut record = JAVA_RECORD.to_vec();
        record[39] |= 0x30;
        record[7] = 0xAB;
        record.insert(93, 0);
        for host_end in [72, 56] {
            record.splice(host_end..host_end, [0; 12]);
        }
        record[3] += 25;
        record
    }

    #[test]
    fn a_record_of_another_queue_is_bad_in_every_form() {
        for record in [JAVA_RECORD.to_vec(), with_checksum(), in_the_longest_form()] {
            let here = place(1000, record.len(), 2);
            for sums in [true, false] {
                assert_eq!(first_bad(&record, [here], QUEUE, sums), None);
                for topic in [&b"T2"[..], b"T", b"T11", b"", b"T1\0\x0d"] {
                    let other = Queue { topic, ..QUEUE };
                    assert_eq!(first_bad(&record, [here], other, sums), Some(0));
                }
                for queue_id in [0, 2, -1] {
                    let other = Queue { queue_id, ..QUEUE };
                    assert_eq!(first_bad(&record, [here], other, sums), Some(0));
                }
            }
        }
    }

    #[test]
    fn without_sums_a_changed_body_is_good() {
        let mut record = with_checksum();
        record[90] ^= 1;
        let here = place(1000, record.len(), 2);
        assert_eq!(first_bad(&record, [here], QUEUE, false), None);
        assert_eq!(first_bad(&record, [here], QUEUE, true), Some(0));
    }

    #[test]
    fn mutated_records_never_panic_and_no_changed_record_is_good() {
        let record = with_checksum();
        let here = place(1000, record.len(), 2);
        let mut random = 1_u64;
        let mut next = |below: usize| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            usize::try_from(random >> 40).expect("24 bits") % below
        };
        for _ in 0..200_000 {
            let mut changed = record.clone();
            let cut = next(changed.len() + 1);
            if cut % 4 == 0 {
                changed.truncate(cut);
            }
            for _ in 0..=next(3) {
                let at = next(record.len());
                if let Some(byte) = changed.get_mut(at) {
                    *byte = [0, 1, 0x7F, 0x80, 0xFF, 20][next(6)];
                }
            }
            let is_good = first_bad(&changed, [here], QUEUE, true).is_none();
            if changed == record {
                assert!(is_good);
            } else if is_good {
                // A change of the property's name leaves the body's checksum, which may hold.
                let name = record.len() - 20..record.len() - 11;
                assert!(changed[name.clone()] != record[name]);
            }
        }
    }
}
