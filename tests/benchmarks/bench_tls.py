"""What TLS costs a broker: the same sends plainly and by TLS.

    python tests/benchmarks/bench_tls.py [--peer 5.5.0 4.9.7] [--turns 5] [--seconds 4] [--warmup 5]

Each broker runs on the first CPU, in permissive mode, so that one process takes both in turns; the
load is on the second CPU. What counts is the broker's processor time for a message: the load
generator is Python and cannot fill a broker. RocketMQ shows a certificate that it makes itself.
"""

import argparse
import contextlib
import os
import selectors
import socket
import ssl
import statistics
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import bench_machine as machine
import trustme
from bench_brokers import TOPIC, BrokerProcess, Mailboat, System, Variant
from bench_java import java_rocketmq
from bench_signed import QUEUES, frame

ROWS: Final = {"64 x 1": (64, 1), "16 x 16": (16, 16)}
"""Connections, and sends that each has under way."""

_BODY: Final = bytes(1024)
_LENGTH: Final = struct.Struct(">i")


class Peer:
    """One connection and what it has received."""

    def __init__(self, connection: socket.socket, request: bytes, window: int) -> None:
        """Send the request so many times at once."""
        self.connection = connection
        self._requests = request * window
        self._window = self._missing = window
        self._data = b""

    def send(self) -> None:
        """Send all of them."""
        self._missing = self._window
        self.connection.sendall(self._requests)

    def received(self) -> bool:
        """Take what has come; whether every answer is there."""
        self._data += self.connection.recv(65_536)
        while len(self._data) >= _LENGTH.size:
            size = _LENGTH.size + _LENGTH.unpack_from(self._data)[0]
            if len(self._data) < size:
                break
            self._data = self._data[size:]
            self._missing -= 1
        return self._missing == 0


class Load:
    """Connections of one kind to one broker."""

    def __init__(self, port: int, connections: int, window: int, *, by_tls: bool) -> None:
        """Connect."""
        self._window = window
        self._peers = [
            Peer(connect(port, by_tls=by_tls), _request(number), window)
            for number in range(connections)
        ]

    def run(self, seconds: float) -> int:
        """Send for some time; return how many answers came."""
        with selectors.DefaultSelector() as selector:
            for peer in self._peers:
                selector.register(peer.connection, selectors.EVENT_READ, peer)
                peer.send()
            rounds, end_s = 0, time.monotonic() + seconds
            while selector.get_map():
                ready = selector.select()
                is_over = time.monotonic() > end_s
                for key, _ in ready:
                    peer = cast(Peer, key.data)
                    if not peer.received():
                        continue
                    rounds += 1
                    if is_over:
                        selector.unregister(peer.connection)
                    else:
                        peer.send()
        return rounds * self._window

    def close(self) -> None:
        """End the connections."""
        for peer in self._peers:
            peer.connection.close()


def _request(number: int) -> bytes:
    return frame(number % QUEUES, _BODY, is_signed=False)


def connect(port: int, *, by_tls: bool) -> socket.socket:
    """Connect, and shake hands if that is asked for; nobody's certificate is checked."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not by_tls:
        return connection
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(connection)


def costs_us(
    broker: BrokerProcess, connections: int, window: int, options: argparse.Namespace
) -> dict[str, float]:
    """Return the broker's processor time for a message, plainly and by TLS: medians of turns."""
    loads = {
        name: Load(broker.port, connections, window, by_tls=name == "tls")
        for name in ("plain", "tls")
    }
    found: dict[str, list[float]] = {name: [] for name in loads}
    for load in loads.values():
        load.run(options.warmup if broker.system.needs_warmup else 1.0)
    for _ in range(options.turns):
        for name, load in loads.items():
            before_s = machine.process_cpu_s(broker.pid)
            count = load.run(options.seconds)
            found[name].append((machine.process_cpu_s(broker.pid) - before_s) / count * 1e6)
    for load in loads.values():
        load.close()
    return {name: statistics.median(costs) for name, costs in found.items()}


@contextlib.contextmanager
def broker_of(system: System, folder: Path, certificates: Path) -> Iterator[BrokerProcess]:
    """Run a broker that takes both."""
    settings: tuple[tuple[str, object], ...] = ()
    if isinstance(system, Mailboat):
        settings = (
            ("tls.server.mode", "permissive"),
            ("tls.server.certPath", certificates / "tls.crt"),
            ("tls.server.keyPath", certificates / "tls.key"),
        )
    broker = BrokerProcess(system, folder, Variant(http=False, settings=settings))
    try:
        broker.start()
        broker.create_topic(TOPIC)
        yield broker
    finally:
        broker.close()


def measure(system: System, folder: Path, options: argparse.Namespace) -> None:
    """Print the rows of a system."""
    with broker_of(system, folder / "broker", folder) as broker:
        for name, (connections, window) in ROWS.items():
            us = costs_us(broker, connections, window, options)
            print(
                f"{system.name:16} {name:8} plain {us['plain']:7.2f} us  tls {us['tls']:7.2f} us"
                f"  {us['tls'] / us['plain']:.2f}"
            )


def main() -> None:
    """Measure mailboat and the peers one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", nargs="*", default=[])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--warmup", type=float, default=5, help="seconds of each load, for Java")
    options = parser.parse_args()
    os.sched_setaffinity(0, {machine.generator_cpu()})
    with (
        tempfile.TemporaryDirectory(prefix="mailboat-bench-") as name,
        contextlib.ExitStack() as on,
    ):
        folder = Path(name)
        issued = trustme.CA().issue_cert("localhost", key_type=trustme.KeyType.ECDSA)
        issued.cert_chain_pems[0].write_to_path(folder / "tls.crt")
        issued.private_key_pem.write_to_path(folder / "tls.key")
        measure(Mailboat(), folder, options)
        for version in options.peer:
            system = on.enter_context(java_rocketmq(version, folder / version))
            measure(system, folder, options)


if __name__ == "__main__":
    main()
