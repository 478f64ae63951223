"""The access matrix: every request of RocketMQ's protocol, who may make it, and what is answered.

Tests send each row by everybody (`test_guard`, `test_guarded_namesrv`); docs/access-matrix.md is
made of it (`access_page`).
"""

import json
from dataclasses import dataclass
from typing import Final

from guarded import known_as, pull_fields, send_fields
from raw_client import BROKER_NAME

from mailboat.model.data_version import DataVersion
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import RequestCode as Code
from mailboat.protocol.codes import ResponseCode
from mailboat.protocol.command import ExtValue
from mailboat.protocol.register_broker import encode_register_broker
from mailboat.protocol.topic_table import TopicConfigTable
from mailboat.security.client_security import Credentials

SUCCESS: Final = ResponseCode.SUCCESS
REFUSED: Final = ResponseCode.NO_PERMISSION

Fields = dict[str, ExtValue]
NOBODIES: Final[dict[str, Credentials | None]] = {
    "anonymous": None,
    "wrong key": known_as("root", "another"),
    "unknown": known_as("stranger"),
    "disabled": known_as("disabled"),
}
"""Those who may do nothing at all."""

SOMEBODIES: Final = {name: known_as(name) for name in ("nothing", "producer", "consumer", "root")}
"""Those whose signature is valid, by the fields of `Row`."""

ALLOWED: Final = -1
"""Any answer but a refusal: what it is depends on what others have done."""

NOT_ASKED: Final = -2


@dataclass(frozen=True, slots=True)
class Row:
    """One request and who may make it; whoever is not named is refused."""

    code: int
    fields: Fields
    body: bytes = b""
    nothing: int = REFUSED
    producer: int = REFUSED
    consumer: int = REFUSED
    root: int = SUCCESS


_ANY_USER: Final = "yes to any user"
NOTES: Final[dict[int, str]] = {
    **dict.fromkeys(
        (
            Code.UPDATE_AND_CREATE_TOPIC_LIST,
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            Code.UPDATE_BROKER_CONFIG,
            Code.SET_MESSAGE_REQUEST_MODE,
            Code.UPDATE_AND_CREATE_STATIC_TOPIC,
            Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
            Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
            Code.LITE_PULL_MESSAGE,
            Code.GET_ALL_TOPIC_CONFIG,
            Code.GET_BROKER_CONFIG,
            Code.GET_BROKER_RUNTIME_INFO,
            Code.GET_ALL_CONSUMER_OFFSET,
            Code.GET_ALL_DELAY_OFFSET,
            Code.GET_TIMER_CHECK_POINT,
            Code.GET_TIMER_METRICS,
            Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
            Code.GET_ALL_MESSAGE_REQUEST_MODE,
            Code.GET_BROKER_HA_STATUS,
            Code.GET_BROKER_EPOCH_CACHE,
            Code.GET_COLD_DATA_FLOW_CTR_INFO,
        ),
        _ANY_USER,
    ),
    **dict.fromkeys((Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2), "stores for any user"),
    Code.END_TRANSACTION: "any user ends any transaction",
    Code.RESUME_CHECK_HALF_MESSAGE: "any user copies any message",
    **dict.fromkeys(
        (
            Code.VIEW_MESSAGE_BY_ID,
            Code.SEARCH_OFFSET_BY_TIMESTAMP,
            Code.GET_MAX_OFFSET,
            Code.GET_MIN_OFFSET,
            Code.GET_EARLIEST_MSG_STORETIME,
        ),
        "Get alone, so not to a consumer",
    ),
    Code.CONSUME_MESSAGE_DIRECTLY: "yes to a consumer of the group",
}
"""Where RocketMQ 5.5.0 lets others in, or fewer, by codes."""


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _beat(group: str = "", topic: str = "T", producer: str = "") -> bytes:
    consumers = [{"groupName": group, "subscriptionDataSet": [{"topic": topic}]}] if group else []
    producers = [{"groupName": producer}] if producer else []
    return _json({"clientID": "c@1", "producerDataSet": producers, "consumerDataSet": consumers})


def _locks(topic: str = "T", group: str = "G") -> bytes:
    queue = {"topic": topic, "brokerName": BROKER_NAME, "queueId": 0}
    return _json({"consumerGroup": group, "clientId": "c@1", "mqSet": [queue]})


def _topic(name: str) -> dict[str, ExtValue]:
    return {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1,
        "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
    }  # fmt: skip


