"""Cuts the byte stream of a connection into remoting frames and builds them.

| byte | size | content |
|---|---|---|
| 0 | 4 | number of bytes that follow this field |
| 4 | 1 | how the header is written: 0 JSON, 1 RocketMQ's binary form |
| 5 | 3 | header length |
| 8 | header length | header, see `mailboat.protocol.command` |
| ... | rest | body |

All integers are big-endian. Nothing is allocated for a length that was only declared: a frame costs
the bytes of it that really arrived.

Source: apache/rocketmq remoting/netty/NettyDecoder.java, remoting/protocol/RemotingCommand.java
"""

import re
import struct
from typing import Final

from mailboat.errors import LocalProtocolError, RemoteProtocolError
from mailboat.protocol.codes import ResponseCode

Frame = tuple[int, bytes, bytes]
"""(serialize type, header, body)."""

SERIALIZE_JSON: Final = 0
SERIALIZE_BINARY: Final = 1

FRAME_MAX_BYTES: Final = 16_777_216  # NettyDecoder.FRAME_MAX_LENGTH, its own length field included
HEADER_MAX_BYTES: Final = 262_144
"""Room for a pull that names its tags: 3,000 of 24 characters are 84 KB."""

_PREFIX: Final = struct.Struct(">II")
_PREFIX_BYTES: Final = 8
_LENGTH_BYTES: Final = 4
_SMALL_PIECE_BYTES: Final = 4096
_TLS_HANDSHAKE: Final = 0x16
# A header in JSON has its number behind its fields or before them. A field may look like it.
_OPAQUE: Final = re.compile(rb'"opaque"\s*:\s*(-?[0-9]{1,10})\b')
_FLAG: Final = re.compile(rb'"flag"\s*:\s*(-?[0-9]{1,10})\b')
_NUMBERS_WITHIN_BYTES: Final = 256
# In the binary form they stand behind code, language and version.
_BINARY_OPAQUE_AND_FLAG: Final = struct.Struct(">5xii")

LONG_HEADER: Final = -1
"""The code of a request whose header was too long: its remark says so, and is the answer."""

_RESPONSE_BIT: Final = 1


class TlsHelloError(RemoteProtocolError):
    """The peer began a TLS handshake where plain frames are spoken."""


