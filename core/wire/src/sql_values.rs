//! Values of an SQL92 condition and their comparison, as `mailboat.filtering.sql.values` defines it.

use std::cmp::Ordering;

/// Longer numbers are left to Python, which reads each of them once only.
const LONGEST_NUMBER: usize = 64;
/// Digits of the greatest Long.
const LONG_DIGITS: usize = 19;
const INTEGER_MAX: i64 = 0x7FFF_FFFF;

/// What a part of a condition comes to; NULL and an absent property are none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// TRUE or FALSE.
    Boolean(bool),
    /// An Integer where it fits 32 bits (but for the smallest one), else a Long.
    Whole(i64),
    /// A Double.
    Double(f64),
    /// A String.
    Text(&'a str),
}

/// Why an evaluation ended early.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// Two values cannot be compared: the message is not taken.
    NotComparable,
    /// What only Python reads: digits of other scripts, hexadecimal and very long numbers.
    LeftToPython,
}

/// Compares with `=`: two absent values are equal, an absent left one is unknown.
///
/// # Errors
/// The two cannot be compared, or not here.
pub fn equal(left: Option<Value<'_>>, right: Option<Value<'_>>) -> Result<Option<bool>, Ended> {
    match (left, right) {
        (None, None) => Ok(Some(true)),
        (None, Some(_)) => Ok(None),
        (Some(_), None) => Ok(Some(false)),
        (Some(left), Some(right)) => Ok(Some(order(left, right)?.is_eq())),
    }
}

/// Orders two values as `>` and its like do: two texts are compared as numbers.
///
/// # Errors
/// The two cannot be compared, or not here.
pub fn order_as_numbers(left: Value<'_>, right: Value<'_>) -> Result<Ordering, Ended> {
    match (left, right) {
        (Value::Text(left), Value::Text(right)) => {
            let left = parse_double(left)?;
            Ok(order_doubles(left, parse_double(right)?))
        }
        _ => order(left, right),
    }
}

fn order(left: Value<'_>, right: Value<'_>) -> Result<Ordering, Ended> {
    use Value::{Boolean, Double, Text, Whole};
    Ok(match (left, right) {
        (Boolean(left), Boolean(right)) => left.cmp(&right),
        (Boolean(_), Text(_)) => return Err(Ended::NotComparable),
        (Text(left), Boolean(right)) => left.eq_ignore_ascii_case("true").cmp(&right),
        (Boolean(_), _) | (_, Boolean(_)) => Ordering::Less,
        (Text(left), Text(right)) => left.cmp(right),
        (Text(left), Whole(right)) => parse_whole(left, right)?.cmp(&right),
        (Whole(left), Text(right)) => left.cmp(&parse_whole(right, left)?),
        (Text(left), Double(right)) => order_doubles(parse_double(left)?, right),
        (Double(left), Text(right)) => order_doubles(left, parse_double(right)?),
        (Whole(left), Whole(right)) => left.cmp(&right),
        (Whole(left), Double(right)) => order_doubles(as_double(left), right),
        (Double(left), Whole(right)) => order_doubles(left, as_double(right)),
        (Double(left), Double(right)) => order_doubles(left, right),
    })
}

/// Orders as Double.compareTo does: NaN is the greatest, -0.0 below 0.
fn order_doubles(left: f64, right: f64) -> Ordering {
    let rank = |number: f64| (number.is_nan(), number == 0.0 && number.is_sign_positive());
    match left.partial_cmp(&right) {
        Some(Ordering::Equal) | None => rank(left).cmp(&rank(right)),
        Some(order) => order,
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the nearest one, as in Java and Python"
)]
fn as_double(number: i64) -> f64 {
    number as f64
}

