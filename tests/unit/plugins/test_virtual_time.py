"""Promises of the clock that the tests use."""

import asyncio
import time as real_time
from random import Random

import pytest

from mailboat.disk import ClockPair
from mailboat.disk.steady_clock import SteadyClock
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.virtual_time import START_S, START_WALL_MS, VirtualTime

DAY_S = 24 * 3600


def test_it_stands_still_until_it_is_moved() -> None:
    """Both clocks begin at fixed times and go on together."""
    time = VirtualTime()
    for _ in range(2):
        assert (time.monotonic(), time.wall_ms()) == (START_S, START_WALL_MS)
    time.advance(0.25)
    assert (time.monotonic(), time.wall_ms()) == (START_S + 0.25, START_WALL_MS + 250)
    assert time.time() == START_WALL_MS / 1000 + 0.25
    assert time.time_ns() == START_WALL_MS * 1_000_000 + 250_000_000
    with pytest.raises(AssertionError):
        time.advance(-1)


def test_small_steps_add_up() -> None:
    """A thousand times a tenth of a second is a hundred seconds, and not a little less."""
    time = VirtualTime()
    for _ in range(1000):
        time.advance(0.1)
    assert time.monotonic() == START_S + 100
    assert sum([0.1] * 1000) != 100


def test_seconds_do_not_round() -> None:
    """For days on, a nanosecond is seen, and the same span is equally long wherever it begins."""
    random, time = Random(7), VirtualTime()
    spans = (1e-9, 0.1, 15.0, 29.9, 600.0)
    lengths: dict[float, set[float]] = {span_s: set() for span_s in spans}
    for _ in range(200):
        time.advance(random.random() * DAY_S / 20)
        for span_s in spans:
            begin_s = time.monotonic()
            time.advance(span_s)
            lengths[span_s].add(round((time.monotonic() - begin_s) * 1e9))
            assert time.monotonic() > begin_s
    assert time.monotonic() < START_S + 12 * DAY_S
    assert lengths == {span_s: {round(span_s * 1e9)} for span_s in spans}


def test_the_wall_clock_can_be_set() -> None:
    """Forward and back; no time passes, and it goes on from there."""
    time = VirtualTime()
    for wall_ms in (0, 1_900_000_000_123):
        before_s = time.monotonic()
        time.set_wall(wall_ms)
        assert (time.monotonic(), time.wall_ms()) == (before_s, wall_ms)
        time.advance(1.5)
        assert time.wall_ms() == wall_ms + 1500
    assert time.clock_pair() == ClockPair(time.time_ns(), time.monotonic(), time.monotonic())


def test_a_disk_has_its_clocks() -> None:
    """What the product makes of them follows: elapsed time moves it, a set clock does not."""
    disk = SimulatedDisk()
    time = disk.time
    steady = SteadyClock(disk)
    time.set_wall(0)
    time.advance(60)
    assert (disk.wall_ms(), disk.monotonic()) == (60_000, START_S + 60)
    assert disk.clock_pair() == time.clock_pair()
    assert steady.now_ms() == START_WALL_MS + 60_000


async def test_a_driven_loop_takes_no_real_time(driven_time: VirtualTime) -> None:
    """An hour is over at once, exactly, and timers come in their order."""
    told: list[str] = []

    async def tell(name: str, *pauses_s: float) -> None:
        for pause_s in pauses_s:
            await asyncio.sleep(pause_s)
            told.append(f"{name} {driven_time.monotonic() - START_S:g}")

    began_s = real_time.monotonic()
    await asyncio.gather(tell("a", 0.3, 0.3, 3599.4), tell("b", 0.5), tell("c", 0.1, 0.1, 0.7))
    assert real_time.monotonic() - began_s < 60
    assert told == ["c 0.1", "c 0.2", "a 0.3", "b 0.5", "a 0.6", "c 0.9", "a 3600"]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), DAY_S)
    assert driven_time.monotonic() == START_S + 3600 + DAY_S


async def test_a_driven_loop_does_not_spin(driven_time: VirtualTime) -> None:
    """Time goes on also where less is waited for than the smallest step."""
    for _ in range(2):
        await asyncio.sleep(3e-10)
    assert driven_time.monotonic() > START_S


async def test_a_pause_of_the_process_makes_timers_late(driven_time: VirtualTime) -> None:
    """What was due meanwhile comes at once, as after a halt."""
    late = asyncio.create_task(asyncio.sleep(5))
    await asyncio.sleep(0)
    driven_time.advance(60)
    await late
    assert driven_time.monotonic() == START_S + 60


async def test_threads_are_waited_for(driven_time: VirtualTime) -> None:
    """Where no timer runs the loop really waits, and no time passes."""
    await asyncio.to_thread(real_time.sleep, 0.01)
    assert driven_time.monotonic() == START_S


async def test_a_loop_gets_its_own_time_back() -> None:
    """What comes after the block waits for real time again."""
    time, loop = VirtualTime(), asyncio.get_running_loop()
    with time.driving_loop():
        assert loop.time() == time.monotonic()
    assert loop.time() == pytest.approx(real_time.monotonic(), abs=60)
    await asyncio.sleep(0.001)
    assert time.monotonic() == START_S
