"""Long polling: pulls that found nothing wait here for a message or for their time.

Arrivals wake the pulls of their queue once, however many messages were stored together: at the end
of the service's context (`with holds:`) when they come inside it, else with the next round of the
event loop.
A pull whose tags did not match goes on waiting from where it looked last. Deadlines are kept in
slots of time, so that a pull that is answered early leaves nothing behind; one timer serves all,
set to the earliest slot, and nothing runs while nothing waits.

Source: apache/rocketmq broker/longpolling/PullRequestHoldService.java @ rocketmq-all-5.3.3.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from mailboat.remoting.connection import Connection
from mailboat.store.consume_queue import ConsumeQueue

# More than any client asks for; a pull must not be held for ever.
MAX_SUSPEND_S: Final = 120.0
# A pull is answered at the end of the slot that its time is up in: at most so much late.
SLOT_S: Final = 0.02

Retry = Callable[[bool], bool]
"""Tries a pull again; the argument says that its time is up. Returns whether it was answered."""

_Key = tuple[str, int]


class HeldPull:
    """One waiting pull; `slot` is when its time is up, in units of `SLOT_S`."""

    __slots__ = ("connection", "key", "retry", "slot")

    def __init__(self, connection: Connection, key: _Key, retry: Retry, slot: int) -> None:
        """Wait for messages on the queue `key`."""
        self.connection = connection
        self.key = key
        self.retry = retry
        self.slot = slot


class PullRequestHoldService:
    """The waiting pulls of one broker."""

    def __init__(self) -> None:
        """Hold nothing."""
        self._loop = asyncio.get_running_loop()
        # Dictionaries for sets that keep their order: who waits longest is answered first.
        self._by_queue: dict[_Key, dict[HeldPull, None]] = {}
        self._by_connection: dict[Connection, dict[HeldPull, None]] = {}
        self._by_slot: dict[int, dict[HeldPull, None]] = {}
        self._woken: set[_Key] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_slot = 0
        self._is_gathering = False

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
        deadline = self._loop.time() + min(max(suspend_s, 0.0), MAX_SUSPEND_S)
        slot = int(deadline / SLOT_S) + 1
        held = HeldPull(connection, key, retry, slot)
        self._by_queue.setdefault(key, {})[held] = None
        self._by_connection.setdefault(connection, {})[held] = None
        self._by_slot.setdefault(slot, {})[held] = None
        if self._timer is None or slot < self._timer_slot:
            self._arm(slot)

    def on_arrival(self, queues: Iterable[ConsumeQueue]) -> None:
        """Wake the pulls of these queues, soon."""
        by_queue = self._by_queue
        if not by_queue:
            return
        for queue in queues:
            key = (queue.topic, queue.queue_id)
            if key in by_queue:
                if not self._woken and not self._is_gathering:
                    self._loop.call_soon(self._wake)
                self._woken.add(key)

    def __enter__(self) -> None:
        """Gather what arrives until `__exit__`, which wakes the pulls at once."""
        self._is_gathering = True

    def __exit__(self, *_: object) -> None:
        """Wake the pulls of the queues that got messages."""
        self._is_gathering = False
        if self._woken:
            self._wake()

    def connection_closed(self, connection: Connection) -> None:
        """Forget the pulls of a connection that ended."""
        for held in list(self._by_connection.get(connection, ())):
            self._forget(held)

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
        for held in list(self._by_queue.get(key, ())):
            if held.retry(is_late):
                self._forget(held)

    def _forget(self, held: HeldPull) -> None:
        by_queue, by_connection = self._by_queue, self._by_connection
        waiting = by_queue.get(held.key)
        if waiting is None or held not in waiting:
            return
        del waiting[held]
        if not waiting:
            del by_queue[held.key]
        waiting = by_connection[held.connection]
        del waiting[held]
        if not waiting:
            del by_connection[held.connection]
        waiting = self._by_slot[held.slot]
        del waiting[held]
        if not waiting:
            del self._by_slot[held.slot]

    def _arm(self, slot: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_slot = slot
        self._timer = self._loop.call_at(slot * SLOT_S, self._expire)

    def _expire(self) -> None:
        self._timer = None
        # A timer may fire a little early; what it was set for is due all the same.
        now = max(int(self._loop.time() / SLOT_S), self._timer_slot)
        for slot in sorted(slot for slot in self._by_slot if slot <= now):
            for held in list(self._by_slot.get(slot, ())):
                held.retry(True)
                self._forget(held)
        if self._by_slot:
            self._arm(min(self._by_slot))
