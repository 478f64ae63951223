"""Where connections come in that are to speak TLS: nothing of one is taken before it has.

A connection is half open from its accept until its handshake has succeeded. So long it counts
against the server's limit of connections, has a deadline, and costs no more than a socket before
its first byte. Where plain connections are taken as well, that byte tells them apart, as in
RocketMQ: no frame begins with that of a TLS handshake.
"""

import asyncio
import ssl
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, cast

from mailboat.model.hosts import encode_host, format_host
from mailboat.remoting.tls_transport import TlsTransport
from mailboat.security.tls import peer_problem

_HANDSHAKE: Final = 0x16
# Of one address, as behind it may be a whole cluster that comes back after a restart.
_HALF_OPEN_OF_ONE: Final = 256
_HALF_OPEN_MAX: Final = 1024
# A handshake costs up to some milliseconds; after so long others have their turn.
_ROUND_S: Final = 0.005

Complain = Callable[[str, str], None]
"""Says of a peer, "ip:port", why its connection is closed."""


class TlsEntrance:
    """The connections of one server that are half open."""

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        make: Callable[[], asyncio.BaseProtocol],
        complain: Complain,
        *,
        takes_plain: bool,
        timeout_s: float,
    ) -> None:
        """Hand connections on to what `make` returns, within `timeout_s` from their accept.

        Each handshake asks for the `context` anew.
        """
        self.context = context
        self.make_app = make
        self.complain = complain
        self.takes_plain = takes_plain
        self.timeout_s = timeout_s
        self.room: Callable[[], int] = lambda: sys.maxsize
        """Says how many connections there may be beside those that are open."""

        # In the order in which they came.
        self._half_open: dict[_Newcomer, None] = {}
        self._counts: Counter[str] = Counter()
        self._waiting: deque[_Newcomer] = deque()
        self._is_turn_due = self._is_closed = False

    def __len__(self) -> int:
        """Return how many connections are half open."""
        return len(self._half_open)

    def make(self) -> asyncio.Protocol:
        """Prepare a connection."""
        return _Newcomer(self)

    def close(self) -> None:
        """End those that are half open, and take no others."""
        self._is_closed = True
        for newcomer in list(self._half_open):
            newcomer.drop()

    def admit(self, newcomer: "_Newcomer") -> bool:
        """Take a connection in, or return False where there are too many.

        The oldest one of its address makes room, or of the address that has most: so neither keep
        others out, be it from behind the same address. Whoever waits for us is left alone, or a
        cluster that comes back would never be through.
        """
        if self._is_closed:
            return False  # It was accepted while the listening socket was closed.
        if self._counts[newcomer.address] >= _HALF_OPEN_OF_ONE:
            reason = f"more than {_HALF_OPEN_OF_ONE} connections have not finished their handshake"
            oldest = self._oldest_of(newcomer.address)
            if oldest.waits_for_us:
                self.complain(newcomer.peer, reason)
                return False
            oldest.refuse(reason)
        if len(self._half_open) >= min(_HALF_OPEN_MAX, self.room()):
            if not self._half_open:
                self.complain(newcomer.peer, "there are too many connections")
                return False
            oldest = self._oldest_of(max(self._counts, key=self._counts.__getitem__))
            oldest.refuse("it has not finished its handshake, and others come")
        self._half_open[newcomer] = None
        self._counts[newcomer.address] += 1
        return True

    def forget(self, newcomer: "_Newcomer") -> None:
        """Count a connection no more that is open, or gone."""
        if newcomer not in self._half_open:
            return
        del self._half_open[newcomer]
        self._counts[newcomer.address] -= 1
        if not self._counts[newcomer.address]:
            del self._counts[newcomer.address]

    def _oldest_of(self, address: str) -> "_Newcomer":
        """Return the oldest connection of an address for which it is the peer's turn, if any."""
        of_address = [each for each in self._half_open if each.address == address]
        return next((each for each in of_address if not each.waits_for_us), of_address[0])

    def shake_in_turn(self, newcomer: "_Newcomer") -> None:
        """Go on with a handshake soon: many at once keep nobody else waiting."""
        self._waiting.append(newcomer)
        if not self._is_turn_due:
            self._is_turn_due = True
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        ends_s = time.monotonic() + _ROUND_S
        try:
            while self._waiting and time.monotonic() < ends_s:
                self._waiting.popleft().shake()
        finally:
            self._is_turn_due = bool(self._waiting)
            if self._is_turn_due:
                asyncio.get_running_loop().call_soon(self._take_turn)


class _Newcomer(asyncio.Protocol):
    """A connection that is half open."""

    def __init__(self, entrance: TlsEntrance) -> None:
        self._entrance = entrance
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._has_spoken = False
        self._tls: TlsTransport | None = None
        self.waits_for_us = False
        """Whether there is something to do for `shake`."""

        self.address = ""
        self.peer = "unknown"

    def drop(self) -> None:
        """End it, and say nothing."""
        self._forget()
        if self._transport is not None:
            self._transport.abort()

    def refuse(self, reason: str) -> None:
        """End it and say why."""
        self._entrance.complain(self.peer, reason)
        self.drop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        peername = transport.get_extra_info("peername")
        if peername is None:  # closed by the peer before it was accepted
            self._transport.abort()
            return
        self.address = peername[0]
        self.peer = format_host(encode_host(peername[0], peername[1]))
        entrance = self._entrance
        if not entrance.admit(self):
            self._transport.abort()
            return
        self._deadline = asyncio.get_running_loop().call_later(entrance.timeout_s, self._late)

    def data_received(self, data: bytes) -> None:
        """Take the first bytes: they tell what is spoken."""
        transport, entrance = self._transport, self._entrance
        if transport is None or transport.is_closing():
            return
        self._has_spoken = True
        if data[0] == _HANDSHAKE:
            tls = TlsTransport(
                entrance.context(),
                entrance.make_app,
                self._shaken,
                on_hello=self._has_come,
            )
            transport.set_protocol(tls)
            tls.connection_made(transport)
            tls.data_received(data)
        elif entrance.takes_plain:
            self._forget()
            app = cast(asyncio.Protocol, entrance.make_app())
            transport.set_protocol(app)
            app.connection_made(transport)
            app.data_received(data)
        else:
            self.refuse("it speaks no TLS, and nothing else is spoken here")

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()

    def shake(self) -> None:
        """Go on with the handshake."""
        self.waits_for_us = False
        if self._tls is not None:
            self._tls.shake()

    def _has_come(self, tls: TlsTransport) -> None:
        self._tls = tls
        self.waits_for_us = True
        self._entrance.shake_in_turn(self)

    def _shaken(self, error: OSError | None) -> None:
        is_known = self._deadline is not None
        self._forget()
        if error is not None and is_known:
            self._entrance.complain(self.peer, peer_problem(error))

    def _late(self) -> None:
        if self._has_spoken:
            self.refuse(f"its TLS handshake took longer than {self._entrance.timeout_s:g} s")
        else:
            self.refuse("it says nothing")

    def _forget(self) -> None:
        self._entrance.forget(self)
        self._tls = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
