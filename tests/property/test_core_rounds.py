"""Rounds of sends through the compiled core store and answer what Python alone does."""

import asyncio
import json
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from mailboat.broker import dispatcher as dispatcher_module
from mailboat.broker import schedule as schedule_module
from mailboat.broker.dispatcher import BrokerDispatcher
from mailboat.broker.processors import send as send_module
from mailboat.broker.processors import send_rules
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
from mailboat.model.hosts import encode_host
from mailboat.model.names import HALF_TOPIC, SCHEDULE_TOPIC
from mailboat.model.record import decode_record
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import ResponseCode
from mailboat.protocol.frame import FrameDecoder
from mailboat.remoting.connection import Connection, ConnectionSet
from mailboat.remoting.limits import RemotingLimits
from mailboat.store.consume_queue import UNIT
from mailboat.store.index_rows import ROW
from mailboat.store.message_store import MessageStore
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.store_simulator import small_config

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
        self.dispatcher._store_gathered()

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
            suffix=self.processor._suffix,
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


# -- what clients send ------------------------------------------------------------------------


def literal(random: Random, value: str) -> str:
    """Write a text as one of the ways in which clients do."""
    return json.dumps(value, ensure_ascii=random.random() < 0.5)


VALUES = {
    "KEYS": ["key-1", "a b", "a  b ", "\u00e9 \u6c34", "\U0001f600", " ", "k" * 70],
    "UNIQ_KEY": ["7F00000100001234", "u", "\u6c34", "\U0001f600\u00e9"],
    "TAGS": ["TagA", "Monday", "TagB||x", "\u6c34", "\U0001f600", "a-longer-tag-0123456789"],
    "WAIT": ["true", "true", "false"],
    "color": ["red", 'back\\slash/"quoted"', "\t\n\0", "1=2", "WAIT", "x" * 300],
}
ODD_PROPERTIES = [
    "DELAY\x010\x02", "CLUSTER\x01c\x02", "TRAN_MSG\x01no\x02", "__CRC32#\x010\x02", "KEYS\x01\x02",
    "WAIT\x01maybe\x02", "WAIT\x01false\x02", "WAIT\x01true\x02", "\x01v\x02", "name", "n\x01",
    "\x02",
    "a\x01b\x01c\x02", "color\x01green\x02", "KEYS\x01twice\x02", "TAGS\x01twice\x02",
    "UNIQ_KEY\x01\x02",
    "UNIQ_KEY\x01second\x02", "KEYS\x01" + " ".join(map(str, range(80))) + "\x02",
    "XWAIT\x01true\x02",
]  # fmt: skip


DELAYED = [[f"DELAY\x01{level}\x02"] for level in (1, 1, 2, 3, 18)]
HALF = ["PGROUP\x01pg\x02", "TRAN_MSG\x01true\x02"]
PARKED = [*DELAYED, HALF, HALF]
ODD_PARKED = [
    *[[f"DELAY\x01{level}\x02"] for level in ("0", "19", "-1", "01", "99999999999")],
    ["DELAY\x01x\x02"], ["DELAY\x011\x02"] * 2, ["TRAN_MSG\x01true\x02"],
    ["PGROUP\x01pg\x02", "TRAN_MSG\x01TRUE\x02"], [*HALF, "DELAY\x011\x02"], HALF * 2,
    ["DELAY\x012\x02", "REAL_TOPIC\x01x\x02"], [*HALF, "REAL_QID\x011\x02"],
    [*HALF, "__transactionId__\x01id\x02"], ["DELAY\x011\x02", "color\x01green\x02"],
    ["DELAY\x012\x02", "TRANSACTION_CHECK_TIMES\x013\x02"],
    [*HALF, "TRANSACTION_CHECK_TIMES\x013\x02"],
    ["DELAY\x011\x02", *[f"p{n}\x01v\x02" for n in range(40)]],
]  # fmt: skip


