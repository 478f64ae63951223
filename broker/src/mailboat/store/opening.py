"""Opening a store directory: which files to trust, what to rebuild, where the log ends.

Source: apache/rocketmq store/DefaultMessageStore.java (load, recover).
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

from mailboat.config import MessageStoreConfig
from mailboat.disk import Disk, read_file, replace_file, sync
from mailboat.errors import DamagedStoreError
from mailboat.model.record import RecordParts
from mailboat.store.checkpoint import (
    FlushedMark,
    Progress,
    open_flushed_mark,
    read_progress,
)
from mailboat.store.commit_log import CommitLog
from mailboat.store.deleted_topics import DeletedTopics
from mailboat.store.dispatch import Dispatch
from mailboat.store.index_service import IndexService
from mailboat.store.layout import StorePaths
from mailboat.store.queue_table import QueueTable
from mailboat.store.recovery import RecoveryReport, Scanner, cut_log, quarantine
from mailboat.store.segment import Segment, open_segments

log = logging.getLogger(__name__)

Release = Callable[[], None]


@dataclass(slots=True)
class Opened:
    """A recovered directory."""

    mark: FlushedMark
    report: RecoveryReport
    saved_offset: int
    """How far the saved progress goes; 0 when there is none."""


def was_used_by_another_broker(disk: Disk, paths: StorePaths) -> bool:
    """Tell whether RocketMQ had the directory last: then our own files say nothing about it.

    RocketMQ writes `lock` into the lock file, mailboat its own name. The text is not synced: where
    a power cut took it, nobody else was there.
    """
    return disk.exists(paths.lock) and read_file(disk, paths.lock).startswith(b"lock")


def recover(
    *,
    disk: Disk,
    paths: StorePaths,
    config: MessageStoreConfig,
    commit_log: CommitLog,
    queues: QueueTable,
    index: IndexService,
    dispatch: Dispatch,
    deleted: DeletedTopics,
    is_foreign: bool,
) -> Opened:
    """Bring log, queues and index into agreement and leave the log's end durable.

    Raises:
        DamagedStoreError: the directory is not a store, or not with these settings.
        OSError: the file system refuses; the call may be repeated from a new start.
    """
    if is_foreign:
        # After a crash the lock file will say that it was us: then they must not be believed.
        _forget(disk, paths.own, (paths.progress, paths.flushed, paths.deleted_topics))
    deleted.load()
    commit_log.segments = open_segments(disk, paths.commit_log, config.mapped_file_size_commit_log)
    mark = open_flushed_mark(disk, paths.flushed)
    progress = read_progress(disk, paths.progress)
    _check_log_is_there(disk, paths, commit_log, progress)
    is_clean = progress is not None and progress.clean and not disk.exists(paths.abort)
    start = _load_queues(disk, paths, commit_log, queues, progress, mark.flushed_offset)
    dispatch.dispatched_offset = start
    if config.message_index_enable:
        _load_index(commit_log, index, dispatch, progress, is_clean=is_clean)
    trusted_mark = None if mark.is_new else mark.flushed_offset
    scanner = Scanner(commit_log, trusted_mark, check_crc=config.check_crc_on_recover)
    report = scanner.scan(start, dispatch.dispatch_record)
    quarantine(disk, paths.quarantine, commit_log, report.damaged)
    queues.restore_ends(progress.empty_queues if progress is not None else [])
    if report.damaged:
        queues.fill_stored()
    cut_log(disk, commit_log, paths.commit_log, report, force=not is_clean)
    for segment in commit_log.segments:
        # What a crash left in the page cache only must be durable before anybody relies on it.
        if not is_clean and segment.start < report.end:
            if not mark.is_new:
                _write_again(segment, mark.flushed_offset, report.end)
            sync(disk, segment.fd)
    deleted.cut(commit_log.end)
    mark.advance(commit_log.end)
    mark.sync()
    dispatch.dispatched_offset = commit_log.end
    commit_log.last_store_timestamp_ms = max(
        report.last_store_timestamp_ms,
        progress.last_store_timestamp_ms if progress is not None else 0,
    )
    queues.raise_min(commit_log.start)
    index.drop_below(commit_log.start)
    for queue in queues.by_key.values():
        queue.next_offset = queue.max_offset
    if report.records or report.torn_bytes or report.damaged:
        log.info(
            "recovered records=%d from=%d end=%d tail_bytes_cut=%d damaged_ranges=%d",
            report.records,
            start,
            report.end,
            report.torn_bytes,
            len(report.damaged),
        )
    return Opened(mark, report, progress.commit_log_offset if progress is not None else 0)


def _write_again(segment: Segment, start: int, end: int) -> None:
    """Write what lies between two physical offsets once more, as it is read.

    After a failed sync the kernel shows bytes that it will never write; as new bytes it will.
    """
    position = max(start, segment.start) - segment.start
    stop = min(end, segment.end) - segment.start
    if position < stop:
        segment.write(bytes(segment.view[position:stop]), position)


def _check_log_is_there(
    disk: Disk, paths: StorePaths, commit_log: CommitLog, progress: Progress | None
) -> None:
    end = commit_log.segments[-1].end if commit_log.segments else 0
    if progress is not None and progress.commit_log_offset > end:
        raise DamagedStoreError(
            f"{paths.commit_log} ends at {end}, but {progress.commit_log_offset} bytes were "
            f"written; restore the missing segments, or remove {paths.progress} to go on "
            "without them"
        )


def _forget(disk: Disk, directory: str, files: tuple[str, ...]) -> None:
    for path in files:
        if disk.exists(path):
            disk.unlink(path)
    disk.fsync_dir(directory)


def _load_queues(
    disk: Disk,
    paths: StorePaths,
    commit_log: CommitLog,
    queues: QueueTable,
    progress: Progress | None,
    flushed_offset: int,
) -> int:
    """Load the queues as far as they are trusted; return where the scan begins."""
    log_start = commit_log.segments[0].start if commit_log.segments else 0
    commit_log.end = log_start
    if progress is not None and progress.commit_log_offset >= log_start:
        offset = progress.commit_log_offset
        is_intact = queues.load(offset, flushed_offset)
        if is_intact:
            # A crash may have come before or after what lies below was unlinked.
            queues.raise_min(progress.commit_log_start)
        if (
            is_intact
            and queues.total_units() == progress.queue_units
            and queues.first_bytes() == progress.queue_first_bytes
        ):
            commit_log.end = offset
            return offset
        log.warning("the queues do not fit the CommitLog: rebuilding them from it")
    # The old claim goes first: a crash may leave holes in what is built from here on.
    _forget(disk, paths.own, (paths.progress,))
    queues.clear()
    return log_start


def _load_index(
    commit_log: CommitLog,
    index: IndexService,
    dispatch: Dispatch,
    progress: Progress | None,
    *,
    is_clean: bool,
) -> None:
    """Load the index as far as it is trusted, or build it up to where the scan begins."""
    start = dispatch.dispatched_offset
    if progress is not None and progress.commit_log_offset == start:
        if index.load(
            progress.index_file,
            progress.index_entry_counts,
            start,
            log_start=progress.commit_log_start,
            check_slots=not is_clean,
        ):
            return
        log.warning("the index does not fit the CommitLog: rebuilding it from it")
    index.clear()
    if commit_log.start < start:
        index_from(commit_log, dispatch, commit_log.start)


def write_abort(disk: Disk, paths: StorePaths) -> None:
    """Leave the mark that says: a broker runs here, or died."""
    replace_file(disk, paths.abort, str(os.getpid()).encode())


def remove_abort(disk: Disk, paths: StorePaths) -> None:
    """Take the mark away, durably, after a clean stop."""
    disk.unlink(paths.abort)
    disk.fsync_dir(paths.root)


def index_from(commit_log: CommitLog, dispatch: Dispatch, physical_offset: int) -> None:
    """Add the keys that are missing from a physical offset on.

    Raises:
        OSError: the index still stops; the call may be repeated.
    """

    def add(buffer: memoryview, parts: RecordParts) -> None:
        if parts.header.physical_offset < dispatch.dispatched_offset:
            dispatch.index_gap = parts.header.physical_offset
            dispatch.index_record(buffer, parts)

    Scanner(commit_log, commit_log.end, check_crc=False).scan(physical_offset, add)
    dispatch.index_gap = None
