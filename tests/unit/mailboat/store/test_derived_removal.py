"""Files of many queues that go with a segment: the store's thread waits for no sync of a folder."""

from collections import deque
from collections.abc import Callable
from typing import Any

from mailboat.store.message_store import MessageStore
from mailboat.testing.history import Sent
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.store_simulator import HOST, make_message, small_config

_QUEUES = 60
_UNITS = 14
"""In each queue; one of its files takes 5."""


class _SlowDisk(SimulatedDisk):
    """A disk on which a sync of a folder takes its time for whoever waits."""

    is_awaited = True

    def fsync_dir(self, path: str) -> None:
        if self.is_awaited:
            self.advance(0.005)
        super().fsync_dir(path)


class _Threads:
    """Runs jobs when it is told to."""

    def __init__(self, disk: _SlowDisk) -> None:
        self._disk = disk
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]]
        self._jobs = deque()

    def __call__(
        self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]
    ) -> None:
        self._jobs.append((job, done))

    def run(self) -> None:
        """Run what waits."""
        for _ in range(len(self._jobs)):
            job, done = self._jobs.popleft()
            self._disk.is_awaited = False
            result = job()
            self._disk.is_awaited = True
            done(result, None)


def _open(disk: _SlowDisk, threads: _Threads) -> MessageStore:
    config = small_config(
        "ASYNC_FLUSH",
        mapped_file_size_commit_log=65_536,
        mapped_file_size_consume_queue=100,
        message_index_enable=False,
        clean_resource_interval=10_000,
        # The disk always wants room.
        disk_expire_free_bytes=1 << 60,
        disk_force_clean_free_bytes=1 << 60,
        clean_unconsumed_files_enable=True,
    )
    store = MessageStore(config, disk, store_host=HOST, run_blocking=threads)
    store.open()
    return store


def _put(store: MessageStore, begin: int) -> None:
    """Store a message in each queue."""
    for queue_id in range(_QUEUES):
        sent = Sent(begin + queue_id, ("topic", queue_id), b"x" * 100)
        store.put_messages([make_message(sent, f"U{begin + queue_id}")])


def _round(disk: _SlowDisk, store: MessageStore, threads: _Threads) -> float:
    """Flush, give the store a slice and run its jobs; return the longest time that it held us."""
    job = store.begin_flush()
    if job is not None:
        job.run()
        store.finish_flush(job, None)
    begin_s = disk.monotonic()
    store.background()
    held_s = disk.monotonic() - begin_s
    begin_s = disk.monotonic()
    threads.run()
    return max(held_s, disk.monotonic() - begin_s)


def _queue_files(disk: SimulatedDisk) -> int:
    return len(disk.walk("/store/consumequeue"))


def test_no_call_waits_for_the_folders_of_many_queues() -> None:
    """However many files go with a segment; a start finds what a checkpoint counted."""
    disk = _SlowDisk(capacity_bytes=1 << 30)
    threads = _Threads(disk)
    store = _open(disk, threads)
    for number in range(_UNITS):
        _put(store, number * _QUEUES)
        _round(disk, store, threads)
    longest_s, most_files = 0.0, _queue_files(disk)
    for _ in range(20):
        disk.advance(2.0)
        longest_s = max(longest_s, _round(disk, store, threads))
    assert len(store.commit_log.segments) == 1
    assert _queue_files(disk) == _QUEUES < most_files
    assert longest_s < 0.02
    expected = {key: store.max_offset(*key) for key in store.queue_keys()}
    disk = disk.kill()
    disk.is_awaited = False
    store = _open(disk, _Threads(disk))
    assert {key: store.max_offset(*key) for key in store.queue_keys()} == expected
