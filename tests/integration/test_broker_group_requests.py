"""The broker's answers about consumer groups, offsets and members over real sockets; what they
should be is what a Java 5.3 broker answers, or the reason why mailboat answers something better."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from request_client import Client, client_of, commit, make_topic, query

from mailboat.broker.controller import BrokerController
from mailboat.model.message_queue import MessageQueue
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.model.topic import TopicConfig
from mailboat.protocol.bodies import decode_consumer_id_list, decode_group_list, decode_topic_list
from mailboat.protocol.client_connections import (
    decode_consumer_connection,
    decode_producer_connection,
)
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand
from mailboat.protocol.group_table import (
    decode_group_config,
    decode_group_table,
    encode_group_config,
)
from mailboat.protocol.stats_bodies import (
    OffsetWrapper,
    decode_consume_stats,
    decode_consumer_offsets,
)
from mailboat.remoting.connection import Connection


@pytest.fixture
async def client(broker: BrokerController) -> AsyncIterator[Client]:
    """Connect a client to the broker."""
    async with client_of(broker) as client:
        yield client


@pytest.fixture
async def other(broker: BrokerController) -> AsyncIterator[Client]:
    """Connect a second client."""
    async with client_of(broker, "10.0.0.2@2") as client:
        yield client


# -- groups ---------------------------------------------------------------------------------------


async def test_a_group_is_made_shown_and_deleted(client: Client, tmp_path: Path) -> None:
    """The life of a group by administration; each step is in the file when it is answered."""
    file = tmp_path / "config" / "subscriptionGroup.json"
    config = SubscriptionGroupConfig("G", retry_max_times=3)
    answer = await client.call(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_group_config(config)
    )
    assert answer.code == ResponseCode.SUCCESS
    assert json.loads(file.read_bytes())["subscriptionGroupTable"]["G"]["retryMaxTimes"] == 3
    answer = await client.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "G"})
    assert decode_group_config(answer.body) == config
    answer = await client.call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert decode_group_table(answer.body).subscription_group_table["G"] == config
    await client.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G"})
    answer = await client.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "G"})
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "G" not in json.loads(file.read_bytes())["subscriptionGroupTable"]


async def test_an_illegal_group_is_refused(client: Client) -> None:
    """A name that no client could use, or no body at all, is refused."""
    body = encode_group_config(SubscriptionGroupConfig("no/slash"))
    answer = await client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "'no/slash'" in (answer.remark or "")
    answer = await client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b"{")
    assert answer.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("field", ["cleanOffset", "removeOffset"])
async def test_a_deleted_group_can_take_its_offsets_along(client: Client, field: str) -> None:
    """Version 5 and version 4 tools ask for it by different names."""
    await make_topic(client, "T")
    await client.heartbeat("T", group="G")
    await client.send("T", b"one", 0)
    await commit(client, "G", "T", 0, 1)
    await client.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G"})
    assert (await query(client, "G", "T", 0)).ext_fields == {"offset": "1"}
    await client.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G", field: True})
    answer = await query(client, "G", "T", 0, setZeroIfNotFound=False)
    assert answer.code == ResponseCode.QUERY_NOT_FOUND


# -- offsets --------------------------------------------------------------------------------------


async def test_a_committed_offset_is_found(client: Client) -> None:
    """What a consumer commits is what the next one starts from; -1 of a JS client is ignored."""
    await make_topic(client, "T")
    await client.heartbeat("T", group="G")
    for _ in range(3):
        await client.send("T", b"one", 0)
    assert (await commit(client, "G", "T", 0, 3)).code == ResponseCode.SUCCESS
    assert (await commit(client, "G", "T", 0, -1)).code == ResponseCode.SUCCESS
    assert (await query(client, "G", "T", 0)).ext_fields == {"offset": "3"}
    answer = await client.call(RequestCode.GET_ALL_CONSUMER_OFFSET)
    assert decode_consumer_offsets(answer.body).offset_table == {"T@G": {0: 3}}


async def test_a_commit_into_nothing_is_refused(client: Client) -> None:
    """17 and 26 as from RocketMQ 5, and 29 for a queue that is not there."""
    await make_topic(client, "T")
    await client.heartbeat("T", group="G")
    assert (await commit(client, "X", "T", 0, 1)).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert (await commit(client, "G", "X", 0, 1)).code == ResponseCode.TOPIC_NOT_EXIST
    assert (await commit(client, "G", "T", 4, 1)).code == ResponseCode.INVALID_PARAMETER
    assert (await commit(client, "G", "T", -1, 1)).code == ResponseCode.INVALID_PARAMETER


async def test_a_new_group_starts_at_the_beginning_of_a_young_queue(client: Client) -> None:
    """An unset offset reads as 0 where nothing has expired, unless the client wants to know."""
    await make_topic(client, "T")
    await client.send("T", b"one", 0)
    assert (await query(client, "G", "T", 0)).ext_fields == {"offset": "0"}
    answer = await query(client, "G", "T", 0, setZeroIfNotFound=False)
    assert answer.code == ResponseCode.QUERY_NOT_FOUND


async def test_a_new_group_starts_at_0_of_an_empty_queue(client: Client) -> None:
    """As release 4.9 has it: with 22 the client would ask for the end next, and skip what came."""
    await make_topic(client, "T")
    assert (await query(client, "G", "T", 0)).ext_fields == {"offset": "0"}
    assert (await query(client, "G", "%RETRY%G", 0)).ext_fields == {"offset": "0"}
    answer = await query(client, "G", "T", 0, setZeroIfNotFound=False)
    assert answer.code == ResponseCode.QUERY_NOT_FOUND


async def test_an_unknown_queue_has_no_offset(client: Client) -> None:
    """Where there is no topic or no such queue the answer is 22."""
    await make_topic(client, "T")
    assert (await query(client, "G", "unknown", 0)).code == ResponseCode.QUERY_NOT_FOUND
    assert (await query(client, "G", "T", 4)).code == ResponseCode.QUERY_NOT_FOUND
    assert (await query(client, "G", "T", -1)).code == ResponseCode.QUERY_NOT_FOUND


async def test_bounds_of_a_queue(client: Client) -> None:
    """Minimum, maximum, time of the oldest message, and offsets by time."""
    await make_topic(client, "T")
    queue: dict[str, ExtValue] = {"topic": "T", "queueId": 2}
    answer = await client.call(RequestCode.GET_EARLIEST_MSG_STORETIME, queue)
    assert answer.ext_fields == {"timestamp": "-1"}
    for body in (b"one", b"two", b"three"):
        await client.send("T", body, 2)
    assert (await client.call(RequestCode.GET_MAX_OFFSET, queue)).ext_fields == {"offset": "3"}
    assert (await client.call(RequestCode.GET_MIN_OFFSET, queue)).ext_fields == {"offset": "0"}
    answer = await client.call(RequestCode.GET_EARLIEST_MSG_STORETIME, queue)
    timestamp_ms = int(answer.ext_fields["timestamp"])
    assert timestamp_ms > 1_600_000_000_000
    for searched_ms, expected in ((0, "0"), (timestamp_ms, "0"), (timestamp_ms + 10**9, "3")):
        answer = await client.call(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {**queue, "timestamp": searched_ms}
        )
        assert answer.ext_fields == {"offset": expected}
    answer = await client.call(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        {**queue, "timestamp": timestamp_ms + 10**9, "boundaryType": "UPPER"},
    )
    assert answer.ext_fields == {"offset": "2"}


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
    ],
)
async def test_unknown_queues_have_no_bounds(client: Client, code: int) -> None:
    """The original answers success and 0, and a slip of the pen goes unnoticed."""
    await make_topic(client, "T")
    fields: dict[str, ExtValue] = {"topic": "unknown", "queueId": 0, "timestamp": 0}
    answer = await client.call(code, fields)
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "topic[unknown] not exist" in (answer.remark or "")
    for queue_id in (-5, 4):
        answer = await client.call(code, {**fields, "topic": "T", "queueId": queue_id})
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert f"queueId {queue_id} is illegal" in (answer.remark or "")
    answer = await client.call(code, {"topic": "T", "queueId": "abc", "timestamp": 0})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "'queueId' is not an int32" in (answer.remark or "")


async def test_a_retry_topic_that_nobody_made_yet_reads_as_empty(client: Client) -> None:
    """A starting consumer may ask before its first heartbeat; Java's broker answers 0 as well."""
    fields: dict[str, ExtValue] = {"topic": "%RETRY%G", "queueId": 0}
    answer = await client.call(RequestCode.GET_MAX_OFFSET, fields)
    assert (answer.code, answer.ext_fields) == (ResponseCode.SUCCESS, {"offset": "0"})


