"""Tests of mailboat.protocol.admin_bodies; what is expected is what Java's fastjson writes."""

import json

import pytest

from mailboat.errors import RemoteProtocolError
from mailboat.model.message_queue import MessageQueue
from mailboat.model.subscription import SubscriptionData, SubscriptionGroupConfig
from mailboat.model.topic import TopicConfig
from mailboat.protocol.admin_bodies import (
    BrokerStatsData,
    ConsumeQueueContent,
    ConsumeQueueData,
    GroupForbidden,
    ProducerInfo,
    StatsItem,
    consume_stats_list_slices,
    decode_group_configs,
    decode_topic_configs,
    encode_broker_stats,
    encode_consume_queue,
    encode_group_configs,
    encode_group_forbidden,
    encode_topic_configs,
    producer_table_slices,
)
from mailboat.protocol.stats_bodies import ConsumeStats, OffsetWrapper


def test_lists_of_topics_and_groups_come_back_as_written() -> None:
    """The bodies of 18 and 225."""
    topics = [TopicConfig("T", 2, 3, attributes={"+message.type": "FIFO"}), TopicConfig("U")]
    assert decode_topic_configs(encode_topic_configs(topics)) == topics
    groups = [SubscriptionGroupConfig("G", retry_max_times=3), SubscriptionGroupConfig("H")]
    assert decode_group_configs(encode_group_configs(groups)) == groups


def test_a_list_of_mqadmin_is_read() -> None:
    """Fields that are not given have their defaults, and unknown ones are passed over."""
    body = b'{"topicConfigList":[{"topicName":"T","perm":4,"attributes":null,"new":{}}]}'
    assert decode_topic_configs(body) == [TopicConfig("T", perm=4)]


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"topicConfigList":[{}]}', b"\xff"])
def test_what_is_no_list_is_refused(body: bytes) -> None:
    """A topic without a name is none either."""
    with pytest.raises(RemoteProtocolError):
        decode_topic_configs(body)
    with pytest.raises(RemoteProtocolError):
        decode_group_configs(body)


def test_counters_are_written_for_mqadmin() -> None:
    """The body of 315."""
    item = StatsItem(4, 0.5, 2.0)
    assert encode_broker_stats(BrokerStatsData(item, item, StatsItem())) == (
        b'{"statsMinute":{"sum":4,"tps":0.5,"avgpt":2.0},'
        b'"statsHour":{"sum":4,"tps":0.5,"avgpt":2.0},'
        b'"statsDay":{"sum":0,"tps":0.0,"avgpt":0.0}}'
    )


def test_the_progress_of_groups_is_written_for_mqadmin() -> None:
    """The body of 317: a list of one map per group, keys that are objects, and two sums."""
    stats = ConsumeStats({MessageQueue("T", "b", 0): OffsetWrapper(9, 4, 5, 6)}, 1.5)
    assert b"".join(consume_stats_list_slices("1.2.3.4:5", {"G": [stats], "H": []})) == (
        b'{"brokerAddr":"1.2.3.4:5","consumeStatsList":[{"G":[{"consumeTps":1.5,"offsetTable":{'
        b'{"brokerName":"b","queueId":0,"topic":"T"}:'
        b'{"brokerOffset":9,"consumerOffset":4,"lastTimestamp":5,"pullOffset":6}}}]},{"H":[]}],'
        b'"totalDiff":5,"totalInflightDiff":2}'
    )


def test_producers_are_written_for_mqadmin() -> None:
    """The body of 328; Java spells it remoteIP."""
    info = ProducerInfo("c", "/1.2.3.4:5", "JAVA", 479, 7)
    assert json.loads(b"".join(producer_table_slices({"PG": [info]}))) == {
        "data": {
            "PG": [
                {
                    "clientId": "c",
                    "remoteIP": "/1.2.3.4:5",
                    "language": "JAVA",
                    "version": 479,
                    "lastUpdateTimestamp": 7,
                }
            ]
        }
    }


def test_units_of_a_queue_are_written_for_mqadmin() -> None:
    """The body of 321; "physic" is RocketMQ's word, and fields without a value are left out."""
    content = ConsumeQueueContent(3, 1, [ConsumeQueueData(10, 20, -5)])
    assert encode_consume_queue(content) == (
        b'{"maxQueueIndex":3,"minQueueIndex":1,'
        b'"queueData":[{"physicOffset":10,"physicSize":20,"tagsCode":-5}]}'
    )
    written = json.loads(encode_consume_queue(content, SubscriptionData("T", "a")))
    assert written["subscriptionData"]["subString"] == "a"


def test_a_small_body_is_written_for_mqadmin() -> None:
    """That of 353."""
    forbidden = encode_group_forbidden(GroupForbidden("G", "T", readable=True))
    assert forbidden == b'{"group":"G","topic":"T","readable":true}'
