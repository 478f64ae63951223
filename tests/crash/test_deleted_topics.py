"""What a deleted topic leaves in the log does not come back, and takes nobody's place."""

import contextlib
import errno
import logging
from collections.abc import Callable
from random import Random
from typing import Final

import pytest
from promises import promised

from mailboat.disk import Disk
from mailboat.model.record import decode_record
from mailboat.store.message_inner import PutStatus
from mailboat.store.message_store import MessageStore
from mailboat.testing.faulty_disk import Fault, FaultyDisk
from mailboat.testing.history import Sent
from mailboat.testing.simulated_disk import PowerCutError, SimulatedDisk
from mailboat.testing.store_reading import read_queue
from mailboat.testing.store_simulator import HOST, make_message, small_config

# make_message gives keys to all topics but "orders".
_KEY: Final = ("%RETRY%group", 0)
_OTHER: Final = ("orders", 0)
_PROGRESS: Final = "/store/mailboat/progress.json"
_NOTES: Final = "/store/mailboat/deletedTopics.json"


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "mailboat")


def _open(disk: Disk) -> MessageStore:
    store = MessageStore(small_config("ASYNC_FLUSH"), disk, store_host=HOST)
    store.open()
    return store


def _put(store: MessageStore, key: tuple[str, int], words: range) -> None:
    for number in words:
        inner = make_message(Sent(number, key, b"%d" % number), f"U{number}")
        store.put_messages([inner])
        assert inner.status == PutStatus.PUT_OK


def _flush(store: MessageStore) -> None:
    job = store.begin_flush()
    if job is not None:
        job.run()
        store.finish_flush(job, None)


def _checkpoint(disk: SimulatedDisk, store: MessageStore) -> None:
    _flush(store)
    for _ in range(3):
        disk.advance(11)
        store.background()


def _bodies(store: MessageStore) -> list[int]:
    return [int(found.body) for found in read_queue(store, _KEY).messages]


def _rebuilt(disk: SimulatedDisk) -> tuple[SimulatedDisk, MessageStore]:
    """Kill the process and open a store that has to build everything anew."""
    disk = disk.kill()
    if disk.exists(_PROGRESS):
        disk.unlink(_PROGRESS)
    return disk, _open(disk)


@promised("a deleted topic takes nothing with it, and stays away")
def test_messages_of_a_deleted_topic_do_not_hide_those_of_a_new_one() -> None:
    """Both count their queue offsets from 0; only what was sent after the deletion is there."""
    disk = SimulatedDisk()
    store = _open(disk)
    _put(store, _OTHER, range(10))
    _put(store, _KEY, range(100, 150))
    _checkpoint(disk, store)
    store.delete_topic(_KEY[0])
    _checkpoint(disk, store)
    _put(store, _KEY, range(200, 230))
    _checkpoint(disk, store)
    for _ in range(2):
        disk, store = _rebuilt(disk)
        assert _bodies(store) == list(range(200, 230))
        assert store.max_offset(*_OTHER) == 10
        assert store.query_message(_KEY[0], "U120", 10, 0, 1 << 60).records == []
        [record] = store.query_message(_KEY[0], "U220", 10, 0, 1 << 60).records
        assert decode_record(record)[0].body == b"220"


@promised("a deleted topic takes nothing with it, and stays away")
def test_a_deletion_is_not_undone_by_the_death_of_the_process() -> None:
    """Also before any checkpoint has come behind it."""
    disk = SimulatedDisk()
    store = _open(disk)
    _put(store, _KEY, range(50))
    _checkpoint(disk, store)
    _put(store, _KEY, range(50, 60))
    store.delete_topic(_KEY[0])
    store = _open(disk.kill())
    assert not store.has_queue(*_KEY)