async def test_a_queue_taken_away_is_still_there_while_it_holds_messages(client: Client) -> None:
    """Lowering a topic's numbers must not cut consumers off from what is stored."""
    await make_topic(client, "T")
    await client.send("T", b"one", 3)
    await make_topic(client, "T", readQueueNums=2, writeQueueNums=2)
    await client.heartbeat("T", group="G")
    answer = await client.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 3})
    assert answer.ext_fields == {"offset": "1"}
    assert (await commit(client, "G", "T", 3, 1)).code == ResponseCode.SUCCESS
    answer = await client.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 2})
    assert answer.code == ResponseCode.INVALID_PARAMETER


async def test_offsets_go_with_their_topic(client: Client) -> None:
    """A topic made anew under the same name begins empty, for producers and for groups."""
    await make_topic(client, "T")
    await client.heartbeat("T", group="G")
    await client.send("T", b"one", 0)
    await commit(client, "G", "T", 0, 1)
    await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    await make_topic(client, "T")
    assert (await query(client, "G", "T", 0)).ext_fields == {"offset": "0"}
    answer = await client.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0})
    assert answer.ext_fields == {"offset": "0"}


# -- members --------------------------------------------------------------------------------------


async def test_a_heartbeat_makes_group_and_retry_topic(
    broker: BrokerController, client: Client, tmp_path: Path
) -> None:
    """A new group is known and durable, with its retry topic, when its heartbeat is answered."""
    answer = await client.heartbeat("T", "%RETRY%G", group="G")
    assert answer.code == ResponseCode.SUCCESS
    # With IS_SUPPORT_HEART_BEAT_V2 a client would stop sending its subscriptions.
    assert answer.ext_fields == {}
    config = broker.topics.select("%RETRY%G")
    assert config == TopicConfig("%RETRY%G", 1, 1, 6)
    assert broker.groups.select("G") == SubscriptionGroupConfig("G")
    topics = json.loads((tmp_path / "config" / "topics.json").read_bytes())
    groups = json.loads((tmp_path / "config" / "subscriptionGroup.json").read_bytes())
    assert "%RETRY%G" in topics["topicConfigTable"]
    assert "G" in groups["subscriptionGroupTable"]


