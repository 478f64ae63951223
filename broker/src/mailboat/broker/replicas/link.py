"""One connection between two replicas: frames in, frames out, and whether the other side reads."""

import asyncio
import logging
from typing import Final, Protocol, cast

from mailboat.errors import RemoteProtocolError
from mailboat.replication.frames import Data
from mailboat.replication.wire import Decoder, Message, Open, encode

_log: Final = logging.getLogger(__name__)

# Beyond it nothing more of the log is sent before the other side has read: the rest stays in files.
_HIGH_WATER_BYTES: Final = 4 << 20
# Who connects has so long to say who it is.
_OPEN_TIMEOUT_S: Final = 10.0


# Kept of a frame before that.
_STRANGER_BYTES: Final = 65_536


class LinkHandler(Protocol):
    """Gives frames their meaning."""

    def link_made(self, link: "Link") -> None:
        """Take note of a connection; nothing has arrived on it yet."""

    def link_received(self, link: "Link", message: Message) -> None:
        """Take a frame; `link.peer` is set by the first one."""

    def link_roomy(self, link: "Link") -> None:
        """Send on what waited for the other side to read."""

    def link_lost(self, link: "Link") -> None:
        """Forget a connection."""


class Link(asyncio.Protocol):
    """A connection to another replica, whoever made it.

    `peer` is what it said of itself last, None before it has.
    """

    def __init__(self, handler: LinkHandler, *, is_ours: bool) -> None:
        """Prepare a connection that this side made, or the other one; the event loop opens it."""
        self.is_ours = is_ours
        self.dialed = ""
        """The address by which this side connected."""

        self.heard = asyncio.Event()
        """Set once the other side has said who it is, or the connection has ended."""

        self._handler = handler
        self._decoder = Decoder()
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.peer: Open | None = None
        self.address = "unknown"
        self.has_room = True
        self.heard_s = asyncio.get_running_loop().time()

    def send(self, message: Message) -> None:
        """Send a frame; dropped without a word where the connection is gone."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        head = encode(message)
        if isinstance(message, Data):
            assert isinstance(message.records, bytes)
            transport.writelines([head, message.records])
        else:
            transport.write(head)

    def close(self, reason: str) -> None:
        """End the connection and say why."""
        if self._transport is not None and not self._transport.is_closing():
            _log.warning("link closed peer=%s: %s", self.address, reason)
            self._transport.abort()

    def drop(self) -> None:
        """End the connection without a word."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; called by the event loop."""
        self._transport = cast(asyncio.Transport, transport)
        peername = transport.get_extra_info("peername")
        if peername is not None:
            self.address = f"{peername[0]}:{peername[1]}"
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(_OPEN_TIMEOUT_S, self._check_opened)
        self._handler.link_made(self)

    def data_received(self, data: bytes) -> None:
        """Hand on the frames of a read; called by the event loop."""
        self.heard_s = asyncio.get_running_loop().time()
        try:
            for message in self._decoder.feed(data):
                if isinstance(message, Open):
                    self.peer = message
                    self.heard.set()
                elif self.peer is None:
                    raise RemoteProtocolError("it has not said who it is")
                self._handler.link_received(self, message)
            if self.peer is None and self._decoder.buffered_bytes > _STRANGER_BYTES:
                raise RemoteProtocolError("it has not said who it is")
        except RemoteProtocolError as error:
            self.close(str(error))

    def pause_writing(self) -> None:
        """Note that the other side does not read; called by the event loop."""
        self.has_room = False

    def resume_writing(self) -> None:
        """Go on; called by the event loop."""
        self.has_room = True
        self._handler.link_roomy(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End; called by the event loop."""
        if self._deadline is not None:
            self._deadline.cancel()
        self.heard.set()
        self._handler.link_lost(self)

    def _check_opened(self) -> None:
        if self.peer is None:
            self.close("it has not said who it is")
