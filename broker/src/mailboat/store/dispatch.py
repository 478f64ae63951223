"""From stored records to what is derived from them: ConsumeQueue units and index keys.

While the store runs, the writer hands over what it already knows (`dispatch_put`); after a crash
the records are read again (`dispatch_record`). A message becomes visible here. With SYNC_FLUSH that
happens only once it is flushed, so that no consumer sees what a power cut could take back.

Source: apache/rocketmq store/DefaultMessageStore.java (ReputMessageService, CommitLogDispatcher).
"""

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import starmap
from operator import attrgetter
from typing import Final, NamedTuple

from mailboat.disk import NO_ROOM
from mailboat.model import compiled
from mailboat.model.delay_level import DelayLevels
from mailboat.model.names import SCHEDULE_TOPIC, is_file_name
from mailboat.model.properties import PropertyName, decode_properties
from mailboat.model.record import FIXED_BYTES, RecordHeader, RecordParts
from mailboat.model.sys_flag import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from mailboat.model.tags import tags_code
from mailboat.store import index_backlog
from mailboat.store.consume_queue import UNIT, UNIT_BYTES, ConsumeQueue
from mailboat.store.deleted_topics import DeletedTopics
from mailboat.store.derived import Derived, Keys, UnitsOfQueue, keys_alone, units_of_messages
from mailboat.store.index_backlog import IndexedRecord
from mailboat.store.index_service import IndexService
from mailboat.store.message_inner import MessageInner, PreparedRecords
from mailboat.store.queue_table import QueueSync, QueueTable
from mailboat.store.recovery import NOTHING_TAKEN, BlockListener, Taken
from mailboat.store.segment_reader import read_record

log = logging.getLogger(__name__)

# Of transactions, what no consumer sees.
_HIDDEN: Final = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)

_IS_REMOVED: Final = attrgetter("queue.is_removed")
_MOST_QUEUE_OFFSET: Final = 1 << 58
# More messages than this are missing from a queue only where the log had room for them.
_MISSING_AT_LEAST: Final = 1_000_000
_UNIT_BYTES_A_WRITE: Final = 4096 * UNIT_BYTES
_EVERYTHING: Final = 1 << 62

ArrivalListener = Callable[[Iterable[ConsumeQueue]], None]


class Waiting(NamedTuple):
    """Records that are to become visible once the log is released up to their end."""

    derived: Derived
    size_bytes: int
    is_followed: bool
    """Another broker wrote them: their queues count on behind them."""


