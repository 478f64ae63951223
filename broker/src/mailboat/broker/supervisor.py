"""Background tasks under watch: one that ends or stalls makes the broker fail loudly.

Every task reports progress. A task that raised, that returned although nobody stopped it, or that
was silent for longer than it announced is a failure of the whole process: the owner awaits
`wait_failed` and exits. A broker that goes on without its flush or its dispatch would lie.
"""

import asyncio
import contextlib
import inspect
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final

from mailboat.remoting.turns import Wait

_log = logging.getLogger(__name__)

STALL_AFTER_S: Final = 10.0
_CHECK_PERIOD_S: Final = 1.0
_SLICE_S: Final = 0.003


class TaskProgress:
    """What one task says about itself; the task calls `beat` whenever it got on."""

    __slots__ = ("_clock", "deadline", "name")

    def __init__(self, name: str, stall_after_s: float, clock: Callable[[], float]) -> None:
        """Start watching: the first beat is due within the stall time."""
        self.name = name
        self._clock = clock
        self.deadline = clock() + stall_after_s

    def beat(self, next_within_s: float = STALL_AFTER_S) -> None:
        """Note progress and say how long the next step may take at most."""
        self.deadline = self._clock() + next_within_s

    async def finish(
        self,
        slices: Iterator[Wait | None],
        pause_s: float,
        at_pause: Callable[[], None] = lambda: None,
    ) -> None:
        """Go through slices of work, with a pause after each few milliseconds of it.

        Where one is a `Wait`, the next one comes after that, however long it takes.
        """
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        for step in slices:
            if isinstance(step, Wait):
                while not step.is_over:
                    self.beat()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(STALL_AFTER_S / 2):
                            await step.until_over()
                begin_s = loop.time()
            if loop.time() - begin_s > _SLICE_S:
                at_pause()
                self.beat()
                await asyncio.sleep(pause_s)
                begin_s = loop.time()


class Supervisor:
    """Starts background tasks, watches them, stops them."""

    def __init__(
        self, *, stall_after_s: float = STALL_AFTER_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Watch nothing yet; a silent task counts as stalled after `stall_after_s`."""
        self._stall_after_s = stall_after_s
        self._clock = clock
        self._tasks: dict[asyncio.Task[None], TaskProgress] = {}
        self._watch: asyncio.Task[None] | None = None
        self._failed = asyncio.Event()
        self._failure: str | None = None
        self._stopping = False

    @property
    def failure(self) -> str | None:
        """What failed, in one sentence; None while all is well."""
        return self._failure

    def start(
        self, name: str, run: Callable[[TaskProgress], Coroutine[Any, Any, None]]
    ) -> "asyncio.Task[None]":
        """Run a task until `stop` or `end`; it must beat and must not return."""
        progress = TaskProgress(name, self._stall_after_s, self._clock)
        task = asyncio.get_running_loop().create_task(run(progress), name=name)
        self._tasks[task] = progress
        task.add_done_callback(self._task_done)
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._watch_tasks())
        return task

    def end(self, task: "asyncio.Task[None]") -> None:
        """Cancel one task: its work is over."""
        if self._tasks.pop(task, None) is not None:
            task.cancel()

    def start_periodic(
        self,
        name: str,
        period_s: float,
        action: Callable[[], Awaitable[None] | None],
        *,
        may_take_s: float | None = None,
    ) -> None:
        """Run `action` again and again, `period_s` after it finished; first after one period.

        Each period is a little shorter or longer, so that tasks do not come in step. An action that
        takes longer than `may_take_s` (by default the stall time) has stalled.
        """
        may_take_s = self._stall_after_s if may_take_s is None else may_take_s

        async def run(progress: TaskProgress) -> None:
            while True:
                pause_s = period_s * random.uniform(0.95, 1.05)
                progress.beat(pause_s + self._stall_after_s)
                await asyncio.sleep(pause_s)
                progress.beat(may_take_s)
                result = action()
                if inspect.isawaitable(result):
                    await result

        self.start(name, run)

    def fail(self, reason: str) -> None:
        """Declare the process failed; the first reason stays."""
        if self._failure is None:
            self._failure = reason
            _log.critical("the process has failed: %s", reason)
            self._failed.set()

    async def wait_failed(self) -> str:
        """Return what failed, once something has."""
        await self._failed.wait()
        assert self._failure is not None
        return self._failure

    async def stop(self) -> None:
        """Cancel every task and wait until all are gone."""
        self._stopping = True
        tasks = [*self._tasks, *([] if self._watch is None else [self._watch])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._watch = None

    def _task_done(self, task: asyncio.Task[None]) -> None:
        progress = self._tasks.pop(task, None)
        if progress is None:
            return
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("background task %s failed", progress.name, exc_info=error)
            self.fail(f"background task {progress.name} failed: {error!r}")
        elif not self._stopping:
            self.fail(f"background task {progress.name} ended by itself")

    async def _watch_tasks(self) -> None:
        while True:
            due = self._clock() + _CHECK_PERIOD_S
            await asyncio.sleep(_CHECK_PERIOD_S)
            now = self._clock()
            # When the whole process stood still (a stopped container, a suspended machine) no task
            # could beat; that time is not held against them.
            stood_still_s = max(0.0, now - due)
            for progress in self._tasks.values():
                progress.deadline += stood_still_s
                if now > progress.deadline:
                    self.fail(f"background task {progress.name} has stalled")
