"""Runs commands of the command line against a cluster, in this process or as one of their own.

Beside that, what their tests put into a cluster and look up there without the commands.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mailboat.cli import main
from mailboat.client import Admin, Message, MessageExt, MessageQueue, Producer
from mailboat.model.topic import TopicConfig
from mailboat.testing.cluster import Cluster

PROCESS_TIMEOUT_S = 60.0


async def until(
    check: Callable[[], Awaitable[bool]], *, within_s: float = 30.0, pause_s: float = 0.02
) -> None:
    """Wait for something that nothing tells of."""
    async with asyncio.timeout(within_s):
        while True:
            if await check():
                return
            await asyncio.sleep(pause_s)


class Shell:
    """Runs commands beside the event loop that serves the cluster."""

    def __init__(self, cluster: Cluster, capture: pytest.CaptureFixture[bytes]) -> None:
        """Use the name servers of `cluster`."""
        self._namesrv = cluster.namesrv_addresses
        self._capture = capture
        self._processes: list[asyncio.subprocess.Process] = []
        self.error = ""

    async def run(self, *words: str, code: int = 0) -> str:
        """Run one command, which must end with `code`, and return its output."""
        found = await asyncio.to_thread(main, [*words, "-n", self._namesrv])
        captured = self._capture.readouterr()
        self.error = captured.err.decode()
        assert found == code, self.error + captured.out.decode()
        return captured.out.decode()

    async def json(self, *words: str) -> Any:
        """Run one command with --json and return the one document that it printed."""
        return json.loads(await self.run(*words, "--json"))

    async def fails(self, *words: str, code: int = 1) -> str:
        """Run a command that must fail; return its one sentence, with nothing on the output."""
        assert await self.run(*words, code=code) == ""
        assert self.error.count("\n") == 1, self.error
        return self.error.strip()

    async def start(self, *words: str, **options: Any) -> asyncio.subprocess.Process:
        """Start a command as a process of its own, which ends with `aclose` at the latest."""
        return await self.spawn(*self.command(*words), **options)

    async def spawn(self, *words: str, **options: Any) -> asyncio.subprocess.Process:
        """Start a program, which ends with `aclose` at the latest."""
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.PIPE)
        process = await asyncio.create_subprocess_exec(
            *words, **{**pipes, "env": self.environment(), **options}
        )
        self._processes.append(process)
        return process

    async def aclose(self) -> None:
        """Kill the processes that still run."""
        for process in self._processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):  # It may end meanwhile.
                    process.kill()
                await process.communicate()

    def command(self, *words: str) -> list[str]:
        """Return the words that start a command as a process."""
        return [sys.executable, "-m", "mailboat.cli", *words]

    def environment(self) -> dict[str, str]:
        """Return what such a process finds its name servers and its modules by."""
        path = os.pathsep.join(filter(None, sys.path))
        return {**os.environ, "MAILBOAT_NAMESRV": self._namesrv, "PYTHONPATH": path}

    async def process(self, *words: str, data: bytes = b"") -> tuple[int, bytes, bytes]:
        """Run a command as a process and return its exit code, output and errors."""
        process = await self.start(*words)
        try:
            out, err = await asyncio.wait_for(process.communicate(data), PROCESS_TIMEOUT_S)
        finally:
            await self.aclose()
        assert process.returncode is not None
        return process.returncode, out, err


async def make_topic(cluster: Cluster, topic: str, queues: int = 1, **options: str) -> None:
    """Create a topic, so that the number of its queues is known."""
    async with Admin(namesrv=cluster.namesrv_addresses) as admin:
        await admin.topics.create(TopicConfig(topic, queues, queues), **options)


async def send(cluster: Cluster, topic: str, numbers: range, **properties: str) -> list[str]:
    """Send a message for each number, in turn over the queues; return the producer's ids."""
    ids = []
    async with Producer("P", namesrv=cluster.namesrv_addresses) as producer:
        queues = await producer.queues(topic)
        for number in numbers:
            message = Message(
                topic,
                b"%d" % number,
                tags="even" if number % 2 == 0 else "odd",
                keys=f"k{number}",
                properties={"n": str(number), **properties},
            )
            queue = queues[number % len(queues)]
            ids.append((await producer.send(message, queue=queue)).message_id)
    return ids


async def next_ms() -> int:
    """Wait until the clock is past all that is stored; return a time that is later than that."""
    start_ms = time.time_ns() // 1_000_000

    async def is_later() -> bool:
        return time.time_ns() // 1_000_000 > start_ms + 1

    await until(is_later, pause_s=0)
    return start_ms + 2


async def length(cluster: Cluster, topic: str) -> int:
    """Return how many messages a topic holds."""
    async with Admin(namesrv=cluster.namesrv_addresses) as admin:
        if topic not in await admin.topics.names():
            return 0
        bounds = (await admin.topics.stats(topic)).values()
        return sum(each.max_offset - each.min_offset for each in bounds)


async def stored(cluster: Cluster, topic: str) -> list[MessageExt]:
    """Return every message of a topic."""
    async with Admin(namesrv=cluster.namesrv_addresses) as admin:
        return [
            message
            for queue, bounds in (await admin.topics.stats(topic)).items()
            async for message in admin.messages.browse(queue, 0, bounds.max_offset)
        ]


async def committed(cluster: Cluster, group: str = "C") -> list[int | None]:
    """Return what the broker has stored for a group in the two queues of T."""
    async with Admin(namesrv=cluster.namesrv_addresses) as admin:
        queues = [MessageQueue("T", "broker-a", queue_id) for queue_id in (0, 1)]
        return [await admin.offsets.committed(group, queue) for queue in queues]
