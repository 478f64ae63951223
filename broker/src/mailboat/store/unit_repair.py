"""Units that do not lead to their message are put right from the CommitLog.

A bit of a ConsumeQueue may flip, a page of it may be lost, or a folder of another queue may lie in
its place. The message is still in the log: behind the one before it in the queue. It is looked for
there, record by record, and its unit is written anew.

A reader waits for the search, so it has a limit: where too many records lie between a message and
the one before it, the message counts as damaged. So it does where none of the three messages before
it is found.

What a unit says of tags is believed: to check it would mean to read what nobody wants.
"""

import logging
from collections.abc import Callable, Generator
from typing import Final, TypeVar

from mailboat.disk import UnreadableError
from mailboat.model.record import (
    FIXED_BYTES,
    HEAD,
    MAGIC_V1,
    MAGIC_V2,
    RecordHeader,
    RecordParts,
)
from mailboat.store.commit_log import CommitLog
from mailboat.store.consume_queue import BLANK_SIZE, UNIT, UNIT_BYTES, ConsumeQueue
from mailboat.store.queue_table import QueueTable
from mailboat.store.record_check import is_of
from mailboat.store.segment import Segment
from mailboat.store.segment_reader import SegmentReader, find_record_at

log = logging.getLogger(__name__)

Unit = tuple[int, int, int]
"""Physical offset, size and tagsCode."""

UnitOf = Callable[[memoryview, RecordParts], Unit | None]
"""Returns the unit by which a record is found in its queue, None where none finds it."""

# What a search looks at: some 20 ms of work where the log is in memory.
_RECORDS_MOST: Final = 10_000
_BYTES_MOST: Final = 16 << 20
_WINDOW_BYTES: Final = 256 * 1024
_RECORD_BYTES: Final = 4096
# The nearest of so many units before, and behind, that leads to its message bounds the search.
_LOOKS: Final = 3
_KEPT_MOST: Final = 4096
_AGAIN_S: Final = 60.0

_Key = tuple[ConsumeQueue, int]
_T = TypeVar("_T")


