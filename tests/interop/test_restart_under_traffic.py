"""A stock Java producer that looks at its routes just while one of two brokers restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mailboat.testing.cluster import Cluster

if TYPE_CHECKING:
    from conftest import JavaClientFactory

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

BROKER = "broker-a"


@pytest.mark.parametrize("end", ["in order", "connection lost"])
@pytest.mark.parametrize("line", ["4.9.8", "5.5.0"])
async def test_a_look_during_a_restart_forgets_no_broker(
    line: str, end: str, new_java_client: JavaClientFactory, tmp_path: Path
) -> None:
    """With `routeKeptSeconds` the broker is sent to as soon as it is back, not 30 s later."""
    async with Cluster(
        tmp_path / "cluster", brokers=2, options={"routeKeptSeconds": "60"}
    ) as cluster:
        client = await asyncio.to_thread(new_java_client, line, cluster.namesrv_addresses)
        await asyncio.to_thread(client.call, "create_topic", topic="restart", queues=2)
        steady = client.start("steady", topic="restart", group="p", file=tmp_path / "sent")
        of_broker = {"handle": steady.number, "broker": BROKER}
        await asyncio.to_thread(steady.wait_done)
        await asyncio.to_thread(client.call, "steady_await", **of_broker)
        if end == "connection lost":
            await cluster.broker(0).registration.close()
        await cluster.stop_broker(0)
        await asyncio.to_thread(client.call, "steady_await", **of_broker, failed="true")
        await asyncio.to_thread(client.call, "steady_look", handle=steady.number)
        await cluster.start_broker(0)
        # The first may have begun before the look.
        await asyncio.to_thread(client.call, "steady_await", **of_broker, count=5)
        told = await asyncio.to_thread(client.call, "steady_stop", handle=steady.number)

    assert {event["broker"] for event in told} == {"broker-a", "broker-b"}
    [failures] = [event["failures"] for event in told if event["broker"] == BROKER]
    assert "not exist" not in failures
