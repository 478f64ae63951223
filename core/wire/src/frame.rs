//! Cuts remoting frames with a JSON header out of what one read brought.
//!
//! | byte | size | content |
//! |---|---|---|
//! | 0 | 4 | number of bytes that follow this field |
//! | 4 | 1 | how the header is written: 0 JSON |
//! | 5 | 3 | header length |
//! | 8 | header length | header |
//! | ... | rest | body |
//!
//! All integers are big-endian.

const FRAME_MAX_BYTES: usize = 16_777_216;
const HEADER_MAX_BYTES: usize = 65_536;
const LENGTH_BYTES: usize = 4;
const PREFIX_BYTES: usize = 8;

/// One whole frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The JSON header.
    pub header: &'a [u8],
    /// Where the body begins in the read.
    pub body_at: usize,
    /// Where the frame ends in the read.
    pub end: usize,
}

/// Returns the frame that begins at `at`; none where it is unfinished, damaged or not in JSON.
#[must_use]
pub fn cut(read: &[u8], at: usize) -> Option<Frame<'_>> {
    let prefix = read.get(at..at.checked_add(PREFIX_BYTES)?)?;
    let (length, header_word) = prefix.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    // A header word whose first byte is not 0 is larger than any header may be.
    let header_bytes = usize::try_from(u32::from_be_bytes(header_word.try_into().ok()?)).ok()?;
    if length > FRAME_MAX_BYTES - LENGTH_BYTES
        || header_bytes > HEADER_MAX_BYTES
        || header_bytes + LENGTH_BYTES > length
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
        assert_eq!(frame.header, b"{}");
        assert_eq!(&read[frame.body_at..frame.end], b"abc");
        assert_eq!(cut(read, frame.end), None);
        assert_eq!(cut(&read[..12], 0), None);
        assert_eq!(cut(read, usize::MAX), None);
    }

    #[test]
    fn what_breaks_a_limit_is_no_frame() {
        for damaged in [
            b"\0\0\0\x03\0\0\0\0\0\0",
            b"\0\0\0\x05\0\0\0\x02{}",
            b"\0\0\0\x06\x01\0\0\x02{}",
            b"\x01\0\0\0\0\0\0\x02{}",
        ] {
            assert_eq!(cut(damaged, 0), None);
        }
        let mut long = vec![0, 2, 0, 0, 0, 1, 0, 1];
        long.resize(0x2_0004, b'x');
        assert_eq!(cut(&long, 0), None);
        long[7] = 0;
        assert!(cut(&long, 0).is_some());
    }
}
