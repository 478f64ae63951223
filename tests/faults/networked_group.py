"""Three brokers, each on a machine of its own, and one more for the name server and the clients."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import struct
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from kill_process import PlainConnection
from namespaces import Machine, Network
from replica_processes import SMALL_FILES, ReplicaProcesses, ServerProcess
from shim import Shim

from mailboat.cli import main
from mailboat.cli.replica.broker_http import BrokerHttp, ask
from mailboat.errors import MailboatError

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

REPLICAS: Final = 3
CLIENTS: Final = 3
"""The number of the machine of the clients."""

_BROKER_PORT, _REPLICAS_PORT, _HTTP_PORT, _NAMESRV_PORT = 10911, 10912, 8080, 9876
# Nothing that was started in a machine outlives it.
_STARTER: Final = ("setpriv", "--pdeathsig", "KILL")
_CONNECT_S: Final = 2.0
# What is not sent yet when a client gives up is not sent later: SO_LINGER without any time.
_RESET: Final = struct.pack("ii", 1, 0)
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


class NetworkedGroup(ReplicaProcesses):
    """The processes, their machines and what is wrong with those."""

    def __init__(
        self, root: Path, library: Path, *, disk_bytes: int = 0, **options: object
    ) -> None:
        """Make the machines; with `disk_bytes` each has a volume of that size in memory."""
        super().__init__(root, REPLICAS)
        self._options = {
            **SMALL_FILES,
            "totalReplicas": REPLICAS,
            "brokerRole": "SYNC_MASTER",
            "slaveReadEnable": "true",
            "fastListenEnable": "false",
            **options,
        }
        self.network = Network(REPLICAS + 1)
        self.shims: list[Shim] = []
        self.halted: set[int] = set()
        for ordinal in self.ordinals:
            folder = self.folder(ordinal)
            folder.mkdir()
            self.shims.append(Shim(library, root / f"shim-{ordinal}", folder))
            if disk_bytes:
                size = f"size={disk_bytes}"
                self._machine(ordinal).run("mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder))

    def _machine(self, number: int) -> Machine:
        return self.network.machines[number]

    # -- processes ------------------------------------------------------------------------------

    def start_all(self) -> None:
        """Start everything; blocks."""
        host = self.network.address(CLIENTS)
        words = ["--namesrv-port", str(_NAMESRV_PORT), "--no-http", "-o"]
        words.append(f"kvConfigPath={self.root / 'kvConfig.json'}")
        start = partial(ServerProcess, self.root / "namesrv.log", "namesrv", *words)
        self._namesrv = self._machine(CLIENTS).do(start, host=host, starter=_STARTER)
        self._namesrv_address = self._namesrv.wait_ready()["namesrv"]
        for ordinal in self.ordinals:
            self.launch(ordinal)
        for ordinal in self.ordinals:
            self.wait_ready(ordinal)

    def launch(self, ordinal: int) -> None:
        """Start a replica without waiting until it serves."""
        host = self.network.address(ordinal)
        others = [f"{self.network.address(other)}:{_REPLICAS_PORT}" for other in self.ordinals]
        options = {
            **self._options,
            "brokerName": "broker-a",
            "brokerId": ordinal,
            "brokerRole": "SLAVE" if ordinal else self._options["brokerRole"],
            "haListenPort": _REPLICAS_PORT,
            "haMasterAddress": ";".join(others),
        }
        words = ["-n", self._namesrv_address, "--data-dir", str(self.folder(ordinal))]
        words += ["--broker-port", str(_BROKER_PORT), "--http-port", str(_HTTP_PORT)]
        words += [f"-o{key}={value}" for key, value in options.items()]
        start = partial(ServerProcess, self.root / f"replica-{ordinal}.log", "broker", *words)
        self._processes[ordinal] = self._machine(ordinal).do(
            start,
            host=host,
            starter=_STARTER,
            environment=self.shims[ordinal].environment(),
        )

    def wait_ready(self, ordinal: int) -> None:
        """Wait until a replica that was launched serves; blocks."""
        self._processes[ordinal].wait_ready()

    def start(self, ordinal: int) -> None:
        """Start a replica where it was before; blocks until it serves."""
        self.launch(ordinal)
        self.wait_ready(ordinal)

    def is_running(self, ordinal: int) -> bool:
        """Tell whether the process of a replica is there."""
        return ordinal in self._processes and self._processes[ordinal].is_running

    def kill(self, *ordinals: int) -> None:
        """Kill replicas as `kill -9` does; blocks until they are gone."""
        super().kill(*(ordinal for ordinal in ordinals if ordinal in self._processes))
        self.halted.difference_update(ordinals)

    def start_missing(self) -> None:
        """Start who was killed or has ended; blocks."""
        for ordinal in self.ordinals:
            if not self.is_running(ordinal):
                self.kill(ordinal)
                self.start(ordinal)

    def halt(self, ordinal: int) -> None:
        """Let a replica do nothing until `go_on`."""
        self.halted.add(ordinal)
        super().halt(ordinal)

    def go_on(self, ordinal: int) -> None:
        """End a halt."""
        super().go_on(ordinal)
        self.halted.discard(ordinal)

    def end_replicas(self) -> list[int]:
        """End the replicas in order; returns their exit codes. The machines stay."""
        codes = [self._processes[ordinal].end(signal.SIGTERM) for ordinal in self.ordinals]
        self._processes.clear()
        return codes

    def kill_all(self) -> None:
        """End whatever runs, and the machines."""
        super().kill_all()
        self.network.close()

    # -- what a person does, on the machine itself ----------------------------------------------

    def ask(self, ordinal: int, method: str, path: str, body: object = None) -> Any:
        """Ask a replica at its HTTP port; blocks.

        Raises:
            MailboatError: it refuses, or there is no answer.
        """
        if ordinal in self.halted:
            raise MailboatError(f"replica {ordinal} is halted")
        address = f"{self.network.address(ordinal)}:{_HTTP_PORT}"
        return self._machine(ordinal).call(ask, BrokerHttp(address), method, path, body)

    def status(self, ordinal: int) -> dict[str, Any] | None:
        """Return what a replica says of itself, None where it does not answer; blocks."""
        try:
            found: dict[str, Any] = self.ask(ordinal, "GET", "/api/v1/replica")
        except MailboatError:
            return None
        return found

    def promote(self, ordinal: int, *words: str) -> bool:
        """Promote a replica with the command; blocks, and tells whether it leads."""
        command = ["replica", "promote", "--http", f"{self.network.address(ordinal)}:{_HTTP_PORT}"]
        return self._machine(ordinal).call(main, [*command, *words]) == 0

    # -- clients --------------------------------------------------------------------------------

    async def connect(self, ordinal: int) -> PlainConnection:
        """Connect to a replica from the machine of the clients.

        Raises:
            OSError: there is no connection in time.
        """
        loop = asyncio.get_running_loop()
        kinds = socket.AF_INET, socket.SOCK_STREAM
        sock = await loop.run_in_executor(self._machine(CLIENTS).workers, socket.socket, *kinds)
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        try:
            async with asyncio.timeout(_CONNECT_S):
                await loop.sock_connect(sock, (self.network.address(ordinal), _BROKER_PORT))
        except BaseException:
            sock.close()
            raise
        return PlainConnection(*await asyncio.open_connection(sock=sock))

    # -- volumes --------------------------------------------------------------------------------

    def on_volume(
        self,
        ordinal: int,
        call: Callable[_Parameters, _Result],
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> _Result:
        """Call something that sees the volume of a replica; blocks."""
        return self._machine(ordinal).do(call, *args, **kwargs)

    def wipe(self, ordinal: int) -> None:
        """Give a replica that does not run an empty volume."""
        self.on_volume(ordinal, _empty, self.folder(ordinal))

    def keep_snapshot(self, ordinal: int) -> None:
        """Copy the volume of a replica that does nothing meanwhile."""
        copy = self.root / f"snapshot-{ordinal}"
        shutil.rmtree(copy, ignore_errors=True)
        self.on_volume(ordinal, shutil.copytree, self.folder(ordinal), copy)

    def put_snapshot_back(self, ordinal: int, from_whom: int | None = None) -> None:
        """Give a replica that does not run the volume that it, or another one, had once."""
        self.wipe(ordinal)
        copy = self.root / f"snapshot-{ordinal if from_whom is None else from_whom}"
        self.on_volume(ordinal, shutil.copytree, copy, self.folder(ordinal), dirs_exist_ok=True)

    def swap_volumes(self, one: int, other: int) -> None:
        """Let two replicas that do not run have each other's volume."""
        self.keep_snapshot(one)
        self.keep_snapshot(other)
        for ordinal, from_whom in ((one, other), (other, one)):
            self.put_snapshot_back(ordinal, from_whom)

    def fill_disk(self, ordinal: int) -> None:
        """Leave no room on a replica's volume, until `free_disk`."""
        self.on_volume(ordinal, _fill, self.folder(ordinal) / "ballast")

    def free_disk(self, ordinal: int) -> None:
        """End `fill_disk`."""
        self.on_volume(ordinal, (self.folder(ordinal) / "ballast").unlink, missing_ok=True)

    def reboot(self, ordinal: int) -> None:
        """Let the machine of a replica that does not run have another boot id from now on."""
        path = self.root / f"boot-{ordinal}"
        path.write_text(f"boot-{ordinal}-{time.monotonic_ns()}\n")
        self._machine(ordinal).run("mount", "--bind", str(path), _BOOT_ID)


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _fill(path: Path) -> None:
    usage = os.statvfs(path.parent)
    piece = bytes(1 << 16)
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        # A broker writes meanwhile.
        os.posix_fallocate(file.fileno(), 0, usage.f_bavail * usage.f_frsize * 9 // 10)
        file.seek(0, os.SEEK_END)
        while True:
            file.write(piece)
