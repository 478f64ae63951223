"""The listening side: accepts connections and hands their frames to one handler.

Source: apache/rocketmq remoting/netty/NettyRemotingServer.java
"""

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

from mailboat.remoting.connection import Connection, ConnectionSet, FrameHandler
from mailboat.remoting.limits import RemotingLimits, connection_capacity

_log: Final = logging.getLogger(__name__)

_BACKLOG: Final = 1024  # NettyServerConfig.serverSocketBacklog


class RemotingServer:
    """A TCP server for remoting frames; it may listen on several ports."""

    def __init__(
        self, handler: FrameHandler, limits: RemotingLimits | None = None, *, name: str
    ) -> None:
        """Prepare a server called `name` in logs; nothing is opened before `start`."""
        self._handler = handler
        self._limits = limits or RemotingLimits()
        self._name = name
        self._servers: list[asyncio.Server] = []
        self.port = 0
        """The port of the first `start`; the real one when 0 was asked for."""
        self._connections = ConnectionSet(
            self._limits,
            name=name,
            capacity=connection_capacity(self._limits),
            expects_frames=True,
        )

    @property
    def connection_count(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    @property
    def connections(self) -> Iterator[Connection]:
        """The connections that are open now."""
        return iter(self._connections)

    async def start(self, host: str, port: int) -> None:
        """Listen on an address; port 0 takes a free one.

        Raises:
            OSError: the address cannot be listened on.
        """
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Connection(self._handler, self._connections), host, port, backlog=_BACKLOG
        )
        real_port: int = server.sockets[0].getsockname()[1]
        if not self._servers:
            self.port = real_port
        self._servers.append(server)
        _log.info("listening server=%s host=%s port=%d", self._name, host, real_port)

    async def stop_accepting(self) -> None:
        """Close the listening sockets; open connections go on."""
        for server in self._servers:
            server.close()

    async def close(self, drain_s: float = 3.0) -> None:
        """Close everything; what is already written may drain for `drain_s`."""
        await self.stop_accepting()
        await self._connections.close_all(drain_s)
