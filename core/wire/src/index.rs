//! Keys of an IndexFile: from packed rows to slots and entries.
//!
//! A row is in native byte order, as `round` makes it; slots and entries are big-endian:
//!
//! ```text
//! position  size  row                      entry
//! 0         4     hash of `topic#key`      its absolute value as Java has it, 0 where there is none
//! 4         8     physical offset          physical offset
//! 12        4                              seconds since the file's begin
//! 16        4                              what the slot held: number of the previous entry, or 0
//! ```
//!
//! A slot has 4 bytes: the number of its newest entry, 0 when empty. Entries count from 1.

/// Bytes of a row.
pub const ROW_BYTES: usize = 12;
const SLOT_BYTES: usize = 4;
const ENTRY_BYTES: usize = 20;

/// Returns how many bytes so many slots take; none where that is nothing, or too much.
#[must_use]
pub fn size_of(slot_count: usize) -> Option<usize> {
    let size_bytes = slot_count.checked_mul(SLOT_BYTES)?;
    (size_bytes > 0).then_some(size_bytes)
}

/// Puts keys into slots, one after the other; returns their entries and how many slots were empty.
///
/// Returns none, and changes nothing, where there is no slot or no number for an entry.
#[must_use]
pub fn put(
    slots: &mut [u8],
    rows: &[u8],
    entry_count: u32,
    seconds: i32,
) -> Option<(Vec<u8>, usize)> {
    let count = rows.len() / ROW_BYTES;
    i32::try_from(entry_count.checked_add(u32::try_from(count).ok()?)?).ok()?;
    place_of(0, slots.len())?;
    let mut entries = Vec::with_capacity(count * ENTRY_BYTES);
    let mut new_slots = 0;
    for (row, number) in rows.chunks_exact(ROW_BYTES).zip(entry_count + 1..) {
        let (hash, place) = row.split_first_chunk()?;
        let hash = key_hash(u32::from_ne_bytes(*hash));
        let place = i64::from_ne_bytes(place.try_into().ok()?);
        let at = place_of(hash, slots.len())?;
        let slot: &mut [u8; SLOT_BYTES] = slots.get_mut(at..)?.first_chunk_mut()?;
        let previous = std::mem::replace(slot, number.to_be_bytes());
        entries.extend_from_slice(&hash.to_be_bytes());
        entries.extend_from_slice(&place.to_be_bytes());
        entries.extend_from_slice(&seconds.to_be_bytes());
        entries.extend_from_slice(&previous);
        new_slots += usize::from(previous == [0; SLOT_BYTES]);
    }
    Some((entries, new_slots))
}

/// Returns the number of the newest entry of the slot of a key; none where there is no slot.
#[must_use]
pub fn newest(slots: &[u8], key_hash: u32) -> Option<i32> {
    let slot = slots
        .get(place_of(key_hash, slots.len())?..)?
        .first_chunk()?;
    Some(i32::from_be_bytes(*slot))
}

/// Returns where in all slots, so many bytes, that of a key begins; none where there is none.
fn place_of(key_hash: u32, size_bytes: usize) -> Option<usize> {
    let slot_count = size_bytes / SLOT_BYTES;
    let number = usize::try_from(key_hash).ok()?.checked_rem(slot_count)?;
    Some(number * SLOT_BYTES)
}

/// Returns the absolute value of a signed number, 0 for the one that has none.
fn key_hash(hash: u32) -> u32 {
    let hash = i32::from_ne_bytes(hash.to_ne_bytes());
    hash.checked_abs().map_or(0, i32::unsigned_abs)
}

#[cfg(test)]
mod tests {
    use super::{newest, put};

    fn rows(keys: &[(u32, i64)]) -> Vec<u8> {
        let row = |key: &(u32, i64)| [&key.0.to_ne_bytes()[..], &key.1.to_ne_bytes()].concat();
        keys.iter().flat_map(row).collect()
    }

    fn entry(hash: u32, place: i64, seconds: i32, previous: u32) -> Vec<u8> {
        [
            &hash.to_be_bytes()[..],
            &place.to_be_bytes(),
            &seconds.to_be_bytes(),
            &previous.to_be_bytes(),
        ]
        .concat()
    }

    #[test]
    fn keys_of_one_slot_point_to_each_other() {
        let mut slots = [0_u8, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0];
        // Of three slots: 2, 1 (which entry 5 has), 2 again, and -4, which is in 1.
        let keys = rows(&[(2, 100), (1, 101), (2, 102), (u32::MAX - 3, 103)]);
        let (entries, new_slots) = put(&mut slots, &keys, 7, 9).expect("room");
        let expected = [
            entry(2, 100, 9, 0),
            entry(1, 101, 9, 5),
            entry(2, 102, 9, 8),
            entry(4, 103, 9, 9),
        ];
        assert_eq!(entries, expected.concat());
        assert_eq!(new_slots, 1);
        assert_eq!(newest(&slots, 4), Some(11));
        assert_eq!(slots, [0, 0, 0, 0, 0, 0, 0, 11, 0, 0, 0, 10]);
    }

    #[test]
    fn a_hash_without_an_absolute_value_is_0() {
        let mut slots = [0_u8; 8];
        let (entries, _) = put(&mut slots, &rows(&[(0x8000_0000, -1)]), 0, 0).expect("room");
        assert_eq!(entries, entry(0, -1, 0, 0));
        assert_eq!(slots, [0, 0, 0, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn what_cannot_be_counted_changes_nothing() {
        let mut slots = [0_u8; 4];
        let keys = rows(&[(1, 1), (2, 2)]);
        assert_eq!(put(&mut slots, &keys, 0x7FFF_FFFE, 0), None);
        assert_eq!(put(&mut [], &keys, 0, 0), None);
        assert_eq!(slots, [0; 4]);
        assert_eq!(newest(&[], 1), None);
    }
}
