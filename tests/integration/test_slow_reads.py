"""Reads that take long: nobody else waits for them, and there are only so many of them."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mailboat.broker.blocking_calls import READS_MAX, SEARCHES_MAX, SEARCHES_MAX_PER_ADDRESS
from mailboat.broker.controller import BrokerController
from mailboat.config import BrokerConfig, MessageStoreConfig, Settings
from mailboat.model.properties import encode_properties
from mailboat.model.record import decode_records
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.remoting.client import RemotingClient
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.store.message_inner import MessageInner, PutStatus

_HELD_MAX_S = 0.05
_HOST = bytes((127, 0, 0, 1)) + (10911).to_bytes(4, "big")


class _Broker:
    """A broker whose every message counts as cold, and a client of it."""

    def __init__(self, root: Path, **store: Any) -> None:
        config = MessageStoreConfig(
            store_path_root_dir=str(root),
            mapped_file_size_commit_log=1 << 22,
            mapped_file_size_consume_queue=20_000,
            max_hash_slot_num=1000,
            max_index_num=1_000_000,
            access_message_in_memory_max_ratio=0,
            disk_max_used_space_ratio=95,
            disk_space_clean_forcibly_ratio=100,
            disk_space_warning_level_ratio=100,
            **store,
        )
        broker = BrokerConfig(bind_address="127.0.0.1", listen_port=0)
        self.controller = BrokerController(Settings(role="broker", store=config, broker=broker))
        self.store = self.controller.store
        self._client = RemotingClient(Dispatcher())

    async def start(self) -> None:
        await self.controller.start()
        self.controller.topics.table["t"] = TopicConfig("t", 1, 1)
        self.controller.groups.update(SubscriptionGroupConfig("g"))

    async def stop(self) -> None:
        await self._client.close()
        await self.controller.shutdown()

    def put(self, count: int, *, key: str = "order", body: bytes = b"body") -> list[MessageInner]:
        messages = []
        for _ in range(count):
            properties = encode_properties({"KEYS": key, "TAGS": "a"}).encode()
            messages.append(MessageInner("t", 0, body, properties, 97, None, key, 0, 0, 1, _HOST))
        for first in range(0, count, 500):
            self.store.put_messages(messages[first : first + 500])
        assert {message.status for message in messages} == {PutStatus.PUT_OK}
        return messages

    async def call(self, code: int, **fields: Any) -> RemotingCommand:
        command = RemotingCommand.request(code, fields)
        return await self._client.request(self.controller.address, command, 30.0)

    async def query(self, begin_ms: int, end_ms: int, count: int = 32) -> RemotingCommand:
        return await self.call(
            RequestCode.QUERY_MESSAGE, topic="t", key="order", maxNum=count,
            beginTimestamp=begin_ms, endTimestamp=end_ms,
        )  # fmt: skip

    async def pull(self, queue_offset: int, subscription: str = "*") -> RemotingCommand:
        return await self.call(
            RequestCode.PULL_MESSAGE, consumerGroup="g", topic="t", queueId=0,
            queueOffset=queue_offset, maxMsgNums=32, sysFlag=4, commitOffset=0,
            suspendTimeoutMillis=0, subscription=subscription, subVersion=0, expressionType="TAG",
        )  # fmt: skip


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[_Broker]:
    """Start a broker."""
    broker = _Broker(tmp_path)
    await broker.start()
    yield broker
    await broker.stop()


@contextmanager
def _longest_hold(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Measure the longest work of one callback of the loop, in its thread's own time."""
    longest = [0.0]
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        begin_s = time.thread_time()
        run(handle)
        longest[0] = max(longest[0], time.thread_time() - begin_s)

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", timed)
        yield longest


