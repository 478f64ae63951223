"""Large tables as JSON, written a slice at a time.

The slices joined are what one call of the encoder would have written. Between two of them the table
may change: each entry is as it was when its slice was made.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

import msgspec

from mailboat.protocol.bodies import encode_body

ENTRIES_A_SLICE: Final = 400

_T = TypeVar("_T")

Member = tuple[str, bytes | Iterable[bytes]]
"""A field's name and its value as compact JSON, whole or as JSON objects that make one together."""


def table_parts(
    table: Mapping[str, _T],
    encode: Callable[[dict[str, _T]], bytes] = encode_body,
    weigh: Callable[[_T], int] = lambda value: 1,
) -> Iterator[bytes]:
    """Write the entries of a table as JSON objects of bounded size.

    Args:
        table: what to write; entries that come meanwhile are left out.
        encode: writes some entries as one object.
        weigh: how many entries one counts for.
    """
    part: dict[str, _T] = {}
    weight = 0
    for key in list(table):
        value = table.get(key)
        if value is None:
            continue
        part[key] = value
        weight += weigh(value)
        if weight >= ENTRIES_A_SLICE:
            yield encode(part)
            part, weight = {}, 0
    if part:
        yield encode(part)


def compact_slices(members: Iterable[Member]) -> Iterator[bytes]:
    """Write an object without a needless byte."""
    start = b"{"
    for name, value in members:
        head = start + encode_body(name) + b":"
        start = b","
        if isinstance(value, bytes):
            yield head + value
            continue
        yield head + b"{"
        comma = b""
        for part in value:
            yield comma + part[1:-1]
            comma = b","
        yield b"}"
    yield b"}"


def pretty_slices(members: Iterable[Member]) -> Iterator[bytes]:
    """Write an object indented, as `mailboat.disk.json_file.to_pretty_json` does."""
    start = b"{\n"
    for name, value in members:
        if isinstance(value, bytes):
            yield start + _indented(name, value)[2:-2]
            start = b",\n"
            continue
        head = b" " + encode_body(name) + b": {"
        yield start + head
        start, comma = b",\n", b"\n"
        for part in value:
            # Without what stands around the entries: `{`, the name and `{`, then `}` and `}`.
            yield comma + _indented(name, part)[len(head) + 3 : -5]
            comma = b",\n"
        yield b"\n }" if comma == b",\n" else b"}"
    yield b"\n}\n"


def _indented(name: str, value: bytes) -> bytes:
    return bytes(msgspec.json.format(b"{" + encode_body(name) + b":" + value + b"}", indent=1))
