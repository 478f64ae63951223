"""Tests of mailboat.protocol.command."""

import json
import struct
from typing import Any

import pytest

from mailboat.errors import BrokerError, LocalProtocolError, RemoteProtocolError
from mailboat.protocol.command import (
    RemotingCommand,
    decode_command,
    optional_bool,
    optional_int,
    optional_int32,
    optional_str,
    required_bool,
    required_int,
    required_int32,
    required_str,
    wide_code,
)
from mailboat.protocol.frame import HEADER_MAX_BYTES, FrameDecoder


def from_json(text: str | bytes) -> RemotingCommand:
    """Decode a JSON header."""
    return decode_command((0, text if isinstance(text, bytes) else text.encode(), b""))


def written(command: RemotingCommand) -> dict[str, Any]:
    """Return the JSON header that a command is written with."""
    ((_, header, _),) = FrameDecoder().feed(command.encode())
    fields: dict[str, Any] = json.loads(header)
    return fields


def binary_header(
    code: int = 30,
    language: int = 0,
    remark: bytes = b"",
    ext: bytes = b"",
    *,
    remark_length: int | None = None,
    ext_length: int | None = None,
) -> bytes:
    """Return a binary header, with wrong lengths on demand."""
    return (
        struct.pack(">hbhii", code, language, 409, 7, 0)
        + struct.pack(">i", len(remark) if remark_length is None else remark_length)
        + remark
        + struct.pack(">i", len(ext) if ext_length is None else ext_length)
        + ext
    )


def test_ext_values_that_are_no_strings_become_strings() -> None:
    """Numbers and booleans of JavaScript clients read as Java would print them, null is absent."""
    command = from_json(
        '{"code":310,"opaque":1,"extFields":{"a":"x","b":5,"c":-9007199254740993,"d":true,'
        '"e":false,"f":null,"g":1.5,"h":4.0,"i":{"k":[1]}}}'
    )
    assert {
        "a": "x",
        "b": "5",
        "c": "-9007199254740993",
        "d": "true",
        "e": "false",
        "g": "1.5",
        "h": "4",
        "i": '{"k":[1]}',
    } == command.ext_fields


def test_unknown_keys_and_order_do_not_matter() -> None:
    """Whatever else a header holds is ignored, and absent parts have defaults."""
    command = from_json(
        '{"x":[{}],"opaque":-5,"flag":3,"code":34,"serializeTypeCurrentRPC":"JSON"}'
    )
    assert (34, -5, True, True) == (
        command.code,
        command.opaque,
        command.is_response,
        command.is_oneway,
    )
    assert (0, None, {}) == (command.version, command.remark, command.ext_fields)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ('"GO"', "GO"),
        ('"NODE_JS"', "NODE_JS"),
        ('"KLINGON"', "OTHER"),
        ("null", "OTHER"),
        ("7", "OTHER"),
        ('["GO"]', "OTHER"),
    ],
)
def test_unknown_languages_are_other(text: str, language: str) -> None:
    """A language we cannot pass on to administrators does not break the request."""
    assert language == from_json('{"code":1,"language":' + text + "}").language


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{}",
        b"null",
        b"[]",
        b"0",
        b'{"code":}',
        b'{"code":"x"}',
        b'{"code":1.5}',
        b'{"code":NaN}',
        b'{"code":1e400}',
        b'{"code":2147483648}',
        b'{"code":1,"opaque":-2147483649}',
        b'{"code":' + b"9" * 5000 + b"}",
        b'{"code":1,"extFields":{"a":' + b"9" * 5000 + b"}}",
        b'{"code":1,"extFields":{"a":Infinity}}',
        b'{"code":1,"extFields":[1]}',
        b'{"code":1,"extFields":{"a":"\xff"}}',
        b'{"code":1,"extFields":{"a":"\\ud800"}}',
        b'{"code":1,"x":' + b"[" * 60_000,
        b'{"code":1,"extFields":{"a":' + b'{"a":' * 10_000,
        b'{"code":1}}',
        b'\xef\xbb\xbf{"code":1}',
    ],
)
def test_bad_json_header_is_a_protocol_error(header: bytes) -> None:
    """Deep, huge, cut or otherwise wrong JSON ends as one documented error."""
    with pytest.raises(RemoteProtocolError):
        from_json(header)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        bytes(20),
        binary_header(remark_length=-1),
        binary_header(remark_length=1000),
        binary_header(ext_length=-1),
        binary_header(ext_length=1),
        binary_header(remark=b"\xff"),
        binary_header(ext=b"\x00"),
        binary_header(ext=struct.pack(">h", -1) + b"abcdef"),
        binary_header(ext=struct.pack(">h", 1) + b"k" + struct.pack(">i", -1)),
        binary_header(ext=struct.pack(">h", 1) + b"k" + struct.pack(">i", 9) + b"v"),
        # A length that leads back to where the field began must not be followed for ever.
        binary_header(ext=struct.pack(">h", 1) + b"k" + struct.pack(">i", -7)),
        binary_header(ext=struct.pack(">h", 1) + b"\xff" + struct.pack(">i", 1) + b"v"),
        # The value ends inside the header but beyond the ext fields.
        binary_header(ext=b"\0\1k\0\0\0\3v", ext_length=8) + b"zz",
    ],
)
def test_bad_binary_header_is_a_protocol_error(header: bytes) -> None:
    """Negative and too large lengths, cut fields and bad text end as one documented error."""
    with pytest.raises(RemoteProtocolError):
        decode_command((1, header, b""))


