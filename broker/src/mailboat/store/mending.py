"""Putting back damaged records from the log of another replica, which has the same bytes there.

A damaged range stays what it is, or is whole, whenever the process dies or the power goes:

1. Whole records are checked, written over the damaged ones, and synced (`put_back_job`).
2. The ConsumeQueues get units where they had blanks, the index its keys (`restore`), and the files
   of the queues are synced.
3. The note of the range, its copy in `mailboat/quarantine/`, is removed (`forget`).

Until the last step a start finds the note, and all of it is done again. A range that a start found
behind its checkpoint is read again by the next one as well.
"""

import logging
import re
from collections.abc import Callable
from typing import Final, NamedTuple

from mailboat.disk import PAGE_BYTES, Disk, UnreadableError, sync, write_fully
from mailboat.model.record import FILLER_BYTES, RecordParts, crc_property_holds
from mailboat.store.commit_log import CommitLog
from mailboat.store.dispatch import Dispatch
from mailboat.store.queue_table import QueueSync
from mailboat.store.replica_log import filler_end, opened
from mailboat.store.segment import Segment
from mailboat.store.segment_reader import read_record

log: Final = logging.getLogger(__name__)

_NOTE: Final = re.compile(r"([0-9]{20})-([0-9]{1,12})")


class NotedRange(NamedTuple):
    """Bytes of the log that a start found damaged."""

    physical_offset: int
    size_bytes: int


class PutBack(NamedTuple):
    """Records that are whole now: where each begins in bytes that hold it, and its parts."""

    records: list[tuple[memoryview, RecordParts]]
    written_bytes: int
    """Of the damaged ones among them."""

    end: int
    """The physical offset where the log goes on behind them."""


class OtherRecordError(ValueError):
    """Another replica has something else where the log here is good."""


class LogMending:
    """Mends one open store; calls on any thread say so."""

    def __init__(
        self, disk: Disk, commit_log: CommitLog, dispatch: Dispatch, quarantine: str
    ) -> None:
        """Have the notes in the folder `quarantine`."""
        self._disk = disk
        self._commit_log = commit_log
        self._dispatch = dispatch
        self._directory = quarantine

    def noted(self) -> list[NotedRange]:
        """Return what starts have found damaged and nobody has put back; on any thread.

        Raises:
            OSError: the folder cannot be read.
        """
        if not self._disk.is_dir(self._directory):
            return []
        found = map(_NOTE.fullmatch, self._disk.listdir(self._directory))
        return [NotedRange(int(match[1]), int(match[2])) for match in found if match is not None]

    def forget(self, noted: NotedRange) -> None:
        """Remove the note of a range that is whole; on any thread.

        Raises:
            OSError: it may be there still; the call may be repeated.
        """
        path = f"{self._directory}/{noted.physical_offset:020d}-{noted.size_bytes}"
        if self._disk.exists(path):
            self._disk.unlink(path)
            self._disk.fsync_dir(self._directory)

    def has_shown(self, physical_offset: int) -> bool:
        """Tell whether everything below a physical offset is in the queues, but for damage."""
        return not self._dispatch.is_holding_below(physical_offset)

    def put_back_job(
        self, data: bytes, physical_offset: int, damaged_end: int
    ) -> Callable[[], PutBack]:
        """Return a call that writes what is damaged of whole records, durably; on any thread.

        `data` is what another replica has at a physical offset below the end of the log, as
        `ReplicaLog.follow` takes it; what is behind it up to `damaged_end` may be lost with a page
        that cannot be read, until it is put back as well. The call raises ValueError where `data`
        is damaged or belongs elsewhere (`OtherRecordError` where the log here has other good
        records), and OSError where it cannot be written: then the range may still be damaged.

        Raises:
            ValueError: the log has nothing there.
        """
        segment = self._commit_log.find(physical_offset)
        end = min(self._commit_log.end, segment.end) if segment is not None else 0
        if segment is None or physical_offset + len(data) > end or not data:
            raise ValueError(f"the log has no {len(data)} bytes at {physical_offset}")

        def put_back() -> PutBack:
            places = _places(data, physical_offset, segment.end)
            position = physical_offset - segment.start
            with opened(self._disk, segment) as file:
                try:
                    found = file.read(position, len(data))
                except UnreadableError:
                    lost = data.ljust(
                        _to_page_end(position, len(data), damaged_end - segment.start), b"\0"
                    )
                    write_fully(self._disk, file.fd, lost, position)
                    sync(self._disk, file.fd)
                    written_bytes = len(data)
                else:
                    written_bytes = self._write(file, data, found, position, places)
            records = [place for place in places if place is not None]
            end = physical_offset + len(data) if records else segment.end
            return PutBack(records, written_bytes, end)

        return put_back

    def _write(
        self,
        file: Segment,
        data: bytes,
        found: bytes,
        position: int,
        places: "list[tuple[memoryview, RecordParts] | None]",
    ) -> int:
        """Write the records that differ from what was found; return how many bytes."""
        view = memoryview(found)
        written_bytes = at = 0
        for place in places:
            size = FILLER_BYTES if place is None else place[1].header.size_bytes
            if found[at : at + size] != data[at : at + size]:
                _refuse_good(view, at, file.start + position + at, data[at : at + size])
                write_fully(self._disk, file.fd, data[at : at + size], position + at)
                written_bytes += size
            at += size
        # Also where nothing differs: whoever wrote it may have died before it was synced.
        sync(self._disk, file.fd)
        return written_bytes

    def restore(
        self, record: tuple[memoryview, RecordParts], *, is_noted: bool
    ) -> QueueSync | None:
        """Put a record's unit and keys where they are missing.

        Args:
            record: one that was put back.
            is_noted: it was damaged when the store was opened.

        Returns:
            A queue to be synced before the note of the range is removed.

        Raises:
            OSError: a file cannot be written; the call may be repeated.
        """
        return self._dispatch.mend_record(*record, is_noted=is_noted)


def _to_page_end(position: int, size: int, damaged_end: int) -> int:
    """Return how much to write so that the last page is written whole, if that is damaged."""
    end = -(-(position + size) // PAGE_BYTES) * PAGE_BYTES
    return end - position if end <= damaged_end else size


def _places(
    data: bytes, physical_offset: int, segment_end: int
) -> "list[tuple[memoryview, RecordParts] | None]":
    """Check whole records of a segment, or the head of its filler, which is None."""
    if filler_end(data, physical_offset, segment_end) is not None:
        return [None]
    view = memoryview(data)
    places: list[tuple[memoryview, RecordParts] | None] = []
    at = 0
    while at < len(data):
        parts = read_record(view, at, physical_offset + at, check_crc=True)
        places.append((view, parts))
        at += parts.header.size_bytes
    return places


def _refuse_good(found: memoryview, at: int, physical_offset: int, theirs: bytes) -> None:
    """Refuse to write over a good record.

    One without the checksum that theirs has may be damaged where that stands.
    """
    try:
        parts = read_record(found, at, physical_offset, check_crc=True)
    except ValueError:
        return
    mine = found[at : parts.properties_end]
    if crc_property_holds(mine) or not crc_property_holds(theirs):
        raise OtherRecordError(f"another replica has another record at {physical_offset}")
