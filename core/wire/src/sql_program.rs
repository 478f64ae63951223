//! An SQL92 condition as a tree, read from the form that `mailboat.filtering.sql.program` packs.
//!
//! A part is a letter and what belongs to it; parts within it follow it. Integers are big-endian, a
//! text is its size (4 bytes) and UTF-8, a count has 4 bytes.
//!
//! ```text
//! letter         then            part
//! p              text            the value of a property
//! 0  T  F                        NULL, TRUE, FALSE
//! w              8 bytes         a whole number, signed
//! d              8 bytes         a Double
//! s              text            a text
//! -  !           part            minus, NOT
//! ?              text            a property where a condition stands
//! &  |           count, parts    AND, OR
//! =              2 parts         `=`, IS NULL
//! >  G  <  L     2 parts         `>`, `>=`, `<`, `<=`
//! i  n           text, count, texts   property IN (...), NOT IN (...)
//! c  b  e        text, part      CONTAINS, STARTSWITH (begin), ENDSWITH (end)
//! C  B  E        text, part      the contrary
//! ```

/// More than the parser of expressions allows.
const MOST_DEPTH: usize = 80;

/// What may stand in a condition. A property is the number of its name.
#[derive(Debug, PartialEq)]
pub enum Part {
    /// The value of a property.
    Property(usize),
    /// NULL.
    Null,
    /// TRUE or FALSE.
    Boolean(bool),
    /// A whole number.
    Whole(i64),
    /// A Double.
    Double(f64),
    /// A text.
    Text(Box<str>),
    /// Minus; unknown for what is no number.
    Minus(Box<Part>),
    /// Logical NOT.
    Not(Box<Part>),
    /// A property that stands where a condition does: never true.
    Truth(usize),
    /// AND.
    All(Vec<Part>),
    /// OR.
    Any(Vec<Part>),
    /// `=`, and IS NULL.
    Equal(Box<[Part; 2]>),
    /// `>`, `>=`, `<` or `<=`.
    Compare(Symbol, Box<[Part; 2]>),
    /// A property in a list of texts, which is in order, or not in it.
    In(usize, Vec<Box<str>>, bool),
    /// A search in a text, or the contrary.
    Search(Search, Box<str>, Box<Part>, bool),
}

/// How numbers are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbol {
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
}

/// Where a text must stand in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// Anywhere.
    Contains,
    /// At its beginning.
    StartsWith,
    /// At its end.
    EndsWith,
}

/// A condition, read.
#[derive(Debug, PartialEq)]
pub struct Program {
    /// What must be true.
    pub condition: Part,
    /// The names of properties, by their numbers.
    pub names: Vec<Box<[u8]>>,
    /// How many parts look at values.
    pub comparisons: usize,
}

impl Program {
    /// Reads a packed condition; None where it is none.
    #[must_use]
    pub fn read(packed: &[u8]) -> Option<Self> {
        let mut reader = Reader {
            rest: packed,
            names: Vec::new(),
            comparisons: 0,
        };
        let condition = reader.part(MOST_DEPTH)?;
        reader.rest.is_empty().then_some(Program {
            condition,
            names: reader.names,
            comparisons: reader.comparisons,
        })
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    names: Vec<Box<[u8]>>,
    comparisons: usize,
}

impl Reader<'_> {
    fn part(&mut self, depth: usize) -> Option<Part> {
        let inner = depth.checked_sub(1)?;
        let [letter] = self.array()?;
        self.comparisons += usize::from(!b"p0TFwds-!&|".contains(&letter));
        Some(match letter {
            b'p' => Part::Property(self.name()?),
            b'0' => Part::Null,
            b'T' | b'F' => Part::Boolean(letter == b'T'),
            b'w' => Part::Whole(i64::from_be_bytes(self.array()?)),
            b'd' => Part::Double(f64::from_be_bytes(self.array()?)),
            b's' => Part::Text(self.text()?),
            b'-' => Part::Minus(Box::new(self.part(inner)?)),
            b'!' => Part::Not(Box::new(self.part(inner)?)),
            b'?' => Part::Truth(self.name()?),
            b'&' => Part::All(self.list(|reader| reader.part(inner))?),
            b'|' => Part::Any(self.list(|reader| reader.part(inner))?),
            b'=' => Part::Equal(self.pair(inner)?),
            b'>' => Part::Compare(Symbol::Greater, self.pair(inner)?),
            b'G' => Part::Compare(Symbol::GreaterOrEqual, self.pair(inner)?),
            b'<' => Part::Compare(Symbol::Less, self.pair(inner)?),
            b'L' => Part::Compare(Symbol::LessOrEqual, self.pair(inner)?),
            b'i' | b'n' => {
                let name = self.name()?;
                let mut texts = self.list(Self::text)?;
                texts.sort_unstable();
                Part::In(name, texts, letter == b'n')
            }
            b'c' | b'b' | b'e' | b'C' | b'B' | b'E' => {
                let search = match letter.to_ascii_lowercase() {
                    b'c' => Search::Contains,
                    b'b' => Search::StartsWith,
                    _ => Search::EndsWith,
                };
                let text = self.text()?;
                let operand = Box::new(self.part(inner)?);
                Part::Search(search, text, operand, letter.is_ascii_uppercase())
            }
            _ => return None,
        })
    }

