//! The header of a send: codes 310 and 320 with one-letter names, code 10 with long ones, in JSON
//! or in the binary form.
//!
//! Only what everybody reads alike is read: other kinds of values, names that come twice or that
//! are escaped, both forms of names together, and values out of range are somebody else's.

use crate::binary;
use crate::frame::Frame;
use crate::grants::SignedFields;
use crate::json::{Cursor, Text, Value, integer};

const SEND: i64 = 10;
const SEND_SHORT: i64 = 310;
const SEND_BATCH: i64 = 320;
const ONEWAY: i64 = 2;

/// The names of the fields in the long form, in the order of the letters of the short one.
const LONG_NAMES: [&[u8]; 14] = [
    b"producerGroup",
    b"topic",
    b"defaultTopic",
    b"defaultTopicQueueNums",
    b"queueId",
    b"sysFlag",
    b"bornTimestamp",
    b"flag",
    b"properties",
    b"reconsumeTimes",
    b"unitMode",
    b"maxReconsumeTimes",
    b"batch",
    b"bname",
];
const TOPIC: usize = 1;
const QUEUE_ID: usize = 4;
const SYS_FLAG: usize = 5;
const BORN_TIMESTAMP: usize = 6;
const FLAG: usize = 7;
const PROPERTIES: usize = 8;
const RECONSUME_TIMES: usize = 9;
const BATCH: usize = 12;
const BROKER_NAME: usize = 13;
/// Those up to the message's own flag.
const REQUIRED: u32 = 0xFF;
const BROKER_NAME_BIT: u32 = 1 << BROKER_NAME;

/// What the header of a send says, as far as storing and answering it need to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendHeader<'a> {
    /// Pairs the answer with the request.
    pub opaque: i32,
    /// Whether it is in the binary form, as its answer will be.
    pub is_binary: bool,
    /// Whether no answer is wanted.
    pub is_oneway: bool,
    /// Whether the body holds several messages.
    pub is_batch: bool,
    /// The topic.
    pub topic: &'a [u8],
    /// The queue as the client wishes it.
    pub queue_id: i32,
    /// The message's sysFlag, whatever bits it has.
    pub sys_flag: i32,
    /// When the message was made.
    pub born_timestamp_ms: i64,
    /// The message's own flag.
    pub flag: i32,
    /// The properties as the header has them.
    pub properties: Text<'a>,
    /// How often the message was tried.
    pub reconsume_times: i32,
    /// The broker that is meant, none where none is named.
    pub broker_name: Option<&'a [u8]>,
}

#[derive(Default)]
struct Fields<'a> {
    short: u32,
    long: u32,
    topic: &'a [u8],
    numbers: [i64; RECONSUME_TIMES + 1],
    properties: Option<Text<'a>>,
    is_batch: bool,
    /// That of the short form.
    broker_name: Option<Value<'a>>,
    /// That of the long form, which means nothing in the short one.
    long_broker_name: Option<Value<'a>>,
}

/// Gets every field of a header, as it is written.
trait Collect<'a> {
    /// Takes a field; none where it is one that only others can read.
    fn put(&mut self, name: &'a [u8], value: Value<'a>) -> Option<()>;
}

impl<'a> Collect<'a> for () {
    fn put(&mut self, _name: &'a [u8], _value: Value<'a>) -> Option<()> {
        Some(())
    }
}

impl<'a> Collect<'a> for SignedFields<'a> {
    fn put(&mut self, name: &'a [u8], value: Value<'a>) -> Option<()> {
        self.add(name, value)
    }
}

/// Reads the header of a frame; none for one that is not a plain send.
#[must_use]
pub fn read<'a>(frame: &Frame<'a>) -> Option<SendHeader<'a>> {
    read_any(frame, &mut ())
}

/// Reads the header of a frame and what may be signed of it; none for one that is not a plain send,
/// or has a field that is no text.
#[must_use]
pub fn read_signed<'a>(frame: &Frame<'a>) -> Option<(SendHeader<'a>, SignedFields<'a>)> {
    let mut fields = SignedFields::default();
    Some((read_any(frame, &mut fields)?, fields))
}

fn read_any<'a>(frame: &Frame<'a>, all: &mut impl Collect<'a>) -> Option<SendHeader<'a>> {
    if frame.is_binary {
        read_binary(frame.header, all)
    } else {
        read_json(frame.header, all)
    }
}

