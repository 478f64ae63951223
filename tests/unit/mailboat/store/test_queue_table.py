"""The table of a store's queues."""

import errno
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from mailboat.disk.real import RealDisk
from mailboat.errors import IllegalMessageError
from mailboat.store.consume_queue import UNIT, ConsumeQueue
from mailboat.store.file_pool import FilePool
from mailboat.store.queue_table import QueueDrop, QueueTable
from mailboat.testing.faulty_disk import Fault, FaultyDisk
from mailboat.testing.simulated_disk import SimulatedDisk

FILE_BYTES = 400


def _append(queue: ConsumeQueue, physical_offset: int, size_bytes: int) -> None:
    units = UNIT.pack(physical_offset, size_bytes, 0)
    queue.append_units(units, physical_offset + size_bytes)


def test_a_topic_has_its_own_queues_by_id() -> None:
    """In whatever order they came; none after the topic was deleted, or all were."""
    table = QueueTable(SimulatedDisk(), FilePool(SimulatedDisk(), 8), "/queues", FILE_BYTES)
    for topic, queue_id in (("b", 11), ("a", 0), ("b", 2), ("b", 0)):
        table.get_or_add(topic, queue_id)
    assert [queue.queue_id for queue in table.of_topic("b")] == [0, 2, 11]
    assert [queue.queue_id for queue in table.of_topic("a")] == [0]
    assert table.of_topic("c") == []
    list(table.delete_topic_steps("b"))
    assert table.of_topic("b") == []
    added = table.get_or_add("b", 5)
    assert table.of_topic("b") == [added]
    table.clear()
    assert table.of_topic("b") == table.of_topic("a") == []


def test_the_queues_of_a_topic_are_found_after_a_start(tmp_path: Path) -> None:
    """Those that lie on the disk belong to their topic."""
    disk = RealDisk()
    table = QueueTable(disk, FilePool(disk, 8), f"{tmp_path}", FILE_BYTES)
    for topic, queue_id in (("b", 1), ("b", 0), ("a", 3)):
        queue = table.get_or_add(topic, queue_id)
        _append(queue, 100 * queue_id, 100)
        table.mark_dirty(queue)
    table.write()
    table.close()
    again = QueueTable(disk, FilePool(disk, 8), f"{tmp_path}", FILE_BYTES)
    assert again.load(1000, 1000)
    assert [(queue.topic, queue.queue_id) for queue in again.of_topic("b")] == [("b", 0), ("b", 1)]
    again.close()


def test_a_topic_is_found_without_a_look_at_the_others() -> None:
    """However many queues there are: a page of topics asks for each of its topics."""

    class OnlyLookups(dict[tuple[str, int], ConsumeQueue]):
        def __iter__(self) -> Iterator[tuple[str, int]]:
            raise AssertionError("walked over all queues")

        keys = values = items = __iter__  # type: ignore[assignment]

    table = QueueTable(SimulatedDisk(), FilePool(SimulatedDisk(), 8), "/queues", FILE_BYTES)
    added = table.get_or_add("topic", 0)
    table.by_key = OnlyLookups(table.by_key)
    assert table.of_topic("topic") == [added]


def _unlink(table: QueueTable, drops: list[QueueDrop]) -> None:
    left = deque(drops)
    while left:
        left += table.forget_unlinked(table.unlink_some(left, 1, 1.0))


def test_sums_are_the_same_after_a_start_however_the_files_came() -> None:
    """A file that was not written yet when the log's start passed it holds nothing either."""
    disk = SimulatedDisk()
    disk.mkdir("/queues")
    table = QueueTable(disk, FilePool(disk, 8), "/queues", FILE_BYTES)
    queue = table.get_or_add("topic", 0)
    for number in range(65):
        _append(queue, 100 * number, 100)
        table.mark_dirty(queue)
        if number == 25:
            table.write()
    # 20 units of 20 bytes to a file: message 45 lies in the third one.
    table.raise_min(4500)
    table.write()
    assert queue.min_offset == 45
    assert table.first_bytes() == 2 * FILE_BYTES
    again = QueueTable(disk, FilePool(disk, 8), "/queues", FILE_BYTES)
    assert again.load(6500, 6500)
    again.raise_min(4500)
    assert again.first_bytes() == 2 * FILE_BYTES
    _unlink(again, again.dropped())
    assert disk.walk("/queues")[0].endswith(f"{2 * FILE_BYTES:020}")
    assert not again.has_dropped


def test_a_deleted_topic_takes_its_dropped_files_along() -> None:
    """Also while they wait for a checkpoint; a topic of the same name keeps its own files."""
    disk = SimulatedDisk()
    disk.mkdir("/queues")
    table = QueueTable(disk, FilePool(disk, 8), "/queues", FILE_BYTES)
    for life in range(2):
        queue = table.get_or_add("topic", 0)
        for number in range(65):
            _append(queue, 10_000 * life + 100 * number, 100)
        table.mark_dirty(queue)
        table.write()
        if life == 0:
            table.raise_min(4500)
            drops = table.dropped()
            assert [drop.end for drop in drops] == [FILE_BYTES + 1]
            list(table.delete_topic_steps("topic"))
            assert disk.walk("/queues") == []
    _unlink(table, drops)
    assert len(disk.walk("/queues")) == 4


