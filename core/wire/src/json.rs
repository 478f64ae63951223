//! A JSON reader for what headers hold: one object whose members are plain values, but for one.
//!
//! It is narrower than JSON: numbers are integers of at most 18 digits, escapes are no surrogates,
//! texts hold no control characters. What it does not read, somebody else may.

use crate::marks;

const MAX_DIGITS: usize = 18;

/// A value that is no object and no array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A text between its quotation marks.
    Text(Text<'a>),
    /// An integer.
    Number(i64),
    /// `true` or `false`.
    Bool(bool),
    /// `null`.
    Null,
}

/// A text as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text<'a> {
    /// The bytes between the quotation marks.
    pub raw: &'a [u8],
    /// Whether there is a backslash among them.
    pub has_escapes: bool,
}

/// A place in a JSON text.
#[derive(Debug)]
pub struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// Begins at the first byte.
    #[must_use]
    pub fn new(text: &'a [u8]) -> Self {
        Cursor { rest: text }
    }

    /// Passes white space and returns the next byte, which stays.
    pub fn peek(&mut self) -> Option<u8> {
        loop {
            match *self.rest.first()? {
                b' ' | b'\t' | b'\n' | b'\r' => self.rest = self.rest.get(1..)?,
                byte => return Some(byte),
            }
        }
    }

    /// Passes white space and one certain byte.
    pub fn pass(&mut self, wanted: u8) -> Option<()> {
        if self.peek()? != wanted {
            return None;
        }
        self.rest = self.rest.get(1..)?;
        Some(())
    }

    /// Tells whether nothing but white space is left.
    pub fn is_at_end(&mut self) -> bool {
        self.peek().is_none()
    }

    /// Goes to the next member of an object that `pass(b'{')` began; returns its name as it is
    /// written, or `Some(None)` behind the closing bracket.
    #[allow(clippy::option_option)]
    pub fn member(&mut self, is_first: bool) -> Option<Option<Text<'a>>> {
        // Most names are one letter, with no white space around.
        let quick = match self.rest {
            [b',', b'"', letter, b'"', b':', ..] if !is_first => Some((2, letter)),
            [b'"', letter, b'"', b':', ..] if is_first => Some((1, letter)),
            _ => None,
        };
        if let Some((at, b'a'..=b'z')) = quick {
            let raw = self.rest.get(at..=at)?;
            self.rest = self.rest.get(at + 3..)?;
            let has_escapes = false;
            return Some(Some(Text { raw, has_escapes }));
        }
        let next = self.peek()?;
        if next == b'}' {
            self.rest = self.rest.get(1..)?;
            return Some(None);
        }
        if !is_first {
            self.pass(b',')?;
        }
        self.pass(b'"')?;
        let name = self.text()?;
        self.pass(b':')?;
        Some(Some(name))
    }

    /// Reads a value that is no object and no array.
    pub fn value(&mut self) -> Option<Value<'a>> {
        match self.peek()? {
            b'"' => {
                self.rest = self.rest.get(1..)?;
                self.text().map(Value::Text)
            }
            b't' => self.word(b"true", Value::Bool(true)),
            b'f' => self.word(b"false", Value::Bool(false)),
            b'n' => self.word(b"null", Value::Null),
            _ => self.number(),
        }
    }

    fn word(&mut self, word: &[u8], value: Value<'a>) -> Option<Value<'a>> {
        self.rest = self.rest.strip_prefix(word)?;
        Some(value)
    }

    fn number(&mut self) -> Option<Value<'a>> {
        let is_end = |byte: &u8| !(byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.'));
        let size = self.rest.iter().position(is_end)?;
        let (digits, rest) = self.rest.split_at_checked(size)?;
        if matches!(rest.first(), Some(b'e' | b'E')) {
            return None;
        }
        self.rest = rest;
        integer(digits).map(Value::Number)
    }

    /// Reads a text behind its first quotation mark.
    fn text(&mut self) -> Option<Text<'a>> {
        let bytes = self.rest;
        let mut at = 0;
        let mut has_escapes = false;
        loop {
            at += marks::json_mark(bytes.get(at..)?);
            match *bytes.get(at)? {
                b'"' => break,
                b'\\' => {
                    has_escapes = true;
                    at += 2;
                    match *bytes.get(at - 1)? {
                        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {}
                        b'u' => {
                            escaped_unit(bytes.get(at..)?)?;
                            at += 4;
                        }
                        _ => return None,
                    }
                }
                _ => return None,
            }
        }
        self.rest = bytes.get(at + 1..)?;
        let raw = bytes.get(..at)?;
        Some(Text { raw, has_escapes })
    }
}

