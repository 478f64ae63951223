"""Long polling: pulls that found nothing wait here for a message or for their time.

Arrivals wake the pulls of their queue once per round of the event loop, however many messages came.
A pull whose tags did not match goes on waiting from where it looked last. One timer serves all, set
to the earliest deadline; nothing runs while nothing waits.

Source: apache/rocketmq broker/longpolling/PullRequestHoldService.java @ rocketmq-all-5.3.3.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from mailboat.remoting.connection import Connection
from mailboat.store.consume_queue import ConsumeQueue

# More than any client asks for; a pull must not be held for ever.
MAX_SUSPEND_S: Final = 120.0

Retry = Callable[[bool], bool]
"""Tries a pull again; the argument says that its time is up. Returns whether it was answered."""

_Key = tuple[str, int]


class HeldPull(NamedTuple):
    """One waiting pull."""

    connection: Connection
    retry: Retry


class PullRequestHoldService:
    """The waiting pulls of one broker."""

    def __init__(self) -> None:
        """Hold nothing."""
        self._loop = asyncio.get_running_loop()
        self._by_queue: dict[_Key, dict[int, HeldPull]] = {}
        self._by_connection: dict[Connection, dict[int, _Key]] = {}
        self._deadlines: list[tuple[float, int, _Key]] = []
        self._numbers = itertools.count()
        self._woken: set[_Key] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Return how many pulls wait."""
        return sum(map(len, self._by_queue.values()))

    def hold(
        self,
        connection: Connection,
        topic: str,
        queue_id: int,
        suspend_s: float,
        retry: Retry,
    ) -> None:
        """Keep a pull until a message arrives on its queue or `suspend_s` have passed."""
        key = (topic, queue_id)
        number = next(self._numbers)
        self._by_queue.setdefault(key, {})[number] = HeldPull(connection, retry)
        self._by_connection.setdefault(connection, {})[number] = key
        deadline = self._loop.time() + min(max(suspend_s, 0.0), MAX_SUSPEND_S)
        heapq.heappush(self._deadlines, (deadline, number, key))
        self._arm()

    def on_arrival(self, queues: Iterable[ConsumeQueue]) -> None:
        """Wake the pulls of these queues, soon."""
        by_queue = self._by_queue
        if not by_queue:
            return
        for queue in queues:
            key = (queue.topic, queue.queue_id)
            if key in by_queue:
                if not self._woken:
                    self._loop.call_soon(self._wake)
                self._woken.add(key)

    def connection_closed(self, connection: Connection) -> None:
        """Forget the pulls of a connection that ended."""
        for number, key in self._by_connection.pop(connection, {}).items():
            self._forget(key, number)

    def close(self) -> None:
        """Answer all that wait as if their time were up."""
        for key in list(self._by_queue):
            self._try(key, is_late=True)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        woken, self._woken = self._woken, set()
        for key in woken:
            self._try(key, is_late=False)

    def _try(self, key: _Key, *, is_late: bool) -> None:
        for number, held in list(self._by_queue.get(key, {}).items()):
            if held.retry(is_late):
                self._remove(key, number, held)

    def _remove(self, key: _Key, number: int, held: HeldPull) -> None:
        self._forget(key, number)
        numbers = self._by_connection.get(held.connection)
        if numbers is not None:
            numbers.pop(number, None)
            if not numbers:
                del self._by_connection[held.connection]

    def _forget(self, key: _Key, number: int) -> None:
        held = self._by_queue.get(key)
        if held is not None:
            held.pop(number, None)
            if not held:
                del self._by_queue[key]

    def _arm(self) -> None:
        if self._timer is None and self._deadlines:
            self._timer = self._loop.call_at(self._deadlines[0][0], self._expire)
        elif self._timer is not None and self._deadlines[0][0] < self._timer.when():
            self._timer.cancel()
            self._timer = self._loop.call_at(self._deadlines[0][0], self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now:
            _, number, key = heapq.heappop(deadlines)
            held = self._by_queue.get(key, {}).get(number)
            if held is not None:
                held.retry(True)
                self._remove(key, number, held)
        # Pulls that were answered early leave their deadlines behind: drop those at the front.
        while deadlines and deadlines[0][1] not in self._by_queue.get(deadlines[0][2], {}):
            heapq.heappop(deadlines)
        self._arm()
