"""How bodies are read and written, and the small ones that have no better home.

Every `decode_x` takes any bytes and returns a value or raises RemoteProtocolError. Bodies are read
with Java's leniency (see `mailboat.protocol.lenient_json`): unknown fields are ignored, null counts
as absent. They are written compact, with number keys quoted, which every client accepts.

Source: apache/rocketmq remoting/protocol/body/*.java
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from mailboat.errors import LocalProtocolError, RemoteProtocolError
from mailboat.model.data_version import DataVersion
from mailboat.protocol.lenient_json import loads

T = TypeVar("T")

_encoder: Final = msgspec.json.Encoder()


class DataVersionBody(msgspec.Struct, rename="camel", gc=False):
    """DataVersion as JSON."""

    counter: int = 0
    timestamp: int = 0
    state_version: int = 0


class _TopicList(msgspec.Struct, rename="camel", omit_defaults=True):
    topic_list: list[str] | msgspec.UnsetType = msgspec.UNSET
    broker_addr: str | None = None


class _GroupList(msgspec.Struct, rename="camel"):
    group_list: list[str] = []


class _ConsumerIdList(msgspec.Struct, rename="camel"):
    consumer_id_list: list[str] = []


class _KVTable(msgspec.Struct):
    table: dict[str, str] = {}


_data_version: Final = msgspec.json.Decoder(DataVersionBody, strict=False)
_topic_list: Final = msgspec.json.Decoder(_TopicList, strict=False)
_group_list: Final = msgspec.json.Decoder(_GroupList, strict=False)
_consumer_id_list: Final = msgspec.json.Decoder(_ConsumerIdList, strict=False)
_kv_table: Final = msgspec.json.Decoder(_KVTable, strict=False)


def encode_body(value: object) -> bytes:
    """Write a value as compact JSON.

    Raises:
        LocalProtocolError: it holds something that JSON cannot carry.
    """
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalProtocolError(f"a body cannot be written as JSON: {error}") from error


def decode_body(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Read a JSON body with a typed decoder, falling back to the lenient way.

    Raises:
        RemoteProtocolError: the body is not what it should be.
    """
    try:
        return decoder.decode(body)
    except (ValueError, RecursionError):
        return convert_body(loads(body), decoder.type)


def convert_body(value: Any, body_type: type[T]) -> T:
    """Give a type to what `loads` returned; null fields count as absent.

    Raises:
        RemoteProtocolError: the value is of another shape.
    """
    try:
        return msgspec.convert(_without_nulls(value), body_type, strict=False, str_keys=True)
    except (ValueError, RecursionError) as error:
        name = body_type.__name__.strip("_")
        raise RemoteProtocolError(f"the body is not a {name}: {error}") from error


def encode_data_version(version: DataVersion) -> bytes:
    """Write a DataVersion, as the body of 322 and of the ext field `dataVersion`."""
    return encode_body(msgspec.convert(version, DataVersionBody, from_attributes=True))


def decode_data_version(body: bytes) -> DataVersion:
    """Read a DataVersion.

    Raises:
        RemoteProtocolError: the body is not one.
    """
    fields = decode_body(body, _data_version)
    return DataVersion(fields.counter, fields.timestamp, fields.state_version)


def encode_topic_list(topics: Iterable[str], *, broker_addr: str | None = None) -> bytes:
    """Write a TopicList (206, 224, 304, 305, 311-313); `broker_addr` belongs to 304."""
    return encode_body(_TopicList(sorted(topics), broker_addr))


def decode_topic_list(body: bytes) -> tuple[list[str], str | None]:
    """Read a TopicList: the topics, and the broker address that 304 adds.

    Raises:
        RemoteProtocolError: the body is not one.
    """
    fields = decode_body(body, _topic_list)
    topics = fields.topic_list
    return [] if isinstance(topics, msgspec.UnsetType) else topics, fields.broker_addr


def encode_group_list(groups: Iterable[str]) -> bytes:
    """Write a GroupList (300)."""
    return encode_body(_GroupList(sorted(groups)))


def decode_group_list(body: bytes) -> list[str]:
    """Read a GroupList.

    Raises:
        RemoteProtocolError: the body is not one.
    """
    return decode_body(body, _group_list).group_list


def encode_consumer_id_list(client_ids: Iterable[str]) -> bytes:
    """Write the members of a consumer group (38)."""
    return encode_body(_ConsumerIdList(list(client_ids)))


def decode_consumer_id_list(body: bytes) -> list[str]:
    """Read the members of a consumer group.

    Raises:
        RemoteProtocolError: the body is not such a list.
    """
    return decode_body(body, _consumer_id_list).consumer_id_list


def encode_kv_table(table: Mapping[str, str]) -> bytes:
    """Write a KVTable (28, 103, 219)."""
    return encode_body(_KVTable(dict(table)))


def decode_kv_table(body: bytes) -> dict[str, str]:
    """Read a KVTable.

    Raises:
        RemoteProtocolError: the body is not one.
    """
    return decode_body(body, _kv_table).table


def encode_properties_text(properties: Mapping[str, str]) -> bytes:
    """Write a configuration as `key=value` lines (26, 319, and the request 25)."""
    return "".join(f"{key}={value}\n" for key, value in sorted(properties.items())).encode()


def decode_properties_text(body: bytes) -> dict[str, str]:
    """Read `key=value` lines (25, 26, 318, 319); blank lines and # or ! comments are skipped.

    Raises:
        RemoteProtocolError: it is not UTF-8, or a line has no `=`.
    """
    try:
        lines = body.decode().splitlines()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"the configuration is not UTF-8: {error}") from error
    properties: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        key, equals, value = stripped.partition("=")
        if not equals:
            raise RemoteProtocolError(f"configuration line {number} is not of the form key=value")
        properties[key.strip()] = value.strip()
    return properties


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value if item is not None]
    return value
