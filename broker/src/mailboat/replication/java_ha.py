"""RocketMQ's protocol between a slave and the master whose log it follows, as bytes.

One TCP connection to the master's `haListenPort`, without a handshake; all numbers are big-endian.
The slave reports where its log ends, at once or within 20 s, then every 5 s and after each write:

    offset  size  field
    0       8     physical offset behind its last byte; 0: it has nothing

The master sends frames from the offset of the first report on; without bytes, every
5 s, it is a heartbeat:

    offset  size  field
    0       8     physical offset of the first byte, which is where the slave's log ends
    8       4     n, how many bytes of the log follow
    12      n     bytes of one segment, not aligned to records

A slave writes what it gets without looking at it, cannot take anything back, and drops in silence
a frame that crosses the end of a segment. Nobody says who he is, or whose log it is.

Source: apache/rocketmq store/ha/DefaultHAConnection.java and DefaultHAClient.java @
rocketmq-all-5.3.3; 4.9.7 and 5.5.0 as they behave.
"""

import struct
from typing import Final

from mailboat.errors import RemoteProtocolError
from mailboat.model.record import BLANK_MAGIC, FIXED_BYTES, MAGIC_V1, MAGIC_V2

FIRST_BYTE: Final = 0
"""Of a slave's report: the offset is below 2 ** 56."""

FRAME_HEAD: Final = struct.Struct(">qi")
"""Physical offset and size of what follows."""

HEARTBEAT_S: Final = 5.0
"""Either side says something after this time."""

SILENT_S: Final = 20.0
"""Who has said nothing for this time is gone; a slave of 4.9 takes 6 s for its first report."""

_REPORT: Final = struct.Struct(">q")
_MOST_OFFSET: Final = 2**56
# Size, magic, and the record's own physical offset.
_RECORD_HEAD: Final = struct.Struct(">iI20xq")
_MAGIC: Final = struct.Struct(">iI")
# A slave of RocketMQ takes no larger one.
_MOST_FRAME_BYTES: Final = 4 << 20


