"""Reads by queue offset: which messages, and never a damaged one, however often it was read."""

import math
import os
from collections.abc import Generator
from pathlib import Path
from random import Random
from typing import NamedTuple, cast

import pytest

from mailboat.disk.real import RealDisk
from mailboat.model import compiled
from mailboat.model.record import decode_records
from mailboat.model.tags import tags_code
from mailboat.store import lookup, record_check
from mailboat.store.consume_queue import UNIT
from mailboat.store.lookup import GetResult, GetStatus
from mailboat.store.message_inner import MessageInner, PutStatus
from mailboat.store.message_store import MessageStore
from mailboat.testing.store_simulator import HOST, small_config

_ALL_BYTES = 1 << 30
_COUNT = 9


@pytest.fixture(autouse=True, params=["compiled", "python"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Read with the compiled core, and with its definition in Python."""
    if request.param == "python":
        monkeypatch.setattr(compiled, "choose_places", None)
    elif compiled.choose_places is None:
        pytest.skip("the compiled core is not installed")
    # What comes with one read does not depend on how busy the machine is.
    monkeypatch.setattr(lookup, "_SLICE_S", math.inf)
    return str(request.param)


class _Message(NamedTuple):
    """A stored message: what it holds and where it lies."""

    body: bytes
    tag: str
    physical_offset: int
    size_bytes: int


def _open(root: Path, **changes: object) -> MessageStore:
    config = small_config(
        "ASYNC_FLUSH",
        **{
            "mapped_file_size_commit_log": 65_536,
            "mapped_file_size_consume_queue": 4000,
            **changes,
        },
        store_path_root_dir=str(root),
    )
    store = MessageStore(config, RealDisk(), store_host=HOST)
    store.open()
    return store


def _put(store: MessageStore, queue_id: int, body: bytes, tag: str = "A") -> _Message:
    message = MessageInner(
        topic="orders",
        queue_id=queue_id,
        body=body,
        properties=f"TAGS\x01{tag}\x02".encode(),
        tags_code=tags_code(tag),
        unique_key=None,
        keys=None,
        flag=0,
        sys_flag=0,
        born_timestamp_ms=1_700_000_000_000,
        born_host=HOST,
    )
    store.put_messages([message])
    assert message.status == PutStatus.PUT_OK
    return _Message(body, tag, message.physical_offset, message.size_bytes)


def _fill(store: MessageStore, *, interleaved: bool) -> list[_Message]:
    """Store messages on queue 0, each followed by one of queue 1 when they are interleaved."""
    messages = []
    for number in range(_COUNT):
        messages.append(_put(store, 0, Random(number).randbytes(100 + number)))
        if interleaved:
            _put(store, 1, b"between")
    store.queues.write()
    return messages


def _get(store: MessageStore, queue_offset: int = 0, count: int = 32) -> GetResult:
    return store.get_message("orders", 0, queue_offset, count, _ALL_BYTES)


def _bodies(result: GetResult) -> list[bytes]:
    return [message.body for message in decode_records(b"".join(result.slices))]


def _flip(path: str, position: int) -> None:
    """Flip one bit of a file that the store has open."""
    fd = os.open(path, os.O_RDWR)
    try:
        byte = os.pread(fd, 1, position)[0]
        os.pwrite(fd, bytes([byte ^ 0x10]), position)
    finally:
        os.close(fd)


def _write(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


@pytest.mark.parametrize("interleaved", [True, False], ids=["scattered", "adjacent"])
@pytest.mark.parametrize("reads_before", [0, 1, 2])
# The record's size, queue offset, physical offset, body, checksum digits, very last byte.
@pytest.mark.parametrize("position", [3, 27, 35, 90, -5, -1])
def test_damage_is_never_served_however_often_a_message_was_read(
    tmp_path: Path, position: int, reads_before: int, *, interleaved: bool
) -> None:
    """What stands before the damaged message is served, then it is reported, then the rest."""
    store = _open(tmp_path)
    messages = _fill(store, interleaved=interleaved)
    bodies = [message.body for message in messages]
    for _ in range(reads_before):
        assert _bodies(_get(store)) == bodies
    damaged = messages[5]
    at = damaged.physical_offset + (position if position >= 0 else damaged.size_bytes + position)
    path = store.commit_log.segments[0].path
    _flip(path, at)
    result = _get(store)
    assert (_bodies(result), result.next_offset) == (bodies[:5], 5)
    assert store.lookup.corrupt_records == 1
    result = _get(store, 5)
    assert (result.status, result.next_offset) == (GetStatus.DAMAGED, 5)
    assert _bodies(_get(store, 6)) == bodies[6:]
    _flip(path, at)
    assert _bodies(_get(store)) == bodies
    store.close()


def test_damage_is_stepped_over_when_the_settings_say_so(tmp_path: Path) -> None:
    """With skipCorrupt all other messages come with one read, also after one that was whole."""
    store = _open(tmp_path, skip_corrupt=True)
    messages = _fill(store, interleaved=True)
    assert _get(store).message_count == _COUNT
    _flip(store.commit_log.segments[0].path, messages[3].physical_offset + 90)
    result = _get(store)
    assert _bodies(result) == [message.body for message in messages if message is not messages[3]]
    assert result.next_offset == _COUNT
    store.close()


def test_a_unit_that_names_another_message_is_never_followed(tmp_path: Path) -> None:
    """A unit that points to a whole record of another queue offset: its message is looked for.

    Where that is damaged as well, nothing else is served in its place.
    """
    store = _open(tmp_path)
    messages = _fill(store, interleaved=False)
    bodies = [message.body for message in messages]
    assert _get(store).message_count == _COUNT
    path = tmp_path / "consumequeue/orders/0/00000000000000000000"
    whole = path.read_bytes()
    wrong = UNIT.pack(messages[7].physical_offset, messages[7].size_bytes, tags_code("A"))
    _write(path, 4 * UNIT.size, wrong)
    assert _bodies(_get(store)) == bodies
    assert (path.read_bytes(), store.lookup.corrupt_records) == (whole, 1)
    _write(path, 4 * UNIT.size, wrong)
    _flip(store.commit_log.segments[0].path, messages[4].physical_offset + 90)
    result = _get(store)
    assert (_bodies(result), result.next_offset) == (bodies[:4], 4)
    assert _get(store, 4).status == GetStatus.DAMAGED
    store.close()


@pytest.mark.parametrize("append_crc", [True, False], ids=["checksums", "none"])
@pytest.mark.parametrize("seed", range(8))
def test_reads_agree_with_a_list(tmp_path: Path, seed: int, *, append_crc: bool) -> None:
    """Tags, counts, byte limits and segments' ends choose what a loop over all messages chooses."""
    random = Random(seed)
    store = _open(tmp_path, mapped_file_size_commit_log=8192, enabled_append_prop_crc=append_crc)
    messages = []
    for _ in range(150):
        messages.append(
            _put(store, 0, random.randbytes(random.randrange(1, 400)), random.choice("ABC"))
        )
        if random.random() < 0.5:
            _put(store, 1, b"between")
    for _ in range(60):
        at, count = random.randrange(150), random.choice((1, 2, 7, 32))
        max_bytes = random.choice((1, 500, 2000, _ALL_BYTES))
        tags = random.choice((None, "A", "AB", "D"))
        codes = None if tags is None else frozenset(map(tags_code, tags))
        result = store.get_message("orders", 0, at, count, max_bytes, codes)
        wanted, after = _choose(messages, at, count, max_bytes, tags)
        assert _bodies(result) == [message.body for message in wanted]
        assert result.next_offset == after
        assert result.size_bytes == sum(message.size_bytes for message in wanted)
    assert store.lookup.corrupt_records == 0
    store.close()


def _choose(
    messages: list[_Message], at: int, count: int, max_bytes: int, tags: str | None
) -> tuple[list[_Message], int]:
    """Return what has to be read, and where to go on: at the first message left out."""
    wanted: list[_Message] = []
    # Without a filter no more units are looked at than were asked for.
    end = len(messages) if tags is not None else min(len(messages), at + count)
    for index in range(at, end):
        message = messages[index]
        if tags is not None and message.tag not in tags:
            continue
        total = sum(other.size_bytes for other in wanted) + message.size_bytes
        if wanted and (len(wanted) == count or total > max_bytes):
            return wanted, index
        wanted.append(message)
    return wanted, end


def test_the_memory_of_checked_reads_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """However many different reads are made, only the newest are remembered; all are right."""
    monkeypatch.setattr(record_check, "_VERIFIED_READS", 3)
    store = _open(tmp_path)
    bodies = [message.body for message in _fill(store, interleaved=True)]
    for _ in range(2):
        for at in range(_COUNT - 1):
            assert _bodies(_get(store, at)) == bodies[at:]
            assert len(store.lookup._record_check._verified) <= (3 if kind == "python" else 0)
    assert len(store.lookup._record_check._verified) == (3 if kind == "python" else 0)
    store.close()


def _result(steps: Generator[None, None, int]) -> int:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return cast(int, done.value)


@pytest.mark.parametrize("count", [40, 20_000])
@pytest.mark.parametrize("upper", [False, True])
def test_a_search_by_time_does_not_look_at_every_damaged_message(
    tmp_path: Path, count: int, *, upper: bool
) -> None:
    """A segment that is lost has millions; where the answer is not exact, it is too early."""
    store = _open(tmp_path, mapped_file_size_commit_log=1 << 22)
    last = [_put(store, 0, b"%d" % number) for number in range(count)][-1]
    size = last.physical_offset + last.size_bytes
    path = store.commit_log.segments[0].path
    lost_from, lost_to = size // 4, size * 3 // 4
    with open(path, "r+b") as file:
        file.seek(lost_from)
        file.write(bytes(lost_to - lost_from))
    looked = []
    find = store.commit_log.find
    store.commit_log.find = lambda at: (looked.append(at), find(at))[1]  # type: ignore[method-assign]
    newest_ms = store.store_timestamp("orders", 0, count - 1)
    assert store.store_timestamp("orders", 0, count // 2) == -1
    for timestamp_ms, wanted in (
        (0, range(1)),
        (newest_ms, range(count)),
        (newest_ms + 1, range(count - upper, count + 1 - upper)),
    ):
        looked.clear()
        steps = store.lookup.offset_by_time_steps(
            store.queues.by_key["orders", 0], timestamp_ms, upper=upper, before_look=lambda *_: ()
        )
        found = _result(steps)
        assert found in wanted
        assert len(looked) < 80 * 16
    store.close()
