"""The connecting side: one connection per address, made when it is first needed.

Source: apache/rocketmq remoting/netty/NettyRemotingClient.java
"""

import asyncio
import time
from typing import Final

from mailboat.errors import ConnectError, LocalProtocolError, RequestTimeoutError
from mailboat.protocol.command import RemotingCommand
from mailboat.remoting.connection import Connection, FrameHandler
from mailboat.remoting.connection_set import ConnectionSet
from mailboat.remoting.dialing import Dialer
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.remoting.limits import RemotingLimits
from mailboat.security.client_security import OPEN, ClientSecurity
from mailboat.security.tls import peer_problem

_PORT_MAX: Final = 65_535


class RemotingClient:
    """Sends requests to any number of addresses; peers may send requests back."""

    def __init__(
        self,
        handler: FrameHandler | None = None,
        limits: RemotingLimits | None = None,
        *,
        name: str = "client",
        security: ClientSecurity = OPEN,
    ) -> None:
        """Prepare a client.

        Args:
            handler: gets what peers send, by default a bare `Dispatcher`.
            limits: the limits of connections.
            name: what the client is called in logs.
            security: what its requests are signed with, and how it connects.
        """
        self._handler = handler or Dispatcher()
        self._limits = limits or RemotingLimits()
        self._security = security
        self._connections = ConnectionSet(
            self._limits, name=name, capacity=None, expects_frames=False
        )
        self._dialer = Dialer(security.tls)
        self._by_address: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Task[Connection]] = {}
        self._is_closed = False

    async def request(
        self, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        """Send a request to "host:port" and return the response, whatever its code.

        The timeout covers connecting too.

        Raises:
            ConnectError: the address cannot be connected to; nothing was sent.
            ConfigError: a file of TLS cannot be used; nothing was sent.
            RequestTimeoutError, ConnectionLostError: no answer; the outcome is unknown.
        """
        connection = self._by_address.get(address)
        left_s = timeout_s
        if connection is None or connection.is_closed:
            began_s = time.monotonic()
            connection = await self._connect(address, timeout_s)
            left_s = max(0.0, timeout_s - (time.monotonic() - began_s))
        reads_before = connection.reads
        try:
            return await connection.request(command, left_s)
        except RequestTimeoutError:
            # Silence for that long means a peer that is gone or hangs: the next request asks anew.
            if connection.reads == reads_before and timeout_s >= self._limits.connect_timeout_s:
                connection.abort()
            raise

    async def oneway(self, address: str, command: RemotingCommand) -> None:
        """Send a request that nobody answers.

        Raises:
            ConnectError: the address cannot be connected to; nothing was sent.
        """
        connection = self._by_address.get(address)
        if connection is None or connection.is_closed:
            connection = await self._connect(address, self._limits.connect_timeout_s)
        connection.send_oneway(command)

    def close_address(self, address: str) -> None:
        """Close the connection to one address, if there is one; the next request makes another."""
        connection = self._by_address.pop(address, None)
        if connection is not None:
            connection.close()

    async def close(self, drain_s: float = 1.0) -> None:
        """Close every connection; requests still waiting get ConnectionLostError."""
        self._is_closed = True
        for task in list(self._connecting.values()):
            task.cancel()
        await self._connections.close_all(drain_s)

    async def _connect(self, address: str, timeout_s: float) -> Connection:
        """Join the attempt that is under way for an address, or start one."""
        if self._is_closed:
            raise ConnectError(f"{address}: the client is closed")
        task = self._connecting.get(address)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._open(address))
            self._connecting[address] = task
            task.add_done_callback(lambda done: self._connect_done(address, done))
        try:
            async with asyncio.timeout(timeout_s):
                # Shielded: others may wait for the same attempt.
                return await asyncio.shield(task)
        except TimeoutError:
            raise ConnectError(f"{address}: no connection within {timeout_s:g} s") from None
        except asyncio.CancelledError:
            if task.cancelled():
                raise ConnectError(f"{address}: the client is closed") from None
            raise

    def _connect_done(self, address: str, task: asyncio.Task[Connection]) -> None:
        self._connecting.pop(address, None)
        if not task.cancelled() and task.exception() is None:
            self._by_address[address] = task.result()

    async def _open(self, address: str) -> Connection:
        host, port = split_address(address)
        await self._dialer.prepare()
        connection = Connection(self._handler, self._connections, self._security.credentials)
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s):
                await self._dialer.connect(lambda: connection, host, port)
        except TimeoutError:
            timeout_s = self._limits.connect_timeout_s
            raise ConnectError(f"{address}: no connection within {timeout_s:g} s") from None
        except OSError as error:
            raise ConnectError(f"{address}: {peer_problem(error)}") from error
        except ValueError as error:
            # Whoever registers a broker says what its address is.
            raise ConnectError(f"{address!r}: that cannot be the name of a host") from error
        return connection


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of "host:port" or "[ipv6]:port".

    Raises:
        LocalProtocolError: the text is not an address.
    """
    host, colon, port_text = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    is_port = port_text.isascii() and port_text.isdigit() and len(port_text) <= len(str(_PORT_MAX))
    if not colon or not host or not is_port or not 0 < int(port_text) <= _PORT_MAX:
        raise LocalProtocolError(f"{address!r} is not an address of the form HOST:PORT")
    return host, int(port_text)
