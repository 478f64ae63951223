"""File-system calls that may block, made away from the event loop.

The store is driven by the loop's thread alone; what can take long (reserve a segment, sync derived
files, unlink, read from a cold disk) it hands over here, and hears of the end on the loop again.

Calls of different kinds have threads of their own: whoever sends waits for a reservation at worst,
never behind readers; and a search through a hot key's messages does not hold up other readers.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from mailboat.remoting.shares import Shares
from mailboat.store.message_inner import BlockingRunner, Runners

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_FILE_THREADS: Final = 2
_READ_THREADS: Final = 4
READS_MAX: Final = 1024
"""Reads from the disk that run or wait; whoever wants another one is told to come again."""

SEARCHES_MAX: Final = 64
"""Searches by key that run or wait, one at a time."""

SEARCHES_MAX_PER_ADDRESS: Final = SEARCHES_MAX // 4
"""Of one address, however many connections it has."""


class BlockingCalls:
    """Runs calls on a few threads; an instance is a `mailboat.store.message_store.BlockingRunner`.

    Must be made and called where the event loop runs, except for calls of a store that is opened
    on another thread. `waiting` counts the calls that have not ended.
    """

    def __init__(
        self, on_bug: Callable[[str], None], threads: int = _FILE_THREADS, name: str = "files"
    ) -> None:
        """Report to `on_bug` what the end of a call could not cope with."""
        self._on_bug = on_bug
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"blocking-{name}")
        self._idle = asyncio.Event()
        self._idle.set()
        self.waiting = 0

    def __call__(
        self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]
    ) -> None:
        """Run `job` on a thread, then call `done(result, error)` on the loop."""
        self.waiting += 1
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
        self.waiting -= 1
        if not self.waiting:
            self._idle.set()


async def on_thread(run: BlockingRunner, job: Callable[[], _T]) -> _T:
    """Have a runner run a call, and return what it returns or raise what it raises."""
    result: asyncio.Future[_T] = asyncio.get_running_loop().create_future()

    def done(value: Any, error: BaseException | None) -> None:
        if result.done():
            return
        if error is None:
            result.set_result(value)
        else:
            result.set_exception(error)

    run(job, done)
    return await result


class StoreThreads:
    """The threads of one store, by what they do; see `mailboat.store.message_inner.Runners`."""

    def __init__(self, on_bug: Callable[[str], None]) -> None:
        """Make them; a thread starts with its first call."""
        self._reads = BlockingCalls(on_bug, _READ_THREADS, "read")
        self._searches = BlockingCalls(on_bug, 1, "search")
        files = BlockingCalls(on_bug)
        reservations = BlockingCalls(on_bug, 1, "reservation")
        self._all = (files, reservations, self._reads, self._searches)
        self.runners = Runners(*self._all)
        self.places = Shares(READS_MAX)
        """Of reads of single messages by their place, which anybody may ask for."""

    @property
    def can_read(self) -> bool:
        """Tell whether one more read from the disk may wait."""
        return self._reads.waiting < READS_MAX

    @property
    def can_search(self) -> bool:
        """Tell whether one more search may wait."""
        return self._searches.waiting < SEARCHES_MAX

    async def drain(self) -> None:
        """Wait until every call has ended and said so."""
        for calls in self._all:
            await calls.drain()

    def close(self) -> None:
        """End the threads; calls that run are waited for."""
        for calls in self._all:
            calls.close()
