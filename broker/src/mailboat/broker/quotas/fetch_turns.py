"""Pulls that wait until their user's quota allows for an answer; connections take turns."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from mailboat.broker.pull_request_hold import HeldPull
from mailboat.remoting.connection import Connection

_SLICE_S: Final = 0.01
# Timers may be early, and less than this is not worth one.
_SHORTEST_S: Final = 0.001

TryAgain = Callable[[HeldPull], None]
"""Tries a pull again; does nothing with one that ended."""

_Pulls = OrderedDict[HeldPull, TryAgain]


class FetchTurns:
    """The waiting pulls of one user."""

    def __init__(self, wait_s: Callable[[], float]) -> None:
        """Hold nothing; `wait_s` returns how long it is until the next pull may be answered."""
        self._wait_s = wait_s
        self._by_connection: OrderedDict[Connection, _Pulls] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Return how many pulls wait."""
        return sum(map(len, self._by_connection.values()))

    def add(self, held: HeldPull, try_again: TryAgain) -> None:
        """Have a pull tried when it is its turn."""
        self._by_connection.setdefault(held.connection, OrderedDict())[held] = try_again
        if self._timer is None:
            self._arm(self._wait_s())

    def discard(self, held: HeldPull) -> None:
        """Forget a pull that waits no more."""
        pulls = self._by_connection.get(held.connection)
        if pulls is not None:
            pulls.pop(held, None)
            if not pulls:
                del self._by_connection[held.connection]

    def connection_closed(self, connection: Connection) -> None:
        """Forget the pulls of a connection that ended."""
        self._by_connection.pop(connection, None)

    def look(self) -> None:
        """Look now whose turn it is: the quota may be another one."""
        if self._by_connection:
            self._arm(0.0)

    def _arm(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(delay_s, _SHORTEST_S)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _SLICE_S
        while self._by_connection:
            wait_s = self._wait_s()
            if wait_s > 0.0 or loop.time() > until_s:
                self._arm(wait_s)
                return
            connection, pulls = next(iter(self._by_connection.items()))
            held, try_again = pulls.popitem(last=False)
            if pulls:
                self._by_connection.move_to_end(connection)
            else:
                del self._by_connection[connection]
            try_again(held)
