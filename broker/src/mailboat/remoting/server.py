"""The listening side: accepts connections and hands their frames to one handler.

Source: apache/rocketmq remoting/netty/NettyRemotingServer.java
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, cast

from mailboat.config.listeners import ListenerConfig
from mailboat.remoting.connection import RESET_AT_CLOSE, Connection, FrameHandler
from mailboat.remoting.connection_set import ConnectionSet
from mailboat.remoting.limits import RemotingLimits, connection_capacity
from mailboat.remoting.tls_entrance import TlsEntrance
from mailboat.security.tls import ServerTls

_log: Final = logging.getLogger(__name__)

_BACKLOG: Final = 1024  # NettyServerConfig.serverSocketBacklog
# Far more would be a flood; a client that is refused only tries again sooner.
_MOST_HELD_UP: Final = 4096
# A client's three tries at a send come after what a node of a cluster takes to lead it elsewhere,
# which may be more than a second, and before its 3 s are over.
_HELD_UP_S: Final = 0.6


class RemotingServer:
    """A TCP server for remoting frames; it may listen on several ports."""

    def __init__(
        self,
        handler: FrameHandler,
        limits: RemotingLimits | None = None,
        *,
        name: str,
        tls: ServerTls | None = None,
    ) -> None:
        """Prepare a server called `name` in logs; nothing is opened before `start`.

        It speaks TLS as `tls` says, whose files somebody else looks at.
        """
        self._handler = handler
        self._tls = tls
        self._limits = limits or RemotingLimits()
        self._name = name
        self._servers: list[asyncio.Server] = []
        self._is_holding_up = False
        self._reads_on = asyncio.Event()
        self._reads_on.set()
        self._held_up: set[asyncio.Transport] = set()
        self.port = 0
        """The port of the first `start`; the real one when 0 was asked for."""
        self._capacity = connection_capacity(self._limits)
        self._connections = ConnectionSet(
            self._limits, name=name, capacity=self._capacity, expects_frames=True
        )
        if tls is not None:
            self._connections.certified_name = tls.certified_name
        self._entrances: list[TlsEntrance] = []
        self._entrance: TlsEntrance | None = None
        if tls is not None and tls.mode != "disabled":
            self._entrance = self._enter(lambda: tls.context, self._make, tls.mode)

    @property
    def connection_count(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    @property
    def connections(self) -> Iterator[Connection]:
        """The connections that are open now."""
        return iter(self._connections)

    async def start(self, host: str, port: int) -> int:
        """Listen on an address, and return the port; 0 takes a free one.

        Raises:
            OSError: the address cannot be listened on.
        """
        entrance = self._entrance
        real_port = await self._listen(host, port, self._make, entrance, self._name)
        if not self.port:
            self.port = real_port
        return real_port

    async def start_listener(self, host: str, listener: ListenerConfig) -> int:
        """Listen at a further port, and return it; its connections have the listener's name.

        Raises:
            OSError: the address cannot be listened on.
        """
        make = partial(self._make, listener.name)
        entrance, tls = None, self._tls
        if listener.speaks_tls:
            assert tls is not None
            entrance = self._enter(lambda: tls.listener_context(listener), make, listener.tls)
        name = f"{self._name} listener={listener.name}"
        return await self._listen(host, listener.port, make, entrance, name)

    async def _listen(
        self,
        host: str,
        port: int,
        make: Callable[[], asyncio.Protocol],
        entrance: TlsEntrance | None,
        name: str,
    ) -> int:
        def accept() -> asyncio.Protocol:
            """Prepare a connection that may have to show first what it speaks."""
            return make() if entrance is None or self._is_holding_up else entrance.make()

        loop = asyncio.get_running_loop()
        server = await loop.create_server(accept, host, port, backlog=_BACKLOG)
        for listening in server.sockets:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
        real_port: int = server.sockets[0].getsockname()[1]
        self._servers.append(server)
        _log.info("listening server=%s host=%s port=%d", name, host, real_port)
        return real_port

    def hold_up(self) -> None:
        """Read nothing more, also of connections that are new, until `go_on` or the end.

        Whoever is refused tries again at once and not often. Whoever is new is held up for 0.6 s
        and tries again then, when the address may lead to another broker.
        """
        self._is_holding_up = True
        self._reads_on.clear()
        for connection in self._connections:
            connection.hold_up()

    def go_on(self) -> None:
        """End `hold_up`; who has connected meanwhile has to do so again."""
        self._is_holding_up = False
        self._reads_on.set()
        self._end_held_up()
        for connection in self._connections:
            connection.let_go()

    async def wait_not_holding_up(self) -> None:
        """Return once requests are read, or no more connections are taken."""
        await self._reads_on.wait()

    async def stop_accepting(self) -> None:
        """Close the listening sockets; open connections go on."""
        for server in self._servers:
            server.close()
        for entrance in self._entrances:
            entrance.close()
        self._reads_on.set()
        self._end_held_up()

    async def close_connections(self, drain_s: float = 3.0) -> None:
        """Close all connections; what is already written may drain for `drain_s`."""
        await self._connections.close_all(drain_s)

    async def close(self, drain_s: float = 3.0) -> None:
        """Close everything; what is already written may drain for `drain_s`."""
        await self.stop_accepting()
        await self.close_connections(drain_s)

    def _end_held_up(self) -> None:
        for transport in list(self._held_up):
            transport.abort()

    def _enter(
        self,
        context: Callable[[], ssl.SSLContext],
        make: Callable[[], asyncio.Protocol],
        mode: str,
    ) -> TlsEntrance:
        """Prepare where connections of a port come in that are to speak TLS."""
        entrance = TlsEntrance(
            context,
            make,
            self._connections.complaints.complain,
            takes_plain=mode == "permissive",
            timeout_s=self._limits.tls_handshake_timeout_s,
        )
        entrance.room = partial(self._room_beside, entrance)
        self._entrances.append(entrance)
        return entrance

    def _room_beside(self, entrance: TlsEntrance) -> int:
        """Return how many connections an entrance may hold: all ports share one limit."""
        others = sum(len(other) for other in self._entrances if other is not entrance)
        return self._capacity - len(self._connections) - others

    def _make(self, listener: str = "") -> asyncio.Protocol:
        if self._is_holding_up:
            return _HeldUp(self._held_up)
        return Connection(self._handler, self._connections, listener=listener)


class _HeldUp(asyncio.Protocol):
    """A connection of which nothing is read, and that is ended soon."""

    def __init__(self, others: set[asyncio.Transport]) -> None:
        self._others = others
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        if len(self._others) >= _MOST_HELD_UP:
            self._transport.abort()
            return
        self._others.add(self._transport)
        self._transport.pause_reading()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_HELD_UP_S, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._others.discard(self._transport)
