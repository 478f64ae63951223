"""Java's string hash, against Java's values and against its definition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailboat.model.tags import (
    java_hash,
    signed,
    tags_code,
    unsigned_hash,
    unsigned_text_hash,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("订单", 1129459),
        ("abcdefghijklmnop", -2093879032),
        # Java's classic collision, and the text whose hash is Integer.MIN_VALUE.
        ("Aa", 2112),
        ("BB", 2112),
        ("polygenelubricants", -(2**31)),
    ],
)
def test_known_hashes(text: str, expected: int) -> None:
    """The values that Java prints."""
    assert java_hash(text) == expected


def test_a_surrogate_pair_counts_as_two_units() -> None:
    """A character beyond the basic plane is hashed as Java's two chars."""
    high, low = 0xD83D, 0xDE00
    assert java_hash("\N{GRINNING FACE}") == signed((31 * high + low) & 0xFFFFFFFF)


def _by_definition(text: str) -> int:
    h = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(units), 2):
        h = (31 * h + int.from_bytes(units[index : index + 2], "big")) % 2**32
    return h - 2**32 if h >= 2**31 else h


@given(text=st.text(st.characters(exclude_categories=[]), max_size=200))
def test_any_text_hashes_as_defined(text: str) -> None:
    """h = 31 * h + unit over UTF-16 code units in 32 bits, signed."""
    assert java_hash(text) == _by_definition(text)


@given(text=st.text(st.characters(max_codepoint=255), min_size=400, max_size=1700))
def test_long_latin_texts_hash_as_defined(text: str) -> None:
    """The fast way cuts long texts into pieces without a seam."""
    assert java_hash(text) == _by_definition(text)


@given(first=st.text(max_size=40), second=st.text(max_size=40))
def test_a_hash_can_be_continued(first: str, second: str) -> None:
    """The hash of a prefix seeds the hash of what follows."""
    seed = unsigned_text_hash(first)
    assert unsigned_text_hash(second, seed) == unsigned_text_hash(first + second)


@given(data=st.binary(max_size=50), seed=st.integers(0, 2**32 - 1))
def test_bytes_hash_as_latin_characters(data: bytes, seed: int) -> None:
    """`unsigned_hash` is the hash of one character for each byte."""
    assert unsigned_hash(data, seed) == unsigned_text_hash(data.decode("latin-1"), seed)


def test_tags_code() -> None:
    """No tag and the empty tag are 0; a tag with bars is hashed whole."""
    assert (tags_code(None), tags_code("")) == (0, 0)
    assert tags_code("TagA") == 0x27A807
    assert tags_code("a || b") == java_hash("a || b")
    assert tags_code("abcdefghijklmnop").to_bytes(8, "big", signed=True)[:4] == b"\xff\xff\xff\xff"
