"""Unlinks ConsumeQueue and index files that hold nothing of the CommitLog any more.

They may go once a checkpoint without them is saved. One after the other of a queue, so that a crash
leaves no hole between its files: each is gone for good, which only a sync of its folder tells,
before the next one goes. There may be a file in each of a hundred thousand queues, so the store's
thread unlinks a few in each slice, and the blocking runner syncs their folders. Not the other way
round: only the store's thread knows whether a name has become that of a new queue's file.
"""

import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from mailboat.disk import Disk
from mailboat.store.index_service import IndexService
from mailboat.store.message_inner import BlockingRunner, run_inline
from mailboat.store.queue_table import QueueDrop, QueueTable, UnlinkedFile

log = logging.getLogger(__name__)

_SLICE_S: Final = 0.003
# Folders that are synced with one call of the runner.
_FOLDERS: Final = 64


class DerivedRemoval:
    """The dropped files of one store."""

    def __init__(
        self, disk: Disk, queues: QueueTable, index: IndexService, run_files: BlockingRunner
    ) -> None:
        """Remove nothing before `begin`."""
        self._noted: tuple[list[QueueDrop], list[str]] = [], []
        self._disk = disk
        self._queues = queues
        self._index = index
        self._run_files = run_files
        self._queue_drops: deque[QueueDrop] = deque()
        self._index_files: list[str] = []
        self._is_running = False

    @property
    def has_files(self) -> bool:
        """Files wait for a checkpoint to be unlinked."""
        return bool(self._queues.has_dropped or self._index.dropped)

    def note(self) -> None:
        """Note the files that may go once a checkpoint without them, made now, is saved.

        The sums that a checkpoint saves must be those of the files that a start finds, or all of
        them are built anew from the log.
        """
        self._noted = self._queues.dropped(), list(self._index.dropped)

    def begin(self) -> None:
        """Remove what was noted from now on; what stays is tried after the next checkpoint."""
        self._take_noted()
        self.go_on()

    def go_on(self) -> None:
        """Remove a few files, unless the last ones are still under way."""
        if not self._is_running and (self._queue_drops or self._index_files):
            self._step(self._run_files)

    def finish(self) -> None:
        """Remove what was noted at once; what stays is there for the next start."""
        self._take_noted()
        while self._queue_drops or self._index_files:
            self._step(run_inline)

    def _take_noted(self) -> None:
        queue_drops, self._index_files = self._noted
        self._queue_drops = deque(queue_drops)

    def _step(self, run: BlockingRunner) -> None:
        unlinked = self._queues.unlink_some(self._queue_drops, _FOLDERS, _SLICE_S)
        index_files, self._index_files = self._index_files, []
        if unlinked or index_files:
            self._is_running = True
            run(self._job(unlinked, index_files), self._done)

    def _job(
        self, unlinked: list[UnlinkedFile], index_files: list[str]
    ) -> Callable[[], tuple[list[UnlinkedFile], list[str]]]:
        disk = self._disk

        def remove() -> tuple[list[UnlinkedFile], list[str]]:
            # Names of index files do not come again.
            for path in index_files:
                with contextlib.suppress(FileNotFoundError):
                    disk.unlink(path)
            for file in unlinked:
                # A topic that was deleted meanwhile has no folder.
                with contextlib.suppress(FileNotFoundError):
                    disk.fsync_dir(file.queue.directory)
            return unlinked, index_files

        return remove

    def _done(self, removed: Any, error: BaseException | None) -> None:
        self._is_running = False
        if isinstance(error, OSError):
            log.warning("derived files of removed segments are still there: %s", error)
        elif error is not None:
            raise error
        else:
            unlinked, index_files = removed
            self._index.forget_dropped(index_files)
            self._queue_drops += self._queues.forget_unlinked(unlinked)