/// Reads an integer as everybody writes it: no plus sign, no zero in front, at most 18 digits.
#[must_use]
pub fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_zero = text == b"0";
    if digits.is_empty() || digits.len() > MAX_DIGITS || (digits[0] == b'0' && !is_zero) {
        return None;
    }
    let mut value = 0_i64;
    for &byte in digits {
        if !byte.is_ascii_digit() {
            return None;
        }
        value = value * 10 + i64::from(byte - b'0');
    }
    Some(if digits.len() == text.len() {
        value
    } else {
        -value
    })
}

/// Appends what a text that a cursor has read stands for.
///
/// Returns none for an escape that no cursor lets pass.
pub fn unescape(text: Text<'_>, out: &mut Vec<u8>) -> Option<()> {
    let mut rest = text.raw;
    if text.has_escapes {
        loop {
            let at = marks::either(rest, b'\\', b'\\');
            if at == rest.len() {
                break;
            }
            out.extend_from_slice(rest.get(..at)?);
            let plain = match *rest.get(at + 1)? {
                b'b' => 8,
                b'f' => 12,
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'u' => {
                    let unit = escaped_unit(rest.get(at + 2..)?)?;
                    if let Ok(ascii @ 0..0x80) = u8::try_from(unit) {
                        out.push(ascii);
                    } else {
                        let character = char::from_u32(unit)?;
                        out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                    }
                    rest = rest.get(at + 6..)?;
                    continue;
                }
                same => same,
            };
            out.push(plain);
            rest = rest.get(at + 2..)?;
        }
    }
    out.extend_from_slice(rest);
    Some(())
}

/// Reads four hexadecimal digits; none where they stand for half of a pair.
fn escaped_unit(digits: &[u8]) -> Option<u32> {
    // What separates properties comes again and again.
    if let [b'0', b'0', b'0', digit @ b'1'..=b'9', ..] = *digits {
        return Some(u32::from(digit - b'0'));
    }
    let mut unit = 0;
    for &digit in digits.first_chunk::<4>()? {
        unit = unit << 4 | char::from(digit).to_digit(16)?;
    }
    (!(0xD800..0xE000).contains(&unit)).then_some(unit)
}

#[cfg(test)]
mod tests {
    use super::{Cursor, Text, Value, integer, unescape};

    fn value(text: &[u8]) -> Option<Value<'_>> {
        Cursor::new(text).value()
    }

    fn plain(raw: &[u8]) -> Value<'_> {
        Value::Text(Text {
            raw,
            has_escapes: false,
        })
    }

    #[test]
    fn values_are_read() {
        assert_eq!(value(b" \"a\" "), Some(plain(b"a")));
        assert_eq!(value(b"-17,"), Some(Value::Number(-17)));
        assert_eq!(value(b"true"), Some(Value::Bool(true)));
        assert_eq!(value(b"false"), Some(Value::Bool(false)));
        assert_eq!(value(b"null"), Some(Value::Null));
    }

    #[test]
    fn what_is_odd_is_left() {
        for odd in [
            &b"{}"[..],
            b"[]",
            b"\"\x01\"",
            b"\"\\x\"",
            b"\"\\ud83d\"",
            b"\"\\u12\"",
            b"\"open",
            b"1.5,",
            b"1e2,",
            b"1E2,",
            b"01,",
            b"-0,",
            b"+1,",
            b"-,",
            b"1234567890123456789,",
            b"tru",
            b"",
        ] {
            assert_eq!(value(odd), None, "{odd:?}");
        }
        assert_eq!(
            integer(b"999999999999999999"),
            Some(999_999_999_999_999_999)
        );
        assert_eq!(integer(b"0"), Some(0));
    }

    #[test]
    fn escapes_stand_for_their_characters() {
        let raw = br#"a\u0001\"\\\/\b\f\n\r\t\u00e9\u6C34z"#;
        let mut out = Vec::new();
        let text = Text {
            raw,
            has_escapes: true,
        };
        unescape(text, &mut out).expect("all are known");
        assert_eq!(out, "a\u{1}\"\\/\u{8}\u{c}\n\r\té水z".as_bytes());
    }

    #[test]
    fn members_come_one_by_one() {
        let mut cursor = Cursor::new(b"{ \"a\" : 1 , \"b\":null} ");
        cursor.pass(b'{').expect("an object");
        assert_eq!(
            cursor.member(true).flatten().map(|n| n.raw),
            Some(&b"a"[..])
        );
        assert_eq!(cursor.value(), Some(Value::Number(1)));
        assert_eq!(
            cursor.member(false).flatten().map(|n| n.raw),
            Some(&b"b"[..])
        );
        assert_eq!(cursor.value(), Some(Value::Null));
        assert_eq!(cursor.member(false), Some(None));
        assert!(cursor.is_at_end());
    }
}