def properties(random: Random, *, is_odd: bool, parked: Sequence[str] = ()) -> str:
    """Return a properties text."""
    names = random.sample(list(VALUES), random.randint(0, len(VALUES)))
    if "UNIQ_KEY" not in names:
        names.insert(random.randint(0, len(names)), "UNIQ_KEY")
    if random.random() < 0.2:
        names.append("WAIT" if "WAIT" not in names else "other")
    entries = [f"{n}\x01{random.choice(VALUES.get(n, ['v']))}\x02" for n in names]
    if is_odd and random.random() < 0.8:
        entries.insert(random.randint(0, len(entries)), random.choice(ODD_PROPERTIES))
    elif is_odd:
        entries = [entry for entry in entries if not entry.startswith("UNIQ_KEY")]
    elif random.random() < 0.15:
        entries.insert(random.randint(0, len(entries)), "also\x01WAIT\x02")
    if parked:
        for entry in parked:
            entries.insert(random.randint(0, len(entries)), entry)
    text = "".join(entries)
    return text[:-1] if random.random() < 0.3 else text


def batch(random: Random, *, is_odd: bool) -> bytes:
    """Return the body of a batch."""
    items: list[bytes] = []
    odd_one = random.randrange(4) if is_odd else -1
    has_same_text = random.random() < 0.5
    text = properties(random, is_odd=False).encode()
    for number in range(random.randint(1, 5)):
        if not has_same_text:
            text = properties(random, is_odd=False).encode()
        if number == odd_one:
            odd = properties(random, is_odd=True).encode()
            text = random.choice([odd, b"\xff" + text, b"", text])
        body = bytes([number]) * random.choice([0, 1, 50, 300])
        head = struct.pack(
            ">iiiii", 22 + len(body) + len(text), 0, 0, random.randint(-5, 5), len(body)
        )
        items.append(head + body + struct.pack(">H", len(text)) + text)
    data = b"".join(items)
    if is_odd and random.random() < 0.3:
        return data[: random.randrange(len(data) + 1)]
    return data


LONG_NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums",
    "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties",
    "j": "reconsumeTimes", "k": "unitMode", "l": "maxReconsumeTimes", "m": "batch", "n": "bname",
}  # fmt: skip
ODD_VALUES = [
    "null", "true", "1", '"1"', "1.0", "1e3", '"1.0"', '"+1"', '" 1"', '"01"', "-1", '"-1"', "01",
    "2147483648", '"99999999999"', '"TRUE"', '"False"', '""', "{}", '{"a":1}', "[1]", '"null"',
    "-0",
    "12345678901234567890", '"\\ud800"', '"\\ud83d\\ude00"', '"\x01"', '"\\x"', '"broker-b"',
    '"%RETRY%g"', '"SCHEDULE_TOPIC_XXXX"', '"no topic"', '"\\u0041"', "tru", "", "1e999",
]  # fmt: skip


def binary_header(
    random: Random, kind: str, code: int, flag: int, opaque: int, members: list[tuple[str, str]]
) -> bytes:
    """Return a binary header whose fields have the values of JSON literals."""
    fields = b""
    for name, literal in members:
        try:
            value = json.loads(literal)
        except ValueError:
            value = literal
        text = "" if value is None else value if isinstance(value, str) else literal
        is_optional = LONG_NAMES.get(name, name) in ("reconsumeTimes", "maxReconsumeTimes")
        if random.random() < 0.1 and (is_optional or kind == "fields"):
            text = ""  # That is how null is written.
        key = json.loads(f'"{name}"').encode()
        data = text.encode("utf-8", "surrogatepass")
        fields += struct.pack(f">h{len(key)}si", len(key), key, len(data)) + data
    remark = random.choice([b"", b"", b"why", "\u6c34".encode(), b"\xff" * (kind == "header")])
    remark_bytes, fields_bytes = len(remark), len(fields)
    if kind == "header":
        odd = random.choice([-1, 1, 2, 1 << 20])
        change = random.randrange(5)
        remark_bytes += odd * (change == 0)
        fields_bytes += odd * (change == 1)
        flag = odd if change == 2 else flag
        code = random.choice([10, 310, 320, 11, 12, -1]) if change == 3 else code
        fields += b"\0\1" * (change == 4)
    head = struct.pack(">hbhiii", code, 0, 401, opaque, flag, remark_bytes)
    return head + remark + struct.pack(">i", fields_bytes) + fields


