"""A disk that passes every call on: the base of disks that misbehave."""

from collections.abc import Callable

from mailboat.disk import ClockPair, Disk, VolumeUsage


class DiskWrapper:
    """`mailboat.disk.Disk` that hands each call to another one; override what shall differ."""

    def __init__(self, disk: Disk) -> None:
        """Wrap `disk`."""
        self.disk = disk

    def open(self, path: str, *, create: bool = False, is_private: bool = False) -> int:
        """Pass on."""
        return self.disk.open(path, create=create, is_private=is_private)

    def close(self, fd: int) -> None:
        """Pass on."""
        self.disk.close(fd)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        """Pass on."""
        return self.disk.pwrite(fd, data, position)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Pass on."""
        return self.disk.pread(fd, size, position)

    def fdatasync(self, fd: int) -> None:
        """Pass on."""
        self.disk.fdatasync(fd)

    def fallocate(self, fd: int, size: int) -> None:
        """Pass on."""
        self.disk.fallocate(fd, size)

    def ftruncate(self, fd: int, size: int) -> None:
        """Pass on."""
        self.disk.ftruncate(fd, size)

    def size(self, path: str) -> int:
        """Pass on."""
        return self.disk.size(path)

    def allocated_bytes(self, path: str) -> int:
        """Pass on."""
        return self.disk.allocated_bytes(path)

    def exists(self, path: str) -> bool:
        """Pass on."""
        return self.disk.exists(path)

    def is_dir(self, path: str) -> bool:
        """Pass on."""
        return self.disk.is_dir(path)

    def listdir(self, path: str) -> list[str]:
        """Pass on."""
        return self.disk.listdir(path)

    def make_dirs(self, path: str) -> None:
        """Pass on."""
        self.disk.make_dirs(path)

    def mkdir(self, path: str) -> None:
        """Pass on."""
        self.disk.mkdir(path)

    def rename(self, source: str, target: str) -> None:
        """Pass on."""
        self.disk.rename(source, target)

    def unlink(self, path: str) -> None:
        """Pass on."""
        self.disk.unlink(path)

    def rmdir(self, path: str) -> None:
        """Pass on."""
        self.disk.rmdir(path)

    def fsync_dir(self, path: str) -> None:
        """Pass on."""
        self.disk.fsync_dir(path)

    def usage(self, path: str) -> VolumeUsage:
        """Pass on."""
        return self.disk.usage(path)

    def lock(self, path: str, text: str) -> Callable[[], None]:
        """Pass on."""
        return self.disk.lock(path, text)

    def data_range(self, fd: int, position: int) -> tuple[int, int] | None:
        """Pass on."""
        return self.disk.data_range(fd, position)

    def boot_id(self) -> str:
        """Pass on."""
        return self.disk.boot_id()

    def wall_ms(self) -> int:
        """Pass on."""
        return self.disk.wall_ms()

    def monotonic(self) -> float:
        """Pass on."""
        return self.disk.monotonic()

    def clock_pair(self) -> ClockPair:
        """Pass on."""
        return self.disk.clock_pair()
