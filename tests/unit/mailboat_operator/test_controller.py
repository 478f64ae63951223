"""Tests of the workers."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from mailboat.errors import MailboatError
from mailboat.testing.virtual_time import VirtualTime
from mailboat_operator.controller import Controller
from mailboat_operator.kinds import ResourceKey
from mailboat_operator.kube_api import ConflictError
from mailboat_operator.leader import NotLeaderError
from mailboat_operator.metrics import OperatorMetrics
from mailboat_operator.reconciler import StepsFailedError
from mailboat_operator.work_queue import WorkQueue

_A = ResourceKey("Broker", "shop", "a")
_B = ResourceKey("Broker", "shop", "b")


async def _work(
    queue: WorkQueue,
    metrics: OperatorMetrics,
    reconcile: Callable[[ResourceKey], Awaitable[float | None]],
    *,
    workers: int = 2,
) -> "asyncio.Task[None]":
    controller = Controller(queue, reconcile, metrics, workers=workers)
    return asyncio.create_task(controller.run())


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (MailboatError("no"), "failed"),
        (ConflictError(409, "apply", "modified"), "conflict"),
        (ValueError("a mistake"), "error"),
    ],
)
async def test_a_failure_comes_back_and_stops_nobody(
    metrics: OperatorMetrics, error: Exception, result: str
) -> None:
    """One resource that fails, for whatever reason, is tried again; the others are worked on."""
    queue = WorkQueue(uniform=lambda low, high: 0.001)
    turns: list[str] = []
    finished = asyncio.Event()

    async def reconcile(key: ResourceKey) -> None:
        turns.append(key.name)
        if key == _A and turns.count("a") < 3:
            raise error
        if turns.count("a") == 3 and "b" in turns:
            finished.set()

    task = await _work(queue, metrics, reconcile)
    queue.add(_A)
    queue.add(_B)
    async with asyncio.timeout(5):
        await finished.wait()
    queue.close()
    await task
    assert sorted(turns) == ["a", "a", "a", "b"]
    text = metrics.exposition().decode()
    assert f'operator_reconcile_total{{kind="Broker",result="{result}"}} 2.0' in text
    assert 'operator_reconcile_total{kind="Broker",result="done"} 2.0' in text


async def test_a_due_turn_is_taken(metrics: OperatorMetrics) -> None:
    """A turn may ask for the next one, without any change."""
    queue = WorkQueue()
    turns = 0
    finished = asyncio.Event()

    async def reconcile(_: ResourceKey) -> float | None:
        nonlocal turns
        turns += 1
        if turns == 3:
            finished.set()
            return None
        return 0.001

    task = await _work(queue, metrics, reconcile)
    queue.add(_A)
    async with asyncio.timeout(5):
        await finished.wait()
    queue.close()
    await task
    assert turns == 3


@pytest.mark.parametrize(("again_after_s", "is_soon"), [(0.001, True), (None, False), (900, False)])
async def test_a_failing_step_slows_down_no_other(
    driven_time: VirtualTime,
    metrics: OperatorMetrics,
    again_after_s: float | None,
    is_soon: bool,
) -> None:
    """However long what fails has to wait: what is due earlier has its turn when it is due."""
    queue = WorkQueue(uniform=lambda low, high: 300.0)
    turns = 0
    again = asyncio.Event()

    async def reconcile(key: ResourceKey) -> float | None:
        nonlocal turns
        turns += 1
        if turns == 2:
            again.set()
        raise StepsFailedError(key, ["budget"], again_after_s)

    task = await _work(queue, metrics, reconcile, workers=1)
    queue.add(_A)
    try:
        async with asyncio.timeout(5 if is_soon else 0.2):
            await again.wait()
    except TimeoutError:
        assert not is_soon
    queue.close()
    await task
    assert again.is_set() == is_soon


async def test_what_was_begun_ends_and_nothing_more_begins(metrics: OperatorMetrics) -> None:
    """Closing the queue lets a turn end; keys that wait are left."""
    queue = WorkQueue()
    began, may_end = asyncio.Event(), asyncio.Event()
    ended: list[str] = []

    async def reconcile(key: ResourceKey) -> None:
        began.set()
        await may_end.wait()
        ended.append(key.name)

    task = await _work(queue, metrics, reconcile, workers=1)
    queue.add(_A)
    queue.add(_B)
    await began.wait()
    queue.close()
    await asyncio.sleep(0)
    assert not task.done()
    may_end.set()
    await task
    assert ended == ["a"]


async def test_without_the_lease_everything_ends(metrics: OperatorMetrics) -> None:
    """A write that was refused for want of the Lease ends the workers: the process must exit."""
    queue = WorkQueue()

    async def reconcile(_: ResourceKey) -> None:
        raise NotLeaderError("lost")

    task = await _work(queue, metrics, reconcile)
    queue.add(_A)
    with pytest.raises(ExceptionGroup):
        await task
