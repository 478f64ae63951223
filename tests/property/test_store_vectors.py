"""Bytes and answers that RocketMQ's format and its getMessage rules prescribe."""

import struct
import zlib
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailboat.model.tags import java_hash
from mailboat.store import lookup
from mailboat.store.consume_queue import UNIT
from mailboat.store.lookup import GetStatus
from mailboat.store.message_inner import MessageInner, PutStatus
from mailboat.store.message_store import MessageStore
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.store_simulator import HOST, small_config

_BORN = bytes([10, 0, 0, 1]) + (1234).to_bytes(4, "big")


def _open(disk: SimulatedDisk, **changes: Any) -> MessageStore:
    store = MessageStore(small_config("ASYNC_FLUSH", **changes), disk, store_host=HOST)
    store.open()
    return store


def _message(
    body: bytes = b"hello",
    *,
    topic: str = "T1",
    properties: bytes = b"TAGS\x01TagA\x02",
    tag: str | None = "TagA",
    key: str | None = None,
    born_host: bytes = _BORN,
) -> MessageInner:
    return MessageInner(
        topic=topic,
        queue_id=1,
        body=body,
        properties=properties,
        tags_code=java_hash(tag) if tag else 0,
        unique_key=key,
        keys=None,
        flag=7,
        sys_flag=0,
        born_timestamp_ms=1_700_000_000_000,
        born_host=born_host,
    )


def _put(store: MessageStore, *messages: MessageInner) -> None:
    store.put_messages(list(messages))
    assert {message.status for message in messages} == {PutStatus.PUT_OK}


def _offset_by_time(store: MessageStore, timestamp_ms: int, *, upper: bool = False) -> int:
    """Go through all steps of a search in the queue that `_put` fills."""
    steps = store.lookup.offset_by_time_steps(
        store.queues.by_key["T1", 1], timestamp_ms, upper=upper, before_look=lambda *_: ()
    )
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return cast(int, done.value)


def test_the_first_message_makes_rocketmqs_files_and_bytes() -> None:
    """Segment and queue file are called 0; record and unit are as the format says, byte by byte."""
    disk = SimulatedDisk()
    store = _open(disk, enabled_append_prop_crc=False)
    _put(store, _message())
    stamp = disk.wall_ms()
    store.close()
    record = b"".join(
        (
            struct.pack(">iI", 91 + 5 + 2 + 10, 0xDAA320A7),
            struct.pack(">I", zlib.crc32(b"hello") & 0x7FFFFFFF),
            struct.pack(">iiqqi", 1, 7, 0, 0, 0),
            struct.pack(">q", 1_700_000_000_000) + _BORN,
            struct.pack(">q", stamp) + HOST,
            struct.pack(">iq", 0, 0),
            struct.pack(">i", 5) + b"hello",
            b"\x02T1",
            struct.pack(">h", 10) + b"TAGS\x01TagA\x02",
        )
    )
    log = disk.file("/store/commitlog/00000000000000000000")
    assert log.read(len(record) + 8, 0) == record + bytes(8)
    assert log.size == 8192
    unit = struct.pack(">qiq", 0, len(record), 0x27A807)
    queue = disk.file("/store/consumequeue/T1/1/00000000000000000000")
    assert queue.read(40, 0) == unit + bytes(20)
    assert queue.size == 400


def test_a_negative_hash_is_sign_extended() -> None:
    """tagsCode has eight bytes, the hash four."""
    disk = SimulatedDisk()
    store = _open(disk)
    _put(store, _message(tag="abcdefghijklmnop"))
    store.close()
    queue = disk.file("/store/consumequeue/T1/1/00000000000000000000")
    assert struct.unpack(">q", queue.read(8, 12)) == (-2093879032,)


