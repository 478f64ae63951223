"""TLS of the remoting ports over real sockets, on asyncio's own loop and on uvloop."""

import asyncio
import contextlib
import importlib
import importlib.util
import inspect
import json
import logging
import os
import socket
import ssl
import struct
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from certificates import Authority, Pair
from real_time import at_most_s

from mailboat.config.tls import TlsConfig
from mailboat.errors import ConfigError, ConnectError, ConnectionLostError
from mailboat.protocol.command import RemotingCommand
from mailboat.remoting import tls_entrance
from mailboat.remoting.client import RemotingClient
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Answer, Dispatcher
from mailboat.remoting.limits import RemotingLimits
from mailboat.remoting.server import RemotingServer
from mailboat.security.client_security import ClientSecurity, ClientTls
from mailboat.security.tls import ServerTls

SOURCE = Path(__file__).parents[2] / "broker" / "src"
ECHO = 1000
ASK_BACK = 1001
LARGE = 1003
LARGE_BYTES = 3 << 20
LARGE_COUNT = 10
CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303")
LIMITS = RemotingLimits(connect_timeout_s=5.0)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Return whom both sides trust."""
    return Authority(tmp_path / "certificates")


class Service:
    """A server that counts what it was asked, for one test."""

    def __init__(self, tls: ServerTls | None, limits: RemotingLimits = LIMITS) -> None:
        """Prepare the server."""
        dispatcher = Dispatcher()
        dispatcher.register(ECHO, self.echo)
        dispatcher.register(ASK_BACK, self.ask_back)
        dispatcher.register(LARGE, self.large)
        self.asked = self.largest_unsent = 0
        self.tls = tls
        self.server = RemotingServer(dispatcher, limits, name="test", tls=tls)

    @property
    def address(self) -> str:
        """Where the server listens."""
        return f"127.0.0.1:{self.server.port}"

    def echo(self, connection: Connection, command: RemotingCommand) -> Answer:
        """Answer with the request's own body."""
        self.asked += 1
        return command.response(0, connection.peer, command.ext_fields, command.body)

    async def ask_back(self, connection: Connection, command: RemotingCommand) -> Answer:
        """Ask the client something on the same connection and answer with what it said."""
        answer = await connection.request(RemotingCommand.request(307), 5)
        return command.response(0, answer.remark)

    def large(self, connection: Connection, command: RemotingCommand) -> Answer:
        """Answer with many bytes."""
        self.largest_unsent = max(self.largest_unsent, connection.unsent_bytes())
        return command.response(0, body=bytes(LARGE_BYTES))


@contextlib.asynccontextmanager
async def serving(
    pair: Pair | None, limits: RemotingLimits = LIMITS, **changes: str
) -> AsyncIterator[Service]:
    """Run a server with a certificate, or a plain one."""
    tls = None
    if pair is not None:
        paths = {"server_cert_path": str(pair.certificate), "server_key_path": str(pair.key)}
        tls = ServerTls(TlsConfig(**{"server_mode": "enforcing"} | paths | changes))
    service = Service(tls, limits)
    await service.server.start("127.0.0.1", 0)
    try:
        yield service
    finally:
        await service.server.close(0.5)


@contextlib.asynccontextmanager
async def client_of(
    tls: ClientTls | None, dispatcher: Dispatcher | None = None
) -> AsyncIterator[RemotingClient]:
    """Run a client."""
    client = RemotingClient(dispatcher, LIMITS, security=ClientSecurity(tls=tls))
    try:
        yield client
    finally:
        await client.close(0.5)


async def echo(client: RemotingClient, service: Service, body: bytes = b"x") -> bytes:
    """Ask for an echo and return it."""
    command = RemotingCommand.request(ECHO, body=body)
    return (await client.request(service.address, command, 10)).body


@contextlib.contextmanager
def raw(service: Service) -> Iterator[socket.socket]:
    """Connect without any protocol."""
    host, _, port = service.address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.setblocking(False)
        yield connection


async def ended(connection: socket.socket, within_s: float = 5.0) -> bytes:
    """Return what a peer sends until it ends a connection."""
    found = b""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(within_s):
            while data := await loop.sock_recv(connection, 65_536):
                found += data
    return found


