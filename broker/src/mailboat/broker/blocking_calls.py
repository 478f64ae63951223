"""File-system calls that may block, made away from the event loop.

The store is driven by the loop's thread alone; what can take long (reserve a segment, sync derived
files, unlink) it hands over here, and hears of the end on the loop again.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

_log = logging.getLogger(__name__)

_MAX_THREADS: Final = 2


class BlockingCalls:
    """Runs calls on a few threads; an instance is a `mailboat.store.message_store.BlockingRunner`.

    Must be made and called where the event loop runs, except for calls of a store that is opened
    on another thread.
    """

    def __init__(self, on_bug: Callable[[str], None]) -> None:
        """Report to `on_bug` what the end of a call could not cope with."""
        self._on_bug = on_bug
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="blocking-call")
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __call__(
        self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]
    ) -> None:
        """Run `job` on a thread, then call `done(result, error)` on the loop."""
        self._loop.call_soon_threadsafe(self._start, job, done)

    async def drain(self) -> None:
        """Wait until every call has ended and said so."""
        # Calls come by way of the loop, so one that was just handed over starts in its next round.
        await asyncio.sleep(0)
        await self._idle.wait()

    def close(self) -> None:
        """End the threads; calls that run are waited for."""
        self._pool.shutdown()

    def _start(
        self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]
    ) -> None:
        self._running += 1
        self._idle.clear()
        future = self._pool.submit(job)
        future.add_done_callback(
            lambda ended: self._loop.call_soon_threadsafe(self._finish, ended, done)
        )

    def _finish(
        self, ended: Future[Any], done: Callable[[Any, BaseException | None], None]
    ) -> None:
        error = ended.exception()
        try:
            done(None if error is not None else ended.result(), error)
        except Exception as bug:
            _log.exception("the end of a blocking call failed")
            self._on_bug(f"a file-system call ended unexpectedly: {bug!r}")
        self._running -= 1
        if not self._running:
            self._idle.set()