class FrameDecoder:
    """Collects bytes as they arrive and hands out whole frames.

    Pieces of an unfinished frame are kept in a list and joined once; small pieces share one growing
    buffer, so that a peer which sends byte by byte costs neither quadratic time nor an object each.
    """

    __slots__ = ("_failure", "_needed", "_pieces", "_size", "completed_frames")

    def __init__(self) -> None:
        """Start before the first byte of a connection."""
        self._pieces: list[bytes | bytearray] = []
        self._size = 0
        self._needed = _LENGTH_BYTES
        self._failure: RemoteProtocolError | None = None
        self.completed_frames = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes of an unfinished frame that wait for the rest."""
        return self._size

    @property
    def failure(self) -> RemoteProtocolError | None:
        """What was wrong with the bytes after the frames handed out last."""
        return self._failure

    def clear(self) -> None:
        """Forget the unfinished frame, of a connection that is closed."""
        self._pieces = []
        self._size = 0

    def feed(self, data: bytes) -> list[Frame]:
        """Add bytes and return the frames that are complete with them, in order.

        The same as `cut` of what `gather` returns, and with the same errors.
        """
        gathered = self.gather(data)
        return [] if gathered is None else self.cut(gathered)

    def gather(self, data: bytes) -> bytes | None:
        """Return all that waits and `data` if that may be a whole frame; else keep it."""
        return self._join(data) if self._size else data

    def cut(self, data: bytes) -> list[Frame]:
        """Return the frames of `data`, which begins with one, and keep what is unfinished.

        Frames that stand before damaged bytes are returned; `failure` is then set and the next call
        raises. With no frame to return it raises at once.

        Raises:
            RemoteProtocolError: the bytes cannot be a frame, or a limit is exceeded.
        """
        if self._failure is not None:
            raise self._failure
        size = len(data)
        if size >= _PREFIX_BYTES:
            length, header_word = _PREFIX.unpack_from(data)
            body_start = _PREFIX_BYTES + header_word
            # Most reads are one whole frame with a JSON header, whose type byte is 0.
            if (
                length == size - _LENGTH_BYTES
                and body_start <= size <= FRAME_MAX_BYTES
                and header_word <= HEADER_MAX_BYTES
            ):
                self.completed_frames += 1
                return [(SERIALIZE_JSON, data[_PREFIX_BYTES:body_start], data[body_start:])]
        frames, position = self._cut(data)
        if self._failure is not None:
            if frames:
                return frames
            raise self._failure
        if position < len(data):
            self._keep(data[position:])
        return frames

    def _cut(self, data: bytes) -> tuple[list[Frame], int]:
        """Return the whole frames of `data` and where the unfinished one starts."""
        frames: list[Frame] = []
        unpack_prefix = _PREFIX.unpack_from
        size = len(data)
        position = 0
        while size - position >= _PREFIX_BYTES:
            length, header_word = unpack_prefix(data, position)
            header_length = header_word & 0xFFFFFF
            if (
                length > FRAME_MAX_BYTES - _LENGTH_BYTES
                or header_length + _LENGTH_BYTES > length
                or header_word >> 24 > SERIALIZE_BINARY
            ):
                self._failure = _damage(length, header_word)
                break
            end = position + _LENGTH_BYTES + length
            if end > size:
                self._needed = end - position
                break
            body_start = position + _PREFIX_BYTES + header_length
            header = data[position + _PREFIX_BYTES : body_start]
            if header_length > HEADER_MAX_BYTES:
                short = _instead_of(header, header_word >> 24)
                if short is None:
                    self._failure = RemoteProtocolError(_too_long(header_length))
                    break
                frames.append((SERIALIZE_JSON, short, b""))
            else:
                frames.append((header_word >> 24, header, data[body_start:end]))
            position = end
        else:
            self._check_short_prefix(data, position)
        self.completed_frames += len(frames)
        return frames, position

    def _check_short_prefix(self, data: bytes, position: int) -> None:
        """Refuse a bad frame length as soon as its four bytes are there; ask for the next field."""
        rest = len(data) - position
        self._needed = _LENGTH_BYTES if rest < _LENGTH_BYTES else _PREFIX_BYTES
        if rest >= _LENGTH_BYTES:
            length = int.from_bytes(data[position : position + _LENGTH_BYTES], "big")
            if not _LENGTH_BYTES <= length <= FRAME_MAX_BYTES - _LENGTH_BYTES:
                self._failure = _damage(length, 0)

    def _join(self, data: bytes) -> bytes | None:
        """Return everything that waited plus `data` once the next step is possible, else None."""
        if self._size + len(data) < self._needed:
            self._keep(data)
            return None
        pieces = self._pieces
        pieces.append(data)
        self._pieces = []
        self._size = 0
        return b"".join(pieces)

    def _keep(self, data: bytes) -> None:
        self._size += len(data)
        pieces = self._pieces
        if len(data) >= _SMALL_PIECE_BYTES:
            pieces.append(data)
        elif pieces and isinstance(pieces[-1], bytearray):
            pieces[-1] += data
        else:
            pieces.append(bytearray(data))


def encode_frame(serialize_type: int, header: bytes, body: bytes | memoryview = b"") -> bytes:
    """Return the whole frame around an encoded header.

    Raises:
        LocalProtocolError: header or frame would exceed the limits that every peer enforces.
    """
    return b"".join((_prefix(serialize_type, len(header), len(body)), header, body))


def encode_frame_head(serialize_type: int, header: bytes, body_bytes: int) -> bytes:
    """Return what comes before a body of so many bytes in a frame.

    Raises:
        LocalProtocolError: as `encode_frame`.
    """
    return _prefix(serialize_type, len(header), body_bytes) + header


def _prefix(serialize_type: int, header_length: int, body_length: int) -> bytes:
    length = _LENGTH_BYTES + header_length + body_length
    if header_length > HEADER_MAX_BYTES:
        raise LocalProtocolError(
            f"header of {header_length} bytes: the limit is {HEADER_MAX_BYTES} bytes"
        )
    if length + _LENGTH_BYTES > FRAME_MAX_BYTES:
        raise LocalProtocolError(
            f"frame of {length + _LENGTH_BYTES} bytes: the limit is {FRAME_MAX_BYTES} bytes"
        )
    return _PREFIX.pack(length, serialize_type << 24 | header_length)


def _damage(length: int, header_word: int) -> RemoteProtocolError:
    """Say which rule the two length words break."""
    if length >> 24 == _TLS_HANDSHAKE:
        return TlsHelloError("a TLS handshake arrived where plain frames are spoken")
    if length > FRAME_MAX_BYTES - _LENGTH_BYTES:
        return RemoteProtocolError(
            f"frame length {length + _LENGTH_BYTES} is above the limit of {FRAME_MAX_BYTES} bytes"
        )
    if header_word >> 24 > SERIALIZE_BINARY:
        return RemoteProtocolError(f"unknown header serialization {header_word >> 24}")
    return RemoteProtocolError(
        f"header length {header_word & 0xFFFFFF} does not fit into a frame of length {length}"
    )


def _too_long(header_length: int) -> str:
    return (
        f"a header of {header_length} bytes is above the limit of {HEADER_MAX_BYTES} bytes; name "
        "fewer tags, or send shorter properties"
    )


def _instead_of(header: bytes, serialize_type: int) -> bytes | None:
    """Return a header for a frame whose own is too long, None where it does not tell its number.

    A request becomes one that is answered with the reason, and the connection goes on. An answer
    becomes one that says the same to whoever asked.
    """
    if serialize_type == SERIALIZE_BINARY:
        opaque, flag = _BINARY_OPAQUE_AND_FLAG.unpack_from(header)
    else:
        opaque, flag = _number(_OPAQUE, header), _number(_FLAG, header) or 0
    if opaque is None:
        return None
    code = ResponseCode.SYSTEM_ERROR if flag & _RESPONSE_BIT else LONG_HEADER
    return b'{"code":%d,"flag":%d,"language":"OTHER","opaque":%d,"remark":"%b","version":0}' % (
        code, flag, opaque, _too_long(len(header)).encode(),
    )  # fmt: skip


def _number(pattern: re.Pattern[bytes], header: bytes) -> int | None:
    found = pattern.findall(header[-_NUMBERS_WITHIN_BYTES:])[-1:]
    found = found or pattern.findall(header[:_NUMBERS_WITHIN_BYTES])[:1]
    return int(found[0]) if found and -(1 << 31) <= int(found[0]) < 1 << 31 else None
