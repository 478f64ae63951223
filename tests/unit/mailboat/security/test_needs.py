"""Tests of mailboat.security.needs; what is needed comes from RocketMQ's own table."""

import json
from pathlib import Path
from typing import Any

import pytest

from mailboat.broker.controller import BrokerController
from mailboat.config import BrokerConfig, MessageStoreConfig, NamesrvConfig, Settings
from mailboat.errors import BrokerError
from mailboat.model.hosts import encode_host
from mailboat.model.message_id import encode_offset_message_id
from mailboat.namesrv.controller import NamesrvController
from mailboat.protocol.codes import RequestCode as Code
from mailboat.protocol.codes import ResponseCode, request_code_name
from mailboat.protocol.command import RemotingCommand
from mailboat.security.access import Action
from mailboat.security.needs import broker_rows, namesrv_rows, needs_of

CLUSTER = "DefaultCluster"
# Physical offset to the topic of the record there, and the one that it is meant for.
STORED = {
    100: ("T", "T"),
    200: ("%RETRY%G", "%RETRY%G"),
    300: ("RMQ_SYS_TRANS_HALF_TOPIC", "T"),
}
BROKER = broker_rows(CLUSTER, STORED.get)
NAMESRV = namesrv_rows()


def message_id(physical_offset: int) -> str:
    """Return an offset message id."""
    return encode_offset_message_id(encode_host("127.0.0.1", 10911), physical_offset)


