"""Sends that wait for a flush: what is kept of them meanwhile."""

import asyncio
import gc
import threading
from collections import deque
from functools import partial
from pathlib import Path

import pytest
from raw_client import broker_settings, connected

from mailboat.broker.controller import BrokerController
from mailboat.store.flush import FlushJob

BODY_BYTES = 500_000


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


async def test_nothing_is_kept_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that stalls is no reason to hold both what was read and what was written."""
    goes_on = threading.Event()
    run = FlushJob.run

    def run_late(job: FlushJob) -> None:
        goes_on.wait(20)
        run(job)

    broker = BrokerController(broker_settings(tmp_path, "SYNC_FLUSH"))
    await broker.start()
    async with connected(broker, "c@1") as (client,):
        await client.make_topic("T")
        await client.send("T", b"x", properties="UNIQ_KEY\x01U\x02")
        monkeypatch.setattr(FlushJob, "run", run_late)
        send = client.send("T", b"x" * BODY_BYTES, properties="UNIQ_KEY\x01U\x02")
        waits = asyncio.create_task(send)
        end = broker.store.commit_log.end + BODY_BYTES
        async with asyncio.timeout(10):
            while broker.store.commit_log.end < end:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        waiters = [broker.flush._waiters, broker.store.dispatch._waiting]
        assert len(large_bytes(waiters)) <= 1
        goes_on.set()
        await waits
    await broker.shutdown()
