"""Which half messages have been committed, as the log itself says.

The index tells it of one (`mailboat.store.key_search`). Where there is none, all of the log behind
the oldest half message that is open is read once, on a thread.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from mailboat.disk import Disk
from mailboat.model.record import RecordParts, decode_record
from mailboat.model.sys_flag import TRANSACTION_COMMIT, TRANSACTION_MASK
from mailboat.store.commit_log import CommitLog
from mailboat.store.file_pool import FilePool
from mailboat.store.record_source import find_segment
from mailboat.store.recovery import Scanner
from mailboat.store.segment import Segment

_OPEN_FILES: Final = 4


class Commits(NamedTuple):
    """What a look through the log has found."""

    begin: int
    """Of half messages below this physical offset it says nothing."""

    places: Sequence[int]
    """The physical offsets of half messages that were committed, in order."""

    def has(self, physical_offset: int) -> bool:
        """Tell whether a half message was committed."""
        at = bisect_left(self.places, physical_offset)
        return at < len(self.places) and self.places[at] == physical_offset


class _OpenedAnew:
    """The segments of a log, for reading on another thread."""

    def __init__(self, segments: list[Segment], pool: FilePool) -> None:
        self.segments = [segment.opened_in(pool) for segment in segments]

    def find(self, physical_offset: int) -> Segment | None:
        return find_segment(self.segments, physical_offset)


def commits_job(
    disk: Disk, commit_log: CommitLog, begin: int, is_stopping: Callable[[], bool]
) -> Callable[[], Commits]:
    """Make a call that finds the commits in the log behind a record; it may run on any thread.

    It raises OSError where a file cannot be read, or once `is_stopping`. What is damaged is passed
    over: nobody will get it.
    """
    segments = list(commit_log.segments)

    def search() -> Commits:
        found = array("q")

        def note(view: memoryview, parts: RecordParts) -> None:
            if parts.header.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT:
                at = parts.properties_end - parts.header.size_bytes
                record = bytes(view[at : parts.properties_end])
                found.append(decode_record(record, verify=False)[0].prepared_transaction_offset)
            if is_stopping():
                raise OSError("the broker is stopping")

        pool = FilePool(disk, _OPEN_FILES)
        try:
            Scanner(_OpenedAnew(segments, pool), None, check_crc=False).scan(begin, note)
        finally:
            pool.close()
        return Commits(begin, array("q", sorted(found)))

    return search