def heartbeat(*consumers: tuple[str, list[str]], producers: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the body of a heartbeat, as clients write it."""
    return {
        "clientID": "c@1",
        "producerDataSet": [{"groupName": name} for name in producers],
        "consumerDataSet": [
            {"groupName": group, "subscriptionDataSet": [{"topic": topic} for topic in topics]}
            for group, topics in consumers
        ],
    }


def locks(group: str, *topics: str) -> dict[str, Any]:
    """Return the body of a request for locks."""
    queues = [{"topic": topic, "brokerName": "b", "queueId": 0} for topic in topics]
    return {"consumerGroup": group, "clientId": "c@1", "mqSet": queues}


def needed(code: int, fields: dict[str, Any], body: Any = None, rows: Any = BROKER) -> set[str]:
    """Return what a request needs: "Topic:T Pub|Sub" and the like."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    command = RemotingCommand.request(code, fields, data)
    return {
        f"{need.kind.value}:{need.name} {'|'.join(sorted(a.value for a in need.actions))}"
        for need in needs_of(rows[code], command)
    }


@pytest.fixture
async def answered(tmp_path: Path) -> dict[str, frozenset[int]]:
    """Return the codes that real servers answer."""
    settings = Settings(
        role="broker",
        broker=BrokerConfig(listen_port=0),
        store=MessageStoreConfig(store_path_root_dir=str(tmp_path)),
    )
    broker = BrokerController(settings)
    namesrv = NamesrvController(Settings(role="namesrv", namesrv=NamesrvConfig(listen_port=0)))
    return {
        "broker": frozenset(broker.dispatcher.codes),
        "namesrv": frozenset(namesrv.dispatcher.codes),
    }


async def test_every_request_that_is_answered_has_a_row(
    answered: dict[str, frozenset[int]],
) -> None:
    """And no other has one: a row that nobody needs is a slip."""
    for name, rows in (("broker", BROKER), ("namesrv", NAMESRV)):
        assert len(answered[name]) > 20
        missing = {request_code_name(code) for code in answered[name] - rows.keys()}
        idle = {request_code_name(code) for code in rows.keys() - answered[name]}
        assert (missing, idle) == (set(), set()), name


@pytest.mark.parametrize("code", [Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE])
def test_sends_by_short_names(code: int) -> None:
    """A long name beside them means nothing, nor does the group's field."""
    assert needed(code, {"b": "T", "a": "P", "topic": "U"}) == {"Topic:T Pub"}
    assert needed(code, {"b": "%RETRY%X", "a": "G", "group": "G"}) == {"Group:X Sub"}
    assert needed(code, {"b": "%DLQ%G"}) == {"Topic:%DLQ%G Pub"}
    assert needed(code, {"b": "ns%T"}) == {"Topic:ns%T Pub"}


def test_sends_by_long_names() -> None:
    """Code 10 and its reply."""
    for code in (Code.SEND_MESSAGE, Code.SEND_REPLY_MESSAGE):
        assert needed(code, {"topic": "T", "b": "U"}) == {"Topic:T Pub"}
    assert needed(Code.SEND_REPLY_MESSAGE_V2, {"b": "U", "topic": "T"}) == {"Topic:U Pub"}


@pytest.mark.parametrize("code", [Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE])
def test_pulls(code: int) -> None:
    """Topic and group; a retry topic is its group's, and of no other."""
    assert needed(code, {"topic": "T", "consumerGroup": "G"}) == {"Topic:T Sub", "Group:G Sub"}
    own = {"topic": "%RETRY%G", "consumerGroup": "G"}
    assert needed(code, own) == {"Group:G Sub"}
    with pytest.raises(BrokerError, match="retry topic does not match"):
        needed(code, {"topic": "%RETRY%X", "consumerGroup": "G"})
    dead = {"topic": "%DLQ%G", "consumerGroup": "G"}
    assert needed(code, dead) == {"Topic:%DLQ%G Sub", "Group:G Sub"}


@pytest.mark.parametrize(
    "code",
    [
        Code.QUERY_MESSAGE, Code.SEARCH_OFFSET_BY_TIMESTAMP, Code.GET_MAX_OFFSET,
        Code.GET_MIN_OFFSET, Code.GET_EARLIEST_MSG_STORETIME,
    ],
)  # fmt: skip
def test_reads_of_a_topic(code: int) -> None:
    """A stock consumer has `Sub` alone and cannot start without them."""
    assert needed(code, {"topic": "T"}) == {"Topic:T Get|Sub"}
    assert needed(code, {"topic": "%RETRY%G"}) == {"Group:G Get|Sub"}


def test_offsets() -> None:
    """Both the topic and the group."""
    fields = {"topic": "T", "consumerGroup": "G", "queueId": 0}
    assert needed(Code.QUERY_CONSUMER_OFFSET, fields) == {"Topic:T Get|Sub", "Group:G Get|Sub"}
    assert needed(Code.UPDATE_CONSUMER_OFFSET, fields) == {
        "Topic:T Sub|Update",
        "Group:G Sub|Update",
    }


def test_requests_about_a_stored_message() -> None:
    """The record decides, and the field counts besides: it must not hide the record's topic."""
    assert needed(Code.VIEW_MESSAGE_BY_ID, {"offset": 100}) == {"Topic:T Get|Sub"}
    assert needed(Code.VIEW_MESSAGE_BY_ID, {"offset": 100, "topic": "U"}) == {
        "Topic:T Get|Sub",
        "Topic:U Get|Sub",
    }
    back = {"group": "G", "offset": 100, "delayLevel": 0}
    assert needed(Code.CONSUMER_SEND_MSG_BACK, back) == {"Group:G Sub", "Topic:T Sub"}
    assert needed(Code.CONSUMER_SEND_MSG_BACK, back | {"group": "X", "offset": 200}) == {
        "Group:X Sub",
        "Group:G Sub",
    }
    assert needed(Code.END_TRANSACTION, {"commitLogOffset": 300}) == {"Topic:T Pub"}
    assert needed(Code.END_TRANSACTION, {"commitLogOffset": 300, "topic": "U"}) == {
        "Topic:T Pub",
        "Topic:U Pub",
    }
    assert needed(Code.RESUME_CHECK_HALF_MESSAGE, {"msgId": message_id(300)}) == {"Topic:T Update"}
    directly = {"consumerGroup": "G", "clientId": "c@1", "msgId": message_id(100)}
    assert needed(Code.CONSUME_MESSAGE_DIRECTLY, directly) == {
        "Group:G Update",
        "Topic:T Get|Sub",
    }


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (Code.VIEW_MESSAGE_BY_ID, {"offset": 101, "topic": "T"}),
        (Code.VIEW_MESSAGE_BY_ID, {"topic": "T"}),
        (Code.CONSUMER_SEND_MSG_BACK, {"group": "G", "offset": 5}),
        (Code.END_TRANSACTION, {"commitLogOffset": -1, "topic": "T"}),
        (Code.RESUME_CHECK_HALF_MESSAGE, {"msgId": "nonsense", "topic": "T"}),
        (Code.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "G", "msgId": message_id(7)}),
        (Code.SEND_MESSAGE_V2, {"topic": "T"}),
        (Code.SEND_MESSAGE, {"b": "T"}),
        (Code.SEND_MESSAGE_V2, {"b": " "}),
        (Code.SEND_MESSAGE_V2, {"b": "%RETRY%"}),
        (Code.PULL_MESSAGE, {"topic": "T"}),
        (Code.PULL_MESSAGE, {"topic": "T", "consumerGroup": ""}),
        (Code.HEART_BEAT, {}),
        (Code.LOCK_BATCH_MQ, {}),
        (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}),
        (Code.UPDATE_AND_CREATE_TOPIC_LIST, {}),
        (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}),
        (Code.SET_MESSAGE_REQUEST_MODE, {}),
        (Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, {}),
    ],
)
def test_what_does_not_say_what_it_is_about_is_refused(code: int, fields: dict[str, Any]) -> None:
    """Nothing is judged by what might be meant."""
    with pytest.raises(BrokerError) as caught:
        needed(code, fields)
    assert caught.value.code == ResponseCode.NO_PERMISSION


