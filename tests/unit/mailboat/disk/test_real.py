"""RealDisk on the operating system, and SimulatedDisk as its equal in everything that is live."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mailboat.disk import Disk, read_fully
from mailboat.disk.real import RealDisk
from mailboat.testing.simulated_disk import SimulatedDisk

Place: TypeAlias = tuple[Disk, str]


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A disk and an empty directory on it."""
    if request.param == "real":
        return RealDisk(), str(tmp_path)
    disk = SimulatedDisk()
    disk.make_dirs("/place")
    return disk, "/place"


def test_create_refuses_a_file_that_exists(place: Place) -> None:
    """`create` never takes over another file."""
    disk, root = place
    disk.close(disk.open(f"{root}/f", create=True))
    with pytest.raises(FileExistsError):
        disk.open(f"{root}/f", create=True)


def test_open_refuses_a_file_that_is_missing(place: Place) -> None:
    """Without `create` nothing is made."""
    disk, root = place
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/f")
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/missing/f", create=True)
    assert disk.listdir(root) == []


def test_a_closed_descriptor_is_refused(place: Place) -> None:
    """Using a closed file is EBADF."""
    disk, root = place
    fd = disk.open(f"{root}/f", create=True)
    disk.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        disk.pread(fd, 1, 0)
    assert caught.value.errno == errno.EBADF


def test_fallocate_extends_with_zeros_and_keeps_what_is_there(place: Place) -> None:
    """Reserved bytes read as zero; a file is never shortened."""
    disk, root = place
    fd = disk.open(f"{root}/f", create=True)
    disk.pwrite(fd, b"abc", 0)
    disk.fallocate(fd, 6)
    disk.fallocate(fd, 2)
    assert disk.pread(fd, 100, 0) == b"abc\0\0\0"
    assert disk.size(f"{root}/f") == 6
    disk.close(fd)


def test_ftruncate_forgets_what_it_cuts(place: Place) -> None:
    """Bytes beyond a cut are zero when the file grows again."""
    disk, root = place
    fd = disk.open(f"{root}/f", create=True)
    disk.pwrite(fd, b"abcdef", 0)
    disk.ftruncate(fd, 2)
    assert disk.pread(fd, 100, 0) == b"ab"
    disk.ftruncate(fd, 4)
    assert disk.pread(fd, 100, 0) == b"ab\0\0"
    disk.close(fd)


def test_rename_replaces_and_an_unlinked_file_stays_open(place: Place) -> None:
    """The target's old content is gone by name and still there for who has it open."""
    disk, root = place
    new = disk.open(f"{root}/new", create=True)
    old = disk.open(f"{root}/old", create=True)
    disk.pwrite(new, b"new", 0)
    disk.pwrite(old, b"old", 0)
    disk.rename(f"{root}/new", f"{root}/old")
    assert disk.listdir(root) == ["old"]
    assert disk.pread(old, 9, 0) == b"old"
    again = disk.open(f"{root}/old")
    assert disk.pread(again, 9, 0) == b"new"
    disk.unlink(f"{root}/old")
    assert not disk.exists(f"{root}/old")
    assert disk.pread(again, 9, 0) == b"new"
    for fd in (new, old, again):
        disk.close(fd)


def test_parents_may_be_wanted_by_several_at_once(tmp_path: Path) -> None:
    """Brokers with folders side by side start at the same time; nobody fails over a parent."""
    at_once = threading.Barrier(8)

    def make(name: str) -> None:
        at_once.wait()
        RealDisk().make_dirs(name)

    with ThreadPoolExecutor(8) as threads:
        for number in range(20):
            names = [str(tmp_path / str(number) / "p" / "q" / str(i)) for i in range(8)]
            list(threads.map(make, names))
            assert all(map(os.path.isdir, names))


def test_directories(place: Place) -> None:
    """Directories are made with their parents, listed sorted and removed when empty."""
    disk, root = place
    disk.make_dirs(f"{root}/a/b")
    disk.make_dirs(f"{root}/a/b")
    disk.close(disk.open(f"{root}/a/f", create=True))
    assert disk.listdir(f"{root}/a") == ["b", "f"]
    assert disk.is_dir(f"{root}/a/b")
    assert not disk.is_dir(f"{root}/a/f")
    assert not disk.is_dir(f"{root}/nothing")
    with pytest.raises(OSError, match="not empty"):
        disk.rmdir(f"{root}/a")
    with pytest.raises(FileExistsError):
        disk.make_dirs(f"{root}/a/f")
    disk.rmdir(f"{root}/a/b")
    disk.fsync_dir(f"{root}/a")
    with pytest.raises(FileNotFoundError):
        disk.listdir(f"{root}/a/b")
    with pytest.raises(FileNotFoundError):
        disk.unlink(f"{root}/nothing")
    with pytest.raises(FileNotFoundError):
        disk.rename(f"{root}/nothing", f"{root}/x")


