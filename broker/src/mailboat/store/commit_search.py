"""Which half messages have been committed, as the log itself says.

The index tells it of one (`mailboat.store.key_search`). Where there is none, all of the log behind
the oldest half message that is open is read once, on a thread.
"""

from collections.abc import Callable
from typing import Final

from mailboat.disk import Disk
from mailboat.model.record import RecordParts, decode_record
from mailboat.model.sys_flag import TRANSACTION_COMMIT, TRANSACTION_MASK
from mailboat.store.commit_log import CommitLog
from mailboat.store.file_pool import FilePool
from mailboat.store.record_source import find_segment
from mailboat.store.recovery import Scanner
from mailboat.store.segment import Segment

_OPEN_FILES: Final = 4


class _OpenedAnew:
    """The segments of a log, for reading on another thread."""

    def __init__(self, segments: list[Segment], pool: FilePool) -> None:
        self.segments = [segment.opened_in(pool) for segment in segments]

    def find(self, physical_offset: int) -> Segment | None:
        return find_segment(self.segments, physical_offset)


def commits_job(
    disk: Disk, commit_log: CommitLog, physical_offset: int
) -> Callable[[], frozenset[int]]:
    """Make a call that finds the commits in the log behind a record; it may run on any thread.

    It returns the physical offsets of their half messages, and raises OSError where a file cannot
    be read. What is damaged is passed over: nobody will get it.
    """
    segments = list(commit_log.segments)

    def search() -> frozenset[int]:
        found: set[int] = set()

        def note(view: memoryview, parts: RecordParts) -> None:
            if parts.header.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT:
                begin = parts.properties_end - parts.header.size_bytes
                record = bytes(view[begin : parts.properties_end])
                found.add(decode_record(record, verify=False)[0].prepared_transaction_offset)

        pool = FilePool(disk, _OPEN_FILES)
        try:
            Scanner(_OpenedAnew(segments, pool), None, check_crc=False).scan(physical_offset, note)
        finally:
            pool.close()
        return frozenset(found)

    return search
