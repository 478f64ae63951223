//! Are the records that were read the ones that a queue's units name, each whole and unchanged?
//!
//! A unit of a ConsumeQueue, big-endian:
//!
//! ```text
//! position  size  field
//! 0         8     physical offset
//! 8         4     record size
//! 12        8     tagsCode
//! ```

use crate::stored_record::{StoredRecord, whole_checksum_holds};

const UNIT_BYTES: usize = 20;
// Up to the end of the physical offset.
const PLACE_BYTES: usize = 36;

/// Units of one queue that follow each other, and which of them were read.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// The units, 20 bytes each.
    pub units: &'a [u8],
    /// The queue offset of the first unit.
    pub queue_offset: i64,
    /// One byte a unit, not 0 for those that are wanted; None for all.
    pub chosen: Option<&'a [u8]>,
    /// The first so many wanted ones were read.
    pub count: usize,
}

impl Wanted<'_> {
    /// Returns physical offset, size and queue offset of each record that was read.
    fn places(&self) -> impl Iterator<Item = Option<Place>> {
        let units = self.units.chunks_exact(UNIT_BYTES).enumerate();
        units
            .filter(|(index, _)| {
                self.chosen
                    .is_none_or(|chosen| chosen.get(*index).is_some_and(|byte| *byte != 0))
            })
            .take(self.count)
            .map(|(index, unit)| {
                Some(Place {
                    physical_offset: i64::from_be_bytes(*unit.first_chunk()?),
                    size: usize::try_from(i32::from_be_bytes(*unit.get(8..)?.first_chunk()?))
                        .ok()?,
                    queue_offset: self.queue_offset.checked_add(i64::try_from(index).ok()?)?,
                })
            })
    }
}

struct Place {
    physical_offset: i64,
    size: usize,
    queue_offset: i64,
}

impl Place {
    /// Returns what lies behind the record of this place, None when that is bad.
    fn check<'a>(&self, buffer: &'a [u8], sums: bool) -> Option<&'a [u8]> {
        let (record, behind) = buffer.split_at_checked(self.size)?;
        let (head, _) = record.split_at_checked(PLACE_BYTES)?;
        let size = i32::from_be_bytes(*head.first_chunk()?);
        let queue_offset = i64::from_be_bytes(*head.get(20..)?.first_chunk()?);
        let physical_offset = i64::from_be_bytes(*head.get(28..)?.first_chunk()?);
        let is_here = usize::try_from(size) == Ok(self.size)
            && queue_offset == self.queue_offset
            && physical_offset == self.physical_offset;
        let holds = || match whole_checksum_holds(record) {
            Some(holds) => holds,
            None => StoredRecord::read(record).is_some_and(|found| found.checksum_holds()),
        };
        (is_here && (!sums || holds())).then_some(behind)
    }
}

/// Checks records that lie back to back: size, queue offset and physical offset, and with `sums`
/// the checksum, the whole record's where it has one, else the body's.
///
/// Returns the number of the first bad one among those wanted, None when all are good. Bytes
/// behind the last one, or too few units, count as one bad record more.
#[must_use]
pub fn first_bad(records: &[u8], wanted: &Wanted<'_>, sums: bool) -> Option<usize> {
    let mut rest = records;
    let mut good = 0;
    for place in wanted.places() {
        let Some(behind) = place.and_then(|place| place.check(rest, sums)) else {
            return Some(good);
        };
        rest = behind;
        good += 1;
    }
    (good != wanted.count || !rest.is_empty()).then_some(good)
}

#[cfg(test)]
mod tests {
    use super::{Wanted, first_bad};
    use crate::stored_record::tests::{JAVA_RECORD, with_checksum};

    fn unit(physical_offset: i64, size: usize) -> Vec<u8> {
        let mut unit = physical_offset.to_be_bytes().to_vec();
        unit.extend(i32::try_from(size).expect("a small size").to_be_bytes());
        unit.extend([0; 8]);
        unit
    }

    fn wanted<'a>(units: &'a [u8], chosen: Option<&'a [u8]>, count: usize) -> Wanted<'a> {
        Wanted {
            units,
            queue_offset: 2,
            chosen,
            count,
        }
    }

    #[test]
    fn a_record_at_its_place_is_good_with_either_checksum() {
        for record in [JAVA_RECORD.to_vec(), with_checksum()] {
            let units = unit(1000, record.len());
            assert_eq!(first_bad(&record, &wanted(&units, None, 1), true), None);
        }
    }

    #[test]
    fn another_place_another_size_and_bytes_too_many_are_bad() {
        let record = with_checksum();
        let size = record.len();
        for units in [unit(1001, size), unit(1000, size - 1), unit(1000, 35)] {
            assert_eq!(first_bad(&record, &wanted(&units, None, 1), false), Some(0));
        }
        let units = unit(1000, size);
        let longer = [&record[..], b"x"].concat();
        assert_eq!(first_bad(&longer, &wanted(&units, None, 1), true), Some(1));
        assert_eq!(first_bad(&record, &wanted(&units, None, 2), true), Some(1));
        assert_eq!(first_bad(&[], &wanted(&units, None, 1), true), Some(0));
    }

    #[test]
    fn units_that_are_not_chosen_count_as_queue_offsets_only() {
        let record = with_checksum();
        let units = [unit(0, 9), unit(1000, record.len())].concat();
        let mut later = wanted(&units, Some(&[0, 1]), 1);
        later.queue_offset = 1;
        assert_eq!(first_bad(&record, &later, true), None);
        later.queue_offset = 2;
        assert_eq!(first_bad(&record, &later, true), Some(0));
        later.queue_offset = i64::MAX;
        assert_eq!(first_bad(&record, &later, true), Some(0));
    }

    #[test]
    fn mutated_records_and_units_never_panic_and_no_changed_record_is_good() {
        let record = with_checksum();
        let units = unit(1000, record.len());
        let mut random = 1_u64;
        let mut next = |below: usize| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            usize::try_from(random >> 40).expect("24 bits") % below
        };
        for _ in 0..200_000 {
            let (mut changed, mut names) = (record.clone(), units.clone());
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
            if cut % 3 == 0 {
                names[next(12)] ^= 0x80;
            }
            let found = first_bad(&changed, &wanted(&names, None, 1), true);
            let is_same = changed == record && names == units;
            // A change of the property's name leaves the body's checksum, which may hold.
            if found.is_none() && !is_same {
                let name = record.len() - 20..record.len() - 11;
                assert!(changed[name.clone()] != record[name]);
            }
            assert!(!is_same || found.is_none());
        }
    }
}
