"""Promises of mailboat.protocol.json_slices."""

import msgspec
import pytest

from mailboat.disk.json_file import to_pretty_json
from mailboat.protocol.json_slices import (
    ENTRIES_A_SLICE,
    Member,
    compact_slices,
    pretty_slices,
    table_parts,
)

Table = dict[str, dict[str, int]]

TABLES: list[Table] = [
    {},
    {"a": {}},
    {"a": {"0": 1, "1": 2}, "ä \n": {}, "c": {"2": 3}},
    {f"t{number}": {"0": number} for number in range(3 * ENTRIES_A_SLICE + 1)},
]


def members(table: Table) -> list[Member]:
    """Return an object with one large table between two small fields."""
    return [("version", b'{"counter":1}'), ("table", table_parts(table)), ("last", b"[1,2]")]


@pytest.mark.parametrize("table", TABLES)
def test_slices_joined_are_what_the_encoder_writes(table: Table) -> None:
    """Compact and indented, whatever the size of the table."""
    whole = msgspec.json.encode({"version": {"counter": 1}, "table": table, "last": [1, 2]})
    assert b"".join(compact_slices(members(table))) == whole
    assert b"".join(pretty_slices(members(table))) == to_pretty_json(whole)
    alone = msgspec.json.encode({"table": table})
    assert b"".join(compact_slices([("table", table_parts(table))])) == alone
    assert b"".join(pretty_slices([("table", table_parts(table))])) == to_pretty_json(alone)


def test_slices_are_bounded_by_weight() -> None:
    """A few heavy entries fill a slice as many light ones do."""
    table = {str(number): list(range(100)) for number in range(40)}
    parts = [msgspec.json.decode(part) for part in table_parts(table, weigh=len)]
    assert [len(part) for part in parts] == [ENTRIES_A_SLICE // 100] * 10


def test_entries_may_come_and_go_between_slices() -> None:
    """What is removed before its slice is left out, and so is what comes."""
    table = {str(number): 1 for number in range(2 * ENTRIES_A_SLICE)}
    parts = table_parts(table)
    next(parts)
    del table[str(ENTRIES_A_SLICE)]
    table["new"] = 1
    assert len(msgspec.json.decode(next(parts))) == ENTRIES_A_SLICE - 1
    assert list(parts) == []
