"""FaultyDisk fails the calls that a fault names, and no other."""

import errno
from random import Random

import pytest

from mailboat.testing.faulty_disk import SHORT_WRITE, Fault, FaultyDisk
from mailboat.testing.simulated_disk import SimulatedDisk


def test_the_named_call_fails_once() -> None:
    """A one-shot fault hits the n-th call of its kinds and is over."""
    disk = FaultyDisk(SimulatedDisk(), Fault(("pwrite", "fdatasync"), 2, errno.EIO))
    fd = disk.open("/f", create=True)
    disk.pwrite(fd, b"1", 0)
    with pytest.raises(OSError, match="Input/output"):
        disk.fdatasync(fd)
    disk.fdatasync(fd)
    assert disk.failures == 1
    assert disk.calls == {"create": 1, "pwrite": 1, "fdatasync": 2}


def test_a_sticky_fault_stays_until_it_is_healed() -> None:
    """A full disk stays full until there is room."""
    disk = FaultyDisk(SimulatedDisk())
    fd = disk.open("/f", create=True)
    disk.inject(Fault(("pwrite", "create"), 2, errno.ENOSPC, sticky=True))
    disk.pwrite(fd, b"1", 0)
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            disk.pwrite(fd, b"2", 0)
        with pytest.raises(OSError, match="No space"):
            disk.open("/g", create=True)
    disk.heal()
    assert disk.pwrite(fd, b"2", 0) == 1


def test_a_short_write_takes_half() -> None:
    """The count that is returned is what was written."""
    disk = FaultyDisk(SimulatedDisk(), Fault(("pwrite",), 1, SHORT_WRITE))
    fd = disk.open("/f", create=True)
    assert disk.pwrite(fd, b"123456", 0) == 3
    assert disk.pread(fd, 10, 0) == b"123"


def test_a_failed_fallocate_leaves_a_part() -> None:
    """As posix_fallocate does on a full disk."""
    disk = FaultyDisk(SimulatedDisk(), Fault(("fallocate",), 1, errno.ENOSPC))
    fd = disk.open("/f", create=True)
    with pytest.raises(OSError, match="No space"):
        disk.fallocate(fd, 8192)
    assert disk.size("/f") == 4096


def test_a_failed_fdatasync_loses_data_and_the_next_one_lies() -> None:
    """A store that tries again and believes the answer is caught by the next power cut."""
    simulated = SimulatedDisk()
    disk = FaultyDisk(simulated, Fault(("fdatasync",), 1, errno.EIO))
    fd = disk.open("/f", create=True)
    disk.fsync_dir("/")
    disk.pwrite(fd, b"lost", 0)
    with pytest.raises(OSError, match="Input/output"):
        disk.fdatasync(fd)
    disk.fdatasync(fd)
    assert disk.pread(fd, 10, 0) == b"lost"
    assert simulated.crash(Random(1)).file("/f").durable_bytes == b""


def test_an_interrupted_fdatasync_loses_nothing() -> None:
    """EINTR only means to call again."""
    simulated = SimulatedDisk()
    disk = FaultyDisk(simulated, Fault(("fdatasync",), 1, errno.EINTR))
    fd = disk.open("/f", create=True)
    disk.pwrite(fd, b"kept", 0)
    with pytest.raises(InterruptedError):
        disk.fdatasync(fd)
    disk.fdatasync(fd)
    assert simulated.file("/f").durable_bytes == b"kept"


def test_everything_else_is_passed_on() -> None:
    """Without a fault the disk is the one below."""
    simulated = SimulatedDisk()
    disk = FaultyDisk(simulated)
    disk.make_dirs("/d/e")
    fd = disk.open("/d/f", create=True)
    disk.fallocate(fd, 4096)
    disk.ftruncate(fd, 100)
    disk.pwrite(fd, b"x", 99)
    assert disk.pread(fd, 2, 99) == b"x"
    disk.rename("/d/f", "/d/g")
    disk.fsync_dir("/d")
    disk.lock("/d/lock", "1")()
    assert disk.listdir("/d") == ["e", "g", "lock"]
    assert (disk.size("/d/g"), disk.exists("/d/f"), disk.is_dir("/d/e")) == (100, False, True)
    disk.rmdir("/d/e")
    disk.unlink("/d/g")
    disk.close(fd)
    assert disk.usage("/").capacity_bytes == simulated.capacity_bytes
    assert (disk.wall_ms(), disk.monotonic()) == (simulated.wall_ms(), simulated.monotonic())
    assert simulated.walk() == ["/d/lock"]
