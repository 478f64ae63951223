"""Ports of this machine for servers that end and start again, as a test has them."""

import random
import socket

# Above what Linux gives to outgoing connections and to servers that ask for any port (32768-60999).
_FIRST_PORT = 61_002
_PORTS_END = 65_536
# A broker listens there as well, below the port that it is given (vipChannelEnabled).
_SECOND_PORT_BELOW = 2


class KeptPorts:
    """Ports that nobody else is given while they are kept, whether or not somebody listens.

    A free port belongs to nobody before a server's start and between its end and its next start. A
    socket that is bound to it and never listens keeps others out, and does not stop a server that
    sets SO_REUSEADDR, as asyncio's do.
    """

    def __init__(self) -> None:
        """Keep none."""
        self._sockets: list[socket.socket] = []

    def take(self) -> int:
        """Return one more port on 127.0.0.1, kept until `close`; OSError where all are taken."""
        ports = random.sample(range(_FIRST_PORT, _PORTS_END), _PORTS_END - _FIRST_PORT)
        for port in ports[:-1]:
            try:
                return self._keep(port)
            except OSError:
                continue
        return self._keep(ports[-1])

    def _keep(self, port: int) -> int:
        kept: list[socket.socket] = []
        try:
            for one in (port, port - _SECOND_PORT_BELOW):
                kept.append(socket.socket())
                # Without SO_REUSEADDR: a port that somebody else keeps is refused.
                kept[-1].bind(("127.0.0.1", one))
        except OSError:
            for each in kept:
                each.close()
            raise
        for each in kept:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._sockets += kept
        return port

    def close(self) -> None:
        """Give all of them back."""
        while self._sockets:
            self._sockets.pop().close()
