"""Long polling: pulls that found nothing wait here for a message or for their time.

Arrivals wake the pulls of their queue once, however many messages were stored together: at the end
of the service's context (`with holds:`) when they come inside it, else with the next round of the
event loop.
A pull whose tags did not match goes on waiting from where it looked last. Deadlines are kept in
slots of time, so that a pull that is answered early leaves nothing behind; one timer serves all,
set to the earliest slot, and nothing runs while nothing waits.

Nothing is answered to a peer that does not read, and nothing at all while the memory for unread
answers is short: such pulls are postponed until there is room. Nor are more answered in one go than
a slice of time allows, however many a message wakes.

Source: apache/rocketmq broker/longpolling/PullRequestHoldService.java @ rocketmq-all-5.3.3.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, TypeVar

from mailboat.errors import BrokerError
from mailboat.protocol.codes import ResponseCode
from mailboat.remoting.connection import Connection
from mailboat.store.consume_queue import ConsumeQueue

# More than any client asks for; a pull must not be held for ever.
MAX_SUSPEND_S: Final = 120.0
# A pull is answered at the end of the slot that its time is up in: at most so much late.
SLOT_S: Final = 0.02

MAX_PER_CONNECTION: Final = 16_384
"""A client has one waiting pull for each queue that it reads."""

MAX_HELD: Final = 262_144
MAX_PER_ADDRESS: Final = MAX_HELD // 2
"""About a kilobyte each, and what their texts take, which is counted as kept for the peer."""

MAX_BYTES_PER_CONNECTION: Final = 8 * 1024 * 1024
"""Of texts: some hundred bytes for each pull, if there are many."""

_SLICE_S: Final = 0.01
_PORT_BYTES: Final = 4
_LOOK_FOR_ROOM_S: Final = 0.005

Retry = Callable[[bool], bool]
"""Tries a pull again; the argument says that its time is up. Returns whether it is done with."""

_Key = tuple[str, int]
_T = TypeVar("_T")


class HeldPull:
    """One waiting pull; `slot` is when its time is up, in units of `SLOT_S`.

    Without a key it does not wait for a message, and without a slot for no time.
    """

    __slots__ = ("connection", "is_late", "key", "retry", "size", "slot")

    def __init__(
        self,
        connection: Connection,
        retry: Retry,
        size: int,
        key: _Key | None = None,
        slot: int = 0,
    ) -> None:
        """Wait for messages on the queue `key`, with texts of so many bytes."""
        self.connection = connection
        self.key = key
        self.retry = retry
        self.size = size
        self.slot = slot
        self.is_late = False


class PullRequestHoldService:
    """The waiting pulls of one broker."""

    def __init__(self) -> None:
        """Hold nothing."""
        self._loop = asyncio.get_running_loop()
        # Dictionaries for sets that keep their order: who waits longest is answered first.
        self._by_queue: dict[_Key, dict[HeldPull, None]] = {}
        self._by_connection: dict[Connection, dict[HeldPull, None]] = {}
        self._by_slot: dict[int, dict[HeldPull, None]] = {}
        self._postponed: dict[Connection, dict[HeldPull, None]] = {}
        self._by_address: Counter[bytes] = Counter()
        self._count = 0
        self._woken: set[_Key] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_slot = 0
        self._next_try: asyncio.Handle | None = None
        self._is_gathering = False

    def __len__(self) -> int:
        """Return how many pulls wait for a message."""
        return sum(map(len, self._by_queue.values()))

    def hold(
        self,
        connection: Connection,
        topic: str,
        queue_id: int,
        suspend_s: float,
        retry: Retry,
        size: int = 0,
    ) -> None:
        """Keep a pull until a message arrives on its queue or `suspend_s` have passed.

        Its texts take `size` bytes.

        Raises:
            BrokerError: SYSTEM_BUSY, too many wait already.
        """
        key = (topic, queue_id)
        deadline = self._loop.time() + min(max(suspend_s, 0.0), MAX_SUSPEND_S)
        slot = int(deadline / SLOT_S) + 1
        held = HeldPull(connection, retry, size, key, slot)
        self._add(held)
        self._by_queue.setdefault(key, {})[held] = None
        self._by_slot.setdefault(slot, {})[held] = None
        if self._timer is None or slot < self._timer_slot:
            self._arm(slot)

    def keep(self, connection: Connection, retry: Retry, size: int = 0) -> Callable[[], None]:
        """Keep a pull that waits for something else; return what to call when that is there.

        It is then tried, once there is room for its answer.

        Raises:
            BrokerError: SYSTEM_BUSY, too many wait already.
        """
        held = HeldPull(connection, retry, size)
        self._add(held)
        return partial(self._ready, held)

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

    def writing_resumed(self, connection: Connection) -> None:
        """Answer what was postponed while the peer did not read."""
        if connection in self._postponed:
            self._try_postponed(connection, self._loop.time() + _SLICE_S)

    def connection_closed(self, connection: Connection) -> None:
        """Forget the pulls of a connection that ended."""
        for held in list(self._by_connection.get(connection, ())):
            self._forget(held)

    def close(self) -> None:
        """Answer all that wait for a message as if their time were up; forget who cannot read."""
        for pulls in list(self._by_queue.values()):
            for held in list(pulls):
                if not held.connection.is_write_paused:
                    held.retry(True)
                self._forget(held)
        for timer in (self._timer, self._next_try):
            if timer is not None:
                timer.cancel()
        self._timer = self._next_try = None

    def _add(self, held: HeldPull) -> None:
        connection = held.connection
        pulls = self._by_connection.get(connection, {})
        address = _address(connection)
        if (
            len(pulls) >= MAX_PER_CONNECTION
            or self._count >= MAX_HELD
            or self._by_address[address] >= MAX_PER_ADDRESS
        ):
            raise BrokerError(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]{len(pulls)} pulls of this connection and {self._count} in all wait "
                f"already, the limits are {MAX_PER_CONNECTION} and {MAX_HELD}, half of them for "
                "one address",
            )
        if held.size and connection.awaited_bytes + held.size > MAX_BYTES_PER_CONNECTION:
            raise BrokerError(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]the pulls of this connection that wait have {connection.awaited_bytes} "
                f"bytes of subscriptions, the limit is {MAX_BYTES_PER_CONNECTION}",
            )
        self._by_connection.setdefault(connection, pulls)[held] = None
        self._by_address[address] += 1
        self._count += 1
        connection.keep(held.size)

    def _ready(self, held: HeldPull) -> None:
        if held in self._by_connection.get(held.connection, ()):
            self._try(held, self._loop.time() + _SLICE_S)

    def _wake(self) -> None:
        woken, self._woken = self._woken, set()
        until_s = self._loop.time() + _SLICE_S
        for key in woken:
            for held in list(self._by_queue.get(key, ())):
                self._try(held, until_s)

    def _try(self, held: HeldPull, until_s: float) -> None:
        """Try a pull now, or later if there is no room or this has taken long enough."""
        connection = held.connection
        if connection.has_room() and self._loop.time() <= until_s:
            if held.retry(held.is_late):
                self._forget(held)
        else:
            self._postponed.setdefault(connection, {})[held] = None
            self._must_wait(connection, until_s)

    def _must_wait(self, connection: Connection, until_s: float) -> bool:
        """Tell whether nothing is to be answered now, and see to it that it is later."""
        has_room = connection.has_room()
        if has_room and self._loop.time() <= until_s:
            return False
        # Those whose peer does not read are tried when it does.
        if self._next_try is None and not connection.is_write_paused:
            delay_s = 0.0 if has_room else _LOOK_FOR_ROOM_S
            self._next_try = self._loop.call_later(delay_s, self._try_all_postponed)
        return True

    def _try_all_postponed(self) -> None:
        self._next_try = None
        until_s = self._loop.time() + _SLICE_S
        for connection in list(self._postponed):
            if not connection.is_write_paused:
                self._try_postponed(connection, until_s)
                if self._next_try is not None:
                    return

    def _try_postponed(self, connection: Connection, until_s: float) -> None:
        """Try the postponed pulls of a connection until they must wait again."""
        while connection in self._postponed and not self._must_wait(connection, until_s):
            held = next(iter(self._postponed[connection]))
            _remove(self._postponed, connection, held)
            if held.retry(held.is_late):
                self._forget(held)

    def _forget(self, held: HeldPull) -> None:
        pulls = self._by_connection.get(held.connection)
        if pulls is None or held not in pulls:
            return
        self._count -= 1
        del pulls[held]
        address = _address(held.connection)
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
        held.connection.release(held.size)
        if not pulls:
            del self._by_connection[held.connection]
        _remove(self._by_queue, held.key, held)
        _remove(self._by_slot, held.slot, held)
        if self._postponed:
            _remove(self._postponed, held.connection, held)

    def _arm(self, slot: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_slot = slot
        self._timer = self._loop.call_at(slot * SLOT_S, self._expire)

    def _expire(self) -> None:
        self._timer = None
        # A timer may fire a little early; what it was set for is due all the same.
        now = max(int(self._loop.time() / SLOT_S), self._timer_slot)
        until_s = self._loop.time() + _SLICE_S
        for slot in sorted(slot for slot in self._by_slot if slot <= now):
            for held in self._by_slot.pop(slot):
                held.is_late = True
                self._try(held, until_s)
        if self._by_slot:
            self._arm(min(self._by_slot))


def _address(connection: Connection) -> bytes:
    return connection.peer_host[:-_PORT_BYTES]


def _remove(table: dict[_T, dict[HeldPull, None]], key: _T | None, held: HeldPull) -> None:
    """Take a pull out of one of the tables, and its entry with the last one."""
    if key is not None and (pulls := table.get(key)) is not None:
        pulls.pop(held, None)
        if not pulls:
            del table[key]
