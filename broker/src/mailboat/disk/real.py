"""The real file system."""

import errno
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Final

from mailboat.disk import NO_ROOM, ClockPair, VolumeUsage, read_clock_pair

log: Final = logging.getLogger(__name__)

_BLOCK_BYTES: Final = 512  # What st_blocks counts, whatever the file system's blocks are.
# More than a float loses of the seconds since the machine's start, in thirty years.
_ROUNDING_S: Final = 1e-6
_MOST_PASSED_OVER: Final = 1_000
_BOOT_ID_PATH: Final = "/proc/sys/kernel/random/boot_id"

# Locks of this process, by device and inode: whether they are shared. To the operating system they
# are all one, and closing any descriptor of the file gives them up.
_locks: Final[dict[tuple[int, int], bool]] = {}
_locks_guard: Final = threading.Lock()


class RealDisk:
    """`mailboat.disk.Disk` on the operating system."""

    def __init__(self, *, is_read_only: bool = False) -> None:
        """With `is_read_only`, open files for reading: as a look at what others own has to."""
        self._is_read_only = is_read_only
        # A pipe in the place of a file would have its reader wait for a writer.
        self._flags = os.O_CLOEXEC | os.O_NONBLOCK
        self._flags |= os.O_RDONLY if is_read_only else os.O_RDWR
        self._passed_over: set[str] = set()

    def open(self, path: str, *, create: bool = False, is_private: bool = False) -> int:
        """Open for reading and writing; with `create` the file must not exist yet."""
        flags = self._flags
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        return os.open(path, flags, 0o600 if is_private else 0o644)

    def close(self, fd: int) -> None:
        """Close a file."""
        os.close(fd)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        """Write at a position and return how many bytes were taken."""
        return os.pwrite(fd, data, position)

    # As it is, without a frame of ours: reads of many small records make many calls.
    pread = staticmethod(os.pread)

    def fdatasync(self, fd: int) -> None:
        """Make the file's bytes and size durable; releases the interpreter lock."""
        os.fdatasync(fd)

    def fallocate(self, fd: int, size: int) -> None:
        """Reserve the first `size` bytes."""
        os.posix_fallocate(fd, 0, size)

    def ftruncate(self, fd: int, size: int) -> None:
        """Set the file's size."""
        os.ftruncate(fd, size)

    def size(self, path: str) -> int:
        """Return a file's size in bytes."""
        return os.stat(path).st_size

    def allocated_bytes(self, path: str) -> int:
        """Return how much of the volume a file takes."""
        return os.stat(path).st_blocks * _BLOCK_BYTES

    def exists(self, path: str) -> bool:
        """Tell whether a path names a file or directory."""
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        """Tell whether a path names a directory."""
        return os.path.isdir(path)

    def listdir(self, path: str) -> list[str]:
        """Return the sorted names of files and directories in a directory.

        Pipes, sockets and names that are no text are nobody's of ours: they are passed over, with a
        line in the log.
        """
        names = []
        with os.scandir(path) as entries:
            for entry in entries:
                if _is_text(entry.name) and _is_plain(entry):
                    names.append(entry.name)
                elif entry.path not in self._passed_over:
                    if len(self._passed_over) < _MOST_PASSED_OVER:
                        self._passed_over.add(entry.path)
                        log.warning("passed over, as it is no file of ours: %s", ascii(entry.path))
        return sorted(names)

    def make_dirs(self, path: str) -> None:
        """Create a directory and its parents and make their names durable."""
        if os.path.isdir(path):
            return
        parent = os.path.dirname(os.path.abspath(path))
        self.make_dirs(parent)
        try:
            os.mkdir(path, 0o755)
        except FileExistsError:
            # Another thread or process wants the same parents; a file in the way is an error.
            if not os.path.isdir(path):
                raise
        self.fsync_dir(parent)

    def mkdir(self, path: str) -> None:
        """Create one directory."""
        os.mkdir(path, 0o755)

    def rename(self, source: str, target: str) -> None:
        """Rename atomically, replacing the target."""
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        """Remove a file's name."""
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def fsync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def usage(self, path: str) -> VolumeUsage:
        """Return the state of the volume that holds `path`."""
        state = os.statvfs(path)
        return VolumeUsage(
            device=os.stat(path).st_dev,
            capacity_bytes=state.f_blocks * state.f_frsize,
            used_bytes=(state.f_blocks - state.f_bfree) * state.f_frsize,
            available_bytes=state.f_bavail * state.f_frsize,
            inodes_total=state.f_files,
            inodes_free=state.f_ffree,
        )

    def lock(self, path: str, text: str) -> Callable[[], None]:
        """Take the exclusive POSIX lock on byte 0, as RocketMQ does, and return the release.

        A read-only disk takes a shared one of a file that is there, and writes no text.
        """
        with _locks_guard:
            try:
                found = os.stat(path)
            except FileNotFoundError:
                if self._is_read_only:
                    raise
            else:
                # Before it is opened: closing it would give up what this process has.
                is_shared = _locks.get((found.st_dev, found.st_ino))
                if is_shared or (self._is_read_only and is_shared is not None):
                    raise BlockingIOError(errno.EAGAIN, f"{path} is locked by this process")
            fd = self._open_locked(path)
            found = os.fstat(fd)
            key = (found.st_dev, found.st_ino)
            _locks[key] = self._is_read_only

        def release() -> None:
            with _locks_guard:
                _locks.pop(key, None)
                os.close(fd)

        try:
            # In this order: the block that the file has serves where no other is free.
            if not self._is_read_only:
                os.ftruncate(fd, os.pwrite(fd, text.encode(), 0))
        except OSError as exc:
            if exc.errno not in NO_ROOM:
                release()
                raise
        return release

    def _open_locked(self, path: str) -> int:
        fd = os.open(path, self._flags | (0 if self._is_read_only else os.O_CREAT), 0o644)
        try:
            # Java's FileChannel.tryLock is a POSIX record lock, so both brokers see each other.
            kind = fcntl.LOCK_SH if self._is_read_only else fcntl.LOCK_EX
            fcntl.lockf(fd, kind | fcntl.LOCK_NB, 1, 0)
        except OSError as exc:
            os.close(fd)
            raise BlockingIOError(exc.errno, f"{path} is locked by another process") from exc
        return fd

    def data_range(self, fd: int, position: int) -> tuple[int, int] | None:
        """Return begin and end of the next bytes that may have been written."""
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
            return start, os.lseek(fd, start, os.SEEK_HOLE)
        except OSError as exc:
            if exc.errno == errno.ENXIO:
                return None
            # A file system that does not know its holes: everything may have been written.
            return position, os.fstat(fd).st_size

    def boot_id(self) -> str:
        """Return the name of this run of the kernel, "" where it has none."""
        try:
            with open(_BOOT_ID_PATH, encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""

    def wall_ms(self) -> int:
        """Return the wall clock, epoch milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds that only ever go up."""
        return time.monotonic()

    def clock_pair(self) -> ClockPair:
        """Return both clocks, read so that they belong together."""
        return machine_clocks()


def _is_plain(entry: "os.DirEntry[str]") -> bool:
    """Tell whether a name is that of a file, a directory or a link, wherever that leads."""
    return (
        entry.is_file(follow_symlinks=False)
        or entry.is_dir(follow_symlinks=False)
        or entry.is_symlink()
    )


def _is_text(name: str) -> bool:
    """Tell whether the bytes of a name are UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def machine_clocks() -> ClockPair:
    """Return the machine's wall clock and `time.monotonic`, read so that they belong together."""
    wall_ns, before_s, after_s = read_clock_pair(time.time_ns, time.monotonic)
    return ClockPair(wall_ns, before_s - _ROUNDING_S, after_s + _ROUNDING_S)
