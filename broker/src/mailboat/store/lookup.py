"""Finding messages: by queue offset, properties, physical offset and time.

Every record that leaves the store has been checked against its checksum and against the place it
was asked for, each time it is read, in the very bytes that leave. Without the compiled core a read
of several records that was checked record by record is remembered by one checksum over all of it:
when the same read comes again (another consumer group, a replay), its bytes are compared with that;
the core checks as fast as that compares. So damage shows however
it came about and however often the records were read before, also in pages that this process wrote
itself or that were dropped from memory and read from the disk again.

Source: apache/rocketmq store/DefaultMessageStore.java (getMessage,
lookMessageByOffset) and store/ConsumeQueue.java (binarySearchInQueueByTime).
"""

import logging
import struct
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from mailboat.disk import UnreadableError
from mailboat.filtering.property_filter import PropertyFilter
from mailboat.model import compiled
from mailboat.model.record import (
    FIXED_BYTES,
    HEAD_V4,
    MAGIC_V1,
    RecordParts,
    locate,
)
from mailboat.model.sys_flag import BORN_HOST_V6, STORE_HOST_V6
from mailboat.store.commit_log import CommitLog
from mailboat.store.consume_queue import (
    BLANK_SIZE,
    UNIT,
    UNIT_BYTES,
    ConsumeQueue,
    blanks_before_message,
)
from mailboat.store.places import choose_places
from mailboat.store.record_check import RecordCheck, is_of
from mailboat.store.record_source import LogSource, RecordSource
from mailboat.store.segment_reader import find_record_at, read_record
from mailboat.store.unit_repair import UnitRepair

log = logging.getLogger(__name__)

Step = TypeVar("Step")
"""What a search yields while it waits for something."""

# Size, magic, queue offset, sysFlag, body size of a record whose hosts are IPv4.
_SHAPE: Final = struct.Struct(">iI12xq8xi44xi")
_SHAPE_BYTES: Final = _SHAPE.size
assert _SHAPE_BYTES == HEAD_V4.size
_ANY_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
# Units looked at in one call when most of them may be filtered out.
_SCAN_UNITS: Final = 800
# A read by properties looks at this many messages at once, and ends after this time, as does one
# that steps over damaged messages. So many more than it expects to need spare it to look once more.
_CHUNK_UNITS: Final = 256
_SPARE_UNITS: Final = 4
_CHUNK_BYTES: Final = 262_144
_SLICE_S: Final = 0.002
# Units of messages that are not there, skipped at once: 80 KB.
_BLANKS_TOGETHER: Final = 4096
# Damaged messages that a search by time looks at one by one: a lost segment has millions.
_DAMAGED_LOOKS: Final = 64


class GetStatus:
    """Outcome of a read by queue offset."""

    FOUND: Final = 0
    NO_MATCHED_MESSAGE: Final = 1
    NO_MESSAGE_IN_QUEUE: Final = 2
    OFFSET_OVERFLOW_ONE: Final = 3
    OFFSET_OVERFLOW_BADLY: Final = 4
    OFFSET_TOO_SMALL: Final = 5
    DAMAGED: Final = 6


class GetResult(NamedTuple):
    """Messages of one queue.

    `slices` are whole records, in order; `next_offset` is where to go on.
    """

    status: int
    next_offset: int
    min_offset: int
    max_offset: int
    slices: Sequence[bytes | memoryview]
    message_count: int
    size_bytes: int


class _Read(NamedTuple):
    """What was read of a queue's units: where to go on, and the records."""

    next_offset: int
    slices: list[bytes]
    message_count: int
    size_bytes: int


