"""Topic configurations as JSON: one (351, 18) or a broker's whole table (21, topics.json).

Source: apache/rocketmq common/TopicConfig.java and
remoting/protocol/body/TopicConfigSerializeWrapper.java
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from mailboat.model.data_version import DataVersion
from mailboat.model.topic import TopicConfig
from mailboat.protocol.bodies import (
    DataVersionBody,
    decode_body,
    encode_body,
    encode_data_version,
)
from mailboat.protocol.json_slices import Member, compact_slices, table_parts


@dataclass(slots=True)
class TopicConfigTable:
    """A broker's topics by name; TopicConfigSerializeWrapper on the Java side."""

    data_version: DataVersion = field(default_factory=DataVersion)
    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)


class TopicConfigBody(msgspec.Struct, rename="camel", gc=False):
    """TopicConfig as JSON."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = {}


class TopicConfigTableBody(msgspec.Struct, rename="camel"):
    """TopicConfigSerializeWrapper as JSON."""

    data_version: DataVersionBody = msgspec.field(default_factory=DataVersionBody)
    topic_config_table: dict[str, TopicConfigBody] = {}


_topic_config: Final = msgspec.json.Decoder(TopicConfigBody, strict=False)
_table: Final = msgspec.json.Decoder(TopicConfigTableBody, strict=False)


def encode_topic_config(config: TopicConfig) -> bytes:
    """Write one topic's configuration."""
    return encode_body(msgspec.convert(config, TopicConfigBody, from_attributes=True))


def decode_topic_config(body: bytes) -> TopicConfig:
    """Read one topic's configuration.

    Raises:
        RemoteProtocolError: the body is not one.
    """
    fields = decode_body(body, _topic_config)
    return msgspec.convert(fields, TopicConfig, from_attributes=True)


def encode_topic_table(table: TopicConfigTable) -> bytes:
    """Write a broker's topics."""
    return b"".join(compact_slices(topic_table_members(table)))


def topic_table_members(table: TopicConfigTable) -> Iterator[Member]:
    """Return what `encode_topic_table` writes, to be written a slice at a time."""
    yield "dataVersion", encode_data_version(table.data_version)
    yield "topicConfigTable", table_parts(table.topic_config_table, _encode_configs)


def _encode_configs(configs: dict[str, TopicConfig]) -> bytes:
    return encode_body(msgspec.convert(configs, dict[str, TopicConfigBody], from_attributes=True))


def decode_topic_table(body: bytes) -> TopicConfigTable:
    """Read a broker's topics; a pretty-printed topics.json is as good as a body.

    Raises:
        RemoteProtocolError: the body is not a TopicConfigSerializeWrapper.
    """
    fields = decode_body(body, _table)
    return msgspec.convert(fields, TopicConfigTable, from_attributes=True)
