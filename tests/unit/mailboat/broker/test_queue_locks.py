"""Promises of mailboat.broker.queue_locks; 60 s and 30 s are RocketMQ's lives of a lock."""

import pytest

from mailboat.broker import queue_locks
from mailboat.broker.queue_locks import EXPIRED_A_STEP, QueueLockManager
from mailboat.disk.json_file import JsonFile
from mailboat.errors import DamagedStoreError
from mailboat.model.message_queue import MessageQueue
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.virtual_time import VirtualTime

OWN = "/store/mailboat"
FIRST, SECOND = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


def manager(clock: VirtualTime, disk: SimulatedDisk | None = None) -> QueueLockManager:
    """Return the locks that a disk holds."""
    locks = QueueLockManager(disk or SimulatedDisk(), OWN, clock=clock.monotonic)
    locks.load()
    return locks


def test_a_queue_has_one_holder() -> None:
    """Of two members of a group one gets the queue, and only what it asked for."""
    locks = manager(VirtualTime())
    assert locks.lock("G", "a", [FIRST]) == {FIRST}
    assert locks.lock("G", "b", [FIRST, SECOND]) == {SECOND}
    assert locks.lock("G", "a", [FIRST, SECOND]) == {FIRST}
    assert locks.holder("G", "T", 0) == "a"
    assert locks.holder("G", "T", 1) == "b"


def test_groups_do_not_meet() -> None:
    """Each group locks for itself."""
    locks = manager(VirtualTime())
    assert locks.lock("G", "a", [FIRST]) == {FIRST}
    assert locks.lock("H", "b", [FIRST]) == {FIRST}


def test_a_lock_that_nobody_renews_ends_after_sixty_seconds() -> None:
    """A dead member keeps its queues for the life of a lock, not longer."""
    clock = VirtualTime()
    locks = manager(clock)
    locks.lock("G", "a", [FIRST])
    clock.advance(60)
    assert locks.lock("G", "b", [FIRST]) == set()
    clock.advance(0.001)
    assert locks.holder("G", "T", 0) is None
    assert locks.lock("G", "b", [FIRST]) == {FIRST}
    assert locks.lock("G", "a", [FIRST]) == set()


def test_renewing_prolongs_a_lock() -> None:
    """A member that asks every 20 s keeps its queue for good."""
    clock = VirtualTime()
    locks = manager(clock)
    for _ in range(10):
        assert locks.lock("G", "a", [FIRST]) == {FIRST}
        clock.advance(20)
    assert locks.lock("G", "b", [FIRST]) == set()


def test_unlocking_hands_a_queue_over() -> None:
    """Only the holder can give a queue back; it is free at once."""
    locks = manager(VirtualTime())
    locks.lock("G", "a", [FIRST])
    locks.unlock("G", "b", [FIRST])
    locks.unlock("H", "a", [FIRST])
    assert locks.lock("G", "b", [FIRST]) == set()
    locks.unlock("G", "a", [FIRST, SECOND])
    assert locks.lock("G", "b", [FIRST]) == {FIRST}


def test_a_group_with_live_locks_is_known() -> None:
    """Locks count until they expire or are given back."""
    clock = VirtualTime()
    locks = manager(clock)
    assert not locks.has_live_locks("G")
    locks.lock("G", "a", [FIRST])
    assert locks.has_live_locks("G")
    assert not locks.has_live_locks("H")
    clock.advance(60.001)
    assert not locks.has_live_locks("G")
    locks.lock("G", "a", [FIRST])
    locks.unlock("G", "a", [FIRST])
    assert not locks.has_live_locks("G")


async def test_expired_locks_leave_nothing_behind() -> None:
    """Neither memory nor the file keeps what nobody renewed."""
    clock = VirtualTime()
    disk = SimulatedDisk()
    locks = manager(clock, disk)
    locks.lock("G", "a", [FIRST])
    clock.advance(30)
    locks.lock("G", "a", [SECOND])
    await locks.persist()
    clock.advance(31)
    list(locks.expire())
    await locks.persist()
    again = manager(clock, disk)
    assert again.holder("G", "T", 0) is None
    assert again.holder("G", "T", 1) == "a"


