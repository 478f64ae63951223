"""The end of a broker on SIGTERM with shutdownDrainSeconds, and whose store it opens."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fleet_command import ANY_DISK

from mailboat.client.producer import Producer
from mailboat.model.message import Message
from mailboat.model.message_queue import MessageQueue
from mailboat.model.topic import Perm
from mailboat.testing.cluster import Cluster

PATIENCE_S = 60
"""What only a process that hangs, or a drain of ten minutes, takes."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Run a name server alone."""
    async with Cluster(tmp_path / "cluster", brokers=0) as cluster:
        yield cluster


class Process:
    """A broker process at a name server."""

    def __init__(self, namesrv: str, root: Path, *options: str) -> None:
        """Start it."""
        environ = {name: text for name, text in os.environ.items() if "MAILBOAT" not in name}
        command = [sys.executable, "-m", "mailboat.cli", "broker", "-n", namesrv]
        command += ["--host", "127.0.0.1", "--broker-port", "0", "--http-port", "0"]
        command += ["--ready-json", "--data-dir", str(root), *ANY_DISK]
        command += [text for option in options for text in ("-o", option)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, env=environ | {"PYTHONPATH": _PATH}
        )

    async def ready(self) -> dict[str, Any]:
        """Return where it serves."""
        assert self.process.stdout is not None
        line = await asyncio.to_thread(self.process.stdout.readline)
        assert line, self.process.communicate()[1]
        return dict(json.loads(line))

    async def end(self) -> tuple[int, str]:
        """Return exit code and log once it has ended."""
        _, errors = await asyncio.to_thread(self.process.communicate, timeout=PATIENCE_S)
        return self.process.returncode, errors

    def kill(self) -> None:
        """End it whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


_PATH = str(Path(__file__).resolve().parents[2] / "broker" / "src")


def permission(cluster: Cluster, topic: str) -> int | None:
    """Return what the name server says clients may do, None without a route."""
    route = cluster.name_server().routes.route(topic)
    return None if route is None else route.queue_datas[0].perm


async def until_permission(cluster: Cluster, expected: int | None) -> None:
    """Wait for an answer of the name server."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if permission(cluster, "T") == expected:
                return
            await asyncio.sleep(0.02)


async def test_a_draining_broker_is_read_only_in_the_route_and_still_takes_sends(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Producers with an old route lose nothing; after the drain the broker ends in order."""
    process = Process(cluster.namesrv_addresses, tmp_path / "store", "shutdownDrainSeconds=6")
    try:
        ready = await process.ready()
        async with Producer("p", namesrv=cluster.namesrv_addresses) as producer:
            await producer.send(Message("T", b"before"))
            await until_permission(cluster, Perm.READ | Perm.WRITE)
            started = time.monotonic()
            process.process.send_signal(signal.SIGTERM)
            await until_permission(cluster, Perm.READ)
            queue = MessageQueue("T", "broker-a", 0)
            await producer.send(Message("T", b"meanwhile"), queue=queue)
            assert await asyncio.to_thread(_phase, ready["http"]) == "draining"
            await until_permission(cluster, None)
        exit_code, errors = await process.end()
        assert exit_code == 0, errors
        assert time.monotonic() - started >= 6
        assert not (tmp_path / "store" / "abort").exists()
        assert "Traceback" not in errors
    finally:
        process.kill()


async def test_a_second_signal_skips_the_drain(cluster: Cluster, tmp_path: Path) -> None:
    """The rest of the end is as orderly as ever."""
    process = Process(cluster.namesrv_addresses, tmp_path / "store", "shutdownDrainSeconds=600")
    try:
        await process.ready()
        async with Producer("p", namesrv=cluster.namesrv_addresses) as producer:
            await producer.send(Message("T", b"x"))
        await until_permission(cluster, Perm.READ | Perm.WRITE)
        process.process.send_signal(signal.SIGTERM)
        await until_permission(cluster, Perm.READ)
        process.process.send_signal(signal.SIGTERM)
        exit_code, errors = await process.end()
        assert exit_code == 0, errors
        assert not (tmp_path / "store" / "abort").exists()
        assert permission(cluster, "T") is None
    finally:
        process.kill()


async def test_the_store_of_another_broker_is_not_served(cluster: Cluster, tmp_path: Path) -> None:
    """Exit code 4 and one sentence; deleting the file renames the broker on purpose."""
    root = tmp_path / "store"
    first = Process(cluster.namesrv_addresses, root)
    second = third = None
    try:
        await first.ready()
        first.process.send_signal(signal.SIGTERM)
        assert (await first.end())[0] == 0
        second = Process(cluster.namesrv_addresses, root, "brokerName=broker-b")
        exit_code, errors = await second.end()
        assert exit_code == 4
        [sentence] = [line for line in errors.splitlines() if line.startswith("mailboat: ")]
        assert "belongs to broker broker-a" in sentence
        identity = root / "mailboat" / "identity.json"
        assert str(identity) in sentence
        identity.unlink()
        third = Process(cluster.namesrv_addresses, root, "brokerName=broker-b")
        await third.ready()
        assert json.loads(identity.read_text())["brokerName"] == "broker-b"
    finally:
        for process in (first, second, third):
            if process is not None:
                process.kill()


def _phase(http: str) -> str:
    with urllib.request.urlopen(f"http://{http}/api/v1/broker", timeout=PATIENCE_S) as answer:
        return str(json.load(answer)["phase"])