@pytest.mark.parametrize(("spare", "rolls"), [(8, False), (7, True), (0, True), (300, False)])
def test_a_segment_keeps_room_for_its_filler(spare: int, rolls: bool) -> None:
    """A record of n bytes needs n + 8; otherwise a filler ends the segment."""
    disk = SimulatedDisk()
    store = _open(disk, enabled_append_prop_crc=False, max_message_size=8192)
    fixed = 91 + 2 + 10
    second = fixed + 100
    first = 8192 - spare - second
    _put(store, _message(b"x" * (first - fixed)))
    message = _message(b"y" * 100)
    _put(store, message)
    assert message.physical_offset == (8192 if rolls else first)
    store.close()
    log = disk.file("/store/commitlog/00000000000000000000")
    filler = log.read(8, first if rolls else first + second)
    assert filler == (struct.pack(">iI", 8192 - first, 0xCBD43194) if rolls else bytes(8))
    names = disk.listdir("/store/commitlog")
    assert names == ["00000000000000000000", "00000000000000008192"][: 1 + rolls]


def test_ipv6_hosts_set_their_flags() -> None:
    """A born host of 20 bytes shifts what follows by 12 and sets 0x10."""
    disk = SimulatedDisk()
    store = _open(disk, enabled_append_prop_crc=False)
    message = _message(born_host=bytes(15) + b"\x01" + bytes(4))
    _put(store, message)
    assert message.size_bytes == 91 + 12 + 5 + 2 + 10
    store.close()
    log = disk.file("/store/commitlog/00000000000000000000")
    assert struct.unpack(">i", log.read(4, 36)) == (0x10,)


def test_the_checksum_property_closes_the_properties() -> None:
    """A missing separator is added before it, and the number covers the record without it."""
    disk = SimulatedDisk()
    store = _open(disk)
    message = _message(properties=b"TAGS\x01TagA")
    _put(store, message)
    assert message.size_bytes == 91 + 5 + 2 + 10 + 20
    store.close()
    log = disk.file("/store/commitlog/00000000000000000000")
    record = log.read(message.size_bytes, 0)
    digits = f"{zlib.crc32(record[:-20]) & 0x7FFFFFFF:010d}"[::-1]
    assert record[-30:] == b"TAGS\x01TagA\x02__CRC32#\x01" + digits.encode() + b"\x02"


def test_index_entries_lie_where_rocketmq_reads_them() -> None:
    """With the default sizes: entry 1 at 20,000,060, its slot, and a header one entry ahead."""
    disk = SimulatedDisk()
    store = _open(disk, max_hash_slot_num=5_000_000, max_index_num=20_000_000)
    properties = b"UNIQ_KEY\x01U1\x02KEYS\x01k1 k2\x02"
    message = _message(properties=properties, key="U1")
    message.keys = "k1 k2"
    _put(store, _message(), message)
    stamp = disk.wall_ms()
    store.close()
    (path,) = [path for path in disk.walk() if "/index/" in path]
    assert len(path.rpartition("/")[2]) == 17
    file = disk.file(path)
    assert file.size == 40 + 4 * 5_000_000 + 20 * 20_000_000
    at = message.physical_offset
    assert struct.unpack(">qqqqii", file.read(40, 0)) == (stamp, stamp, at, at, 3, 4)
    for number, word in enumerate(("U1", "k1", "k2"), 1):
        key_hash = abs(java_hash(f"T1#{word}"))
        entry = struct.unpack(">iqii", file.read(20, 20_000_040 + 20 * number))
        assert entry == (key_hash, at, 0, 0)
        slot = file.read(4, 40 + 4 * (key_hash % 5_000_000))
        assert struct.unpack(">i", slot) == (number,)


def test_the_checkpoint_has_rocketmqs_shape() -> None:
    """4096 bytes; the first two longs are the time of the last message, rest zero-padded."""
    disk = SimulatedDisk()
    store = _open(disk)
    _put(store, _message())
    stamp = disk.wall_ms()
    store.close()
    data = disk.file("/store/checkpoint").durable_bytes
    assert len(data) == 4096
    assert struct.unpack_from(">qq", data) == (stamp, stamp)
    assert not disk.exists("/store/abort")
    assert data[40:] == bytes(4056)


