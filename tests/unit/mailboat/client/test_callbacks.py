import asyncio

import pytest

from mailboat.client.background import BackgroundTasks
from mailboat.client.callbacks import Closing, call_back, is_inside
from mailboat.errors import MailboatError

OWNER = object()


async def cancelled_future(_: object) -> None:
    """Wait for something that somebody else cancels."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.cancel)
    await future


async def no_exception(_: object) -> None:
    """Raise what is no Exception."""
    raise BaseExceptionGroup("many", [asyncio.CancelledError()])


async def generator_exit(_: object) -> None:
    """Raise what ends generators, before anything was waited for."""
    raise GeneratorExit


async def late_generator_exit(_: object) -> None:
    """Raise what ends generators, after something was waited for."""
    await asyncio.sleep(0)
    raise GeneratorExit


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (cancelled_future, "waited for was cancelled"),
        (no_exception, "it raised BaseExc"),
        (generator_exit, "it raised GeneratorExit"),
        (late_generator_exit, "it raised GeneratorExit"),
    ],
)
async def test_what_comes_out_of_a_call_is_an_exception(function, match: str):
    """A CancelledError that nobody meant for us is the call's failure and not our end."""
    with pytest.raises(MailboatError, match=match):
        await call_back(OWNER, function, None, None)


async def test_call_that_is_closed_ends_as_coroutines_do():
    """Nobody is told of the end of a call whose caller is thrown away."""
    ended: list[bool] = []

    async def waiting(_: object) -> None:
        try:
            await asyncio.sleep(0)
        finally:
            ended.append(is_inside(OWNER))

    caller = call_back(OWNER, waiting, None, None)
    caller.send(None)
    caller.close()
    assert ended == [False]


async def test_our_own_cancellation_comes_out():
    """Whoever cancels the caller ends the call and the caller."""
    begun = asyncio.Event()

    async def waiting(_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    caller = asyncio.ensure_future(call_back(OWNER, waiting, None, None))
    await begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_call_that_takes_too_long_is_cancelled():
    """The time limit is an error of its own."""
    with pytest.raises(TimeoutError):
        await call_back(OWNER, lambda _: asyncio.Event().wait(), None, 0.0)


async def test_swallowed_cancellation_still_ends_a_background_task():
    """A call that answers its cancellation with an error of its own does not save its caller."""
    begun = asyncio.Event()

    async def swallowing(_: object) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("interrupted") from None

    async def work() -> None:
        while True:
            try:
                await call_back(OWNER, swallowing, None, None)
            except ValueError:
                continue

    tasks = BackgroundTasks()
    task = tasks.spawn(work, "working")
    await begun.wait()
    await asyncio.wait_for(tasks.cancel_all(), 5)
    assert task.cancelled()


async def test_call_that_cancels_itself_leaves_no_trace():
    """A time limit of older libraries cancels the task and does not take that back."""

    async def limited(_: object) -> str:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "too late"
        return "in time"

    assert await call_back(OWNER, limited, None, None) == "too late"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_inside_is_only_while_the_call_runs():
    """Also tasks that a call starts are inside, as long as it runs itself."""
    seen: list[bool] = []
    later = asyncio.Event()

    async def look() -> None:
        seen.append(is_inside(OWNER))
        await later.wait()
        seen.append(is_inside(OWNER))

    async def function(_: object) -> asyncio.Task[None]:
        assert not is_inside(object())
        task = asyncio.ensure_future(look())
        await asyncio.sleep(0)
        return task

    task = await call_back(OWNER, function, None, None)
    later.set()
    await task
    assert seen == [True, False]
    assert not is_inside(OWNER)


async def test_call_that_does_not_wait_leaves_no_trace():
    """What it started is outside once it has returned, and its cancellation does not count."""
    seen: list[bool] = []

    async def look() -> None:
        seen.append(is_inside(OWNER))

    async def function(_: object) -> asyncio.Task[None]:
        assert is_inside(OWNER)
        return asyncio.ensure_future(look())

    async def cancelling(_: object) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    await (await call_back(OWNER, function, None, None))
    assert (seen, is_inside(OWNER)) == ([False], False)
    await call_back(OWNER, cancelling, None, None)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)


async def test_end_comes_once_and_in_spite_of_who_waits():
    """A caller that is cancelled while it waits does not break off the end."""
    begun, may_end = asyncio.Event(), asyncio.Event()
    ends = []

    async def close() -> None:
        begun.set()
        await may_end.wait()
        ends.append(None)

    closing = Closing(OWNER)
    first = asyncio.ensure_future(closing.run(close))
    await begun.wait()
    first.cancel()
    await asyncio.wait([first])
    may_end.set()
    await closing.run(close)
    assert ends == [None]


async def test_end_that_fails_is_reported_where_nobody_waits(caplog):
    """A call that closes its client cannot be told of a failure; the log is."""

    async def close() -> None:
        raise OSError("no")

    closing = Closing(OWNER)
    await call_back(OWNER, lambda _: closing.run(close), None, None)
    with pytest.raises(OSError, match="no"):
        await closing.run(close)
    assert "not closed in order" in caplog.text
