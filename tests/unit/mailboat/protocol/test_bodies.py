"""Tests of mailboat.protocol.bodies."""

import pytest

from mailboat.errors import LocalProtocolError, RemoteProtocolError
from mailboat.model.data_version import DataVersion
from mailboat.protocol.bodies import (
    consumer_id_list_slices,
    decode_consumer_id_list,
    decode_data_version,
    decode_group_list,
    decode_kv_table,
    decode_properties_text,
    decode_topic_list,
    encode_body,
    encode_data_version,
    encode_kv_table,
    encode_properties_text,
    encode_topic_list,
    group_list_slices,
    topic_list_slices,
)


@pytest.mark.parametrize("count", [0, 1, 999, 1_000, 1_001, 2_500])
def test_a_topic_list_may_be_written_in_slices(count: int) -> None:
    """Joined they are what is written at once, and no slice has more than a thousand names."""
    names = [f't"{number:05d}' for number in range(count)]
    slices = list(topic_list_slices(names))
    assert b"".join(slices) == encode_topic_list(names)
    assert max(some.count(b"t\\") for some in slices) <= 1_000


def test_bodies_are_compact_json() -> None:
    """Go cuts the text by hand, so there is no white space."""
    assert b'{"topicList":["T1","T2"]}' == encode_topic_list({"T2", "T1"})
    assert b'{"topicList":[],"brokerAddr":"a:1"}' == encode_topic_list([], broker_addr="a:1")
    assert b'{"groupList":["A","B"]}' == b"".join(group_list_slices(["A", "B"]))
    assert b'{"groupList":[]}' == b"".join(group_list_slices([]))
    assert b'{"consumerIdList":["z","a"]}' == b"".join(consumer_id_list_slices(["z", "a"]))
    assert b'{"table":{"k":"v"}}' == encode_kv_table({"k": "v"})
    assert b'{"counter":1,"timestamp":2,"stateVersion":3}' == encode_data_version(
        DataVersion(1, 2, 3)
    )


def test_null_and_absent_fields_are_empty() -> None:
    """Java leaves fields out or writes null where there is nothing."""
    assert ([], None) == decode_topic_list(b"{}")
    assert ([], None) == decode_topic_list(b'{"topicList":null,"brokerAddr":null}')
    assert [] == decode_group_list(b'{"groupList":null}')
    assert ["a"] == decode_consumer_id_list(b'{"consumerIdList":["a",null]}')
    assert {"a": "b"} == decode_kv_table(b'{"table":{"a":"b","c":null}}')
    assert DataVersion(0, 5, 0) == decode_data_version(b'{"timestamp":5,"x":[1]}')


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b"3", b'{"table":[]}', b'{"table":{"a":[]}}']
)
def test_body_of_another_shape_is_a_protocol_error(body: bytes) -> None:
    """What is no KVTable is refused and says so."""
    with pytest.raises(RemoteProtocolError):
        decode_kv_table(body)


def test_complaint_names_the_body() -> None:
    """The sentence says what was expected and where it broke."""
    with pytest.raises(RemoteProtocolError, match=r"the body is not a KVTable: .*\$\.table"):
        decode_kv_table(b'{"table":7}')


def test_what_json_cannot_carry_is_a_local_error() -> None:
    """Our own mistakes do not leave as broken bytes."""
    with pytest.raises(LocalProtocolError):
        encode_body({"a": "\ud800"})
    with pytest.raises(LocalProtocolError):
        encode_body({"a": object()})


def test_configuration_text_is_read_as_properties() -> None:
    """Comments, blank lines, spaces around both sides and further = signs are understood."""
    text = b"# c\n! d\n\r\n a = 1 \r\nb=x=y\nc=\n"
    assert {"a": "1", "b": "x=y", "c": ""} == decode_properties_text(text)
    assert b"a=1\nb=2\n" == encode_properties_text({"b": "2", "a": "1"})


@pytest.mark.parametrize("body", [b"a=1\nnonsense\n", b"\xff=1"])
def test_configuration_that_is_none_is_refused(body: bytes) -> None:
    """A line without = and bytes that are no text are refused."""
    with pytest.raises(RemoteProtocolError, match=r"configuration"):
        decode_properties_text(body)