async def test_members_find_each_other(client: Client, other: Client) -> None:
    """The list of members is what clients share out the queues by; a change is pushed to all."""
    await client.heartbeat("T", group="G")
    await other.heartbeat("T", group="G")
    answer = await client.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"})
    assert decode_consumer_id_list(answer.body) == ["10.0.0.1@1", "10.0.0.2@2"]
    push = await asyncio.wait_for(other.pushed.get(), 5)
    assert push.ext_fields == {"consumerGroup": "G"}
    assert push.is_oneway
    while not client.pushed.empty():
        client.pushed.get_nowait()
    await other.close()
    await asyncio.wait_for(client.pushed.get(), 5)
    answer = await client.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"})
    assert decode_consumer_id_list(answer.body) == ["10.0.0.1@1"]


async def test_a_client_that_unregisters_is_gone(client: Client) -> None:
    """35 takes a client out of the groups it names, and of no others."""
    await client.heartbeat("T", group="G", producer="P")
    fields = {"clientID": client.client_id, "consumerGroup": "G"}
    assert (await client.call(RequestCode.UNREGISTER_CLIENT, fields)).code == ResponseCode.SUCCESS
    answer = await client.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "no consumer for this group, G"
    answer = await client.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "P"})
    assert len(decode_producer_connection(answer.body)) == 1
    fields = {"clientID": client.client_id, "producerGroup": "P"}
    await client.call(RequestCode.UNREGISTER_CLIENT, fields)
    answer = await client.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "P"})
    assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_connections_are_shown(client: Client) -> None:
    """mqadmin consumerConnection needs every one of these fields."""
    await client.heartbeat("T", group="G", producer="P")
    answer = await client.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "G"})
    shown = decode_consumer_connection(answer.body)
    assert [member.client_id for member in shown.connection_set] == [client.client_id]
    assert shown.connection_set[0].client_addr.startswith("127.0.0.1:")
    assert shown.connection_set[0].language == "PYTHON"
    assert list(shown.subscription_table) == ["T"]
    assert shown.consume_type == "CONSUME_PASSIVELY"
    assert shown.message_model == "CLUSTERING"
    assert shown.consume_from_where == "CONSUME_FROM_LAST_OFFSET"
    answer = await client.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "X"})
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE


async def test_a_heartbeat_without_sense_is_refused(client: Client) -> None:
    """Garbage and a client without an id get a sentence, and the connection goes on."""
    answer = await client.call(RequestCode.HEART_BEAT, body=b"\x00garbage")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    answer = await client.call(RequestCode.HEART_BEAT, body=b'{"clientID":""}')
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "clientID" in (answer.remark or "")
    assert (await client.heartbeat(producer="P")).code == ResponseCode.SUCCESS


async def test_a_check_without_a_subscription_succeeds(client: Client) -> None:
    """46 with nothing to check; what it checks is tested with the filters."""
    assert (await client.call(RequestCode.CHECK_CLIENT_CONFIG)).code == ResponseCode.SUCCESS


