"""A start that reads the log with the compiled core ends as one that reads it record by record."""

import logging
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isal.isal_zlib import crc32
from promises import promised

from mailboat.disk import read_file, replace_file
from mailboat.model import compiled
from mailboat.model.names import SCHEDULE_TOPIC
from mailboat.model.record import (
    BLANK_MAGIC,
    CRC_PROPERTY_BYTES,
    FILLER,
    HEAD,
    MAGIC_V1,
    MAGIC_V2,
    TAIL,
    crc_property,
)
from mailboat.store import index_backlog, segment_reader
from mailboat.store.checkpoint import open_flushed_mark
from mailboat.store.deleted_topics import DeletedTopics
from mailboat.store.dispatch import Dispatch
from mailboat.store.layout import segment_name, store_paths
from mailboat.store.message_store import MessageStore
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.store_simulator import HOST, small_config

if compiled.scan_records is None:
    pytest.skip("the compiled core is not installed", allow_module_level=True)

_PATHS = store_paths("/store")
_SEGMENT_BYTES = 8192
_NOW_MS = 1_700_000_000_000

_ODD_TOPICS = ["", ".", "..", "a/b", "a\0b", "\udcff", "é", "t" * 255, "t" * 256, SCHEDULE_TOPIC]
_TEXTS = [
    b"UNIQ_KEY\x01U1\x02KEYS\x01a b  c\x02TAGS\x01A\x02",
    b"UNIQ_KEY\x01U2\x02KEYS\x01a\x02TAGS\x01A\x02TAGS\x01B",
    b"KEYS\x01k\x02KEYS\x01\x02",
    "UNIQ_KEY\x01€\x02TAGS\x01𐍈\x02".encode(),
    b"",
    b"TAGS\x01A\x02",
    b"KEYS\x01 \x02",
    b"KEYS\x01\xff\x02",
    b"TAGS\x01\xe2\x82\x02KEYS\x01k\x02",
    b"\xe2\x82\x01TAGS\x02\x02TAGS\x01\x01\x02KEYS\x01\x01k\x01\x02",
    b"UNIQ_KEY\x01U\x02DELAY\x013\x02MAILBOAT_DELIVER_MS\x01123\x02",
    b"KEYS\x01" + b"k " * 30 + b"\x02",
]


class _Log(NamedTuple):
    """A directory as somebody left it: segments, mark, deletions and pages that went bad."""

    segments: list[bytes]
    mark: int | None
    is_intact: bool
    deleted: dict[str, int]
    unreadable: list[tuple[int, int]]

    def __repr__(self) -> str:
        """Tell enough to see what is drawn: the bytes would fill pages."""
        sizes = [len(segment.rstrip(b"\0")) for segment in self.segments]
        return f"_Log({sizes}, {self.mark}, {self.is_intact}, {self.deleted}, {self.unreadable})"


class _Fields(NamedTuple):
    """What a record says beside its place in the log."""

    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp_ms: int
    text: bytes
    body: bytes
    magic: int
    has_checksum: bool


def _record(fields: _Fields, physical_offset: int) -> bytes:
    topic = fields.topic.encode("utf-8", "surrogateescape")
    magic = MAGIC_V2 if len(topic) > 127 else fields.magic
    born, stored = (20 if fields.sys_flag & bit else 8 for bit in (0x10, 0x20))
    tail = TAIL.pack(0, 0, len(fields.body)) + fields.body
    tail += len(topic).to_bytes(2 if magic == MAGIC_V2 else 1, "big") + topic
    tail += (len(fields.text) + CRC_PROPERTY_BYTES * fields.has_checksum).to_bytes(2, "big")
    rest = HOST[:1] * born + fields.store_timestamp_ms.to_bytes(8, "big", signed=True)
    rest += HOST[:1] * stored + tail + fields.text
    size = HEAD.size + len(rest) + CRC_PROPERTY_BYTES * fields.has_checksum
    body_crc = crc32(fields.body) & 0x7FFFFFFF
    data = HEAD.pack(
        size, magic, body_crc, fields.queue_id, 0, fields.queue_offset, physical_offset,
        fields.sys_flag, _NOW_MS,
    ) + rest  # fmt: skip
    return data + crc_property(data) if fields.has_checksum else data


_PLAIN = ("plain",) * 12
_KINDS = st.sampled_from(
    [*_PLAIN, "flags", "text", "topic", "hole", "second", "anew", "far", "place", "moved", "zeros",
     "damaged", "short", "late"]
)  # fmt: skip


