"""Properties of frames, commands and the hot headers."""

import json
import struct
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mailboat.errors import BrokerError, RemoteProtocolError
from mailboat.protocol.command import RemotingCommand, decode_command
from mailboat.protocol.frame import Frame, FrameDecoder, encode_frame
from mailboat.protocol.send_header import (
    _LONG_NAMES,
    _SHORT_NAMES,
    MalformedRequestError,
    SendFields,
    decode_pull_header,
    decode_send_header,
    encode_send_response,
    peek_code,
    pull_request,
    send_request,
)

UNHURRIED = settings(deadline=None)  # other work on the machine is no failure
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=40)
NAMES = st.text(min_size=1, max_size=20)
FRAMES = st.lists(
    st.tuples(st.integers(0, 1), st.binary(max_size=200), st.binary(max_size=200)), max_size=6
)
COMMANDS = st.builds(
    RemotingCommand,
    INT32,
    opaque=INT32,
    flag=st.integers(0, 3),
    version=INT32,
    language=st.sampled_from(["JAVA", "GO", "PYTHON", "OTHER"]),
    remark=st.none() | TEXT,
    ext_fields=st.dictionaries(NAMES, TEXT, max_size=5),
    body=st.binary(max_size=50),
    serialize_type=st.just(0),
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def fields_of(command: RemotingCommand) -> dict[str, Any]:
    """Return every field of a command."""
    return {name: getattr(command, name) for name in RemotingCommand.__slots__}


def outcome(decoder: FrameDecoder, chunks: list[bytes]) -> tuple[list[Frame], str | None]:
    """Feed chunks; return the frames and the text of the error that ended it."""
    frames: list[Frame] = []
    for chunk in chunks:
        try:
            frames += decoder.feed(chunk)
        except RemoteProtocolError as error:
            return frames, str(error)
        if decoder.failure is not None:
            return frames, str(decoder.failure)
    return frames, None


@UNHURRIED
@given(FRAMES, st.binary(max_size=30), st.data())
def test_frames_do_not_depend_on_how_bytes_arrive(
    frames: list[Frame], tail: bytes, data: st.DataObject
) -> None:
    """Whole input, byte by byte and any pieces give the same frames and the same error."""
    stream = b"".join(encode_frame(*frame) for frame in frames) + tail
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8).map(sorted))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    single_bytes = [stream[i : i + 1] for i in range(len(stream))]
    whole = outcome(FrameDecoder(), [stream])
    assert frames == whole[0][: len(frames)]
    assert whole == outcome(FrameDecoder(), single_bytes)
    assert whole == outcome(FrameDecoder(), pieces)


