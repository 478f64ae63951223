"""Reading the CommitLog after a start: where it ends, what is damaged, what must be derived anew.

A record that fails its checks below the flushed mark was durable once: that is corruption. Its
bytes are copied to quarantine, reported, and stepped over. Above the mark it is the torn tail of a
crash: the log ends there, and the cut is durable before any new byte. Where no mark exists
(RocketMQ wrote the directory), bytes with a valid record behind them count as corruption, others
as a torn tail.

Source: apache/rocketmq store/CommitLog.java (recoverNormally, recoverAbnormally), which cuts away
everything behind the first bad record instead.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from mailboat.disk import Disk, replace_file
from mailboat.model.record import (
    BLANK_MAGIC,
    FILLER,
    FILLER_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    RecordParts,
    check_sums,
    locate,
)
from mailboat.store.commit_log import CommitLog
from mailboat.store.segment import Segment

log = logging.getLogger(__name__)

RecordListener = Callable[[memoryview, RecordParts], None]

_SEARCH_BYTES: Final = 1 << 20
_MAGICS: Final = (MAGIC_V1.to_bytes(4, "big"), MAGIC_V2.to_bytes(4, "big"))
_MAGIC_PREFIX: Final = MAGIC_V1.to_bytes(4, "big")[:3]


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


def read_record(
    view: memoryview, position: int, physical_offset: int, *, check_crc: bool
) -> RecordParts:
    """Check the record at a position of a segment and that it belongs there.

    Raises:
        ValueError: it is not a good record; the text says why.
    """
    parts = locate(view, position, len(view))
    if parts.header.physical_offset != physical_offset:
        raise ValueError(f"the record was written for {parts.header.physical_offset}")
    if check_crc:
        check_sums(view, position, parts)
    return parts


class Segments(Protocol):
    """What a scan reads: a CommitLog, or a part of one."""

    segments: list[Segment]

    def find(self, physical_offset: int) -> Segment | None:
        """Return the segment that holds a physical offset."""
        ...


class Scanner:
    """Walks the records of a CommitLog."""

    def __init__(self, commit_log: Segments, mark: int | None, *, check_crc: bool) -> None:
        """Walk `commit_log`; `mark` is the flushed mark, None when there is none."""
        self._segments = commit_log.segments
        self._find = commit_log.find
        self._mark = mark
        self._check_crc = check_crc

    def scan(self, start: int, on_record: RecordListener) -> RecoveryReport:
        """Call `on_record` for every good record from `start` on, and find the end.

        Raises:
            OSError: a file cannot be read, or `on_record` raised it.
        """
        report = RecoveryReport(end=start)
        while (segment := self._segment_at(report)) is not None:
            if not self._scan_segment(segment, report, on_record):
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
        self, segment: Segment, report: RecoveryReport, on_record: RecordListener
    ) -> bool:
        """Read one segment on from `report.end`; tell whether the log goes on behind it."""
        view = segment.view
        position = report.end - segment.start
        check_crc = self._check_crc
        while position < segment.size_bytes:
            physical_offset = segment.start + position
            try:
                parts = read_record(view, position, physical_offset, check_crc=check_crc)
            except ValueError as exc:
                if _is_filler(view, position):
                    break
                found = self._resume(segment, position, report, str(exc))
                if found is None:
                    return False
                if found >= segment.end:
                    report.end = found
                    return True
                position = found - segment.start
                continue
            on_record(view, parts)
            report.records += 1
            segment.last_store_timestamp_ms = parts.store_timestamp_ms
            report.last_store_timestamp_ms = max(
                report.last_store_timestamp_ms, parts.store_timestamp_ms
            )
            position += parts.header.size_bytes
            report.end = segment.start + position
        report.end = segment.end
        return True

    def _resume(
        self, segment: Segment, position: int, report: RecoveryReport, reason: str
    ) -> int | None:
        """Decide about bad bytes; return where good records go on, None where the log ends."""
        bad_at = segment.start + position
        is_below_mark = self._mark is not None and bad_at < self._mark
        if self._mark is not None and not is_below_mark:
            report.torn_bytes = _count_used_bytes(segment.view, position)
            return None
        found = self._find_record(segment, position + 1)
        if found is None and not is_below_mark:
            report.torn_bytes = _count_used_bytes(segment.view, position)
            return None
        end = found if found is not None else segment.end
        report.damaged.append(DamagedRange(bad_at, min(end, segment.end) - bad_at, reason))
        if found is None:
            report.needs_seal = True
        return found

    def _find_record(self, segment: Segment, position: int) -> int | None:
        """Return the physical offset of the next good record in this segment or a later one."""
        found = self._search(segment, position)
        for later in self._segments:
            if found is not None:
                break
            if later.start > segment.start:
                found = self._search(later, 0)
        return found

    def _search(self, segment: Segment, position: int) -> int | None:
        view = segment.view
        while position < segment.size_bytes:
            chunk = bytes(view[position : position + _SEARCH_BYTES])
            at = chunk.find(_MAGIC_PREFIX)
            if at < 0:
                position += max(len(chunk) - 2, 1)
                continue
            start = position + at - 4
            position += at + 1
            if start < 0 or bytes(view[start + 4 : start + 8]) not in _MAGICS:
                continue
            try:
                read_record(view, start, segment.start + start, check_crc=True)
            except ValueError:
                continue
            return segment.start + start
        return None


def _is_filler(view: memoryview, position: int) -> bool:
    if len(view) - position < FILLER_BYTES:
        return True
    remaining, magic = FILLER.unpack_from(view, position)
    return bool(magic == BLANK_MAGIC and remaining == len(view) - position)


def _count_used_bytes(view: memoryview, position: int) -> int:
    # Only the first megabyte is looked at: enough to tell a torn record from untouched room.
    return len(bytes(view[position : position + _SEARCH_BYTES]).rstrip(b"\0"))


def cut_log(
    disk: Disk, commit_log: CommitLog, directory: str, report: RecoveryReport, *, force: bool
) -> None:
    """End the log at `report.end`, durably; later segments go first.

    A damaged tail below the mark is closed with a filler instead, so that nothing is ever written
    over the place where durable messages were.

    Raises:
        OSError: the cut is not complete; recovery may be repeated.
    """
    last = commit_log.find(report.end)
    if report.needs_seal and last is not None:
        _seal(commit_log, last, report)
        return
    doomed = [segment for segment in commit_log.segments if segment.start >= report.end]
    if last is not None and last in doomed and last.start == report.end:
        doomed.remove(last)
    for segment in reversed(doomed):
        commit_log.segments.remove(segment)
        segment.close()
        disk.unlink(segment.path)
    if doomed:
        disk.fsync_dir(directory)
    commit_log.end = report.end
    if last is not None:
        position = report.end - last.start
        if force or bytes(last.view[position : position + FILLER_BYTES]).strip(b"\0"):
            last.cut(position)


def _seal(commit_log: CommitLog, segment: Segment, report: RecoveryReport) -> None:
    position = report.end - segment.start
    remaining = segment.end - report.end
    segment.write(FILLER.pack(remaining, BLANK_MAGIC), position)
    commit_log.end = report.end = segment.end


def quarantine(
    disk: Disk, directory: str, commit_log: CommitLog, damaged: list[DamagedRange]
) -> None:
    """Copy damaged bytes aside and report them.

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
            position = item.physical_offset - segment.start
            data = bytes(segment.view[position : position + item.size_bytes]).rstrip(b"\0")
            replace_file(disk, path, data)
