"""Consumer group configurations as JSON: one (200, 352) or a table (201, subscriptionGroup.json).

Source: apache/rocketmq remoting/protocol/subscription/SubscriptionGroupConfig.java and
remoting/protocol/body/SubscriptionGroupWrapper.java
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from mailboat.model.data_version import DataVersion
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.protocol.bodies import (
    DataVersionBody,
    decode_body,
    decode_request,
    encode_body,
    encode_data_version,
)
from mailboat.protocol.json_slices import Member, compact_slices, table_parts


@dataclass(slots=True)
class SubscriptionGroupTable:
    """A broker's consumer groups by name; SubscriptionGroupWrapper on the Java side."""

    data_version: DataVersion = field(default_factory=DataVersion)
    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)


class GroupConfigBody(msgspec.Struct, rename="camel", gc=False):
    """SubscriptionGroupConfig as JSON."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    attributes: dict[str, str] = {}


class _GroupTableBody(msgspec.Struct, rename="camel"):
    data_version: DataVersionBody = msgspec.field(default_factory=DataVersionBody)
    subscription_group_table: dict[str, GroupConfigBody] = {}


_group_config: Final = msgspec.json.Decoder(GroupConfigBody, strict=False)
_table: Final = msgspec.json.Decoder(_GroupTableBody, strict=False)


def encode_group_config(config: SubscriptionGroupConfig) -> bytes:
    """Write one group's configuration."""
    return encode_body(msgspec.convert(config, GroupConfigBody, from_attributes=True))


def decode_group_config(body: bytes) -> SubscriptionGroupConfig:
    """Read one group's configuration.

    Raises:
        RemoteProtocolError: the body is not one.
    """
    fields = decode_request(body, _group_config)
    return msgspec.convert(fields, SubscriptionGroupConfig, from_attributes=True)


def encode_group_table(table: SubscriptionGroupTable) -> bytes:
    """Write a broker's groups."""
    return b"".join(compact_slices(group_table_members(table)))


def group_table_members(table: SubscriptionGroupTable) -> Iterator[Member]:
    """Return what `encode_group_table` writes, to be written a slice at a time."""
    yield "dataVersion", encode_data_version(table.data_version)
    yield "subscriptionGroupTable", table_parts(table.subscription_group_table, _encode_configs)


def _encode_configs(configs: dict[str, SubscriptionGroupConfig]) -> bytes:
    return encode_body(msgspec.convert(configs, dict[str, GroupConfigBody], from_attributes=True))


def decode_group_table(body: bytes) -> SubscriptionGroupTable:
    """Read a broker's groups; a pretty-printed subscriptionGroup.json is as good as a body.

    Raises:
        RemoteProtocolError: the body is not a SubscriptionGroupWrapper.
    """
    fields = decode_body(body, _table)
    return msgspec.convert(fields, SubscriptionGroupTable, from_attributes=True)
