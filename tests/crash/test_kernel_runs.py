"""Bad bytes above the flushed mark: what is behind them counts while the same kernel runs.

A process that dies leaves all that it wrote in the page cache. Whole records behind a bad one were
written, and may have been acknowledged, after it: it is stepped over. A power cut, or another
machine, ends that: the log ends at the first bad record.
"""

import asyncio
import errno
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from kill_process import BrokerProcess, PlainConnection, read_queue, send_request
from promises import promised

from mailboat.disk import read_file
from mailboat.disk.real import RealDisk
from mailboat.model.message_id import decode_offset_message_id
from mailboat.model.record import (
    CRC_PROPERTY_BYTES,
    FIXED_BYTES,
    HEAD_V4,
    MAGIC_V1,
    check_sums,
    crc_property,
    decode_records,
)
from mailboat.protocol.codes import ResponseCode
from mailboat.store import recovery
from mailboat.store.layout import segment_name
from mailboat.store.lookup import GetStatus
from mailboat.store.message_inner import PutStatus
from mailboat.store.message_store import MessageStore
from mailboat.testing.faulty_disk import Fault, FaultyDisk
from mailboat.testing.history import History
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.store_simulator import HOST, make_message, small_config

_COUNT = 30
_BODY = b"0123456789" * 30


class _Place(NamedTuple):
    physical_offset: int
    size_bytes: int


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "mailboat")


def _open(disk: SimulatedDisk | FaultyDisk) -> MessageStore:
    store = MessageStore(small_config("ASYNC_FLUSH"), disk, store_host=HOST)
    store.open()
    return store


def _put(store: MessageStore, numbers: Iterable[int], topic: str = "orders") -> list[_Place]:
    history = History()
    places = []
    for number in numbers:
        sent = history.send(topic, 0, b"%d " % number + _BODY)
        inner = make_message(sent, f"U{number}")
        store.put_messages([inner])
        assert inner.status == PutStatus.PUT_OK
        places.append(_Place(inner.physical_offset, inner.size_bytes))
    return places


def _flush(store: MessageStore) -> None:
    job = store.begin_flush()
    if job is not None:
        job.run()
        store.finish_flush(job, None)


def _written() -> tuple[SimulatedDisk, list[_Place]]:
    """A store with messages in several segments, of which only the first five were flushed."""
    disk = SimulatedDisk()
    store = _open(disk)
    places = _put(store, range(5))
    _flush(store)
    places += _put(store, range(5, _COUNT))
    assert len(store.commit_log.segments) > 1
    return disk, places


def _damage(disk: SimulatedDisk, physical_offset: int, data: bytes) -> None:
    start = physical_offset // 8192 * 8192
    fd = disk.open(f"/store/commitlog/{segment_name(start)}")
    disk.pwrite(fd, data, physical_offset - start)
    disk.close(fd)


def _served(store: MessageStore, topic: str = "orders") -> dict[int, bytes]:
    """Return the bodies by queue offset; what is damaged is passed over."""
    found: dict[int, bytes] = {}
    at = store.min_offset(topic, 0)
    while at < store.max_offset(topic, 0):
        result = store.get_message(topic, 0, at, 32, 1 << 20)
        if result.status != GetStatus.FOUND:
            assert result.status == GetStatus.DAMAGED
            at += 1
            continue
        for message in decode_records(b"".join(result.slices)):
            found[message.queue_offset] = message.body
        at = result.next_offset
    return found


def _bodies(numbers: Iterable[int]) -> dict[int, bytes]:
    return {number: b"%d " % number + _BODY for number in numbers}


_DAMAGES = {
    "a byte of the body": (150, b"\xff"),
    "the flag for IPv6": (36, b"\x00\x00\x00\x10"),
    "the size": (0, b"\x00\x01\x00\x00"),
    "a size that is none": (0, b"\xff\xff\xff\xff"),
    "the magic": (4, b"\x00\x00\x00\x00"),
    "the place": (28, bytes(8)),
    "nothing but zeros": (0, bytes(300)),
}


@pytest.mark.parametrize("damage", _DAMAGES)
@promised("what was written in this run of the kernel is served")
def test_after_a_kill_one_bad_record_costs_itself_only(damage: str) -> None:
    """What was acknowledged behind it is there; it is reported, and its offset stays taken."""
    at, data = _DAMAGES[damage]
    for number in (5, 12, _COUNT - 2):
        disk, places = _written()
        disk = disk.kill()
        _damage(disk, places[number].physical_offset + at, data)
        store = _open(disk)
        assert _served(store) == _bodies(set(range(_COUNT)) - {number})
        (found,) = store.recovery.damaged
        assert found.physical_offset == places[number].physical_offset
        assert found.size_bytes == places[number].size_bytes
        assert store.recovery.torn_bytes == 0
        name = f"{found.physical_offset:020d}-{found.size_bytes}"
        assert disk.exists(f"/store/mailboat/quarantine/{name}")
        _put(store, [_COUNT])
        assert _served(store)[_COUNT] == _bodies([_COUNT])[_COUNT]
        store.close()
        store = _open(disk)
        assert _served(store) == _bodies(set(range(_COUNT + 1)) - {number})
        assert store.recovery.damaged == []


