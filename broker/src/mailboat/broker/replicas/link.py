"""One connection between two replicas: frames in, frames out, and whether the other side reads."""

import asyncio
import hmac
import logging
import secrets
from typing import Final, Protocol, cast

from mailboat.errors import RemoteProtocolError
from mailboat.replication.frames import Data
from mailboat.replication.wire import Bulk, Decoder, Message, Open, Proof, Told, encode, proof

_log: Final = logging.getLogger(__name__)

# Beyond it nothing more of the log is sent before the other side has read: the rest stays in files.
_HIGH_WATER_BYTES: Final = 4 << 20
# Who connects has so long to say who it is.
_OPEN_TIMEOUT_S: Final = 10.0
# Kept of a frame before that.
_STRANGER_BYTES: Final = 65_536
# The largest message and what lies before it; who leaves more unread has stopped to read.
_MOST_UNREAD_BYTES: Final = 24 << 20
# A read may bring thousands of frames; others come after some milliseconds of one peer's.
_ROUND_S: Final = 0.005
_FRAMES_AT_ONCE: Final = 8


class LinkHandler(Protocol):
    """Gives frames their meaning."""

    def link_made(self, link: "Link") -> None:
        """Take note of a connection; nothing has arrived on it yet."""

    def link_received(self, link: "Link", message: Told) -> None:
        """Take a frame; `link.peer` is set by the first one."""

    def link_roomy(self, link: "Link") -> None:
        """Send on what waited for the other side to read."""

    def link_refused(self, link: "Link", reason: str) -> None:
        """Say why this side ends a connection that the other one made."""

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
        self._said: Open | None = None
        self._unproven: Open | None = None
        self.nonce = secrets.token_hex(16) if secret else ""
        self.dialed = dialed
        """The address to which this side connected; empty where the other one did."""

        self.ending = ""
        """Why this side has ended the connection."""

        self.heard = asyncio.Event()
        """Set once the other side speaks as replicas do, or the connection has ended."""

        self.has_spoken = False
        """Whether the other side has sent a frame of replicas."""

        self._handler = handler
        self._decoder = Decoder()
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.peer: Open | None = None
        self.address = "unknown"
        self.has_room = True
        self.is_held = False
        """Whether nothing is read of what the other side sends."""

        self._has_more = self._is_round_due = self._is_paused = self._is_lost = False
        self._loop = asyncio.get_running_loop()
        self.made_s = self.heard_s = self._said_s = self._loop.time()
        self.flow = Flow(self.heard_s)

    @property
    def unsaid_s(self) -> float:
        """How long nothing was sent."""
        return self._loop.time() - self._said_s

    @property
    def host(self) -> str:
        """Where the other side is."""
        return self.address.rpartition(":")[0]

    def send(self, message: Message) -> None:
        """Send a frame; dropped without a word where the connection is gone."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
            self.close("it does not read")
            return
        self._said_s = self._loop.time()
        head = encode(message)
        if isinstance(message, Open):
            self._said = message
        if isinstance(message, Bulk):
            assert isinstance(message.records, bytes)
            self.flow.size_bytes += len(message.records)
            transport.writelines([head, message.records])
        else:
            transport.write(head)

    def hold(self) -> None:
        """Read no more until `go_on`: the other side waits with what it has."""
        self.is_held = True
        self._read_or_wait()

    def go_on(self) -> None:
        """Read again; that nothing was heard meanwhile is not the other side's doing."""
        self.is_held = False
        self.heard_s = self._loop.time()
        self._read_or_wait()

    def close(self, reason: str) -> None:
        """End the connection and say why."""
        if self._transport is not None and not self._transport.is_closing():
            if self.dialed:
                _log.warning("link closed peer=%s: %s", self.address, reason)
            else:
                self._handler.link_refused(self, reason)
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
        """Hand on the frames of a read, a few at a time; called by the event loop."""
        self.heard_s = self._loop.time()
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        ends_s = self._loop.time() + _ROUND_S
        try:
            while True:
                found = self._decoder.feed(data, _FRAMES_AT_ONCE)
                data = b""
                for message in found:
                    if self.ending:
                        return  # Nothing counts of what whoever was sent away says all the same.
                    self._take(message)
                self._has_more = len(found) == _FRAMES_AT_ONCE
                if not self._has_more or self.is_held or self._loop.time() >= ends_s:
                    break
            if self.peer is None and self._decoder.buffered_bytes > _STRANGER_BYTES:
                raise RemoteProtocolError("it has not said who it is")
        except RemoteProtocolError as error:
            self.close(str(error))
        self._read_or_wait()

    def _read_or_wait(self) -> None:
        """Read on, unless there is more to do with what has come, or none is wanted."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._has_more and not self.is_held and not self._is_round_due:
            self._is_round_due = True
            self._loop.call_soon(self._go_on_taking)
        is_paused = self._has_more or self.is_held
        if is_paused and not self._is_paused:
            transport.pause_reading()
        elif self._is_paused and not is_paused:
            transport.resume_reading()
        self._is_paused = is_paused

    def _go_on_taking(self) -> None:
        self._is_round_due = False
        if not (self.is_held or self.ending or self._is_lost):
            self._feed(b"")

    def _take(self, message: Message) -> None:
        self.has_spoken = True
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
            if self.peer is not None and self.peer.me != message.me:
                raise RemoteProtocolError("it says that it is another replica now")
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
                assert self._said is not None
                self.send(self._proof(self._said, message.nonce, is_mine=True))
            self._unproven = message
            return None
        before, self._unproven = self._unproven, None
        if before is None or not isinstance(message, Proof):
            raise RemoteProtocolError("it has not shown that it knows the secret")
        expected = self._proof(before, self.nonce, is_mine=False)
        if not hmac.compare_digest(message.mac, expected.mac):
            raise RemoteProtocolError("it knows another secret")
        return before

    def _proof(self, own: Open, other_nonce: str, *, is_mine: bool) -> Proof:
        has_connected = bool(self.dialed) is is_mine
        return proof(self._secret, has_connected=has_connected, own=own, other_nonce=other_nonce)

    def pause_writing(self) -> None:
        """Note that the other side does not read; called by the event loop."""
        self.has_room = False

    def resume_writing(self) -> None:
        """Go on; called by the event loop."""
        self.has_room = True
        self._handler.link_roomy(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End; called by the event loop."""
        self._is_lost = True
        if self._deadline is not None:
            self._deadline.cancel()
        self.heard.set()
        self._handler.link_lost(self)

    def _check_opened(self) -> None:
        if self.peer is None:
            self.close("it has not said who it is")
