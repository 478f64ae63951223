"""Are the records of one read those asked for, each whole and unchanged? The definition in Python.

Works on columns (all sizes, all checksums, ...), so that the loops run inside C code: a third of
what a loop over records costs. A read that was checked is remembered by one checksum over all of
it: when the same read comes again (another consumer group, a replay), its bytes are compared with
that.
"""

import struct
from functools import lru_cache
from typing import Final

from isal.isal_zlib import crc32

from mailboat.model.record import CRC_PROPERTY_BYTES, CRC_PROPERTY_HEAD
from mailboat.store.consume_queue import UNIT_BYTES
from mailboat.store.places import unit_columns

# Size, queue offset and physical offset of a record.
PLACE: Final = struct.Struct(">i16xqq")
CRC_MASK: Final = 0x7FFFFFFF
# A checksum property back to front: its digits are stored in that order.
CRC_PROPERTY_REVERSED: Final = b"\x02%010d" + CRC_PROPERTY_HEAD[::-1]
_CHECKED_PARTS: Final = f"%ds{CRC_PROPERTY_BYTES}s"
# Remembered reads, about 150 bytes each.
_VERIFIED_READS: Final = 32_768


class RecordCheck:
    """Checks reads, and remembers those that were good."""

    __slots__ = ("_check_crc", "_verified")

    def __init__(self, *, check_crc: bool) -> None:
        """Check places and sizes, with `check_crc` also the bytes."""
        self._check_crc = check_crc
        # Queue offset and physical offset of a read's first record: size and checksum of its bytes.
        self._verified: dict[int, int] = {}

    def are_whole(self, records: bytes, places: bytes) -> bool:
        """Tell whether bytes consist of the records of these places.

        False also where a record carries no checksum property: that one needs a closer look.
        """
        columns = unit_columns(len(places) // UNIT_BYTES).unpack(places)
        offsets, sizes, queue_offsets = columns[::3], columns[1::3], columns[2::3]
        key = queue_offsets[0] << 64 | offsets[0]
        fingerprint = len(records) << 32 | crc32(records)
        if self._verified.get(key) == fingerprint:
            return True
        in_place, checksums = _layouts(sizes)
        if len(records) != in_place.size:
            return False
        found = in_place.unpack(records)
        if (found[::3], found[1::3], found[2::3]) != (sizes, queue_offsets, offsets):
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

    The first has each record's size, queue offset and physical offset, the second its bytes without
    and with only the checksum property. To make them costs as much as a loop over the records, and
    messages of like size, which are common, need it once.
    """
    count = len(sizes)
    in_place = ">" + "i16xqq%dx" * count % tuple([size - PLACE.size for size in sizes])
    parts = [size - CRC_PROPERTY_BYTES for size in sizes]
    return struct.Struct(in_place), struct.Struct(_CHECKED_PARTS * count % tuple(parts))


def _checksums_hold(parts: tuple[bytes, ...]) -> bool:
    """Check that each record, in two parts, ends with the checksum property that belongs to it."""
    crcs = [crc32(content) & CRC_MASK for content in parts[::2]]
    crcs.reverse()
    expected = (CRC_PROPERTY_REVERSED * len(crcs) % tuple(crcs))[::-1]
    return expected == b"".join(parts[1::2])
