"""The short way of client batches stores and answers what the long way does, byte for byte."""

import dataclasses
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from mailboat.broker.dispatcher import Send
from mailboat.broker.processors import send as send_module
from mailboat.broker.processors.send import SendMessageProcessor
from mailboat.broker.stats import BrokerStats
from mailboat.config import Settings
from mailboat.disk import read_file
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.send_header import SendFields, SendRequest
from mailboat.store.file_pool import FilePool
from mailboat.store.index_file import IndexFile, index_file_bytes
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
        self.waiting: list[tuple[int, Callable[[bool], None]]] = []
        flush: Any = SimpleNamespace(wait=lambda end, done: self.waiting.append((end, done)))
        # The short way wakes a queue once a round, the long way for each batch.
        self.arrivals: dict[tuple[str, int], int] = {}
        self.store.on_arrival = lambda queues: self.arrivals.update(
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


@contextmanager
def long_way() -> Iterator[None]:
    """Let every batch be stored message by message."""
    with patch.object(send_module, "read_client_batch", return_value=None):
        yield


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


_names = st.sampled_from(["color", "color", "CLUSTER", "DELAY"]).flatmap(
    lambda name: st.permutations(["KEYS", "UNIQ_KEY", "WAIT", "TAGS", name])
)
_value = {
    "KEYS": st.one_of(
        st.from_regex(r"key-[0-9]{4}", fullmatch=True),
        st.sampled_from(["a b", "k", "", "\u00e9\u6c34", " x"]),
    ),
    "UNIQ_KEY": st.one_of(
        st.from_regex(r"7F0000010000[0-9A-F]{4}", fullmatch=True),
        st.sampled_from(["u", "\u6c34", ""]),
    ),
    "TAGS": st.sampled_from(["TagA", "TagB", "", "\u6c34"]),
    "color": st.text("rgb", max_size=400),
    "CLUSTER": st.just("mine"),
    "DELAY": st.sampled_from(["0", "3"]),
}


@st.composite
def _body(draw: st.DrawFn) -> bytes:
    names = draw(_names)[: draw(st.sampled_from([5, 5, 5, 4, 3, 1]))]
    if draw(st.integers(0, 3)) and "UNIQ_KEY" not in names:
        names.append("UNIQ_KEY")
    wait = draw(st.sampled_from(["true", "true", "false", "maybe"]))
    end = b"\x02" if draw(st.booleans()) else b""
    items: list[bytes] = []
    body_sizes = st.sampled_from(draw(st.sampled_from([[0, 100, 900], [64]])))
    for _ in range(draw(st.integers(1, 6))):
        values = {n: wait if n == "WAIT" else draw(_value[n]) for n in names}
        text = "\x02".join(f"{name}\x01{value}" for name, value in values.items()).encode() + end
        if draw(st.integers(0, 19)) == 0:
            text = draw(st.sampled_from([b"", b"\xff", text + b"DELAY\x013\x02", text[1:], b"k"]))
        size = draw(body_sizes)
        items.append(item(draw(st.integers(-5, 5)), bytes([len(items)]) * size, text))
    cut = draw(st.sampled_from([0] * 19 + [1]))
    return b"".join(items)[: -cut or None]


@st.composite
def _sends(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Some requests of one round, as arguments of `batch_send`."""
    single = st.fixed_dictionaries(
        {
            "body": _body(),
            "topic": st.sampled_from(_TOPICS),
            "queue_id": st.integers(0, 2),
            "sys_flag": st.sampled_from([0, 0x30]),
            "reconsume_times": st.integers(0, 2),
        }
    )
    return draw(st.lists(single, min_size=1, max_size=4))


def _frames(data: bytes) -> list[bytes]:
    frames: list[bytes] = []
    while data:
        end = 4 + int.from_bytes(data[:4], "big")
        frames.append(data[:end])
        data = data[end:]
    return sorted(frames)


# Shrinking takes minutes here, and every example can be read as it is.
@settings(max_examples=150, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    rounds=st.lists(_sends(), min_size=1, max_size=4),
    append_crc=st.booleans(),
    ip=st.sampled_from([4, 6]),
)
def test_both_ways_store_and_answer_the_same(
    rounds: list[list[dict[str, Any]]], append_crc: bool, ip: int
) -> None:
    """Files, answers, counters and wake-ups are the same, whatever the batches hold."""

    def run() -> tuple[dict[str, Any], list[bytes]]:
        # Unique keys that the broker makes itself are numbered from a new start.
        with patch.object(
            send_module, "UniqKeyGenerator", lambda _: SimpleNamespace(next=lambda: "GENERATED")
        ):
            broker = OneBroker(enabled_append_prop_crc=append_crc)
        peer = Peer(_BORN[ip])
        for requests in rounds:
            sends = [batch_send(peer, **request, opaque=n) for n, request in enumerate(requests)]
            broker.processor.send(sends)
        return broker.state(), peer.written

    run()
    short_state, short_answers = run()
    with long_way():
        long_state, long_answers = run()
    # A refusal may overtake the answers to what is stored: the opaque tells which is which.
    assert list(map(_frames, short_answers)) == list(map(_frames, long_answers))
    assert short_state == long_state


@pytest.mark.parametrize("append_crc", [False, True])
def test_both_ways_begin_a_new_segment_at_the_same_place(append_crc: bool) -> None:
    """Batches that end a few bytes before, at or behind a segment's end lie where they should."""
    text = b"UNIQ_KEY\x01U1\x02"
    sizes: list[list[tuple[int, int]]] = []
    for way in (nullcontext, nullcontext, long_way):
        ends: list[tuple[int, int]] = []
        for size in range(3560, 3760):
            broker = OneBroker(enabled_append_prop_crc=append_crc)
            with way():
                for _ in range(2):
                    body = item(0, b"x" * size, text)
                    broker.processor.send([batch_send(Peer(_BORN[4]), body)])
                broker.processor.send([batch_send(Peer(_BORN[4]), item(0, b"y" * 400, text))])
            ends.append((len(broker.store.commit_log.segments), broker.store.commit_log.end))
        sizes.append(ends)
    assert sizes[1] == sizes[2]
    assert {segments for segments, _ in sizes[1]} == {1, 2}


def test_batches_of_a_round_are_written_with_one_call() -> None:
    """Twenty requests cost one write to the CommitLog, and each is answered with its own ids."""
    broker = OneBroker(mapped_file_size_commit_log=1 << 20)
    text = b"UNIQ_KEY\x01U%04d\x02WAIT\x01true\x02"
    bodies = [item(0, b"x" * 50, text % number) for number in range(20)]
    peer = Peer(_BORN[4])
    broker.processor.send([batch_send(peer, body) for body in bodies[:2]])
    before = broker.store.commit_log.end
    writes: list[int] = []
    segment = broker.store.commit_log.segments[0]
    write = type(segment).write

    def counted(self: Any, data: bytes, position: int) -> None:
        writes.append(len(data))
        write(self, data, position)

    with patch.object(type(segment), "write", counted):
        broker.processor.send([batch_send(peer, body) for body in bodies])
    assert writes == [broker.store.commit_log.end - before]
    assert broker.store.max_offset("orders", 1) == 22
    assert len(set(peer.written[-1].split(b'"msgId":"')[1:])) == 20


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
    """Batches share a write and so its failure; the next ones get their queue offsets and place."""
    broker = OneBroker()
    text = b"UNIQ_KEY\x01U1\x02"
    body = item(0, b"s", text)
    peer = Peer(_BORN[4])
    for _ in range(2):
        broker.processor.send([batch_send(peer, body)])
    log = broker.store.commit_log
    before = log.end
    segment = log.segments[0]
    with patch.object(type(segment), "write", side_effect=OSError(28, "No space left on device")):
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
        done(True)
    assert b"".join(peer.written).count(b'"code":0') == 4
    assert broker.store.max_offset("orders", 1) == 4
    assert len(broker.store.query_message("orders", "U1", 9, 0, 1 << 60).records) == 4


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=30), max_size=6),
    st.sampled_from([5, 1000]),
)
def test_keys_put_together_make_the_file_of_keys_put_alone(
    groups: list[list[int]], slot_count: int
) -> None:
    """Entries, slots and header of an index file do not tell how many keys came at once."""
    files: list[bytes] = []
    for is_together in (True, False):
        disk = SimulatedDisk()
        fd = disk.open("/index", create=True)
        disk.ftruncate(fd, index_file_bytes(slot_count, 400))
        file = IndexFile(disk, FilePool(disk, 8), "/index", slot_count, 400)
        for number, group in enumerate(groups):
            offsets = [number * 1000 + at for at in range(len(group))]
            if is_together:
                file.put_all(group, offsets, 1000 * number, 1000 * number + 999)
            else:
                for key_hash, offset in zip(group, offsets, strict=True):
                    file.put_all([key_hash], [offset], 1000 * number, 1000 * number + 999)
        save = file.snapshot()
        assert (save is None) == (not groups)
        if save is not None:
            save()
        files.append(read_file(disk, "/index"))
    assert files[0] == files[1]
