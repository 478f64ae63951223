"""A disk in memory that can lose power: `mailboat.disk.Disk` for tests of what a crash leaves.

Every change of a file or a name first lives in the page cache; `fdatasync` and `fsync_dir` make it
durable. `crash` gives the disk after a power cut: unsynced writes kept, dropped, reordered or torn
at 512 bytes, unsynced names kept or lost. `kill` gives the disk after the process died: nothing is
lost, descriptors and locks are gone. It grants nothing that POSIX does not: a synced file without a
synced name is lost.

The clock stands still until a test moves it.
"""

import contextlib
import errno
import os
from collections.abc import Callable
from functools import lru_cache
from random import Random
from typing import Final

from mailboat.disk import ClockPair, VolumeUsage
from mailboat.testing.simulated_directory import SimulatedDirectory, tree_after_power_cut
from mailboat.testing.simulated_file import SimulatedFile
from mailboat.testing.virtual_time import VirtualTime

_UNLIMITED_BYTES: Final = 1 << 50
_INODES: Final = 1 << 20
_DEVICE: Final = 1


class PowerCutError(BaseException):
    """The power went; no code may catch this and carry on, so it is no Exception."""


class SimulatedDisk:
    """`mailboat.disk.Disk` in memory; see the module for what a crash does."""

    def __init__(self, *, capacity_bytes: int = _UNLIMITED_BYTES) -> None:
        """Make an empty disk with the directory `/`."""
        self.capacity_bytes = capacity_bytes
        self.changes = 0
        self.boot = 1
        self._root = SimulatedDirectory()
        self._files: dict[int, SimulatedFile] = {}
        self._next_fd = 3
        self._locked: set[str] = set()
        self.time = VirtualTime()
        self._cut_after: int | None = None
        self._is_dead = False

    # What tests do to the disk.

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self.time.advance(seconds)

    def jump_wall_clock(self, seconds: float) -> None:
        """Set the wall clock forward or back; elapsed time does not change."""
        self.time.set_wall(self.time.wall_ms() + round(seconds * 1000))

    def cut_power_after(self, changes: int) -> None:
        """Let every call after the next `changes` changing ones raise PowerCutError."""
        self._cut_after = self.changes + changes

    def crash(self, random: Random) -> "SimulatedDisk":
        """Return the disk as a power cut at this moment may leave it; this one stays as it is."""
        disk = self._successor()
        disk._root = tree_after_power_cut(self._root, random)
        disk.boot = self.boot + 1
        return disk

    def kill(self) -> "SimulatedDisk":
        """Return the disk after the death of the process; this one is dead from now on."""
        disk = self._successor()
        disk._root = self._root
        self._is_dead = True
        return disk

    @property
    def open_files(self) -> int:
        """Descriptors that are open."""
        return len(self._files)

    def file(self, path: str) -> SimulatedFile:
        """Return a file by its live name, to look at or to damage.

        Raises:
            OSError: there is no such file.
        """
        node = self._parent(path).live.get(_name(path))
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, SimulatedDirectory):
            raise _error(errno.EISDIR, path)
        return node

    def lose_unsynced(self, fd: int) -> None:
        """Drop a file's unsynced changes although reads still show them: a failed fsync."""
        self._file(fd).lose_unsynced()

    def walk(self, path: str = "/") -> list[str]:
        """Return the live paths of all files below a directory, sorted."""
        found: list[str] = []
        for name, node in sorted(self._directory(path).live.items()):
            child = f"{path.rstrip('/')}/{name}"
            if isinstance(node, SimulatedDirectory):
                found += self.walk(child)
            else:
                found.append(child)
        return found

    # `mailboat.disk.Disk`.

    def open(self, path: str, *, create: bool = False, is_private: bool = False) -> int:
        """Open for reading and writing; with `create` the file must not exist yet.

        There is one user here: what is private is as all else.
        """
        self._check_power()
        directory, name = self._parent(path), _name(path)
        node = directory.live.get(name)
        if create:
            if node is not None:
                raise _error(errno.EEXIST, path)
            self._about_to_change()
            node = SimulatedFile()
            directory.add(name, node)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, SimulatedDirectory):
            raise _error(errno.EISDIR, path)
        self._next_fd += 1
        self._files[self._next_fd] = node
        return self._next_fd

    def close(self, fd: int) -> None:
        """Close a file."""
        self._check_power()
        self._file(fd)
        del self._files[fd]

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        """Write at a position; on a full disk only what fits, ENOSPC when nothing does."""
        file = self._file(fd)
        if position < 0:
            raise _error(errno.EINVAL)
        self._about_to_change()
        size = len(data)
        if file.lost_before_write(size, position):
            raise _error(errno.EIO)
        if self.capacity_bytes < _UNLIMITED_BYTES:
            while size and not self._has_room(file, size, position):
                size -= min(size, (position + size - 1) % 4096 + 1)
            if data and not size:
                raise _error(errno.ENOSPC)
            data = memoryview(data)[:size]
        if size:
            # Writing nothing extends no file, as POSIX has it.
            file.write(data, position)
        return size

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Return up to `size` bytes, those before a lost page; EIO where that is the first."""
        self._check_power()
        file = self._file(fd)
        readable = file.readable_bytes(size, position)
        if size and not readable:
            raise _error(errno.EIO)
        return file.read(readable, position)

    def fdatasync(self, fd: int) -> None:
        """Make the file's bytes and size durable."""
        file = self._file(fd)
        self._about_to_change()
        file.sync()

    def fallocate(self, fd: int, size: int) -> None:
        """Reserve the first `size` bytes; on a full disk a part stays reserved."""
        file = self._file(fd)
        self._about_to_change()
        if self.capacity_bytes < _UNLIMITED_BYTES:
            room = self.capacity_bytes - self._used_bytes()
            if file.room_to_reserve(size) > room:
                file.reserve(min(size, file.allocated_bytes + max(0, room) // 4096 * 4096))
                raise _error(errno.ENOSPC)
        file.reserve(size)

    def ftruncate(self, fd: int, size: int) -> None:
        """Set the file's size."""
        file = self._file(fd)
        if size < 0:
            raise _error(errno.EINVAL)
        self._about_to_change()
        file.resize(size)

    def size(self, path: str) -> int:
        """Return a file's size in bytes."""
        self._check_power()
        return self.file(path).size

    def allocated_bytes(self, path: str) -> int:
        """Return how much of the volume a file takes."""
        self._check_power()
        return self.file(path).allocated_bytes

    def exists(self, path: str) -> bool:
        """Tell whether a path names a file or directory."""
        self._check_power()
        return self._find(path) is not None

    def is_dir(self, path: str) -> bool:
        """Tell whether a path names a directory."""
        self._check_power()
        return isinstance(self._find(path), SimulatedDirectory)

    def listdir(self, path: str) -> list[str]:
        """Return the sorted names in a directory."""
        self._check_power()
        return sorted(self._directory(path).live)

    def make_dirs(self, path: str) -> None:
        """Create a directory and its parents and make their names durable."""
        self._check_power()
        if self.is_dir(path):
            return
        parent = "/".join(("", *_parts(path)[:-1]))
        self.make_dirs(parent)
        self.mkdir(path)
        self.fsync_dir(parent)

    def mkdir(self, path: str) -> None:
        """Create one directory; its name is durable after `fsync_dir` of its parent."""
        self._check_power()
        if self.exists(path):
            raise _error(errno.EEXIST, path)
        self._about_to_change()
        parent = "/".join(("", *_parts(path)[:-1]))
        self._directory(parent).add(_name(path), SimulatedDirectory())

    def rename(self, source: str, target: str) -> None:
        """Rename atomically, replacing the target."""
        self._check_power()
        directory, name = self._parent(source), _name(source)
        if name not in directory.live:
            raise _error(errno.ENOENT, source)
        target_directory = self._parent(target)
        if isinstance(target_directory.live.get(_name(target)), SimulatedDirectory):
            raise _error(errno.EISDIR, target)
        self._about_to_change()
        if (directory, name) != (target_directory, _name(target)):
            directory.rename(name, target_directory, _name(target))

    def unlink(self, path: str) -> None:
        """Remove a file's name; who has it open keeps it."""
        self._check_power()
        self.file(path)
        self._about_to_change()
        self._parent(path).remove(_name(path))

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        self._check_power()
        if self._directory(path).live:
            raise _error(errno.ENOTEMPTY, path)
        self._about_to_change()
        self._parent(path).remove(_name(path))

    def fsync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        self._check_power()
        directory = self._directory(path)
        self._about_to_change()
        directory.sync()

    def usage(self, path: str) -> VolumeUsage:
        """Return the state of the volume."""
        self._check_power()
        if self._find(path) is None:
            raise _error(errno.ENOENT, path)
        is_limited = self.capacity_bytes < _UNLIMITED_BYTES
        used = self._used_bytes() if is_limited else 0
        return VolumeUsage(
            device=_DEVICE,
            capacity_bytes=self.capacity_bytes,
            used_bytes=used,
            available_bytes=max(0, self.capacity_bytes - used),
            inodes_total=_INODES,
            inodes_free=_INODES,
        )

    def lock(self, path: str, text: str) -> Callable[[], None]:
        """Take the lock; it goes with this disk object, as a real one goes with its process."""
        if path in self._locked:
            raise BlockingIOError(errno.EAGAIN, f"{path} is locked by another process")
        fd = self.open(path, create=not self.exists(path))
        with contextlib.suppress(OSError):
            self.ftruncate(fd, self.pwrite(fd, text.encode(), 0))
        self._locked.add(path)

        def release() -> None:
            self._locked.discard(path)
            self._files.pop(fd, None)

        return release

    def data_range(self, fd: int, position: int) -> tuple[int, int] | None:
        """Return begin and end of the next bytes that may have been written."""
        self._check_power()
        size = self._file(fd).size
        return (position, size) if position < size else None

    def boot_id(self) -> str:
        """Return the name of this run of the kernel; a power cut ends it, a kill does not."""
        self._check_power()
        return f"boot-{self.boot}"

    def wall_ms(self) -> int:
        """Return the wall clock, epoch milliseconds."""
        return self.time.wall_ms()

    def monotonic(self) -> float:
        """Return seconds that only ever go up."""
        return self.time.monotonic()

    def clock_pair(self) -> ClockPair:
        """Return both clocks."""
        return self.time.clock_pair()

    def _successor(self) -> "SimulatedDisk":
        disk = SimulatedDisk(capacity_bytes=self.capacity_bytes)
        disk.boot = self.boot
        # A machine that starts again counts from its own beginning; its wall clock goes on.
        disk.time.set_wall(self.time.wall_ms())
        return disk

    def _check_power(self) -> None:
        if self._is_dead or (self._cut_after is not None and self.changes >= self._cut_after):
            raise PowerCutError

    def _about_to_change(self) -> None:
        self._check_power()
        self.changes += 1

    def _file(self, fd: int) -> SimulatedFile:
        try:
            return self._files[fd]
        except KeyError:
            raise _error(errno.EBADF) from None

    def _find(self, path: str) -> SimulatedFile | SimulatedDirectory | None:
        node: SimulatedFile | SimulatedDirectory | None = self._root
        for part in _parts(path):
            node = node.live.get(part) if isinstance(node, SimulatedDirectory) else None
        return node

    def _directory(self, path: str) -> SimulatedDirectory:
        node = self._find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if not isinstance(node, SimulatedDirectory):
            raise _error(errno.ENOTDIR, path)
        return node

    def _parent(self, path: str) -> SimulatedDirectory:
        return self._directory("/".join(("", *_parts(path)[:-1])))

    def _has_room(self, file: SimulatedFile, size: int, position: int) -> bool:
        wanted = 4096 * len(file.new_pages(size, position))
        return wanted <= self.capacity_bytes - self._used_bytes()

    def _used_bytes(self) -> int:
        return sum(self.file(path).allocated_bytes for path in self.walk())


@lru_cache(maxsize=4096)
def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in os.path.normpath("/" + path).split("/") if part)


def _name(path: str) -> str:
    return _parts(path)[-1]


def _error(number: int, path: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), path)
