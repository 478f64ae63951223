"""What comes from outside cannot write lines of its own, nor move a cursor."""

import json
import logging
import sys

import pytest

from mailboat.model.printable import (
    PrintableFormatter,
    printable,
    printable_json,
    printable_lines,
)

HOSTILE = "c\n2026 INFO forged\r\x1b[2J\x9b31m\x7f\u202etxt\u2028\u2066\x00\ud800"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders@host-1#订单 é", "orders@host-1#订单 é"),
        ("a\u3000b\u00a0c", "a\u3000b\u00a0c"),
        ("a\nb", "a\\nb"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x9b", "\\x9b"),
        ("\u202eabc\u2066", "\\u202eabc\\u2066"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("", ""),
    ],
)
def test_only_characters_for_people_stand_as_they_are(text: str, shown: str) -> None:
    """Controls, bidi controls, line separators, lone surrogates and invisible tags are escaped."""
    assert printable(text) == shown


def test_lines_stay_apart_where_they_are_wanted() -> None:
    """Everything else is escaped as ever."""
    assert printable_lines("a\r\n\x1bb\n") == "a\\r\n\\x1bb\n"


@pytest.mark.parametrize("indent", [None, 2])
def test_json_means_the_same_and_shows_nothing_odd(indent: int | None) -> None:
    """Whoever reads it back has the text as it came."""
    value = {"client": HOSTILE, HOSTILE: ["订单", "\U000e0041", 1.5]}
    text = printable_json(value, indent=indent)
    assert json.loads(text) == value
    assert all(line.isprintable() for line in text.split("\n"))
    assert "订单" in text


def _event(message: str, *arguments: object, error: bool = False) -> logging.LogRecord:
    info = sys.exc_info() if error else None
    return logging.LogRecord("a.b", logging.INFO, "f", 1, message, arguments, info)


def test_an_event_is_one_line_whatever_is_in_it() -> None:
    """The argument, the message itself and the logger's name."""
    line = PrintableFormatter("%(levelname)s %(name)s %(message)s").format(
        _event("client=%s\nand", HOSTILE)
    )
    assert line.startswith("INFO a.b client=c\\n2026 INFO forged\\r\\x1b[2J")
    assert line.isprintable()


def test_the_lines_of_a_traceback_stay_readable_and_look_like_no_event() -> None:
    """They are indented; what the error says cannot escape from them."""
    try:
        raise ValueError("bad\n2026 INFO forged\x1b[2J")
    except ValueError:
        text = PrintableFormatter("%(message)s").format(_event("failed", error=True))
    first, *others = text.split("\n")
    assert first == "failed"
    assert others[0] == "    Traceback (most recent call last):"
    assert others[-2:] == ["    ValueError: bad", "    2026 INFO forged\\x1b[2J"]
    assert all(line.startswith("    ") and line.isprintable() for line in others)
