"""IndexFile names and searches: order whatever the clock does, and no search without an end."""

import errno
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from mailboat.model.tags import unsigned_text_hash
from mailboat.store import index_file, index_service
from mailboat.store.file_pool import FilePool
from mailboat.store.index_backlog import IndexedRecord
from mailboat.store.index_service import IndexService, file_name
from mailboat.testing.faulty_disk import Fault, FaultyDisk
from mailboat.testing.simulated_disk import SimulatedDisk

_SLOTS = 7
_ENTRIES = 20
_HOUR_S = 3600
_DAY_S = 24 * _HOUR_S


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Set the time zone, and put it back."""
    yield monkeypatch
    monkeypatch.undo()
    time.tzset()


def _index(disk: SimulatedDisk) -> IndexService:
    return IndexService(disk, FilePool(disk, 2), "/index", _SLOTS, _ENTRIES)


def _fill(index: IndexService, disk: SimulatedDisk, count: int = _ENTRIES) -> None:
    for number in range(count):
        index.put_messages((IndexedRecord("t", f"k{number}", None, number),), disk.wall_ms())
    index.build()


@pytest.mark.parametrize("back_s", [900, _HOUR_S, _DAY_S, 365 * _DAY_S])
def test_a_clock_that_was_set_back_makes_the_next_name_at_once(back_s: int) -> None:
    """The name counts on from the newest one, with no step for every millisecond between."""
    disk = SimulatedDisk()
    index = _index(disk)
    _fill(index, disk)
    disk.jump_wall_clock(-back_s)
    begin_s = time.thread_time()
    _fill(index, disk, 5 * _ENTRIES)
    assert time.thread_time() - begin_s < 1
    names = [file.path.rpartition("/")[2] for file in index.files]
    assert len(names) >= 5
    assert all(earlier < later for earlier, later in pairwise(names))
    assert all(len(name) == 17 and name.isdigit() for name in names)
    saves = index.snapshot()
    for save in saves:
        save()
    again = _index(disk)
    assert again.load(index.newest_name, index.entry_counts, 1 << 40, log_start=0, check_slots=True)
    assert [file.path for file in again.files] == [file.path for file in index.files]


def test_a_clock_that_went_back_within_a_log_keeps_the_times_of_messages() -> None:
    """RocketMQ's may: each entry has the second of its own message, whatever is built with it."""
    disk = SimulatedDisk()
    index = _index(disk)
    now_ms = disk.wall_ms()
    times_ms = [now_ms, now_ms + 7_200_000, now_ms + 3_600_000, now_ms + 3_600_500]
    for number, time_ms in enumerate(times_ms):
        index.put_record(IndexedRecord("t", f"k{number}", None, number), time_ms)
    index.build()
    for number, time_ms in enumerate(times_ms[2:], 2):
        find = index.search("t", f"k{number}", 9, time_ms - 60_000, time_ms + 60_000)
        assert find(FilePool(disk, 2)) == [number]


def test_summer_time_that_ends_changes_no_name(zone: pytest.MonkeyPatch) -> None:
    """The clock on the wall shows the same hour twice; names are of UTC."""
    zone.setenv("TZ", "Europe/Berlin")
    time.tzset()
    # 2026-10-25 02:59 CEST and, two minutes later, 02:01 CET.
    first_ms = 1_792_889_940_000
    assert file_name(first_ms, "") == "20261025005900000"
    assert file_name(first_ms + 120_000, file_name(first_ms, "")) == "20261025010100000"


def test_another_time_zone_after_a_restart_keeps_the_order(zone: pytest.MonkeyPatch) -> None:
    """A directory whose names are ahead, as RocketMQ's are east of Greenwich, is gone on with."""
    now_ms = 1_792_889_940_000
    zone.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    shanghai = time.strftime("%Y%m%d%H%M%S000", time.localtime(now_ms / 1000))
    assert file_name(now_ms, shanghai) == str(int(shanghai) + 1)
    assert file_name(now_ms + 8 * _HOUR_S * 1000 + 1000, shanghai) == "20261025085901000"


@pytest.mark.parametrize(
    ("now_ms", "newest", "name"),
    [
        (253_402_300_799_999, "", "99991231235959999"),
        (253_402_300_800_000, "", "99991231235959999"),
        (1 << 62, "", "99991231235959999"),
        (-5, "", "19700101000000000"),
        (1_792_889_940_000, "99991231235959999", "99991231235960000"),
        (1_792_889_940_000, "88888888888888888", "88888888888888889"),
    ],
)
def test_names_of_odd_clocks(now_ms: int, newest: str, name: str) -> None:
    """Years that have five digits, times before 1970, names that are no time."""
    assert file_name(now_ms, newest) == name


def test_the_last_name_of_all_is_told() -> None:
    """Behind 17 nines there is no name; the error says which file is in the way."""
    with pytest.raises(OSError, match="99999999999999999"):
        file_name(0, "99999999999999999")


