//! Sends that the broker parks in a topic of its own: delayed messages and half messages.
//!
//! Their properties are those of any send, WAIT taken out, then what the broker adds to every
//! message, and then
//!
//! ```text
//! delayed  WAIT where it was there, MAILBOAT_DELIVER_MS, MAILBOAT_DELAY_MS, REAL_TOPIC, REAL_QID
//! half     __transactionId__, REAL_TOPIC, REAL_QID
//! ```

use crate::answer::put_number;
use crate::properties::Properties;
use crate::property_text::distinct_entries;

/// Where delayed messages wait; the queue is the level less one.
pub const DELAYED_TOPIC: &[u8] = b"SCHEDULE_TOPIC_XXXX";
/// Where half messages wait, all in queue 0.
pub const HALF_TOPIC: &[u8] = b"RMQ_SYS_TRANS_HALF_TOPIC";

pub(crate) const DELIVER_MS: &[u8] = b"MAILBOAT_DELIVER_MS";
pub(crate) const DELAY_MS: &[u8] = b"MAILBOAT_DELAY_MS";
pub(crate) const REAL_TOPIC: &[u8] = b"REAL_TOPIC";
pub(crate) const REAL_QUEUE_ID: &[u8] = b"REAL_QID";
pub(crate) const HALF: &[u8] = b"TRAN_MSG";
const PRODUCER_GROUP: &[u8] = b"PGROUP";
const TRANSACTION_ID: &[u8] = b"__transactionId__";

/// What a send is parked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parking {
    /// It is delivered at a time.
    Delayed {
        /// The queue of its level.
        queue_id: i32,
        /// How long it is to wait.
        delay_ms: i64,
        /// When it is due.
        deliver_ms: i64,
    },
    /// It waits for the end of its transaction.
    Half,
}

impl Parking {
    /// Finds out what a plain send is parked for; none for what is odd.
    ///
    /// `level_times` are the delays of all levels in ms, which begin with `from_ms`.
    #[must_use]
    pub fn of(
        text: &[u8],
        found: &Properties,
        level_times: &[i64],
        from_ms: i64,
    ) -> Option<Parking> {
        let mut has_group = false;
        for (name, _) in distinct_entries(text)? {
            has_group |= name == PRODUCER_GROUP;
            if [REAL_TOPIC, REAL_QUEUE_ID, TRANSACTION_ID].contains(&name) {
                return None;
            }
        }
        match (&found.delay, &found.half) {
            (Some(level), None) => {
                let queue_id = small_number(text.get(level.clone())?)?.checked_sub(1)?;
                let delay_ms = *level_times.get(usize::try_from(queue_id).ok()?)?;
                Some(Parking::Delayed {
                    queue_id,
                    delay_ms,
                    deliver_ms: from_ms.checked_add(delay_ms)?,
                })
            }
            (None, Some(half)) if has_group && text.get(half.clone())? == b"true" => {
                let id = text.get(found.unique_key.clone())?;
                let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && !b"\"\\".contains(byte);
                id.iter().all(is_plain).then_some(Parking::Half)
            }
            _ => None,
        }
    }

    /// The topic and the queue where it waits.
    #[must_use]
    pub fn place(&self) -> (&'static [u8], i32) {
        match *self {
            Parking::Delayed { queue_id, .. } => (DELAYED_TOPIC, queue_id),
            Parking::Half => (HALF_TOPIC, 0),
        }
    }

    /// Appends the properties that tell where a message belongs to its text, which begins at
    /// `text_at` and is complete but for that.
    pub(crate) fn write(
        &self,
        texts: &mut Vec<u8>,
        text_at: usize,
        found: &Properties,
        (topic, queue_id): (&[u8], i32),
    ) {
        let at = |place: &std::ops::Range<usize>| text_at + place.start..text_at + place.end;
        match *self {
            Parking::Delayed {
                delay_ms,
                deliver_ms,
                ..
            } => {
                if let Some(wait) = &found.wait {
                    texts.extend_from_within(at(wait));
                }
                put(texts, DELIVER_MS, deliver_ms);
                put(texts, DELAY_MS, delay_ms);
            }
            Parking::Half => {
                texts.extend_from_slice(TRANSACTION_ID);
                texts.push(1);
                texts.extend_from_within(at(&found.unique_key));
                texts.push(2);
            }
        }
        texts.extend_from_slice(REAL_TOPIC);
        texts.push(1);
        texts.extend_from_slice(topic);
        texts.push(2);
        put(texts, REAL_QUEUE_ID, queue_id.into());
    }
}

