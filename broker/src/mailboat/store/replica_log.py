"""Taking over the log of another replica: the same bytes at the same places.

What arrives is checked record by record before any of it is written, so that damage on the way or
on the other disk does not come here. Derived files follow once the records are released.
"""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from mailboat.disk import Disk, write_and_rename
from mailboat.model import compiled
from mailboat.model.record import (
    BLANK_MAGIC,
    FILLER,
    FILLER_BYTES,
    FIXED_BYTES,
    MAGIC_V1,
    MAGIC_V2,
)
from mailboat.store.commit_log import CommitLog
from mailboat.store.deleted_topics import DeletedTopics
from mailboat.store.dispatch import Dispatch
from mailboat.store.file_pool import FilePool
from mailboat.store.flush import Flusher
from mailboat.store.segment import Segment
from mailboat.store.segment_reader import read_record

_COPY_BYTES: Final = 1 << 20
# Size and magic of a record, and of a filler.
_MAGIC: Final = struct.Struct(">iI")
# What both magics of records begin with, and how far from a record's start.
_MAGIC_PREFIX: Final = MAGIC_V1.to_bytes(4, "big")[:3]
_MAGIC_AT: Final = 4
# Size, magic, the record's own physical offset, and as much as it takes to have its times.
_HEAD: Final = struct.Struct(">iI20xq40x")


class LogPiece(NamedTuple):
    """Whole records of one segment, or the head of the filler that ends it."""

    records: bytes
    end: int
    """The physical offset where the log goes on."""


