"""Reads by properties: what a filter takes, all of it, in slices that end."""

import itertools
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from mailboat.disk.real import RealDisk
from mailboat.filtering.property_filter import PropertyFilter
from mailboat.filtering.sql.sql_filter import SqlFilter, compile_sql
from mailboat.model.hosts import encode_host
from mailboat.model.properties import encode_properties
from mailboat.model.record import decode_records
from mailboat.model.sys_flag import BORN_HOST_V6, STORE_HOST_V6
from mailboat.store.lookup import GetResult, GetStatus, Lookup
from mailboat.store.message_inner import MessageInner, PutStatus
from mailboat.store.message_store import MessageStore
from mailboat.store.places import choose_places
from mailboat.store.record_source import Limits, fetch_job
from mailboat.testing.store_simulator import HOST, small_config

_ALL = 1 << 40
_HOST_V6 = encode_host("fd00::1", 10911)
_COUNT = 200
# What looks like a property is none when it lies in a body.
_GHOST = b"\x02ghost\x01x\x02"


def _open(root: Path, store_host: bytes = HOST, **changes: object) -> MessageStore:
    config = small_config(
        "ASYNC_FLUSH",
        **{
            "mapped_file_size_commit_log": 65_536,
            "mapped_file_size_consume_queue": 4000,
            **changes,
        },
        store_path_root_dir=str(root),
    )
    store = MessageStore(config, RealDisk(), store_host=store_host)
    store.open()
    return store


def _put(
    store: MessageStore, number: int, *, topic: str = "orders", body: bytes = b"", sys_flag: int = 0
) -> MessageInner:
    """Store a message with the property `n`, which counts, and `even`, which half of them have."""
    properties = {"TAGS": "A", "n": str(number), "filler": "x" * (number % 50 + 1)}
    if number % 2 == 0:
        properties["even"] = "yes"
    message = MessageInner(
        topic=topic,
        queue_id=0,
        body=body or random.Random(number).randbytes(number % 300 + 1) + _GHOST,
        properties=encode_properties(properties).encode(),
        tags_code=65,
        unique_key=None,
        keys=None,
        flag=0,
        sys_flag=sys_flag,
        born_timestamp_ms=1_700_000_000_000,
        born_host=_HOST_V6 if sys_flag & BORN_HOST_V6 else HOST,
    )
    store.put_messages([message])
    assert message.status == PutStatus.PUT_OK
    return message


def _get(
    store: MessageStore,
    expression: str,
    queue_offset: int = 0,
    *,
    topic: str = "orders",
    count: int = 32,
    max_bytes: int = _ALL,
    scan_bytes: int = _ALL,
) -> GetResult:
    queue = store.queues.get(topic, 0)
    assert queue is not None
    return _reader(store).get_matching_message(
        queue, queue_offset, count, max_bytes, compile_sql(expression), scan_bytes
    )


def _reader(store: MessageStore, clock: Callable[[], float] = lambda: 0.0) -> Lookup:
    """Return what reads the store by a clock of its own; by default time stands still."""
    return Lookup(
        store.commit_log,
        store.unit_repair,
        skip_corrupt=store.lookup._skip_corrupt,
        check_crc=True,
        clock=clock,
    )


def _numbers(result: GetResult) -> list[int]:
    messages = decode_records(b"".join(result.slices))
    assert len(messages) == result.message_count
    assert sum(map(len, result.slices)) == result.size_bytes
    return [int(message.properties["n"]) for message in messages]


@pytest.mark.parametrize(
    ("topic", "sys_flag", "store_host"),
    [
        ("orders", 0, HOST),
        ("orders", BORN_HOST_V6, HOST),
        ("orders", BORN_HOST_V6 | STORE_HOST_V6, _HOST_V6),
        ("t" * 200, 0, HOST),
    ],
    ids=["IPv4", "IPv6 client", "IPv6", "long topic"],
)
def test_all_and_only_what_a_filter_takes_is_read(
    tmp_path: Path, topic: str, sys_flag: int, store_host: bytes
) -> None:
    """Over several segments, whatever the number and the bytes of one read are."""
    store = _open(tmp_path, store_host)
    for number in range(_COUNT):
        _put(store, number, topic=topic, sys_flag=sys_flag)
        if number == 150:
            # A part in the files and a part in memory.
            store.queues.write()
    choose = random.Random(7)
    for expression, expected in (
        ("n >= 190", list(range(190, 200))),
        ("even = 'yes' AND n BETWEEN 20 AND 120", list(range(20, 121, 2))),
        ("filler ENDSWITH 'x' AND even IS NULL", list(range(1, 200, 2))),
        ("n = 1000", []),
        ("TAGS = 'A' AND n < 5 AND ghost IS NULL", list(range(5))),
    ):
        found: list[int] = []
        at = 0
        while at < _COUNT:
            count, max_bytes = choose.randint(1, 40), choose.choice([1, 2000, _ALL])
            result = _get(store, expression, at, topic=topic, count=count, max_bytes=max_bytes)
            assert result.status == (
                GetStatus.FOUND if result.message_count else GetStatus.NO_MATCHED_MESSAGE
            )
            assert result.message_count <= count
            assert result.size_bytes <= max_bytes or result.message_count == 1
            assert at < result.next_offset <= result.max_offset == _COUNT
            found += _numbers(result)
            at = result.next_offset
        assert found == expected
    assert _get(store, "n > 0", _COUNT, topic=topic).status == GetStatus.OFFSET_OVERFLOW_ONE
    store.close()


