//! Which stored records an SQL92 condition takes, as `mailboat.filtering.sql.closures` defines it.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Range;

use crate::property_text::{self, NAME_END};
use crate::sql_program::{Part, Program, Search, Symbol};
use crate::sql_values::{Ended, Value, equal, order_as_numbers};
use crate::stored_record::StoredRecord;

/// What one call may cost: bytes of properties times comparisons, about a nanosecond each.
const MOST_WORK: usize = 262_144;
/// What a comparison costs beside the bytes that it looks at, and a record beside comparisons.
const LEAST_WORK: usize = 32;

/// The values of a program's properties in one record, by their numbers.
type Values<'a> = [Option<Cow<'a, str>>];

/// What was judged of some records.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// Where those lie that are taken; neighbours are one range.
    pub runs: Vec<Range<usize>>,
    /// How many are taken.
    pub count: usize,
    /// Where the first one lies that was not judged.
    pub at: usize,
}

impl Program {
    /// Judges records that lie back to back, from a position on.
    ///
    /// It stops at the end; behind the last record taken of `most`; at one that is taken but has no
    /// room in `room_bytes`; at what is no record, or is left to Python; and after enough work, but
    /// not before one record.
    #[must_use]
    pub fn judge(&self, records: &[u8], at: usize, most: usize, room_bytes: i64) -> Judged {
        let mut judged = Judged {
            at,
            ..Judged::default()
        };
        let mut room = usize::try_from(room_bytes).unwrap_or(0);
        let mut work = 0_usize;
        let mut values = Vec::new();
        while judged.count < most && work < MOST_WORK {
            let Some(record) = records.get(judged.at..).and_then(StoredRecord::read) else {
                break;
            };
            let Some(is_taken) = self.takes(record.properties, &mut values) else {
                break;
            };
            let end = judged.at + record.bytes.len();
            if is_taken {
                let Some(left) = room.checked_sub(record.bytes.len()) else {
                    break;
                };
                room = left;
                match judged.runs.last_mut() {
                    Some(last) if last.end == judged.at => last.end = end,
                    _ => judged.runs.push(judged.at..end),
                }
                judged.count += 1;
            }
            judged.at = end;
            let bytes = record.properties.len() + LEAST_WORK;
            work = work.saturating_add(bytes.saturating_mul(self.comparisons + 1));
        }
        judged
    }

    /// Tells whether the condition is true of stored properties; None where that is left to Python.
    fn takes<'a>(&self, text: &'a [u8], values: &mut Vec<Option<Cow<'a, str>>>) -> Option<bool> {
        values.clear();
        values.resize(self.names.len(), None);
        let mut rest = text;
        while !rest.is_empty() {
            let (entry, behind) = property_text::split_entry(rest);
            rest = behind;
            for (name, value) in self.names.iter().zip(&mut *values) {
                if entry.get(name.len()) == Some(&NAME_END) && entry.starts_with(name) {
                    let found = entry.get(name.len() + 1..)?;
                    if !found.is_empty() {
                        *value = Some(String::from_utf8_lossy(found));
                    }
                    break;
                }
            }
        }
        match is_true(&self.condition, values) {
            Ok(truth) => Some(truth == Some(true)),
            Err(Ended::NotComparable) => Some(false),
            Err(Ended::LeftToPython) => None,
        }
    }
}

/// Evaluates a part that is a condition.
fn is_true(part: &Part, values: &Values<'_>) -> Result<Option<bool>, Ended> {
    Ok(match part {
        Part::Null => None,
        Part::Boolean(truth) => Some(*truth),
        Part::Not(operand) => is_true(operand, values)?.map(|truth| !truth),
        Part::Truth(number) => property(*number, values).map(|_| false),
        Part::All(parts) => decided(parts, values, false)?,
        Part::Any(parts) => decided(parts, values, true)?,
        Part::Equal(sides) => equal(value_of(&sides[0], values)?, value_of(&sides[1], values)?)?,
        Part::Compare(symbol, sides) => compared(*symbol, sides, values)?,
        Part::In(number, texts, is_negated) => property(*number, values).map(|value| {
            let is_found = texts.binary_search_by(|text| (**text).cmp(value)).is_ok();
            is_found != *is_negated
        }),
        Part::Search(_, text, ..) if text.is_empty() => Some(false),
        Part::Search(search, text, operand, is_negated) => match value_of(operand, values)? {
            Some(Value::Text(value)) => {
                let is_found = match search {
                    Search::Contains => value.contains(&**text),
                    Search::StartsWith => value.starts_with(&**text),
                    Search::EndsWith => value.ends_with(&**text),
                };
                Some(is_found != *is_negated)
            }
            _ => Some(false),
        },
        // The parser lets no other part stand where a condition must.
        _ => return Err(Ended::LeftToPython),
    })
}

#[inline]
fn value_of<'a>(part: &'a Part, values: &'a Values<'_>) -> Result<Option<Value<'a>>, Ended> {
    match part {
        Part::Property(number) => Ok(property(*number, values).map(Value::Text)),
        Part::Null => Ok(None),
        Part::Whole(number) => Ok(Some(Value::Whole(*number))),
        Part::Double(number) => Ok(Some(Value::Double(*number))),
        Part::Text(text) => Ok(Some(Value::Text(text))),
        Part::Minus(operand) => minus(value_of(operand, values)?),
        _ => Ok(is_true(part, values)?.map(Value::Boolean)),
    }
}

