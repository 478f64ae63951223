"""Planted bugs: the simulator finds each of them, so that its silence means something.

Each bug is a small change of the store or the disk of the kind that has cost other systems
acknowledged messages. The same simulator runs without them in `test_store_simulator.py`.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from mailboat.disk import Disk, sync
from mailboat.store import flush, opening, recovery, segment
from mailboat.store.checkpointing import Checkpointing
from mailboat.store.commit_log import CommitLog
from mailboat.store.consume_queue import ConsumeQueue
from mailboat.store.dispatch import Dispatch
from mailboat.store.flush import Flusher, FlushJob
from mailboat.store.index_service import IndexService
from mailboat.store.message_store import MessageStore
from mailboat.store.queue_table import QueueTable
from mailboat.store.segment import Segment
from mailboat.testing.disk_wrapper import DiskWrapper
from mailboat.testing.history import HistoryViolation
from mailboat.testing.store_simulator import StoreSimulator

_MOST_SEEDS = 400

pytestmark = pytest.mark.usefixtures("slow_index")


@dataclass(frozen=True)
class _Bug:
    """How to plant one bug, and under which flush types it shows."""

    plant: Callable[[pytest.MonkeyPatch], None] | None = None
    wrap: Callable[[Disk], Disk] | None = None
    store_class: type[MessageStore] = MessageStore
    flush_disk_types: tuple[str, ...] = ("ASYNC_FLUSH", "SYNC_FLUSH")
    needs_failures: bool = False
    variants: int = 2


class _NoFdatasync(DiskWrapper):
    def fdatasync(self, fd: int) -> None:
        pass


class _NoDirectorySync(DiskWrapper):
    def fsync_dir(self, path: str) -> None:
        pass


class _AcknowledgesBeforeFlush(MessageStore):
    @property
    def flushed_offset(self) -> int:
        return self.commit_log.end


class _ShowsBeforeFlush(MessageStore):
    def open(self) -> None:
        self.dispatch._holds_back = False
        super().open()


class _ForgetfulWhileOpening(DiskWrapper):
    is_opening = False

    def fdatasync(self, fd: int) -> None:
        if not self.is_opening:
            self.disk.fdatasync(fd)


class _RecoversInMemory(MessageStore):
    def open(self) -> None:
        assert isinstance(self._disk, _ForgetfulWhileOpening)
        self._disk.is_opening = True
        super().open()
        self._disk.is_opening = False


def _swallow_failed_sync(patch: pytest.MonkeyPatch) -> None:
    def swallow(disk: Disk, fd: int) -> None:
        try:
            sync(disk, fd)
        except OSError:
            pass

    patch.setattr(flush, "sync", swallow)


def _go_on_after_failed_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CommitLog, "poison", lambda self, reason: None)


def _check_no_sum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "check_sums", lambda buffer, position, parts: None)


def _trust_stale_tail(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Segment, "cut", lambda self, position: None)


def _claim_unsynced_queues(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumeQueue, "sync", lambda self, since_bytes: None)
    # The sum of units would notice most of it.
    patch.setattr(QueueTable, "total_units", lambda self: 0)


def _leave_failed_writes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CommitLog, "_undo_write", lambda self, segment, exc: None)


def _flush_last_segment_only(patch: pytest.MonkeyPatch) -> None:
    begin = Flusher.begin

    def begin_last(self: Flusher) -> FlushJob | None:
        job = begin(self)
        if job is not None:
            del job._descriptors[:-1]
        return job

    patch.setattr(Flusher, "begin", begin_last)


def _mark_before_sync(patch: pytest.MonkeyPatch) -> None:
    run = FlushJob.run

    def run_late(self: FlushJob) -> None:
        self._mark.advance(self.target)
        self._mark.sync()
        run(self)

    patch.setattr(FlushJob, "run", run_late)


def _rebuild_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dispatch, "dispatch_record", lambda self, buffer, parts: None)
    patch.setattr(Dispatch, "on_block", None)


def _name_before_size(patch: pytest.MonkeyPatch) -> None:
    real = segment.create_segment

    def create(disk: Disk, *args: Any) -> Segment:
        made = real(_NoFdatasync(disk), *args)
        made._disk = disk
        return made

    patch.setattr("mailboat.store.commit_log.create_segment", create)


def _believe_lock_text(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(opening, "was_used_by_another_broker", lambda disk, paths: True)


def _believe_page_cache(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(opening, "is_page_cache_intact", lambda disk, paths: True)


def _count_keys_that_wait(patch: pytest.MonkeyPatch) -> None:
    begin = Checkpointing._begin

    def begin_at_once(self: Checkpointing, now_s: float) -> None:
        with pytest.MonkeyPatch.context() as context:
            context.setattr(self._index, "build", lambda slice_s: None)
            context.setattr(IndexService, "has_backlog", False)
            begin(self, now_s)

    patch.setattr(Checkpointing, "_begin", begin_at_once)


def _forget_the_gap(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IndexService, "stop", lambda self, offset, error: self._backlog.clear())


_BUGS = {
    "skips fdatasync": _Bug(wrap=_NoFdatasync),
    "skips the directory's fsync": _Bug(wrap=_NoDirectorySync),
    "swallows EIO of fdatasync": _Bug(_swallow_failed_sync, needs_failures=True),
    "goes on after a failed fdatasync": _Bug(_go_on_after_failed_sync, needs_failures=True),
    "checks no checksum at recovery": _Bug(_check_no_sum),
    "trusts a stale tail": _Bug(_trust_stale_tail, flush_disk_types=("ASYNC_FLUSH",), variants=0),
    "makes nothing durable in recovery": _Bug(
        wrap=_ForgetfulWhileOpening, store_class=_RecoversInMemory
    ),
    "acknowledges before the flush": _Bug(
        store_class=_AcknowledgesBeforeFlush, flush_disk_types=("SYNC_FLUSH",)
    ),
    "shows before the flush": _Bug(store_class=_ShowsBeforeFlush, flush_disk_types=("SYNC_FLUSH",)),
    "writes the checkpoint before the queues": _Bug(_claim_unsynced_queues),
    "counts keys in a checkpoint that wait to be indexed": _Bug(_count_keys_that_wait),
    "forgets from where on keys are missing": _Bug(_forget_the_gap, needs_failures=True),
    "leaves what a failed write wrote": _Bug(_leave_failed_writes, needs_failures=True),
    "flushes the newest segment only": _Bug(_flush_last_segment_only),
    "moves the flushed mark before the sync": _Bug(_mark_before_sync),
    "rebuilds nothing at recovery": _Bug(_rebuild_nothing),
    "names a segment before its size is durable": _Bug(_name_before_size),
    "believes the page cache after a power cut": _Bug(_believe_page_cache),
    "does not know its own directory again": _Bug(_believe_lock_text),
}


@pytest.mark.parametrize("name", list(_BUGS))
def test_a_planted_bug_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A store with this bug breaks a promise within a bounded number of seeds."""
    caplog.set_level(logging.CRITICAL, "mailboat")
    bug = _BUGS[name]
    if bug.plant is not None:
        bug.plant(monkeypatch)
    for seed in range(_MOST_SEEDS):
        for flush_disk_type in bug.flush_disk_types:
            simulator = StoreSimulator(
                seed,
                flush_disk_type,
                wrap=bug.wrap,
                store_class=bug.store_class,
                with_failures=bug.needs_failures,
                variants=bug.variants,
            )
            try:
                simulator.run()
            except HistoryViolation as exc:
                logging.getLogger(__name__).info("%s: seed %d: %s", name, seed, exc)
                return
    pytest.fail(f"{name}: not noticed in {_MOST_SEEDS} seeds")