def test_heartbeats() -> None:
    """Each group and each subscription, wherever it stands in the list."""
    body = heartbeat(("G", ["T", "%RETRY%G"]), ("X", ["U"]))
    assert needed(Code.HEART_BEAT, {}, body) == {
        "Group:G Sub", "Topic:T Sub", "Group:X Sub", "Topic:U Sub",
    }  # fmt: skip
    assert needed(Code.HEART_BEAT, {}, heartbeat(producers=("P",))) == set()
    check = {"clientId": "c@1", "group": "G", "subscriptionData": {"topic": "T"}}
    assert needed(Code.CHECK_CLIENT_CONFIG, {}, check) == {"Group:G Sub", "Topic:T Sub"}


@pytest.mark.parametrize("code", [Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ])
def test_locks(code: int) -> None:
    """The group and the topics of all queues, from the body."""
    assert needed(code, {}, locks("G", "T", "U")) == {"Group:G Sub", "Topic:T Sub", "Topic:U Sub"}


@pytest.mark.parametrize(
    ("code", "fields", "body", "expected"),
    [
        (Code.UPDATE_AND_CREATE_TOPIC, {"topic": "T"}, None, {"Topic:T Create"}),
        (Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, None, {"Topic:T Delete"}),
        (
            Code.UPDATE_AND_CREATE_TOPIC_LIST,
            {},
            {"topicConfigList": [{"topicName": "T"}, {"topicName": "U"}]},
            {"Topic:T Create", "Topic:U Create"},
        ),
        (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, {"groupName": "G"}, {"Group:G Create"}),
        (
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            {},
            {"groupConfigList": [{"groupName": "G"}, {"groupName": "X"}]},
            {"Group:G Create", "Group:X Create"},
        ),
        (Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G"}, None, {"Group:G Delete"}),
        (
            Code.INVOKE_BROKER_TO_RESET_OFFSET,
            {"topic": "T", "group": "G"},
            None,
            {"Topic:T Update", "Group:G Update"},
        ),
        (
            Code.CLONE_GROUP_OFFSET,
            {"srcGroup": "G", "destGroup": "X", "topic": "T"},
            None,
            {"Group:G Get", "Group:X Update", "Topic:T Update"},
        ),
        (
            Code.GET_CONSUME_STATS,
            {"consumerGroup": "G", "topic": "T", "topicList": "U;V"},
            None,
            {"Group:G Get", "Topic:T Get", "Topic:U Get", "Topic:V Get"},
        ),
        (
            Code.QUERY_CONSUME_QUEUE,
            {"topic": "T", "consumerGroup": "G"},
            None,
            {"Topic:T Get", "Group:G Get"},
        ),
        (Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, {}, b"G=1\nX=2\n", {
            "Group:G Update", "Group:X Update",
        }),
        (Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, {}, b"G", {"Group:G Update"}),
        (Code.UPDATE_BROKER_CONFIG, {}, b"", {f"Cluster:{CLUSTER} Update"}),
        (Code.GET_BROKER_CONFIG, {}, b"", {f"Cluster:{CLUSTER} Get"}),
        (Code.AUTH_CREATE_USER, {"username": "x"}, b"", {f"Cluster:{CLUSTER} Update"}),
        (Code.AUTH_LIST_USER, {}, b"", {f"Cluster:{CLUSTER} Get"}),
        (Code.GET_ALL_TOPIC_CONFIG, {}, b"", {"Topic:* List"}),
        (Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}, b"", {"Group:* List"}),
        (Code.UNREGISTER_CLIENT, {"clientID": "c@1"}, b"", set()),
    ],
)  # fmt: skip
def test_administration_of_brokers(
    code: int, fields: dict[str, Any], body: Any, expected: set[str]
) -> None:
    """What changes something needs more than `Sub`."""
    assert needed(code, fields, body) == expected


def test_name_servers() -> None:
    """A route is for whoever may do anything with the topic; all else is for few."""
    route = Code.GET_ROUTEINFO_BY_TOPIC
    assert needed(route, {"topic": "T"}, rows=NAMESRV) == {"Topic:T Get|Pub|Sub"}
    assert needed(route, {"topic": "%RETRY%G"}, rows=NAMESRV) == {"Group:G Get|Pub|Sub"}
    for code in (Code.REGISTER_BROKER, Code.PUT_KV_CONFIG, Code.UPDATE_NAMESRV_CONFIG):
        assert needed(code, {"clusterName": CLUSTER}, rows=NAMESRV) == {"Cluster:* Update"}
    assert needed(Code.GET_BROKER_CLUSTER_INFO, {}, rows=NAMESRV) == {"Cluster:* Get"}
    assert needed(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, rows=NAMESRV) == {"Topic:* List"}


def test_sub_and_pub_are_enough_for_nothing_but_messages() -> None:
    """No row that asks of the broker as a whole takes what producers and consumers have."""
    for rows in (BROKER, NAMESRV):
        for code, row in rows.items():
            try:
                needs = needs_of(row, RemotingCommand.request(code))
            except BrokerError:
                continue  # It is about what the request names.
            for need in needs:
                assert need.actions.isdisjoint({Action.PUB, Action.SUB}), request_code_name(code)
