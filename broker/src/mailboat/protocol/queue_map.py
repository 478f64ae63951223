"""Maps keyed by MessageQueue, which Java writes with objects as keys (that is not JSON).

    {{"brokerName":"b","queueId":0,"topic":"T"}:value,...}

Written exactly so: Java reads it, and Go's reader cuts the text by hand. Read in this form and with
the keys as strings.

Source: the output of com.alibaba:fastjson 1.2 for Map<MessageQueue, ?>
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import msgspec

from mailboat.errors import RemoteProtocolError
from mailboat.model.message_queue import MessageQueue
from mailboat.protocol.bodies import convert_body, decode_body, encode_body
from mailboat.protocol.command import Int32, Name
from mailboat.protocol.lenient_json import loads


class MessageQueueBody(msgspec.Struct, rename="camel", gc=False):
    """MessageQueue as JSON, the keys in alphabetical order."""

    broker_name: Name
    queue_id: Int32
    topic: Name


_QUEUES_A_SLICE: Final = 200

_queue: Final = msgspec.json.Decoder(MessageQueueBody, strict=False)


def encode_queue_map(table: Mapping[MessageQueue, object]) -> bytes:
    """Write a map with raw object keys, ordered by queue."""
    return b"".join(queue_map_slices(table))


def queue_map_slices(table: Mapping[MessageQueue, object]) -> Iterator[bytes]:
    """Return what `encode_queue_map` writes, in pieces that take a moment each."""
    mark = b"{"
    queues = iter(sorted(table))
    while some := list(islice(queues, _QUEUES_A_SLICE)):
        entries = [
            encode_body(MessageQueueBody(queue.broker_name, queue.queue_id, queue.topic))
            + b":"
            + encode_body(table[queue])
            for queue in some
        ]
        yield mark + b",".join(entries)
        mark = b","
    yield b"}" if table else b"{}"


def read_queue_map(table: object) -> dict[MessageQueue, Any]:
    """Give their type to the keys of a map that `lenient_json.loads` returned.

    Raises:
        RemoteProtocolError: it is not a map, or a key is not a MessageQueue.
    """
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise RemoteProtocolError("a table of queues is not an object")
    return {_read_queue(key): value for key, value in table.items()}


def encode_offset_table(table: Mapping[MessageQueue, int]) -> bytes:
    """Write queue offsets by queue (220, 222): `{"offsetTable":{...}}`."""
    return b"".join(offset_table_slices(table))


def offset_table_slices(table: Mapping[MessageQueue, int]) -> Iterator[bytes]:
    """Return what `encode_offset_table` writes, in pieces that take a moment each."""
    yield b'{"offsetTable":'
    yield from queue_map_slices(table)
    yield b"}"


def decode_offset_table(body: bytes) -> dict[MessageQueue, int]:
    """Read queue offsets by queue (220, 222).

    Raises:
        RemoteProtocolError: the body is not such a table.
    """
    table = read_queue_map(loads_object(body).get("offsetTable"))
    return {queue: convert_body(value, int) for queue, value in table.items()}


def loads_object(body: bytes) -> dict[str, Any]:
    """Parse a body that has to be an object.

    Raises:
        RemoteProtocolError: it is not.
    """
    value = loads(body)
    if not isinstance(value, dict):
        raise RemoteProtocolError("the body is not a JSON object")
    return value


def _read_queue(key: str) -> MessageQueue:
    fields = decode_body(key.encode(), _queue)
    return MessageQueue(fields.topic, fields.broker_name, fields.queue_id)
