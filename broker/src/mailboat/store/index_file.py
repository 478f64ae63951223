"""One IndexFile: from a key to the physical offsets of the messages that carry it.

    offset       size             field (big-endian)
    0            8                begin store timestamp, ms
    8            8                end store timestamp, ms
    16           8                begin physical offset
    24           8                end physical offset
    32           4                slots in use
    36           4                entry count + 1 (entry 0 is never used)
    40           4 x slots        slot: number of its newest entry, 0 when empty
    40+4*slots   20 x entries     entry: key hash (4), physical offset (8), seconds since
                                  the file's begin (4), number of the previous entry (4)

The key is `topic#key`; its hash is the absolute value of Java's hash. Slots (as they are on the
disk) and header live in memory while the file is written (RocketMQ keeps them in the mapping),
entries gather and are written in pieces; a `snapshot` saves all of it. What was not written is
rebuilt from the CommitLog.

Source: apache/rocketmq store/index/IndexFile.java, IndexHeader.java @ rocketmq-all-5.3.3.
"""

import struct
import sys
from array import array
from collections.abc import Callable
from functools import partial
from typing import Final

from mailboat.disk import Disk, read_exactly, read_fully, sync, write_fully
from mailboat.store.file_pool import FilePool
from mailboat.store.index_rows import ROW, SLOT_BYTES, Slots, make_slots

HEADER: Final = struct.Struct(">qqqqii")
HEADER_BYTES: Final = 40
ENTRY: Final = struct.Struct(">iqii")
ENTRY_BYTES: Final = 20
assert HEADER.size == HEADER_BYTES
assert ENTRY.size == ENTRY_BYTES
_MAX_SECONDS: Final = 0x7FFFFFFF
# Entries of a chain that a search follows one by one before it looks through all of a time range.
_CHAIN_STEPS: Final = 512
_PAGE_ENTRIES: Final = 200
_SCAN_ENTRIES: Final = 3200
_HASH_BYTES: Final = 4