@pytest.mark.parametrize("name", ["", ".", "..", "../commitlog", "a/b", "a\0b", "ä" * 128])
def test_only_a_folder_of_the_table_is_removed(tmp_path: Path, name: str) -> None:
    """Whoever asks: the name of a topic is one step of a path, or nothing happens."""
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "queues" / "a" / "b").mkdir(parents=True)
    disk = RealDisk()
    table = QueueTable(disk, FilePool(disk, 8), f"{tmp_path}/queues", FILE_BYTES)
    with pytest.raises(IllegalMessageError, match="not the name of a folder"):
        list(table.delete_topic_steps(name))
    assert (tmp_path / "commitlog").is_dir()
    assert (tmp_path / "queues" / "a" / "b").is_dir()


class _SlowClockDisk(FaultyDisk):
    """A clock that moves with every look at it."""

    def monotonic(self) -> float:
        """Return a later time than before."""
        simulated = self.disk
        assert isinstance(simulated, SimulatedDisk)
        simulated.advance(0.001)
        return simulated.monotonic()


def test_a_removal_reads_nothing_of_queues_that_it_does_not_touch() -> None:
    """Where the first message of a queue lies is known after one look at it."""
    simulated = SimulatedDisk()
    simulated.mkdir("/queues")
    disk = FaultyDisk(simulated)
    table = QueueTable(disk, FilePool(disk, 8), "/queues", FILE_BYTES)
    for number in range(200):
        queue = table.get_or_add("topic", number)
        _append(queue, 1000 + number, 10)
        table.mark_dirty(queue)
    table.write()
    table.raise_min(1000)
    before = disk.calls["pread"]
    for start in range(900, 1001, 10):
        table.raise_min(start)
    assert disk.calls["pread"] == before
    table.begin_raise(1050)
    raised = table.raise_some(1)
    assert sorted(item.queue_id for item in raised) == list(range(50))


@pytest.mark.parametrize("start", [0, 1005, 1150, 1395, 1500, 9999])
@pytest.mark.parametrize(
    ("first", "damage"),
    [
        (40, bytes(60 * 20)),
        (0, bytes(60 * 20)),
        (60, bytes(40 * 20)),
        (50, UNIT.pack(3, 10, 0)),
        (24, UNIT.pack(3, 10, 0)),
        (50, UNIT.pack(1 << 60, 10, 0)),
    ],
)
def test_damaged_units_take_no_unread_message_along(first: int, damage: bytes, start: int) -> None:
    """Zeros in place of units, or one bit of one, are not taken for messages that went."""
    disk = SimulatedDisk()
    disk.mkdir("/queues")
    table = QueueTable(disk, FilePool(disk, 8), "/queues", 4000)
    queue = table.get_or_add("topic", 0)
    for number in range(100):
        _append(queue, 1000 + 10 * number, 10)
    table.mark_dirty(queue)
    table.write()
    fd = disk.open(f"/queues/topic/0/{0:020d}")
    disk.pwrite(fd, damage, first * 20)
    table.raise_min(start)
    assert queue.min_offset <= max(0, min(-(-(start - 1000) // 10), 100))


def test_what_a_checkpoint_counts_is_written_by_each_queue_itself() -> None:
    """That others are written twice meanwhile says nothing of the one that has failed."""
    simulated = SimulatedDisk()
    simulated.mkdir("/queues")
    disk = FaultyDisk(simulated)
    table = QueueTable(disk, FilePool(disk, 8), "/queues", FILE_BYTES)
    queues = [table.get_or_add("topic", number) for number in range(3)]

    def append() -> None:
        for queue in queues:
            _append(queue, 1000, 10)
            table.mark_dirty(queue)

    append()
    disk.inject(Fault(("pwrite",), 1, errno.EIO))
    is_written = table.note_unwritten()
    table.write_some(10)
    for _ in range(3):
        for queue in queues[1:]:
            _append(queue, 2000, 10)
            table.mark_dirty(queue)
        table.write_some(10)
    assert not is_written()
    simulated.advance(6)
    table.write_some(0)
    assert not is_written()
    table.write_some(10)
    assert is_written()


def test_queues_are_adjusted_in_slices_and_nobody_sees_it() -> None:
    """Who asks for a queue gets it adjusted; every loss is told once, checkpoints wait."""
    simulated = SimulatedDisk()
    simulated.mkdir("/queues")
    disk = _SlowClockDisk(simulated)
    table = QueueTable(disk, FilePool(disk, 8), "/queues", FILE_BYTES)
    for number in range(1000):
        queue = table.get_or_add("topic", number)
        _append(queue, number, 10)
        _append(queue, 10_000 + number, 10)
    table.begin_raise(10_000)
    raised = table.raise_some(0.003)
    assert table.is_raising
    assert 0 < len(raised) < 500
    last = table.get("topic", 999)
    assert last is not None
    assert last.min_offset == 1
    while table.is_raising:
        raised += table.raise_some(0.003)
    assert sorted(item.queue_id for item in raised) == list(range(1000))
    assert {(item.old_min, item.new_min) for item in raised} == {(0, 1)}


def test_a_queue_that_cannot_be_read_now_is_adjusted_later() -> None:
    """The error comes when all others are done; the next call has it and forgets no loss."""
    simulated = SimulatedDisk()
    simulated.mkdir("/queues")
    disk = FaultyDisk(simulated)
    table = QueueTable(disk, FilePool(disk, 8), "/queues", FILE_BYTES)
    for number in range(20):
        queue = table.get_or_add("topic", number)
        _append(queue, number, 10)
        table.mark_dirty(queue)
    table.write()
    disk.inject(Fault(("pread",), 7, errno.ENOMEM, sticky=True))
    table.begin_raise(100)
    with pytest.raises(OSError, match="cannot be read now"):
        table.raise_some(1)
    disk.heal()
    table.begin_raise(100)
    assert len(table.raise_some(1)) == 20