@pytest.mark.parametrize(
    "fell",
    [SimulatedDisk.kill, lambda disk: disk.crash(Random(1)), lambda disk: disk.crash(Random(2))],
    ids=["kill", "power-cut-1", "power-cut-2"],
)
@promised("a deleted topic takes nothing with it, and stays away")
def test_a_deletion_that_was_cut_took_all_or_nothing(
    fell: Callable[[SimulatedDisk], SimulatedDisk],
) -> None:
    """Cut at every change that it makes: no message is lost of a topic that is still there."""
    outcomes: list[int] = []
    while True:
        disk = SimulatedDisk()
        store = _open(disk)
        _put(store, _KEY, range(50))
        _checkpoint(disk, store)
        _put(store, _KEY, range(50, 60))
        _flush(store)
        disk.cut_power_after(len(outcomes))
        try:
            store.delete_topic(_KEY[0])
            break
        except PowerCutError:
            disk = fell(disk)
        found = _bodies(_open(disk))
        assert found in ([], list(range(60))), len(outcomes)
        assert _bodies(_rebuilt(disk)[1]) == found
        outcomes.append(len(found))
    assert len(outcomes) > 4
    # Undone up to the note, done from there on.
    assert outcomes == sorted(outcomes, reverse=True)


@promised("a deleted topic takes nothing with it, and stays away")
def test_what_is_stored_where_a_power_cut_took_the_log_is_there() -> None:
    """A deletion counts up to the log's end, which may come back nearer to its start."""
    shorter = 0
    for seed in range(20):
        disk = SimulatedDisk()
        store = _open(disk)
        _put(store, _KEY, range(3))
        _checkpoint(disk, store)
        _put(store, _KEY, range(100, 140))
        end = store.commit_log.end
        store.delete_topic(_KEY[0])
        disk = disk.crash(Random(seed))
        store = _open(disk)
        shorter += store.commit_log.end < end
        _put(store, _KEY, range(200, 230))
        _checkpoint(disk, store)
        assert _bodies(_rebuilt(disk)[1]) == list(range(200, 230)), seed
    assert shorter > 5


@promised("a deleted topic takes nothing with it, and stays away")
def test_a_deletion_is_forgotten_once_its_records_are_gone() -> None:
    """The file stays small however many topics come and go."""
    disk = SimulatedDisk()
    store = _open(disk)
    _put(store, _KEY, range(50))
    store.delete_topic(_KEY[0])
    noted = store.commit_log.end
    _put(store, _OTHER, range(200))
    _checkpoint(disk, store)
    disk.advance(4000)
    _checkpoint(disk, store)
    assert store.commit_log.start > noted
    _put(store, ("another", 0), range(10))
    store.delete_topic("another")
    assert list(store._deleted._ends) == ["another"]
    assert list(_open(disk.kill())._deleted._ends) == ["another"]


@promised("a deleted topic takes nothing with it, and stays away")
def test_deletions_are_not_believed_after_rocketmq_had_the_directory() -> None:
    """It may have cut the log and stored messages in places that were noted."""
    disk = SimulatedDisk()
    store = _open(disk)
    _put(store, _KEY, range(50))
    _checkpoint(disk, store)
    store.delete_topic(_KEY[0])
    disk = disk.kill()
    assert disk.exists(_NOTES)
    disk.lock("/store/lock", "lock")()
    store = _open(disk)
    assert _bodies(store) == list(range(50))
    assert not disk.exists(_NOTES)


@pytest.mark.parametrize("call", ["unlink", "rmdir", "listdir"])
@pytest.mark.parametrize("number", [1, 2, 3])
@promised("a deleted topic takes nothing with it, and stays away")
def test_a_deletion_that_failed_half_way_hides_nothing_that_is_sent_then(
    call: str, number: int
) -> None:
    """The queue begins at 0, what is sent can be read; the next try takes what is left."""
    disk = SimulatedDisk()
    faulty = FaultyDisk(disk)
    store = _open(faulty)
    _put(store, _KEY, range(50))
    _checkpoint(disk, store)
    faulty.inject(Fault((call,), number, errno.EIO))
    with contextlib.suppress(OSError):
        store.delete_topic(_KEY[0])
    faulty.heal()
    _put(store, _KEY, range(100, 110))
    _checkpoint(disk, store)
    assert _bodies(store) == list(range(100, 110))
    for _ in range(2):
        disk = disk.kill()
        store = _open(disk)
        assert _bodies(store)[-10:] == list(range(100, 110))
    store.delete_topic(_KEY[0])
    assert not disk.exists(f"/store/consumequeue/{_KEY[0]}")
    assert not _open(disk.kill()).has_queue(*_KEY)


