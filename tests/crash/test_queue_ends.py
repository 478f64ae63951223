"""A queue whose messages have all expired goes on where it ended, whatever file is lost.

Its end stands in the saved progress and in its last ConsumeQueue file. A queue that began again at
0 would lie behind the offsets of its groups, and they would skip what is sent meanwhile.
"""

import contextlib
import errno
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from promises import promised

from mailboat.disk import Disk, read_file
from mailboat.disk.real import RealDisk
from mailboat.errors import StoreBusyError
from mailboat.store.message_inner import PutStatus
from mailboat.store.message_store import MessageStore
from mailboat.testing.faulty_disk import CHANGING_CALLS, Fault, FaultyDisk
from mailboat.testing.history import History
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.store_simulator import HOST, make_message, small_config

_BODY = b"0123456789" * 60
# A ConsumeQueue file of these tests holds twenty units.
_ENDS = [6, 20, 47]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "mailboat")


def _store(disk: Disk, root: str = "/store", **changes: object) -> MessageStore:
    config = small_config("ASYNC_FLUSH", store_path_root_dir=root, **changes)
    return MessageStore(config, disk, store_host=HOST)


def _put(store: MessageStore, topic: str, count: int) -> list[int]:
    """Store messages; return their queue offsets."""
    offsets = []
    for _ in range(count):
        inner = make_message(History().send(topic, 0, _BODY), "U")
        store.put_messages([inner])
        assert inner.status == PutStatus.PUT_OK
        offsets.append(inner.queue_offset)
    return offsets


def _with_an_emptied_queue(disk: Disk, end: int, root: str = "/store") -> None:
    """Leave a closed store in which all `end` messages of `old` have expired."""
    store = _store(disk, root)
    store.open()
    _put(store, "old", end)
    _put(store, "new", 30)
    first_new = store.queues.by_key["new", 0].unit(0)
    assert first_new is not None
    store.close()
    log = f"{root}/commitlog"
    for name in disk.listdir(log)[:-1]:
        if int(name) <= first_new[0]:
            disk.unlink(f"{log}/{name}")
    store = _store(disk, root)
    store.open()
    assert store.min_offset("old", 0) == store.max_offset("old", 0) == end
    assert 0 < store.min_offset("new", 0) < store.max_offset("new", 0) == 30
    store.close()


def _goes_on(disk: Disk, end: int, *, rebuild: bool = False, **changes: object) -> None:
    """Check both queues after a start, and again after a clean one."""
    store = _store(disk, **changes)
    store.open(rebuild=rebuild)
    assert store.min_offset("old", 0) == store.max_offset("old", 0) == end
    assert store.max_offset("new", 0) == 30
    assert _put(store, "old", 2) == [end, end + 1]
    store.close()
    store = _store(disk, **changes)
    store.open()
    assert store.recovery.records == 0
    assert (store.min_offset("old", 0), store.max_offset("old", 0)) == (end, end + 2)
    store.close()


def _overwrite(disk: Disk, path: str, data: bytes) -> None:
    disk.unlink(path)
    fd = disk.open(path, create=True)
    disk.pwrite(fd, data, 0)
    disk.close(fd)


def _lose_progress(disk: Disk) -> None:
    disk.unlink("/store/mailboat/progress.json")


def _damage_progress(disk: Disk) -> None:
    data = bytearray(read_file(disk, "/store/mailboat/progress.json"))
    data[5] ^= 1
    _overwrite(disk, "/store/mailboat/progress.json", bytes(data))


def _lose_own_files(disk: Disk) -> None:
    for name in disk.listdir("/store/mailboat"):
        disk.unlink(f"/store/mailboat/{name}")
    disk.rmdir("/store/mailboat")


def _be_rocketmqs(disk: Disk) -> None:
    _overwrite(disk, "/store/lock", b"lock")


def _lose_queues(disk: Disk) -> None:
    for path in disk.walk("/store/consumequeue"):  # type: ignore[attr-defined]
        disk.unlink(path)


_LOSSES: list[Callable[[Disk], None]] = [
    _lose_progress,
    _damage_progress,
    _lose_own_files,
    _be_rocketmqs,
    _lose_queues,
]


@pytest.mark.parametrize("end", _ENDS)
@pytest.mark.parametrize("lose", _LOSSES)
@promised("no queue offset is given out again")
def test_an_emptied_queue_keeps_its_end(lose: Callable[[Disk], None], end: int) -> None:
    """Without the progress the ConsumeQueue tells it, without the ConsumeQueue the progress."""
    disk = SimulatedDisk()
    _with_an_emptied_queue(disk, end)
    lose(disk)
    _goes_on(disk, end)


@pytest.mark.parametrize("end", _ENDS)
@pytest.mark.parametrize("is_killed", [False, True])
@promised("no queue offset is given out again")
def test_a_rebuild_keeps_the_ends(end: int, *, is_killed: bool) -> None:
    """After a clean stop and after a kill, and a second one that has lost the progress."""
    disk = SimulatedDisk()
    _with_an_emptied_queue(disk, end)
    if is_killed:
        _store(disk).open()
        disk = disk.kill()
    store = _store(disk)
    store.open(rebuild=True)
    assert store.recovery.records > 0
    store.close()
    _lose_progress(disk)
    _goes_on(disk, end, rebuild=True)


