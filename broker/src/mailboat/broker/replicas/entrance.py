"""Who connects to `haListenPort`: its first byte tells a replica from a slave of RocketMQ."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, cast

from mailboat.remoting.complaints import Complaints
from mailboat.replication import java_ha

FIRST_BYTE_TIMEOUT_S: Final = 20.0
"""A slave of 4.9 reports for the first time 5 to 6 s after it connected."""

_STRANGERS_MAX: Final = 64

Kinds = Mapping[int, Callable[[], asyncio.Protocol]]


class Entrance:
    """Connections that have not said anything yet."""

    def __init__(self, kinds: Kinds, complaints: Complaints) -> None:
        """Hand each one over to the kind of connection that begins with its first byte.

        What begins with another one is ended, with one of the `complaints`.
        """
        self._kinds = kinds
        self._complaints = complaints
        # In the order in which they came.
        self._strangers: dict[_Stranger, None] = {}

    def make(self) -> asyncio.Protocol:
        """Prepare a connection."""
        return _Stranger(self._kinds, self._strangers, self._complaints)

    def close(self) -> None:
        """End those that have not said anything."""
        for stranger in list(self._strangers):
            stranger.close()


class _Stranger(asyncio.Protocol):
    def __init__(
        self, kinds: Kinds, strangers: "dict[_Stranger, None]", complaints: Complaints
    ) -> None:
        self._kinds = kinds
        self._complaints = complaints
        self._strangers = strangers
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def close(self) -> None:
        assert self._transport is not None
        self._transport.abort()
        self._forget()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if len(self._strangers) >= _STRANGERS_MAX:
            # Whoever says nothing for longest: a replica of ours speaks at once.
            next(iter(self._strangers)).close()
        self._strangers[self] = None
        self._deadline = asyncio.get_running_loop().call_later(FIRST_BYTE_TIMEOUT_S, self.close)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        assert transport is not None
        make = self._kinds.get(data[0])
        if make is None:
            peername = transport.get_extra_info("peername")
            peer = "unknown" if peername is None else f"{peername[0]}:{peername[1]}"
            reason = "it is no replica"
            if data[0] == java_ha.FIRST_BYTE:
                reason = "slaves of RocketMQ know no secret: unset haSecretFile for them"
            self._complaints.complain(peer, reason)
            transport.abort()
            return
        self._forget()
        connection = make()
        transport.set_protocol(connection)
        connection.connection_made(transport)
        connection.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()

    def _forget(self) -> None:
        self._strangers.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
