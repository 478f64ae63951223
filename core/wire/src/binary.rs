//! RocketMQ's binary header.
//!
//! | size | field |
//! |---|---|
//! | 2 | code |
//! | 1 | language |
//! | 2 | version |
//! | 4 | opaque |
//! | 4 | flag |
//! | 4 + n | remark, UTF-8 |
//! | 4 + n | fields: repeated 2 bytes of length, name, 4 bytes of length, value |
//!
//! All integers are big-endian and signed. A name or a value without bytes stands for null.

/// A header up to its fields, which are read one by one.
#[derive(Debug)]
pub struct Header<'a> {
    /// What is asked for.
    pub code: i16,
    /// Pairs the answer with the request.
    pub opaque: i32,
    /// Whether it is an answer, and whether one is wanted.
    pub flag: i32,
    fields: &'a [u8],
}

impl<'a> Header<'a> {
    /// Reads what comes before the fields; none where that is damaged, or the fields do not end
    /// with the header.
    #[must_use]
    pub fn read(header: &'a [u8]) -> Option<Self> {
        let mut rest = header;
        let code = i16::from_be_bytes(take(&mut rest)?);
        let _language_and_version: [u8; 3] = take(&mut rest)?;
        let opaque = i32::from_be_bytes(take(&mut rest)?);
        let flag = i32::from_be_bytes(take(&mut rest)?);
        let remark_bytes = i32::from_be_bytes(take(&mut rest)?);
        text(&mut rest, remark_bytes)?;
        let fields_bytes = i32::from_be_bytes(take(&mut rest)?);
        (usize::try_from(fields_bytes).ok()? == rest.len()).then_some(Header {
            code,
            opaque,
            flag,
            fields: rest,
        })
    }

    /// Returns name and value of the next field, `Some(None)` behind the last one, and none where
    /// it is damaged.
    #[allow(clippy::option_option, clippy::type_complexity)]
    pub fn field(&mut self) -> Option<Option<(&'a [u8], &'a [u8])>> {
        while !self.fields.is_empty() {
            let name_bytes = i16::from_be_bytes(take(&mut self.fields)?);
            let name = text(&mut self.fields, i32::from(name_bytes))?;
            let value_bytes = i32::from_be_bytes(take(&mut self.fields)?);
            let value = text(&mut self.fields, value_bytes)?;
            if !name.is_empty() && !value.is_empty() {
                return Some(Some((name, value)));
            }
        }
        Some(None)
    }
}

fn take<const SIZE: usize>(rest: &mut &[u8]) -> Option<[u8; SIZE]> {
    let (bytes, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(*bytes)
}

fn text<'a>(rest: &mut &'a [u8], size: i32) -> Option<&'a [u8]> {
    let (bytes, behind) = rest.split_at_checked(usize::try_from(size).ok()?)?;
    std::str::from_utf8(bytes).ok()?;
    *rest = behind;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::Header;

    const HEADER: &[u8] = b"\x01\x36\x0c\x01\xd9\xff\xff\xff\xf9\0\0\0\x02\0\0\0\x01r\
        \0\0\0\x17\0\x01a\0\0\0\0\0\x02bc\0\0\0\x02\xc3\xa9\0\0\0\0\0\0";

    #[test]
    fn fields_come_one_by_one() {
        let mut header = Header::read(HEADER).expect("whole");
        assert_eq!((header.code, header.opaque, header.flag), (310, -7, 2));
        let field = header.field().expect("sound");
        assert_eq!(field, Some((&b"bc"[..], "\u{e9}".as_bytes())));
        assert_eq!(header.field(), Some(None));
    }

    #[test]
    fn what_is_damaged_is_left() {
        for size in 0..HEADER.len() {
            assert!(Header::read(&HEADER[..size]).is_none());
        }
        assert!(Header::read(&[HEADER, b"\0"].concat()).is_none());
        for (place, byte) in [(13, 0x80), (16, 2), (17, 0xFF), (21, 0x18), (18, 0x80)] {
            let mut broken = HEADER.to_vec();
            broken[place] = byte;
            assert!(Header::read(&broken).is_none(), "{place}");
        }
        for (place, byte) in [
            (22, 0x80),
            (23, 40),
            (25, 0x80),
            (30, 0xFF),
            (36, 3),
            (37, 0xFF),
        ] {
            let mut broken = HEADER.to_vec();
            broken[place] = byte;
            let mut header = Header::read(&broken).expect("its head is sound");
            let mut fields = std::iter::from_fn(|| Some(header.field()));
            let last = fields.find(|field| !matches!(field, Some(Some(_))));
            assert_eq!(last, Some(None), "{place}");
        }
    }
}
