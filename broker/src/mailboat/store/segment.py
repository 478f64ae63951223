"""One CommitLog segment: a file of fixed size, reserved in full, written and read by calls.

RocketMQ's MappedFile without a mapping: a write into one on a full disk kills the process, and so
does a read of a bad block or behind the file's end.

A segment with bytes that are not flushed keeps its descriptor; the others share the store's pool.

Source: apache/rocketmq store/logfile/DefaultMappedFile.java.
"""

from collections.abc import Sequence
from typing import Final

from mailboat.disk import (
    NO_ROOM,
    PAGE_BYTES,
    Disk,
    UnreadableError,
    read_exactly,
    read_fully,
    read_up_to_damage,
    sync,
    write_fully,
)
from mailboat.errors import DamagedStoreError
from mailboat.store.file_pool import FilePool
from mailboat.store.layout import segment_name

_POOLED: Final = -1


class Segment:
    """A segment that begins at physical offset `start` and holds `size_bytes`.

    `last_store_timestamp_ms` is the newest record's time, 0 while unknown.
    """

    __slots__ = (
        "_disk",
        "_kept_fd",
        "_pool",
        "is_reserved",
        "last_store_timestamp_ms",
        "path",
        "size_bytes",
        "start",
    )

    def __init__(self, disk: Disk, pool: FilePool, path: str, start: int, size_bytes: int) -> None:
        """Name an existing file."""
        self._disk = disk
        self._pool = pool
        self._kept_fd = _POOLED
        self.path = path
        self.start = start
        self.size_bytes = size_bytes
        self.last_store_timestamp_ms = 0
        self.is_reserved = True
        """Whether the volume has set the room of the whole file aside."""

    @property
    def end(self) -> int:
        """The physical offset after the last byte."""
        return self.start + self.size_bytes

    @property
    def fd(self) -> int:
        """The open file, for one call on the store's thread.

        Raises:
            OSError: it cannot be opened.
        """
        return self._kept_fd if self._kept_fd >= 0 else self._pool.get(self.path)

    def keep_open(self, fd: int | None = None) -> int:
        """Return a descriptor that is good until `release`; `fd` is the file just created.

        Raises:
            OSError: it cannot be opened.
        """
        if self._kept_fd < 0:
            self._kept_fd = self._pool.take(self.path) if fd is None else fd
        return self._kept_fd

    def opened_in(self, pool: FilePool) -> "Segment":
        """Return the same file for reading on another thread, with a pool of its own."""
        return Segment(self._disk, pool, self.path, self.start, self.size_bytes)

    def release(self) -> None:
        """Share the descriptor again: everything is flushed, no other thread uses it."""
        if self._kept_fd >= 0:
            fd, self._kept_fd = self._kept_fd, _POOLED
            self._pool.add(self.path, fd)

    def read(self, position: int, size: int) -> bytes:
        """Return so many bytes from a position of this file on.

        Raises:
            UnreadableError: some of them are lost.
            OSError: they cannot be read now.
        """
        try:
            data = self._disk.pread(self.fd, size, position)
        except OSError:
            data = b""
        if len(data) == size:
            return data
        return read_exactly(self._disk, self.fd, size, position)

    def read_pieces(self, places: Sequence[tuple[int, int]]) -> bytes:
        """Return the bytes at several positions, each with its size, back to back.

        Raises:
            UnreadableError: some of them are lost.
            OSError: they cannot be read now.
        """
        pread, fd = self._disk.pread, self.fd
        try:
            data = b"".join([pread(fd, size, position) for position, size in places])
        except OSError:
            data = b""
        if len(data) == sum([size for _, size in places]):
            return data
        return b"".join([self.read(position, size) for position, size in places])

    def read_up_to_damage(self, position: int, size: int) -> bytes:
        """Return so many bytes, or those before the first that are lost.

        Raises:
            OSError: they cannot be read now.
        """
        return read_up_to_damage(self._disk, self.fd, size, position)

    def read_around_damage(self, position: int, size: int) -> bytes:
        """Return so many bytes, zeros in place of pages that cannot be read.

        Raises:
            OSError: they cannot be read now.
        """
        try:
            return self.read(position, size)
        except UnreadableError:
            pieces = []
            for start, end in pages(position, size):
                try:
                    pieces.append(self.read(start, end - start))
                except UnreadableError:
                    pieces.append(bytes(end - start))
            return b"".join(pieces)

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        """Return begin and end of all bytes that may have been written, from a position on.

        They are asked for before any of them is read: what is read is in memory then, and counts as
        written, and so does what the kernel reads ahead. A search that asked in between would read
        the whole file.

        Raises:
            OSError: the file cannot be asked.
        """
        ranges = []
        while position < self.size_bytes:
            found = self._disk.data_range(self.fd, position)
            if found is None:
                break
            position = min(found[1], self.size_bytes)
            ranges.append((min(found[0], position), position))
        return ranges

    def write(self, data: bytes | bytearray, position: int) -> None:
        """Write into the page cache at a position of this file.

        Raises:
            OSError: any part of the range may have been written.
        """
        write_fully(self._disk, self.keep_open(), data, position)

    def cut(self, position: int) -> None:
        """Zero everything from `position` on, durably; the size stays.

        Raises:
            OSError: the cut is not known to be durable.
        """
        fd = self.keep_open()
        self._disk.ftruncate(fd, position)
        try:
            self._disk.fallocate(fd, self.size_bytes)
        except OSError as exc:
            if exc.errno not in NO_ROOM:
                raise
            # A full disk must not keep the store from opening; a later write is refused for it.
            self._disk.ftruncate(fd, self.size_bytes)
            self.is_reserved = False
        else:
            self.is_reserved = True
        sync(self._disk, fd)

    def give_room_back(self, position: int) -> None:
        """Let others have the room from `position` on; the size stays, and reads as zeros.

        Raises:
            OSError: the file system refuses.
        """
        fd = self.keep_open()
        self.is_reserved = False
        self._disk.ftruncate(fd, position)
        self._disk.ftruncate(fd, self.size_bytes)

    def reserve(self) -> None:
        """Set the room of the whole file aside; any thread may.

        Opens the file anew: the segment's own descriptor may be closed meanwhile, and its number be
        that of another file. The caller notes `is_reserved`, on the store's thread.

        Raises:
            OSError: there is no room; what there was of it may be taken.
        """
        fd = self._disk.open(self.path)
        try:
            self._disk.fallocate(fd, self.size_bytes)
        finally:
            self._disk.close(fd)

    def close(self) -> None:
        """Close the file."""
        if self._kept_fd >= 0:
            self._disk.close(self._kept_fd)
            self._kept_fd = _POOLED
        self._pool.drop(self.path)


