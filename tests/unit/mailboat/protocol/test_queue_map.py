"""Tests of mailboat.protocol.queue_map."""

import pytest

from mailboat.errors import RemoteProtocolError
from mailboat.model.message_queue import MessageQueue
from mailboat.protocol.queue_map import (
    decode_offset_table,
    encode_offset_table,
    encode_queue_map,
)

FIRST = MessageQueue("T", "b", 0)
SECOND = MessageQueue("T", "b", 10)


def test_keys_are_raw_objects_in_queue_order() -> None:
    """Go's reader needs exactly this text: raw objects, keys in alphabetical order, compact."""
    expected = (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:1,'
        b'{"brokerName":"b","queueId":10,"topic":"T"}:-1}}'
    )
    assert expected == encode_offset_table({SECOND: -1, FIRST: 1})
    assert {FIRST: 1, SECOND: -1} == decode_offset_table(expected)
    assert b"{}" == encode_queue_map({})


def test_keys_as_strings_are_read() -> None:
    """The other form in which Java writes such a map."""
    body = b'{"offsetTable":{"{\\"topic\\":\\"T\\",\\"brokerName\\":\\"b\\",\\"queueId\\":10}":5}}'
    assert {SECOND: 5} == decode_offset_table(body)


def test_absent_table_is_empty() -> None:
    """A body without the table has no queues."""
    assert {} == decode_offset_table(b"{}")
    assert {} == decode_offset_table(b'{"offsetTable":null}')


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b'{"offsetTable":[]}',
        b'{"offsetTable":{"x":1}}',
        b'{"offsetTable":{{"topic":"T"}:1}}',
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:"x"}}',
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:null}}',
        b'{"offsetTable":{{"brokerName":"b","queueId":[],"topic":"T"}:1}}',
    ],
)
def test_table_of_another_shape_is_a_protocol_error(body: bytes) -> None:
    """Keys are queues, values are numbers."""
    with pytest.raises(RemoteProtocolError):
        decode_offset_table(body)
