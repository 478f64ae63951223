"""What clients tell brokers about themselves: 34 HEART_BEAT and 46 CHECK_CLIENT_CONFIG.

Source: apache/rocketmq remoting/protocol/heartbeat/*.java, body/CheckClientRequestBody.java
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from mailboat.errors import RemoteProtocolError
from mailboat.model.subscription import SubscriptionData
from mailboat.protocol.bodies import (
    REQUEST_MAX_BYTES,
    decode_body,
    decode_request,
    encode_body,
)
from mailboat.protocol.command import Int32, Int64, Name

CONSUME_ACTIVELY: Final = "CONSUME_ACTIVELY"
CONSUME_PASSIVELY: Final = "CONSUME_PASSIVELY"
CLUSTERING: Final = "CLUSTERING"
BROADCASTING: Final = "BROADCASTING"
CONSUME_FROM_LAST_OFFSET: Final = "CONSUME_FROM_LAST_OFFSET"
CONSUME_FROM_FIRST_OFFSET: Final = "CONSUME_FROM_FIRST_OFFSET"
CONSUME_FROM_TIMESTAMP: Final = "CONSUME_FROM_TIMESTAMP"

# The C++ client writes the places of Java's constants, which Java reads like their names.
_CONSUME_TYPES: Final = (CONSUME_ACTIVELY, CONSUME_PASSIVELY, "CONSUME_POP")
_MESSAGE_MODELS: Final = (BROADCASTING, CLUSTERING, "LITE_SELECTIVE")
_CONSUME_FROM_WHERES: Final = (
    CONSUME_FROM_LAST_OFFSET,
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    CONSUME_FROM_FIRST_OFFSET,
    CONSUME_FROM_TIMESTAMP,
)


@dataclass(slots=True)
class ProducerData:
    """A producer group that a client belongs to."""

    group_name: str


@dataclass(slots=True)
class ConsumerData:
    """A consumer group that a client belongs to, and what it reads."""

    group_name: str
    consume_type: str = CONSUME_PASSIVELY
    message_model: str = CLUSTERING
    consume_from_where: str = CONSUME_FROM_LAST_OFFSET
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False


@dataclass(slots=True)
class HeartbeatData:
    """One client: its id and all its groups."""

    client_id: str
    producer_data_set: list[ProducerData] = field(default_factory=list)
    consumer_data_set: list[ConsumerData] = field(default_factory=list)


@dataclass(slots=True)
class CheckClientConfig:
    """A subscription that a client wants checked before it starts."""

    client_id: str
    group: str
    subscription_data: SubscriptionData


class SubscriptionDataBody(msgspec.Struct, rename="camel", gc=False):
    """SubscriptionData as JSON."""

    topic: Name
    sub_string: str = ""
    tags_set: set[str] = set()
    code_set: set[Int32] = set()
    # As in Java, where a subscription is of the moment in which it was made.
    sub_version: Int64 = msgspec.field(default_factory=lambda: time.time_ns() // 1_000_000)
    expression_type: str = "TAG"
    class_filter_mode: bool = False


class _ProducerBody(msgspec.Struct, rename="camel", gc=False):
    group_name: Name


class _ConsumerBody(msgspec.Struct, rename="camel", gc=False):
    group_name: Name
    consume_type: str | int = CONSUME_PASSIVELY
    message_model: str | int = CLUSTERING
    consume_from_where: str | int = CONSUME_FROM_LAST_OFFSET
    subscription_data_set: list[SubscriptionDataBody] = []
    unit_mode: bool = False

    def __post_init__(self) -> None:
        self.consume_type = _constant(self.consume_type, _CONSUME_TYPES)
        self.message_model = _constant(self.message_model, _MESSAGE_MODELS)
        self.consume_from_where = _constant(self.consume_from_where, _CONSUME_FROM_WHERES)


def _constant(value: str | int, names: Sequence[str]) -> str:
    """Return the name of a constant that is given by its name or by its place."""
    if isinstance(value, str):
        return value
    if not 0 <= value < len(names):
        raise ValueError(f"there is no constant {value}; they are {', '.join(names)}")
    return names[value]


class _HeartbeatBody(msgspec.Struct, rename="camel", gc=False):
    client_id: Name = msgspec.field(name="clientID")
    producer_data_set: list[_ProducerBody] = []
    consumer_data_set: list[_ConsumerBody] = []


class _CheckClientBody(msgspec.Struct, rename="camel", gc=False):
    client_id: Name
    group: Name
    subscription_data: SubscriptionDataBody


MAX_OBJECTS: Final = 6_000
"""Groups and subscriptions in one: a thousand groups of four topics, and some. More would take long
to read."""

MAX_ENTRIES: Final = 100_000
"""Fields, tags and codes in one."""

# Go writes null for an empty set, in heartbeats of any size. No text has such a name in it, as its
# quotes would be escaped there.
_SETS: Final = (
    b"producerDataSet",
    b"consumerDataSet",
    b"subscriptionDataSet",
    b"tagsSet",
    b"codeSet",
)

_heartbeat: Final = msgspec.json.Decoder(_HeartbeatBody, strict=False)
_check_client: Final = msgspec.json.Decoder(_CheckClientBody, strict=False)
_subscription: Final = msgspec.json.Decoder(SubscriptionDataBody, strict=False)


def encode_heartbeat(heartbeat: HeartbeatData) -> bytes:
    """Write a heartbeat."""
    return encode_body(msgspec.convert(heartbeat, _HeartbeatBody, from_attributes=True))


def decode_heartbeat(body: bytes) -> HeartbeatData:
    """Read a heartbeat; absent and null sets are empty.

    Raises:
        RemoteProtocolError: the body is not a HeartbeatData, or one that would take long to read,
            or a name in it is too long.
    """
    if body.count(b"{") > MAX_OBJECTS or body.count(b",") > MAX_ENTRIES:
        raise RemoteProtocolError(
            f"the heartbeat has more than {MAX_OBJECTS} groups and subscriptions, or more than "
            f"{MAX_ENTRIES} tags; divide them among several clients"
        )
    if len(body) <= REQUEST_MAX_BYTES:
        for name in _SETS:
            body = body.replace(b'"%b":null' % name, b'"%b":[]' % name)
    fields = decode_request(body, _heartbeat)
    # Written out, since this is a third of the time of `msgspec.convert`.
    return HeartbeatData(
        fields.client_id,
        [ProducerData(item.group_name) for item in fields.producer_data_set],
        [
            ConsumerData(
                item.group_name,
                str(item.consume_type),
                str(item.message_model),
                str(item.consume_from_where),
                [
                    SubscriptionData(
                        wanted.topic,
                        wanted.sub_string,
                        wanted.tags_set,
                        wanted.code_set,
                        wanted.sub_version,
                        wanted.expression_type,
                        wanted.class_filter_mode,
                    )
                    for wanted in item.subscription_data_set
                ],
                item.unit_mode,
            )
            for item in fields.consumer_data_set
        ],
    )


def encode_check_client_config(check: CheckClientConfig) -> bytes:
    """Write the body of 46."""
    return encode_body(msgspec.convert(check, _CheckClientBody, from_attributes=True))


def decode_check_client_config(body: bytes) -> CheckClientConfig:
    """Read the body of 46.

    Raises:
        RemoteProtocolError: the body is not a CheckClientRequestBody.
    """
    fields = decode_request(body, _check_client)
    return msgspec.convert(fields, CheckClientConfig, from_attributes=True)


def encode_subscription_data(subscription: SubscriptionData) -> bytes:
    """Write one subscription."""
    return encode_body(msgspec.convert(subscription, SubscriptionDataBody, from_attributes=True))


def decode_subscription_data(body: bytes) -> SubscriptionData:
    """Read one subscription.

    Raises:
        RemoteProtocolError: the body is not a SubscriptionData.
    """
    fields = decode_body(body, _subscription)
    return msgspec.convert(fields, SubscriptionData, from_attributes=True)
