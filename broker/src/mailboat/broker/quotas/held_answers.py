"""Answers to sends that went beyond a user's quota: they leave once the quota allows for them.

The message is stored at once, so that messages keep their order; it is its sender that waits, and
sends its next one later.
"""

import asyncio
import math
from collections import Counter, defaultdict, deque

from mailboat.remoting.connection import Connection


class HeldAnswer:
    """Stands in for who sent a message, and holds back what is written to it."""

    __slots__ = ("_connection", "_is_due", "_parts", "peer_host")

    def __init__(self, connection: Connection) -> None:
        """Hold the answers to `connection` until `release`."""
        self.peer_host = connection.peer_host
        self._connection = connection
        self._parts: list[bytes] = []
        self._is_due = False

    @property
    def connection(self) -> Connection:
        """To whom the answer goes."""
        return self._connection

    def write(self, data: bytes) -> None:
        """Send bytes, now or when they are due."""
        if self._is_due:
            self._connection.write(data)
        else:
            self._parts.append(data)

    def release(self) -> list[bytes]:
        """Return what was held back; what comes from now on is sent at once."""
        self._is_due = True
        return self._parts


class HeldAnswers:
    """The answers of one user that wait, the first one first; one timer serves all."""

    def __init__(self) -> None:
        """Hold nothing."""
        self._queue: deque[tuple[float, HeldAnswer]] = deque()
        self._of_connection: Counter[Connection] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def waits(self, connection: Connection) -> bool:
        """Tell whether answers to a connection are held back."""
        return connection in self._of_connection

    def hold(self, connection: Connection, wait_s: float) -> HeldAnswer:
        """Return who takes an answer and holds it back for a while, behind those that wait."""
        loop = asyncio.get_running_loop()
        answer = HeldAnswer(connection)
        self._queue.append((loop.time() + wait_s, answer))
        self._of_connection[connection] += 1
        if self._timer is None:
            self._timer = loop.call_later(wait_s, self._release)
        return answer

    def release_all(self) -> None:
        """Send all answers now: the broker ends."""
        self._release_until(math.inf)

    def _release(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        self._release_until(loop.time())
        if self._queue:
            self._timer = loop.call_at(self._queue[0][0], self._release)

    def _release_until(self, due_s: float) -> None:
        parts: defaultdict[Connection, list[bytes]] = defaultdict(list)
        queue = self._queue
        while queue and queue[0][0] <= due_s:
            answer = queue.popleft()[1]
            connection = answer.connection
            parts[connection] += answer.release()
            self._of_connection[connection] -= 1
            if not self._of_connection[connection]:
                del self._of_connection[connection]
        for connection, data in parts.items():
            connection.write(b"".join(data))
