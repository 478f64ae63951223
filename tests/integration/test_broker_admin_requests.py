"""Requests of administrators over real sockets: what they should be answered is what a Java 5.5
broker answers, or the reason why mailboat answers something better."""

import json
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from small_store import small_store

from mailboat.broker.controller import BrokerController
from mailboat.config import BrokerConfig, Settings, live_keys
from mailboat.model.subscription import SubscriptionData, SubscriptionGroupConfig
from mailboat.model.tags import java_hash
from mailboat.model.topic import TopicConfig
from mailboat.protocol.admin_bodies import encode_group_configs, encode_topic_configs
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand
from mailboat.protocol.heartbeat import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    encode_heartbeat,
)
from mailboat.remoting.client import RemotingClient

# What the reference lists for administrators of a plain broker (2.8), without the requests that
# need a member, a message or another broker to make sense.
EVERY_CODE = [
    17, 18, 21, 25, 26, 28, 200, 201, 202, 203, 204, 207, 208, 215, 225, 300, 305, 306, 315, 316,
    317, 321, 328, 329, 343, 351, 352, 353, 354, 401, 402, 907, 908, 2001, 2002, 2003, 200056,
]  # fmt: skip
ABSENT_CODES = [
    50, 51, 52, 53, 54, 60, 61, 355, 400, 513, 902, 903, 1007, 2004, *range(3001, 3011)
]  # fmt: skip


class Client:
    """One connection to the broker."""

    def __init__(self, broker: BrokerController) -> None:
        """Prepare a connection."""
        self.broker = broker
        self._remoting = RemotingClient()

    async def call(
        self, code: int, ext_fields: Mapping[str, ExtValue] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Send a request and return the answer."""
        command = RemotingCommand.request(code, ext_fields, body)
        return await self._remoting.request(self.broker.address, command, 15.0)

    async def ok(
        self, code: int, ext_fields: Mapping[str, ExtValue] | None = None, body: bytes = b""
    ) -> Any:
        """Send a request that succeeds and return the JSON of its answer, if it has a body."""
        answer = await self.call(code, ext_fields, body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return json.loads(answer.body) if answer.body else None

    async def refused(
        self, code: int, ext_fields: Mapping[str, ExtValue] | None = None, body: bytes = b""
    ) -> tuple[int, str]:
        """Send a request that fails and return code and remark."""
        answer = await self.call(code, ext_fields, body)
        assert answer.code != ResponseCode.SUCCESS
        assert answer.remark
        assert "Error" not in answer.remark
        return answer.code, answer.remark

    async def send(self, topic: str, body: bytes, queue_id: int = 0, tag: str = "") -> None:
        """Store a message."""
        fields: dict[str, ExtValue] = {
            "a": "PG", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1,
            "h": 0, "i": f"TAGS\x01{tag}\x02" if tag else "", "j": 0, "k": False,
        }  # fmt: skip
        await self.ok(RequestCode.SEND_MESSAGE_V2, fields, body)

    async def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Commit an offset."""
        fields: dict[str, ExtValue] = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": queue_id,
            "commitOffset": queue_offset,
        }
        await self.ok(RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    async def heartbeat(self, client_id: str, *, group: str = "", producer: str = "") -> None:
        """Register as a consumer of topic T, as a producer, or as both."""
        data = HeartbeatData(client_id)
        if group:
            subscription = SubscriptionData("T", "red", {"red"}, {java_hash("red")}, 1)
            data.consumer_data_set.append(ConsumerData(group, subscription_data_set=[subscription]))
        if producer:
            data.producer_data_set.append(ProducerData(producer))
        await self.ok(RequestCode.HEART_BEAT, body=encode_heartbeat(data))

    async def close(self) -> None:
        """Close the connection."""
        await self._remoting.close()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerController]:
    """Run a broker on a free port."""
    settings = Settings(
        role="broker",
        broker=BrokerConfig(listen_port=0, bind_address="127.0.0.1"),
        store=small_store(
            tmp_path, disk_max_used_space_ratio=75, disk_space_clean_forcibly_ratio=85
        ),
    )
    controller = BrokerController(settings)
    await controller.start()
    yield controller
    await controller.shutdown()


@pytest.fixture
async def client(broker: BrokerController) -> AsyncIterator[Client]:
    """Connect to the broker."""
    client = Client(broker)
    yield client
    await client.close()


async def test_every_request_of_administrators_is_known(client: Client) -> None:
    """None is "not supported", and a missing field or body never shows a stack trace."""
    for code in EVERY_CODE:
        answer = await client.call(code)
        assert answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED, code
        assert "internal error" not in (answer.remark or ""), code


