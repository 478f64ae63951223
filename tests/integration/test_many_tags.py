"""Subscriptions to thousands of tags are served; those too long to read are refused in words."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from raw_client import RawClient, connected

from mailboat.broker.controller import BrokerController
from mailboat.client import ConsumeFromWhere, PullConsumer, StartPoint
from mailboat.model.record import decode_records
from mailboat.model.subscription import build_subscription
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand
from mailboat.protocol.heartbeat import ConsumerData, HeartbeatData, encode_heartbeat
from mailboat.testing.cluster import Cluster

TAGS = [f"tag-of-24-characters-{number:04}" for number in range(3_000)]
TAGS = [tag.ljust(24, "x") for tag in TAGS]


@pytest.fixture
async def client(broker: BrokerController) -> AsyncIterator[RawClient]:
    """Connect a client that has made topic T, and sent messages with some tags."""
    async with connected(broker, "a") as [client]:
        await client.make_topic("T")
        for tag in (TAGS[0], "other", TAGS[-1]):
            await client.send("T", tag.encode(), properties=f"TAGS\1{tag}\2")
        yield client


def bodies(answer: RemotingCommand) -> list[str]:
    """Return what a pull has brought."""
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return [message.body.decode() for message in decode_records(answer.body)]


async def test_a_pull_names_three_thousand_tags(client: RawClient) -> None:
    """As RocketMQ's pull consumers do, in the header: 84 KB with the separators."""
    answer = await client.pull("G", "T", 0, subscription=" || ".join(TAGS))
    assert bodies(answer) == [TAGS[0], TAGS[-1]]


async def test_a_heartbeat_names_three_thousand_tags(client: RawClient) -> None:
    """As push consumers do: text, tags and codes."""
    subscription = build_subscription("T", " || ".join(TAGS), 1)
    data = HeartbeatData(client.client_id)
    data.consumer_data_set.append(ConsumerData("G", subscription_data_set=[subscription]))
    body = encode_heartbeat(data)
    assert len(body) > 190_000
    await client.ok(RequestCode.HEART_BEAT, body=body)
    assert bodies(await client.pull("G", "T", 0, subscription=None)) == [TAGS[0], TAGS[-1]]


async def test_our_own_consumer_names_three_thousand_tags(tmp_path: Path) -> None:
    """It pulls as it subscribes."""
    async with Cluster(tmp_path) as cluster:
        async with connected(cluster.broker(), "a") as [client]:
            await client.make_topic("T")
            await client.send("T", b"wanted", properties=f"TAGS\1{TAGS[7]}\2")
        namesrv, first = cluster.namesrv_addresses, StartPoint(ConsumeFromWhere.FIRST_OFFSET)
        async with PullConsumer("C", namesrv=namesrv, start_point=first) as consumer:
            consumer.assign(await consumer.message_queues("T"), " || ".join(TAGS))
            async with asyncio.timeout(20):
                while not (messages := await consumer.poll(timeout_s=1.0)):
                    continue
        assert [message.body for message in messages] == [b"wanted"]


@pytest.mark.parametrize(
    ("subscription", "reason"),
    [
        ("||".join(f"t{number:05}" for number in range(10_001)), "10001 tags where 10000"),
        ("x" * 131_073, "131073 bytes where 131072"),
    ],
    ids=["tags", "bytes"],
)
async def test_too_many_tags_are_refused(client: RawClient, subscription: str, reason: str) -> None:
    """With a sentence, over a connection that stays."""
    answer = await client.pull("G", "T", 0, subscription=subscription)
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert f"the subscription has {reason} are allowed; subscribe to fewer" in (answer.remark or "")
    assert bodies(await client.pull("G", "T", 1)) == ["other", TAGS[-1]]


async def test_a_member_of_too_many_topics_is_refused(client: RawClient) -> None:
    """All of them are taken over at once; other groups of the same heartbeat are."""
    data = HeartbeatData(client.client_id)
    for group, count in (("many", 2_001), ("few", 2_000)):
        subscriptions = [build_subscription(f"T{number}", "*", 1) for number in range(count)]
        data.consumer_data_set.append(ConsumerData(group, subscription_data_set=subscriptions))
    answer = await client.call(RequestCode.HEART_BEAT, body=encode_heartbeat(data))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "1 of its groups are not registered: group many subscribes to 2001 topics" in (
        answer.remark or ""
    )
    members = await client.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "few"})
    assert members.code == ResponseCode.SUCCESS


async def test_too_long_a_header_is_answered(client: RawClient) -> None:
    """In words, and the connection goes on."""
    fields: dict[str, ExtValue] = {"consumerGroup": "G", "subscription": "x" * 100_000}
    command = RemotingCommand.request(RequestCode.PULL_MESSAGE, fields)
    command.opaque = 77
    # Our own side writes no header as long as this one.
    header = command.encode()[8:].replace(b"xxxx", b"x" * 16)
    assert len(header) > 400_000
    host, _, port = client.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write((len(header) + 4).to_bytes(4) + len(header).to_bytes(4) + header)
    writer.write(RemotingCommand.request(RequestCode.GET_ALL_TOPIC_CONFIG, {}).encode())
    answers = []
    async with asyncio.timeout(10):
        for _ in range(2):
            size = int.from_bytes(await reader.readexactly(4))
            answers.append(await reader.readexactly(size))
    assert b'"opaque":77' in answers[0]
    assert b"is above the limit of 262144 bytes; name fewer tags" in answers[0]
    assert b'"code":0' in answers[1]
    writer.close()
