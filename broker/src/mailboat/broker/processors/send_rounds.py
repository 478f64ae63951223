"""The sends that the compiled core takes: a round of the loop's reads with one call.

The core makes records, ConsumeQueue units, index rows and answers of the plain sends in them; here
they are written, made visible, counted and answered. Whatever is unusual the core leaves in the
read, and the rest of that read takes the way of `mailboat.broker.processors.send`, which is also
the only one where there is no core. A round whose records could not be written is given back as a
whole: then each send is refused, or stored after all, one by one.
"""

import time
from collections.abc import Iterable
from functools import partial
from typing import Final, cast

from mailboat import core
from mailboat.broker.context import BrokerContext
from mailboat.broker.flush_service import FlushService
from mailboat.config import MessageStoreConfig
from mailboat.model.delay_level import level_of
from mailboat.model.names import HALF_TOPIC, SCHEDULE_TOPIC, SEND_FORBIDDEN_TOPICS
from mailboat.model.topic import Perm, TopicConfig
from mailboat.protocol.codes import ResponseCode
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import ROUND_S
from mailboat.store.consume_queue import ConsumeQueue
from mailboat.store.message_inner import PreparedRecords

Read = tuple[Connection, bytes]
"""What one connection sent: bytes that begin with a frame."""

_Queues = list[tuple[ConsumeQueue, int, bytes, int]]

# What one call takes at most: some milliseconds.
_MESSAGES_A_CALL: Final = 4_096
# Topics are made known as a whole: very wide ones stay with Python, and few become known at once.
_QUEUES_A_CALL: Final = 1_024
# Where sends are parked: no send names them, and the core has to know where their queues end.
_PARKING_TOPICS: Final = (SCHEDULE_TOPIC, HALF_TOPIC)


