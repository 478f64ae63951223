"""A group of `mailboat broker` processes on loopback, with a name server, to be killed and stopped.

Each keeps its ports and its folder over its deaths.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mailboat.cli import main
from mailboat.cli.replica.broker_http import BrokerHttp, ask
from mailboat.config import load_settings
from mailboat.disk.real import RealDisk
from mailboat.errors import MailboatError
from mailboat.model.hosts import encode_host
from mailboat.store.message_store import MessageStore
from mailboat.testing.history import QueueKey, QueueView
from mailboat.testing.kept_ports import KeptPorts
from mailboat.testing.store_reading import read_store

_END_TIMEOUT_S: Final = 60
_PARTS: Final = ("broker", "replicas", "http")
SMALL_FILES: Final = {
    "mappedFileSizeCommitLog": 262_144,
    "mappedFileSizeConsumeQueue": 2_000,
    "maxHashSlotNum": 100,
    "maxIndexNum": 1_000,
    "diskSpaceWarningLevelRatio": 100,
    "diskSpaceCleanForciblyRatio": 100,
}


def read_folder(folder: Path, topics: Collection[str]) -> dict[QueueKey, QueueView]:
    """Return what consumers could read of some topics in a replica's store that is not in use."""
    own = {"storePathRootDir": str(folder)} | {
        key: str(value) for key, value in SMALL_FILES.items()
    }
    config = load_settings("broker", overrides=own).store
    store = MessageStore(config, RealDisk(), store_host=encode_host("127.0.0.1", 10_911))
    store.open()
    try:
        views = read_store(store)
    finally:
        store.close()
    return {key: view for key, view in views.items() if key[0] in topics}


class ServerProcess:
    """A server command; it begins at once, and its log goes on in one file."""

    def __init__(
        self,
        log_path: Path,
        role: str,
        *words: str,
        host: str = "127.0.0.1",
        starter: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it with the words of its command line, by way of the command `starter`."""
        self._log_path = log_path
        own = {name: text for name, text in os.environ.items() if "MAILBOAT" not in name}
        command = [*starter, sys.executable, "-m", "mailboat.cli", role, "--host", host]
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--ready-json", *words],
                stdout=subprocess.PIPE,
                stderr=log,
                env={**own, **(environment or {})},
            )

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def wait_ready(self) -> dict[str, Any]:
        """Return where it serves, once it does; blocks."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._log_path.read_text()[-2000:]
        ready: dict[str, Any] = json.loads(line)
        return ready

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def end(self, number: int) -> int:
        """Send a signal and wait for the end; returns the exit code. May be called again."""
        if self._process.poll() is None:
            self._process.send_signal(number)
            self._process.send_signal(signal.SIGCONT)
        code = self._process.wait(timeout=_END_TIMEOUT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code


class ReplicaProcesses:
    """The replicas of one group, by ordinal."""

    def __init__(self, root: Path, replicas: int, **options: object) -> None:
        """Keep everything below `root`; nothing runs before `start_all`."""
        self.root = root
        self.ordinals = range(replicas)
        self._options = {**SMALL_FILES, "totalReplicas": replicas, **options}
        self._namesrv: ServerProcess | None = None
        self._namesrv_address = ""
        self._processes: dict[int, ServerProcess] = {}
        self._addresses: dict[int, dict[str, str]] = {}
        self._kept_ports = KeptPorts()
        self._ports: dict[int, dict[str, int]] = {}

    def start_all(self) -> None:
        """Start everything; blocks."""
        words = ["--namesrv-port", "0", "--no-http", "-o"]
        words.append(f"kvConfigPath={self.root / 'kvConfig.json'}")
        self._namesrv = ServerProcess(self.root / "namesrv.log", "namesrv", *words)
        self._namesrv_address = self._namesrv.wait_ready()["namesrv"]
        for ordinal in self.ordinals:
            self.start(ordinal)

    def start(self, ordinal: int) -> None:
        """Start a replica where it was before; blocks until it serves."""
        if ordinal not in self._ports:
            self._ports[ordinal] = {part: self._kept_ports.take() for part in _PARTS}
        ports = self._ports[ordinal]
        options = {
            **self._options,
            "brokerName": "broker-a",
            "brokerId": ordinal,
            "brokerRole": "SLAVE" if ordinal else "SYNC_MASTER",
            "haListenPort": ports["replicas"],
            "fastListenEnable": "false",
            "haMasterAddress": ";".join(each["replicas"] for each in self._addresses.values()),
        }
        words = ["-n", self._namesrv_address, "--data-dir", str(self.folder(ordinal))]
        words += ["--broker-port", str(ports["broker"]), "--http-port", str(ports["http"])]
        words += [f"-o{key}={value}" for key, value in options.items()]
        process = ServerProcess(self.root / f"replica-{ordinal}.log", "broker", *words)
        self._processes[ordinal] = process
        ready = process.wait_ready()
        self._addresses[ordinal] = {part: ready[part] for part in _PARTS}

    def folder(self, ordinal: int) -> Path:
        """Return where a replica has its store."""
        return self.root / f"replica-{ordinal}"

    def address(self, ordinal: int) -> tuple[str, int]:
        """Return where a replica serves clients."""
        host, _, port = self._addresses[ordinal]["broker"].rpartition(":")
        return host, int(port)

    def kill(self, *ordinals: int) -> None:
        """Kill replicas as `kill -9` does; blocks until they are gone."""
        for ordinal in ordinals:
            self._processes[ordinal].signal(signal.SIGKILL)
        for ordinal in ordinals:
            self._processes.pop(ordinal).end(signal.SIGKILL)

    def is_running(self, ordinal: int) -> bool:
        """Tell whether a replica was not killed."""
        return ordinal in self._processes

    def halt(self, ordinal: int) -> None:
        """Let a replica do nothing until `go_on`."""
        self._processes[ordinal].signal(signal.SIGSTOP)

    def go_on(self, ordinal: int) -> None:
        """End a halt."""
        self._processes[ordinal].signal(signal.SIGCONT)

    def start_missing(self) -> None:
        """Start who was killed; blocks."""
        for ordinal in self.ordinals:
            if ordinal not in self._processes:
                self.start(ordinal)

    def status(self, ordinal: int) -> dict[str, Any] | None:
        """Return what a replica says of itself, None where it does not answer; blocks."""
        try:
            broker = BrokerHttp(self._addresses[ordinal]["http"])
            found: dict[str, Any] = ask(broker, "GET", "/api/v1/replica")
        except MailboatError:
            return None
        return found

    def promote(self, ordinal: int, *words: str) -> bool:
        """Promote a replica with the command; blocks, and tells whether it leads."""
        http = self._addresses[ordinal]["http"]
        return main(["replica", "promote", "--http", http, *words]) == 0

    def logs(self) -> str:
        """Return all that the processes have logged."""
        return "".join(path.read_text() for path in sorted(self.root.glob("*.log")))

    def end_all(self) -> list[int]:
        """End the replicas in order, the name server last; returns the replicas' exit codes."""
        codes = [process.end(signal.SIGTERM) for process in self._processes.values()]
        self._processes.clear()
        self.kill_all()
        return codes

    def kill_all(self) -> None:
        """End whatever runs."""
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.end(signal.SIGKILL)
        self._processes.clear()
        self._kept_ports.close()
        if self._namesrv is not None:
            self._namesrv.end(signal.SIGTERM)
            self._namesrv = None


async def until(holds: Callable[[], bool], within_s: float) -> bool:
    """Wait until a blocking look at processes finds something; tell whether it did in time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while not await asyncio.to_thread(holds):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            return True
    return False
