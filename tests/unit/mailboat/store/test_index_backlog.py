"""Keys wait to be indexed: which bytes they become, how many may wait, what a kill leaves."""

import errno
import struct
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from mailboat.disk import read_file
from mailboat.model.tags import java_hash
from mailboat.store import index_backlog, key_search, message_store, opening
from mailboat.store.file_pool import FilePool
from mailboat.store.index_backlog import IndexBacklog, IndexedRecord
from mailboat.store.index_rows import ROW
from mailboat.store.index_service import IndexService
from mailboat.store.key_search import KeyQuery, QueryResult
from mailboat.store.message_store import MessageStore
from mailboat.testing.faulty_disk import Fault, FaultyDisk
from mailboat.testing.history import Sent
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.store_simulator import HOST, make_message, small_config

_SLOTS = 7
_ENTRIES = 100
_EVER = 1 << 60

Round = tuple[list[IndexedRecord], int]


def _rounds(seed: int, count: int = 60) -> list[Round]:
    """Return messages with and without keys, of two topics, and their store times."""
    random = Random(seed)
    rounds: list[Round] = []
    now_ms, physical_offset = 1_700_000_000_123, 0
    for _ in range(count):
        records = []
        for _ in range(random.choice((1, 1, 3, 40))):
            number = random.randrange(1000)
            unique_key = random.choice((None, f"U{number}", f"\u20ac{number}"))
            keys = random.choice((None, f"k{number}", f"a{number} b", " c  "))
            records.append(IndexedRecord(random.choice("tu"), unique_key, keys, physical_offset))
            physical_offset += random.randrange(100, 300)
        rounds.append((records, now_ms))
        now_ms += random.choice((0, 1, 300, 990, 5000))
    return rounds


def _expected_entries(rounds: list[Round]) -> list[bytes]:
    """Return the entries of each file as RocketMQ writes them, key by key."""
    files: list[bytes] = []
    data, slots, begin_ms = b"", dict[int, int](), 0
    for records, now_ms in rounds:
        for record in records:
            single_keys = [key for key in (record.keys or "").split(" ") if key]
            for key in [record.unique_key] * bool(record.unique_key) + single_keys:
                if len(data) == 20 * (_ENTRIES - 1):
                    files.append(data)
                    data, slots = b"", {}
                if not data:
                    begin_ms = now_ms
                key_hash = abs(java_hash(f"{record.topic}#{key}"))
                before = slots.get(key_hash % _SLOTS, 0)
                seconds = (now_ms - begin_ms) // 1000
                data += struct.pack(">iqii", key_hash, record.physical_offset, seconds, before)
                slots[key_hash % _SLOTS] = len(data) // 20
    return [*files, data]


def _rows(records: list[IndexedRecord]) -> bytes:
    rows = b""
    for record in records:
        single_keys = [key for key in (record.keys or "").split(" ") if key]
        for key in [record.unique_key] * bool(record.unique_key) + single_keys:
            rows += ROW.pack(
                java_hash(f"{record.topic}#{key}") & 0xFFFFFFFF, record.physical_offset
            )
    return rows


def _entries(index: IndexService, disk: SimulatedDisk) -> list[bytes]:
    for save in index.snapshot():
        save()
    begin = 40 + 4 * _SLOTS + 20
    return [read_file(disk, file.path)[begin:][: 20 * file.entry_count] for file in index.files]