fn minus(value: Option<Value<'_>>) -> Result<Option<Value<'_>>, Ended> {
    match value {
        Some(Value::Whole(number)) => match number.checked_neg() {
            None => Err(Ended::LeftToPython),
            negated => Ok(negated.map(Value::Whole)),
        },
        Some(Value::Double(number)) => Ok(Some(Value::Double(-number))),
        _ => Ok(None),
    }
}
fn property<'a>(number: usize, values: &'a Values<'_>) -> Option<&'a str> {
    values.get(number)?.as_deref()
}

/// Evaluates parts until one of them is what decides: FALSE in AND, TRUE in OR.
fn decided(parts: &[Part], values: &Values<'_>, deciding: bool) -> Result<Option<bool>, Ended> {
    let mut result = Some(!deciding);
    for part in parts {
        match is_true(part, values)? {
            Some(truth) if truth == deciding => return Ok(Some(deciding)),
            Some(_) => {}
            None => result = None,
        }
    }
    Ok(result)
}

fn compared(symbol: Symbol, sides: &[Part; 2], values: &Values<'_>) -> Result<Option<bool>, Ended> {
    let Some(left) = value_of(&sides[0], values)? else {
        return Ok(None);
    };
    let Some(right) = value_of(&sides[1], values)? else {
        return Ok(None);
    };
    let order = order_as_numbers(left, right)?;
    Ok(Some(match symbol {
        Symbol::Greater => order == Ordering::Greater,
        Symbol::GreaterOrEqual => order != Ordering::Less,
        Symbol::Less => order == Ordering::Less,
        Symbol::LessOrEqual => order != Ordering::Greater,
    }))
}

#[cfg(test)]
mod tests {
    use super::{Judged, MOST_WORK, Program};
    use crate::sql_program::tests::text;
    use crate::stored_record::tests::JAVA_RECORD;

    /// Returns a record whose only property is `n`.
    fn record(value: &str) -> Vec<u8> {
        let properties = [b"n\x01", value.as_bytes(), b"\x02"].concat();
        let properties_at = JAVA_RECORD.len() - 13;
        let mut record = JAVA_RECORD[..properties_at].to_vec();
        let size = u16::try_from(properties.len()).expect("short properties");
        record[properties_at - 2..].copy_from_slice(&size.to_be_bytes());
        record.extend(properties);
        let size = u32::try_from(record.len()).expect("a short record");
        record[..4].copy_from_slice(&size.to_be_bytes());
        record
    }

    fn records(values: &[&str]) -> Vec<u8> {
        values.iter().flat_map(|value| record(value)).collect()
    }

    /// Returns `n > 5`.
    fn above_five() -> Program {
        let number = 5_i64.to_be_bytes();
        let packed = [b">p", &text("n")[..], b"w", &number].concat();
        Program::read(&packed).expect("a condition")
    }

    #[test]
    fn neighbours_that_are_taken_are_one_run() {
        let records = records(&["9", "1", "7", "8", "x", "6"]);
        let size = records.len() / 6;
        let judged = above_five().judge(&records, 0, 9, 1 << 20);
        let runs = vec![0..size, 2 * size..4 * size, 5 * size..6 * size];
        let at = records.len();
        assert_eq!(judged, Judged { runs, count: 4, at });
        let rest = above_five().judge(&records, 3 * size, 9, 1 << 20);
        assert_eq!((rest.count, rest.at), (2, at));
    }

    #[test]
    fn it_stops_where_it_is_full_or_has_no_room() {
        let records = records(&["9", "1", "7", "8", "1", "6"]);
        let size = records.len() / 6;
        let room = |count: usize| i64::try_from(count * size).expect("a small size");
        let program = above_five();
        for (most, room_bytes, count, at) in [
            (0, room(9), 0, 0),
            (2, room(9), 2, 3),
            (3, room(9), 3, 4),
            (9, room(3), 3, 5),
            (9, room(3) - 1, 2, 3),
            (9, 0, 0, 0),
            (9, -1, 0, 0),
        ] {
            let judged = program.judge(&records, 0, most, room_bytes);
            assert_eq!(
                (judged.count, judged.at),
                (count, at * size),
                "{most} {room_bytes}"
            );
        }
    }

    #[test]
    fn it_stops_at_what_is_no_record_and_at_what_python_judges() {
        let program = above_five();
        for last in [
            record("\u{667}"),
            record("9")[1..].to_vec(),
            b"abc".to_vec(),
        ] {
            let before = records(&["1", "7"]);
            let judged = program.judge(&[&before[..], &last].concat(), 0, 9, 1 << 20);
            assert_eq!((judged.count, judged.at), (1, before.len()));
        }
        assert_eq!(program.judge(b"", 7, 9, 1).at, 7);
    }

    #[test]
    fn one_call_does_no_more_than_a_bounded_work() {
        let long = "x".repeat(30_000);
        let records = records(&[long.as_str(); 9]);
        let size = records.len() / 9;
        let part = [b"c", &text("y")[..], b"p", &text("n")].concat();
        let program = Program::read(&part).expect("a condition");
        let judged = program.judge(&records, 0, 9, 1 << 40);
        assert_eq!(judged.at, size * MOST_WORK.div_ceil(2 * 30_035));
        let packed = [&b"|\0\0\x01\0"[..], &part.repeat(256)].concat();
        let program = Program::read(&packed).expect("a condition");
        assert_eq!(program.judge(&records, 0, 9, 1 << 40).at, size);
    }
}