def test_lock_writes_its_text_and_can_be_taken_again_once_released(place: Place) -> None:
    """The lock file names its holder and does not stay locked."""
    disk, root = place
    release = disk.lock(f"{root}/lock", "12345")
    fd = disk.open(f"{root}/lock")
    assert read_fully(disk, fd, 100, 0) == b"12345"
    if isinstance(disk, SimulatedDisk):
        # The operating system's record locks are per process; another test covers the real one.
        with pytest.raises(BlockingIOError):
            disk.lock(f"{root}/lock", "6")
    disk.close(fd)
    release()
    disk.lock(f"{root}/lock", "7")()


def test_usage_adds_up(place: Place) -> None:
    """Capacity, use and room are those of one volume."""
    disk, root = place
    usage = disk.usage(root)
    assert 0 <= usage.used_bytes <= usage.capacity_bytes
    assert 0 < usage.available_bytes <= usage.capacity_bytes
    assert 0 <= usage.inodes_free <= usage.inodes_total
    with pytest.raises(FileNotFoundError):
        disk.usage(f"{root}/nothing")


def test_paths_on_one_volume_have_one_device(place: Place) -> None:
    """A folder lies where the folder above it lies, until something is mounted there."""
    disk, root = place
    disk.mkdir(f"{root}/below")
    assert disk.usage(root).device == disk.usage(f"{root}/below").device


def test_another_volume_has_another_device(tmp_path: Path) -> None:
    """/proc is a file system of its own on every Linux."""
    disk = RealDisk()
    assert disk.usage("/proc").device != disk.usage(f"{tmp_path}").device


def test_a_file_says_what_it_takes_of_the_volume(place: Place) -> None:
    """A hole takes nothing, whatever the size says; what is reserved takes its room."""
    disk, root = place
    path = f"{root}/file"
    fd = disk.open(path, create=True)
    disk.ftruncate(fd, 1 << 20)
    assert disk.allocated_bytes(path) < 1 << 16
    disk.fallocate(fd, 1 << 20)
    assert disk.allocated_bytes(path) >= 1 << 20
    disk.close(fd)
    with pytest.raises(FileNotFoundError):
        disk.allocated_bytes(f"{root}/nothing")


def test_a_read_only_disk_opens_for_reading(tmp_path: Path) -> None:
    """So that a look works on a read-only mount, and can change nothing by mistake."""
    path = tmp_path / "file"
    path.write_bytes(b"as it was")
    disk = RealDisk(is_read_only=True)
    fd = disk.open(str(path))
    assert disk.pread(fd, 100, 0) == b"as it was"
    with pytest.raises(OSError, match="Bad file descriptor"):
        disk.pwrite(fd, b"x", 0)
    disk.close(fd)
    assert path.read_bytes() == b"as it was"


def test_a_read_only_lock_is_shared_and_takes_none_away(tmp_path: Path) -> None:
    """It changes nothing, and keeps brokers away; one of this process keeps its own lock."""
    path = tmp_path / "lock"
    look = RealDisk(is_read_only=True)
    with pytest.raises(FileNotFoundError):
        look.lock(str(path), "2")
    release = RealDisk().lock(str(path), "1")
    with pytest.raises(BlockingIOError, match="locked by this process"):
        look.lock(str(path), "2")
    assert not _can_lock(path)
    release()
    release = look.lock(str(path), "2")
    with pytest.raises(BlockingIOError, match="locked by this process"):
        RealDisk().lock(str(path), "3")
    assert not _can_lock(path)
    release()
    assert _can_lock(path)
    assert path.read_bytes() == b"1"


def test_a_pipe_keeps_no_reader_waiting(tmp_path: Path) -> None:
    """Who only looks at a folder of others does not know what is there."""
    os.mkfifo(tmp_path / "pipe")
    disk = RealDisk(is_read_only=True)
    disk.close(disk.open(str(tmp_path / "pipe")))


def test_clocks_run(place: Place) -> None:
    """Wall time is epoch milliseconds and monotonic time never goes back."""
    disk, _ = place
    assert disk.wall_ms() > 1_600_000_000_000
    assert disk.monotonic() <= disk.monotonic()


