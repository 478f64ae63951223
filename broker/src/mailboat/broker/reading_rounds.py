"""When a broker looks how far groups have read, and how much of the loop that may take."""

import asyncio
import contextlib
from typing import Final

from mailboat.broker.reading_progress import ReadingProgress
from mailboat.broker.supervisor import Supervisor, TaskProgress
from mailboat.store.message_store import MessageStore

_CHECK_S: Final = 1.0
_PAUSE_S: Final = 0.03


class ReadingRounds:
    """A task that goes through the slices of `ReadingProgress`."""

    def __init__(self, reading: ReadingProgress, store: MessageStore) -> None:
        """Look for the cleaner of a store, which is told where something is to go."""
        self._reading = reading
        self._store = store
        self._wanted = asyncio.Event()

    def start(self, supervisor: Supervisor, *, is_restart: bool) -> None:
        """Begin to look; until the first round nothing counts as read."""
        if is_restart:
            self._reading.await_members()
        supervisor.start("reading progress", self._run)

    def ask(self) -> None:
        """Have the next round soon: retention waits for it."""
        self._reading.ask_for_round()
        self._wanted.set()

    async def _run(self, progress: TaskProgress) -> None:
        """Look how far groups have read: soon when retention asks or a group is new."""
        while True:
            self._wanted.clear()
            if self._reading.is_round_due:
                await progress.finish(self._reading.slices(), _PAUSE_S)
                if self._store.retention.is_pressing:
                    self._store.cleaner.hurry()
            progress.beat()
            await asyncio.sleep(_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_S):
                    await self._wanted.wait()
