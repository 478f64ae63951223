"""The connections of an HTTP port: how many there are, and how long a peer may keep one waiting.

Every process that serves HTTP uses it: broker, name server, operator, Spark job.

aiohttp has no limit for either. Here each connection has one protocol in front of aiohttp's, which
sees every byte and, through a middleware, when a request begins and ends. What is too slow is
closed; when there are too many connections, the newest takes the place of one whose peer keeps us
waiting: of the address that has the most, the one that does so longest. Whoever waits for us is
left alone; but one address may have us at work on three quarters of all places only, and the last
few are for probes, so that these are answered whatever others do.

Nor has it one for the work that a read makes: 256 KiB of chunks of one byte each, or of what is no
HTTP at all, keep the event loop for tenths of a second, and uvloop reads 32 times that on. So large
reads are handed on in slices, and after some milliseconds others have their turn.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

HEADERS_S: Final = 10.0
"""From the first byte of a request, or the accept, to the end of its headers."""

BODY_S: Final = 30.0
"""From there to the end of its body."""

ANSWER_S: Final = 30.0
"""How long an answer may stay unread."""

READ_BUFFER_BYTES: Final = 16_384
"""What aiohttp is to keep of a body: it takes one chunk for each 16 of them in one go."""

PROBES: Final = frozenset({"/livez", "/readyz", "/startupz"})
"""What is answered on the last places too."""

_PROBE_PLACES: Final = 16  # One of so many is for probes.
_ADDRESS_SHARE: Final = 0.75  # Many users may come by one proxy.
_BACKLOG: Final = 128
_SWEEP_S: Final = 0.5
_STEPS: Final = 64
_COMPLAINT_INTERVAL_S: Final = 60.0
# The worst that a slice can hold costs a few milliseconds.
_SLICE_BYTES: Final = 4_096
# What all connections may take of a round of the loop.
_ROUND_S: Final = 0.005

_log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
MakeProtocol = Callable[[], asyncio.Protocol]


def request_logger(name: str) -> logging.Logger:
    """Return the logger of that name, for what happens below the handlers of a server."""
    found = logging.getLogger(name)
    if _hide_malformed not in found.filters:
        found.addFilter(_hide_malformed)
    return found


def _hide_malformed(record: logging.LogRecord) -> bool:
    """Drop the traceback that aiohttp logs when a peer does not speak HTTP; it gets a 400.

    It has what was sent, which may be a secret, and strangers could fill the log with it.
    """
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


class HttpConnections:
    """The connections of one HTTP server; `middleware` belongs in front of its application's."""

    def __init__(self, most: int, most_bytes: int) -> None:
        """Hold at most so many connections, and so many bytes of bodies and answers for them."""
        self._most = most
        self._most_of_any = most - max(1, most // _PROBE_PLACES)
        """On how many places other requests than probes may be answered."""

        self._most_bytes = most_bytes
        self._step_bytes = most_bytes // _STEPS
        self._grown_bytes = 0
        self._open: dict[asyncio.BaseProtocol, _Guard] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._complained_s = -_COMPLAINT_INTERVAL_S
        self._suppressed = 0
        self._to_hand_on: deque[_Guard] = deque()
        self._is_turn_due = False

    async def listen(
        self,
        runner: web.AppRunner,
        through: Callable[[MakeProtocol], MakeProtocol] | None = None,
        **where: Any,
    ) -> asyncio.Server:
        """Serve a runner's application; `where` is a `sock`, or `host` and `port`.

        What connects comes in `through` another protocol, such as that of TLS. Whoever stops closes
        what is returned, then cleans the runner up.

        Raises:
            OSError: the port is taken or not allowed.
        """
        await runner.setup()
        server = runner.server
        assert server is not None

        def make() -> asyncio.Protocol:
            return self.protocol(server())

        return await asyncio.get_running_loop().create_server(
            make if through is None else through(make), backlog=_BACKLOG, **where
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
            if request.path not in PROBES and self._is_too_much(guard):
                return _busy()
            return await handler(request)
        finally:
            guard.request_ends()

    def admit(self, guard: "_Guard") -> bool:
        """Take a new connection in, in the place of another if need be; tell if there is one."""
        if len(self._open) >= self._most:
            slowest = self._slowest(guard)
            if slowest is None:
                self.complain(f"more than {self._most} requests are being answered")
                return False
            slowest.drop(f"more than {self._most} connections, it is the slowest of them")
        self._open[guard.handler] = guard
        if self._timer is None:
            self._arm()
        return True

    def _slowest(self, newest: "_Guard") -> "_Guard | None":
        """Return the connection whose place a new one takes, None where there is none.

        No address loses a place to one that has more, unless it makes no use of it.
        """
        counts = Counter(guard.host for guard in self._open.values())
        waiting = [
            guard
            for guard in self._open.values()
            if guard.waited_s()
            and (
                guard.host == newest.host
                or counts[guard.host] > counts[newest.host]
                or guard.is_idle()
            )
        ]
        return max(waiting, key=lambda guard: (counts[guard.host], guard.waited_s()), default=None)

    def _is_too_much(self, guard: "_Guard") -> bool:
        """Tell whether too many requests are being answered, of all or of one address."""
        share = int(self._most * _ADDRESS_SHARE)
        if len(self._open) <= share:
            return False
        # Whoever has not sent all of a body may do so at any time, and counts for its address.
        own = [each for each in self._open.values() if each.host == guard.host and each.has_request]
        answered = [each for each in self._open.values() if not each.waited_s()]
        return len(answered) > self._most_of_any or len(own) > share

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

    def hand_on_in_turn(self, guard: "_Guard") -> None:
        """Have what a connection has read handed on soon, a slice at a time."""
        self._to_hand_on.append(guard)
        self._be_due()

    def _be_due(self) -> None:
        if self._to_hand_on and not self._is_turn_due:
            self._is_turn_due = True
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._is_turn_due = False
        ends_s = time.monotonic() + _ROUND_S
        try:
            while self._to_hand_on and time.monotonic() < ends_s:
                guard = self._to_hand_on.popleft()
                if guard.hand_on():
                    self._to_hand_on.append(guard)
        finally:
            self._be_due()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._arm()
        for guard in list(self._open.values()):
            guard.sweep()


def _busy() -> web.Response:
    busy = web.json_response({"error": "too many requests are being answered"}, status=503)
    busy.force_close()
    return busy


class _PacedTransport:
    """A transport as aiohttp's protocol has it: whether it is read its guard decides as well."""

    def __init__(self, transport: asyncio.Transport, guard: "_Guard") -> None:
        self._transport = transport
        self._guard = guard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def pause_reading(self) -> None:
        self._guard.handler_reads(False)

    def resume_reading(self) -> None:
        self._guard.handler_reads(True)


class _Guard(asyncio.Protocol):
    """One connection: hands everything on to aiohttp's protocol and looks at the clock."""

    def __init__(self, owner: HttpConnections, handler: asyncio.Protocol) -> None:
        self.handler = handler
        self.host = ""
        """The peer's address."""

        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._request: web.Request | None = None
        self._arrived_bytes = 0
        self._unhanded = memoryview(b"")
        self._handler_reads = True
        self._is_paused = self._is_waiting = False
        # Since when the peer keeps us waiting, by what it owes; an idle connection owes nothing.
        self._since_s = time.monotonic()
        self._owes_headers = True

    def waited_s(self) -> float:
        """Return how long the peer has kept us waiting; an idle one counts, we do not."""
        if self._request is not None and self._request.content.is_eof():
            return 0.0
        return time.monotonic() - self._since_s

    @property
    def has_request(self) -> bool:
        """There is a request, read in full or not, that is not answered."""
        return self._request is not None

    def is_idle(self) -> bool:
        """Tell whether there is no request, and no answer on its way."""
        return self._request is None and not self._owes_headers and not self._unsent_bytes()

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
        self.host = str((transport.get_extra_info("peername") or ("",))[0])
        if self._owner.admit(self):
            paced = cast(asyncio.Transport, _PacedTransport(self._transport, self))
            self.handler.connection_made(paced)
        else:
            self._transport.abort()
            self._transport = None

    def data_received(self, data: bytes) -> None:
        """Hand bytes on."""
        if self._transport is None:
            return
        self._arrived_bytes += len(data)
        self._owner.grew(len(data))
        if self.is_idle():
            self._owes_headers = True
            self._since_s = time.monotonic()
        if not self._owner.is_open(self):
            return
        if len(data) <= _SLICE_BYTES and self._handler_reads and not self._unhanded:
            self.handler.data_received(data)
            return
        self._unhanded = memoryview(bytes(self._unhanded) + data)
        self._hand_on_later()

    def hand_on(self) -> bool:
        """Hand a slice of what was read on; tell whether there is more to hand on."""
        transport = self._transport
        if transport is not None and self._handler_reads and self._owner.is_open(self):
            part, self._unhanded = self._unhanded[:_SLICE_BYTES], self._unhanded[_SLICE_BYTES:]
            try:
                self.handler.data_received(bytes(part))
            except BaseException:
                transport.abort()  # As the loop does where its own call fails.
                raise
        self._is_waiting = bool(self._unhanded) and self._handler_reads
        self._read_or_wait()
        return self._is_waiting

    def handler_reads(self, does_so: bool) -> None:
        """Take note of whether aiohttp's protocol wants to be handed anything."""
        self._handler_reads = does_so
        self._hand_on_later()

    def _hand_on_later(self) -> None:
        if self._unhanded and self._handler_reads and not self._is_waiting:
            self._is_waiting = True
            self._owner.hand_on_in_turn(self)
        self._read_or_wait()

    def _read_or_wait(self) -> None:
        """Read on once everything is handed on."""
        transport = self._transport
        is_paused = bool(self._unhanded) or not self._handler_reads
        if transport is None or transport.is_closing() or is_paused == self._is_paused:
            return
        self._is_paused = is_paused
        if is_paused:
            transport.pause_reading()
        else:
            transport.resume_reading()

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
        self._unhanded = memoryview(b"")
        self.handler.connection_lost(exc)

    def _unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()