def request(random: Random, kind: str, opaque: int) -> bytes:
    """Return a frame; its kind says how odd it is."""
    is_batch = random.random() < 0.3
    is_long = random.random() < 0.25
    code = 10 if is_long else random.choice([310, 320]) if is_batch else 310
    text = properties(random, is_odd=kind == "properties" and not is_batch)
    size = random.choice([1, 10, 100, 900])
    if kind == "body":
        size = random.choice([0, MAX_BODY_BYTES - 1, MAX_BODY_BYTES, MAX_BODY_BYTES + 1])
    body = bytes([opaque & 0xFF]) * size
    if is_batch:
        body = batch(random, is_odd=kind == "properties")
    elif kind in ("parked", "odd parked"):
        text = properties(
            random, is_odd=False, parked=random.choice(PARKED if kind == "parked" else ODD_PARKED)
        )
    number = (lambda n: str(n)) if random.random() < 0.2 else (lambda n: f'"{n}"')
    fields = {
        "a": '"PG"', "b": json.dumps(random.choice(LEARNED)), "c": '"TBW102"', "d": number(8),
        "e": number(random.randrange(3)),
        "f": number(random.choice([0, 0, 1, 0x30, 0x701, 12, -1])),
        "g": number(random.choice([1_700_000_000_000, -1])), "h": number(random.randint(-3, 3)),
        "i": literal(random, text), "j": number(random.choice([0, 0, 2])),
        "k": random.choice(['"false"', "false", '"true"']), "l": number(16),
        "m": random.choice(['"true"', "true"]) if is_batch else random.choice(['"false"', "false"]),
        "n": random.choice(["null", '"broker-a"']) if random.random() < 0.5 else "",
    }  # fmt: skip
    for name in "ijklmn":
        is_needed = (name == "m" and is_batch and code != 320) or name == "i"
        if not fields[name] or (random.random() < 0.2 and not is_needed):
            del fields[name]
    if kind == "queue":
        fields["e"] = number(random.choice([-1, 3, 4, 5, 6, 100]))
        fields["b"] = json.dumps(random.choice(TOPICS))
        if random.random() < 0.3:
            fields |= {"b": json.dumps(LEARNED[0]), "e": '"0"', "n": '"broker-b"'}
    members = [(LONG_NAMES[name] if is_long else name, value) for name, value in fields.items()]
    members += [("bname", '"elsewhere"'), ("ns", "1")][: 0 if is_long else random.randrange(3)]
    if kind == "fields":
        place = random.randrange(len(members))
        change = random.choice(["value", "value", "value", "drop", "twice", "add", "escape"])
        name, value = members[place]
        if change == "value":
            members[place] = name, random.choice(ODD_VALUES)
        elif change == "drop":
            del members[place]
        elif change == "twice":
            members.append((name, value))
        elif change == "add":
            members.append((random.choice([*LONG_NAMES, *LONG_NAMES.values(), "z"]), value))
        else:
            members[place] = f"\\u{ord(name[0]):04x}{name[1:]}", value
    if random.random() < 0.3:
        random.shuffle(members)
    colon, comma = (":", ",") if random.random() < 0.8 else (" : ", " ,\n")
    ext_fields = comma.join(f'"{name}"{colon}{value}' for name, value in members)
    flag = random.choice([0, 0, 0, 2])
    outer = [
        ("code", str(code)), ("extFields", "{" + ext_fields + "}"), ("flag", str(flag)),
        ("language", '"JAVA"'), ("opaque", str(opaque)), ("version", "401"),
    ]  # fmt: skip
    if random.random() < 0.2:
        random.shuffle(outer)
    if kind == "header":
        place = random.randrange(len(outer) + 1)
        names = ["flag", "opaque", "version", "code", "serialize_type", "remark", "extFields"]
        odd = random.choice([*ODD_VALUES, "2", "3", "4", "11", "34", "1"])
        if random.random() < 0.5 and place < len(outer):
            outer[place] = outer[place][0], odd
        else:
            outer.insert(place, (random.choice(names), odd))
    inner = comma.join(f'"{name}"{colon}{value}' for name, value in outer)
    header = ("{" + inner + "}").encode("utf-8", "surrogatepass")
    is_binary = random.random() < 0.3
    if is_binary:
        header = binary_header(random, kind, code, flag, opaque, members)
    if kind == "bytes":
        place = random.randrange(len(header))
        header = header[:place] + bytes([random.randrange(256)]) + header[place + 1 :]
    length = 4 + len(header) + len(body)
    prefix = bytearray(struct.pack(">II", length, is_binary << 24 | len(header)))
    if kind == "damage":
        prefix[random.randrange(8)] ^= 1 << random.randrange(8)
    return bytes(prefix) + header + body


