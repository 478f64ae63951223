"""From stored records to what is derived from them: ConsumeQueue units and index keys.

While the store runs, the writer hands over what it already knows (`dispatch_put`); after a crash
the records are read again (`dispatch_record`). A message becomes visible here. With SYNC_FLUSH that
happens only once it is flushed, so that no consumer sees what a power cut could take back.

Source: apache/rocketmq store/DefaultMessageStore.java (ReputMessageService, CommitLogDispatcher).
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from functools import partial
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
from mailboat.store.index_backlog import IndexedRecord
from mailboat.store.index_rows import ROW
from mailboat.store.index_service import IndexService
from mailboat.store.message_inner import MessageInner, PreparedRecords
from mailboat.store.queue_table import QueueTable
from mailboat.store.recovery import NOTHING_TAKEN, BlockListener, Taken

log = logging.getLogger(__name__)

_IS_REMOVED: Final = attrgetter("is_removed")
_UNIT_FIELDS: Final = attrgetter("physical_offset", "size_bytes", "tags_code")

_MOST_QUEUE_OFFSET: Final = 1 << 58
# More messages than this are missing from a queue only where the log had room for them.
_MISSING_AT_LEAST: Final = 1_000_000
_UNIT_BYTES_A_WRITE: Final = 4096 * UNIT_BYTES

ArrivalListener = Callable[[Iterable[ConsumeQueue]], None]


class _Waiting(NamedTuple):
    end: int
    publish: Callable[[], None]


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
        wait_for_flush: bool,
    ) -> None:
        """Build for one store; `wait_for_flush` holds messages back until `release`."""
        self._queues = queues
        self._index = index
        self._delay_levels = delay_levels
        self._deleted = deleted
        self._index_enabled = index_enabled
        self._wait_for_flush = wait_for_flush
        self._waiting: deque[_Waiting] = deque()
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
        if self._wait_for_flush:
            publish = partial(self._publish, messages, queues, end, store_timestamp_ms)
            self._waiting.append(_Waiting(end, publish))
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
            if self._wait_for_flush:
                publish = partial(
                    self.dispatch_prepared, prepared, end, store_timestamp_ms, is_released=True
                )
                self._waiting.append(_Waiting(end, publish))
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

    def release(self, flushed_offset: int) -> None:
        """Make messages below a flushed physical offset visible."""
        waiting = self._waiting
        while waiting and waiting[0].end <= flushed_offset:
            waiting.popleft().publish()

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
        topic = str(buffer[parts.topic_at : parts.topic_end], "utf-8", "replace")
        if not _can_be_queued(topic, header):
            log.warning("skipped what no broker stores physical_offset=%d", header.physical_offset)
        elif not self._deleted.is_gone(topic, header.physical_offset):
            self._derive(buffer, parts, topic)
        self.dispatched_offset = header.physical_offset + header.size_bytes
        self.last_store_timestamp_ms = max(self.last_store_timestamp_ms, parts.store_timestamp_ms)

    @property
    def on_block(self) -> BlockListener | None:
        """Does what `dispatch_record` does for many records at once; None without the core."""
        return None if compiled.scan_records is None else self._dispatch_block

    def _dispatch_block(self, data: bytes, at: int, physical_offset: int, check_crc: bool) -> Taken:
        assert compiled.scan_records is not None
        with_keys = self._index_enabled and self._index.gap is None
        most_rows = index_backlog.BACKLOG_MESSAGES if with_keys else 0
        size_bytes, records, last_ms, newest_ms, by_queue, keys = compiled.scan_records(
            data, at, physical_offset, check_crc, most_rows
        )
        if not records:
            return NOTHING_TAKEN
        queues: list[ConsumeQueue] = []
        for found in by_queue:
            queue = self._queue_of(found)
            if queue is None:
                return Taken(size_bytes, 0, 0, 0)
            queues.append(queue)
        for queue, found in zip(queues, by_queue, strict=True):
            _, _, queue_offset, _, units, physical_end = found
            if queue_offset != queue.max_offset:
                queue.begin_at(queue_offset)
            self._append(queue, units, physical_end)
        self._index_rows(keys)
        self.dispatched_offset = physical_offset + size_bytes
        self.last_store_timestamp_ms = max(self.last_store_timestamp_ms, newest_ms)
        return Taken(size_bytes, records, last_ms, newest_ms)

    def _queue_of(self, found: compiled.QueueUnits) -> ConsumeQueue | None:
        """Return the queue to which units are added as they are, None where they need a look."""
        topic, queue_id, queue_offset, physical_offset, _, _ = found
        if self._deleted.is_gone(topic, physical_offset):
            return None
        queue = self._queues.get_or_add(topic, queue_id)
        is_next = queue_offset == queue.max_offset or queue.max_offset == queue.min_offset == 0
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

    def _derive(self, buffer: memoryview, parts: RecordParts, topic: str) -> None:
        header = parts.header
        transaction = header.sys_flag & TRANSACTION_MASK
        text = str(buffer[parts.properties_at : parts.properties_end], "utf-8", "replace")
        properties = decode_properties(text)
        if transaction not in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK):
            queue = self._queues.get_or_add(topic, header.queue_id)
            if topic == SCHEDULE_TOPIC:
                code = self._delay_levels.deliver_ms(properties, parts.store_timestamp_ms)
            else:
                code = tags_code(properties.get(PropertyName.TAGS))
            self._restore_unit(queue, parts, code)
        if (
            not self._index_enabled
            or transaction == TRANSACTION_ROLLBACK
            or self._index.gap is not None
        ):
            return
        try:
            self._index_keys(topic, properties, parts)
        except OSError as exc:
            if exc.errno not in NO_ROOM:
                raise

    def index_record(self, buffer: memoryview, parts: RecordParts) -> None:
        """Add only the keys of one record.

        Raises:
            OSError: a file could not be written.
        """
        if parts.header.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            return
        topic = str(buffer[parts.topic_at : parts.topic_end], "utf-8", "replace")
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

    def _restore_unit(self, queue: ConsumeQueue, parts: RecordParts, code: int) -> None:
        header = parts.header
        if header.queue_offset == 0 < queue.max_offset:
            # Only a deleted topic's successor counts from 0 again. RocketMQ keeps no note of it.
            log.warning(
                "began anew topic=%s queue_id=%d physical_offset=%d",
                queue.topic,
                queue.queue_id,
                header.physical_offset,
            )
            queue.begin_anew()
        if header.queue_offset < queue.max_offset:
            # RocketMQ skips what it has built already; a log can hold an offset twice only if
            # its own writer did wrong.
            log.warning(
                "skipped a second queue_offset=%d topic=%s queue_id=%d physical_offset=%d",
                header.queue_offset,
                queue.topic,
                queue.queue_id,
                header.physical_offset,
            )
            return
        missing = header.queue_offset - queue.max_offset
        if missing and queue.max_offset > queue.min_offset:
            room_bytes = header.physical_offset - queue.last_physical_end
            if missing > room_bytes // FIXED_BYTES + _MISSING_AT_LEAST:
                log.warning(
                    "skipped queue_offset=%d behind %d: no log had so many between topic=%s "
                    "queue_id=%d physical_offset=%d",
                    header.queue_offset,
                    queue.max_offset,
                    queue.topic,
                    queue.queue_id,
                    header.physical_offset,
                )
                return
        if missing:
            if queue.max_offset == queue.min_offset == 0:
                queue.begin_at(header.queue_offset)
            else:
                queue.append_blanks(header.queue_offset)
        unit = UNIT.pack(header.physical_offset, header.size_bytes, code)
        self._append(queue, unit, header.physical_offset + header.size_bytes)

    def _append(self, queue: ConsumeQueue, units: bytes, physical_end: int) -> None:
        """Add units of records to their queue, and write some now and then."""
        times = queue.pending_bytes // _UNIT_BYTES_A_WRITE
        queue.append_units(units, physical_end)
        queue.next_offset = queue.max_offset
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
