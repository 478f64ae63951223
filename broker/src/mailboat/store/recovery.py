"""Reading the CommitLog after a start: where it ends, what is damaged, what must be derived anew.

A record that fails its checks below the flushed mark was durable once: that is corruption. Its
bytes are copied to quarantine, reported, and stepped over; so are bytes that cannot be read,
wherever they are.

Above the mark it depends on what has died. Where the kernel still runs that the last process wrote
through, the page cache has every write in its order, so good records behind bad bytes were written
after them, and may have been acknowledged: corruption as well. After a power cut, or on another
machine, pages that were never flushed come back in any order, and nobody was promised them: the log
ends at the first bad record. Where nothing good follows it is the torn tail of a crash either way:
the log ends there, and the cut is durable before any new byte.

Where no mark exists (RocketMQ wrote the directory), bytes with a valid record behind them count as
corruption, others as a torn tail.

Source: apache/rocketmq store/CommitLog.java (recoverNormally, recoverAbnormally), which cuts away
everything behind the first bad record instead.
"""

import errno
import logging
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from mailboat.disk import NO_ROOM, Disk, UnreadableError, write_and_rename
from mailboat.model.record import (
    BLANK_MAGIC,
    FILLER,
    FILLER_BYTES,
    FIXED_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    RecordParts,
    check_sums,
)
from mailboat.store.commit_log import CommitLog
from mailboat.store.segment import Segment
from mailboat.store.segment_reader import SegmentReader

log = logging.getLogger(__name__)

RecordListener = Callable[[memoryview, RecordParts], None]
"""Gets bytes that hold a record, and its parts in them."""


class Taken(NamedTuple):
    """What a `BlockListener` did with the records from some position on."""

    size_bytes: int
    """How many bytes it looked at."""

    records: int
    """How many records it took, all of them or none: then they are the `RecordListener`'s."""

    last_store_timestamp_ms: int
    newest_store_timestamp_ms: int


NOTHING_TAKEN: Final = Taken(0, 0, 0, 0)
BlockListener = Callable[[bytes, int, int, bool], Taken]
"""Gets bytes, a position in them where a record may begin, its physical offset, and whether to
check checksums. It takes records that are good beyond doubt, as a `RecordListener` would."""

_SEARCH_BYTES: Final = 1 << 20
# What both magics begin with, and how far from a record's start.
_MAGIC_PREFIX: Final = MAGIC_V1.to_bytes(4, "big")[:3]
_MAGIC_AT: Final = 4
_ZEROS: Final = bytes(_SEARCH_BYTES + len(_MAGIC_PREFIX) - 1)
# Size and magic of a record and its own physical offset, before its other fields.
_CANDIDATE: Final = struct.Struct(">iI20xq")
# What a search may check of candidates beyond this many times the bytes it has passed is left out:
# a body may be made of things that look like records.
_CHECKED_TIMES: Final = 16
_CHECKED_AT_LEAST_BYTES: Final = 64 << 20


@dataclass(slots=True)
class DamagedRange:
    """Bytes of the CommitLog that fail their checks."""

    physical_offset: int
    size_bytes: int
    reason: str


@dataclass(slots=True)
class RecoveryReport:
    """What recovery found; `end` is the physical offset after the last good record."""

    end: int
    records: int = 0
    torn_bytes: int = 0
    damaged: list[DamagedRange] = field(default_factory=list)
    last_store_timestamp_ms: int = 0
    needs_seal: bool = False


class ScanOverError(Exception):
    """Raised by a listener to end a scan; whoever began the scan expects it."""


class Segments(Protocol):
    """What a scan reads: a CommitLog, or a part of one."""

    segments: list[Segment]

    def find(self, physical_offset: int) -> Segment | None:
        """Return the segment that holds a physical offset."""
        ...


