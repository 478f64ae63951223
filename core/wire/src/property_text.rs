//! The text form of properties: `name 0x01 value 0x02` repeated; the last 0x02 may be missing.

/// Stands behind a name.
pub const NAME_END: u8 = 1;
const ENTRY_END: u8 = 2;
/// More names are not compared with each other.
const MOST_DISTINCT: usize = 32;
const BLOCK: usize = 16;

/// Returns names and values in order, without entries that have no separator, name or value.
///
/// A name may come again: the last one counts.
pub fn entries(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    text.split(|byte| *byte == ENTRY_END).filter_map(|entry| {
        let name_size = entry.iter().position(|byte| *byte == NAME_END)?;
        let (name, value) = (entry.get(..name_size)?, entry.get(name_size + 1..)?);
        (!name.is_empty() && !value.is_empty()).then_some((name, value))
    })
}

/// Returns the first entry, without its end, and what stands behind it.
#[must_use]
pub fn split_entry(text: &[u8]) -> (&[u8], &[u8]) {
    // Blocks of this size are looked at in one go.
    let has_no_end = |block: &&[u8]| {
        let ends = block.iter().map(|byte| u8::from(*byte == ENTRY_END));
        ends.fold(0, |found, is_end| found | is_end) == 0
    };
    let skipped = text.chunks_exact(BLOCK).take_while(has_no_end).count() * BLOCK;
    let rest = text.get(skipped..).unwrap_or_default();
    let Some(size) = rest.iter().position(|byte| *byte == ENTRY_END) else {
        return (text, &[]);
    };
    let (entry, behind) = text.split_at(skipped + size);
    (entry, behind.get(1..).unwrap_or_default())
}

/// Returns the value of the first entry of a name, None where there is none or it is empty.
#[must_use]
pub fn value_of<'a>(text: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut entries = text.split(|byte| *byte == ENTRY_END);
    let value = entries.find_map(|entry| entry.strip_prefix(name)?.strip_prefix(&[NAME_END]))?;
    (!value.is_empty()).then_some(value)
}

/// Returns names and values in order; none where an entry is broken, a name comes again, the last
/// separator is missing, or there are more entries than a few.
#[must_use]
pub fn distinct_entries(text: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let text = text.strip_suffix(&[ENTRY_END])?;
    let mut found: Vec<(&[u8], &[u8])> = Vec::with_capacity(MOST_DISTINCT);
    for entry in text.split(|byte| *byte == ENTRY_END) {
        let size = entry.iter().position(|byte| *byte == NAME_END)?;
        let (name, value) = (entry.get(..size)?, entry.get(size + 1..)?);
        let is_good = !name.is_empty() && !value.is_empty() && !value.contains(&NAME_END);
        let is_known = found.iter().any(|&(known, _)| known == name);
        if !is_good || is_known || found.len() >= MOST_DISTINCT {
            return None;
        }
        found.push((name, value));
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::{distinct_entries, entries, split_entry, value_of};

    #[test]
    fn the_first_entry_of_a_name_has_its_value() {
        let text = b"XTAGS\x01x\x02TAGS\x01a\x01b\x02TAGS\x01c";
        assert_eq!(value_of(text, b"TAGS"), Some(&b"a\x01b"[..]));
        assert_eq!(value_of(b"TAGS\x01\x02TAGS\x01c", b"TAGS"), None);
        assert_eq!(value_of(b"TAGS", b"TAGS"), None);
    }

    #[test]
    fn broken_entries_are_left_out_and_values_may_hold_the_first_separator() {
        let text = b"\x02a\x01b\x02c\x02\x01d\x02e\x01\x02f\x01g\x01h";
        let found: Vec<_> = entries(text).collect();
        assert_eq!(found, [(&b"a"[..], &b"b"[..]), (&b"f"[..], &b"g\x01h"[..])]);
        assert_eq!(entries(b"").count(), 0);
    }

    #[test]
    fn distinct_entries_are_whole_and_few() {
        let found = distinct_entries(b"a\x01b\x02c\x01d\x02");
        assert_eq!(found, Some(vec![(&b"a"[..], &b"b"[..]), (b"c", b"d")]));
        for odd in [
            &b""[..],
            b"a\x01b",
            b"a\x02",
            b"\x01b\x02",
            b"a\x01\x02",
            b"a\x01b\x01c\x02",
            b"a\x01b\x02a\x01c\x02",
            b"a\x01b\x02\x02",
        ] {
            assert_eq!(distinct_entries(odd), None, "{odd:?}");
        }
        let many: Vec<String> = (0..33).map(|n| format!("{n}\x01v\x02")).collect();
        let many = many.concat();
        assert_eq!(distinct_entries(many.as_bytes()), None);
    }

    #[test]
    fn an_entry_of_any_size_is_split_off() {
        for size in 0..50 {
            let entry = vec![b'x'; size];
            assert_eq!(split_entry(&entry), (&entry[..], &[][..]));
            for behind in [&b""[..], b"\x02", b"y\x02", &[b'z'; 40]] {
                let text = [&entry, &b"\x02"[..], behind].concat();
                assert_eq!(split_entry(&text), (&entry[..], behind));
            }
        }
    }
}