# -- what goes through ---------------------------------------------------------------------------


async def test_requests_go_in_both_directions(authority: Authority) -> None:
    """Frames of both sides arrive as they do without TLS."""
    async with serving(authority.issue("127.0.0.1")) as service:
        dispatcher = Dispatcher()
        dispatcher.register(307, lambda _, command: command.response(0, "running"))
        async with client_of(ClientTls(str(authority.trust)), dispatcher) as client:
            asked = RemotingCommand.request(ASK_BACK)
            assert (await client.request(service.address, asked, 10)).remark == "running"
            bodies = [bytes([n]) * 2**n for n in range(22)]
            answers = await asyncio.gather(*(echo(client, service, body) for body in bodies))
            assert answers == bodies
            assert service.server.connection_count == 1


async def test_thousand_requests_at_once_are_answered(authority: Authority) -> None:
    """Many small frames in one record come out one by one."""
    async with serving(authority.issue("127.0.0.1")) as service:
        async with client_of(ClientTls(str(authority.trust))) as client:
            bodies = [b"%d" % number for number in range(1000)]
            answers = await asyncio.gather(*(echo(client, service, body) for body in bodies))
            assert answers == bodies


async def test_tls_1_2_and_1_3_are_spoken(authority: Authority) -> None:
    """Clients of Java 8 know TLS 1.2 at most."""
    frame = RemotingCommand.request(ECHO, body=b"x").encode()
    async with serving(authority.issue("127.0.0.1")) as service:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = ssl.create_default_context(cafile=str(authority.trust))
            context.minimum_version = context.maximum_version = version
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", service.server.port, ssl=context
            )
            writer.write(frame)
            (length,) = struct.unpack(">I", await reader.readexactly(4))
            assert (await reader.readexactly(length)).endswith(b"x")
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def test_hello_may_come_byte_by_byte(authority: Authority) -> None:
    """A handshake in pieces is one handshake."""
    async with serving(authority.issue("127.0.0.1"), server_mode="permissive") as service:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=str(authority.trust))
        tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        loop = asyncio.get_running_loop()
        with raw(service) as connection:
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    for byte in outgoing.read():
                        await loop.sock_sendall(connection, bytes([byte]))
                    incoming.write(await loop.sock_recv(connection, 65_536))
            tls.write(RemotingCommand.request(ECHO, body=b"x").encode())
            # The end of the handshake and the first request arrive with one read.
            await loop.sock_sendall(connection, outgoing.read())
            incoming.write(await loop.sock_recv(connection, 65_536))
            assert tls.read(65_536).endswith(b"x")


