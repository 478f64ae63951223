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

/// Returns the packed places that a read takes of the units from a queue offset on, and the queue
/// offset where to go on: that of the first wanted unit left out, or behind the last one.
#[must_use]
pub fn choose(units: &[u8], queue_offset: i64, limits: &Limits<'_>) -> (Vec<u8>, i64) {
    let mut chosen = Vec::new();
    let (mut count, mut total, mut at) = (0_i64, 0_i64, queue_offset);
    for (physical_offset, size, code) in units.chunks_exact(UNIT_BYTES).filter_map(split) {
        if limits
            .tags_codes
            .is_none_or(|codes| codes.binary_search(&code).is_ok())
        {
            let with_this = total.saturating_add(i64::from(size));
            if count > 0 && (count >= limits.max_messages || with_this > limits.max_bytes) {
                break;
            }
            count += 1;
            total = with_this;
            let place = Place {
                physical_offset,
                size,
                queue_offset: at,
            };
            chosen.extend_from_slice(&place.pack());
        }
        at = at.saturating_add(1);
    }
    (chosen, at)
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

    /// Units of 100 bytes at 0, 100, ..., with these tagsCodes.
    fn units(codes: &[i64]) -> Vec<u8> {
        let units = codes.iter().zip(0_i64..).map(|(code, index)| Place {
            physical_offset: index * 100,
            size: 100,
            queue_offset: *code,
        });
        units.flat_map(|unit| unit.pack()).collect()
    }

    fn queue_offsets(units: &[u8], limits: &Limits<'_>) -> (Vec<i64>, i64) {
        let (packed, after) = choose(units, 50, limits);
        let places = unpack(&packed);
        (places.map(|place| place.queue_offset).collect(), after)
    }

    #[test]
    fn limits_end_a_read_at_the_first_wanted_unit_left_out() {
        let units = units(&[7, 8, 7, 8, 8, 7, 8]);
        let limits = |max_messages, max_bytes, tags_codes| Limits {
            max_messages,
            max_bytes,
            tags_codes,
        };
        let all = limits(9, 900, None);
        assert_eq!(queue_offsets(&units, &all), ((50..57).collect(), 57));
        let two = limits(2, 900, None);
        assert_eq!(queue_offsets(&units, &two), (vec![50, 51], 52));
        let bytes = limits(9, 299, None);
        assert_eq!(queue_offsets(&units, &bytes), (vec![50, 51], 52));
        let small = limits(9, 1, None);
        assert_eq!(queue_offsets(&units, &small), (vec![50], 51));
        let tagged = limits(2, 900, Some(&[7][..]));
        assert_eq!(queue_offsets(&units, &tagged), (vec![50, 52], 55));
        let last = limits(3, 900, Some(&[7][..]));
        assert_eq!(queue_offsets(&units, &last), (vec![50, 52, 55], 57));
        let none = limits(3, 900, Some(&[1, 9][..]));
        assert_eq!(queue_offsets(&units, &none), (vec![], 57));
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
