"""The removal of old segments is cut at every change that it makes to the disk.

The log is long and all of it is covered by a checkpoint. However far the removal got, the next
start finds queues and index in order: it reads nothing of the log again, and serves what is left.
"""

import logging
from collections.abc import Callable
from random import Random
from typing import Final

import pytest
from promises import promised

from mailboat.store.message_store import MessageStore
from mailboat.testing.history import Sent
from mailboat.testing.simulated_disk import PowerCutError, SimulatedDisk
from mailboat.testing.store_reading import check_derived, read_store
from mailboat.testing.store_simulator import HOST, make_message, small_config

_KEYS: Final = (("orders", 0), ("orders", 1), ("idle", 0))
_MESSAGES: Final = 280
_BODY_BYTES: Final = 400


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "mailboat")


def _open(disk: SimulatedDisk) -> MessageStore:
    store = MessageStore(small_config("ASYNC_FLUSH"), disk, store_host=HOST)
    store.open()
    return store


def _flush(store: MessageStore) -> None:
    job = store.begin_flush()
    if job is not None:
        job.run()
        store.finish_flush(job, None)


def _full_store() -> tuple[SimulatedDisk, MessageStore]:
    """Return a store whose first half is old, all of it flushed and covered by a checkpoint."""
    disk = SimulatedDisk()
    store = _open(disk)
    for number in range(_MESSAGES):
        # The last queue gets nothing new: all of it goes.
        key = _KEYS[number % (3 if number < _MESSAGES // 2 else 2)]
        sent = Sent(number, key, b"%04d " % number * (_BODY_BYTES // 5))
        store.put_messages([make_message(sent, f"U{number}")])
        if number == _MESSAGES // 2:
            disk.advance(3500)
    for _ in range(3):
        _flush(store)
        disk.advance(11)
        store.background()
    assert store.commit_log.start == 0
    return disk, store


def _remove_old(disk: SimulatedDisk, store: MessageStore) -> None:
    """Let the older half expire; one round removes it, the checkpoint behind it the rest."""
    disk.advance(200)
    for _ in range(4):
        disk.advance(11)
        store.background()


def _derived_files(disk: SimulatedDisk) -> list[str]:
    return disk.walk("/store/consumequeue") + disk.walk("/store/index")


def _cut(changes: int, fell: Callable[[SimulatedDisk], SimulatedDisk]) -> SimulatedDisk | None:
    """Return what is left of a disk after so many changes, None when there were not so many."""
    disk, store = _full_store()
    disk.cut_power_after(changes)
    try:
        _remove_old(disk, store)
    except PowerCutError:
        return fell(disk)
    return None


@pytest.mark.parametrize(
    "fell",
    [SimulatedDisk.kill, lambda disk: disk.crash(Random(1)), lambda disk: disk.crash(Random(2))],
    ids=["kill", "power-cut-1", "power-cut-2"],
)
@promised("a removal that was cut costs nothing")
def test_a_removal_that_was_cut_has_nothing_built_anew(
    fell: Callable[[SimulatedDisk], SimulatedDisk],
) -> None:
    """At whichever change the process or the machine died; also when the next start dies as well,
    and the removal is finished then."""
    whole, store = _full_store()
    before = len(_derived_files(whole))
    _remove_old(whole, store)
    assert store.commit_log.start > 0
    after = _derived_files(whole)
    assert before - len(after) > 6
    changes = 0
    while (disk := _cut(changes, fell)) is not None:
        for _ in range(2):
            again = _open(disk)
            assert again.recovery.records == 0, changes
            queues = read_store(again)
            check_derived(again, queues, expired_below=store.commit_log.start)
            # What is left of the process that died is taken over by the next one.
            disk = disk.kill()
        last = _open(disk)
        _remove_old(disk, last)
        assert _derived_files(disk) == after, changes
        assert last.min_offset("orders", 0) == store.min_offset("orders", 0)
        changes += 1
    assert changes > 20