@st.composite
def _fields(draw: st.DrawFn, kind: str, ends: dict[tuple[str, int], int]) -> _Fields:
    topic = draw(st.sampled_from(["orders", "orders", "%RETRY%g", "t" * 200]))
    if kind == "topic":
        topic = draw(st.sampled_from(_ODD_TOPICS))
    queue_id = draw(st.integers(0, 1))
    queue_offset = ends.get((topic, queue_id), draw(st.sampled_from([0, 0, 0, 7, 25])))
    if kind == "hole":
        queue_offset += draw(st.integers(1, 30))
    elif kind == "second":
        queue_offset = max(queue_offset - draw(st.integers(1, 3)), 0)
    elif kind == "anew":
        queue_offset = 0
    elif kind == "far":
        queue_offset = draw(st.sampled_from([-1, 5_000_000, (1 << 58) + 1]))
    elif kind == "place":
        queue_id = draw(st.sampled_from([-1, 1 << 20]))
    if kind in (*_PLAIN, "flags", "text", "topic", "hole", "anew", "late"):
        ends[topic, queue_id] = queue_offset + 1
    flags = draw(st.sampled_from([0, 0x4, 0x8, 0xC, 0x10, 0x20, 0x30, 0x7F3]))
    times_ms = [0, 1, 400, 3000] if kind != "late" else [-5000, -(1 << 50), 1 << 41]
    return _Fields(
        topic,
        queue_id,
        queue_offset,
        flags if kind == "flags" else 0,
        _NOW_MS + draw(st.sampled_from(times_ms)),
        draw(st.sampled_from(_TEXTS if kind == "text" else _TEXTS[:2])),
        bytes(draw(st.sampled_from([0, 10, 300, 1500]))),
        draw(st.sampled_from([MAGIC_V1, MAGIC_V2])),
        draw(st.booleans()),
    )


