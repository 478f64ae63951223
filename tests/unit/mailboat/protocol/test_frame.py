"""Tests of mailboat.protocol.frame."""

import struct
import tracemalloc

import pytest

from mailboat.errors import LocalProtocolError, RemoteProtocolError
from mailboat.protocol.command import decode_command
from mailboat.protocol.frame import (
    FRAME_MAX_BYTES,
    HEADER_MAX_BYTES,
    LONG_HEADER,
    FrameDecoder,
    TlsHelloError,
    encode_frame,
)


def prefix(length: int, header_word: int) -> bytes:
    """Return the two words in front of a header."""
    return struct.pack(">II", length & 0xFFFFFFFF, header_word)


def test_frame_is_prefix_header_body() -> None:
    """The length counts what follows it; the header word holds type and header length."""
    expected = bytes.fromhex("0000000b 01000003") + b"abc" + b"wxyz"
    assert expected == encode_frame(1, b"abc", b"wxyz")
    assert expected == encode_frame(1, b"abc", memoryview(b"wxyz"))


def test_frames_of_one_read_come_in_order() -> None:
    """Several frames in one read are all returned, the unfinished rest is kept."""
    data = encode_frame(0, b"{1}", b"x") + encode_frame(1, b"{2}") + encode_frame(0, b"{3}")
    decoder = FrameDecoder()
    assert [(0, b"{1}", b"x"), (1, b"{2}", b"")] == decoder.feed(data[:-1])
    assert len(encode_frame(0, b"{3}")) - 1 == decoder.buffered_bytes
    assert [(0, b"{3}", b"")] == decoder.feed(data[-1:])
    assert (0, 3) == (decoder.buffered_bytes, decoder.completed_frames)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (prefix(-1, 0), "above the limit"),
        (prefix(0x7FFFFFFF, 0), "above the limit"),
        (prefix(FRAME_MAX_BYTES - 3, 0), "above the limit"),
        (prefix(0, 0), "does not fit"),
        (prefix(3, 0), "does not fit"),
        (prefix(20, 17), "does not fit"),
        (prefix(20, 0x02000004), "unknown header serialization 2"),
        (prefix(20, 0xFF000004), "unknown header serialization 255"),
        (b"GET / HTTP/1.1\r\n", "above the limit"),
        (b"\xff\xff\xff\xff", "above the limit"),
        (b"\0\0\0\3", "does not fit"),
    ],
)
def test_impossible_prefix_is_refused_at_once(data: bytes, reason: str) -> None:
    """A length that breaks a rule is refused as soon as it is there, without waiting for bytes."""
    with pytest.raises(RemoteProtocolError, match=reason):
        FrameDecoder().feed(data)


@pytest.mark.parametrize(
    ("length", "header_word", "reason"),
    [
        (FRAME_MAX_BYTES - 3, 10, "above the limit of 16777216"),
        (300_000, HEADER_MAX_BYTES + 1, "header of 262145 bytes is above the limit of 262144"),
        (20, 17, "does not fit"),
        (20, 0x02000004, "unknown header serialization 2"),
    ],
)
def test_a_whole_frame_in_one_read_keeps_the_same_limits(
    length: int, header_word: int, reason: str
) -> None:
    """That all bytes are there makes no frame of what breaks a rule."""
    data = prefix(length, header_word) + bytes(length - 4)
    with pytest.raises(RemoteProtocolError, match=reason):
        FrameDecoder().feed(data)


