"""A disk whose n-th call of some kind fails: SQLite's way to test every error path.

Count the calls of a clean run with `calls`, then let each of them fail in turn. A failed
`fdatasync` on a `SimulatedDisk` loses what was unsynced, and the next one succeeds, as on Linux.
"""

import errno
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mailboat.disk import Disk, VolumeUsage
from mailboat.testing.disk_wrapper import DiskWrapper
from mailboat.testing.simulated_disk import SimulatedDisk

CHANGING_CALLS: Final = (
    "create", "pwrite", "fdatasync", "fallocate", "ftruncate", "make_dirs", "rename", "unlink",
    "rmdir", "fsync_dir",
)  # fmt: skip
"""Calls that change the disk; `create` is `open` with create."""

READING_CALLS: Final = ("open", "pread", "listdir", "size", "usage")
"""Calls that only look, and may fail all the same."""

SHORT_WRITE: Final = 0
"""In place of an error number: `pwrite` takes half of its bytes."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What fails: the `number`-th call (from 1) among those named in `calls`.

    `error` is an errno or SHORT_WRITE; a `sticky` fault stays until `FaultyDisk.heal`.
    """

    calls: tuple[str, ...]
    number: int
    error: int
    sticky: bool = False


class FaultyDisk(DiskWrapper):
    """Passes every call on to another disk but those that a fault names."""

    def __init__(self, disk: Disk, fault: Fault | None = None) -> None:
        """Wrap `disk`; without a fault it only counts."""
        super().__init__(disk)
        self.fault = fault
        self.calls: Counter[str] = Counter()
        self.failures = 0
        self._seen = 0

    def inject(self, fault: Fault) -> None:
        """Let a fault happen; its number counts from now."""
        self.fault = fault
        self._seen = 0

    def heal(self) -> None:
        """Let every call succeed from now on."""
        self.fault = None

    def open(self, path: str, *, create: bool = False, is_private: bool = False) -> int:
        """Open, or fail."""
        self._meet("create" if create else "open", path)
        return self.disk.open(path, create=create, is_private=is_private)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        """Write, or fail, or take half; an EIO comes after half was taken."""
        half = memoryview(data)[: len(data) // 2]
        try:
            is_short = self._meet("pwrite")
        except OSError as exc:
            if exc.errno == errno.EIO:
                self.disk.pwrite(fd, half, position)
            raise
        return self.disk.pwrite(fd, half if is_short and half else data, position)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Read, or fail."""
        self._meet("pread")
        return self.disk.pread(fd, size, position)

    def fdatasync(self, fd: int) -> None:
        """Sync, or fail and lose what was unsynced."""
        try:
            self._meet("fdatasync")
        except InterruptedError:
            raise
        except OSError:
            if isinstance(self.disk, SimulatedDisk):
                self.disk.lose_unsynced(fd)
            raise
        self.disk.fdatasync(fd)

    def fallocate(self, fd: int, size: int) -> None:
        """Reserve, or fail and leave half of it reserved."""
        try:
            self._meet("fallocate")
        except OSError:
            self.disk.fallocate(fd, size // 2)
            raise
        self.disk.fallocate(fd, size)

    def ftruncate(self, fd: int, size: int) -> None:
        """Set the size, or fail."""
        self._meet("ftruncate")
        self.disk.ftruncate(fd, size)

    def size(self, path: str) -> int:
        """Return the size, or fail."""
        self._meet("size", path)
        return self.disk.size(path)

    def listdir(self, path: str) -> list[str]:
        """Return the names, or fail."""
        self._meet("listdir", path)
        return self.disk.listdir(path)

    def make_dirs(self, path: str) -> None:
        """Create the directories, or fail; nothing is counted where they exist."""
        if not self.disk.is_dir(path):
            self._meet("make_dirs", path)
        self.disk.make_dirs(path)

    def mkdir(self, path: str) -> None:
        """Create one directory, or fail."""
        self._meet("make_dirs", path)
        self.disk.mkdir(path)

    def rename(self, source: str, target: str) -> None:
        """Rename, or fail."""
        self._meet("rename", target)
        self.disk.rename(source, target)

    def unlink(self, path: str) -> None:
        """Unlink, or fail."""
        self._meet("unlink", path)
        self.disk.unlink(path)

    def rmdir(self, path: str) -> None:
        """Remove the directory, or fail."""
        self._meet("rmdir", path)
        self.disk.rmdir(path)

    def fsync_dir(self, path: str) -> None:
        """Sync the directory, or fail."""
        self._meet("fsync_dir", path)
        self.disk.fsync_dir(path)

    def usage(self, path: str) -> VolumeUsage:
        """Return the usage, or fail."""
        self._meet("usage", path)
        return self.disk.usage(path)

    def lock(self, path: str, text: str) -> Callable[[], None]:
        """Take the lock; never fails here."""
        return self.disk.lock(path, text)

    def _meet(self, call: str, path: str | None = None) -> bool:
        """Count a call; raise where the fault says so, True for a short write."""
        self.calls[call] += 1
        fault = self.fault
        if fault is None or call not in fault.calls:
            return False
        self._seen += 1
        if self._seen != fault.number and not (fault.sticky and self._seen > fault.number):
            return False
        self.failures += 1
        if fault.error == SHORT_WRITE:
            return True
        error = fault.error
        raise OSError(error, os.strerror(error) or errno.errorcode[error], path)
