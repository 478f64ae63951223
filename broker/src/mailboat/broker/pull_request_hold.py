"""Long polling: pulls that found nothing wait here for a message or for their time.

Arrivals wake the pulls of their queue once, however many messages were stored together: at the end
of the service's context (`with holds:`) when they come inside it, else with the next round of the
event loop.
A pull whose tags did not match goes on waiting from where it looked last. Deadlines are kept in
slots of time, so that a pull that is answered early leaves nothing behind; one timer serves all,
set to the earliest slot, and nothing runs while nothing waits.

Nothing is answered to a peer that does not read, and nothing at all while the memory for unread
answers is short: such pulls are postponed until there is room. Nor is more done in one go than a
slice of time allows, however many pulls a message wakes, a time ends or a connection had: the rest
is done in the next rounds of the event loop, where each kind of work has a slice.

Source: apache/rocketmq broker/longpolling/PullRequestHoldService.java @ rocketmq-all-5.3.3.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Final, Protocol, TypeVar

import msgspec

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
# Of the pulls of one queue, before those of the next one that got a message.
_TRIED_TOGETHER: Final = 64

_Key = tuple[str, int]
_T = TypeVar("_T")
_Pulls = TypeVar("_Pulls", bound="dict[HeldPull, None]")


class PullCount(Protocol):
    """Counts the pulls of a user that wait."""

    def pull_held(self) -> None:
        """Count one more.

        Raises:
            BrokerError: SYSTEM_BUSY, as many wait as may.
        """
        ...

    def pull_ended(self) -> None:
        """Count one less."""
        ...


class HeldPull(msgspec.Struct, gc=False, eq=False):
    """One pull that waits; a subclass says how it is tried again.

    Hundreds of thousands may wait, and the garbage collector does not look at them: who waits is
    part of no cycle once it is forgotten, and whoever ends forgets all.
    """

    connection: Connection
    size: int
    """Bytes of the pull's texts."""

    key: _Key | None = None
    """The queue whose messages it waits for, if it does."""

    count: PullCount | None = None
    """Counts the pulls of its user, where they are bounded."""

    slot: int = 0
    """When its time is up, in units of `SLOT_S`, 0 if it has none."""

    is_held: bool = False
    is_late: bool = False
    before: "HeldPull | None" = None
    """Who has waited for longer in the same queue."""

    after: "HeldPull | None" = None
    """Who waits since later in the same queue."""

    def uncount(self) -> None:
        """Count this pull no more among those of its user that wait."""
        if self.count is not None:
            self.count.pull_ended()
            self.count = None

    def retry(self, is_late: bool) -> bool:
        """Try again, for the last time if its time is up; return whether it is done with."""
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """Say what a try has raised, instead of an answer."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise BrokerError where whoever asked may not have an answer any more."""


class _Line:
    """The pulls that wait for the messages of one queue, the longest waiting one first."""

    __slots__ = ("_first", "_last", "_next", "is_woken")

    def __init__(self) -> None:
        self._first: HeldPull | None = None
        self._last: HeldPull | None = None
        # Who is tried next; None when there is nobody left to be tried.
        self._next: HeldPull | None = None
        self.is_woken = False
        """Whether all are to be tried, once those are that are being tried now."""

    @property
    def is_empty(self) -> bool:
        return self._first is None

    def add(self, held: HeldPull) -> None:
        held.before = self._last
        if self._last is None:
            self._first = held
        else:
            self._last.after = held
        self._last = held

    def remove(self, held: HeldPull) -> None:
        before, after = held.before, held.after
        if before is None:
            self._first = after
        else:
            before.after = after
        if after is None:
            self._last = before
        else:
            after.before = before
        if self._next is held:
            self._next = after
        held.before = held.after = None

    def take_next(self) -> HeldPull | None:
        """Return who is to be tried now, None when all were."""
        if self._next is None and self.is_woken:
            self.is_woken = False
            self._next = self._first
        held = self._next
        if held is not None:
            self._next = held.after
        return held


