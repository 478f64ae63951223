"""What a power cut may and may not leave on the simulated disk."""

import errno
import time
from random import Random

import pytest

from mailboat.testing.simulated_disk import PowerCutError, SimulatedDisk

_SEEDS = 300


def _contents(disk: SimulatedDisk, path: str = "/f") -> set[bytes | None]:
    """What many power cuts leave of one file; None where the name is gone."""
    found: set[bytes | None] = set()
    for seed in range(_SEEDS):
        after = disk.crash(Random(seed))
        found.add(after.file(path).durable_bytes if after.exists(path) else None)
    return found


def _file(disk: SimulatedDisk, data: bytes = b"", path: str = "/f") -> int:
    """A durable file."""
    fd = disk.open(path, create=True)
    disk.pwrite(fd, data, 0)
    disk.fdatasync(fd)
    disk.fsync_dir("/")
    return fd


def test_what_was_synced_with_its_name_always_survives() -> None:
    """fdatasync plus fsync_dir is durable."""
    disk = SimulatedDisk()
    _file(disk, b"synced")
    assert _contents(disk) == {b"synced"}


def test_a_synced_file_without_a_synced_name_may_be_gone() -> None:
    """The simulated disk does not grant what ext4 happens to do."""
    disk = SimulatedDisk()
    fd = disk.open("/f", create=True)
    disk.pwrite(fd, b"synced", 0)
    disk.fdatasync(fd)
    assert _contents(disk) == {b"synced", None}


def test_a_synced_name_without_synced_bytes_may_be_empty() -> None:
    """fsync_dir says nothing about the file."""
    disk = SimulatedDisk()
    fd = disk.open("/f", create=True)
    disk.pwrite(fd, b"bytes", 0)
    disk.fsync_dir("/")
    assert {b"", b"bytes"} <= _contents(disk)
    assert None not in _contents(disk)


def test_unsynced_writes_are_kept_dropped_and_torn_at_sectors() -> None:
    """Every mixture of old and new sectors can appear, and nothing else."""
    disk = SimulatedDisk()
    fd = _file(disk, b"o" * 1024)
    disk.pwrite(fd, b"n" * 1024, 0)
    old, new = b"o" * 512, b"n" * 512
    assert _contents(disk) == {old + old, new + old, old + new, new + new}


def test_unsynced_writes_are_reordered() -> None:
    """A later write may be there without an earlier one, and an overwritten one may win."""
    disk = SimulatedDisk()
    fd = _file(disk, b"o" * 1024)
    disk.pwrite(fd, b"1" * 512, 0)
    disk.pwrite(fd, b"2" * 512, 512)
    disk.pwrite(fd, b"3" * 512, 0)
    found = _contents(disk)
    assert b"o" * 512 + b"2" * 512 in found
    assert b"1" * 512 + b"2" * 512 in found
    assert b"3" * 512 + b"2" * 512 in found
    assert len(found) == 6


def test_a_sector_that_a_sync_covered_is_never_lost_to_a_later_write() -> None:
    """Tearing a write leaves its neighbours in the same sector as they were."""
    disk = SimulatedDisk()
    fd = _file(disk, b"a" * 100)
    disk.pwrite(fd, b"b" * 100, 100)
    for content in _contents(disk):
        assert content is not None
        assert content[:100] == b"a" * 100
        assert content[100:] in (b"", b"b" * 100, bytes(100))


def test_an_unsynced_cut_may_be_undone() -> None:
    """Bytes that were truncated away can come back until the cut is synced."""
    disk = SimulatedDisk()
    fd = _file(disk, b"stale" * 200)
    disk.ftruncate(fd, 0)
    disk.fallocate(fd, 1000)
    assert {b"stale" * 200, bytes(1000)} <= _contents(disk)
    disk.fdatasync(fd)
    assert _contents(disk) == {bytes(1000)}


def test_an_unsynced_rename_is_kept_or_lost_as_one() -> None:
    """The target holds the old or the new content, never none."""
    disk = SimulatedDisk()
    _file(disk, b"old")
    fd = disk.open("/f.tmp", create=True)
    disk.pwrite(fd, b"new", 0)
    disk.fdatasync(fd)
    disk.rename("/f.tmp", "/f")
    assert _contents(disk) == {b"old", b"new"}
    disk.fsync_dir("/")
    assert _contents(disk) == {b"new"}
    assert disk.crash(Random(0)).listdir("/") == ["f"]