class _Matched:
    """The messages that a read by properties has found, and how many it may find."""

    __slots__ = ("_max_bytes", "_max_messages", "count", "size_bytes", "slices", "wanted")

    def __init__(self, wanted: PropertyFilter, max_messages: int, max_bytes: int) -> None:
        """Look for what `wanted` takes."""
        self.wanted = wanted
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self.slices: list[bytes | memoryview] = []
        self.count = 0
        self.size_bytes = 0

    @property
    def is_full(self) -> bool:
        """Tell whether there are as many records as were asked for."""
        return self.count >= self._max_messages

    def units_to_look_at(self, looked_at: int) -> int:
        """Return how many messages to look at next, by what was found among those so far."""
        units = self._max_messages - self.count
        if looked_at > self.count:
            units = units * looked_at // max(self.count, 1) + _SPARE_UNITS
        return min(units, _CHUNK_UNITS)

    def has_room(self, size_bytes: int) -> bool:
        """Tell whether one more record may go along."""
        return not self.count or self.size_bytes + size_bytes <= self._max_bytes

    def add(self, data: bytes, begin: int, end: int, count: int) -> None:
        """Take records along that lie back to back."""
        self.slices.append(data if end - begin == len(data) else memoryview(data)[begin:end])
        self.size_bytes += end - begin
        self.count += count

    def judge(self, data: bytes, at: int) -> int:
        """Let the core judge records from a position on; return that of the first it left."""
        condition = self.wanted.condition
        if condition is None or self.is_full:
            return at
        room_bytes = self._max_bytes - self.size_bytes
        runs, count, at = condition.judge(data, at, self._max_messages - self.count, room_bytes)
        for begin, end in runs:
            self.add(data, begin, end, 0)
        self.count += count
        return at


