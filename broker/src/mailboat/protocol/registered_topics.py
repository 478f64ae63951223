"""Reads the topics out of a registration, a slice at a time: a broker may have very many.

Each generator here yields after each slice of work, at most some milliseconds of it, and returns
its result in the end.

Source: apache/rocketmq remoting/protocol/body/RegisterBrokerBody.java and
TopicConfigAndMappingSerializeWrapper.java
"""

import re
import struct
import zlib
from collections.abc import Generator
from typing import Final

import msgspec

from mailboat.errors import RemoteProtocolError
from mailboat.model.data_version import DataVersion
from mailboat.model.topic import TopicConfig
from mailboat.protocol.bodies import DataVersionBody, decode_body, decode_data_version
from mailboat.protocol.command import Int32, parse_decimal
from mailboat.protocol.lenient_json import with_text_keys
from mailboat.protocol.topic_table import TopicConfigTable

MAX_INFLATED_BYTES: Final = 32 * 1024 * 1024
MAX_TOPICS: Final = 300_000
"""Most topics of one registration: more than fit a plain one."""

MAX_TOPIC_BYTES: Final = 65_536
"""Longest text of one topic."""

_READ_AT_ONCE_BYTES: Final = 4 * 1024 * 1024
_TOPICS_A_SLICE: Final = 200
_INFLATED_A_SLICE: Final = 1024 * 1024
_WINDOW_BYTES: Final = 131_072

_INT32: Final = struct.Struct(">i")
_TOPIC_FIELDS: Final = 5

_TEXT: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
# One entry of a JSON object, if its value is an object with nothing deeper in it than objects.
_ENTRY: Final = re.compile(
    rb'\s*+("[^"\\]*+(?:\\.[^"\\]*+)*+")\s*+:\s*+'
    rb"(\{(?:[^{}\"]++|TEXT|\{(?:[^{}\"]++|TEXT)*+\})*+\})\s*+([,}])".replace(b"TEXT", _TEXT),
    re.DOTALL,
)
_EMPTY: Final = re.compile(rb"\{\s*+\}")
# In a JSON text this is a name, or a text as a value, but no part of a longer text.
_TABLE_KEY: Final = b'"topicConfigTable"'
_COLON: Final = re.compile(rb"\s*+:\s*+")
# What stands for the topics once they are read.
_TAKEN_OUT: Final = b'{"":0}'
# A piece of a JSON text that ends outside of its texts and not within a bare key.
_WINDOW: Final = re.compile(rb'(?:[^"]++|TEXT){1,2000}+'.replace(b"TEXT", _TEXT), re.DOTALL)

_attributes: Final = msgspec.json.Decoder(dict[str, str])


class _TopicBody(msgspec.Struct, rename="camel", gc=False):
    """TopicConfig as JSON, with Java's numbers."""

    topic_name: str
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: dict[str, str] = {}


class _Wrapper(msgspec.Struct, rename="camel"):
    """The topics are left as they are: their text may be megabytes."""

    data_version: DataVersionBody | None = None
    topic_config_table: msgspec.Raw = msgspec.Raw(b"{}")


class _Body(msgspec.Struct, rename="camel"):
    topic_config_serialize_wrapper: _Wrapper | None = None


_body: Final = msgspec.json.Decoder(_Body, strict=False)
_topic: Final = msgspec.json.Decoder(_TopicBody, strict=False)
_name: Final = msgspec.json.Decoder(str)

TableSlices = Generator[None, None, TopicConfigTable]
"""Yields after each slice and returns the table."""


def plain_table(body: bytes) -> TableSlices:
    """Read a registration as JSON; the queue mappings of RocketMQ 5, with bare keys, are skipped.

    Raises:
        RemoteProtocolError: it is none, or has more than 4 MiB besides its topics.
    """
    if len(body) > _READ_AT_ONCE_BYTES:
        return (yield from _large_plain_table(body))
    wrapper = yield from _wrapper(body)
    table = bytes(wrapper.topic_config_table).strip()
    topics: dict[str, TopicConfig] = {}
    if table != b"null":
        topics, _ = yield from _topics(table, 0)
    return TopicConfigTable(_version(wrapper), topics)


def _large_plain_table(body: bytes) -> TableSlices:
    """Read the topics first, wherever they stand, then all the rest without them."""
    key = body.find(_TABLE_KEY, 0, _READ_AT_ONCE_BYTES)
    colon = _COLON.match(body, key + len(_TABLE_KEY)) if key >= 0 else None
    if colon is None:
        raise RemoteProtocolError(
            f"the body is not a RegisterBrokerBody: no topicConfigTable begins in its first "
            f"{_READ_AT_ONCE_BYTES} bytes"
        )
    topics, end = yield from _topics(body, colon.end())
    rest_bytes = colon.end() + len(body) - end
    if rest_bytes > _READ_AT_ONCE_BYTES:
        raise RemoteProtocolError(
            f"the registration has {rest_bytes} bytes besides its topics, at most "
            f"{_READ_AT_ONCE_BYTES} are allowed"
        )
    wrapper = yield from _wrapper(body[: colon.end()] + _TAKEN_OUT + body[end:])
    if bytes(wrapper.topic_config_table) != _TAKEN_OUT:
        raise RemoteProtocolError(
            "the body is not a RegisterBrokerBody: its first topicConfigTable is not the one of "
            "the topicConfigSerializeWrapper"
        )
    return TopicConfigTable(_version(wrapper), topics)


