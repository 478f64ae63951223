"""Opening a store directory: which files to trust, what to rebuild, where the log ends.

Source: apache/rocketmq store/DefaultMessageStore.java (load, recover).
"""

import contextlib
import logging
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from mailboat.config import MessageStoreConfig
from mailboat.disk import (
    NO_ROOM,
    Disk,
    UnreadableError,
    read_file,
    replace_file,
    sync,
    write_fully,
)
from mailboat.errors import DamagedStoreError
from mailboat.model.record import RecordParts
from mailboat.store.checkpoint import (
    FlushedMark,
    Progress,
    open_flushed_mark,
    read_progress,
    write_progress,
)
from mailboat.store.commit_log import CommitLog
from mailboat.store.deleted_topics import DeletedTopics
from mailboat.store.dispatch import Dispatch
from mailboat.store.index_service import IndexService
from mailboat.store.layout import StorePaths
from mailboat.store.queue_table import QueueTable
from mailboat.store.recovery import (
    RecoveryReport,
    Scanner,
    ScanOverError,
    cut_log,
    quarantine,
)
from mailboat.store.segment import Segment, pages
from mailboat.store.segment_reader import find_record_at

log = logging.getLogger(__name__)

Release = Callable[[], None]
_COPY_BYTES: Final = 1 << 20
# Reading the log for the index has so much of the event loop at a time: sends wait for its end.
_GAP_SLICE_S: Final = 0.01

