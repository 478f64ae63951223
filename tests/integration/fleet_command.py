"""`mailboat standalone` or `broker` with several processes below it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from cli_shell import until

from mailboat.client import Message, Producer

FREE_PORTS = ("--broker-port", "0", "--http-port", "0")
# That of a test machine may be rather full.
ANY_DISK = ("-o", "diskSpaceWarningLevelRatio=100")


class Command:
    """A server command with `--brokers`, and the processes below it."""

    def __init__(self, folder: Path, *words: str) -> None:
        """Start it with its store in `folder`."""
        environ = {name: text for name, text in os.environ.items() if "MAILBOAT" not in name}
        self.log_path = folder.with_name(f"{folder.name}-{time.monotonic_ns()}.log")
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "mailboat.cli",
                    *words,
                    "--data-dir",
                    str(folder),
                    *ANY_DISK,
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environ,
            )

    async def ready(self) -> dict[str, Any]:
        """Return where all serve, once they do."""
        assert self.process.stdout is not None
        line = await asyncio.to_thread(self.process.stdout.readline)
        assert line, self.log()
        ready: dict[str, Any] = json.loads(line)
        assert ready["pid"] == self.process.pid
        return ready

    async def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal to the supervisor and return its exit code."""
        self.process.send_signal(number)
        return await self.exit_code()

    async def exit_code(self) -> int:
        """Return the exit code once it has ended, and every process with it."""
        children = self.children()
        code = await asyncio.to_thread(self.process.wait, 30)
        assert not [child for child in children if child.is_running()]
        assert "Traceback" not in self.log()
        return code

    def children(self) -> list[psutil.Process]:
        """Return the processes below the supervisor."""
        try:
            return psutil.Process(self.process.pid).children()
        except psutil.NoSuchProcess:
            return []

    def log(self) -> str:
        """Return all that was said on standard error."""
        return self.log_path.read_text()

    def last_words(self) -> str:
        """Return the last line of standard error."""
        return self.log().splitlines()[-1]

    async def until_said(self, words: str) -> None:
        """Wait for something in the log."""

        async def is_said() -> bool:
            return words in self.log()

        await until(is_said)

    def close(self) -> None:
        """End every process, whatever they do."""
        for process in self.children():
            process.kill()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


Run = Callable[..., Command]


def commands(tmp_path: Path) -> Iterator[Run]:
    """Run `mailboat standalone` on free ports in a folder; what still runs at the end is killed."""
    started: list[Command] = []

    def start(*words: str, role: str = "standalone", folder: str = "store") -> Command:
        ports = ("--namesrv-port", "0") if role == "standalone" else ("--host", "127.0.0.1")
        command = Command(tmp_path / folder, role, *ports, *FREE_PORTS, "--ready-json", *words)
        started.append(command)
        return command

    yield start
    for command in started:
        command.close()


async def send(namesrv: str, numbers: range) -> dict[str, int]:
    """Send a message for each number to T; return how many each broker stored."""
    stored: dict[str, int] = {}
    async with Producer("P", namesrv=namesrv) as producer:
        for number in numbers:
            result = await producer.send(Message("T", b"%d" % number))
            name = result.message_queue.broker_name
            stored[name] = stored.get(name, 0) + 1
    return stored
