"""The remoting server and client over real sockets."""

import asyncio
import contextlib
import importlib.util
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from real_time import at_most_s

from mailboat.errors import ConnectError, ConnectionLostError, RequestTimeoutError
from mailboat.protocol.command import RemotingCommand, decode_command
from mailboat.protocol.frame import FrameDecoder
from mailboat.remoting.client import RemotingClient
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Answer, Dispatcher
from mailboat.remoting.limits import RemotingLimits
from mailboat.remoting.server import RemotingServer
from mailboat.security.client_security import OPEN, ClientSecurity, ClientTls

ECHO = 1000
ASK_BACK = 1001
HOLD = 1002
LARGE = 1003
LARGE_BYTES = 64 * 1024
LIMITS = RemotingLimits(
    first_frame_timeout_s=0.3,
    frame_timeout_s=0.5,
    write_high_water_bytes=128 * 1024,
    write_drain_timeout_s=0.5,
    max_connections=50,
    connect_timeout_s=0.3,
    sweep_interval_s=0.05,
)


class Service:
    """A server with a few processors, for one test."""

    def __init__(self, limits: RemotingLimits) -> None:
        """Prepare the server."""
        self.dispatcher = Dispatcher()
        self.dispatcher.register(ECHO, self.echo)
        self.dispatcher.register(ASK_BACK, self.ask_back)
        self.dispatcher.register(HOLD, self.hold)
        self.dispatcher.register(LARGE, self.large)
        self.server = RemotingServer(self.dispatcher, limits, name="test")
        self.held = asyncio.Event()
        self.release = asyncio.Event()
        self.largest_unsent = 0
        self.closed: asyncio.Queue[Connection] = asyncio.Queue()
        self.dispatcher.on_connection_closed.append(self.closed.put_nowait)

    @property
    def address(self) -> str:
        """Where the server listens."""
        return f"127.0.0.1:{self.server.port}"

    def echo(self, connection: Connection, command: RemotingCommand) -> Answer:
        """Answer with the request's own parts."""
        return command.response(0, connection.peer, command.ext_fields, command.body)

    async def ask_back(self, connection: Connection, command: RemotingCommand) -> Answer:
        """Ask the client something on the same connection and answer with what it said."""
        answer = await connection.request(RemotingCommand.request(307), 5)
        return command.response(0, answer.remark)

    async def hold(self, connection: Connection, command: RemotingCommand) -> Answer:
        """Answer once the test says so."""
        self.held.set()
        await self.release.wait()
        return command.response(0, "released")

    def large(self, connection: Connection, command: RemotingCommand) -> Answer:
        """Answer with many bytes."""
        self.largest_unsent = max(self.largest_unsent, connection.unsent_bytes())
        return command.response(0, body=bytes(LARGE_BYTES))


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """Run a server with short limits."""
    service = Service(LIMITS)
    await service.server.start("127.0.0.1", 0)
    yield service
    service.release.set()
    await service.server.close(0.2)


@contextlib.asynccontextmanager
async def client_of(
    dispatcher: Dispatcher | None = None, limits: RemotingLimits = LIMITS
) -> AsyncIterator[RemotingClient]:
    """Run a client."""
    client = RemotingClient(dispatcher, limits)
    try:
        yield client
    finally:
        await client.close(0.2)


async def echo_works(address: str) -> bool:
    """Whether a new client is served."""
    async with client_of() as client:
        response = await client.request(address, RemotingCommand.request(ECHO, body=b"x"), 5)
        return response.body == b"x"


async def closed_connection(service: Service) -> Connection:
    """Wait until the server has lost its next connection."""
    async with asyncio.timeout(10):
        return await service.closed.get()


async def ends(reader: asyncio.StreamReader, within_s: float = 5.0) -> bytes:
    """Read until the server closes the connection."""
    async with asyncio.timeout(within_s):
        with contextlib.suppress(ConnectionResetError):
            return await reader.read()
    return b""