/// Reads a text as the class of the whole number that it is compared with.
fn parse_whole(text: &str, beside: i64) -> Result<i64, Ended> {
    if text.len() > LONGEST_NUMBER {
        return Err(Ended::LeftToPython);
    }
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits.as_bytes()),
        None => (false, text.strip_prefix('+').unwrap_or(text).as_bytes()),
    };
    if digits.is_empty() {
        return Err(Ended::NotComparable);
    }
    if let Some(other) = digits.iter().find(|byte| !byte.is_ascii_digit()) {
        let is_known = other.is_ascii();
        return Err(if is_known {
            Ended::NotComparable
        } else {
            Ended::LeftToPython
        });
    }
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    let digits = digits.get(zeros..).unwrap_or_default();
    if digits.len() > LONG_DIGITS {
        return Err(Ended::NotComparable);
    }
    let number = digits
        .iter()
        .fold(0_u64, |number, digit| number * 10 + u64::from(digit - b'0'));
    let is_integer = (-INTEGER_MAX..=INTEGER_MAX).contains(&beside);
    let most = if is_integer { INTEGER_MAX } else { i64::MAX };
    let read = if is_negative {
        0_i64
            .checked_sub_unsigned(number)
            .filter(|read| *read >= -most - 1)
    } else {
        0_i64
            .checked_add_unsigned(number)
            .filter(|read| *read <= most)
    };
    read.ok_or(Ended::NotComparable)
}

/// Reads a text as Double.valueOf does.
fn parse_double(text: &str) -> Result<f64, Ended> {
    if text.len() > LONGEST_NUMBER {
        return Err(Ended::LeftToPython);
    }
    let text = text.trim_matches(|character| character <= ' ');
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let number = match unsigned {
        "NaN" => f64::NAN,
        "Infinity" => f64::INFINITY,
        _ if unsigned.starts_with("0x") || unsigned.starts_with("0X") => {
            return Err(Ended::LeftToPython);
        }
        _ => {
            let digits = unsigned
                .strip_suffix(['f', 'F', 'd', 'D'])
                .unwrap_or(unsigned);
            let read = is_decimal(digits.as_bytes())
                .then(|| digits.parse().ok())
                .flatten();
            read.ok_or(Ended::NotComparable)?
        }
    };
    Ok(if text.starts_with('-') {
        -number
    } else {
        number
    })
}

/// Tells whether a text is `1`, `1.`, `1.5` or `.5`, perhaps with an exponent.
fn is_decimal(text: &[u8]) -> bool {
    let (whole, rest) = split_digits(text);
    let (fraction, rest) = match rest {
        [b'.', rest @ ..] => split_digits(rest),
        _ => (0, rest),
    };
    if whole + fraction == 0 {
        return false;
    }
    match rest {
        [] => true,
        [b'e' | b'E', b'+' | b'-', rest @ ..] | [b'e' | b'E', rest @ ..] => {
            let (exponent, rest) = split_digits(rest);
            exponent > 0 && rest.is_empty()
        }
        _ => false,
    }
}