@pytest.mark.parametrize("step_bytes", [1, 100, 16384])
@pytest.mark.parametrize("builds", [1, 5, 1000])
@pytest.mark.parametrize("seed", [1, 2])
def test_entries_are_those_of_keys_put_one_by_one(
    monkeypatch: pytest.MonkeyPatch, step_bytes: int, builds: int, seed: int
) -> None:
    """In the order of the log, exact to the second, however many rounds are built at once."""
    monkeypatch.setattr(index_backlog, "STEP_BYTES", step_bytes)
    disk = SimulatedDisk()
    index = IndexService(disk, FilePool(disk, 2), "/index", _SLOTS, _ENTRIES)
    rounds = _rounds(seed)
    for number, (records, now_ms) in enumerate(rounds):
        if number % 3 == 1:
            index.put_rows(_rows(records), records[0].physical_offset, now_ms)
        else:
            index.put_messages(records, now_ms)
        if number % builds == 0:
            index.build()
    index.build()
    assert not index.has_backlog
    expected = _expected_entries(rounds)
    assert len(expected) > 3
    found = _entries(index, disk)
    assert [len(data) for data in found] == [len(data) for data in expected]
    times_ms = {record.physical_offset: now_ms for records, now_ms in rounds for record in records}
    for file, one, other in zip(index.files, found, expected, strict=True):
        wanted = struct.iter_unpack(">iqii", other)
        for entry, exact in zip(struct.iter_unpack(">iqii", one), wanted, strict=True):
            assert (entry[0], entry[1], entry[3]) == (exact[0], exact[1], exact[3])
            # A file may begin some milliseconds early, with the first of what is built at once.
            second_ms = file.begin_timestamp_ms + 1000 * entry[2]
            assert second_ms <= times_ms[entry[1]] < second_ms + 1000


@pytest.mark.parametrize("form", ["messages", "rows"])
@pytest.mark.parametrize("builds_after", range(1 << 5))
def test_times_of_a_file_do_not_depend_on_steps(builds_after: int, form: str) -> None:
    """They are those of messages with keys, also where the clock went back within a second."""
    disk = SimulatedDisk()
    index = IndexService(disk, FilePool(disk, 2), "/index", _SLOTS, _ENTRIES)
    for number, passed_ms in enumerate((400, 500, 800, 600, 999)):
        unique_key = "U" if number in (1, 2, 3) else None
        records = [IndexedRecord("t", unique_key, None, 100 * number)]
        if form == "rows":
            index.put_rows(_rows(records), 100 * number, 1_700_000_000_000 + passed_ms)
        else:
            index.put_messages(records, 1_700_000_000_000 + passed_ms)
        if builds_after >> number & 1:
            index.build()
    index.build()
    (file,) = index.files
    assert file.begin_timestamp_ms == 1_700_000_000_500
    assert file.end_timestamp_ms == 1_700_000_000_800


