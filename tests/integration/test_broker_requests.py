"""The broker's answers over real sockets; what they should be is what a Java 5.3 broker answers,
or the reason why mailboat answers something better."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from small_store import small_store

from mailboat.broker.controller import BrokerController
from mailboat.config import BrokerConfig, Settings
from mailboat.model.message_id import decode_offset_message_id
from mailboat.model.message_queue import MessageQueue
from mailboat.model.record import decode_records
from mailboat.model.subscription import SubscriptionData, SubscriptionGroupConfig
from mailboat.model.topic import TopicConfig
from mailboat.protocol.bodies import (
    decode_consumer_id_list,
    decode_group_list,
    decode_kv_table,
    decode_topic_list,
)
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
from mailboat.protocol.heartbeat import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    encode_heartbeat,
)
from mailboat.protocol.stats_bodies import (
    OffsetWrapper,
    decode_consume_stats,
    decode_consumer_offsets,
    decode_topic_stats,
)
from mailboat.protocol.topic_table import decode_topic_config, decode_topic_table
from mailboat.remoting.client import RemotingClient
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher


class Client:
    """One client process: a connection, an id, and what the broker asked it."""

    def __init__(self, address: str, client_id: str = "10.0.0.1@1") -> None:
        """Prepare a client of the broker at `address`."""
        self.address = address
        self.client_id = client_id
        self.pushed: asyncio.Queue[RemotingCommand] = asyncio.Queue()
        self.dispatcher = Dispatcher()
        self.dispatcher.register(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._notified)
        self._remoting = RemotingClient(self.dispatcher)

    async def call(
        self, code: int, ext_fields: Mapping[str, ExtValue] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Send a request and return the answer."""
        command = RemotingCommand.request(code, ext_fields, body)
        return await self._remoting.request(self.address, command, 15.0)

    async def heartbeat(
        self, *topics: str, group: str | None = None, producer: str | None = None
    ) -> RemotingCommand:
        """Register as a member of a consumer group, a producer group or both."""
        data = HeartbeatData(self.client_id)
        if group is not None:
            subscriptions = [SubscriptionData(topic, sub_version=1) for topic in topics]
            data.consumer_data_set.append(ConsumerData(group, subscription_data_set=subscriptions))
        if producer is not None:
            data.producer_data_set.append(ProducerData(producer))
        return await self.call(RequestCode.HEART_BEAT, body=encode_heartbeat(data))

    async def send(self, topic: str, body: bytes, queue_id: int = 0, properties: str = "") -> str:
        """Store a message and return its offset message id."""
        answer = await self.call(
            RequestCode.SEND_MESSAGE_V2,
            {
                "a": "PG", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1,
                "h": 0, "i": properties, "j": 0, "k": False,
            },
            body,
        )  # fmt: skip
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer.ext_fields["msgId"]

    async def close(self) -> None:
        """Close the connection."""
        await self._remoting.close()

    def _notified(self, _connection: Connection, command: RemotingCommand) -> None:
        self.pushed.put_nowait(command)


def settings(root: Path, **broker: Any) -> Settings:
    """Return the settings of a small broker on a free port."""
    return Settings(
        role="broker",
        broker=BrokerConfig(listen_port=0, bind_address="127.0.0.1", **broker),
        store=small_store(root),
    )


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerController]:
    """Run a broker."""
    controller = BrokerController(settings(tmp_path))
    await controller.start()
    yield controller
    await controller.shutdown()


@pytest.fixture
async def client(broker: BrokerController) -> AsyncIterator[Client]:
    """Connect a client to the broker."""
    client = Client(broker.address)
    yield client
    await client.close()


@pytest.fixture
async def other(broker: BrokerController) -> AsyncIterator[Client]:
    """Connect a second client."""
    client = Client(broker.address, "10.0.0.2@2")
    yield client
    await client.close()


def topic_fields(topic: str, **changes: ExtValue) -> dict[str, ExtValue]:
    """Return what mqadmin updateTopic sends."""
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
        **changes,
    }


async def make_topic(client: Client, topic: str, **changes: ExtValue) -> RemotingCommand:
    """Make a topic as mqadmin does."""
    return await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topic, **changes))


# -- topics ---------------------------------------------------------------------------------------