async def test_nonsense_is_refused_in_one_sentence(client: Client) -> None:
    """A number that is none and a body of garbage end in a clear refusal or are not looked at."""
    names = ("topic", "group", "consumerGroup", "groupName", "producerGroup", "defaultTopic")
    numbers = ("queueId", "index", "perm", "readQueueNums", "masterFlushOffset")
    fields = {**dict.fromkeys(names, "x"), **dict.fromkeys(numbers, "?")}
    for code in EVERY_CODE:
        for body in (b"\xff{", b"[]", b"null", b'{"topic":[]}'):
            answer = await client.call(code, fields, body)
            assert "internal error" not in (answer.remark or ""), code
            assert "\n" not in (answer.remark or ""), code


async def test_what_is_not_there_says_so(client: Client) -> None:
    """The code of a RocketMQ without it, and one sentence; never success."""
    version_4 = {50: 209, 51: 210, 53: 211}
    for code in ABSENT_CODES:
        answered, remark = await client.refused(code)
        assert answered == version_4.get(code, ResponseCode.SYSTEM_ERROR), code
        assert len(remark) > 20, code


async def test_an_unknown_code_is_answered_3(client: Client) -> None:
    """With RocketMQ's words."""
    answer = await client.refused(31234)
    assert answer == (3, " request type 31234 not supported")


async def test_live_settings_are_changed(client: Client) -> None:
    """The new value is in force on return, is shown, and moves the version of the settings on."""
    before = await client.call(RequestCode.GET_BROKER_CONFIG)
    await client.ok(
        RequestCode.UPDATE_BROKER_CONFIG, body=b"# comment\nmaxMessageSize=1000\nfileReservedTime=5"
    )
    after = await client.call(RequestCode.GET_BROKER_CONFIG)
    lines = after.body.decode().splitlines()
    assert {"maxMessageSize=1000", "fileReservedTime=5"} <= set(lines)
    counters = [json.loads(answer.ext_fields["version"])["counter"] for answer in (before, after)]
    assert counters == [0, 1]
    fields: dict[str, ExtValue] = {
        "a": "PG", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": "",
        "j": 0, "k": False,
    }  # fmt: skip
    refusal, _ = await client.refused(RequestCode.SEND_MESSAGE_V2, fields, b"x" * 1001)
    assert refusal == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("storePathRootDir", "/etc"),
        ("storePathCommitLog", "/etc"),
        ("listenPort", "1"),
        ("brokerName", "x"),
        ("brokerIP1", "10.0.0.1"),
        ("rocketmqHome", "/tmp; touch x"),
        ("filterServerNums", "1"),
        ("configBlackList", ""),
        ("brokerConfigPath", "/etc/passwd"),
        ("messageStorePlugIn", "org.example.Evil"),
        ("noSuchKey", "1"),
    ],
)
async def test_other_settings_are_refused(client: Client, key: str, value: str) -> None:
    """Never a path, a class, an address or a command: code 16, and nothing of the request stays."""
    before = client.broker.settings
    body = f"maxMessageSize=1000\n{key}={value}\n".encode()
    code, remark = await client.refused(RequestCode.UPDATE_BROKER_CONFIG, body=body)
    assert code == ResponseCode.NO_PERMISSION
    assert remark.startswith(f"{key} cannot be changed in a running broker; nothing was changed")
    assert client.broker.settings == before


@pytest.mark.parametrize(
    "line", ["maxMessageSize=many", "maxMessageSize=-1", "diskMaxUsedSpaceRatio=90"]
)
async def test_bad_values_of_live_settings_are_refused(client: Client, line: str) -> None:
    """Code 29 names key and value, whether it is bad by itself or beside the others."""
    before = client.broker.settings
    body = f"fileReservedTime=5\n{line}".encode()
    code, remark = await client.refused(RequestCode.UPDATE_BROKER_CONFIG, body=body)
    assert code == ResponseCode.INVALID_PARAMETER
    assert remark.startswith(f"{line}: ")
    assert client.broker.settings == before


async def test_settings_that_are_no_properties_are_refused(client: Client) -> None:
    """Code 1, and the line is named."""
    refusal = await client.refused(RequestCode.UPDATE_BROKER_CONFIG, body=b"a=b\nnonsense")
    assert refusal == (1, "configuration line 2 is not of the form key=value")
    code, _ = await client.refused(RequestCode.UPDATE_BROKER_CONFIG, body=b"\xff\xfe")
    assert code == ResponseCode.SYSTEM_ERROR