async def test_many_requests_on_one_connection(service: Service) -> None:
    """A thousand requests at once are each answered with their own answer."""
    async with client_of() as client:
        commands = [RemotingCommand.request(ECHO, {"n": n}, b"%d" % n) for n in range(1000)]
        requests = [client.request(service.address, command, 10) for command in commands]
        responses = await asyncio.gather(*requests)
        assert [str(n) for n in range(1000)] == [r.ext_fields["n"] for r in responses]
        assert [b"%d" % n for n in range(1000)] == [r.body for r in responses]
        assert 1 == service.server.connection_count


async def test_requests_go_in_both_directions(service: Service) -> None:
    """A server asks its client while it answers it."""
    dispatcher = Dispatcher()
    dispatcher.register(307, lambda _, command: command.response(0, "running"))
    async with client_of(dispatcher) as client:
        requests = [
            client.request(service.address, RemotingCommand.request(code), 5)
            for code in (ASK_BACK, ECHO, ASK_BACK)
        ]
        responses = await asyncio.gather(*requests)
    assert ["running", "running"] == [responses[0].remark, responses[2].remark]


async def test_large_bodies_arrive_whole(service: Service) -> None:
    """Bodies far beyond one read survive in both directions."""
    body = bytes(range(256)) * 20_000
    async with client_of() as client:
        response = await client.request(
            service.address, RemotingCommand.request(ECHO, body=body), 10
        )
    assert body == response.body


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes.fromhex("16030100c5010000c10303"),
        b"\xff" * 100,
        b"\0\0\0\0",
        bytes.fromhex("0000000c00000008") + b"[[[[[[[[",
        bytes.fromhex("0000000801000004") + b"abcd",
    ],
)
async def test_garbage_is_closed_and_others_are_served(service: Service, garbage: bytes) -> None:
    """Malformed input ends its own connection, without an answer, and no other."""
    async with client_of() as client:
        await client.request(service.address, RemotingCommand.request(ECHO), 5)
        reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port)
        writer.write(garbage)
        assert b"" == await ends(reader)
        writer.close()
        await client.request(service.address, RemotingCommand.request(ECHO), 5)
        assert 1 == service.server.connection_count


async def test_answers_before_garbage_arrive(service: Service) -> None:
    """What was asked properly is answered before the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port)
    writer.write(RemotingCommand(ECHO, opaque=5).encode() + b"\xff" * 20)
    (frame,) = FrameDecoder().feed(await ends(reader))
    writer.close()
    assert 5 == decode_command(frame).opaque


@pytest.mark.parametrize("data", [b"", b"\0\0", RemotingCommand(ECHO).encode()[:-1]])
async def test_silent_peers_are_dropped(service: Service, data: bytes) -> None:
    """Whoever does not send a whole frame in time loses the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port)
    writer.write(data)
    assert b"" == await ends(reader)
    writer.close()
    assert await echo_works(service.address)


