"""Checkpoints: what is derived from the CommitLog is made durable, and then how far it goes.

A checkpoint notes what queues and index add up to, lets all of that be written, has a thread sync
it, waits until the log itself is durable that far, and saves the sums. What it counts must be in
the files before it is saved, so each step waits for the one before, over many slices of
`MessageStore.background`. A start reads the log from the last one on.
"""

import errno
import logging
from collections.abc import Callable
from typing import Any, Final

from mailboat.config import MessageStoreConfig
from mailboat.disk import NO_ROOM, Disk, SyncFailedError
from mailboat.store.checkpoint import (
    CheckpointTimes,
    Progress,
    write_checkpoint,
    write_progress,
)
from mailboat.store.commit_log import CommitLog
from mailboat.store.derived_removal import DerivedRemoval
from mailboat.store.dispatch import Dispatch
from mailboat.store.index_service import IndexService
from mailboat.store.layout import StorePaths
from mailboat.store.message_inner import Runners
from mailboat.store.queue_table import QueueSync, QueueTable, sync_queues
from mailboat.store.retention import Retention

log = logging.getLogger(__name__)

# A restart reads at most about this much of the log again.
CHECKPOINT_BYTES: Final = 128 * 1024 * 1024
CHECKPOINT_INTERVAL_S: Final = 10.0
_INDEX_SLICE_S: Final = 0.01
# Errors after which the same call may succeed, and that do not say that written bytes were lost.
_PASSING_ERRORS: Final = NO_ROOM | {errno.EMFILE, errno.ENFILE, errno.ENOENT}