class UnitRepair:
    """Mends the units of one open store."""

    def __init__(
        self,
        commit_log: CommitLog,
        queues: QueueTable,
        unit_of: UnitOf,
        monotonic: Callable[[], float],
    ) -> None:
        """Look for messages in `commit_log`."""
        self._commit_log = commit_log
        self._queues = queues
        self._unit_of = unit_of
        self._monotonic = monotonic
        self._reported: ConsumeQueue | None = None
        # When what was looked for in vain may be looked for again.
        self._in_vain: dict[_Key, float] = {}
        # What was found, and could not be written where the disk has lost it.
        self._unwritten: dict[_Key, Unit] = {}

    def mend(self, queue: ConsumeQueue, queue_offset: int, read: tuple[int, int]) -> Unit | None:
        """Put a unit right that leads to no message of its queue.

        Args:
            queue: its queue.
            queue_offset: its number.
            read: physical offset and size that led nowhere, as somebody has read them.

        Returns:
            What it is now. None where it is what was read: it leads to its message, which is
            damaged, or to none, and the message was not found.

        Raises:
            UnreadableError: the log or the queue has lost bytes on the way.
            OSError: they cannot be read now.
        """
        key = queue, queue_offset
        stored = queue.unit(queue_offset)
        if stored is None:
            if queue.is_removed or not queue.min_offset <= queue_offset < queue.max_offset:
                return None
            if key in self._unwritten:
                return self._unwritten[key]
        elif stored[1] == BLANK_SIZE:
            return None
        elif self._leads(queue, queue_offset, stored):
            # Another reader may have mended it since it was read.
            return stored if stored[:2] != read else None
        elif self.is_damaged_record(stored):
            return None
        if self._in_vain.get(key, 0) > self._monotonic():
            return None
        found = self._find(queue, queue_offset)
        if found is None:
            _keep(self._in_vain, key, self._monotonic() + _AGAIN_S)
            return None
        try:
            queue.replace_unit(queue_offset, UNIT.pack(*found))
        except OSError as error:
            # The message is there all the same, and so is the one behind it.
            _keep(self._unwritten, key, found)
            log.warning(
                "a unit cannot be written topic=%s queue_id=%d queue_offset=%d: %s",
                queue.topic, queue.queue_id, queue_offset, error,
            )  # fmt: skip
            return found
        self._queues.mark_unsynced(queue, queue_offset * UNIT_BYTES)
        if queue is not self._reported:
            # A folder in the wrong place has very many such units.
            self._reported = queue
            log.warning(
                "mended units of topic=%s queue_id=%d from queue_offset=%d on: "
                "it led to physical_offset=%d, and the message is at %d",
                queue.topic, queue.queue_id, queue_offset, read[0], found[0],
            )  # fmt: skip
        return found

    def _find(self, queue: ConsumeQueue, queue_offset: int) -> Unit | None:
        begin, end = self._commit_log.start, self._commit_log.end
        behind = self._next_that_leads(queue, range(queue_offset + 1, queue_offset + 1 + _LOOKS))
        if behind is not None:
            end = behind[0]
        if queue_offset > queue.min_offset:
            before = range(queue_offset - 1, queue_offset - 1 - _LOOKS, -1)
            previous = self._next_that_leads(queue, before)
            if previous is None:
                return None
            begin = previous[0] + previous[1]
            return next(self._messages(queue, queue_offset, begin, end), None)
        # The first one. Where a topic was deleted and made anew, the log may hold other messages of
        # this queue offset before it: the last one counts, if everything was looked at.
        last, walk = None, self._messages(queue, queue_offset, begin, end)
        while True:
            try:
                last = next(walk)
            except StopIteration as done:
                return last if done.value else None

    def is_damaged_record(self, unit: Unit) -> bool:
        """Tell whether a record of this place and size is there, not whole: the unit is right."""
        physical_offset, size, _ = unit
        segment = self._commit_log.find(physical_offset)
        if segment is None:
            return False
        try:
            header = _head(SegmentReader(segment, _RECORD_BYTES), physical_offset - segment.start)
        except UnreadableError:
            return False
        if header is None or (header.physical_offset, header.size_bytes) != (physical_offset, size):
            return False
        return find_record_at(segment, physical_offset) is None

    def _next_that_leads(self, queue: ConsumeQueue, queue_offsets: range) -> Unit | None:
        for queue_offset in queue_offsets:
            unit = queue.unit(queue_offset) or self._unwritten.get((queue, queue_offset))
            if unit is not None and self._leads(queue, queue_offset, unit):
                return unit
        return None

    def _messages(
        self, queue: ConsumeQueue, queue_offset: int, begin: int, end: int
    ) -> Generator[Unit, None, bool]:
        """Yield the messages of a queue offset in a part of the log that begins with a record.

        Returns whether all of that part was looked at: none of it is damaged, and it is not large.
        """
        at, count = begin, 0
        while at < end:
            segment = self._commit_log.find(at)
            if segment is None:
                return False
            reader = SegmentReader(segment, _WINDOW_BYTES)
            while at < min(segment.end, end):
                try:
                    header = _head(reader, at - segment.start)
                    is_filler = header is None and reader.is_filler(at - segment.start)
                except UnreadableError:
                    return False
                if is_filler:
                    at = segment.end
                    break
                count += 1
                if header is None or header.physical_offset != at or count > _RECORDS_MOST:
                    return False
                if at - begin > _BYTES_MOST:
                    return False
                if (header.queue_id, header.queue_offset) == (queue.queue_id, queue_offset):
                    unit = self._unit_at(queue, segment, at)
                    if unit is not None:
                        yield unit
                at += header.size_bytes
        return True

    def _unit_at(self, queue: ConsumeQueue, segment: Segment, physical_offset: int) -> Unit | None:
        found = find_record_at(segment, physical_offset)
        return self._unit_of(*found) if found is not None and is_of(*found, queue) else None

    def _leads(self, queue: ConsumeQueue, queue_offset: int, unit: Unit) -> bool:
        """Tell whether a unit leads to a record that says it is the one of its queue offset."""
        physical_offset, size, _ = unit
        segment = self._commit_log.find(physical_offset)
        if segment is None or physical_offset >= self._commit_log.end:
            return False
        try:
            view, parts = SegmentReader(segment, _RECORD_BYTES).record(
                physical_offset - segment.start
            )
        except (ValueError, UnreadableError):
            return False
        place = (parts.header.size_bytes, parts.header.queue_offset)
        return place == (size, queue_offset) and is_of(view, parts, queue)


def _keep(table: dict[_Key, _T], key: _Key, value: _T) -> None:
    """Keep one more; the oldest goes where there are too many."""
    if len(table) >= _KEPT_MOST:
        del table[next(iter(table))]
    table[key] = value


def _head(reader: SegmentReader, position: int) -> RecordHeader | None:
    """Return what looks like the head of a record, None where nothing does.

    Raises:
        UnreadableError: it cannot be read.
    """
    data = reader.bytes_at(position, HEAD.size)
    if len(data) < HEAD.size:
        return None
    header = RecordHeader(*HEAD.unpack(data))
    is_record = header.magic in (MAGIC_V1, MAGIC_V2) and header.size_bytes >= FIXED_BYTES
    return header if is_record else None
