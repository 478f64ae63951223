"""SQL subscriptions of our client on a real broker."""

import asyncio
from pathlib import Path

import pytest

from mailboat.client import (
    ConsumeFromWhere,
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    PushConsumer,
    Sql,
    StartPoint,
)
from mailboat.errors import BrokerError
from mailboat.protocol.codes import ResponseCode
from mailboat.testing.cluster import Cluster
from mailboat.testing.receiver import Receiver

FIRST = StartPoint(ConsumeFromWhere.FIRST_OFFSET)
PATIENCE_S = 20.0
CONDITION = Sql("a > 5 AND region IN ('eu', 'us')")
# Of a = 0 to 9, the even ones are in 'eu' and the odd ones in 'asia'.
TRUE_OF = [b"6", b"8"]


async def send_messages(producer: Producer) -> None:
    """Send ten messages with properties and one without."""
    for number in range(10):
        properties = {"a": str(number), "region": ("eu", "asia")[number % 2]}
        await producer.send(Message("T", b"%d" % number, tags="x", properties=properties))
    await producer.send(Message("T", b"no properties"))


async def test_push_consumer_gets_what_its_condition_is_true_of(tmp_path: Path):
    """Old and new messages are filtered by the broker, exactly."""
    receiver = Receiver()
    async with (
        Cluster(tmp_path) as cluster,
        Producer("P", namesrv=cluster.namesrv_addresses) as producer,
    ):
        await send_messages(producer)
        consumer = PushConsumer("C", namesrv=cluster.namesrv_addresses, start_point=FIRST)
        consumer.subscribe("T", CONDITION, receiver)
        async with consumer:
            await receiver.wait(2)
            await send_messages(producer)
            bodies = await receiver.wait(4)
    assert sorted(bodies) == sorted(TRUE_OF * 2)


async def test_pull_consumer_gets_what_its_condition_is_true_of(tmp_path: Path):
    """Polls, assigned queues and single pulls are filtered by the broker, exactly."""

    async def poll(consumer: PullConsumer, count: int) -> list[bytes]:
        messages: list[MessageExt] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(messages) < count:
                messages += await consumer.poll()
        return sorted(message.payload() for message in messages)

    async with (
        Cluster(tmp_path) as cluster,
        Producer("P", namesrv=cluster.namesrv_addresses) as producer,
    ):
        namesrv = cluster.namesrv_addresses
        await send_messages(producer)
        async with PullConsumer("C", namesrv=namesrv, start_point=FIRST) as consumer:
            await consumer.subscribe("T", CONDITION)
            assert await poll(consumer, 2) == TRUE_OF
        async with PullConsumer("D", namesrv=namesrv, start_point=FIRST) as consumer:
            queues = await consumer.message_queues("T")
            consumer.assign(queues, Sql("a IS NULL OR a = 3"))
            assert await poll(consumer, 2) == [b"3", b"no properties"]
            pulls = [await consumer.pull(q, 0, expression=Sql("a = 9")) for q in queues]
            pulled = [message.payload() for pull in pulls for message in pull.messages]
            assert pulled == [b"9"]


@pytest.mark.parametrize(
    ("options", "condition", "code"),
    [
        ({}, "a >", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"enablePropertyFilter": "false"}, "a > 5", ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_condition_that_cannot_be_used_fails_the_start(
    tmp_path: Path, options: dict[str, str], condition: str, code: int
):
    """A bad condition, or a broker that filters by none, fails the start with the reason."""
    async with Cluster(tmp_path, options=options) as cluster:
        namesrv = cluster.namesrv_addresses
        async with Producer("P", namesrv=namesrv) as producer:
            await producer.send(Message("T", b"x"))
        consumer = PushConsumer("C", namesrv=namesrv)
        consumer.subscribe("T", Sql(condition), Receiver())
        with pytest.raises(BrokerError) as caught:
            await consumer.start()
        assert caught.value.code == code
        async with PullConsumer("D", namesrv=namesrv) as pull:
            with pytest.raises(BrokerError):
                await pull.subscribe("T", Sql(condition))
            assert pull.assignment == []