@st.composite
def _logs(draw: st.DrawFn) -> _Log:
    """Draw segments full of records of all kinds, and whatever else a start looks at."""
    segments, ends = [bytearray()], dict[tuple[str, int], int]()
    begin = _SEGMENT_BYTES * draw(st.integers(0, 1))
    for kind in draw(st.lists(_KINDS, max_size=60)):
        fields = draw(_fields(kind, ends))
        record = _record(fields, 0)
        segment = segments[-1]
        if len(segment) + len(record) + 8 > _SEGMENT_BYTES:
            remaining = _SEGMENT_BYTES - len(segment)
            segment += FILLER.pack(remaining, BLANK_MAGIC).ljust(remaining, b"\xaa")
            segments.append(segment := bytearray())
        here = begin + (len(segments) - 1) * _SEGMENT_BYTES + len(segment)
        record = _record(fields, here + (kind == "moved"))
        if kind == "damaged":
            at = draw(st.integers(0, len(record) - 1))
            record = (
                record[:at] + bytes([record[at] ^ draw(st.integers(1, 255))]) + record[at + 1 :]
            )
        elif kind == "short":
            record = record[: draw(st.integers(0, len(record)))]
        segment += bytes(len(record)) if kind == "zeros" else record
    end = begin + (len(segments) - 1) * _SEGMENT_BYTES + len(segments[-1])
    places = st.integers(begin, end)
    deleted = draw(st.dictionaries(st.sampled_from(["orders", "%RETRY%g"]), places, max_size=1))
    return _Log(
        [b""] * (begin // _SEGMENT_BYTES)
        + [bytes(segment).ljust(_SEGMENT_BYTES, b"\0") for segment in segments],
        draw(st.one_of(st.none(), places, st.just(end))),
        draw(st.booleans()),
        deleted if draw(st.booleans()) else {},
        [(draw(places), 100)] if draw(st.integers(0, 5)) == 0 else [],
    )


def _directory(log: _Log) -> SimulatedDisk:
    disk = SimulatedDisk()
    for folder in _PATHS.folders:
        disk.make_dirs(folder)
    for number, segment in enumerate(log.segments):
        if segment:
            path = f"{_PATHS.commit_log}/{segment_name(number * _SEGMENT_BYTES)}"
            replace_file(disk, path, segment)
            for physical_offset, size in log.unreadable:
                if physical_offset // _SEGMENT_BYTES == number:
                    disk.file(path).make_unreadable(physical_offset % _SEGMENT_BYTES, size)
    if log.mark is not None:
        mark = open_flushed_mark(disk, _PATHS.flushed)
        mark.advance(log.mark)
        mark.sync()
        mark.close()
    if log.is_intact:
        replace_file(disk, _PATHS.abort, f"1 {disk.boot_id()}".encode())
    deleted = DeletedTopics(disk, _PATHS.deleted_topics)
    for topic, end in log.deleted.items():
        deleted.note(topic, 0, end)
        deleted.save_job()()
    return disk


class _Told(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _start(log: _Log, is_compiled: bool, **changes: Any) -> dict[str, Any]:
    """Start on a directory and stop; return all that can be told apart from outside."""
    disk, told = _directory(log), _Told()
    logger = logging.getLogger("mailboat")
    config = small_config("ASYNC_FLUSH", **{"max_index_num": 4000, **changes})
    store = MessageStore(config, disk, store_host=HOST)
    logger.addHandler(told)
    try:
        with patch.object(compiled, "scan_records", compiled.scan_records if is_compiled else None):
            store.open()
    finally:
        logger.removeHandler(told)
    queues = {
        key: (queue.min_offset, queue.max_offset, queue.next_offset, queue.last_physical_end)
        for key, queue in store.queues.by_key.items()
    }
    found = {
        "report": store.recovery,
        "queues": queues,
        "dispatched": (store.dispatch.dispatched_offset, store.dispatch.last_store_timestamp_ms),
        "times": [segment.last_store_timestamp_ms for segment in store.commit_log.segments],
        "told": told.lines,
    }
    store.close()
    return found | {"files": dict(_files(disk))}


def _files(disk: SimulatedDisk) -> Iterator[tuple[str, Any]]:
    for path in disk.walk():
        if path != _PATHS.lock and not disk.is_dir(path):
            try:
                data = read_file(disk, path)
            except OSError:
                yield path, "unreadable"
                continue
            yield path, _without_times(data) if path.startswith(_PATHS.index) else data


def _without_times(index_file: bytes) -> list[Any]:
    """A file may begin early, with the first message of what is built at once, keys or none."""
    begin = 40 + 4 * 16
    entries = struct.iter_unpack(">iqii", index_file[begin:])
    keys = [(entry[0], entry[1], entry[3]) for entry in entries]
    return [index_file[16:begin], keys]


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(
    _logs(),
    st.sampled_from([1 << 20, 3000, 500]),
    st.booleans(),
    st.sampled_from([True, True, False]),
    st.sampled_from([2048, 2048, 5]),
)
def test_both_ways_end_alike(
    log: _Log, window_bytes: int, check_crc: bool, with_index: bool, most_rows: int
) -> None:
    """The same report, warnings, queues and files, whatever the log is made of."""
    changes = {"check_crc_on_recover": check_crc, "message_index_enable": with_index}
    with (
        patch.object(segment_reader, "_WINDOW_BYTES", window_bytes),
        patch.object(segment_reader.SegmentReader.__init__, "__defaults__", (window_bytes,)),
        patch.object(index_backlog, "BACKLOG_MESSAGES", most_rows),
    ):
        ways = [_start(log, is_compiled, **changes) for is_compiled in (True, False)]
    with promised("both ways of recovery end alike"):
        for name in ways[0]:
            assert ways[0][name] == ways[1][name], name


def _plain_log(count: int) -> _Log:
    """Return segments of records that nobody needs to look at, in two queues."""
    segments, ends = [b""], [0, 0]
    for number in range(count):
        queue = number % 3 % 2
        text = b"UNIQ_KEY\x01U%d\x02KEYS\x01k%d\x02TAGS\x01A\x02" % (number, number)
        here = (len(segments) - 1) * _SEGMENT_BYTES + len(segments[-1])
        fields = _Fields(
            "orders", queue, ends[queue], 0, _NOW_MS + number, text, b"b" * 99, MAGIC_V1, True
        )
        record = _record(fields, here)
        if len(segments[-1]) + len(record) + 8 > _SEGMENT_BYTES:
            remaining = _SEGMENT_BYTES - len(segments[-1])
            segments[-1] += FILLER.pack(remaining, BLANK_MAGIC).ljust(remaining, b"\0")
            segments.append(b"")
            record = _record(fields, (len(segments) - 1) * _SEGMENT_BYTES)
        segments[-1] += record
        ends[queue] += 1
    last = segments[-1].ljust(_SEGMENT_BYTES, b"\0")
    return _Log([*segments[:-1], last], None, False, {}, [])


def test_plain_records_are_taken_by_the_core_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """None goes through Python, however many there are; IndexFiles roll, and have the same keys."""
    log = _plain_log(300)
    expected = _start(log, False, max_index_num=100)
    monkeypatch.setattr(Dispatch, "dispatch_record", None)
    found = _start(log, True, max_index_num=100)
    with promised("all records are recovered"):
        assert found["report"].records == 300
    index_files = [path for path in expected["files"] if path.startswith(_PATHS.index)]
    assert len(index_files) == 7
    with promised("both ways of recovery end alike"):
        for path, data in expected["files"].items():
            other = found["files"][path]
            if path != _PATHS.checkpoint:
                assert data == other, path
