"""A broker's store and connections on a simulated disk, with the compiled core and without it."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from mailboat.broker.dispatcher import BrokerDispatcher
from mailboat.broker.processors import send as send_module
from mailboat.broker.processors.send import SendMessageProcessor
from mailboat.broker.schedule import ScheduleMessageService
from mailboat.broker.stats import BrokerStats
from mailboat.broker.transactions.records import (
    committed_message,
    half_message,
    real_queue_id,
    stored_checks,
)
from mailboat.config import Settings
from mailboat.disk import read_file
from mailboat.disk.steady_clock import SteadyClock
from mailboat.errors import BrokerError
from mailboat.model.names import HALF_TOPIC, SCHEDULE_TOPIC
from mailboat.model.record import decode_record
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import ResponseCode
from mailboat.protocol.frame import FrameDecoder
from mailboat.remoting.connection import Connection
from mailboat.remoting.connection_set import ConnectionSet
from mailboat.remoting.limits import RemotingLimits
from mailboat.store.consume_queue import UNIT
from mailboat.store.index_rows import ROW
from mailboat.store.message_store import MessageStore
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.store_simulator import small_config

# Test modules that import this one are skipped with it.
mailboat_core = pytest.importorskip("mailboat_core", reason="the compiled core is not installed")

QUEUES = 4
LEARNED = ("orders", "t" * 60)
TOPICS = (*LEARNED, "unlearned")
MISSING_QUEUE = ("orders", 3)
PEERS = [("10.0.0.1", 5000), ("2001:db8::7", 40000), ("192.168.7.9", 65535)]
MAX_BODY_BYTES = 2500
ALL_LEVELS_MS = 2 * 3_600_000 + 1_000


class NotedTransport(asyncio.Transport):
    """Takes note of what is written."""

    def __init__(self, peername: tuple[str, int]) -> None:
        """Stand for a connected socket."""
        super().__init__({"peername": peername})
        self.written = b""
        self.is_closed = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the mark."""

    def get_write_buffer_size(self) -> int:
        """Whatever was written has been sent."""
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take note of the bytes."""
        self.written += bytes(data)

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self.is_closed

    def close(self) -> None:
        """Take note."""
        self.is_closed = True


def refuse_group(group: str) -> None:
    """Know no group."""
    raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"no group {group}")


class AheadClock(SteadyClock):
    """The clock of a broker's disk, moved as a test wants it."""

    __slots__ = ("_broker",)

    def __init__(self, broker: "OneBroker") -> None:
        """Follow the disk of `broker`."""
        super().__init__(broker.disk)
        self._broker = broker

    def now_ms(self) -> int:
        """Return the wall time of the disk, moved."""
        return self._broker.disk.wall_ms() + self._broker.ahead_ms

    def next_ms(self) -> int:
        """Return the next whole millisecond."""
        return self.now_ms() + 1


