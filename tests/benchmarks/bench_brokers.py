"""Brokers under test as pinned child processes, whatever they are written in.

A system (mailboat here, the Java broker in bench_java.py) only says how it is launched; starting,
waiting for the first accepted send, pausing, killing and reading memory are the same for all.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import bench_machine as machine
from bench_generator import Answer, finish_generator, run_generator, start_generator
from bench_machine import BenchError, Memory
from bench_targets import OURS

TOPIC = "bench"
QUEUES = 16

_START_TIMEOUT_S = 180.0
_UPDATE_AND_CREATE_TOPIC = 17
_GET_BROKER_CLUSTER_INFO = 106
_REGISTRATION_TIMEOUT_S = 30.0
# The address of each broker's master in the answer to that.
_BROKER_ADDRESS = re.compile(rb'"?0"?:"[^"]*:(\d+)"')


@dataclass(frozen=True)
class Variant:
    """How a broker is configured for a row."""

    sync_flush: bool = False
    http: bool = True
    smallest: bool = False
    """The least memory it can live with (a Java heap has to be chosen, mailboat has no such)."""
    both_cores: bool = False
    """Not pinned to the server's CPU."""
    brokers: int = 1
    """Brokers beside each other; a system that uses all cores with one ignores it."""
    settings: tuple[tuple[str, object], ...] = ()
    """More configuration keys of the broker."""


@dataclass(frozen=True)
class Launch:
    """A command, and what has to be added to the environment for it."""

    command: list[str]
    environment: dict[str, str]


class System(Protocol):
    """A broker that can be measured."""

    name: str
    client_name: str
    """Name and release of its client."""
    needs_warmup: bool
    """Whether each load has to be repeated until its cost settles."""
    may_pause: bool
    """Whether it survives SIGSTOP while another system is measured."""
    checkpoint_files: tuple[str, ...]
    """Where, in the store, it notes how far the derived files are durable."""

    def launch(self, home: Path, port: int, variant: Variant) -> Launch:
        """Return how to start a broker on this port that keeps everything below `home`."""
        ...

    def namesrv(self, port: int) -> str:
        """Return the name server of a broker that was launched on this port."""
        ...

    def client(self, home: Path, work: str, options: Mapping[str, object]) -> Launch:
        """Return how to start a client that prints windows; see client_loop.py."""
        ...

    def variants(self) -> frozenset[str]:
        """Return the kinds of variants this system has: "no-http", "smallest"."""
        ...


class Mailboat:
    """mailboat as `mailboat standalone`: name server and broker in one process."""

    name = OURS
    client_name = "mailboat.client"
    needs_warmup = False
    # Its supervisor takes a long stop for a stalled task and ends the process.
    may_pause = False
    checkpoint_files = ("mailboat/progress.json", "checkpoint")

    def launch(self, home: Path, port: int, variant: Variant) -> Launch:
        """Return the command line of the standalone server."""
        command = [sys.executable, "-m", "mailboat.cli", "standalone", "--ready-json"]
        command += ["--data-dir", str(home / "store")]
        command += ["--namesrv-port", str(port - 1), "--broker-port", str(port)]
        command += ["--http-port", "0"] if variant.http else ["--no-http"]
        if variant.brokers > 1:
            command += ["--brokers", str(variant.brokers)]
        settings = dict(variant.settings)
        if variant.sync_flush:
            settings["flushDiskType"] = "SYNC_FLUSH"
        for key, value in settings.items():
            command += ["-o", f"{key}={value}"]
        return Launch(command, {})

    def namesrv(self, port: int) -> str:
        """Return the name server in the same process."""
        return f"127.0.0.1:{port - 1}"

    def client(self, home: Path, work: str, options: Mapping[str, object]) -> Launch:
        """Return the command line of client_loop.py."""
        program = Path(__file__).with_name("client_loop.py")
        words = [f"{name}={value}" for name, value in options.items()]
        return Launch([sys.executable, str(program), work, *words], {})

    def variants(self) -> frozenset[str]:
        """Return that it can run without HTTP."""
        return frozenset({"no-http"})


