"""Taking over the log of another replica: the same bytes at the same places.

What arrives is checked record by record before any of it is written, so that damage on the way or
on the other disk does not come here. Derived files follow once the records are released.
"""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from mailboat.disk import Disk, write_and_rename
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

_COPY_BYTES: Final = 1 << 20
# Size and magic of a record, and of a filler.
_MAGIC: Final = struct.Struct(">iI")


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
        """The physical offset below which every replica that counts has the log."""

    def show_below(self, confirmed_offset: int) -> None:
        """Hold back what the log has at or above a physical offset; before the store is opened."""
        self.confirmed_offset = self._dispatch.shown_end = confirmed_offset

    def begin_at(self, physical_offset: int) -> None:
        """Let an empty log begin where another replica's does."""
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
        end = _filler_end(data, physical_offset, segment_end)
        if end is not None:
            log.write_followed(data, end, 0)
            return
        end = physical_offset + len(data)
        if not data or end + FILLER_BYTES > segment_end:
            raise ValueError(
                f"records from {physical_offset} to {end} in a segment that ends at {segment_end}"
            )
        entries = self._dispatch.check_followed(data, physical_offset)
        log.write_followed(data, end, max(entry.newest_ms for entry in entries))
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

    def read(self, physical_offset: int, most_bytes: int) -> LogPiece:
        """Return what the log has from a physical offset on: nothing at its end, or some records.

        Raises:
            ValueError: there is no record.
            OSError: it cannot be read now.
        """
        segment = self._find(physical_offset)
        if segment is None:
            return LogPiece(b"", physical_offset)
        return _read_piece(segment, physical_offset, self.end, most_bytes)

    def read_job(self, physical_offset: int, most_bytes: int) -> Callable[[], LogPiece]:
        """Return a call that does what `read` does, on any thread.

        Raises:
            ValueError: the log has nothing there.
        """
        disk, end, segment = self._disk, self.end, self._find(physical_offset)
        if segment is None:
            return lambda: LogPiece(b"", physical_offset)

        def read() -> LogPiece:
            with _opened(disk, segment) as file:
                return _read_piece(file, physical_offset, end, most_bytes)

        return read

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
            with _opened(disk, segment) as file:
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
            if _filler_end(piece.records, physical_offset, segment.end) is None:
                entries = self._dispatch.check_followed(piece.records, physical_offset)
                self._dispatch.hold_followed(entries)
            physical_offset = piece.end


@contextmanager
def _opened(disk: Disk, segment: Segment) -> Iterator[Segment]:
    """Open a segment's file anew: for a thread of its own."""
    pool = FilePool(disk, 1)
    try:
        yield segment.opened_in(pool)
    finally:
        pool.close()


def _copies(disk: Disk, segment: Segment, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes between two physical offsets of a segment, each piece with its place."""
    with _opened(disk, segment) as file:
        for start in range(begin, end, _COPY_BYTES):
            size = min(_COPY_BYTES, end - start)
            yield start - begin, file.read(start - file.start, size)


def _read_piece(segment: Segment, physical_offset: int, log_end: int, most_bytes: int) -> LogPiece:
    """Read whole records of a segment.

    Raises:
        ValueError: there is no record.
        OSError: it cannot be read now.
    """
    position = physical_offset - segment.start
    rest = min(log_end, segment.end) - physical_offset
    data = segment.read(position, min(rest, max(most_bytes, _MAGIC.size)))
    size = _whole_records(data)
    if not size:
        first, magic = _MAGIC.unpack_from(data) if len(data) >= _MAGIC.size else (0, 0)
        if magic == BLANK_MAGIC:
            return LogPiece(data[:FILLER_BYTES], segment.end)
        if magic not in (MAGIC_V1, MAGIC_V2) or not len(data) < first <= rest:
            raise ValueError(f"no record begins at {physical_offset} in {segment.path}")
        data, size = segment.read(position, first), first
    return LogPiece(data[:size], physical_offset + size)


def _whole_records(data: bytes) -> int:
    """Return how many bytes of some are whole records, from the first one on."""
    at, end = 0, len(data) - _MAGIC.size
    while at <= end:
        size, magic = _MAGIC.unpack_from(data, at)
        if magic not in (MAGIC_V1, MAGIC_V2) or size < FIXED_BYTES or at + size > len(data):
            break
        at += size
    return at


def _filler_end(data: bytes, physical_offset: int, segment_end: int) -> int | None:
    """Return where the filler ends whose head this is, None if it is none."""
    if len(data) != FILLER_BYTES:
        return None
    remaining, magic = FILLER.unpack(data)
    is_filler = magic == BLANK_MAGIC and physical_offset + remaining == segment_end
    return segment_end if is_filler else None
