"""The tasks that a client runs behind its callers' backs.

A task lives until its work returns or `cancel` is called. One that fails otherwise, because of a
defect or because something that it waited for was cancelled, is reported in the log and begun anew
after a pause: a consumer must not fall silent because one of its tasks is gone.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final
from weakref import WeakSet

from mailboat.errors import MailboatError

logger = logging.getLogger(__name__)

RESTART_PAUSE_S: Final = 1.0
"""How soon a task that failed is begun anew; twice as long after each failure that follows soon."""
MAX_RESTART_PAUSE_S: Final = 30.0
CANCEL_PATIENCE_S: Final = 5.0
"""How long `cancel_all` waits for tasks that do not end although they were cancelled."""

# Tasks of which `BackgroundTasks` wants the end.
_ending: Final[WeakSet[asyncio.Task[None]]] = WeakSet()

Work = Callable[[], Coroutine[Any, Any, None]]
"""Begins what a task does, the first time and after each failure."""


class BackgroundTasks:
    """Owns tasks from start to cancellation."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        """Begin without tasks."""
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Work, name: str) -> asyncio.Task[None]:
        """Run `work` as a task until it returns, or `cancel` or `cancel_all` is called."""
        task = asyncio.get_running_loop().create_task(_live(work, name), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def cancel(self, task: asyncio.Task[None]) -> None:
        """End one task."""
        if not task.done():
            _ending.add(task)
            task.cancel()

    async def cancel_all(self) -> None:
        """Cancel every task, but not the one that asks for it, and wait for their end."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + CANCEL_PATIENCE_S
        while tasks := self._tasks - {asyncio.current_task()}:
            for task in tasks:
                self.cancel(task)
            _, running = await asyncio.wait(tasks, timeout=max(0.0, deadline_s - loop.time()))
            if running:
                names = ", ".join(sorted(task.get_name() for task in running))
                logger.error("tasks that do not end though cancelled are left alone: %s", names)
                return

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() and task not in _ending:
            # Somebody cancels every task of the loop, say: it is not for us to go on.
            logger.warning("task %s was cancelled from outside of the client", task.get_name())


async def _live(work: Work, name: str) -> None:
    """Do the work, and again after each failure, until it returns or this task is cancelled."""
    loop = asyncio.get_running_loop()
    pause_s = RESTART_PAUSE_S
    while True:
        begun_s = loop.time()
        try:
            await work()
            return
        except asyncio.CancelledError:
            if cancel_requests():
                raise
            logger.exception("task %s died: something it waited for was cancelled", name)
        except Exception:
            # A defect, whatever it is: nothing else would tell of it, and nothing else goes on.
            logger.exception("task %s died", name)
        if loop.time() - begun_s >= MAX_RESTART_PAUSE_S:
            pause_s = RESTART_PAUSE_S
        logger.error("task %s is begun anew in %g s", name, pause_s)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, MAX_RESTART_PAUSE_S)


def cancel_requests() -> int:
    """Return how often somebody asked for the end of the current task.

    A CancelledError alone is no such request: it also comes out of anything awaited that somebody
    else cancelled, such as a future of a connection pool that was closed.
    """
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def forget_cancel_requests(requests_before: int) -> None:
    """Take back the requests since then, unless they end a background task.

    Raises:
        CancelledError: the task shall end, though what it awaited did not let that through.
    """
    task = asyncio.current_task()
    if task is None or task.cancelling() <= requests_before:
        return
    if task in _ending:
        raise asyncio.CancelledError
    while task.cancelling() > requests_before:
        task.uncancel()


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