fn read_binary<'a>(header: &'a [u8], all: &mut impl Collect<'a>) -> Option<SendHeader<'a>> {
    let mut header = binary::Header::read(header)?;
    let mut fields = Fields::default();
    while let Some((name, raw)) = header.field()? {
        let has_escapes = false;
        let value = Value::Text(Text { raw, has_escapes });
        all.put(name, value)?;
        fields.add(name, value)?;
    }
    let numbers = [header.code.into(), header.flag, header.opaque];
    fields.into_header(true, numbers.map(i64::from))
}

fn read_json<'a>(header: &'a [u8], all: &mut impl Collect<'a>) -> Option<SendHeader<'a>> {
    std::str::from_utf8(header).ok()?;
    let mut cursor = Cursor::new(header);
    cursor.pass(b'{')?;
    let mut numbers = [None; 4];
    let mut fields = None;
    let mut is_first = true;
    while let Some(name) = cursor.member(is_first)? {
        is_first = false;
        if name.has_escapes {
            return None;
        }
        let place = match name.raw {
            b"code" => 0,
            b"flag" => 1,
            b"opaque" => 2,
            b"version" => 3,
            b"extFields" => {
                if fields.replace(read_fields(&mut cursor, all)?).is_some() {
                    return None;
                }
                continue;
            }
            // Not a name of the protocol, but one that the other reader knows.
            b"serialize_type" => return None,
            _ => {
                cursor.value()?;
                continue;
            }
        };
        if numbers[place].replace(int32(cursor.value()?)?).is_some() {
            return None;
        }
    }
    if !cursor.is_at_end() {
        return None;
    }
    let [code, flag, opaque, _] = numbers;
    fields?.into_header(false, [code?, flag.unwrap_or(0), opaque.unwrap_or(0)])
}

fn read_fields<'a>(cursor: &mut Cursor<'a>, all: &mut impl Collect<'a>) -> Option<Fields<'a>> {
    cursor.pass(b'{')?;
    let mut fields = Fields::default();
    let mut is_first = true;
    while let Some(name) = cursor.member(is_first)? {
        is_first = false;
        if name.has_escapes {
            return None;
        }
        let value = cursor.value()?;
        all.put(name.raw, value)?;
        fields.add(name.raw, value)?;
    }
    Some(fields)
}

impl<'a> Fields<'a> {
    fn add(&mut self, name: &[u8], value: Value<'a>) -> Option<()> {
        let (index, is_short) = match *name {
            [letter @ b'a'..=b'n'] => (usize::from(letter - b'a'), true),
            [_] => (LONG_NAMES.len(), true),
            _ => {
                let place = LONG_NAMES.iter().position(|&long| long == name);
                (place.unwrap_or(LONG_NAMES.len()), false)
            }
        };
        if index == LONG_NAMES.len() {
            return Some(());
        }
        let bit = 1 << index;
        let seen = if is_short {
            &mut self.short
        } else {
            &mut self.long
        };
        if *seen & bit != 0 {
            return None;
        }
        *seen |= bit;
        match (index, is_short) {
            (BROKER_NAME, true) => self.broker_name = Some(value),
            (BROKER_NAME, false) => self.long_broker_name = Some(value),
            _ => take_field(self, index, value)?,
        }
        Some(())
    }

    /// Returns the header with these fields, its code, flag and opaque, if it is that of a plain
    /// send.
    fn into_header(self, is_binary: bool, numbers: [i64; 3]) -> Option<SendHeader<'a>> {
        let [code, flag, opaque] = numbers;
        let (is_batch, broker_name) = match code {
            SEND_SHORT | SEND_BATCH if is_of(self.short, self.long & !BROKER_NAME_BIT) => {
                (code == SEND_BATCH || self.is_batch, self.broker_name)
            }
            SEND if is_of(self.long, self.short) => (self.is_batch, self.long_broker_name),
            _ => return None,
        };
        if flag & !ONEWAY != 0 {
            return None;
        }
        Some(SendHeader {
            opaque: i32::try_from(opaque).ok()?,
            is_binary,
            is_oneway: flag & ONEWAY != 0,
            is_batch,
            topic: self.topic,
            queue_id: i32::try_from(self.numbers[QUEUE_ID]).ok()?,
            sys_flag: i32::try_from(self.numbers[SYS_FLAG]).ok()?,
            born_timestamp_ms: self.numbers[BORN_TIMESTAMP],
            flag: i32::try_from(self.numbers[FLAG]).ok()?,
            properties: self.properties.unwrap_or(Text {
                raw: b"",
                has_escapes: false,
            }),
            reconsume_times: i32::try_from(self.numbers[RECONSUME_TIMES]).ok()?,
            broker_name: name(broker_name)?,
        })
    }
}

