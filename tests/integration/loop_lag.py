"""How long an event loop was held at a time."""

import asyncio
import gc
import time
from types import TracebackType
from typing import Final, Self

TICK_S: Final = 0.002


class LoopLag:
    """Watches the running loop inside `async with`; `longest_s` is the longest hold.

    It is counted in processor time of the loop's thread, so that a busy machine is no hold. A
    generous limit suits a test all the same: what it looks for takes hundreds of milliseconds.
    """

    def __init__(self) -> None:
        """Watch nothing yet."""
        self.longest_s = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Begin."""
        # What earlier tests of this process have left in memory is nothing that a server looks at.
        # To collect it first would take a third of a second each time.
        gc.freeze()
        self._task = asyncio.get_running_loop().create_task(self._watch())
        await asyncio.sleep(2 * TICK_S)
        self.longest_s = 0.0
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop; the last hold counts."""
        assert self._task is not None
        await asyncio.sleep(2 * TICK_S)
        self._task.cancel()
        gc.unfreeze()

    async def _watch(self) -> None:
        while True:
            before_s = time.thread_time()
            await asyncio.sleep(TICK_S)
            self.longest_s = max(self.longest_s, time.thread_time() - before_s)
