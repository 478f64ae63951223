//! Answers to stored sends: whole frames, in the form that the request had.
//!
//! The byte table of the binary header is in `binary`; its fields stand in another order than those
//! of JSON, which is the alphabet's.

use std::iter::repeat_n;

const HEX: &[u8; 16] = b"0123456789ABCDEF";
const BROKER: &[u8] = b"\"MSG_REGION\":\"DefaultRegion\",\"TRACE_ON\":\"true\"";
const PREFIX_BYTES: usize = 8;
const LENGTH_BYTES: usize = 4;
/// What a binary header calls the language `PYTHON`.
const PYTHON: u8 = 3;
const VERSION: i16 = 479;
const RESPONSE_FLAG: i32 = 1;

/// What the answer to one stored request says.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// The result.
    pub code: i32,
    /// That of the request.
    pub opaque: i32,
    /// Whether it has a binary header, and not one in JSON.
    pub is_binary: bool,
    /// The queue that was asked for.
    pub queue_id: i32,
    /// Where the first of the messages stands in it.
    pub queue_offset: i64,
    /// Who stored them, in capital hexadecimal digits.
    pub store_host: &'a [u8],
    /// Where they lie in the CommitLog.
    pub physical_offsets: &'a [i64],
    /// That of a half message, which needs no escape in JSON; empty for all others.
    pub transaction_id: &'a [u8],
}

impl Answer<'_> {
    /// Appends the frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend(repeat_n(0, PREFIX_BYTES));
        if self.is_binary {
            self.write_binary(out);
        } else {
            self.write_json(out);
        }
        let length = out.len() - start - PREFIX_BYTES;
        if let (Ok(length), Some(prefix)) = (
            u32::try_from(length),
            out.get_mut(start..start + PREFIX_BYTES),
        ) {
            let (frame_length, header_length) = prefix.split_at_mut(LENGTH_BYTES);
            frame_length.copy_from_slice(&length.saturating_add(4).to_be_bytes());
            header_length.copy_from_slice(&length.to_be_bytes());
            header_length[0] = u8::from(self.is_binary);
        }
    }

    fn write_json(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"code\":");
        put_number(i64::from(self.code), out);
        let is_half = !self.transaction_id.is_empty();
        out.extend_from_slice(b",\"extFields\":{");
        if !is_half {
            out.extend_from_slice(BROKER);
            out.push(b',');
        }
        out.extend_from_slice(b"\"msgId\":\"");
        self.put_ids(out);
        out.extend_from_slice(b"\",\"queueId\":\"");
        put_number(i64::from(self.queue_id), out);
        out.extend_from_slice(b"\",\"queueOffset\":\"");
        put_number(self.queue_offset, out);
        if is_half {
            out.extend_from_slice(b"\",");
            out.extend_from_slice(BROKER);
            out.extend_from_slice(b",\"transactionId\":\"");
            out.extend_from_slice(self.transaction_id);
        }
        out.extend_from_slice(b"\"},\"flag\":1,\"language\":\"PYTHON\",\"opaque\":");
        put_number(i64::from(self.opaque), out);
        out.extend_from_slice(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}");
    }

    fn write_binary(&self, out: &mut Vec<u8>) {
        // A code that does not fit arrives as its low 16 bits.
        out.extend_from_slice(&self.code.to_be_bytes()[2..]);
        out.push(PYTHON);
        out.extend_from_slice(&VERSION.to_be_bytes());
        out.extend_from_slice(&self.opaque.to_be_bytes());
        out.extend_from_slice(&RESPONSE_FLAG.to_be_bytes());
        let no_remark = [0; LENGTH_BYTES];
        out.extend_from_slice(&no_remark);
        put_sized(out, |out| {
            put_field(b"msgId", out, |out| self.put_ids(out));
            put_field(b"queueId", out, |out| put_number(self.queue_id.into(), out));
            put_field(b"queueOffset", out, |out| {
                put_number(self.queue_offset, out);
            });
            put_field(b"MSG_REGION", out, |out| {
                out.extend_from_slice(b"DefaultRegion");
            });
            put_field(b"TRACE_ON", out, |out| out.extend_from_slice(b"true"));
        });
    }

    fn put_ids(&self, out: &mut Vec<u8>) {
        for (index, physical_offset) in self.physical_offsets.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            out.extend_from_slice(self.store_host);
            put_hex(&physical_offset.to_be_bytes(), out);
        }
    }
}