/// Returns how many digits a text begins with, and what stands behind them.
fn split_digits(text: &[u8]) -> (usize, &[u8]) {
    let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    (count, text.get(count..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering::{Equal, Greater, Less};

    use super::{Ended, Value, equal, order, order_as_numbers, parse_double, parse_whole};

    const NOT: Ended = Ended::NotComparable;
    const LEFT: Ended = Ended::LeftToPython;
    const LONG: i64 = 1 << 40;

    #[test]
    fn whole_numbers_are_read_as_the_class_they_are_compared_with() {
        for (text, integer, long) in [
            ("0", Ok(0), Ok(0)),
            ("-0", Ok(0), Ok(0)),
            ("+7", Ok(7), Ok(7)),
            ("0000000000000000000000000000007", Ok(7), Ok(7)),
            ("2147483647", Ok(2_147_483_647), Ok(2_147_483_647)),
            ("2147483648", Err(NOT), Ok(2_147_483_648)),
            ("-2147483648", Ok(-2_147_483_648), Ok(-2_147_483_648)),
            ("-2147483649", Err(NOT), Ok(-2_147_483_649)),
            ("9223372036854775807", Err(NOT), Ok(i64::MAX)),
            ("9223372036854775808", Err(NOT), Err(NOT)),
            ("-9223372036854775808", Err(NOT), Ok(i64::MIN)),
            ("-9223372036854775809", Err(NOT), Err(NOT)),
            ("99999999999999999999", Err(NOT), Err(NOT)),
            ("", Err(NOT), Err(NOT)),
            ("-", Err(NOT), Err(NOT)),
            ("+-1", Err(NOT), Err(NOT)),
            ("1_0", Err(NOT), Err(NOT)),
            (" 1", Err(NOT), Err(NOT)),
            ("\u{663}", Err(LEFT), Err(LEFT)),
            (&"0".repeat(65), Err(LEFT), Err(LEFT)),
        ] {
            assert_eq!(parse_whole(text, 5), integer, "{text:?}");
            assert_eq!(parse_whole(text, LONG), long, "{text:?}");
        }
        // The smallest 32-bit number is a Long: it is the negation of a number that does not fit.
        assert_eq!(parse_whole("2147483648", -2_147_483_648), Ok(2_147_483_648));
        assert_eq!(parse_whole("2147483648", -2_147_483_647), Err(NOT));
    }

    #[test]
    fn doubles_are_read_as_java_reads_them() {
        for (text, number) in [
            ("5", 5.0),
            ("5.", 5.0),
            ("-.5e1", -5.0),
            (" \t\u{0}5.5E+1\n", 55.0),
            ("5d", 5.0),
            ("5e1F", 50.0),
            ("1e400", f64::INFINITY),
            ("-1e99999999999999999999", f64::NEG_INFINITY),
            ("0e99999999999999999999", 0.0),
            ("-Infinity", f64::NEG_INFINITY),
            ("4.9e-324", 5e-324),
        ] {
            assert_eq!(parse_double(text), Ok(number), "{text:?}");
        }
        assert!(parse_double("-NaN").is_ok_and(f64::is_nan));
        for text in [
            "",
            ".",
            "e5",
            "5e",
            "5e+",
            "5L",
            "5dd",
            "1_0",
            "inf",
            "nan",
            "infinity",
            "NaNd",
            "Infinityf",
            "+-5",
            "- 5",
            "5 5",
            "\u{a0}5",
            "\u{663}",
            "5.5.5",
        ] {
            assert_eq!(parse_double(text), Err(NOT), "{text:?}");
        }
        let long = "9".repeat(65);
        for text in ["0x1p4", "-0X1p4", "0xnone", &long] {
            assert_eq!(parse_double(text), Err(LEFT), "{text:?}");
        }
    }

    #[test]
    fn each_pair_of_classes_has_its_order() {
        use Value::{Boolean, Double, Text, Whole};
        for (left, right, expected) in [
            (Boolean(true), Boolean(false), Ok(Greater)),
            (Boolean(true), Text("true"), Err(NOT)),
            (Text("TRue"), Boolean(true), Ok(Equal)),
            (Text("no"), Boolean(true), Ok(Less)),
            (Boolean(true), Whole(0), Ok(Less)),
            (Double(9.0), Boolean(false), Ok(Less)),
            (Text("a"), Text("\u{e9}"), Ok(Less)),
            (Text("5"), Whole(4), Ok(Greater)),
            (Whole(4), Text("5"), Ok(Less)),
            (Text("5.5"), Whole(4), Err(NOT)),
            (Text("5.5"), Double(5.5), Ok(Equal)),
            (Whole(i64::MAX), Double(9.223_372_036_854_776e18), Ok(Equal)),
            (Double(f64::NAN), Double(f64::INFINITY), Ok(Greater)),
            (Double(f64::NAN), Double(-f64::NAN), Ok(Equal)),
            (Double(f64::NEG_INFINITY), Double(f64::NAN), Ok(Less)),
            (Text("-0"), Double(0.0), Ok(Less)),
            (Text("0"), Double(-0.0), Ok(Greater)),
            (Text("-0"), Whole(0), Ok(Equal)),
        ] {
            assert_eq!(order(left, right), expected, "{left:?} {right:?}");
        }
    }

    #[test]
    fn an_absent_value_is_equal_to_an_absent_one_only() {
        let text = Some(Value::Text("a"));
        assert_eq!(equal(None, None), Ok(Some(true)));
        assert_eq!(equal(None, text), Ok(None));
        assert_eq!(equal(text, None), Ok(Some(false)));
        assert_eq!(equal(text, text), Ok(Some(true)));
        assert_eq!(equal(text, Some(Value::Whole(1))), Err(NOT));
    }

    #[test]
    fn two_texts_are_ordered_as_numbers() {
        assert_eq!(
            order_as_numbers(Value::Text("10"), Value::Text("9.5")),
            Ok(Greater)
        );
        assert_eq!(
            order_as_numbers(Value::Text("a"), Value::Text("9")),
            Err(NOT)
        );
        assert_eq!(
            order_as_numbers(Value::Text("0x1p1"), Value::Text("a")),
            Err(LEFT)
        );
        assert_eq!(
            order_as_numbers(Value::Whole(10), Value::Whole(9)),
            Ok(Greater)
        );
    }
}
