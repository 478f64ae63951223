"""Tests of mailboat.protocol.topic_table."""

import pytest

from mailboat.errors import RemoteProtocolError
from mailboat.model.data_version import DataVersion
from mailboat.model.topic import TopicConfig
from mailboat.protocol.topic_table import (
    TopicConfigTable,
    decode_topic_config,
    decode_topic_table,
    encode_topic_config,
    encode_topic_table,
)


def test_topic_config_is_written_with_javas_names() -> None:
    """One topic is one object."""
    config = TopicConfig("T", 4, 3, 6, attributes={"message.type": "FIFO"})
    expected = (
        b'{"topicName":"T","readQueueNums":4,"writeQueueNums":3,"perm":6,'
        b'"topicFilterType":"SINGLE_TAG","topicSysFlag":0,"order":false,'
        b'"attributes":{"message.type":"FIFO"}}'
    )
    assert expected == encode_topic_config(config)
    assert config == decode_topic_config(expected)


def test_absent_fields_have_javas_defaults() -> None:
    """A topic that only has a name has 16 queues and may be read and written."""
    config = decode_topic_config(b'{"topicName":"T","attributes":null}')
    assert TopicConfig("T", 16, 16, 6, "SINGLE_TAG", 0, False, {}) == config


def test_pretty_printed_file_is_read() -> None:
    """topics.json of a Java broker has line breaks and tabs."""
    table = decode_topic_table(
        b'{\n\t"dataVersion":{\n\t\t"counter":2,\n\t\t"stateVersion":0,\n\t\t"timestamp":5\n\t},\n'
        b'\t"topicConfigTable":{\n\t\t"T":{\n\t\t\t"topicName":"T",\n\t\t\t"perm":2\n\t\t}\n\t}\n}'
    )
    assert TopicConfigTable(DataVersion(2, 5), {"T": TopicConfig("T", perm=2)}) == table


def test_table_survives_the_round_trip() -> None:
    """Every field of every topic comes back."""
    table = TopicConfigTable(
        DataVersion(1, 2, 3), {"T": TopicConfig("T", 1, 2, 4, "MULTI_TAG", 3, True, {"a": "b"})}
    )
    assert table == decode_topic_table(encode_topic_table(table))


@pytest.mark.parametrize("body", [b"", b"{", b'{"topicConfigTable":{"T":{}}}', b'{"perm":6}'])
def test_topic_without_a_name_is_a_protocol_error(body: bytes) -> None:
    """Cut text and nameless topics are refused."""
    with pytest.raises(RemoteProtocolError):
        decode_topic_config(body)
    if b"topicConfigTable" in body:
        with pytest.raises(RemoteProtocolError):
            decode_topic_table(body)
