"""A log that nobody reads, on a full disk or without an end, holds up nothing."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import aiohttp
import pytest
from compiled_core import plain_environment
from raw_client import RawClient

from mailboat.protocol.codes import RequestCode

Start = Callable[[str], subprocess.Popen[str]]

# Each logs a line or two.
JOINED_AND_LEFT = 30


def _log_end(kind: str) -> list[int]:
    """Return a descriptor to log to, and others that are to stay open."""
    if kind == "full disk":
        return [os.open("/dev/full", os.O_WRONLY)]
    reading, writing = os.pipe()
    if kind == "nobody holds it":
        os.close(reading)
        return [writing]
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while os.write(writing, b"." * 4096):
            pass
    os.set_blocking(writing, True)
    return [writing, reading]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a broker with its name server and a kind of log; what runs at the end is killed."""
    processes, ends = [], []

    def started(kind: str) -> subprocess.Popen[str]:
        ends.extend(_log_end(kind))
        arguments = ["standalone", "--data-dir", str(tmp_path / "data"), "--ready-json"]
        ports = ["--namesrv-port", "0", "--broker-port", "0", "--http-port", "0"]
        process = subprocess.Popen(
            [sys.executable, "-m", "mailboat.cli", *arguments, *ports],
            stdout=subprocess.PIPE,
            stderr=ends[0],
            text=True,
            env=plain_environment(),
        )
        processes.append(process)
        return process

    yield started
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()
    for fd in ends:
        os.close(fd)


@pytest.mark.parametrize("kind", ["nobody reads", "full disk", "nobody holds it"])
async def test_a_broken_log_holds_up_nothing(start: Start, tmp_path: Path, kind: str) -> None:
    """Clients are served, lines that failed are counted, SIGTERM ends the process in order."""
    process = start(kind)
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    async with AsyncExitStack() as stack:
        client = RawClient(ready["broker"])
        stack.push_async_callback(client.close)
        await client.make_topic("T", 1)
        for _ in range(JOINED_AND_LEFT):
            await client.heartbeat("T", group="G")
            await client.ok(
                RequestCode.UNREGISTER_CLIENT,
                {"clientID": client.client_id, "consumerGroup": "G"},
            )
        await client.send("T", b"x")
        http = await stack.enter_async_context(aiohttp.ClientSession(f"http://{ready['http']}"))
        async with http.get("/metrics") as answer:
            page = await answer.text()
    counted = {line.split()[0]: line.split()[1] for line in page.splitlines() if line[0] != "#"}
    # A pipe that is full takes nothing, and refuses nothing either.
    failed = float(counted["mailboat_log_lines_dropped_total"])
    assert failed > 0 if kind != "nobody reads" else failed == 0
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    assert not (tmp_path / "data" / "abort").exists()