@pytest.fixture(scope="module")
def expired() -> MessageStore:
    """A queue whose first messages have expired: min > 0, with all messages 1000 ms apart."""
    disk = SimulatedDisk()
    store = _open(disk)
    for _ in range(30):
        _put(store, _message(b"x" * 900))
        disk.advance(1)
        job = store.begin_flush()
        assert job is not None
        job.run()
        store.finish_flush(job, None)
    for seconds in (11, 3610, 1):
        disk.advance(seconds)
        for _ in range(3):
            store.background()
    assert 0 < store.min_offset("T1", 1) < store.max_offset("T1", 1) == 30
    return store


@pytest.mark.parametrize(
    ("where", "status", "expected_next"),
    [
        ("below min", GetStatus.OFFSET_TOO_SMALL, "min"),
        ("zero", GetStatus.OFFSET_TOO_SMALL, "min"),
        ("min", GetStatus.FOUND, "min+1"),
        ("last", GetStatus.FOUND, "max"),
        ("max", GetStatus.OFFSET_OVERFLOW_ONE, "max"),
        ("beyond", GetStatus.OFFSET_OVERFLOW_BADLY, "max"),
    ],
)
def test_statuses_of_get_message(
    expired: MessageStore, where: str, status: int, expected_next: str
) -> None:
    """Each place that a consumer can ask for has RocketMQ's status and next offset."""
    low, high = expired.min_offset("T1", 1), expired.max_offset("T1", 1)
    offsets = {"below min": low - 1, "zero": 0, "min": low, "last": high - 1, "max": high,
               "beyond": high + 5}  # fmt: skip
    nexts = {"min": low, "min+1": low + 1, "max": high}
    result = expired.get_message("T1", 1, offsets[where], 1, 1 << 20)
    assert (result.status, result.next_offset) == (status, nexts[expected_next])
    assert (result.min_offset, result.max_offset) == (low, high)
    assert result.message_count == (1 if status == GetStatus.FOUND else 0)


def test_a_queue_that_never_held_a_message_is_empty() -> None:
    """NO_MESSAGE_IN_QUEUE, next offset 0, whatever is asked."""
    store = _open(SimulatedDisk())
    for queue_offset in (0, 5):
        result = store.get_message("nothing", 0, queue_offset, 32, 1 << 20)
        assert (result.status, result.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
    assert (store.min_offset("nothing", 0), store.max_offset("nothing", 0)) == (0, 0)
    store.close()


def test_filtered_reads_end_behind_what_they_looked_at() -> None:
    """Nothing matched is not the end: the next offset moves on."""
    store = _open(SimulatedDisk())
    _put(store, *[_message(tag="TagB") for _ in range(5)])
    codes = frozenset({java_hash("TagA")})
    result = store.get_message("T1", 1, 0, 32, 1 << 20, codes)
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 5)
    _put(store, _message(tag="TagA"))
    result = store.get_message("T1", 1, 0, 32, 1 << 20, codes)
    assert (result.status, result.next_offset, result.message_count) == (GetStatus.FOUND, 6, 1)
    store.close()


def test_a_read_stops_at_its_limits_but_gives_one_message() -> None:
    """Count and bytes bound a read; the first message goes whatever its size."""
    store = _open(SimulatedDisk(), enabled_append_prop_crc=False)
    messages = [_message(b"x" * 100) for _ in range(6)]
    _put(store, *messages)
    size = messages[0].size_bytes
    for max_messages, max_bytes, expected in (
        (3, 1 << 20, 3), (32, 1 << 20, 6), (32, 1, 1), (32, size, 1), (32, 2 * size, 2),
        (32, 3 * size - 1, 2),
    ):  # fmt: skip
        result = store.get_message("T1", 1, 0, max_messages, max_bytes)
        assert (result.message_count, result.next_offset) == (expected, expected)
        assert result.size_bytes == expected * size
        assert sum(len(piece) for piece in result.slices) == expected * size
    store.close()


