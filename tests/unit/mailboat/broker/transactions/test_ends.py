"""Ends that come while a start still finds out which transactions are open."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mailboat.broker.flush_service import FlushService
from mailboat.broker.membership import ProducerManager
from mailboat.broker.offsets import ConsumerOffsetManager
from mailboat.broker.stats import BrokerStats
from mailboat.broker.stored_message import stored_form
from mailboat.broker.topics import TopicConfigManager
from mailboat.broker.transactions.ends import WAITING_MAX, EndRequest, TransactionEnds
from mailboat.broker.transactions.ledger import HalfLedger
from mailboat.broker.transactions.parts import TransactionCounters
from mailboat.broker.transactions.records import half_message
from mailboat.config import MessageStoreConfig, Settings
from mailboat.disk.real import RealDisk
from mailboat.errors import BrokerError
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand, decode_command
from mailboat.protocol.frame import FrameDecoder
from mailboat.store.message_inner import MessageInner
from mailboat.store.message_store import MessageStore

HOST = bytes([10, 0, 0, 1]) + (10911).to_bytes(4, "big")


class Peer:
    """A connection that keeps what is written to it."""

    peer = "10.0.0.9:1"

    def __init__(self) -> None:
        """Begin without answers."""
        self.answers: list[RemotingCommand] = []

    def write(self, data: bytes) -> None:
        """Keep answers."""
        self.answers += [decode_command(frame) for frame in FrameDecoder().feed(data)]


@dataclass
class Broker:
    """The parts that transactions use, without sockets."""

    settings: Settings
    store: MessageStore
    topics: TopicConfigManager
    offsets: ConsumerOffsetManager
    producers: ProducerManager = field(default_factory=ProducerManager)
    stats: BrokerStats = field(default_factory=BrokerStats)
    is_leading: bool = True


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """Open a store with a topic."""
    config = MessageStoreConfig(
        store_path_root_dir=str(tmp_path),
        mapped_file_size_commit_log=1 << 20,
        disk_space_warning_level_ratio=100,
    )
    settings = Settings(role="broker", store=config)
    disk = RealDisk()
    store = MessageStore(config, disk, store_host=HOST)
    store.open()
    topics = TopicConfigManager(settings.broker, disk, store.paths.config)
    topics.update(TopicConfig("t", read_queue_nums=4, write_queue_nums=4))
    yield Broker(settings, store, topics, ConsumerOffsetManager(disk, store.paths.config))
    store.close()


def _prepare(broker: Broker, number: int) -> MessageInner:
    properties = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": f"U{number}"}
    text = stored_form(properties)
    message = MessageInner("t", 1, b"body", text, 0, f"U{number}", None, 0, 4, 1, HOST)
    half = half_message(message, properties)
    broker.store.put_messages([half])
    return half


def _request(peer: Peer, half: MessageInner, *, is_commit: bool) -> EndRequest:
    command = RemotingCommand.request(RequestCode.END_TRANSACTION)
    place = half.queue_offset, half.physical_offset
    return EndRequest(peer, command, "pg", *place, is_commit, False)  # type: ignore[arg-type]


async def test_ends_wait_for_the_start_and_only_so_many(broker: Broker) -> None:
    """Nothing is stored before it is known what has ended already; then all are, in turn."""
    peer, counters = Peer(), TransactionCounters()
    halves = [_prepare(broker, number) for number in range(3)]
    earlier = HalfLedger(broker, RealDisk())
    for _ in earlier.rebuild():
        continue
    earlier.close([0])
    ledger = HalfLedger(broker, RealDisk())
    flush = FlushService(broker.store, interval_s=1, timeout_s=1, replicas_timeout_s=1)
    ends = TransactionEnds(broker, flush, ledger, counters)
    for half in halves:
        ends.take(_request(peer, half, is_commit=True))
    await asyncio.sleep(0)
    assert (broker.store.max_offset("t", 1), peer.answers) == (0, [])
    for _ in range(WAITING_MAX - 3):
        ends.take(_request(peer, halves[1], is_commit=True))
    with pytest.raises(BrokerError) as error:
        ends.take(_request(peer, halves[1], is_commit=True))
    assert error.value.code == ResponseCode.SYSTEM_BUSY
    for _ in ledger.rebuild():
        continue
    ends.store_gathered()
    for _ in range(WAITING_MAX):
        await asyncio.sleep(0)
    await flush.close()
    assert broker.store.max_offset("t", 1) == 2
    assert counters.committed == 2
    # The first one had ended without a message before.
    assert peer.answers[0].code == ResponseCode.SYSTEM_ERROR
    assert {answer.code for answer in peer.answers[1:]} == {ResponseCode.SUCCESS}
