"""Delayed messages on a real store over a simulated disk, whose clocks a test moves.

Due times are arithmetic: the time of parking plus the delay of the level.
"""

import asyncio
import contextlib
from random import Random

import pytest
from delayed_life import Life, saved_progress

from mailboat.broker.schedule import GATHER_MS
from mailboat.broker.supervisor import TaskProgress
from mailboat.errors import DamagedStoreError
from mailboat.model.names import SCHEDULE_TOPIC
from mailboat.model.properties import decode_properties
from mailboat.model.record import decode_record
from mailboat.model.tags import tags_code
from mailboat.store.consume_queue import UNIT
from mailboat.store.message_inner import MessageInner, PutStatus
from mailboat.testing.faulty_disk import Fault, FaultyDisk
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.store_simulator import HOST, small_config

# -- when -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("level", "delay_ms"), [(1, 1_000), (2, 5_000), (3, 10_000), (4, 10_000)])
def test_a_message_is_delivered_when_due_and_not_before(level: int, delay_ms: int) -> None:
    """Not there a millisecond early, there within the hundred that are promised."""
    life = Life()
    life.park(level)
    life.disk.advance((delay_ms - 1) / 1000)
    life.work()
    assert life.bodies() == []
    # The clock counts whole milliseconds.
    life.disk.advance(0.003)
    life.work()
    assert life.bodies() == [b"1"]


def test_a_fraction_of_a_millisecond_makes_nothing_early() -> None:
    """Parked at 0.9 of a millisecond, it is not due at 0.0 of the one a second later."""
    life = Life()
    life.disk.advance(0.0009)
    life.park(1)
    life.disk.advance(0.9995)
    life.work()
    assert life.bodies() == []


def test_the_next_look_is_at_the_earliest_due_time() -> None:
    """Whatever the order of parking, the service sleeps until the first message is due."""
    life = Life()
    life.work()
    assert life.schedule.next_look_ms() is None
    begin = life.disk.wall_ms()
    life.park(3)
    life.park(1)
    life.park(2)
    next_ms = life.schedule.next_look_ms()
    assert next_ms is not None
    assert begin + 1_000 <= next_ms <= begin + 1_000 + GATHER_MS + 1


def test_levels_do_not_wait_for_each_other() -> None:
    """A short delay overtakes a long one that was parked before."""
    life = Life()
    life.park(2, body=b"slow")
    life.park(1, body=b"fast")
    life.pass_time(1_100)
    assert life.bodies() == [b"fast"]
    life.pass_time(4_000)
    assert life.bodies() == [b"fast", b"slow"]


def test_a_level_with_much_to_do_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a slice cannot take all, the longest overdue comes first."""
    monkeypatch.setattr("mailboat.broker.schedule._SLICE_S", -1.0)
    life = Life()
    life.park(2, body=b"first due")
    life.disk.advance(4.5)
    for _ in range(200):
        life.park(1)
    life.disk.advance(1.6)
    assert life.schedule.deliver_slice()
    assert life.bodies()[0] == b"first due"
    life.work()
    assert len(life.bodies()) == 201


def test_messages_of_a_level_keep_their_order() -> None:
    """Equal delays deliver in the order of sending."""
    life = Life()
    for number in range(40):
        life.park(1, body=b"%d" % number)
        life.pass_time(30)
    life.pass_time(1_100)
    assert life.bodies() == [b"%d" % number for number in range(40)]


def test_what_comes_due_together_is_stored_by_few_puts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three hundred messages due at once are no three hundred writes."""
    life = Life()
    for _ in range(300):
        life.park(1)
    puts: list[int] = []
    put_messages = life.store.put_messages

    def count(batch: list[MessageInner]) -> None:
        puts.append(len(batch))
        put_messages(batch)

    monkeypatch.setattr(life.store, "put_messages", count)
    life.disk.advance(1.1)
    life.work()
    assert sum(puts) == 300
    assert len(puts) <= 60
    assert life.stats.topic_flows()["T"].messages == 300


