"""Which messages are in memory, and reads from the disk of those that may not be.

The newest part of the log is in memory: so much of the machine's as `accessMessageInMemoryMaxRatio`
says. Where a message lies stands in its ConsumeQueue, of which the unit may have to come from the
disk as well. So nothing is read to find out: of each queue one message is remembered that lies in
that part of the log, and all behind it do too.

What is not known to be in memory is read by another thread first. It may be in memory all the same:
then that costs a moment. The store's own thread never waits for a disk.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from mailboat.disk import Disk
from mailboat.disk.memory_limit import share_of_memory
from mailboat.store.commit_log import CommitLog
from mailboat.store.consume_queue import UNIT, ConsumeQueue
from mailboat.store.message_inner import BlockingRunner
from mailboat.store.record_source import Fetched, Limits, fetch_job

Begin = Callable[[Callable[[int], None]], None]
"""Begins a read; calls back on the store's thread once it has ended, with the number of messages
that are in memory then, 0 where they cannot be read now."""

_MOST_BYTES: Final = 1024 * 1024
_ONE_MESSAGE: Final = Limits(1, 1, 1, None)


class Warming:
    """The reads from the disk of one store."""

    def __init__(
        self, disk: Disk, commit_log: CommitLog, runner: BlockingRunner, memory_percent: int
    ) -> None:
        """Have `runner` read; the newest part of the log has so much of the memory."""
        self._disk = disk
        self._commit_log = commit_log
        self._runner = runner
        self.configure(memory_percent)

    def configure(self, memory_percent: int) -> None:
        """Take another share of the memory for the newest part of the log."""
        self.hot_bytes = share_of_memory(memory_percent)

    def is_hot_at(self, physical_offset: int) -> bool:
        """Estimate whether what lies at a physical offset is in memory."""
        return self._commit_log.end - physical_offset <= self.hot_bytes

    def is_hot(self, queue: ConsumeQueue | None, queue_offset: int) -> bool:
        """Estimate whether a message, or where it would be, is in memory; False in doubt."""
        if queue is None or self.is_hot_at(self._commit_log.start):
            return True
        last = queue.max_offset - 1
        if not queue.min_offset <= queue_offset <= last:
            return True
        hot_offset, physical_offset = queue.hot_from
        if queue_offset >= hot_offset and self.is_hot_at(physical_offset):
            return True
        in_last = queue.last_physical_end - 1
        if queue_offset < last or not self.is_hot_at(in_last):
            return False
        queue.hot_from = last, in_last
        return True

    def fetch(
        self,
        queue: ConsumeQueue | None,
        queue_offset: int,
        limits: Limits,
        done: Callable[[Fetched | None, BaseException | None], None],
    ) -> None:
        """Read messages from the disk, then call `done`.

        It gets the source for `get_message` or `get_matching_message`, None where the queue's units
        are in memory, or else an OSError: the messages cannot be read now.
        """
        if queue is None or not queue.places(queue_offset, 1):
            done(None, None)
            return
        job = fetch_job(self._disk, self._commit_log, queue, queue_offset, limits)

        def ended(fetched: Fetched | None, error: BaseException | None) -> None:
            self._note(queue, queue_offset, fetched)
            done(fetched, error)

        self._runner(job, ended)

    def _note(self, queue: ConsumeQueue, queue_offset: int, fetched: Fetched | None) -> None:
        """Remember a message that was read, if it lies in the newest part of the log."""
        units = b"" if fetched is None else fetched.units(queue, queue_offset, 1)
        if units:
            physical_offset, size, _ = UNIT.unpack(units)
            # A unit may have lost a bit.
            is_there = size > 0 and physical_offset + size <= queue.last_physical_end
            if is_there and self.is_hot_at(physical_offset):
                queue.hot_from = queue_offset, physical_offset

    def reading(
        self, queue: ConsumeQueue | None, queue_offset: int, units: int = 1, messages: int = 1
    ) -> Begin | None:
        """Return what reads units of a queue from the disk, and messages of them.

        Not more than a megabyte of messages, unless the first one is larger. None where all of it
        is in memory.
        """
        if self.is_hot(queue, queue_offset):
            return None
        limits = Limits(units, messages, _MOST_BYTES, None)

        def begin(ended: Callable[[int], None]) -> None:
            def done(fetched: Fetched | None, error: BaseException | None) -> None:
                ended(units if error is None and fetched is None else _count(fetched))

            self.fetch(queue, queue_offset, limits, done)

        return begin

    def reading_all(self, wanted: Sequence[tuple[ConsumeQueue, int]]) -> Begin | None:
        """Return what reads messages from the disk, by queue and queue offset.

        None where all of them are in memory.
        """
        cold = [
            (queue, queue_offset)
            for queue, queue_offset in wanted
            if not self.is_hot(queue, queue_offset) and queue.places(queue_offset, 1)
        ]
        if not cold:
            return None
        jobs = [
            fetch_job(self._disk, self._commit_log, queue, queue_offset, _ONE_MESSAGE)
            for queue, queue_offset in cold
        ]

        def begin(ended: Callable[[int], None]) -> None:
            def done(fetched: list[Fetched | None] | None, _error: BaseException | None) -> None:
                for place, one in zip(cold, fetched or (), strict=False):
                    self._note(*place, one)
                ended(len(cold))

            self._runner(partial(_run_all, jobs), done)

        return begin


def _run_all(jobs: Sequence[Callable[[], Fetched]]) -> list[Fetched | None]:
    """Run jobs one after the other; None where one fails, as whoever reads on will be told."""
    results: list[Fetched | None] = []
    for job in jobs:
        try:
            results.append(job())
        except OSError:
            results.append(None)
    return results


def _count(fetched: Fetched | None) -> int:
    return 0 if fetched is None else fetched.count
