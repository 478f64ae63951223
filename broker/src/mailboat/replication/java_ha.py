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
