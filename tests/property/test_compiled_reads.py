"""The compiled reading side and its definition in Python give the same, whatever the bytes are."""

from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, example, given, settings
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
    crc_property_holds,
)
from mailboat.store.commit_log import CommitLog
from mailboat.store.consume_queue import UNIT, ConsumeQueue
from mailboat.store.lookup import Lookup
from mailboat.store.places import MIN_RECORD_BYTES, choose_places
from mailboat_spark.records import (
    RawRows,
    decode_body,
    property_marker,
    property_of,
    property_values,
)

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
_ENTRY = st.tuples(st.sampled_from([b"KEYS", b"TAGS", b"a", b""]), _TEXT).map(
    lambda pair: pair[0] + b"\x01" + pair[1] + b"\x02"
)
_TAGS = st.sampled_from([b"TAGS\x01A\x02", b"TAGS\x01\x02TAGS\x01A\x02", b"XTAGS\x01A\x02"])
_PROPERTIES = st.one_of(_TEXT, st.lists(st.one_of(_ENTRY, _TAGS), max_size=4).map(b"".join))


class _Made(NamedTuple):
    """A whole record, and what its unit says of it."""

    data: bytes
    physical_offset: int
    queue_offset: int


_TOPICS = st.sampled_from([b"orders", b"", "tópico".encode(), b"\xff\xfe", b"x" * 127])


@st.composite
def _records(
    draw: st.DrawFn,
    queue_offset: int | None = None,
    at: int | None = None,
    queue: tuple[bytes, int] | None = None,
) -> _Made:
    """A well-formed record: any version, hosts, fields, with and without a checksum over all."""
    magic = draw(st.sampled_from([MAGIC_V1, MAGIC_V1, MAGIC_V2]))
    born_v6, store_v6 = draw(st.booleans()), draw(st.booleans())
    flags = draw(st.integers(0, 0x7FF)) & ~0x30 | born_v6 << 4 | store_v6 << 5
    if queue is None:
        queue = draw(_TOPICS), draw(_INT32)
        if magic == MAGIC_V2:
            queue = queue[0] * draw(st.sampled_from([1, 3])), queue[1]
    topic, queue_id = queue
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
        size, magic, body_crc, queue_id, draw(_INT32), place, physical_offset, flags,
        draw(_INT64),
    )  # fmt: skip
    data = head + born_host + rest
    return _Made(data + crc_property(data) if has_checksum else data, physical_offset, place)


@st.composite
def _mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """Return bytes as they are, cut, with bytes changed, or with some in between."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(0, 2)) if data else 0):
        at = draw(st.one_of(st.integers(0, len(data) - 1), st.sampled_from([-1, -2, -12, -20])))
        if -len(changed) <= at < len(changed):
            changed[at] = draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF, changed[at] ^ 1]))
    kind = draw(st.integers(0, 5))
    if kind == 0:
        del changed[draw(st.integers(0, len(changed))) :]
    elif kind == 1:
        at = draw(st.integers(0, len(changed)))
        changed[at:at] = draw(st.binary(min_size=1, max_size=4))
    return bytes(changed)


def _record(
    magic: int, flags: int, *, has_checksum: bool, text: bytes = b"KEYS\x01a b\x02TAGS\x01A\x02"
) -> bytes:
    """Return a record at queue offset 3 and physical offset 0."""
    host = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
    topic, body = b"orders", b"some body"
    rest = (host * 3)[: 20 if flags & 0x10 else 8] + (1_700_000_000_000).to_bytes(8, "big")
    rest += (host * 3)[: 20 if flags & 0x20 else 8] + TAIL.pack(3, 5, len(body)) + body
    rest += len(topic).to_bytes(2 if magic == MAGIC_V2 else 1, "big") + topic
    rest += (len(text) + CRC_PROPERTY_BYTES * has_checksum).to_bytes(2, "big") + text
    size = HEAD.size + len(rest) + CRC_PROPERTY_BYTES * has_checksum
    data = HEAD.pack(size, magic, crc32(body) & 0x7FFFFFFF, 1, 2, 3, 0, flags, 4) + rest
    return data + crc_property(data) if has_checksum else data


_EVERY_KIND = [
    _record(magic, flags, has_checksum=has_checksum)
    for magic in (MAGIC_V1, MAGIC_V2)
    for flags in (0, 0x10, 0x20, 0x30)
    for has_checksum in (True, False)
]


@pytest.mark.parametrize("record", _EVERY_KIND)
def test_every_changed_byte_and_every_cut_is_what_the_definition_says(record: bytes) -> None:
    """As a message, as a row, and as the record of a unit."""
    unit = UNIT.pack(0, len(record), 7)
    for at in range(len(record)):
        damaged = [record[:at]]
        for change in (0x01, 0x03, 0x80):
            damaged.append(record[:at] + bytes([record[at] ^ change]) + record[at + 1 :])
        for data in damaged:
            body = data + record if len(data) == len(record) else data
            assert _outcome(decode_messages, body) == _outcome(_defined, body)
            for end in (3, 4):
                assert _rows(body, True, end=end) == _rows(body, False, end=end)
            log = (data, bytes(60) + unit, _ORDERS_1)
            assert _reads(log, 3, True, check_crc=True) == _reads(log, 3, False, check_crc=True)


_BODIES = st.lists(_records(), max_size=4).flatmap(
    lambda made: _mutated(b"".join(record.data for record in made))
)


@settings(max_examples=300)
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
    # A property may happen to be named and sized as the checksum's.
    assume(all(crc_property_holds(record.data) is not False for record in made))
    body = b"".join(record.data for record in made)
    assert compiled.decode_records is not None
    rows, at = compiled.decode_records(body)
    assert (len(rows), at) == (len(made), len(body))


def test_names_of_properties_are_told_apart_wherever_they_stand() -> None:
    """Records that name more, fewer, other and reordered properties follow each other."""
    names = ([b"a", b"b", b"c"], [b"a", b"c", b"b"], [b"b"], [], [b"a", b"b", b"c", b"d"], [b"c"])
    body = b"".join(
        _record(MAGIC_V1, 0, has_checksum=False, text=b"".join(n + b"\x01v\x02" for n in stored))
        for stored in names
    )
    assert _outcome(decode_messages, body) == _outcome(_defined, body)
    assert [list(message.properties) for message in decode_messages(body)] == [
        [name.decode() for name in stored] for stored in names
    ]


def _defined(body: bytes) -> list[Any]:
    return decode_messages_from(body, 0)


def _outcome(decode: Any, body: bytes) -> object:
    try:
        messages = decode(body)
    except CorruptRecordError as error:
        return str(error), error.physical_offset
    names = record_decoder.MessageExt.__struct_fields__
    rows = [[getattr(message, name) for name in names] for message in messages]
    return [
        [(type(value), list(value.items()) if isinstance(value, dict) else value) for value in row]
        for row in rows
    ]


@settings(max_examples=300)
@given(
    _BODIES,
    st.one_of(st.integers(-(1 << 63), 1 << 62), st.just(1 << 62)),
    st.sampled_from([1, 50, 1 << 62]),
    st.sampled_from([frozenset(tags) for tags in ([], [b"A"], [b"A", b"\xff"], [b""])]),
)
def test_rows_are_those_of_the_definition(
    body: bytes, end: int, max_bytes: int, tags: frozenset[bytes]
) -> None:
    """Payloads, properties, heads, what was seen, and the error's place and words."""
    rows = [_rows(body, which, end=end, max_bytes=max_bytes, tags=tags) for which in (True, False)]
    assert rows[0] == rows[1]