class _InPython(NamedTuple):
    """A filter without the compiled core."""

    wanted: SqlFilter
    condition: None = None

    def matches(self, properties: Mapping[str, str]) -> bool:
        return self.wanted.matches(properties)

    def matches_text(self, text: bytes, start: int, end: int) -> bool:
        return self.wanted.matches_text(text, start, end)


@pytest.mark.parametrize(
    ("wanted", "most"),
    [
        (_InPython(compile_sql("n = 199")), 3),
        (compile_sql(" OR ".join(["n = 199"] * 256)), 48),
    ],
    ids=["Python", "heavy"],
)
def test_a_filter_that_takes_nothing_ends_its_slice_in_time(
    tmp_path: Path, wanted: PropertyFilter, most: int
) -> None:
    """With a clock that moves one millisecond for each look, few messages are judged at once."""
    store = _open(tmp_path)
    for number in range(_COUNT):
        _put(store, number)
    ticks = itertools.count()
    queue = store.queues.get("orders", 0)
    assert queue is not None
    slow = _reader(store, lambda: next(ticks) / 1000)
    at = 0
    reads = 0
    while True:
        reads += 1
        result = slow.get_matching_message(queue, at, 32, _ALL, wanted, _ALL)
        if result.status == GetStatus.FOUND:
            break
        assert result.status == GetStatus.NO_MATCHED_MESSAGE
        assert at < result.next_offset <= at + most
        at = result.next_offset
    assert _numbers(result) == [199]
    assert reads >= _COUNT // most
    store.close()


def test_a_read_ends_with_the_bytes_it_may_look_at(tmp_path: Path) -> None:
    """Messages on the disk are looked at for so many bytes, and at least one is."""
    store = _open(tmp_path)
    for number in range(_COUNT):
        _put(store, number, body=bytes(1000))
    result = _get(store, "n < 0", scan_bytes=1)
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 32)
    result = _get(store, "n < 0")
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, _COUNT)
    store.close()


@pytest.mark.parametrize("skip_corrupt", [False, True])
def test_damage_does_not_hide_a_message_from_a_filter(
    tmp_path: Path, *, skip_corrupt: bool
) -> None:
    """A flipped bit in a property makes no other message of it: it is told, or stepped over."""
    store = _open(tmp_path, skip_corrupt=skip_corrupt)
    messages = [_put(store, number, body=b"body") for number in range(40)]
    damaged = messages[10]
    path = store.commit_log.segments[0].path
    with open(path, "r+b") as file:
        file.seek(damaged.physical_offset)
        record = file.read(damaged.size_bytes)
        at = damaged.physical_offset + record.index(b"n\x0110\x02") + 2
        os.pwrite(file.fileno(), b"9", at)
    result = _get(store, "n < 20")
    if skip_corrupt:
        assert _numbers(result) == [*range(10), *range(11, 20)]
    else:
        assert (_numbers(result), result.next_offset) == (list(range(10)), 10)
        assert _get(store, "n < 20", 10).status == GetStatus.DAMAGED
    assert _numbers(_get(store, "n < 20", 11)) == list(range(11, 20))
    assert _numbers(_get(store, "n >= 90")) == []
    store.close()


def test_a_read_that_steps_over_damage_ends_soon(tmp_path: Path) -> None:
    """Hundreds of large damaged messages would stop the broker; those behind them are found."""
    store = _open(tmp_path, skip_corrupt=True)
    messages = [_put(store, number, body=b"body") for number in range(40)]
    with open(store.commit_log.segments[0].path, "r+b") as file:
        for message in messages[:30]:
            os.pwrite(file.fileno(), b"!", message.physical_offset + 90)
    queue = store.queues.get("orders", 0)
    assert queue is not None
    seconds = itertools.count(0.0, 0.0007)
    reader = _reader(store, lambda: next(seconds))
    tags, at, reads = frozenset([65]), 0, 0
    while (result := reader.get_message(queue, at, 32, _ALL, tags)).status != GetStatus.FOUND:
        assert result.status == GetStatus.NO_MATCHED_MESSAGE
        assert at < result.next_offset <= at + 3
        at, reads = result.next_offset, reads + 1
    assert (_numbers(result), reads) == (list(range(30, 40)), 10)
    store.close()


def test_an_unknown_queue_has_no_matching_messages(tmp_path: Path) -> None:
    """As a read without a filter has it."""
    store = _open(tmp_path)
    result = store.get_matching_message("orders", 0, 0, 32, _ALL, compile_sql("n = 1"), _ALL)
    assert (result.status, result.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
    store.close()


def test_what_was_fetched_of_a_deleted_queue_damages_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that is made anew while a pull waits for the disk; with the core and without it."""
    store = _open(tmp_path)
    for topic in ("gone", "orders"):
        _put(store, 1, topic=topic)
    gone, queue = store.queues.get("gone", 0), store.queues.get("orders", 0)
    assert gone is not None
    assert queue is not None
    fetched = fetch_job(RealDisk(), store.commit_log, gone, 0, Limits(8, 8, _ALL, None))()
    for choose in (None, choose_places):
        reader = _reader(store)
        if choose is not None:
            monkeypatch.setattr(reader, "_choose", choose)
        wanted = compile_sql("n > 0")
        result = reader.get_matching_message(queue, 0, 32, _ALL, wanted, _ALL, fetched)
        plain = reader.get_message(queue, 0, 32, _ALL, None, fetched)
        assert result == plain
        assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 0)
    store.close()