class Dispatch:
    """Builds the derived files; `dispatched_offset` is how far they are complete in memory."""

    def __init__(
        self,
        queues: QueueTable,
        index: IndexService,
        delay_levels: DelayLevels,
        deleted: DeletedTopics,
        *,
        index_enabled: bool,
        holds_back: bool,
    ) -> None:
        """Build for one store; `holds_back` what is put until `release`."""
        self._queues = queues
        self._index = index
        self._delay_levels = delay_levels
        self._deleted = deleted
        self._index_enabled = index_enabled
        self._holds_back = holds_back
        self._waiting: deque[Waiting] = deque()
        self.held_bytes = 0
        """About how much memory takes what is held back, and the answers to who sent it."""

        self.shown_end = _EVERYTHING
        """What is taken from the log at or above it is held back until `release`."""

        self.on_arrival: ArrivalListener | None = None
        self.dispatched_offset = 0
        self.last_store_timestamp_ms = 0

    def dispatch_put(
        self,
        messages: list[MessageInner],
        queues: list[ConsumeQueue],
        end: int,
        store_timestamp_ms: int,
    ) -> None:
        """Take over freshly written messages; `end` is the physical offset after the last."""
        keys: list[Keys] = []
        if self._index_enabled:
            # Bodies would stay in memory for as long as the disk hangs.
            indexed = keys_alone(messages) if self._holds_back else messages
            keys.append(Keys(indexed, messages[0].physical_offset, store_timestamp_ms))
        units = units_of_messages(messages, queues, end)
        self._take_over(Derived(units, keys, end, store_timestamp_ms, is_read_back=False))

    def dispatch_prepared(
        self, prepared: PreparedRecords, end: int, store_timestamp_ms: int
    ) -> None:
        """Give out the queue offsets of freshly written records, and take them over as messages."""
        units: list[UnitsOfQueue] = []
        for queue, count, of_queue, physical_end in prepared.queues:
            units.append(UnitsOfQueue(queue, queue.next_offset, of_queue, physical_end))
            queue.next_offset += count
        keys: list[Keys] = []
        if prepared.keys and self._index_enabled:
            keys.append(Keys(prepared.keys, end - prepared.size_bytes, store_timestamp_ms))
        self._take_over(Derived(units, keys, end, store_timestamp_ms, is_read_back=False))

    def _take_over(self, derived: Derived) -> None:
        if self._holds_back:
            self._hold(_waiting(derived, is_followed=False))
        else:
            self._publish(derived)

    def _hold(self, entry: Waiting) -> None:
        self._waiting.append(entry)
        self.held_bytes += entry.size_bytes
        _count_followed(entry)

    def release(self, physical_offset: int, is_time_up: Callable[[], bool] = lambda: False) -> bool:
        """Make visible what was held back and lies below a physical offset, or some of it.

        Returns:
            Whether that was all of it, before `is_time_up` said that the time was up.
        """
        waiting = self._waiting
        while waiting and waiting[0].derived.end <= physical_offset:
            entry = waiting.popleft()
            self.held_bytes -= entry.size_bytes
            self._publish(entry.derived)
            if is_time_up():
                break
        return not self.is_holding_below(physical_offset)

    @property
    def is_holding(self) -> bool:
        """Whether something is held back."""
        return bool(self._waiting)

    def is_holding_below(self, physical_offset: int) -> bool:
        """Tell whether something is held back that ends at or below a physical offset."""
        return bool(self._waiting) and self._waiting[0].derived.end <= physical_offset

    def is_queued(self, queue: ConsumeQueue, queue_offset: int, place: tuple[int, int]) -> bool:
        """Tell whether a message of a queue lies at this place; also while it is held back.

        Args:
            queue: the queue.
            queue_offset: the message's.
            place: physical offset and size.

        Raises:
            OSError: the queue's file cannot be read.
        """
        if queue_offset < queue.max_offset:
            unit = queue.unit(queue_offset)
            return unit is not None and unit[:2] == place
        waiting = self._waiting
        at = bisect_right(waiting, place[0], key=lambda entry: entry.derived.end)
        for each in waiting[at].derived.queues if at < len(waiting) else ():
            if each.queue is queue and each.queue_offset <= queue_offset < each.end:
                index = (queue_offset - each.queue_offset) * UNIT_BYTES
                return UNIT.unpack_from(each.units, index)[:2] == place
        return False

    def forget_above(self, physical_offset: int) -> int:
        """Drop what is held back of a log that ends there now, and what queues counted of it.

        Returns:
            The physical offset where what is still held back ends. Records between it and the end
            of the log were held back together with others that are gone: hold them anew.
        """
        waiting = self._waiting
        # A damaged end that was closed with a filler counts as shown.
        self.dispatched_offset = min(self.dispatched_offset, physical_offset)
        followed = [entry.derived for entry in waiting if entry.is_followed]
        queues = {each.queue for derived in followed for each in derived.queues}
        while waiting and waiting[-1].derived.end > physical_offset:
            self.held_bytes -= waiting.pop().size_bytes
        for queue in queues:
            queue.next_offset = queue.max_offset
        self.count_held()
        return waiting[-1].derived.end if waiting else self.dispatched_offset

    def count_held(self) -> None:
        """Have the queues of what is held back go on behind it: this broker writes from now on."""
        for entry in self._waiting:
            _count_followed(entry)

    def _publish(self, derived: Derived) -> None:
        """Make messages visible, but those of topics that were deleted meanwhile.

        Raises:
            OSError: a file could not be written, of records that were read from the log.
        """
        if any(map(_IS_REMOVED, derived.queues)):
            derived = derived.without_removed()
        if derived.is_read_back:
            for each in derived.queues:
                self._append_fitting(each)
            self._index_read_back(derived.keys)
        else:
            for queue, _, units, physical_end in derived.queues:
                queue.append_units(units, physical_end)
                if not queue.is_dirty:
                    self._queues.mark_dirty(queue)
            for indexed, physical_offset, store_timestamp_ms in derived.keys:
                if isinstance(indexed, bytes):
                    self._index.put_rows(indexed, physical_offset, store_timestamp_ms)
                elif indexed:
                    self._index.put_messages(indexed, store_timestamp_ms)
        self.dispatched_offset = derived.end
        self.last_store_timestamp_ms = max(self.last_store_timestamp_ms, derived.newest_ms)
        self._arrived([each.queue for each in derived.queues])

    def _index_read_back(self, keys: Sequence[Keys]) -> None:
        """Index keys of records that were read, however long it takes: all of them may wait."""
        if self._index.gap is not None:
            return
        try:
            if any(isinstance(each.indexed, bytes) for each in keys):
                self._index.build()
            self._put_records(keys)
        except OSError as exc:
            if exc.errno not in NO_ROOM:
                raise

    def _put_records(self, keys: Sequence[Keys]) -> None:
        for indexed, physical_offset, store_timestamp_ms in keys:
            if isinstance(indexed, bytes):
                self._index.put_rows(indexed, physical_offset, store_timestamp_ms)
                continue
            for record in indexed:
                self._index.put_record(record, store_timestamp_ms)

    # -- from the CommitLog ---------------------------------------------------------------------

    def dispatch_record(self, buffer: memoryview, parts: RecordParts) -> None:
        """Build the derived entries of one record; what is there already is left alone.

        A record that was stored before its topic was deleted has none.

        Raises:
            OSError: a file could not be written.
        """
        derived = self._derive(buffer, parts)
        if derived.end > self.shown_end:
            self._hold(_waiting(derived, is_followed=True))
        else:
            self._publish(derived)

    def _derive(self, buffer: memoryview, parts: RecordParts) -> Derived:
        """Return what one record adds, nothing where it was stored before its topic was deleted."""
        header = parts.header
        end = header.physical_offset + header.size_bytes
        topic = _topic_of(buffer, parts)
        stored_ms = parts.store_timestamp_ms
        if not _can_be_queued(topic, header):
            log.warning("skipped what no broker stores physical_offset=%d", header.physical_offset)
            return Derived([], [], end, stored_ms, is_read_back=True)
        if self._deleted.is_gone(topic, header.physical_offset):
            return Derived([], [], end, stored_ms, is_read_back=True)
        queues: list[UnitsOfQueue] = []
        keys: list[Keys] = []
        transaction = header.sys_flag & TRANSACTION_MASK
        properties = _properties_of(buffer, parts)
        if transaction not in _HIDDEN:
            queue = self._queues.get_or_add(topic, header.queue_id)
            code = self._tags_code(topic, properties, parts)
            unit = UNIT.pack(header.physical_offset, header.size_bytes, code)
            queues.append(UnitsOfQueue(queue, header.queue_offset, unit, end))
        if self._index_enabled and transaction != TRANSACTION_ROLLBACK:
            record = _keys_of(topic, properties, parts)
            keys.append(Keys((record,), header.physical_offset, stored_ms))
        return Derived(queues, keys, end, stored_ms, is_read_back=True)

    def mend_record(
        self, buffer: memoryview, parts: RecordParts, *, is_noted: bool
    ) -> QueueSync | None:
        """Build the entries of a record that was damaged, where they are missing.

        Everything below it is shown. With `is_noted` it was damaged before the store was opened:
        then there is nothing yet. Returns a queue whose file has changed.

        Raises:
            OSError: a file could not be written; the call may be repeated.
        """
        derived = self._derive(buffer, parts)
        is_missing = is_noted
        changed = None
        for each in derived.queues:
            queue, queue_offset, unit, _ = each
            if queue_offset >= queue.max_offset:
                self._append_fitting(each)
                is_missing = True
            else:
                is_missing |= queue.fill_blank(queue_offset, unit)
                changed = QueueSync(queue, queue_offset * UNIT_BYTES)
            self._arrived([queue])
        gap = self._index.gap
        if is_missing and (gap is None or parts.header.physical_offset < gap):
            self._put_records(derived.keys)
        return changed

    def unit_of(self, buffer: memoryview, parts: RecordParts) -> tuple[int, int, int] | None:
        """Return the unit by which a record is found in its queue, None where none finds it."""
        queues = self._derive(buffer, parts).queues
        return UNIT.unpack(queues[0].units) if queues else None

    def _arrived(self, queues: Sequence[ConsumeQueue]) -> None:
        if self.on_arrival is not None:
            self.on_arrival(queues)

    @property
    def on_block(self) -> BlockListener | None:
        """Does what `dispatch_record` does for many records at once; None without the core."""
        return None if compiled.scan_records is None else self._dispatch_block

    def _dispatch_block(self, data: bytes, at: int, physical_offset: int, check_crc: bool) -> Taken:
        taken, block = self._scan_block(data, at, physical_offset, check_crc)
        if block is None:
            return taken
        if physical_offset >= self.shown_end:
            self._hold(_waiting(block, is_followed=True))
        else:
            self._publish(block)
        return taken

    def _scan_block(
        self, data: bytes, at: int, physical_offset: int, check_crc: bool
    ) -> tuple[Taken, Derived | None]:
        assert compiled.scan_records is not None
        with_keys = self._index_enabled and self._index.gap is None
        most_rows = index_backlog.BACKLOG_MESSAGES if with_keys else 0
        is_held = physical_offset >= self.shown_end
        shown_bytes = self.shown_end - physical_offset
        if not is_held and len(data) - at > shown_bytes:
            data = data[: at + shown_bytes]
        size_bytes, records, last_ms, newest_ms, by_queue, keys = compiled.scan_records(
            data, at, physical_offset, check_crc, most_rows
        )
        if not records:
            return NOTHING_TAKEN, None
        queues: list[UnitsOfQueue] = []
        for found in by_queue:
            queue = self._queue_of(found, is_held=is_held)
            if queue is None:
                return Taken(size_bytes, 0, 0, 0), None
            _, _, queue_offset, _, units, physical_end = found
            queues.append(UnitsOfQueue(queue, queue_offset, units, physical_end))
        taken = Taken(size_bytes, records, last_ms, newest_ms)
        end = physical_offset + size_bytes
        of_keys = list(starmap(Keys, keys))
        return taken, Derived(queues, of_keys, end, newest_ms, is_read_back=True)

    def check_followed(self, data: bytes, physical_offset: int) -> list[Waiting]:
        """Look at whole records that another broker has at a physical offset.

        Returns:
            What `hold_followed` takes once they are written.

        Raises:
            ValueError: one of them is damaged, or belongs elsewhere.
        """
        entries = []
        view = memoryview(data)
        at = blocks_from = 0
        while at < len(data):
            if compiled.scan_records is not None and at >= blocks_from:
                taken, block = self._scan_block(data, at, physical_offset + at, True)
                blocks_from = at + taken.size_bytes
                if block is not None:
                    entries.append(_waiting(block, is_followed=True))
                    at = blocks_from
                    continue
            parts = read_record(view, at, physical_offset + at, check_crc=True)
            derived = self._derive(view, parts)
            entries.append(_waiting(derived, is_followed=True))
            at += parts.header.size_bytes
        return entries

    def hold_followed(self, entries: list[Waiting]) -> None:
        """Take over records that another broker wrote; `release` makes them visible."""
        for entry in entries:
            self._hold(entry)

    def _queue_of(self, found: compiled.QueueUnits, *, is_held: bool) -> ConsumeQueue | None:
        """Return the queue to which units are added as they are, None where they need a look."""
        topic, queue_id, queue_offset, physical_offset, _, _ = found
        if self._deleted.is_gone(topic, physical_offset):
            return None
        queue = self._queues.get_or_add(topic, queue_id)
        end = queue.next_offset if is_held else queue.max_offset
        is_next = queue_offset == end or end == queue.min_offset == 0
        return queue if is_next else None

    def _tags_code(self, topic: str, properties: dict[str, str], parts: RecordParts) -> int:
        if topic == SCHEDULE_TOPIC:
            return self._delay_levels.deliver_ms(properties, parts.store_timestamp_ms)
        return tags_code(properties.get(PropertyName.TAGS))

    def index_record(self, buffer: memoryview, parts: RecordParts) -> None:
        """Add only the keys of one record.

        Raises:
            OSError: a file could not be written.
        """
        if parts.header.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            return
        topic = _topic_of(buffer, parts)
        if self._deleted.is_gone(topic, parts.header.physical_offset):
            return
        record = _keys_of(topic, _properties_of(buffer, parts), parts)
        self._index.put_record(record, parts.store_timestamp_ms)

    def _append_fitting(self, of_queue: UnitsOfQueue) -> None:
        """Add units that follow each other, but those in front that the queue does not take.

        What was held back followed records which counted as those of its queue. Where the log
        gives queue offsets again, or leaps, the queue has not taken these. A unit takes the place
        of a blank: the end of the log may have been damaged, and comes once more.
        """
        queue, queue_offset, units, physical_end = of_queue
        for at in range(0, len(units), UNIT_BYTES):
            unit, number = units[at : at + UNIT_BYTES], queue_offset + at // UNIT_BYTES
            if 0 < number < queue.max_offset and queue.fill_blank(number, unit):
                continue
            if self._makes_place(queue, number, UNIT.unpack(unit)[0]):
                self._append(queue, units[at:], physical_end)
                return

    def _makes_place(self, queue: ConsumeQueue, queue_offset: int, physical_offset: int) -> bool:
        """Have a queue end at a queue offset; tell whether it takes what the log has there."""
        if queue_offset == 0 < queue.max_offset:
            # Only a deleted topic's successor counts from 0 again. RocketMQ keeps no note of it.
            log.warning(
                "began anew topic=%s queue_id=%d physical_offset=%d",
                queue.topic,
                queue.queue_id,
                physical_offset,
            )
            queue.begin_anew()
        if queue_offset < queue.max_offset:
            # RocketMQ skips what it has built already; a log can hold an offset twice only if
            # its own writer did wrong.
            log.warning(
                "skipped a second queue_offset=%d topic=%s queue_id=%d physical_offset=%d",
                queue_offset,
                queue.topic,
                queue.queue_id,
                physical_offset,
            )
            return False
        missing = queue_offset - queue.max_offset
        if missing and queue.max_offset > queue.min_offset:
            room_bytes = physical_offset - queue.last_physical_end
            if missing > room_bytes // FIXED_BYTES + _MISSING_AT_LEAST:
                log.warning(
                    "skipped queue_offset=%d behind %d: no log had so many between topic=%s "
                    "queue_id=%d physical_offset=%d",
                    queue_offset,
                    queue.max_offset,
                    queue.topic,
                    queue.queue_id,
                    physical_offset,
                )
                return False
        if missing:
            if queue.max_offset == queue.min_offset == 0:
                queue.begin_at(queue_offset)
            else:
                queue.append_blanks(queue_offset)
        return True

    def _append(self, queue: ConsumeQueue, units: bytes, physical_end: int) -> None:
        """Add units of records to their queue, and write some now and then."""
        times = queue.pending_bytes // _UNIT_BYTES_A_WRITE
        queue.append_units(units, physical_end)
        queue.next_offset = max(queue.next_offset, queue.max_offset)
        self._queues.mark_dirty(queue)
        if queue.pending_bytes // _UNIT_BYTES_A_WRITE == times:
            return
        try:
            self._queues.write_some(1 << 30)
        except OSError as exc:
            # In memory they are as good: a start makes no room by waiting. It is tried again so
            # many units later.
            if exc.errno not in NO_ROOM:
                raise