async def test_a_query_by_a_key_of_every_message_holds_nobody_up(
    broker: _Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """400,000 messages with the key came later than the hour that is asked for."""
    early_ms = int(time.time() * 1000)
    old = broker.put(10)
    await asyncio.sleep(2.1)
    for _ in range(80):
        broker.put(5000)
        await asyncio.sleep(0)
    with _longest_hold(monkeypatch) as longest:
        answer = await broker.query(0, early_ms - 60_000)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        answer = await broker.query(0, early_ms + 1000)
        found = [message.physical_offset for message in decode_records(answer.body)]
        assert found == [message.physical_offset for message in old]
        answer = await broker.query(0, 1 << 60, 64)
        assert len(decode_records(answer.body)) == 64
    assert longest[0] < _HELD_MAX_S


async def test_an_answer_holds_the_newest_messages_that_fit(broker: _Broker) -> None:
    """Sixty-four of 4 MB would break the frame."""
    messages = broker.put(8, body=b"x" * 4_000_000)
    answer = await broker.query(0, 1 << 60)
    found = [message.physical_offset for message in decode_records(answer.body)]
    assert found == [message.physical_offset for message in messages[-4:]]


async def test_cold_messages_are_read_elsewhere_and_answered(broker: _Broker) -> None:
    """All of them, in order, by tag too; where a file was cut short, only what it held is gone."""
    messages = broker.put(100, body=b"y" * 1000)
    broker.store.background()
    seen: list[int] = []
    while len(seen) < 100:
        answer = await broker.pull(len(seen))
        assert answer.code == ResponseCode.SUCCESS
        seen += [message.physical_offset for message in decode_records(answer.body)]
    assert seen == [message.physical_offset for message in messages]
    assert len(decode_records((await broker.pull(0, "a || b")).body)) == 32
    answer = await broker.pull(0, "b")
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.ext_fields["nextBeginOffset"] == "100"
    segment = broker.store.commit_log.segments[0]
    os.truncate(segment.path, messages[50].physical_offset)
    assert len(decode_records((await broker.pull(40)).body)) == 10
    answer = await broker.pull(50)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "queue offset 50" in (answer.remark or "")
    assert "cannot be read" in (answer.remark or "")
    assert broker.store.state().unreadable_records > 0


async def test_readers_are_limited_and_hold_no_segment_up(broker: _Broker) -> None:
    """While the disk gives nothing: pulls and queries over the limit are busy, sends go on."""
    gate = threading.Event()
    threads = broker.controller.store_threads
    broker.put(10)
    broker.store.background()
    try:
        for _ in range(READS_MAX):
            threads.runners.reads(gate.wait, lambda _result, _error: None)
        for _ in range(SEARCHES_MAX):
            threads.runners.searches(gate.wait, lambda _result, _error: None)
        answer = await broker.pull(0)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert "OVERLOAD" in (answer.remark or "")
        answer = await broker.query(0, 1 << 60)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        broker.put(3, body=b"z" * 1_000_000)
        broker.store.background()
        reserved = asyncio.Event()
        threads.runners.reservations(lambda: None, lambda _result, _error: reserved.set())
        await asyncio.wait_for(reserved.wait(), 10)
        assert broker.store.commit_log.is_prepared
    finally:
        gate.set()
    await asyncio.wait_for(threads.drain(), 10)
    assert len(decode_records((await broker.pull(0)).body)) == 10


async def test_one_address_has_a_share_of_the_searches(broker: _Broker) -> None:
    """However many connections it has and however often it asks, others are answered."""
    gate = threading.Event()
    threads = broker.controller.store_threads
    broker.put(1)
    host, port = broker.controller.address.split(":")
    try:
        threads.runners.searches(gate.wait, lambda _result, _error: None)
        clients = [RemotingClient(Dispatcher()) for _ in range(2)]
        fields = {
            "topic": "t", "key": "order", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1 << 60,
        }  # fmt: skip
        asking = [
            asyncio.create_task(
                client.request(
                    f"{host}:{port}", RemotingCommand.request(RequestCode.QUERY_MESSAGE, fields), 30
                )
            )
            for client in clients * 20
        ]
        ended = asyncio.as_completed(asking)
        for _ in range(40 - SEARCHES_MAX_PER_ADDRESS):
            await next(ended)
        reader, writer = await asyncio.open_connection(host, port, local_addr=("127.0.0.2", 0))
        writer.write(RemotingCommand.request(RequestCode.QUERY_MESSAGE, fields).encode())
        await asyncio.sleep(0.1)
    finally:
        gate.set()
    codes = [(await task).code for task in asking]
    assert codes.count(ResponseCode.SUCCESS) == SEARCHES_MAX_PER_ADDRESS
    assert codes.count(ResponseCode.SYSTEM_BUSY) == 40 - SEARCHES_MAX_PER_ADDRESS
    size = int.from_bytes(await reader.readexactly(4))
    assert b'"code":0' in await reader.readexactly(size)
    assert (await broker.query(0, 1 << 60)).code == ResponseCode.SUCCESS
    writer.close()
    for client in clients:
        await client.close()