@UNHURRIED
@given(st.integers(4090, 9000), st.lists(st.integers(1, 5000), min_size=1, max_size=6))
def test_large_and_small_pieces_mix(size: int, steps: list[int]) -> None:
    """A frame cut into pieces of any sizes, in any order of sizes, arrives whole."""
    body = bytes(range(256)) * (size // 256 + 1)
    stream = encode_frame(0, b"{}", body)
    decoder = FrameDecoder()
    frames: list[Frame] = []
    position = 0
    while position < len(stream):
        step = steps[position % len(steps)]
        frames += decoder.feed(stream[position : position + step])
        position += step
    assert [(0, b"{}", body)] == frames


@UNHURRIED
@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_a_documented_error(data: bytes) -> None:
    """No input makes the frame decoder raise anything but RemoteProtocolError."""
    outcome(FrameDecoder(), [data])


@UNHURRIED
@given(COMMANDS)
def test_json_command_survives_the_round_trip(command: RemotingCommand) -> None:
    """Every field of a command comes back from JSON."""
    (frame,) = FrameDecoder().feed(command.encode())
    assert fields_of(command) == fields_of(decode_command(frame))


@UNHURRIED
@given(
    st.builds(
        RemotingCommand,
        st.integers(-32768, 3441) | st.integers(200050, 200056) | st.just(200151),
        opaque=INT32,
        flag=st.sampled_from([0, 2]),
        version=st.integers(-32768, 32767),
        language=st.sampled_from(["JAVA", "GO", "PYTHON", "OTHER"]),
        remark=st.none() | NAMES,
        ext_fields=st.dictionaries(NAMES, NAMES, max_size=5),
        body=st.binary(max_size=50),
        serialize_type=st.just(1),
    )
)
def test_binary_command_survives_the_round_trip(command: RemotingCommand) -> None:
    """Every field comes back from the binary form, which cannot carry empty texts."""
    (frame,) = FrameDecoder().feed(command.encode())
    assert fields_of(command) == fields_of(decode_command(frame))


@pytest.mark.parametrize("decode", [decode_command, decode_send_header, decode_pull_header])
@UNHURRIED
@given(form=st.integers(0, 1), header=st.binary(max_size=300))
@example(form=0, header=b'{"code":310,"extFields":{"a":"\\udc00"}}')
@example(form=1, header=struct.pack(">hbhiii", 310, 0, 0, 0, 0, 0) + struct.pack(">i", 0))
def test_any_header_is_a_value_or_a_documented_error(decode: Any, form: int, header: bytes) -> None:
    """No header bytes make a decoder raise anything undocumented."""
    try:
        decode((form, header, b""))
        peek_code((form, header, b""))
    except (RemoteProtocolError, BrokerError):
        pass


@UNHURRIED
@given(JSON_VALUES, st.data())
def test_any_json_is_a_command_or_a_documented_error(value: object, data: st.DataObject) -> None:
    """JSON of any shape, also in the place of single fields, ends well."""
    key = data.draw(st.sampled_from(["code", "flag", "opaque", "version", "language", "remark"]))
    for document in (value, {"code": 310, "extFields": value}, {"code": 34, key: value}):
        header = json.dumps(document).encode()
        for decode in (decode_command, decode_send_header, peek_code):
            try:
                result = decode((0, header, b""))
            except (RemoteProtocolError, MalformedRequestError):
                continue
            if isinstance(result, RemotingCommand):
                assert all(isinstance(text, str) for text in result.ext_fields.values())


SEND_EXT = st.fixed_dictionaries(
    {
        "a": TEXT,
        "b": TEXT,
        "c": TEXT,
        "d": INT32.map(str),
        "e": INT32.map(str),
        "f": INT32.map(str),
        "g": INT64.map(str),
        "h": INT32.map(str),
    },
    optional={
        "i": TEXT,
        "j": INT32.map(str),
        "k": st.sampled_from(["true", "false"]),
        "l": INT32.map(str),
        "m": st.sampled_from(["true", "false"]),
        "n": TEXT,
        "ReqT": st.just("0"),
    },
)
PULL_EXT = st.fixed_dictionaries(
    {
        "consumerGroup": TEXT,
        "topic": TEXT,
        "queueId": INT32.map(str),
        "queueOffset": INT64.map(str),
        "maxMsgNums": INT32.map(str),
        "sysFlag": INT32.map(str),
        "commitOffset": INT64.map(str),
        "suspendTimeoutMillis": INT64.map(str),
        "subVersion": INT64.map(str),
    },
    optional={"subscription": TEXT, "expressionType": TEXT},
)


@UNHURRIED
@given(SEND_EXT, st.sampled_from([310, 320]), INT32)
def test_fast_send_decoder_agrees_with_the_ordinary_one(
    ext: dict[str, str], code: int, opaque: int
) -> None:
    """The typed decoder and RemotingCommand read the same request out of the same bytes."""
    command = RemotingCommand(code, opaque=opaque, ext_fields=ext)
    (frame,) = FrameDecoder().feed(command.encode())
    assert code == peek_code(frame)
    assert send_request(decode_command(frame)) == decode_send_header(frame)


@UNHURRIED
@given(SEND_EXT)
def test_long_names_mean_what_short_names_mean(ext: dict[str, str]) -> None:
    """Code 10 and code 310 carry the same message under other names."""
    long_ext = {
        _LONG_NAMES[attribute]: ext[letter]
        for attribute, letter in _SHORT_NAMES.items()
        if letter in ext
    }
    (short,) = FrameDecoder().feed(RemotingCommand(310, ext_fields=ext).encode())
    (long,) = FrameDecoder().feed(RemotingCommand(10, ext_fields=long_ext).encode())
    short_fields = decode_send_header(short).fields
    long_fields = decode_send_header(long).fields
    for name in SendFields.__struct_fields__:
        assert getattr(short_fields, name) == getattr(long_fields, name)


@UNHURRIED
@given(PULL_EXT, INT32)
def test_fast_pull_decoder_agrees_with_the_ordinary_one(ext: dict[str, str], opaque: int) -> None:
    """The typed decoder and RemotingCommand read the same request out of the same bytes."""
    (frame,) = FrameDecoder().feed(RemotingCommand(11, opaque=opaque, ext_fields=ext).encode())
    assert pull_request(decode_command(frame)) == decode_pull_header(frame)


@UNHURRIED
@given(INT32, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))
def test_send_response_template_is_a_command(opaque: int, queue_id: int, offset: int) -> None:
    """The template agrees with the ordinary encoder for any numbers."""
    (frame,) = FrameDecoder().feed(encode_send_response(opaque, b"0A", queue_id, offset))
    response = decode_command(frame)
    assert (opaque, str(queue_id), str(offset)) == (
        response.opaque,
        response.ext_fields["queueId"],
        response.ext_fields["queueOffset"],
    )