async def test_the_permission_of_the_broker_counts_at_once(client: Client) -> None:
    """brokerPermission takes effect with the answer, as the name servers learn it before."""
    await client.ok(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4")
    assert {config.perm & 6 for config in client.broker.topics.registered()} <= {4, 0}


async def test_a_broker_without_permission_takes_nothing_for_ordered_topics(
    client: Client,
) -> None:
    """Neither the core, which knew the topic before, nor Python; other topics go on."""
    topics = [TopicConfig("T", 1, 1, order=True), TopicConfig("U", 1, 1)]
    body = encode_topic_configs(topics)
    await client.ok(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
    for permission, expected in ((6, ResponseCode.SUCCESS), (4, ResponseCode.NO_PERMISSION)):
        change = b"brokerPermission=%d" % permission
        await client.ok(RequestCode.UPDATE_BROKER_CONFIG, body=change)
        for topic, code in [("T", expected), ("U", ResponseCode.SUCCESS)] * 3:
            fields: dict[str, ExtValue] = {
                "a": "P", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0,
                "i": "UNIQ_KEY\x01U\x02", "j": 0, "k": False,
            }  # fmt: skip
            answer = await client.call(RequestCode.SEND_MESSAGE_V2, fields, b"x")
            assert answer.code == code


async def test_no_address_or_path_is_a_live_setting(client: Client) -> None:
    """The allow-list holds numbers, switches and hours, and the one list of name servers."""
    assert {
        key for key in live_keys("broker") if any(word in key for word in ("Path", "IP", "Port"))
    } == set()


async def test_a_list_of_topics_is_made_at_once(client: Client) -> None:
    """All of 18's topics are there with their attributes, signed as in 17."""
    topics = [
        TopicConfig("A", 2, 3, attributes={"+message.type": "FIFO"}),
        TopicConfig("B", 1, 1, perm=4, order=True),
    ]
    body = encode_topic_configs(topics)
    await client.ok(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
    made = await client.ok(RequestCode.GET_TOPIC_CONFIG, {"topic": "A", "lo": True})
    assert (made["readQueueNums"], made["writeQueueNums"]) == (2, 3)
    assert made["attributes"] == {"message.type": "FIFO"}
    other = await client.ok(RequestCode.GET_TOPIC_CONFIG, {"topic": "B", "lo": True})
    assert (other["perm"], other["order"]) == (4, True)


@pytest.mark.parametrize("bad", ["SCHEDULE_TOPIC_XXXX", "a/b", ""])
async def test_one_bad_topic_refuses_the_list(client: Client, bad: str) -> None:
    """Code 29, and the good ones before it are not made either."""
    body = encode_topic_configs([TopicConfig("A", 1, 1), TopicConfig(bad, 1, 1)])
    code, _ = await client.refused(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
    assert code == ResponseCode.INVALID_PARAMETER
    code, _ = await client.refused(RequestCode.GET_TOPIC_CONFIG, {"topic": "A"})
    assert code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_list_of_groups_is_made_at_once(client: Client) -> None:
    """All of 225's groups are there, or none when one name is bad."""
    good = SubscriptionGroupConfig("G1", retry_max_times=3)
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    bad_body = encode_group_configs([good, SubscriptionGroupConfig("a b")])
    assert (await client.refused(code, body=bad_body))[0] == ResponseCode.INVALID_PARAMETER
    missing, _ = await client.refused(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "G1"})
    assert missing == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    await client.ok(code, body=encode_group_configs([good, SubscriptionGroupConfig("G2")]))
    made = await client.ok(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "G1"})
    assert made["retryMaxTimes"] == 3
    await client.ok(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "G2"})


async def test_the_counters_of_a_topic_and_a_group_are_shown(client: Client) -> None:
    """Sums of the last minute, hour and day; one counts from its first message on."""
    missing = await client.refused(
        RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}
    )
    assert missing[0] == ResponseCode.SYSTEM_ERROR
    assert missing[1].startswith("The stats <TOPIC_PUT_NUMS> <T> not exist")
    for _ in range(3):
        await client.send("T", b"0123456789")
    client.broker.stats.record_get("T", "G", 2, 500)
    client.broker.stats.record_sent_back("T", "G")
    for name, key, total in (
        ("TOPIC_PUT_NUMS", "T", 3),
        ("GROUP_GET_NUMS", "T@G", 2),
        ("GROUP_GET_SIZE", "T@G", 500),
        ("SNDBCK_PUT_NUMS", "T@G", 1),
        ("BROKER_PUT_NUMS", "DefaultCluster", 3),
        ("BROKER_GET_NUMS", "DefaultCluster", 2),
    ):
        fields = {"statsName": name, "statsKey": key}
        stats = await client.ok(RequestCode.VIEW_BROKER_STATS_DATA, fields)
        spans = ("statsMinute", "statsHour", "statsDay")
        assert [stats[span]["sum"] for span in spans] == [total] * 3
        assert all(stats[span]["tps"] > 0 for span in spans)
    code, _ = await client.refused(
        RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "NO_SUCH", "statsKey": "T"}
    )
    assert code == ResponseCode.SYSTEM_ERROR


