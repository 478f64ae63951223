"""The connections of an HTTP port: how many there are, and how long a peer may keep one waiting.

Every process that serves HTTP uses it: broker, name server, operator, Spark job.

aiohttp has no limit for either. Here each connection has one protocol in front of aiohttp's, which
sees every byte and, through a middleware, when a request begins and ends. What is too slow is
closed; when there are too many connections, the newest takes the place of the one whose peer keeps
us waiting longest, so that a probe is answered whatever others do. Whoever waits for us is left
alone.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from aiohttp import web

HEADERS_S: Final = 10.0
"""From the first byte of a request, or the accept, to the end of its headers."""

BODY_S: Final = 30.0
"""From there to the end of its body."""

ANSWER_S: Final = 30.0
"""How long an answer may stay unread."""

_BACKLOG: Final = 128
_SWEEP_S: Final = 0.5
_STEPS: Final = 64
_COMPLAINT_INTERVAL_S: Final = 60.0

_log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpConnections:
    """The connections of one HTTP server; `middleware` belongs in front of its application's."""

    def __init__(self, most: int, most_bytes: int) -> None:
        """Hold at most so many connections, and so many bytes of bodies and answers for them."""
        self._most = most
        self._most_bytes = most_bytes
        self._step_bytes = most_bytes // _STEPS
        self._grown_bytes = 0
        self._open: dict[asyncio.BaseProtocol, _Guard] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._complained_s = -_COMPLAINT_INTERVAL_S
        self._suppressed = 0

    async def listen(self, runner: web.AppRunner, **where: Any) -> asyncio.Server:
        """Serve a runner's application; `where` is a `sock`, or `host` and `port`.

        Whoever stops closes what is returned, then cleans the runner up.

        Raises:
            OSError: the port is taken or not allowed.
        """
        await runner.setup()
        server = runner.server
        assert server is not None
        return await asyncio.get_running_loop().create_server(
            lambda: self.protocol(server()), backlog=_BACKLOG, **where
        )

    def __len__(self) -> int:
        """Return how many connections are open."""
        return len(self._open)

    def protocol(self, handler: asyncio.Protocol) -> asyncio.Protocol:
        """Return what stands in front of aiohttp's protocol of a new connection."""
        return _Guard(self, handler)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Take note of a request whose headers are complete, and of its end."""
        guard = self._open.get(request.protocol)
        if guard is None:  # closed meanwhile
            return await handler(request)
        guard.request_begins(request)
        self.grew(self._step_bytes)
        try:
            return await handler(request)
        finally:
            guard.request_ends()

    def admit(self, guard: "_Guard") -> bool:
        """Take a new connection in, in the place of another if need be; tell if there is one."""
        if len(self._open) >= self._most:
            slowest = max(self._open.values(), key=lambda other: other.waited_s())
            if not slowest.waited_s():
                self.complain(f"more than {self._most} requests are being answered")
                return False
            slowest.drop(f"more than {self._most} connections, it is the slowest of them")
        self._open[guard.handler] = guard
        if self._timer is None:
            self._arm()
        return True

    def discard(self, guard: "_Guard") -> None:
        """Forget a connection that ended."""
        self._open.pop(guard.handler, None)
        if not self._open and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def is_open(self, guard: "_Guard") -> bool:
        """Tell whether a connection was not dropped meanwhile."""
        return guard.handler in self._open

    def complain(self, reason: str) -> None:
        """Log why a connection is closed, at most one line in a minute."""
        now_s = time.monotonic()
        if now_s - self._complained_s < _COMPLAINT_INTERVAL_S:
            self._suppressed += 1
            return
        _log.warning("http connection closed suppressed=%d: %s", self._suppressed, reason)
        self._complained_s, self._suppressed = now_s, 0

    def grew(self, size: int) -> None:
        """Keep the bytes of bodies and answers within their limit; looked at in steps."""
        self._grown_bytes += size
        if self._grown_bytes < self._step_bytes:
            return
        self._grown_bytes = 0
        while sum(guard.kept_bytes() for guard in self._open.values()) > self._most_bytes:
            largest = max(self._open.values(), key=lambda guard: guard.kept_bytes())
            largest.drop(f"more than {self._most_bytes} bytes of requests and answers are kept")

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._arm()
        for guard in list(self._open.values()):
            guard.sweep()


class _Guard(asyncio.Protocol):
    """One connection: hands everything on to aiohttp's protocol and looks at the clock."""

    def __init__(self, owner: HttpConnections, handler: asyncio.Protocol) -> None:
        self.handler = handler
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._request: web.Request | None = None
        self._arrived_bytes = 0
        # Since when the peer keeps us waiting, by what it owes; an idle connection owes nothing.
        self._since_s = time.monotonic()
        self._owes_headers = True

    def waited_s(self) -> float:
        """Return how long the peer has kept us waiting; an idle one counts, we do not."""
        if self._request is not None and self._request.content.is_eof():
            return 0.0
        return time.monotonic() - self._since_s

    def kept_bytes(self) -> int:
        """Return how much is in memory for this peer."""
        return self._arrived_bytes + self._unsent_bytes()

    def request_begins(self, request: web.Request) -> None:
        """The headers of a request are complete."""
        self._request = request
        self._since_s = time.monotonic()
        self._owes_headers = False

    def request_ends(self) -> None:
        """The answer is made and is written next."""
        self._request = None
        self._arrived_bytes = 0
        self._since_s = time.monotonic()

    def sweep(self) -> None:
        """Close the connection if its peer is too slow."""
        waited_s = self.waited_s()
        if self._request is not None:
            if waited_s > BODY_S:
                self.drop("the body of a request does not end")
        elif self._unsent_bytes():
            if waited_s > ANSWER_S:
                self.drop("an answer stays unread")
        elif self._owes_headers and waited_s > HEADERS_S:
            self.drop("the headers of a request do not end")

    def drop(self, reason: str) -> None:
        """Close now."""
        self._owner.complain(reason)
        self._owner.discard(self)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, if there is a place."""
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        if self._owner.admit(self):
            self.handler.connection_made(transport)
        else:
            self._transport.abort()
            self._transport = None

    def data_received(self, data: bytes) -> None:
        """Hand bytes on."""
        if self._transport is None:
            return
        self._arrived_bytes += len(data)
        self._owner.grew(len(data))
        if self._request is None and not self._owes_headers and not self._unsent_bytes():
            self._owes_headers = True
            self._since_s = time.monotonic()
        if self._owner.is_open(self):
            self.handler.data_received(data)

    def eof_received(self) -> bool | None:
        """Hand the end of the peer's bytes on."""
        return None if self._transport is None else self.handler.eof_received()

    def pause_writing(self) -> None:
        """Hand on that the peer does not read."""
        self.handler.pause_writing()

    def resume_writing(self) -> None:
        """Hand on that it reads again."""
        self.handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        if self._transport is None:
            return
        self._owner.discard(self)
        self._transport = None
        self.handler.connection_lost(exc)

    def _unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()