def test_what_is_locked_meanwhile_stays() -> None:
    """The locks of a group expire in steps; one that is taken between two of them is kept."""
    clock = VirtualTime()
    locks = manager(clock)
    queues = [MessageQueue("T", "b", queue_id) for queue_id in range(2 * EXPIRED_A_STEP + 1)]
    locks.lock("G", "a", queues)
    clock.advance(61)
    steps = locks.expire()
    next(steps)
    assert locks.held("G") == len(queues) - EXPIRED_A_STEP
    locks.lock("G", "a", queues[-1:])
    locks.lock("G", "b", [*queues[:1], *queues[-2:-1]])
    list(steps)
    kept = [("T", queues[-1].queue_id, "a"), ("T", 0, "b"), ("T", queues[-2].queue_id, "b")]
    assert sorted(locks.holders("G")) == sorted(kept)


def test_locks_of_another_leader_are_not_given_back_twice() -> None:
    """The lead may go to another broker while locks expire: from then on its locks count."""
    clock = VirtualTime()
    locks = manager(clock)
    queues = [MessageQueue("T", "b", queue_id) for queue_id in range(2 * EXPIRED_A_STEP)]
    locks.lock("G", "a", queues, "user", "10.0.0.1")
    clock.advance(61)
    steps = locks.expire()
    next(steps)
    locks.follow("G", [("T", 0, "c")])
    list(steps)
    assert locks._shares.taken == 1
    assert not locks._shares._by_host.get("10.0.0.1")
    assert locks.held_by("user") == 0
    assert locks.holders("G") == [("T", 0, "c")]


async def test_a_restart_gives_a_queue_to_its_holder_only() -> None:
    """The old holder may consume for 30 s more; nobody else gets the queue before."""
    clock = VirtualTime()
    disk = SimulatedDisk()
    locks = manager(clock, disk)
    locks.lock("G", "a", [FIRST, SECOND])
    await locks.persist()
    locks = manager(clock, disk)
    clock.advance(30)
    assert locks.has_live_locks("G")
    assert locks.lock("G", "b", [FIRST, SECOND]) == set()
    assert locks.lock("G", "a", [FIRST]) == {FIRST}
    clock.advance(0.001)
    assert locks.lock("G", "b", [FIRST, SECOND]) == {SECOND}


async def test_renewing_writes_nothing() -> None:
    """Only a new holder is worth a write: renewals come every 20 s from every member."""
    disk = SimulatedDisk()
    locks = manager(VirtualTime(), disk)
    locks.lock("G", "a", [FIRST])
    await locks.persist()
    changes = disk.changes
    locks.lock("G", "a", [FIRST])
    locks.lock("G", "b", [FIRST])
    await locks.persist()
    assert disk.changes == changes


def test_unlocked_queues_are_not_restored() -> None:
    """After an orderly end of a member a restart makes nobody wait for it."""
    clock = VirtualTime()
    disk = SimulatedDisk()
    locks = manager(clock, disk)
    locks.lock("G", "a", [FIRST])
    locks.persist_blocking()
    locks.unlock("G", "a", [FIRST])
    locks.persist_blocking()
    assert manager(clock, disk).lock("G", "b", [FIRST]) == {FIRST}


@pytest.mark.parametrize("content", [b'{"groups":{}}', b'{"formatVersion":2}', b"[]"])
def test_a_file_that_is_not_understood_is_refused(content: bytes) -> None:
    """Starting without locks could give one queue to two members."""
    disk = SimulatedDisk()
    JsonFile(disk, f"{OWN}/queueLocks.json").save(content)
    with pytest.raises(DamagedStoreError, match="queueLocks"):
        manager(VirtualTime(), disk)


