"""The sends that the compiled core takes: a round of the loop's reads with one call.

The core makes records, ConsumeQueue units, index rows and answers of the plain sends in them; here
they are written, made visible, counted and answered. Whatever is unusual the core leaves in the
read, and the rest of that read takes the way of `mailboat.broker.processors.send`, which is also
the only one where there is no core. A round whose records could not be written is given back as a
whole: then each send is refused, or stored after all, one by one. What a round had no room for
comes first in the next one.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

from mailboat import core
from mailboat.broker.context import BrokerContext
from mailboat.broker.flush_service import FlushService
from mailboat.broker.processors.send import SendMessageProcessor
from mailboat.config import MessageStoreConfig
from mailboat.model.delay_level import level_of
from mailboat.model.names import HALF_TOPIC, SCHEDULE_TOPIC, SEND_FORBIDDEN_TOPICS
from mailboat.model.topic import Perm, TopicConfig
from mailboat.protocol.codes import ResponseCode
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import ROUND_S
from mailboat.security.users import User
from mailboat.store.consume_queue import ConsumeQueue

Read = tuple[Connection, bytes]
"""What one connection sent: bytes that begin with a frame."""

Place = tuple[str, int]
"""A topic and a queue id."""

# What one call takes at most: some milliseconds.
_MESSAGES_A_CALL: Final = 4_096
# Where sends are parked; no send names them.
_PARKING_TOPICS: Final = (SCHEDULE_TOPIC, HALF_TOPIC)


class SendRounds:
    """Stores and answers rounds of reads."""

    def __init__(
        self,
        broker: BrokerContext,
        flush: FlushService,
        suffix: bytes,
        store_others: Callable[[], None],
        arrivals: Callable[[], AbstractContextManager[object]],
    ) -> None:
        """Work for one broker, on the running event loop.

        Args:
            broker: where messages are stored.
            flush: what answers wait for.
            suffix: the properties that each message gets.
            store_others: stores the sends that came before the reads in another way.
            arrivals: what wakes pulls, once for all messages that are stored inside.
        """
        self._loop = asyncio.get_running_loop()
        self._broker = broker
        self._suffix = suffix
        self._store = broker.store
        self._topics = broker.topics
        self._stats = broker.stats
        self._flush = flush
        self._holds_back = broker.store.holds_back
        self._max_body_bytes = broker.settings.store.max_message_size
        self._is_guarded = broker.settings.security.is_guarded
        # The queues that the core knows; all are forgotten when any topic changes.
        self._known: dict[Place, ConsumeQueue] = {}
        self._version = -1
        self.reads: dict[Connection, bytes] = {}
        """What is stored at the end of this round of the loop, by `store`."""

        # Those of them that no round has had room for: how many bytes each connection counts.
        self._kept: dict[Connection, int] = {}
        self._schedule = broker.schedule
        delayed = [(SCHEDULE_TOPIC, queue_id) for queue_id in range(self._schedule.levels.last)]
        # The core has to know where they end that messages are parked in.
        self._parking: tuple[Place, ...] = (*delayed, (HALF_TOPIC, 0))
        self._core = self._make()
        self._store_others = store_others
        self._arrivals = arrivals

    def _make(self) -> "core.native.SendRounds":
        settings = self._broker.settings
        return core.native.SendRounds(
            store_host=self._store.commit_log.store_host,
            broker_name=settings.broker.broker_name,
            suffix=self._suffix,
            append_crc=settings.store.enabled_append_prop_crc,
            with_keys=settings.store.message_index_enable,
            holds_answers=self._holds_back,
            max_body_bytes=self._max_body_bytes,
            delays_ms=self._schedule.levels.delays_ms,
            is_guarded=self._is_guarded,
        )

    def configure(self, config: MessageStoreConfig) -> None:
        """Follow other settings."""
        self._max_body_bytes = config.max_message_size
        self._version = -1  # The next round begins anew.

    def allow(self, user: User, peer_host: bytes, topic: str) -> None:
        """Take sends that a user has signed to a topic, from the address of a peer.

        Only where each request has to be signed; all others are taken from everybody.
        """
        self._core.allow(_text(user.name), user.secrets, peer_host, _text(topic))

    def withdraw(self, access_key: str, peer_host: bytes) -> None:
        """Take no more sends of a user from the address of a peer, until they are allowed again."""
        self._core.withdraw(_text(access_key), peer_host)

    def withdraw_all(self) -> None:
        """Take no more sends of anybody, until they are allowed again: users have changed."""
        self._core.withdraw_all()

    def learn(self, places: Iterable[Place]) -> None:
        """Have the core take sends to these queues, as far as they are there."""
        known, by_place = self._known, self._store.queues.by_key
        for place in (*places, *self._parking):
            queue = by_place.get(place)
            if queue is None or known.get(place) is queue:
                continue
            topic, queue_id = place
            config = self._topics.table.get(topic)
            if (
                config is not None
                and (queue_id < config.write_queue_nums or topic in _PARKING_TOPICS)
                and self._is_plain(config)
                # Whose oldest messages went is seen to by whoever asks for it.
                and self._store.queues.get(topic, queue_id) is queue
            ):
                self._core.learn(topic, queue_id, queue)
                known[place] = queue

    def _is_plain(self, config: TopicConfig) -> bool:
        """Tell whether sends to a topic need no check but that of the queue."""
        topic = config.topic_name
        is_forbidden = topic in SEND_FORBIDDEN_TOPICS and topic not in _PARKING_TOPICS
        return not is_forbidden and config.topic_filter_type == "SINGLE_TAG"

    def store(self) -> None:
        """Store and answer what is plain in the reads that are kept, and hand on what is left."""
        reads = list(self.reads.items())
        self.reads.clear()
        if not reads:
            return
        end_s = time.monotonic() + ROUND_S
        self._store_others()
        log = self._store.commit_log
        config = self._broker.settings.broker
        # Without permission to write, it depends on the topic what is refused.
        if self._store.refusal() is not None or not config.broker_permission & Perm.WRITE:
            self._leave(reads, 0, end_s)
            return
        if self._version != self._topics.data_version.counter:
            self._forget()
        now_ms, delay_from_ms = log.next_store_timestamp_ms, self._schedule.delay_from_ms
        takes_halves = not config.reject_transaction_message
        try:
            round_, records = self._core.take(
                reads, log.end, log.room_bytes, now_ms, delay_from_ms, takes_halves,
                _MESSAGES_A_CALL,
            )  # fmt: skip
        except BaseException:
            # Nothing of it has happened. Each send takes the other way, and this is told.
            self._leave(reads, 0, end_s)
            raise
        count = round_.message_count
        if not count:
            pass
        elif log.write_records(records, now_ms):
            # Pulls that wait for these messages are answered here, not a round of the loop later.
            with self._arrivals():
                self._publish(round_, now_ms)
                if self._holds_back:
                    self._flush.wait_settled(log.end, partial(_answer_settled, round_))
                else:
                    _answer(round_, ResponseCode.SUCCESS, names_places=True)
            for queue, _, _, _ in round_.queues:
                if queue.topic == SCHEDULE_TOPIC:
                    self._schedule.expect(level_of(queue.queue_id), delay_from_ms)
        elif log.failure is None:
            self._leave(reads, 0, end_s)
            return
        else:
            self._stats.record_put_failed(count)
            _answer(round_, ResponseCode.FLUSH_DISK_TIMEOUT, names_places=False)
        left: list[Read] = []
        for (connection, data), taken in zip(reads, round_.taken, strict=True):
            if taken:
                connection.frames_taken()
            if taken < len(data):
                left.append((connection, data[taken:] if taken else data))
        if left or self._kept:
            # A first one that there is no room for is not the core's: somebody has to make some.
            self._leave(left, round_.waiting if count else max(round_.waiting - 1, 0), end_s)

    def restore(self, records: bytes, places: bytes, *, are_halves: bool, queue_id: int) -> int:
        """Store messages where they belong: `mailboat.broker.stored_message.Restorer`."""
        if self._store.refusal() is not None:
            return 0
        if self._version != self._topics.data_version.counter:
            self._forget()
        log = self._store.commit_log
        now_ms = log.next_store_timestamp_ms
        round_, written = self._core.restore(
            records, places, are_halves, queue_id, log.end, log.room_bytes, now_ms
        )
        if not round_.message_count or not log.write_records(written, now_ms):
            return 0
        self._publish(round_, now_ms)
        return round_.message_count

    def _publish(self, round_: "core.native.Round", now_ms: int) -> None:
        """Make visible and count what was written."""
        self._store.dispatch.dispatch_prepared(round_, self._store.commit_log.end, now_ms)
        for topic, messages, size_bytes in round_.topics:
            self._stats.record_put(topic, messages, size_bytes)

    def _leave(self, left: list[Read], waiting: int, end_s: float) -> None:
        """Have reads cut into frames, in the loop's next round once a time has passed.

        The last `waiting` of them are offered to the core again in that round, and nothing more is
        read from their connections meanwhile.
        """
        first_waiting = len(left) - waiting
        for connection, data in left[:first_waiting]:
            if time.monotonic() > end_s and not connection.is_closed:
                connection.defer([])
            connection.read_back(data)
        for connection, data in left[first_waiting:]:
            if connection.is_write_paused or connection.is_closed:
                connection.read_back(data)  # A peer that does not read its answers waits.
            else:
                connection.defer([])
                self.reads[connection] = data
        if self.reads:
            self._loop.call_soon(self.store)
        if self.reads or self._kept:
            self._count_kept()

    def _count_kept(self) -> None:
        """Have the budget of all peers know what is kept, and let go of whom it closes."""
        before, self._kept = self._kept, {}
        for connection, data in self.reads.items():
            size = self._kept[connection] = len(data)
            grown = size - before.pop(connection, 0)
            if grown > 0:
                connection.keep(grown)
            else:
                connection.release(-grown)
        for connection, size in before.items():
            connection.release(size)
        for connection in [one for one in self.reads if one.is_closed]:
            del self.reads[connection], self._kept[connection]

    def _forget(self) -> None:
        # Made anew: the first topics come after the port, and with it the address, is known.
        self._core = self._make()
        self._known.clear()
        self._version = self._topics.data_version.counter


def make_send_rounds(
    broker: BrokerContext,
    flush: FlushService,
    processor: SendMessageProcessor,
    store_others: Callable[[], None],
    arrivals: Callable[[], AbstractContextManager[object]],
) -> SendRounds | None:
    """Make what takes whole rounds before a processor sees what is left of them; see `SendRounds`.

    Returns:
        None where there is no core. Answers with another region are rare enough for the long way.
    """
    if not (core.FOUND.is_used and processor.has_plain_answers):
        return None
    return SendRounds(broker, flush, processor.suffix, store_others, arrivals)


def _text(text: str) -> bytes:
    # What a peer says may be half a surrogate pair: no text that the core reads is that.
    return text.encode(errors="surrogatepass")


def _answer_settled(round_: "core.native.Round", code: int) -> None:
    _answer(round_, code, names_places=True)


def _answer(round_: "core.native.Round", code: int, *, names_places: bool) -> None:
    for connection, answers in round_.answers(code, names_places):
        connection.write(answers)
