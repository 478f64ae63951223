"""Broadcasting groups and the limits of offset requests, over real sockets."""

from collections.abc import AsyncIterator

import pytest
from raw_client import RawClient, connected

from mailboat.broker.controller import BrokerController
from mailboat.model.record import decode_records
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.protocol.bodies import decode_consumer_id_list
from mailboat.protocol.client_connections import decode_consumer_connection
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue
from mailboat.protocol.group_table import encode_group_config
from mailboat.protocol.heartbeat import BROADCASTING, CLUSTERING


@pytest.fixture
async def client(broker: BrokerController) -> AsyncIterator[RawClient]:
    """Connect a client; topic T has one queue with three messages."""
    async with connected(broker, "a") as [client]:
        await client.make_topic("T")
        for number in range(3):
            await client.send("T", str(number).encode())
        yield client


async def join(client: RawClient, message_model: str = BROADCASTING) -> None:
    """Become a member of group G."""
    await client.heartbeat("T", group="G", message_model=message_model)


async def allow_broadcast(client: RawClient, allowed: bool) -> None:
    """Configure group G as mqadmin updateSubGroup does."""
    config = SubscriptionGroupConfig("G", consume_broadcast_enable=allowed)
    await client.ok(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_group_config(config)
    )


# -- broadcasting ---------------------------------------------------------------------------------


