"""Tests of mailboat.protocol.register_broker."""

import struct
import zlib
from random import Random

import pytest

from mailboat.errors import RemoteProtocolError
from mailboat.model.data_version import DataVersion
from mailboat.model.topic import TopicConfig
from mailboat.protocol.frame import FRAME_MAX_BYTES, HEADER_MAX_BYTES
from mailboat.protocol.register_broker import (
    MAX_INFLATED_BYTES,
    MAX_REGISTERED_BYTES,
    TopicLines,
    compress_registration,
    decode_register_broker,
    encode_register_broker,
    registered_bytes,
    topic_lines,
)
from mailboat.protocol.topic_table import TopicConfigTable


def field(data: bytes) -> bytes:
    """Return bytes with their length in front."""
    return struct.pack(">i", len(data)) + data


VERSION_FIELD = field(b'{"counter":1,"timestamp":2}')


def compressed(*lines: bytes, count: int | None = None) -> bytes:
    """Return a compressed body with these topic lines."""
    number = struct.pack(">i", len(lines) if count is None else count)
    return zlib.compress(VERSION_FIELD + number + b"".join(map(field, lines)) + field(b"[]"))


def test_compressed_body_has_javas_layout() -> None:
    """Version, topics, filter servers and mappings follow each other with int32 lengths."""
    table = TopicConfigTable(DataVersion(1, 2, 3), {"T": TopicConfig("T", 4, 3, 6)})
    expected = (
        field(b'{"counter":1,"timestamp":2,"stateVersion":3}')
        + struct.pack(">i", 1)
        + field(b"T 4 3 6 SINGLE_TAG")
        + field(b"[]")
        + struct.pack(">i", 0)
    )
    assert expected == zlib.decompress(encode_register_broker(table, compressed=True))


def test_both_forms_survive_the_round_trip() -> None:
    """What a broker registers arrives, whatever the form; attributes only in the plain one."""
    table = TopicConfigTable(DataVersion(1, 2), {"T": TopicConfig("T", 4, 3, 6)})
    for form in (False, True):
        body = encode_register_broker(table, compressed=form)
        assert table == decode_register_broker(body, compressed=form)


def test_attributes_stay_out_of_the_compressed_form() -> None:
    """A name server of 4.9 cannot read a topic line with a sixth field."""
    table = TopicConfigTable(DataVersion(), {"T": TopicConfig("T", attributes={"a": "b"})})
    body = encode_register_broker(table, compressed=True)
    assert {} == decode_register_broker(body, compressed=True).topic_config_table["T"].attributes


def test_attributes_of_a_newer_broker_are_read() -> None:
    """A 5.x broker adds the attributes as JSON."""
    table = decode_register_broker(compressed(b'T 4 3 6 SINGLE_TAG {"a b":"c"}'), compressed=True)
    assert {"a b": "c"} == table.topic_config_table["T"].attributes


def test_empty_body_is_an_empty_table() -> None:
    """A broker without topics may send nothing."""
    assert TopicConfigTable() == decode_register_broker(b"")
    assert TopicConfigTable() == decode_register_broker(b"", compressed=True)


@pytest.mark.parametrize(
    "body",
    [
        b"garbage",
        compressed(b"T 4 3 6 SINGLE_TAG")[:-5],
        zlib.compress(b""),
        zlib.compress(VERSION_FIELD),
        zlib.compress(struct.pack(">i", -1)),
        zlib.compress(field(b"x")),
        compressed(count=1_000_000_000),
        compressed(b"T 4 3 6"),
        compressed(b"T 4 3 x SINGLE_TAG"),
        compressed(b"T 4 3 2147483648 SINGLE_TAG"),
        compressed(b"\xff 4 3 6 SINGLE_TAG"),
        compressed(b"T 4 3 6 SINGLE_TAG {"),
        compressed(b"T 4 3 6 SINGLE_TAG " + b"[" * 60_000),
    ],
)
def test_bad_compressed_body_is_a_protocol_error(body: bytes) -> None:
    """Cut streams, wrong lengths and counts, and bad lines are refused."""
    with pytest.raises(RemoteProtocolError):
        decode_register_broker(body, compressed=True)


def test_inflating_has_a_limit() -> None:
    """A small body cannot make the name server allocate without end."""
    bomb = zlib.compress(bytes(MAX_INFLATED_BYTES + 1))
    assert len(bomb) < 100_000
    with pytest.raises(RemoteProtocolError, match="inflates beyond"):
        decode_register_broker(bomb, compressed=True)


