"""Who is connected: the bodies of 203 and 204, as mqadmin prints them.

Source: apache/rocketmq remoting/protocol/body/{Connection,ConsumerConnection,
ProducerConnection}.java
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from mailboat.model.subscription import SubscriptionData
from mailboat.protocol.bodies import decode_body, encode_body, item_slices
from mailboat.protocol.heartbeat import SubscriptionDataBody


class ClientConnection(msgspec.Struct, rename="camel", gc=False):
    """One client of a group; Connection on the Java side."""

    client_id: str
    client_addr: str = ""
    language: str = "OTHER"
    version: int = 0


@dataclass(slots=True)
class ConsumerConnection:
    """The members of a consumer group and what they subscribe to."""

    connection_set: list[ClientConnection] = field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""


class _ConsumerConnectionBody(msgspec.Struct, rename="camel"):
    connection_set: list[ClientConnection] = []
    subscription_table: dict[str, SubscriptionDataBody] = {}
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""


_LIST_START: Final = b'{"connectionSet":['


class _ProducerConnectionBody(msgspec.Struct, rename="camel"):
    connection_set: list[ClientConnection] = []


_consumer: Final = msgspec.json.Decoder(_ConsumerConnectionBody, strict=False)
_producer: Final = msgspec.json.Decoder(_ProducerConnectionBody, strict=False)


def consumer_connection_slices(connection: ConsumerConnection) -> Iterator[bytes]:
    """Write the members of a consumer group (203), a slice at a time: joined they are the body."""
    without = replace(connection, connection_set=[])
    rest = encode_body(msgspec.convert(without, _ConsumerConnectionBody, from_attributes=True))
    yield _LIST_START
    yield from item_slices(connection.connection_set)
    yield rest[len(_LIST_START) :]


def decode_consumer_connection(body: bytes) -> ConsumerConnection:
    """Read the members of a consumer group.

    Raises:
        RemoteProtocolError: the body is not a ConsumerConnection.
    """
    fields = decode_body(body, _consumer)
    return msgspec.convert(fields, ConsumerConnection, from_attributes=True)


def producer_connection_slices(connections: list[ClientConnection]) -> Iterator[bytes]:
    """Write the members of a producer group (204), a slice at a time: joined they are the body."""
    yield _LIST_START
    yield from item_slices(connections)
    yield b"]}"


def decode_producer_connection(body: bytes) -> list[ClientConnection]:
    """Read the members of a producer group.

    Raises:
        RemoteProtocolError: the body is not a ProducerConnection.
    """
    return decode_body(body, _producer).connection_set