@pytest.mark.parametrize("jump_s", [3_600, -3_600, 86_400 * 3650])
def test_a_jump_of_the_wall_clock_rushes_and_delays_nothing(jump_s: float) -> None:
    """Only time that really passes counts, before and after the jump."""
    life = Life()
    life.park(2, body=b"before")
    life.disk.jump_wall_clock(jump_s)
    life.park(2, body=b"after")
    life.pass_time(4_950)
    assert life.bodies() == []
    life.pass_time(100)
    assert life.bodies() == [b"before", b"after"]


def test_after_a_restart_with_the_clock_set_back_nobody_waits_longer_than_the_delay() -> None:
    """Messages parked at a wall time that is in the future now wait their delay once more."""
    life = Life()
    life.park(1, body=b"a")
    life.park(1, body=b"b")
    disk = life.end()
    disk.jump_wall_clock(-3_600)
    life = Life(disk)
    life.pass_time(900)
    assert life.bodies() == []
    life.pass_time(200)
    assert life.bodies() == [b"a", b"b"]


# -- what -----------------------------------------------------------------------------------------


def test_consumers_see_what_rocketmq_delivers() -> None:
    """Producer's data and properties are kept, what is ours is not; the tag counts again."""
    life = Life()
    parked = life.park(2, colour="red", WAIT="true")
    assert (parked.topic, parked.queue_id) == (SCHEDULE_TOPIC, 1)
    life.pass_time(5_100)
    queue = life.store.queues.get("T", 2)
    assert queue is not None
    unit = queue.unit(0)
    assert unit is not None
    assert unit[2] == tags_code("a")
    record = life.store.look_message_by_offset(unit[0])
    assert record is not None
    message, _ = decode_record(record)
    assert message.properties.pop("__CRC32#", None) is not None
    assert message.properties == {
        "UNIQ_KEY": "U1", "TAGS": "a", "DELAY": "2", "colour": "red", "WAIT": "true",
        "REAL_TOPIC": "T", "REAL_QID": "2",
    }  # fmt: skip
    assert (message.flag, message.born_timestamp_ms, message.born_host) == (7, 123, HOST)
    assert (message.reconsume_times, message.body) == (1, b"1")


def test_a_level_above_the_table_is_parked_as_the_last() -> None:
    """As RocketMQ, DELAY says so as well."""
    life = Life()
    parked = life.park(99)
    assert parked.queue_id == 2
    assert decode_properties(parked.properties.decode())["DELAY"] == "3"


def test_the_tags_code_of_a_parked_message_is_its_time() -> None:
    """As in RocketMQ's ConsumeQueue; a queue made again of the log has the same."""
    life = Life()
    life.park(2)
    due_ms = life.disk.wall_ms() + 5_000
    queue = life.store.queues.get(SCHEDULE_TOPIC, 1)
    assert queue is not None
    unit = queue.unit(0)
    assert unit is not None
    assert due_ms <= unit[2] <= due_ms + 1
    life.flush()
    # The process dies before anything derived was written, and starts under another table.
    again = Life(life.disk.kill(), levels="1s 1h")
    queue = again.store.queues.get(SCHEDULE_TOPIC, 1)
    assert queue is not None
    assert queue.unit(0) == unit


def test_a_delay_begins_when_the_message_is_stored() -> None:
    """Some time may lie between the look at a request and the put of its whole round."""
    life = Life()
    message = MessageInner("T", 2, b"late", b"", 0, "U", None, 0, 0, 1, HOST)
    life.schedule.park(message, {"UNIQ_KEY": "U", "DELAY": "1"}, 1)
    life.disk.advance(0.3)
    life.schedule.begin_delay(message)
    life.store.put_messages([message])
    stored = decode_properties(message.properties.decode())
    assert int(stored["MAILBOAT_DELIVER_MS"]) == message.tags_code
    life.pass_time(950)
    assert life.bodies() == []
    life.pass_time(100)
    assert life.bodies() == [b"late"]


# -- progress -------------------------------------------------------------------------------------


async def test_a_restart_delivers_only_what_was_not() -> None:
    """What an orderly end saved is not delivered again, the rest is."""
    life = Life()
    life.park(1, body=b"a")
    life.park(2, body=b"b")
    life.pass_time(1_100)
    disk = life.end()
    assert saved_progress(disk)["offsetTable"] == {"1": 1, "2": 0}
    life = Life(disk)
    life.pass_time(5_100)
    assert life.bodies() == [b"a", b"b"]
    assert life.schedule.delay_offsets == {1: 1, 2: 1}