class SendRounds:
    """Stores and answers rounds of reads."""

    def __init__(self, broker: BrokerContext, flush: FlushService, suffix: bytes) -> None:
        """Work for one broker, whose messages get the properties `suffix`."""
        self._broker = broker
        self._suffix = suffix
        self._store = broker.store
        self._topics = broker.topics
        self._stats = broker.stats
        self._flush = flush
        self._is_sync = broker.store.is_sync_flush
        self._core = self._make()
        # How many queues of a topic the core knows; all is forgotten when any topic changes.
        self._known: dict[str, int] = {}
        self._version = -1

    def _make(self) -> "core.native.SendRounds":
        settings = self._broker.settings
        made = core.native.SendRounds(
            store_host=self._store.commit_log.store_host,
            broker_name=settings.broker.broker_name,
            suffix=self._suffix,
            append_crc=settings.store.enabled_append_prop_crc,
            with_keys=settings.store.message_index_enable,
            holds_answers=self._is_sync,
            delays_ms=self._broker.schedule.levels.delays_ms,
        )
        made.configure(max_body_bytes=settings.store.max_message_size)
        return made

    def configure(self, config: MessageStoreConfig) -> None:
        """Follow other settings."""
        self._core.configure(max_body_bytes=config.max_message_size)

    def learn(self, topics: Iterable[str]) -> None:
        """Have the core take sends to these topics, as far as their queues are there."""
        looked_at = 0
        for topic in (*topics, *_PARKING_TOPICS):
            count = self._store.queues.count_of(topic)
            config = self._topics.table.get(topic)
            if self._known.get(topic) == count or config is None or not self._is_plain(config):
                continue
            width = config.write_queue_nums
            if topic == SCHEDULE_TOPIC:
                width = self._broker.schedule.levels.last  # As many as are used, whoever says what.
            looked_at += width
            if looked_at > _QUEUES_A_CALL:
                break  # The next send to it comes here again.
            get = self._store.queues.get
            queues = [get(topic, queue_id) for queue_id in range(width)]
            self._core.learn(topic, width, list(queues))
            self._known[topic] = count

    def _is_plain(self, config: TopicConfig) -> bool:
        """Tell whether sends to a topic need no check but that of the queue."""
        topic = config.topic_name
        may_write = self._broker.settings.broker.broker_permission & Perm.WRITE or not config.order
        is_forbidden = topic in SEND_FORBIDDEN_TOPICS and topic not in _PARKING_TOPICS
        return bool(may_write) and not is_forbidden and config.topic_filter_type == "SINGLE_TAG"

    def store(self, reads: list[Read]) -> list[Read]:
        """Store and answer what is plain in some reads; return what is left of each."""
        if self._store.refusal() is not None:
            return reads
        if self._version != self._topics.data_version.counter:
            self._forget()
        log = self._store.commit_log
        schedule = self._broker.schedule
        takes_halves = not self._broker.settings.broker.reject_transaction_message
        end_s = time.monotonic() + ROUND_S
        while reads:
            now_ms = log.next_store_timestamp_ms
            delay_from_ms = schedule.delay_from_ms
            round_ = self._core.take(
                [(data, connection.peer_host) for connection, data in reads],
                log.end,
                log.room_bytes,
                now_ms,
                delay_from_ms,
                takes_halves,
                _MESSAGES_A_CALL,
            )
            if not round_.message_count or not self._commit(reads, round_, now_ms):
                break
            for queue, _, _, _ in cast(_Queues, round_.queues):
                if queue.topic == SCHEDULE_TOPIC:
                    schedule.expect(level_of(queue.queue_id), delay_from_ms)
            left: list[Read] = []
            for (connection, data), taken in zip(reads, round_.taken, strict=True):
                if taken:
                    connection.frames_taken()
                if taken < len(data):
                    left.append((connection, data[taken:] if taken else data))
            reads = left
            if not round_.is_full or time.monotonic() > end_s:
                break
        return reads

    def _forget(self) -> None:
        # Made anew: the first topics come after the port, and with it the address, is known.
        self._core = self._make()
        self._known.clear()
        self._version = self._topics.data_version.counter

    def restore(self, records: bytes, places: bytes, *, are_halves: bool) -> int:
        """Store messages where they belong: `mailboat.broker.stored_message.Restorer`."""
        if self._store.refusal() is not None:
            return 0
        if self._version != self._topics.data_version.counter:
            self._forget()
        log = self._store.commit_log
        now_ms = log.next_store_timestamp_ms
        round_ = self._core.restore(records, places, are_halves, log.end, log.room_bytes, now_ms)
        if not round_.message_count or not self._write(round_, now_ms):
            return 0
        return round_.message_count

    def _write(self, round_: "core.native.Round", now_ms: int) -> bool:
        """Store what the core has prepared; tell whether that succeeded."""
        # The core gives back the very objects that it was told of.
        queues = cast(_Queues, round_.queues)
        for queue, _, _, _ in queues:
            if queue.is_removed:
                self._forget()
                return False
        prepared = PreparedRecords(round_.records, queues, round_.keys, now_ms)
        if not self._store.put_prepared(prepared):
            return False
        for topic, messages, size_bytes in round_.topics:
            self._stats.record_put(topic, messages, size_bytes)
        return True

    def _commit(self, reads: list[Read], round_: "core.native.Round", now_ms: int) -> bool:
        """Store and answer what the core has prepared; tell whether anything has become of it."""
        # Without what they sent: the records are kept until they are flushed, and no copy of them.
        askers = [connection for connection, _ in reads]
        if not self._write(round_, now_ms):
            if self._store.commit_log.failure is None:
                return False
            self._stats.record_put_failed(round_.message_count)
            _answer(askers, round_, ResponseCode.FLUSH_DISK_TIMEOUT)
            return True
        if self._is_sync:
            self._flush.wait(self._store.commit_log.end, partial(_answer_flushed, askers, round_))
        else:
            _answer(askers, round_, ResponseCode.SUCCESS)
        return True


def _answer_flushed(askers: list[Connection], round_: "core.native.Round", ok: bool) -> None:
    _answer(askers, round_, ResponseCode.SUCCESS if ok else ResponseCode.FLUSH_DISK_TIMEOUT)


def _answer(askers: list[Connection], round_: "core.native.Round", code: int) -> None:
    for index, data in round_.answers(code):
        askers[index].write(data)