@pytest.mark.parametrize("form", ["rounds", "one round"])
def test_a_step_takes_few_keys_of_messages_made_of_them(form: str) -> None:
    """A step ends with the message that makes it 16 KiB of rows and keys, whatever bodies have."""
    backlog = IndexBacklog()
    key_bytes = [1_000, 1_000, 1_000, 30_000, 100, 2_000, 9_000, 0, 0]
    places = list(range(0, 50_000 * len(key_bytes), 50_000))
    keys = [" ".join("k" * (count // 2)) for count in key_bytes]
    records = [IndexedRecord("t", "U", *pair) for pair in zip(keys, places, strict=True)]
    if form == "rounds":
        for record in records:
            backlog.add_messages([record], 1000)
    else:
        backlog.add_messages(records, 1000)
    steps = []
    while backlog.count:
        before = backlog.begin()
        rows = ROW.iter_unpack(backlog.take(None).rows)
        steps.append(sorted({physical_offset for _, physical_offset in rows}))
        assert steps[-1][0] == before
    # A key of one letter counts for 14 bytes, with the space before it.
    assert steps == [places[0:3], places[3:4], places[4:7], places[7:]]


class Life:
    """A store whose background indexes nothing unless it is let to."""

    def __init__(self, disk: SimulatedDisk | None = None, **changes: Any) -> None:
        """Open a store with room for many keys."""
        self.disk = disk or SimulatedDisk()
        self.faulty = FaultyDisk(self.disk)
        values = {"mapped_file_size_commit_log": 1 << 20, "max_index_num": 5000}
        flush_disk_type = changes.pop("flush_disk_type", "ASYNC_FLUSH")
        config = small_config(flush_disk_type, **(values | changes))
        self.store = MessageStore(config, self.faulty, store_host=HOST)
        self.store.open()

    def send(self, first: int, count: int, *, in_batch: bool = False) -> None:
        """Store messages with the keys "U<number>" and "key<number>"."""
        made = [
            make_message(Sent(n, ("t", 0), b"x" * 99), f"U{n}") for n in range(first, first + count)
        ]
        if in_batch:
            self.store.put_batch(made)
        else:
            self.store.put_messages(made)

    def flush(self) -> None:
        """Make durable what is stored."""
        job = self.store.begin_flush()
        assert job is not None
        job.run()
        self.store.finish_flush(job, None)

    def missing(self, count: int) -> list[str]:
        """Return which keys of the first messages do not find exactly one message."""
        keys = [key for n in range(count) for key in (f"U{n}", f"key{n:06}")]
        query = self.store.query_message
        return [key for key in keys if len(query("t", key, 9, 0, _EVER).records) != 1]

    @property
    def entries(self) -> int:
        """How many entries the index has."""
        return sum(self.store.index.entry_counts)


@pytest.fixture
def no_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a slice of the background index one message and no more."""
    monkeypatch.setattr(index_backlog, "STEP_BYTES", 1)
    monkeypatch.setattr(message_store, "_INDEX_SLICE_S", 0.0)
    monkeypatch.setattr(key_search, "_BUILD_SLICE_S", 0.0)


@pytest.mark.parametrize("in_batch", [False, True])
def test_a_send_indexes_nothing_and_its_key_is_found_at_once(*, in_batch: bool) -> None:
    """The entry is made by the search, or by the next slice of the background."""
    life = Life()
    life.send(0, 8, in_batch=in_batch)
    assert life.entries == 0
    assert life.store.has_unwritten
    assert life.missing(8) == []
    assert life.entries == 16
    life.send(8, 8, in_batch=in_batch)
    assert life.entries == 16
    life.store.background()
    assert life.entries == 32
    assert not life.store.has_unwritten


def _search(life: Life, key: str) -> list[int]:
    """Begin a search; return where the number of messages found will be."""
    found: list[int] = []

    def done(result: QueryResult | None, error: BaseException | None) -> None:
        assert result is not None, error
        found.append(len(result.records))

    life.store.search(KeyQuery("t", key, 9, _EVER, 0, _EVER), done)
    return found


@pytest.mark.usefixtures("no_slices")
def test_a_search_waits_for_what_was_visible_when_it_came() -> None:
    """Messages may be made of keys: one slice is not enough, and none of them may be missed."""
    life = Life()
    life.send(0, 5)
    found = _search(life, "U4")
    later = _search(life, "U2")
    life.send(5, 5)
    while not found:
        assert life.store.has_unwritten
        life.store.background()
    assert (found, later) == ([1], [1])
    assert life.entries == 10
    assert life.store.index.has_backlog


@pytest.mark.usefixtures("no_slices")
def test_a_search_of_a_store_that_has_failed_is_answered() -> None:
    """Its background does nothing else any more."""
    life = Life()
    life.send(0, 5)
    found = _search(life, "U0"), _search(life, "U4")
    life.store.commit_log.poison("a test")
    for _ in range(4):
        life.store.background()
    assert found == ([1], [1])


def test_with_sync_flush_a_key_is_found_once_its_message_is_flushed() -> None:
    """What waits for its flush is in no backlog: a search must not show it."""
    life = Life(flush_disk_type="SYNC_FLUSH")
    life.send(0, 1)
    life.store.background()
    assert life.missing(1) == ["U0", "key000000"]
    assert life.entries == 0
    life.flush()
    assert life.missing(1) == []


@pytest.mark.usefixtures("no_slices")
def test_a_kill_before_keys_are_built_loses_none_and_doubles_none() -> None:
    """A checkpoint in between counts what is in the index, and the rest is read from the log."""
    life = Life()
    life.send(0, 10)
    life.flush()
    life.disk.advance(11)
    for _ in range(3):
        life.store.background()
    life.send(10, 7)
    life.store.background()
    assert 20 < life.entries < 34
    saved = life.store.checkpoints.saved_offset
    assert saved > 0
    again = Life(life.disk.kill())
    assert again.store.recovery.records == 7
    assert again.missing(17) == []
    assert again.entries == 34


@pytest.mark.usefixtures("no_slices")
def test_the_background_has_work_until_all_is_built() -> None:
    """One message a slice here; the owner gives the next slice soon."""
    life = Life()
    life.send(0, 5)
    for built in range(5):
        assert life.entries == 2 * built
        assert life.store.has_unwritten
        life.store.background()
    assert not life.store.has_unwritten


@pytest.mark.usefixtures("no_slices")
def test_a_clean_stop_builds_all() -> None:
    """The next start reads no record again."""
    life = Life()
    life.send(0, 10)
    life.store.close()
    again = Life(life.disk.kill())
    assert again.store.recovery.records == 0
    assert again.entries == 20
    assert again.missing(10) == []


def test_so_many_messages_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the background has no turn, the send that is one too many indexes all of them."""
    monkeypatch.setattr(index_backlog, "BACKLOG_MESSAGES", 20)
    life = Life()
    for first in range(0, 20, 5):
        life.send(first, 5)
    assert life.entries == 0
    life.send(20, 1)
    assert life.entries == 42
    assert not life.store.index.has_backlog


def test_so_much_of_the_log_waits_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that wait are in memory with their bodies: ten large ones are enough."""
    monkeypatch.setattr(index_backlog, "BACKLOG_BYTES", 3000)
    life = Life()
    life.send(0, 1)
    size = life.store.commit_log.end
    for number in range(1, 3000 // size + 1):
        life.send(number, 1)
        assert life.entries == 0
    life.send(3000 // size + 1, 1)
    assert life.entries == 2 * (3000 // size + 2)


def _by_search(life: Life) -> None:
    assert life.store.query_message("t", "U0", 9, 0, _EVER).records == []


def _by_slice(life: Life) -> None:
    life.store.background()


def _by_send(life: Life) -> None:
    life.send(10, 11)


@pytest.mark.parametrize("build", [_by_search, _by_slice, _by_send])
def test_keys_that_found_no_room_are_read_from_the_log(
    monkeypatch: pytest.MonkeyPatch, build: Callable[[Life], None]
) -> None:
    """Once there is room again; what is sent meanwhile waits nowhere but in the log."""
    monkeypatch.setattr(index_backlog, "BACKLOG_MESSAGES", 20)
    life = Life()
    life.send(0, 10)
    life.faulty.inject(Fault(("create",), 1, errno.ENOSPC, sticky=True))
    build(life)
    assert life.store.index.gap == 0
    life.send(30, 2, in_batch=True)
    life.send(32, 2)
    assert not life.store.index.has_backlog
    life.store.background()
    assert "no room" in (life.store.refusal() or "")
    life.faulty.heal()
    life.store.background()
    assert life.store.index.gap is None
    assert life.store.refusal() is None
    assert life.entries == 2 * life.store.max_offset("t", 0)
    assert life.missing(10) == []


def test_a_gap_that_is_filled_in_part_begins_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that were indexed before the disk was full again are not indexed twice."""
    monkeypatch.setattr(index_backlog, "BACKLOG_MESSAGES", 4)
    life = Life(max_index_num=11)
    life.send(0, 4)
    life.store.background()
    life.faulty.inject(Fault(("create",), 1, errno.ENOSPC, sticky=True))
    life.send(4, 36)
    # A file takes ten entries: those of five messages.
    assert life.entries == 10
    assert life.store.index.gap == life.store.physical_position("t", 0, 5)
    life.faulty.inject(Fault(("create",), 3, errno.ENOSPC, sticky=True))
    life.store.background()
    assert life.entries == 30
    assert life.store.index.gap == life.store.physical_position("t", 0, 15)
    life.faulty.heal()
    life.store.background()
    assert life.missing(40) == []
    assert life.entries == 80


@pytest.mark.parametrize(("number", "built"), [(7, 5), (10, 5), (11, 10)])
def test_a_gap_that_cannot_be_read_on_begins_with_what_is_not_built(
    monkeypatch: pytest.MonkeyPatch, number: int, built: int
) -> None:
    """A failed read in the middle of the log loses nothing that was read, and doubles nothing."""
    monkeypatch.setattr(index_backlog, "BACKLOG_MESSAGES", 4)
    life = Life()
    life.send(0, 1)
    life.store.background()
    life.store.index.gap = life.store.commit_log.end
    life.send(1, 30)
    read = iter(range(1, 31))
    index_record = life.store.dispatch.index_record

    def fail(*record: Any) -> None:
        if next(read) == number:
            raise OSError(errno.EMFILE, "Too many open files")
        index_record(*record)

    monkeypatch.setattr(life.store.dispatch, "index_record", fail)
    life.store.background()
    # Five at a time have been built.
    assert life.entries == 2 * (1 + built)
    assert life.store.index.gap == life.store.physical_position("t", 0, 1 + built)
    read = iter(range(100, 200))
    life.store.background()
    assert life.missing(31) == []
    assert life.entries == 62


@pytest.mark.usefixtures("no_slices")
def test_a_gap_is_filled_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One message a slice here; sends wait for its end, and so does a checkpoint."""
    monkeypatch.setattr(opening, "_GAP_SLICE_S", 0.0)
    life = Life()
    life.send(0, 1)
    life.store.background()
    life.store.index.gap = life.store.commit_log.end
    life.send(1, 5)
    life.flush()
    life.disk.advance(11)
    for built in range(1, 6):
        life.store.background()
        assert life.entries == 2 * (1 + built)
        assert "behind" in (life.store.refusal() or "")
        assert life.store.has_unwritten
    assert life.store.checkpoints.saved_offset == 0
    for _ in range(3):
        life.store.background()
    assert life.store.refusal() is None
    assert life.store.checkpoints.saved_offset == life.store.commit_log.end
    assert life.entries == 12
    assert life.missing(6) == []


@pytest.mark.parametrize("is_gap", [False, True])
def test_a_stop_with_a_gap_fills_it(*, is_gap: bool) -> None:
    """What a clean stop counts as complete is complete."""
    life = Life()
    life.send(0, 1)
    life.store.background()
    if is_gap:
        life.store.index.gap = life.store.commit_log.end
    life.send(1, 5)
    life.store.close()
    again = Life(life.disk.kill())
    assert again.store.recovery.records == 0
    assert again.missing(6) == []
    assert again.entries == 12


def test_a_segment_stays_until_its_keys_are_in_a_checkpoint() -> None:
    """What is expired is checkpointed first, keys and all; then it goes."""
    life = Life(mapped_file_size_commit_log=8192, file_reserved_time=1)
    life.send(0, 100)
    assert len(life.store.commit_log.segments) > 2
    life.flush()
    life.disk.advance(2 * 3600)
    start = life.store.commit_log.start
    assert life.store.clean() == 0
    assert life.store.index.has_backlog
    for _ in range(3):
        life.store.background()
        life.disk.advance(61)
    assert life.store.commit_log.start > start
    assert life.entries == 200


class _SlowDisk(SimulatedDisk):
    """A disk whose clock goes on with each look: every slice is over after its first step."""

    def monotonic(self) -> float:
        """Return seconds that only ever go up."""
        self.advance(0.03)
        return super().monotonic()


def test_a_full_backlog_costs_a_send_one_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes faster than it is indexed waits in the log, and no key of it is missed."""
    monkeypatch.setattr(index_backlog, "BACKLOG_BYTES", 3000)
    monkeypatch.setattr(index_backlog, "STEP_BYTES", 1)
    life = Life(_SlowDisk())
    built, count = [0], 0
    while life.store.index.gap is None:
        life.send(count, 5)
        count += 5
        built.append(life.entries)
    assert count < 100
    assert {after - before for before, after in pairwise(built)} == {0, 2}
    assert not life.store.index.has_backlog
    life.store.background()
    assert life.store.refusal() is not None
    for _ in range(count):
        life.store.background()
    assert life.store.refusal() is None
    assert life.missing(count) == []


def test_records_made_of_keys_are_indexed_as_they_are_read() -> None:
    """Whoever reads them for so many milliseconds does not index for seconds afterwards."""
    disk = SimulatedDisk()
    index = IndexService(disk, FilePool(disk, 2), "/index", 100, 1_000_000)
    keys = " ".join(["k"] * 5000)
    for number in range(20):
        index.put_record(IndexedRecord("t", None, keys, number), disk.wall_ms())
        assert number * 5000 - sum(index.entry_counts) <= 5000
