"""What is asked about a group's consumers: 220, 221, 223, 303, 308, 345.

Source: apache/rocketmq remoting/protocol/body/{ResetOffsetBodyForC,GetConsumerStatusBody,
QueryConsumeTimeSpanBody,QueueTimeSpan,QueryCorrectionOffsetBody,QuerySubscriptionResponseBody}.java
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from mailboat.model.message_queue import MessageQueue
from mailboat.model.subscription import SubscriptionData
from mailboat.protocol.bodies import convert_body, decode_body, encode_body, item_slices
from mailboat.protocol.heartbeat import SubscriptionDataBody
from mailboat.protocol.queue_map import (
    MessageQueueBody,
    encode_queue_map,
    loads_object,
    read_queue_map,
)


class QueueTimeSpan(msgspec.Struct, rename="camel", gc=False):
    """When a queue's first, last and last consumed messages were stored, in ms; -1 for none.

    `delay_time` is how long ago the first unread one was, 0 without any.
    """

    message_queue: MessageQueueBody
    min_time_stamp: int = -1
    max_time_stamp: int = -1
    consume_time_stamp: int = -1
    delay_time: int = 0


class _TimeSpans(msgspec.Struct, rename="camel"):
    consume_time_span_set: list[QueueTimeSpan] = []


class _CorrectionOffsets(msgspec.Struct, rename="camel"):
    correction_offsets: dict[int, int] = {}


class _QueryingSubscription(msgspec.Struct, rename="camel", omit_defaults=True):
    group: str
    topic: str
    subscription_data: SubscriptionDataBody | None = None


class _QueueOffset(msgspec.Struct, rename="camel", gc=False):
    broker_name: str
    offset: int
    queue_id: int
    topic: str


_time_spans: Final = msgspec.json.Decoder(_TimeSpans, strict=False)
_corrections: Final = msgspec.json.Decoder(_CorrectionOffsets, strict=False)
_subscription: Final = msgspec.json.Decoder(_QueryingSubscription, strict=False)


def offset_list_slices(table: Mapping[MessageQueue, int]) -> Iterator[bytes]:
    """Write queue offsets as a list, the form of 220 for C++ clients, in pieces that take a moment
    each: joined they are the body."""
    offsets = [
        _QueueOffset(queue.broker_name, table[queue], queue.queue_id, queue.topic)
        for queue in sorted(table)
    ]
    yield b'{"offsetTable":['
    yield from item_slices(offsets)
    yield b"]}"


def encode_client_status(table: Mapping[MessageQueue, int]) -> bytes:
    """Write one client's offsets by queue (221)."""
    return b'{"consumerTable":{},"messageQueueTable":' + encode_queue_map(table) + b"}"


def decode_client_status(body: bytes) -> dict[MessageQueue, int]:
    """Read one client's offsets by queue (221).

    Raises:
        RemoteProtocolError: the body is not a GetConsumerStatusBody.
    """
    return _queue_offsets(loads_object(body).get("messageQueueTable"))


def consumer_status_slices(table: Mapping[str, Mapping[MessageQueue, int]]) -> Iterator[bytes]:
    """Write the offsets of a group's clients, by client id (223), a client at a time: joined they
    are the body."""
    yield b'{"consumerTable":{'
    comma = b""
    for client_id in sorted(table):
        yield comma + encode_body(client_id) + b":" + encode_queue_map(table[client_id])
        comma = b","
    yield b'},"messageQueueTable":{}}'


def decode_consumer_status(body: bytes) -> dict[str, dict[MessageQueue, int]]:
    """Read the offsets of a group's clients (223).

    Raises:
        RemoteProtocolError: the body is not a GetConsumerStatusBody.
    """
    clients = convert_body(loads_object(body).get("consumerTable") or {}, dict)
    return {client_id: _queue_offsets(table) for client_id, table in clients.items()}


def encode_time_spans(spans: Iterable[QueueTimeSpan]) -> bytes:
    """Write the ages of what a group has read (303)."""
    return encode_body(_TimeSpans(list(spans)))


def decode_time_spans(body: bytes) -> list[QueueTimeSpan]:
    """Read the ages of what a group has read (303).

    Raises:
        RemoteProtocolError: the body is not a QueryConsumeTimeSpanBody.
    """
    return decode_body(body, _time_spans).consume_time_span_set


def encode_correction_offsets(offsets: Mapping[int, int]) -> bytes:
    """Write offsets by queue id (308)."""
    return encode_body(_CorrectionOffsets(dict(offsets)))


def decode_correction_offsets(body: bytes) -> dict[int, int]:
    """Read offsets by queue id (308).

    Raises:
        RemoteProtocolError: the body is not a QueryCorrectionOffsetBody.
    """
    return decode_body(body, _corrections).correction_offsets


def encode_group_subscription(
    group: str, topic: str, subscription: SubscriptionData | None
) -> bytes:
    """Write what a group subscribes to in a topic (345); None when its members do not."""
    data = (
        None
        if subscription is None
        else msgspec.convert(subscription, SubscriptionDataBody, from_attributes=True)
    )
    return encode_body(_QueryingSubscription(group, topic, data))


def decode_group_subscription(body: bytes) -> SubscriptionData | None:
    """Read what a group subscribes to in a topic (345).

    Raises:
        RemoteProtocolError: the body is not a QuerySubscriptionResponseBody.
    """
    data = decode_body(body, _subscription).subscription_data
    return None if data is None else msgspec.convert(data, SubscriptionData, from_attributes=True)


def _queue_offsets(table: object) -> dict[MessageQueue, int]:
    return {queue: convert_body(value, int) for queue, value in read_queue_map(table).items()}
