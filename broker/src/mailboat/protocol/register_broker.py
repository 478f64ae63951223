"""The body of 103 REGISTER_BROKER: a broker's topics, as JSON or compressed.

The compressed form is one zlib stream over (integers are int32, big-endian):

| content |
|---|
| length, DataVersion as JSON |
| number of topics, then for each: length, `name readQ writeQ perm filterType [attributes]` |
| length, filter server list as JSON |
| number of topic queue mappings, then for each: length, JSON; only from V5_0_0 on |

JSON says more (a topic's flags, whether it is ordered), and takes four times the room: with about
86,000 topics it is larger than a frame. The compressed form has room for `MAX_REGISTERED_BYTES` of
topics whatever they are called; names that are alike shrink to a twentieth.

Source: apache/rocketmq remoting/protocol/body/RegisterBrokerBody.java, common/TopicConfig.java
"""

import struct
import zlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from mailboat.model.data_version import DataVersion
from mailboat.model.topic import TopicConfig
from mailboat.protocol.bodies import encode_body, encode_data_version
from mailboat.protocol.registered_topics import (
    MAX_INFLATED_BYTES,
    MAX_TOPICS,
    TableSlices,
    compressed_table,
    plain_table,
)
from mailboat.protocol.topic_table import TopicConfigTable, TopicConfigTableBody

__all__ = [
    "HELD_BY_FIELD",
    "IDENTITY_FIELD",
    "MAX_INFLATED_BYTES",
    "MAX_REGISTERED_BYTES",
    "MAX_TOPICS",
    "TableSlices",
    "TopicLines",
    "compress_registration",
    "decode_register_broker",
    "encode_register_broker",
    "is_registrable",
    "register_broker_slices",
    "registered_bytes",
    "topic_lines",
]

IDENTITY_FIELD: Final = "brokerIdentity"
"""Ext field of a registration: a text that is the broker's own wherever it runs. Ours."""

HELD_BY_FIELD: Final = "placeHeldBy"
"""Ext field of a refusal: the address that holds what was asked for. Ours."""

MAX_REGISTERED_BYTES: Final = 15 * 1024 * 1024
"""Bytes of topics in one registration, before compression. Random names shrink by a quarter only,
so that nothing is taken for granted: this fits a frame as it is."""

_INT32: Final = struct.Struct(">i")
_COMPRESSION_LEVEL: Final = 9
_TOPICS_A_SLICE: Final = 200


class _RegisterBody(msgspec.Struct, rename="camel"):
    filter_server_list: list[str] = []
    topic_config_serialize_wrapper: TopicConfigTableBody = msgspec.field(
        default_factory=TopicConfigTableBody
    )


def encode_register_broker(table: TopicConfigTable, *, compressed: bool = False) -> bytes:
    """Write a broker's topics the way the ext field `compressed` says."""
    if compressed:
        lines = topic_lines(table.topic_config_table.values())
        return compress_registration(table.data_version, lines)
    wrapper = msgspec.convert(table, TopicConfigTableBody, from_attributes=True)
    return encode_body(_RegisterBody([], wrapper))


def decode_register_broker(body: bytes, *, compressed: bool = False) -> TopicConfigTable:
    """Read a broker's topics; an empty body is an empty table with version 0, as in Java.

    Raises:
        RemoteProtocolError: the body is not a RegisterBrokerBody, or inflates beyond 32 MiB.
    """
    slices = register_broker_slices(body, compressed=compressed)
    while True:
        try:
            next(slices)
        except StopIteration as done:
            table: TopicConfigTable = done.value
            return table


def register_broker_slices(body: bytes, *, compressed: bool = False) -> TableSlices:
    """Read what `decode_register_broker` reads, yielding after each slice of work.

    Raises:
        RemoteProtocolError: the body is not a RegisterBrokerBody, or inflates beyond 32 MiB.
    """
    if not body:
        return TopicConfigTable()
    return (yield from compressed_table(body) if compressed else plain_table(body))


class TopicLines(NamedTuple):
    """Some topics of the compressed form, and how many they are."""

    topics: int
    data: bytes


def topic_lines(configs: Iterable[TopicConfig]) -> Iterator[TopicLines]:
    """Write topics for the compressed form, some at a time."""
    configs = iter(configs)
    while some := list(islice(configs, _TOPICS_A_SLICE)):
        parts: list[bytes] = []
        for config in some:
            parts += _with_length(_topic_line(config).encode())
        yield TopicLines(len(some), b"".join(parts))


def registered_bytes(config: TopicConfig) -> int:
    """Return how many of `MAX_REGISTERED_BYTES` a topic takes."""
    return _INT32.size + len(_topic_line(config).encode())


def is_registrable(config: TopicConfig) -> bool:
    """Tell whether a name server can read a topic: a space would end its name."""
    return " " not in config.topic_name


def compress_registration(version: DataVersion, lines: Iterable[TopicLines]) -> bytes:
    """Write the compressed form; takes a while, and leaves the interpreter to other threads."""
    lines = list(lines)
    parts = [
        *_with_length(encode_data_version(version)),
        _INT32.pack(sum(some.topics for some in lines)),
        *(some.data for some in lines),
        *_with_length(b"[]"),  # filter servers
        _INT32.pack(0),  # topic queue mappings
    ]
    return zlib.compress(b"".join(parts), _COMPRESSION_LEVEL)


def _with_length(data: bytes) -> tuple[bytes, bytes]:
    return _INT32.pack(len(data)), data


def _topic_line(config: TopicConfig) -> str:
    # Attributes are left out: name servers do not use them, and those of 4.9 fail on a sixth field.
    return (
        f"{config.topic_name} {config.read_queue_nums} {config.write_queue_nums} {config.perm} "
        f"{config.topic_filter_type}"
    )
