"""Java properties text, the format of broker.conf and of the configuration requests.

One `key = value` (or `key: value`) per line; `#` and `!` start a comment line; a backslash at the
end joins the next line; `\\n`, `\\t`, `\\\\`, `\\uXXXX` and escaped separators are understood.

Source: java.util.Properties.load (its documented line format).
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from mailboat.config.fields import HIDDEN
from mailboat.errors import ConfigError

_KEY: Final = re.compile(r"((?:\\.|[^\\=:\s])*)[ \t\f]*[=:]?[ \t\f]*", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROL: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    """One assignment and the line it starts at."""

    key: str
    value: str
    line: int


def parse_properties(text: str) -> list[Property]:
    """Read every assignment in order; a key can come twice.

    Raises:
        ConfigError: a line holds a key without `=` or `:` (Java takes it as empty; here it is a
        slip).
    """
    found = []
    for line, content in _logical_lines(text.removeprefix("\ufeff")):
        match = _KEY.match(content)
        assert match is not None
        if not re.search(r"[=:]", content[match.end(1) : match.end()]):
            # What it holds may be a secret.
            raise ConfigError(f"line {line}", HIDDEN, "has no '=' between a key and a value")
        found.append(
            Property(_unescape(match[1]), _unescape(content[match.end() :]).rstrip(), line)
        )
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    pending, start = "", 0
    for number, raw in enumerate(re.split(r"\r\n|\r|\n", text), start=1):
        line = raw.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        start = start or number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending += line[:-1]
            continue
        yield start, pending + line
        pending, start = "", 0
    if pending:
        yield start, pending


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _CONTROL.get(code, code)

    return _ESCAPE.sub(replace, text)