class Scanner:
    """Walks the records of a CommitLog."""

    def __init__(
        self,
        commit_log: Segments,
        mark: int | None,
        *,
        check_crc: bool,
        is_page_cache_intact: bool = False,
    ) -> None:
        """Walk a log.

        Args:
            commit_log: the log.
            mark: the flushed mark, None when there is none.
            check_crc: check the records' checksums.
            is_page_cache_intact: all that was written is there, flushed or not.
        """
        self._segments = commit_log.segments
        self._find = commit_log.find
        self._mark = mark
        self._is_page_cache_intact = is_page_cache_intact
        self._check_crc = check_crc
        # What the last search found, and how many records had been read before it: until there is
        # another one, the next search would find the same.
        self._searched: tuple[int, int | None] = (-1, None)

    def scan(
        self, start: int, on_record: RecordListener, on_block: BlockListener | None = None
    ) -> RecoveryReport:
        """Call `on_record` for every good record from `start` on, and find the end.

        `on_block` is offered many records at once before.

        Raises:
            OSError: a file cannot be read, or a listener raised it.
        """
        report = RecoveryReport(end=start)
        while (segment := self._segment_at(report)) is not None:
            if not self._scan_segment(segment, report, on_record, on_block):
                break
        return report

    def _segment_at(self, report: RecoveryReport) -> Segment | None:
        segment = self._find(report.end)
        if segment is not None:
            return segment
        later = [segment for segment in self._segments if segment.start > report.end]
        if not later:
            return None
        hole = DamagedRange(report.end, later[0].start - report.end, "the segment is missing")
        report.damaged.append(hole)
        report.end = later[0].start
        return later[0]

    def _scan_segment(
        self,
        segment: Segment,
        report: RecoveryReport,
        on_record: RecordListener,
        on_block: BlockListener | None,
    ) -> bool:
        """Read one segment on from `report.end`; tell whether the log goes on behind it."""
        reader = SegmentReader(segment)
        position = blocks_from = report.end - segment.start
        while position < segment.size_bytes:
            if on_block is not None and position >= blocks_from:
                taken = self._offer(reader, segment.start + position, position, on_block)
                blocks_from = position + taken.size_bytes
                if taken.records:
                    position = blocks_from
                    _note(report, segment, position, taken)
                    continue
            try:
                view, parts = self._record(reader, segment, position)
            except (ValueError, UnreadableError) as exc:
                is_unreadable = isinstance(exc, UnreadableError)
                if not is_unreadable and reader.is_filler(position):
                    break
                found = self._resume(
                    segment, position, report, str(exc), is_unreadable=is_unreadable
                )
                if found is None:
                    return False
                if found == segment.end:
                    break
                position = found - segment.start
                continue
            on_record(view, parts)
            stored_ms, size_bytes = parts.store_timestamp_ms, parts.header.size_bytes
            position += size_bytes
            _note(report, segment, position, Taken(size_bytes, 1, stored_ms, stored_ms))
        report.end = segment.end
        return True

    def _record(
        self, reader: SegmentReader, segment: Segment, position: int
    ) -> tuple[memoryview, RecordParts]:
        """Return bytes that hold the record at a position, and its parts in them.

        Raises:
            ValueError: there is no good record; the text says why.
            UnreadableError: it cannot be read.
            OSError: it cannot be read now.
        """
        view, parts = _checked(reader, position) if self._check_crc else reader.record(position)
        is_unflushed = self._mark is not None and segment.start + position >= self._mark
        # Where the tear goes through the name of the checksum's property, only the body has one.
        if is_unflushed and parts.properties_at < parts.properties_end:
            if not view[parts.properties_end - 1]:
                raise ValueError("the end of the record is missing")
        return view, parts

    def _offer(
        self, reader: SegmentReader, physical_offset: int, position: int, on_block: BlockListener
    ) -> Taken:
        try:
            data, at = reader.block(position)
        except UnreadableError:
            # Reading the record by itself says so once more, to whom it concerns.
            return NOTHING_TAKEN
        return on_block(data, at, physical_offset, self._check_crc)

    def _resume(
        self,
        segment: Segment,
        position: int,
        report: RecoveryReport,
        reason: str,
        *,
        is_unreadable: bool,
    ) -> int | None:
        """Decide about bad bytes; return where to read on, None where the log ends.

        Bytes that cannot be read are never a torn tail: a crash leaves none. What follows damage
        that goes on to the segment's end is judged by itself: it may be damage too, a torn tail, or
        a segment that was made ahead.
        """
        bad_at = segment.start + position
        is_below_mark = is_unreadable or (self._mark is not None and bad_at < self._mark)
        found = None
        if self._mark is None or is_below_mark or self._is_page_cache_intact:
            found = self._find_record(segment, position, report.records)
        if found is None and not is_below_mark:
            report.torn_bytes = _count_used_bytes(segment, position)
            return None
        end = segment.end if found is None else min(found, segment.end)
        report.damaged.append(DamagedRange(bad_at, end - bad_at, reason))
        report.needs_seal = found is None and segment is self._segments[-1]
        return None if report.needs_seal else end

    def _find_record(self, segment: Segment, position: int, records: int) -> int | None:
        """Return where good records go on behind bad bytes, in this segment or a later one.

        `records` were read so far.
        """
        searched_after, found = self._searched
        if searched_after == records and (found is None or found > segment.start + position):
            return found
        found = _declared_end(segment, position)
        if found is None:
            found = self._search(segment, _behind_body(segment, position))
        for later in self._segments:
            if found is not None:
                break
            if later.start > segment.start:
                is_good = _is_record(SegmentReader(later), 0)
                found = self._search(later, 0 if is_good else _behind_body(later, 0))
        self._searched = (records, found)
        return found

    def _search(self, segment: Segment, position: int) -> int | None:
        """Return the physical offset of the next good record at or behind a position."""
        reader = SegmentReader(segment)
        checked_bytes = 0
        for chunk_at, chunk in _chunks_behind(segment, position):
            at = chunk.find(_MAGIC_PREFIX)
            while at >= 0:
                start = chunk_at + at - _MAGIC_AT
                at = chunk.find(_MAGIC_PREFIX, at + 1)
                if start < position or start + FIXED_BYTES > segment.size_bytes:
                    continue
                candidate = _candidate(reader, start)
                if candidate is None or candidate.physical_offset != segment.start + start:
                    continue
                allowed = _CHECKED_AT_LEAST_BYTES + _CHECKED_TIMES * (start - position)
                if checked_bytes + candidate.size_bytes > allowed:
                    continue
                if _is_record(reader, start):
                    return segment.start + start
                checked_bytes += candidate.size_bytes
        return None