@settings(max_examples=300)
@given(st.lists(_PROPERTIES, max_size=3), st.sampled_from(["TAGS", "KEYS", "a"]))
def test_one_property_is_that_of_the_definition(texts: list[bytes], name: str) -> None:
    """Also where names end alike, come twice, or have no value."""
    marker = property_marker(name)
    assert property_values(texts, name) == [property_of(text, marker) for text in texts]


def _rows(body: bytes, is_compiled: bool, **options: Any) -> object:
    """Return what a body is decoded to, part after part, and the error at its end."""
    rows, parts = RawRows(), []
    options = {"end": 1 << 62, **options}
    with pytest.MonkeyPatch.context() as patch:
        if not is_compiled:
            patch.setattr(compiled, "decode_rows", None)
        at = 0
        try:
            while at < len(body):
                parts.append(decode_body(body, rows, body_at=at, **options))
                at = parts[-1].body_at
        except CorruptRecordError as error:
            parts.append((str(error), error.physical_offset))
    return parts, rows


class _Log:
    """A log of one segment in memory, and a queue whose units lie in it: a `RecordSource`."""

    def __init__(self, data: bytes, units: bytes) -> None:
        self._data = data
        self._units = units

    def units(self, queue: ConsumeQueue, queue_offset: int, count: int) -> bytes:
        return self._units[queue_offset * 20 :][: count * 20]

    def copy(self, places: bytes, runs: Any) -> bytes | None:
        body = b"".join([self._data[at : at + size] for at, size in runs])
        sizes = [size for _, size, _ in UNIT.iter_unpack(places)]
        return body if len(body) == sum(sizes) else None

    def record(self, physical_offset: int, size: int) -> bytes | None:
        if physical_offset < 0 or physical_offset + size > len(self._data):
            return None
        return self._data[physical_offset : physical_offset + size]


class _Queue(NamedTuple):
    """What a read asks of a queue."""

    min_offset: int
    max_offset: int
    topic: str
    topic_bytes: bytes
    queue_id: int


class _NoRepair:
    """Units that lead nowhere stay what they are."""

    def mend(self, queue: ConsumeQueue, queue_offset: int, read: tuple[int, int]) -> None:
        return None


_CODES = st.sampled_from([0, 7, -1, 1 << 40])


_QUEUES = st.tuples(_TOPICS, st.integers(0, 1))
_ORDERS_1 = (b"orders", 1)


