"""Calling what the program gave to a client: handlers, transaction checks.

What such a call raises, be it the CancelledError of something that it awaited and somebody else
cancelled, is not the end of the task that made the call. And `close` knows whether it is asked for
by such a call, which it must not wait for.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import ContextVar, Token
from types import CoroutineType, coroutine
from typing import Any, TypeVar, cast

import msgspec

from mailboat.client.background import forget_cancel_requests
from mailboat.errors import MailboatError

logger = logging.getLogger(__name__)

A = TypeVar("A")
T = TypeVar("T")


class _Call(msgspec.Struct, eq=False):
    """One call, made for `owner`; the time is `time.monotonic`."""

    owner: object
    began_s: float
    is_running: bool = True


_current_call: ContextVar[_Call | None] = ContextVar("mailboat_callback", default=None)


async def call_back(
    owner: object, function: Callable[[A], Awaitable[T]], argument: A, timeout_s: float | None
) -> T:
    """Return what `function` returns for `argument`; see `begin_call`."""
    task = asyncio.current_task()
    assert task is not None
    result, rest = begin_call(task, owner, function, argument, timeout_s)
    return cast(T, result) if rest is None else await rest


def begin_call(
    task: asyncio.Task[Any],
    owner: object,
    function: Callable[[A], Awaitable[T]],
    argument: A,
    timeout_s: float | None,
) -> tuple[T | None, Coroutine[Any, Any, T] | None]:
    """Call `function` up to where it waits for something; most do not, and need no timer.

    Return what it returned, or what gives that when it is awaited, which must be done at once. Only
    the caller's own cancellation comes out as CancelledError.

    Args:
        task: the caller's.
        owner: for whom the call is made; see `is_inside`.
        function: the program's function.
        argument: what it is called with.
        timeout_s: it is cancelled when it takes longer; None lets it take any time.

    Raises:
        Exception: what the function raised.
        TimeoutError: it took too long.
        MailboatError: something that it waited for was cancelled, or it raised what is no
            Exception.
    """
    requests_before = task.cancelling()
    call = _Call(owner, time.monotonic())
    token = _current_call.set(call)
    rest: Awaitable[T] | None = None
    result: T | None = None
    try:
        begun = function(argument)
        if type(begun) is not CoroutineType:
            begun = _wait_for(begun)
        try:
            awaited = begun.send(None)
        except StopIteration as end:
            result = end.value
        else:
            rest = _go_on(begun, awaited, call)
    except BaseException as error:
        _raise_instead(error, task, requests_before)
        raise
    finally:
        if rest is None:
            call.is_running = False
            _current_call.reset(token)
    if rest is not None:
        return None, _end_call(rest, call, token, timeout_s, task, requests_before)
    if task.cancelling() > requests_before:
        forget_cancel_requests(requests_before)
    return result, None


async def _end_call(
    rest: Awaitable[T],
    call: _Call,
    token: Token[_Call | None],
    timeout_s: float | None,
    task: asyncio.Task[Any],
    requests_before: int,
) -> T:
    if timeout_s is not None:
        timeout_s -= time.monotonic() - call.began_s
    try:
        async with asyncio.timeout(timeout_s):
            result = await rest
    except BaseException as error:
        if call.is_running:
            _raise_instead(error, task, requests_before)
        raise
    finally:
        call.is_running = False
        _current_call.reset(token)
    forget_cancel_requests(requests_before)
    return result


def _raise_instead(error: BaseException, task: asyncio.Task[Any], requests_before: int) -> None:
    """Raise what a call ends with instead of what came out of it; return if it is just that."""
    if isinstance(error, asyncio.CancelledError):
        if task.cancelling() > requests_before:
            return
        raise MailboatError("something that it waited for was cancelled") from error
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return
    # It may have answered its cancellation with another error, or have cancelled itself for a time
    # limit of its own.
    forget_cancel_requests(requests_before)
    if not isinstance(error, Exception):
        raise MailboatError(f"it raised {error!r}") from error


async def _wait_for(awaitable: Awaitable[T]) -> T:
    return await awaitable


@coroutine
def _go_on(begun: Coroutine[Any, Any, T], awaited: Any, call: _Call) -> Generator[Any, Any, T]:
    """Go on with a coroutine that waits for something; the call is over if this is closed."""
    while True:
        try:
            try:
                yield awaited
            except GeneratorExit:
                call.is_running = False
                begun.close()
                raise
            except BaseException as error:
                awaited = begun.throw(error)
            else:
                awaited = begun.send(None)
        except StopIteration as end:
            return cast(T, end.value)


def is_inside(owner: object) -> bool:
    """Tell whether the current task belongs to a call that was made for `owner` and still runs."""
    call = _current_call.get()
    return call is not None and call.owner is owner and call.is_running


class Closing:
    """Ends a client once, however often and from wherever its end is asked for."""

    __slots__ = ("_owner", "_task")

    def __init__(self, owner: object) -> None:
        """Prepare the end of a client whose callbacks are called for `owner`."""
        self._owner = owner
        self._task: asyncio.Task[None] | None = None

    async def run(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin with the end, if it has not begun, and wait for it.

        A callback of the client does not wait: the end comes after it has returned. A caller that
        is cancelled stops waiting; the end goes on.
        """
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(close(), name="close")
        if is_inside(self._owner):
            self._task.add_done_callback(_report)
        else:
            await asyncio.shield(self._task)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("the client was not closed in order", exc_info=error)
