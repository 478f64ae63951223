"""The real Java name server and broker as child processes on free ports.

The broker listens on three ports: its own, that minus two (the "fast" one) and the replication
port; all three are looked for together. Everything a server writes stays below its home folder.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from interop_jars import JVM_FLAGS, server_classpath
from interop_process import LineProcess, ProcessFailedError
from planted_delays import hold_java_dispatch, name_server_for_java

_JVM = ["-Xms256m", "-Xmx512m", *JVM_FLAGS]
_JVM += ["-XX:MaxDirectMemorySize=512m", "-Drocketmq.log.level=WARN"]
# Release line 4.9 frees mapped files through the JDK's internals; without these it stops uncleanly.
for _package in ("java.nio", "sun.nio.ch", "jdk.internal.ref"):
    _JVM.append(f"--add-opens=java.base/{_package}=ALL-UNNAMED")
_BOOT_TIMEOUT_S = 180.0
REGISTRATION_TIMEOUT_S = 60.0
_kept: list[contextlib.ExitStack] = []

# Release line 4.9 refuses to start without these files, 5.x has its own in the jars.
_LOGBACK = """<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>${user.home}/server.log</file>
    <encoder><pattern>%d %p %t %c - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="file"/></root>
</configuration>
"""


class JavaServer:
    """A running Java name server or broker."""

    def __init__(self, process: LineProcess, address: str, name: str) -> None:
        """Wrap a process that has already reported its start."""
        self._process = process
        self.address = address
        self.name = name

    def stop(self) -> None:
        """Stop cleanly: SIGTERM runs the server's own shutdown hook."""
        code = self._process.terminate()
        # A JVM that ends by SIGTERM after its hooks answers 128 + 15.
        if code not in (0, 143):
            tail = self._process.log_tail()
            raise ProcessFailedError(f"{self.name} ended with {code}:\n{tail}")

    def kill(self) -> None:
        """Kill the server as `kill -9` does."""
        self._process.kill()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process still lives."""
        return self._process.process.poll() is None


def start_java_namesrv(
    line: str, home: Path, *, config: Mapping[str, object] | None = None
) -> JavaServer:
    """Start a name server of the release line and wait until it serves."""
    port = _free_ports(0)
    settings = {"listenPort": port, "bindAddress": "127.0.0.1"} | dict(config or {})
    path = _prepare(home, settings)
    return _start(line, "org.apache.rocketmq.namesrv.NamesrvStartup", path, port, "namesrv")


def start_java_broker(
    line: str,
    home: Path,
    store_dir: Path,
    namesrv: str,
    *,
    name: str = "broker-java",
    port: int | None = None,
    config: Mapping[str, object] | None = None,
) -> JavaServer:
    """Start a broker of the release line over a store folder and wait until it serves."""
    port = port or free_broker_port()
    settings: dict[str, object] = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": name,
        "brokerId": 0,
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "listenPort": port,
        "haListenPort": port + 1,
        "namesrvAddr": name_server_for_java(namesrv),
        "storePathRootDir": store_dir,
        "storePathCommitLog": store_dir / "commitlog",
        "autoCreateTopicEnable": "true",
    }
    store_dir.mkdir(parents=True, exist_ok=True)
    path = _prepare(home, settings | dict(config or {}))
    broker = _start(line, "org.apache.rocketmq.broker.BrokerStartup", path, port, name)
    deadline_s = time.monotonic() + REGISTRATION_TIMEOUT_S
    while name not in _cluster_info(namesrv):
        if time.monotonic() > deadline_s:
            broker.kill()
            raise ProcessFailedError(f"{name} did not register at {namesrv}")
        time.sleep(0.05)
    hold_java_dispatch(broker.pid)
    return broker


def _cluster_info(namesrv: str) -> str:
    """Ask the name server which brokers it knows; a broker can serve before it is registered."""
    header = json.dumps(
        {"code": 106, "flag": 0, "language": "OTHER", "opaque": 1, "version": 0}
    ).encode()
    host, _, port = namesrv.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(struct.pack(">II", len(header) + 4, len(header)) + header)
        with connection.makefile("rb") as answer:
            (length,) = struct.unpack(">I", answer.read(4))
            return answer.read(length).decode()


def _prepare(home: Path, settings: Mapping[str, object]) -> Path:
    conf = home / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for role in ("broker", "namesrv", "tools"):
        (conf / f"logback_{role}.xml").write_text(_LOGBACK)
    path = conf / "server.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


def _start(line: str, main_class: str, config: Path, port: int, name: str) -> JavaServer:
    home = config.parent.parent
    # A killed JVM leaves what it unpacked there.
    unpacked = home / "tmp"
    unpacked.mkdir(exist_ok=True)
    command = ["java", *_JVM, f"-Duser.home={home}", f"-Djava.io.tmpdir={unpacked}"]
    command += ["-cp", server_classpath(line)]
    process = LineProcess(
        [*command, main_class, "-c", str(config)],
        home / f"{name}.out",
        env={"ROCKETMQ_HOME": str(home), "HOME": str(home)},
    )
    try:
        process.wait_line(lambda text: "boot success" in text, _BOOT_TIMEOUT_S)
    except ProcessFailedError:
        process.kill()
        raise
    return JavaServer(process, f"127.0.0.1:{port}", name)


def free_broker_port() -> int:
    """Return a port whose neighbours are free too, as a Java broker needs them."""
    return _free_ports(-2, 1)


def _free_ports(*neighbours: int) -> int:
    """Return a port that is free together with the ports at the given distances.

    Below the ephemeral range, so that no outgoing connection takes it. Sockets that are bound and
    never listen keep it from other tests until this process ends: who looks for a free port finds
    it taken, and a server that sets SO_REUSEADDR, as Java's and ours do, may listen there.
    """
    for port in itertools.islice(iter(lambda: random.randrange(12_000, 32_000), None), 200):
        with contextlib.ExitStack() as sockets:
            candidates = []
            try:
                for distance in {0, *neighbours}:
                    candidates.append(sockets.enter_context(socket.socket()))
                    candidates[-1].bind(("127.0.0.1", port + distance))
            except OSError:
                continue
            for candidate in candidates:
                candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _kept.append(sockets.pop_all())
            return port
    raise ProcessFailedError("no free ports between 12000 and 32000")
