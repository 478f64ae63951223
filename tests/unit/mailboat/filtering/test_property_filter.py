"""Values found in a properties text without decoding it; expected is what RocketMQ's
string2messageProperties puts into its map."""

import pytest

from mailboat.filtering.property_filter import PropertyReader


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a\x011\x02", "1"),
        (b"a\x011", "1"),
        (b"b\x012\x02a\x011\x02", "1"),
        (b"b\x012\x02a\x011", "1"),
        (b"ba\x012\x02", None),
        (b"b\x01a\x02", None),
        (b"a\x02", None),
        (b"", None),
        (b"a\x011\x02a\x012\x02", "2"),
        (b"b\x010\x02a\x011\x02a\x012\x02a\x013\x02", "3"),
        (b"a\x011\x02a\x01\x02", "1"),
        (b"c\x010\x02a\x011\x02a\x012\x02a\x01\x02a\x01", "2"),
        (b"a\x01\x02", None),
        (b"a\x011\x01a\x012\x02", "1\x01a\x012"),
        (b"\x02\x02a\x011\x02\x02", "1"),
        (b"a\x01\xe4\xbd\xa0\x02", "\u4f60"),
        (b"a\x01x\xff\x02b\x01y\x02", "x\ufffd"),
    ],
)
def test_the_last_value_that_is_not_empty_is_found(text: bytes, expected: str | None) -> None:
    """Wherever the text lies, and whatever lies around it."""
    for before, after in ((b"", b""), (b"\x02a\x019\x02", b"a\x019\x02"), (b"a\x01", b"\x02")):
        data = before + text + after
        values = PropertyReader(["a"]).read(data, len(before), len(before) + len(text))
        assert values == [expected]
