"""Frames and bodies written by the real RocketMQ 4.9.8 and 5.5.0 (see wire/README.md)."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mailboat.model.data_version import DataVersion
from mailboat.model.message_queue import MessageQueue
from mailboat.model.subscription import SubscriptionData, SubscriptionGroupConfig
from mailboat.model.topic import TopicConfig
from mailboat.protocol import bodies
from mailboat.protocol.client_connections import (
    ClientConnection,
    ConsumerConnection,
    consumer_connection_slices,
    decode_consumer_connection,
    decode_producer_connection,
    producer_connection_slices,
)
from mailboat.protocol.command import RemotingCommand, decode_command
from mailboat.protocol.frame import Frame, FrameDecoder
from mailboat.protocol.group_table import (
    SubscriptionGroupTable,
    decode_group_table,
    encode_group_table,
)
from mailboat.protocol.heartbeat import (
    CheckClientConfig,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    decode_check_client_config,
    decode_heartbeat,
    encode_check_client_config,
    encode_heartbeat,
)
from mailboat.protocol.lenient_json import loads
from mailboat.protocol.queue_map import decode_offset_table, encode_offset_table
from mailboat.protocol.register_broker import decode_register_broker, encode_register_broker
from mailboat.protocol.route import (
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRouteData,
    decode_cluster_info,
    decode_topic_route,
    encode_cluster_info,
    encode_topic_route,
)
from mailboat.protocol.running_info import (
    ConsumerRunningInfo,
    ConsumeStatus,
    ProcessQueueInfo,
    decode_running_info,
    encode_running_info,
)
from mailboat.protocol.send_header import decode_pull_header, decode_send_header
from mailboat.protocol.stats_bodies import (
    ConsumerOffsetTable,
    ConsumeStats,
    OffsetWrapper,
    TopicOffset,
    decode_consume_stats,
    decode_consumer_offsets,
    decode_topic_stats,
    encode_consume_stats,
    encode_consumer_offsets,
    encode_topic_stats,
)
from mailboat.protocol.topic_table import (
    TopicConfigTable,
    decode_topic_table,
    encode_topic_table,
)

WIRE = Path(__file__).parent / "wire"
LINES = ("4.9.8", "5.5.0")
FRAMES = ("send-10", "send-310", "pull-11", "oneway-34", "error-17")

# What WireGolden.java.in put in.
VERSION = DataVersion(3, 1700000000000)
TOPICS = {
    "T1": TopicConfig("T1", 4, 3, 6),
    "%RETRY%CG": TopicConfig("%RETRY%CG", 1, 1, 6, topic_sys_flag=2, order=True),
}
SUBSCRIPTION = SubscriptionData(
    "T1", "TagA || TagB", {"TagA", "TagB"}, {2598919, 2598920}, 1700000000001
)
CLIENT = ClientConnection("10.0.0.1@1#2", "10.0.0.1:5000", "GO", 317)
QUEUE_0 = MessageQueue("T1", "broker-a", 0)
QUEUE_1 = MessageQueue("T1", "broker-a", 1)
QUEUE_3 = MessageQueue("T1", "broker-a", 3)
BROKER = BrokerData("C1", "broker-a", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"})
ROUTE = TopicRouteData([QueueData("broker-a", 4, 3, 6)], [BROKER], order_topic_conf="broker-a:4")
CLUSTER = ClusterInfo({"broker-a": BROKER}, {"C1": ["broker-a"]})
GROUPS = SubscriptionGroupTable(
    VERSION,
    {"CG": SubscriptionGroupConfig("CG", retry_max_times=5, consume_broadcast_enable=False)},
)
HEARTBEAT = HeartbeatData(
    "10.0.0.1@1#2",
    [ProducerData("PG")],
    [
        ConsumerData(
            "CG", "CONSUME_PASSIVELY", "BROADCASTING", "CONSUME_FROM_FIRST_OFFSET", [SUBSCRIPTION]
        )
    ],
)
CONSUMERS = ConsumerConnection(
    [CLIENT], {"T1": SUBSCRIPTION}, "CONSUME_ACTIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET"
)
CHECK = CheckClientConfig("10.0.0.1@1#2", "CG", SUBSCRIPTION)
TOPIC_STATS = {QUEUE_0: TopicOffset(1, 5000000000, 1700000000000), QUEUE_1: TopicOffset()}
CONSUME_STATS = ConsumeStats({QUEUE_0: OffsetWrapper(10, 7, 1700000000000)}, 1.5)
OFFSETS = {QUEUE_0: 12, QUEUE_1: 5000000000}
CONSUMER_OFFSETS = {"T1@CG": {0: 12, 1: 5000000000}}
RUNNING = ConsumerRunningInfo(
    {"PROP_CONSUMEORDERLY": "false"},
    [SUBSCRIPTION],
    {QUEUE_3: ProcessQueueInfo(commit_offset=7, cached_msg_count=2, dropped=True)},
    {"T1": ConsumeStatus(pull_rt=1.5, consume_failed_msgs=9)},
    "stack",
)


def joined(slices: Callable[[Any], Iterator[bytes]]) -> Callable[[Any], bytes]:
    """Return what writes a body at once that is written a slice at a time."""
    return lambda value: b"".join(slices(value))


BODIES: dict[str, tuple[Any, Any, Any]] = {
    # name: (value, decode, encode)
    "topic-route": (ROUTE, decode_topic_route, encode_topic_route),
    "cluster-info": (CLUSTER, decode_cluster_info, encode_cluster_info),
    "topic-table": (TopicConfigTable(VERSION, TOPICS), decode_topic_table, encode_topic_table),
    "register-broker.plain": (
        TopicConfigTable(VERSION, TOPICS),
        decode_register_broker,
        encode_register_broker,
    ),
    "data-version": (VERSION, bodies.decode_data_version, bodies.encode_data_version),
    "group-table": (GROUPS, decode_group_table, encode_group_table),
    "consumer-offsets": (
        ConsumerOffsetTable(CONSUMER_OFFSETS),
        decode_consumer_offsets,
        encode_consumer_offsets,
    ),
    "kv-table": ({"putTps": "1.0 2.0 3.0"}, bodies.decode_kv_table, bodies.encode_kv_table),
    "group-list": (
        ["CG"],
        bodies.decode_group_list,
        joined(bodies.group_list_slices),
    ),
    "consumer-ids": (
        ["10.0.0.1@1", "10.0.0.1@2"],
        bodies.decode_consumer_id_list,
        joined(bodies.consumer_id_list_slices),
    ),
    "heartbeat": (HEARTBEAT, decode_heartbeat, encode_heartbeat),
    "consumer-connection": (
        CONSUMERS,
        decode_consumer_connection,
        joined(consumer_connection_slices),
    ),
    "producer-connection": (
        [CLIENT],
        decode_producer_connection,
        joined(producer_connection_slices),
    ),
    "check-client": (CHECK, decode_check_client_config, encode_check_client_config),
    "running-info": (RUNNING, decode_running_info, encode_running_info),
    "topic-stats": (TOPIC_STATS, decode_topic_stats, encode_topic_stats),
    "consume-stats": (CONSUME_STATS, decode_consume_stats, encode_consume_stats),
    "reset-offset": (OFFSETS, decode_offset_table, encode_offset_table),
}
# Fields that only newer releases write, and that we write too.
NEWER_FIELDS = {
    "attributes",
    "consumeMessageOrderly",
    "consumeTimeoutMinute",
    "dataVersion",
    "enableActingMaster",
    "groupSysFlag",
    "mqPopTable",
    "pullOffset",
    "stateVersion",
    "topicPutTps",
    "userConsumerInfo",
}


def golden(line: str, name: str) -> bytes:
    """Return one golden file."""
    return (WIRE / line / name).read_bytes()


def frame_of(data: bytes) -> Frame:
    """Return the one frame of some bytes."""
    (frame,) = FrameDecoder().feed(data)
    return frame


def test_golden_files_are_the_ones_that_were_made() -> None:
    """No golden file was changed or added by hand."""
    listed = dict(line.split()[::-1] for line in (WIRE / "SHA256SUMS").read_text().splitlines())
    found = {
        f"{line}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()
        for line in LINES
        for path in (WIRE / line).iterdir()
    }
    assert listed == found


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("form", ["json", "binary"])
@pytest.mark.parametrize("name", FRAMES)
def test_java_frame_is_read_and_written_again_byte_by_byte(line: str, form: str, name: str) -> None:
    """Every field of a Java frame survives reading, in both header forms."""
    data = golden(line, f"{name}.{form}")
    assert data == decode_command(frame_of(data)).encode()


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("form", ["json", "binary"])
def test_java_error_response_is_understood(line: str, form: str) -> None:
    """Code, remark, opaque, language and version of a Java response arrive."""
    command = decode_command(frame_of(golden(line, f"error-17.{form}")))
    assert (17, "topic[T一] not exist", 5) == (command.code, command.remark, command.opaque)
    assert (True, False) == (command.is_response, command.is_oneway)
    assert ("JAVA", 409, {}) == (command.language, command.version, command.ext_fields)


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("form", ["json", "binary"])
@pytest.mark.parametrize(("code", "opaque"), [(10, 1), (310, -2)])
def test_java_send_header_is_understood(line: str, form: str, code: int, opaque: int) -> None:
    """A Java send means the same in long and short names, JSON and binary."""
    frame = frame_of(golden(line, f"send-{code}.{form}"))
    request = decode_send_header(frame)
    fields = request.fields
    assert b"hello" == frame[2]
    assert (code, opaque, 0, 409, int(form == "binary")) == (
        request.code,
        request.opaque,
        request.flag,
        request.version,
        request.serialize_type,
    )
    assert ("PG", "T1", "TBW102", 4) == (
        fields.producer_group,
        fields.topic,
        fields.default_topic,
        fields.default_topic_queue_nums,
    )
    assert (3, 0, 1700000000000, 7) == (
        fields.queue_id,
        fields.sys_flag,
        fields.born_timestamp_ms,
        fields.message_flag,
    )
    assert ("KEYS\x01k1 k2\x02TAGS\x01订单", 0, False, None, False) == (
        fields.properties,
        fields.reconsume_times,
        fields.unit_mode,
        fields.max_reconsume_times,
        fields.batch,
    )


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("form", ["json", "binary"])
def test_java_pull_header_is_understood(line: str, form: str) -> None:
    """A Java pull means the same in JSON and binary."""
    request = decode_pull_header(frame_of(golden(line, f"pull-11.{form}")))
    fields = request.fields
    assert (11, 3, int(form == "binary")) == (request.code, request.opaque, request.serialize_type)
    assert ("CG", "T1", 3, 5000000000, 32, 3) == (
        fields.consumer_group,
        fields.topic,
        fields.queue_id,
        fields.queue_offset,
        fields.max_msg_nums,
        fields.sys_flag,
    )
    assert (4999999999, 15000, "TagA || TagB", 1700000000001, "TAG") == (
        fields.commit_offset,
        fields.suspend_timeout_millis,
        fields.subscription,
        fields.sub_version,
        fields.expression_type,
    )


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("name", BODIES)
def test_java_body_is_understood(line: str, name: str) -> None:
    """A body of the real RocketMQ decodes to the values that were put in."""
    value, decode, _ = BODIES[name]
    assert value == decode(golden(line, name))


@pytest.mark.parametrize("line", LINES)
def test_java_compressed_registration_is_understood(line: str) -> None:
    """The compressed form carries everything but the order and system flags, as in Java."""
    expected = {
        "T1": TopicConfig("T1", 4, 3, 6),
        "%RETRY%CG": TopicConfig("%RETRY%CG", 1, 1, 6),
    }
    body = golden(line, "register-broker.compressed")
    assert TopicConfigTable(VERSION, expected) == decode_register_broker(body, compressed=True)


@pytest.mark.parametrize("line", LINES)
def test_java_topic_list_is_understood(line: str) -> None:
    """A TopicList carries the topics and the broker address."""
    expected = (["T1", "T2"], "10.0.0.1:10911")
    assert expected == bodies.decode_topic_list(golden(line, "topic-list"))


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("name", BODIES)
def test_our_body_says_what_javas_says(line: str, name: str) -> None:
    """Every field we write is in Java's body with the same name and value."""
    value, _, encode = BODIES[name]
    assert_within(loads(encode(value)), loads(golden(line, name)))


