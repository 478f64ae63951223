"""Delayed messages: parked in SCHEDULE_TOPIC_XXXX, stored again where they belong when due.

Level n lies in queue n-1, in order of time, and the tagsCode of a unit is when it is due. One task
sleeps until the earliest of all levels; nothing is polled. What is due is copied in slices of a few
milliseconds, each stored with one put.

A message is never early, by 0 ms of a wall clock that nobody sets: a delay begins when its
millisecond has surely not begun yet, and is over when its last one surely has. Each run knows the
wall clock within a bracket of its own, and both are on the safe side of it, see
`mailboat.disk.steady_clock`: so that holds across a restart too. The copy is stored later still,
and the time stamp that it gets is the wall clock's. Due times are looked at `GATHER_MS` later, so
that what comes due together is stored together.

Time is the wall clock at the start plus what has really passed since: a jump of the wall clock
rushes and delays nothing. A message that an earlier run parked waits no longer from the start on
than it was to wait in all, whatever the clock was then.

What consumers see is RocketMQ's: producer's data, UNIQ_KEY and all properties are kept, also DELAY,
REAL_TOPIC and REAL_QID.

Source: apache/rocketmq broker/schedule/ScheduleMessageService.java and broker/util/HookUtils.java
(transformDelayLevelMessage) @ rocketmq-all-5.3.3.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from mailboat.broker.delay_progress import DelayProgress, DelayRange, FlushWait, QueueBounds
from mailboat.broker.stats import BrokerStats
from mailboat.broker.stored_message import Restorer, inner_of, park
from mailboat.broker.supervisor import STALL_AFTER_S, TaskProgress
from mailboat.config import MessageStoreConfig
from mailboat.disk import Disk
from mailboat.disk.steady_clock import SteadyClock
from mailboat.model import compiled
from mailboat.model.delay_level import DelayLevels, level_of, queue_id_of
from mailboat.model.message import MessageExt
from mailboat.model.names import HALF_TOPIC, SCHEDULE_TOPIC
from mailboat.model.properties import PropertyName
from mailboat.model.record import to_message
from mailboat.store.consume_queue import BLANK_SIZE, LOST_UNIT, UNIT, UNIT_BYTES, ConsumeQueue
from mailboat.store.message_inner import MessageInner, PutStatus
from mailboat.store.message_store import MessageStore
from mailboat.store.places import choose_places
from mailboat.store.record_source import LogSource

_log = logging.getLogger(__name__)

_choose: Final = compiled.choose_places or choose_places

GATHER_MS: Final = 10
"""How long after the earliest due time is looked: what comes due meanwhile is stored along."""

_SLICE_S: Final = 0.003
_SLICE_MIN: Final = 32  # A put costs as much as some messages.
_SLICE_BYTES: Final = 4 * 1024 * 1024
_UNITS_A_READ: Final = 512
_RESTORED_BYTES: Final = 1024 * 1024
# What was read from the disk may be out of memory again after a while.
_READ_LASTS_MS: Final = 30_000
_UNFLUSHED_RETRY_MS: Final = 20
_REFUSED_RETRY_MS: Final = 250
_ASIDE_RETRY_MS: Final = 10_000
_LONGEST_SLEEP_S: Final = 3_600.0
_HOUR_MS: Final = 3_600_000
_OURS: Final = (PropertyName.DELIVER_MS, PropertyName.DELAY_MS)


class LevelState(NamedTuple):
    """One level for people and dashboards; `late_ms` is how long its first message is overdue."""

    level: int
    parked_messages: int
    late_ms: int


class _Due(NamedTuple):
    """One parked message whose time has come; without a copy where its record is damaged."""

    source: DelayRange
    queue_offset: int
    copy: MessageInner | None


class ScheduleMessageService:
    """Parks delayed messages and delivers them when they are due."""

    def __init__(
        self,
        store: MessageStore,
        config: MessageStoreConfig,
        disk: Disk,
        stats: BrokerStats,
        wait_flushed: FlushWait,
        *,
        clock: SteadyClock | None = None,
    ) -> None:
        """Serve one store.

        Args:
            store: holds the parked messages and takes the delivered ones.
            config: the table of delays.
            disk: where the progress is kept.
            stats: counts what is delivered.
            wait_flushed: says when the log is durable.
            clock: says when a delay begins and is over; the store's by default.
        """
        self._store = store
        self._stats = stats
        self._wait_flushed = wait_flushed
        clock = clock or store.retention.clock
        self._now_ms, self._next_ms = clock.now_ms, clock.next_ms
        self.levels = DelayLevels(config.message_delay_level)
        self.progress = DelayProgress(disk, store.paths.config, self.levels)
        self._reserved_ms = config.file_reserved_time * _HOUR_MS
        self._changed = asyncio.Event()
        self._armed_ms = 0
        self._not_before_ms = 0
        self._start_ms = 0
        self._waits_from_ms = 0
        self._known_ends: dict[int, int] = {}
        self._is_refused = False
        self._source = LogSource(store.commit_log)
        self.restorer: Restorer | None = None
        """Delivers many messages at a time, None where there is no compiled core."""

        self.delivered = 0
        """Messages that were stored where they belong."""

        self.skipped = 0
        """Parked messages that are gone or damaged."""

    # -- parking --------------------------------------------------------------------------------

    def park(
        self, message: MessageInner, properties: Mapping[str, str], level: int
    ) -> MessageInner:
        """Make a delayed message one of the schedule topic.

        Args:
            message: as it was sent, with its real topic and queue.
            properties: everything that is to be stored with it.
            level: the delay level, at least 1; what lies above the table is the last one.
        """
        level = min(level, self.levels.last)
        delay_ms = self.levels.delay_ms(level)
        deliver_ms = self._deliver_ms(delay_ms)
        kept = dict(properties)
        kept[PropertyName.DELAY] = str(level)
        kept[PropertyName.DELIVER_MS] = str(deliver_ms)
        kept[PropertyName.DELAY_MS] = str(delay_ms)
        park(message, kept, SCHEDULE_TOPIC, queue_id_of(level))
        message.tags_code = deliver_ms
        self._expect(self.progress.growing(level), deliver_ms)
        return message

    def begin_delay(self, message: MessageInner) -> None:
        """Let the delay of a parked message begin now: it waited for others to be stored along."""
        before_ms = message.tags_code
        after_ms = self._deliver_ms(self.levels.delay_ms(level_of(message.queue_id)))
        if after_ms != before_ms:
            name = PropertyName.DELIVER_MS.encode()
            message.properties = message.properties.replace(
                b"%b\x01%d\x02" % (name, before_ms), b"%b\x01%d\x02" % (name, after_ms)
            )
            message.tags_code = after_ms

    @property
    def delay_from_ms(self) -> int:
        """When the delay of a message begins that is parked now, epoch milliseconds, rounded up."""
        return self._next_ms()

    def expect(self, level: int, delay_from_ms: int) -> None:
        """Wake for a message of a level that was parked with its delay beginning at a time."""
        self._expect(self.progress.growing(level), delay_from_ms + self.levels.delay_ms(level))

    def _deliver_ms(self, delay_ms: int) -> int:
        return self.delay_from_ms + delay_ms

    def _expect(self, source: DelayRange, at_ms: int) -> None:
        if source.wake_ms is None or at_ms < source.wake_ms:
            source.wake_ms = at_ms
            if at_ms + GATHER_MS < self._armed_ms:
                self._changed.set()

    # -- life -----------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the progress of an earlier run.

        Raises:
            DamagedStoreError: neither the file nor its previous version can be read.
        """
        self.progress.load()

    def open(self) -> None:
        """Find what is parked in the store, which must be open."""
        self.progress.open(self._begin())
        self._look_at_all()

    def take_up(self) -> None:
        """Deliver from now on what another replica has not, and this one has been told."""
        self.progress.take_up(self._begin())
        self._look_at_all()

    def _begin(self) -> list[QueueBounds]:
        self._start_ms, self._waits_from_ms = self._now_ms(), self._next_ms()
        queues = self._store.queues.of_topic(SCHEDULE_TOPIC)
        # What a replica has that leads now is there, though not all of it is confirmed yet.
        self._known_ends = {level_of(queue.queue_id): queue.next_offset for queue in queues}
        return [
            QueueBounds(queue.queue_id, queue.min_offset, queue.next_offset) for queue in queues
        ]

    def _look_at_all(self) -> None:
        for source in self.progress:
            source.wake_ms = self._start_ms
        if self.levels.longest_ms > self._reserved_ms:
            _log.warning(
                "messageDelayLevel %r waits longer than fileReservedTime keeps messages: those "
                "may expire before they are due",
                self.levels.text,
            )

    async def run(self, progress: TaskProgress) -> None:
        """Deliver what comes due, until cancelled."""
        while True:
            self._changed.clear()
            has_more = self.deliver_slice()
            progress.beat()
            if has_more:
                # Requests have their turn between two slices.
                await asyncio.sleep(0)
                continue
            wait_s = self._seconds_to_sleep()
            progress.beat(wait_s + STALL_AFTER_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    def next_look_ms(self) -> int | None:
        """Return when the next message may have to be delivered, None while nothing is parked."""
        wakes = [
            source.wake_ms
            for source in self.progress
            if source.wake_ms is not None and not source.is_being_read
        ]
        return max(min(wakes) + GATHER_MS, self._not_before_ms) if wakes else None

    def _seconds_to_sleep(self) -> float:
        next_ms = self.next_look_ms()
        now_ms = self._now_ms()
        longest_ms = int(_LONGEST_SLEEP_S * 1000)
        self._armed_ms = now_ms + longest_ms if next_ms is None else next_ms
        return min(max(self._armed_ms - now_ms, 0), longest_ms) / 1000

    async def persist(self) -> None:
        """Save the progress, once what was delivered is durable.

        Raises:
            OSError: not saved; the next call tries again.
        """
        await self.progress.persist(self._store.commit_log.end, self._wait_flushed)

    def persist_blocking(self) -> None:
        """Save the progress on this thread, after the store was closed.

        Raises:
            OSError: the disk refused.
        """
        store = self._store
        self.progress.persist_blocking(is_durable=store.flushed_offset >= store.commit_log.end)

    # -- delivery -------------------------------------------------------------------------------

    def deliver_slice(self) -> bool:
        """Deliver some of what is due; tell whether more of it waits."""
        now_ms = self._now_ms()
        if now_ms < self._not_before_ms:
            return False
        if self._store.refusal() is not None:
            self._refused(now_ms)
            return False
        batch = _Batch(is_single=self._is_refused)
        # Where more is due than can be done, the longest overdue comes first, whatever its level.
        for _, source in sorted(self._awake(now_ms), key=lambda pair: pair[0]):
            if self._waits_for_disk(source, now_ms):
                continue
            # What is taken one by one is stored at the end, and nothing overtakes it.
            if self.restorer is not None and not (self._is_refused or batch.is_full or batch.due):
                batch.is_full = self._restore_due(source, now_ms, self.restorer)
            if not batch.is_full:
                self._take_due(source, now_ms, batch)
        if batch.due:
            self._deliver(batch.due, now_ms)
        return batch.is_full and now_ms >= self._not_before_ms

    def _awake(self, now_ms: int) -> Iterator[tuple[int, DelayRange]]:
        for source in self.progress:
            is_due = source.wake_ms is not None and source.wake_ms <= now_ms
            if is_due and not source.is_being_read:
                assert source.wake_ms is not None
                yield source.wake_ms, source

    def _waits_for_disk(self, source: DelayRange, now_ms: int) -> bool:
        """Have another thread read what is due next where only the disk may have it.

        Messages that were parked hours ago may. Other levels go on meanwhile.
        """
        at = source.next_offset
        queue = self._store.queues.get(SCHEDULE_TOPIC, queue_id_of(source.level))
        begin = self._store.warming.reading(queue, at, _UNITS_A_READ, _UNITS_A_READ)
        source.is_hot = begin is None
        was_read = at < source.read_end and now_ms - source.read_ms < _READ_LASTS_MS
        if begin is None or was_read:
            return False
        source.is_being_read = True

        def ended(count: int) -> None:
            source.is_being_read = False
            # What cannot be read now is told by whoever takes it.
            source.read_end, source.read_ms = at + max(count, 1), self._now_ms()
            self._changed.set()

        begin(ended)
        return source.is_being_read

    def _restore_due(self, source: DelayRange, now_ms: int, restorer: Restorer) -> bool:
        """Have the core deliver what is due and ordinary; tell whether more may be of that kind."""
        queue = self._store.queues.get(SCHEDULE_TOPIC, queue_id_of(source.level))
        at = source.next_offset
        if queue is None or source.is_aside or at < self._known_ends.get(source.level, 0):
            return False
        end = queue.max_offset if source.end is None else source.end
        try:
            stop = end if source.is_hot else min(end, source.read_end)
            units = queue.read_units(at, min(_UNITS_A_READ, stop - at))
            due = 0
            for _, _, deliver_ms in UNIT.iter_unpack(units):
                if deliver_ms > now_ms:
                    break
                due += 1
            units = units[: due * UNIT_BYTES]
            chosen = _choose(units, at, due, _RESTORED_BYTES, None) if due else None
            if chosen is None:
                return False
            places, _, runs = chosen
            records = self._source.copy(places, runs)
        except OSError:
            return False  # Whoever looks at each tells about it.
        if records is None:
            return False
        count = restorer.restore(records, places, are_halves=False, queue_id=queue.queue_id)
        if count:
            self.delivered += count
            self.progress.advance(source, at + count)
        return count == len(places) // UNIT_BYTES

    def _take_due(self, source: DelayRange, now_ms: int, batch: "_Batch") -> None:
        """Add what is due of one range, and note when to look at it again."""
        queue = self._store.queues.get(SCHEDULE_TOPIC, queue_id_of(source.level))
        if queue is None:
            source.wake_ms = None
            return
        if source.next_offset < queue.min_offset:
            self._expired(source, queue.min_offset)
        at = source.next_offset
        end = queue.max_offset if source.end is None else source.end
        stop = end if source.is_hot else min(end, source.read_end)
        if stop <= at < end:
            batch.is_full = True  # The next slice has it read first.
            return
        count = 1 if source.is_aside else min(_UNITS_A_READ, stop - at)
        latest_ms = self._waits_from_ms + self.levels.delay_ms(source.level)
        known_end = self._known_ends.get(source.level, 0)
        try:
            units = queue.read_units(at, count)
            is_lost_page = not units and at < end
            for physical_offset, size, deliver_ms in UNIT.iter_unpack(
                LOST_UNIT if is_lost_page else units
            ):
                if deliver_ms > latest_ms and at < known_end:
                    deliver_ms = self._due_ms(physical_offset, deliver_ms)
                source.wake_ms = deliver_ms
                if deliver_ms > now_ms:
                    return
                copy = self._copy(queue, at, physical_offset) if size != BLANK_SIZE else None
                is_lost = copy is None
                if is_lost:
                    unit = self._store.unit_repair.mend(queue, at, (physical_offset, size))
                    if unit is not None:
                        physical_offset, _, source.wake_ms = unit
                        if source.wake_ms > now_ms:
                            return
                        copy = self._copy(queue, at, physical_offset)
                    elif is_lost_page:
                        # Nothing says that the message is not there: it is not passed over.
                        self._not_before_ms = now_ms + _REFUSED_RETRY_MS
                        return
                batch.add(_Due(source, at, copy))
                at += 1
                # To look for a message takes as long as everything else that one slice does.
                batch.is_full |= is_lost
                if batch.is_full:
                    return
        except OSError as error:
            _log.warning("parked messages of level %d cannot be read: %s", source.level, error)
            self._not_before_ms = now_ms + _REFUSED_RETRY_MS
            return
        if source.is_aside:
            source.wake_ms = now_ms + _ASIDE_RETRY_MS
        elif at < end and at > source.next_offset:
            batch.is_full = True
        elif at < end:
            # The queue's file is shorter than it should be: not a moment to hurry.
            self._not_before_ms = now_ms + _REFUSED_RETRY_MS
        elif source.end is None and queue.next_offset > end:
            # Stored and not flushed yet: not visible.
            source.wake_ms = now_ms + _UNFLUSHED_RETRY_MS
        else:
            source.wake_ms = None

    def _expired(self, source: DelayRange, min_offset: int) -> None:
        """Go on behind messages that went with the oldest files of the log."""
        gone_end = min_offset if source.end is None else min(min_offset, source.end)
        count = gone_end - source.next_offset
        self.skipped += count
        _log.warning(
            "%d delayed messages of level %d expired before they were due", count, source.level
        )
        self.progress.advance(source, gone_end)

    def _due_ms(self, physical_offset: int, deliver_ms: int) -> int:
        """Return when a message is due that was there at the start and says a time too far off.

        It may be of another wall clock: from the start on it waits no longer than it was to wait
        in all. What this run parked is due when its unit says so.
        """
        message = self._message_at(physical_offset)
        delay_ms = 0 if message is None else self.levels.parked_delay_ms(message.properties)
        return min(deliver_ms, self._waits_from_ms + delay_ms)

    def _message_at(self, physical_offset: int) -> MessageExt | None:
        """Return a stored message, None where there is none or its checksum fails."""
        found = self._store.lookup.find(physical_offset)
        return None if found is None else to_message(found[0], 0, found[1])

    def _copy(
        self, queue: ConsumeQueue, queue_offset: int, physical_offset: int
    ) -> MessageInner | None:
        """Make the message to store of a parked record, None where it cannot be delivered."""
        message = self._message_at(physical_offset)
        if message is None:
            return None
        properties = message.properties
        topic = properties.get(PropertyName.REAL_TOPIC, "")
        queue_id = properties.get(PropertyName.REAL_QUEUE_ID, "")
        place = (message.topic, message.queue_id, message.queue_offset)
        if place != (queue.topic, queue.queue_id, queue_offset):
            return None
        if not topic or topic == HALF_TOPIC or not queue_id.isdecimal():
            return None
        for name in _OURS:
            properties.pop(name, None)
        copy = inner_of(message, topic, int(queue_id), properties)
        copy.prepared_transaction_offset = 0
        return copy

    def _deliver(self, due: list[_Due], now_ms: int) -> None:
        """Store what is due with one put, and move on behind what was stored."""
        copies = [item.copy for item in due if item.copy is not None]
        if copies:
            self._store.put_messages(copies)
        skipped = [item for item in due if item.copy is None]
        if skipped:
            self.skipped += len(skipped)
            _log.warning(
                "skipped %d parked messages, the first of level %d at queue_offset=%d: missing, "
                "damaged or without a topic to go to",
                len(skipped),
                skipped[0].source.level,
                skipped[0].queue_offset,
            )
        for place, (source, queue_offset, copy) in enumerate(due):
            if copy is None or copy.status == PutStatus.PUT_OK:
                self.progress.advance(source, queue_offset + 1)
                if source.is_aside:
                    source.wake_ms = now_ms
            elif copy.status == PutStatus.MESSAGE_ILLEGAL:
                self._is_illegal(source, queue_offset, copy, now_ms)
            else:
                # All that follow were refused as well.
                for item in due[place:]:
                    item.source.wake_ms = now_ms
                self._refused(now_ms)
                break
        else:
            self._is_refused = False
        self._count([copy for copy in copies if copy.status == PutStatus.PUT_OK])

    def _is_illegal(
        self, source: DelayRange, queue_offset: int, copy: MessageInner, now_ms: int
    ) -> None:
        """Set a message aside that breaks a limit, which may be another one day."""
        if source.is_aside:
            return
        _log.warning(
            "delayed message at queue_offset=%d of level %d is not taken by the store, to be tried "
            "again: its body has %d bytes, or topic %s is being deleted",
            queue_offset,
            source.level,
            len(copy.body),
            copy.topic,
        )
        self.progress.set_aside(source, queue_offset)
        for aside in self.progress.aside():
            aside.wake_ms = aside.wake_ms or now_ms + _ASIDE_RETRY_MS

    def _refused(self, now_ms: int) -> None:
        """Try again a little later, then with a single message."""
        if not self._is_refused:
            _log.warning("delayed messages wait: the store takes no messages")
        self._is_refused = True
        self._not_before_ms = now_ms + _REFUSED_RETRY_MS

    def _count(self, stored: list[MessageInner]) -> None:
        self.delivered += len(stored)
        sizes: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        for copy in stored:
            sizes[copy.topic] += copy.size_bytes
            counts[copy.topic] += 1
        for topic, count in counts.items():
            self._stats.record_put(topic, count, sizes[topic])
        if self.restorer is not None:
            self.restorer.learn({(copy.topic, copy.queue_id) for copy in stored})

    # -- for others -----------------------------------------------------------------------------

    @property
    def delay_offsets(self) -> dict[int, int]:
        """The first parked queue offset by level."""
        return self.progress.offsets()

    def unread_position(self) -> int | None:
        """Return where the oldest message lies in the log that is parked, or whose delivered copy
        is not durable yet; None when there is none.

        What a queue does not say counts as the oldest of all.
        """
        store = self._store
        self.progress.settle(store.commit_log.end, store.flushed_offset)
        positions = []
        queues = store.queues.of_topic(SCHEDULE_TOPIC)
        levels = [level_of(queue.queue_id) for queue in queues]
        for level, begin, end in self.progress.needed(levels):
            there = self._still_there(level, begin, end)
            if there:
                try:
                    position = store.physical_position(
                        SCHEDULE_TOPIC, queue_id_of(level), there.start
                    )
                except OSError:
                    return 0
                positions.append(position or 0)
        return min(positions, default=None)

    def states(self) -> list[LevelState]:
        """Return how much of each level is parked, and how late it is."""
        now_ms = self._now_ms()
        parked: Counter[int] = Counter()
        late: dict[int, int] = {}
        for source in self.progress:
            there = self._still_there(source.level, source.next_offset, source.end)
            parked[source.level] += len(there)
            if there and source.wake_ms is not None:
                late_ms = max(now_ms - source.wake_ms, 0)
                late[source.level] = max(late.get(source.level, 0), late_ms)
        return [LevelState(level, parked[level], late.get(level, 0)) for level in sorted(parked)]

    def _still_there(self, level: int, begin: int, end: int | None) -> range:
        """Return the queue offsets of a range whose messages have not gone with the log."""
        store, queue_id = self._store, queue_id_of(level)
        return range(
            max(begin, store.min_offset(SCHEDULE_TOPIC, queue_id)),
            store.max_offset(SCHEDULE_TOPIC, queue_id) if end is None else end,
        )


class _Batch:
    """What one slice delivers; full when its time or its bytes are used up."""

    __slots__ = ("_bytes", "_deadline", "_is_single", "due", "is_full")

    def __init__(self, *, is_single: bool) -> None:
        """Begin a slice; `is_single` lets it take one message only."""
        self.due: list[_Due] = []
        self.is_full = False
        self._is_single = is_single
        self._bytes = 0
        self._deadline = time.monotonic() + _SLICE_S

    def add(self, item: _Due) -> None:
        """Take a message."""
        self.due.append(item)
        if item.copy is not None:
            self._bytes += len(item.copy.body)
        is_late = len(self.due) >= _SLICE_MIN and time.monotonic() > self._deadline
        self.is_full = self._is_single or self._bytes >= _SLICE_BYTES or is_late
