"""Damaged directories: flipped bits, lost, emptied, shortened, swapped and foreign files.

Wrong bytes are never served. Damage in the log costs at most the messages it hit; damage in a
derived file costs nothing, since all of them can be built from the log again.
"""

import errno
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from promises import promised

from mailboat.disk import PAGE_BYTES, read_file
from mailboat.disk.real import RealDisk
from mailboat.errors import DamagedStoreError
from mailboat.model.record import decode_record
from mailboat.store.commit_log import CommitLog
from mailboat.store.file_pool import FilePool
from mailboat.store.inspection import StoreInspector
from mailboat.store.lookup import GetStatus
from mailboat.store.message_inner import PutStatus, run_inline
from mailboat.store.message_store import MessageStore
from mailboat.store.recovery import DamagedRange, Scanner, quarantine
from mailboat.store.segment import Segment, create_segment
from mailboat.testing.disk_wrapper import DiskWrapper
from mailboat.testing.history import History, QueueKey
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.store_simulator import HOST, make_message, small_config

_KEYS = (("orders", 0), ("orders", 1), ("%RETRY%group", 0))
_FLIPS = 250


class _Message(NamedTuple):
    """What was stored: its place in the log, its body and its key."""

    physical_offset: int
    size_bytes: int
    body: bytes
    key: str


class _Original(NamedTuple):
    """A directory in good order and every message in it."""

    disk: SimulatedDisk
    messages: dict[tuple[QueueKey, int], _Message]

    def copy(self) -> SimulatedDisk:
        return self.disk.crash(Random(0))


def _make(*, closed: bool) -> _Original:
    disk = SimulatedDisk()
    store = MessageStore(small_config("SYNC_FLUSH"), disk, store_host=HOST)
    store.open()
    history = History()
    messages = {}
    for number in range(72):
        body = Random(number).randbytes((20, 300, 900)[number % 3])
        sent = history.send(*_KEYS[number % 5 % 3], body)
        inner = make_message(sent, f"U{number}")
        store.put_messages([inner])
        assert inner.status == PutStatus.PUT_OK
        messages[(sent.key, inner.queue_offset)] = _Message(
            inner.physical_offset, inner.size_bytes, body, f"U{number}"
        )
        job = store.begin_flush()
        assert job is not None
        job.run()
        store.finish_flush(job, None)
        if number in (30, 50):
            # The checkpoint of a running store, well before its end.
            disk.advance(11)
            for _ in range(3):
                store.background()
    for _ in range(3):
        store.background()
    if closed:
        store.close()
    else:
        disk = disk.kill()
    for path in disk.walk():
        fd = disk.open(path)
        disk.fdatasync(fd)
        disk.close(fd)
        disk.fsync_dir(path.rpartition("/")[0])
    return _Original(disk, messages)


@pytest.fixture(scope="module", params=["closed", "killed"])
def original(request: pytest.FixtureRequest) -> _Original:
    """A directory that was closed cleanly, or whose broker was killed."""
    return _make(closed=request.param == "closed")


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "mailboat")


def _open(disk: SimulatedDisk) -> MessageStore:
    store = MessageStore(small_config("SYNC_FLUSH"), disk, store_host=HOST)
    store.open()
    return store


def _served(store: MessageStore) -> dict[tuple[QueueKey, int], tuple[int, bytes]]:
    """Everything that consumers get who ask for the next offset where one is damaged."""
    found: dict[tuple[QueueKey, int], tuple[int, bytes]] = {}
    for key in store.queues.by_key:
        at, high = store.min_offset(*key), store.max_offset(*key)
        while at < high:
            result = store.get_message(*key, at, 32, 1 << 20)
            if result.status != GetStatus.FOUND:
                is_skipped = result.status == GetStatus.NO_MATCHED_MESSAGE
                assert is_skipped or result.status == GetStatus.DAMAGED
                at = result.next_offset if is_skipped else at + 1
                continue
            data = b"".join(result.slices)
            position = 0
            while position < len(data):
                message, position = decode_record(data, position)
                assert (message.topic, message.queue_id) == key
                assert (key, message.queue_offset) not in found
                found[(key, message.queue_offset)] = (message.physical_offset, message.body)
            at = result.next_offset
    return found


