//! Cuts remoting frames out of what one read brought.
//!
//! | byte | size | content |
//! |---|---|---|
//! | 0 | 4 | number of bytes that follow this field |
//! | 4 | 1 | how the header is written: 0 JSON, 1 RocketMQ's binary form |
//! | 5 | 3 | header length |
//! | 8 | header length | header |
//! | ... | rest | body |
//!
//! All integers are big-endian.

const FRAME_MAX_BYTES: usize = 16_777_216;
const HEADER_MAX_BYTES: usize = 262_144;
const LENGTH_BYTES: usize = 4;
const PREFIX_BYTES: usize = 8;
const BINARY: u8 = 1;

/// One whole frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The header.
    pub header: &'a [u8],
    /// Whether the header is in the binary form, and not in JSON.
    pub is_binary: bool,
    /// Where the body begins in the read.
    pub body_at: usize,
    /// Where the frame ends in the read.
    pub end: usize,
}

/// Returns the frame that begins at `at`; none where it is unfinished or damaged.
#[must_use]
pub fn cut(read: &[u8], at: usize) -> Option<Frame<'_>> {
    let prefix = read.get(at..at.checked_add(PREFIX_BYTES)?)?;
    let (length, header_word) = prefix.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let [form, high, middle, low] = *header_word.first_chunk()?;
    let header_bytes = usize::try_from(u32::from_be_bytes([0, high, middle, low])).ok()?;
    if length > FRAME_MAX_BYTES - LENGTH_BYTES
        || header_bytes > HEADER_MAX_BYTES
        || header_bytes + LENGTH_BYTES > length
        || form > BINARY
    {
        return None;
    }
    let end = at + LENGTH_BYTES + length;
    let body_at = at + PREFIX_BYTES + header_bytes;
    if end > read.len() {
        return None;
    }
    let header = read.get(at + PREFIX_BYTES..body_at)?;
    Some(Frame {
        header,
        is_binary: form == BINARY,
        body_at,
        end,
    })
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn a_frame_has_header_and_body() {
        let read = b"\0\0\0\x09\0\0\0\x02{}abc\0\0\0";
        let frame = cut(read, 0).expect("a whole frame");
        assert_eq!((frame.header, frame.is_binary), (&b"{}"[..], false));
        assert_eq!(&read[frame.body_at..frame.end], b"abc");
        assert_eq!(cut(read, frame.end), None);
        assert_eq!(cut(&read[..12], 0), None);
        assert_eq!(cut(read, usize::MAX), None);
        let frame = cut(b"\0\0\0\x06\x01\0\0\x02{}", 0).expect("a whole frame");
        assert_eq!((frame.header, frame.is_binary), (&b"{}"[..], true));
    }

    #[test]
    fn what_breaks_a_limit_is_no_frame() {
        for damaged in [
            b"\0\0\0\x03\0\0\0\0\0\0",
            b"\0\0\0\x05\0\0\0\x02{}",
            b"\0\0\0\x06\x02\0\0\x02{}",
            b"\x01\0\0\0\0\0\0\x02{}",
        ] {
            assert_eq!(cut(damaged, 0), None);
        }
        let mut long = vec![0, 8, 0, 0, 0, 4, 0, 1];
        long.resize(0x8_0004, b'x');
        assert_eq!(cut(&long, 0), None);
        long[7] = 0;
        assert!(cut(&long, 0).is_some());
    }
}
