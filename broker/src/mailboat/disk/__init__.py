"""The only door to the file system.

Belongs here: the calls that the store makes on files, their errors, the clock. `RealDisk` performs
them; `mailboat.testing.simulated_disk.SimulatedDisk` plays a disk that loses power. Never here:
knowledge of what the bytes mean. Nothing else in `mailboat.store` or `mailboat.broker` may open,
rename or sync a file (`make check` checks it).

Durability, as POSIX has it: `pwrite` reaches the page cache; `fdatasync` makes a file's bytes and
size durable, not its name; `fsync_dir` makes the names in a directory durable. `rename` is atomic,
and durable after `fsync_dir`.
"""

import contextlib
import errno
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

PAGE_BYTES: Final = 4096
"""What memory and disk exchange, and so what one bad sector costs, at least."""

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What a full volume says, or one whose quota is used up."""

# What a device, a device mapper or a file system that checks its blocks says of bytes it has lost.
_UNREADABLE: Final = frozenset(
    {errno.EIO, errno.ENODATA, errno.EBADMSG, errno.EILSEQ, errno.EREMOTEIO, errno.EUCLEAN}
)


class VolumeUsage(NamedTuple):
    """Bytes and inodes of the volume that holds a path; `available` is what a user may fill.

    Two paths lie on one volume when they have the same `device`; the numbers of one volume may
    differ from call to call, and those of two may be the same.
    """

    device: int
    capacity_bytes: int
    used_bytes: int
    available_bytes: int
    inodes_total: int
    inodes_free: int


class ClockPair(NamedTuple):
    """One look at both clocks, so that the time on one tells the time on the other.

    The wall clock showed `wall_ns`, epoch nanoseconds, at some moment from `before_s` to `after_s`,
    seconds of the monotonic clock. The moment is not known better than that.
    """

    wall_ns: int
    before_s: float
    after_s: float

    @property
    def bracket_s(self) -> float:
        """Seconds between the two looks at the monotonic clock."""
        return self.after_s - self.before_s

    def wall_ms_at(self, monotonic_s: float) -> int:
        """Return what the wall clock showed at a time of the other one, for people to read.

        The answer is in epoch milliseconds. It may be wrong by `bracket_s`, in one direction only:
        it is never too early.
        """
        return (self.wall_ns + round((monotonic_s - self.before_s) * 1e9)) // 1_000_000


class Disk(Protocol):
    """What the store asks of a file system; every call may raise OSError.

    A file is an int, as the operating system's descriptors are. `pwrite` and `pread` may handle
    fewer bytes than asked: use `write_fully` and `read_fully`.
    """

    def open(self, path: str, *, create: bool = False, is_private: bool = False) -> int:
        """Open for reading and writing; with `create` the file must not exist yet.

        What `is_private` when it is made can be read by the owner of the process only.
        """
        ...

    def close(self, fd: int) -> None:
        """Close a file; says nothing about durability."""
        ...

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        """Write at a position and return how many bytes were taken."""
        ...

    def pread(self, fd: int, size: int, position: int, /) -> bytes:
        """Return up to `size` bytes; fewer at the end of the file."""
        ...

    def fdatasync(self, fd: int) -> None:
        """Make the file's bytes and size durable."""
        ...

    def fallocate(self, fd: int, size: int) -> None:
        """Reserve the first `size` bytes and extend the file to them, zeros where new."""
        ...

    def ftruncate(self, fd: int, size: int) -> None:
        """Set the file's size; what lies beyond is gone."""
        ...

    def size(self, path: str) -> int:
        """Return a file's size in bytes."""
        ...

    def allocated_bytes(self, path: str) -> int:
        """Return how much of the volume a file takes; less than its size where it has holes."""
        ...

    def exists(self, path: str) -> bool:
        """Tell whether a path names a file or directory."""
        ...

    def is_dir(self, path: str) -> bool:
        """Tell whether a path names a directory."""
        ...

    def listdir(self, path: str) -> list[str]:
        """Return the sorted names of files and directories in a directory."""
        ...

    def make_dirs(self, path: str) -> None:
        """Create a directory and its parents and make their names durable."""
        ...

    def mkdir(self, path: str) -> None:
        """Create one directory; its name is durable after `fsync_dir` of its parent."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename atomically, replacing the target."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a file's name."""
        ...

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def fsync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        ...

    def usage(self, path: str) -> VolumeUsage:
        """Return the state of the volume that holds `path`."""
        ...

    def lock(self, path: str, text: str) -> Callable[[], None]:
        """Take the exclusive lock on a lock file, write `text` into it, return the release.

        A full volume may leave the text that was there, or none.

        Raises:
            BlockingIOError: another process holds it, or this one reads what it protects.
        """
        ...

    def data_range(self, fd: int, position: int) -> tuple[int, int] | None:
        """Return begin and end of the next bytes that may have been written.

        They lie at or behind a position. What is only reserved need not be read; None when that is
        all there is.
        """
        ...

    def boot_id(self) -> str:
        """Return the name of this run of the kernel, "" where it has none.

        While it stays the same, what a process wrote is there after its death, synced or not.
        """
        ...

    def wall_ms(self) -> int:
        """Return the wall clock, epoch milliseconds: a label, never a measure of elapsed time."""
        ...

    def monotonic(self) -> float:
        """Return seconds that only ever go up."""
        ...

    def clock_pair(self) -> ClockPair:
        """Return both clocks, read so that they belong together; see `read_clock_pair`.

        Whoever computes one clock from the other uses this: two calls of the methods above may have
        any pause between them.
        """
        ...


_BRACKET_S: Final = 0.0001
_TRIES: Final = 10


