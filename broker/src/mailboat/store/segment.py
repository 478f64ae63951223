"""One CommitLog segment: a file of fixed size, reserved in full, written with pwrite, read mapped.

RocketMQ's MappedFile without mapped writes: a write into a mapping on a full disk kills the
process.

Source: apache/rocketmq store/logfile/DefaultMappedFile.java.
"""

import errno

from mailboat.disk import Disk, ReadMap, read_fully, sync, write_fully
from mailboat.errors import DamagedStoreError
from mailboat.store.layout import segment_name


class Segment:
    """A segment that begins at physical offset `start` and holds `size_bytes`.

    `last_store_timestamp_ms` is the newest record's time, 0 while unknown.
    """

    __slots__ = (
        "_disk",
        "_map",
        "fd",
        "is_reserved",
        "last_store_timestamp_ms",
        "path",
        "size_bytes",
        "start",
    )

    def __init__(self, disk: Disk, path: str, start: int, size_bytes: int, fd: int) -> None:
        """Take over an open file."""
        self._disk = disk
        self._map: ReadMap | None = None
        self.path = path
        self.start = start
        self.size_bytes = size_bytes
        self.fd = fd
        self.last_store_timestamp_ms = 0
        self.is_reserved = True
        """Whether the volume has set the room of the whole file aside."""

    @property
    def end(self) -> int:
        """The physical offset after the last byte."""
        return self.start + self.size_bytes

    @property
    def view(self) -> memoryview:
        """All bytes of the segment, mapped; slices must not outlive the segment's `close`."""
        if self._map is None:
            self._map = self._disk.map_read(self.fd, self.size_bytes)
        return self._map.view

    def write(self, data: bytes | bytearray, position: int) -> None:
        """Write into the page cache at a position of this file.

        Raises:
            OSError: any part of the range may have been written.
        """
        write_fully(self._disk, self.fd, data, position)

    def cut(self, position: int) -> None:
        """Zero everything from `position` on, durably; the size stays.

        Raises:
            OSError: the cut is not known to be durable.
        """
        self._unmap()
        self._disk.ftruncate(self.fd, position)
        try:
            self._disk.fallocate(self.fd, self.size_bytes)
        except OSError as exc:
            if exc.errno != errno.ENOSPC:
                raise
            # A full disk must not keep the store from opening; a later write answers ENOSPC.
            self._disk.ftruncate(self.fd, self.size_bytes)
        sync(self._disk, self.fd)

    def close(self) -> None:
        """Close the file and drop the map."""
        self._unmap()
        self._disk.close(self.fd)

    def _unmap(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None


def create_segment(
    disk: Disk, directory: str, start: int, size_bytes: int, *, reserve: bool = True
) -> Segment:
    """Create the segment at `start`, its room reserved and its name durable.

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
    segment = Segment(disk, path, start, size_bytes, fd)
    segment.is_reserved = reserve
    return segment


def open_segments(disk: Disk, directory: str, size_bytes: int) -> list[Segment]:
    """Open the segments of a directory, oldest first.

    A last file that is too short is what a crash leaves between creating and reserving; it is
    removed when it holds no record and reserved in full when it does.

    Raises:
        DamagedStoreError: a name or size that no CommitLog has; the text says which.
        OSError: a file cannot be opened.
    """
    names = [name for name in disk.listdir(directory) if not disk.is_dir(f"{directory}/{name}")]
    segments: list[Segment] = []
    for index, name in enumerate(names):
        path = f"{directory}/{name}"
        if len(name) != 20 or not name.isdigit():
            raise DamagedStoreError(f"{path} is not a CommitLog segment; move it elsewhere")
        actual_bytes = disk.size(path)
        is_last = index == len(names) - 1
        fd = disk.open(path)
        if actual_bytes != size_bytes:
            if is_last and actual_bytes < size_bytes:
                if not read_fully(disk, fd, 8, 0).strip(b"\0"):
                    disk.close(fd)
                    disk.unlink(path)
                    disk.fsync_dir(directory)
                    continue
                disk.ftruncate(fd, size_bytes)
            else:
                disk.close(fd)
                raise DamagedStoreError(
                    f"{path} has {actual_bytes} bytes where mappedFileSizeCommitLog is "
                    f"{size_bytes}; set mappedFileSizeCommitLog={actual_bytes} or restore the file"
                )
        segments.append(Segment(disk, path, int(name), size_bytes, fd))
    return segments
