"""Bodies that only administrators send or read: 18, 225, 315, 317, 321, 328, 353.

Source: apache/rocketmq remoting/protocol/body/{CreateTopicListRequestBody,SubscriptionGroupList,
BrokerStatsData,ConsumeStatsList,QueryConsumeQueueResponseBody,ProducerTableInfo,GroupForbidden}
.java
"""

from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

import msgspec

from mailboat.errors import RemoteProtocolError
from mailboat.model.subscription import SubscriptionData, SubscriptionGroupConfig
from mailboat.model.topic import TopicConfig
from mailboat.protocol.bodies import decode_request, encode_body, item_slices
from mailboat.protocol.group_table import GroupConfigBody
from mailboat.protocol.heartbeat import SubscriptionDataBody
from mailboat.protocol.stats_bodies import ConsumeStats, consume_stats_slices
from mailboat.protocol.topic_table import TopicConfigBody

MAX_CHANGES: Final = 2_000
"""Most topics or groups that one request makes or changes."""

_T = TypeVar("_T")


class StatsItem(msgspec.Struct, gc=False):
    """What one counter counted over a span; `avgpt` is its average per request."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(msgspec.Struct, rename="camel"):
    """One counter over the last minute, hour and day (315)."""

    stats_minute: StatsItem
    stats_hour: StatsItem
    stats_day: StatsItem


class ProducerInfo(msgspec.Struct, gc=False):
    """One client of a producer group; `remote_ip` is "/ip:port", as Java prints an address."""

    client_id: str = msgspec.field(name="clientId")
    remote_ip: str = msgspec.field(name="remoteIP")
    language: str = "OTHER"
    version: int = 0
    last_update_timestamp: int = msgspec.field(default=0, name="lastUpdateTimestamp")


class ConsumeQueueData(msgspec.Struct, rename="camel", gc=False, omit_defaults=True):
    """One unit of a ConsumeQueue; "physic" is RocketMQ's word."""

    physic_offset: int
    physic_size: int
    tags_code: int
    eval: bool = False
    msg: str | None = None


class ConsumeQueueContent(msgspec.Struct, rename="camel", omit_defaults=True):
    """Units of a ConsumeQueue, and what a group asks of them (321)."""

    max_queue_index: int
    min_queue_index: int
    queue_data: list[ConsumeQueueData]
    filter_data: str | None = None
    subscription_data: SubscriptionDataBody | None = None


class GroupForbidden(msgspec.Struct):
    """Whether a group may read a topic (353)."""

    group: str
    topic: str
    readable: bool


class _TopicListBody(msgspec.Struct, rename="camel"):
    topic_config_list: list[TopicConfigBody]


class _GroupListBody(msgspec.Struct, rename="camel"):
    group_config_list: list[GroupConfigBody]


_topic_list: Final = msgspec.json.Decoder(_TopicListBody, strict=False)
_group_list: Final = msgspec.json.Decoder(_GroupListBody, strict=False)


def encode_topic_configs(configs: list[TopicConfig]) -> bytes:
    """Write topics to be made or changed (18)."""
    return encode_body(
        {
            "topicConfigList": [
                msgspec.convert(config, TopicConfigBody, from_attributes=True) for config in configs
            ]
        }
    )


def decode_topic_configs(body: bytes) -> list[TopicConfig]:
    """Read topics to be made or changed (18); their attributes carry a sign: `{"+name": value}`.

    Raises:
        RemoteProtocolError: the body is not such a list.
    """
    fields = _few(decode_request(body, _topic_list).topic_config_list)
    return [msgspec.convert(item, TopicConfig, from_attributes=True) for item in fields]


def encode_group_configs(configs: list[SubscriptionGroupConfig]) -> bytes:
    """Write groups to be made or changed (225)."""
    return encode_body(
        {
            "groupConfigList": [
                msgspec.convert(config, GroupConfigBody, from_attributes=True) for config in configs
            ]
        }
    )


def decode_group_configs(body: bytes) -> list[SubscriptionGroupConfig]:
    """Read groups to be made or changed (225).

    Raises:
        RemoteProtocolError: the body is not such a list.
    """
    fields = _few(decode_request(body, _group_list).group_config_list)
    return [msgspec.convert(item, SubscriptionGroupConfig, from_attributes=True) for item in fields]


def _few(items: list[_T]) -> list[_T]:
    if len(items) > MAX_CHANGES:
        raise RemoteProtocolError(
            f"the request changes {len(items)} at once; at most {MAX_CHANGES} are taken"
        )
    return items


def encode_broker_stats(stats: BrokerStatsData) -> bytes:
    """Write one counter (315)."""
    return encode_body(stats)


def producer_table_slices(table: Mapping[str, list[ProducerInfo]]) -> Iterator[bytes]:
    """Write the clients of every producer group (328), a slice at a time: joined they are the
    body."""
    yield b'{"data":{'
    comma = b""
    for group, members in table.items():
        yield comma + encode_body(group) + b":["
        yield from item_slices(members)
        yield b"]"
        comma = b","
    yield b"}}"


def encode_consume_queue(
    content: ConsumeQueueContent, subscription: SubscriptionData | None = None
) -> bytes:
    """Write units of a ConsumeQueue (321), with the subscription of the group that asks."""
    if subscription is not None:
        content.subscription_data = msgspec.convert(
            subscription, SubscriptionDataBody, from_attributes=True
        )
    return encode_body(content)


def consume_stats_list_slices(
    broker_addr: str, stats: Mapping[str, list[ConsumeStats]]
) -> Iterator[bytes]:
    """Write the progress of every group, topic by topic (317), in pieces."""
    behind = in_flight = 0
    yield b'{"brokerAddr":' + encode_body(broker_addr) + b',"consumeStatsList":['
    for index, (group, topics) in enumerate(stats.items()):
        yield (b",{" if index else b"{") + encode_body(group) + b":["
        for number, topic in enumerate(topics):
            if number:
                yield b","
            yield from consume_stats_slices(topic)
            wrappers = topic.offset_table.values()
            behind += sum([item.broker_offset - item.consumer_offset for item in wrappers])
            in_flight += sum([item.pull_offset - item.consumer_offset for item in wrappers])
        yield b"]}"
    yield b'],"totalDiff":%d,"totalInflightDiff":%d}' % (behind, in_flight)


def encode_group_forbidden(forbidden: GroupForbidden) -> bytes:
    """Write whether a group may read a topic (353)."""
    return encode_body(forbidden)