def test_another_process_cannot_take_the_lock(tmp_path: Path) -> None:
    """Two brokers never share a directory."""
    path = str(tmp_path / "lock")
    release = RealDisk().lock(path, "1")
    assert not _can_lock(path)
    release()
    assert _can_lock(path)


def _can_lock(path: str | Path) -> bool:
    """Tell whether another process could take the lock."""
    script = (
        "import fcntl, sys\n"
        "with open(sys.argv[1], 'r+b') as f:\n"
        "    try:\n"
        "        fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
        "    except OSError:\n"
        "        sys.exit(7)\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    found = subprocess.run(command, check=False, timeout=60).returncode
    assert found in (0, 7)
    return not found


def test_taking_a_lock_that_another_process_holds_is_an_error(tmp_path: Path) -> None:
    """The refusal names the file."""
    path = str(tmp_path / "lock")
    script = (
        "import fcntl, sys\n"
        "f = open(sys.argv[1], 'w+b')\n"
        "fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError, match="locked by another process"):
            RealDisk().lock(path, "2")
        holder.stdin.close()
        assert holder.wait(timeout=60) == 0


_NAMES = st.sampled_from(["a", "b", "d/a", "d/b"])
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), _NAMES),
        st.tuples(st.just("write"), _NAMES, st.integers(0, 9000), st.binary(max_size=600)),
        st.tuples(st.just("truncate"), _NAMES, st.integers(0, 9000)),
        st.tuples(st.just("fallocate"), _NAMES, st.integers(1, 9000)),
        st.tuples(st.just("rename"), _NAMES, _NAMES),
        st.tuples(st.just("unlink"), _NAMES),
        st.tuples(st.just("sync"), _NAMES),
    ),
    max_size=30,
)


@settings(max_examples=80, deadline=None)
@example(steps=[("create", "a"), ("write", "a", 1, b"")])
@given(steps=_STEPS)
def test_the_simulated_disk_behaves_like_the_real_one(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, ...]]
) -> None:
    """Any sequence of calls gives the same answers, errors and contents on both."""
    simulated = SimulatedDisk()
    simulated.make_dirs("/d")
    root = str(tmp_path_factory.mktemp("real"))
    RealDisk().make_dirs(f"{root}/d")
    for step in steps:
        assert _outcome(simulated, "", step) == _outcome(RealDisk(), root, step)
    for name in ("a", "b", "d/a", "d/b"):
        assert _content(simulated, f"/{name}") == _content(RealDisk(), f"{root}/{name}")


def _outcome(disk: Disk, root: str, step: tuple[str, ...]) -> object:
    try:
        return _perform(disk, root, *step)
    except OSError as exc:
        return exc.errno


def _perform(disk: Disk, root: str, action: str, name: str, *rest: object) -> object:
    path = f"{root}/{name}"
    if action == "rename":
        disk.rename(path, f"{root}/{rest[0]}")
        return None
    if action == "unlink":
        disk.unlink(path)
        return None
    fd = disk.open(path, create=action == "create")
    try:
        return _FILE_ACTIONS[action](disk, fd, *rest)
    finally:
        disk.close(fd)


_FILE_ACTIONS: dict[str, Callable[..., object]] = {
    "create": lambda disk, fd: None,
    "write": lambda disk, fd, position, data: disk.pwrite(fd, data, position),
    "truncate": lambda disk, fd, size: disk.ftruncate(fd, size),
    "fallocate": lambda disk, fd, size: disk.fallocate(fd, size),
    "sync": lambda disk, fd: disk.fdatasync(fd),
}


def _content(disk: Disk, path: str) -> bytes | None:
    if not disk.exists(path):
        return None
    fd = disk.open(path)
    try:
        return read_fully(disk, fd, disk.size(path) + 1, 0)
    finally:
        disk.close(fd)


def test_reserved_room_holds_no_data(tmp_path: Path) -> None:
    """The search for what was written steps over what was only reserved."""
    disk = RealDisk()
    fd = disk.open(f"{tmp_path}/file", create=True)
    disk.fallocate(fd, 1 << 20)
    disk.pwrite(fd, b"written", 3 << 16)
    found = disk.data_range(fd, 0)
    assert found is not None
    begin, end = found
    assert begin <= 3 << 16 < end
    found = disk.data_range(fd, 3 << 16)
    assert found is not None
    assert found[0] == 3 << 16
    # A file system that does not know its holes may call everything written.
    assert disk.data_range(fd, 4 << 16) in (None, (4 << 16, 1 << 20))
    assert disk.data_range(fd, 1 << 20) is None
    disk.close(fd)
