"""How old the segments of a CommitLog are, as far as retention must know.

Records carry the wall clock's time, and never one before that of the record before: one message
that was stored while the clock was ahead gives its time to all that follow, until the clock has
caught up. A segment with such a time would be kept for as long as the clock was wrong, so its age
counts from the moment when this process first saw it full instead. That is never before its newest
record was stored, so nothing goes early; after a restart it may go later. Such a moment is not
saved: where the next clock runs ahead of the one that it was read from, it would be too early.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import islice, pairwise

from mailboat.store.commit_log import CommitLog
from mailboat.store.segment import Segment
from mailboat.store.segment_reader import read_record_at


class SegmentTimes:
    """Store times of the first records of segments, read once each, and when each was seen full."""

    def __init__(self, commit_log: CommitLog, now_ms: Callable[[], int]) -> None:
        """Look into one log; `now_ms` is a clock that only goes forward."""
        self._commit_log = commit_log
        self._now_ms = now_ms
        self._first_ms: dict[int, int] = {}
        self._full_ms: dict[int, int] = {}

    def note_full(self) -> None:
        """Note which segments are full by now."""
        now_ms = self._now_ms()
        for segment in reversed(self._commit_log.segments[:-1]):
            if segment.start in self._full_ms:
                # They are filled one after the other: those before are noted.
                break
            self._full_ms[segment.start] = now_ms

    def first_ms(self, segment: Segment) -> int | None:
        """Return the time of a segment's first record, None where it has none or a damaged one."""
        if segment.start >= self._commit_log.end:
            return None
        known = self._first_ms.get(segment.start)
        if known is not None:
            return known
        try:
            _, parts = read_record_at(segment, segment.start)
        except (ValueError, OSError):
            return None
        self._first_ms[segment.start] = parts.store_timestamp_ms
        return parts.store_timestamp_ms

    def knows_first(self, segment: Segment) -> bool:
        """Tell whether the time of a segment's first record need not be read."""
        return segment.start in self._first_ms

    def some_first_ms(self, reads_max: int) -> dict[int, int]:
        """Return the times of first records by segment start, after at most so many new reads."""
        reads = 0
        for segment in self._commit_log.segments:
            if segment.start not in self._first_ms and reads < reads_max:
                reads += 1
                self.first_ms(segment)
        return self._first_ms

    def newest_ms(self, segment: Segment) -> int | None:
        """Return a time before which everything in a segment was stored, None in an empty log.

        Where the segment itself does not know, it is the time of the first record behind it.
        """
        newest_ms = self._stored_ms(segment)
        return None if newest_ms is None else self._not_ahead(segment, newest_ms)

    def _stored_ms(self, segment: Segment) -> int | None:
        if segment.last_store_timestamp_ms:
            return segment.last_store_timestamp_ms
        segments = self._commit_log.segments
        behind = bisect_left(segments, segment.end, key=lambda later: later.start)
        for later in islice(segments, behind, None):
            first_ms = self.first_ms(later)
            if first_ms is not None:
                return first_ms
        return self._commit_log.last_store_timestamp_ms or None

    def known_newest_ms(self) -> Iterator[tuple[Segment, int]]:
        """Yield the segments but the last whose newest time needs no read, with that time."""
        for segment, later in pairwise(self._commit_log.segments):
            newest = segment.last_store_timestamp_ms or self._first_ms.get(later.start)
            if newest:
                yield segment, self._not_ahead(segment, newest)

    def _not_ahead(self, segment: Segment, stored_ms: int) -> int:
        return min(stored_ms, self._full_ms.get(segment.start, stored_ms))

    def forget_before(self, physical_offset: int) -> None:
        """Drop what is known of segments that are gone."""
        for start in [start for start in self._first_ms if start < physical_offset]:
            del self._first_ms[start]
        for start in [start for start in self._full_ms if start < physical_offset]:
            del self._full_ms[start]
