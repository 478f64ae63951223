"""How connections to other servers are made: plain, or by TLS with the newest files."""

import asyncio
from collections.abc import Callable

from mailboat.remoting import tls_transport
from mailboat.security.client_security import ClientTls
from mailboat.security.tls import CHECK_INTERVAL_S, ClientContexts


class Dialer:
    """Connects always in the same way."""

    def __init__(self, tls: ClientTls | None) -> None:
        """Connect plainly without `tls`; its files are read with the first connection."""
        self._tls = tls
        self._contexts: ClientContexts | None = None
        self._look_due_s = 0.0
        self._turn = asyncio.Lock()

    async def prepare(self) -> None:
        """Read the files of TLS where they were not read lately.

        Raises:
            ConfigError: one of them cannot be used.
        """
        if self._tls is None:
            return
        loop = asyncio.get_running_loop()
        async with self._turn:
            if self._contexts is None:
                self._contexts = await asyncio.to_thread(ClientContexts, self._tls)
            elif loop.time() >= self._look_due_s:
                await asyncio.to_thread(self._contexts.look)
            else:
                return
            self._look_due_s = loop.time() + CHECK_INTERVAL_S

    async def connect(self, make: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> None:
        """Connect, after `prepare`; `make` is called once where that succeeds, and may be before.

        Raises:
            OSError: there is no connection; `security.tls.peer_problem` has words for it.
            ValueError: the host cannot be one.
        """
        if "\0" in host:
            raise ValueError("a name holds a NUL")  # The system's own complaint is a TypeError.
        if self._tls is None:
            await asyncio.get_running_loop().create_connection(make, host, port)
            return
        assert self._contexts is not None
        name = self._contexts.server_name or host
        await tls_transport.connect(self._contexts.context, make, host, port, name)
