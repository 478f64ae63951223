"""The room of the log's last file: set aside, and known to be or not, whatever happened to it."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from mailboat.disk import read_file
from mailboat.store import message_store
from mailboat.store.file_pool import FilePool
from mailboat.store.message_inner import PutStatus, Runners, run_inline
from mailboat.store.message_store import MessageStore
from mailboat.store.segment import create_segment
from mailboat.testing.disk_wrapper import DiskWrapper
from mailboat.testing.history import Sent
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.store_simulator import HOST, make_message, small_config

SEGMENT = 65_536
FULL = 15
"""Messages of 4000 bytes that one segment takes."""

OTHER_FILES = 65_536
"""Room for the ConsumeQueues, marks and names."""

Job = tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]


def opened(disk: SimulatedDisk, runners: Runners | None = None) -> MessageStore:
    """Open the store of a disk."""
    config = small_config(
        "ASYNC_FLUSH", mapped_file_size_commit_log=SEGMENT, message_index_enable=False
    )
    store = MessageStore(config, disk, store_host=HOST, runners=runners)
    store.open()
    return store


def put(store: MessageStore, count: int = 1, topic: str = "topic") -> None:
    """Store messages of 4000 bytes."""
    for number in range(count):
        message = make_message(Sent(number, (topic, 0), b"x" * 4000), f"U{number}")
        store.put_messages([message])
        assert message.status == PutStatus.PUT_OK


def tick(disk: SimulatedDisk, store: MessageStore) -> None:
    """Let a second pass, flush, and give the store slices enough for a round and a checkpoint."""
    disk.advance(1.1)
    job = store.begin_flush()
    if job is not None:
        job.run()
        store.finish_flush(job, None)
    for _ in range(4):
        store.background()


def make_hole(disk: SimulatedDisk, path: str, position: int) -> None:
    """Give back what a file takes from a position on; its size stays, as in RocketMQ's files."""
    fd = disk.open(path)
    size = disk.size(path)
    disk.ftruncate(fd, position)
    disk.ftruncate(fd, size)
    disk.close(fd)


def with_holes() -> SimulatedDisk:
    """Return a disk with a store that was closed, and whose last file has a hole."""
    disk = SimulatedDisk(capacity_bytes=4 * SEGMENT)
    store = opened(disk)
    put(store)
    [segment] = store.commit_log.segments
    store.close()
    make_hole(disk, segment.path, 2 * 4096)
    assert disk.allocated_bytes(segment.path) < SEGMENT
    return disk


def test_a_start_reserves_a_file_with_holes() -> None:
    """RocketMQ makes such files, and copies do."""
    disk = with_holes()
    store = opened(disk)
    [segment] = store.commit_log.segments
    assert segment.is_reserved
    assert disk.allocated_bytes(segment.path) == SEGMENT
    put(store)


def test_what_is_not_reserved_does_not_count_as_reserved_after_a_start() -> None:
    """Retention takes reserved bytes for free ones: on a full volume it would act too late."""
    disk = with_holes()
    # One page is left: not enough for the hole, and none of it may be taken in vain.
    taken = disk.capacity_bytes - disk.usage("/").available_bytes
    disk.capacity_bytes = taken + 12 * 4096
    store = opened(disk)
    [segment] = store.commit_log.segments
    assert disk.allocated_bytes(segment.path) < SEGMENT
    assert not segment.is_reserved
    assert store.commit_log.preallocated_bytes == 0
    disk.capacity_bytes = 4 * SEGMENT
    for _ in range(3):
        tick(disk, store)
    assert segment.is_reserved
    assert disk.allocated_bytes(segment.path) == SEGMENT
    assert store.commit_log.preallocated_bytes == segment.end - store.commit_log.end


def test_a_cut_that_finds_no_room_is_known_and_made_good() -> None:
    """A failed write is wiped by a cut, which gives the room back first: it may be gone then."""
    disk = SimulatedDisk(capacity_bytes=4 * SEGMENT)
    disk.make_dirs("/log")
    segment = create_segment(disk, FilePool(disk, 4), "/log", 0, SEGMENT)
    disk.capacity_bytes = SEGMENT // 2
    segment.cut(4096)
    assert not segment.is_reserved
    assert disk.size(segment.path) == SEGMENT
    disk.capacity_bytes = 4 * SEGMENT
    segment.cut(4096)
    assert segment.is_reserved
    assert disk.allocated_bytes(segment.path) == SEGMENT


def test_a_late_reservation_touches_no_other_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment may be full, flushed and closed before the thread comes to it, and the number of
    its descriptor be another file's."""
    monkeypatch.setattr(message_store, "open_files_limit", lambda: 1)
    jobs: list[Job] = []
    is_late = False

    def reserve(job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        if is_late:
            jobs.append((job, done))
        else:
            run_inline(job, done)

    disk = SimulatedDisk(capacity_bytes=8 * SEGMENT)
    store = opened(disk, Runners(run_inline, reserve, run_inline, run_inline))
    put(store)
    assert store.commit_log.move_on(reserve=False)
    is_late = True
    tick(disk, store)
    [(job, done)] = jobs
    segment = store.commit_log.segments[-1]
    assert not segment.is_reserved
    is_late = False
    put(store, FULL + 1)
    tick(disk, store)
    for number in range(4):
        put(store, topic=f"other{number}")
    tick(disk, store)
    sizes = {path: disk.size(path) for path in disk.walk()}
    run_inline(job, done)
    assert {path: disk.size(path) for path in disk.walk()} == sizes
    assert disk.allocated_bytes(segment.path) == SEGMENT
    assert segment.is_reserved
    assert len(read_file(disk, segment.path)) == SEGMENT


def test_a_disk_that_hangs_while_a_segment_is_made_is_waited_for_once() -> None:
    """Senders are refused, and readers are served, until the segment is there."""
    disk, began = SimulatedDisk(), threading.Event()
    may_end = threading.Event()

    class Hanging(DiskWrapper):
        """A disk on which a thread that makes a file waits."""

        def fallocate(self, fd: int, size: int) -> None:
            """Wait in that thread alone."""
            if threading.current_thread() is not threading.main_thread():
                began.set()
                assert may_end.wait(60)
            self.disk.fallocate(fd, size)

    ended: list[Callable[[], None]] = []

    def run(job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        def work() -> None:
            result = job()
            ended.append(lambda: done(result, None))

        threads.append(threading.Thread(target=work))
        threads[-1].start()

    threads: list[threading.Thread] = []
    runners = Runners(run_inline, run, run_inline, run_inline)
    config = small_config(
        "ASYNC_FLUSH", mapped_file_size_commit_log=SEGMENT, message_index_enable=False
    )
    store = MessageStore(config, Hanging(disk), store_host=HOST, runners=runners)
    store.open()
    put(store, FULL - 1)
    store.commit_log.prepare_next()
    assert began.wait(60)
    put(store)
    statuses, took_s = [], []
    for number in range(20):
        message = make_message(Sent(number, ("topic", 0), b"x" * 4000), f"V{number}")
        began_s = time.monotonic()
        store.put_messages([message])
        took_s.append(time.monotonic() - began_s)
        statuses.append(message.status)
    assert set(statuses) == {PutStatus.CREATE_MAPPED_FILE_FAILED}
    assert "still being made" in store.why_refused()
    assert sum(sorted(took_s)[:-1]) < 0.3
    may_end.set()
    threads[0].join()
    ended[0]()
    put(store, 2)
    assert store.max_offset("topic", 0) == FULL + 2
    store.close()
