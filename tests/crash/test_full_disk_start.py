"""A start on a full volume: only a store that is open can remove what has expired."""

import errno
import logging
from collections.abc import Callable
from random import Random

import pytest
from promises import promised

from mailboat.disk import Disk
from mailboat.model.record import decode_records
from mailboat.store.layout import segment_name
from mailboat.store.lookup import GetStatus
from mailboat.store.message_inner import PutStatus
from mailboat.store.message_store import MessageStore
from mailboat.testing.faulty_disk import Fault, FaultyDisk
from mailboat.testing.history import History
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.store_simulator import HOST, make_message, small_config

_KEY = ("orders", 0)
_CAPACITY_BYTES = 16 << 20
_SEGMENT_BYTES = 1 << 18


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "mailboat")


def _open(
    disk: Disk, *, rebuild: bool = False, segment_bytes: int = _SEGMENT_BYTES
) -> MessageStore:
    config = small_config(
        "ASYNC_FLUSH",
        mapped_file_size_commit_log=segment_bytes,
        mapped_file_size_consume_queue=40_000,
        max_index_num=4000,
    )
    store = MessageStore(config, disk, store_host=HOST)
    store.open(rebuild=rebuild)
    return store


def _put(store: MessageStore, count: int) -> list[int]:
    history = History()
    batch = []
    for number in range(count):
        batch.append(make_message(history.send(*_KEY, b"%d" % number), f"U{number}"))
    store.put_messages(batch)
    return [inner.status for inner in batch]


def _checkpoint(disk: SimulatedDisk, store: MessageStore) -> None:
    disk.advance(11)
    for _ in range(4):
        job = store.begin_flush()
        if job is not None:
            job.run()
            store.finish_flush(job, None)
        store.background()


def _fill(disk: SimulatedDisk) -> None:
    """Let no block be free."""
    disk.capacity_bytes = disk.usage("/").used_bytes


def _served(store: MessageStore, count: int = 5000) -> list[int]:
    """Return the queue offsets of what is served; what is damaged is passed over.

    Bodies count anew after the first `count`.
    """
    found: list[int] = []
    at = store.min_offset(*_KEY)
    while at < store.max_offset(*_KEY):
        result = store.get_message(*_KEY, at, 32, 1 << 20)
        if result.status == GetStatus.FOUND:
            messages = decode_records(b"".join(result.slices))
            assert all(
                message.body == b"%d" % (message.queue_offset % count) for message in messages
            )
            found += [message.queue_offset for message in messages]
        at = max(result.next_offset, at + 1)
    return found


def _damage(disk: SimulatedDisk) -> None:
    fd = disk.open(f"/store/commitlog/{segment_name(0)}")
    disk.pwrite(fd, bytes(4096), 20_000)
    disk.close(fd)


def _drop(directory: str) -> Callable[[SimulatedDisk], None]:
    def drop(disk: SimulatedDisk) -> None:
        for path in disk.walk(f"/store/{directory}"):
            disk.unlink(path)

    return drop


_STATES: dict[str, Callable[[SimulatedDisk], None]] = {
    "as it was": lambda disk: None,
    "damage, which is copied aside": _damage,
    "the queues are built anew": _drop("consumequeue"),
    "the index is built anew": _drop("index"),
}


# Of the second an IndexFile was full, and written but for its last entries.
@pytest.mark.parametrize("count", [5000, pytest.param(6600, marks=pytest.mark.slow)])
@pytest.mark.parametrize("state", _STATES)
@pytest.mark.parametrize("end", ["killed", "killed before a checkpoint", "closed"])
@promised("a full volume costs no message")
def test_a_start_on_a_full_volume_serves_and_expires(end: str, state: str, count: int) -> None:
    """All messages are there; what is old goes, and with room messages are taken again."""
    disk = SimulatedDisk(capacity_bytes=_CAPACITY_BYTES)
    store = _open(disk)
    assert set(_put(store, count)) == {PutStatus.PUT_OK}
    if end != "killed before a checkpoint":
        _checkpoint(disk, store)
    if end == "closed":
        store.close()
    disk = disk.kill()
    _STATES[state](disk)
    _fill(disk)
    for _ in range(2):
        store = _open(disk)
        assert disk.exists("/store/abort")
        assert len(_served(store, count)) >= count - (100 if state.startswith("damage") else 0)
        disk = disk.kill()
    store = _open(disk)
    if end != "killed before a checkpoint" and state == "as it was":
        disk.advance(4000)
        for _ in range(10):
            _checkpoint(disk, store)
        assert store.commit_log.start > 0
    disk.capacity_bytes = _CAPACITY_BYTES
    for _ in range(4):
        _checkpoint(disk, store)
    assert set(_put(store, 3)) == {PutStatus.PUT_OK}
    assert store.refusal() is None
    store.close()
    assert _served(_open(disk.kill()), count)[-1] == count + 2


@pytest.mark.parametrize("segments", [2, 3])
@pytest.mark.parametrize("starts", [0, 1, 2])
@promised("a full volume costs no message")
def test_room_that_is_set_aside_is_given_for_the_checkpoint(segments: int, starts: int) -> None:
    """What has expired waits for a checkpoint, and that for room that only the log has."""
    segment_bytes = 4 << 20
    disk = SimulatedDisk(capacity_bytes=_CAPACITY_BYTES)
    store = _open(disk, segment_bytes=segment_bytes)
    while len(store.commit_log.segments) < segments:
        _put(store, 500)
    count = store.max_offset(*_KEY)
    for _ in range(starts):
        disk = disk.kill()
        _fill(disk)
        store = _open(disk, segment_bytes=segment_bytes)
    _fill(disk)
    disk.advance(4000)
    for _ in range(10):
        _checkpoint(disk, store)
    assert store.commit_log.start == (segments - 1) * segment_bytes
    assert store.refusal() is None
    assert store.commit_log.segments[-1].is_reserved
    assert set(_put(store, 3)) == {PutStatus.PUT_OK}
    store.close()
    store = _open(disk.kill(), segment_bytes=segment_bytes)
    assert store.max_offset(*_KEY) == count + 3
    assert store.min_offset(*_KEY) > 0


@promised("a full volume costs no message")
def test_a_quota_that_is_used_up_is_a_full_volume() -> None:
    """The room of the last segment that recovery gave back may be somebody else's by then."""
    disk = SimulatedDisk()
    _put(_open(disk), 10)
    faulty = FaultyDisk(disk.kill(), Fault(("fallocate",), 1, errno.EDQUOT, sticky=True))
    store = _open(faulty)
    assert _served(store) == list(range(10))
    assert faulty.failures == 1


@promised("a full volume costs no message")
def test_a_mark_without_room_is_the_mark_of_this_run() -> None:
    """The next start finds that it was no clean stop, and under which run of the kernel."""
    disk = SimulatedDisk(capacity_bytes=_CAPACITY_BYTES)
    _open(disk).close()
    _fill(disk)
    store = _open(disk)
    assert disk.size("/store/abort") == 0
    disk.capacity_bytes = _CAPACITY_BYTES
    disk = disk.kill()
    store = _open(disk)
    _put(store, 1)
    disk = disk.crash(Random(1))
    _fill(disk)
    before = disk.size("/store/abort")
    _open(disk)
    fd = disk.open("/store/abort")
    assert disk.pread(fd, 100, 0).split()[1:] == [disk.boot_id().encode()]
    assert disk.size("/store/abort") == before