ODD_KINDS = ["properties", "fields", "header", "queue", "body", "bytes"]
_kind = st.sampled_from(
    ["plain"] * 12 + ["parked"] * 6 + ["odd parked"] * 2 + ODD_KINDS * 2 + ["damage"]
)
_round = st.lists(
    st.tuples(
        st.integers(0, len(PEERS) - 1),
        st.lists(st.tuples(_kind, st.integers(0, 2**32)), max_size=5),
        st.sampled_from([0, 0, 0, 0, 1, 5, 300]),
    ),
    min_size=1,
    max_size=4,
)
SETTINGS = settings(
    max_examples=300, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)


def make_reads(
    plan: list[tuple[int, list[tuple[str, int]], int]], tails: dict[int, bytes], opaque: int
) -> list[tuple[int, bytes]]:
    """Return what connections send in one round, the last bytes of each perhaps a round later."""
    streams: dict[int, bytes] = {}
    for number, kinds, cut in plan:
        data = streams.get(number, tails.pop(number, b""))
        for kind, seed in kinds:
            opaque += 1
            data += request(Random(seed), kind, opaque if seed & 1 else -opaque)
        streams[number] = data
        tails[number] = b""
        if cut and len(data) > cut:
            streams[number], tails[number] = data[:-cut], data[-cut:]
    return [(number, data) for number, data in streams.items() if data]


