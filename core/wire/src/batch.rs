//! The body of a batch request.
//!
//! Repeated for each message, big-endian:
//!
//! ```text
//! offset  size  field
//! 0       4     size of this item, this field included
//! 4       4     magic, 0
//! 8       4     body CRC, 0
//! 12      4     flag
//! 16      4     body size n
//! 20      n     body
//! 20+n    2     properties size m
//! 22+n    m     properties text
//! ```

use std::ops::Range;

/// Most messages of a batch.
pub const MAX_MESSAGES: usize = 1_900;
/// Most keys of a batch together, beyond the first of each message.
pub const MAX_FURTHER_KEYS: usize = 20_000;

const HEAD_BYTES: usize = 20;
const LENGTH_BYTES: usize = 2;

/// One message of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The message's own flag.
    pub flag: i32,
    /// Where its body lies in the batch.
    pub body: Range<usize>,
    /// Where its properties lie in the batch; with them the item ends.
    pub text: Range<usize>,
}

/// Reads the item that begins at `at`; none where a size does not fit.
#[must_use]
pub fn item(batch: &[u8], at: usize) -> Option<Item> {
    let head = batch.get(at..at.checked_add(HEAD_BYTES)?)?;
    let size = usize::try_from(int32(head, 0)?).ok()?;
    let body_size = usize::try_from(int32(head, 16)?).ok()?;
    let body_at = at + HEAD_BYTES;
    let body_end = body_at.checked_add(body_size)?;
    let text_at = body_end.checked_add(LENGTH_BYTES)?;
    let end = at.checked_add(size)?;
    let length = batch.get(body_end..text_at)?.first_chunk()?;
    if text_at + usize::from(u16::from_be_bytes(*length)) != end || end > batch.len() {
        return None;
    }
    Some(Item {
        flag: int32(head, 12)?,
        body: body_at..body_end,
        text: text_at..end,
    })
}

fn int32(head: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(*head.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::item;

    const BATCH: &[u8] = b"\0\0\0\x1a\0\0\0\0\0\0\0\0\xff\xff\xff\xfe\0\0\0\x01x\0\x03abc";

    #[test]
    fn items_follow_each_other() {
        let two = [BATCH, BATCH].concat();
        let first = item(&two, 0).expect("whole");
        assert_eq!((first.flag, &two[first.body]), (-2, &b"x"[..]));
        assert_eq!(&two[first.text.clone()], b"abc");
        assert_eq!(
            item(&two, first.text.end).map(|second| second.text.end),
            Some(52)
        );
        assert_eq!(item(&two, 52), None);
        assert_eq!(item(&two, usize::MAX), None);
    }

    #[test]
    fn sizes_have_to_fit() {
        for (place, byte) in [
            (3, 0x1b),
            (3, 0x19),
            (0, 0x80),
            (19, 2),
            (16, 0x7f),
            (16, 0xff),
            (22, 4),
        ] {
            let mut broken = BATCH.to_vec();
            broken[place] = byte;
            assert_eq!(item(&broken, 0), None, "{place}");
        }
        for size in 0..BATCH.len() {
            assert_eq!(item(&BATCH[..size], 0), None);
        }
    }
}
