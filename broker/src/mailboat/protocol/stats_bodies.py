"""Offsets and progress per queue: 202 TopicStatsTable, 208 ConsumeStats, and consumer offsets (43).

Source: apache/rocketmq remoting/protocol/admin/{TopicStatsTable,TopicOffset,ConsumeStats,
OffsetWrapper}.java, broker/offset/ConsumerOffsetManager.java
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from mailboat.model.data_version import DataVersion
from mailboat.model.message_queue import MessageQueue
from mailboat.protocol.bodies import (
    DataVersionBody,
    convert_body,
    decode_body,
    encode_body,
    encode_data_version,
)
from mailboat.protocol.json_slices import Member, compact_slices, table_parts
from mailboat.protocol.queue_map import loads_object, queue_map_slices, read_queue_map


class TopicOffset(msgspec.Struct, rename="camel", gc=False):
    """Bounds of one queue: `max_offset` is the next offset to be written."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


class OffsetWrapper(msgspec.Struct, rename="camel", gc=False):
    """One group's progress in one queue; `last_timestamp` is of the last message consumed."""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    pull_offset: int = 0


@dataclass(slots=True)
class ConsumeStats:
    """One group's progress in every queue it has read."""

    offset_table: dict[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0


@dataclass(slots=True)
class ConsumerOffsetTable:
    """Committed offsets by "topic@group" and queue id, as consumerOffset.json holds them."""

    offset_table: dict[str, dict[int, int]] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


class _ConsumerOffsetBody(msgspec.Struct, rename="camel"):
    offset_table: dict[str, dict[int, int]] = {}
    data_version: DataVersionBody = msgspec.field(default_factory=DataVersionBody)


_consumer_offsets: Final = msgspec.json.Decoder(_ConsumerOffsetBody, strict=False)


def encode_topic_stats(table: Mapping[MessageQueue, TopicOffset], put_tps: float = 0.0) -> bytes:
    """Write the bounds of a topic's queues (202); `put_tps` is messages sent per second."""
    return b"".join(topic_stats_slices(table, put_tps))


def topic_stats_slices(
    table: Mapping[MessageQueue, TopicOffset], put_tps: float = 0.0
) -> Iterator[bytes]:
    """Return what `encode_topic_stats` writes, in pieces that take a moment each."""
    yield b'{"offsetTable":'
    yield from queue_map_slices(table)
    yield b',"topicPutTps":' + encode_body(put_tps) + b"}"


def decode_topic_stats(body: bytes) -> dict[MessageQueue, TopicOffset]:
    """Read the bounds of a topic's queues.

    Raises:
        RemoteProtocolError: the body is not a TopicStatsTable.
    """
    table = read_queue_map(loads_object(body).get("offsetTable"))
    return {queue: convert_body(value, TopicOffset) for queue, value in table.items()}


def encode_consume_stats(stats: ConsumeStats) -> bytes:
    """Write a group's progress (208)."""
    return b"".join(consume_stats_slices(stats))


def consume_stats_slices(stats: ConsumeStats) -> Iterator[bytes]:
    """Return what `encode_consume_stats` writes, in pieces that take a moment each."""
    yield b'{"consumeTps":' + encode_body(float(stats.consume_tps)) + b',"offsetTable":'
    yield from queue_map_slices(stats.offset_table)
    yield b"}"


def decode_consume_stats(body: bytes) -> ConsumeStats:
    """Read a group's progress.

    Raises:
        RemoteProtocolError: the body is not a ConsumeStats.
    """
    fields = loads_object(body)
    table = read_queue_map(fields.get("offsetTable"))
    consume_tps: Any = fields.get("consumeTps")
    return ConsumeStats(
        {queue: convert_body(value, OffsetWrapper) for queue, value in table.items()},
        0.0 if consume_tps is None else convert_body(consume_tps, float),
    )


def encode_consumer_offsets(table: ConsumerOffsetTable) -> bytes:
    """Write committed offsets (43, consumerOffset.json)."""
    return b"".join(compact_slices(consumer_offset_members(table)))


def consumer_offset_members(table: ConsumerOffsetTable) -> Iterator[Member]:
    """Return what `encode_consumer_offsets` writes, to be written a slice at a time."""
    yield "offsetTable", table_parts(table.offset_table, weigh=len)
    yield "dataVersion", encode_data_version(table.data_version)


def decode_consumer_offsets(body: bytes) -> ConsumerOffsetTable:
    """Read committed offsets; Java's bare queue ids are accepted.

    Raises:
        RemoteProtocolError: the body is not such a table.
    """
    fields = decode_body(body, _consumer_offsets)
    return msgspec.convert(fields, ConsumerOffsetTable, from_attributes=True)