def test_an_unsynced_removal_may_be_undone() -> None:
    """An unlinked name can come back until its directory is synced."""
    disk = SimulatedDisk()
    _file(disk, b"kept")
    disk.unlink("/f")
    assert not disk.exists("/f")
    assert _contents(disk) == {b"kept", None}
    disk.fsync_dir("/")
    assert _contents(disk) == {None}


@pytest.mark.parametrize("synced", [(), ("/a",), ("/b",)])
def test_a_rename_between_directories_never_loses_or_doubles_the_file(
    synced: tuple[str, ...],
) -> None:
    """It is in one of the two places whatever was synced; a sync of either settles it."""
    disk = SimulatedDisk()
    for directory in ("/a", "/b"):
        disk.make_dirs(directory)
    disk.open("/a/f", create=True)
    disk.fsync_dir("/a")
    disk.rename("/a/f", "/b/f")
    for directory in synced:
        disk.fsync_dir(directory)
    places = set()
    for seed in range(_SEEDS):
        after = disk.crash(Random(seed))
        places.add((after.exists("/a/f"), after.exists("/b/f")))
    assert places == ({(False, True)} if synced else {(False, True), (True, False)})


def test_a_sync_takes_earlier_changes_of_the_other_directory_along() -> None:
    """A name made and moved away does not come back in the first place."""
    disk = SimulatedDisk()
    for directory in ("/a", "/b"):
        disk.make_dirs(directory)
    disk.open("/a/f", create=True)
    disk.rename("/a/f", "/b/f")
    disk.fsync_dir("/b")
    for seed in range(_SEEDS):
        assert disk.crash(Random(seed)).walk() == ["/b/f"]


def test_directories_are_durable_once_made() -> None:
    """`make_dirs` syncs each parent; a crash in the middle leaves a beginning."""
    disk = SimulatedDisk()
    disk.make_dirs("/a/b/c")
    assert disk.crash(Random(0)).is_dir("/a/b/c")
    disk = SimulatedDisk()
    disk.cut_power_after(3)
    with pytest.raises(PowerCutError):
        disk.make_dirs("/a/b/c")
    assert all(disk.crash(Random(seed)).is_dir("/a") for seed in range(20))


def test_a_failed_sync_loses_what_it_should_have_written() -> None:
    """Reads still show the bytes, the next sync succeeds, and the power cut tells the truth."""
    disk = SimulatedDisk()
    fd = _file(disk, b"old")
    disk.pwrite(fd, b"new", 0)
    disk.lose_unsynced(fd)
    disk.fdatasync(fd)
    assert disk.pread(fd, 3, 0) == b"new"
    assert _contents(disk) == {b"old"}


def test_a_killed_process_loses_nothing_but_descriptors_and_locks() -> None:
    """The page cache stays, still unsynced, and the old disk object is dead."""
    disk = SimulatedDisk()
    fd = _file(disk, b"old")
    disk.lock("/lock", "1")
    disk.pwrite(fd, b"new", 0)
    after = disk.kill()
    assert after.file("/f").read(3, 0) == b"new"
    assert after.open_files == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        after.pread(fd, 1, 0)
    after.lock("/lock", "2")
    with pytest.raises(PowerCutError):
        disk.pwrite(fd, b"ghost", 0)
    assert _contents(after) == {b"old", b"new"}


def test_after_the_cut_every_call_fails() -> None:
    """The n-th changing call is the last that reaches the disk, and no handler can go on."""
    disk = SimulatedDisk()
    fd = disk.open("/f", create=True)
    disk.cut_power_after(2)
    disk.pwrite(fd, b"1", 0)
    disk.pwrite(fd, b"2", 0)
    for call in (
        lambda: disk.pwrite(fd, b"3", 0),
        lambda: disk.pread(fd, 1, 0),
        lambda: disk.close(fd),
        lambda: disk.listdir("/"),
    ):
        with pytest.raises(PowerCutError):
            call()
    assert disk.crash(Random(1)).open_files == 0


def test_a_crash_is_decided_by_its_seed_and_leaves_the_disk_as_it_is() -> None:
    """The same seed gives the same image, and images do not share bytes."""
    disk = SimulatedDisk()
    fd = _file(disk, b"o" * 4096)
    disk.pwrite(fd, b"n" * 4096, 0)
    images = [disk.crash(Random(7)) for _ in range(2)]
    assert images[0].file("/f").durable_bytes == images[1].file("/f").durable_bytes
    images[0].pwrite(images[0].open("/f"), b"x" * 4096, 0)
    assert images[1].file("/f").read(1, 0) != b"x"
    assert disk.pread(fd, 1, 0) == b"n"