@settings(max_examples=40, deadline=None)
@given(
    gaps=st.lists(st.integers(0, 3), min_size=1, max_size=25),
    questions=st.lists(st.integers(-5, 60), min_size=1, max_size=10),
)
def test_offsets_by_time_agree_with_a_list(gaps: list[int], questions: list[int]) -> None:
    """Lower bound: the first at or after; upper: the last at or before; ties on either side."""
    disk = SimulatedDisk()
    store = _open(disk)
    times = []
    for gap in gaps:
        disk.advance(gap)
        _put(store, _message())
        times.append(disk.wall_ms())
    base = times[0]
    for question in questions:
        timestamp_ms = base + question * 500
        lower = next((i for i, time in enumerate(times) if time >= timestamp_ms), len(times))
        upper = max((i for i, time in enumerate(times) if time <= timestamp_ms), default=0)
        assert _offset_by_time(store, timestamp_ms) == lower
        assert _offset_by_time(store, timestamp_ms, upper=True) == upper
    assert store.store_timestamp("T1", 1, 0) == times[0]
    assert store.store_timestamp("T1", 1, len(times)) == -1
    store.close()


@given(
    units=st.lists(st.sampled_from("mmbul"), min_size=1, max_size=40),
    begins_at=st.sampled_from([0, 7]),
    together=st.integers(1, 5),
    question=st.integers(-5, 60),
)
def test_offsets_by_time_step_over_messages_that_are_not_there(
    units: list[str], begins_at: int, together: int, question: int
) -> None:
    """Lower bound: behind the last message before the time; upper: the last one not after it.

    Blank units, units of records that are not there (u) and long gaps (l) are nobody's time.
    """
    disk = SimulatedDisk()
    store = _open(disk)
    queue = store.queues.get_or_add("T1", 1)
    if begins_at:
        queue.begin_at(begins_at)
    times: dict[int, int] = {}
    for kind in units:
        disk.advance(1)
        end = queue.max_offset
        if kind == "m":
            _put(store, _message())
            times[end] = disk.wall_ms()
        elif kind == "u":
            queue.append_units(UNIT.pack(1 << 40, 200, 0), (1 << 40) + 200)
            queue.next_offset = queue.max_offset
        else:
            queue.append_blanks(end + (1 if kind == "b" else 11))
    timestamp_ms = disk.wall_ms() + (question - 50) * 500
    before = [at for at, time_ms in times.items() if time_ms < timestamp_ms]
    not_after = [at for at, time_ms in times.items() if time_ms <= timestamp_ms]
    with patch.object(lookup, "_BLANKS_TOGETHER", together):
        assert _offset_by_time(store, timestamp_ms) == max(before, default=begins_at - 1) + 1
        upper = _offset_by_time(store, timestamp_ms, upper=True)
    assert upper == max(not_after, default=begins_at)
    store.close()


def test_a_wall_clock_that_jumps_expires_nothing_and_never_runs_back() -> None:
    """Times in records go up only, and a jump of three years is no age."""
    disk = SimulatedDisk()
    store = _open(disk)
    stamps = []
    for jump in (0, 3 * 365 * 86_400, -5 * 365 * 86_400, 10):
        disk.jump_wall_clock(jump)
        for _ in range(8):
            _put(store, _message(b"x" * 1500))
        job = store.begin_flush()
        assert job is not None
        job.run()
        store.finish_flush(job, None)
        disk.advance(61)
        for _ in range(3):
            store.background()
        stamps.append(store.store_timestamp("T1", 1, store.max_offset("T1", 1) - 1))
    assert stamps == sorted(stamps)
    assert store.min_offset("T1", 1) == 0
    assert store.commit_log.start == 0
    store.close()
