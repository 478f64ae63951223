r"""Text from outside on its way to a log or a terminal: names, client ids, remarks, paths.

A newline in a client id would be a line of its own in the log, an escape code moves the cursor of
who looks at it, and a bidi control turns the order of what follows. Each such character is written
as Python and JSON write it: \n, \x1b, \u202e.
"""

import json
import logging
import unicodedata
from typing import Final

_TRACE_INDENT: Final = "    "


def printable(text: str) -> str:
    """Return a text with every character that is not for people escaped; letters and spaces of any
    language stay."""
    if text.isprintable():
        return text
    return "".join(char if _is_shown(char) else _escape(char) for char in text)


def printable_lines(text: str) -> str:
    """Do the same to a text of several lines, which stay apart."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(value: object, *, indent: int | None = None, compact: bool = False) -> str:
    """Write a value as JSON in which only characters for people stand as they are."""
    separators = (",", ":") if compact else None
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators)
    if text.isprintable():
        return text
    return "".join(
        char if _is_shown(char) or char == "\n" else json.dumps(char)[1:-1] for char in text
    )


class PrintableFormatter(logging.Formatter):
    """One line for each event, whatever is in it; the lines of a traceback follow, indented, so
    that none of them looks like an event."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Write the line of an event."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: "logging._SysExcInfoType") -> str:
        """Write a traceback."""
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        """Write the stack of who logs."""
        return _indented(super().formatStack(stack_info))


def _indented(text: str) -> str:
    lines = printable_lines(text).split("\n")
    return "\n".join(_TRACE_INDENT + line for line in lines)


def _is_shown(char: str) -> bool:
    return char.isprintable() or unicodedata.category(char) == "Zs"


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode()
