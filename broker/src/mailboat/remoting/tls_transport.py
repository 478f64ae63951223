"""TLS over a plain transport of the event loop, as a transport for the protocol above.

Unlike the TLS of asyncio and uvloop it has no buffer of its own: a connection at rest costs what
OpenSSL keeps and not 256 KiB more, and all that a peer has not read lies in the plain transport,
where it is counted. Who listens looks at the first byte before there is any TLS, on any event loop.
"""

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias, cast

# The largest record of TLS has so many bytes of content (RFC 8446, 5.1).
_RECORD_BYTES: Final = 16_384
# Pieces up to that are joined: each piece becomes a record of its own.
_JOINED_BYTES: Final = 65_536
# Where a read fills uvloop's buffer, it reads on at once, up to 32 times.
_FULL_READ_BYTES: Final = 256_000
_SEND_BEFORE_CLOSE: Final = struct.pack("ii", 0, 0)

_ENDED: Final = "it ended the connection during the TLS handshake"
_MAY_BE_PLAIN: Final = f"{_ENDED}: perhaps it speaks no TLS"

Data: TypeAlias = bytes | bytearray | memoryview
"""What is written."""


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """Both at once: the protocol of a plain transport, and the transport of what is made above.

    `make` is called when the handshake has succeeded, then `on_shaken` with None; with an error
    where it has failed. `on_hello` is told when there is something to do for `shake`; without it
    that is done at once.
    """

    __slots__ = (
        "_app",
        "_error",
        "_incoming",
        "_is_breathing",
        "_is_closing",
        "_is_open",
        "_is_paused",
        "_is_server",
        "_make",
        "_object",
        "_on_hello",
        "_on_shaken",
        "_outgoing",
        "_raw",
    )

    def __init__(
        self,
        context: ssl.SSLContext,
        make: Callable[[], asyncio.BaseProtocol],
        on_shaken: Callable[[OSError | None], None],
        *,
        server_name: str | None = None,
        on_hello: "Callable[[TlsTransport], None] | None" = None,
    ) -> None:
        """Prepare the side that connects to `server_name`, or without one the side that listens.

        Raises:
            ValueError: the name cannot be one of a server.
        """
        super().__init__()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._is_server = server_name is None
        self._object = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=self._is_server,
            server_hostname=server_name,
        )
        self._make = make
        self._on_shaken: Callable[[OSError | None], None] | None = on_shaken
        self._on_hello = on_hello
        self._raw: asyncio.Transport | None = None
        self._app: asyncio.Protocol | None = None
        self._error: OSError | None = None
        self._is_open = self._is_closing = self._is_paused = self._is_breathing = False

    # asyncio.Protocol, towards the plain transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; who listens waits for the other side."""
        # uvloop's transports are no subclasses of asyncio's.
        self._raw = cast(asyncio.Transport, transport)
        if not self._is_server:
            self.shake()

    def data_received(self, data: bytes) -> None:
        """Take what the peer has sent."""
        if self._is_closing or self._raw is None:
            return
        self._incoming.write(data)
        if self._is_open:
            if len(data) >= _FULL_READ_BYTES:
                self._breathe()
            self._read()
        elif self._on_hello is None:
            self.shake()
        else:
            self._raw.pause_reading()
            self._on_hello(self)

    def eof_received(self) -> bool:
        """Take note that the peer sends nothing more."""
        if not self._is_open:
            self._fail(self._ended())
        elif not self._is_closing:
            self._end()
        return False

    def pause_writing(self) -> None:
        """Hand on that the peer does not read."""
        if self._app is not None:
            self._app.pause_writing()

    def resume_writing(self) -> None:
        """Hand on that it reads again."""
        if self._app is not None:
            self._app.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._is_closing = True
        app, self._app = self._app, None
        if app is not None:
            app.connection_lost(self._error or exc)
        self._say_shaken(self._error or self._ended())
        self._raw = None

    # The handshake

    def shake(self) -> None:
        """Go on with the handshake as far as what has come allows."""
        raw = self._raw
        if raw is None or raw.is_closing() or self._is_open:
            return
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            if self._on_hello is not None:
                raw.resume_reading()
            return
        except ssl.SSLError as error:
            # The peer learns why.
            self._flush()
            self._fail(error)
            return
        self._flush()
        self._is_open = True
        self._app = cast(asyncio.Protocol, self._make())
        self._app.connection_made(self)
        self._say_shaken(None)
        # What the peer has sent behind its last word of the handshake has come with it.
        if not self.is_closing():
            self._read()
        if self._on_hello is not None and not self._is_paused and not self.is_closing():
            raw.resume_reading()

    def _say_shaken(self, error: OSError | None) -> None:
        told, self._on_shaken = self._on_shaken, None
        if told is not None:
            told(error)

    def _fail(self, error: OSError) -> None:
        """End at once; what was said before may still go out where that was in the handshake."""
        self._error = error
        self._is_closing = True
        if self._raw is None:
            return
        if self._is_open:
            self._raw.abort()
            return
        accepted = self._raw.get_extra_info("socket")
        if self._is_server and accepted is not None and accepted.fileno() >= 0:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _SEND_BEFORE_CLOSE)
        self._raw.close()

    def _ended(self) -> OSError:
        return ConnectionResetError(_ENDED if self._is_server else _MAY_BE_PLAIN)

    # Reading

    def _read(self) -> None:
        """Hand on all that has come."""
        chunks = []
        is_end, error = False, None
        read = self._object.read
        try:
            while chunk := read(_RECORD_BYTES):
                chunks.append(chunk)
            is_end = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as caught:
            error = caught
        if self._outgoing.pending:
            self._flush()
        app = self._app
        if chunks and app is not None:
            app.data_received(chunks[0] if len(chunks) == 1 else b"".join(chunks))
        if error is not None:
            self._fail(error)
        elif is_end and not self.is_closing():
            self._end()

    def _end(self) -> None:
        """Tell that the peer sends nothing more, and close: half a connection is none."""
        if self._app is not None:
            self._app.eof_received()
        self.close()

    def _breathe(self) -> None:
        """Read on in the loop's next round: others are served first."""
        if self._raw is not None and not self._is_breathing:
            self._is_breathing = True
            self._raw.pause_reading()
            asyncio.get_running_loop().call_soon(self._breathed)

    def _breathed(self) -> None:
        self._is_breathing = False
        if self._raw is not None and not (self._is_paused or self.is_closing()):
            self._raw.resume_reading()

    # asyncio.Transport, towards the protocol above

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the connection."""
        if name == "ssl_object":
            return self._object
        if name == "sslcontext":
            return self._object.context
        if name == "peercert":
            return self._object.getpeercert()
        return default if self._raw is None else self._raw.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Tell whether it is closed, or will be."""
        return self._is_closing or self._raw is None or self._raw.is_closing()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Let another protocol take the place of the one above."""
        self._app = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol above, this one before there is one."""
        return self if self._app is None else self._app

    def is_reading(self) -> bool:
        """Tell whether the protocol above wants to read."""
        return not (self._is_paused or self.is_closing())

    def pause_reading(self) -> None:
        """Read no more from the peer."""
        self._is_paused = True
        if self._raw is not None:
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._is_paused = False
        if self._raw is not None and not (self._is_breathing or self.is_closing()):
            self._raw.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set from how many unsent bytes on the protocol above is told to pause."""
        if self._raw is not None:
            self._raw.set_write_buffer_limits(high=high, low=low)

    def get_write_buffer_size(self) -> int:
        """Return how many bytes the system has not taken."""
        return 0 if self._raw is None else self._raw.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return what `set_write_buffer_limits` has set, the low one first."""
        assert self._raw is not None
        return self._raw.get_write_buffer_limits()

    def write(self, data: Data) -> None:
        """Send bytes."""
        if not self.is_closing():
            self._encrypt(data)
            self._flush()

    def writelines(self, list_of_data: Iterable[Data]) -> None:
        """Send pieces with one call; large ones are not joined."""
        if self.is_closing():
            return
        pieces = list(list_of_data)
        if sum(memoryview(piece).nbytes for piece in pieces) <= _JOINED_BYTES:
            pieces = [b"".join(pieces)]
        for piece in pieces:
            self._encrypt(piece)
        self._flush()

    def write_eof(self) -> None:
        """Refuse: half a connection is none."""
        raise NotImplementedError

    def can_write_eof(self) -> bool:
        """Return that half of a connection cannot be closed."""
        return False

    def close(self) -> None:
        """Send what was written, say that it is all, and close."""
        if self._is_closing or self._raw is None:
            return
        self._is_closing = True
        if self._is_open and not self._raw.is_closing():
            # The peer's own last word is not waited for.
            with contextlib.suppress(ssl.SSLError):
                self._object.unwrap()
            self._flush()
        self._raw.close()

    def abort(self) -> None:
        """Close now."""
        self._is_closing = True
        if self._raw is not None:
            self._raw.abort()

    def _encrypt(self, data: Data) -> None:
        left = memoryview(data)
        try:
            # One record at a time.
            while left:
                left = left[self._object.write(left) :]
        except ssl.SSLError as error:
            self._fail(error)

    def _flush(self) -> None:
        if self._raw is not None and self._outgoing.pending and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())


async def connect(
    context: ssl.SSLContext,
    make: Callable[[], asyncio.BaseProtocol],
    host: str,
    port: int,
    server_name: str,
) -> None:
    """Connect by TLS; `make` is called once, with success.

    Raises:
        OSError: there is no connection, or the handshake has failed.
        ValueError: the name cannot be one of a server.
    """
    loop = asyncio.get_running_loop()
    shaken: asyncio.Future[None] = loop.create_future()

    def on_shaken(error: OSError | None) -> None:
        if shaken.done():
            return
        if error is None:
            shaken.set_result(None)
        else:
            shaken.set_exception(error)

    transport = TlsTransport(context, make, on_shaken, server_name=server_name)
    try:
        await loop.create_connection(lambda: transport, host, port)
        await shaken
    finally:
        if not shaken.done():
            shaken.cancel()
        if shaken.cancelled() or shaken.exception() is not None:
            transport.abort()