@promised("a deleted topic takes nothing with it, and stays away")
def test_a_file_of_somebody_else_in_a_queue_stops_no_deletion() -> None:
    """Network file systems leave one for each file that is removed while it is read."""
    disk = SimulatedDisk()
    store = _open(disk)
    _put(store, _KEY, range(50))
    _checkpoint(disk, store)
    disk.close(disk.open(f"/store/consumequeue/{_KEY[0]}/{_KEY[1]}/.nfs01", create=True))
    store.delete_topic(_KEY[0])
    _put(store, _KEY, range(100, 110))
    assert _bodies(store) == list(range(100, 110))
    assert _bodies(_open(disk.kill())) == list(range(100, 110))


@pytest.mark.parametrize("counts", [(50, 20), (20, 50), (600, 1)])
@promised("a deleted topic takes nothing with it, and stays away")
def test_a_topic_made_anew_is_there_after_rocketmq_had_the_directory(
    counts: tuple[int, int],
) -> None:
    """Without a note: its messages count from 0 again, and are not hidden by those deleted."""
    old, new = counts
    disk = SimulatedDisk()
    store = _open(disk)
    _put(store, _OTHER, range(10))
    _put(store, _KEY, range(old))
    _checkpoint(disk, store)
    store.delete_topic(_KEY[0])
    _put(store, _KEY, range(1000, 1000 + new))
    _put(store, _OTHER, range(10, 20))
    _checkpoint(disk, store)
    store.close()
    disk = disk.kill()
    disk.lock("/store/lock", "lock")()
    for _ in range(2):
        store = _open(disk)
        assert _bodies(store) == list(range(1000, 1000 + new))
        assert store.max_offset(*_OTHER) == 20
        _checkpoint(disk, store)
        disk = disk.kill()


@promised("a deleted topic takes nothing with it, and stays away")
def test_a_damaged_note_keeps_no_store_from_opening() -> None:
    """What it said is lost, no message is."""
    disk = SimulatedDisk()
    store = _open(disk)
    _put(store, _KEY, range(5))
    _checkpoint(disk, store)
    store.delete_topic(_KEY[0])
    _put(store, _OTHER, range(5))
    disk = disk.kill()
    whole = disk.pread(disk.open(_NOTES), disk.size(_NOTES), 0)
    for at in range(len(whole)):
        broken = disk.kill()
        broken.pwrite(broken.open(_NOTES), bytes([whole[at] ^ 0x81]), at)
        store = _open(broken)
        assert store.max_offset(*_OTHER) == 5, at


@promised("a deleted topic takes nothing with it, and stays away")
def test_an_index_that_is_built_anew_has_nothing_of_a_deleted_topic() -> None:
    """Also where the queues are in order, so that only the index is built from the log."""
    disk = SimulatedDisk()
    store = _open(disk)
    _put(store, _KEY, range(50))
    _checkpoint(disk, store)
    store.delete_topic(_KEY[0])
    _put(store, _KEY, range(200, 230))
    _checkpoint(disk, store)
    disk = disk.kill()
    for path in disk.walk("/store/index"):
        disk.unlink(path)
    store = _open(disk)
    assert store.recovery.records == 0
    assert store.query_message(_KEY[0], "U20", 10, 0, 1 << 60).records == []
    assert len(store.query_message(_KEY[0], "U220", 10, 0, 1 << 60).records) == 1


@promised("a deleted topic takes nothing with it, and stays away")
def test_what_comes_due_while_a_topic_is_deleted_waits() -> None:
    """A delayed message would make a queue anew whose file the deletion takes along."""
    disk = SimulatedDisk()
    store = _open(disk)
    _put(store, _OTHER, range(10))
    for queue_id in range(3):
        _put(store, (_KEY[0], queue_id), range(100, 150))
    _checkpoint(disk, store)
    steps = store.delete_topic_steps(_KEY[0])
    for _ in steps:
        due = make_message(Sent(7, (_KEY[0], 2), b"7"), "U7")
        other = make_message(Sent(8, _OTHER, b"8"), "U8")
        store.put_messages([due, other])
        assert (due.status, other.status) == (PutStatus.MESSAGE_ILLEGAL, PutStatus.PUT_OK)
        store.background()
    store.deletion_job()()
    _put(store, (_KEY[0], 2), range(7, 8))
    _checkpoint(disk, store)
    assert store.refusal() is None
    store.close()
    again = _open(disk)
    assert again.recovery.records == 0
    assert [int(found.body) for found in read_queue(again, (_KEY[0], 2)).messages] == [7]
    assert len(read_queue(again, _OTHER).messages) == 13
    again.close()
