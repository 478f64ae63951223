"""Client batches: what is stored of them, what is answered, and what becomes of the others."""

import dataclasses
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from mailboat.broker.dispatcher import Send
from mailboat.broker.processors.send import SendMessageProcessor
from mailboat.broker.stats import BrokerStats
from mailboat.config import Settings
from mailboat.disk import read_file
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.send_header import SendFields, SendRequest
from mailboat.store.lookup import GetStatus
from mailboat.store.message_store import MessageStore
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.store_simulator import HOST, small_config

_TOPICS = ("orders", "t" * 60)
_BORN = {
    4: bytes([10, 0, 0, 1]) + (1234).to_bytes(4, "big"),
    6: bytes(15) + b"\x01" + (1234).to_bytes(4, "big"),
}


class Peer:
    """A connection that keeps what is written to it."""

    def __init__(self, peer_host: bytes) -> None:
        """Connect from an address."""
        self.peer_host = peer_host
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Keep an answer."""
        self.written.append(data)


class OneBroker:
    """A store on a simulated disk and the processor of its sends."""

    def __init__(self, flush_disk_type: str = "ASYNC_FLUSH", **changes: Any) -> None:
        """Open an empty store."""
        self.disk = SimulatedDisk()
        config = small_config(flush_disk_type, **changes)
        self.store = MessageStore(config, self.disk, store_host=HOST)
        self.store.open()
        table = {topic: TopicConfig(topic, 4, 4) for topic in _TOPICS}
        self.stats = BrokerStats(clock=lambda: 0.0, local_day=lambda: 1)
        context: Any = SimpleNamespace(
            store=self.store,
            topics=SimpleNamespace(table=table),
            settings=Settings(store=config),
            stats=self.stats,
        )
        self.waiting: list[tuple[int, Callable[[int], None]]] = []
        flush: Any = SimpleNamespace(
            wait_settled=lambda end, done: self.waiting.append((end, done))
        )
        # The short way wakes a queue once a round, the long way for each batch.
        self.arrivals: dict[tuple[str, int], int] = {}
        self.store.dispatch.on_arrival = lambda queues: self.arrivals.update(
            {(queue.topic, queue.queue_id): queue.max_offset for queue in queues}
        )
        self.processor = SendMessageProcessor(context, flush)

    def state(self) -> dict[str, Any]:
        """Close the store; return every file and every counter."""
        self.store.close()
        files = [path for path in self.disk.walk() if not self.disk.is_dir(path)]
        return {
            "files": {path: read_file(self.disk, path) for path in files},
            "put": (self.stats.put_messages, self.stats.put_bytes, self.stats.put_failed),
            "arrivals": self.arrivals,
        }


def item(flag: int, body: bytes, text: bytes) -> bytes:
    """Return one message of a batch body."""
    head = struct.pack(">iiiii", 22 + len(body) + len(text), 0, 0, flag, len(body))
    return head + body + struct.pack(">H", len(text)) + text


def batch_send(peer: Any, body: bytes, opaque: int = 0, **fields: Any) -> Send:
    """Return a batch request as the dispatcher hands it over."""
    values: dict[str, Any] = {"topic": "orders", "queue_id": 1, "sys_flag": 0, "reconsume_times": 0}
    header = SendFields(
        producer_group="PG",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        born_timestamp_ms=1_700_000_000_000,
        message_flag=0,
        batch=True,
        **(values | fields),
    )
    return peer, SendRequest(RequestCode.SEND_BATCH_MESSAGE, header, 0, opaque), body


def test_a_batch_that_is_refused_takes_no_other_with_it() -> None:
    """Of three batches the middle one does not fit a segment: the others are stored."""
    broker = OneBroker()
    text = b"UNIQ_KEY\x01U1\x02"
    small, large = item(0, b"s", text), item(0, b"x" * 1000, text) * 8
    peer = Peer(_BORN[4])
    for body in (small, small):
        broker.processor.send([batch_send(peer, body)])
    max_body = dataclasses.replace(broker.store._config).max_message_size
    assert max_body < len(large)
    broker.processor._max_body_bytes = 1 << 20
    broker.processor.send([batch_send(peer, body) for body in (small, large, small)])
    answers = peer.written[-1]
    assert answers.count(b'"code":0') == 2
    assert answers.count(b'"code":13') == 1
    assert broker.store.max_offset("orders", 1) == 4


def test_a_write_that_fails_refuses_all_of_its_batches_and_leaves_nothing() -> None:
    """The batches after it get its queue offsets and its place."""
    broker = OneBroker()
    text = b"UNIQ_KEY\x01U1\x02"
    body = item(0, b"s", text)
    peer = Peer(_BORN[4])
    for _ in range(2):
        broker.processor.send([batch_send(peer, body)])
    log = broker.store.commit_log
    before = log.end
    refusal = OSError(28, "No space left on device")
    with patch("mailboat.store.commit_log.write_fully", side_effect=refusal):
        broker.processor.send([batch_send(peer, body), batch_send(peer, body, queue_id=2)])
    assert peer.written[-1].count(b'"code":14') == 2
    assert log.end == before
    assert broker.stats.put_failed == 2
    broker.processor.send([batch_send(peer, body), batch_send(peer, body, queue_id=2)])
    assert peer.written[-1].count(b'"code":0') == 2
    assert broker.store.max_offset("orders", 1) == 3
    assert broker.store.max_offset("orders", 2) == 1
    assert broker.store.get_message("orders", 1, 2, 1, 1 << 20).status == GetStatus.FOUND


def test_with_sync_flush_batches_are_seen_and_answered_once_flushed() -> None:
    """Before the flush that covers them there is no answer and nothing to read."""
    broker = OneBroker("SYNC_FLUSH")
    body = item(0, b"s", b"UNIQ_KEY\x01U1\x02")
    peer = Peer(_BORN[4])
    for _ in range(2):
        broker.processor.send([batch_send(peer, body), batch_send(peer, body)])
    assert peer.written == []
    assert broker.store.max_offset("orders", 1) == 0
    assert [end for end, _ in broker.waiting][-1] == broker.store.commit_log.end
    job = broker.store.begin_flush()
    assert job is not None
    job.run()
    broker.store.finish_flush(job, None)
    for _, done in broker.waiting:
        done(ResponseCode.SUCCESS)
    assert b"".join(peer.written).count(b'"code":0') == 4
    assert broker.store.max_offset("orders", 1) == 4
    assert len(broker.store.query_message("orders", "U1", 9, 0, 1 << 60).records) == 4
