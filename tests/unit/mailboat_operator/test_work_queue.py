"""Tests of the work queue."""

import asyncio

import pytest

from mailboat.testing.virtual_time import VirtualTime
from mailboat_operator.kinds import ResourceKey
from mailboat_operator.work_queue import QueueClosedError, WorkQueue

_A = ResourceKey("Broker", "shop", "a")
_B = ResourceKey("Broker", "shop", "b")


async def test_a_key_waits_only_once() -> None:
    """However often a key is added, it is given out once, in the order of the first adding."""
    queue = WorkQueue()
    for key in (_A, _B, _A, _A):
        queue.add(key)
    assert queue.depth == 2
    assert [await queue.get(), await queue.get()] == [_A, _B]
    assert queue.depth == 0


async def test_one_worker_per_key() -> None:
    """A key added while it is worked on is given out after that work, and exactly once more."""
    queue = WorkQueue()
    queue.add(_A)
    assert await queue.get() == _A
    queue.add(_A)
    queue.add(_A)
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.done(_A)
    assert await waiting == _A
    queue.done(_A)
    assert queue.depth == 0


async def test_in_progress_has_the_time_it_began() -> None:
    """What is worked on is visible with its start, until it is done."""
    clock = VirtualTime()
    queue = WorkQueue(monotonic=clock.monotonic)
    queue.add(_A)
    await queue.get()
    assert dict(queue.in_progress) == {_A: clock.monotonic()}
    queue.done(_A)
    assert dict(queue.in_progress) == {}


async def test_backoff_doubles_up_to_five_minutes() -> None:
    """Failures in a row pause 1 s, 2 s, 4 s ... and never more than 300 s; a success resets it."""
    clock = VirtualTime()
    queue = WorkQueue(uniform=lambda low, high: high, monotonic=clock.monotonic)
    pauses = []
    for _ in range(12):
        pauses.append(queue.add_failed(_A))
        clock.advance(pauses[-1])
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    queue.succeeded(_A)
    assert queue.add_failed(_A) == 1
    queue.close()


async def test_failures_within_a_pause_do_not_lengthen_it() -> None:
    """Turns for changes in between are no further proof: the pause goes on, and then doubles."""
    clock = VirtualTime()
    queue = WorkQueue(uniform=lambda low, high: high, monotonic=clock.monotonic)
    queue.add_failed(_A)
    clock.advance(1)
    assert queue.add_failed(_A) == 2
    for passed_s in (0.5, 1.0, 1.5):
        clock.advance(0.5)
        assert queue.add_failed(_A) == 2 - passed_s
    clock.advance(0.5)
    assert queue.add_failed(_A) == 4
    queue.close()


async def test_jitter_stays_within_a_fifth() -> None:
    """Pauses are spread, so that many keys that failed together do not come back together."""
    queue = WorkQueue()
    pauses = [queue.add_failed(ResourceKey("Broker", "shop", str(n))) for n in range(50)]
    assert all(0.8 <= pause <= 1.0 for pause in pauses)
    assert len(set(pauses)) > 1
    queue.close()


async def test_the_earliest_later_wish_counts() -> None:
    """Of several delays the shortest holds, and an adding now overtakes them all."""
    queue = WorkQueue()
    queue.add_after(_A, 0.01)
    queue.add_after(_A, 60)
    async with asyncio.timeout(5):
        assert await queue.get() == _A
    queue.done(_A)
    queue.add_after(_B, 60)
    queue.add_after(_B, 0.01)
    async with asyncio.timeout(5):
        assert await queue.get() == _B
    queue.done(_B)
    queue.add_after(_A, 60)
    queue.add(_A)
    assert await queue.get() == _A


async def test_close_ends_those_that_wait() -> None:
    """After closing nobody gets a key, not even one that was waiting to be given out."""
    queue = WorkQueue()
    waiting = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.close()
    for task in waiting:
        with pytest.raises(QueueClosedError):
            await task
    queue.add(_A)
    with pytest.raises(QueueClosedError):
        await queue.get()


async def test_several_waiting_workers_share_the_keys() -> None:
    """Each of two keys goes to another of two waiting workers."""
    queue = WorkQueue()
    waiting = [asyncio.create_task(queue.get()) for _ in range(2)]
    await asyncio.sleep(0)
    queue.add(_A)
    queue.add(_B)
    assert set(await asyncio.gather(*waiting)) == {_A, _B}
