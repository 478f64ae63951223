"""Delayed messages of our client through a real broker."""

import time
from pathlib import Path

import pytest
from promises import promised

from mailboat.client import ConsumeFromWhere, Message, Producer, PushConsumer, StartPoint
from mailboat.errors import IllegalMessageError
from mailboat.testing.cluster import Cluster
from mailboat.testing.receiver import Receiver

FIRST = StartPoint(ConsumeFromWhere.FIRST_OFFSET)
LEVELS = {"messageDelayLevel": "1s 5s"}


def consumer_of(cluster: Cluster, receiver: Receiver) -> PushConsumer:
    """Return a consumer of topic T."""
    consumer = PushConsumer("C", namesrv=cluster.namesrv_addresses, start_point=FIRST)
    consumer.subscribe("T", "*", receiver)
    return consumer


async def test_delayed_messages_come_in_the_order_of_their_time(tmp_path: Path):
    """Each comes after its delay, never before, with what the producer gave it."""
    receiver = Receiver()
    async with (
        Cluster(tmp_path, options=LEVELS) as cluster,
        Producer("P", namesrv=cluster.namesrv_addresses) as producer,
        consumer_of(cluster, receiver),
    ):
        # From here on the consumer has its queues.
        await producer.send(Message("T", b"first"))
        await receiver.wait(1)
        started_s = time.monotonic()
        # What lies above the table counts as its last level.
        for level, body in ((9, b"late"), (2, b"too"), (0, b"now"), (1, b"soon")):
            message = Message("T", body, "t", "k", {"p": "v"}, flag=5, delay_level=level)
            sent = await producer.send(message)
            if body == b"soon":
                soon_id = sent.message_id
        bodies = (await receiver.wait(5))[1:]
    waited_s = [came_s - started_s for came_s in receiver.times_s[1:]]
    assert bodies[:2] == [b"now", b"soon"]
    assert set(bodies[2:]) == {b"late", b"too"}
    with promised("no delayed message is early"):
        assert waited_s[1] >= 1.0
        assert min(waited_s[2:]) >= 5.0
    soon = receiver.messages[2]
    assert (soon.tags, soon.keys, soon.properties["p"], soon.flag) == ("t", "k", "v", 5)
    assert (soon.topic, soon.message_id) == ("T", soon_id)


async def test_delayed_message_outlives_a_restart(tmp_path: Path):
    """A message that was parked before a restart comes after it, once, and not too early."""
    receiver = Receiver()
    async with (
        Cluster(tmp_path, options=LEVELS) as cluster,
        Producer("P", namesrv=cluster.namesrv_addresses) as producer,
    ):
        started_s = time.monotonic()
        await producer.send(Message("T", b"late", delay_level=2))
        await cluster.stop_broker()
        await cluster.start_broker(0)
        async with consumer_of(cluster, receiver):
            await receiver.wait(1)
            await producer.send(Message("T", b"end", delay_level=1))
            assert await receiver.wait(2) == [b"late", b"end"]
    with promised("no delayed message is early"):
        assert receiver.times_s[0] - started_s >= 5.0


async def test_negative_delay_is_refused(tmp_path: Path):
    """A level below 0 is a mistake, and nothing is sent."""
    async with Producer("P", namesrv="127.0.0.1:1") as producer:
        with pytest.raises(IllegalMessageError, match="negative"):
            await producer.send(Message("T", b"x", delay_level=-1))
