//! The properties of a message as text: `name 0x01 value 0x02` repeated, UTF-8.

use std::ops::Range;

use crate::marks;

/// Most properties of a batch together that this core takes; somewhat more are refused.
pub const MAX_PROPERTIES: usize = 40_000;

/// Where the properties lie that a broker looks at, as places in the text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// The value of `UNIQ_KEY`, not empty.
    pub unique_key: Range<usize>,
    /// The value of KEYS, not empty where it is there.
    pub keys: Option<Range<usize>>,
    /// The value of TAGS, not empty where it is there.
    pub tags: Option<Range<usize>>,
    /// The whole entry of WAIT, whose value is `true` or `false`.
    pub wait: Option<Range<usize>>,
    /// Whether WAIT is `false`.
    pub waits_not: bool,
    /// The value of DELAY, not empty where it is there.
    pub delay: Option<Range<usize>>,
    /// The value of `TRAN_MSG`, not empty where it is there.
    pub half: Option<Range<usize>>,
    /// How many there are.
    pub count: usize,
}

/// Reads a text with a separator at its end.
///
/// Returns none where an entry is empty or broken, where a name with a meaning comes twice or asks
/// for something rare, and where there is no `UNIQ_KEY`.
#[must_use]
pub fn read(text: &[u8]) -> Option<Properties> {
    scan(text, false)
}

/// Reads the text of a stored message as `read` does; what the broker sets may be in it.
#[must_use]
pub fn read_stored(text: &[u8]) -> Option<Properties> {
    scan(text, true)
}

fn scan(text: &[u8], is_stored: bool) -> Option<Properties> {
    let mut found = Properties::default();
    let mut at = 0;
    while at < text.len() {
        let value_at = at + end_of(text.get(at..)?, 1)? + 1;
        let end = value_at + end_of(text.get(value_at..)?, 2)?;
        let name = text.get(at..value_at - 1)?;
        if name.is_empty() || end == value_at {
            return None;
        }
        let value = value_at..end;
        match name {
            b"UNIQ_KEY" if found.unique_key.is_empty() => found.unique_key = value,
            b"KEYS" if found.keys.is_none() => found.keys = Some(value),
            b"TAGS" if found.tags.is_none() => found.tags = Some(value),
            b"WAIT" if found.wait.is_none() => {
                found.waits_not = match text.get(value)? {
                    b"true" => false,
                    b"false" => true,
                    _ => return None,
                };
                found.wait = Some(at..end + 1);
            }
            b"DELAY" if found.delay.is_none() => found.delay = Some(value),
            b"TRAN_MSG" if found.half.is_none() => found.half = Some(value),
            b"UNIQ_KEY" | b"KEYS" | b"TAGS" | b"WAIT" | b"DELAY" | b"TRAN_MSG" => return None,
            _ if !is_stored && is_rare(name) => return None,
            _ => {}
        }
        found.count += 1;
        at = end + 1;
    }
    (!found.unique_key.is_empty()).then_some(found)
}

/// Returns how many bytes stand before a separator, none where the other one comes first.
fn end_of(text: &[u8], separator: u8) -> Option<usize> {
    let at = marks::either(text, 1, 2);
    (*text.get(at)? == separator).then_some(at)
}

/// Properties that only the broker sets, or that it does not know.
fn is_rare(name: &[u8]) -> bool {
    matches!(
        name,
        b"MSG_REGION"
            | b"TRACE_ON"
            | b"CLUSTER"
            | b"POP_CK"
            | b"__CRC32#"
            | b"MAILBOAT_DELIVER_MS"
            | b"MAILBOAT_DELAY_MS"
            | b"TIMER_DELAY_SEC"
            | b"TIMER_DELAY_MS"
            | b"TIMER_DELIVER_MS"
    )
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn what_a_broker_looks_at_is_found() {
        let text = b"WAIT\x01false\x02a\x01b\x02KEYS\x01k 1\x02UNIQ_KEY\x01U\x02TAGS\x01t\x02";
        let found = read(text).expect("well-formed");
        assert_eq!(&text[found.unique_key], b"U");
        assert_eq!(found.keys.map(|keys| &text[keys]), Some(&b"k 1"[..]));
        assert_eq!(found.tags.map(|tags| &text[tags]), Some(&b"t"[..]));
        assert_eq!(found.wait, Some(0..11));
        assert!(found.waits_not);
        assert_eq!(found.count, 5);
    }

    #[test]
    fn what_is_odd_is_left() {
        let key = "UNIQ_KEY\x01U\x02";
        for odd in [
            "",
            "a\x01b\x02",
            "a\x01b",
            "a\x02",
            "\x01b\x02",
            "a\x01\x02",
            "a\x01b\x01c\x02",
            "UNIQ_KEY\x01V\x02",
            "WAIT\x01maybe\x02",
            "WAIT\x01true\x02WAIT\x01true\x02",
            "KEYS\x01k\x02KEYS\x01k\x02",
            "DELAY\x011\x02DELAY\x011\x02",
            "TRAN_MSG\x01true\x02TRAN_MSG\x01true\x02",
            "CLUSTER\x01c\x02",
        ] {
            let text = if odd.is_empty() || odd == "a\x01b\x02" {
                odd.to_owned()
            } else {
                format!("{key}{odd}")
            };
            assert_eq!(read(text.as_bytes()), None, "{odd:?}");
        }
    }
}