async def test_a_kill_doubles_only_what_was_delivered_since_the_last_save() -> None:
    """The promise for the progress of delay levels."""
    life = Life()
    life.park(1, body=b"saved")
    life.pass_time(1_100)
    await life.save()
    life.park(1, body=b"not saved")
    life.pass_time(1_100)
    assert life.bodies() == [b"saved", b"not saved"]
    life = Life(life.disk.kill())
    life.pass_time(1_100)
    assert life.bodies() == [b"saved", b"not saved", b"not saved"]


@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_power_cut_takes_no_parked_message_away(flush_disk_type: str) -> None:
    """Progress is saved only once the delivered copies are durable: one of the two remains."""
    for seed in range(30):
        life = Life(flush_disk_type=flush_disk_type)
        for _ in range(5):
            life.park(1)
        life.flush()
        life.pass_time(1_100)
        life.flush_is_stuck = seed % 2 == 0
        with contextlib.suppress(OSError):
            await life.save()
        life = Life(life.disk.crash(Random(seed)), flush_disk_type=flush_disk_type)
        life.pass_time(1_100)
        life.flush()
        assert set(life.bodies()) == {b"1", b"2", b"3", b"4", b"5"}


async def test_progress_waits_for_the_flush() -> None:
    """While the disk does not say that the copies are durable, the file stays as it was."""
    life = Life()
    life.park(1)
    life.pass_time(1_100)
    life.flush_is_stuck = True
    with pytest.raises(OSError, match="not flushed"):
        await life.save()
    assert "1" not in saved_progress(life.disk)["offsetTable"]
    life.flush_is_stuck = False
    await life.save()
    assert saved_progress(life.disk)["offsetTable"] == {"1": 1}


def test_with_sync_flush_a_parked_message_is_delivered_once_it_is_durable() -> None:
    """Before its flush it is not visible, so neither is its copy; then it comes soon."""
    life = Life(flush_disk_type="SYNC_FLUSH")
    life.park(1)
    life.pass_time(1_500)
    life.flush()
    assert life.bodies() == []
    life.pass_time(50)
    life.flush()
    assert life.bodies() == [b"1"]


def test_a_file_that_says_too_much_is_brought_into_the_bounds_of_the_queue() -> None:
    """An offset beyond the end would lose what is parked from now on."""
    life = Life()
    life.park(1)
    disk = life.end()
    _write(disk, b'{"offsetTable":{1:700,3:9}}')
    life = Life(disk)
    life.park(1, body=b"new")
    life.park(3, body=b"other")
    life.pass_time(10_100)
    assert life.bodies() == [b"new", b"other"]


def test_javas_progress_is_taken_over() -> None:
    """A directory that a Java broker has used goes on where that one was."""
    life = Life()
    for _ in range(3):
        life.park(1)
    disk = life.end()
    _write(disk, b'{"dataVersion":{"counter":5,"timestamp":1},"offsetTable":{1:2}}')
    life = Life(disk)
    life.pass_time(1_100)
    assert life.bodies() == [b"3"]


def test_a_damaged_file_without_a_previous_one_is_refused() -> None:
    """To start from nothing would deliver everything again."""
    life = Life()
    life.park(1)
    disk = life.end()
    _write(disk, b"{")
    for path in disk.walk():
        if path.endswith("delayOffset.json.bak"):
            disk.unlink(path)
    with pytest.raises(DamagedStoreError, match="delayOffset"):
        Life(disk)


# -- another table --------------------------------------------------------------------------------


async def test_parked_messages_keep_their_time_under_another_table() -> None:
    """Longer or shorter, what was parked before waits as long as it was to wait."""
    life = Life(levels="5s 5s")
    life.park(1, body=b"a")
    life.park(2, body=b"b")
    life = Life(life.end(), levels="1s 1h")
    life.pass_time(4_900)
    assert life.bodies() == []
    life.pass_time(200)
    assert sorted(life.bodies()) == [b"a", b"b"]