class OneBroker:
    """A store on a simulated disk with the dispatcher and the connections before it."""

    def __init__(self, store_host: bytes, flush_disk_type: str, *, append_crc: bool) -> None:
        """Open an empty store."""
        self.disk = SimulatedDisk()
        config = small_config(
            flush_disk_type,
            enabled_append_prop_crc=append_crc,
            max_message_size=MAX_BODY_BYTES,
            mapped_file_size_commit_log=20_000,
        )
        self.store = MessageStore(config, self.disk, store_host=store_host)
        self.store.open()
        # The core is told of room in a segment that is there.
        assert self.store.commit_log._writable_segment() is not None
        self.keys: Counter[tuple[int, int]] = Counter()
        index: Any = self.store.index
        index._put = lambda step: self.keys.update(ROW.iter_unpack(step.rows))
        self.stats = BrokerStats(clock=lambda: 0.0, local_day=lambda: 1)
        self.ahead_ms = 0
        self.schedule = ScheduleMessageService(
            self.store, config, self.disk, self.stats, lambda *_: None,
            clock=AheadClock(self),
        )  # fmt: skip
        self.schedule.open()
        context: Any = SimpleNamespace(
            store=self.store,
            topics=SimpleNamespace(
                table={name: TopicConfig(name, 6, QUEUES) for name in TOPICS},
                create_in_send=lambda *_: None,
            ),
            retry=SimpleNamespace(
                is_dead=lambda *_: False, group=lambda name: name, retry_queue=refuse_group
            ),
            settings=Settings(store=config),
            stats=self.stats,
            schedule=self.schedule,
            transactions=SimpleNamespace(prepare=half_message),
        )
        self.waiting: list[Callable[[int], None]] = []
        flush: Any = SimpleNamespace(
            wait_settled=lambda end, done: self.waiting.append(done), settle_soon=lambda: None
        )
        # Unique keys that the broker makes itself are not those of another one.
        make = SimpleNamespace(next=lambda: "GENERATED")
        with patch.object(send_module, "UniqKeyGenerator", lambda _: make):
            self.processor = SendMessageProcessor(context, flush)
        self.dispatcher = BrokerDispatcher()
        pull: Any = SimpleNamespace(pull=lambda *_: None, arrivals=nullcontext)
        self.dispatcher.use(self.processor, pull, lambda name: None, None)
        owner = ConnectionSet(RemotingLimits(), name="test", capacity=None, expects_frames=True)
        self.connections = [Connection(self.dispatcher, owner) for _ in PEERS]
        self.transports = list(map(NotedTransport, PEERS))
        for connection, transport in zip(self.connections, self.transports, strict=True):
            connection.connection_made(transport)

    def feed(self, pieces: list[tuple[int, bytes]]) -> None:
        """Let connections receive something, and store it."""
        for number, data in pieces:
            if data:
                self.connections[number].data_received(data)
        self.dispatcher.store_gathered()

    def flush(self) -> None:
        """Flush what is written."""
        job = self.store.begin_flush()
        if job is not None:
            job.run()
            self.store.finish_flush(job, None)

    def halves(self) -> list[tuple[bytes, bytes]]:
        """Return all half messages, each with its unit, which has a queue offset for its code."""
        queue = self.store.queues.get(HALF_TOPIC, 0)
        found = []
        for number in range(0 if queue is None else queue.max_offset):
            assert queue is not None
            unit = queue.unit(number)
            assert unit is not None
            record = self.store.lookup.record_at(unit[0])
            assert record is not None
            found.append((record, UNIT.pack(*unit[:2], number)))
        return found

    def commit_halves(self) -> None:
        """Store the messages of all half messages."""
        for record, _ in self.halves():
            self.commit_half(record)

    def commit_half(self, record: bytes) -> None:
        """Store the message of a half message."""
        half = decode_record(record)[0]
        message = committed_message(half, real_queue_id(half), stored_checks(half))
        self.store.put_messages([message])
        self.stats.record_put(message.topic, 1, message.size_bytes)

    def end(self, *, is_flushed: bool) -> dict[str, Any]:
        """Answer what waits and close; return what is stored, counted and answered."""
        self.flush()
        for done in self.waiting:
            done(ResponseCode.SUCCESS if is_flushed else ResponseCode.FLUSH_DISK_TIMEOUT)
        self.ahead_ms = ALL_LEVELS_MS
        while self.schedule.deliver_slice():
            continue
        self.commit_halves()
        self.flush()
        self.store.close()
        kinds = ("/store/commitlog/", "/store/consumequeue/")
        files = [p for p in self.disk.walk() if not self.disk.is_dir(p) and p.startswith(kinds)]
        for connection in self.connections:
            connection.connection_lost(None)
        return {
            "files": {path: read_file(self.disk, path) for path in files},
            "delayed": (
                self.schedule.delivered,
                self.schedule.skipped,
                self.schedule.delay_offsets,
            ),
            "put": (self.stats.put_messages, self.stats.put_bytes, self.stats.put_failed),
            "keys": self.keys,
            "answers": [frames(transport.written) for transport in self.transports],
            "closed": [transport.is_closed for transport in self.transports],
        }


def frames(data: bytes) -> list[tuple[int, bytes, bytes]]:
    """Return answers in an order of their own: a refusal may overtake what is stored."""
    return sorted(FrameDecoder().feed(data))


