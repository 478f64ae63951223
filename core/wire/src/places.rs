//! Which records a read takes: from a queue's units to places in the log.
//!
//! A unit of a ConsumeQueue and a place are 20 bytes, big-endian:
//!
//! ```text
//! position  size  unit             place
//! 0         8     physical offset  physical offset
//! 8         4     record size      record size
//! 12        8     tagsCode         queue offset
//! ```

const UNIT_BYTES: usize = 20;
/// The places of most reads.
const FEW_BYTES: usize = 32 * UNIT_BYTES;
/// The fixed fields of a record with hosts of IPv4 and its checksum.
const MIN_RECORD_BYTES: i32 = 91 + 20;
/// The fixed fields alone: what has fewer bytes is no record.
const FIXED_BYTES: i32 = 91;

/// Where a record lies, and of which message of its queue it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Where in the log.
    pub physical_offset: i64,
    /// The record's size, as its unit says it.
    pub size: i32,
    /// The message's number in its queue.
    pub queue_offset: i64,
}

impl Place {
    /// Returns the packed form.
    #[must_use]
    pub fn pack(&self) -> [u8; UNIT_BYTES] {
        let mut packed = [0; UNIT_BYTES];
        packed[..8].copy_from_slice(&self.physical_offset.to_be_bytes());
        packed[8..12].copy_from_slice(&self.size.to_be_bytes());
        packed[12..].copy_from_slice(&self.queue_offset.to_be_bytes());
        packed
    }
}

/// Reads packed places; what is left at the end is none.
pub fn unpack(packed: &[u8]) -> impl Iterator<Item = Place> {
    packed.chunks_exact(UNIT_BYTES).filter_map(|place| {
        let (physical_offset, size, queue_offset) = split(place)?;
        Some(Place {
            physical_offset,
            size,
            queue_offset,
        })
    })
}

/// How much a read takes.
#[derive(Debug)]
pub struct Limits<'a> {
    /// At most so many records.
    pub max_messages: i64,
    /// None that would make all of them larger than this, but for the first.
    pub max_bytes: i64,
    /// tagsCodes of the messages that are wanted, in order; None takes all.
    pub tags_codes: Option<&'a [i64]>,
}

/// The records that a read takes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// Their places, packed.
    pub places: Vec<u8>,
    /// The queue offset where to go on: that of the first wanted unit left out, or behind the last.
    pub after: i64,
    /// Physical offset and size of what lies back to back.
    pub runs: Vec<(i64, i64)>,
}

/// Chooses from the units from a queue offset on.
///
/// Returns none where the chosen places are not in order, or a size is none of a record, chosen or
/// not.
#[must_use]
pub fn choose(units: &[u8], queue_offset: i64, limits: &Limits<'_>) -> Option<Chosen> {
    let mut chosen = Chosen {
        places: Vec::with_capacity(units.len().min(FEW_BYTES)),
        ..Chosen::default()
    };
    let (mut count, mut total, mut at) = (0_i64, 0_i64, queue_offset);
    for (physical_offset, size, code) in units.chunks_exact(UNIT_BYTES).filter_map(split) {
        // What is no unit says nothing of tags.
        if size < FIXED_BYTES {
            return None;
        }
        if limits
            .tags_codes
            .is_none_or(|codes| codes.binary_search(&code).is_ok())
        {
            let with_this = total.saturating_add(i64::from(size));
            if count > 0 && (count >= limits.max_messages || with_this > limits.max_bytes) {
                break;
            }
            if size < MIN_RECORD_BYTES {
                return None;
            }
            count += 1;
            total = with_this;
            chosen.add(&Place {
                physical_offset,
                size,
                queue_offset: at,
            })?;
        }
        at = at.saturating_add(1);
    }
    chosen.after = at;
    Some(chosen)
}

impl Chosen {
    /// Adds a place; none where it lies before the end of the last one.
    fn add(&mut self, place: &Place) -> Option<()> {
        self.places.extend_from_slice(&place.pack());
        let size = i64::from(place.size);
        place.physical_offset.checked_add(size)?;
        if let Some((start, run_size)) = self.runs.last_mut() {
            let end = start.checked_add(*run_size)?;
            if place.physical_offset < end {
                return None;
            }
            if place.physical_offset == end {
                *run_size += size;
                return Some(());
            }
        }
        self.runs.push((place.physical_offset, size));
        Some(())
    }
}