class IndexFile:
    """One index file, open for writing or only for look-ups.

    `entry_count` counts used entries (RocketMQ's header stores one more).
    """

    __slots__ = (
        "_begin_timestamp_ms",
        "_disk",
        "_entries",
        "_is_dirty",
        "_is_sealed",
        "_max_entries",
        "_pool",
        "_slot_count",
        "_slots",
        "_used_slots",
        "_written_entries",
        "begin_physical_offset",
        "end_physical_offset",
        "end_timestamp_ms",
        "entry_count",
        "path",
    )

    def __init__(
        self, disk: Disk, pool: FilePool, path: str, slot_count: int, max_entries: int
    ) -> None:
        """Name a file of the right size that holds nothing yet; `pool` opens it."""
        self._disk = disk
        self._pool = pool
        self._slot_count = slot_count
        self._max_entries = max_entries
        self._slots: Slots | None = None
        self._entries = bytearray()
        self._written_entries = 0
        self._used_slots = 0
        self._begin_timestamp_ms = 0
        self._is_dirty = False
        self._is_sealed = False
        self.path = path
        self.begin_physical_offset = 0
        self.end_physical_offset = 0
        self.end_timestamp_ms = 0
        self.entry_count = 0

    @property
    def _fd(self) -> int:
        return self._pool.get(self.path)

    @property
    def begin_timestamp_ms(self) -> int:
        """Store time of the first message."""
        return self._begin_timestamp_ms

    def put(self, rows: bytes, first_ms: int, newest_ms: int) -> None:
        """Add keys in the order of the log, at least one; there is room for all.

        The store times of their messages are in one second as the file counts them.

        Args:
            rows: an `index_rows.ROW` for each key.
            first_ms: store time of the first.
            newest_ms: the greatest store time.

        Raises:
            OSError: the slots cannot be read; nothing was added.
        """
        slots = self._slots
        if slots is None:
            slots = self._load_slots()
        if not self.entry_count:
            self.begin_physical_offset = ROW.unpack_from(rows)[1]
            self._begin_timestamp_ms = first_ms
        seconds = min(max((first_ms - self._begin_timestamp_ms) // 1000, 0), _MAX_SECONDS)
        entries, new_slots = slots.put(rows, self.entry_count, seconds)
        self._entries += entries
        self._used_slots += new_slots
        self.entry_count += len(entries) // ENTRY_BYTES
        # Records that were damaged come late.
        last = ROW.unpack_from(rows, len(rows) - ROW.size)[1]
        self.end_physical_offset = max(self.end_physical_offset, last)
        self.end_timestamp_ms = max(self.end_timestamp_ms, newest_ms)
        self._is_dirty = True

    @property
    def room(self) -> int:
        """How many more entries fit."""
        return self._max_entries - 1 - self.entry_count

    @property
    def pending_bytes(self) -> int:
        """Bytes of entries that are only in memory."""
        return len(self._entries)

    def write_entries(self) -> None:
        """Write the gathered entries to the page cache; header and slots stay in memory.

        Raises:
            OSError: some entries are still only in memory; the call may be repeated.
        """
        if self._entries:
            write_fully(
                self._disk, self._fd, self._entries, self._entry_at(self._written_entries + 1)
            )
            self._written_entries = self.entry_count
            self._entries.clear()

    def snapshot(self) -> Callable[[], None] | None:
        """Write the gathered entries and copy header and slots; None when nothing has changed.

        Returns:
            A call that writes the copy and makes the file durable; it may run on another thread.

        Raises:
            OSError: some entries are still only in memory; the call may be repeated.
        """
        if not self._is_dirty:
            return None
        self.write_entries()
        slots = (self._slots or self._load_slots()).copy()
        header = HEADER.pack(
            self._begin_timestamp_ms,
            self.end_timestamp_ms,
            self.begin_physical_offset,
            self.end_physical_offset,
            self._used_slots,
            self.entry_count + 1,
        )
        self._is_dirty = False

        return partial(self._make_durable, (header, 0), (slots, HEADER_BYTES))

    def sync(self) -> None:
        """Make what was written durable; does nothing once the file has expired.

        Raises:
            OSError: nothing is known to be durable.
        """
        self._make_durable()

    def _make_durable(self, *pieces: tuple[bytes | memoryview, int]) -> None:
        # Opened anew: the store's thread may close and remove the file while this runs elsewhere,
        # and its descriptor may be another file's by then.
        try:
            fd = self._disk.open(self.path)
        except FileNotFoundError:
            return
        try:
            for data, position in pieces:
                write_fully(self._disk, fd, data, position)
            sync(self._disk, fd)
        finally:
            self._disk.close(fd)

    def seal(self) -> Callable[[], None] | None:
        """Take a last `snapshot`; None when that was done before.

        Returns:
            A call that writes what is not written yet and gives the memory of the slots back. It
            comes after those of earlier snapshots: until then the slots on the disk are old ones.

        Raises:
            OSError: the file is not complete; the call may be repeated.
        """
        if self._is_sealed:
            return None
        save = self.snapshot()
        self._is_sealed = True

        def save_and_forget() -> None:
            if save is not None:
                save()
            self._slots = None

        return save_and_forget

    def load(self) -> None:
        """Read the header of an existing file; the slots follow when they are needed."""
        data = read_fully(self._disk, self._fd, HEADER_BYTES, 0)
        (
            self._begin_timestamp_ms,
            self.end_timestamp_ms,
            self.begin_physical_offset,
            self.end_physical_offset,
            self._used_slots,
            stored_count,
        ) = HEADER.unpack(data)
        self.entry_count = self._written_entries = min(max(stored_count - 1, 0), self._max_entries)

    def _load_slots(self) -> Slots:
        slots = make_slots(self._slot_count)
        if self._written_entries:
            slots.load(self._stored_slots())
        self._slots = slots
        return slots

    def _stored_slots(self) -> bytes:
        return read_fully(self._disk, self._fd, SLOT_BYTES * self._slot_count, HEADER_BYTES)

    def rewind(self, entry_count: int, physical_offset: int) -> bool:
        """Go back to the state in which the file had `entry_count` entries.

        Entries from there on belong to records at or above `physical_offset`.

        Returns:
            False when a crash has left header, slots or entries that do not allow it.

        Raises:
            OSError: the file cannot be read.
        """
        if self.entry_count < entry_count:
            return False
        # What is negative is unsigned beyond every entry.
        stored = array("I", self._stored_slots())
        if sys.byteorder == "little":
            stored.byteswap()
        if max(stored) > entry_count:
            for slot, newest in enumerate(stored):
                number = newest
                while number > entry_count:
                    if number > self.entry_count:
                        return False
                    key_hash, at, _, previous = self._entry(number)
                    # An entry that never reached the disk is zero, or an older one's bytes.
                    if key_hash % self._slot_count != slot or at < physical_offset:
                        return False
                    if not 0 <= previous < number:
                        return False
                    number = previous
                stored[slot] = number
        if sys.byteorder == "little":
            stored.byteswap()
        self._slots = make_slots(self._slot_count)
        self._slots.load(stored.tobytes())
        self.entry_count = self._written_entries = entry_count
        self._is_dirty = True
        return True

    def chain(self, key_hash: int) -> "IndexChain":
        """Return what a search for a key hash needs of this file, good on any thread.

        Later entries do not show in it.
        """
        return IndexChain(
            path=self.path,
            slot_count=self._slot_count,
            head=None if self._slots is None else self._slots.newest(key_hash),
            entry_count=self.entry_count,
            written_entries=self._written_entries,
            pending=bytes(self._entries),
            begin_timestamp_ms=self._begin_timestamp_ms,
        )

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        if number > self._written_entries:
            at = (number - self._written_entries - 1) * ENTRY_BYTES
            return ENTRY.unpack_from(self._entries, at)
        return ENTRY.unpack(read_fully(self._disk, self._fd, ENTRY_BYTES, self._entry_at(number)))

    def _entry_at(self, number: int) -> int:
        return HEADER_BYTES + self._slot_count * SLOT_BYTES + number * ENTRY_BYTES

    def close(self) -> None:
        """Close the file; what is only in memory is dropped."""
        self._pool.drop(self.path)


class IndexChain:
    """One file at one moment, for one key hash: what a search on another thread may look at.

    A chain is followed for some steps only: a key that every message carries has one as long as the
    file, and the messages of yesterday come last in it. What is left of the time range is then
    looked through in blocks, newest first, for the bytes of the hash. Entries lie in order of time
    as long as the clock of the broker that wrote them did not go back (mailboat's never does).
    """

    def __init__(
        self,
        path: str,
        *,
        slot_count: int,
        head: int | None,
        entry_count: int,
        written_entries: int,
        pending: bytes,
        begin_timestamp_ms: int,
    ) -> None:
        """Remember a file's state; `head` is the newest entry of the slot, None to read it."""
        self.path = path
        self._slot_count = slot_count
        self._head = head
        self._entry_count = entry_count
        self._written_entries = written_entries
        self._pending = pending
        self._begin_ms = begin_timestamp_ms
        self._block = b""
        self._block_first = 0

    def find(
        self, disk: Disk, fd: int, key_hash: int, limit: int, begin_ms: int, end_ms: int
    ) -> list[int]:
        """Return physical offsets of entries with a hash and a time in range, newest first.

        Raises:
            UnreadableError: the file is damaged.
            OSError: it cannot be read now.
        """
        found: list[int] = []
        number = self._head if self._head is not None else self._read_head(disk, fd, key_hash)
        for _ in range(_CHAIN_STEPS):
            if not 0 < number <= self._entry_count or len(found) >= limit:
                return found
            stored_hash, physical_offset, seconds, previous = self._entry(disk, fd, number)
            # Entries are exact to the second: the last one of a second counts as well.
            time_ms = self._begin_ms + seconds * 1000
            if time_ms + 999 < begin_ms:
                return found
            if stored_hash == key_hash and time_ms <= end_ms:
                found.append(physical_offset)
            if not previous < number:
                return found
            number = previous
        self._look_through(disk, fd, (key_hash, limit, begin_ms, end_ms), number, found)
        return found

    def _look_through(
        self,
        disk: Disk,
        fd: int,
        wanted: tuple[int, int, int, int],
        newest: int,
        found: list[int],
    ) -> None:
        """Go through all entries from `newest` down to the range's begin."""
        key_hash, limit, begin_ms, end_ms = wanted
        stored_hash = key_hash.to_bytes(_HASH_BYTES, "big")
        end = self._first_after(disk, fd, end_ms, newest) if newest else 0
        while end > 1 and len(found) < limit:
            first = max(end - _SCAN_ENTRIES, 1)
            block = self._read(disk, fd, first, end - first)
            at = len(block)
            while len(found) < limit:
                at = block.rfind(stored_hash, 0, at + _HASH_BYTES - 1)
                if at < 0:
                    break
                if at % ENTRY_BYTES == 0:
                    _, physical_offset, seconds, _ = ENTRY.unpack_from(block, at)
                    if self._begin_ms + seconds * 1000 + 999 < begin_ms:
                        return
                    if self._begin_ms + seconds * 1000 <= end_ms:
                        found.append(physical_offset)
            if self._begin_ms + ENTRY.unpack_from(block)[2] * 1000 + 999 < begin_ms:
                return
            end = first

    def _first_after(self, disk: Disk, fd: int, end_ms: int, newest: int) -> int:
        """Return the number of the first entry later than a time, behind `newest` at most."""
        low, high = 1, newest + 1
        while low < high:
            middle = (low + high) // 2
            seconds = ENTRY.unpack(self._read(disk, fd, middle, 1))[2]
            if self._begin_ms + seconds * 1000 <= end_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def _read_head(self, disk: Disk, fd: int, key_hash: int) -> int:
        position = HEADER_BYTES + key_hash % self._slot_count * SLOT_BYTES
        return int.from_bytes(read_exactly(disk, fd, SLOT_BYTES, position), "big", signed=True)

    def _entry(self, disk: Disk, fd: int, number: int) -> tuple[int, int, int, int]:
        if not self._block_first <= number < self._block_first + len(self._block) // ENTRY_BYTES:
            # The one before it in the chain is likely to lie before it in the file.
            self._block_first = max(number - _PAGE_ENTRIES + 1, 1)
            self._block = self._read(disk, fd, self._block_first, number - self._block_first + 1)
        return ENTRY.unpack_from(self._block, (number - self._block_first) * ENTRY_BYTES)

    def _read(self, disk: Disk, fd: int, first: int, count: int) -> bytes:
        """Return entries, from the file and from what was not written yet."""
        in_file = min(max(self._written_entries + 1 - first, 0), count)
        data = b""
        if in_file:
            position = HEADER_BYTES + self._slot_count * SLOT_BYTES + first * ENTRY_BYTES
            data = read_exactly(disk, fd, in_file * ENTRY_BYTES, position)
        begin = (first + in_file - self._written_entries - 1) * ENTRY_BYTES
        return data + self._pending[begin : begin + (count - in_file) * ENTRY_BYTES]


def index_file_bytes(slot_count: int, max_entries: int) -> int:
    """Return the size of a file."""
    return HEADER_BYTES + slot_count * SLOT_BYTES + max_entries * ENTRY_BYTES