/// Appends a field of a binary header.
fn put_field(name: &[u8], out: &mut Vec<u8>, put_value: impl FnOnce(&mut Vec<u8>)) {
    out.push(0);
    out.push(u8::try_from(name.len()).unwrap_or_default());
    out.extend_from_slice(name);
    put_sized(out, put_value);
}

/// Appends something behind its size in four bytes.
fn put_sized(out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; LENGTH_BYTES]);
    put(out);
    let size = u32::try_from(out.len() - start - LENGTH_BYTES).unwrap_or_default();
    if let Some(place) = out.get_mut(start..start + LENGTH_BYTES) {
        place.copy_from_slice(&size.to_be_bytes());
    }
}

/// Appends bytes as capital hexadecimal digits.
pub fn put_hex(bytes: &[u8], out: &mut Vec<u8>) {
    for &byte in bytes {
        let digits = [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]];
        out.extend_from_slice(&digits);
    }
}

pub(crate) fn put_number(number: i64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = number.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(rest % 10).unwrap_or_default();
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::{Answer, put_number};

    #[test]
    fn an_answer_is_a_whole_frame() {
        let mut out = Vec::new();
        let answer = Answer {
            code: 10,
            opaque: -5,
            is_binary: false,
            queue_id: 3,
            queue_offset: 42,
            store_host: b"7F00000100002A9F",
            physical_offsets: &[0x1F, 0x100],
            transaction_id: b"",
        };
        answer.write(&mut out);
        let header = concat!(
            r#"{"code":10,"extFields":{"MSG_REGION":"DefaultRegion","TRACE_ON":"true","#,
            r#""msgId":"7F00000100002A9F000000000000001F,7F00000100002A9F0000000000000100","#,
            r#""queueId":"3","queueOffset":"42"},"flag":1,"language":"PYTHON","opaque":-5,"#,
            r#""serializeTypeCurrentRPC":"JSON","version":479}"#
        );
        assert_eq!(std::str::from_utf8(&out[8..]), Ok(header));
        let length = u8::try_from(header.len() - 256).expect("below 512");
        assert_eq!(out[..8], [0, 0, 1, length + 4, 0, 0, 1, length]);
    }

    #[test]
    fn a_binary_answer_is_one_too() {
        let mut out = Vec::new();
        let answer = Answer {
            code: 10,
            opaque: -5,
            is_binary: true,
            queue_id: 3,
            queue_offset: 42,
            store_host: b"7F",
            physical_offsets: &[],
            transaction_id: b"",
        };
        answer.write(&mut out);
        let expected = [
            &b"\0\0\0\x74\x01\0\0\x70\0\x0a\x03\x01\xdf\xff\xff\xff\xfb\0\0\0\x01\0\0\0\0"[..],
            b"\0\0\0\x5b\0\x05msgId\0\0\0\0\0\x07queueId\0\0\0\x013\0\x0bqueueOffset\0\0\0\x0242",
            b"\0\x0aMSG_REGION\0\0\0\x0dDefaultRegion\0\x08TRACE_ON\0\0\0\x04true",
        ]
        .concat();
        assert_eq!(out, expected);
    }

    #[test]
    fn the_answer_to_a_half_message_names_its_transaction() {
        let mut out = Vec::new();
        let answer = Answer {
            code: 0,
            opaque: 1,
            is_binary: false,
            queue_id: 3,
            queue_offset: 42,
            store_host: b"7F00000100002A9F",
            physical_offsets: &[0x1F],
            transaction_id: b"U-1",
        };
        answer.write(&mut out);
        let header = concat!(
            r#"{"code":0,"extFields":{"msgId":"7F00000100002A9F000000000000001F","#,
            r#""queueId":"3","queueOffset":"42","MSG_REGION":"DefaultRegion","TRACE_ON":"true","#,
            r#""transactionId":"U-1"},"flag":1,"language":"PYTHON","opaque":1,"#,
            r#""serializeTypeCurrentRPC":"JSON","version":479}"#
        );
        assert_eq!(std::str::from_utf8(&out[8..]), Ok(header));
    }

    #[test]
    fn numbers_are_written_in_full() {
        for number in [0, 7, -1, 10, i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            put_number(number, &mut out);
            assert_eq!(out, number.to_string().into_bytes());
        }
    }
}