async def test_slow_reader_gets_everything_and_is_counted(authority: Authority) -> None:
    """What a peer has not read counts as unsent, and nothing of it is lost."""
    async with serving(authority.issue("127.0.0.1")) as service:
        context = ssl.create_default_context(cafile=str(authority.trust))
        slow = socket.socket()
        # Fixed, or the system itself may take all the answers.
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        slow.setblocking(False)
        await asyncio.get_running_loop().sock_connect(slow, ("127.0.0.1", service.server.port))
        reader, writer = await asyncio.open_connection(
            sock=slow, ssl=context, server_hostname="127.0.0.1", limit=65_536
        )
        for _ in range(LARGE_COUNT):
            writer.write(RemotingCommand.request(LARGE).encode())
        await writer.drain()
        await wait_until(lambda: service.server.connection_count > 0)
        (connection,) = service.server.connections
        await wait_until(lambda: connection.is_write_paused)
        assert connection.unsent_bytes() > 0
        for _ in range(LARGE_COUNT):
            (length,) = struct.unpack(">I", await reader.readexactly(4))
            assert length > LARGE_BYTES
            await reader.readexactly(length)
        assert service.largest_unsent < 2 * LARGE_BYTES
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until something holds that nobody tells."""
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_closing_sends_what_was_answered(authority: Authority) -> None:
    """Answers that were written arrive before the end, which is one in order."""
    async with serving(authority.issue("127.0.0.1")) as service:
        async with client_of(ClientTls(str(authority.trust))) as client:
            assert await echo(client, service) == b"x"
            (connection,) = service.server.connections
            large = RemotingCommand.request(LARGE)
            asked = asyncio.create_task(client.request(service.address, large, 10))
            await wait_until(lambda: connection.unsent_bytes() > 0 or asked.done())
            await service.server.close(3)
            assert len((await asked).body) == LARGE_BYTES
            with pytest.raises(ConnectError):
                await echo(client, service)


# -- what does not -------------------------------------------------------------------------------


async def test_plain_frames_on_an_enforcing_port_do_nothing(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """However they come: nothing of 200 connections is carried out, and it is said once."""
    frame = RemotingCommand.request(ECHO, body=b"x").encode()
    oneway = RemotingCommand.request(ECHO, body=b"x")
    oneway.flag |= 2
    loop = asyncio.get_running_loop()
    async with serving(authority.issue("127.0.0.1")) as service:
        for number in range(200):
            with raw(service) as connection:
                pieces = [frame * 3, oneway.encode() * 3, frame[:1], frame[:6]][number % 4]
                with contextlib.suppress(OSError):
                    await loop.sock_sendall(connection, pieces)
                assert await ended(connection) == b""
        async with client_of(None) as client:
            with pytest.raises(ConnectionLostError):
                await echo(client, service)
        assert service.asked == 0
        async with client_of(ClientTls(str(authority.trust))) as client:
            assert await echo(client, service) == b"x"
        assert service.asked == 1
    said = [record.message for record in caplog.records if "speaks no TLS" in record.message]
    assert len(said) == 1


async def test_tls_on_a_plain_port_is_closed(authority: Authority) -> None:
    """A client learns that the other side may speak no TLS; plain clients are served."""
    async with serving(None) as service:
        async with client_of(ClientTls(str(authority.trust))) as client:
            with pytest.raises(ConnectError, match="perhaps it speaks no TLS"):
                await echo(client, service)
        async with client_of(None) as client:
            assert await echo(client, service) == b"x"
    assert service.asked == 1


async def test_client_says_that_the_other_side_answers_plainly(authority: Authority) -> None:
    """Some answer a TLS handshake in words."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.0 400 Bad Request\r\n\r\n")
        await writer.drain()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with client_of(ClientTls(str(authority.trust))) as client:
        with pytest.raises(ConnectError, match="it does not speak TLS"):
            await client.request(f"127.0.0.1:{port}", RemotingCommand.request(ECHO), 5)
    server.close()
    await server.wait_closed()


async def test_permissive_port_takes_both(authority: Authority) -> None:
    """The first byte tells."""
    async with serving(authority.issue("127.0.0.1"), server_mode="permissive") as service:
        async with (
            client_of(None) as plain,
            client_of(ClientTls(str(authority.trust))) as tls,
        ):
            for _ in range(3):
                assert await echo(plain, service) == b"x"
                assert await echo(tls, service) == b"x"
        assert service.asked == 6


async def test_client_says_why_it_does_not_connect(authority: Authority, tmp_path: Path) -> None:
    """One sentence each: not trusted, another name, a file that is missing."""
    foreign = Authority(tmp_path / "foreign")
    async with serving(authority.issue("broker.example", "127.0.0.1")) as service:
        async with client_of(ClientTls(str(foreign.trust))) as client:
            with pytest.raises(ConnectError, match="its certificate is not trusted: ") as raised:
                await echo(client, service)
            assert str(raised.value).startswith(service.address)
            assert "\n" not in str(raised.value)
        async with client_of(
            ClientTls(str(authority.trust), server_name="other.example")
        ) as client:
            with pytest.raises(ConnectError, match=r"another name: .*other\.example"):
                await echo(client, service)
        async with client_of(
            ClientTls(str(authority.trust), server_name="broker.example")
        ) as client:
            assert await echo(client, service) == b"x"
        async with client_of(ClientTls(str(tmp_path / "nowhere.pem"))) as client:
            with pytest.raises(ConfigError, match=r"nowhere\.pem: cannot be read"):
                await echo(client, service)
        assert service.asked == 1