@pytest.mark.parametrize("has_checkpoint", [False, True])
@promised("what was written in this run of the kernel is served")
def test_after_a_kill_the_last_message_of_another_queue_keeps_its_offset(
    *, has_checkpoint: bool
) -> None:
    """A queue whose last message is the bad one gives its offset to nobody else."""
    disk = SimulatedDisk()
    store = _open(disk)
    _put(store, [0], "first")
    if has_checkpoint:
        disk.advance(11)
        for _ in range(3):
            _flush(store)
            store.background()
    places = _put(store, range(3), "bad")
    _put(store, range(3), "good")
    # The units reach the page cache as they do every few milliseconds.
    store.background()
    disk = disk.kill()
    _damage(disk, places[2].physical_offset + 150, b"\xff")
    store = _open(disk)
    # What came before the checkpoint is not read again, although the queues are new since.
    assert store.recovery.records == (5 if has_checkpoint else 6)
    assert _served(store, "good") == _bodies(range(3))
    assert store.max_offset("bad", 0) == 3
    _put(store, [3], "bad")
    assert _served(store, "bad") == _bodies([0, 1, 3])


@pytest.mark.parametrize("kind", ["power cut", "another machine", "unknown"])
@promised("what was written in this run of the kernel is served")
def test_where_the_page_cache_is_gone_the_log_ends_at_a_bad_record(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bytes are a torn tail: what lies behind was promised to nobody."""
    disk, places = _written()
    disk = disk.kill()
    _damage(disk, places[12].physical_offset + 150, b"\xff")
    if kind == "power cut":
        for path in disk.walk():
            fd = disk.open(path)
            disk.fdatasync(fd)
            disk.close(fd)
            disk.fsync_dir(path.rpartition("/")[0])
        disk = disk.crash(Random(1))
    elif kind == "another machine":
        disk.boot = 77
    else:
        monkeypatch.setattr(SimulatedDisk, "boot_id", lambda self: "")
    store = _open(disk)
    assert _served(store) == _bodies(range(12))
    assert store.recovery.damaged == []
    assert store.recovery.torn_bytes > 0


@promised("what was cut off is no message again")
def test_what_was_cut_off_does_not_come_back_behind_the_next_message() -> None:
    """The next message ends where whole records of before began, and the broker is killed then."""
    disk, places = _written()
    disk = disk.kill()
    _damage(disk, places[12].physical_offset + 150, b"\xff")
    disk.boot = 77
    store = _open(disk)
    assert _served(store) == _bodies(range(12))
    (place,) = _put(store, [99])
    assert place == places[12]
    store = _open(disk.kill())
    assert _served(store) == {**_bodies(range(12)), 12: _bodies([99])[99]}
    assert store.commit_log.end == places[13].physical_offset


@promised("what was written in this run of the kernel is served")
def test_nothing_good_behind_is_a_torn_tail_after_a_kill_too() -> None:
    """A write that the kill cut off leaves a part of a record at the end: it is cut."""
    disk, places = _written()
    disk = disk.kill()
    last = places[-1]
    _damage(disk, last.physical_offset + 150, bytes(last.size_bytes - 150))
    store = _open(disk)
    assert _served(store) == _bodies(range(_COUNT - 1))
    assert store.recovery.damaged == []
    assert store.recovery.torn_bytes > 0
    assert store.commit_log.end == last.physical_offset


@promised("what was written in this run of the kernel is served")
def test_a_failed_write_that_could_not_be_undone_is_a_torn_tail() -> None:
    """The store went read-only: its refused half write is cut at the next start."""
    disk = SimulatedDisk()
    faulty = FaultyDisk(disk)
    store = _open(faulty)
    _put(store, range(3))
    end = store.commit_log.end
    faulty.inject(Fault(("pwrite", "ftruncate"), 1, errno.EIO, sticky=True))
    inner = make_message(History().send("orders", 0, _BODY), "U")
    store.put_messages([inner])
    assert inner.status != PutStatus.PUT_OK
    assert store.commit_log.failure is not None
    store = _open(disk.kill())
    assert _served(store) == _bodies(range(3))
    assert (store.commit_log.end, store.recovery.damaged) == (end, [])


@promised("what was written in this run of the kernel is served")
def test_a_kill_during_recovery_does_not_make_the_page_cache_whole() -> None:
    """Until a recovery is complete, what it has to judge is from before the power cut."""
    disk, places = _written()
    disk = disk.kill()
    _damage(disk, places[12].physical_offset + 150, b"\xff")
    disk.boot += 1
    faulty = FaultyDisk(disk, Fault(("ftruncate", "fallocate", "fdatasync"), 1, errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        _open(faulty)
    store = _open(disk.kill())
    assert _served(store) == _bodies(range(12))
    assert store.recovery.damaged == []


@promised("what was written in this run of the kernel is served")
def test_rocketmq_between_two_starts_is_no_proof() -> None:
    """Its abort file names no run of the kernel."""
    disk, places = _written()
    disk = disk.kill()
    assert read_file(disk, "/store/abort").split()[1:] == [disk.boot_id().encode()]
    disk.unlink("/store/abort")
    fd = disk.open("/store/abort", create=True)
    disk.pwrite(fd, b"4711", 0)
    disk.close(fd)

    _damage(disk, places[12].physical_offset + 150, b"\xff")
    store = _open(disk)
    assert _served(store) == _bodies(range(12))


@pytest.mark.parametrize("is_placed", [False, True])
def test_a_body_full_of_magics_does_not_hold_recovery_up(
    is_placed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte of what looks like the beginnings of records is passed in moments."""
    config = small_config(
        "ASYNC_FLUSH", mapped_file_size_commit_log=1 << 23, max_message_size=1 << 21
    )
    disk = SimulatedDisk()
    store = MessageStore(config, disk, store_host=HOST)
    store.open()
    (first,) = _put(store, [0])
    body = bytearray(b"\xda\xa3\x20\xa7" * (1 << 18))
    if is_placed:
        # Each has the shape of a record that lies where it should and ends where the body does.
        body_at = first.physical_offset + first.size_bytes + HEAD_V4.size
        for at in range(0, len(body) - 2 * HEAD_V4.size, HEAD_V4.size):
            size = len(body) - at
            fields = (size, MAGIC_V1, 0, 0, 0, 0, body_at + at, 0, 0, HOST, 0, HOST, 0, 0)
            body[at : at + HEAD_V4.size] = HEAD_V4.pack(*fields, size - HEAD_V4.size - 3)
        body[-3:] = bytes(3)
    inner = make_message(History().send("orders", 0, bytes(body)), "U")
    store.put_messages([inner])
    assert inner.status == PutStatus.PUT_OK
    _put(store, [2, 3])
    disk = disk.kill()
    fd = disk.open(f"/store/commitlog/{segment_name(0)}")
    disk.pwrite(fd, b"\xff\xff\xff\xff", first.size_bytes)
    disk.close(fd)
    checked: list[int] = []
    monkeypatch.setattr(
        recovery,
        "check_sums",
        lambda view, position, parts: (
            checked.append(parts.header.size_bytes),
            check_sums(view, position, parts),
        ),
    )
    store = MessageStore(config, disk, store_host=HOST)
    begin_s = time.process_time()
    store.open()
    assert time.process_time() - begin_s < 5
    assert sum(checked) < (64 << 20) + 17 * (1 << 20)
    with promised("one bad record costs itself only"):
        assert [item.physical_offset for item in store.recovery.damaged] == [first.size_bytes]
        assert _served(store) == _bodies([0, 2, 3])


def _forged(place: int, topic: str, queue_id: int, queue_offset: int) -> bytes:
    """Return a record, whole and good, that is to lie at a physical offset."""
    name = topic.encode()
    size = FIXED_BYTES + len(name) + CRC_PROPERTY_BYTES
    numbers = (size, MAGIC_V1, 0, queue_id, 0, queue_offset, place, 0, 0, HOST, 0, HOST, 0, 0, 0)
    head = HEAD_V4.pack(*numbers) + bytes([len(name)]) + name
    record = head + CRC_PROPERTY_BYTES.to_bytes(2, "big")
    return record + crc_property(record)


@pytest.mark.parametrize(
    ("topic", "queue_id", "queue_offset"),
    [
        ("orders", 0, 1 << 40),
        ("new", 0, (1 << 63) - 1),
        ("../../../evil", 0, 0),
        ("a/b", 0, 0),
        ("", 0, 0),
        ("orders", -7, 0),
        ("orders", 0, -5),
    ],
)
@promised("what was written in this run of the kernel is served")
def test_a_record_in_a_body_that_no_broker_stores_is_not_taken_for_one(
    topic: str, queue_id: int, queue_offset: int
) -> None:
    """A sender knows where its message will lie; bad bytes in its head make the body searched."""
    disk = SimulatedDisk()
    store = _open(disk)
    [place] = _put(store, [0])
    at = place.physical_offset + place.size_bytes
    sent = History().send("orders", 0, b"z" * 600)
    inner = make_message(sent, "U1")
    inner.body += _forged(at + HEAD_V4.size + 600, topic, queue_id, queue_offset)
    store.put_messages([inner])
    assert inner.physical_offset == at
    _put(store, range(2, 5))
    _flush(store)
    disk = disk.kill()
    _damage(disk, at, bytes([255]) * 512)
    for _ in range(2):
        store = _open(disk)
        assert list(store.queues.by_key) == [("orders", 0)]
        assert _served(store) == _bodies([0, 2, 3, 4])
        for _ in range(3):
            disk.advance(11)
            store.background()
        assert store.refusal() is None
        disk = disk.kill()
        disk.unlink("/store/mailboat/progress.json")
    assert all(path.startswith("/store/") for path in disk.walk())


@pytest.mark.parametrize("is_first_of_segment", [False, True])
@pytest.mark.parametrize("is_below_mark", [False, True])
@promised("what was written in this run of the kernel is served")
def test_a_record_in_a_body_whose_write_was_not_finished_is_not_taken_for_one(
    is_first_of_segment: bool, is_below_mark: bool
) -> None:
    """The process dies in a write: the head is there, and what the sender put into the body."""
    config = small_config("ASYNC_FLUSH", mapped_file_size_commit_log=1 << 16)
    disk = SimulatedDisk()
    store = MessageStore(config, disk, store_host=HOST)
    store.open()
    _put(store, range(40))
    at = store.commit_log.end
    if is_first_of_segment:
        store.commit_log.move_on(reserve=True)
        at = store.commit_log.end
    sent = History().send("evil", 0, b"")
    inner = make_message(sent, "U1")
    inner.body = _forged(at + HEAD_V4.size, "orders", 0, 0).ljust(1000, b"z")
    store.put_messages([inner])
    assert inner.physical_offset == at
    if is_below_mark:
        _flush(store)
    disk = disk.kill()
    path = f"/store/commitlog/{segment_name(at - at % (1 << 16))}"
    fd = disk.open(path)
    disk.pwrite(fd, bytes(inner.size_bytes - 600), at % (1 << 16) + 600)
    disk.close(fd)
    store = MessageStore(config, disk, store_host=HOST)
    store.open()
    assert _served(store) == _bodies(range(40))
    assert store.max_offset("orders", 0) == 40


def test_the_real_kernel_has_a_name() -> None:
    """It is the same for every process, and says nothing where the kernel does not tell."""
    name = RealDisk().boot_id()
    assert name == RealDisk().boot_id()
    assert name == "" or len(name) == 36


@pytest.mark.crash
@pytest.mark.timeout(120)
async def test_a_broker_that_was_killed_serves_what_is_behind_a_bad_record(tmp_path: Path) -> None:
    """The real process, the real page cache: forty-nine of fifty messages are there."""
    options = {"flushIntervalCommitLog": 60_000, "skipCorrupt": "true"}
    broker = BrokerProcess(tmp_path, "ASYNC_FLUSH", options)
    try:
        await asyncio.to_thread(broker.wait_ready)
        connection = await PlainConnection.open(broker.address)
        offsets = []
        for number in range(50):
            answer = await connection.call(send_request("T", 0, b"body %d" % number, queues=1))
            assert answer.code == ResponseCode.SUCCESS
            offsets.append(decode_offset_message_id(answer.ext_fields["msgId"]).physical_offset)
        await connection.close()
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(_flip, tmp_path, offsets[20] + 90)
        broker = BrokerProcess(tmp_path, "ASYNC_FLUSH", options)
        await asyncio.to_thread(broker.wait_ready)
        connection = await PlainConnection.open(broker.address)
        content = await read_queue(connection, "T", 0)
        await connection.close()
    finally:
        broker.kill()
    bodies = [b"body %d" % number for number in range(50) if number != 20]
    with promised("one bad record costs itself only"):
        assert [message.body for message in content.messages] == bodies
        assert content.max_offset == 50
    log = (tmp_path / "log").read_text()
    assert f"damaged physical_offset={offsets[20]} " in log


def _flip(directory: Path, position: int) -> None:
    (path,) = [path / segment_name(0) for path in directory.rglob("commitlog")]
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes((byte[0] ^ 1,)))
