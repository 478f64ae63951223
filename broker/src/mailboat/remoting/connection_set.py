"""The open connections of one server or client, and the timer that enforces their limits."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

from mailboat.remoting.complaints import Complaints
from mailboat.remoting.connection import Connection
from mailboat.remoting.kept_bytes import KeptBytes
from mailboat.remoting.limits import RemotingLimits

_SWEEP_SLICE: Final = 500  # connections looked at in one go: below a millisecond
_SLICE_INTERVAL: Final = 0.25  # of the sweep interval


class ConnectionSet:
    """The open connections of one server or client, and the timer that enforces their limits."""

    def __init__(
        self, limits: RemotingLimits, *, name: str, capacity: int | None, expects_frames: bool
    ) -> None:
        """Hold at most `capacity` connections; `expects_frames` asks each for a first frame."""
        self.limits = limits
        self.complaints = Complaints(name)
        self._capacity = capacity
        self._expects_frames = expects_frames
        # A dictionary for a set that keeps its order.
        self._connections: dict[Connection, None] = {}
        self.is_server = expects_frames
        # What a client of ours sends is its program's business.
        budget_bytes = limits.unsent_budget_bytes if expects_frames else sys.maxsize
        self.kept = KeptBytes(budget_bytes, self._connections)
        self.certified_name: Callable[[asyncio.BaseTransport], str] = lambda _: ""
        """Says as which user the other end of a connection is certified."""

        self._timer: asyncio.TimerHandle | None = None
        self._to_sweep: list[Connection] = []
        self._sweep_due_s = 0.0
        self._stalled_s = 0.0
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        """Return how many connections are open."""
        return len(self._connections)

    def __iter__(self) -> Iterator[Connection]:
        """Iterate over a copy: closing a connection changes the set."""
        return iter(list(self._connections))

    def now_s(self) -> float:
        """Return seconds on a clock that stands still while this process does.

        After a stop of the process or the machine, what peers sent meanwhile has not been read yet:
        they are not to blame for the time.
        """
        return time.monotonic() - self._stalled_s

    def add(self, connection: Connection) -> bool:
        """Take a new connection in, or return False when there are too many."""
        if self._capacity is not None and len(self._connections) >= self._capacity:
            self.complaints.complain(connection.peer, f"more than {self._capacity} connections")
            return False
        self._connections[connection] = None
        self._empty.clear()
        if self._timer is None:
            self._arm(self.limits.sweep_interval_s)
        return True

    def discard(self, connection: Connection) -> bool:
        """Forget a connection; return whether it was in the set."""
        if connection not in self._connections:
            return False
        del self._connections[connection]
        if not self._connections:
            self._empty.set()
            self._to_sweep.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        return True

    async def close_all(self, drain_s: float) -> None:
        """Close every connection; what is written may drain for `drain_s`, then it is dropped."""
        for connection in self:
            connection.close()
        try:
            async with asyncio.timeout(drain_s):
                await self._empty.wait()
        except TimeoutError:
            for connection in self:
                connection.abort()
            await self._empty.wait()

    def _arm(self, delay_s: float) -> None:
        self._sweep_due_s = time.monotonic() + delay_s
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._sweep)

    def _sweep(self) -> None:
        """Look at the next slice of connections; a round of up to 500 takes one sweep interval."""
        interval_s = self.limits.sweep_interval_s
        late_s = time.monotonic() - self._sweep_due_s
        if late_s > interval_s:
            self._stalled_s += late_s
        if not self._to_sweep:
            self._to_sweep = list(self._connections)
        connections = self._to_sweep[-_SWEEP_SLICE:]
        del self._to_sweep[-_SWEEP_SLICE:]
        self._arm(interval_s * _SLICE_INTERVAL if self._to_sweep else interval_s)
        now_s = self.now_s()
        for connection in connections:
            connection.sweep(now_s, self.limits, expects_frames=self._expects_frames)
        self.kept.shed()