@pytest.mark.parametrize(
    ("serialize_type", "begin", "end", "opaque", "flag"),
    [
        (0, b'{"code":11,"extFields":{"a":"', b'"},"flag":2,"opaque":-17}', -17, 2),
        (0, b'{"opaque" : 5,"extFields":{"a":"', b'"}}', 5, 0),
        (0, b'{"opaque":5,"extFields":{"a":"\\"opaque\\":6 ', b'"}}', 5, 0),
        (0, b'{"code":0,"flag":1,"opaque":5,"extFields":{"a":"', b'"}}', 5, 1),
        (1, bytes.fromhex("000b0001df0000000700000002"), b"", 7, 2),
    ],
)
def test_a_frame_with_too_long_a_header_has_another_one(
    serialize_type: int, begin: bytes, end: bytes, opaque: int, flag: int
) -> None:
    """Whose number is that of the request; what follows is read as ever."""
    header = begin + b"x" * (300_000 - len(begin + end)) + end
    data = prefix(310_004, serialize_type << 24 | len(header)) + header + bytes(10_000)
    decoder = FrameDecoder()
    assert decoder.feed(data[:-1]) == []
    frames = decoder.feed(data[-1:] + encode_frame(0, b"{}"))
    assert frames[1:] == [(0, b"{}", b"")]
    command = decode_command(frames[0])
    assert (command.opaque, command.flag) == (opaque, flag)
    assert command.code == (1 if flag & 1 else LONG_HEADER)
    assert command.remark is not None
    assert command.remark.startswith("a header of 300000 bytes is above the limit of 262144 bytes")


@pytest.mark.parametrize(
    "begin", [b"", b'{"opaque":99999999999,', b'{"opaque":9999999999,', b'{"opaque":"5",']
)
def test_too_long_a_header_without_a_number_is_damage(begin: bytes) -> None:
    """Nobody could be told."""
    data = prefix(300_004, 300_000) + begin.ljust(300_000, b"x")
    with pytest.raises(RemoteProtocolError, match="header of 300000 bytes is above the limit"):
        FrameDecoder().feed(data)


def test_tls_hello_has_its_own_error() -> None:
    """A TLS handshake is told apart from garbage."""
    with pytest.raises(TlsHelloError):
        FrameDecoder().feed(bytes.fromhex("16030100c5010000c1"))


def test_largest_frame_and_header_pass() -> None:
    """Exactly 16 MiB with a header of exactly 256 KiB is a frame, on both sides."""
    header = bytes(HEADER_MAX_BYTES)
    body = bytes(FRAME_MAX_BYTES - 8 - HEADER_MAX_BYTES)
    data = encode_frame(0, header, body)
    assert FRAME_MAX_BYTES == len(data)
    assert [(0, header, body)] == FrameDecoder().feed(data)


def test_too_large_frame_is_not_written() -> None:
    """What a peer would refuse is refused here first."""
    with pytest.raises(LocalProtocolError, match="frame of 16777217 bytes"):
        encode_frame(0, b"", bytes(FRAME_MAX_BYTES - 7))
    with pytest.raises(LocalProtocolError, match="header of 262145 bytes"):
        encode_frame(0, bytes(HEADER_MAX_BYTES + 1))


def test_good_frames_before_damage_are_not_lost() -> None:
    """Frames in front of damaged bytes are returned; the damage is reported and stays."""
    decoder = FrameDecoder()
    good = encode_frame(0, b"{}")
    assert [(0, b"{}", b"")] == decoder.feed(good + b"\xff\xff\xff\xff\xff\xff\xff\xff")
    assert decoder.failure is not None
    with pytest.raises(RemoteProtocolError):
        decoder.feed(good)


def test_declared_length_takes_no_memory() -> None:
    """A frame that claims 16 MB and sends ten bytes costs about ten bytes."""
    tracemalloc.start()
    try:
        decoder = FrameDecoder()
        decoder.feed(prefix(FRAME_MAX_BYTES - 4, 100) + b"ab")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 10 == decoder.buffered_bytes
    assert peak < 20_000


def test_tiny_pieces_cost_their_bytes_only() -> None:
    """A frame in pieces of two bytes is held in memory once, not as an object each."""
    body = bytes(200_000)
    data = encode_frame(0, b"{}", body)
    tracemalloc.start()
    try:
        decoder = FrameDecoder()
        for start in range(0, len(data) - 2, 2):
            assert [] == decoder.feed(data[start : start + 2])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [(0, b"{}", body)] == decoder.feed(data[-2:])
    assert peak < 2 * len(data)