def _chunks_behind(
    segment: Segment, position: int, stop: int | None = None
) -> Iterator[tuple[int, bytes]]:
    """Yield what may have been written from a position on, each chunk with its own.

    A magic that lies across the end of one chunk is whole in it all the same. Chunks of zeros are
    left out: a segment may have a gigabyte of them.
    """
    overlap = len(_MAGIC_PREFIX) - 1
    for begin, end in segment.data_ranges(position):
        if stop is not None:
            end = min(end, stop)
        for start in range(begin, end, _SEARCH_BYTES):
            size = min(_SEARCH_BYTES + overlap, end - start)
            chunk = segment.read_around_damage(start, size)
            # To compare a chunk with zeros takes a tenth of the time that a search in it does.
            if chunk != (_ZEROS if size == len(_ZEROS) else bytes(size)):
                yield start, chunk


def _note(report: RecoveryReport, segment: Segment, position: int, taken: Taken) -> None:
    """Note records of a segment that end at a position of it."""
    report.records += taken.records
    report.end = segment.start + position
    segment.last_store_timestamp_ms = taken.last_store_timestamp_ms
    report.last_store_timestamp_ms = max(
        report.last_store_timestamp_ms, taken.newest_store_timestamp_ms
    )


class _Candidate(NamedTuple):
    """What bytes that may be a record say of themselves."""

    size_bytes: int
    magic: int
    physical_offset: int


def _candidate(reader: SegmentReader, position: int) -> _Candidate | None:
    """Return what looks like the head of a record; None where it cannot be one."""
    try:
        head = reader.bytes_at(position, _CANDIDATE.size)
    except UnreadableError:
        return None
    if len(head) < _CANDIDATE.size:
        return None
    candidate = _Candidate(*_CANDIDATE.unpack(head))
    if candidate.magic not in (MAGIC_V1, MAGIC_V2) or candidate.size_bytes < FIXED_BYTES:
        return None
    return candidate


def _declared_end(segment: Segment, position: int) -> int | None:
    """Return where a bad record ends by its own word, None unless good bytes lie there."""
    reader = SegmentReader(segment)
    candidate = _candidate(reader, position)
    if candidate is None:
        return None
    end = position + candidate.size_bytes
    if segment.size_bytes - end < FILLER_BYTES:
        return None
    try:
        is_good = reader.is_filler(end) or _is_record(reader, end)
    except UnreadableError:
        return None
    return segment.start + end if is_good else None


