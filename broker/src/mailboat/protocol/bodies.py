"""How bodies are read and written, and the small ones that have no better home.

Every `decode_x` takes any bytes and returns a value or raises RemoteProtocolError. Bodies are read
with Java's leniency (see `mailboat.protocol.lenient_json`): unknown fields are ignored, null counts
as absent. They are written compact, with number keys quoted, which every client accepts.

Source: apache/rocketmq remoting/protocol/body/*.java
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from mailboat.errors import LocalProtocolError, RemoteProtocolError
from mailboat.model.data_version import DataVersion
from mailboat.protocol.command import Int64
from mailboat.protocol.lenient_json import loads

T = TypeVar("T")

_encoder: Final = msgspec.json.Encoder()


REQUEST_MAX_BYTES: Final = 1024 * 1024
"""Longest JSON body of a request: ten thousand queues to lock have about 0.7 MB, and so does the
heartbeat of a client with a thousand groups of four topics each."""

LENIENT_REQUEST_MAX_BYTES: Final = 65_536
"""Longest body of a request that is read with leniency, which takes ten times as long.

Java writes requests as plain JSON. What needs leniency are the null lists of a Go client
(some 200 bytes for each subscription) and the bare broker ids of a route (217)."""

_ITEMS_A_SLICE: Final = 1_000


class DataVersionBody(msgspec.Struct, rename="camel", gc=False):
    """DataVersion as JSON."""

    counter: Int64 = 0
    timestamp: Int64 = 0
    state_version: Int64 = 0


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


def decode_request(
    body: bytes, decoder: msgspec.json.Decoder[T], max_bytes: int = REQUEST_MAX_BYTES
) -> T:
    """Read the JSON body of a request as `decode_body` does, and only what takes little time.

    Raises:
        RemoteProtocolError: the body is not what it should be, or longer than it may be.
    """
    if len(body) > max_bytes:
        raise RemoteProtocolError(
            f"the body has {len(body)} bytes, at most {max_bytes} are taken in this request"
        )
    try:
        return decoder.decode(body)
    except (ValueError, RecursionError) as error:
        if len(body) > LENIENT_REQUEST_MAX_BYTES:
            raise RemoteProtocolError(
                f"the body of {len(body)} bytes is not a {_name(decoder.type)} ({error}); above "
                f"{LENIENT_REQUEST_MAX_BYTES} bytes it has to be plain JSON without null"
            ) from error
        return convert_body(loads(body), decoder.type)


def convert_body(value: Any, body_type: type[T]) -> T:
    """Give a type to what `loads` returned; null fields count as absent.

    Raises:
        RemoteProtocolError: the value is of another shape.
    """
    try:
        return msgspec.convert(_without_nulls(value), body_type, strict=False, str_keys=True)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"the body is not a {_name(body_type)}: {error}") from error


def encode_data_version(version: DataVersion) -> bytes:
    """Write a DataVersion, as the body of 322 and of the ext field `dataVersion`."""
    return encode_body(msgspec.convert(version, DataVersionBody, from_attributes=True))


def decode_data_version(body: bytes) -> DataVersion:
    """Read a DataVersion.

    Raises:
        RemoteProtocolError: the body is not one.
    """
    fields = decode_request(body, _data_version, LENIENT_REQUEST_MAX_BYTES)
    return DataVersion(fields.counter, fields.timestamp, fields.state_version)


def encode_topic_list(topics: Iterable[str], *, broker_addr: str | None = None) -> bytes:
    """Write a TopicList (206, 224, 304, 305, 311-313); `broker_addr` belongs to 304."""
    return encode_body(_TopicList(sorted(topics), broker_addr))


def topic_list_slices(topics: Sequence[str], *, broker_addr: str | None = None) -> Iterator[bytes]:
    """Write a TopicList as it is ordered, a slice at a time: joined they are the body."""
    if broker_addr is None:
        return _name_slices(b"topicList", topics)
    return _name_slices(b"topicList", topics, b',"brokerAddr":' + encode_body(broker_addr))


def _name_slices(member: bytes, names: Sequence[str], others: bytes = b"") -> Iterator[bytes]:
    yield b'{"%b":[' % member
    yield from item_slices(names)
    yield b"]%b}" % others


def item_slices(items: Sequence[object]) -> Iterator[bytes]:
    """Write the items of a JSON list, without its brackets, a slice at a time."""
    for begin in range(0, len(items), _ITEMS_A_SLICE):
        written = encode_body(items[begin : begin + _ITEMS_A_SLICE])[1:-1]
        yield b"," + written if begin else written


def decode_topic_list(body: bytes) -> tuple[list[str], str | None]:
    """Read a TopicList: the topics, and the broker address that 304 adds.

    Raises:
        RemoteProtocolError: the body is not one.
    """
    fields = decode_body(body, _topic_list)
    topics = fields.topic_list
    return [] if isinstance(topics, msgspec.UnsetType) else topics, fields.broker_addr


def group_list_slices(groups: Sequence[str]) -> Iterator[bytes]:
    """Write a GroupList (300) as it is ordered, a slice at a time: joined they are the body."""
    return _name_slices(b"groupList", groups)


def decode_group_list(body: bytes) -> list[str]:
    """Read a GroupList.

    Raises:
        RemoteProtocolError: the body is not one.
    """
    return decode_body(body, _group_list).group_list


def consumer_id_list_slices(client_ids: Sequence[str]) -> Iterator[bytes]:
    """Write the members of a consumer group (38), a slice at a time: joined they are the body."""
    return _name_slices(b"consumerIdList", client_ids)


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
        RemoteProtocolError: it is not UTF-8, a line has no `=`, or there are far more lines than
            settings.
    """
    if len(body) > LENIENT_REQUEST_MAX_BYTES:
        raise RemoteProtocolError(
            f"the configuration has {len(body)} bytes, at most {LENIENT_REQUEST_MAX_BYTES} are "
            "taken"
        )
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


def _name(body_type: type[object]) -> str:
    return body_type.__name__.strip("_")


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value if item is not None]
    return value
