"""Promises of mailboat.broker.supervisor."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from mailboat.broker.supervisor import Supervisor, TaskProgress
from mailboat.testing.virtual_time import VirtualTime


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    """Return a supervisor that is stopped after the test."""
    supervisor = Supervisor()
    yield supervisor
    await supervisor.stop()


async def test_a_task_that_raises_fails_the_process(supervisor: Supervisor) -> None:
    """An exception in a background task is the failure of all, with its name and reason."""

    async def run(_: TaskProgress) -> None:
        raise RuntimeError("no such thing")

    supervisor.start("flush", run)
    reason = await asyncio.wait_for(supervisor.wait_failed(), 5)
    assert reason == "background task flush failed: RuntimeError('no such thing')"
    assert supervisor.failure == reason


async def test_a_task_that_returns_fails_the_process(supervisor: Supervisor) -> None:
    """A background task that ends by itself is a failure too."""

    async def run(_: TaskProgress) -> None:
        return

    supervisor.start("dispatch", run)
    reason = await asyncio.wait_for(supervisor.wait_failed(), 5)
    assert reason == "background task dispatch ended by itself"


async def test_a_silent_task_fails_the_process(driven_time: VirtualTime) -> None:
    """A task that does not beat within the stall time fails the process."""
    supervisor = Supervisor(stall_after_s=0.0, clock=driven_time.monotonic)

    async def run(_: TaskProgress) -> None:
        await asyncio.Event().wait()

    supervisor.start("flush", run)
    try:
        reason = await asyncio.wait_for(supervisor.wait_failed(), 5)
    finally:
        await supervisor.stop()
    assert reason == "background task flush has stalled"


async def test_time_in_which_the_process_stood_still_is_not_held_against_tasks(
    driven_time: VirtualTime,
) -> None:
    """After a stopped process goes on, its tasks have their full time again."""
    supervisor = Supervisor(clock=driven_time.monotonic)
    waiting = asyncio.Event()

    async def run(_: TaskProgress) -> None:
        await waiting.wait()

    supervisor.start("flush", run)
    await asyncio.sleep(0)
    driven_time.advance(3600)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(supervisor.wait_failed(), 1.5)
    failure = supervisor.failure
    await supervisor.stop()
    assert failure is None


async def test_periodic_work_goes_on(supervisor: Supervisor) -> None:
    """A periodic action runs again and again, whether it is a function or a coroutine."""
    calls: list[str] = []
    enough = asyncio.Event()

    async def later() -> None:
        calls.append("later")
        if len(calls) > 5:
            enough.set()

    supervisor.start_periodic("later", 0.001, later)
    supervisor.start_periodic("now", 0.001, lambda: calls.append("now"))
    await asyncio.wait_for(enough.wait(), 5)
    assert {"later", "now"} == set(calls)
    assert supervisor.failure is None


async def test_stopping_is_no_failure(supervisor: Supervisor) -> None:
    """Tasks that are cancelled by `stop` do not count as failed."""
    supervisor.start_periodic("rest", 3600, lambda: None)
    await supervisor.stop()
    assert supervisor.failure is None


async def test_the_first_reason_stays(supervisor: Supervisor) -> None:
    """What failed first is what people need to read."""
    supervisor.fail("the disk is gone")
    supervisor.fail("everything else")
    assert await supervisor.wait_failed() == "the disk is gone"
