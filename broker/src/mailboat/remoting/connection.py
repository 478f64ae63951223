"""One TCP connection: frames in, frames out, requests in both directions, limits on both.

`Connection` serves both ends. It knows frames, not messages; what they mean is the business of its
`FrameHandler`. There is no task, future or timer per read: its owner, a `ConnectionSet`, looks at
all connections of a server or client once a second and closes the ones that broke a limit.

Source: apache/rocketmq remoting/netty/NettyRemotingAbstract.java, NettyRemotingServer.java
"""

import asyncio
import logging
import math
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from mailboat.errors import (
    ConnectionLostError,
    PeerBusyError,
    RemoteProtocolError,
    RequestTimeoutError,
)
from mailboat.model.hosts import encode_host, format_host
from mailboat.protocol.codes import request_code_name
from mailboat.protocol.command import ONEWAY_FLAG, RemotingCommand
from mailboat.protocol.frame import Frame, FrameDecoder, TlsHelloError
from mailboat.remoting.complaints import Complaints
from mailboat.remoting.kept_bytes import KeptBytes
from mailboat.remoting.limits import RemotingLimits
from mailboat.remoting.unsent import has_unsent
from mailboat.security.client_security import Credentials
from mailboat.security.signing import sign
from mailboat.security.tls import peer_problem

_log: Final = logging.getLogger(__name__)