class Checkpointing:
    """Makes the checkpoints of one store."""

    def __init__(
        self,
        config: MessageStoreConfig,
        disk: Disk,
        paths: StorePaths,
        commit_log: CommitLog,
        queues: QueueTable,
        index: IndexService,
        dispatch: Dispatch,
        retention: Retention,
        removal: DerivedRemoval,
        runners: Runners,
        flushed_offset: Callable[[], int],
        deletion_job: Callable[[], Callable[[], None]],
    ) -> None:
        """Save what is derived of `commit_log`.

        Args:
            config: the store's settings.
            disk: where it lies.
            paths: its files.
            commit_log: the log.
            queues: derived of it.
            index: derived of it.
            dispatch: knows how far these are complete.
            retention: knows whether room is wanted.
            removal: removes files that no start needs after a checkpoint.
            runners: for what may block.
            flushed_offset: says how far the log is durable.
            deletion_job: makes a call that has deletions durable which are done.
        """
        self._segment_bytes = config.mapped_file_size_commit_log
        self._disk = disk
        self._paths = paths
        self._commit_log = commit_log
        self._queues = queues
        self._index = index
        self._dispatch = dispatch
        self._retention = retention
        self._removal = removal
        self._runners = runners
        self._flushed_offset = flushed_offset
        self._deletion_job = deletion_job
        self.saved_offset = 0
        """The physical offset up to which the last one goes."""

        self.on_flush_wanted: Callable[[], None] | None = None
        """Called when one can only be saved after a flush."""

        self._begun_s = 0.0
        self._is_due = self._is_under_way = False
        self._begun = self._saved = 0
        # What will be saved, and whether all that it counts has been written.
        self._noted: tuple[Progress, Callable[[], bool]] | None = None
        self._queue_syncs: list[QueueSync] = []
        self._index_saves: list[Callable[[], None]] = []
        self._synced_progress: Progress | None = None

    def begin_from(self, saved_offset: int, *, is_due: bool) -> None:
        """Go on from the checkpoint that a start has found."""
        self.saved_offset = saved_offset
        self._begun_s = self._disk.monotonic()
        self._is_due = is_due

    def make_due(self) -> None:
        """Have the next slice begin a checkpoint, if none is under way."""
        self._is_due = True

    def soon(self) -> Callable[[], bool]:
        """Have a checkpoint of all that is derived now; the call returned tells whether it is."""
        begun, self._is_due = self._begun, True
        return lambda: self._saved > begun

    def go_on(self) -> None:
        """Do the next step, if its time has come.

        Raises:
            OSError: derived files cannot be written; the call may be repeated.
        """
        now_s = self._disk.monotonic()
        progress = self._synced_progress
        if progress is not None:
            if self._flushed_offset() >= progress.commit_log_offset:
                self._synced_progress = None
                save_deletions = self._deletion_job()
                self._runners.files(
                    lambda: self._save(progress, save_deletions), self._progress_saved
                )
            elif self._retention.is_pressing and self.on_flush_wanted is not None:
                self.on_flush_wanted()
            return
        if self._noted is not None:
            noted, is_written = self._noted
            if is_written():
                self._sync(noted)
            return
        behind = self._dispatch.dispatched_offset - self.saved_offset
        is_worth_it = behind > 0 or self._removal.has_files
        is_time = now_s - self._begun_s >= CHECKPOINT_INTERVAL_S and is_worth_it
        # Where room is wanted, what may go must not wait for what makes its going safe.
        is_large = behind >= CHECKPOINT_BYTES or (
            self._retention.is_pressing and behind >= self._segment_bytes
        )
        if not self._is_under_way and (is_time or is_large or self._is_due):
            self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        """Note what is to be saved; it is synced once all that it counts has been written.

        That takes some slices: a client may send to thousands of new queues at once.
        """
        self._index.build(_INDEX_SLICE_S)
        if self._index.has_backlog:
            return  # What a checkpoint's offset covers is in the index: the next slice goes on.
        progress = self._note()
        self._begun_s = now_s
        self._is_due = False
        self._is_under_way = True
        self._begun += 1
        is_written = self._queues.note_unwritten()
        self._noted = (progress, is_written)
        if is_written():
            self._sync(progress)

    def forget_noted(self) -> None:
        """Give a checkpoint up whose queues are not written yet; another one begins later."""
        if self._noted is not None:
            self._noted = None
            self._is_under_way = False
            self._index.save_again(self._index_saves)
            self._index_saves = []

    def _sync(self, progress: Progress) -> None:
        self._noted = None
        self._queue_syncs = self._queues.take_syncs()
        queue_syncs, index_saves = self._queue_syncs, self._index_saves
        index_directory, queue_directory = self._paths.index, self._paths.consume_queue

        def sync_all() -> Progress:
            sync_queues(self._disk, queue_directory, queue_syncs)
            for save in index_saves:
                save()
            if index_saves:
                self._disk.fsync_dir(index_directory)
            return progress

        self._runners.files(sync_all, self._synced)

    def _note(self) -> Progress:
        """Return what the derived files add up to once all that is in memory has been written."""
        self._index_saves = self._index.snapshot()
        self._removal.note()
        return Progress(
            commit_log_start=self._commit_log.start,
            commit_log_offset=self._dispatch.dispatched_offset,
            index_file=self._index.newest_name,
            index_entry_counts=self._index.entry_counts,
            queue_units=self._queues.total_units(),
            queue_first_bytes=self._queues.first_bytes(),
            empty_queues=self._queues.empty_queues(),
            last_store_timestamp_ms=self._commit_log.last_store_timestamp_ms,
        )

    def _synced(self, progress: Any, error: BaseException | None) -> None:
        if self._has_failed(error):
            return
        self._synced_progress = progress

    def _save(self, progress: Progress, save_deletions: Callable[[], None]) -> Progress:
        # A start that does not find the queues of a topic must know that it was deleted.
        save_deletions()
        write_checkpoint(self._disk, self._paths.checkpoint, self._times())
        write_progress(self._disk, self._paths.progress, progress)
        return progress

    def _progress_saved(self, progress: Any, error: BaseException | None) -> None:
        if self._has_failed(error):
            return
        self._is_under_way = False
        self._saved = self._begun
        self.saved_offset = progress.commit_log_offset
        self._removal.begin()

    def _has_failed(self, error: BaseException | None) -> bool:
        if error is None:
            return False
        self._is_under_way = False
        if not isinstance(error, OSError):
            raise error
        if isinstance(error, SyncFailedError) or error.errno not in _PASSING_ERRORS:
            self._commit_log.poison(f"derived files could not be made durable: {error}")
            return True
        # A deleted topic's queues need no sync any more; a full disk gets room again. Until then a
        # restart reads more of the log.
        log.warning("no checkpoint for now: %s", error)
        self._take_syncs_back()
        self._index.save_again(self._index_saves)
        self._index_saves = []
        return True

    def _take_syncs_back(self) -> None:
        """Have the next checkpoint sync what this one will not."""
        for queue, since_bytes in self._queue_syncs:
            if self._queues.get(queue.topic, queue.queue_id) is queue:
                self._queues.mark_unsynced(queue, since_bytes)
        self._queue_syncs = []

    def _times(self) -> CheckpointTimes:
        return CheckpointTimes(
            physic_ms=self._commit_log.last_store_timestamp_ms,
            logics_ms=self._dispatch.last_store_timestamp_ms,
            index_ms=self._index.end_timestamp_ms,
            master_flushed_offset=self._flushed_offset(),
            confirm_physical_offset=self._dispatch.dispatched_offset,
        )

    def save_at_the_end(self) -> None:
        """Write, sync and save everything now; the log is durable, and nothing more is stored.

        Raises:
            OSError: the next start reads the log from the last checkpoint on.
        """
        self.forget_noted()
        self._queue_syncs = self._queues.write()
        progress = self._note()
        sync_queues(self._disk, self._paths.consume_queue, self._queue_syncs)
        for save in self._index_saves:
            save()
        if self._disk.exists(self._paths.index):
            self._disk.fsync_dir(self._paths.index)
        progress.clean = True
        self._save(progress, self._deletion_job())