@pytest.fixture(autouse=True)
def neither_time_nor_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no request wait for the next round of the loop, and let any queue be the first."""
    monkeypatch.setattr(send_rules.random, "randrange", lambda _: 0)
    monkeypatch.setattr(dispatcher_module, "ROUND_S", 1e6)
    monkeypatch.setattr(schedule_module, "_SLICE_S", 1e6)


@SETTINGS
@given(
    plan=st.lists(_round, min_size=1, max_size=5),
    append_crc=st.booleans(),
    host=st.sampled_from([("10.0.0.2", 10911), ("2001:db8::1", 10911)]),
    flush=st.sampled_from(["ASYNC_FLUSH", "ASYNC_FLUSH", "SYNC_FLUSH"]),
    message_limit=st.sampled_from([1, 4, 512, 512, 512]),
    is_flushed=st.booleans(),
)
def test_rounds_store_and_answer_what_python_does(
    plan: list[list[tuple[int, list[tuple[str, int]], int]]],
    append_crc: bool,
    host: tuple[str, int],
    flush: str,
    message_limit: int,
    is_flushed: bool,
) -> None:
    """Log, queues, keys, counters and answers are the same, whoever handled a frame."""

    async def run() -> None:
        store_host = encode_host(*host)
        core = WithCore(store_host, flush, append_crc=append_crc, message_limit=message_limit)
        plain = OneBroker(store_host, flush, append_crc=append_crc)
        tails: dict[int, bytes] = {}
        for number, round_ in enumerate(plan):
            for part in core.round(make_reads(round_, tails, number * 1000)):
                plain.feed(part)
        expected = plain.end(is_flushed=is_flushed)
        found = core.end(is_flushed=is_flushed)
        for what, value in expected.items():
            assert found[what] == value, what

    asyncio.run(run())


@pytest.mark.parametrize("is_v6", [False, True])
def test_ordinary_parked_sends_are_taken_and_restored(is_v6: bool) -> None:
    """None of them is left to Python, neither when it is sent nor when its time has come."""

    async def run() -> None:
        host = encode_host("2001:db8::1" if is_v6 else "10.0.0.2", 10911)
        core = WithCore(host, "ASYNC_FLUSH", append_crc=True, message_limit=512)
        for number, parked in enumerate(PARKED):
            text = "".join(
                ["UNIQ_KEY\x01U\x02WAIT\x01true\x02KEYS\x01a b\x02TAGS\x01t\x02", *parked]
            )
            fields = {
                "a": "P", "b": "orders", "c": "TBW102", "d": "4", "e": "1", "f": "4", "g": "1",
                "h": "0", "i": text,
            }  # fmt: skip
            data = json.dumps({"code": 310, "extFields": fields, "opaque": number}).encode()
            frame = struct.pack(">II", 4 + len(data) + 9, len(data)) + data + b"some body"
            _, [(_, rest)] = core.round([(number % 3, frame)])
            assert rest == b""
        core.end(is_flushed=True)
        assert core.restored == len(PARKED)

    asyncio.run(run())


@settings(max_examples=100, deadline=None)
@given(seeds=st.lists(st.integers(0, 2**32), min_size=1, max_size=8), append_crc=st.booleans())
@example(seeds=[10739], append_crc=False)
def test_ordinary_sends_are_all_taken(seeds: list[int], append_crc: bool) -> None:
    """A core that left everything to Python would be right, and of no use."""

    async def run() -> None:
        host = encode_host("10.0.0.2", 10911)
        core = WithCore(host, "ASYNC_FLUSH", append_crc=append_crc, message_limit=512)
        for number, seed in enumerate(seeds):
            data = request(Random(seed), "plain", number)
            _, [(_, rest)] = core.round([(number % 3, data)])
            # A batch may be larger than the broker allows.
            body_bytes = len(data) - 8 - int.from_bytes(data[5:8])
            is_odd = b"\\ud83d" in data or body_bytes > MAX_BODY_BYTES
            assert bool(rest) == (is_odd or core.is_full)
        core.end(is_flushed=True)

    asyncio.run(run())


@pytest.mark.parametrize("append_crc", [False, True])
@pytest.mark.parametrize("is_batch", [False, True])
def test_a_segment_ends_where_python_ends_it(append_crc: bool, is_batch: bool) -> None:
    """A send that ends a few bytes before, at or behind the end lies where Python lays it."""
    host = encode_host("10.0.0.2", 10911)
    text = "UNIQ_KEY\x01U\x02"

    def frame(size: int, *, is_batch: bool) -> bytes:
        header = {
            "code": 320 if is_batch else 310, "extFields": {
                "a": "P", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1",
                "h": "0", "i": text,
            }, "flag": 0, "opaque": size,
        }  # fmt: skip
        body = bytes(size)
        if is_batch:
            head = struct.pack(">iiiii", 22 + size + len(text), 0, 0, 0, size)
            body = 2 * (head + body + struct.pack(">H", len(text)) + text.encode())
        data = json.dumps(header).encode()
        return struct.pack(">II", 4 + len(data) + len(body), len(data)) + data + body

    def stored(gap: int, broker: OneBroker, receive: Callable[[bytes], object]) -> dict[str, Any]:
        log = broker.store.commit_log
        segment = log.segments[0]
        last = frame(100, is_batch=is_batch)
        receive(last)
        last_bytes = log.end
        receive(frame(1, is_batch=False))
        fixed_bytes = log.end - last_bytes - 1
        while (room := segment.end - log.end - last_bytes - gap) > 2 * MAX_BODY_BYTES:
            receive(frame(2000, is_batch=False))
        receive(frame(room // 2 - fixed_bytes, is_batch=False))
        receive(frame(room - room // 2 - fixed_bytes, is_batch=False))
        assert segment.end - log.end == last_bytes + gap
        receive(last)
        return broker.end(is_flushed=True)

    async def run(gap: int) -> bool:
        plain = OneBroker(host, "ASYNC_FLUSH", append_crc=append_crc)
        core = WithCore(host, "ASYNC_FLUSH", append_crc=append_crc, message_limit=512)
        expected = stored(gap, plain, lambda data: plain.feed([(0, data)]))
        found = stored(gap, core, lambda data: core.round([(0, data)]))
        assert found == expected, gap
        return core.is_full

    were_full = [asyncio.run(run(gap)) for gap in range(20)]
    # The filler, and for each message of a batch what the check of sizes counts beyond its bytes.
    least = 8 + (2 * (2 if append_crc else 1) if is_batch else 0)
    assert were_full == [gap < least for gap in range(20)]
