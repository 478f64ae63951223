"""Making the CommitLog durable: group commit, with every waiter on one sync.

The store's thread makes a `FlushJob` and gets it back when it is done; the job itself only syncs
files and may run on another thread. A job covers everything written before it was made, so the
replies of any number of senders wait for one `fdatasync`.

A failed sync ends the store: the kernel may have dropped the pages and call the next sync a
success.

Source: apache/rocketmq store/CommitLog.java (GroupCommitService, FlushRealTimeService).
"""

import logging
from typing import Final

from mailboat.disk import Disk, sync
from mailboat.store.checkpoint import FlushedMark
from mailboat.store.commit_log import CommitLog
from mailboat.store.segment import Segment

log = logging.getLogger(__name__)

# The mark is only needed to tell corruption from a torn tail; syncing it seldom keeps SYNC_FLUSH at
# one sync a group.
_MARK_SYNC_S: Final = 1.0


class FlushJob:
    """One sync of the CommitLog up to `target`, a physical offset."""

    __slots__ = ("_descriptors", "_disk", "_mark", "_sync_mark", "segments", "target")

    def __init__(
        self,
        disk: Disk,
        mark: FlushedMark,
        segments: list[Segment],
        target: int,
        *,
        sync_mark: bool,
    ) -> None:
        """Cover `segments`, which keep their descriptors until the job comes back."""
        self._disk = disk
        self._mark = mark
        self._descriptors = [segment.keep_open() for segment in segments]
        self._sync_mark = sync_mark
        self.segments = segments
        self.target = target

    def run(self) -> None:
        """Sync; may be called on another thread, once.

        Raises:
            OSError: nothing beyond the last finished job is known to be durable.
        """
        for fd in self._descriptors:
            sync(self._disk, fd)
        try:
            self._mark.advance(self.target)
            if self._sync_mark:
                self._mark.sync()
        except OSError as exc:
            # The records are durable. A mark that lags is allowed; the next flush moves it on.
            log.warning("the flushed mark stays behind target=%d: %s", self.target, exc)


class Flusher:
    """Knows how far the CommitLog is durable."""

    def __init__(self, disk: Disk, commit_log: CommitLog, mark: FlushedMark) -> None:
        """Start at the log's present end, which recovery has made durable."""
        self._disk = disk
        self._commit_log = commit_log
        self._mark = mark
        self._job: FlushJob | None = None
        self._mark_synced_s = disk.monotonic()
        self._oldest_unflushed_s: float | None = None
        self.flushed_offset = commit_log.end

    @property
    def is_running(self) -> bool:
        """A job has been made and has not come back."""
        return self._job is not None

    @property
    def unflushed_bytes(self) -> int:
        """Bytes written but not known to be durable."""
        return self._commit_log.end - self.flushed_offset

    @property
    def unflushed_age_s(self) -> float:
        """Seconds since the oldest of the unflushed bytes was written, 0 when there are none."""
        if self._oldest_unflushed_s is None:
            return 0.0
        return self._disk.monotonic() - self._oldest_unflushed_s

    def note_write(self) -> None:
        """Note that bytes were written just now."""
        if self._oldest_unflushed_s is None:
            self._oldest_unflushed_s = self._disk.monotonic()

    def begin_at(self, physical_offset: int) -> None:
        """Follow a log without a record that begins at a physical offset; the mark may lag."""
        assert self._job is None
        self.flushed_offset = physical_offset

    def cut(self, physical_offset: int) -> None:
        """Follow a log that ends at a physical offset; no job is running.

        Raises:
            OSError: the mark may be beyond the end.
        """
        assert self._job is None
        self.flushed_offset = physical_offset
        self._mark.advance(physical_offset)
        self._mark.sync()

    def begin(self) -> FlushJob | None:
        """Make a job, None when there is nothing to do, one is running, or the store has failed."""
        log = self._commit_log
        if self._job is not None or log.end <= self.flushed_offset or log.failure is not None:
            return None
        now_s = self._disk.monotonic()
        sync_mark = now_s - self._mark_synced_s >= _MARK_SYNC_S
        if sync_mark:
            self._mark_synced_s = now_s
        segments = [
            segment
            for segment in log.segments
            if segment.end > self.flushed_offset and segment.start < log.end
        ]
        self._job = FlushJob(self._disk, self._mark, segments, log.end, sync_mark=sync_mark)
        self._oldest_unflushed_s = None
        return self._job

    def finish(self, job: FlushJob, error: BaseException | None) -> None:
        """Take a job back.

        Raises:
            BaseException: the job failed with something other than an OSError.
        """
        assert job is self._job
        self._job = None
        if error is None:
            self.flushed_offset = job.target
            for segment in job.segments:
                if segment.end <= job.target:
                    segment.release()
            return
        if not isinstance(error, OSError):
            raise error
        self._commit_log.poison(
            f"a flush of the CommitLog failed ({error}); restart the broker once the disk is well"
        )
