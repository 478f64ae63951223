"""One connection between two replicas: frames in, frames out, and whether the other side reads."""

import asyncio
import hmac
import logging
import secrets
from typing import Final, Protocol, cast

from mailboat.errors import RemoteProtocolError
from mailboat.replication.frames import Data
from mailboat.replication.wire import Decoder, Message, Open, Proof, Told, encode, proof

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

    def link_received(self, link: "Link", message: Told) -> None:
        """Take a frame; `link.peer` is set by the first one."""

    def link_roomy(self, link: "Link") -> None:
        """Send on what waited for the other side to read."""

    def link_lost(self, link: "Link") -> None:
        """Forget a connection."""


class Flow:
    """How much of the log goes over a link."""

    def __init__(self, now_s: float) -> None:
        """Begin with nothing."""
        self.size_bytes = 0
        self.bytes_per_second = 0
        """Between the last two samples."""

        self._sampled_s = now_s
        self._sampled_bytes = 0

    def sample(self, now_s: float) -> None:
        """Work out the rate since the sample before."""
        moved = self.size_bytes - self._sampled_bytes
        self.bytes_per_second = round(moved / max(now_s - self._sampled_s, 0.001))
        self._sampled_s, self._sampled_bytes = now_s, self.size_bytes


class Link(asyncio.Protocol):
    """A connection to another replica, whoever made it.

    `peer` is what it said of itself last, None before it has.
    """

    def __init__(self, handler: LinkHandler, secret: bytes, *, dialed: str = "") -> None:
        """Prepare a connection to an address, or one that the other side made.

        With a `secret` the other side must know it too.
        """
        self._secret = secret
        self._unproven: Open | None = None
        self.nonce = secrets.token_hex(16) if secret else ""
        self.dialed = dialed
        """The address to which this side connected; empty where the other one did."""

        self.ending = ""
        """Why this side has ended the connection."""

        self.heard = asyncio.Event()
        """Set once the other side speaks as replicas do, or the connection has ended."""

        self._handler = handler
        self._decoder = Decoder()
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.peer: Open | None = None
        self.address = "unknown"
        self.has_room = True
        self._loop = asyncio.get_running_loop()
        self.heard_s = self._said_s = self._loop.time()
        self.flow = Flow(self.heard_s)

    @property
    def unsaid_s(self) -> float:
        """How long nothing was sent."""
        return self._loop.time() - self._said_s

    def send(self, message: Message) -> None:
        """Send a frame; dropped without a word where the connection is gone."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._said_s = self._loop.time()
        head = encode(message)
        if isinstance(message, Data):
            assert isinstance(message.records, bytes)
            self.flow.size_bytes += len(message.records)
            transport.writelines([head, message.records])
        else:
            transport.write(head)

    def close(self, reason: str) -> None:
        """End the connection and say why."""
        if self._transport is not None and not self._transport.is_closing():
            _log.warning("link closed peer=%s: %s", self.address, reason)
            self.drop(reason)

    def drop(self, reason: str) -> None:
        """End the connection; the reason is for whoever asks."""
        self.ending = reason
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
        self._deadline = self._loop.call_later(_OPEN_TIMEOUT_S, self._check_opened)
        self._handler.link_made(self)

    def data_received(self, data: bytes) -> None:
        """Hand on the frames of a read; called by the event loop."""
        self.heard_s = self._loop.time()
        try:
            for message in self._decoder.feed(data):
                self._take(message)
            if self.peer is None and self._decoder.buffered_bytes > _STRANGER_BYTES:
                raise RemoteProtocolError("it has not said who it is")
        except RemoteProtocolError as error:
            self.close(str(error))

    def _take(self, message: Message) -> None:
        self.heard.set()
        if self.peer is None:
            opened = self._prove(message) if self._secret else message
            if opened is None:
                return
            if not isinstance(opened, Open):
                raise RemoteProtocolError("it has not said who it is")
            if not self._secret and opened.nonce:
                raise RemoteProtocolError("it asks for a secret: set haSecretFile here")
            message = opened
        if isinstance(message, Proof):
            return  # It is believed already.
        if isinstance(message, Open):
            self.peer = message
        elif isinstance(message, Data):
            self.flow.size_bytes += message.end - message.physical_offset
        self._handler.link_received(self, message)

    def _prove(self, message: Message) -> Open | None:
        """Show that this side knows the secret; return who the other one is once it has shown it.

        Raises:
            RemoteProtocolError: it does not know the secret.
        """
        if isinstance(message, Open):
            if not message.nonce:
                raise RemoteProtocolError("it knows no secret: set haSecretFile there")
            if self._unproven is None:
                self.send(self._proof(is_own=True, other_nonce=message.nonce))
            self._unproven = message
            return None
        before, self._unproven = self._unproven, None
        if before is None or not isinstance(message, Proof):
            raise RemoteProtocolError("it has not shown that it knows the secret")
        expected = self._proof(is_own=False, other_nonce=before.nonce)
        if not hmac.compare_digest(message.mac, expected.mac):
            raise RemoteProtocolError("it knows another secret")
        return before

    def _proof(self, *, is_own: bool, other_nonce: str) -> Proof:
        nonces = (self.nonce, other_nonce) if is_own else (other_nonce, self.nonce)
        return proof(
            self._secret,
            has_connected=bool(self.dialed) is is_own,
            own_nonce=nonces[0],
            other_nonce=nonces[1],
        )

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