async def test_a_question_to_a_consumer_is_relayed(client: Client, other: Client) -> None:
    """307 reaches the member that is named, and its answer comes back as it is."""

    def answer_running_info(_: Connection, command: RemotingCommand) -> RemotingCommand:
        assert command.ext_fields["jstackEnable"] == "false"
        return command.response(ResponseCode.SUCCESS, "as it is", {"x": "y"}, b"\x01{raw}")

    client.dispatcher.register(RequestCode.GET_CONSUMER_RUNNING_INFO, answer_running_info)
    await client.heartbeat("T", group="G")
    fields: dict[str, ExtValue] = {
        "consumerGroup": "G",
        "clientId": client.client_id,
        "jstackEnable": False,
    }
    answer = await other.call(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "as it is")
    assert (answer.ext_fields, answer.body) == ({"x": "y"}, b"\x01{raw}")
    answer = await other.call(
        RequestCode.GET_CONSUMER_RUNNING_INFO, {**fields, "clientId": "nobody"}
    )
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "The Consumer <G> <nobody> not online"


async def test_a_consumer_that_leaves_before_it_answers(client: Client, other: Client) -> None:
    """The one who asked is told at once and does not wait for a timeout."""
    asked = asyncio.Event()

    async def never(_: Connection, _command: RemotingCommand) -> None:
        asked.set()
        await asyncio.Event().wait()

    client.dispatcher.register(RequestCode.GET_CONSUMER_RUNNING_INFO, never)
    await client.heartbeat("T", group="G")
    fields = {"consumerGroup": "G", "clientId": client.client_id}
    question = asyncio.create_task(other.call(RequestCode.GET_CONSUMER_RUNNING_INFO, fields))
    await asyncio.wait_for(asked.wait(), 5)
    await client.close()
    answer = await asyncio.wait_for(question, 5)
    await client.dispatcher.drain(0)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark is not None
    assert answer.remark.startswith("invoke consumer <G>")


# -- progress -------------------------------------------------------------------------------------


async def test_progress_of_a_group(client: Client) -> None:
    """208 shows for each queue how far the broker and the group are, as consumerProgress prints."""
    await make_topic(client, "T", readQueueNums=2, writeQueueNums=2)
    await client.heartbeat("T", "%RETRY%G", group="G")
    for _ in range(3):
        await client.send("T", b"body", 1)
    await commit(client, "G", "T", 1, 2)
    answer = await client.call(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G"})
    stats = decode_consume_stats(answer.body)
    assert sorted(queue.queue_id for queue in stats.offset_table) == [0, 1]
    untouched = stats.offset_table[MessageQueue("T", "broker-a", 0)]
    assert untouched == OffsetWrapper(0, 0, 0, 0)
    read = stats.offset_table[MessageQueue("T", "broker-a", 1)]
    assert (read.broker_offset, read.consumer_offset, read.pull_offset) == (3, 2, 2)
    assert read.last_timestamp > 1_600_000_000_000


async def test_progress_by_topic(client: Client) -> None:
    """A topic, or a list of topics, narrows the answer; what members left is not shown."""
    for topic in ("T", "U"):
        await make_topic(client, topic, readQueueNums=1, writeQueueNums=1)
    await client.heartbeat("T", "U", group="G")
    for topic in ("T", "U"):
        await commit(client, "G", topic, 0, 0)

    async def shown(**more: ExtValue) -> list[str]:
        answer = await client.call(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G", **more})
        return sorted(queue.topic for queue in decode_consume_stats(answer.body).offset_table)

    assert await shown() == ["T", "U"]
    assert await shown(topic="T") == ["T"]
    await client.heartbeat("T", group="G")
    assert await shown() == ["T"]
    assert await shown(topic="U") == []
    assert await shown(topicList="U;unknown") == ["U"]
    answer = await client.call(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "X"})
    assert decode_consume_stats(answer.body).offset_table == {}


async def test_who_reads_a_topic(client: Client) -> None:
    """Groups online on a topic, and groups with offsets in it."""
    await make_topic(client, "T")
    await client.heartbeat("T", group="offline")
    await commit(client, "offline", "T", 0, 0)
    fields = {"clientID": client.client_id, "consumerGroup": "offline"}
    await client.call(RequestCode.UNREGISTER_CLIENT, fields)
    await client.heartbeat("T", group="online")
    answer = await client.call(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"})
    assert decode_group_list(answer.body) == ["offline", "online"]
    answer = await client.call(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "offline"})
    assert decode_topic_list(answer.body)[0] == ["T"]
