"""A consumer that subscribes to something else loses no message of what it wants now.

Its pulls name the version of its subscription, and may come before the heartbeat that tells what
that is. Pulls that wait meanwhile are asked for anew.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable

import pytest
from raw_client import RawClient, connected

from mailboat.broker.controller import BrokerController
from mailboat.model.record import decode_records
from mailboat.model.subscription import EXPRESSION_SQL92, SubscriptionData, build_subscription
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand
from mailboat.protocol.heartbeat import ConsumerData, HeartbeatData, encode_heartbeat

SUSPEND_MS = 15_000


@pytest.fixture
async def client(broker: BrokerController) -> AsyncIterator[RawClient]:
    """Connect a client that has made topic T."""
    async with connected(broker, "a") as [client]:
        await client.make_topic("T")
        yield client


async def subscribe(client: RawClient, subscription: SubscriptionData) -> None:
    """Send the heartbeat of a member of group G."""
    data = HeartbeatData(client.client_id)
    data.consumer_data_set.append(ConsumerData("G", subscription_data_set=[subscription]))
    await client.ok(RequestCode.HEART_BEAT, body=encode_heartbeat(data))


async def pull(client: RawClient, version: int, suspend_ms: int = 0) -> RemotingCommand:
    """Pull from the beginning as Java's push consumer does: what it wants is in its heartbeats."""
    fields: dict[str, ExtValue] = {
        "consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32,
        "sysFlag": 2 if suspend_ms else 0, "commitOffset": 0, "suspendTimeoutMillis": suspend_ms,
        "subVersion": version, "expressionType": "TAG",
    }  # fmt: skip
    return await client.call(RequestCode.PULL_MESSAGE, fields)


async def send(client: RawClient, *tags: str) -> None:
    """Send a message with each tag; its body is the tag."""
    for tag in tags:
        await client.send("T", tag.encode(), properties=f"TAGS\1{tag}\2")


async def found(answer: Awaitable[RemotingCommand]) -> list[bytes]:
    """Return the bodies that a pull has brought."""
    command = await answer
    assert command.code == ResponseCode.SUCCESS, (command.code, command.remark)
    return [message.body for message in decode_records(command.body)]


async def test_a_pull_by_a_newer_subscription_waits_for_its_heartbeat(client: RawClient) -> None:
    """It is refused until then; by the older one, b would be passed over."""
    await subscribe(client, build_subscription("T", "a", 1))
    await send(client, "b", "a")
    assert await found(pull(client, 1)) == [b"a"]
    answer = await pull(client, 2)
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    assert "has subscribed to T by version 1, and the pull is by 2" in (answer.remark or "")
    await subscribe(client, build_subscription("T", "a || b", 2))
    assert await found(pull(client, 2)) == [b"b", b"a"]
    # Another member that has not heard of it yet reads by the newest one, as with RocketMQ.
    assert await found(pull(client, 1)) == [b"b", b"a"]


async def test_an_older_expression_has_a_code_of_its_own(client: RawClient) -> None:
    """RocketMQ's clients know 28 for SQL92."""
    subscription = SubscriptionData("T", "a > 1", sub_version=1, expression_type=EXPRESSION_SQL92)
    await subscribe(client, subscription)
    answer = await pull(client, 2)
    assert answer.code == ResponseCode.FILTER_DATA_NOT_LATEST


async def test_a_pull_that_waits_is_answered_where_something_else_is_registered(
    client: RawClient, broker: BrokerController
) -> None:
    """It goes on from where it began: what it has passed over in vain may be wanted now."""
    await subscribe(client, build_subscription("T", "a", 1))
    waiting = asyncio.create_task(pull(client, 1, SUSPEND_MS))
    async with asyncio.timeout(10):
        while not len(broker.pull_holds):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await send(client, "b", "b")
    assert not waiting.done()
    await subscribe(client, build_subscription("T", "a || b", 2))
    await send(client, "a")
    answer = await waiting
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.ext_fields["nextBeginOffset"] == "0"
    assert await found(pull(client, 2)) == [b"b", b"b", b"a"]
