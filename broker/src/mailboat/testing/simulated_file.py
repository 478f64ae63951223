"""Files and directories of the simulated disk: what is live, what is durable, what hangs between.

Belongs here: one file's bytes and one directory's names, with the changes that no sync has covered
yet, and what a power cut may leave of them. Never here: paths, descriptors, the clock.
"""

import mmap
from random import Random
from typing import Final, TypeAlias

from mailboat.disk import PAGE_BYTES

SECTOR_BYTES: Final = 512
"""What a device writes whole or not at all."""

# From this size on a file is anonymous memory, which costs nothing until it is touched.
_LARGE_BYTES: Final = 1 << 18

# A write (position, bytes), or a new size (size, None).
_Change: TypeAlias = tuple[int, bytes | None]


class _Image:
    """A file's bytes; those beyond `data` are zero."""

    __slots__ = ("data", "size")

    def __init__(self, data: bytearray, size: int) -> None:
        self.data = data
        self.size = size

    def apply(self, change: _Change) -> None:
        position, piece = change
        if piece is None:
            self.size = position
            del self.data[position:]
            return
        end = position + len(piece)
        if position > len(self.data):
            self.data.extend(bytes(position - len(self.data)))
        self.data[position:end] = piece
        self.size = max(self.size, end)

    def copy(self) -> "_Image":
        return _Image(bytearray(self.data), self.size)


