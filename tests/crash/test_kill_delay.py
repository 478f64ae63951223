"""The real process is killed twenty times while messages wait for their time and come due.

A message that was acknowledged is delivered, never before its delay has passed, whatever happened
meanwhile. Twice it comes only when a kill fell between its delivery and the next save of the
progress, and never twice in one life of the process.
"""

import asyncio
import signal
import time
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import pytest
from daily import some_of
from kill_process import (
    BrokerProcess,
    PlainConnection,
    has_delivered_all,
    read_queue,
    send_request,
)
from promises import promised

from mailboat.model.message import MessageExt
from mailboat.protocol.codes import ResponseCode

# Real processes are killed, many times.
pytestmark = pytest.mark.slow

_TOPIC: Final = "later"
_QUEUES: Final = 4
_DEPTH: Final = 8
_DELAYS_MS: Final = {1: 1_000, 2: 2_000}
_SAVE_MS: Final = 100
_SAVED_SURELY_MS: Final = 1_500
"""A save every 100 ms takes a flush and a few files; so old it is saved on a busy machine too."""

_OPTIONS: Final = {"messageDelayLevel": "1s 2s", "flushConsumerOffsetInterval": _SAVE_MS}


@dataclass(slots=True)
class _Sent:
    """One delayed message; the body is its number."""

    level: int
    sent_ms: int
    is_acknowledged: bool = False


class _Life(NamedTuple):
    begin_ms: int
    end_ms: int


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _produce(address: tuple[str, int], sent: list[_Sent], queue_id: int) -> None:
    """Send delayed messages to one queue until the broker is gone."""
    connection = await PlainConnection.open(address)
    in_flight: dict[int, _Sent] = {}
    try:
        while True:
            while len(in_flight) < _DEPTH:
                message = _Sent(1 + len(sent) % 2, _now_ms())
                properties = f"UNIQ_KEY\x01U{len(sent)}\x02DELAY\x01{message.level}\x02"
                body = b"%d" % len(sent)
                sent.append(message)
                request = send_request(_TOPIC, queue_id, body, properties, queues=_QUEUES)
                in_flight[connection.send(request)] = message
            answer = await connection.receive()
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            in_flight.pop(answer.opaque).is_acknowledged = True
            # A few hundred a second are enough: each is read and checked in the end.
            await asyncio.sleep(0.01)
    except OSError:
        return
    finally:
        await connection.close()


async def _live(broker: BrokerProcess, sent: list[_Sent], seconds: float) -> None:
    """Load the broker, and kill it."""
    producers = [
        asyncio.create_task(_produce(broker.address, sent, queue_id)) for queue_id in range(_QUEUES)
    ]
    # What is being tested is a kill at any moment of the work.
    await asyncio.sleep(seconds)
    await asyncio.to_thread(broker.kill)
    await asyncio.gather(*producers)


async def _delivered(address: tuple[str, int]) -> tuple[bool, dict[int, list[MessageExt]]]:
    """Return whether nothing waits any more, and the copies of every message, by its number."""
    copies: dict[int, list[MessageExt]] = defaultdict(list)
    connection = await PlainConnection.open(address)
    try:
        are_all = await has_delivered_all(connection)
        for queue_id in range(_QUEUES):
            for message in (await read_queue(connection, _TOPIC, queue_id)).messages:
                copies[int(message.body)].append(message)
    finally:
        await connection.close()
    return are_all, copies


@promised("delayed messages are neither early nor changed")
def _check(sent: list[_Sent], copies: dict[int, list[MessageExt]], lives: list[_Life]) -> None:
    """Hold what was delivered against what was promised."""
    assert copies.keys() <= set(range(len(sent))), "messages that nobody sent"
    for number, message in enumerate(sent):
        found = copies.get(number, [])
        for copy in found:
            waited_ms = copy.store_timestamp_ms - message.sent_ms
            assert waited_ms >= _DELAYS_MS[message.level], f"message {number} came too early"
        in_life = [_life_of(copy, lives) for copy in found]
        assert len(set(in_life)) == len(in_life), f"message {number} came twice in one life"


def _check_saves(copies: dict[int, list[MessageExt]], lives: list[_Life]) -> None:
    """Only what came just before a kill comes twice; a save takes longer on a slow machine."""
    for number, found in copies.items():
        for copy in found[:-1]:
            before_kill_ms = lives[_life_of(copy, lives)].end_ms - copy.store_timestamp_ms
            assert before_kill_ms <= _SAVED_SURELY_MS, f"message {number}: {before_kill_ms} ms"


def _check_all_came(sent: list[_Sent], copies: dict[int, list[MessageExt]]) -> None:
    lost = [n for n, one in enumerate(sent) if one.is_acknowledged and n not in copies]
    assert not lost, f"messages {lost} are lost"


def _life_of(copy: MessageExt, lives: list[_Life]) -> int:
    return sum(life.end_ms < copy.store_timestamp_ms for life in lives)


@pytest.mark.crash
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("flush_disk_type", "cycles"), some_of([("ASYNC_FLUSH", 10), ("SYNC_FLUSH", 10)], 1)
)
async def test_kills_lose_no_delayed_message_and_rush_none(
    tmp_path: Path, flush_disk_type: str, cycles: int
) -> None:
    """Kill -9 while messages are parked and delivered: all come, none early, few twice."""
    random = Random(cycles)
    sent: list[_Sent] = []
    lives: list[_Life] = []
    brokers: list[BrokerProcess] = []

    def start() -> BrokerProcess:
        brokers.append(BrokerProcess(tmp_path, flush_disk_type, _OPTIONS))
        return brokers[-1].wait_ready()

    try:
        for cycle in range(cycles):
            begin_ms = _now_ms()
            broker = await asyncio.to_thread(start)
            # Most lives end while much is due, some live through more than both delays.
            seconds = random.uniform(0.05, 1.2) if cycle % 5 else random.uniform(2.2, 2.8)
            await _live(broker, sent, seconds)
            lives.append(_Life(begin_ms, _now_ms()))
        broker = await asyncio.to_thread(start)
        await asyncio.sleep(max(_DELAYS_MS.values()) / 1_000 + 0.5)
        are_all, copies = await _delivered(broker.address)
        count = sum(map(len, copies.values()))
        # While some wait still, the machine may have been too slow for those that are lacking.
        with promised("acknowledged messages come") if are_all else nullcontext():
            _check_all_came(sent, copies)
        _check(sent, copies, lives)
        _check_saves(copies, lives)
        assert await asyncio.to_thread(broker.end, signal.SIGTERM) == 0
        # An orderly end has saved everything: nothing comes again.
        broker = await asyncio.to_thread(start)
        await asyncio.sleep(0.5)
        _, copies = await _delivered(broker.address)
        with promised("what was delivered before an orderly end is there, and does not come again"):
            assert sum(map(len, copies.values())) == count
    finally:
        for broker in brokers:
            broker.kill()
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    with promised("no delayed message is skipped"):
        assert "skipped" not in log
    assert sum(message.is_acknowledged for message in sent) > 20 * cycles
