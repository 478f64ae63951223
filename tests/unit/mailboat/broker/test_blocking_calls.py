"""Promises of mailboat.broker.blocking_calls."""

import asyncio
import functools
import threading
from typing import Any

from mailboat.broker.blocking_calls import BlockingCalls


async def test_a_call_runs_elsewhere_and_ends_here() -> None:
    """The job runs on another thread, its end is told on the loop's."""
    calls = BlockingCalls(lambda reason: None)
    loop_thread = threading.get_ident()
    ended: asyncio.Future[tuple[Any, BaseException | None, int]] = (
        asyncio.get_running_loop().create_future()
    )
    calls(
        threading.get_ident,
        lambda result, error: ended.set_result((result, error, threading.get_ident())),
    )
    result, error, done_thread = await asyncio.wait_for(ended, 5)
    calls.close()
    assert error is None
    assert result != loop_thread
    assert done_thread == loop_thread


async def test_an_error_of_the_job_is_handed_over() -> None:
    """What the file system refuses reaches the one who asked."""
    calls = BlockingCalls(lambda reason: None)
    errors: list[BaseException | None] = []

    def job() -> None:
        raise OSError(28, "No space left on device")

    calls(job, lambda _, error: errors.append(error))
    await calls.drain()
    calls.close()
    assert [str(error) for error in errors] == ["[Errno 28] No space left on device"]


async def test_an_end_that_fails_is_told() -> None:
    """An exception in the store's own code after a call is not swallowed."""
    bugs: list[str] = []
    calls = BlockingCalls(bugs.append)

    def done(_result: Any, _error: BaseException | None) -> None:
        raise ValueError("unexpected")

    calls(lambda: None, done)
    await calls.drain()
    calls.close()
    assert bugs == ["a file-system call ended unexpectedly: ValueError('unexpected')"]


async def test_drain_waits_for_all_calls() -> None:
    """After `drain` nothing runs any more, however many calls there were."""
    calls = BlockingCalls(lambda reason: None)
    gate = threading.Event()
    ends: list[int] = []

    def done(number: int, _error: BaseException | None) -> None:
        ends.append(number)

    def job(number: int) -> int:
        assert gate.wait(10)
        return number

    for number in range(10):
        calls(functools.partial(job, number), done)
    drained = asyncio.create_task(calls.drain())
    await asyncio.sleep(0)
    assert not drained.done()
    gate.set()
    await asyncio.wait_for(drained, 5)
    calls.close()
    assert sorted(ends) == list(range(10))