QUEUE: Final[dict[str, ExtValue]] = {"topic": "T", "queueId": 0}
OF_GROUP: Final[dict[str, ExtValue]] = {**QUEUE, "consumerGroup": "G"}
RESET: Final[dict[str, ExtValue]] = {
    "topic": "T", "group": "G", "timestamp": 0, "isForce": True,
}  # fmt: skip
LONG_SEND: Final[dict[str, ExtValue]] = {
    "producerGroup": "PG", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
    "queueId": 0, "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "properties": "",
    "reconsumeTimes": 0,
}  # fmt: skip
# What these answer to whoever may ask depends on the test's broker; that they may ask is the point.
ILLEGAL, ERROR = ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SYSTEM_ERROR
NOT_FOUND = ResponseCode.QUERY_NOT_FOUND

BROKER: Final = [
    # Sends.
    Row(Code.SEND_MESSAGE_V2, send_fields("T"), b"x", producer=SUCCESS),
    Row(Code.SEND_MESSAGE, LONG_SEND, b"x", producer=SUCCESS),
    Row(Code.SEND_BATCH_MESSAGE, send_fields("T", m=True), b"", producer=ILLEGAL, root=ILLEGAL),
    Row(Code.SEND_MESSAGE_V2, send_fields("U"), b"x"),
    Row(Code.SEND_MESSAGE_V2, send_fields("%RETRY%G"), b"x", consumer=SUCCESS),
    Row(Code.SEND_MESSAGE_V2, send_fields("%RETRY%X", a="G", group="G"), b"x"),
    Row(Code.SEND_MESSAGE_V2, send_fields("RMQ_SYS_TRACE_TOPIC"), b"x"),
    Row(Code.SEND_MESSAGE_V2, send_fields("SCHEDULE_TOPIC_XXXX"), b"x", root=REFUSED),
    Row(Code.SEND_MESSAGE_V2, send_fields("RMQ_SYS_TRANS_HALF_TOPIC"), b"x", root=REFUSED),
    Row(Code.SEND_MESSAGE_V2, send_fields("%DLQ%G"), b"x", root=ALLOWED),
    Row(Code.SEND_REPLY_MESSAGE_V2, send_fields("T"), b"x", producer=ERROR, root=ERROR),
    Row(Code.SEND_REPLY_MESSAGE, LONG_SEND, b"x", producer=ERROR, root=ERROR),
    # Reads.
    Row(Code.PULL_MESSAGE, pull_fields("T", "G"), consumer=SUCCESS),
    Row(Code.LITE_PULL_MESSAGE, pull_fields("T", "G"), consumer=SUCCESS),
    Row(Code.PULL_MESSAGE, pull_fields("T", "X")),
    Row(Code.PULL_MESSAGE, pull_fields("U", "G")),
    Row(Code.PULL_MESSAGE, pull_fields("%RETRY%G", "G"), consumer=SUCCESS),
    Row(Code.PULL_MESSAGE, pull_fields("%RETRY%X", "G"), root=ALLOWED),
    Row(Code.PULL_MESSAGE, pull_fields("%DLQ%G", "G"), root=ALLOWED),
    Row(Code.GET_MAX_OFFSET, QUEUE, consumer=SUCCESS),
    Row(Code.GET_MIN_OFFSET, QUEUE, consumer=SUCCESS),
    Row(Code.GET_EARLIEST_MSG_STORETIME, QUEUE, consumer=SUCCESS),
    Row(Code.SEARCH_OFFSET_BY_TIMESTAMP, {**QUEUE, "timestamp": 0}, consumer=SUCCESS),
    Row(
        Code.QUERY_MESSAGE,
        {"topic": "T", "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1},
        consumer=NOT_FOUND,
        root=NOT_FOUND,
    ),
    # The offsets of the messages that `stored` holds; U is nobody's but root's.
    Row(Code.VIEW_MESSAGE_BY_ID, {"offset": "at T"}, consumer=SUCCESS),
    Row(Code.VIEW_MESSAGE_BY_ID, {"offset": "at U"}),
    Row(Code.VIEW_MESSAGE_BY_ID, {"offset": "at U", "topic": "T"}),
    Row(Code.VIEW_MESSAGE_BY_ID, {"offset": "at T", "topic": "U"}),
    # Members.
    Row(Code.HEART_BEAT, {}, _beat(producer="P"), SUCCESS, SUCCESS, SUCCESS),
    Row(Code.HEART_BEAT, {}, _beat("G"), consumer=SUCCESS),
    Row(Code.HEART_BEAT, {}, _beat("G", "U")),
    Row(Code.HEART_BEAT, {}, _beat("X")),
    Row(Code.HEART_BEAT, {}, b"nonsense", root=ERROR),
    Row(Code.UNREGISTER_CLIENT, {"clientID": "z@1"}, b"", SUCCESS, SUCCESS, SUCCESS),
    Row(Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"}, consumer=SUCCESS),
    Row(Code.QUERY_CONSUMER_OFFSET, OF_GROUP, consumer=SUCCESS),
    Row(Code.UPDATE_CONSUMER_OFFSET, {**OF_GROUP, "commitOffset": 1}, consumer=SUCCESS),
    Row(Code.UPDATE_CONSUMER_OFFSET, {**OF_GROUP, "topic": "U", "commitOffset": 1}),
    Row(
        Code.UPDATE_CONSUMER_OFFSET,
        {**OF_GROUP, "consumerGroup": "X", "commitOffset": 1},
    ),
    Row(Code.LOCK_BATCH_MQ, {}, _locks(), consumer=SUCCESS),
    Row(Code.LOCK_BATCH_MQ, {}, _locks("U")),
    Row(Code.LOCK_BATCH_MQ, {}, _locks("T", "X")),
    Row(Code.UNLOCK_BATCH_MQ, {}, _locks(), consumer=SUCCESS),
    Row(Code.CHECK_CLIENT_CONFIG, {}, b"", SUCCESS, SUCCESS, SUCCESS),
    Row(
        Code.CONSUMER_SEND_MSG_BACK,
        {"group": "G", "offset": "at T", "delayLevel": 3},
        consumer=SUCCESS,
    ),
    Row(Code.CONSUMER_SEND_MSG_BACK, {"group": "G", "offset": "at U", "delayLevel": 3}),
    Row(Code.CONSUMER_SEND_MSG_BACK, {"group": "X", "offset": "at T", "delayLevel": 3}),
    Row(
        Code.CONSUMER_SEND_MSG_BACK,
        {"group": "G", "offset": "at U", "originTopic": "T", "delayLevel": 3},
    ),
    # Administration.
    Row(Code.UPDATE_AND_CREATE_TOPIC, _topic("T2")),
    Row(Code.UPDATE_AND_CREATE_TOPIC_LIST, {}, _json({"topicConfigList": [{"topicName": "T3"}]})),
    Row(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, _json({"groupName": "G2"})),
    Row(
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        {},
        _json({"groupConfigList": [{"groupName": "G3"}]}),
    ),
    Row(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G2"}),
    Row(Code.DELETE_TOPIC_IN_BROKER, {"topic": "T2"}),
    Row(Code.UPDATE_BROKER_CONFIG, {}, b"maxMessageSize=4096"),
    Row(Code.INVOKE_BROKER_TO_RESET_OFFSET, RESET),
    Row(Code.CLONE_GROUP_OFFSET, {"srcGroup": "G", "destGroup": "G3", "topic": "T"}),
    Row(Code.CLEAN_EXPIRED_CONSUMEQUEUE, {}),
    Row(Code.CLEAN_UNUSED_TOPIC, {}),
    Row(Code.DELETE_EXPIRED_COMMITLOG, {}),
    Row(Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, {}, b"G=1"),
    Row(Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, {}, b"G"),
    Row(Code.SET_COMMITLOG_READ_MODE, {}, root=ERROR),
    Row(Code.RESET_MASTER_FLUSH_OFFSET, {"masterFlushOffset": 1}, root=ALLOWED),
    Row(Code.UPDATE_AND_GET_GROUP_FORBIDDEN, {"topic": "T", "group": "G"}),
    Row(Code.GET_ALL_TOPIC_CONFIG, {}),
    Row(Code.GET_BROKER_CONFIG, {}),
    Row(Code.GET_BROKER_RUNTIME_INFO, {}),
    Row(Code.GET_ALL_CONSUMER_OFFSET, {}),
    Row(Code.GET_ALL_DELAY_OFFSET, {}),
    Row(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}),
    Row(Code.GET_TOPIC_STATS_INFO, {"topic": "T"}),
    Row(Code.GET_TOPIC_CONFIG, {"topic": "T"}),
    Row(Code.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "G"}),
    Row(Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "G"}),
    Row(Code.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "P"}),
    Row(Code.GET_CONSUME_STATS, {"consumerGroup": "G"}),
    Row(Code.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"}),
    Row(Code.QUERY_CONSUME_QUEUE, {**QUEUE, "index": 0, "count": 1}),
    Row(
        Code.GET_CONSUMER_RUNNING_INFO,
        {"consumerGroup": "G", "clientId": "nobody"},
        root=ERROR,
    ),
    Row(
        Code.CONSUME_MESSAGE_DIRECTLY,
        {"consumerGroup": "G", "clientId": "nobody", "msgId": "id T"},
        root=ERROR,
    ),
    Row(Code.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}),
    Row(Code.GET_BROKER_CONSUME_STATS, {"isOrder": False}),
    Row(Code.GET_ALL_PRODUCER_INFO, {}),
    Row(Code.GET_BROKER_HA_STATUS, {}, root=ALLOWED),
    Row(Code.GET_COLD_DATA_FLOW_CTR_INFO, {}),
    Row(Code.AUTH_CREATE_USER, {"username": "mallory"}, root=ALLOWED),
    Row(Code.AUTH_GET_USER, {"username": "root"}, root=ALLOWED),
    Row(Code.AUTH_LIST_USER, {}, root=ALLOWED),
    Row(Code.AUTH_CREATE_ACL, {"subject": "User:nothing"}, root=ALLOWED),
    Row(Code.AUTH_DELETE_USER, {"username": "root"}, root=NOT_ASKED),
    Row(Code.UPDATE_AND_CREATE_ACL_CONFIG, {"accessKey": "mallory"}, root=209),
    Row(Code.GET_BROKER_CLUSTER_ACL_CONFIG, {}, root=ERROR),
    # What there are no messages, groups or clients of is answered so by whoever may ask.
    Row(
        Code.END_TRANSACTION,
        {
            "producerGroup": "PG",
            "commitLogOffset": "at T",
            "commitOrRollback": 8,
            "tranStateTableOffset": 0,
            "fromTransactionCheck": False,
            "msgId": "m",
        },
        producer=ALLOWED,
        root=ALLOWED,
    ),
    Row(
        Code.END_TRANSACTION,
        {
            "producerGroup": "PG",
            "commitLogOffset": "at U",
            "commitOrRollback": 8,
            "tranStateTableOffset": 0,
            "fromTransactionCheck": False,
            "msgId": "m",
            "topic": "T",
        },
        root=ALLOWED,
    ),
    Row(Code.RESUME_CHECK_HALF_MESSAGE, {"msgId": "id T", "topic": "T"}, root=ALLOWED),
    Row(Code.UPDATE_AND_CREATE_STATIC_TOPIC, _topic("T2"), root=ALLOWED),
    Row(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, {}),
    Row(Code.GET_TIMER_METRICS, {}, root=ALLOWED),
    Row(Code.QUERY_TOPICS_BY_CONSUMER, {"group": "G"}),
    Row(Code.QUERY_SUBSCRIPTION_BY_CONSUMER, {"topic": "T", "group": "G"}),
    Row(Code.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "G"}),
    Row(
        Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        {"topic": "T", "group": "G", "clientAddr": ""},
        root=ALLOWED,
    ),
    Row(
        Code.QUERY_CORRECTION_OFFSET,
        {"topic": "T", "compareGroup": "G", "filterGroups": ""},
        root=ALLOWED,
    ),
    Row(
        Code.QUERY_ASSIGNMENT,
        {},
        _json({"topic": "T", "consumerGroup": "G", "clientId": "c@1"}),
        ALLOWED,
        ALLOWED,
        ALLOWED,
        ALLOWED,
    ),
    Row(
        Code.SET_MESSAGE_REQUEST_MODE,
        {},
        _json({"topic": "T", "consumerGroup": "G", "mode": "PULL"}),
        root=ALLOWED,
    ),
    Row(Code.GET_ALL_MESSAGE_REQUEST_MODE, {}, root=ALLOWED),
    Row(Code.GET_TIMER_CHECK_POINT, {}, root=ALLOWED),
    Row(Code.GET_BROKER_EPOCH_CACHE, {}, root=ALLOWED),
    Row(Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, {"topic": "T"}, root=ALLOWED),
    Row(Code.POP_ROLLBACK, {}, root=ALLOWED),
    Row(Code.EXPORT_ROCKSDB_CONFIG_TO_JSON, {"configType": "topics"}, root=ALLOWED),
    Row(Code.ADD_BROKER, {"configPath": "/tmp/b.conf"}, root=ALLOWED),
    Row(Code.REMOVE_BROKER, {"brokerName": "b", "brokerId": 1}, root=ALLOWED),
    Row(Code.AUTH_UPDATE_USER, {"username": "root"}, root=ALLOWED),
    Row(Code.AUTH_GET_ACL, {"subject": "User:root"}, root=ALLOWED),
    Row(Code.AUTH_LIST_ACL, {}, root=ALLOWED),
    Row(Code.AUTH_UPDATE_ACL, {"subject": "User:nothing"}, root=ALLOWED),
    Row(Code.AUTH_DELETE_ACL, {"subject": "User:root"}, root=NOT_ASKED),
    Row(Code.DELETE_ACL_CONFIG, {"accessKey": "root"}, root=ALLOWED),
    Row(Code.GET_BROKER_CLUSTER_ACL_INFO, {}, root=ALLOWED),
    Row(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, {"globalWhiteAddrs": "*"}, root=ALLOWED),
    # Nobody answers these: everybody who is somebody learns that.
    Row(200050, {}, b"", 3, 3, 3, 3),
    Row(12345, {}, b"", 3, 3, 3, 3),
]
"""By the codes of RocketMQ; what root may do can have other answers than success."""


