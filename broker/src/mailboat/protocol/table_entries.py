"""Reads the tables that a broker hands over whole, an entry at a time.

    {"dataVersion":{"counter":3},"topicConfigTable":{"NAME":{"perm":6},"OTHER":{"perm":4}}}
    {"offsetTable":{"TOPIC@GROUP":{0:12,1:7}}}

A table of some megabytes takes its reader a tenth of a second; between two entries others have
their turn. Java's bare number keys are taken, whatever the values are is left to who reads them.
"""

import re
from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

import msgspec

from mailboat.errors import RemoteProtocolError

MAX_ENTRY_BYTES: Final = 1 << 20
"""Longest entry: offsets in a topic with the most queues that there may be have a fifth of it."""

# No pass looks at a byte twice: the groups give nothing back.
_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'


def _object(depth: int) -> bytes:
    """Write the pattern of an object that holds others, so many deep."""
    inner = b"|" + _object(depth - 1) if depth else b""
    return rb'\{(?:[^{}"]++|' + _STRING + inner + rb")*+\}"


_OBJECT: Final = _object(4)
_SCALAR: Final = rb'[^\s{}\[\]",:]++'
_FLAT_LIST: Final = rb'\[(?:[^\[\]{}"]++|' + _STRING + b"|" + _OBJECT + rb")*+\]"
_LIST: Final = rb'\[(?:[^\[\]{}"]++|' + b"|".join((_STRING, _OBJECT, _FLAT_LIST)) + rb")*+\]"
_BEGIN: Final = re.compile(rb"\s*+\{\s*+", re.DOTALL)
_KEY: Final = re.compile(rb"(" + _STRING + rb"|-?[0-9]++)\s*+:\s*+", re.DOTALL)
_VALUE: Final = re.compile(b"|".join((_OBJECT, _STRING, _LIST, _SCALAR)), re.DOTALL)
_NEXT: Final = re.compile(rb"\s*+([,}])\s*+")
_decode_text: Final = msgspec.json.Decoder(str).decode


class Entry(NamedTuple):
    """An entry of a table; without a key an empty table, or a member that is none."""

    member: str
    key: str
    value: bytes
    """JSON as it was sent."""


def table_entries(text: bytes) -> Iterator[Entry]:
    """Return the entries of the tables that a JSON object has, in their order.

    Raises:
        RemoteProtocolError: it is no such object from some place on, or an entry is longer than
            `MAX_ENTRY_BYTES`.
    """
    at = _expect(_BEGIN, text, 0).end()
    if text[at : at + 1] == b"}":
        return
    while True:
        found = _expect(_KEY, text, at)
        member, at = _key(found[1]), found.end()
        if text[at : at + 1] == b"{":
            at = yield from _entries(text, at, member)
        else:
            found = _expect(_VALUE, text, at)
            yield Entry(member, "", found[0])
            at = found.end()
        found = _expect(_NEXT, text, at)
        if found[1] == b"}":
            return
        at = found.end()


def _entries(text: bytes, at: int, member: str) -> Generator[Entry, None, int]:
    """Return the entries of the object at a place; the generator's value is the place behind it."""
    at = _expect(_BEGIN, text, at).end()
    if text[at : at + 1] == b"}":
        yield Entry(member, "", b"{}")
        return at + 1
    while True:
        found = _expect(_KEY, text, at)
        key = _key(found[1])
        found = _expect(_VALUE, text, found.end())
        yield Entry(member, key, found[0])
        found = _expect(_NEXT, text, found.end())
        if found[1] == b"}":
            return found.end(1)
        at = found.end()


def _expect(pattern: re.Pattern[bytes], text: bytes, at: int) -> re.Match[bytes]:
    found = pattern.match(text, at, at + MAX_ENTRY_BYTES)
    if found is None:
        raise RemoteProtocolError(
            f"what begins at byte {at} of {len(text)} is no table in JSON, or has an entry of more "
            f"than {MAX_ENTRY_BYTES} bytes"
        )
    return found


def _key(text: bytes) -> str:
    if text[:1] != b'"':
        return text.decode()
    try:
        return _decode_text(text)
    except ValueError as error:
        raise RemoteProtocolError(f"a key of a table is no text: {error}") from error