async def test_new_messages_do_not_queue_up_behind_those_of_a_slower_table() -> None:
    """Level 1 waited 10 s, and waits 1 s now: the new ones come first, and nothing is lost."""
    life = Life(levels="10s")
    life.park(1, body=b"old 1")
    life.park(1, body=b"old 2")
    life = Life(life.end(), levels="1s")
    life.park(1, body=b"new")
    life.pass_time(1_100)
    assert life.bodies() == [b"new"]
    # Saved in the middle of this, killed, and started again: nothing comes twice.
    await life.save()
    life = Life(life.disk.kill(), levels="1s")
    life.pass_time(10_100)
    assert life.bodies() == [b"new", b"old 1", b"old 2"]
    assert life.schedule.delay_offsets == {1: 3}


def test_levels_that_the_table_no_longer_has_are_still_served() -> None:
    """A shorter table strands nothing."""
    life = Life(levels="1s 2s 3s 4s")
    life.park(4)
    life = Life(life.end(), levels="1s")
    life.pass_time(4_100)
    assert life.bodies() == [b"1"]


# -- trouble --------------------------------------------------------------------------------------


def test_a_full_disk_delays_and_loses_nothing() -> None:
    """While the store refuses, nothing is skipped; once it takes messages all come, once."""
    life = Life()
    for _ in range(20):
        life.park(1)
    life.store.retention.refusal = "the disk is full"
    life.pass_time(3_000)
    assert life.bodies() == []
    life.store.retention.refusal = None
    life.pass_time(500)
    assert life.bodies() == [b"%d" % number for number in range(1, 21)]


def test_a_write_that_fails_is_tried_again() -> None:
    """ENOSPC in the middle of a slice: every message comes once."""
    faulty: list[FaultyDisk] = []

    def wrap(disk: SimulatedDisk) -> FaultyDisk:
        faulty.append(FaultyDisk(disk))
        return faulty[-1]

    life = Life(wrap=wrap)
    for _ in range(20):
        life.park(1)
    life.park(2, body=b"later")
    faulty[0].inject(Fault(("pwrite",), 1, 28, sticky=True))
    life.pass_time(2_000)
    assert life.bodies() == []
    faulty[0].heal()
    life.pass_time(5_000)
    assert life.bodies() == [*[b"%d" % number for number in range(1, 21)], b"later"]


def test_a_write_that_fails_for_several_levels_is_tried_again_for_each() -> None:
    """Two levels come due in the same slice; what the disk refused of both comes once."""
    faulty: list[FaultyDisk] = []

    def wrap(disk: SimulatedDisk) -> FaultyDisk:
        faulty.append(FaultyDisk(disk))
        return faulty[-1]

    life = Life(wrap=wrap)
    life.park(2, body=b"slow")
    life.disk.advance(4.0)
    life.park(1, body=b"fast")
    faulty[0].inject(Fault(("pwrite",), 1, 28, sticky=True))
    life.disk.advance(1.1)
    life.work()
    faulty[0].heal()
    life.pass_time(1_000)
    assert sorted(life.bodies()) == [b"fast", b"slow"]


def test_messages_that_expired_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Retention by age takes them with their files, as RocketMQ's does; the rest goes on."""
    life = Life()
    for _ in range(3):
        life.park(1)
    queue = life.store.queues.get(SCHEDULE_TOPIC, 0)
    assert queue is not None
    queue.min_offset = 2
    life.pass_time(1_100)
    assert life.bodies() == [b"3"]
    assert life.schedule.skipped == 2
    assert "2 delayed messages of level 1 expired before they were due" in caplog.messages