class ReplicaLog:
    """What replication does to a store."""

    def __init__(
        self, disk: Disk, commit_log: CommitLog, dispatch: Dispatch, deleted: DeletedTopics
    ) -> None:
        """Work on one store, which gives its `flusher` once it is open."""
        self._disk = disk
        self._commit_log = commit_log
        self._dispatch = dispatch
        self._deleted = deleted
        self.flusher: Flusher | None = None
        self.needed_from: Callable[[], int] = lambda: commit_log.end
        """Says from which physical offset on other replicas may lack the log: it is not deleted."""

        self.confirmed_offset = 0
        """The physical offset below which every replica that counts has the log, and what it holds
        may be shown; much of it is shown in steps."""

        self.confirmed_end = 0
        """How far the former will come."""

    def show_below(self, confirmed_offset: int) -> None:
        """Hold back what the log has at or above a physical offset; before the store is opened."""
        self.confirmed_offset = self._dispatch.shown_end = confirmed_offset

    def begin_at(self, physical_offset: int) -> None:
        """Let an empty log begin where another replica's does.

        Raises:
            OSError: it does not yet; the call may be repeated.
        """
        assert self.flusher is not None
        self._commit_log.begin_at(physical_offset)
        self.flusher.begin_at(physical_offset)
        self._dispatch.dispatched_offset = physical_offset

    def follow(self, data: bytes, physical_offset: int) -> None:
        """Append what another replica has at a physical offset, the end of this log.

        It is whole records of one segment, or the head of the filler that ends it.

        Raises:
            ValueError: it is something else, or damaged; nothing of it is in the log.
            OSError: it cannot be written; nothing of it is in the log.
        """
        log = self._commit_log
        if physical_offset != log.end:
            raise ValueError(f"bytes at {physical_offset} for a log that ends at {log.end}")
        segment_end = log.segment_end
        end = filler_end(data, physical_offset, segment_end)
        if end is not None:
            log.write_followed(data, end, 0)
            return
        end = physical_offset + len(data)
        if not data or end + FILLER_BYTES > segment_end:
            raise ValueError(
                f"records from {physical_offset} to {end} in a segment that ends at {segment_end}"
            )
        entries = self._dispatch.check_followed(data, physical_offset)
        log.write_followed(data, end, max(entry.derived.newest_ms for entry in entries))
        self._dispatch.hold_followed(entries)

    def deletions(self) -> dict[str, int]:
        """Return where the log ended when topics were deleted whose records may still be there."""
        return self._deleted.ends()

    def expect_deletion(self, topic: str, log_end: int) -> bool:
        """Give no queue to records of a topic below `log_end` from now on; tell whether its queues
        have to be deleted, with `MessageStore.delete_topic_steps`."""
        return log_end > self.start and self._deleted.expect(topic, log_end)

    @property
    def start(self) -> int:
        """The physical offset of the oldest segment."""
        return self._commit_log.start

    @property
    def end(self) -> int:
        """The physical offset behind the last record."""
        return self._commit_log.end

    @property
    def is_empty(self) -> bool:
        """Whether the log has nothing, wherever it is to begin: it may begin anywhere else."""
        return self.start == self.end

    def read(self, physical_offset: int, most_bytes: int) -> LogPiece:
        """Return what the log has from a physical offset on: nothing at its end, or some records.

        Raises:
            ValueError: there is no record.
            OSError: it cannot be read now.
        """
        segment = self._find(physical_offset)
        if segment is None:
            return LogPiece(b"", physical_offset)
        return read_piece(segment, physical_offset, self.end, most_bytes)

    def read_job(self, physical_offset: int, most_bytes: int) -> Callable[[], LogPiece]:
        """Return a call that does what `read` does, on any thread.

        Raises:
            ValueError: the log has nothing there.
        """
        disk, end, segment = self._disk, self.end, self._find(physical_offset)
        if segment is None:
            return lambda: LogPiece(b"", physical_offset)

        def read() -> LogPiece:
            with opened(disk, segment) as file:
                return read_piece(file, physical_offset, end, most_bytes)

        return read

    def read_good_job(
        self, physical_offset: int, most_bytes: int, end: int | None = None
    ) -> Callable[[], LogPiece]:
        """Return a call that does what `read` does, on any thread, and gives good records only.

        Those from the first damaged one on are left out; the call raises ValueError where that is
        the first of all. With `end` the log is taken to end there.

        Raises:
            ValueError: the log has nothing there.
        """
        log_end = self.end if end is None else min(end, self.end)
        disk, segment = self._disk, self._find(physical_offset)
        if segment is None or physical_offset >= log_end:
            return lambda: LogPiece(b"", physical_offset)

        def read() -> LogPiece:
            with opened(disk, segment) as file:
                return _read_good(file, physical_offset, log_end, most_bytes)

        return read

    def read_good(self, physical_offset: int, most_bytes: int, end: int) -> LogPiece:
        """Return what `read_good_job` gives, for what has just been written.

        Raises:
            ValueError: there is no good record.
            OSError: it cannot be read now.
        """
        segment = self._find(physical_offset)
        if segment is None or physical_offset >= end:
            return LogPiece(b"", physical_offset)
        return _read_good(segment, physical_offset, end, most_bytes)

    def record_start_job(self, physical_offset: int) -> Callable[[], int]:
        """Return a call that finds where the record, or the filler, begins that has the byte at a
        physical offset; on any thread.

        It raises ValueError where the records before cannot be told apart, OSError if they cannot
        be read now.

        Raises:
            ValueError: the log has nothing there.
        """
        disk, end, segment = self._disk, self.end, self._find(physical_offset)
        if segment is None:
            return lambda: physical_offset

        def find() -> int:
            with opened(disk, segment) as file:
                try:
                    _read_good(file, physical_offset, end, _MAGIC.size)
                except ValueError:
                    return _record_start(file, physical_offset, end)
                return physical_offset

        return find

    def read_bytes(self, physical_offset: int, size: int) -> bytes:
        """Return so many bytes of one segment, whatever begins there.

        Raises:
            ValueError: the log does not have them.
            OSError: they cannot be read now.
        """
        segment = self._find(physical_offset)
        if segment is None or not size:
            return b""
        return segment.read(physical_offset - segment.start, size)

    def read_bytes_job(self, physical_offset: int, size: int) -> Callable[[], bytes]:
        """Return a call that does what `read_bytes` does, on any thread.

        Raises:
            ValueError: the log does not have them.
        """
        disk, segment = self._disk, self._find(physical_offset)
        if segment is None:
            return bytes

        def read() -> bytes:
            with opened(disk, segment) as file:
                return file.read(physical_offset - file.start, size)

        return read

    def _find(self, physical_offset: int) -> Segment | None:
        log = self._commit_log
        if physical_offset == log.end:
            return None
        segment = log.find(physical_offset)
        if segment is None or physical_offset > log.end:
            raise ValueError(f"the log has nothing at {physical_offset}, it begins at {log.start}")
        return segment

    def tail_job(self, size_bytes: int) -> Callable[[], tuple[int, bytes]]:
        """Return a call that reads the end of the log, on any thread: by which it can be told.

        That is `size_bytes` of the last segment or all of it, and more where no record begins in
        them, as in the filler behind a large one: a log is told by the heads of records, which have
        times. The call returns the physical offset where the bytes begin, and them.

        Raises:
            ValueError: the log is empty.
        """
        disk, end, segment = self._disk, self.end, self._find(self.end - 1)
        assert segment is not None

        def read() -> tuple[int, bytes]:
            at, data = end - segment.start, b""
            with opened(disk, segment) as file:
                while True:
                    begin = max(at - size_bytes, 0)
                    data = file.read(begin, at - begin) + data
                    at = begin
                    if not at or _has_record(data, segment.start + at):
                        return segment.start + at, data

        return read

    def keep_aside(self, physical_offset: int, directory: str) -> None:
        """Copy what lies at and above a physical offset into files there; on any thread.

        Raises:
            OSError: the copy is not whole.
        """
        end = self.end
        for segment in list(self._commit_log.segments):
            begin = max(segment.start, physical_offset)
            stop = min(segment.end, end)
            if begin < stop:
                self._disk.make_dirs(directory)
                path = f"{directory}/{begin:020d}-{stop - begin}"
                write_and_rename(self._disk, path, _copies(self._disk, segment, begin, stop))
                self._disk.fsync_dir(directory)

    def cut(self, physical_offset: int) -> None:
        """Take off the end of the log what nobody has been shown.

        Raises:
            OSError: the store must take no messages before it is opened again.
        """
        assert self.flusher is not None
        held_end = self._dispatch.forget_above(physical_offset)
        self.flusher.cut(physical_offset)
        self._commit_log.cut(physical_offset)
        self._deleted.cut(physical_offset)
        self._hold_again(held_end)

    def _hold_again(self, physical_offset: int) -> None:
        """Hold back what the log has from a physical offset on."""
        while physical_offset < self.end:
            segment = self._find(physical_offset)
            assert segment is not None
            piece = self.read(physical_offset, _COPY_BYTES)
            if filler_end(piece.records, physical_offset, segment.end) is None:
                entries = self._dispatch.check_followed(piece.records, physical_offset)
                self._dispatch.hold_followed(entries)
            physical_offset = piece.end