_OPAQUE_MASK: Final = 0x7FFF_FFFF
# Where a read fills uvloop's buffer, it reads on at once, up to 32 times.
_FULL_READ_BYTES: Final = 256_000
_FEW_PIECES: Final = 4  # What uvloop sends without an allocation of its own.
# Python's own transports get one piece. Their `writelines` of 3.12 and later sends an empty piece
# again and again, and the early ones do not say that the peer does not read.
_OWN_TRANSPORTS: Final = "asyncio."
RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of accepted connections. RocketMQ's Java client notices a reset at once and tries
again elsewhere; after an end in order it waits for the answers that it lacks until their time is
over: 3 s for a send, 30 s for a pull. So a broker that is killed has to leave resets behind."""

_SEND_WITHIN_S: Final = 1.0
_LOOK_AT_UNSENT_S: Final = 0.02
_SEND_BEFORE_CLOSE: Final = struct.pack("ii", 0, 0)
_NO_HOST: Final = bytes(8)  # 0.0.0.0:0
# Requests that are late are looked for this often at most.
_ALARM_PAUSE_S: Final = 0.01


class FrameHandler(Protocol):
    """Gives frames their meaning."""

    def connection_opened(self, connection: "Connection") -> None:
        """Take note of a new connection; nothing has been read from it yet."""

    def read_received(self, connection: "Connection", data: bytes) -> bool:
        """Take a read as it is, which begins with a frame; return False to have it cut.

        What is taken and left comes back by `Connection.read_back`, before anything else is done
        with the connection.
        """

    def reads_ended(self, connection: "Connection") -> None:
        """Answer what was read of a connection that will read no more and is closed then."""

    def frames_received(self, connection: "Connection", frames: list[Frame]) -> None:
        """Handle every frame of one read and write all answers with one `connection.write`."""

    def writing_resumed(self, connection: "Connection") -> None:
        """Answer what waited while the peer did not read; frames put back come afterwards."""

    def connection_closed(self, connection: "Connection") -> None:
        """Forget the connection; called once for each one opened."""


class ConnectionOwner(Protocol):
    """What a connection needs of the set that it is in (`mailboat.remoting.connection_set`)."""

    limits: RemotingLimits
    complaints: Complaints
    kept: KeptBytes
    is_server: bool
    certified_name: Callable[[asyncio.BaseTransport], str]

    def now_s(self) -> float:
        """Return seconds on a clock that stands still while this process does."""
        ...

    def add(self, connection: "Connection") -> bool:
        """Take a new connection in, or return False when there are too many."""
        ...

    def discard(self, connection: "Connection") -> bool:
        """Forget a connection; return whether it was in the set."""
        ...


class Connection(asyncio.Protocol):
    """One connection, seen from either end.

    `context` belongs to the frame handler: whatever it wants to remember about the peer. `peer` is
    "ip:port", `peer_host` the same as records store it, `reads` counts what arrived, `listener` is
    the further port of the server by which it came, empty where that is its own, and `certified_as`
    the user whose certificate the peer has shown, empty where there is none.
    """

    __slots__ = (
        "_active_since_sweep",
        "_alarm",
        "_alarm_s",
        "_awaited_bytes",
        "_credentials",
        "_decoder",
        "_frame_started_s",
        "_frames_at_sweep",
        "_handler",
        "_idle_since_s",
        "_is_aborted",
        "_is_deferred",
        "_is_held_up",
        "_kept",
        "_loop",
        "_next_opaque",
        "_opened_s",
        "_owner",
        "_pending",
        "_pieces_together",
        "_postponed",
        "_postponed_bytes",
        "_transport",
        "_write_paused_s",
        "_written_at_sweep",
        "_written_bytes",
        "certified_as",
        "context",
        "is_closed",
        "is_stale",
        "listener",
        "peer",
        "peer_host",
        "reads",
        "unknown_responses",
    )

    def __init__(
        self,
        handler: FrameHandler,
        owner: ConnectionOwner,
        credentials: Credentials | None = None,
        *,
        listener: str = "",
    ) -> None:
        """Prepare a connection that belongs to `owner`; the event loop opens it.

        Requests are signed with `credentials`. The end that accepts has none: what a server asks
        its clients is not signed, and answers never are.
        """
        self.listener = listener
        self.certified_as = ""
        self._handler = handler
        self._owner = owner
        self._credentials = credentials
        self._kept = owner.kept
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # Each with the time on the loop's clock when it is late.
        self._pending: dict[int, tuple[asyncio.Future[RemotingCommand], float]] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_s = math.inf
        self._next_opaque = 0
        self._postponed: list[Frame] | None = None
        self._postponed_bytes = 0
        self._awaited_bytes = 0
        self._pieces_together = 0
        self._written_bytes = 0
        self._written_at_sweep = 0
        self._is_aborted = False
        self._is_deferred = False
        self.is_stale = False
        self.reads = 0
        self._active_since_sweep = True
        self._opened_s = self._idle_since_s = owner.now_s()
        self._frame_started_s = 0.0
        self._frames_at_sweep = -1
        self._write_paused_s: float | None = None
        self._is_held_up = False
        self.context: object | None = None
        self.is_closed = True
        self.peer = "unknown"
        self.peer_host = _NO_HOST
        self.unknown_responses = 0

    def __repr__(self) -> str:
        """Show the peer, for logs."""
        return f"Connection({self.peer}{', closed' if self.is_closed else ''})"

    @property
    def peer_address(self) -> str:
        """The peer's "ip", which its connections share."""
        return self.peer.rpartition(":")[0]

    @property
    def is_accepted(self) -> bool:
        """Whether the peer connected to us, rather than we to it."""
        return self._owner.is_server

    @property
    def is_write_paused(self) -> bool:
        """Whether the peer leaves more answers unread than the high-water mark allows."""
        return self._write_paused_s is not None

    @property
    def write_high_water_bytes(self) -> int:
        """How many bytes of answers may be collected before they are written."""
        return self._owner.limits.write_high_water_bytes

    def has_room(self) -> bool:
        """Tell whether an answer that can wait should be written now."""
        kept = self._kept
        return self._write_paused_s is None and (kept.at_most <= kept.roomy or kept.has_room(self))

    @property
    def awaited_bytes(self) -> int:
        """What `keep` was told of and `release` was not yet."""
        return self._awaited_bytes

    def keep(self, size: int) -> None:
        """Count the bytes of a request that is awaited; `release` takes them off again."""
        self._awaited_bytes += size
        self._grew(size)

    def release(self, size: int) -> None:
        """Count bytes no more that `keep` was told of."""
        self._awaited_bytes -= size

    def kept_bytes(self) -> int:
        """Return how many bytes are in memory for this peer: unread, unfinished or put back."""
        if self._transport is None or self._is_aborted:
            return 0
        return (
            self._transport.get_write_buffer_size()
            + self._decoder.buffered_bytes
            + self._postponed_bytes
            + self._awaited_bytes
        )

    def has_read_all(self) -> bool:
        """Tell whether the peer got something and has read all of it."""
        return self._written_bytes > 0 and self.unsent_bytes() == 0

    def write(self, data: bytes) -> None:
        """Send bytes; dropped without a word when the connection is gone.

        The caller joins small pieces, since each call may be a packet, and no large ones.
        """
        if (transport := self._admit(len(data))) is not None:
            transport.write(data)

    def write_pieces(self, pieces: Sequence[bytes]) -> None:
        """Send pieces with one call, as `write`; a large one among few is not copied."""
        if (transport := self._admit(sum(map(len, pieces)))) is not None:
            if len(pieces) > self._pieces_together:
                transport.write(b"".join(pieces))
            else:
                transport.writelines(pieces)

    def _admit(self, size: int) -> asyncio.Transport | None:
        """Count bytes that are to be sent; return where to, None if they are not."""
        transport = self._transport
        if self.is_closed or transport is None or transport.is_closing():
            return None
        self._active_since_sweep = True
        self._written_bytes += size
        kept = self._kept
        kept.at_most += size
        return transport if kept.at_most <= kept.look_at or kept.settle(self, size) else None

    async def request(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Send a request and return the peer's response, whatever its code.

        Raises:
            PeerBusyError: a client of ours reads or answers too little; nothing was sent.
            RequestTimeoutError: no response in time.
            ConnectionLostError: the connection is closed, or closed before the response came.
        """
        if self.is_closed or self._loop is None:
            raise ConnectionLostError(f"the connection to {self.peer} is closed")
        if self.is_accepted:
            self._check_attention()
        if self._credentials is not None:
            sign(command, self._credentials)
        opaque = command.opaque = self._take_opaque()
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        data = command.encode()
        late_s = self._loop.time() + timeout_s
        self._pending[opaque] = future, late_s
        if late_s < self._alarm_s:
            self._set_alarm(late_s)
        try:
            self.write(data)
            return await future
        except TimeoutError:
            raise RequestTimeoutError(
                f"{self.peer} did not answer {request_code_name(command.code)} "
                f"within {timeout_s:g} s"
            ) from None
        finally:
            self._pending.pop(opaque, None)

    def send_oneway(self, command: RemotingCommand) -> None:
        """Send a request and say that no answer is wanted; dropped when the connection is gone."""
        if self._credentials is not None:
            sign(command, self._credentials)
        command.flag |= ONEWAY_FLAG
        command.opaque = self._take_opaque()
        self.write(command.encode())

    def response_received(self, command: RemotingCommand) -> None:
        """Hand a response to the request that waits for it; late and unknown ones are counted."""
        waiting = self._pending.pop(command.opaque, None)
        if waiting is None or waiting[0].done():
            self.unknown_responses += 1
        else:
            waiting[0].set_result(command)

    def postpone(self, frames: list[Frame]) -> None:
        """Give frames back that must wait until the peer has read its answers.

        They return through `FrameHandler.frames_received` once writing resumes. Only for a
        connection that `is_write_paused` or `has_postponed` already.
        """
        self._put_back(frames)

    @property
    def has_postponed(self) -> bool:
        """Whether frames wait that were read before; a later one must wait behind them."""
        return self._postponed is not None

    def defer(self, frames: list[Frame]) -> None:
        """Give frames back that are handled in the loop's next round: others are served first."""
        assert self._loop is not None
        self.postpone(frames)
        if not self._is_deferred and self._transport is not None:
            self._is_deferred = True
            self._transport.pause_reading()
            self._loop.call_soon(self._go_on)

    def hold_up(self) -> None:
        """Read and handle nothing more until `let_go`, or until it is closed."""
        self._is_held_up = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def let_go(self) -> None:
        """End `hold_up`."""
        self._is_held_up = False
        if not (self._is_deferred or self.is_write_paused):
            self._handle_postponed()

    def close(self) -> None:
        """Send what was written, then close."""
        if self._transport is not None and not self.is_closed:
            assert self._loop is not None
            self.is_closed = True
            self._close_once_sent(self._loop.time() + _SEND_WITHIN_S)

    def _close_once_sent(self, until_s: float) -> None:
        transport = self._transport
        if transport is None or self._is_aborted or transport.is_closing():
            return
        assert self._loop is not None
        if self.is_accepted and self._loop.time() < until_s and has_unsent(transport):
            # What comes meanwhile is not read, and answered with a reset.
            transport.pause_reading()
            self._loop.call_later(_LOOK_AT_UNSENT_S, self._close_once_sent, until_s)
            return
        if not (self._is_held_up and self._has_unanswered):
            self._end_in_order(transport)
        transport.close()

    @property
    def _has_unanswered(self) -> bool:
        """Whether there are requests that were read and not handled."""
        return self._postponed is not None or self._decoder.buffered_bytes > 0

    def _end_in_order(self, transport: asyncio.Transport) -> None:
        """Have the system send what was written before it closes, as it does not by itself."""
        accepted = transport.get_extra_info("socket")
        if self.is_accepted and accepted is not None:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _SEND_BEFORE_CLOSE)

    def abort(self) -> None:
        """Close now, dropping what was written but not sent."""
        if self._transport is not None:
            self.is_closed = self._is_aborted = True
            self._transport.abort()
            self._forget()

    def unsent_bytes(self) -> int:
        """Return the size of the answers that the operating system has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def drop(self, reason: str) -> None:
        """Close now because of a broken limit, saying so at most once per peer and minute."""
        self._owner.complaints.complain(self.peer, reason)
        self.abort()

    def protocol_error(self, error: RemoteProtocolError) -> None:
        """Close because of malformed input: one log line per peer and minute, no traceback."""
        if isinstance(error, TlsHelloError):
            _log.debug("connection closed peer=%s: %s", self.peer, error)
        else:
            self._owner.complaints.complain(self.peer, f"malformed input: {error}")
        self._handler.reads_ended(self)
        self.close()

    def sweep(self, now_s: float, limits: RemotingLimits, *, expects_frames: bool) -> None:
        """Close the connection if it broke one of the time limits."""
        if self._transport is None:
            return
        if self._active_since_sweep:
            self._active_since_sweep = False
            self._idle_since_s = now_s
        self._look_for_stale()
        paused_s = self._write_paused_s
        if paused_s is not None and now_s - paused_s >= limits.write_drain_timeout_s:
            self.drop("its answers stay unread")
        elif now_s - self._idle_since_s >= limits.idle_timeout_s:
            _log.debug("connection closed peer=%s: idle", self.peer)
            # An idle peer may be gone without a trace, so nothing is waited for.
            self.abort()
        elif paused_s is None and self._is_frame_late(now_s, limits):
            self.drop("an unfinished frame took too long")
        elif (
            expects_frames
            and self._decoder.completed_frames == 0
            and now_s - self._opened_s >= limits.first_frame_timeout_s
        ):
            self.drop("no frame arrived in time")

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; called by the event loop."""
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        if not type(transport).__module__.startswith(_OWN_TRANSPORTS):
            self._pieces_together = _FEW_PIECES
        peername = transport.get_extra_info("peername")
        if peername is None:  # closed by the peer before it was accepted
            self._transport.abort()
            return
        self.peer_host = encode_host(peername[0], peername[1])
        self.peer = format_host(self.peer_host)
        self._transport.set_write_buffer_limits(high=self._owner.limits.write_high_water_bytes)
        if not self._owner.add(self):
            self._transport.abort()
            return
        self.is_closed = False
        self.certified_as = self._owner.certified_name(transport)
        self._handler.connection_opened(self)

    def data_received(self, data: bytes) -> None:
        """Hand on what was read, whole or cut into frames; called by the event loop."""
        if self.is_closed:
            return
        self._active_since_sweep = True
        self.reads += 1
        gathered = self._decoder.gather(data)
        if gathered is None:
            self._grew(len(data))
            return
        is_idle = self._postponed is None and not self._is_deferred
        if len(data) >= _FULL_READ_BYTES:
            self.defer([])  # What follows is read once others had their turn.
        if is_idle and self._handler.read_received(self, gathered):
            return
        self.read_back(gathered)

    def frames_taken(self) -> None:
        """Note that frames arrived, in a read that the handler has taken as it was."""
        self._decoder.completed_frames += 1

    def read_back(self, data: bytes) -> None:
        """Cut what was read into frames and hand them on."""
        decoder = self._decoder
        try:
            frames = decoder.cut(data)
        except RemoteProtocolError as error:
            self.protocol_error(error)
            return
        if frames:
            if self._postponed is None and not self._is_deferred:
                self._handler.frames_received(self, frames)
            else:
                self._put_back(frames)
            if decoder.failure is not None and not self.is_closed:
                self.protocol_error(decoder.failure)
            if not decoder.buffered_bytes:
                return
        self._grew(len(data))

    def eof_received(self) -> bool:
        """Close once the answers are sent; called by the event loop when the peer stops sending."""
        self._handler.reads_ended(self)
        self.close()
        return False

    def pause_writing(self) -> None:
        """Stop reading from a peer that does not read; called by the event loop."""
        self._write_paused_s = self._owner.now_s()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on with the frames that waited, then with reading; called by the event loop."""
        self._write_paused_s = None
        if not self.is_closed:
            self._handler.writing_resumed(self)
        if not self._is_deferred:
            self._handle_postponed()

    def _go_on(self) -> None:
        """Go on with the frames that were deferred."""
        self._is_deferred = False
        if self._write_paused_s is None:
            self._handle_postponed()

    @property
    def _waits(self) -> bool:
        return self._is_deferred or self.is_write_paused or self._is_held_up

    def _handle_postponed(self) -> None:
        while self._postponed and not (self.is_closed or self._waits):
            frames, self._postponed = self._postponed, None
            self._postponed_bytes = 0
            self._handler.frames_received(self, frames)
        transport = self._transport
        if self._waits:
            return
        if transport is not None and not transport.is_closing():
            self._active_since_sweep = True
            transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """End; called once by the event loop."""
        was_opened = self._owner.discard(self)
        self.is_closed = True
        self._transport = None
        self._forget()
        if self._alarm is not None:
            self._alarm.cancel()
        pending, self._pending = self._pending, {}
        reason = f"{self.peer} closed the connection before it answered"
        if isinstance(exc, ssl.SSLError):
            # With TLS 1.3 a client learns only now that its certificate is refused.
            reason += f": {peer_problem(exc)}"
        for future, _ in pending.values():
            if not future.done():
                future.set_exception(ConnectionLostError(reason))
        if was_opened:
            self._handler.connection_closed(self)

    def _set_alarm(self, at_s: float) -> None:
        """Look for late requests then: one timer for all of them, as most are answered."""
        assert self._loop is not None
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_s = at_s
        self._alarm = self._loop.call_at(at_s, self._fail_late)

    def _fail_late(self) -> None:
        assert self._loop is not None
        self._alarm, self._alarm_s = None, math.inf
        now_s = self._loop.time()
        for future, late_s in self._pending.values():
            if late_s <= now_s and not future.done():
                future.set_exception(TimeoutError())
        due_s = [late_s for _, late_s in self._pending.values() if late_s > now_s]
        if due_s:
            self._set_alarm(max(min(due_s), now_s + _ALARM_PAUSE_S))

    def _put_back(self, frames: list[Frame]) -> None:
        if not frames:
            return  # Nothing waits, so nothing that comes has to wait behind it.
        if self._postponed is None:
            self._postponed = frames
        else:
            self._postponed += frames
        size = sum(len(header) + len(body) for _, header, body in frames)
        self._postponed_bytes += size
        self._grew(size)

    def _grew(self, size: int) -> None:
        """Keep the bytes of all connections within their budget; may close this one."""
        kept = self._kept
        kept.at_most += size
        if kept.at_most > kept.look_at:
            kept.settle(self, 0)

    def _forget(self) -> None:
        """Free what is kept; others may hold on to a connection that ended."""
        self._postponed = None
        self._postponed_bytes = 0
        self._decoder.clear()

    def _check_attention(self) -> None:
        if self._write_paused_s is not None:
            raise PeerBusyError(f"{self.peer} does not read what it is sent")
        if len(self._pending) >= self._owner.limits.max_unanswered:
            raise PeerBusyError(f"{self.peer} has {len(self._pending)} requests to answer first")

    def _look_for_stale(self) -> None:
        """See whether bytes are kept that were there at the last sweep already."""
        decoder = self._decoder
        self.is_stale = self._written_bytes - self.unsent_bytes() < self._written_at_sweep or (
            decoder.buffered_bytes > 0 and decoder.completed_frames == self._frames_at_sweep
        )
        self._written_at_sweep = self._written_bytes

    def _take_opaque(self) -> int:
        self._next_opaque = opaque = (self._next_opaque + 1) & _OPAQUE_MASK
        return opaque

    def _is_frame_late(self, now_s: float, limits: RemotingLimits) -> bool:
        """Whether the frame that is unfinished now was already unfinished a frame timeout ago."""
        decoder = self._decoder
        if not decoder.buffered_bytes:
            self._frames_at_sweep = -1
            return False
        if self._frames_at_sweep != decoder.completed_frames:
            self._frames_at_sweep = decoder.completed_frames
            self._frame_started_s = now_s
        return now_s - self._frame_started_s >= limits.frame_timeout_s