def test_locks_are_counted_for_the_user_of_their_holder() -> None:
    """From the moment of the lock to its end, however it ends; a renewal counts once."""
    clock = VirtualTime()
    locks = manager(clock)
    locks.lock("G", "a", [FIRST, SECOND], "u")
    locks.lock("G", "a", [FIRST], "u")
    locks.lock("H", "c", [FIRST], "v")
    locks.lock("G", "b", [FIRST], "v")
    assert (locks.held_by("u"), locks.held_by("v")) == (2, 1)
    locks.unlock("G", "b", [FIRST])
    locks.unlock("G", "a", [FIRST])
    assert (locks.held_by("u"), locks.held_by("v")) == (1, 1)
    # The same member under another name.
    locks.lock("G", "a", [SECOND], "w")
    assert (locks.held_by("u"), locks.held_by("w")) == (0, 1)
    clock.advance(61)
    locks.lock("H", "d", [FIRST], "u")
    assert (locks.held_by("u"), locks.held_by("v")) == (1, 0)
    list(locks.expire())
    assert locks.held_by("w") == 0
    locks.follow("H", [("T", 0, "d")])
    assert locks.held_by("u") == 0


def test_who_held_a_lock_before_a_restart_counts_with_the_next_renewal() -> None:
    """The file does not tell the user."""
    disk = SimulatedDisk()
    before = manager(VirtualTime(), disk)
    before.lock("G", "a", [FIRST], "u")
    before.persist_blocking()
    locks = manager(VirtualTime(), disk)
    assert locks.held_by("u") == 0
    assert locks.lock("G", "a", [FIRST], "u") == {FIRST}
    assert locks.held_by("u") == 1


def test_one_group_with_many_locks_is_written_in_slices() -> None:
    """Weighed in bytes: ids may be long. What is unlocked meanwhile is left out."""
    disk = SimulatedDisk()
    locks = manager(VirtualTime(), disk)
    queues = [MessageQueue("T", "b", number) for number in range(1_000)]
    locks.lock("G", "c" * 1_000, queues)
    locks.lock("H", "c", [FIRST])
    slices = locks._encode_file()
    content = [next(slices)]
    locks.unlock("G", "c" * 1_000, queues[500:])
    content += slices
    assert len(content) > 5
    assert max(map(len, content)) < 70_000
    JsonFile(disk, f"{OWN}/queueLocks.json").save(b"".join(content))
    again = manager(VirtualTime(), disk)
    assert (again.held("G"), again.held("H")) == (500, 1)
    assert again.holder("G", "T", 499) == "c" * 1_000


def test_one_address_holds_so_many_locks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is too many is not locked, as if another member had it; renewals go on."""
    monkeypatch.setattr(queue_locks, "MAX_LOCKS", 8)
    clock, disk = VirtualTime(), SimulatedDisk()
    locks = manager(clock, disk)
    queues = [MessageQueue("T", "b", number) for number in range(5)]
    assert locks.lock("G", "a", queues, host="10.0.0.1") == set(queues[:2])
    assert "too many locks, 2 for the address 10.0.0.1 group=G" in caplog.text
    assert locks.lock("G", "a", queues, host="10.0.0.1") == set(queues[:2])
    assert locks.lock("H", "b", queues, host="10.0.0.1") == set()
    assert locks.lock("H", "b", queues, host="10.0.0.2") == set(queues[:2])
    locks.unlock("G", "a", queues[:1])
    assert locks.lock("G", "a", queues[3:], host="10.0.0.1") == {queues[3]}
    # Nobody knows whose locks these are after a restart; a renewal tells.
    locks.persist_blocking()
    locks = manager(clock, disk)
    assert locks._shares.taken == 4
    assert locks.lock("H", "b", queues, host="10.0.0.2") == set(queues[:2])
    assert locks.lock("I", "c", queues, host="10.0.0.2") == set()
    clock.advance(61)
    list(locks.expire())
    locks.follow("J", [("T", 0, "d")])
    locks.follow("J", [])
    assert locks._shares.taken == 0
    assert not locks._shares._by_host