async def test_trickling_peer_is_dropped(service: Service) -> None:
    """A frame that comes byte by byte for too long is cut off, after good frames too."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port)
    writer.write(RemotingCommand(ECHO).encode())
    await reader.readexactly(4)

    async def trickle() -> None:
        for byte in RemotingCommand(ECHO, body=bytes(1000)).encode():
            writer.write(bytes([byte]))
            await asyncio.sleep(0.02)

    trickling = asyncio.create_task(trickle())
    await ends(reader)
    trickling.cancel()
    await asyncio.wait([trickling])
    writer.close()
    assert await echo_works(service.address)


async def test_idle_connection_is_closed_and_made_again() -> None:
    """Silence ends a connection; the client notices, and its next request makes a new one."""
    service = Service(RemotingLimits(idle_timeout_s=0.3, sweep_interval_s=0.05))
    await service.server.start("127.0.0.1", 0)
    noticed = asyncio.Event()
    dispatcher = Dispatcher()
    dispatcher.on_connection_closed.append(lambda _: noticed.set())
    async with client_of(dispatcher, RemotingLimits()) as client:
        await client.request(service.address, RemotingCommand.request(ECHO), 5)
        async with asyncio.timeout(10):
            await noticed.wait()
        await client.request(service.address, RemotingCommand.request(ECHO), 5)
        assert 1 == service.server.connection_count
    await service.server.close(0.2)


async def test_peer_that_does_not_read_is_dropped(service: Service) -> None:
    """A peer that asks for much and reads nothing is cut off; others do not notice."""
    with socket.socket() as stubborn:
        stubborn.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stubborn.connect(("127.0.0.1", service.server.port))
        stubborn.setblocking(False)
        loop = asyncio.get_running_loop()
        requests = b"".join(RemotingCommand(LARGE, opaque=n).encode() for n in range(200))
        await loop.sock_sendall(stubborn, requests)
        assert await echo_works(service.address)
        await closed_connection(service)  # the client of echo_works
        await closed_connection(service)
    # The mark, and what one flush may add to it.
    assert service.largest_unsent <= 2 * LIMITS.write_high_water_bytes + 2 * LARGE_BYTES


async def test_slow_reader_gets_everything(service: Service) -> None:
    """A peer that reads late gets every answer, whole and in order."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port, limit=4096)
    count = 200
    writer.write(b"".join(RemotingCommand(LARGE, opaque=n).encode() for n in range(count)))
    decoder = FrameDecoder()
    opaques: list[int] = []
    while len(opaques) < count:
        data = await reader.read(200_000)
        assert data
        frames = decoder.feed(data)
        assert all(len(frame[2]) == LARGE_BYTES for frame in frames)
        opaques += [decode_command(frame).opaque for frame in frames]
        await asyncio.sleep(0.001)
    writer.close()
    assert list(range(count)) == opaques


async def test_connections_beyond_the_limit_are_closed() -> None:
    """The next connection is accepted and closed; a free place is used again."""
    limits = RemotingLimits(max_connections=2, sweep_interval_s=0.05)
    service = Service(limits)
    await service.server.start("127.0.0.1", 0)
    async with client_of() as first, client_of() as second:
        for client in (first, second):
            await client.request(service.address, RemotingCommand.request(ECHO), 5)
        reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port)
        assert b"" == await ends(reader)
        writer.close()
        await first.request(service.address, RemotingCommand.request(ECHO), 5)
        await second.close(0.2)
        await closed_connection(service)
        assert await echo_works(service.address)
    await service.server.close(0.2)


async def test_closing_sends_what_was_answered(service: Service) -> None:
    """A clean stop refuses newcomers, finishes what was asked, then closes."""
    async with client_of() as client:
        waiting = asyncio.create_task(
            client.request(service.address, RemotingCommand.request(HOLD), 5)
        )
        await service.held.wait()
        await service.server.stop_accepting()
        async with client_of() as late:
            with pytest.raises(ConnectError):
                await late.request(service.address, RemotingCommand.request(ECHO), 1)
        service.release.set()
        await service.dispatcher.drain(5)
        await service.server.close(5)
        assert "released" == (await waiting).remark
        assert 0 == service.server.connection_count


async def test_lost_connection_fails_the_request_and_the_next_one_reconnects(
    service: Service,
) -> None:
    """The caller learns that the outcome is unknown; the address works again at once."""
    async with client_of() as client:
        waiting = asyncio.create_task(
            client.request(service.address, RemotingCommand.request(HOLD), 5)
        )
        await service.held.wait()
        for connection in service.server.connections:
            connection.abort()
        with pytest.raises(ConnectionLostError):
            await waiting
        await client.request(service.address, RemotingCommand.request(ECHO), 5)