@pytest.mark.parametrize("file_bytes", [40, 200, 700])
@pytest.mark.parametrize("has_progress", [True, False])
@promised("no queue offset is given out again")
def test_queues_with_files_of_another_size_keep_their_ends(
    has_progress: bool, file_bytes: int
) -> None:
    """Files that `mappedFileSizeConsumeQueue` does not fit any more are read before they go."""
    disk = SimulatedDisk()
    _with_an_emptied_queue(disk, 47)
    if not has_progress:
        _lose_progress(disk)
    _goes_on(disk, 47, mapped_file_size_consume_queue=file_bytes)


@pytest.mark.parametrize("lose", [None, *_LOSSES[:-1]])
@promised("no queue offset is given out again")
def test_a_rebuild_that_is_cut_off_at_any_call_keeps_the_ends(
    lose: Callable[[Disk], None] | None,
) -> None:
    """The process dies in the middle of it: the next start knows what this one knew."""
    number = 0
    while True:
        number += 1
        disk = SimulatedDisk()
        _with_an_emptied_queue(disk, 47)
        if lose is not None:
            lose(disk)
        faulty = FaultyDisk(disk, Fault(CHANGING_CALLS, number, errno.EIO, sticky=True))
        store = _store(faulty)
        try:
            store.open(rebuild=True)
        except OSError:
            _goes_on(disk.kill(), 47)
            continue
        assert faulty.failures == 0
        assert number > 10
        return


def _with_a_damaged_last_message(disk: SimulatedDisk, *, is_killed: bool) -> SimulatedDisk:
    """Leave a store whose last message of `hit`, the 30th, cannot be read; return its disk.

    One that was killed has its units in files, and none of them in the saved progress.
    """
    store = _store(disk)
    store.open()
    if is_killed:
        store.close()
        store = _store(disk)
        store.open()
    _put(store, "hit", 30)
    _put(store, "other", 1)
    unit = store.queues.by_key["hit", 0].unit(29)
    assert unit is not None
    segment = store.commit_log.find(unit[0])
    assert segment is not None
    if is_killed:
        store.background()
        assert not store.queues.by_key["hit", 0].pending_bytes
        disk = disk.kill()
    else:
        store.close()
    fd = disk.open(segment.path)
    disk.pwrite(fd, b"\xff" * 99, unit[0] - segment.start + 9)
    disk.close(fd)
    return disk


@pytest.mark.parametrize("is_killed", [False, True])
@promised("no queue offset is given out again")
def test_a_start_that_is_killed_gives_out_no_offset_of_a_damaged_message_again(
    *, is_killed: bool
) -> None:
    """The next start knows of it what the queue's files had said before this one wrote to them.

    After a clean stop they are built anew, after a kill what the progress does not know is.
    """
    number = 0
    while True:
        number += 1
        disk = _with_a_damaged_last_message(SimulatedDisk(), is_killed=is_killed)
        faulty = FaultyDisk(disk, Fault(CHANGING_CALLS, number, errno.EIO, sticky=True))
        store = _store(faulty)
        with contextlib.suppress(OSError):
            store.open(rebuild=not is_killed)
            store.background()
        store = _store(disk.kill())
        store.open()
        assert _put(store, "hit", 1) == [30]
        if not faulty.failures:
            assert number > 5
            return


def test_a_rebuild_waits_for_the_lock() -> None:
    """Where another broker holds the directory, nothing of it is touched."""
    disk = SimulatedDisk()
    _with_an_emptied_queue(disk, 6)
    running = _store(disk)
    running.open()
    before = {path: read_file(disk, path) for path in disk.walk()}
    with pytest.raises(StoreBusyError):
        _store(disk).open(rebuild=True)
    assert {path: read_file(disk, path) for path in disk.walk()} == before
    _goes_on(disk.kill(), 6)


def _repair(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mailboat.cli", "store", "repair", str(root), "--rebuild"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.timeout(120)
def test_the_command_rebuilds_a_store_and_leaves_a_live_one_alone(tmp_path: Path) -> None:
    """`store repair --rebuild` keeps the ends, and deletes nothing of a running broker's."""
    disk = RealDisk()
    root = tmp_path / "store"
    _with_an_emptied_queue(disk, 6, str(root))
    done = _repair(root)
    assert done.returncode == 0, done.stderr
    assert " records read" in done.stdout
    assert " 0 records read" not in done.stdout
    running = _store(disk, str(root))
    running.open()
    assert running.max_offset("old", 0) == 6
    before = (root / "mailboat" / "progress.json").read_bytes()
    refused = _repair(root)
    assert refused.returncode == 1
    assert "in use by another broker" in refused.stderr
    assert (root / "mailboat" / "progress.json").read_bytes() == before
    running.close()


@pytest.mark.parametrize("rebuild", [False, True])
@promised("no queue offset is given out again")
def test_a_deleted_topic_does_not_come_back_with_its_end(*, rebuild: bool) -> None:
    """The saved progress, which still has it, is from before the deletion."""
    disk = SimulatedDisk()
    _with_an_emptied_queue(disk, 6)
    store = _store(disk)
    store.open()
    store.delete_topic("old")
    disk = disk.kill()
    store = _store(disk)
    store.open(rebuild=rebuild)
    assert ("old", 0) not in store.queues.by_key
    assert store.max_offset("new", 0) == 30