def test_a_topic_has_a_limit() -> None:
    """One line, or one entry, is read in one go."""
    line = b"T 4 3 6 SINGLE_TAG " + b"x" * 70_000
    with pytest.raises(RemoteProtocolError, match="70019"):
        decode_register_broker(compressed(line), compressed=True)
    body = encode_register_broker(
        TopicConfigTable(topic_config_table={"T": TopicConfig("T" * 70_000)})
    )
    with pytest.raises(RemoteProtocolError, match="65536"):
        decode_register_broker(body)


def test_the_most_topics_fit_a_frame_whatever_they_are_called() -> None:
    """Even where compression gains nothing there is room for the header."""
    lines = [TopicLines(1, Random(1).randbytes(MAX_REGISTERED_BYTES))]
    body = compress_registration(DataVersion(), lines)
    assert len(body) + HEADER_MAX_BYTES < FRAME_MAX_BYTES
    assert MAX_REGISTERED_BYTES < MAX_INFLATED_BYTES


def test_the_room_of_a_topic_is_what_it_takes() -> None:
    """Counted before it is written, with its length field."""
    configs = [
        TopicConfig("T", 4, 4),
        TopicConfig("%RETRY%" + "g" * 100, 10_000, 1, 2, "MULTI_TAG"),
    ]
    written = b"".join(lines.data for lines in topic_lines(configs))
    assert sum(map(registered_bytes, configs)) == len(written)


BESIDE = 4 * 1024 * 1024


def plain(table: bytes, *, before: bytes = b"", after: bytes = b"") -> bytes:
    """Return a plain body as Java writes it, with members before and after the topics."""
    head = b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":7},'
    return head + before + b'"topicConfigTable":' + table + after + b"}}"


def topic_member(number: int) -> bytes:
    """Return a topic as Java writes it."""
    return b'"t%06d":{"order":true,"perm":4,"readQueueNums":%d,"topicName":"t%06d"}' % (
        number, number, number,
    )  # fmt: skip


@pytest.mark.parametrize("count", [3, 100_000])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b""),
        (b'"x":"\\"topicConfigTable\\":{",', b' , "y" : [ {} ]'),
        (b'"topicQueueMappingInfoMap":{"t":{"currIdMap":{0:1,1:2}}},', b',"z":{0:1}'),
    ],
)
def test_plain_bodies_of_any_length_are_read_alike(count: int, before: bytes, after: bytes) -> None:
    """The topics of a large one are taken out first; what stands around them is read as well."""
    table = b"{ " + b" ,\n".join(map(topic_member, range(count))) + b" }"
    body = plain(table, before=before, after=after)
    assert (len(body) > BESIDE) == (count > 3)
    read = decode_register_broker(body)
    assert read.data_version.counter == 7
    assert list(read.topic_config_table) == [f"t{number:06d}" for number in range(count)]
    last = TopicConfig(f"t{count - 1:06d}", count - 1, 16, 4, order=True)
    assert read.topic_config_table[f"t{count - 1:06d}"] == last


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (plain(b'{"t":%b}' % (b"[" * BESIDE)), "is not an object of at most"),
        (plain(b"{%b}" % topic_member(1), after=b',"x":"%b"' % (b"x" * BESIDE)), "besides its"),
        (plain(b"{%b}" % topic_member(1), before=b'"x":"%b",' % (b"x" * BESIDE)), "first 4194304"),
        (plain(b"{%b}" % b",".join(map(topic_member, range(60_000)))) + b"}", "RegisterBrokerBody"),
        (plain(b"{%b}" % b",".join(map(topic_member, range(60_000))))[:-1], "RegisterBrokerBody"),
        (b'{"topicConfigTable":{%b}}' % b",".join(map(topic_member, range(60_000))), "not the one"),
        (
            plain(
                b"{%b}" % b",".join(map(topic_member, range(60_000))),
                after=b',"topicConfigTable":{}',
            ),
            "not the one",
        ),
        (plain(b"[%b]" % (b"0," * BESIDE)), "is not an object of at most"),
        (b'"topicConfigTable"' + b" " * BESIDE, "no topicConfigTable begins"),
    ],
)  # fmt: skip
def test_a_large_plain_body_that_is_none_is_a_protocol_error(body: bytes, reason: str) -> None:
    """Whatever stands there, it ends in one sentence."""
    assert len(body) > BESIDE
    with pytest.raises(RemoteProtocolError, match=reason):
        decode_register_broker(body)