@contextmanager
def opened(disk: Disk, segment: Segment) -> Iterator[Segment]:
    """Open a segment's file anew: for a thread of its own."""
    pool = FilePool(disk, 1)
    try:
        yield segment.opened_in(pool)
    finally:
        pool.close()


def _copies(disk: Disk, segment: Segment, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes between two physical offsets of a segment, each piece with its place."""
    with opened(disk, segment) as file:
        for start in range(begin, end, _COPY_BYTES):
            size = min(_COPY_BYTES, end - start)
            yield start - begin, file.read(start - file.start, size)


def read_piece(segment: Segment, physical_offset: int, log_end: int, most_bytes: int) -> LogPiece:
    """Read whole records of a segment.

    Raises:
        ValueError: there is no record.
        OSError: it cannot be read now.
    """
    position = physical_offset - segment.start
    rest = min(log_end, segment.end) - physical_offset
    data = segment.read(position, min(rest, max(most_bytes, _MAGIC.size)))
    # Records end where the log does; where the segment does, a filler may be among them.
    is_to_end = physical_offset + len(data) == log_end < segment.end
    size = len(data) if is_to_end and _begins_record(data) else _whole_records(data)
    if not size:
        first, magic = _MAGIC.unpack_from(data) if len(data) >= _MAGIC.size else (0, 0)
        if magic == BLANK_MAGIC:
            return LogPiece(data[:FILLER_BYTES], segment.end)
        if magic not in (MAGIC_V1, MAGIC_V2) or not len(data) < first <= rest:
            raise ValueError(f"no record begins at {physical_offset} in {segment.path}")
        data, size = segment.read(position, first), first
    return LogPiece(data[:size], physical_offset + size)


def _read_good(segment: Segment, physical_offset: int, log_end: int, most_bytes: int) -> LogPiece:
    """Read whole records of a segment up to the first damaged one.

    Raises:
        ValueError: that is the first of all.
        OSError: they cannot be read now.
    """
    piece = read_piece(segment, physical_offset, log_end, most_bytes)
    return _good_piece(piece, physical_offset, segment)


def _record_start(segment: Segment, physical_offset: int, log_end: int) -> int:
    """Find the record that has a byte by the sizes of those before, from the segment's start on.

    Raises:
        ValueError: one of them is none.
        OSError: they cannot be read now.
    """
    at = segment.start
    while True:
        piece = read_piece(segment, at, log_end, _COPY_BYTES)
        if piece.end <= physical_offset:
            at = piece.end
            continue
        if filler_end(piece.records, at, segment.end) is not None:
            return at
        begin = at
        while True:
            size, _ = _MAGIC.unpack_from(piece.records, at - begin)
            if at + size > physical_offset:
                return at
            at += size


def _good_piece(piece: LogPiece, physical_offset: int, segment: Segment) -> LogPiece:
    """Return the good records before the first damaged one.

    Raises:
        ValueError: there is none.
    """
    records = piece.records
    if filler_end(records, physical_offset, segment.end) is not None:
        return piece
    view = memoryview(records)
    at = blocks_from = 0
    while at < len(records):
        if compiled.scan_records is not None and at >= blocks_from:
            size, count, *_ = compiled.scan_records(records, at, physical_offset + at, True, 0)
            blocks_from = at + size
            if count:
                at = blocks_from
                continue
        try:
            parts = read_record(view, at, physical_offset + at, check_crc=True)
        except ValueError as error:
            if not at:
                text = f"the record at {physical_offset} in {segment.path} is damaged: {error}"
                raise ValueError(text) from error
            return LogPiece(records[:at], physical_offset + at)
        at += parts.header.size_bytes
    return piece


def _begins_record(data: bytes) -> bool:
    return len(data) >= FIXED_BYTES and _MAGIC.unpack_from(data)[1] in (MAGIC_V1, MAGIC_V2)


def _has_record(data: bytes, physical_offset: int) -> bool:
    """Tell whether a record begins in bytes of the log, with all of its head."""
    found = data.find(_MAGIC_PREFIX, _MAGIC_AT)
    while 0 <= found <= len(data) - _HEAD.size + _MAGIC_AT:
        at = found - _MAGIC_AT
        size, magic, own_offset = _HEAD.unpack_from(data, at)
        is_here = own_offset == physical_offset + at and size >= FIXED_BYTES
        if is_here and magic in (MAGIC_V1, MAGIC_V2):
            return True
        found = data.find(_MAGIC_PREFIX, found + 1)
    return False


def _whole_records(data: bytes) -> int:
    """Return how many bytes of some are whole records, from the first one on."""
    at, end = 0, len(data) - _MAGIC.size
    while at <= end:
        size, magic = _MAGIC.unpack_from(data, at)
        if magic not in (MAGIC_V1, MAGIC_V2) or size < FIXED_BYTES or at + size > len(data):
            break
        at += size
    return at


def filler_end(data: bytes, physical_offset: int, segment_end: int) -> int | None:
    """Return where the filler ends whose head this is, None if it is none."""
    if len(data) != FILLER_BYTES:
        return None
    remaining, magic = FILLER.unpack(data)
    is_filler = magic == BLANK_MAGIC and physical_offset + remaining == segment_end
    return segment_end if is_filler else None