class WithCore(OneBroker):
    """The same, whose rounds go through the core first."""

    def __init__(self, *args: Any, append_crc: bool, message_limit: int) -> None:
        """Open an empty store and learn topics."""
        super().__init__(*args, append_crc=append_crc)
        log = self.store.commit_log
        self.message_limit = message_limit
        self.is_full = False
        self.held: list[Any] = []
        self.core = mailboat_core.SendRounds(
            store_host=log.store_host,
            broker_name=Settings().broker.broker_name,
            suffix=self.processor.suffix,
            append_crc=append_crc,
            with_keys=True,
            holds_answers=self.store.is_sync_flush,
            max_body_bytes=MAX_BODY_BYTES,
            delays_ms=self.schedule.levels.delays_ms,
            is_guarded=False,
        )
        self.schedule.restorer = self
        self.restored = 0
        for topic in LEARNED:
            for queue_id in range(QUEUES):
                if (topic, queue_id) != MISSING_QUEUE:
                    queue = self.store.queues.get_or_add(topic, queue_id)
                    self.core.learn(topic, queue_id, queue)
        for topic, count in ((SCHEDULE_TOPIC, self.schedule.levels.last), (HALF_TOPIC, 1)):
            for queue_id in range(count):
                queue = self.store.queues.get_or_add(topic, queue_id)
                self.core.learn(topic, queue_id, queue)

    def round(self, reads: list[tuple[int, bytes]]) -> list[list[tuple[int, bytes]]]:
        """Receive something from connections; return it in the order in which it was handled."""
        log = self.store.commit_log
        segment = log._writable_segment()
        assert segment is not None
        begun = [self.connections[number]._decoder.buffered_bytes > 0 for number, _ in reads]
        open_ = [not self.connections[number].is_closed for number, _ in reads]
        offered = [
            data if is_open and not is_begun else b""
            for (_, data), is_begun, is_open in zip(reads, begun, open_, strict=True)
        ]
        askers = [self.connections[number] for number, _ in reads]
        now_ms = max(self.disk.wall_ms(), log.last_store_timestamp_ms)
        room_bytes = segment.end - log.end
        taken, records = self.core.take(
            list(zip(askers, offered, strict=True)), log.end, room_bytes, now_ms,
            self.schedule.delay_from_ms, True, self.message_limit,
        )  # fmt: skip
        self.is_full = taken.waiting > 0
        if taken.message_count:
            self.commit(taken, records, now_ms)
            for asker, answer in [] if self.store.is_sync_flush else taken.answers(0, True):
                asker.write(answer)
            self.held.append(taken)
            for queue, _, _, _ in taken.queues:
                if queue.topic == SCHEDULE_TOPIC:
                    self.schedule.expect(queue.queue_id + 1, self.schedule.delay_from_ms)
        cuts = zip(reads, taken.taken, strict=True)
        rests = [(number, data[cut:]) for (number, data), cut in cuts]
        self.feed(rests)
        cuts = zip(reads, taken.taken, strict=True)
        return [[(number, data[:cut]) for (number, data), cut in cuts], rests]

    def restore(self, records: bytes, places: bytes, *, are_halves: bool, queue_id: int) -> int:
        """Store messages where they belong."""
        log = self.store.commit_log
        now_ms = log.next_store_timestamp_ms
        taken, written = self.core.restore(
            records, places, are_halves, queue_id, log.end, log.segments[-1].end - log.end, now_ms
        )
        if taken.message_count:
            self.commit(taken, written, now_ms)
        self.restored += taken.message_count
        return taken.message_count

    def learn(self, places: Iterable[tuple[str, int]]) -> None:
        """Know no more than before."""

    def commit_halves(self) -> None:
        """Have the core do what it can."""
        halves = self.halves()
        while halves:
            records, places = map(b"".join, zip(*halves, strict=True))
            count = self.restore(records, places, are_halves=True, queue_id=0)
            if not count:
                self.commit_half(halves[0][0])
            halves = halves[count or 1 :]

    def commit(self, taken: Any, records: bytes, now_ms: int) -> None:
        """Write a round and make it visible."""
        store, log = self.store, self.store.commit_log
        assert log.write_records(records, now_ms)
        assert taken.message_count == sum(count for _, count, _, _ in taken.queues)
        assert len(records) == taken.size_bytes == sum(size for _, _, size in taken.topics)
        store.dispatch.dispatch_prepared(taken, log.end, now_ms)
        for topic, count, size_bytes in taken.topics:
            self.stats.record_put(topic, count, size_bytes)

    def end(self, *, is_flushed: bool) -> dict[str, Any]:
        """Answer what waits for the flush as well."""
        if self.store.is_sync_flush:
            for taken in self.held:
                for asker, answer in taken.answers(0 if is_flushed else 10, True):
                    asker.write(answer)
        return super().end(is_flushed=is_flushed)
