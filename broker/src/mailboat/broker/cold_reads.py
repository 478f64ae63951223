"""Reads from the disk by who asks: one that asks for very many keeps no others from theirs."""

from collections import Counter, deque
from collections.abc import Callable
from typing import Final, TypeVar

from mailboat.remoting.connection import Connection

MAX_PER_CONNECTION: Final = 64
"""Reads that one connection has under way, of the 1,024 of a broker; its others wait."""

MAX_PER_ADDRESS: Final = 256
"""Reads that all connections of one address have under way together."""

_T = TypeVar("_T")


class ColdReads:
    """Counts the reads that are under way, and begins those that wait as others end."""

    def __init__(
        self,
        max_per_connection: int = MAX_PER_CONNECTION,
        max_per_address: int = MAX_PER_ADDRESS,
    ) -> None:
        """Let each connection, and each address, have so many reads at a time."""
        self._max = max_per_connection
        self._max_per_address = max_per_address
        self._under_way: Counter[Connection] = Counter()
        self._of_address: Counter[str] = Counter()
        # By address and connection; the connections of an address take turns.
        self._waiting: dict[str, dict[Connection, deque[Callable[[], None]]]] = {}

    def begin(self, connection: Connection) -> bool:
        """Count one more read, which `end` takes off again; False if there are enough."""
        address = connection.peer_address
        if (
            self._under_way[connection] >= self._max
            or self._of_address[address] >= self._max_per_address
        ):
            return False
        self._under_way[connection] += 1
        self._of_address[address] += 1
        return True

    def wait(self, connection: Connection, begin: Callable[[], None]) -> None:
        """Call `begin` once the connection may have another read."""
        waiting = self._waiting.setdefault(connection.peer_address, {})
        waiting.setdefault(connection, deque()).append(begin)

    def end(self, connection: Connection) -> None:
        """A read ended; begin what waits. What begins may be answered without a read."""
        address = connection.peer_address
        _take_one(self._under_way, connection)
        _take_one(self._of_address, address)
        waiting = self._waiting.get(address, {})
        while self._of_address[address] < self._max_per_address:
            # Few connections can have as many as they may: `max_per_address` limits those, too.
            next_one = next((one for one in waiting if self._under_way[one] < self._max), None)
            if next_one is None:
                break
            begins = waiting.pop(next_one)
            begin = begins.popleft()
            if begins:
                waiting[next_one] = begins
            begin()
        if not waiting:
            self._waiting.pop(address, None)


def _take_one(counts: Counter[_T], key: _T) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
