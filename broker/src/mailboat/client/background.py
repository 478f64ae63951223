"""The tasks that a client runs behind its callers' backs.

A task that dies of anything but cancellation or a `MailboatError` is a defect: it is logged, and
the next call of the user raises it instead of waiting for ever.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from mailboat.errors import MailboatError

logger = logging.getLogger(__name__)


class BackgroundTasks:
    """Owns tasks from start to cancellation."""

    __slots__ = ("_failure", "_tasks")

    def __init__(self) -> None:
        """Begin without tasks."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run `work` as a task until it ends or `cancel_all` is called."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def check(self) -> None:
        """Raise what ended a task that should have lived on.

        Raises:
            MailboatError: a background task died.
        """
        if self._failure is not None:
            raise MailboatError(
                f"a background task of the client died: {self._failure!r}; close the client"
            ) from self._failure

    async def cancel_all(self) -> None:
        """Cancel every task and wait for its end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._failure = error
            logger.error("task %s died", task.get_name(), exc_info=error)


async def repeat(
    action: Callable[[], Awaitable[None]], *, every_s: float, wake: asyncio.Event | None = None
) -> None:
    """Call `action` every `every_s` seconds, and at once whenever `wake` is set.

    A `MailboatError` (a broker away, a route unknown) is logged and the next round tries again.
    """
    while True:
        await wait_for_event(wake, every_s)
        if wake is not None:
            wake.clear()
        try:
            await action()
        except MailboatError as error:
            logger.warning("%s failed, tried again later: %s", action.__qualname__, error)


async def wait_for_event(event: asyncio.Event | None, timeout_s: float) -> bool:
    """Wait until the event is set or the time is over; tell whether it was set."""
    if event is None:
        await asyncio.sleep(timeout_s)
        return False
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
