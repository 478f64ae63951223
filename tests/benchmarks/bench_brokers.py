"""Brokers under test as pinned child processes, whatever they are written in.

A system (mailboat here, the Java broker in bench_java.py) only says how it is launched; starting,
waiting for the first accepted send, pausing, killing and reading memory are the same for all.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import bench_machine as machine
from bench_generator import Answer, finish_generator, run_generator, start_generator
from bench_machine import BenchError, Memory

TOPIC = "bench"
QUEUES = 16

_START_TIMEOUT_S = 180.0
_STOP_TIMEOUT_S = 15.0
_UPDATE_AND_CREATE_TOPIC = 17


@dataclass(frozen=True)
class Variant:
    """How a broker is configured for a row."""

    sync_flush: bool = False
    http: bool = True
    smallest: bool = False
    """The least memory it can live with (a Java heap has to be chosen, mailboat has no such)."""


@dataclass(frozen=True)
class Launch:
    """A command, and what has to be added to the environment for it."""

    command: list[str]
    environment: dict[str, str]


class System(Protocol):
    """A broker that can be measured."""

    name: str
    warmup_s: float
    """Load it needs after a start before its numbers mean something."""
    may_pause: bool
    """Whether it survives SIGSTOP while another system is measured."""

    def launch(self, home: Path, port: int, variant: Variant) -> Launch:
        """Return how to start a broker on this port that keeps everything below `home`."""
        ...

    def variants(self) -> frozenset[str]:
        """Return the kinds of variants this system has: "no-http", "smallest"."""
        ...


class Mailboat:
    """mailboat as `mailboat standalone`: name server and broker in one process."""

    name = "mailboat"
    warmup_s = 0.0
    # Its supervisor takes a long stop for a stalled task and ends the process.
    may_pause = False

    def launch(self, home: Path, port: int, variant: Variant) -> Launch:
        """Return the command line of the standalone server."""
        command = [sys.executable, "-m", "mailboat.cli", "standalone", "--ready-json"]
        command += ["--data-dir", str(home / "store"), "--namesrv-port", "0"]
        command += ["--broker-port", str(port)]
        command += ["--http-port", "0"] if variant.http else ["--no-http"]
        if variant.sync_flush:
            command += ["-o", "flushDiskType=SYNC_FLUSH"]
        return Launch(command, {})

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

    @property
    def pid(self) -> int:
        """The broker's process id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Start it pinned to its CPU; return the seconds to the first accepted send."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.port = machine.free_port()
        launch = self.system.launch(self.home, self.port, self._variant)
        command = ["taskset", "-c", str(machine.server_cpu()), *launch.command]
        waiter = start_generator("first", self.port, topic=TOPIC, seconds=_START_TIMEOUT_S)
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
                env=os.environ | launch.environment,
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
        """Give a topic all its queues, as mqadmin's updateTopic does."""
        fields = {"topic": topic, "defaultTopic": "TBW102", "perm": "6", "order": "false"}
        fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
        fields |= {"readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES)}
        answer = request(self.port, _UPDATE_AND_CREATE_TOPIC, fields)
        if answer["code"] != 0:
            raise BenchError(f"{self.system.name} refused topic {topic}: {answer}")

    def load(self, mode: str, *, warmup: float, seconds: float, **options: object) -> Answer:
        """Run the generator against this broker."""
        options = {"topic": TOPIC, "queues": QUEUES, **options}
        # What earlier rows left dirty is not this row's work.
        os.sync()
        return run_generator(
            mode, self.port, warmup=warmup, seconds=seconds, server_pid=self.pid, **options
        )

    def warm_up(self) -> None:
        """Let a just-in-time compiler see 16 x 16 sends for as long as the system needs."""
        if self.system.warmup_s:
            options = {"connections": 16, "depth": 16}
            self.load("send", warmup=0, seconds=self.system.warmup_s, **options)

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
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End it for good and remove everything it wrote."""
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None


def request(port: int, code: int, ext_fields: dict[str, str]) -> dict[str, object]:
    """Send one JSON request without a body and return the answer's header."""
    header = {"code": code, "extFields": ext_fields, "flag": 0, "language": "JAVA", "opaque": 1}
    data = json.dumps(header | {"serializeTypeCurrentRPC": "JSON", "version": 409}).encode()
    with contextlib.closing(_connect(port)) as connection:
        connection.sendall(struct.pack(">ii", 4 + len(data), len(data)) + data)
        stream = connection.makefile("rb")
        _total, header_length = struct.unpack(">ii", stream.read(8))
        answer: dict[str, object] = json.loads(stream.read(header_length))
    return answer


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)
