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
from mailboat.replication.wire import MOST_RECORD_BYTES

FIRST_BYTE: Final = 0
"""Of a slave's report: the offset is below 2 ** 56."""

FRAME_HEAD: Final = struct.Struct(">qi")
"""Physical offset and size of what follows."""

HEARTBEAT_S: Final = 5.0
"""Either side says something after this time."""

SILENT_S: Final = 20.0
"""Who has said nothing for this time is gone; a slave of 4.9 takes 6 s for its first report."""

MOST_OFFSET: Final = 2**56
"""Physical offsets are below it."""

_REPORT: Final = struct.Struct(">q")
_MAGIC: Final = struct.Struct(">iI")
# A slave of RocketMQ takes no larger one.
_MOST_FRAME_BYTES: Final = 4 << 20
# Of frames that come as one: what is damaged is found with what is near it.
_JOINED_BYTES: Final = 512


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
            if not 0 <= physical_offset < MOST_OFFSET:
                raise RemoteProtocolError(f"it says that its log ends at {physical_offset}")
        return physical_offset


class FrameDecoder:
    """Cuts what a master sends into frames; memory holds one of them at most."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Take bytes; return the physical offset and the content of the frames that are whole now.

        Small ones that follow each other come as one, so that they are no more work than others; a
        heartbeat is one without content, of which a master that slows itself down sends any number.

        Raises:
            RemoteProtocolError: no master of RocketMQ sends that.
        """
        buffer = self._buffer
        buffer += data
        found: list[tuple[int, bytes]] = []
        begin, joined = -1, bytearray()
        at, end = 0, len(buffer)
        while end - at >= FRAME_HEAD.size:
            physical_offset, size = FRAME_HEAD.unpack_from(buffer, at)
            if not (0 <= physical_offset < MOST_OFFSET and 0 <= size <= _MOST_FRAME_BYTES):
                raise RemoteProtocolError(f"a frame of {size} bytes at {physical_offset}")
            body_at = at + FRAME_HEAD.size
            if end - body_at < size:
                break
            if physical_offset != begin + len(joined) or len(joined) >= _JOINED_BYTES:
                if begin >= 0:
                    found.append((begin, bytes(joined)))
                begin, joined = physical_offset, bytearray()
            at = body_at + size
            joined += buffer[body_at:at]
        del buffer[:at]
        if begin >= 0:
            found.append((begin, bytes(joined)))
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
            if size > MOST_RECORD_BYTES:
                # It would have to be kept until it is whole, and no replica of ours could take it.
                raise ValueError(f"a record of {size} bytes begins at {self._begin + at}")
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
        self._taken = 0
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
        return self._taken == len(self._data)

    def take(self, data: bytes) -> bytes:
        """Compare what has come; return what is behind the end of the log.

        Raises:
            ValueError: the master has something else.
        """
        begin = self._taken
        self._taken = end = min(begin + len(data), len(self._data))
        alike = max(min(end, self._alike) - begin, 0)
        if data[:alike] != self._data[begin : begin + alike]:
            at = self._physical_offset
            raise ValueError(f"from {at + begin} to {at + end} the master has another log")
        return data[end - begin :]
