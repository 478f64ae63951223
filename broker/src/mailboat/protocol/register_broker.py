"""The body of 103 REGISTER_BROKER: a broker's topics, as JSON or compressed.

The compressed form is one zlib stream over (integers are int32, big-endian):

| content |
|---|
| length, DataVersion as JSON |
| number of topics, then for each: length, `name readQ writeQ perm filterType [attributes]` |
| length, filter server list as JSON |
| number of topic queue mappings, then for each: length, JSON; only from V5_0_0 on |

Source: apache/rocketmq remoting/protocol/body/RegisterBrokerBody.java, common/TopicConfig.java
"""

import struct
import zlib
from typing import Final

import msgspec

from mailboat.errors import RemoteProtocolError
from mailboat.model.data_version import DataVersion
from mailboat.model.topic import TopicConfig
from mailboat.protocol.bodies import (
    decode_body,
    decode_data_version,
    encode_body,
    encode_data_version,
)
from mailboat.protocol.command import parse_decimal
from mailboat.protocol.topic_table import TopicConfigTable, TopicConfigTableBody

MAX_INFLATED_BYTES: Final = 32 * 1024 * 1024

_INT32: Final = struct.Struct(">i")
_COMPRESSION_LEVEL: Final = 9
_TOPIC_FIELDS: Final = 5
_attributes: Final = msgspec.json.Decoder(dict[str, str])


class _RegisterBody(msgspec.Struct, rename="camel"):
    filter_server_list: list[str] = []
    topic_config_serialize_wrapper: TopicConfigTableBody = msgspec.field(
        default_factory=TopicConfigTableBody
    )


_body: Final = msgspec.json.Decoder(_RegisterBody, strict=False)


def encode_register_broker(table: TopicConfigTable, *, compressed: bool = False) -> bytes:
    """Write a broker's topics the way the ext field `compressed` says."""
    if compressed:
        return _encode_compressed(table)
    wrapper = msgspec.convert(table, TopicConfigTableBody, from_attributes=True)
    return encode_body(_RegisterBody([], wrapper))


def decode_register_broker(body: bytes, *, compressed: bool = False) -> TopicConfigTable:
    """Read a broker's topics; an empty body is an empty table with version 0, as in Java.

    Raises:
        RemoteProtocolError: the body is not a RegisterBrokerBody, or inflates beyond 32 MiB.
    """
    if not body:
        return TopicConfigTable()
    if compressed:
        return _decode_compressed(body)
    wrapper = decode_body(body, _body).topic_config_serialize_wrapper
    return msgspec.convert(wrapper, TopicConfigTable, from_attributes=True)


def _encode_compressed(table: TopicConfigTable) -> bytes:
    parts = [*_with_length(encode_data_version(table.data_version))]
    parts.append(_INT32.pack(len(table.topic_config_table)))
    for config in table.topic_config_table.values():
        parts += _with_length(_topic_line(config).encode())
    parts += _with_length(b"[]")  # filter servers
    parts.append(_INT32.pack(0))  # topic queue mappings
    return zlib.compress(b"".join(parts), _COMPRESSION_LEVEL)


def _with_length(data: bytes) -> tuple[bytes, bytes]:
    return _INT32.pack(len(data)), data


def _topic_line(config: TopicConfig) -> str:
    # Attributes are left out: name servers do not use them, and those of 4.9 fail on a sixth field.
    return (
        f"{config.topic_name} {config.read_queue_nums} {config.write_queue_nums} {config.perm} "
        f"{config.topic_filter_type}"
    )


def _decode_compressed(body: bytes) -> TopicConfigTable:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, MAX_INFLATED_BYTES)
    except zlib.error as error:
        raise RemoteProtocolError(f"the body does not inflate: {error}") from error
    if inflater.unconsumed_tail:
        raise RemoteProtocolError(f"the body inflates beyond {MAX_INFLATED_BYTES} bytes")
    if not inflater.eof:
        raise RemoteProtocolError("the compressed body is cut off")
    version_json, position = _take(data, 0)
    version: DataVersion = decode_data_version(version_json)
    count, position = _take_int(data, position)
    topics: dict[str, TopicConfig] = {}
    for _ in range(count):  # a count beyond the data ends in _take
        line, position = _take(data, position)
        config = _parse_topic_line(line)
        topics[config.topic_name] = config
    # Filter servers and topic queue mappings follow; mailboat has neither.
    return TopicConfigTable(version, topics)


def _take_int(data: bytes, position: int) -> tuple[int, int]:
    end = position + _INT32.size
    if end > len(data):
        raise RemoteProtocolError("the inflated body ends in the middle of a length")
    return _INT32.unpack_from(data, position)[0], end


def _take(data: bytes, position: int) -> tuple[bytes, int]:
    length, position = _take_int(data, position)
    end = position + length
    if length < 0 or end > len(data):
        raise RemoteProtocolError(f"a field of length {length} does not fit the inflated body")
    return data[position:end], end


def _parse_topic_line(line: bytes) -> TopicConfig:
    try:
        fields = line.decode().split(" ", _TOPIC_FIELDS)
        attributes = _attributes.decode(fields[5]) if len(fields) > _TOPIC_FIELDS else {}
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"a topic line cannot be read: {error}") from error
    if len(fields) < _TOPIC_FIELDS:
        raise RemoteProtocolError(f"a topic line has {len(fields)} fields instead of 5")
    read_queues, write_queues, perm = (parse_decimal(text, 31) for text in fields[1:4])
    if read_queues is None or write_queues is None or perm is None:
        raise RemoteProtocolError(f"a topic line of {fields[0]!r} has a field that is no number")
    return TopicConfig(
        fields[0], read_queues, write_queues, perm, fields[4] or "SINGLE_TAG", attributes=attributes
    )
