"""The helpers that every writer uses: whole writes, whole reads, atomic replacement."""

import errno
from random import Random

import pytest

from mailboat.disk import read_file, read_fully, replace_file, sync, write_fully
from mailboat.testing.disk_wrapper import DiskWrapper
from mailboat.testing.faulty_disk import CHANGING_CALLS, SHORT_WRITE, Fault, FaultyDisk
from mailboat.testing.simulated_disk import PowerCutError, SimulatedDisk


class _BytewiseDisk(DiskWrapper):
    """Takes and gives one byte per call, interrupted at every second call."""

    turn = 0

    def _interrupt(self) -> None:
        self.turn += 1
        if self.turn % 2:
            raise InterruptedError

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        self._interrupt()
        return self.disk.pwrite(fd, bytes(data[:1]), position)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._interrupt()
        return self.disk.pread(fd, min(size, 1), position)

    def fdatasync(self, fd: int) -> None:
        self._interrupt()
        self.disk.fdatasync(fd)


class _FullDisk(DiskWrapper):
    """Takes nothing and gives no error."""

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        return 0


def test_write_fully_goes_on_after_short_writes_and_interruptions() -> None:
    """Every byte arrives where it belongs, however few a call takes."""
    disk = SimulatedDisk()
    fd = disk.open("/f", create=True)
    write_fully(_BytewiseDisk(disk), fd, b"hello world", 3)
    assert disk.pread(fd, 100, 0) == b"\0\0\0hello world"


def test_write_fully_gives_up_when_nothing_is_taken() -> None:
    """A disk that takes no bytes is an error, not an endless loop."""
    disk = SimulatedDisk()
    fd = disk.open("/f", create=True)
    with pytest.raises(OSError, match="took no bytes"):
        write_fully(_FullDisk(disk), fd, b"x", 0)


def test_read_fully_goes_on_after_short_reads_and_interruptions() -> None:
    """Every byte asked for is returned, or those up to the end of the file."""
    disk = SimulatedDisk()
    fd = disk.open("/f", create=True)
    disk.pwrite(fd, b"hello world", 0)
    slow = _BytewiseDisk(disk)
    assert read_fully(slow, fd, 5, 6) == b"world"
    assert read_fully(slow, fd, 50, 6) == b"world"
    assert read_fully(slow, fd, 5, 11) == b""


def test_sync_goes_on_after_an_interruption() -> None:
    """EINTR leaves nothing unsynced."""
    disk = SimulatedDisk()
    fd = disk.open("/f", create=True)
    disk.pwrite(fd, b"x", 0)
    sync(_BytewiseDisk(disk), fd)
    assert disk.file("/f").is_synced


def test_sync_passes_every_other_error_on() -> None:
    """A failed fsync is never taken for success."""
    disk = FaultyDisk(SimulatedDisk(), Fault(("fdatasync",), 1, errno.EIO))
    fd = disk.open("/f", create=True)
    with pytest.raises(OSError, match="Input/output"):
        sync(disk, fd)


@pytest.mark.parametrize("previous", [None, "/d/state.bak"])
def test_replace_file_leaves_the_old_or_the_new_content_after_any_crash(
    previous: str | None,
) -> None:
    """A power cut at any call leaves one whole version, and after the call the new one."""
    seen = set()
    for seed in range(400):
        random = Random(seed)
        disk = SimulatedDisk()
        disk.make_dirs("/d")
        replace_file(disk, "/d/state", b"old" * 300)
        disk.cut_power_after(random.randrange(1, 12))
        finished = False
        try:
            replace_file(disk, "/d/state", b"new" * 500, previous=previous)
            finished = True
        except PowerCutError:
            pass
        after = disk.crash(random)
        content = read_file(after, "/d/state")
        assert content in (b"old" * 300, b"new" * 500)
        assert content == b"new" * 500 or not finished
        if previous is not None and after.exists(previous):
            assert read_file(after, previous) == b"old" * 300
        seen.add((content[:3], finished))
    assert seen == {(b"old", False), (b"new", False), (b"new", True)}


def test_replace_file_keeps_the_previous_version() -> None:
    """With `previous` the content that was there stays readable under that name."""
    disk = SimulatedDisk()
    disk.make_dirs("/d")
    replace_file(disk, "/d/state", b"1", previous="/d/state.bak")
    assert disk.listdir("/d") == ["state"]
    replace_file(disk, "/d/state", b"2", previous="/d/state.bak")
    assert (read_file(disk, "/d/state"), read_file(disk, "/d/state.bak")) == (b"2", b"1")
    assert disk.listdir("/d") == ["state", "state.bak"]


def test_replace_file_steps_over_what_an_earlier_crash_left() -> None:
    """A temporary file of an attempt that died is no obstacle."""
    disk = SimulatedDisk()
    disk.make_dirs("/d")
    disk.close(disk.open("/d/state.tmp", create=True))
    replace_file(disk, "/d/state", b"1")
    assert disk.listdir("/d") == ["state"]


def test_replace_file_fails_cleanly_at_every_call() -> None:
    """Whichever call fails, the old content stays, no descriptor leaks and a retry succeeds."""
    clean = FaultyDisk(_with_state())
    replace_file(clean, "/d/state", b"new", previous="/d/state.bak")
    total = sum(clean.calls[call] for call in CHANGING_CALLS)
    assert total >= 9
    for number in range(1, total + 1):
        simulated = _with_state()
        disk = FaultyDisk(simulated, Fault(CHANGING_CALLS, number, errno.ENOSPC))
        with pytest.raises(OSError, match="No space"):
            replace_file(disk, "/d/state", b"new", previous="/d/state.bak")
        assert read_file(simulated, "/d/state") in (b"old", b"new")
        assert simulated.open_files == 0
        replace_file(disk, "/d/state", b"new", previous="/d/state.bak")
        assert read_file(simulated, "/d/state") == b"new"


def test_replace_file_goes_on_after_a_short_write() -> None:
    """A short write does not truncate the file."""
    disk = FaultyDisk(_with_state(), Fault(("pwrite",), 1, SHORT_WRITE))
    replace_file(disk, "/d/state", b"new content")
    assert read_file(disk, "/d/state") == b"new content"


def _with_state() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_dirs("/d")
    replace_file(disk, "/d/state", b"old")
    return disk