async def test_refused_connection_is_a_connect_error() -> None:
    """Nothing was sent, and the error says where to."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        async with client_of() as client:
            with pytest.raises(ConnectError, match=address):
                await client.request(address, RemotingCommand.request(ECHO), 5)
            with pytest.raises(ConnectError, match=address):
                await client.oneway(address, RemotingCommand.request(ECHO, oneway=True))


@pytest.mark.parametrize("security", [OPEN, ClientSecurity(tls=ClientTls(auth_server=False))])
@pytest.mark.parametrize("host", ["a..b", ".localhost", "a" * 64 + ".example", "a\0b", "x y"])
async def test_what_cannot_be_a_host_is_a_connect_error(
    host: str, security: ClientSecurity
) -> None:
    """Name servers hand on what whoever registers a broker says."""
    client = RemotingClient(None, security=security)
    with pytest.raises(ConnectError) as raised:
        await client.request(f"{host}:10911", RemotingCommand.request(ECHO), 5)
    assert raised.value.args[0].isprintable()
    await client.close(0.1)


async def test_connecting_has_its_own_timeout() -> None:
    """A host that swallows connections costs the connect timeout, not the request's."""
    with socket.socket() as deaf, contextlib.ExitStack() as fillers:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for _ in range(4):  # fill the queue of connections that nobody accepts
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(deaf.getsockname())
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        async with client_of() as client, asyncio.timeout(5):
            with pytest.raises(ConnectError, match=r"no connection within 0\.3 s"):
                await client.request(address, RemotingCommand.request(ECHO), 60)


async def test_silent_server_costs_its_connection(service: Service) -> None:
    """A server that says nothing for a whole timeout is connected to anew."""
    async with client_of() as client:
        with pytest.raises(RequestTimeoutError, match=service.address):
            await client.request(service.address, RemotingCommand.request(HOLD), 0.4)
        await closed_connection(service)
        await client.request(service.address, RemotingCommand.request(ECHO), 5)


async def test_slow_answer_does_not_cost_the_connection(service: Service) -> None:
    """A timeout on a connection that is alive leaves its other requests alone."""
    async with client_of() as client:
        slow = asyncio.create_task(
            client.request(service.address, RemotingCommand.request(HOLD), 0.4)
        )
        await service.held.wait()
        patient = asyncio.create_task(
            client.request(service.address, RemotingCommand.request(HOLD), 5)
        )
        while not slow.done():
            await client.request(service.address, RemotingCommand.request(ECHO), 5)
            await asyncio.sleep(0.02)
        with pytest.raises(RequestTimeoutError):
            await slow
        service.release.set()
        assert "released" == (await patient).remark


async def test_every_request_has_its_own_timeout(service: Service) -> None:
    """A short one that was asked last is over first, and the others go on."""
    loop = asyncio.get_running_loop()
    ended: list[float] = []

    async def ask(timeout_s: float) -> None:
        began_s = loop.time()
        with pytest.raises(RequestTimeoutError, match=f"within {timeout_s:g} s"):
            await client.request(service.address, RemotingCommand.request(HOLD), timeout_s)
        ended.append(timeout_s)
        assert timeout_s - 0.002 <= loop.time() - began_s < timeout_s + at_most_s(1, 10)

    async with client_of() as client:
        await client.request(service.address, RemotingCommand.request(ECHO), 5)
        await asyncio.gather(ask(0.25), ask(0.15), ask(0.05), ask(0.2))
    assert ended == [0.05, 0.15, 0.2, 0.25]


async def test_concurrent_first_requests_share_one_connection(service: Service) -> None:
    """Requests that meet no connection wait for the same attempt."""
    async with client_of() as client:
        requests = [
            client.request(service.address, RemotingCommand.request(ECHO), 5) for _ in range(20)
        ]
        responses = await asyncio.gather(*requests)
    assert 1 == len({response.remark for response in responses})