async def test_a_topic_is_made_shown_changed_and_deleted(
    broker: BrokerController, client: Client, tmp_path: Path
) -> None:
    """The life of a topic by administration; each step is in the file when it is answered."""
    file = tmp_path / "config" / "topics.json"
    assert (await make_topic(client, "T")).code == ResponseCode.SUCCESS
    assert json.loads(file.read_bytes())["topicConfigTable"]["T"]["readQueueNums"] == 4
    answer = await client.call(RequestCode.GET_TOPIC_CONFIG, {"topic": "T", "lo": True})
    assert decode_topic_config(answer.body) == TopicConfig("T", 4, 4)
    await make_topic(client, "T", readQueueNums=8, perm=4, attributes="+message.type=NORMAL")
    table = decode_topic_table((await client.call(RequestCode.GET_ALL_TOPIC_CONFIG)).body)
    assert table.topic_config_table["T"] == TopicConfig(
        "T", 8, 4, 4, attributes={"message.type": "NORMAL"}
    )
    # A topic that is made counts twice: when it is written, and when it is there.
    assert table.data_version.counter == 3
    answer = await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert answer.code == ResponseCode.SUCCESS
    assert "T" not in json.loads(file.read_bytes())["topicConfigTable"]
    answer = await client.call(RequestCode.GET_TOPIC_CONFIG, {"topic": "T", "lo": True})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_an_unknown_topic_is_deleted_without_complaint(client: Client) -> None:
    """mqadmin deletes a topic on every broker, whether it is there or not."""
    answer = await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "unknown"})
    assert answer.code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("code", "fields", "words"),
    [
        (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("../../etc"), "illegal character"),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("TBW102"), "broker's own"),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T", perm=9), "permission 9"),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T", readQueueNums=-1), "-1 read"),
        (
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            topic_fields("T", attributes="+queue.type=BatchCQ"),
            "cannot be 'BatchCQ'",
        ),
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "SCHEDULE_TOPIC_XXXX"}, "broker's own"),
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": ""}, "is empty"),
    ],
)
async def test_an_illegal_topic_change_is_refused(
    client: Client, code: int, fields: dict[str, ExtValue], words: str
) -> None:
    """The answer is 29, as from RocketMQ 5, with one sentence that says what is wrong."""
    answer = await client.call(code, fields)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert words in (answer.remark or "")


async def test_a_missing_field_is_named(client: Client) -> None:
    """Where the original answers a NullPointerException, the field is named."""
    answer = await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "T"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "field 'readQueueNums' is missing" in (answer.remark or "")


async def test_topic_stats_show_every_queue(client: Client) -> None:
    """One entry per queue, also where reading and writing differ; empty queues read 0, 0, 0."""
    await make_topic(client, "T", readQueueNums=3, writeQueueNums=2)
    await client.send("T", b"one", 1)
    await client.send("T", b"two", 1)
    answer = await client.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
    stats = decode_topic_stats(answer.body)
    assert sorted(queue.queue_id for queue in stats) == [0, 1, 2]
    empty, full = stats[MessageQueue("T", "broker-a", 0)], stats[MessageQueue("T", "broker-a", 1)]
    assert (empty.min_offset, empty.max_offset, empty.last_update_timestamp) == (0, 0, 0)
    assert (full.min_offset, full.max_offset) == (0, 2)
    assert full.last_update_timestamp > 1_600_000_000_000
    # Java's and Go's readers need the keys as raw objects.
    assert b'{{"brokerName":"broker-a","queueId":0,"topic":"T"}:' in answer.body