def _waiting(derived: Derived, *, is_followed: bool) -> Waiting:
    return Waiting(derived, derived.size_bytes(), is_followed)


def _count_followed(entry: Waiting) -> None:
    """Have the queues of records that another broker wrote go on behind them."""
    if entry.is_followed:
        for each in entry.derived.queues:
            each.queue.next_offset = each.end


def _topic_of(buffer: memoryview, parts: RecordParts) -> str:
    return str(buffer[parts.topic_at : parts.topic_end], "utf-8", "replace")


def _properties_of(buffer: memoryview, parts: RecordParts) -> dict[str, str]:
    text = str(buffer[parts.properties_at : parts.properties_end], "utf-8", "replace")
    return decode_properties(text)


def _keys_of(topic: str, properties: dict[str, str], parts: RecordParts) -> IndexedRecord:
    unique_key, keys = properties.get(PropertyName.UNIQ_KEY), properties.get(PropertyName.KEYS)
    return IndexedRecord(topic, unique_key, keys, parts.header.physical_offset)


def _can_be_queued(topic: str, header: RecordHeader) -> bool:
    """Tell whether a record says of its queue what a broker may have stored.

    Behind damage the log is searched for good records, and a body may hold what looks like one.
    """
    is_place = header.queue_id >= 0 and 0 <= header.queue_offset <= _MOST_QUEUE_OFFSET
    return is_place and is_file_name(topic)
