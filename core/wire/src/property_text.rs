//! The text form of properties: `name 0x01 value 0x02` repeated; the last 0x02 may be missing.

const NAME_END: u8 = 1;
const ENTRY_END: u8 = 2;

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

#[cfg(test)]
mod tests {
    use super::entries;

    #[test]
    fn broken_entries_are_left_out_and_values_may_hold_the_first_separator() {
        let text = b"\x02a\x01b\x02c\x02\x01d\x02e\x01\x02f\x01g\x01h";
        let found: Vec<_> = entries(text).collect();
        assert_eq!(found, [(&b"a"[..], &b"b"[..]), (&b"f"[..], &b"g\x01h"[..])]);
        assert_eq!(entries(b"").count(), 0);
    }
}