# -- client certificates -------------------------------------------------------------------------


async def test_client_certificates_are_asked_for(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With require: ours, also of version 1; not none, foreign, expired, or of the future."""
    foreign = Authority(tmp_path / "foreign")
    trust = str(authority.trust)
    changes = {"server_need_client_auth": "require", "server_trust_cert_path": trust}
    async with serving(authority.issue("127.0.0.1"), **changes) as service:
        for shown in (
            authority.issue("client", file="client"),
            authority.issue_version_1("client", file="old"),
        ):
            tls = ClientTls(trust, str(shown.certificate), str(shown.key))
            async with client_of(tls) as client:
                assert await echo(client, service) == b"x"
        assert service.asked == 2
        for shown, reason in (
            (None, "certificate required"),
            (foreign.issue("client", file="client"), "unknown ca"),
            (
                authority.issue("c", file="expired", valid_from_days=-9, valid_to_days=-1),
                "certificate expired",
            ),
            (authority.issue("c", file="future", valid_from_days=1), "bad certificate"),
        ):
            tls = ClientTls(trust)
            if shown is not None:
                tls = ClientTls(trust, str(shown.certificate), str(shown.key))
            async with client_of(tls) as client:
                with pytest.raises((ConnectError, ConnectionLostError)) as raised:
                    await echo(client, service)
                text = str(raised.value)
                assert reason in text or (shown is None and "asks for a certificate" in text)
        assert service.asked == 2
        assert service.server.connection_count == 0


async def test_optional_certificates_are_checked_where_shown(
    authority: Authority, tmp_path: Path
) -> None:
    """With optional none is right, and a foreign one is wrong."""
    trust = str(authority.trust)
    changes = {"server_need_client_auth": "optional", "server_trust_cert_path": trust}
    shown = Authority(tmp_path / "foreign").issue("client")
    async with serving(authority.issue("127.0.0.1"), **changes) as service:
        async with client_of(ClientTls(trust)) as client:
            assert await echo(client, service) == b"x"
        async with client_of(ClientTls(trust, str(shown.certificate), str(shown.key))) as client:
            with pytest.raises((ConnectError, ConnectionLostError)):
                await echo(client, service)
        assert service.asked == 1


# -- half open connections -----------------------------------------------------------------------


async def test_slow_handshakes_end_in_time_and_harm_nobody(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """No byte, half a hello, or a hello without an end: closed at the deadline."""
    limits = RemotingLimits(tls_handshake_timeout_s=1.5, connect_timeout_s=5)
    loop = asyncio.get_running_loop()
    async with serving(authority.issue("127.0.0.1"), limits) as service:
        with contextlib.ExitStack() as stack:
            slow = [stack.enter_context(raw(service)) for _ in range(30)]
            for number, connection in enumerate(slow):
                await loop.sock_sendall(connection, CLIENT_HELLO[: (number % 3) * 5])
            began_s = loop.time()
            async with client_of(ClientTls(str(authority.trust))) as client:
                assert await echo(client, service) == b"x"
                # Long before the deadline of the others.
                assert loop.time() - began_s < 1.5
                await asyncio.gather(*(ended(connection) for connection in slow))
                assert loop.time() - began_s < at_most_s(3, 20)
                assert await echo(client, service) == b"x"
    assert service.asked == 2
    assert any("longer than 1.5 s" in record.message for record in caplog.records) or any(
        "says nothing" in record.message for record in caplog.records
    )


async def test_half_open_connections_count_and_make_room(authority: Authority) -> None:
    """So many as there may be connections; a handshake that goes on takes the oldest's place."""
    limits = RemotingLimits(max_connections=5, connect_timeout_s=5)
    async with serving(authority.issue("127.0.0.1"), limits) as service:
        with contextlib.ExitStack() as stack:
            slow = [stack.enter_context(raw(service)) for _ in range(5)]
            async with client_of(ClientTls(str(authority.trust))) as client:
                assert await echo(client, service) == b"x"
                assert await ended(slow[0]) == b""
                for connection in slow[1:]:
                    with pytest.raises(TimeoutError):
                        await ended(connection, 0.05)
                # Four half open ones and one that is open: the next takes a half open one's place.
                fresh = stack.enter_context(raw(service))
                assert await ended(slow[1]) == b""
                with pytest.raises(TimeoutError):
                    await ended(fresh, 0.05)


async def test_one_address_has_a_bound_of_half_open_connections(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond it the oldest makes room: whoever is behind the same address gets in."""
    monkeypatch.setattr(tls_entrance, "_HALF_OPEN_OF_ONE", 8)
    loop = asyncio.get_running_loop()
    async with serving(authority.issue("127.0.0.1")) as service:
        with contextlib.ExitStack() as stack:
            slow = [stack.enter_context(raw(service)) for _ in range(8)]
            for connection in slow[::2]:
                await loop.sock_sendall(connection, CLIENT_HELLO)
            async with client_of(ClientTls(str(authority.trust))) as client:
                assert await echo(client, service) == b"x"
            assert await ended(slow[0]) == b""
            for connection in slow[1:]:
                with pytest.raises(TimeoutError):
                    await ended(connection, 0.02)


async def test_who_waits_for_the_server_makes_no_room(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else of a whole cluster behind one address, which comes at once, nobody would get in."""
    monkeypatch.setattr(tls_entrance, "_HALF_OPEN_OF_ONE", 8)
    loop = asyncio.get_running_loop()
    async with serving(authority.issue("127.0.0.1")) as service:
        with contextlib.ExitStack() as stack:
            monkeypatch.setattr(tls_entrance, "_ROUND_S", -1)
            waiting = [stack.enter_context(raw(service)) for _ in range(8)]
            for connection in waiting:
                await loop.sock_sendall(connection, CLIENT_HELLO)
            entrance = service.server._entrance
            assert entrance is not None
            await wait_until(lambda: len(entrance._waiting) == 8)
            refused = stack.enter_context(raw(service))
            assert await ended(refused) == b""
            for connection in waiting:
                with pytest.raises(TimeoutError):
                    await ended(connection, 0.02)


async def test_hundreds_of_handshakes_at_once_leave_the_loop_free(authority: Authority) -> None:
    """After a restart all clients come at once: nobody waits for all of their handshakes."""
    async with serving(authority.issue("127.0.0.1")) as service:
        tls = ClientTls(str(authority.trust))
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(client_of(tls)) for _ in range(100)]
            answers = await asyncio.gather(*(echo(client, service) for client in clients))
            assert answers == [b"x"] * 100
            assert service.server.connection_count == 100


async def test_end_of_the_server_ends_half_open_connections(authority: Authority) -> None:
    """Nobody finishes a handshake with a server that takes no connections any more."""
    async with serving(authority.issue("127.0.0.1")) as service:
        with raw(service) as connection:
            await asyncio.sleep(0)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(connection, CLIENT_HELLO)
            await service.server.stop_accepting()
            assert await ended(connection) == b""


async def test_refused_and_held_up_connections_end_with_a_reset(authority: Authority) -> None:
    """RocketMQ's Java client tries again elsewhere at once when it notices a reset."""
    loop = asyncio.get_running_loop()
    async with serving(authority.issue("127.0.0.1")) as service:
        with raw(service) as connection:
            await loop.sock_sendall(connection, b"\0\0\0\1")
            async with asyncio.timeout(5):
                with pytest.raises(ConnectionResetError):
                    await loop.sock_recv(connection, 1)
        service.server.hold_up()
        with raw(service) as connection:
            await loop.sock_sendall(connection, CLIENT_HELLO)
            async with asyncio.timeout(0.9):
                with pytest.raises(ConnectionResetError):
                    await loop.sock_recv(connection, 1)
        service.server.go_on()
        async with client_of(ClientTls(str(authority.trust))) as client:
            assert await echo(client, service) == b"x"


# -- files that change ---------------------------------------------------------------------------


async def test_new_certificate_is_for_new_connections(authority: Authority) -> None:
    """Open ones stay; what replaced the pair is shown to whoever comes."""
    async with serving(authority.issue("127.0.0.1")) as service:
        assert service.tls is not None
        tls = ClientTls(str(authority.trust))
        async with client_of(tls) as before, client_of(tls) as after:
            assert await echo(before, service) == b"x"
            authority.issue("other.example")
            await asyncio.to_thread(service.tls.look)
            assert await echo(before, service) == b"x"
            with pytest.raises(ConnectError, match="its certificate has another name"):
                await echo(after, service)
            authority.issue("127.0.0.1")
            await asyncio.to_thread(service.tls.look)
            assert await echo(after, service) == b"x"


async def test_idle_peers_cost_little_memory(authority: Authority, tmp_path: Path) -> None:
    """Each costs what OpenSSL keeps, some 20 KB, and no buffer of 256 KiB."""
    pair = authority.issue("127.0.0.1")
    options = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(pair.certificate),
        "tls.server.keyPath": str(pair.key),
    }
    words = ["namesrv", "--host", "127.0.0.1", "--namesrv-port", "0", "--no-http", "--ready-json"]
    for key, value in options.items():
        words += ["-o", f"{key}={value}"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mailboat.cli", *words, stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        address = json.loads(await process.stdout.readline())["namesrv"]
        memory = psutil.Process(process.pid).memory_info
        route = RemotingCommand.request(105, {"topic": "T"})
        tls = ClientTls(str(authority.trust))
        async with contextlib.AsyncExitStack() as stack:
            sizes = []
            for count in (20, 200):
                for _ in range(count):
                    client = await stack.enter_async_context(client_of(tls))
                    await client.request(address, route, 20)
                sizes.append(memory().rss)
        assert sizes[1] - sizes[0] < 200 * 60_000
    finally:
        process.terminate()
        await process.wait()


async def test_refusals_are_no_errors_of_the_program(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever peers send: a line about them, and no traceback."""
    loop = asyncio.get_running_loop()
    async with serving(authority.issue("127.0.0.1"), server_mode="permissive") as service:
        for data in (b"\x16", b"\x16\x03\x01\xff\xff" + bytes(70_000), CLIENT_HELLO + bytes(300)):
            with raw(service) as connection:
                with contextlib.suppress(OSError):
                    await loop.sock_sendall(connection, data)
                    connection.shutdown(socket.SHUT_WR)
                await ended(connection)
        async with client_of(ClientTls(str(authority.trust))) as client:
            assert await echo(client, service) == b"x"
    assert [record for record in caplog.records if record.exc_info] == []
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(
    "story",
    [
        test_requests_go_in_both_directions,
        test_thousand_requests_at_once_are_answered,
        test_tls_1_2_and_1_3_are_spoken,
        test_hello_may_come_byte_by_byte,
        test_slow_reader_gets_everything_and_is_counted,
        test_closing_sends_what_was_answered,
        test_plain_frames_on_an_enforcing_port_do_nothing,
        test_tls_on_a_plain_port_is_closed,
        test_client_says_that_the_other_side_answers_plainly,
        test_permissive_port_takes_both,
        test_client_says_why_it_does_not_connect,
        test_client_certificates_are_asked_for,
        test_optional_certificates_are_checked_where_shown,
        test_slow_handshakes_end_in_time_and_harm_nobody,
        test_half_open_connections_count_and_make_room,
        test_one_address_has_a_bound_of_half_open_connections,
        test_who_waits_for_the_server_makes_no_room,
        test_hundreds_of_handshakes_at_once_leave_the_loop_free,
        test_end_of_the_server_ends_half_open_connections,
        test_refused_and_held_up_connections_end_with_a_reset,
        test_new_certificate_is_for_new_connections,
        test_refusals_are_no_errors_of_the_program,
    ],
)
def test_uvloop_behaves_the_same(
    story: Callable[..., Coroutine[Any, Any, None]], request: pytest.FixtureRequest
) -> None:
    """What holds on asyncio's own loop holds on uvloop."""
    if importlib.util.find_spec("uvloop") is None:
        pytest.skip("uvloop is not installed; it comes with the extra `fast`")
    fixtures = {name: request.getfixturevalue(name) for name in inspect.signature(story).parameters}
    new_loop = importlib.import_module("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(story(**fixtures))
