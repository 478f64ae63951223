"""The HTTP port beside peers that are slow: probes are answered, and descriptors are left."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from loop_lag import LoopLag

from mailboat import http_connections
from mailboat.remoting import limits
from mailboat.testing.cluster import Cluster

MOST = 32
LINE = b"POST /api/v1/topics/T/messages HTTP/1.1\r\n"
HEADERS = LINE + b"Host: localhost\r\nContent-Length: 100000\r\n"
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Port:
    """An HTTP port, and the raw connections to it that a test has made."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        """Connect to `address`, "host:port"."""
        self.cluster = cluster
        self.address = address
        self._streams: list[Stream] = []

    async def send(self, data: bytes, count: int = 1) -> list[Stream]:
        """Connect so many times and send the same bytes each time."""
        host, _, port = self.address.rpartition(":")
        made = []
        for _ in range(count):
            reader, writer = await asyncio.open_connection(host, int(port), limit=4096)
            self._streams.append((reader, writer))
            writer.write(data)
            made.append((reader, writer))
        return made

    async def is_alive(self) -> bool:
        """Ask as a probe does, on a connection of its own and with its patience."""
        timeout = aiohttp.ClientTimeout(total=5)
        async with aiohttp.ClientSession(f"http://{self.address}", timeout=timeout) as session:
            async with session.get("/livez") as answer:
                return answer.status == 200

    async def open_ones(self, streams: list[Stream]) -> int:
        """Count the connections that the server has not closed."""
        ended = 0
        for reader, _ in streams:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    with contextlib.suppress(ConnectionError):
                        await reader.read(1)
                    ended += 1
        return len(streams) - ended

    async def close(self) -> None:
        """Disconnect."""
        for _, writer in self._streams:
            writer.close()
        for _, writer in self._streams:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def ends(stream: Stream) -> bytes:
    """Return what the server sends until it closes the connection."""
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionError):
            return await stream[0].read()
    return b""


@pytest.fixture
async def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Port]:
    """Run a broker whose HTTP port takes few connections and short waits."""
    monkeypatch.setattr(limits, "_MAX_HTTP_CONNECTIONS", MOST)
    options = {"httpPort": "0", "httpMaxRequestBytes": "200000"}
    async with Cluster(tmp_path, options=options) as cluster:
        port = Port(cluster, await cluster.http_address())
        yield port
        await port.close()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\n",
        HEADERS + b"\r\n{",
        b"GET /livez HTTP/1.1\r\n\r\n",
    ],
)
async def test_slow_peers_do_not_keep_probes_out(port: Port, data: bytes) -> None:
    """Connections beyond the limit take the place of the slowest ones, whatever they wait for."""
    streams = await port.send(data, 10 * MOST)
    for _ in range(3):
        assert await port.is_alive()
    assert await port.open_ones(streams) <= MOST


async def test_headers_must_end(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within their time, for the first request and for a later one; an idle one may wait."""
    monkeypatch.setattr(http_connections, "HEADERS_S", 0.5)
    whole = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    [silent] = await port.send(b"")
    [trickling] = await port.send(whole[:-2])
    [later] = await port.send(whole)
    answer = await later[0].readuntil(b"}")
    assert answer.startswith(b"HTTP/1.1 200 OK")
    later[1].write(whole[:5])
    [idle] = await port.send(whole)
    assert await ends(silent) == b""
    assert await ends(trickling) == b""
    assert await ends(later) == b""
    await asyncio.sleep(1)
    idle[1].write(whole.replace(b"Host", b"Connection: close\r\nHost"))
    assert (await ends(idle)).count(b"HTTP/1.1 200 OK") == 2