def read_clock_pair(wall_ns: Callable[[], int], monotonic_s: Callable[[], float]) -> ClockPair:
    """Read the wall clock between two looks at the monotonic one, until these are close.

    A process may be held up for any time between two reads. So the pair of the shortest of up to
    ten tries is returned, and the first one within 0.1 ms ends them. Both ends of the bracket are
    true however long it is.
    """
    best: ClockPair | None = None
    for _ in range(_TRIES):
        before_s = monotonic_s()
        wall = wall_ns()
        pair = ClockPair(wall, before_s, monotonic_s())
        if best is None or pair.bracket_s < best.bracket_s:
            best = pair
        if best.bracket_s <= _BRACKET_S:
            break
    assert best is not None
    return best


def write_fully(disk: Disk, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
    """Write all of `data`, going on after short writes and interruptions.

    Raises:
        OSError: a write failed; any part of the range may have been written.
    """
    try:
        written = disk.pwrite(fd, data, position)
    except InterruptedError:
        written = 0
    while written < len(data):
        try:
            count = disk.pwrite(fd, memoryview(data)[written:], position + written)
        except InterruptedError:
            continue
        if count == 0:
            raise OSError(5, "a write took no bytes")
        written += count


class UnreadableError(OSError):
    """Bytes of a file cannot be read: a bad block, or a file that ends too early.

    Other bytes of the same file can, and the next try will not help.
    """


def read_fully(disk: Disk, fd: int, size: int, position: int) -> bytes:
    """Return `size` bytes, or fewer where the file ends before.

    Raises:
        UnreadableError: some of the bytes are lost.
        OSError: a read failed for another reason; the call may be repeated.
    """
    data = b""
    while len(data) < size:
        try:
            piece = disk.pread(fd, size - len(data), position + len(data))
        except InterruptedError:
            continue
        except OSError as exc:
            if exc.errno in _UNREADABLE:
                raise UnreadableError(exc.errno, exc.strerror) from exc
            raise
        if not piece:
            break
        data = data + piece if data else piece
    return data


def read_exactly(disk: Disk, fd: int, size: int, position: int) -> bytes:
    """Return `size` bytes.

    Raises:
        UnreadableError: some of the bytes are lost, or lie behind the file's end.
        OSError: a read failed for another reason; the call may be repeated.
    """
    data = read_fully(disk, fd, size, position)
    if len(data) < size:
        raise UnreadableError(errno.EIO, f"the file ends at {position + len(data)}")
    return data


def read_up_to_damage(disk: Disk, fd: int, size: int, position: int) -> bytes:
    """Return `size` bytes, or those before the first that are lost or lie behind the file's end.

    What fails is tried again page by page.

    Raises:
        OSError: a read failed for another reason; the call may be repeated.
    """
    try:
        return read_fully(disk, fd, size, position)
    except UnreadableError:
        data = b""
    while len(data) < size:
        at = position + len(data)
        wanted = min(size - len(data), PAGE_BYTES - at % PAGE_BYTES)
        try:
            piece = read_fully(disk, fd, wanted, at)
        except UnreadableError:
            break
        data += piece
        if len(piece) < wanted:
            break
    return data


class SyncFailedError(OSError):
    """A sync failed: what was written before may be lost, even if the next sync succeeds."""


def sync(disk: Disk, fd: int) -> None:
    """Make a file durable, going on after an interruption.

    Raises:
        SyncFailedError: the disk refused.
    """
    while True:
        try:
            disk.fdatasync(fd)
        except InterruptedError:
            continue
        except OSError as exc:
            raise SyncFailedError(exc.errno, exc.strerror) from exc
        return


def remove_if_empty(disk: Disk, path: str) -> bool:
    """Remove a directory in which nothing lies, not even what `listdir` passes over; tell whether
    it was removed.

    Raises:
        OSError: it cannot be looked at or removed.
    """
    if disk.listdir(path):
        return False
    try:
        disk.rmdir(path)
    except OSError as exc:
        if exc.errno != errno.ENOTEMPTY:
            raise
        return False
    return True


def replace_file(
    disk: Disk, path: str, data: bytes, *, previous: str | None = None, is_private: bool = False
) -> None:
    """Replace a small file so that a crash leaves the old or the new one, whole and durable.

    Writes `path.tmp`, syncs it, renames it over `path` and syncs the directory. With `previous`
    the content that was there is kept under that name first, also by rename of a synced copy.

    Raises:
        OSError: nothing was replaced, or its name is not known to be durable.
    """
    directory = path.rpartition("/")[0]
    if previous is not None and disk.exists(path):
        # A block that went bad since takes what was there, and not what comes now.
        with contextlib.suppress(UnreadableError):
            write_and_rename(disk, previous, [(0, read_file(disk, path))], is_private=is_private)
    write_and_rename(disk, path, [(0, data)], is_private=is_private)
    disk.fsync_dir(directory)


def read_file(disk: Disk, path: str) -> bytes:
    """Return a small file's bytes.

    Raises:
        OSError: it cannot be read.
    """
    fd = disk.open(path)
    try:
        return read_fully(disk, fd, disk.size(path), 0)
    finally:
        disk.close(fd)


def write_and_rename(
    disk: Disk, path: str, pieces: Iterable[tuple[int, bytes]], *, is_private: bool = False
) -> None:
    """Make or replace a file whole, from pieces with their positions; between them are zeros.

    Its bytes are durable then, its name is after `fsync_dir`.

    Raises:
        OSError: nothing was replaced; `path.tmp` may be left behind.
    """
    temporary = path + ".tmp"
    if disk.exists(temporary):
        disk.unlink(temporary)
    fd = disk.open(temporary, create=True, is_private=is_private)
    try:
        for position, data in pieces:
            write_fully(disk, fd, data, position)
        sync(disk, fd)
    finally:
        disk.close(fd)
    disk.rename(temporary, path)
