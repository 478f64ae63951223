import asyncio
import logging

import pytest

from mailboat.client.background import BackgroundTasks, repeat
from mailboat.errors import ConnectError, MailboatError


async def test_dead_task_is_raised_by_check(caplog):
    """A defect in the background is logged and reaches the next caller."""
    tasks = BackgroundTasks()

    async def defective() -> None:
        raise KeyError("a defect")

    task = tasks.spawn(defective(), "defective")
    await asyncio.wait([task])
    await asyncio.sleep(0)
    with pytest.raises(MailboatError, match="a defect"):
        tasks.check()
    assert "task defective died" in caplog.text


async def test_cancelled_tasks_are_no_failure():
    """Closing a client cancels its tasks and leaves nothing behind."""
    tasks = BackgroundTasks()
    task = tasks.spawn(asyncio.Event().wait(), "waiting")
    await tasks.cancel_all()
    assert task.cancelled()
    tasks.check()


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
