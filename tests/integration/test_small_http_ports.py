"""The HTTP ports of the operator and of a Spark job beside peers that are slow or too many."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest

from mailboat import http_connections
from mailboat_operator import http_server
from mailboat_operator.health import Health, LoopLag
from mailboat_operator.http_server import HttpServer
from mailboat_operator.leader import LeaderElector
from mailboat_operator.metrics import OperatorMetrics
from mailboat_spark.job import endpoints
from mailboat_spark.job.metrics import JobMetrics
from mailboat_spark.job.progress import JobState

MOST = 8
PART = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"


class _NoLease:
    async def read(self) -> None:
        return None

    async def create(self, lease: dict[str, object]) -> dict[str, object]:
        return lease

    async def replace(self, lease: dict[str, object]) -> dict[str, object]:
        return lease


@contextlib.asynccontextmanager
async def _operator() -> AsyncIterator[int]:
    health = Health(LeaderElector(_NoLease(), "me"), LoopLag(), deaf_s=90)
    server = HttpServer(health, OperatorMetrics(), lambda: None)
    await server.start("127.0.0.1", 0)
    yield server.port
    await server.close()


@contextlib.asynccontextmanager
async def _spark_job() -> AsyncIterator[int]:
    state = JobState(JobMetrics("job", "group", "1"), liveness_timeout_s=60.0)
    served = endpoints.serve(0, state)
    yield served.__enter__()
    await asyncio.to_thread(served.__exit__, None, None, None)


@pytest.fixture(params=["operator", "spark job"])
async def port(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[int]:
    """Serve with few connections."""
    monkeypatch.setattr(http_server, "_MOST_CONNECTIONS", MOST)
    monkeypatch.setattr(endpoints, "_MOST_CONNECTIONS", MOST)
    async with _operator() if request.param == "operator" else _spark_job() as port:
        yield port


async def is_alive(port: int) -> bool:
    """Ask as a probe does, on a connection of its own."""
    timeout = aiohttp.ClientTimeout(total=5)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        async with session.get(f"http://127.0.0.1:{port}/livez") as answer:
            return answer.status == 200


async def is_ended(reader: asyncio.StreamReader) -> bool:
    """Wait until the server closes a connection; tell whether it did so without an answer."""
    async with asyncio.timeout(5):
        with contextlib.suppress(ConnectionError):
            return await reader.read() == b""
    return True


async def test_more_connections_than_allowed_keep_no_probe_out(port: int) -> None:
    """The ones that have kept the server waiting for longest give way."""
    streams = []
    for _ in range(4 * MOST):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(PART)
        streams.append((reader, writer))
    assert await is_alive(port)
    for reader, _ in streams[: 3 * MOST]:
        assert await is_ended(reader)
    for _, writer in streams:
        writer.close()


@pytest.mark.parametrize("is_trickling", [False, True])
async def test_headers_have_to_end(
    port: int, monkeypatch: pytest.MonkeyPatch, is_trickling: bool
) -> None:
    """Neither silence nor a header that goes on for ever keeps a connection."""
    monkeypatch.setattr(http_connections, "HEADERS_S", 0.5)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def trickle() -> None:
        with contextlib.suppress(ConnectionError):
            while is_trickling:
                writer.write(b"X-More: 1\r\n")
                await writer.drain()
                await asyncio.sleep(0.1)

    writer.write(PART if is_trickling else b"")
    task = asyncio.create_task(trickle())
    assert await is_ended(reader)
    task.cancel()
    writer.close()
    assert await is_alive(port)


async def test_what_is_no_http_is_in_no_log(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """It may hold a secret, and strangers could fill the log with it."""
    for line in (b"Authorization: Bearer a-secret\x01", b"Authorization Bearer a-secret"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(PART + line + b"\r\n\r\n")
        async with asyncio.timeout(5):
            assert (await reader.read()).startswith(b"HTTP/1.0 400")
        writer.close()
    assert "a-secret" not in caplog.text
    assert not [one for one in caplog.records if one.levelname == "ERROR"]
    assert await is_alive(port)
