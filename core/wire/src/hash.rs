//! Java's `String.hashCode`: `h = 31 * h + unit` over UTF-16 units, in 32 bits.

const P1: u32 = 31;
const P2: u32 = P1 * P1;
const P3: u32 = P2 * P1;
const P4: u32 = P3 * P1;

/// Returns the hash of a UTF-8 text that continues from `seed`; none where it is not UTF-8.
#[must_use]
pub fn hash_text(seed: u32, text: &[u8]) -> Option<u32> {
    if text.is_ascii() {
        return Some(hash_ascii(seed, text));
    }
    let text = std::str::from_utf8(text).ok()?;
    Some(text.encode_utf16().fold(seed, |h, unit| {
        h.wrapping_mul(P1).wrapping_add(u32::from(unit))
    }))
}

/// Returns the hash as ConsumeQueue units carry it: Java's signed number in 64 bits.
#[must_use]
pub fn tags_code(tag: &[u8]) -> Option<i64> {
    hash_text(0, tag).map(|hash| i64::from(i32::from_ne_bytes(hash.to_ne_bytes())))
}

fn hash_ascii(seed: u32, text: &[u8]) -> u32 {
    let mut hash = seed;
    // Four at a time: only one of the multiplications waits for the four before.
    let fours = text.chunks_exact(4);
    let rest = fours.remainder();
    for four in fours {
        let tail = four.iter().zip([P3, P2, P1, 1]);
        let tail = tail.fold(0_u32, |sum, (&byte, power)| sum + u32::from(byte) * power);
        hash = hash.wrapping_mul(P4).wrapping_add(tail);
    }
    for &byte in rest {
        hash = hash.wrapping_mul(P1).wrapping_add(u32::from(byte));
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::{hash_text, tags_code};

    #[test]
    fn hashes_are_those_of_java() {
        // "hello".hashCode(), "TagA".hashCode(), and one that is negative.
        assert_eq!(hash_text(0, b"hello"), Some(99_162_322));
        assert_eq!(tags_code(b"TagA"), Some(2_598_919));
        assert_eq!(tags_code(b"Monday"), Some(-1_984_635_600));
        assert_eq!(hash_text(0, b""), Some(0));
    }

    #[test]
    fn units_are_those_of_utf_16() {
        // U+1F600 is D83D DE00: 31 * 0xD83D + 0xDE00.
        assert_eq!(
            hash_text(0, "\u{1F600}".as_bytes()),
            Some(31 * 0xD83D + 0xDE00)
        );
        assert_eq!(hash_text(0, "é".as_bytes()), Some(0xE9));
        assert_eq!(hash_text(0, b"\xFF"), None);
    }

    #[test]
    fn a_hash_goes_on_from_what_comes_before() {
        let topic = hash_text(0, b"orders#").expect("text");
        assert_eq!(hash_text(topic, b"key-1"), hash_text(0, b"orders#key-1"));
    }
}
