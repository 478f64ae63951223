"""Are the records of one read those asked for, each whole and unchanged? The definition in Python.

A record is the one asked for where it has the size, the queue offset and the physical offset that
the queue's unit says, and the topic and the queue id of that queue.

Works on columns (all sizes, all checksums, ...), so that the loops run inside C code: a third of
what a loop over records costs. A read that was checked is remembered by one checksum over all of
it: when the same read comes again (another consumer group, a replay), its bytes are compared with
that.
"""

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from isal.isal_zlib import crc32

from mailboat.model.record import (
    CRC_PROPERTY_BYTES,
    CRC_PROPERTY_HEAD,
    HEAD_V4,
    IPV6_EXTRA_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    RecordParts,
)
from mailboat.model.sys_flag import BORN_HOST_V6, STORE_HOST_V6
from mailboat.store.consume_queue import UNIT_BYTES, ConsumeQueue
from mailboat.store.places import unit_columns

# Seven fields of a record whose hosts are IPv4: size, magic, queue id, queue offset, physical
# offset, sysFlag and body size.
_HEAD: Final = "iI4xi4xqqi44xi"
_FIELDS: Final = 7
_ANY_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
_TOPIC_SIZE_BYTES: Final = {MAGIC_V1: 1, MAGIC_V2: 2}
CRC_MASK: Final = 0x7FFFFFFF
# A checksum property back to front: its digits are stored in that order.
CRC_PROPERTY_REVERSED: Final = b"\x02%010d" + CRC_PROPERTY_HEAD[::-1]
_CHECKED_PARTS: Final = f"%ds{CRC_PROPERTY_BYTES}s"
# Remembered reads, about 150 bytes each.
_VERIFIED_READS: Final = 32_768


def is_of(buffer: bytes | memoryview, parts: RecordParts, queue: ConsumeQueue) -> bool:
    """Tell whether a record says that it is of a queue."""
    topic = str(buffer[parts.topic_at : parts.topic_end], "utf-8", "replace")
    return (parts.header.queue_id, topic) == (queue.queue_id, queue.topic)


class RecordCheck:
    """Checks reads, and remembers those that were good."""

    __slots__ = ("_check_crc", "_verified")

    def __init__(self, *, check_crc: bool) -> None:
        """Check places and sizes, with `check_crc` also the bytes."""
        self._check_crc = check_crc
        # Queue, queue offset and physical offset of a read's first record: size and checksum of
        # its bytes.
        self._verified: dict[tuple[bytes, int, int, int], int] = {}

    def are_whole(self, records: bytes, places: bytes, topic: bytes, queue_id: int) -> bool:
        """Tell whether bytes consist of a queue's records of these places.

        False also where a record carries no checksum property: that one needs a closer look.
        """
        columns = unit_columns(len(places) // UNIT_BYTES).unpack(places)
        offsets, sizes, queue_offsets = columns[::3], columns[1::3], columns[2::3]
        key = (topic, queue_id, queue_offsets[0], offsets[0])
        fingerprint = len(records) << 32 | crc32(records)
        if self._verified.get(key) == fingerprint:
            return True
        in_place, checksums = _layouts(sizes)
        if len(records) != in_place.size:
            return False
        found = in_place.unpack(records)
        found_places = (found[::_FIELDS], found[3::_FIELDS], found[4::_FIELDS])
        if found_places != (sizes, queue_offsets, offsets):
            return False
        if found[2::_FIELDS].count(queue_id) != len(sizes) or not _have_topic(
            records,
            sizes,
            zip(found[1::_FIELDS], found[5::_FIELDS], found[6::_FIELDS], strict=True),
            topic,
        ):
            return False
        if self._check_crc and not _checksums_hold(checksums.unpack(records)):
            return False
        if len(self._verified) >= _VERIFIED_READS:
            del self._verified[next(iter(self._verified))]
        self._verified[key] = fingerprint
        return True


@lru_cache(maxsize=64)
def _layouts(sizes: tuple[int, ...]) -> tuple[struct.Struct, struct.Struct]:
    """Return two layouts of records one after the other, each as one row.

    The first has the head of each record, the second its bytes without the checksum property and
    that property. To make them costs as much as a loop over the records. Messages of like size,
    which are common, need it once.
    """
    count = len(sizes)
    in_place = ">" + f"{_HEAD}%dx" * count % tuple([size - HEAD_V4.size for size in sizes])
    parts = [size - CRC_PROPERTY_BYTES for size in sizes]
    return struct.Struct(in_place), struct.Struct(_CHECKED_PARTS * count % tuple(parts))


def _have_topic(
    records: bytes, sizes: tuple[int, ...], heads: Iterable[tuple[int, int, int]], topic: bytes
) -> bool:
    """Check the topic of each record, of which `heads` has magic, sysFlag and body size."""
    stored = bytes((len(topic),)) + topic if len(topic) < 256 else b""
    position = 0
    for size, (magic, sys_flag, body_size) in zip(sizes, heads, strict=True):
        end = position + size
        if stored and magic == MAGIC_V1 and not sys_flag & _ANY_V6:
            at = position + HEAD_V4.size + body_size
            topic_end = at + len(stored)
            if body_size < 0 or topic_end > end or records[at:topic_end] != stored:
                return False
        elif _topic_of(records[position:end], magic, sys_flag) != topic:
            return False
        position = end
    return True


def _topic_of(record: bytes, magic: int, sys_flag: int) -> bytes | None:
    """Return the topic of a record of any form, None where it runs over the record's end."""
    at = HEAD_V4.size - 4
    for host in (BORN_HOST_V6, STORE_HOST_V6):
        at += IPV6_EXTRA_BYTES if sys_flag & host else 0
    body_size = int.from_bytes(record[at : at + 4], "big", signed=True)
    size_bytes = _TOPIC_SIZE_BYTES.get(magic)
    if body_size < 0 or size_bytes is None:
        return None
    begin = at + 4 + body_size + size_bytes
    end = begin + int.from_bytes(record[begin - size_bytes : begin], "big")
    return record[begin:end] if end <= len(record) else None


def _checksums_hold(parts: tuple[bytes, ...]) -> bool:
    """Check that each record, in two parts, ends with the checksum property that belongs to it."""
    crcs = [crc32(content) & CRC_MASK for content in parts[::2]]
    crcs.reverse()
    expected = (CRC_PROPERTY_REVERSED * len(crcs) % tuple(crcs))[::-1]
    return expected == b"".join(parts[1::2])