class BrokerProcess:
    """One running broker."""

    def __init__(self, system: System, home: Path, variant: Variant) -> None:
        """Keep everything the broker writes below `home`; nothing is started yet."""
        self.system = system
        self.home = home
        self._variant = variant
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.was_loaded = False
        """Whether the running process has been warmed up once."""

    @property
    def pid(self) -> int:
        """The broker's process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def namesrv(self) -> str:
        """Its name server as `HOST:PORT`."""
        return self.system.namesrv(self.port)

    def start(self, port: int = 0) -> float:
        """Start it, pinned to its CPU unless it may use both; return the seconds to the first
        accepted send. Without a port it takes one that is free.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        self.port = port or machine.free_port()
        launch = self.system.launch(self.home, self.port, self._variant)
        self.was_loaded = False
        command = launch.command
        if not self._variant.both_cores:
            command = ["taskset", "-c", str(machine.server_cpu()), *command]
        options = {"topic": TOPIC, "broker": self.broker_names[0], "seconds": _START_TIMEOUT_S}
        waiter = start_generator("first", self.port, **options)
        # The waiter must already be trying when the broker begins to listen.
        time.sleep(0.2)
        with (self.home / "output.log").open("ab") as log:
            began_ns = time.monotonic_ns()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.home,
                env=environment_of(launch),
                start_new_session=True,
            )
        return (self._wait_first_send(waiter) - began_ns) / 1e9

    def _wait_first_send(self, waiter: subprocess.Popen[str]) -> int:
        while waiter.poll() is None:
            if self._process is not None and self._process.poll() is not None:
                waiter.kill()
                waiter.wait()
                raise BenchError(f"{self.system.name} ended at its start: {self.log_tail()}")
            time.sleep(0.01)
        return int(finish_generator(waiter, 10)["accepted_at_ns"])

    def create_topic(self, topic: str) -> None:
        """Give a topic all its queues."""
        create_topic(self.port, topic)

    @property
    def broker_names(self) -> list[str]:
        """What its brokers are called: clients name them, and mailboat's refuse another name."""
        if self._variant.brokers == 1 or self.system.name != OURS:
            return ["broker-a"]
        return [f"broker-a-{number}" for number in range(self._variant.brokers)]

    def ports(self) -> list[int]:
        """Return the ports of all its brokers, in the order of `broker_names`.

        Raises:
            BenchError: not all of them are with the name server after a while.
        """
        if len(self.broker_names) == 1:
            return [self.port]
        deadline_s = time.monotonic() + _REGISTRATION_TIMEOUT_S
        while True:
            port = int(self.namesrv.rpartition(":")[2])
            _header, body = request(port, _GET_BROKER_CLUSTER_INFO, {})
            ports = sorted({int(found) for found in _BROKER_ADDRESS.findall(body)})
            if len(ports) == self._variant.brokers:
                return ports
            if time.monotonic() > deadline_s:
                raise BenchError(f"only the brokers at {ports} are registered: {self.log_tail()}")
            time.sleep(0.1)

    def fill(self, topic: str, count: int) -> None:
        """Store messages of 1 KB in all queues of a topic."""
        self.load("batch", warmup=0, seconds=900, connections=16, count=count, topic=topic)

    def load(self, mode: str, *, warmup: float, seconds: float, **options: object) -> Answer:
        """Run the generator against this broker."""
        options = {"topic": TOPIC, "queues": QUEUES, **options}
        # What earlier rows left dirty is not this row's work.
        os.sync()
        return run_generator(
            mode, self.port, warmup=warmup, seconds=seconds, server_pid=self.pid, **options
        )

    def memory(self) -> Memory:
        """Return its resident memory."""
        return machine.memory_of(self.pid)

    def log_tail(self) -> str:
        """Return the end of what it printed."""
        return (self.home / "output.log").read_text(errors="replace")[-600:].strip()

    def pause(self) -> None:
        """Stop it from using the CPU while another system is measured."""
        if self.system.may_pause and self._process is not None:
            os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `pause`."""
        if self.system.may_pause and self._process is not None:
            os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill it as `kill -9` does; what it wrote stays."""
        if self._process is not None:
            end_group(self._process)
            self._process = None

    def close(self) -> None:
        """End it for good and remove everything it wrote."""
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None


def environment_of(launch: Launch) -> dict[str, str]:
    """Return the whole environment of a program."""
    return os.environ | launch.environment


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a group of its own, with all its children, and wait for it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def create_topic(port: int, topic: str) -> None:
    """Give a topic all its queues on a broker, as mqadmin's updateTopic does."""
    fields = {"topic": topic, "defaultTopic": "TBW102", "perm": "6", "order": "false"}
    fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
    fields |= {"readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES)}
    answer, _body = request(port, _UPDATE_AND_CREATE_TOPIC, fields)
    if answer["code"] != 0:
        raise BenchError(f"the broker on port {port} refused topic {topic}: {answer}")


def request(
    port: int, code: int, ext_fields: dict[str, str], body: bytes = b""
) -> tuple[dict[str, object], bytes]:
    """Send one JSON request and return the answer's header and body."""
    header = {"code": code, "extFields": ext_fields, "flag": 0, "language": "JAVA", "opaque": 1}
    data = json.dumps(header | {"serializeTypeCurrentRPC": "JSON", "version": 409}).encode()
    with contextlib.closing(_connect(port)) as connection:
        prefix = struct.pack(">ii", 4 + len(data) + len(body), len(data))
        connection.sendall(prefix + data + body)
        stream = connection.makefile("rb")
        total, header_length = struct.unpack(">ii", stream.read(8))
        answer: dict[str, object] = json.loads(stream.read(header_length))
        return answer, stream.read(total - 4 - header_length)


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)