async def test_bodies_must_end(
    port: Port, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A body that trickles in for too long ends its connection, with one line for all of them."""
    monkeypatch.setattr(http_connections, "BODY_S", 0.5)
    with caplog.at_level(logging.INFO):
        slow = await port.send(HEADERS + b"\r\n{", 5)
        for stream in slow:
            assert await ends(stream) == b""
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [line.getMessage() for line in lines] == [
        "http connection closed suppressed=0: the body of a request does not end"
    ]


async def test_answers_must_be_read(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that asks again and again and reads nothing is closed."""
    monkeypatch.setattr(http_connections, "ANSWER_S", 0.5)
    [(_, writer)] = await port.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
    transport = writer.transport
    transport.pause_reading()  # type: ignore[attr-defined]
    async with asyncio.timeout(20):
        while not transport.is_closing():
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await asyncio.sleep(0.05)
    assert await port.is_alive()


async def test_bodies_have_a_budget(port: Port) -> None:
    """Sixteen of the largest size in sum; whoever has the most is closed."""
    large = HEADERS.replace(b"100000", b"190000") + b"\r\n" + bytes(180_000)
    streams = await port.send(large, 20)
    async with asyncio.timeout(20):
        while await port.open_ones(streams) > 17:
            pass
    assert await port.is_alive()


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (LINE + b"Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (
            b"POST /livez HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"1\r\nx\r\n",
        ),
        (
            b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
            b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            b"\0",
        ),
        (b"\0", b"\0"),
    ],
    ids=["tiny chunks", "tiny chunks that nobody reads", "upgrade", "garbage"],
)
async def test_no_stranger_keeps_the_loop(port: Port, begin: bytes, piece: bytes) -> None:
    """Whatever comes at once is looked at a little at a time."""
    data = begin + piece * (1_000_000 // len(piece))

    def flood() -> None:
        host, _, number = port.address.rpartition(":")
        for _ in range(3):
            with socket.create_connection((host, int(number)), timeout=2) as flooding:
                # It may be ended by the server, or not be read any more.
                with contextlib.suppress(OSError):
                    flooding.sendall(data)

    async with LoopLag() as lag:
        floods = asyncio.create_task(asyncio.to_thread(flood))
        while not floods.done():
            assert await port.is_alive()
        await floods
    assert lag.longest_s < 0.04


async def test_slices_of_a_read_are_in_order_and_whole(port: Port) -> None:
    """Many requests with bodies, in one write: each is answered as if it came alone."""
    answers = 300
    line = b"PUT /api/v1/topics/T%03d HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n"
    body = b'{"read_queue_nums": 1, "write_queue_nums": 1, "perm": 6}'.ljust(5000)
    data = b"".join(line % number + body for number in range(answers))
    [(reader, _)] = await port.send(data)
    async with asyncio.timeout(20):
        for number in range(answers):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK"), head
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            assert b'"topic":"T%03d"' % number in await reader.readexactly(length)


async def test_one_address_that_is_answered_slowly_keeps_nobody_out() -> None:
    """Neither probes, its own among them, nor what others ask for; three of four places are its."""
    may_end, asked = asyncio.Event(), 0

    async def slow(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        await may_end.wait()
        return web.Response()

    async def quick(_: web.Request) -> web.Response:
        return web.Response(text="quick")

    connections = http_connections.HttpConnections(32, 1_000_000)
    app = web.Application(middlewares=[connections.middleware])
    app.router.add_get("/slow", slow)
    app.router.add_get("/quick", quick)
    app.router.add_get("/livez", quick)
    runner = web.AppRunner(app, access_log=None)
    server = await connections.listen(runner, host="0.0.0.0", port=0)
    number = server.sockets[0].getsockname()[1]

    async def ask(host: str, path: str) -> Stream:
        stream = await asyncio.open_connection("127.0.0.1", number, local_addr=(host, 0))
        stream[1].write(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode())
        return stream

    async def status(stream: Stream) -> bytes:
        async with asyncio.timeout(10):
            return (await stream[0].readline())[9:12]

    streams = [await ask("127.0.0.2", "/slow") for _ in range(24)]
    async with asyncio.timeout(10):
        while asked < 24:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.001)
    for _ in range(3):
        streams.append(await ask("127.0.0.2", "/slow"))
        assert await status(streams[-1]) == b"503"
    streams += [await ask("127.0.0.3", "/slow") for _ in range(6)]
    async with asyncio.timeout(10):
        while asked < 30:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.001)
    # Now all places are taken that are not for probes.
    for host in ("127.0.0.1", "127.0.0.2"):
        for path, expected in (("/livez", b"200"), ("/quick", b"503"), ("/livez", b"200")):
            streams.append(await ask(host, path))
            assert await status(streams[-1]) == expected, (host, path)
    may_end.set()
    assert await status(streams[0]) == b"200"
    streams.append(await ask("127.0.0.1", "/quick"))
    assert await status(streams[-1]) == b"200"
    for _, writer in streams:
        writer.close()
    server.close()
    await runner.cleanup()


async def test_a_request_whose_body_is_not_complete_counts_for_its_address() -> None:
    """One address could have all of its bodies end at once, and then be answered on every place."""
    may_end, asked = asyncio.Event(), 0

    async def slow(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        await may_end.wait()
        return web.Response()

    connections = http_connections.HttpConnections(32, 1_000_000)
    app = web.Application(middlewares=[connections.middleware])
    app.router.add_post("/slow", slow)
    runner = web.AppRunner(app, access_log=None)
    server = await connections.listen(runner, host="127.0.0.1", port=0)
    number = server.sockets[0].getsockname()[1]
    streams = []
    for _ in range(28):
        streams.append(await asyncio.open_connection("127.0.0.1", number))
        streams[-1][1].write(b"POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
    answers = [asyncio.create_task(reader.readline()) for reader, _ in streams]
    async with asyncio.timeout(10):
        while sum(answer.done() for answer in answers) < 4:
            await asyncio.wait(
                [answer for answer in answers if not answer.done()],
                return_when=asyncio.FIRST_COMPLETED,
            )
    assert {answer.result()[9:12] for answer in answers if answer.done()} == {b"503"}
    assert asked == 24
    may_end.set()
    await asyncio.gather(*answers)
    for _, writer in streams:
        writer.close()
    server.close()
    await runner.cleanup()


async def test_no_address_loses_its_place_to_one_that_has_more() -> None:
    """Whoever is slow but alone is not driven out by who has all the others."""
    connections = http_connections.HttpConnections(32, 1_000_000)
    runner = web.AppRunner(web.Application(middlewares=[connections.middleware]), access_log=None)
    server = await connections.listen(runner, host="0.0.0.0", port=0)
    number = server.sockets[0].getsockname()[1]
    streams = []
    for host in ["127.0.0.1"] + ["127.0.0.2"] * 64:
        streams.append(await asyncio.open_connection("127.0.0.1", number, local_addr=(host, 0)))
    assert await ends(streams[1]) == b""
    streams[0][1].write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with asyncio.timeout(10):
        assert (await streams[0][0].readline()).startswith(b"HTTP/1.1 404")
    for _, writer in streams:
        writer.close()
    server.close()
    await runner.cleanup()
