"""Tests of mailboat.protocol.send_header."""

import json
from typing import Any

import msgspec
import pytest

from mailboat.errors import RemoteProtocolError
from mailboat.protocol import send_header
from mailboat.protocol.command import RemotingCommand, decode_command
from mailboat.protocol.frame import Frame, FrameDecoder
from mailboat.protocol.send_header import (
    MalformedRequestError,
    SendFields,
    SendRequest,
    decode_pull_header,
    decode_send_header,
    encode_pull_response_header,
    encode_send_response,
    peek_code,
)

SHORT = {
    "a": "PG",
    "b": "T1",
    "c": "TBW102",
    "d": "4",
    "e": "-1",
    "f": "769",
    "g": "1700000000000",
    "h": "-7",
    "i": "TAGS\x01a",
    "j": "2",
    "k": "true",
    "l": "16",
    "m": "true",
    "n": "broker-a",
}
LONG = {
    "producerGroup": "PG",
    "topic": "T1",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "-1",
    "sysFlag": "769",
    "bornTimestamp": "1700000000000",
    "flag": "-7",
    "properties": "TAGS\x01a",
    "reconsumeTimes": "2",
    "unitMode": "true",
    "maxReconsumeTimes": "16",
    "batch": "true",
    "bname": "broker-a",
}
VALUES = (
    "PG", "T1", "TBW102", 4, -1, 769, 1700000000000, -7, "TAGS\x01a", 2, True, 16, True, "broker-a"
)  # fmt: skip
PULL = {
    "consumerGroup": "CG",
    "topic": "T1",
    "queueId": "3",
    "queueOffset": "5000000000",
    "maxMsgNums": "32",
    "sysFlag": "2",
    "commitOffset": "0",
    "suspendTimeoutMillis": "15000",
    "subVersion": "0",
}


def frame(code: int, ext_fields: dict[str, Any], form: int = 0, opaque: int = 5) -> Frame:
    """Return the frame of a request."""
    if form == 0:
        header = {"code": code, "extFields": ext_fields, "flag": 2, "opaque": opaque}
        return (0, json.dumps({**header, "version": 409}, separators=(",", ":")).encode(), b"")
    command = RemotingCommand(
        code, opaque=opaque, flag=2, version=409, ext_fields=ext_fields, serialize_type=1
    )
    return FrameDecoder().feed(command.encode())[0]


@pytest.mark.parametrize("form", [0, 1])
@pytest.mark.parametrize(("code", "ext"), [(10, LONG), (310, SHORT), (320, SHORT)])
def test_every_field_arrives_in_every_form(code: int, ext: dict[str, str], form: int) -> None:
    """Long and short names, JSON and binary give the same request."""
    request = decode_send_header(frame(code, ext, form))
    fields = request.fields
    assert VALUES == tuple(getattr(fields, name) for name in SendFields.__struct_fields__)
    assert (code, 2, 5, 409, form) == (
        request.code,
        request.flag,
        request.opaque,
        request.version,
        request.serialize_type,
    )


def test_long_and_short_names_have_one_shape() -> None:
    """The two decoders return objects with the same attributes and types."""
    assert isinstance(decode_send_header(frame(10, LONG)), SendRequest)
    types = [
        {field.name: (field.type, field.default) for field in msgspec.structs.fields(kind)}
        for kind in (SendFields, send_header._LongSendFields)
    ]
    assert types[0] == types[1]


def test_optional_fields_may_be_absent() -> None:
    """A header with the mandatory fields only has Java's defaults for the others."""
    fields = decode_send_header(frame(310, {key: SHORT[key] for key in "abcdefgh"})).fields
    assert ("", 0, False, None, False) == (
        fields.properties,
        fields.reconsume_times,
        fields.unit_mode,
        fields.max_reconsume_times,
        fields.batch,
    )


def test_javascript_values_are_understood() -> None:
    """Numbers, booleans and null instead of strings mean the same."""
    ext = {**SHORT, "d": 4, "e": 3, "f": 0, "g": 1700000000000, "k": False, "i": None, "l": None}
    fields = decode_send_header(frame(310, ext)).fields
    assert (4, 3, 0, 1700000000000, False, "", None) == (
        fields.default_topic_queue_nums,
        fields.queue_id,
        fields.sys_flag,
        fields.born_timestamp_ms,
        fields.unit_mode,
        fields.properties,
        fields.max_reconsume_times,
    )


def test_odd_booleans_are_false_as_in_java() -> None:
    """Boolean.parseBoolean takes everything but "true" for false."""
    assert decode_send_header(frame(310, {**SHORT, "m": "yes"})).fields.batch is False
    assert decode_send_header(frame(310, {**SHORT, "m": "True"})).fields.batch is True


@pytest.mark.parametrize("form", [0, 1])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"b": None}, "field 'b' is missing"),
        ({"e": None}, "field 'e' is missing"),
        ({"e": "x"}, "field 'e' is not an int32: 'x'"),
        ({"f": "2147483648"}, "field 'f' is not an int32: '2147483648'"),
        ({"g": "9223372036854775808"}, "field 'g' is not an int64: '9223372036854775808'"),
        ({"h": "1.5"}, "field 'h' is not an int32: '1.5'"),
    ],
)
def test_bad_send_field_is_named_and_can_be_answered(
    change: dict[str, str | None], sentence: str, form: int
) -> None:
    """The error names request and field and holds the request that has to be answered."""
    ext = {key: value for key, value in {**SHORT, **change}.items() if value is not None}
    with pytest.raises(MalformedRequestError) as caught:
        decode_send_header(frame(310, ext, form))
    assert (1, f"request SEND_MESSAGE_V2: {sentence}") == (caught.value.code, caught.value.remark)
    assert (5, form) == (caught.value.command.opaque, caught.value.command.serialize_type)