    fn pair(&mut self, depth: usize) -> Option<Box<[Part; 2]>> {
        Some(Box::new([self.part(depth)?, self.part(depth)?]))
    }

    fn list<Item>(&mut self, one: impl Fn(&mut Self) -> Option<Item>) -> Option<Vec<Item>> {
        let count = u32::from_be_bytes(self.array()?);
        (0..count).map(|_| one(self)).collect()
    }

    fn name(&mut self) -> Option<usize> {
        let name = self.text()?.into_boxed_bytes();
        let known = self.names.iter().position(|known| *known == name);
        Some(known.unwrap_or_else(|| {
            self.names.push(name);
            self.names.len() - 1
        }))
    }

    fn text(&mut self) -> Option<Box<str>> {
        let size = usize::try_from(u32::from_be_bytes(self.array()?)).ok()?;
        let (text, rest) = self.rest.split_at_checked(size)?;
        self.rest = rest;
        Some(std::str::from_utf8(text).ok()?.into())
    }

    fn array<const SIZE: usize>(&mut self) -> Option<[u8; SIZE]> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*taken)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{Part, Program, Symbol};

    /// Returns a packed text.
    pub(crate) fn text(text: &str) -> Vec<u8> {
        let size = u32::try_from(text.len()).expect("a short text");
        [&size.to_be_bytes()[..], text.as_bytes()].concat()
    }

    /// Returns `a > 5 AND b IN ('y', 'x') AND a IS NULL`, packed.
    fn packed() -> Vec<u8> {
        let number = 5_i64.to_be_bytes();
        [
            b"&\0\0\0\x03>p",
            &text("b")[..],
            b"w",
            &number,
            b"i",
            &text("a"),
            b"\0\0\0\x02",
            &text("y"),
            &text("x"),
            b"=p",
            &text("b"),
            b"0",
        ]
        .concat()
    }

    #[test]
    fn a_condition_is_read_as_it_was_packed() {
        let program = Program::read(&packed()).expect("a condition");
        let pair = |left, right| Box::new([left, right]);
        let expected = Part::All(vec![
            Part::Compare(Symbol::Greater, pair(Part::Property(0), Part::Whole(5))),
            Part::In(1, vec!["x".into(), "y".into()], false),
            Part::Equal(pair(Part::Property(0), Part::Null)),
        ]);
        assert_eq!(program.condition, expected);
        assert_eq!(program.names, [b"b"[..].into(), b"a"[..].into()]);
        assert_eq!(program.comparisons, 3);
    }

    #[test]
    fn what_is_cut_longer_too_deep_or_unknown_is_none() {
        let whole = packed();
        for size in 0..whole.len() {
            assert_eq!(Program::read(&whole[..size]), None, "{size}");
        }
        assert_eq!(Program::read(&[&whole[..], b"0"].concat()), None);
        assert_eq!(Program::read(b"x"), None);
        assert_eq!(Program::read(b"s\0\0\0\x01\xff"), None);
        assert_eq!(Program::read(b"&\xff\xff\xff\xff"), None);
        let deep = |depth: usize| [vec![b'!'; depth], b"T".to_vec()].concat();
        assert!(Program::read(&deep(79)).is_some());
        assert_eq!(Program::read(&deep(80)), None);
        assert_eq!(Program::read(&deep(1_000_000)), None);
    }
}
