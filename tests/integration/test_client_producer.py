"""The producer against a real name server and real brokers."""

import asyncio
from pathlib import Path

import pytest

from mailboat.client import (
    Admin,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PullStatus,
    SendStatus,
)
from mailboat.errors import BrokerError, RemotingError
from mailboat.model.topic import TopicConfig
from mailboat.testing.cluster import Cluster


async def stored(cluster: Cluster, queue: MessageQueue) -> list[bytes]:
    """Return the payloads that a queue holds, as a pull gives them."""
    async with PullConsumer("reader", namesrv=cluster.namesrv_addresses) as consumer:
        payloads: list[bytes] = []
        while True:
            result = await consumer.pull(queue, len(payloads))
            if result.status is not PullStatus.FOUND:
                return payloads
            payloads += [message.payload() for message in result.messages]


async def test_first_message_creates_the_topic(tmp_path: Path):
    """A topic that nobody created takes messages, in four queues."""
    async with Cluster(tmp_path) as cluster:
        async with Producer("G", namesrv=cluster.namesrv_addresses) as producer:
            result = await producer.send(Message("New", b"hello", "a", "k", {"p": "v"}))
            assert result.status is SendStatus.SEND_OK
            assert len(await producer.queues("New")) == 4
        async with Admin(namesrv=cluster.namesrv_addresses) as admin:
            message = await admin.messages.by_offset_id(result.offset_message_id)
        assert (message.body, message.tags, message.keys) == (b"hello", "a", "k")
        assert (message.properties["p"], message.unique_key) == ("v", result.message_id)
        assert (message.queue_id, message.queue_offset) == (
            result.message_queue.queue_id,
            result.queue_offset,
        )


async def test_messages_are_spread_over_brokers_and_queues(tmp_path: Path):
    """Round-robin serves all queues of all brokers alike."""
    async with Cluster(tmp_path, brokers=2) as cluster:
        namesrv = cluster.namesrv_addresses
        async with Admin(namesrv=namesrv) as admin:
            await admin.topics.create(TopicConfig("T", 3, 3))
            async with Producer("G", namesrv=namesrv) as producer:
                await asyncio.gather(
                    *(producer.send(Message("T", b"%d" % number)) for number in range(30))
                )
            stats = await admin.topics.stats("T")
        assert {str(queue): bounds.max_offset for queue, bounds in stats.items()} == {
            f"T@broker-{name}:{number}": 5 for name in "ab" for number in range(3)
        }


async def test_selector_keeps_the_order_of_a_key(tmp_path: Path):
    """Messages that a selector puts into one queue are stored there in the order of the sends."""
    async with Cluster(tmp_path) as cluster:
        async with Producer("G", namesrv=cluster.namesrv_addresses) as producer:
            for number in range(20):
                await producer.send(
                    Message("T", b"%d" % number), selector=lambda queues, message: queues[2]
                )
            queue = (await producer.queues("T"))[2]
        assert await stored(cluster, queue) == [b"%d" % number for number in range(20)]


async def test_batch_is_stored_whole_and_in_order(tmp_path: Path):
    """A batch takes neighbouring offsets of one queue; each message keeps its own properties."""
    async with Cluster(tmp_path) as cluster:
        async with Producer("G", namesrv=cluster.namesrv_addresses) as producer:
            batch = [Message("T", b"%d" % number, keys=f"k{number}") for number in range(100)]
            result = await producer.send_batch(batch)
        queue = result.message_queue
        assert await stored(cluster, queue) == [b"%d" % number for number in range(100)]
        ids = result.message_id.split(",")
        async with Admin(namesrv=cluster.namesrv_addresses) as admin:
            message = await admin.messages.at(queue, result.queue_offset + 41)
            assert message is not None
            assert (message.keys, message.unique_key) == ("k41", ids[41])
            last = await admin.messages.by_offset_id(result.offset_message_id.split(",")[-1])
            assert last.unique_key == ids[-1]


async def test_large_body_arrives_as_it_was(tmp_path: Path):
    """A body above 4 KiB is stored compressed and read as it was sent."""
    body = b"line of text\n" * 100_000
    async with Cluster(tmp_path) as cluster:
        async with Producer("G", namesrv=cluster.namesrv_addresses) as producer:
            result = await producer.send(Message("T", body))
        async with Admin(namesrv=cluster.namesrv_addresses) as admin:
            message = await admin.messages.by_offset_id(result.offset_message_id)
        assert len(message.body) < len(body) / 20
        assert message.payload() == body


async def test_oneway_message_arrives(tmp_path: Path):
    """A one-way send on the same connection is stored before a later send is answered."""
    async with Cluster(tmp_path) as cluster:
        async with Producer("G", namesrv=cluster.namesrv_addresses) as producer:
            await producer.send(Message("T", b"first"), selector=lambda queues, _: queues[0])
            queue = (await producer.queues("T"))[0]
            await producer.send_oneway(Message("T", b"second"), queue=queue)
            await producer.send(Message("T", b"third"), queue=queue)
        assert await stored(cluster, queue) == [b"first", b"second", b"third"]


async def test_other_broker_takes_over(tmp_path: Path):
    """While one of two brokers is down, every send succeeds at the other one."""
    async with Cluster(tmp_path, brokers=2) as cluster:
        namesrv = cluster.namesrv_addresses
        async with Admin(namesrv=namesrv) as admin:
            await admin.topics.create(TopicConfig("T", 2, 2))
        async with Producer("G", namesrv=namesrv) as producer:
            for number in range(8):
                await producer.send(Message("T", b"%d" % number))
            await cluster.stop_broker(0)
            for number in range(8):
                result = await producer.send(Message("T", b"%d" % number))
                assert result.message_queue.broker_name == "broker-b"
            await cluster.start_broker(0)
            await producer._instance.routes.refresh_all()
            names = {
                (await producer.send(Message("T", b"x"))).message_queue.broker_name
                for _ in range(8)
            }
            assert names == {"broker-a", "broker-b"}


async def test_refusals_carry_the_brokers_words(tmp_path: Path):
    """A queue that is not there is refused; nothing is retried, nothing is stored."""
    async with Cluster(tmp_path) as cluster:
        async with Producer("G", namesrv=cluster.namesrv_addresses) as producer:
            await producer.send(Message("T", b"x"))
            with pytest.raises(BrokerError, match="99"):
                await producer.send(Message("T", b"x"), queue=MessageQueue("T", "broker-a", 99))


async def test_nobody_there(tmp_path: Path):
    """Without a name server a send fails with what could not be reached."""
    async with Cluster(tmp_path) as cluster:
        namesrv = cluster.namesrv_addresses
    async with Producer("G", namesrv=namesrv) as producer:
        with pytest.raises(RemotingError, match=namesrv):
            await producer.send(Message("T", b"x"))