def test_a_delay_longer_than_messages_are_kept_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The disk may be cleaned before they are due."""
    Life(levels="1s 3d", file_reserved_time=72)
    assert caplog.messages == []
    Life(levels="1s 4d", file_reserved_time=72)
    assert "may expire before they are due" in caplog.messages[0]


def test_a_damaged_record_is_skipped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """One line in the log; what lies behind it is delivered."""
    life = Life()
    life.park(1, body=b"one")
    bad = life.park(1, body=b"two")
    life.park(1, body=b"three")
    segment = life.store.commit_log.segments[0]
    life.disk.pwrite(segment.fd, b"X", bad.physical_offset + 90)
    life.pass_time(1_100)
    assert life.bodies() == [b"one", b"three"]
    assert life.schedule.skipped == 1
    assert len([line for line in caplog.messages if "skipped 1 parked" in line]) == 1


def test_a_wrong_unit_loses_no_delayed_message() -> None:
    """It leads to nothing, or to a message of another level: each comes once, and in time."""
    life = Life()
    for level in (1, 2, 1, 2, 1):
        life.park(level)
    life.store.queues.write()
    first, second = (life.store.queues.get(SCHEDULE_TOPIC, queue_id) for queue_id in (0, 1))
    assert first is not None
    assert second is not None
    foreign, own = second.unit(0), first.unit(2)
    assert foreign is not None
    assert own is not None
    first.replace_unit(0, UNIT.pack(*foreign[:2], life.disk.wall_ms()))
    first.replace_unit(2, UNIT.pack(own[0] ^ 1, *own[1:]))
    life.pass_time(1_100)
    assert life.bodies() == [b"1", b"3", b"5"]
    life.pass_time(4_000)
    assert life.bodies() == [b"1", b"3", b"5", b"2", b"4"]
    assert life.schedule.skipped == 0


def test_a_message_that_breaks_a_limit_holds_nobody_up() -> None:
    """The limit was lowered meanwhile: it waits aside, survives a restart, and comes in the end."""
    life = Life(max_message_size=20_000)
    life.park(1, body=b"x" * 10_000)
    life.park(1, body=b"y" * 10_000)
    life.park(1, body=b"small")
    life.store.commit_log.configure(small_config("ASYNC_FLUSH", max_message_size=1_000))
    life.pass_time(1_100)
    assert life.bodies() == [b"small"]
    life = Life(life.end(), max_message_size=1_000)
    life.pass_time(100)
    life.store.commit_log.configure(small_config("ASYNC_FLUSH", max_message_size=20_000))
    life.pass_time(10_200)
    assert life.bodies() == [b"small", b"x" * 10_000, b"y" * 10_000]


def test_a_topic_of_half_messages_is_no_place_to_deliver_to() -> None:
    """RocketMQ discards such a message: it would look like a half message that nobody sent."""
    life = Life()
    life.park(1, topic="RMQ_SYS_TRANS_HALF_TOPIC")
    life.pass_time(1_100)
    assert life.bodies("RMQ_SYS_TRANS_HALF_TOPIC") == []
    assert life.schedule.skipped == 1


# -- for others -----------------------------------------------------------------------------------


def test_the_oldest_parked_message_counts_as_unread() -> None:
    """Retention goes by it."""
    life = Life()
    assert life.schedule.unread_position() is None
    first, second = life.park(2), life.park(1)
    assert life.schedule.unread_position() == first.physical_offset
    life.pass_time(1_100)
    life.flush()
    assert life.schedule.unread_position() == first.physical_offset
    life.pass_time(4_000)
    life.flush()
    assert life.schedule.unread_position() is None
    assert second.status == PutStatus.PUT_OK


def test_states_show_what_is_parked_and_how_late() -> None:
    """A full disk makes messages late, which the figures say."""
    life = Life()
    life.park(1)
    life.park(3)
    assert [(state.level, state.parked_messages) for state in life.schedule.states()] == [
        (1, 1),
        (3, 1),
    ]
    life.store.retention.refusal = "the disk is full"
    life.pass_time(3_000)
    assert 1_900 <= life.schedule.states()[0].late_ms <= 2_100


async def test_the_task_sleeps_while_nothing_is_parked_and_wakes_for_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two looks in all: one at the start, one after the message came, none in between."""
    life = Life()
    looks = 0
    seen = asyncio.Event()
    deliver_slice = life.schedule.deliver_slice

    def look() -> bool:
        nonlocal looks
        looks += 1
        seen.set()
        return deliver_slice()

    monkeypatch.setattr(life.schedule, "deliver_slice", look)
    task = asyncio.create_task(life.schedule.run(TaskProgress("delay", 10.0, life.disk.monotonic)))
    await seen.wait()
    seen.clear()
    for _ in range(20):
        await asyncio.sleep(0)
    assert looks == 1
    life.park(1)
    await seen.wait()
    assert looks == 2
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _write(disk: SimulatedDisk, content: bytes) -> None:
    (path,) = [path for path in disk.walk() if path.endswith("/delayOffset.json")]
    fd = disk.open(path)
    disk.ftruncate(fd, 0)
    disk.pwrite(fd, content, 0)
    disk.close(fd)
