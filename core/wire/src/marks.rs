//! Looks for bytes with a meaning, eight at a time.

const EACH: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = EACH << 7;
const STEP: usize = 8;

/// Returns where a JSON text goes on with a quotation mark, a backslash or a control character;
/// the length where it does not.
#[must_use]
pub fn json_mark(text: &[u8]) -> usize {
    first(text, |word| {
        equal(word, b'"') | equal(word, b'\\') | (word.wrapping_sub(EACH * 0x20) & !word)
    })
}

/// Returns where a byte is the first or the second of two; the length where none is.
#[must_use]
pub fn either(text: &[u8], one: u8, other: u8) -> usize {
    first(text, |word| equal(word, one) | equal(word, other))
}

/// Returns the place of the first byte whose high bit is set in the marks of its word.
///
/// What stands behind such a byte in the word may be marked without reason.
#[inline]
fn first(text: &[u8], marks: impl Fn(u64) -> u64) -> usize {
    let mut at = 0;
    let mut words = text.chunks_exact(STEP);
    for word in &mut words {
        if let Some(place) = place_in(word, &marks) {
            return at + place;
        }
        at += STEP;
    }
    // Filled up with what nobody looks for.
    let mut last = [b'x'; STEP];
    for (place, &byte) in last.iter_mut().zip(words.remainder()) {
        *place = byte;
    }
    place_in(&last, &marks).map_or(text.len(), |place| at + place)
}

#[inline]
fn place_in(word: &[u8], marks: impl Fn(u64) -> u64) -> Option<usize> {
    let found = marks(u64::from_le_bytes(*word.first_chunk()?)) & HIGH_BITS;
    (found != 0).then(|| found.trailing_zeros() as usize / 8)
}

/// Marks bytes that are zero once they are compared with another.
#[inline]
fn equal(word: u64, byte: u8) -> u64 {
    let differences = word ^ (EACH * u64::from(byte));
    differences.wrapping_sub(EACH) & !differences
}

#[cfg(test)]
mod tests {
    use super::{either, json_mark};

    #[test]
    fn the_first_mark_is_found_wherever_it_stands() {
        for size in 0..40 {
            for at in 0..size {
                for mark in 0..=255 {
                    let mut text = vec![0xE9; size];
                    text[at] = mark;
                    text[size - 1] = if at + 1 < size { b'"' } else { mark };
                    let is_mark = |&byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
                    let expected = text.iter().position(is_mark).unwrap_or(size);
                    assert_eq!(json_mark(&text), expected, "{text:?}");
                    let is_either = |&byte: &u8| matches!(byte, 1 | 2);
                    let expected = text.iter().position(is_either).unwrap_or(size);
                    assert_eq!(either(&text, 1, 2), expected, "{text:?}");
                }
            }
        }
    }
}
