"""Tests of mailboat.protocol.stats_bodies."""

import pytest

from mailboat.errors import RemoteProtocolError
from mailboat.model.data_version import DataVersion
from mailboat.model.message_queue import MessageQueue
from mailboat.protocol.stats_bodies import (
    ConsumerOffsetTable,
    ConsumeStats,
    OffsetWrapper,
    TopicOffset,
    decode_consume_stats,
    decode_consumer_offsets,
    decode_topic_stats,
    encode_consume_stats,
    encode_consumer_offsets,
    encode_topic_stats,
)

QUEUE = MessageQueue("T", "b", 0)
KEY = b'{"brokerName":"b","queueId":0,"topic":"T"}'


def test_topic_stats_are_written_for_mqadmin() -> None:
    """Bounds by queue, with the key as a raw object."""
    expected = (
        b'{"offsetTable":{'
        + KEY
        + b':{"minOffset":1,"maxOffset":2,"lastUpdateTimestamp":3}},"topicPutTps":0.0}'
    )
    assert expected == encode_topic_stats({QUEUE: TopicOffset(1, 2, 3)})
    assert {QUEUE: TopicOffset(1, 2, 3)} == decode_topic_stats(expected)


def test_consume_stats_are_written_for_mqadmin() -> None:
    """Progress by queue, with the key as a raw object."""
    stats = ConsumeStats({QUEUE: OffsetWrapper(4, 3, 2, 1)}, 0.5)
    expected = (
        b'{"consumeTps":0.5,"offsetTable":{'
        + KEY
        + b':{"brokerOffset":4,"consumerOffset":3,"lastTimestamp":2,"pullOffset":1}}}'
    )
    assert expected == encode_consume_stats(stats)
    assert stats == decode_consume_stats(expected)


def test_unknown_group_has_an_empty_table() -> None:
    """A body without numbers is no progress."""
    assert b'{"consumeTps":0.0,"offsetTable":{}}' == encode_consume_stats(ConsumeStats())
    assert ConsumeStats() == decode_consume_stats(b'{"consumeTps":null}')


def test_javas_offset_file_is_read() -> None:
    """consumerOffset.json of a Java broker is pretty-printed and has bare queue ids."""
    table = decode_consumer_offsets(
        b'{\n\t"offsetTable":{\n\t\t"T@CG":{0:12,1:5000000000\n\t\t},"%RETRY%CG@CG":{}\n\t}\n}'
    )
    assert {"T@CG": {0: 12, 1: 5000000000}, "%RETRY%CG@CG": {}} == table.offset_table


def test_consumer_offsets_survive_the_round_trip() -> None:
    """Queue ids are quoted when written and numbers when read."""
    table = ConsumerOffsetTable({"T@CG": {0: 12}}, DataVersion(1, 2, 3))
    body = encode_consumer_offsets(table)
    assert b'{"offsetTable":{"T@CG":{"0":12}},"dataVersion":{' in body
    assert table == decode_consumer_offsets(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"offsetTable":3}',
        b'{"offsetTable":{' + KEY + b":3}}",
        b'{"offsetTable":{' + KEY + b':{"maxOffset":"x","brokerOffset":"x"}}}',
    ],
)
def test_stats_of_another_shape_are_a_protocol_error(body: bytes) -> None:
    """Values are objects of numbers."""
    with pytest.raises(RemoteProtocolError):
        decode_topic_stats(body)
    with pytest.raises(RemoteProtocolError):
        decode_consume_stats(body)
    with pytest.raises(RemoteProtocolError):
        decode_consumer_offsets(body)
