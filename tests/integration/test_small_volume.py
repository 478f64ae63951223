"""A broker on a volume that is really small, filled at full speed by a real client."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mailboat.client.producer import Producer
from mailboat.client.pull_consumer import PullConsumer
from mailboat.errors import BrokerError
from mailboat.model.message import Message
from mailboat.model.message_queue import MessageQueue
from mailboat.protocol.codes import ResponseCode
from mailboat.testing.cluster import Cluster

MIB = 1 << 20
TOPIC = "T"
GROUP = "readers"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
BODY_BYTES = 4_000
BATCH = 50
OPTIONS = {
    "httpPort": "0",
    "defaultTopicQueueNums": "1",
    "mappedFileSizeCommitLog": str(2 * MIB),
    "diskMaxUsedSpaceRatio": "75",
    "diskSpaceCleanForciblyRatio": "85",
    "diskSpaceWarningLevelRatio": "90",
    "cleanResourceInterval": "1000",
    "flushConsumerOffsetInterval": "100",
}


@pytest.fixture
def broker_on(
    volume: Callable[[int], Path],
) -> Callable[..., "contextlib.AbstractAsyncContextManager[SmallBroker]"]:
    """Start a broker with its clients on a volume of a given size."""

    @contextlib.asynccontextmanager
    async def start(size_bytes: int, **options: str) -> AsyncIterator[SmallBroker]:
        path = volume(size_bytes)
        cluster = Cluster(path, options={**OPTIONS, **options})
        async with cluster, aiohttp.ClientSession() as session:
            addresses = cluster.namesrv_addresses
            async with (
                Producer("p", namesrv=addresses) as producer,
                PullConsumer(GROUP, namesrv=addresses) as consumer,
            ):
                yield SmallBroker(path, cluster, session, producer, consumer)

    return start


_FILLING = os.urandom(BODY_BYTES - 8)


class SmallBroker:
    """A broker, what was stored on it, and what was read."""

    def __init__(
        self,
        volume: Path,
        cluster: Cluster,
        session: aiohttp.ClientSession,
        producer: Producer,
        consumer: PullConsumer,
    ) -> None:
        """Begin with nothing sent."""
        self.volume = volume
        self.cluster = cluster
        self.session = session
        self.producer = producer
        self.consumer = consumer
        self.stored: list[bytes] = []
        self.read: list[bytes] = []
        self._next_offset = 0

    async def send(self) -> None:
        """Store one batch of messages with a number each."""
        first = len(self.stored)
        bodies = [b"%08d" % number + _FILLING for number in range(first, first + BATCH)]
        messages = [Message(TOPIC, body) for body in bodies]
        await self.producer.send_batch(messages, queue=QUEUE, timeout_s=5)
        self.stored += [body[:8] for body in bodies]

    async def fill(self) -> BrokerError:
        """Send at full speed until the disk counts as full, and return the refusal.

        A segment that finds no room is refused a moment before the disk was looked at again.
        """
        for _ in range(100_000):
            try:
                await self.send()
            except BrokerError as error:
                if "disk is full" in error.remark:
                    return error
        raise AssertionError("the volume never got full")

    async def drain(self) -> None:
        """Read everything that is there and commit it."""
        while True:
            result = await self.consumer.pull(QUEUE, self._next_offset, max_messages=32)
            if not result.messages:
                break
            self.read += [message.body[:8] for message in result.messages]
            self._next_offset = result.next_offset
        self.cluster.broker().offsets.commit(GROUP, TOPIC, 0, self._next_offset)

    async def send_again(self, within_s: float = 10) -> None:
        """Send until one message is taken."""

        async def try_it() -> bool:
            try:
                await self.send()
            except BrokerError:
                return False
            return True

        await until(try_it, within_s)

    async def has_room(self) -> bool:
        """Tell whether what four batches need is free; the broker's own number may be a look
        old."""
        usage = os.statvfs(self.volume)
        return usage.f_bavail * usage.f_frsize > 4 * BATCH * BODY_BYTES + 4 * MIB

    async def retention(self) -> Any:
        """Return the document of the HTTP API."""
        base = f"http://{await self.cluster.http_address()}"
        async with self.session.get(f"{base}/api/v1/retention") as answer:
            return await answer.json()


async def until(check: Callable[[], Awaitable[bool]], within_s: float = 10) -> None:
    """Ask until the answer is yes."""
    async with asyncio.timeout(within_s):
        while True:
            if await check():
                return
            await asyncio.sleep(0.05)


async def test_unread_messages_stay_and_sends_resume(broker_on: Any) -> None:
    """Full of unread messages: sends are refused; consumers drain; sends go on; nothing is lost."""
    async with broker_on(32 * MIB) as broker:
        await broker.send()
        await broker.drain()
        refused = await broker.fill()
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        full = await broker.retention()
        assert full["active"]["reject_writes"] is True
        assert full["refusal"] in refused.remark
        assert "the broker's disk is full" in refused.remark
        assert full["deleted"]["files"] == {"expired": 0, "consumed": 0, "forced": 0}
        assert full["writes_rejected"]["disk_full"] >= 1
        for _ in range(2):
            await broker.drain()
            await broker.send_again()
            await broker.fill()
        await broker.drain()
        assert broker.read == broker.stored
        after = await broker.retention()
        assert after["deleted"]["files"]["consumed"] >= 3
        assert after["deleted"]["files"]["forced"] == 0
        assert after["unconsumed_deleted"] == []


async def test_a_reader_that_keeps_up_never_sees_a_refusal(broker_on: Any) -> None:
    """Three times the volume goes through while a group reads along."""
    levels = {"diskMaxUsedSpaceRatio": "60", "diskSpaceCleanForciblyRatio": "70"}
    async with broker_on(32 * MIB, **levels) as broker:
        await broker.send()
        while len(broker.stored) * BODY_BYTES < 96 * MIB:
            for _ in range(4):
                await broker.send()
            await broker.drain()
            # On a busy machine the files go a moment after they are read.
            await until(broker.has_room)
        assert broker.read == broker.stored
        assert (await broker.retention())["writes_rejected"] == dict.fromkeys(
            ["disk_full", "no_room", "derived_files", "unsettled", "store_failed", "closed"], 0
        )


async def test_who_waits_for_the_disk_hears_of_it_at_once(broker_on: Any) -> None:
    """The pressure is answered when it has moved so far, and at the latest after the timeout."""
    async with broker_on(32 * MIB) as broker:
        before = (await broker.retention())["pressure_percent"]
        base = f"http://{await broker.cluster.http_address()}/api/v1/retention/pressure"

        async def wait(timeout_s: int) -> Any:
            query = f"from_percent={before}&by_percent=20&timeout_seconds={timeout_s}"
            async with broker.session.get(f"{base}?{query}") as answer:
                return await answer.json()

        assert (await wait(1))["has_moved"] is False
        waiting = asyncio.create_task(wait(60))
        known = broker.cluster.broker().store.retention
        sends_since_known = 0
        while not waiting.done():
            await broker.send()
            sends_since_known += known.pressure_percent >= before + 20
        told = await waiting
        assert told["has_moved"] is True
        assert told["pressure_percent"] >= before + 20
        assert sends_since_known <= 5
        # The store was at rest when it began, and has looked all the same.
        assert len(broker.stored) * BODY_BYTES < 16 * MIB
        async with broker.session.get(f"{base}?from_percent=x&by_percent=0") as answer:
            assert answer.status == 400