fn split(packed: &[u8]) -> Option<(i64, i32, i64)> {
    let (physical_offset, rest) = packed.split_first_chunk()?;
    let (size, rest) = rest.split_first_chunk()?;
    let (last, _) = rest.split_first_chunk()?;
    Some((
        i64::from_be_bytes(*physical_offset),
        i32::from_be_bytes(*size),
        i64::from_be_bytes(*last),
    ))
}

#[cfg(test)]
mod tests {
    use super::{Limits, Place, choose, unpack};

    const SIZE: i64 = 200;

    /// Units of 200 bytes at 0, 200, ..., with these tagsCodes.
    fn units(codes: &[i64]) -> Vec<u8> {
        let units = codes.iter().zip(0_i64..).map(|(code, index)| Place {
            physical_offset: index * SIZE,
            size: 200,
            queue_offset: *code,
        });
        units.flat_map(|unit| unit.pack()).collect()
    }

    fn queue_offsets(units: &[u8], limits: &Limits<'_>) -> (Vec<i64>, i64) {
        let chosen = choose(units, 50, limits).expect("all is well");
        let places = unpack(&chosen.places);
        let queue_offsets = places.map(|place| place.queue_offset).collect();
        (queue_offsets, chosen.after)
    }

    #[test]
    fn limits_end_a_read_at_the_first_wanted_unit_left_out() {
        let units = units(&[7, 8, 7, 8, 8, 7, 8]);
        let limits = |max_messages, max_bytes, tags_codes| Limits {
            max_messages,
            max_bytes,
            tags_codes,
        };
        let all = limits(9, 1800, None);
        assert_eq!(queue_offsets(&units, &all), ((50..57).collect(), 57));
        let two = limits(2, 1800, None);
        assert_eq!(queue_offsets(&units, &two), (vec![50, 51], 52));
        let bytes = limits(9, 599, None);
        assert_eq!(queue_offsets(&units, &bytes), (vec![50, 51], 52));
        let small = limits(9, 1, None);
        assert_eq!(queue_offsets(&units, &small), (vec![50], 51));
        let tagged = limits(2, 1800, Some(&[7][..]));
        assert_eq!(queue_offsets(&units, &tagged), (vec![50, 52], 55));
        let last = limits(3, 1800, Some(&[7][..]));
        assert_eq!(queue_offsets(&units, &last), (vec![50, 52, 55], 57));
        let none = limits(3, 1800, Some(&[1, 9][..]));
        assert_eq!(queue_offsets(&units, &none), (vec![], 57));
    }

    #[test]
    fn what_lies_back_to_back_is_one_run() {
        let limits = |tags_codes| Limits {
            max_messages: 9,
            max_bytes: 1800,
            tags_codes,
        };
        let units = units(&[7, 7, 8, 7, 8, 8]);
        let runs = |tags_codes| choose(&units, 50, &limits(tags_codes)).map(|chosen| chosen.runs);
        assert_eq!(runs(None), Some(vec![(0, 1200)]));
        let tagged = runs(Some(&[7][..]));
        assert_eq!(tagged, Some(vec![(0, 400), (600, 200)]));
        assert_eq!(runs(Some(&[9][..])), Some(vec![]));
    }

    #[test]
    fn what_is_out_of_order_or_no_record_is_left() {
        let all = Limits {
            max_messages: 9,
            max_bytes: 1800,
            tags_codes: None,
        };
        let place = |physical_offset, size| Place {
            physical_offset,
            size,
            queue_offset: 0,
        };
        let chosen = |places: [Place; 2]| {
            let units: Vec<u8> = places.iter().flat_map(Place::pack).collect();
            choose(&units, 0, &all)
        };
        assert!(chosen([place(0, 111), place(111, 111)]).is_some());
        assert_eq!(chosen([place(0, 111), place(110, 111)]), None);
        assert_eq!(chosen([place(0, 111), place(111, 110)]), None);
        assert_eq!(chosen([place(0, 111), place(111, -1)]), None);
        assert_eq!(chosen([place(0, 111), place(i64::MAX, 111)]), None);
    }

    #[test]
    fn a_place_is_packed_and_unpacked() {
        let place = Place {
            physical_offset: 1 << 40,
            size: -5,
            queue_offset: i64::MAX,
        };
        let packed = [&place.pack()[..], b"rest"].concat();
        assert_eq!(unpack(&packed).collect::<Vec<_>>(), [place]);
    }
}
