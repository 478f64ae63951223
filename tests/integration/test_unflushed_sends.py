"""Sends that wait for a flush: what is kept of them meanwhile, and what follows when it comes."""

import asyncio
import gc
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest
from loop_lag import LoopLag
from raw_client import RawClient, broker_settings, connected
from real_time import at_most_s

from mailboat import core
from mailboat.broker.controller import BrokerController
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand
from mailboat.store import message_store
from mailboat.store.flush import FlushJob

BODY_BYTES = 500_000
MIB = 1 << 20
SEND: dict[str, ExtValue] = {
    "a": "PG", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0,
    "i": "UNIQ_KEY\x01U\x02", "j": 0, "k": False,
}  # fmt: skip


@pytest.fixture(autouse=True, params=["compiled", "python"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Take sends with the compiled core, and in the way that is its definition."""
    if request.param == "python":
        monkeypatch.setattr(core, "FOUND", core.FOUND._replace(module=None))
    elif not core.FOUND.is_used:
        pytest.skip("the compiled core is not installed")
    return str(request.param)


@pytest.fixture
def hangs(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Have a disk that hangs while the event is not set; it is at first."""
    goes_on = threading.Event()
    goes_on.set()
    run = FlushJob.run

    def run_late(job: FlushJob) -> None:
        goes_on.wait(60)
        run(job)

    monkeypatch.setattr(FlushJob, "run", run_late)
    yield goes_on
    goes_on.set()


@asynccontextmanager
async def talking(root: Path) -> AsyncIterator[tuple[BrokerController, RawClient]]:
    """Run a broker that flushes before it answers, whatever the time, and connect to it."""
    settings = broker_settings(root, "SYNC_FLUSH")
    store = replace(settings.store, sync_flush_timeout=60_000, mapped_file_size_commit_log=4 * MIB)
    broker = BrokerController(replace(settings, store=store))
    await broker.start()
    try:
        async with connected(broker, "c@1") as (client,):
            await client.make_topic("T")
            await client.send("T", b"x", properties="UNIQ_KEY\x01U\x02")
            yield broker, client
    finally:
        await broker.shutdown()


@asynccontextmanager
async def speaking(
    broker: BrokerController,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a connection that keeps nothing of what it has sent."""
    host, _, port = broker.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    yield reader, writer
    writer.close()


def frame(opaque: int, body: bytes) -> bytes:
    """Return a send."""
    command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, SEND, body)
    command.opaque = opaque
    return command.encode()


async def answered(reader: asyncio.StreamReader, count: int) -> None:
    """Read so many answers, all of which say that the message is stored."""
    async with asyncio.timeout(60):
        for _ in range(count):
            size = int.from_bytes(await reader.readexactly(4))
            assert b'"code":0' in await reader.readexactly(size)


async def written(broker: BrokerController, size_bytes: int) -> None:
    """Wait until the log has so many bytes more."""
    end = broker.store.commit_log.end + size_bytes
    async with asyncio.timeout(30):
        while broker.store.commit_log.end < end:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)


def large_bytes(holder: object, depth: int = 6) -> dict[int, int]:
    """Return the sizes of large pieces of bytes that something holds."""
    found: dict[int, int] = {}
    for held in gc.get_referents(holder):
        if isinstance(held, bytes):
            if len(held) >= BODY_BYTES:
                found[id(held)] = len(held)
        elif depth and isinstance(held, list | tuple | deque | partial):
            found |= large_bytes(held, depth - 1)
    return found


async def test_nothing_is_kept_of_a_body(tmp_path: Path, hangs: threading.Event) -> None:
    """A disk that hangs is no reason to hold what was written."""
    async with talking(tmp_path) as (broker, client):
        hangs.clear()
        send = client.send("T", b"x" * BODY_BYTES, properties="UNIQ_KEY\x01U\x02")
        waits = asyncio.create_task(send)
        await written(broker, BODY_BYTES)
        dispatch = broker.store.dispatch
        assert not large_bytes([broker.flush._waiters, dispatch._waiting])
        assert dispatch.held_bytes < 10_000
        hangs.set()
        await waits
        assert dispatch.held_bytes == 0


async def test_memory_does_not_grow_with_what_waits(tmp_path: Path, hangs: threading.Event) -> None:
    """A hundred megabytes that nobody has flushed; afterwards all are answered."""
    data = frame(1, bytes(MIB))
    async with talking(tmp_path) as (broker, _), speaking(broker) as (reader, writer):
        process = psutil.Process()
        for number in range(101):
            writer.write(data)
            await written(broker, MIB)
            if number == 0:
                hangs.clear()
                before_bytes = process.memory_info().rss
        assert process.memory_info().rss - before_bytes < 40 * MIB
        hangs.set()
        await answered(reader, 101)
        assert broker.store.max_offset("T", 0) == 102


async def test_too_many_that_wait_are_refused(
    tmp_path: Path, hangs: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits is bounded: more is refused with a reason until the flush has come."""
    monkeypatch.setattr(message_store, "HELD_BYTES_MOST", 20_000)
    async with talking(tmp_path) as (broker, client):
        hangs.clear()
        sends = []
        while broker.store.dispatch.held_bytes <= 20_000:
            sends.append(asyncio.create_task(client.send("T", b"x")))
            await written(broker, 1)
        refused = await client.call(RequestCode.SEND_MESSAGE_V2, SEND, b"x")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "too many messages wait for a flush of the disk" in (refused.remark or "")
        assert broker.store.writes_rejected["unsettled"] == 1
        hangs.set()
        await asyncio.gather(*sends)
        assert broker.store.dispatch.held_bytes == 0
        await client.send("T", b"x")
        assert broker.store.max_offset("T", 0) == len(sends) + 2


async def test_the_end_of_a_stall_lets_others_in(tmp_path: Path, hangs: threading.Event) -> None:
    """Thirty thousand messages become visible, and are answered, in slices."""
    count = 30_000
    async with talking(tmp_path) as (broker, _), speaking(broker) as (reader, writer):
        hangs.clear()
        for first in range(0, count, 100):
            writer.write(b"".join([frame(opaque, b"x") for opaque in range(first, first + 100)]))
            await writer.drain()
        async with asyncio.timeout(60):
            while broker.store.queues.next_offset("T", 0) < count + 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        async with LoopLag() as lag:
            hangs.set()
            await answered(reader, count)
        assert broker.store.max_offset("T", 0) == count + 1
    # What was mended took 0.4 s.
    assert lag.longest_s < at_most_s(0.05, 0.15)