@pytest.mark.parametrize("steps", [3, 512])
@pytest.mark.parametrize("written", [True, False])
def test_a_search_finds_what_a_look_at_every_entry_finds(
    monkeypatch: pytest.MonkeyPatch, steps: int, *, written: bool
) -> None:
    """For hot and rare keys, in any time range, whether or not a chain is followed to its end."""
    monkeypatch.setattr(index_file, "_CHAIN_STEPS", steps)
    monkeypatch.setattr(index_file, "_SCAN_ENTRIES", 16)
    monkeypatch.setattr(index_file, "_PAGE_ENTRIES", 4)
    disk = SimulatedDisk()
    index = IndexService(disk, FilePool(disk, 2), "/index", _SLOTS, 64)
    entries = []
    for number in range(200):
        disk.advance(1)
        key = "hot" if number % 3 else f"rare{number % 9}"
        index.put_messages((IndexedRecord("t", key, None, number),), disk.wall_ms())
        index.build()
        entries.append((key, number, disk.wall_ms()))
        if written and number % 10 == 0:
            for save in index.snapshot():
                save()
    start = entries[0][2]
    for key in ("hot", "rare0", "rare6", "nobody"):
        for begin_s, end_s in ((0, 400), (50, 60), (0, 3), (190, 400), (300, 400)):
            begin_ms, end_ms = start + begin_s * 1000, start + end_s * 1000
            for limit in (1, 5, 1000):
                found = index.search("t", key, limit, begin_ms, end_ms)(FilePool(disk, 2))
                exact = [n for k, n, ms in entries if k == key and begin_ms <= ms <= end_ms]
                assert found == exact[::-1][:limit]
    assert unsigned_text_hash("t#hot") != unsigned_text_hash("t#nobody")


def test_a_file_with_a_key_of_a_message_that_is_there_is_not_dropped() -> None:
    """Keys of one call come topic by topic: the last one is not always the message behind all."""
    disk = SimulatedDisk()
    index = _index(disk)
    _fill(index, disk, _ENTRIES - 4)
    index.put_messages(
        [IndexedRecord(topic, f"k{n}", None, n) for topic, n in (("b", 50), ("a", 55), ("b", 60))],
        disk.wall_ms(),
    )
    _fill(index, disk, 1)
    assert len(index.files) == 2
    index.drop_below(60)
    assert index.search("b", "k60", 10, 0, disk.wall_ms())(FilePool(disk, 2)) == [60]


@pytest.mark.parametrize("snapshots", [0, 1])
def test_a_full_file_is_searched_while_its_slots_wait_to_be_written(snapshots: int) -> None:
    """Also where the next file cannot be made at first, or a checkpoint is under way."""
    disk = SimulatedDisk()
    faulty = FaultyDisk(disk)
    index = IndexService(faulty, FilePool(faulty, 2), "/index", _SLOTS, _ENTRIES)
    _fill(index, disk, _ENTRIES - 1)
    saves = [save for _ in range(snapshots) for save in index.snapshot()]
    faulty.inject(Fault(("create",), 1, errno.ENOSPC, sticky=True))
    for _ in range(2):
        index.gap = None
        with pytest.raises(OSError, match="No space"):
            _fill(index, disk, 1)
    found = index.search("t", "k7", 10, 0, disk.wall_ms())
    assert found(FilePool(disk, 2)) == [7]
    faulty.heal()
    for save in saves + index.snapshot():
        save()
    assert index.search("t", "k7", 10, 0, disk.wall_ms())(FilePool(disk, 2)) == [7]
    assert index.files[0]._slots is None


def test_few_entries_are_only_in_memory_however_fast_they_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody waits until many of them are written; where they cannot be, none is lost."""
    monkeypatch.setattr(index_service, "_MOST_PENDING_BYTES", 3 * index_file.ENTRY_BYTES)
    disk = SimulatedDisk()
    index = _index(disk)

    def refuse(_file: index_file.IndexFile) -> None:
        raise OSError(errno.EIO, "Input/output error")

    pending = []
    for number in range(_ENTRIES - 1):
        with monkeypatch.context() as patch:
            if number == 5:
                patch.setattr(index_file.IndexFile, "write_entries", refuse)
            index.put_messages((IndexedRecord("t", f"k{number}", None, number),), disk.wall_ms())
            index.build()
        pending.append(index.files[-1].pending_bytes // index_file.ENTRY_BYTES)
    assert pending[:8] == [1, 2, 0, 1, 2, 3, 0, 1]
    assert index.gap is None
    pool = FilePool(disk, 2)
    now_ms = disk.wall_ms()
    for number in range(_ENTRIES - 1):
        assert index.search("t", f"k{number}", 1, 0, now_ms)(pool) == [number]