def test_empty_binary_texts_are_absent() -> None:
    """A length of 0 stands for null: no remark, no ext field."""
    ext = b"\0\1k\0\0\0\0" + b"\0\1l\0\0\0\1v"
    command = decode_command((1, binary_header(ext=ext), b""))
    assert (None, {"l": "v"}) == (command.remark, command.ext_fields)


@pytest.mark.parametrize(
    ("low_bits", "code"), [(3442, 200050), (3448, 200056), (3543, 200151), (310, 310), (3449, 3449)]
)
def test_wide_codes_survive_the_binary_header(low_bits: int, code: int) -> None:
    """Codes above int16 arrive as their low bits and are put right; they leave the same way."""
    assert code == wide_code(low_bits)
    command = decode_command((1, binary_header(code=low_bits), b""))
    assert code == command.code
    ((_, header, _),) = FrameDecoder().feed(command.encode())
    assert low_bits == struct.unpack_from(">h", header)[0]


def test_binary_response_code_is_not_aliased() -> None:
    """The code of a response is a response code, whatever its number."""
    header = bytearray(binary_header(code=3442))
    header[12] = 1  # the last byte of flag
    assert 3442 == decode_command((1, bytes(header), b"")).code


def test_unknown_binary_language_is_other() -> None:
    """A language code of a newer release does not break the request."""
    assert "OTHER" == decode_command((1, binary_header(language=99), b"")).language
    assert "OTHER" == decode_command((1, binary_header(language=-1), b"")).language


def test_request_turns_ext_values_into_strings() -> None:
    """Go reads a map of strings, so only strings are written; None is left out."""
    command = RemotingCommand.request(
        17, {"topic": "T", "perm": 6, "order": False, "force": True, "attributes": None}
    )
    fields = written(command)
    assert {"topic": "T", "perm": "6", "order": "false", "force": "true"} == fields["extFields"]
    assert (17, 0, "PYTHON", 479) == tuple(
        fields[key] for key in ("code", "flag", "language", "version")
    )


def test_absent_remark_and_ext_fields_are_not_written() -> None:
    """Administrators' tools tell an absent ext map from an empty one: none is written if empty."""
    fields = written(RemotingCommand.request(206))
    assert {"remark", "extFields"}.isdisjoint(fields)


def test_oneway_request_carries_its_bit() -> None:
    """A one-way request says so."""
    assert 2 == written(RemotingCommand.request(40, oneway=True))["flag"]


@pytest.mark.parametrize("serialize_type", [0, 1])
def test_response_matches_its_request(serialize_type: int) -> None:
    """A response echoes the opaque, sets the response bit and is written as the request was."""
    request = RemotingCommand(105, opaque=-2147483648, serialize_type=serialize_type)
    response = request.response(17, "no route", {"n": 1}, b"body")
    ((form, header, body),) = FrameDecoder().feed(response.encode())
    decoded = decode_command((form, header, body))
    assert (serialize_type, b"body") == (form, body)
    assert (17, -2147483648, 1, "no route", {"n": "1"}) == (
        decoded.code,
        decoded.opaque,
        decoded.flag,
        decoded.remark,
        decoded.ext_fields,
    )