fn put(texts: &mut Vec<u8>, name: &[u8], value: i64) {
    texts.extend_from_slice(name);
    texts.push(1);
    put_number(value, texts);
    texts.push(2);
}

/// Reads decimal digits as this broker and Java's write them, none where there are many.
pub(crate) fn small_number(digits: &[u8]) -> Option<i32> {
    let is_written_so = digits == b"0" || digits.first() != Some(&b'0');
    if digits.is_empty() || digits.len() > 9 || !is_written_so {
        return None;
    }
    digits.iter().try_fold(0_i32, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| i32::from(digit - b'0'))?;
        Some(number * 10 + digit)
    })
}

#[cfg(test)]
mod tests {
    use super::{Parking, small_number};
    use crate::properties;

    fn of(text: &str) -> Option<Parking> {
        let found = properties::read(text.as_bytes()).expect("well-formed");
        Parking::of(text.as_bytes(), &found, &[1000, 5000], 70)
    }

    #[test]
    fn levels_and_half_messages_are_told_apart() {
        let delayed = of("UNIQ_KEY\x01U\x02DELAY\x012\x02").expect("delayed");
        assert_eq!(delayed.place(), (&b"SCHEDULE_TOPIC_XXXX"[..], 1));
        let expected = Parking::Delayed {
            queue_id: 1,
            delay_ms: 5000,
            deliver_ms: 5070,
        };
        assert_eq!(delayed, expected);
        let half = of("PGROUP\x01P\x02UNIQ_KEY\x01U\x02TRAN_MSG\x01true\x02");
        assert_eq!(half, Some(Parking::Half));
    }

    #[test]
    fn what_is_odd_is_left() {
        let many: Vec<String> = (0..40).map(|n| format!("n{n}\x01v\x02")).collect();
        let many = many.concat();
        for odd in [
            "DELAY\x010\x02",
            "DELAY\x013\x02",
            "DELAY\x01-1\x02",
            "DELAY\x0101\x02",
            "DELAY\x011\x02REAL_TOPIC\x01T\x02",
            "DELAY\x011\x02__transactionId__\x01T\x02",
            "DELAY\x011\x02a\x01b\x02a\x01c\x02",
            "DELAY\x011\x02TRAN_MSG\x01true\x02PGROUP\x01P\x02",
            "TRAN_MSG\x01true\x02",
            "TRAN_MSG\x01True\x02PGROUP\x01P\x02",
            &format!("DELAY\x011\x02{many}"),
        ] {
            assert_eq!(of(&format!("UNIQ_KEY\x01U\x02{odd}")), None, "{odd:?}");
        }
        let quoted = "UNIQ_KEY\x01U\"\x02PGROUP\x01P\x02TRAN_MSG\x01true\x02";
        assert_eq!(of(quoted), None);
    }

    #[test]
    fn a_text_says_where_its_message_belongs() {
        let text = "WAIT\x01true\x02UNIQ_KEY\x01U\x02DELAY\x011\x02";
        let found = properties::read(text.as_bytes()).expect("well-formed");
        let mut texts = [b"before", text.as_bytes()].concat();
        let parking = of(text).expect("delayed");
        parking.write(&mut texts, 6, &found, (b"T", 3));
        let expected =
            b"WAIT\x01true\x02MAILBOAT_DELIVER_MS\x011070\x02MAILBOAT_DELAY_MS\x011000\x02\
            REAL_TOPIC\x01T\x02REAL_QID\x013\x02";
        assert_eq!(&texts[6 + text.len()..], expected);
        let mut texts = text.as_bytes().to_vec();
        Parking::Half.write(&mut texts, 0, &found, (b"T", 0));
        let expected = b"__transactionId__\x01U\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02";
        assert_eq!(&texts[text.len()..], expected);
    }

    #[test]
    fn numbers_have_one_form() {
        assert_eq!(small_number(b"0"), Some(0));
        assert_eq!(small_number(b"999999999"), Some(999_999_999));
        for odd in [
            &b""[..],
            b"00",
            b"01",
            b"1234567890",
            b"+1",
            b"1 ",
            b"\xd9\xa1",
        ] {
            assert_eq!(small_number(odd), None);
        }
    }
}
