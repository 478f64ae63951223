"""delayOffset.json, as Java writes and reads it."""

import json

import pytest

from mailboat.errors import RemoteProtocolError
from mailboat.protocol.delay_offsets import (
    DelayOffsets,
    decode_delay_offsets,
    encode_delay_offsets,
)


def test_javas_file_is_read() -> None:
    """Fastjson writes the levels without quotes."""
    content = b"""{
\t"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1700000000000},
\t"offsetTable":{1:3,2:0,\t18:12345678901
\t}
}"""
    table = decode_delay_offsets(content)
    assert table.offset_table == {1: 3, 2: 0, 18: 12_345_678_901}
    assert table.data_version.counter == 1
    assert table.mailboat_delay_level is None
    assert table.mailboat_ranges == {}


def test_a_file_of_version_4_has_no_data_version() -> None:
    """RocketMQ 4.9 writes the table only."""
    assert decode_delay_offsets(b'{"offsetTable":{1:3}}').offset_table == {1: 3}


def test_what_is_written_is_read_again() -> None:
    """Our own fields come back, beside RocketMQ's names."""
    table = DelayOffsets(
        {1: 3}, mailboat_delay_level="1s", mailboat_ranges={1: [(3, 5), (9, None)]}
    )
    content = encode_delay_offsets(table)
    assert decode_delay_offsets(content) == table
    assert json.loads(content)["offsetTable"] == {"1": 3}


def test_the_body_of_an_answer_holds_rocketmqs_fields() -> None:
    """Java's reader wants offsetTable and dataVersion; nothing of ours without need."""
    assert set(json.loads(encode_delay_offsets(DelayOffsets({2: 1})))) == {
        "dataVersion",
        "offsetTable",
    }


@pytest.mark.parametrize("content", [b"", b"[]", b'{"offsetTable":{"a":1}}', b'{"offsetTable":3}'])
def test_another_file_is_refused(content: bytes) -> None:
    """Damage is not taken for an empty table."""
    with pytest.raises(RemoteProtocolError):
        decode_delay_offsets(content)
