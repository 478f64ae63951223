"""The keyed work queue: every key at most once, one worker at a time per key, failures later."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping

from mailboat_operator.kinds import ResourceKey

FIRST_BACKOFF_S = 1.0
LONGEST_BACKOFF_S = 300.0


class QueueClosedError(Exception):
    """No more keys are given out: the process is stopping."""


class WorkQueue:
    """Keys that are to be worked on, in the order they came.

    A key that is added while it is worked on is given out once more when that work is done; so
    the last change is always seen, and two workers never hold the same key.
    """

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """Start empty and open; the clock and the dice can be replaced."""
        self._monotonic = monotonic
        self._uniform = uniform
        self._ready: dict[ResourceKey, None] = {}
        self._again: set[ResourceKey] = set()
        self._started_s: dict[ResourceKey, float] = {}
        self._failures: dict[ResourceKey, int] = {}
        self._paused_until_s: dict[ResourceKey, float] = {}
        self._timers: dict[ResourceKey, asyncio.TimerHandle] = {}
        self._arrived = asyncio.Event()
        self._is_closed = False

    @property
    def depth(self) -> int:
        """How many keys wait for a worker."""
        return len(self._ready)

    @property
    def in_progress(self) -> Mapping[ResourceKey, float]:
        """The keys that are worked on, with the monotonic time at which that began."""
        return self._started_s

    def add(self, key: ResourceKey) -> None:
        """Have the key worked on as soon as a worker is free."""
        if self._is_closed:
            return
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._started_s:
            self._again.add(key)
        else:
            self._ready[key] = None
            self._arrived.set()

    def add_after(self, key: ResourceKey, delay_s: float) -> None:
        """Have the key worked on later; of several such wishes the earliest counts."""
        if self._is_closed or key in self._ready:
            return
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + delay_s:
                return
            timer.cancel()
        self._timers[key] = loop.call_later(delay_s, self._timer_fired, key)

    def add_failed(self, key: ResourceKey) -> float:
        """Have the key worked on again after a pause that doubles with each failure in a row.

        A failure before the last pause is over does not count: that turn was for some change, and
        the pause goes on.

        Returns:
            The pause in seconds.
        """
        now_s = self._monotonic()
        pause_s = self._paused_until_s.get(key, 0.0) - now_s
        if pause_s <= 0:
            failures = self._failures.get(key, 0)
            self._failures[key] = failures + 1
            pause_s = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(failures, 16))
            pause_s *= self._uniform(0.8, 1.0)
            self._paused_until_s[key] = now_s + pause_s
        self.add_after(key, pause_s)
        return pause_s

    def succeeded(self, key: ResourceKey) -> None:
        """Forget the failures of a key: the next one starts with the shortest pause."""
        self._failures.pop(key, None)
        self._paused_until_s.pop(key, None)

    async def get(self) -> ResourceKey:
        """Wait for a key and take it; `done` must follow.

        Raises:
            QueueClosedError: the queue was closed.
        """
        while not self._ready:
            if self._is_closed:
                raise QueueClosedError
            self._arrived.clear()
            await self._arrived.wait()
        if self._is_closed:
            raise QueueClosedError
        key = next(iter(self._ready))
        del self._ready[key]
        self._started_s[key] = self._monotonic()
        if not self._ready and not self._is_closed:
            self._arrived.clear()
        return key

    def done(self, key: ResourceKey) -> None:
        """Say that the work on the key ended, well or not."""
        del self._started_s[key]
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def close(self) -> None:
        """Give out no more keys; what is worked on goes on."""
        self._is_closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._again.clear()
        self._arrived.set()

    def _timer_fired(self, key: ResourceKey) -> None:
        self._timers.pop(key, None)
        self.add(key)
