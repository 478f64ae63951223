"""Keys on their way into an index: packed rows, and the slots and entries that they become.

A row, in native byte order:

    offset  size  field
    0       4     unsigned hash of `topic#key`
    4       8     physical offset of the message

The compiled core makes such rows of what it stores, and where it is used, the slots are its own.
"""

import mmap
from collections.abc import Callable
from struct import Struct
from typing import Final, TypeAlias

from mailboat import core
from mailboat.model.tags import unsigned_text_hash

ROW: Final = Struct("=Iq")
SLOT_BYTES: Final = 4
# The number of the previous entry is what the slot holds, byte for byte.
_ENTRY: Final = Struct(">iqi4s")
_NUMBER: Final = Struct(">i")
_EMPTY: Final = bytes(SLOT_BYTES)


def index_hash(unsigned_hash: int) -> int:
    """Return the absolute value that IndexFiles use, 0 for the one int that has none."""
    if unsigned_hash & 0x80000000:
        return (0x100000000 - unsigned_hash) & 0x7FFFFFFF
    return unsigned_hash


def key_rows(seed: int, unique_key: str | None, keys: str | None, physical_offset: int) -> bytes:
    """Return a row for each key of a message: the unique key first.

    Args:
        seed: the unsigned hash of `topic#`.
        unique_key: the producer's id.
        keys: further keys, joined by spaces; RocketMQ splits them at single spaces only.
        physical_offset: of the message.
    """
    rows = ROW.pack(unsigned_text_hash(unique_key, seed), physical_offset) if unique_key else b""
    if not keys:
        return rows
    singles = filter(None, keys.split(" "))
    return rows + b"".join(
        [ROW.pack(unsigned_text_hash(key, seed), physical_offset) for key in singles]
    )


class DefinedSlots:
    """The slots of one file as they are on the disk; how keys change them is defined here."""

    __slots__ = ("_memory",)

    def __init__(self, slot_count: int) -> None:
        """Begin with empty slots."""
        # Anonymous memory: only the pages that slots fall into cost anything.
        self._memory = mmap.mmap(-1, slot_count * SLOT_BYTES)

    def load(self, data: bytes) -> None:
        """Take over all slots."""
        self._memory[:] = data

    def copy(self) -> bytes:
        """Return all slots."""
        return self._memory[:]

    def newest(self, key_hash: int) -> int:
        """Return the number of the newest entry of the slot of a key, 0 when it is empty."""
        at = key_hash * SLOT_BYTES % len(self._memory)
        return int(_NUMBER.unpack_from(self._memory, at)[0])

    def put(self, rows: bytes, entry_count: int, seconds: int) -> tuple[bytes, int]:
        """Put keys into their slots, one after the other.

        Args:
            rows: a `ROW` for each key.
            entry_count: how many entries the file has; there is room for these.
            seconds: from the file's begin to the store time of the messages.

        Returns:
            Their entries, as the file has them, and how many slots were empty before.
        """
        memory, size_bytes = self._memory, len(self._memory)
        pack, put_number = _ENTRY.pack, _NUMBER.pack_into
        entries: list[bytes] = []
        number, new_slots = entry_count, 0
        for key_hash, physical_offset in ROW.iter_unpack(rows):
            if key_hash >= 0x80000000:
                key_hash = index_hash(key_hash)
            at = key_hash * SLOT_BYTES % size_bytes
            previous = memory[at : at + SLOT_BYTES]
            number += 1
            put_number(memory, at, number)
            entries.append(pack(key_hash, physical_offset, seconds, previous))
            if previous == _EMPTY:
                new_slots += 1
        return b"".join(entries), new_slots


Slots: TypeAlias = "DefinedSlots | core.native.IndexSlots"

make_slots: Callable[[int], Slots] = core.native.IndexSlots if core.FOUND.is_used else DefinedSlots
"""Makes the slots of a new file, by their count."""
