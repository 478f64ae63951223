"""Which half messages are open after a start, how old they are, and what a round does to them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from mailboat.broker.membership import ProducerManager
from mailboat.broker.offsets import ConsumerOffsetManager
from mailboat.broker.stats import BrokerStats
from mailboat.broker.stored_message import stored_form
from mailboat.broker.topics import TopicConfigManager
from mailboat.broker.transactions.checks import CheckRounds
from mailboat.broker.transactions.ledger import HalfLedger
from mailboat.broker.transactions.parts import TransactionCounters
from mailboat.broker.transactions.records import committed_message, half_message
from mailboat.config import BrokerConfig, MessageStoreConfig, Settings
from mailboat.model.names import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    TRANSACTIONS_GROUP,
)
from mailboat.model.record import decode_record
from mailboat.model.topic import TopicConfig
from mailboat.store.consume_queue import BLANK_UNIT
from mailboat.store.message_inner import MessageInner, PutStatus
from mailboat.store.message_store import MessageStore
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.virtual_time import VirtualTime

HOST = bytes([10, 0, 0, 1]) + (10911).to_bytes(4, "big")
HOUR_S = 3600.0


@dataclass
class Broker:
    """The parts that transactions use, without sockets."""

    settings: Settings
    store: MessageStore
    topics: TopicConfigManager
    offsets: ConsumerOffsetManager
    producers: ProducerManager = field(default_factory=ProducerManager)
    stats: BrokerStats = field(default_factory=BrokerStats)


@pytest.fixture
def disk() -> SimulatedDisk:
    """Return an empty disk."""
    return SimulatedDisk()


@pytest.fixture
def clock(disk: SimulatedDisk) -> VirtualTime:
    """Return the clocks of the disk."""
    return disk.time


@pytest.fixture
def broker(disk: SimulatedDisk) -> Iterator[Broker]:
    """Open a store."""
    config = MessageStoreConfig(
        store_path_root_dir="/store",
        mapped_file_size_commit_log=1 << 20,
        max_hash_slot_num=100,
        max_index_num=1000,
        file_reserved_time=2,
        disk_space_warning_level_ratio=100,
    )
    settings = Settings(role="broker", store=config, broker=BrokerConfig(transaction_check_max=3))
    store = MessageStore(config, disk, store_host=HOST)
    store.open()
    config_dir = store.paths.config
    topics = TopicConfigManager(settings.broker, disk, config_dir)
    topics.table[CHECK_MAX_TIME_TOPIC] = TopicConfig(CHECK_MAX_TIME_TOPIC, 1, 1)
    yield Broker(settings, store, topics, ConsumerOffsetManager(disk, config_dir))
    store.close()


def _put(broker: Broker, *messages: MessageInner) -> None:
    broker.store.put_messages(list(messages))
    assert {message.status for message in messages} == {PutStatus.PUT_OK}


def _half(number: int, **more: str) -> MessageInner:
    properties = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": f"U{number}"} | more
    message = MessageInner(
        "t", 1, b"body", stored_form(properties), 0, f"U{number}", None, 0, 4, 1, HOST
    )
    return half_message(message, properties)


def _op(body: bytes) -> MessageInner:
    return MessageInner(OP_HALF_TOPIC, 0, body, b"TAGS\x01d\x02", 100, None, None, 0, 0, 1, HOST)


def _started(broker: Broker, disk: SimulatedDisk) -> HalfLedger:
    ledger = HalfLedger(broker, disk)
    for _ in ledger.rebuild():
        continue
    assert ledger.is_ready
    return ledger


def _open(ledger: HalfLedger) -> list[int]:
    window = ledger.window
    return [offset for offset in range(window.start, window.end) if window.is_open(offset)]


def _committed(broker: Broker) -> tuple[int, int]:
    half = broker.offsets.query(TRANSACTIONS_GROUP, HALF_TOPIC, 0)
    return half, broker.offsets.query(TRANSACTIONS_GROUP, OP_HALF_TOPIC, 0)


def _flush(broker: Broker, ledger: HalfLedger) -> None:
    ledger.tick()
    job = broker.store.begin_flush()
    assert job is not None
    job.run()
    broker.store.finish_flush(job, None)
    ledger.tick()


def _rounds(broker: Broker, ledger: HalfLedger, count: int = 1) -> TransactionCounters:
    counters = TransactionCounters()
    checks = CheckRounds(broker, ledger, counters)
    for _ in range(count):
        for _ in checks.round():
            continue
    return counters


def test_op_records_of_every_release_end_half_messages(broker: Broker, disk: SimulatedDisk) -> None:
    """One number (4.x), a list with a closing comma (5.x), other tags and nonsense."""
    _put(broker, *map(_half, range(8)))
    wrong = _op(b"7")
    wrong.properties = b"TAGS\x01x\x02"
    _put(broker, _op(b"0"), _op(b"2,5,"), _op(b"99,x,3"), wrong)
    assert _open(_started(broker, disk)) == [1, 4, 6, 7]


def test_a_start_reads_from_the_committed_offsets_on(broker: Broker, disk: SimulatedDisk) -> None:
    """What lies below them has ended, also without an op record; RocketMQ continues there too."""
    _put(broker, *map(_half, range(5)))
    _put(broker, _op(b"0"), _op(b"3"))
    broker.offsets.commit(TRANSACTIONS_GROUP, HALF_TOPIC, 0, 2)
    broker.offsets.commit(TRANSACTIONS_GROUP, OP_HALF_TOPIC, 0, 1)
    ledger = _started(broker, disk)
    assert _open(ledger) == [2, 4]
    ledger.close([2])
    _flush(broker, ledger)
    assert _committed(broker)[0] == 4
    assert _open(_started(broker, disk)) == [4]
    ledger.close([4])
    _flush(broker, ledger)
    assert _committed(broker) == (5, 4)


def test_progress_never_runs_ahead_of_the_disk(broker: Broker, disk: SimulatedDisk) -> None:
    """Offsets are saved durably: an end that a power cut takes back must be asked for again."""
    ledger = _started(broker, disk)
    _put(broker, _half(0))
    ledger.tick()
    assert _committed(broker) == (0, 0)
    _flush(broker, ledger)
    ledger.close([0])
    for _ in range(3):
        ledger.tick()
    assert _committed(broker) == (0, 0)
    _flush(broker, ledger)
    assert _committed(broker) == (1, 1)


def test_offsets_beyond_the_log_are_those_of_a_power_cut(
    broker: Broker, disk: SimulatedDisk
) -> None:
    """What the log lost is open to nobody; half messages that come now are."""
    _put(broker, _half(0))
    broker.offsets.commit(TRANSACTIONS_GROUP, HALF_TOPIC, 0, 7)
    broker.offsets.commit(TRANSACTIONS_GROUP, OP_HALF_TOPIC, 0, 7)
    ledger = _started(broker, disk)
    _put(broker, _half(1))
    ledger.tick()
    assert _open(ledger) == [1]


def test_a_damaged_op_record_leaves_its_half_messages_open(
    broker: Broker, disk: SimulatedDisk
) -> None:
    """They are asked about again; the records around it count."""
    _put(broker, *map(_half, range(3)))
    ops = [_op(b"0"), _op(b"1"), _op(b"2")]
    _put(broker, *ops)
    segment = broker.store.commit_log.segments[0]
    segment.write(b"?", ops[1].physical_offset + 90)
    assert _open(_started(broker, disk)) == [1]


def test_age_is_monotonic_for_what_came_in_this_life(
    broker: Broker, disk: SimulatedDisk, clock: VirtualTime
) -> None:
    """A wall clock that jumps makes no half message older, but those from before the start."""
    _put(broker, _half(0))
    clock.set_wall(clock.wall_ms() + 50_000)
    ledger = _started(broker, disk)
    _put(broker, _half(1))
    ledger.tick()
    clock.advance(7)
    clock.set_wall(clock.wall_ms() + 5_000_000 - 7_000)
    old, new = ledger.half(0), ledger.half(1)
    assert old is not None
    assert new is not None
    assert ledger.age_s(new) == 7
    assert ledger.age_s(old) == 5_050
    clock.set_wall(0)
    assert ledger.age_s(old) == 7


def test_a_half_message_is_asked_about_when_its_time_has_come(
    broker: Broker, disk: SimulatedDisk, clock: VirtualTime
) -> None:
    """Six seconds, or its own immunity; looked at again only then; given up after the last."""
    ledger = _started(broker, disk)
    _put(broker, _half(0), _half(1, CHECK_IMMUNITY_TIME_IN_SECONDS="60"), _half(2))
    ledger.tick()
    ledger.close([2])
    clock.advance(5.9)
    assert _rounds(broker, ledger).checks_unsent == 0
    assert [ledger.window.is_waiting(offset, ledger.now) for offset in (0, 1)] == [True, True]
    clock.advance(0.2)
    assert _rounds(broker, ledger).checks_unsent == 1
    assert _rounds(broker, ledger, 3) == TransactionCounters(checks_unsent=2, given_up=1)
    assert _open(ledger) == [1]
    clock.advance(54)
    assert _rounds(broker, ledger).checks_unsent == 1
    record = broker.store.get_message(CHECK_MAX_TIME_TOPIC, 0, 0, 1, 1 << 20).slices[0]
    message, _ = decode_record(bytes(record))
    assert message.properties["TRANSACTION_CHECK_TIMES"] == "3"
    assert broker.topics.select(CHECK_MAX_TIME_TOPIC) is not None
    assert _open(_started(broker, disk)) == [1]


def test_checks_of_another_broker_count(
    broker: Broker, disk: SimulatedDisk, clock: VirtualTime
) -> None:
    """RocketMQ keeps the number in the message that it stores again."""
    _put(broker, _half(0, TRANSACTION_CHECK_TIMES="2"))
    ledger = _started(broker, disk)
    clock.advance(10)
    assert _rounds(broker, ledger, 2) == TransactionCounters(checks_unsent=1, given_up=1)


def test_what_is_older_than_the_log_keeps_is_given_up(
    broker: Broker, disk: SimulatedDisk, clock: VirtualTime
) -> None:
    """At fileReservedTime, whatever its immunity, while its record is still there to be moved."""
    ledger = _started(broker, disk)
    _put(broker, _half(0, CHECK_IMMUNITY_TIME_IN_SECONDS="9" * 18))
    ledger.tick()
    clock.advance(2 * HOUR_S - 1)
    assert _rounds(broker, ledger).given_up == 0
    clock.advance(2)
    assert _rounds(broker, ledger).given_up == 1


def test_a_half_message_that_cannot_be_read_is_lost_and_counted(
    broker: Broker, disk: SimulatedDisk, clock: VirtualTime
) -> None:
    """It can be neither asked about nor moved, and must not stop those behind it."""
    ledger = _started(broker, disk)
    halves = [_half(0), _half(1)]
    _put(broker, *halves)
    broker.store.commit_log.segments[0].write(b"?", halves[0].physical_offset + 90)
    ledger.tick()
    clock.advance(10)
    assert _rounds(broker, ledger) == TransactionCounters(lost=1, checks_unsent=1)
    assert _open(_started(broker, disk)) == [1]


@pytest.mark.parametrize("broken", ["unit", "head", "blank"])
def test_what_a_half_message_can_be_known_by(
    broker: Broker, disk: SimulatedDisk, clock: VirtualTime, broken: str
) -> None:
    """A lost page of the queue costs nothing; a record without a head is lost, though not soon."""
    ledger = _started(broker, disk)
    halves = [_half(number) for number in range(3)]
    _put(broker, *halves)
    broker.store.queues.write()
    queue_file = f"{broker.store.paths.consume_queue}/{HALF_TOPIC}/0/{0:020d}"
    if broken == "unit":
        disk.file(queue_file).make_unreadable(0, 1)
    elif broken == "head":
        broker.store.commit_log.segments[0].write(bytes(40), halves[1].physical_offset)
    else:
        broker.store.commit_log.segments[0].write(bytes(40), halves[1].physical_offset)
        queue = broker.store.queues.get(HALF_TOPIC, 0)
        assert queue is not None
        queue.replace_unit(1, BLANK_UNIT)
    ledger.tick()
    clock.advance(10)
    counters = TransactionCounters()
    checks = CheckRounds(broker, ledger, counters)
    lost_after = []
    for _ in range(5):
        for _ in checks.round():
            continue
        lost_after.append(counters.lost)
    expected = {"unit": [0] * 5, "head": [0, 0, 0, 1, 1], "blank": [1] * 5}
    assert lost_after == expected[broken]
    if broken == "unit":
        assert [ledger.at(half.physical_offset) is not None for half in halves] == [True] * 3


def test_without_an_index_a_search_that_fails_is_made_again(
    broker: Broker, disk: SimulatedDisk
) -> None:
    """Who waits for it hears of it, and the next question begins another one."""
    store = replace(broker.settings.store, message_index_enable=False)
    broker.settings = replace(broker.settings, store=store)
    halves = [_half(number) for number in range(2)]
    _put(broker, *halves)
    ledger = _started(broker, disk)
    for number in range(2):
        half = ledger.half(number)
        assert half is not None
        ledger.is_stopping = True
        with pytest.raises(OSError, match="stopping"):
            ledger.was_delivered(half)
        assert not ledger.is_looked_for(number)
        ledger.is_stopping = False
        assert ledger.was_delivered(half) is False
        ledger = _started(broker, disk)


def test_an_op_record_that_could_not_be_stored_is_stored_later(
    broker: Broker, disk: SimulatedDisk
) -> None:
    """The message is out; nobody is asked meanwhile, and a restart after the retry knows it."""
    ledger = _started(broker, disk)
    _put(broker, _half(0), _half(1))
    ledger.tick()
    broker.store._derived_refusal = "the disk is full"
    ledger.close([1])
    assert (_open(ledger), broker.store.max_offset(OP_HALF_TOPIC, 0)) == ([0], 0)
    ledger.tick()
    broker.store._derived_refusal = None
    ledger.tick()
    assert broker.store.max_offset(OP_HALF_TOPIC, 0) == 1
    assert _open(_started(broker, disk)) == [0]


def test_a_full_disk_puts_giving_up_off(broker: Broker, disk: SimulatedDisk) -> None:
    """The half message stays open until its copy is stored."""
    ledger = _started(broker, disk)
    _put(broker, _half(0, TRANSACTION_CHECK_TIMES="3"))
    ledger.tick()
    broker.store._derived_refusal = "the disk is full"
    assert _rounds(broker, ledger).given_up == 0
    assert _open(ledger) == [0]
    broker.store._derived_refusal = None
    assert _rounds(broker, ledger).given_up == 1


async def test_what_is_given_up_waits_until_there_is_a_place_for_it(
    broker: Broker, disk: SimulatedDisk
) -> None:
    """The first half message of all makes the topic, and the round after that moves it there."""
    del broker.topics.table[CHECK_MAX_TIME_TOPIC]
    ledger = _started(broker, disk)
    _put(broker, _half(0, TRANSACTION_CHECK_TIMES="3"))
    ledger.tick()
    assert _rounds(broker, ledger).given_up == 0
    assert _open(ledger) == [0]
    creation = broker.topics.create_check_max_time_topic()
    assert creation is not None
    await creation.wait()
    assert _rounds(broker, ledger).given_up == 1
    assert broker.store.max_offset(CHECK_MAX_TIME_TOPIC, 0) == 1


def test_what_another_thread_looks_for_is_known_later(broker: Broker, disk: SimulatedDisk) -> None:
    """The question has no answer yet, everybody who asked is told, and it is searched for once."""
    _put(broker, _half(1))
    ledger = HalfLedger(broker, disk)
    half = ledger.half(0)
    assert half is not None
    _put(broker, committed_message(half, 1, 0))
    jobs: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []
    broker.store.runners = broker.store.runners._replace(
        reads=lambda job, done: jobs.append((job, done))
    )
    told: list[int] = []
    for number in range(3):
        assert ledger.was_delivered(half, partial(told.append, number)) is None
    assert ledger.is_looked_for(0)
    [(job, done)] = jobs
    done(job(), None)
    assert told == [0, 1, 2]
    assert not ledger.is_looked_for(0)
    assert ledger.was_delivered(half) is True
    ledger.close_written([0], {0})
    assert ledger.was_delivered(half) is None
    done = jobs[1][1]
    done(None, OSError(24, "Too many open files"))
    with pytest.raises(OSError, match="Too many"):
        ledger.was_delivered(half)
    assert ledger.was_delivered(half) is None
