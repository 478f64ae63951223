import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from mailboat.client import background
from mailboat.client.background import BackgroundTasks, repeat
from mailboat.errors import ConnectError


@pytest.fixture
async def tasks() -> AsyncIterator[BackgroundTasks]:
    """Return tasks that are cancelled after the test."""
    tasks = BackgroundTasks()
    yield tasks
    await tasks.cancel_all()


@pytest.mark.parametrize("failure", [KeyError("a defect"), asyncio.CancelledError("a future")])
async def test_task_that_fails_is_reported_and_begun_anew(
    tasks: BackgroundTasks, failure: BaseException, caplog, monkeypatch: pytest.MonkeyPatch
):
    """Neither a defect nor something cancelled that it waited for is the end of a task."""
    monkeypatch.setattr(background, "RESTART_PAUSE_S", 0.001)
    runs = 0
    lives = asyncio.Event()

    async def defective() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise failure
        lives.set()
        await asyncio.Event().wait()

    task = tasks.spawn(defective, "defective")
    await asyncio.wait_for(lives.wait(), 5)
    assert not task.done()
    assert caplog.text.count("task defective died") == 2


async def test_task_that_returns_is_not_begun_anew(tasks: BackgroundTasks):
    """What was to be done once is done once."""
    began = []

    async def once() -> None:
        began.append(None)

    await tasks.spawn(once, "once")
    assert began == [None]


async def test_cancelled_tasks_are_no_failure(tasks: BackgroundTasks, caplog):
    """Closing a client cancels its tasks, leaves nothing behind and nothing in the log."""
    spawned = [tasks.spawn(asyncio.Event().wait, f"waiting {i}") for i in range(3)]
    tasks.cancel(spawned[0])
    await tasks.cancel_all()
    assert all(task.cancelled() for task in spawned)
    assert caplog.text == ""


async def test_task_that_others_cancel_is_reported(tasks: BackgroundTasks, caplog):
    """A task that somebody else ended is gone, and the log says so."""
    task = tasks.spawn(asyncio.Event().wait, "waiting")
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert "task waiting was cancelled from outside" in caplog.text


async def test_cancel_all_from_one_of_the_tasks(tasks: BackgroundTasks):
    """Who asks for the end of all tasks does not wait for itself."""
    other = tasks.spawn(asyncio.Event().wait, "waiting")
    await asyncio.wait_for(tasks.spawn(tasks.cancel_all, "ending"), 5)
    assert other.cancelled()


async def test_task_that_does_not_end_is_left_alone(
    tasks: BackgroundTasks, caplog, monkeypatch: pytest.MonkeyPatch
):
    """A task that swallows its cancellation does not keep the client from closing."""
    monkeypatch.setattr(background, "CANCEL_PATIENCE_S", 0.01)
    may_end = asyncio.Event()

    async def stubborn() -> None:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    tasks.spawn(stubborn, "stubborn")
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await tasks.cancel_all()
    assert "left alone: stubborn" in caplog.text
    may_end.set()


async def test_repeat_goes_on_after_an_error(caplog):
    """A broker that is away for one round does not end the rounds."""
    caplog.set_level(logging.WARNING)
    wake = asyncio.Event()
    rounds = asyncio.Queue()

    async def action() -> None:
        rounds.put_nowait(None)
        if rounds.qsize() == 1:
            raise ConnectError("away")

    task = asyncio.ensure_future(repeat(action, every_s=0.001, wake=wake))
    async with asyncio.timeout(5):
        for _ in range(3):
            await rounds.get()
    task.cancel()
    assert "tried again later: away" in caplog.text


async def test_wake_comes_before_the_time():
    """A round that is wanted now does not wait for its time."""
    wake, called = asyncio.Event(), asyncio.Event()

    async def action() -> None:
        called.set()

    task = asyncio.ensure_future(repeat(action, every_s=3600, wake=wake))
    wake.set()
    async with asyncio.timeout(5):
        await called.wait()
    assert not wake.is_set()
    task.cancel()