class ReportDecoder:
    """Cuts what a slave sends into its reports."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._rest = b""

    def feed(self, data: bytes) -> int | None:
        """Take bytes; return the physical offset of the last report that is whole now.

        Raises:
            RemoteProtocolError: no slave of RocketMQ reports that.
        """
        data = self._rest + data
        whole = len(data) - len(data) % _REPORT.size
        self._rest = data[whole:]
        physical_offset = None
        for (physical_offset,) in _REPORT.iter_unpack(data[:whole]):
            if not 0 <= physical_offset < _MOST_OFFSET:
                raise RemoteProtocolError(f"it says that its log ends at {physical_offset}")
        return physical_offset


class RecordWalk:
    """Looks whether what is sent is one record after the other: no slave gets over what is not.

    A slave that is sent something else takes it, and shows nothing of the log from there on.
    """

    def __init__(self, physical_offset: int, segment_bytes: int, first: bytes) -> None:
        """Begin at a physical offset, where the log has `first`, some bytes of the same segment.

        Inside a record, nothing is looked at before the next segment.
        """
        self._segment_bytes = segment_bytes
        self._head = b""
        self._next = physical_offset
        if physical_offset % segment_bytes and not _is_head(first, physical_offset):
            self._next = self._segment_end

    @property
    def _segment_end(self) -> int:
        return self._next - self._next % self._segment_bytes + self._segment_bytes

    def feed(self, data: bytes, physical_offset: int) -> None:
        """Look at the bytes behind those of the last call.

        Raises:
            ValueError: at a physical offset there is no record, nor the filler of a segment.
        """
        begin = physical_offset - len(self._head)
        data = self._head + data
        self._head = b""
        while (at := self._next - begin) < len(data):
            left = len(data) - at
            size, magic = _MAGIC.unpack_from(data, at) if left >= _MAGIC.size else (0, 0)
            if magic == BLANK_MAGIC:
                self._next = self._segment_end
                continue
            if left < _RECORD_HEAD.size:
                self._head = data[at:]
                return
            if not _is_head(data[at : at + _RECORD_HEAD.size], self._next) or (
                self._next + size > self._segment_end
            ):
                raise ValueError(f"no record begins at {self._next}")
            self._next += size


class FrameDecoder:
    """Cuts what a master sends into frames; memory holds one of them at most."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Take bytes; return the physical offset and the content of the frames that are whole now.

        Of heartbeats behind each other the last one is returned: a master that slows itself down
        sends any number of them.

        Raises:
            RemoteProtocolError: no master of RocketMQ sends that.
        """
        buffer = self._buffer
        buffer += data
        found: list[tuple[int, bytes]] = []
        beat_offset = -1
        at, end = 0, len(buffer)
        while end - at >= FRAME_HEAD.size:
            physical_offset, size = FRAME_HEAD.unpack_from(buffer, at)
            if not (0 <= physical_offset < _MOST_OFFSET and 0 <= size <= _MOST_FRAME_BYTES):
                raise RemoteProtocolError(f"a frame of {size} bytes at {physical_offset}")
            body_at = at + FRAME_HEAD.size
            if not size:
                beat_offset = physical_offset
            elif end - body_at >= size:
                found.append((physical_offset, bytes(buffer[body_at : body_at + size])))
                beat_offset = -1
            else:
                break
            at = body_at + size
        del buffer[:at]
        if beat_offset >= 0:
            found.append((beat_offset, b""))
        return found


class RecordTail:
    """Makes whole records of the bytes of a log, which come in any pieces."""

    def __init__(self, physical_offset: int, segment_bytes: int) -> None:
        """Begin at a physical offset, where a record or a segment begins."""
        self._segment_bytes = segment_bytes
        self._buffer = bytearray()
        self._begin = physical_offset
        self._skips_to = physical_offset

    @property
    def received_end(self) -> int:
        """The physical offset behind the last byte that has come."""
        return self._begin + len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes; return what is whole now, as `ReplicaLog.follow` takes it.

        These are records of one segment, or the head of the filler that ends it. What is behind
        the head of a filler may be anything, and is dropped.

        Raises:
            ValueError: at a physical offset there is neither.
        """
        buffer = self._buffer
        buffer += data
        pieces: list[bytes] = []
        self._skip()
        begin, at, end = 0, 0, len(buffer)
        while end - at >= _MAGIC.size and self._begin + at >= self._skips_to:
            size, magic = _MAGIC.unpack_from(buffer, at)
            segment_end = self._segment_end(self._begin + at)
            if magic == BLANK_MAGIC:
                if at > begin:
                    pieces.append(bytes(buffer[begin:at]))
                head = _MAGIC.pack(segment_end - self._begin - at, BLANK_MAGIC)
                pieces.append(head)
                self._skips_to = segment_end
                at = begin = min(segment_end - self._begin, end)
                continue
            is_record = magic in (MAGIC_V1, MAGIC_V2) and size >= FIXED_BYTES
            if not is_record or self._begin + at + size > segment_end:
                raise ValueError(f"no record begins at {self._begin + at}")
            if end - at < size:
                break
            at += size
        if at > begin:
            pieces.append(bytes(buffer[begin:at]))
        del buffer[:at]
        self._begin += at
        return pieces

    def _skip(self) -> None:
        """Drop what is behind the head of a filler."""
        dropped = min(max(self._skips_to - self._begin, 0), len(self._buffer))
        del self._buffer[:dropped]
        self._begin += dropped

    def _segment_end(self, physical_offset: int) -> int:
        return physical_offset - physical_offset % self._segment_bytes + self._segment_bytes


class Overlap:
    """The end of a log, which a master must have as well before anything is put behind it.

    But for what is behind the head of a filler: that may be anything.
    """

    def __init__(self, data: bytes, physical_offset: int, segment_end: int) -> None:
        """Expect bytes of one segment from a physical offset on."""
        self._data = data
        self._physical_offset = physical_offset
        self._alike = len(data)
        head_at = len(data.rstrip(b"\0")) - _MAGIC.size
        if physical_offset + len(data) == segment_end and head_at >= 0:
            remaining, magic = _MAGIC.unpack_from(data, head_at)
            if magic == BLANK_MAGIC and physical_offset + head_at + remaining == segment_end:
                self._alike = head_at + _MAGIC.size

    @property
    def is_over(self) -> bool:
        """Whether all of it has come."""
        return not self._data

    def take(self, data: bytes) -> bytes:
        """Compare what has come; return what is behind the end of the log.

        Raises:
            ValueError: the master has something else.
        """
        expected = self._data[: len(data)]
        if data[: len(expected)][: self._alike] != expected[: self._alike]:
            end = self._physical_offset + len(expected)
            raise ValueError(f"from {self._physical_offset} to {end} the master has another log")
        self._data = self._data[len(expected) :]
        self._physical_offset += len(expected)
        self._alike = max(self._alike - len(expected), 0)
        return data[len(expected) :]


def _is_head(data: bytes, physical_offset: int) -> bool:
    """Tell whether a record or a filler begins with these bytes, at a physical offset."""
    if len(data) < _MAGIC.size:
        return False
    if _MAGIC.unpack_from(data)[1] == BLANK_MAGIC:
        return True
    if len(data) < _RECORD_HEAD.size:
        return False
    size, magic, own_offset = _RECORD_HEAD.unpack_from(data)
    return magic in (MAGIC_V1, MAGIC_V2) and size >= FIXED_BYTES and own_offset == physical_offset