@promised("damage is never served, and costs nothing else")
def _check(store: MessageStore, original: _Original, allowed: set[int]) -> None:
    """Check that only messages at the physical offsets in `allowed` are missing, none is wrong."""
    served = _served(store)
    for place, found in served.items():
        assert found == (original.messages[place].physical_offset, original.messages[place].body)
    missing = {
        message.physical_offset
        for place, message in original.messages.items()
        if place not in served
    }
    assert missing <= allowed
    for (key, queue_offset), message in original.messages.items():
        for record in store.query_message(key[0], message.key, 10, 0, 1 << 60).records:
            read, _ = decode_record(record)
            assert (read.queue_offset, read.body) == (queue_offset, message.body)


@promised("a damaged store takes messages")
def _check_works(store: MessageStore) -> None:
    """Check that the store goes on with sane times and offsets."""
    sent = History().send("fresh", 0, b"new")
    inner = make_message(sent, "fresh")
    store.put_messages([inner])
    assert inner.status == PutStatus.PUT_OK
    job = store.begin_flush()
    assert job is not None
    job.run()
    store.finish_flush(job, None)
    assert store.store_timestamp("fresh", 0, 0) - 1_700_000_000_000 < 86_400_000
    store.close()


def _hit(original: _Original, path: str, position: int) -> set[int]:
    """Return the physical offset of the message that a byte of the log belongs to, if it is one.

    The unit of a queue can be wrong and its message is found all the same.
    """
    directory, _, name = path.rpartition("/")
    if directory.endswith("commitlog"):
        at = int(name) + position
        return {
            message.physical_offset
            for message in original.messages.values()
            if message.physical_offset <= at < message.physical_offset + message.size_bytes
        }
    return set()


def _change(disk: SimulatedDisk, path: str, change: Callable[[bytes], bytes | None]) -> None:
    """Replace a file's bytes, or remove it."""
    data = change(read_file(disk, path))
    disk.unlink(path)
    if data is not None:
        fd = disk.open(path, create=True)
        disk.pwrite(fd, data, 0)
        disk.close(fd)


