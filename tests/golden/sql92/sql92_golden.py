"""Reads the golden tables of SQL92 beside this file."""

from pathlib import Path
from typing import NamedTuple

_FOLDER = Path(__file__).parent
_PROPERTY = "property"


class RefusedRow(NamedTuple):
    """An expression that mailboat refuses."""

    text: str
    reason: str
    """A part of what mailboat says."""

    is_ignored: bool
    """RocketMQ takes it, and ignores what stands behind the first condition."""


def _lines(name: str) -> list[str]:
    lines = (_FOLDER / name).read_text(encoding="ascii").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _plain(text: str) -> str:
    return text.encode().decode("unicode_escape")


def golden_properties() -> dict[str, str]:
    """Return the properties of the message that the conditions are about."""
    rows = [line.split(" ", 2) for line in _lines("conditions.txt")]
    return {row[1]: _plain(row[2]) for row in rows if row[0] == _PROPERTY}


def condition_rows() -> list[tuple[str, str]]:
    """Return pairs of a condition and what it comes to: T, F, U or throws."""
    rows = [line.split(" ", 1) for line in _lines("conditions.txt")]
    return [(_plain(text.strip()), result) for result, text in rows if result != _PROPERTY]


def refused_rows() -> list[RefusedRow]:
    """Return the expressions that are refused."""
    rows: list[RefusedRow] = []
    for line in _lines("refused.txt"):
        kind, rest = line.split(" ", 1)
        reason, text = rest.split(" | ", 1)
        rows.append(RefusedRow(_plain(text), reason, kind == "ignored"))
    return rows