async def test_the_progress_of_every_group_is_shown(client: Client) -> None:
    """317 has one entry per group and topic, the sum of what is unread, and ordered ones alone."""
    for _ in range(4):
        await client.send("T", b"x")
    await client.ok(
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        body=encode_topic_configs([TopicConfig("O", 1, 1, order=True)]),
    )
    await client.send("O", b"x")
    groups = [SubscriptionGroupConfig("G")]
    await client.ok(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=encode_group_configs(groups)
    )
    await client.commit("G", "T", 0, 1)
    await client.commit("G", "O", 0, 1)
    answer = await client.call(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": False})
    assert answer.code == ResponseCode.SUCCESS
    # Keys that are objects are not JSON; they are quoted here to read the rest.
    text = answer.body.decode()
    assert text.startswith(f'{{"brokerAddr":"{client.broker.address}","consumeStatsList":[')
    assert text.endswith('"totalDiff":3,"totalInflightDiff":0}')
    assert '{"G":[{"consumeTps":' in text
    queue = '{"brokerName":"broker-a","queueId":0,"topic":"T"}'
    assert f'{queue}:{{"brokerOffset":4,"consumerOffset":1,"lastTimestamp":' in text
    ordered = await client.call(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": True})
    assert b'"topic":"O"' in ordered.body
    assert b'"topic":"T"' not in ordered.body


async def test_all_producers_are_shown(client: Client) -> None:
    """By group, with the address in Java's spelling and the time of the last heartbeat."""
    assert await client.ok(RequestCode.GET_ALL_PRODUCER_INFO) == {"data": {}}
    before_ms = time.time() * 1000
    await client.heartbeat("10.0.0.1@1", producer="PG")
    (info,) = (await client.ok(RequestCode.GET_ALL_PRODUCER_INFO))["data"]["PG"]
    assert (info["clientId"], info["language"]) == ("10.0.0.1@1", "PYTHON")
    assert info["remoteIP"].startswith("/127.0.0.1:")
    assert before_ms - 100 <= info["lastUpdateTimestamp"] <= time.time() * 1000 + 100


async def test_units_of_a_queue_are_shown(client: Client) -> None:
    """Each message's place and size in the log, and its tag's hash."""
    await client.send("T", b"first", tag="red")
    await client.send("T", b"second")
    fields: dict[str, ExtValue] = {"topic": "T", "queueId": 0, "index": 0, "count": 10}
    content = await client.ok(RequestCode.QUERY_CONSUME_QUEUE, fields)
    first, second = content["queueData"]
    assert (content["minQueueIndex"], content["maxQueueIndex"]) == (0, 2)
    assert first["physicOffset"] == 0
    assert first["tagsCode"] == java_hash("red")
    assert second["physicOffset"] == first["physicSize"]
    assert second["tagsCode"] == 0
    assert "filterData" not in content
    one = await client.ok(RequestCode.QUERY_CONSUME_QUEUE, {**fields, "index": 1, "count": 1})
    assert one["queueData"] == [second]


async def test_units_are_shown_with_a_groups_subscription(client: Client) -> None:
    """What an online group asks of the topic; of another one that it is not online."""
    await client.send("T", b"x")
    fields: dict[str, ExtValue] = {"topic": "T", "queueId": 0, "index": 0, "count": 1}
    offline = await client.ok(RequestCode.QUERY_CONSUME_QUEUE, {**fields, "consumerGroup": "G"})
    assert offline["filterData"] == "G@T is not online!"
    await client.heartbeat("10.0.0.1@1", group="G")
    online = await client.ok(RequestCode.QUERY_CONSUME_QUEUE, {**fields, "consumerGroup": "G"})
    assert online["filterData"] == "null"
    assert online["subscriptionData"]["subString"] == "red"


async def test_units_that_are_not_there_are_refused(client: Client) -> None:
    """An unknown topic, a queue that it has not, and an index outside of the queue."""
    await client.send("T", b"x")
    fields: dict[str, ExtValue] = {"topic": "T", "queueId": 0, "index": 0, "count": 1}
    query = RequestCode.QUERY_CONSUME_QUEUE
    assert await client.refused(query, {**fields, "topic": "none"}) == (1, "0@none is not exist!")
    assert await client.refused(query, {**fields, "queueId": 99}) == (1, "99@T is not exist!")
    empty = await client.refused(query, {**fields, "queueId": 3})
    assert empty == (1, "3@T is not exist!")
    code, remark = await client.refused(query, {**fields, "index": 7})
    assert (code, remark) == (1, "Index 7 of 0@T is not exist! It holds 0 to 0.")
    assert (await client.refused(query, {**fields, "index": -1}))[0] == 1


async def test_queues_of_a_topic_that_is_no_more_are_cleaned(client: Client) -> None:
    """Those of topics that exist, and the broker's own, stay."""
    await client.send("T", b"x")
    await client.send("U", b"x")
    del client.broker.topics.table["U"]
    await client.ok(RequestCode.CLEAN_UNUSED_TOPIC)
    assert client.broker.store.queue_ids("U") == []
    assert client.broker.store.max_offset("T", 0) == 1
    await client.ok(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    assert client.broker.store.max_offset("T", 0) == 1


async def test_a_master_without_slaves_shows_its_replication(client: Client) -> None:
    """The end of its log and no slave; a flush offset is nothing that a master has."""
    await client.send("T", b"x")
    status = await client.ok(RequestCode.GET_BROKER_HA_STATUS)
    assert status["master"] is True
    assert status["masterCommitLogMaxOffset"] == client.broker.store.commit_log.end
    assert (status["inSyncSlaveNums"], status["haConnectionInfo"]) == (0, [])
    assert "masterAddr" not in status["haClientRuntimeInfo"]
    await client.ok(RequestCode.RESET_MASTER_FLUSH_OFFSET, {"masterFlushOffset": 1})


async def test_a_group_may_be_set_to_pull_and_not_to_pop(client: Client) -> None:
    """Unknown topics and groups and retry topics are refused as RocketMQ does."""
    await client.send("T", b"x")
    body = {"topic": "T", "consumerGroup": "G", "mode": "PULL", "popShareQueueNum": 0}

    async def refusal(**changes: object) -> int:
        content = json.dumps({**body, **changes}).encode()
        return (await client.refused(RequestCode.SET_MESSAGE_REQUEST_MODE, body=content))[0]

    await client.ok(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        body=encode_group_configs([SubscriptionGroupConfig("G")]),
    )
    await client.ok(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(body).encode())
    assert await refusal(mode="POP") == ResponseCode.INVALID_PARAMETER
    assert await refusal(topic="none") == ResponseCode.TOPIC_NOT_EXIST
    assert await refusal(topic="%RETRY%G") == ResponseCode.NO_PERMISSION
    assert await refusal(consumerGroup="a b") == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    modes = await client.ok(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    assert modes == {"messageRequestModeMap": {}}


async def test_limits_on_cold_reads_are_kept_and_shown(client: Client) -> None:
    """As on a RocketMQ whose coldDataFlowControlEnable is off, which is its default."""
    update = RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG
    await client.ok(update, body=b"G=1000\nH=2000\n")
    assert (await client.refused(update, body=b"I=1\nJ=many"))[0] == 29
    await client.ok(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, body=b"H")
    info = await client.ok(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
    assert info["configTable"] == {"G": 1000}
    assert info["runtimeTable"] == {}


async def test_a_group_is_deleted_with_its_offsets_if_asked(client: Client) -> None:
    """Version 4 tools say removeOffset, version 5 tools cleanOffset; without it offsets stay."""
    await client.send("T", b"x")
    delete = RequestCode.DELETE_SUBSCRIPTIONGROUP
    group = encode_group_configs([SubscriptionGroupConfig("G")])
    for field, left in (("none", 1), ("removeOffset", -1), ("cleanOffset", -1)):
        await client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=group)
        await client.commit("G", "T", 0, 1)
        await client.ok(delete, {"groupName": "G", field: True})
        assert client.broker.offsets.query("G", "T", 0) == left


async def test_the_rate_of_a_topic_is_shown_with_its_queues(client: Client) -> None:
    """topicStatus of version 5 prints topicPutTps."""
    await client.send("T", b"x")
    answer = await client.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
    tps = float(answer.body.decode().rpartition('"topicPutTps":')[2].rstrip("}"))
    assert tps > 0


async def test_a_group_may_read_every_topic(client: Client) -> None:
    """353 shows that; to forbid a single topic is refused."""
    fields: dict[str, ExtValue] = {"group": "G", "topic": "T"}
    code = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN
    assert await client.ok(code, fields) == {"group": "G", "topic": "T", "readable": True}
    assert (await client.refused(code, {**fields, "readable": False}))[0] == 29
