"""Java properties text: what java.util.Properties.load documents."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailboat.config.properties import Property, parse_properties
from mailboat.errors import ConfigError


@pytest.mark.parametrize(
    "line",
    [
        "flushDiskType=SYNC_FLUSH",
        "flushDiskType = SYNC_FLUSH",
        "  flushDiskType\t:\tSYNC_FLUSH",
        "flushDiskType=SYNC_FLUSH  ",
        "flushDisk\\\n   Type=SYNC_\\\n  FLUSH",
        "\ufeffflushDiskType=SYNC_FLUSH",
        "flush\\u0044iskType=SYNC_FLUSH",
    ],
)
def test_every_spelling_of_an_assignment_is_read(line: str) -> None:
    """Spaces, colons, continued lines, a byte order mark and escapes all mean the same."""
    assert parse_properties(line) == [Property("flushDiskType", "SYNC_FLUSH", 1)]


def test_comments_and_blank_lines_are_skipped_and_lines_are_counted() -> None:
    """An assignment carries the number of the line where it starts."""
    text = "# a = 1\r\n! b = 2\r\n\r\nc = 3\nd = 4\n"
    assert parse_properties(text) == [Property("c", "3", 4), Property("d", "4", 5)]


def test_a_value_may_hold_separators_and_escapes() -> None:
    """Only the first separator ends the key."""
    text = "namesrvAddr=10.0.0.1:9876;10.0.0.2:9876\npath=C\\:\\\\store\ntext=a\\tb\\nc\n"
    assert [item.value for item in parse_properties(text)] == [
        "10.0.0.1:9876;10.0.0.2:9876",
        "C:\\store",
        "a\tb\nc",
    ]


def test_a_continued_line_loses_its_backslash_and_the_next_its_indent() -> None:
    """What follows the backslash is no escape; a doubled backslash continues nothing."""
    assert parse_properties("a=x\\\n   ny\nb=z\\\\\nc=1") == [
        Property("a", "xny", 1),
        Property("b", "z\\", 3),
        Property("c", "1", 4),
    ]


def test_a_key_that_comes_twice_is_reported_twice() -> None:
    """The caller decides what a double key means."""
    assert [item.value for item in parse_properties("a=1\na=2\n")] == ["1", "2"]


def test_a_line_without_a_separator_is_an_error() -> None:
    """A forgotten '=' is named with its line instead of becoming an empty value."""
    with pytest.raises(ConfigError, match="line 2=<hidden>: has no '='"):
        parse_properties("a=1\nflushDiskType SYNC_FLUSH\n")


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text makes the parser fail in another way than it documents."""
    try:
        parse_properties(text)
    except ConfigError:
        pass