def test_a_second_crash_finds_nothing_left_to_lose() -> None:
    """What one power cut left is durable for the next."""
    disk = SimulatedDisk()
    fd = _file(disk, b"o" * 4096)
    disk.pwrite(fd, b"n" * 4096, 0)
    first = disk.crash(Random(7))
    assert _contents(first) == {first.file("/f").durable_bytes}


def test_a_full_disk_refuses_what_does_not_fit() -> None:
    """A failed fallocate leaves a part behind, and reserved room stays usable."""
    disk = SimulatedDisk(capacity_bytes=64 * 1024)
    fd = disk.open("/reserved", create=True)
    disk.fallocate(fd, 48 * 1024)
    other = disk.open("/other", create=True)
    with pytest.raises(OSError, match="No space") as caught:
        disk.fallocate(other, 48 * 1024)
    assert caught.value.errno == errno.ENOSPC
    assert disk.size("/other") == 16 * 1024
    third = disk.open("/third", create=True)
    with pytest.raises(OSError, match="No space"):
        disk.pwrite(third, b"x", 0)
    assert disk.pwrite(fd, b"x" * 1000, 40_000) == 1000
    assert disk.usage("/").available_bytes == 0
    disk.unlink("/other")
    assert disk.usage("/").available_bytes == 16 * 1024
    assert disk.pwrite(third, b"x" * 20_000, 0) == 16 * 1024


def test_clocks_stand_still_until_they_are_moved() -> None:
    """Tests own the time; a wall clock jump is no elapsed time."""
    disk = SimulatedDisk()
    wall, elapsed = disk.wall_ms(), disk.monotonic()
    disk.advance(1.5)
    disk.jump_wall_clock(-60)
    assert disk.wall_ms() - wall == 1500 - 60_000
    assert disk.monotonic() - elapsed == 1.5
    assert disk.crash(Random(0)).wall_ms() == disk.wall_ms()


def test_a_lost_page_fails_alone_until_it_is_written_whole() -> None:
    """Reads give what comes before it, a write of a part needs the rest, a cut frees it."""
    disk = SimulatedDisk()
    fd = _file(disk, b"x" * 20_000)
    disk.file("/f").make_unreadable(5000, 10)
    assert len(disk.pread(fd, 9000, 0)) == 4096
    for position in (4096, 8191):
        with pytest.raises(OSError, match="Input/output"):
            disk.pread(fd, 100, position)
    assert disk.pread(fd, 100, 8192) == b"x" * 100
    disk = disk.kill()
    fd = disk.open("/f")
    with pytest.raises(OSError, match="Input/output"):
        disk.pwrite(fd, b"y" * 100, 4096)
    disk.pwrite(fd, b"y" * 4096, 4096)
    assert disk.pread(fd, 2, 4095) == b"xy"
    disk.file("/f").make_unreadable(9000, 1)
    disk.ftruncate(fd, 8192)
    disk.ftruncate(fd, 20_000)
    assert disk.pread(fd, 1, 9000) == b"\0"


def test_a_large_sparse_file_costs_next_to_nothing() -> None:
    """A ConsumeQueue file of 6,000,000 bytes with a few units is cheap to make, read and crash."""
    disk = SimulatedDisk()
    started = time.thread_time()
    for number in range(200):
        fd = disk.open(f"/{number}", create=True)
        disk.ftruncate(fd, 6_000_000)
        disk.pwrite(fd, b"unit" * 5, 40)
        assert disk.pread(fd, 6, 38) == b"\0\0unit"
        disk.fdatasync(fd)
    assert disk.crash(Random(0)).open_files == 0
    # 1.2 GB of zeros written once would already take longer.
    assert time.thread_time() - started < 1


def test_a_power_cut_begins_another_run_of_the_kernel() -> None:
    """The death of a process does not."""
    disk = SimulatedDisk()
    before = disk.boot_id()
    cut = disk.crash(Random(0))
    assert cut.boot_id() != before
    assert disk.kill().boot_id() == before
    assert cut.crash(Random(0)).boot_id() not in (before, cut.boot_id())
