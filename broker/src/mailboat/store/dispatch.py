"""From stored records to what is derived from them: ConsumeQueue units and index keys.

While the store runs, the writer hands over what it already knows (`dispatch_put`); after a crash
the records are read again (`dispatch_record`). A message becomes visible here. With SYNC_FLUSH that
happens only once it is flushed, so that no consumer sees what a power cut could take back.

Source: apache/rocketmq store/DefaultMessageStore.java (ReputMessageService, CommitLogDispatcher).
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import starmap
from operator import attrgetter
from typing import Final, NamedTuple

from mailboat.disk import NO_ROOM
from mailboat.model import compiled
from mailboat.model.delay_level import DelayLevels
from mailboat.model.names import SCHEDULE_TOPIC, is_file_name
from mailboat.model.properties import PropertyName, decode_properties
from mailboat.model.record import FIXED_BYTES, RecordHeader, RecordParts, locate
from mailboat.model.sys_flag import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from mailboat.model.tags import tags_code
from mailboat.store import index_backlog
from mailboat.store.consume_queue import UNIT, UNIT_BYTES, ConsumeQueue
from mailboat.store.deleted_topics import DeletedTopics
from mailboat.store.index_backlog import IndexedRecord
from mailboat.store.index_rows import ROW
from mailboat.store.index_service import IndexService
from mailboat.store.message_inner import MessageInner, PreparedRecords
from mailboat.store.queue_table import QueueSync, QueueTable
from mailboat.store.recovery import NOTHING_TAKEN, BlockListener, Taken
from mailboat.store.segment_reader import read_record

log = logging.getLogger(__name__)

# Of transactions, what no consumer sees.
_HIDDEN: Final = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
_IS_REMOVED: Final = attrgetter("is_removed")
_UNIT_FIELDS: Final = attrgetter("physical_offset", "size_bytes", "tags_code")

_MOST_QUEUE_OFFSET: Final = 1 << 58
# More messages than this are missing from a queue only where the log had room for them.
_MISSING_AT_LEAST: Final = 1_000_000
_UNIT_BYTES_A_WRITE: Final = 4096 * UNIT_BYTES
_EVERYTHING: Final = 1 << 62

ArrivalListener = Callable[[Iterable[ConsumeQueue]], None]


class Waiting(NamedTuple):
    """Records that are to become visible once the log is released up to `end`."""

    end: int
    publish: Callable[[], object]
    newest_ms: int = 0
    followed: Collection[tuple[ConsumeQueue, int]] = ()
    """Of records that another broker wrote: how far each of their queues goes."""


@dataclass(frozen=True, slots=True)
class _Block:
    """What the core found in records that lie back to back."""

    queues: list[ConsumeQueue]
    units: list[compiled.QueueUnits]
    keys: list[compiled.KeyRows]
    end: int
    newest_ms: int

    def without_removed(self) -> "_Block":
        """Return it without the messages of topics that are deleted."""
        pairs = list(zip(self.queues, self.units, strict=True))
        gone = b"".join([found[4] for queue, found in pairs if queue.is_removed])
        kept = [pair for pair in pairs if not pair[0].is_removed]
        return replace(
            self,
            queues=[queue for queue, _ in kept],
            units=[found for _, found in kept],
            keys=[(_without(rows, gone), at, stored_ms) for rows, at, stored_ms in self.keys],
        )


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
        if self._holds_back:
            publish = partial(self._publish, messages, queues, end, store_timestamp_ms)
            self._waiting.append(Waiting(end, publish))
        else:
            self._publish(messages, queues, end, store_timestamp_ms)

    def dispatch_prepared(
        self,
        prepared: PreparedRecords,
        end: int,
        store_timestamp_ms: int,
        *,
        is_released: bool = False,
    ) -> None:
        """Give out the queue offsets of freshly written records, and take them over as messages.

        `is_released` are those that were held back before.
        """
        if not is_released:
            for queue, count, _, _ in prepared.queues:
                queue.next_offset += count
            if self._holds_back:
                publish = partial(
                    self.dispatch_prepared, prepared, end, store_timestamp_ms, is_released=True
                )
                self._waiting.append(Waiting(end, publish))
                return
        touched: list[ConsumeQueue] = []
        keys = prepared.keys
        for queue, _, units, physical_end in prepared.queues:
            if queue.is_removed:
                keys = _without(keys, units)
            else:
                queue.append_units(units, physical_end)
                touched.append(queue)
        if keys and self._index_enabled:
            self._index.put_rows(keys, end - len(prepared.records), store_timestamp_ms)
        self._published(touched, end, store_timestamp_ms)

    def release(self, physical_offset: int) -> None:
        """Make visible what was held back and lies below a physical offset."""
        waiting = self._waiting
        while waiting and waiting[0].end <= physical_offset:
            waiting.popleft().publish()

    def has_shown(self, physical_offset: int) -> bool:
        """Tell whether nothing below a physical offset is held back."""
        return not self._waiting or self._waiting[0].end > physical_offset

    @property
    def is_holding(self) -> bool:
        """Whether something is held back."""
        return bool(self._waiting)

    def is_holding_below(self, physical_offset: int) -> bool:
        """Tell whether something is held back that ends at or below a physical offset."""
        return bool(self._waiting) and self._waiting[0].end <= physical_offset

    def forget_above(self, physical_offset: int) -> int:
        """Drop what is held back of a log that ends there now, and what queues counted of it.

        Returns:
            The physical offset where what is still held back ends. Records between it and the end
            of the log were held back together with others that are gone: hold them anew.
        """
        waiting = self._waiting
        # A damaged end that was closed with a filler counts as shown.
        self.dispatched_offset = min(self.dispatched_offset, physical_offset)
        queues = {queue for entry in waiting for queue, _ in entry.followed}
        while waiting and waiting[-1].end > physical_offset:
            waiting.pop()
        for queue in queues:
            queue.next_offset = queue.max_offset
        self.count_held()
        return waiting[-1].end if waiting else self.dispatched_offset

    def count_held(self) -> None:
        """Have the queues of what is held back go on behind it: this broker writes from now on."""
        for entry in self._waiting:
            _count_followed(entry)

    def _publish(
        self,
        messages: list[MessageInner],
        queues: list[ConsumeQueue],
        end: int,
        store_timestamp_ms: int,
    ) -> None:
        # In order of arrival, so that the same sends always make the same files.
        touched = dict.fromkeys(queues)
        if any(map(_IS_REMOVED, touched)):
            pairs = [pair for pair in zip(messages, queues, strict=True) if not pair[1].is_removed]
            messages, queues = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
            touched = dict.fromkeys(queues)
        units = starmap(UNIT.pack, map(_UNIT_FIELDS, messages))
        if len(touched) == 1:
            queues[0].append_units(b"".join(units), end)
        else:
            for queue, unit in zip(queues, units, strict=True):
                queue.append_units(unit, end)
        if messages and self._index_enabled:
            self._index.put_messages(messages, store_timestamp_ms)
        self._published(touched, end, store_timestamp_ms)

    def _published(
        self, touched: Collection[ConsumeQueue], end: int, store_timestamp_ms: int
    ) -> None:
        for queue in touched:
            if not queue.is_dirty:
                self._queues.mark_dirty(queue)
        self.dispatched_offset = end
        self.last_store_timestamp_ms = store_timestamp_ms
        if self.on_arrival is not None:
            self.on_arrival(touched)

    # -- from the CommitLog ---------------------------------------------------------------------

    def dispatch_record(self, buffer: memoryview, parts: RecordParts) -> None:
        """Build the derived entries of one record; what is there already is left alone.

        A record that was stored before its topic was deleted has none.

        Raises:
            OSError: a file could not be written.
        """
        header = parts.header
        end = header.physical_offset + header.size_bytes
        if end > self.shown_end:
            self._hold(self._held_record(buffer, parts))
        else:
            self._dispatch_record(buffer, parts)

    def _dispatch_record(self, buffer: memoryview, parts: RecordParts) -> ConsumeQueue | None:
        header = parts.header
        queue = None
        topic = _topic_of(buffer, parts)
        if not _can_be_queued(topic, header):
            log.warning("skipped what no broker stores physical_offset=%d", header.physical_offset)
        elif not self._deleted.is_gone(topic, header.physical_offset):
            queue = self._derive(buffer, parts, topic)
        self.dispatched_offset = header.physical_offset + header.size_bytes
        self.last_store_timestamp_ms = max(self.last_store_timestamp_ms, parts.store_timestamp_ms)
        return queue

    def mend_record(
        self, buffer: memoryview, parts: RecordParts, *, is_noted: bool
    ) -> QueueSync | None:
        """Build the entries of a record that was damaged, where they are missing.

        Everything below it is shown. With `is_noted` it was damaged before the store was opened:
        then there is nothing yet. Returns a queue whose file has changed.

        Raises:
            OSError: a file could not be written; the call may be repeated.
        """
        header = parts.header
        topic = _topic_of(buffer, parts)
        if not _can_be_queued(topic, header) or self._deleted.is_gone(
            topic, header.physical_offset
        ):
            return None
        text = str(buffer[parts.properties_at : parts.properties_end], "utf-8", "replace")
        properties = decode_properties(text)
        is_missing = is_noted
        changed = None
        if header.sys_flag & TRANSACTION_MASK not in _HIDDEN:
            queue = self._queues.get_or_add(topic, header.queue_id)
            code = self._tags_code(topic, properties, parts)
            if header.queue_offset >= queue.max_offset:
                self._restore_unit(queue, parts, code)
                is_missing = True
            else:
                unit = UNIT.pack(header.physical_offset, header.size_bytes, code)
                is_missing |= queue.fill_blank(header.queue_offset, unit)
                changed = QueueSync(queue, header.queue_offset * UNIT_BYTES)
            self._arrived([queue])
        gap = self._index.gap
        if is_missing and self._index_enabled and (gap is None or header.physical_offset < gap):
            if header.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
                self._index_keys(topic, properties, parts)
        return changed

    def _held_record(self, buffer: memoryview, parts: RecordParts) -> Waiting:
        header = parts.header
        topic = _topic_of(buffer, parts)
        followed: Collection[tuple[ConsumeQueue, int]] = ()
        is_shown = header.sys_flag & TRANSACTION_MASK not in _HIDDEN
        if is_shown and _can_be_queued(topic, header):
            if not self._deleted.is_gone(topic, header.physical_offset):
                queue = self._queues.get_or_add(topic, header.queue_id)
                followed = ((queue, header.queue_offset + 1),)
        start = parts.properties_end - header.size_bytes
        # Bytes of its own: those of the buffer are many more, and others soon.
        kept = memoryview(bytes(buffer[start : parts.properties_end]))
        moved = locate(kept, 0, len(kept))

        def publish() -> None:
            queue = self._dispatch_record(kept, moved)
            self._arrived([] if queue is None else [queue])

        end = header.physical_offset + header.size_bytes
        return Waiting(end, publish, parts.store_timestamp_ms, followed)

    def _hold(self, entry: Waiting) -> None:
        self._waiting.append(entry)
        _count_followed(entry)

    def _arrived(self, queues: Collection[ConsumeQueue]) -> None:
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
            self._hold(self._held_block(block))
        else:
            self._publish_block(block)
        return taken

    def _scan_block(
        self, data: bytes, at: int, physical_offset: int, check_crc: bool
    ) -> "tuple[Taken, _Block | None]":
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
        queues: list[ConsumeQueue] = []
        for found in by_queue:
            queue = self._queue_of(found, is_held=is_held)
            if queue is None:
                return Taken(size_bytes, 0, 0, 0), None
            queues.append(queue)
        taken = Taken(size_bytes, records, last_ms, newest_ms)
        return taken, _Block(queues, by_queue, keys, physical_offset + size_bytes, newest_ms)

    def _held_block(self, block: "_Block") -> Waiting:
        followed = [
            (queue, found[2] + len(found[4]) // UNIT_BYTES)
            for queue, found in zip(block.queues, block.units, strict=True)
        ]
        return Waiting(block.end, partial(self._show_block, block), block.newest_ms, followed)

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
                    entries.append(self._held_block(block))
                    at = blocks_from
                    continue
            parts = read_record(view, at, physical_offset + at, check_crc=True)
            entries.append(self._held_record(view, parts))
            at += parts.header.size_bytes
        return entries

    def hold_followed(self, entries: list[Waiting]) -> None:
        """Take over records that another broker wrote; `release` makes them visible."""
        for entry in entries:
            self._hold(entry)

    def _publish_block(self, block: "_Block") -> None:
        for queue, found in zip(block.queues, block.units, strict=True):
            self._append_fitting(queue, found)
        self._index_rows(block.keys)
        self.dispatched_offset = block.end
        self.last_store_timestamp_ms = max(self.last_store_timestamp_ms, block.newest_ms)

    def _show_block(self, block: "_Block") -> None:
        """Publish what was held back, but of topics that were deleted meanwhile."""
        alive = [not queue.is_removed for queue in block.queues]
        if not all(alive):
            block = block.without_removed()
        self._publish_block(block)
        self._arrived(block.queues)

    def _queue_of(self, found: compiled.QueueUnits, *, is_held: bool) -> ConsumeQueue | None:
        """Return the queue to which units are added as they are, None where they need a look."""
        topic, queue_id, queue_offset, physical_offset, _, _ = found
        if self._deleted.is_gone(topic, physical_offset):
            return None
        queue = self._queues.get_or_add(topic, queue_id)
        end = queue.next_offset if is_held else queue.max_offset
        is_next = queue_offset == end or end == queue.min_offset == 0
        return queue if is_next else None

    def _index_rows(self, keys: list[compiled.KeyRows]) -> None:
        """Index what waits, and leave keys of a block to wait, all of which may."""
        try:
            self._index.build()
        except OSError as exc:
            if exc.errno not in NO_ROOM:
                raise
        for rows, physical_offset, store_timestamp_ms in keys:
            self._index.put_rows(rows, physical_offset, store_timestamp_ms)

    def _derive(self, buffer: memoryview, parts: RecordParts, topic: str) -> ConsumeQueue | None:
        header = parts.header
        queue = None
        transaction = header.sys_flag & TRANSACTION_MASK
        text = str(buffer[parts.properties_at : parts.properties_end], "utf-8", "replace")
        properties = decode_properties(text)
        if transaction not in _HIDDEN:
            queue = self._queues.get_or_add(topic, header.queue_id)
            self._restore_unit(queue, parts, self._tags_code(topic, properties, parts))
        if (
            not self._index_enabled
            or transaction == TRANSACTION_ROLLBACK
            or self._index.gap is not None
        ):
            return queue
        try:
            self._index_keys(topic, properties, parts)
        except OSError as exc:
            if exc.errno not in NO_ROOM:
                raise
        return queue

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
        text = str(buffer[parts.properties_at : parts.properties_end], "utf-8", "replace")
        self._index_keys(topic, decode_properties(text), parts)

    def _index_keys(self, topic: str, properties: dict[str, str], parts: RecordParts) -> None:
        record = IndexedRecord(
            topic,
            properties.get(PropertyName.UNIQ_KEY),
            properties.get(PropertyName.KEYS),
            parts.header.physical_offset,
        )
        self._index.put_record(record, parts.store_timestamp_ms)

    def _append_fitting(self, queue: ConsumeQueue, found: compiled.QueueUnits) -> None:
        """Add units that follow each other, but those in front that the queue does not take.

        A block that was held back followed records which counted as those of its queue. Where the
        log gives queue offsets again, or leaps, the queue has not taken these.
        """
        _, _, queue_offset, _, units, physical_end = found
        at = 0
        while at < len(units):
            physical_offset, _, _ = UNIT.unpack_from(units, at)
            if self._makes_place(queue, queue_offset + at // UNIT_BYTES, physical_offset):
                self._append(queue, units[at:], physical_end)
                return
            at += UNIT_BYTES

    def _restore_unit(self, queue: ConsumeQueue, parts: RecordParts, code: int) -> None:
        header = parts.header
        unit = UNIT.pack(header.physical_offset, header.size_bytes, code)
        if 0 < header.queue_offset < queue.max_offset:
            # The end of the log may have been damaged, and comes once more.
            if queue.fill_blank(header.queue_offset, unit):
                return
        if self._makes_place(queue, header.queue_offset, header.physical_offset):
            self._append(queue, unit, header.physical_offset + header.size_bytes)

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


def _count_followed(entry: Waiting) -> None:
    """Have the queues of records that another broker wrote go on behind them."""
    for queue, next_offset in entry.followed:
        queue.next_offset = next_offset


def _topic_of(buffer: memoryview, parts: RecordParts) -> str:
    return str(buffer[parts.topic_at : parts.topic_end], "utf-8", "replace")


def _without(keys: bytes, units: bytes) -> bytes:
    """Return rows of keys without those of the messages that some units stand for."""
    gone = {physical_offset for physical_offset, _, _ in UNIT.iter_unpack(units)}
    return b"".join([ROW.pack(*row) for row in ROW.iter_unpack(keys) if row[1] not in gone])


def _can_be_queued(topic: str, header: RecordHeader) -> bool:
    """Tell whether a record says of its queue what a broker may have stored.

    Behind damage the log is searched for good records, and a body may hold what looks like one.
    """
    is_place = header.queue_id >= 0 and 0 <= header.queue_offset <= _MOST_QUEUE_OFFSET
    return is_place and is_file_name(topic)