def filled(row: Row, stored: dict[str, str]) -> Fields:
    """Return the fields of a row with the places of messages that are stored, ids by topic."""
    places: Fields = {}
    for topic, message_id in stored.items():
        places[f"at {topic}"] = int(message_id[16:], 16)
        places[f"id {topic}"] = message_id
    return {name: places.get(str(value), value) for name, value in row.fields.items()}


_OF_BROKER: Final[Fields] = {
    "clusterName": "C", "brokerName": "evil", "brokerAddr": "6.6.6.6:10911", "brokerId": 0,
    "haServerAddr": "6.6.6.6:10912",
}  # fmt: skip
_KV: Final[Fields] = {"namespace": "N", "key": "k", "value": "v"}
_TOPICS: Final = encode_register_broker(
    TopicConfigTable(DataVersion(0, 1, 1), {name: TopicConfig(name) for name in ("T", "V")})
)
_NO_TOPIC: Final = ResponseCode.TOPIC_NOT_EXIST

NAME_SERVER: Final = [
    Row(
        Code.GET_ROUTEINFO_BY_TOPIC,
        {"topic": "T"},
        producer=_NO_TOPIC,
        consumer=_NO_TOPIC,
        root=_NO_TOPIC,
    ),
    Row(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "U"}, root=_NO_TOPIC),
    Row(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "%RETRY%G"}, consumer=_NO_TOPIC, root=_NO_TOPIC),
    Row(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"}, root=_NO_TOPIC),
    Row(Code.GET_BROKER_CLUSTER_INFO, {}),
    Row(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}),
    Row(Code.GET_TOPICS_BY_CLUSTER, {"cluster": "C"}),
    Row(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, {}),
    Row(Code.GET_UNIT_TOPIC_LIST, {}),
    Row(Code.GET_HAS_UNIT_SUB_TOPIC_LIST, {}),
    Row(Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, {}),
    Row(Code.GET_KV_CONFIG, {"namespace": "N", "key": "k"}, root=NOT_FOUND),
    Row(Code.PUT_KV_CONFIG, _KV),
    Row(Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"}),
    Row(Code.DELETE_KV_CONFIG, {"namespace": "N", "key": "k"}),
    Row(Code.REGISTER_BROKER, _OF_BROKER, _TOPICS),
    Row(Code.BROKER_HEARTBEAT, _OF_BROKER),
    Row(Code.QUERY_DATA_VERSION, _OF_BROKER, _json({"counter": 1, "timestamp": 0})),
    Row(Code.GET_BROKER_MEMBER_GROUP, {"clusterName": "C", "brokerName": "evil"}),
    Row(
        Code.REGISTER_TOPIC_IN_NAMESRV,
        {"topic": "W"},
        _json({"queueDatas": [{"brokerName": "evil"}], "brokerDatas": []}),
    ),
    Row(Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "evil"}),
    Row(Code.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "evil"}),
    Row(Code.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"}),
    Row(Code.UPDATE_NAMESRV_CONFIG, {}, b"orderMessageEnable=true"),
    Row(Code.GET_NAMESRV_CONFIG, {}),
    Row(Code.UNREGISTER_BROKER, _OF_BROKER),
    Row(999, {}, b"", 3, 3, 3, 3),
]
"""The same of a name server, where brokers are Super users as root is."""
