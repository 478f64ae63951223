//! Answers to stored sends: whole frames with a JSON header.

use std::iter::repeat_n;

const HEX: &[u8; 16] = b"0123456789ABCDEF";
const BROKER: &[u8] = b"\"MSG_REGION\":\"DefaultRegion\",\"TRACE_ON\":\"true\"";
const PREFIX_BYTES: usize = 8;
const LENGTH_BYTES: usize = 4;

/// What the answer to one stored request says.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// The result.
    pub code: i32,
    /// That of the request.
    pub opaque: i32,
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
        out.extend_from_slice(b"{\"code\":");
        put_number(i64::from(self.code), out);
        let is_half = !self.transaction_id.is_empty();
        out.extend_from_slice(b",\"extFields\":{");
        if !is_half {
            out.extend_from_slice(BROKER);
            out.push(b',');
        }
        out.extend_from_slice(b"\"msgId\":\"");
        for (index, physical_offset) in self.physical_offsets.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            out.extend_from_slice(self.store_host);
            put_hex(&physical_offset.to_be_bytes(), out);
        }
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
        let length = out.len() - start - PREFIX_BYTES;
        if let (Ok(length), Some(prefix)) = (
            u32::try_from(length),
            out.get_mut(start..start + PREFIX_BYTES),
        ) {
            let (frame_length, header_length) = prefix.split_at_mut(LENGTH_BYTES);
            frame_length.copy_from_slice(&length.saturating_add(4).to_be_bytes());
            header_length.copy_from_slice(&length.to_be_bytes());
        }
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
    fn the_answer_to_a_half_message_names_its_transaction() {
        let mut out = Vec::new();
        let answer = Answer {
            code: 0,
            opaque: 1,
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