/// Tells whether all that a form needs was there, and nothing of the other form.
fn is_of(form: u32, other: u32) -> bool {
    form & REQUIRED == REQUIRED && other == 0
}

fn take_field<'a>(fields: &mut Fields<'a>, index: usize, value: Value<'a>) -> Option<()> {
    match (index, value) {
        (TOPIC, Value::Text(text)) if !text.has_escapes => fields.topic = text.raw,
        (0 | 2, Value::Text(_)) | (11, Value::Null) => {}
        (BORN_TIMESTAMP, value) => fields.numbers[BORN_TIMESTAMP] = int64(value)?,
        (3..=FLAG | RECONSUME_TIMES, value) => fields.numbers[index] = int32(value)?,
        (11, value) => {
            int32(value)?;
        }
        (PROPERTIES, Value::Text(text)) => fields.properties = Some(text),
        (10, value) => {
            boolean(value)?;
        }
        (BATCH, value) => fields.is_batch = boolean(value)?,
        _ => return None,
    }
    Some(())
}

/// Reads the name of a broker, which may be null or missing.
#[allow(clippy::option_option)]
fn name(value: Option<Value<'_>>) -> Option<Option<&[u8]>> {
    match value {
        None | Some(Value::Null) => Some(None),
        Some(Value::Text(text)) if !text.has_escapes => Some(Some(text.raw)),
        _ => None,
    }
}

fn int64(value: Value<'_>) -> Option<i64> {
    match value {
        Value::Number(number) => Some(number),
        Value::Text(text) => integer(text.raw),
        _ => None,
    }
}

fn int32(value: Value<'_>) -> Option<i64> {
    int64(value).filter(|&number| i32::try_from(number).is_ok())
}

