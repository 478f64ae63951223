"""Which parked messages are still needed: retention goes by it."""

import asyncio
from collections.abc import Callable
from random import Random

import pytest
from delayed_life import Life, saved_progress

from mailboat.model.names import SCHEDULE_TOPIC

SEGMENT = 65_536


def test_a_delivered_message_is_needed_until_its_copy_is_durable() -> None:
    """At rest the next flush is enough: nothing else has to come."""
    life = Life()
    first, second = life.park(1), life.park(2)
    life.flush()
    life.pass_time(1_100)
    assert life.bodies() == [b"1"]
    for _ in range(3):
        assert life.schedule.unread_position() == first.physical_offset
    life.flush()
    assert life.schedule.unread_position() == second.physical_offset


def test_a_steady_stream_of_deliveries_lets_go_of_what_is_durable() -> None:
    """Each look lets go of what was delivered before the flush before it."""
    life = Life()
    parked = []
    for _ in range(10):
        parked.append(life.park(1))
        life.pass_time(1_100)
        position = life.schedule.unread_position()
        life.flush()
        assert position == parked[-1].physical_offset


async def test_a_save_that_waited_for_its_flush_takes_nothing_back() -> None:
    """What retention has learned meanwhile stays known, and is in the file."""
    life = Life()
    life.park(1)
    life.pass_time(1_100)
    waiting: list[Callable[[bool], None]] = []
    is_waiting = asyncio.Event()

    def wait_flushed(_: int, done: Callable[[bool], None]) -> None:
        waiting.append(done)
        is_waiting.set()

    saving = asyncio.create_task(
        life.schedule.progress.persist(life.store.commit_log.end, wait_flushed)
    )
    await is_waiting.wait()
    life.park(1)
    life.pass_time(1_100)
    life.flush()
    assert life.schedule.unread_position() is None
    waiting[0](True)
    await saving
    assert life.schedule.unread_position() is None
    assert saved_progress(life.disk)["offsetTable"] == {"1": 2}


@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_power_cut_after_the_segment_went_takes_no_message_away(flush_disk_type: str) -> None:
    """On a full disk the parked message goes only when its copy cannot be lost any more."""
    for seed in range(20):
        life = Life(
            flush_disk_type=flush_disk_type, levels="10m", mapped_file_size_commit_log=SEGMENT
        )
        life.park(1, body=b"delayed")
        life.fill_segments(3)
        life.let_clean()
        assert life.store.commit_log.start == 0
        life.disk.advance(600)
        life.work()
        life.let_clean()
        again = Life(
            life.disk.crash(Random(seed)),
            flush_disk_type=flush_disk_type,
            levels="10m",
            mapped_file_size_commit_log=SEGMENT,
        )
        again.disk.advance(600)
        again.work()
        again.flush()
        assert set(again.bodies()) == {b"delayed"}
        life.flush()
        life.let_clean()
        assert life.store.commit_log.start > 0


def test_a_message_that_expired_while_parked_holds_nothing_back() -> None:
    """What it had to wait for counts no longer, and it is not shown as parked; others stay so."""
    life = Life(levels="10m 20m")
    for _ in range(3):
        life.park(1)
    kept = life.park(2)
    queue = life.store.queues.get(SCHEDULE_TOPIC, 0)
    assert queue is not None
    queue.min_offset = 2
    third = life.store.physical_position(SCHEDULE_TOPIC, 0, 2)
    assert life.schedule.unread_position() == third
    assert life.schedule.states()[0].parked_messages == 1
    queue.min_offset = 3
    assert life.schedule.unread_position() == kept.physical_offset
    assert life.schedule.states()[0].parked_messages == 0


def test_a_range_that_expired_while_others_of_its_level_are_parked_holds_nothing_back() -> None:
    """After a change of the table a level has two ranges; the older one may go as a whole."""
    life = Life(levels="10m")
    life.park(1, body=b"old")
    life = Life(life.end(), levels="5m")
    new = life.park(1, body=b"new")
    queue = life.store.queues.get(SCHEDULE_TOPIC, 0)
    assert queue is not None
    assert life.schedule.unread_position() == life.store.physical_position(SCHEDULE_TOPIC, 0, 0)
    queue.min_offset = 1
    assert life.schedule.unread_position() == new.physical_offset