def _behind_body(segment: Segment, position: int) -> int:
    """Return where a search behind a bad record begins: never in its body, if its head is whole.

    A process that dies in a write leaves the head and some of the body, and a body is what a sender
    says: it may hold a record that is good in every way but that nobody stored. A single wrong bit
    in a head leads behind no other record, as it has to agree with itself.
    """
    reader = SegmentReader(segment)
    candidate = _candidate(reader, position)
    if candidate is None or candidate.physical_offset != segment.start + position:
        return position + 1
    try:
        end = reader.body_end(position)
    except UnreadableError:
        return position + 1
    return position + 1 if end is None else end


def _is_record(reader: SegmentReader, position: int) -> bool:
    try:
        _checked(reader, position)
    except (ValueError, UnreadableError):
        return False
    return True


def _checked(reader: SegmentReader, position: int) -> tuple[memoryview, RecordParts]:
    """Return bytes that hold the record at a position, and its parts in them.

    Raises:
        ValueError: there is no good record; the text says why.
        UnreadableError: it cannot be read.
        OSError: it cannot be read now.
    """
    view, parts = reader.record(position)
    check_sums(view, parts.properties_end - parts.header.size_bytes, parts)
    return view, parts


def _count_used_bytes(segment: Segment, position: int) -> int:
    # Only the first megabyte is looked at: enough to tell a torn record from untouched room.
    size = min(_SEARCH_BYTES, segment.size_bytes - position)
    return len(segment.read_around_damage(position, size).rstrip(b"\0"))


def cut_log(commit_log: CommitLog, report: RecoveryReport, *, force: bool) -> None:
    """End the log at `report.end`, durably; later segments go first.

    A damaged tail below the mark is closed with a filler instead, so that nothing is ever written
    over the place where durable messages were; unless other replicas have them, which send them
    once more (`CommitLog.on_end_lost`).

    Raises:
        OSError: the cut is not complete; recovery may be repeated.
    """
    last = commit_log.find(report.end)
    if report.needs_seal and last is not None:
        if commit_log.on_end_lost is None:
            _seal(commit_log, last, report)
            return
        commit_log.on_end_lost(report.end)
        force = True
    commit_log.remove_above(report.end)
    commit_log.end = report.end
    if last is not None:
        position = report.end - last.start
        size = min(FILLER_BYTES, last.size_bytes - position)
        if force or last.read_around_damage(position, size).strip(b"\0"):
            last.cut(position)


def _seal(commit_log: CommitLog, segment: Segment, report: RecoveryReport) -> None:
    position = report.end - segment.start
    remaining = segment.end - report.end
    try:
        segment.write(FILLER.pack(remaining, BLANK_MAGIC), position)
    except OSError as exc:
        if exc.errno != errno.EIO:
            raise
        # A page that cannot be read takes no part of itself. Later scans step over it as this did.
        log.warning("no filler at physical_offset=%d: %s", report.end, exc)
    commit_log.end = report.end = segment.end


def quarantine(
    disk: Disk, directory: str, commit_log: CommitLog, damaged: list[DamagedRange]
) -> None:
    """Copy damaged bytes aside and report them; what cannot be read is zero in the copy.

    Without room there is no copy: nothing is written over the bytes where they are.

    Raises:
        OSError: a copy could not be written.
    """
    for item in damaged:
        log.error(
            "damaged physical_offset=%d size_bytes=%d reason=%s",
            item.physical_offset,
            item.size_bytes,
            item.reason,
        )
        segment = commit_log.find(item.physical_offset)
        if segment is None:
            continue
        disk.make_dirs(directory)
        path = f"{directory}/{item.physical_offset:020d}-{item.size_bytes}"
        if not disk.exists(path):
            try:
                write_and_rename(disk, path, _pieces(segment, item))
                disk.fsync_dir(directory)
            except OSError as exc:
                if exc.errno not in NO_ROOM:
                    raise
                log.warning("no room for a copy of the damaged bytes: %s", exc)
                if disk.exists(f"{path}.tmp"):
                    disk.unlink(f"{path}.tmp")


def _pieces(segment: Segment, item: DamagedRange) -> Iterator[tuple[int, bytes]]:
    """Yield what is not zero of damaged bytes, with its place among them: a range may be as long as
    its segment, and the memory for that is not there."""
    position = item.physical_offset - segment.start
    for start, chunk in _chunks_behind(segment, position, position + item.size_bytes):
        yield start - position, chunk[:_SEARCH_BYTES].rstrip(b"\0")