async def test_closed_client_fails_its_requests(service: Service) -> None:
    """Closing ends what waits and refuses what comes."""
    client = RemotingClient(limits=LIMITS)
    waiting = asyncio.create_task(client.request(service.address, RemotingCommand.request(HOLD), 5))
    await service.held.wait()
    await client.close(0.2)
    with pytest.raises(ConnectionLostError):
        await waiting
    with pytest.raises(ConnectError, match="the client is closed"):
        await client.request(service.address, RemotingCommand.request(ECHO), 5)


async def test_oneway_request_arrives(service: Service) -> None:
    """A one-way request is processed and not answered."""
    async with client_of() as client:
        await client.oneway(service.address, RemotingCommand.request(HOLD, oneway=True))
        async with asyncio.timeout(5):
            await service.held.wait()
        service.release.set()
        await client.request(service.address, RemotingCommand.request(ECHO), 5)
        client.close_address(service.address)
        await client.request(service.address, RemotingCommand.request(ECHO), 5)


async def test_whoever_is_held_up_is_let_go_in_the_end(service: Service) -> None:
    """Connections are not read, be they new or not, until all goes on, or ends."""
    echo = RemotingCommand.request(ECHO, body=b"x")
    async with client_of() as client:
        await client.request(service.address, echo, 5)
        service.server.hold_up()
        host, _, port = service.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(echo.encode())
        answer = asyncio.create_task(ends(reader))
        waiting = asyncio.create_task(client.request(service.address, echo, 5))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.3)
        assert not answer.done()
        service.server.go_on()
        assert (await waiting).body == b"x"
        assert await answer == b""
        writer.close()
        service.server.hold_up()
        reader, writer = await asyncio.open_connection(host, int(port))
        await service.server.stop_accepting()
        assert await ends(reader) == b""
        writer.close()


async def test_whoever_is_held_up_is_reset_in_time_for_another_try(service: Service) -> None:
    """A stock client notices a reset, and no end in order, before the time of its send is over."""
    echo = RemotingCommand.request(ECHO, body=b"x").encode()
    host, _, port = service.address.rpartition(":")
    old = await asyncio.open_connection(host, int(port))
    service.server.hold_up()
    new = await asyncio.open_connection(host, int(port))
    for _, writer in (old, new):
        writer.write(echo)
    async with asyncio.timeout(0.9):
        with pytest.raises(ConnectionResetError):
            await new[0].read()
    await service.server.close(1)
    with pytest.raises(ConnectionResetError):
        await old[0].read()
    for _, writer in (old, new):
        writer.close()


async def test_server_listens_on_two_ports(service: Service) -> None:
    """The second port serves the same; the first keeps its number."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        second_port = probe.getsockname()[1]
    first_port = service.server.port
    await service.server.start("127.0.0.1", second_port)
    assert first_port == service.server.port
    assert await echo_works(f"127.0.0.1:{first_port}")
    assert await echo_works(f"127.0.0.1:{second_port}")


@pytest.mark.parametrize(
    "story",
    [
        test_many_requests_on_one_connection,
        test_requests_go_in_both_directions,
        test_large_bodies_arrive_whole,
        test_answers_before_garbage_arrive,
        test_trickling_peer_is_dropped,
        test_peer_that_does_not_read_is_dropped,
        test_slow_reader_gets_everything,
        test_closing_sends_what_was_answered,
        test_lost_connection_fails_the_request_and_the_next_one_reconnects,
    ],
)
def test_uvloop_behaves_the_same(story: Callable[[Service], Coroutine[Any, Any, None]]) -> None:
    """What holds on asyncio's own loop holds on uvloop."""
    if importlib.util.find_spec("uvloop") is None:
        pytest.skip("uvloop is not installed; it comes with the extra `fast`")
    import uvloop

    async def run() -> None:
        service = Service(LIMITS)
        await service.server.start("127.0.0.1", 0)
        try:
            await story(service)
        finally:
            service.release.set()
            await service.server.close(0.2)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