def test_what_a_header_cannot_carry_is_a_local_error() -> None:
    """Numbers and texts beyond the format are refused before a byte is sent."""
    with pytest.raises(LocalProtocolError):
        RemotingCommand(1, opaque=2**31, serialize_type=1).encode()
    with pytest.raises(LocalProtocolError):
        RemotingCommand(1, ext_fields={"k" * 40_000: "v"}, serialize_type=1).encode()
    with pytest.raises(LocalProtocolError):
        RemotingCommand(1, ext_fields={"k": "v" * HEADER_MAX_BYTES}).encode()
    with pytest.raises(LocalProtocolError):
        RemotingCommand(1, remark="\ud800").encode()


def test_repr_shows_the_header_and_not_the_body() -> None:
    """Logs and failures show what a command is without its body."""
    text = repr(RemotingCommand.request(105, {"topic": "T"}, b"secret"))
    assert "GET_ROUTEINFO_BY_TOPIC" in text
    assert "secret" not in text


def command_with(**ext_fields: str) -> RemotingCommand:
    """Return a pull request with these ext fields."""
    return RemotingCommand(11, ext_fields=ext_fields)


def test_typed_reads_return_values() -> None:
    """Fields read as Java reads them: decimal numbers with a sign, "true" in any case."""
    command = command_with(s="x", i="-5", p="+7", big="9223372036854775807", t="TRUE", f="yes")
    assert "x" == required_str(command, "s")
    assert (-5, 7) == (required_int32(command, "i"), required_int32(command, "p"))
    assert 2**63 - 1 == required_int(command, "big")
    assert (True, False) == (required_bool(command, "t"), required_bool(command, "f"))
    assert (None, "d") == (optional_str(command, "n"), optional_str(command, "n", "d"))
    assert (3, -5) == (optional_int(command, "n", 3), optional_int(command, "i", 3))
    assert (3, -5) == (optional_int32(command, "n", 3), optional_int32(command, "i", 3))
    assert (True, True) == (optional_bool(command, "n", True), optional_bool(command, "t"))


@pytest.mark.parametrize("text", ["", " 5", "5 ", "1_000", "٣", "0x1", "1.0", "-", "2147483648"])
def test_field_that_is_no_int32_is_named(text: str) -> None:
    """The refusal names the request, the field and the value in one sentence."""
    with pytest.raises(BrokerError) as caught:
        required_int32(command_with(queueId=text), "queueId")
    assert 1 == caught.value.code
    expected = f"request PULL_MESSAGE: field 'queueId' is not an int32: {text!r}"
    assert expected == caught.value.remark


def test_missing_field_is_named() -> None:
    """The refusal names the request and the field."""
    with pytest.raises(BrokerError, match="request PULL_MESSAGE: field 'topic' is missing"):
        required_str(command_with(), "topic")
    with pytest.raises(BrokerError, match="field 'offset' is missing"):
        required_int(command_with(), "offset")


def test_number_beyond_int64_is_refused() -> None:
    """An offset that no store can hold is refused."""
    with pytest.raises(BrokerError, match="is not an int64"):
        required_int(command_with(offset="9223372036854775808"), "offset")
    with pytest.raises(BrokerError, match="is not an int64"):
        optional_int(command_with(offset="9" * 5000), "offset", 0)


def test_bad_field_of_a_response_is_named() -> None:
    """Our client complains about a server's answer with the same clarity."""
    response = RemotingCommand(0, flag=1, opaque=9)
    with pytest.raises(BrokerError, match="response to opaque 9: field 'offset' is missing"):
        required_int(response, "offset")


def test_no_secret_is_shown() -> None:
    """Commands stand in errors and logs; a signature can be sent again."""
    names = ("Signature", "SecurityToken", "secretKey", "password")
    command = RemotingCommand.request(10, {**dict.fromkeys(names, "s3cr3t"), "AccessKey": "me"})
    assert "s3cr3t" not in repr(command)
    assert "'AccessKey': 'me'" in repr(command)
