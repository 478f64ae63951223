"""The compiled reading side and its definition in Python give the same, whatever the bytes are."""

from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from isal.isal_zlib import crc32

from mailboat.client import record_decoder
from mailboat.client.record_decoder import decode_messages, decode_messages_from
from mailboat.errors import CorruptRecordError
from mailboat.model import compiled
from mailboat.model.record import (
    CRC_PROPERTY_BYTES,
    HEAD,
    MAGIC_V1,
    MAGIC_V2,
    TAIL,
    crc_property,
)
from mailboat.store.commit_log import CommitLog
from mailboat.store.consume_queue import UNIT, ConsumeQueue
from mailboat.store.lookup import GetResult, Lookup

if compiled.decode_records is None:
    pytest.skip("the compiled core is not installed", allow_module_level=True)

_INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
_INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
# What property texts are made of, broken UTF-8 and separators in odd places among it.
_TEXT_PIECES = st.sampled_from(
    [b"a", b"KEYS", b"TAGS", b"\x01", b"\x02", b"\x00", "é€𐍈".encode(), b"\xff", b"\xe2\x82",
     b"\xed\xa0\x80", b"\xf0\x9f", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"__CRC32#"]
)  # fmt: skip
_TEXT = st.lists(_TEXT_PIECES, max_size=12).map(b"".join)
_ENTRY = st.tuples(st.sampled_from([b"KEYS", b"UNIQ_KEY", b"a", b""]), _TEXT).map(
    lambda pair: pair[0] + b"\x01" + pair[1] + b"\x02"
)
_PROPERTIES = st.one_of(_TEXT, st.lists(_ENTRY, max_size=4).map(b"".join))


class _Made(NamedTuple):
    """A whole record, and what its unit says of it."""

    data: bytes
    physical_offset: int
    queue_offset: int


@st.composite
def _records(draw: st.DrawFn, queue_offset: int | None = None, at: int | None = None) -> _Made:
    """A well-formed record: any version, hosts, fields, with and without a checksum over all."""
    magic = draw(st.sampled_from([MAGIC_V1, MAGIC_V1, MAGIC_V2]))
    born_v6, store_v6 = draw(st.booleans()), draw(st.booleans())
    flags = draw(st.integers(0, 0x7FF)) & ~0x30 | born_v6 << 4 | store_v6 << 5
    topic = draw(st.sampled_from([b"orders", b"", "tópico".encode(), b"\xff\xfe", b"x" * 127]))
    if magic == MAGIC_V2:
        topic *= draw(st.sampled_from([1, 3]))
    body = draw(st.binary(max_size=60))
    properties = draw(_PROPERTIES)
    has_checksum = draw(st.booleans())
    place = draw(_INT64) if queue_offset is None else queue_offset
    physical_offset = draw(_INT64) if at is None else at
    born_host = draw(st.binary(min_size=20, max_size=20))[: 20 if born_v6 else 8]
    store_host = draw(st.sampled_from([b"\x7f" * 20, b"\x0a" * 20]))[: 20 if store_v6 else 8]
    stored_bytes = len(properties) + CRC_PROPERTY_BYTES * has_checksum
    rest = (
        draw(st.sampled_from([0, 1 << 40, -1])).to_bytes(8, "big", signed=True)
        + store_host
        + TAIL.pack(draw(_INT32), draw(_INT64), len(body))
        + body
        + len(topic).to_bytes(2 if magic == MAGIC_V2 else 1, "big")
        + topic
        + stored_bytes.to_bytes(2, "big")
        + properties
    )
    size = HEAD.size + len(born_host) + len(rest) + CRC_PROPERTY_BYTES * has_checksum
    body_crc = crc32(body) & 0x7FFFFFFF | draw(st.booleans()) << 31
    if body_crc >= 1 << 31:
        body_crc -= 1 << 32
    head = HEAD.pack(
        size, magic, body_crc, draw(_INT32), draw(_INT32), place, physical_offset, flags,
        draw(_INT64),
    )  # fmt: skip
    data = head + born_host + rest
    return _Made(data + crc_property(data) if has_checksum else data, physical_offset, place)