class SimulatedFile:
    """One file: its live image, its durable image and the changes between the two, in order."""

    __slots__ = ("_bad_pages", "_durable", "_live", "_pending", "_reserved_bytes", "_used_pages")

    def __init__(self) -> None:
        """Start empty, live and durable."""
        self._durable = _Image(bytearray(), 0)
        self._live = _Live()
        self._pending: list[_Change] = []
        self._reserved_bytes = 0
        self._used_pages: set[int] = set()
        self._bad_pages: set[int] = set()

    @property
    def size(self) -> int:
        """The live size in bytes."""
        return self._live.size

    @property
    def durable_bytes(self) -> bytes:
        """What is left when every unsynced change is lost."""
        return bytes(self._durable.data).ljust(self._durable.size, b"\0")

    @property
    def allocated_bytes(self) -> int:
        """Room that the file takes on the volume."""
        return self._reserved_bytes + mmap.PAGESIZE * len(self._used_pages)

    @property
    def is_synced(self) -> bool:
        """Nothing would be lost."""
        return not self._pending

    def read(self, size: int, position: int) -> bytes:
        """Return up to `size` live bytes."""
        return self._live.read(size, position)

    def make_unreadable(self, position: int, size: int) -> None:
        """Lose the pages of a range, as a bad block does, until they are written over."""
        self._bad_pages.update(range(position // PAGE_BYTES, -(-(position + size) // PAGE_BYTES)))

    def readable_bytes(self, size: int, position: int) -> int:
        """Return how many of a range's bytes come before the first page that is lost."""
        touched = range(position // PAGE_BYTES, -(-(position + size) // PAGE_BYTES))
        first = min(self._bad_pages.intersection(touched), default=None)
        return size if first is None else max(first * PAGE_BYTES - position, 0)

    def lost_before_write(self, size: int, position: int) -> bool:
        """Tell whether a write must first read a page that is lost; pages written whole are back.

        Writing a part of a page that is not in memory reads the rest of it.
        """
        if not self._bad_pages:
            return False
        whole = range(-(-position // PAGE_BYTES), (position + size) // PAGE_BYTES)
        self._bad_pages.difference_update(whole)
        return self.readable_bytes(size, position) < size

    def write(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """Change live bytes."""
        piece = bytes(data)
        self._live.write(piece, position)
        self._pending.append((position, piece))
        self._used_pages |= self.new_pages(len(piece), position)

    def new_pages(self, size: int, position: int) -> set[int]:
        """Return the pages of a range that take room once they are written."""
        first = max(position, self._reserved_bytes) // mmap.PAGESIZE
        end = -(-(position + size) // mmap.PAGESIZE)
        return set(range(first, end)) - self._used_pages

    def resize(self, size: int) -> None:
        """Change the live size; new bytes are zero."""
        if size == self._live.size:
            return
        self._live.resize(size)
        self._pending.append((size, None))
        self._bad_pages = {page for page in self._bad_pages if page * PAGE_BYTES < size}
        self._reserved_bytes = min(self._reserved_bytes, _whole_pages(size))
        if self._used_pages:
            self._used_pages = {page for page in self._used_pages if page * mmap.PAGESIZE < size}

    def reserve(self, size: int) -> None:
        """Take the room of the first `size` bytes and extend the file to them."""
        self._reserved_bytes = max(self._reserved_bytes, _whole_pages(size))
        if self._used_pages:
            reserved_pages = self._reserved_bytes // mmap.PAGESIZE
            self._used_pages = {page for page in self._used_pages if page >= reserved_pages}
        if size > self._live.size:
            self.resize(size)

    def room_to_reserve(self, size: int) -> int:
        """Return how many more bytes of the volume `reserve` would take."""
        return max(0, _whole_pages(size) - self.allocated_bytes)

    def sync(self) -> None:
        """Make the live bytes and size durable."""
        for change in self._pending:
            self._durable.apply(change)
        self._pending.clear()

    def lose_unsynced(self) -> None:
        """Forget to write what is unsynced while reads still show it: a failed fsync."""
        self._pending.clear()

    def after_power_cut(self, random: Random, *, keeps: bool | None = None) -> "SimulatedFile":
        """Return the file as a power cut may leave it; `keeps` decides for all or nothing."""
        if not self._pending or keeps is False:
            return self._from_image(self._durable.copy())
        fate = 1 if keeps else random.randrange(6)
        if fate == 0:
            image = self._durable.copy()
        elif fate == 1:
            image = self._with(self._pending)
        elif fate == 2:
            image = self._prefix(random)
        elif fate == 3:
            image = self._with([change for change in self._pending if random.random() < 0.5])
        elif fate == 4:
            image = self._with(random.sample(self._pending, random.randint(1, len(self._pending))))
        else:
            image = self._torn(random)
        return self._from_image(image)

    def _with(self, changes: list[_Change]) -> _Image:
        image = self._durable.copy()
        for change in changes:
            image.apply(change)
        return image

    def _prefix(self, random: Random) -> _Image:
        """The first changes whole, the next one torn, the rest lost."""
        count = random.randrange(len(self._pending))
        image = self._with(self._pending[:count])
        position, piece = self._pending[count]
        if piece is not None:
            for start, end in _sectors(position, len(piece)):
                if random.random() < 0.5:
                    image.apply((start, piece[start - position : end - position]))
        return image

    def _torn(self, random: Random) -> _Image:
        """Each sector at any of the contents that it had since the last sync."""
        image = self._durable.copy()
        running = self._durable.copy()
        for change in self._pending:
            size_before = running.size
            running.apply(change)
            position, piece = change
            if piece is None:
                if random.random() < 0.5:
                    image.apply(change)
                continue
            if running.size > size_before and random.random() < 0.25:
                # The new size arrives before the bytes do.
                image.apply((max(image.size, running.size), None))
            for start, _ in _sectors(position, len(piece)):
                if random.random() < 0.5:
                    at = start // SECTOR_BYTES * SECTOR_BYTES
                    image.apply((at, bytes(running.data[at : at + SECTOR_BYTES])))
        return image

    def _from_image(self, image: _Image) -> "SimulatedFile":
        file = SimulatedFile()
        file._durable = image
        file._bad_pages = set(self._bad_pages)
        file._live = _Live(bytearray(image.data), image.size)
        # Reserved room stays reserved up to the size that survived.
        file._reserved_bytes = min(self._reserved_bytes, _whole_pages(image.size))
        file._used_pages = {page for page in self._used_pages if page * mmap.PAGESIZE < image.size}
        return file


class _Live:
    """Live bytes, which grow as they are written."""

    __slots__ = ("_buffer", "size")

    def __init__(self, data: bytearray | None = None, size: int = 0) -> None:
        self._buffer: bytearray | mmap.mmap = bytearray() if data is None else data
        self.size = size

    def read(self, size: int, position: int) -> bytes:
        end = min(position + size, self.size)
        if position >= end:
            return b""
        return bytes(self._buffer[position:end]).ljust(end - position, b"\0")

    def write(self, data: bytes, position: int) -> None:
        end = position + len(data)
        self._grow(end)
        self._buffer[position:end] = data
        self.size = max(self.size, end)

    def resize(self, size: int) -> None:
        stale = min(len(self._buffer), self.size) - size
        if stale > 0:
            if isinstance(self._buffer, bytearray):
                del self._buffer[size:]
            else:
                self._buffer[size : size + stale] = bytes(stale)
        self.size = size

    def _grow(self, size: int) -> None:
        """Make room for `size` bytes."""
        buffer = self._buffer
        if len(buffer) >= size:
            return
        if isinstance(buffer, bytearray) and size < _LARGE_BYTES:
            buffer.extend(bytes(size - len(buffer)))
            return
        grown = mmap.mmap(-1, max(size, self.size))
        grown[: len(buffer)] = bytes(buffer)
        if isinstance(buffer, mmap.mmap):
            buffer.close()
        else:
            buffer.clear()
        self._buffer = grown


def _whole_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _sectors(position: int, size: int) -> list[tuple[int, int]]:
    """Split a range at sector borders."""
    pieces: list[tuple[int, int]] = []
    end = position + size
    while position < end:
        border = min(end, (position // SECTOR_BYTES + 1) * SECTOR_BYTES)
        pieces.append((position, border))
        position = border
    return pieces
