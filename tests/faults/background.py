"""What goes on beside a test, as tasks that end together."""

import asyncio
from collections.abc import Awaitable


class Background:
    """Tasks of one part of a life."""

    def __init__(self) -> None:
        """Begin without any."""
        self._tasks: list[asyncio.Future[None]] = []

    def begin(self, *works: Awaitable[None]) -> None:
        """Let these go on beside the test."""
        self._tasks = [asyncio.ensure_future(work) for work in works]

    async def stop(self) -> None:
        """End all of it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def check_running(self) -> None:
        """Raise what ended one of them."""
        for task in self._tasks:
            if task.done():
                task.result()
