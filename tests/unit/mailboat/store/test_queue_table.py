"""The table of a store's queues."""

from collections.abc import Iterator
from pathlib import Path

from mailboat.disk.real import RealDisk
from mailboat.store.consume_queue import ConsumeQueue
from mailboat.store.queue_table import QueueTable
from mailboat.testing.simulated_disk import SimulatedDisk

FILE_BYTES = 400


def test_a_topic_has_its_own_queues_by_id() -> None:
    """In whatever order they came; none after the topic was deleted, or all were."""
    table = QueueTable(SimulatedDisk(), "/queues", FILE_BYTES)
    for topic, queue_id in (("b", 11), ("a", 0), ("b", 2), ("b", 0)):
        table.get_or_add(topic, queue_id)
    assert [queue.queue_id for queue in table.of_topic("b")] == [0, 2, 11]
    assert [queue.queue_id for queue in table.of_topic("a")] == [0]
    assert table.of_topic("c") == []
    table.delete_topic("b")
    assert table.of_topic("b") == []
    added = table.get_or_add("b", 5)
    assert table.of_topic("b") == [added]
    table.clear()
    assert table.of_topic("b") == table.of_topic("a") == []


def test_the_queues_of_a_topic_are_found_after_a_start(tmp_path: Path) -> None:
    """Those that lie on the disk belong to their topic."""
    disk = RealDisk()
    table = QueueTable(disk, f"{tmp_path}", FILE_BYTES)
    for topic, queue_id in (("b", 1), ("b", 0), ("a", 3)):
        queue = table.get_or_add(topic, queue_id)
        queue.append(100 * queue_id, 100, 0)
        table.mark_dirty(queue)
    table.write()
    table.close()
    again = QueueTable(disk, f"{tmp_path}", FILE_BYTES)
    assert again.load(1000, 1000)
    assert [(queue.topic, queue.queue_id) for queue in again.of_topic("b")] == [("b", 0), ("b", 1)]
    again.close()


def test_a_topic_is_found_without_a_look_at_the_others() -> None:
    """However many queues there are: a page of topics asks for each of its topics."""

    class OnlyLookups(dict[tuple[str, int], ConsumeQueue]):
        def __iter__(self) -> Iterator[tuple[str, int]]:
            raise AssertionError("walked over all queues")

        keys = values = items = __iter__  # type: ignore[assignment]

    table = QueueTable(SimulatedDisk(), "/queues", FILE_BYTES)
    added = table.get_or_add("topic", 0)
    table.by_key = OnlyLookups(table.by_key)
    assert table.of_topic("topic") == [added]


def test_sums_are_the_same_after_a_start_however_the_files_came() -> None:
    """A file that was not written yet when the log's start passed it holds nothing either."""
    disk = SimulatedDisk()
    disk.mkdir("/queues")
    table = QueueTable(disk, "/queues", FILE_BYTES)
    queue = table.get_or_add("topic", 0)
    for number in range(65):
        queue.append(100 * number, 100, 0)
        table.mark_dirty(queue)
        if number == 25:
            table.write()
    # 20 units of 20 bytes to a file: message 45 lies in the third one.
    table.raise_min(4500)
    table.write()
    assert queue.min_offset == 45
    assert table.first_bytes() == 2 * FILE_BYTES
    again = QueueTable(disk, "/queues", FILE_BYTES)
    assert again.load(6500, 6500)
    again.raise_min(4500)
    assert again.first_bytes() == 2 * FILE_BYTES
    again.unlink_dropped(again.dropped())
    assert disk.walk("/queues")[0].endswith(f"{2 * FILE_BYTES:020}")
    assert not again.has_dropped


def test_a_deleted_topic_takes_its_dropped_files_along() -> None:
    """Also while they wait for a checkpoint; a topic of the same name keeps its own files."""
    disk = SimulatedDisk()
    disk.mkdir("/queues")
    table = QueueTable(disk, "/queues", FILE_BYTES)
    for life in range(2):
        queue = table.get_or_add("topic", 0)
        for number in range(65):
            queue.append(10_000 * life + 100 * number, 100, 0)
        table.mark_dirty(queue)
        table.write()
        if life == 0:
            table.raise_min(4500)
            drops = table.dropped()
            assert [drop.files for drop in drops] == [2]
            table.delete_topic("topic")
            assert disk.walk("/queues") == []
    table.unlink_dropped(drops)
    assert len(disk.walk("/queues")) == 4