@pytest.mark.parametrize(
    "kind", ["commitlog", "consumequeue", "index", "checkpoint", "progress.json", "flushed"]
)
def test_a_flipped_bit_is_never_served(original: _Original, kind: str) -> None:
    """Any single bit: everything else is served unchanged, and the store goes on."""
    paths = [path for path in original.disk.walk() if kind in path]
    assert paths
    for seed in range(_FLIPS // 3):
        random = Random(seed)
        path = random.choice(paths)
        data = read_file(original.disk, path)
        used = max(1, len(data.rstrip(b"\0")))
        position = random.randrange(used if random.random() < 0.9 else len(data))
        bit = 1 << random.randrange(8)
        disk = original.copy()
        _change(
            disk,
            path,
            lambda old, at=position, bit=bit: (  # type: ignore[misc]
                old[:at] + bytes((old[at] ^ bit,)) + old[at + 1 :]
            ),
        )
        store = _open(disk)
        _check(store, original, _hit(original, path, position))
        _check_works(store)


def _garbage(data: bytes) -> bytes:
    return Random(len(data)).randbytes(len(data))


_OPERATIONS: dict[str, Callable[[bytes], bytes | None]] = {
    "removed": lambda data: None,
    "emptied": lambda data: b"",
    "zeroed": lambda data: bytes(len(data)),
    "halved": lambda data: data[: len(data) // 2],
    "cut in a unit": lambda data: data[: len(data) // 2 + 7],
    "longer": lambda data: data + b"more",
    "garbage": _garbage,
}


@pytest.mark.parametrize("operation", _OPERATIONS)
@pytest.mark.parametrize(
    "kind", ["consumequeue", "index", "checkpoint", "progress.json", "flushed", "lock", "abort"]
)
def test_a_damaged_derived_file_costs_nothing(
    original: _Original, kind: str, operation: str
) -> None:
    """Each derived file in turn: all messages are there, by offset and by key."""
    paths = [path for path in original.disk.walk() if kind in path]
    for path in paths:
        disk = original.copy()
        _change(disk, path, _OPERATIONS[operation])
        store = _open(disk)
        _check(store, original, set())
        for (key, _), message in original.messages.items():
            found = store.query_message(key[0], message.key, 10, 0, 1 << 60).records
            with promised("all is found by its key"):
                assert len(found) == 1, (path, message.key)
        _check_works(store)


def _remove_tree(disk: SimulatedDisk, path: str) -> None:
    for name in disk.listdir(path):
        child = f"{path}/{name}"
        if disk.is_dir(child):
            _remove_tree(disk, child)
        else:
            disk.unlink(child)
    disk.rmdir(path)


@pytest.mark.parametrize(
    "directories", [("consumequeue",), ("index",), ("consumequeue", "index"), ("mailboat",)]
)
def test_derived_directories_are_rebuilt(original: _Original, directories: tuple[str]) -> None:
    """Without consumequeue/, index/ or both everything comes back from the log alone."""
    disk = original.copy()
    for directory in directories:
        _remove_tree(disk, f"/store/{directory}")
    store = _open(disk)
    _check(store, original, set())
    for (key, _), message in original.messages.items():
        with promised("all is found by its key"):
            assert len(store.query_message(key[0], message.key, 10, 0, 1 << 60).records) == 1
    _check_works(store)


def _segments(original: _Original) -> list[str]:
    paths = [path for path in original.disk.walk() if "/commitlog/" in path]
    assert len(paths) >= 4
    return paths


def _held_by(original: _Original, path: str) -> set[int]:
    start = int(path.rpartition("/")[2])
    return {
        message.physical_offset
        for message in original.messages.values()
        if start <= message.physical_offset < start + 8192
    }


def test_a_missing_segment_costs_its_messages_only(original: _Original) -> None:
    """Any but the last may be gone: the others are served, before and behind the hole."""
    for path in _segments(original)[:-1]:
        disk = original.copy()
        disk.unlink(path)
        store = _open(disk)
        _check(store, original, _held_by(original, path))
        _check_works(store)


@pytest.mark.parametrize("operation", ["zeroed", "garbage"])
def test_a_ruined_segment_costs_its_messages_only(original: _Original, operation: str) -> None:
    """Zeros or noise in place of a segment hide nothing that lies elsewhere."""
    for path in _segments(original)[:-1]:
        disk = original.copy()
        _change(disk, path, _OPERATIONS[operation])
        store = _open(disk)
        _check(store, original, _held_by(original, path))
        _check_works(store)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("operation", ["zeroed", "garbage", "unreadable"])
def test_ruined_segments_at_the_end_of_the_log_cost_their_messages_only(
    original: _Original, operation: str, count: int
) -> None:
    """All that lies below the mark and behind the last good record is told, and written behind."""
    disk = original.copy()
    disk.unlink("/store/mailboat/progress.json")
    written = [path for path in _segments(original) if _held_by(original, path)]
    for path in written[-count:]:
        if operation == "unreadable":
            disk.file(path).make_unreadable(0, 8192)
        else:
            _change(disk, path, _OPERATIONS[operation])
    store = _open(disk)
    _check(store, original, set().union(*(_held_by(original, path) for path in written[-count:])))
    told = sum(item.size_bytes for item in store.recovery.damaged)
    assert told > 8192 * (count - 1)
    end = store.commit_log.end
    assert end >= max(message.physical_offset for message in original.messages.values())
    _check_works(store)
    store = _open(disk)
    assert store.max_offset("fresh", 0) == 1
    result = store.get_message("fresh", 0, 0, 1, 1 << 20)
    assert result.status == GetStatus.FOUND
    assert decode_record(result.slices[0])[0].physical_offset == end


def _copy_over(original: _Original) -> SimulatedDisk:
    """Put the second segment's bytes in the place of the third, and take the queues away."""
    disk = original.copy()
    source, target = _segments(original)[1:3]
    data = read_file(disk, source)
    _change(disk, target, lambda _: data)
    _remove_tree(disk, "/store/consumequeue")
    return disk


def test_a_segment_in_the_wrong_place_is_not_believed(original: _Original) -> None:
    """A record says where it belongs; elsewhere it is damage, however good its checksum."""
    store = _open(_copy_over(original))
    _check(store, original, _held_by(original, _segments(original)[2]))
    _check_works(store)


@pytest.mark.parametrize("operation", ["emptied", "halved", "longer"])
def test_a_segment_of_another_size_is_refused_by_name(original: _Original, operation: str) -> None:
    """The error names the file and what to do; nothing is changed."""
    path = _segments(original)[1]
    disk = original.copy()
    _change(disk, path, _OPERATIONS[operation])
    before = {name: disk.file(name).read(1 << 20, 0) for name in _segments(original)}
    with pytest.raises(DamagedStoreError, match=path):
        _open(disk)
    with promised("a refused start changes nothing"):
        assert before == {name: disk.file(name).read(1 << 20, 0) for name in _segments(original)}


def test_a_missing_last_segment_is_refused_by_name(original: _Original) -> None:
    """Messages that were certainly there are not given up silently."""
    disk = original.copy()
    for path in _segments(original)[2:]:
        disk.unlink(path)
    with pytest.raises(DamagedStoreError, match="restore the missing segments"):
        _open(disk)


def test_a_foreign_file_in_the_log_is_refused_by_name(original: _Original) -> None:
    """The store does not guess."""
    disk = original.copy()
    disk.close(disk.open("/store/commitlog/notes.txt", create=True))
    with pytest.raises(DamagedStoreError, match=r"notes\.txt"):
        _open(disk)


def _pages(disk: SimulatedDisk, path: str) -> int:
    used = len(read_file(disk, path).rstrip(b"\0"))
    return max(-(-used // PAGE_BYTES), 1)


_NAMES_OF_OTHERS = (
    "consumequeue/.DS_Store",
    "consumequeue/orders/notes",
    "consumequeue/orders/7",
    "consumequeue/orders/00/",
    "consumequeue/orders/\u00b2/",
    "consumequeue/orders/0/folder/",
    "consumequeue/orders/0/.nfs0001",
    "consumequeue/orders/0/99999999999999999999",
    "consumequeue/lost+found/",
    "index/folder/",
)


@pytest.mark.parametrize("rebuild", [False, True])
@pytest.mark.parametrize("name", _NAMES_OF_OTHERS)
def test_what_somebody_else_put_there_stops_no_start(
    original: _Original, name: str, *, rebuild: bool
) -> None:
    """Only what has the name of one of the store's own files is looked at."""
    disk = original.copy()
    path = f"/store/{name.rstrip('/')}"
    if name.endswith("/"):
        disk.make_dirs(path)
    else:
        disk.close(disk.open(path, create=True))
    inspector = StoreInspector(disk, "/store")
    assert inspector.check().is_sound
    inspector.close()
    store = MessageStore(small_config("SYNC_FLUSH"), disk, store_host=HOST)
    store.open(rebuild=rebuild)
    _check(store, original, set())
    _check_works(store)
    assert disk.exists(path) != name.endswith("99999999")


def test_an_unreadable_page_of_the_log_costs_its_messages_only(original: _Original) -> None:
    """A bad block is stepped over at the start and reported; the disk is asked for nothing else."""
    for path in _segments(original):
        for page in range(_pages(original.disk, path)):
            disk = original.copy()
            disk.file(path).make_unreadable(page * PAGE_BYTES, 1)
            start = int(path.rpartition("/")[2]) + page * PAGE_BYTES
            hit = {
                message.physical_offset
                for message in original.messages.values()
                if message.physical_offset < start + PAGE_BYTES
                and start < message.physical_offset + message.size_bytes
            }
            store = _open(disk)
            _check(store, original, hit)
            with promised("damage costs its messages only"):
                assert len(_served(store)) == len(original.messages) - len(hit)
            _check_works(store)


@pytest.mark.parametrize(
    "kind", ["consumequeue", "index", "checkpoint", "progress.json", "flushed", "lock", "abort"]
)
def test_an_unreadable_page_of_a_derived_file_costs_nothing(original: _Original, kind: str) -> None:
    """The file is built anew from the log."""
    for path in [path for path in original.disk.walk() if kind in path]:
        disk = original.copy()
        disk.file(path).make_unreadable(0, 1)
        store = _open(disk)
        _check(store, original, set())
        _check_works(store)


@pytest.mark.parametrize("skip_corrupt", [False, True])
def test_a_page_that_is_lost_while_the_store_runs(
    original: _Original, *, skip_corrupt: bool
) -> None:
    """Each message of it is answered as damaged or stepped over, and counted; the rest is read."""
    disk = original.copy()
    config = small_config("SYNC_FLUSH", skip_corrupt=skip_corrupt)
    store = MessageStore(config, disk, store_host=HOST)
    store.open()
    path = _segments(original)[1]
    disk.file(path).make_unreadable(0, 8192)
    lost = _held_by(original, path)
    _check(store, original, lost)
    with promised("damage costs its messages only"):
        assert len(_served(store)) == len(original.messages) - len(lost)
    assert store.state().unreadable_records >= len(lost)
    assert store.state().corrupt_records == 0
    store.queues.write_some(len(_KEYS))
    for queue_file in [path for path in disk.walk() if "consumequeue/orders/0" in path]:
        disk.file(queue_file).make_unreadable(0, 1)
    assert {key for key, _ in _served(store)} == set(_KEYS) - {("orders", 0)}
    _check_works(store)


def test_a_look_at_a_directory_with_lost_pages_tells_them(original: _Original) -> None:
    """`store inspect` reads what there is and names what there is not."""
    disk = original.copy()
    path = _segments(original)[1]
    disk.file(path).make_unreadable(0, 1)
    queue_file = next(path for path in disk.walk() if "consumequeue" in path)
    disk.file(queue_file).make_unreadable(0, 1)
    inspector = StoreInspector(disk, "/store")
    report = inspector.check()
    inspector.close()
    assert report.records >= len(original.messages) - len(_held_by(original, path))
    assert "Input/output error" in report.damaged[0].reason or path in report.damaged[0].reason
    assert any(queue_file in problem for problem in report.problems)


_CUT_SHORT = """
import os, sys
from mailboat.config import MessageStoreConfig
from mailboat.disk.real import RealDisk
from mailboat.store.message_inner import MessageInner
from mailboat.store.message_store import MessageStore

root = sys.argv[1]
config = MessageStoreConfig(store_path_root_dir=root, mapped_file_size_commit_log=1 << 20,
                            mapped_file_size_consume_queue=20_000)
HOST = bytes((127, 0, 0, 1)) + (10911).to_bytes(4, "big")

def opened():
    store = MessageStore(config, RealDisk(), store_host=HOST)
    store.open()
    return store

store = opened()
messages = [
    MessageInner(topic="T", queue_id=0, body=b"%04d" % n * 200, properties=b"", tags_code=0,
                 unique_key=None, keys=None, flag=0, sys_flag=0, born_timestamp_ms=1,
                 born_host=HOST)
    for n in range(100)
]
store.put_messages(messages)
store.queues.write()
path = store.commit_log.segments[0].path
for status in (store.get_message("T", 0, 0, 32, 1 << 20).status,):
    assert status == 0, status
os.truncate(path, messages[50].physical_offset)
found = []
for at in range(100):
    result = store.get_message("T", 0, at, 1, 1 << 20)
    found.append((result.status, result.message_count))
assert found == [(0, 1)] * 50 + [(6, 0)] * 50, found
assert store.look_message_by_offset(messages[60].physical_offset) is None
assert store.store_timestamp("T", 0, 60) == -1
assert store.get_message("T", 0, 40, 32, 1 << 20).message_count == 10
print("answered")
"""


def test_a_file_cut_short_under_a_running_store_is_no_signal(tmp_path: Path) -> None:
    """Reads behind the new end are answered; a mapping would end the process by SIGBUS."""
    done = subprocess.run(
        [sys.executable, "-c", _CUT_SHORT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "answered\n"), done.stderr


_LOOK = """
import os, sys

root = sys.argv[-1]
opened = []

def note(event, arguments):
    if event == "open" and str(arguments[0]).startswith(root):
        opened.append(arguments[0])
        if arguments[2] & os.O_ACCMODE != os.O_RDONLY:
            raise OSError(30, f"read-only file system: {arguments[0]}")

sys.addaudithook(note)
from mailboat.cli import main
try:
    sys.exit(main())
finally:
    print(len(opened), "files opened", file=sys.stderr)
"""


@pytest.mark.parametrize("what", ["check", "dump"])
def test_a_look_at_a_store_that_may_only_be_read(tmp_path: Path, what: str) -> None:
    """A read-only mount, or somebody else's directory: all is shown as it is, nothing is opened for
    writing (the hook refuses that as such a mount does, to root too)."""
    root = tmp_path / "store"
    config = small_config("SYNC_FLUSH", store_path_root_dir=str(root))
    store = MessageStore(config, RealDisk(), store_host=HOST)
    store.open()
    history = History()
    inners = [make_message(history.send("orders", 0, b"%d" % n), f"U{n}") for n in range(3)]
    for inner in inners:
        inner.sys_flag = 0
    store.put_messages(inners)
    store.close()
    for path in [*root.rglob("*"), root]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    done = subprocess.run(
        [sys.executable, "-c", _LOOK, "store", what, str(root)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = "3 records" if what == "check" else "orders/0@2"
    assert expected in done.stdout
    assert int(done.stderr.split()[-3]) > 0
    for path in [root, *root.rglob("*")]:
        path.chmod(0o755)


class _Counting(DiskWrapper):
    """Notes the most bytes that one call reads or writes."""

    most = 0

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Read."""
        self.most = max(self.most, size)
        return self.disk.pread(fd, size, position)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        """Write."""
        self.most = max(self.most, len(data))
        return self.disk.pwrite(fd, data, position)


def _damaged_log(disk: SimulatedDisk, size_bytes: int) -> CommitLog:
    """Return a log of one segment; the second half of its damage is zeros."""
    disk.make_dirs("/store/commitlog")
    pool = FilePool(disk, 4)
    segment = create_segment(disk, pool, "/store/commitlog", 0, size_bytes)
    for position in (0, size_bytes // 2 - 5):
        segment.write(b"bad", position)
    config = small_config("SYNC_FLUSH", mapped_file_size_commit_log=size_bytes)
    log = CommitLog(config, disk, pool, "/store/commitlog", HOST, run_inline)
    log.segments.append(segment)
    return log


def test_damaged_bytes_are_copied_in_blocks() -> None:
    """A whole segment may be damaged, and a gigabyte of memory is not there for it."""
    size_bytes = 8 << 20
    disk = _Counting(SimulatedDisk())
    log = _damaged_log(disk, size_bytes)
    disk.most = 0
    quarantine(disk, "/store/q", log, [DamagedRange(0, size_bytes, "all of it")])
    assert 0 < disk.most <= (1 << 20) + 2
    copy = read_file(disk, f"/store/q/{0:020d}-{size_bytes}")
    assert copy == b"bad".ljust(size_bytes // 2 - 5, b"\0") + b"bad"


def test_zeros_behind_damage_are_passed_over_fast(tmp_path: Path) -> None:
    """A segment may have a gigabyte of them, really written: this one has an eighth of that."""
    size_bytes = 128 << 20
    directory = tmp_path / "commitlog"
    directory.mkdir()
    path = directory / f"{0:020d}"
    path.write_bytes(b"bad" + bytes(size_bytes - 3))
    disk = RealDisk()
    pool = FilePool(disk, 4)
    config = small_config("SYNC_FLUSH", mapped_file_size_commit_log=size_bytes)
    log = CommitLog(config, disk, pool, str(directory), HOST, run_inline)
    log.segments.append(Segment(disk, pool, str(path), 0, size_bytes))
    begin_s = time.thread_time()
    report = Scanner(log, 1, check_crc=True).scan(0, lambda _view, _parts: None)
    quarantine(disk, str(tmp_path / "q"), log, report.damaged)
    took_s = time.thread_time() - begin_s
    pool.close()
    [copy] = (tmp_path / "q").iterdir()
    assert (copy.name, copy.read_bytes()) == (f"{0:020d}-{size_bytes}", b"bad")
    # To look at them one by one took 0.7 s.
    assert took_s < 0.35


@pytest.mark.parametrize("call", ["create", "pwrite"])
def test_without_room_for_a_copy_the_start_goes_on(call: str) -> None:
    """No block, or no inode for the file: the damaged bytes stay where they are."""

    class Full(DiskWrapper):
        def open(self, path: str, *, create: bool = False, is_private: bool = False) -> int:
            if create and call == "create":
                raise OSError(errno.ENOSPC, "No space left on device")
            return self.disk.open(path, create=create)

        def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    disk = SimulatedDisk()
    log = _damaged_log(disk, 65_536)
    quarantine(Full(disk), "/store/q", log, [DamagedRange(0, 65_536, "all of it")])
    assert disk.listdir("/store/q") == []