def _wrapper(body: bytes) -> Generator[None, None, _Wrapper]:
    try:
        fields = _body.decode(body)
    except (ValueError, RecursionError):
        body = yield from _with_text_keys(body)
        try:
            fields = _body.decode(body)
        except (ValueError, RecursionError) as error:
            raise RemoteProtocolError(f"the body is not a RegisterBrokerBody: {error}") from error
    yield
    return fields.topic_config_serialize_wrapper or _Wrapper()


def _version(wrapper: _Wrapper) -> DataVersion:
    version = wrapper.data_version or DataVersionBody()
    return DataVersion(version.counter, version.timestamp, version.state_version)


def compressed_table(body: bytes) -> TableSlices:
    """Read a registration in RocketMQ's compressed form.

    Raises:
        RemoteProtocolError: it is none, or inflates beyond 32 MiB.
    """
    data = yield from _inflated(body)
    version_json, position = _take(data, 0)
    version = decode_data_version(version_json)
    count, position = _take_int(data, position)
    topics: dict[str, TopicConfig] = {}
    for number in range(count):  # a count beyond the data ends in _take
        line, position = _take(data, position)
        config = _parse_topic_line(line)
        topics[config.topic_name] = config
        if number % _TOPICS_A_SLICE == 0:
            _refuse_too_many(topics)
            yield
    # Filter servers and topic queue mappings follow; mailboat has neither.
    return TopicConfigTable(version, topics)


def _topics(text: bytes, start: int) -> Generator[None, None, tuple[dict[str, TopicConfig], int]]:
    """Read an object of topics that begins at `start`; return them and where it ends."""
    topics: dict[str, TopicConfig] = {}
    empty = _EMPTY.match(text, start)
    if empty is not None:
        return topics, empty.end()
    position, number, mark = start + 1, 0, b","
    while mark == b",":
        entry = _ENTRY.match(text, position, position + MAX_TOPIC_BYTES)
        if entry is None or not text.startswith(b"{", start):
            raise RemoteProtocolError(
                f"the topic at byte {position} of the topicConfigTable is not an object of at most "
                f"{MAX_TOPIC_BYTES} bytes"
            )
        name, config_text, mark = entry.groups()
        topics[_topic_name(name)] = _topic_config(config_text)
        position = entry.end()
        number += 1
        if number % _TOPICS_A_SLICE == 0:
            _refuse_too_many(topics)
            yield
    return topics, position


def _topic_name(text: bytes) -> str:
    try:
        return _name.decode(text)
    except ValueError as error:
        raise RemoteProtocolError(f"a topic has no name: {error}") from error


def _topic_config(text: bytes) -> TopicConfig:
    fields = decode_body(text, _topic)
    return TopicConfig(
        fields.topic_name,
        fields.read_queue_nums,
        fields.write_queue_nums,
        fields.perm,
        fields.topic_filter_type,
        fields.topic_sys_flag,
        fields.order,
        fields.attributes,
    )


def _refuse_too_many(topics: dict[str, TopicConfig]) -> None:
    if len(topics) > MAX_TOPICS:
        raise RemoteProtocolError(f"the registration has more than {MAX_TOPICS} topics")


def _with_text_keys(body: bytes) -> Generator[None, None, bytes]:
    """Make a text with bare keys JSON, piece by piece."""
    pieces = []
    position = 0
    while position < len(body):
        window = _WINDOW.match(body, position, position + _WINDOW_BYTES)
        if window is None or window.end() == position + _WINDOW_BYTES:
            raise RemoteProtocolError(
                f"the body is not a RegisterBrokerBody: byte {position} begins what is no JSON text"
            )
        try:
            pieces.append(with_text_keys(window[0]))
        except ValueError as error:
            raise RemoteProtocolError(f"the body is not a RegisterBrokerBody: {error}") from error
        position = window.end()
        yield
    return b"".join(pieces)


def _inflated(body: bytes) -> Generator[None, None, bytes]:
    inflater = zlib.decompressobj()
    pieces = []
    left = MAX_INFLATED_BYTES
    while not inflater.eof:
        if not left:
            raise RemoteProtocolError(f"the body inflates beyond {MAX_INFLATED_BYTES} bytes")
        try:
            piece = inflater.decompress(body, min(_INFLATED_A_SLICE, left))
        except zlib.error as error:
            raise RemoteProtocolError(f"the body does not inflate: {error}") from error
        body = inflater.unconsumed_tail
        if not piece and not body and not inflater.eof:
            raise RemoteProtocolError("the compressed body is cut off")
        pieces.append(piece)
        left -= len(piece)
        yield
    return b"".join(pieces)


def _take_int(data: bytes, position: int) -> tuple[int, int]:
    end = position + _INT32.size
    if end > len(data):
        raise RemoteProtocolError("the inflated body ends in the middle of a length")
    return _INT32.unpack_from(data, position)[0], end


def _take(data: bytes, position: int) -> tuple[bytes, int]:
    length, position = _take_int(data, position)
    end = position + length
    if not 0 <= length <= MAX_TOPIC_BYTES or end > len(data):
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