def test_bad_long_name_is_named() -> None:
    """Code 10 is complained about with its own names."""
    ext = {key: value for key, value in LONG.items() if key != "queueId"}
    with pytest.raises(MalformedRequestError, match="SEND_MESSAGE: field 'queueId' is missing"):
        decode_send_header(frame(10, ext))


def test_pull_fields_arrive_in_both_forms() -> None:
    """A pull without subscription has None where the client said nothing."""
    for form in (0, 1):
        request = decode_pull_header(frame(361, PULL, form))
        fields = request.fields
        assert (361, 5, form) == (request.code, request.opaque, request.serialize_type)
        assert ("CG", "T1", 3, 5000000000, 32, 2, 0, 15000, 0, None, None) == (
            fields.consumer_group,
            fields.topic,
            fields.queue_id,
            fields.queue_offset,
            fields.max_msg_nums,
            fields.sys_flag,
            fields.commit_offset,
            fields.suspend_timeout_millis,
            fields.sub_version,
            fields.subscription,
            fields.expression_type,
        )


def test_bad_pull_field_is_named_and_can_be_answered() -> None:
    """The error names request and field and holds the request that has to be answered."""
    with pytest.raises(
        MalformedRequestError, match="field 'queueOffset' is not an int64"
    ) as caught:
        decode_pull_header(frame(11, {**PULL, "queueOffset": "x"}))
    assert 5 == caught.value.command.opaque


@pytest.mark.parametrize("decode", [decode_send_header, decode_pull_header, peek_code])
@pytest.mark.parametrize("bad", [(0, b"", b""), (0, b"[" * 60_000, b""), (1, b"\0", b"")])
def test_unreadable_header_is_a_protocol_error(decode: Any, bad: Frame) -> None:
    """What is no header at all cannot be answered."""
    with pytest.raises(RemoteProtocolError):
        decode(bad)


@pytest.mark.parametrize("form", [0, 1])
@pytest.mark.parametrize("code", [10, 11, 34, 100, 310, 320, 361, 901, 200050, 200151])
def test_peeked_code_is_the_code(code: int, form: int) -> None:
    """The short look finds the code of every request."""
    assert code == peek_code(frame(code, {"a": "b"}, form))


def test_peek_does_not_depend_on_the_order_of_keys() -> None:
    """Headers that start with something else, and odd codes, are looked at properly."""
    assert 310 == peek_code((0, b'{"opaque":1,"code":310}', b""))
    assert 310 == peek_code((0, b'{"code" : 310 , "opaque":1}', b""))
    assert 31 == peek_code((0, b'{"code":31}', b""))
    assert 310 == peek_code((0, b'{"code":310}', b""))
    assert 3101 == peek_code((0, b'{"code":3101,"opaque":1}', b""))


def test_send_response_reads_as_a_command() -> None:
    """The template is a frame with every field that clients need."""
    data = encode_send_response(-5, b"7F000001000051AF0000000000000000", 3, 5000000000, code=10)
    (response_frame,) = FrameDecoder().feed(data)
    response = decode_command(response_frame)
    assert (10, -5, 1, 479, None) == (
        response.code,
        response.opaque,
        response.flag,
        response.version,
        response.remark,
    )
    assert {
        "msgId": "7F000001000051AF0000000000000000",
        "queueId": "3",
        "queueOffset": "5000000000",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    } == response.ext_fields


def test_templates_have_every_key_of_javas_answers() -> None:
    """The Rust client closes the connection on an answer without one of them."""
    send = encode_send_response(1, b"7F000001000051AF0000000000000000", 0, 0)
    pull = encode_pull_response_header(
        1,
        0,
        next_begin_offset=1,
        min_offset=0,
        max_offset=1,
        body_size=0,
        suggest_which_broker_id=0,
    )
    for data in (send, pull):
        ((_, header, _),) = FrameDecoder().feed(data)
        fields = json.loads(bytes(header))
        del fields["extFields"]
        assert fields == {
            "code": 0,
            "flag": 1,
            "language": "PYTHON",
            "opaque": 1,
            "serializeTypeCurrentRPC": "JSON",
            "version": 479,
        }


def test_pull_response_header_announces_its_body() -> None:
    """The header and the body that follows make one frame with all four mandatory fields."""
    data = encode_pull_response_header(
        7,
        0,
        next_begin_offset=5000000000,
        min_offset=1,
        max_offset=5000000001,
        body_size=7,
        suggest_which_broker_id=1,
    )
    (response_frame,) = FrameDecoder().feed(data + b"records")
    response = decode_command(response_frame)
    assert (0, 7, 1, b"records") == (
        response.code,
        response.opaque,
        response.flag,
        response.body,
    )
    assert {
        "nextBeginOffset": "5000000000",
        "minOffset": "1",
        "maxOffset": "5000000001",
        "suggestWhichBrokerId": "1",
    } == response.ext_fields
