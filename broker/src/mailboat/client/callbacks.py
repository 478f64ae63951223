"""Calling what the program gave to a client: handlers, transaction checks.

What such a call raises, be it the CancelledError of something that it awaited and somebody else
cancelled, is not the end of the task that made the call. And `close` knows whether it is asked for
by such a call, which it must not wait for.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import ContextVar
from dataclasses import dataclass
from types import CoroutineType, coroutine
from typing import Any, TypeVar, cast

from mailboat.client.background import cancel_requests, forget_cancel_requests
from mailboat.errors import MailboatError

logger = logging.getLogger(__name__)

A = TypeVar("A")
T = TypeVar("T")


@dataclass(eq=False, slots=True)
class _Call:
    """One call, made for `owner`."""

    owner: object
    is_running: bool = True


_current_call: ContextVar[_Call | None] = ContextVar("mailboat_callback", default=None)


async def call_back(
    owner: object, function: Callable[[A], Awaitable[T]], argument: A, timeout_s: float | None
) -> T:
    """Return what `function` returns for `argument`.

    Only the caller's own cancellation comes out as CancelledError.

    Args:
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
    requests_before = cancel_requests()
    call = _Call(owner)
    token = _current_call.set(call)
    began_s = time.monotonic()
    try:
        awaitable: Awaitable[T] | None = function(argument)
        if type(awaitable) is CoroutineType:
            try:
                # Most functions return without having waited, and those need no timer.
                awaited = awaitable.send(None)
            except StopIteration as end:
                awaitable, result = None, cast(T, end.value)
            else:
                awaitable = _go_on(awaitable, awaited)
        if awaitable is not None:
            if timeout_s is not None:
                timeout_s -= time.monotonic() - began_s
            async with asyncio.timeout(timeout_s):
                result = await awaitable
    except asyncio.CancelledError as error:
        if cancel_requests() > requests_before:
            raise
        raise MailboatError("something that it waited for was cancelled") from error
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        # It may have answered its cancellation with another error, or have cancelled itself for a
        # time limit of its own.
        forget_cancel_requests(requests_before)
        if isinstance(error, Exception):
            raise
        raise MailboatError(f"it raised {error!r}") from error
    finally:
        call.is_running = False
        _current_call.reset(token)
    forget_cancel_requests(requests_before)
    return result


@coroutine
def _go_on(begun: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """Go on with a coroutine that waits for something."""
    while True:
        try:
            try:
                yield awaited
            except GeneratorExit:
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