class Lookup:
    """Reads of one store."""

    def __init__(
        self,
        commit_log: CommitLog,
        repair: UnitRepair,
        *,
        skip_corrupt: bool,
        check_crc: bool,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Read from `commit_log`; `skip_corrupt` steps over damaged messages."""
        self._clock = clock
        self._commit_log = commit_log
        self._repair = repair
        self._skip_corrupt = skip_corrupt
        self._check_crc = check_crc
        self._log_source = LogSource(commit_log)
        self._record_check = RecordCheck(check_crc=check_crc)
        is_compiled = compiled.choose_places is not None
        self._choose = compiled.choose_places or choose_places
        self._are_whole = self._are_whole_compiled if is_compiled else self._record_check.are_whole
        self._reported_offset = -1
        self.on_damage: Callable[[int, int], None] = lambda _physical_offset, _size_bytes: None
        """Called with the place of a damaged message, and its size as the queue says it."""

        self.corrupt_records = 0
        """Reads of messages whose bytes were wrong or not there."""

        self.unreadable_records = 0
        """Reads of messages whose bytes the disk did not give."""

    def get_message(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        max_messages: int,
        max_bytes: int,
        tags_codes: frozenset[int] | None,
        source: RecordSource | None = None,
    ) -> GetResult:
        """Return messages from a queue offset on, the first one whatever its size.

        Args:
            queue: the queue to read.
            queue_offset: where to begin.
            max_messages: at most so many messages.
            max_bytes: stop before the record that would exceed this sum.
            tags_codes: only messages with one of these tagsCodes; None takes all.
            source: what was fetched from the disk before; None for what is in memory.

        Raises:
            OSError: a file cannot be read now. What is lost is damage, and raises nothing.
        """
        low, high = queue.min_offset, queue.max_offset
        if queue_offset < low or queue_offset >= high or high == 0:
            return _outside(queue_offset, low, high)
        if source is None:
            source = self._log_source
        units = source.units(queue, queue_offset, units_to_look_at(max_messages, tags_codes))
        if not units:
            return GetResult(GetStatus.NO_MATCHED_MESSAGE, queue_offset, low, high, [], 0, 0)
        wanted = (max_messages, max_bytes, tags_codes)
        read = self._read_together(source, queue, units, queue_offset, *wanted)
        if read is None:
            read = self._read_singly(source, queue, units, queue_offset, *wanted)
        at, slices, count, total = read
        if count:
            return GetResult(GetStatus.FOUND, at, low, high, slices, count, total)
        status = GetStatus.NO_MATCHED_MESSAGE if at > queue_offset else GetStatus.DAMAGED
        return GetResult(status, at, low, high, [], 0, 0)

    def get_matching_message(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        max_messages: int,
        max_bytes: int,
        wanted: PropertyFilter,
        scan_bytes: int,
        source: RecordSource | None = None,
    ) -> GetResult:
        """Return messages whose properties a filter takes, the first one whatever its size.

        Ends after two milliseconds, or after `scan_bytes` of records, even if nothing was found so
        far: a filter that takes nothing must not stop the event loop. The result says where to go
        on. Messages are judged after their checks, so that damage cannot hide one.

        Raises:
            OSError: a file cannot be read now. What is lost is damage, and raises nothing.
        """
        low, high = queue.min_offset, queue.max_offset
        if queue_offset < low or queue_offset >= high or high == 0:
            return _outside(queue_offset, low, high)
        if source is None:
            source = self._log_source
        matched = _Matched(wanted, max_messages, max_bytes)
        ends_at_s = self._clock() + _SLICE_S
        at = queue_offset
        units = b""
        while at < high and scan_bytes > 0:
            units = source.units(queue, at, matched.units_to_look_at(at - queue_offset))
            if not units:
                break
            read = self._read_chunk(source, queue, units, at)
            data = b"".join(read.slices)
            if not data and read.next_offset == at:
                break
            scan_bytes -= len(data)
            at = self._match(data, matched, read.next_offset, ends_at_s)
            if at < read.next_offset or matched.is_full or self._clock() > ends_at_s:
                break
        count, total = matched.count, matched.size_bytes
        if count:
            return GetResult(GetStatus.FOUND, at, low, high, matched.slices, count, total)
        # There are no units where those of a queue that is gone were fetched: all is asked again.
        is_damaged = at == queue_offset and units
        status = GetStatus.DAMAGED if is_damaged else GetStatus.NO_MATCHED_MESSAGE
        return GetResult(status, at, low, high, [], 0, 0)

    def _read_chunk(
        self, source: RecordSource, queue: ConsumeQueue, units: bytes, queue_offset: int
    ) -> "_Read":
        wanted = (_CHUNK_UNITS, _CHUNK_BYTES, None)
        read = self._read_together(source, queue, units, queue_offset, *wanted)
        if read is None:
            read = self._read_singly(source, queue, units, queue_offset, *wanted)
        return read

    def _match(self, data: bytes, matched: "_Matched", after: int, ends_at_s: float) -> int:
        """Judge checked records that lie back to back; return where to go on, `after` at the end.

        At least one record is judged.
        """
        queue_offset: int
        at = matched.judge(data, 0)
        while len(data) - at >= FIXED_BYTES:
            size, magic, queue_offset, sys_flag, body_size = _SHAPE.unpack_from(data, at)
            if matched.is_full or (at and self._clock() > ends_at_s):
                return queue_offset
            end = at + size
            topic_size_at = at + _SHAPE_BYTES + body_size
            if magic == MAGIC_V1 and not sys_flag & _ANY_V6 and topic_size_at < end:
                properties_at = topic_size_at + data[topic_size_at] + 3
            else:
                properties_at = _properties_at(data, at, end)
            if matched.wanted.matches_text(data, properties_at, end):
                if not matched.has_room(size):
                    return queue_offset
                matched.add(data, at, end, 1)
            at = matched.judge(data, end)
        return after

    def _read_together(
        self,
        source: RecordSource,
        queue: ConsumeQueue,
        units: bytes,
        queue_offset: int,
        max_messages: int,
        max_bytes: int,
        tags_codes: frozenset[int] | None,
    ) -> "_Read | None":
        """Copy and check all records of a read in one go.

        Returns:
            None when there is anything out of the ordinary, of which `_read_singly` then makes the
            best: damage, a record without checksum, the end of a segment.
        """
        chosen = self._choose(units, queue_offset, max_messages, max_bytes, tags_codes)
        if chosen is None:
            return None
        places, after, runs = chosen
        if not places:
            return _Read(after, [], 0, 0)
        body = source.copy(places, runs)
        if body is None or not self._are_whole(body, places, queue.topic_bytes, queue.queue_id):
            return None
        return _Read(after, [body], len(places) // UNIT_BYTES, len(body))

    def _are_whole_compiled(
        self, records: bytes, places: bytes, topic: bytes, queue_id: int
    ) -> bool:
        assert compiled.check_records is not None
        return compiled.check_records(records, places, topic, queue_id, self._check_crc) < 0

    def _read_singly(
        self,
        source: RecordSource,
        queue: ConsumeQueue,
        units: bytes,
        queue_offset: int,
        max_messages: int,
        max_bytes: int,
        tags_codes: frozenset[int] | None,
    ) -> "_Read":
        """Check record after record, up to the first damaged one or stepping over those.

        Damaged ones count for no limit, each may be as large as a message gets, and a unit that
        leads nowhere has the log searched: after some of them the read ends early.
        """
        records: list[bytes] = []
        at = queue_offset
        total = 0
        ends_at_s = self._clock() + _SLICE_S
        for physical_offset, size, code in UNIT.iter_unpack(units):
            if tags_codes is not None and code not in tags_codes:
                # What is no unit says nothing of tags: where it is not mended either, its message
                # may be one that is wanted, and counts as damaged.
                if size < FIXED_BYTES:
                    unit = self._repair.mend(queue, at, (physical_offset, size))
                    is_wanted = unit is None or unit[2] in tags_codes
                else:
                    is_wanted = False
                if not is_wanted:
                    at += 1
                    continue
            if records and (len(records) >= max_messages or total + size > max_bytes):
                break
            corrupt_records = self.corrupt_records
            record = self._readable_record(source, queue, at, (physical_offset, size))
            if record is not None:
                records.append(record)
                total += len(record)
            elif not self._skip_corrupt:
                break
            at += 1
            is_damaged = record is None or self.corrupt_records != corrupt_records
            if is_damaged and self._clock() > ends_at_s:
                break
        return _Read(at, records, len(records), total)

    def _readable_record(
        self, source: RecordSource, queue: ConsumeQueue, queue_offset: int, place: tuple[int, int]
    ) -> bytes | None:
        """Return a whole record; count what is damaged and say what is lost.

        `place` is its physical offset and its size, as its unit says them.
        """
        error = None
        try:
            record = self._whole_record(source, queue, queue_offset, place)
            if record is None:
                self.corrupt_records += 1
                unit = self._repair.mend(queue, queue_offset, place)
                if unit is not None:
                    place = unit[:2]
                    record = self._whole_record(self._log_source, queue, queue_offset, place)
        except UnreadableError as exc:
            record, error = None, exc
        if error is not None:
            self.unreadable_records += 1
            if place[0] != self._reported_offset:
                self._reported_offset = place[0]
                log.error("unreadable physical_offset=%d size_bytes=%d: %s", *place, error)
        if record is None and place[1] != BLANK_SIZE:
            self.on_damage(*place)
        return record

    def _whole_record(
        self, source: RecordSource, queue: ConsumeQueue, queue_offset: int, place: tuple[int, int]
    ) -> bytes | None:
        """Return the record asked for if it lies whole and unchanged at its place.

        Raises:
            UnreadableError: its bytes are lost.
            OSError: they cannot be read now.
        """
        physical_offset, size = place
        if size == BLANK_SIZE or size < FIXED_BYTES:
            return None
        record = source.record(physical_offset, size)
        if record is None:
            return None
        try:
            parts = read_record(memoryview(record), 0, physical_offset, check_crc=self._check_crc)
        except ValueError:
            return None
        said = (parts.header.size_bytes, parts.header.queue_offset)
        return record if said == (size, queue_offset) and is_of(record, parts, queue) else None

    def find(self, physical_offset: int) -> tuple[memoryview, RecordParts] | None:
        """Return bytes that begin with the record at a physical offset, and its parts in them.

        None where no good record begins there.

        Raises:
            OSError: a file cannot be read.
        """
        segment = self._commit_log.find(physical_offset)
        if segment is None or physical_offset >= self._commit_log.end:
            return None
        return find_record_at(segment, physical_offset)

    def record_at(self, physical_offset: int) -> bytes | None:
        """Return the record that begins at a physical offset, None when none does.

        Raises:
            OSError: a file cannot be read.
        """
        found = self.find(physical_offset)
        return None if found is None else bytes(found[0][: found[1].properties_end])

    def store_timestamp_ms(self, queue: ConsumeQueue, queue_offset: int) -> int:
        """Return a message's store time, -1 when it is not there.

        Raises:
            OSError: a file cannot be read.
        """
        unit = queue.unit(queue_offset)
        if unit is None or unit[1] == BLANK_SIZE:
            return -1
        return self._timestamp_at(queue, queue_offset, unit[0])

    def _timestamp_at(self, queue: ConsumeQueue, queue_offset: int, physical_offset: int) -> int:
        found = self.find(physical_offset)
        if found is None:
            return -1
        view, parts = found
        is_this = parts.header.queue_offset == queue_offset and is_of(view, parts, queue)
        return parts.store_timestamp_ms if is_this else -1

    def offset_by_time_steps(
        self,
        queue: ConsumeQueue,
        timestamp_ms: int,
        *,
        upper: bool,
        before_look: Callable[[int, int], Iterable[Step]],
    ) -> Generator[Step | None, None, int]:
        """Find the first queue offset stored at or after a time, `max_offset` when none was.

        With `upper` the last queue offset stored at or before the time, `min_offset` when none was.
        A step looks at one message, or at some thousand units without one; the steps of
        `before_look` at its queue offset, with a number of units, come first. What the queue loses
        between two steps is not found; 0 is returned once the queue is removed.

        Raises:
            OSError: a file cannot be read.
        """
        low, high = queue.min_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            found, time_ms = yield from self._readable_time(queue, middle, high, before_look)
            is_before = time_ms <= timestamp_ms if upper else time_ms < timestamp_ms
            if found < high and is_before:
                low = found + 1
            else:
                high = middle
            yield None
        if queue.is_removed:
            return 0
        return max(low - 1 if upper else low, queue.min_offset)

    def _readable_time(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        limit: int,
        before_look: Callable[[int, int], Iterable[Step]],
    ) -> Generator[Step | None, None, tuple[int, int]]:
        """Find a message with a readable time and the time, `limit` when there is none.

        It is the next one, unless very many are damaged: then steps grow, and whole ones between
        damaged ones may be passed over. So an answer comes soon, and is too early rather than too
        late. Each unit may be the one; behind one that is blank there are often many more.
        """
        count, step, damaged = 1, 1, 0
        while queue_offset < limit and not queue.is_removed:
            yield from before_look(max(queue_offset, queue.min_offset), count)
            if queue.is_removed:
                break
            queue_offset = max(queue_offset, queue.min_offset)
            units = queue.read_units(queue_offset, min(count, limit - queue_offset))
            blanks = blanks_before_message(units)
            queue_offset += blanks
            count = _BLANKS_TOGETHER
            if blanks == 0 or blanks * UNIT_BYTES < len(units):
                count = 1
                if units:
                    physical_offset, _, _ = UNIT.unpack_from(units, blanks * UNIT_BYTES)
                    if blanks:
                        yield from before_look(queue_offset, 1)
                    time_ms = self._timestamp_at(queue, queue_offset, physical_offset)
                    if time_ms >= 0:
                        return queue_offset, time_ms
                damaged += 1
                if damaged >= _DAMAGED_LOOKS:
                    step *= 2
                queue_offset += step
            yield None
        return limit, 0


def units_to_look_at(max_messages: int, tags_codes: frozenset[int] | None) -> int:
    """Return how many units a read of so many messages looks at."""
    return max_messages if tags_codes is None else max(max_messages, _SCAN_UNITS)


def _properties_at(data: bytes, position: int, end: int) -> int:
    """Return where the properties of any record begin, its end if it is none."""
    try:
        return locate(data, position, end).properties_at
    except ValueError:
        return end


def _outside(queue_offset: int, low: int, high: int) -> GetResult:
    if high == 0:
        status, next_offset = GetStatus.NO_MESSAGE_IN_QUEUE, 0
    elif queue_offset < low:
        status, next_offset = GetStatus.OFFSET_TOO_SMALL, low
    elif queue_offset == high:
        status, next_offset = GetStatus.OFFSET_OVERFLOW_ONE, high
    else:
        status, next_offset = GetStatus.OFFSET_OVERFLOW_BADLY, high
    return GetResult(status, next_offset, low, high, [], 0, 0)
