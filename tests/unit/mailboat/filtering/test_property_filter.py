"""Values found in a properties text without decoding it; expected is what RocketMQ's
string2messageProperties puts into its map."""

import itertools
import time

import pytest

from mailboat.filtering.property_filter import PropertyReader
from mailboat.model.properties import decode_properties


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


def test_every_order_of_empty_values_and_others_is_read_as_the_map_of_all() -> None:
    """Up to five entries: of the name, with or without a value, of others, and broken ones."""
    entries = (b"a\x011", b"a\x012", b"a\x01", b"ba\x013", b"\x01", b"")
    for count in range(6):
        for chosen in itertools.product(entries, repeat=count):
            text = b"\x02".join(chosen)
            for end in (b"", b"\x02"):
                (found,) = PropertyReader(["a"]).read(text + end, 0, len(text + end))
                assert found == decode_properties((text + end).decode()).get("a"), text + end


@pytest.mark.parametrize("filling", [b"\x01\x02" * 15_500, b"p00\x01\x02" * 6_200])
def test_many_empty_values_are_read_in_a_few_milliseconds(filling: bytes) -> None:
    """Whoever sends a message and whoever subscribes must not stop the broker together."""
    names = [f"p{number:02x}" for number in range(250)]
    text = filling + b"".join(name.encode() + b"\x01\x02" for name in names)
    begin_s = time.process_time()
    assert PropertyReader(names).read(text, 0, len(text)) == [None] * len(names)
    # Some twenty times what it takes, and a fifth of what a look at every entry for each name does.
    assert time.process_time() - begin_s < 0.1