@st.composite
def _mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """Return bytes as they are, cut, with bytes changed, or with some in between."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(0, 2)) if data else 0):
        at = draw(st.one_of(st.integers(0, len(data) - 1), st.integers(-24, -1)))
        if -len(changed) <= at < len(changed):
            changed[at] = draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF, changed[at] ^ 1]))
    kind = draw(st.integers(0, 5))
    if kind == 0:
        del changed[draw(st.integers(0, len(changed))) :]
    elif kind == 1:
        at = draw(st.integers(0, len(changed)))
        changed[at:at] = draw(st.binary(min_size=1, max_size=4))
    return bytes(changed)


_BODIES = st.lists(_records(), max_size=4).flatmap(
    lambda made: _mutated(b"".join(record.data for record in made))
)


@settings(max_examples=600)
@given(_BODIES)
@example(b"")
@example(bytes(91))
def test_messages_are_those_of_the_definition(body: bytes) -> None:
    """Every field, its type, the order of properties, and the error's place and words."""
    assert _outcome(decode_messages, body) == _outcome(_defined, body)


@settings(max_examples=300)
@given(st.lists(_records(), min_size=1, max_size=4))
def test_whole_records_are_decoded_by_the_core_alone(made: list[_Made]) -> None:
    """It leaves nothing that is right to Python, whatever version, hosts and text it has."""
    body = b"".join(record.data for record in made)
    assert compiled.decode_records is not None
    rows, at = compiled.decode_records(body)
    assert (len(rows), at) == (len(made), len(body))


def _defined(body: bytes) -> list[Any]:
    return decode_messages_from(body, 0)


def _outcome(decode: Any, body: bytes) -> object:
    try:
        messages = decode(body)
    except CorruptRecordError as error:
        return str(error), error.physical_offset
    names = record_decoder.MessageExt.__slots__
    rows = [[getattr(message, name) for name in names] for message in messages]
    return [
        [(type(value), list(value.items()) if isinstance(value, dict) else value) for value in row]
        for row in rows
    ]


class _Log:
    """A log of one segment in memory, and a queue whose units lie in it: a `RecordSource`."""

    def __init__(self, data: bytes, units: bytes) -> None:
        self._data = data
        self._units = units

    def units(self, queue: ConsumeQueue, queue_offset: int, count: int) -> bytes:
        return self._units[queue_offset * 20 :][: count * 20]

    def copy(self, offsets: Any, sizes: Any, total: int) -> bytes | None:
        pieces = [self._data[at : at + size] for at, size in zip(offsets, sizes, strict=True)]
        body = b"".join(pieces)
        return body if len(body) == total else None

    def record(self, physical_offset: int, size: int) -> bytes | None:
        if physical_offset < 0 or physical_offset + size > len(self._data):
            return None
        return self._data[physical_offset : physical_offset + size]


class _Queue(NamedTuple):
    min_offset: int
    max_offset: int


_CODES = st.sampled_from([0, 7, -1, 1 << 40])


@st.composite
def _logs(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Draw a log and the units of its one queue, either mutated or not."""
    data, units = b"", b""
    for number in range(draw(st.integers(1, 6))):
        data += draw(st.sampled_from([b"", b"", bytes(30)]))
        made = draw(_records(queue_offset=number, at=len(data)))
        units += UNIT.pack(len(data), len(made.data), draw(_CODES))
        data += made.data
    units_after = bytearray(units)
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(units) - 1))
        units_after[at] = draw(st.sampled_from([0, 0x7F, 0x80, 0xFF, units[at] ^ 1]))
    return draw(_mutated(data)), bytes(units_after)


@settings(max_examples=800)
@given(
    _logs(),
    st.integers(0, 6),
    st.integers(1, 7),
    st.sampled_from([1, 200, 300, 500, 1 << 20]),
    st.one_of(st.none(), st.frozensets(_CODES)),
    st.booleans(),
    st.booleans(),
)
def test_reads_are_those_of_the_definition(
    log: tuple[bytes, bytes],
    queue_offset: int,
    max_messages: int,
    max_bytes: int,
    codes: frozenset[int] | None,
    check_crc: bool,
    skip_corrupt: bool,
) -> None:
    """The same records, place to go on and damage, with whatever limits and tags."""
    source = _Log(*log)
    queue: Any = _Queue(0, len(log[1]) // 20)
    outcomes = []
    for is_compiled in (True, False):
        lookup = Lookup(_NO_LOG, skip_corrupt=skip_corrupt, check_crc=check_crc)
        if not is_compiled:
            lookup._read_many = lookup._read_together
        # Twice: the definition remembers what it checked.
        for _ in range(2):
            result = lookup.get_message(queue, queue_offset, max_messages, max_bytes, codes, source)
            outcomes.append((_joined(result), lookup.corrupt_records))
    assert [outcome for outcome, _ in outcomes[:2]] == [outcome for outcome, _ in outcomes[2:]]
    assert outcomes[1][1] == outcomes[3][1]


_NO_LOG: Any = CommitLog.__new__(CommitLog)


def _joined(result: GetResult) -> GetResult:
    return result._replace(slices=[b"".join(result.slices)])
