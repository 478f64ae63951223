"""Reading the records of segments: one, or all of them from first to last.

Bytes that cannot be read are told apart from bytes that are wrong: `UnreadableError` and
`ValueError`.
"""

import errno
from typing import Final

from mailboat.disk import UnreadableError
from mailboat.model.record import (
    BLANK_MAGIC,
    FILLER,
    FILLER_BYTES,
    FIXED_BYTES,
    HEAD,
    HEAD_V4,
    IPV6_EXTRA_BYTES,
    RecordParts,
    check_sums,
    locate,
)
from mailboat.model.sys_flag import BORN_HOST_V6, STORE_HOST_V6
from mailboat.store.segment import Segment

_WINDOW_BYTES: Final = 1 << 20
# Enough for most records, and no more than a disk reads anyway.
_FIRST_BYTES: Final = 4096
# Topic and properties with their sizes, and what two IPv6 hosts take more.
_MOST_BESIDE_BODY: Final = FIXED_BYTES + 2 * IPV6_EXTRA_BYTES + 1 + 2 * 65_535
_BODY_SIZE_AT: Final = HEAD_V4.size - 4


def read_record(
    view: memoryview, position: int, physical_offset: int, *, check_crc: bool
) -> RecordParts:
    """Check the record at a position of a buffer and that it was written for its place in the log.

    Raises:
        ValueError: it is not a good record; the text says why.
    """
    parts = locate(view, position, len(view))
    if parts.header.physical_offset != physical_offset:
        raise ValueError(f"the record was written for {parts.header.physical_offset}")
    if check_crc:
        check_sums(view, position, parts)
    return parts


def read_record_at(segment: Segment, physical_offset: int) -> tuple[memoryview, RecordParts]:
    """Return bytes that begin with the checked record at a physical offset, and its parts in them.

    Raises:
        ValueError: there is no good record; the text says why.
        UnreadableError: it cannot be read.
        OSError: it cannot be read now.
    """
    view, parts = SegmentReader(segment, _FIRST_BYTES).record(physical_offset - segment.start)
    check_sums(view, 0, parts)
    return view, parts


def find_record_at(segment: Segment, physical_offset: int) -> tuple[memoryview, RecordParts] | None:
    """Return what `read_record_at` does, None where there is no good record or it cannot be read.

    Raises:
        OSError: it cannot be read now.
    """
    try:
        return read_record_at(segment, physical_offset)
    except (ValueError, UnreadableError):
        return None


class SegmentReader:
    """Reads one segment from some position on, a window at a time."""

    __slots__ = ("_data", "_segment", "_start", "_view", "_window_bytes")

    def __init__(self, segment: Segment, window_bytes: int = _WINDOW_BYTES) -> None:
        """Read `segment`; no byte is read yet."""
        self._segment = segment
        self._window_bytes = window_bytes
        self._start = 0
        self._data = b""
        self._view = memoryview(b"")

    @property
    def size_bytes(self) -> int:
        """Size of the segment."""
        return self._segment.size_bytes

    def record(self, position: int) -> tuple[memoryview, RecordParts]:
        """Return bytes that hold the record at a position of the segment, and its parts in them.

        Its checksums are the caller's business.

        Raises:
            ValueError: there is no good record; the text says why.
            UnreadableError: it cannot be read.
            OSError: it cannot be read now.
        """
        at = self._cover(position, self._size_of_record(position))
        physical_offset = self._segment.start + position
        return self._view, read_record(self._view, at, physical_offset, check_crc=False)

    def block(self, position: int) -> tuple[bytes, int]:
        """Return bytes that hold the record at a position of the segment, and where it begins.

        What lies behind it in the window comes along, which may be nothing or a part of a record.

        Raises:
            UnreadableError: it cannot be read.
            OSError: it cannot be read now.
        """
        at = self._cover(position, self._size_of_record(position))
        return self._data, at

    def bytes_at(self, position: int, size: int) -> bytes:
        """Return so many bytes, fewer at the end of the segment.

        Raises:
            UnreadableError: they cannot be read.
            OSError: they cannot be read now.
        """
        size = min(size, self._segment.size_bytes - position)
        at = self._cover(position, size)
        return self._data[at : at + size]

    def is_filler(self, position: int) -> bool:
        """Tell whether nothing but a filler follows, or too few bytes for one.

        Raises:
            UnreadableError: it cannot be read.
            OSError: it cannot be read now.
        """
        head = self.bytes_at(position, FILLER_BYTES)
        if len(head) < FILLER_BYTES:
            return True
        remaining, magic = FILLER.unpack(head)
        return bool(magic == BLANK_MAGIC and remaining == self.size_bytes - position)

    def body_end(self, position: int) -> int | None:
        """Return where the body of a record ends by its head, None where its sizes disagree.

        Raises:
            UnreadableError: the head cannot be read.
            OSError: it cannot be read now.
        """
        rest = self._segment.size_bytes - position
        at = self._cover(position, min(FIXED_BYTES + 2 * IPV6_EXTRA_BYTES, rest))
        end = self._body_end(at) if rest >= FIXED_BYTES else None
        return end if end is not None and end <= self._segment.size_bytes else None

    def _size_of_record(self, position: int) -> int:
        """Return how many bytes to have of a record, not trusting what it says of its size."""
        rest = self._segment.size_bytes - position
        head_bytes = min(FIXED_BYTES + 2 * IPV6_EXTRA_BYTES, rest)
        at = self._cover(position, head_bytes)
        if head_bytes < FIXED_BYTES:
            return head_bytes
        size = int.from_bytes(self._data[at : at + 4], "big")
        if size > rest or size <= len(self._data) - at:
            return head_bytes if size > rest else size
        return size if self._body_end(at) is not None else head_bytes

    def _body_end(self, at: int) -> int | None:
        """Return where a body ends by its head, which the window has, None where sizes disagree."""
        size = int.from_bytes(self._data[at : at + 4], "big")
        sys_flag = HEAD.unpack_from(self._data, at)[7]
        body_size_at = at + _BODY_SIZE_AT
        body_size_at += IPV6_EXTRA_BYTES if sys_flag & BORN_HOST_V6 else 0
        body_size_at += IPV6_EXTRA_BYTES if sys_flag & STORE_HOST_V6 else 0
        body_size = int.from_bytes(self._data[body_size_at : body_size_at + 4], "big")
        if not body_size < size <= body_size + _MOST_BESIDE_BODY:
            return None
        return self._start + min(body_size_at + 4 + body_size, at + size)

    def _cover(self, position: int, size: int) -> int:
        """Have bytes of the segment in the window; return where in it they begin."""
        at = position - self._start
        if 0 <= at and at + size <= len(self._data):
            return at
        segment = self._segment
        wanted = min(max(size, self._window_bytes), segment.size_bytes - position)
        data = segment.read_up_to_damage(position, wanted)
        if len(data) < size:
            raise UnreadableError(errno.EIO, f"{segment.path} at {position + len(data)}")
        self._start, self._data, self._view = position, data, memoryview(data)
        return 0