async def test_every_member_reads_every_message(
    broker: BrokerController, client: RawClient
) -> None:
    """Members on one host may share a client id; each connection reads for itself."""
    async with connected(broker, "a") as [twin]:
        for member in (client, twin):
            await join(member)
            start = await member.ok(RequestCode.GET_MIN_OFFSET, {"topic": "T", "queueId": 0})
            answer = await member.pull("G", "T", int(start.ext_fields["offset"]), subscription=None)
            assert [message.body for message in decode_records(answer.body)] == [b"0", b"1", b"2"]
        answer = await client.ok(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "G"})
        connection = decode_consumer_connection(answer.body)
        assert connection.message_model == BROADCASTING
        assert len(connection.connection_set) == 2
        answer = await client.ok(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"})
        assert decode_consumer_id_list(answer.body) == ["a"]


async def test_members_of_a_broadcasting_group_are_not_told_of_each_other(
    broker: BrokerController, client: RawClient
) -> None:
    """They share no queues; as in RocketMQ 5 nobody has to rebalance."""
    await join(client)
    async with connected(broker, "b", "c") as [other, witness]:
        await join(other)
        await witness.heartbeat("T", group="H")
        # The push to the witness left after any to the broadcasting group would have.
        await witness.next_push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
        await client.ok(RequestCode.GET_MIN_OFFSET, {"topic": "T", "queueId": 0})
        assert client.pushed.empty()
        assert other.pushed.empty()


async def test_a_group_may_be_kept_from_broadcasting(client: RawClient) -> None:
    """consumeBroadcastEnable=false refuses the pulls of a broadcasting group, and only those."""
    await allow_broadcast(client, False)
    await join(client)
    answer = await client.pull("G", "T", 0, subscription=None)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "the consumer group[G] can not consume by broadcast way"
    await allow_broadcast(client, True)
    assert (await client.pull("G", "T", 0, subscription=None)).code == ResponseCode.SUCCESS
    await allow_broadcast(client, False)
    await join(client, CLUSTERING)
    assert (await client.pull("G", "T", 0, subscription=None)).code == ResponseCode.SUCCESS


async def test_a_broadcasting_group_leaves_no_offsets_here(client: RawClient) -> None:
    """Its members keep them on their own disks: a pull without commit bit stores nothing."""
    await join(client)
    await client.pull("G", "T", 2, subscription=None)
    assert await client.committed("G", "T") is None


# -- limits of offset requests --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        ("UPDATE_CONSUMER_OFFSET", {"topic": "x"}, ResponseCode.TOPIC_NOT_EXIST),
        (
            "UPDATE_CONSUMER_OFFSET",
            {"consumerGroup": "x"},
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ),
        ("UPDATE_CONSUMER_OFFSET", {"queueId": 1}, ResponseCode.INVALID_PARAMETER),
        ("UPDATE_CONSUMER_OFFSET", {"queueId": -1}, ResponseCode.INVALID_PARAMETER),
        ("UPDATE_CONSUMER_OFFSET", {"queueId": None}, ResponseCode.SYSTEM_ERROR),
        ("UPDATE_CONSUMER_OFFSET", {"commitOffset": None}, ResponseCode.SYSTEM_ERROR),
        ("UPDATE_CONSUMER_OFFSET", {"commitOffset": "1.5"}, ResponseCode.SYSTEM_ERROR),
        ("UPDATE_CONSUMER_OFFSET", {"commitOffset": 1 << 63}, ResponseCode.SYSTEM_ERROR),
        ("QUERY_CONSUMER_OFFSET", {"topic": "x"}, ResponseCode.QUERY_NOT_FOUND),
        ("QUERY_CONSUMER_OFFSET", {"queueId": 1}, ResponseCode.QUERY_NOT_FOUND),
        ("QUERY_CONSUMER_OFFSET", {"queueId": "x"}, ResponseCode.SYSTEM_ERROR),
        ("QUERY_CONSUMER_OFFSET", {"consumerGroup": None}, ResponseCode.SYSTEM_ERROR),
        ("GET_MAX_OFFSET", {"topic": "x"}, ResponseCode.TOPIC_NOT_EXIST),
        ("GET_MAX_OFFSET", {"queueId": 1}, ResponseCode.INVALID_PARAMETER),
        ("GET_MIN_OFFSET", {"topic": "x"}, ResponseCode.TOPIC_NOT_EXIST),
        ("GET_MIN_OFFSET", {"queueId": -1}, ResponseCode.INVALID_PARAMETER),
        ("GET_EARLIEST_MSG_STORETIME", {"topic": "x"}, ResponseCode.TOPIC_NOT_EXIST),
        ("GET_EARLIEST_MSG_STORETIME", {"queueId": 9}, ResponseCode.INVALID_PARAMETER),
        ("SEARCH_OFFSET_BY_TIMESTAMP", {"topic": "x"}, ResponseCode.TOPIC_NOT_EXIST),
        ("SEARCH_OFFSET_BY_TIMESTAMP", {"timestamp": None}, ResponseCode.SYSTEM_ERROR),
        ("SEARCH_OFFSET_BY_TIMESTAMP", {"timestamp": "now"}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_offset_requests_that_make_no_sense_are_refused(
    client: RawClient, code: str, fields: dict[str, ExtValue], expected: int
) -> None:
    """Unknown topics, queues and groups, missing and malformed fields: one sentence, no success."""
    await join(client, CLUSTERING)
    answer = await client.call(
        getattr(RequestCode, code),
        {
            "consumerGroup": "G",
            "topic": "T",
            "queueId": 0,
            "commitOffset": 1,
            "timestamp": 0,
            **fields,
        },
    )
    assert answer.code == expected
    assert answer.remark
    assert "internal" not in answer.remark
    assert "Traceback" not in answer.remark
    assert await client.committed("G", "T") is None


async def test_a_negative_commit_is_ignored(client: RawClient) -> None:
    """A client that knows no offset commits -1; it loses nothing and hears no error."""
    await join(client, CLUSTERING)
    await client.commit("G", "T", 2)
    assert (await client.commit("G", "T", -1)).code == ResponseCode.SUCCESS
    await client.pull("G", "T", 2, commit_offset=-1)
    assert await client.committed("G", "T") == 2


async def test_an_offset_may_go_back(client: RawClient) -> None:
    """That is how old tools reset offsets."""
    await join(client, CLUSTERING)
    await client.commit("G", "T", 2)
    await client.commit("G", "T", 1)
    assert await client.committed("G", "T") == 1