class PullRequestHoldService:
    """The waiting pulls of one broker."""

    def __init__(self) -> None:
        """Hold nothing."""
        self._loop = asyncio.get_running_loop()
        self._by_queue: dict[_Key, _Line] = {}
        self._by_connection: dict[Connection, dict[HeldPull, None]] = {}
        # Dictionaries for sets that keep their order; these give up the first one without a search.
        self._by_slot: dict[int, OrderedDict[HeldPull, None]] = {}
        self._postponed: dict[Connection, OrderedDict[HeldPull, None]] = {}
        self._by_address: dict[bytes, int] = {}
        self._count = 0
        self._waiting = 0
        # Queues that got messages and have pulls that were not tried since.
        self._woken: OrderedDict[_Key, None] = OrderedDict()
        self._wake_up: asyncio.Handle | None = None
        self._closed: deque[Connection] = deque()
        self._unchecked: deque[HeldPull] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_slot = 0
        self._next_try: asyncio.Handle | None = None
        self._is_gathering = False

    def __len__(self) -> int:
        """Return how many pulls wait for a message."""
        return self._waiting

    def hold(self, held: HeldPull, topic: str, queue_id: int, suspend_s: float) -> None:
        """Keep a pull until a message arrives on its queue or `suspend_s` have passed.

        Raises:
            BrokerError: SYSTEM_BUSY, too many wait already.
        """
        self._add(held)
        self._set_time(held, suspend_s)
        held.key = key = (topic, queue_id)
        self._waiting += 1
        line = self._by_queue.get(key)
        if line is None:
            line = self._by_queue[key] = _Line()
        line.add(held)

    def _set_time(self, held: HeldPull, suspend_s: float) -> None:
        """Try a pull for the last time when so many seconds have passed."""
        deadline = self._loop.time() + min(max(suspend_s, 0.0), MAX_SUSPEND_S)
        held.slot = slot = int(deadline / SLOT_S) + 1
        _put(self._by_slot, slot, held)
        if self._timer is None or slot < self._timer_slot:
            self._arm(slot)

    def keep(self, held: HeldPull, suspend_s: float | None = None) -> Callable[[], None]:
        """Keep a pull that waits for something else; return what to call when that is there.

        It is then tried, once there is room for its answer, or when `suspend_s` have passed.

        Raises:
            BrokerError: SYSTEM_BUSY, too many wait already.
        """
        self._add(held)
        if suspend_s is not None:
            self._set_time(held, suspend_s)
        return partial(self.try_again, held)

    def on_arrival(self, queues: Iterable[ConsumeQueue]) -> None:
        """Wake the pulls of these queues, soon."""
        by_queue = self._by_queue
        if not by_queue:
            return
        for queue in queues:
            key = (queue.topic, queue.queue_id)
            line = by_queue.get(key)
            if line is not None:
                if self._wake_up is None and not self._is_gathering:
                    self._wake_up = self._loop.call_soon(self._wake)
                line.is_woken = True
                self._woken[key] = None

    def __enter__(self) -> None:
        """Gather what arrives until `__exit__`, which wakes the pulls at once."""
        self._is_gathering = True

    def __exit__(self, *_: object) -> None:
        """Wake the pulls of the queues that got messages."""
        self._is_gathering = False
        # What is under way already goes on in the next round, with these.
        if self._woken and self._wake_up is None:
            self._wake()

    def writing_resumed(self, connection: Connection) -> None:
        """Answer what was postponed while the peer did not read."""
        if connection in self._postponed:
            self._try_postponed(connection, self._loop.time() + _SLICE_S)

    def connection_closed(self, connection: Connection) -> None:
        """Forget the pulls of a connection that ended."""
        if connection in self._by_connection:
            self._closed.append(connection)
            if len(self._closed) == 1:
                self._forget_closed()

    def check_all(self) -> None:
        """End the pulls that may not be answered any more, soon."""
        is_under_way = bool(self._unchecked)
        self._unchecked = deque(chain.from_iterable(self._by_connection.values()))
        if self._unchecked and not is_under_way:
            self._check_some()

    def _check_some(self) -> None:
        until_s = self._loop.time() + _SLICE_S
        while self._unchecked:
            held = self._unchecked.popleft()
            if held.is_held:
                try:
                    held.check()
                except Exception as error:
                    # As `_retry` does.
                    held.failed(error)
                    self._forget(held)
            if self._unchecked and self._loop.time() > until_s:
                self._loop.call_soon(self._check_some)
                return

    async def close(self) -> None:
        """Answer all that have a time as if it were up; forget who cannot read."""
        until_s = self._loop.time() + _SLICE_S
        # Not who comes meanwhile: those who are answered ask again at once.
        for held in list(chain.from_iterable(self._by_connection.values())):
            if held.is_held and held.slot:
                held.is_late = True
                if not held.connection.is_write_paused:
                    self._retry(held)
                self._forget(held)
            if self._loop.time() > until_s:
                await asyncio.sleep(0)
                until_s = self._loop.time() + _SLICE_S
        if not self._by_connection:
            for timer in (self._timer, self._next_try, self._wake_up):
                if timer is not None:
                    timer.cancel()
            self._timer = self._next_try = self._wake_up = None

    def _add(self, held: HeldPull) -> None:
        connection = held.connection
        pulls = self._by_connection.get(connection, {})
        address = _address(connection)
        of_address = self._by_address.get(address, 0)
        if (
            len(pulls) >= MAX_PER_CONNECTION
            or self._count >= MAX_HELD
            or of_address >= MAX_PER_ADDRESS
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
        if held.count is not None:
            held.count.pull_held()
        self._by_connection.setdefault(connection, pulls)[held] = None
        self._by_address[address] = of_address + 1
        self._count += 1
        held.is_held = True
        if held.size:
            connection.keep(held.size)

    def try_again(self, held: HeldPull) -> None:
        """Try a pull, once there is room for its answer; one that ended is not tried."""
        if held.is_held:
            self._try(held)

    def _wake(self) -> None:
        """Try the pulls of the queues that got messages; the queues take turns."""
        self._wake_up = None
        until_s = self._loop.time() + _SLICE_S
        while self._woken:
            key = next(iter(self._woken))
            line = self._by_queue.get(key)
            if line is not None and self._try_some(line, until_s):
                self._woken.move_to_end(key)
            else:
                del self._woken[key]
            if self._woken and self._loop.time() > until_s:
                self._wake_up = self._loop.call_soon(self._wake)
                return

    def _try_some(self, line: _Line, until_s: float) -> bool:
        """Try pulls of one queue; tell whether there may be more to try."""
        for _ in range(_TRIED_TOGETHER):
            held = line.take_next()
            if held is None:
                return False
            self._try(held)
            if self._loop.time() > until_s:
                break
        return True

    def _try(self, held: HeldPull) -> None:
        """Try a pull now, or later if there is no room."""
        connection = held.connection
        if connection.has_room() or connection.is_closed:
            self._retry(held)
        else:
            _put(self._postponed, connection, held)
            # Those whose peer does not read are tried when it does.
            if not connection.is_write_paused:
                self._try_postponed_in(_LOOK_FOR_ROOM_S)

    def _retry(self, held: HeldPull) -> None:
        try:
            is_done = held.connection.is_closed or held.retry(held.is_late)
        except Exception as error:
            # As `Dispatcher.process` does: it is told, and the others go on.
            held.failed(error)
            is_done = True
        if is_done:
            self._forget(held)

    def _try_postponed_in(self, delay_s: float) -> None:
        if self._next_try is None:
            self._next_try = self._loop.call_later(delay_s, self._try_all_postponed)

    def _try_all_postponed(self) -> None:
        self._next_try = None
        until_s = self._loop.time() + _SLICE_S
        for connection in list(self._postponed):
            if not connection.is_write_paused:
                self._try_postponed(connection, until_s)
            if self._loop.time() > until_s:
                self._try_postponed_in(0.0)
                return

    def _try_postponed(self, connection: Connection, until_s: float) -> None:
        """Try the postponed pulls of a connection until they must wait again."""
        while pulls := self._postponed.get(connection):
            if not connection.has_room():
                if not connection.is_write_paused:
                    self._try_postponed_in(_LOOK_FOR_ROOM_S)
                return
            if self._loop.time() > until_s:
                self._try_postponed_in(0.0)
                return
            held = next(iter(pulls))
            _remove(self._postponed, connection, held)
            self._retry(held)

    def _forget_closed(self) -> None:
        """Forget the pulls of connections that ended."""
        until_s = self._loop.time() + _SLICE_S
        while self._closed:
            pulls = self._by_connection.get(self._closed[0])
            if pulls:
                self._forget(pulls.popitem()[0])
            else:
                self._closed.popleft()
            if self._closed and self._loop.time() > until_s:
                self._loop.call_soon(self._forget_closed)
                return

    def _forget(self, held: HeldPull) -> None:
        if not held.is_held:
            return
        held.is_held = False
        held.uncount()
        connection = held.connection
        self._count -= 1
        address = _address(connection)
        left = self._by_address[address] - 1
        if left:
            self._by_address[address] = left
        else:
            del self._by_address[address]
        if held.size:
            connection.release(held.size)
        _remove(self._by_connection, connection, held)
        if self._postponed:
            _remove(self._postponed, connection, held)
        key = held.key
        if key is not None:
            self._waiting -= 1
            line = self._by_queue[key]
            line.remove(held)
            if line.is_empty:
                del self._by_queue[key]
        if held.slot:
            _remove(self._by_slot, held.slot, held)

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
        for held in self._take_due(now):
            held.is_late = True
            self._try(held)
            if self._loop.time() > until_s:
                break
        if self._by_slot:
            self._arm(min(self._by_slot))

    def _take_due(self, now: int) -> Iterator[HeldPull]:
        """Yield the pulls whose time is up, out of their slots."""
        for slot in sorted(slot for slot in self._by_slot if slot <= now):
            while pulls := self._by_slot.get(slot):
                held = next(iter(pulls))
                _remove(self._by_slot, slot, held)
                yield held


def _address(connection: Connection) -> bytes:
    return connection.peer_host[:-_PORT_BYTES]


def _put(table: dict[_T, OrderedDict[HeldPull, None]], key: _T, held: HeldPull) -> None:
    """Put a pull last into one of the tables, unless it is there."""
    pulls = table.get(key)
    if pulls is None:
        pulls = table[key] = OrderedDict()
    pulls[held] = None


def _remove(table: dict[_T, _Pulls], key: _T, held: HeldPull) -> None:
    """Take a pull out of one of the tables, and its entry with the last one."""
    if (pulls := table.get(key)) is not None:
        pulls.pop(held, None)
        if not pulls:
            del table[key]