fn boolean(value: Value<'_>) -> Option<bool> {
    match value {
        Value::Bool(is_true) => Some(is_true),
        Value::Text(text) if text.raw == b"true" => Some(true),
        Value::Text(text) if text.raw == b"false" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{SendHeader, read_binary, read_json};

    const SHORT: &str = r#"{"code":310,"extFields":{"a":"P","b":"T","c":"TBW102","d":"4","e":"2",
        "f":"0","g":"1700000000000","h":"-3","i":"k\u0001v","j":"1","k":"false","l":"16","m":"false",
        "n":"broker-a","x":null},"flag":0,"language":"JAVA","opaque":-7,"version":401}"#;
    const LONG: &str = r#"{"code":10,"extFields":{"producerGroup":"P","topic":"T","batch":true,
        "defaultTopic":"TBW102","defaultTopicQueueNums":4,"queueId":2,"sysFlag":0,"flag":0,
        "bornTimestamp":1700000000000,"bname":null},"flag":2}"#;

    #[test]
    fn both_forms_are_read() {
        let header = read_json(SHORT.as_bytes(), &mut ()).expect("a send");
        assert_eq!((header.opaque, header.queue_id, header.flag), (-7, 2, -3));
        assert_eq!((header.topic, header.is_batch), (&b"T"[..], false));
        assert_eq!(header.properties.raw, br"k\u0001v");
        assert_eq!(header.broker_name, Some(&b"broker-a"[..]));
        let header = read_json(LONG.as_bytes(), &mut ()).expect("a send");
        assert!(header.is_oneway && header.is_batch);
        assert_eq!(header.born_timestamp_ms, 1_700_000_000_000);
        assert_eq!((header.reconsume_times, header.broker_name), (0, None));
    }

    #[test]
    fn what_is_odd_is_left() {
        for (from, to) in [
            ("\"code\":310", "\"code\":10"),
            ("\"code\":310", "\"code\":311"),
            ("\"code\":310", "\"code\":310,\"code\":310"),
            ("\"flag\":0", "\"flag\":1"),
            ("\"flag\":0", "\"flag\":4"),
            ("\"flag\":0", "\"flag\":0,\"serialize_type\":1"),
            ("\"opaque\":-7", "\"opaque\":2147483648"),
            ("\"a\":\"P\",", ""),
            ("\"a\":\"P\"", "\"a\":1"),
            ("\"b\":\"T\"", "\"b\":\"T\",\"b\":\"T\""),
            ("\"b\":\"T\"", "\"b\":\"T\",\"topic\":\"T\""),
            ("\"b\":\"T\"", "\"\\u0062\":\"T\""),
            ("\"e\":\"2\"", "\"e\":\"02\""),
            ("\"e\":\"2\"", "\"e\":2.0"),
            ("\"h\":\"-3\"", "\"h\":\"2147483648\""),
            ("\"m\":\"false\"", "\"m\":\"1\""),
            ("\"x\":null", "\"x\":{}"),
            ("\"JAVA\"", "\"\\ud800\""),
        ] {
            let changed = SHORT.replacen(from, to, 1);
            assert_ne!(changed, SHORT);
            assert_eq!(read_json(changed.as_bytes(), &mut ()), None, "{to}");
        }
        assert_eq!(read_json(&[SHORT.as_bytes(), b"x"].concat(), &mut ()), None);
        assert_eq!(
            read_json(&SHORT.as_bytes()[..SHORT.len() - 1], &mut ()),
            None
        );
        let mut bytes = SHORT.replace("JAVA", "J__A").into_bytes();
        let at = bytes
            .windows(2)
            .position(|pair| pair == b"__")
            .expect("is there");
        bytes[at] = 0xFF;
        assert_eq!(read_json(&bytes, &mut ()), None);
    }

    fn binary(code: i16, flag: i32, fields: &[(&str, &str)]) -> Vec<u8> {
        let mut all = Vec::new();
        for (name, value) in fields {
            all.extend(i16::try_from(name.len()).expect("short").to_be_bytes());
            all.extend(name.as_bytes());
            all.extend(i32::try_from(value.len()).expect("short").to_be_bytes());
            all.extend(value.as_bytes());
        }
        let mut header = [&code.to_be_bytes()[..], &[12, 1, 0xd9]].concat();
        header.extend(7_i32.to_be_bytes());
        header.extend(flag.to_be_bytes());
        header.extend([0; 4]);
        header.extend(i32::try_from(all.len()).expect("short").to_be_bytes());
        [header, all].concat()
    }

    const FIELDS: [(&str, &str); 12] = [
        ("a", "P"),
        ("b", "T"),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", "2"),
        ("f", "0"),
        ("g", "1700000000000"),
        ("h", "-3"),
        ("i", "k\u{1}v"),
        ("l", ""),
        ("m", "true"),
        ("n", "broker-a"),
    ];

    #[test]
    fn the_binary_form_says_the_same() {
        let header = binary(310, 2, &FIELDS);
        let expected = SendHeader {
            opaque: 7,
            is_binary: true,
            is_oneway: true,
            is_batch: true,
            ..read_json(SHORT.as_bytes(), &mut ()).expect("a send")
        };
        let found = read_binary(&header, &mut ()).expect("a send");
        assert_eq!(found.properties.raw, b"k\x01v");
        let properties = expected.properties;
        assert_eq!(
            SendHeader {
                properties,
                reconsume_times: 1,
                ..found
            },
            expected
        );
        for (code, flag, place, odd) in [
            (10, 0, 0, ("a", "P")),
            (311, 0, 0, ("a", "P")),
            (310, 1, 0, ("a", "P")),
            (310, 0, 0, ("z", "P")),
            (310, 0, 0, ("a", "")),
            (310, 0, 9, ("a", "P")),
            (310, 0, 9, ("topic", "T")),
            (310, 0, 4, ("e", "2147483648")),
            (310, 0, 10, ("m", "TRUE")),
        ] {
            let mut fields = FIELDS;
            fields[place] = odd;
            assert_eq!(
                read_binary(&binary(code, flag, &fields), &mut ()),
                None,
                "{odd:?}"
            );
        }
    }
}