_EVERYWHERE: Final = 1 << 62


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
    a power cut took it, nobody else was there; where it cannot be read, somebody may have been.
    """
    if not disk.exists(paths.lock):
        return False
    try:
        return read_file(disk, paths.lock).startswith(b"lock")
    except UnreadableError:
        return True


def is_page_cache_intact(disk: Disk, paths: StorePaths) -> bool:
    """Tell whether everything that was written here is there, synced or not.

    So it is when a process died and nothing else: the kernel that it wrote through still runs. Each
    start leaves the name of its kernel's run in the abort file. Another name is another run or
    another machine; no name, or no such file, proves nothing.
    """
    boot_id = disk.boot_id().encode()
    if not boot_id or not disk.exists(paths.abort):
        return False
    try:
        return read_file(disk, paths.abort).split()[1:] == [boot_id]
    except UnreadableError:
        return False


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
    rebuild: bool,
) -> Opened:
    """Bring log, queues and index into agreement and leave the log's end durable.

    With `rebuild` the derived files are built anew, however good they look.

    Raises:
        DamagedStoreError: the directory is not a store, or not with these settings.
        OSError: the file system refuses; the call may be repeated from a new start.
    """
    if is_foreign:
        # After a crash the lock file will say that it was us: then they must not be believed.
        _forget(disk, paths.own, (paths.progress, paths.flushed, paths.deleted_topics))
    deleted.load()
    commit_log.load_segments()
    mark = open_flushed_mark(disk, paths.flushed)
    progress = read_progress(disk, paths.progress)
    _check_log_is_there(disk, paths, commit_log, progress)
    is_clean = progress is not None and progress.clean and not disk.exists(paths.abort)
    is_intact = is_page_cache_intact(disk, paths)
    given_out = _EVERYWHERE if is_intact else mark.flushed_offset
    _note_ends(queues, progress or Progress(), deleted)
    trusted = None if rebuild else progress
    if trusted is not None and not _load_queues(queues, trusted, commit_log.start, given_out):
        trusted = None
    start = commit_log.start if trusted is None else trusted.commit_log_offset
    if trusted is None:
        queues.note_stored_ends(max(start, mark.flushed_offset), given_out)
        _begin_rebuild(disk, paths, commit_log, queues, index, progress, given_out=given_out)
    commit_log.end = dispatch.dispatched_offset = start
    if config.message_index_enable:
        _load_index(disk, commit_log, index, dispatch, trusted, is_clean=is_clean)
    scanner = Scanner(
        commit_log,
        None if mark.is_new else mark.flushed_offset,
        check_crc=config.check_crc_on_recover,
        is_page_cache_intact=is_intact,
    )
    report = scanner.scan(start, dispatch.dispatch_record, dispatch.on_block)
    quarantine(disk, paths.quarantine, commit_log, report.damaged)
    queues.restore_ends()
    queues.settle_given_out(is_damaged=bool(report.damaged))
    cut_log(commit_log, report, force=not is_clean)
    if not is_clean:
        _make_durable(disk, commit_log, mark, report.end)
    deleted.cut(commit_log.end)
    mark.advance(commit_log.end)
    mark.sync()
    if not dispatch.is_holding:
        dispatch.dispatched_offset = commit_log.end
    commit_log.last_store_timestamp_ms = max(
        report.last_store_timestamp_ms,
        progress.last_store_timestamp_ms if progress is not None else 0,
    )
    queues.raise_min(commit_log.start)
    index.drop_below(commit_log.start)
    queues.begin_appending()
    _tell(report, start)
    return Opened(mark, report, start if trusted is not None else 0)


def _tell(report: RecoveryReport, start: int) -> None:
    if report.records or report.torn_bytes or report.damaged:
        log.info(
            "recovered records=%d from=%d end=%d tail_bytes_cut=%d damaged_ranges=%d",
            report.records,
            start,
            report.end,
            report.torn_bytes,
            len(report.damaged),
        )


def _make_durable(disk: Disk, commit_log: CommitLog, mark: FlushedMark, end: int) -> None:
    """Sync what a crash may have left in the page cache only, before anybody relies on it."""
    for segment in commit_log.segments:
        if segment.start < end:
            if not mark.is_new:
                _write_again(segment, mark.flushed_offset, end)
            sync(disk, segment.fd)
            segment.release()


def reserve_last(disk: Disk, commit_log: CommitLog) -> None:
    """Set the room of the last segment aside where it is not: retention counts it as free.

    RocketMQ makes files with holes, so do many copies, and so does a full disk.

    Raises:
        OSError: the file or the volume cannot be looked at.
    """
    if not commit_log.segments or not commit_log.segments[-1].is_reserved:
        return  # Where a cut has just found no room, there is none.
    last = commit_log.segments[-1]
    missing_bytes = last.size_bytes - disk.allocated_bytes(last.path)
    if missing_bytes <= 0:
        return
    last.is_reserved = False
    # Reserving in vain keeps what it got, and a checkpoint would find no room.
    if disk.usage(last.path).available_bytes < missing_bytes:
        return
    try:
        last.reserve()
    except OSError as exc:
        # Sends go on without, and the cleaner tries again.
        log.warning("the room of %s is not set aside yet: %s", last.path, exc)
    else:
        last.is_reserved = True


def _write_again(segment: Segment, start: int, end: int) -> None:
    """Write what lies between two physical offsets once more, as it is read.

    After a failed sync the kernel shows bytes that it will never write; as new bytes it will.
    """
    position = max(start, segment.start) - segment.start
    stop = min(end, segment.end) - segment.start
    while position < stop:
        size = min(_COPY_BYTES, stop - position)
        try:
            segment.write(segment.read(position, size), position)
        except UnreadableError:
            for page, page_end in pages(position, size):
                # Nothing of a page that cannot be read waits to be written.
                with contextlib.suppress(UnreadableError):
                    segment.write(segment.read(page, page_end - page), page)
        position += size


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


def _note_ends(queues: QueueTable, progress: Progress, deleted: DeletedTopics) -> None:
    last = max(progress.commit_log_offset - 1, 0)
    for topic, queue_id, end in progress.empty_queues:
        if not deleted.is_gone(topic, last):
            queues.note_end(topic, queue_id, end)
            # A rebuild that did not get to its checkpoint has removed the files that say so.
            queues.note_given_out(topic, queue_id, end)


def _load_queues(queues: QueueTable, progress: Progress, log_start: int, given_out: int) -> bool:
    """Load the queues as far as the progress goes; tell whether they are what it claims.

    Queue offsets of records below `given_out` have been given out, whatever became of the records.
    """
    if progress.is_rebuilding or progress.commit_log_offset < log_start:
        return False
    is_intact = queues.load(progress.commit_log_offset, given_out)
    if is_intact:
        # A crash may have come before or after what lies below was unlinked.
        queues.raise_min(progress.commit_log_start)
    if (
        is_intact
        and queues.total_units() == progress.queue_units
        and queues.first_bytes() == progress.queue_first_bytes
    ):
        return True
    log.warning("the queues do not fit the CommitLog: rebuilding them from it")
    return False


def _begin_rebuild(
    disk: Disk,
    paths: StorePaths,
    commit_log: CommitLog,
    queues: QueueTable,
    index: IndexService,
    progress: Progress | None,
    *,
    given_out: int,
) -> None:
    """Clear the queues, to be built anew from the log; the ends that are known are kept, durably.

    Queue files and progress know the ends of queues whose every message has expired, the log does
    not.
    """
    before = progress or Progress()
    # The old claim goes first: a crash may leave holes in what is built from here on.
    if queues.known_ends:
        ends = Progress(
            commit_log_offset=before.commit_log_offset,
            last_store_timestamp_ms=before.last_store_timestamp_ms,
            empty_queues=queues.known_ends,
            is_rebuilding=True,
        )
        # Where an earlier start has said so, there may be no room to say it again.
        if ends != before:
            for _ in _make_room(disk, paths, commit_log, queues, index, given_out):
                if _write_ends(disk, paths, ends):
                    break
            else:
                write_progress(disk, paths.progress, ends)
    else:
        _forget(disk, paths.own, (paths.progress,))
    queues.clear()


def _write_ends(disk: Disk, paths: StorePaths, ends: Progress) -> bool:
    """Write the progress; tell whether there was room."""
    try:
        write_progress(disk, paths.progress, ends)
    except OSError as exc:
        if exc.errno not in NO_ROOM:
            raise
        return False
    return True


def _make_room(
    disk: Disk,
    paths: StorePaths,
    commit_log: CommitLog,
    queues: QueueTable,
    index: IndexService,
    given_out: int,
) -> Iterator[None]:
    """Give up, with each step but the first, some of what a rebuild makes anew.

    A start that dies here finds that it must be.
    """
    yield
    index.clear()
    # RocketMQ's checkpoint has a block, says nothing to us, and is written anew.
    if disk.exists(paths.checkpoint):
        disk.unlink(paths.checkpoint)
    yield
    queues.remove_if(given_out, partial(_is_message, commit_log))


def _is_message(
    commit_log: CommitLog, topic: str, queue_id: int, queue_offset: int, physical_offset: int
) -> bool:
    """Tell whether a good record at a place of the log is a message of a queue."""
    segment = commit_log.find(physical_offset)
    if segment is None:
        return False
    found = find_record_at(segment, physical_offset)
    if found is None:
        return False
    view, parts = found
    header = parts.header
    return (
        bytes(view[parts.topic_at : parts.topic_end]) == topic.encode()
        and header.queue_id == queue_id
        and header.queue_offset == queue_offset
    )


def _load_index(
    disk: Disk,
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
        with contextlib.suppress(UnreadableError):
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
        try:
            index_from(disk, commit_log, dispatch, index, commit_log.start)
        except OSError as exc:
            if exc.errno not in NO_ROOM:
                raise
            log.warning("the index waits for room: %s", exc)


def write_abort(disk: Disk, paths: StorePaths) -> None:
    """Leave the mark that says: a broker runs here, or died; and under which run of the kernel.

    Only once recovery is complete and durable: until then it is the word of the process before.
    """
    text = f"{os.getpid()} {disk.boot_id()}".encode()
    try:
        replace_file(disk, paths.abort, text)
    except OSError as exc:
        if exc.errno not in NO_ROOM:
            raise
        # Only a store that is open can remove what has expired.
        _write_abort_in_place(disk, paths, text)


def _write_abort_in_place(disk: Disk, paths: StorePaths, text: bytes) -> None:
    """Leave the mark where no block is free: in the block that it has, or else without a text.

    What is cut short names no run of the kernel, and proves nothing after a crash.
    """
    fd = disk.open(paths.abort, create=not disk.exists(paths.abort))
    try:
        size = disk.size(paths.abort)
        write_fully(disk, fd, text.ljust(size)[:size], 0)
        sync(disk, fd)
    finally:
        disk.close(fd)
    disk.fsync_dir(paths.root)


def remove_abort(disk: Disk, paths: StorePaths) -> None:
    """Take the mark away, durably, after a clean stop."""
    disk.unlink(paths.abort)
    disk.fsync_dir(paths.root)


def index_from(
    disk: Disk,
    commit_log: CommitLog,
    dispatch: Dispatch,
    index: IndexService,
    physical_offset: int,
    slice_s: float = math.inf,
) -> None:
    """Add the keys that are missing from a physical offset on: all of them, or for so many seconds.

    What is missing then is the index's gap.

    Raises:
        OSError: the index still has a gap, if a later one; the call may be repeated.
    """
    index.gap = physical_offset
    until_s = disk.monotonic() + slice_s
    gap_after: int | None = None

    def add(buffer: memoryview, parts: RecordParts) -> None:
        nonlocal gap_after
        header = parts.header
        if header.physical_offset >= dispatch.dispatched_offset:
            return
        dispatch.index_record(buffer, parts)
        end = header.physical_offset + header.size_bytes
        if not index.has_backlog:
            index.gap = end
        if disk.monotonic() >= until_s:
            gap_after = end
            raise ScanOverError

    try:
        with contextlib.suppress(ScanOverError):
            Scanner(commit_log, commit_log.end, check_crc=False).scan(physical_offset, add)
        index.build()
    except OSError:
        index.stop_waiting()
        raise
    index.gap = gap_after


def complete_index(
    disk: Disk,
    commit_log: CommitLog,
    dispatch: Dispatch,
    index: IndexService,
    slice_s: float = math.inf,
) -> None:
    """Fill the index's gap, and index what waits: all of it, or for so many seconds.

    Filling a gap has 10 ms at least; when they are over, it may be there still.

    Raises:
        OSError: the index still has a gap; the call may be repeated.
    """
    if index.gap is not None:
        index_from(disk, commit_log, dispatch, index, index.gap, max(slice_s, _GAP_SLICE_S))
    index.build(slice_s)