async def test_the_brokers_own_topics_are_listed(client: Client) -> None:
    """mqadmin leaves these out of its lists."""
    answer = await client.call(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    topics, _ = decode_topic_list(answer.body)
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a"} <= set(topics)


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


async def commit(
    client: Client, group: str, topic: str, queue_id: int, queue_offset: int
) -> RemotingCommand:
    """Commit an offset and wait for the answer, as mqadmin does."""
    return await client.call(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        {
            "consumerGroup": group,
            "topic": topic,
            "queueId": queue_id,
            "commitOffset": queue_offset,
        },
    )


async def query(
    client: Client, group: str, topic: str, queue_id: int, **more: ExtValue
) -> RemotingCommand:
    """Ask for a committed offset."""
    return await client.call(
        RequestCode.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": group, "topic": topic, "queueId": queue_id, **more},
    )


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


# -- messages -------------------------------------------------------------------------------------


async def test_a_message_is_found_by_its_id(client: Client) -> None:
    """33 returns the one record that the id names; another offset is refused."""
    message_id = await client.send("T", b"hello", 0)
    physical_offset = decode_offset_message_id(message_id).physical_offset
    answer = await client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": physical_offset})
    (message,) = decode_records(answer.body)
    assert (message.topic, message.body) == ("T", b"hello")
    assert message.offset_message_id == message_id
    answer = await client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": physical_offset + 1})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"can not find message by the offset, {physical_offset + 1}"


async def test_messages_are_found_by_key(client: Client) -> None:
    """12 finds by key and by unique key; nothing found is 22, with the index's bounds all the
    same."""
    for number in range(3):
        properties = f"KEYS\x01order-{number % 2}\x02UNIQ_KEY\x01id-{number}\x02"
        await client.send("T", b"%d" % number, 0, properties)
    fields: dict[str, ExtValue] = {
        "topic": "T",
        "key": "order-0",
        "maxNum": 32,
        "beginTimestamp": 0,
        "endTimestamp": 2**63 - 1,
    }
    answer = await client.call(RequestCode.QUERY_MESSAGE, fields)
    assert [message.body for message in decode_records(answer.body)] == [b"0", b"2"]
    assert int(answer.ext_fields["indexLastUpdatePhyoffset"]) > 0
    answer = await client.call(
        RequestCode.QUERY_MESSAGE, {**fields, "key": "id-1", "_UNIQUE_KEY_QUERY": True}
    )
    assert [message.body for message in decode_records(answer.body)] == [b"1"]
    answer = await client.call(RequestCode.QUERY_MESSAGE, {**fields, "key": "nothing"})
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    assert {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"} <= set(answer.ext_fields)


async def test_a_key_is_in_the_index_soon_after_its_send(
    client: Client, broker: BrokerController
) -> None:
    """Within 100 ms and with nobody asking for it."""
    loop = asyncio.get_running_loop()
    built = asyncio.Event()
    background = broker.store.background

    def tell() -> None:
        background()
        built.set()

    broker.store.background = tell  # type: ignore[method-assign]
    waited_s = []
    for number in range(8):
        await client.send("T", b"x", 0, f"UNIQ_KEY\x01id-{number}\x02")
        begin_s = loop.time()
        async with asyncio.timeout(5):
            while sum(broker.store.index.entry_counts) <= number:
                built.clear()
                await built.wait()
        waited_s.append(loop.time() - begin_s)
    # Half of them, as a busy machine may be late with anything.
    assert sorted(waited_s)[3] < 0.1


async def test_an_answer_never_breaks_the_frame(tmp_path: Path) -> None:
    """Five messages of four million bytes under one key do not fit a frame; those that fit come."""
    small = settings(tmp_path)
    store = dataclasses.replace(small.store, mapped_file_size_commit_log=32 << 20)
    broker = BrokerController(dataclasses.replace(small, store=store))
    await broker.start()
    client = Client(broker.address)
    for _ in range(5):
        await client.send("T", bytes(4_000_000), 0, "KEYS\x01k\x02")
    answer = await client.call(
        RequestCode.QUERY_MESSAGE,
        {"topic": "T", "key": "k", "maxNum": 64, "beginTimestamp": 0, "endTimestamp": 2**62},
    )
    await client.close()
    await broker.shutdown()
    assert [len(message.body) for message in decode_records(answer.body)] == [4_000_000] * 4


# -- the broker itself ----------------------------------------------------------------------------

# What mqadmin brokerStatus, clusterList and exportMetrics of versions 4.9 and 5 read.
RUNTIME_KEYS = """
brokerVersionDesc brokerVersion putTps getTransferedTps getTransferredTps sendThreadPoolQueueSize
pullThreadPoolQueueSize sendThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueHeadWaitTimeMills
pageCacheLockTimeMills earliestMessageTimeStamp commitLogDiskRatio consumeQueueDiskRatio
msgPutTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow
msgGetTotalYesterdayMorning msgGetTotalTodayMorning msgGetTotalTodayNow brokerActive
ackThreadPoolQueueSize ackThreadPoolQueueHeadWaitTimeMills timerReadBehind timerOffsetBehind
timerCongestNum timerEnqueueTps timerDequeueTps putMessageAverageSize getFoundTps getTotalTps
getMissTps commitLogMaxOffset commitLogMinOffset bootTimestamp runtime putMessageDistributeTime
""".split()


async def test_runtime_info_has_every_key_that_tools_read(client: Client) -> None:
    """All values are texts; counters and bounds follow what was sent."""
    answer = await client.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    info = decode_kv_table(answer.body)
    assert set(RUNTIME_KEYS) - set(info) == set()
    assert info["earliestMessageTimeStamp"] == "-1"
    assert info["msgPutTotalTodayNow"] == "0"
    await client.send("T", b"hello", 0)
    info = decode_kv_table((await client.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body)
    assert info["msgPutTotalTodayNow"] == "1"
    assert int(info["commitLogMaxOffset"]) > 100
    assert int(info["earliestMessageTimeStamp"]) > 1_600_000_000_000
    assert all(
        len(info[key].split(" ")) == 3
        for key in info
        if key.endswith("Tps") and not key.startswith("timer")
    )


async def test_the_configuration_is_shown(client: Client) -> None:
    """26 answers lines of key=value under RocketMQ's keys, and the version of them."""
    answer = await client.call(RequestCode.GET_BROKER_CONFIG)
    lines = dict(line.split("=", 1) for line in answer.body.decode().splitlines())
    assert lines["brokerName"] == "broker-a"
    assert lines["flushDiskType"] == "ASYNC_FLUSH"
    assert lines["mappedFileSizeCommitLog"] == str(1 << 20)
    assert "counter" in json.loads(answer.ext_fields["version"])


async def test_an_unknown_request_is_told(client: Client) -> None:
    """Code 3 with the words that clients know."""
    answer = await client.call(31234)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == " request type 31234 not supported"