def pages(position: int, size: int) -> list[tuple[int, int]]:
    """Split a range at the borders of pages, as pairs of start and end."""
    end = position + size
    borders = [position, *range(position - position % PAGE_BYTES + PAGE_BYTES, end, PAGE_BYTES)]
    return list(zip(borders, [*borders[1:], end], strict=True)) if size else []


def create_segment(
    disk: Disk,
    pool: FilePool,
    directory: str,
    start: int,
    size_bytes: int,
    reserve: bool = True,
) -> Segment:
    """Create the segment at `start`, its room reserved and its name durable; any thread may.

    Without `reserve` the file takes no room yet, so that it can be made on a full disk.

    Raises:
        OSError: there is no such file afterwards.
    """
    path = f"{directory}/{segment_name(start)}"
    if disk.exists(path):
        # Left by an attempt whose clean-up failed too; it never held a record.
        disk.unlink(path)
    fd = disk.open(path, create=True)
    try:
        if reserve:
            disk.fallocate(fd, size_bytes)
        else:
            disk.ftruncate(fd, size_bytes)
        # The size first: a power cut must not leave a short file with others behind it.
        sync(disk, fd)
        disk.fsync_dir(directory)
    except OSError:
        # posix_fallocate leaves a part of the file behind on a full disk.
        disk.close(fd)
        disk.unlink(path)
        disk.fsync_dir(directory)
        raise
    segment = Segment(disk, pool, path, start, size_bytes)
    segment.keep_open(fd)
    segment.is_reserved = reserve
    return segment


def open_segments(disk: Disk, pool: FilePool, directory: str, size_bytes: int) -> list[Segment]:
    """Find the segments of a directory, oldest first.

    A last file that is too short is what a crash leaves between creating and reserving; it is
    removed when it holds no record and reserved in full when it does. One before a last file
    without a record is what a crash leaves while a failed write is wiped.

    Raises:
        DamagedStoreError: a name or size that no CommitLog has; the text says which.
        OSError: a file cannot be opened.
    """
    names = [name for name in disk.listdir(directory) if not disk.is_dir(f"{directory}/{name}")]
    segments: list[Segment] = []
    for index, name in enumerate(names):
        path = f"{directory}/{name}"
        if len(name) != 20 or not (name.isascii() and name.isdigit()):
            raise DamagedStoreError(f"{path} is not a CommitLog segment; move it elsewhere")
        actual_bytes = disk.size(path)
        is_last = index == len(names) - 1
        if actual_bytes != size_bytes:
            is_cut = names[index + 1 :] == [segment_name(int(name) + size_bytes)] and (
                _is_empty(disk, pool, f"{directory}/{names[-1]}", size_bytes)
            )
            if (is_last or is_cut) and actual_bytes < size_bytes:
                fd = pool.get(path)
                if is_last and not _has_record(disk, fd):
                    pool.drop(path)
                    disk.unlink(path)
                    disk.fsync_dir(directory)
                    continue
                disk.ftruncate(fd, size_bytes)
            else:
                raise DamagedStoreError(
                    f"{path} has {actual_bytes} bytes where mappedFileSizeCommitLog is "
                    f"{size_bytes}; set mappedFileSizeCommitLog={actual_bytes} or restore the file"
                )
        segments.append(Segment(disk, pool, path, int(name), size_bytes))
    return segments


def _is_empty(disk: Disk, pool: FilePool, path: str, size_bytes: int) -> bool:
    """Tell whether a file is a segment of the right size that was made ahead."""
    return disk.size(path) == size_bytes and not _has_record(disk, pool.get(path))


def _has_record(disk: Disk, fd: int) -> bool:
    return bool(read_fully(disk, fd, 8, 0).strip(b"\0"))