def assert_within(ours: Any, javas: Any) -> None:
    """Check that `ours` is `javas` without some of its fields."""
    if isinstance(ours, dict) and isinstance(javas, dict):
        for key, value in ours.items():
            if key in javas:
                assert_within(value, javas[key])
            else:
                assert key in NEWER_FIELDS
    elif isinstance(ours, list):
        assert len(ours) == len(javas)
        if ours and isinstance(ours[0], dict):
            for item, javas_item in zip(ours, javas, strict=True):
                assert_within(item, javas_item)
        else:
            assert sorted(ours) == sorted(javas)
    else:
        assert ours == javas


def test_appendix_request_is_written_byte_by_byte() -> None:
    """The documented bytes of a GET_MAX_OFFSET request of 4.9.8, JSON and binary."""
    command = RemotingCommand(
        30,
        opaque=7,
        version=0,
        language="JAVA",
        ext_fields={"queueId": "3", "topic": "T1"},
        body=b"xy",
    )
    json_frame = (
        bytes.fromhex("0000008d00000087")
        + b'{"code":30,"extFields":{"queueId":"3","topic":"T1"},"flag":0,"language":"JAVA",'
        + b'"opaque":7,"serializeTypeCurrentRPC":"JSON","version":0}xy'
    )
    assert json_frame == command.encode()
    command.serialize_type = 1
    binary_frame = bytes.fromhex(
        "00000036 01000030 001e 00 0000 00000007 00000000 00000000 0000001b"
        "0007 71756575654964 00000001 33 0005 746f706963 00000002 5431 7879"
    )
    assert binary_frame == command.encode()
    assert "T1" == decode_command(frame_of(binary_frame)).ext_fields["topic"]