@st.composite
def _logs(draw: st.DrawFn) -> tuple[bytes, bytes, tuple[bytes, int]]:
    """Draw a log, the units of a queue, either mutated or not, and whose queue that is.

    Some of the records may be of other queues.
    """
    data, units = b"", b""
    queue, other = draw(_QUEUES), draw(_QUEUES)
    for number in range(draw(st.integers(1, 6))):
        data += draw(st.sampled_from([b"", b"", bytes(30)]))
        whose = draw(st.sampled_from([queue] * 7 + [other]))
        made = draw(_records(queue_offset=number, at=len(data), queue=whose))
        units += UNIT.pack(len(data), len(made.data), draw(_CODES))
        data += made.data
    units_after = bytearray(units)
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(units) - 1))
        units_after[at] = draw(st.sampled_from([0, 0x7F, 0x80, 0xFF, units[at] ^ 1]))
    return draw(_mutated(data)), bytes(units_after), queue


@settings(max_examples=500)
@given(
    _logs(),
    st.integers(0, 6),
    st.integers(1, 7),
    st.integers(0, 6),
    st.integers(-1, 1),
    st.one_of(st.none(), st.frozensets(_CODES)),
    st.booleans(),
    st.booleans(),
)
def test_reads_are_those_of_the_definition(
    log: tuple[bytes, bytes, tuple[bytes, int]],
    queue_offset: int,
    max_messages: int,
    room_for: int,
    more_bytes: int,
    codes: frozenset[int] | None,
    check_crc: bool,
    skip_corrupt: bool,
) -> None:
    """The same records, place to go on and damage, with whatever limits and tags.

    There is room for so many records, or for a byte less or more.
    """
    sizes = [size for _, size, _ in UNIT.iter_unpack(log[1])][queue_offset:]
    max_bytes = max(sum(sizes[:room_for]) + more_bytes, 1)
    options: Any = {"check_crc": check_crc, "skip_corrupt": skip_corrupt}
    options |= {"max_messages": max_messages, "max_bytes": max_bytes, "codes": codes}
    assert _reads(log, queue_offset, True, **options) == _reads(log, queue_offset, False, **options)


def _reads(
    log: tuple[bytes, bytes, tuple[bytes, int]],
    queue_offset: int,
    is_compiled: bool,
    *,
    check_crc: bool,
    skip_corrupt: bool = False,
    max_messages: int = 32,
    max_bytes: int = 1 << 20,
    codes: frozenset[int] | None = None,
) -> object:
    """Return what two reads give, and what they counted; the definition remembers the first."""
    with pytest.MonkeyPatch.context() as patch:
        if not is_compiled:
            patch.setattr(compiled, "choose_places", None)
        # Time stands still: a slow machine ends a read at another place.
        options: Any = {"skip_corrupt": skip_corrupt, "check_crc": check_crc}
        repair: Any = _NoRepair()
        lookup = Lookup(_NO_LOG, repair, **options, clock=lambda: 0.0)
    data, units, (topic, queue_id) = log
    name = topic.decode(errors="replace")
    queue: Any = _Queue(0, len(units) // 20, name, name.encode(), queue_id)
    source = _Log(data, units)
    limits = (max_messages, max_bytes, codes)
    results = [lookup.get_message(queue, queue_offset, *limits, source) for _ in range(2)]
    joined = [result._replace(slices=[b"".join(result.slices)]) for result in results]
    return joined, lookup.corrupt_records


_NO_LOG: Any = CommitLog.__new__(CommitLog)


@st.composite
def _units_in_order(draw: st.DrawFn) -> bytes:
    """Draw units of records in order, some of them back to back."""
    units, end = b"", draw(st.integers(0, 1 << 40))
    for _ in range(draw(st.integers(1, 12))):
        end += draw(st.sampled_from([0, 0, 0, 1, 300]))
        size = draw(st.sampled_from([MIN_RECORD_BYTES, 200, 201]))
        units += UNIT.pack(end, size, draw(_CODES))
        end += size
    return units


@settings(max_examples=300)
@given(
    _units_in_order(),
    st.integers(0, 1 << 40),
    st.integers(1, 13),
    st.integers(1, 12),
    st.integers(-1, 1),
    st.one_of(st.none(), st.frozensets(_CODES)),
)
def test_the_same_records_are_chosen(
    units: bytes,
    queue_offset: int,
    max_messages: int,
    room_for: int,
    more_bytes: int,
    codes: frozenset[int] | None,
) -> None:
    """The same places, where to go on, and what lies back to back."""
    assert compiled.choose_places is not None
    max_bytes = sum(size for _, size, _ in list(UNIT.iter_unpack(units))[:room_for]) + more_bytes
    wanted = (units, queue_offset, max_messages, max_bytes, codes)
    chosen, defined = compiled.choose_places(*wanted), choose_places(*wanted)
    assert chosen is not None
    assert defined is not None
    assert (*chosen[:2], list(chosen[2])) == (*defined[:2], list(defined[2]))
    ends = [(at, at + size) for at, size in defined[2]]
    assert all(end < start for (_, end), (start, _) in pairwise(ends))
    sizes = [size for _, size, _ in UNIT.iter_unpack(defined[0])]
    assert sum(sizes) == sum(size for _, size in defined[2])
