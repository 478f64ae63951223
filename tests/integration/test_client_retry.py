"""Failed messages of our client on a real broker: tried again, published again, dead."""

import time
from itertools import pairwise
from pathlib import Path

import pytest

from mailboat.client import (
    ConsumeFromWhere,
    ConsumeLater,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    StartPoint,
)
from mailboat.testing.cluster import Cluster
from mailboat.testing.receiver import Receiver

FIRST = StartPoint(ConsumeFromWhere.FIRST_OFFSET)
# Level 3 is the first retry's, level 4 the second one's.
LEVELS = {"messageDelayLevel": "2s 1s 1s 1s 1s"}


async def send(cluster: Cluster, *messages: Message) -> list[str]:
    """Send messages; return their ids."""
    async with Producer("P", namesrv=cluster.namesrv_addresses) as producer:
        return [(await producer.send(message)).message_id for message in messages]


async def dead_letter(cluster: Cluster) -> MessageExt:
    """Return the first dead letter of group C."""
    async with PullConsumer("D", namesrv=cluster.namesrv_addresses) as reader:
        queue = MessageQueue("%DLQ%C", "broker-a", 0)
        (dead,) = (await reader.pull(queue, 0, suspend_s=20.0)).messages
        return dead


async def test_failed_message_comes_again_and_others_do_not(tmp_path: Path):
    """It comes through the retry topic, under its own topic, counted and after a delay."""
    receiver = Receiver()

    async def handle(messages: list[MessageExt]) -> None:
        await receiver(messages)
        if messages[0].payload() == b"bad" and messages[0].reconsume_times < 2:
            raise RuntimeError("not now")

    async with Cluster(tmp_path, options=LEVELS) as cluster:
        ids = await send(cluster, *(Message("T", body, "t") for body in (b"good", b"bad", b"fine")))
        consumer = PushConsumer("C", namesrv=cluster.namesrv_addresses, start_point=FIRST)
        consumer.subscribe("T", "t", handle)
        async with consumer:
            bodies = await receiver.wait(5)
    assert sorted(bodies[:3]) == [b"bad", b"fine", b"good"]
    assert bodies[3:] == [b"bad", b"bad"]
    tries = [message for message in receiver.messages if message.payload() == b"bad"]
    assert [message.reconsume_times for message in tries] == [0, 1, 2]
    assert {message.topic for message in tries} == {"T"}
    assert {message.message_id for message in tries} == {ids[1]}
    assert {message.tags for message in tries} == {"t"}
    came_s = [
        at_s
        for at_s, message in zip(receiver.times_s, receiver.messages, strict=True)
        if message.payload() == b"bad"
    ]
    assert all(later - sooner >= 1.0 for sooner, later in pairwise(came_s))


async def test_handler_chooses_the_delay(tmp_path: Path):
    """ConsumeLater(1) waits as long as level 1 says, 2 s, and not as long as a first retry."""
    receiver = Receiver()

    async def handle(messages: list[MessageExt]) -> None:
        await receiver(messages)
        if messages[0].reconsume_times == 0:
            raise ConsumeLater(delay_level=1)

    async with Cluster(tmp_path, options=LEVELS) as cluster:
        await send(cluster, Message("T", b"x"))
        consumer = PushConsumer("C", namesrv=cluster.namesrv_addresses, start_point=FIRST)
        consumer.subscribe("T", "*", handle)
        async with consumer:
            await receiver.wait(2)
    assert receiver.times_s[1] - receiver.times_s[0] >= 2.0


async def test_message_that_the_broker_cannot_find_is_published(tmp_path: Path):
    """A refused CONSUMER_SEND_MSG_BACK costs nothing: the client publishes the message itself."""
    receiver = Receiver()

    async def handle(messages: list[MessageExt]) -> None:
        await receiver(messages)
        if messages[0].reconsume_times == 0:
            # As if the file that holds the message had been deleted meanwhile.
            messages[0].physical_offset = 1 << 40
            raise RuntimeError("not now")

    started_s = time.monotonic()
    async with Cluster(tmp_path, options=LEVELS) as cluster:
        ids = await send(cluster, Message("T", b"compressed " * 1000, keys="k"))
        consumer = PushConsumer("C", namesrv=cluster.namesrv_addresses, start_point=FIRST)
        consumer.subscribe("T", "*", handle)
        async with consumer:
            bodies = await receiver.wait(2)
    again = receiver.messages[1]
    assert bodies == [b"compressed " * 1000] * 2
    assert (again.topic, again.reconsume_times, again.keys) == ("T", 1, "k")
    assert again.message_id == ids[0]
    assert again.properties["RETRY_TOPIC"] == "T"
    assert receiver.times_s[1] - started_s >= 1.0


@pytest.mark.parametrize("way", ["wish", "tries", "order"])
async def test_dead_letters(tmp_path: Path, way: str):
    """A message dies by the handler's wish, with or without order, or after its tries."""
    receiver = Receiver()

    async def handle(messages: list[MessageExt]) -> None:
        await receiver(messages)
        if way == "tries":
            raise RuntimeError("never")
        raise ConsumeLater(delay_level=-1)

    async with Cluster(tmp_path, options=LEVELS) as cluster:
        ids = await send(cluster, Message("T", b"x", keys="k"))
        consumer = PushConsumer(
            "C",
            namesrv=cluster.namesrv_addresses,
            start_point=FIRST,
            order=way == "order",
            max_reconsume_times=1 if way == "tries" else None,
        )
        consumer.subscribe("T", "*", handle)
        async with consumer:
            await receiver.wait(2 if way == "tries" else 1)
        dead = await dead_letter(cluster)
    tries = [message.reconsume_times for message in receiver.messages]
    assert tries == ([0, 1] if way == "tries" else [0])
    assert (dead.payload(), dead.message_id, dead.keys) == (b"x", ids[0], "k")
    assert dead.properties["RETRY_TOPIC"] == "T"
