"""What a signature costs a broker: the same sends to one that asks who it is, and to an open one.

    python tests/benchmarks/bench_signed.py [--turns 5] [--seconds 3] [--connections 64]

Both brokers run on the first CPU, one after the other; 64 connections on the second one send a
request each and wait for its answer. What counts is the broker's processor time for a message.
"""

import argparse
import json
import os
import selectors
import socket
import statistics
import subprocess
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Final, cast

import bench_machine as machine
from bench_brokers import Mailboat, Variant, environment_of

from mailboat.protocol.command import RemotingCommand, decode_command
from mailboat.protocol.frame import FrameDecoder
from mailboat.security.client_security import Credentials
from mailboat.security.signing import sign

CREDENTIALS: Final = Credentials("bench", "a-secret-of-the-benchmark")
USER: Final = json.dumps({"username": CREDENTIALS.access_key, "password": CREDENTIALS.secret_key})
GUARDED: Final = (("authenticationEnabled", "true"), ("authorizationEnabled", "true"))
QUEUES: Final = 4
WARMUP_S: Final = 1.0
SUCCESS: Final = 0


def frame(queue_id: int, body: bytes, *, is_signed: bool) -> bytes:
    """Return a send as Java's clients make it."""
    fields = {
        "a": "bench", "b": "bench", "c": "TBW102", "d": str(QUEUES), "e": str(queue_id), "f": "0",
        "g": str(time.time_ns() // 1_000_000), "h": "0", "j": "0", "k": "false", "m": "false",
        "i": f"KEYS\x01k:{queue_id:012d}\x02UNIQ_KEY\x01{queue_id:032X}\x02TAGS\x01TagA\x02"
        "WAIT\x01true\x02",
    }  # fmt: skip
    command = RemotingCommand.request(310, fields, body)
    if is_signed:
        sign(command, CREDENTIALS)
    return command.encode()


class Load:
    """Connections that each have one request under way."""

    def __init__(self, port: int, connections: int, body: bytes, *, is_signed: bool) -> None:
        """Connect."""
        self._frames = [frame(n % QUEUES, body, is_signed=is_signed) for n in range(QUEUES)]
        self._sockets: list[socket.socket] = []
        for _ in range(connections):
            peer = socket.create_connection(("127.0.0.1", port))
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets.append(peer)

    def check(self) -> None:
        """Send one by one, and look at the answers: a refusal costs something else."""
        for peer, data in zip(self._sockets, self._frames, strict=False):
            peer.sendall(data)
            decoder, answers = FrameDecoder(), []
            while not answers:
                answers = decoder.feed(peer.recv(65_536))
            answer = decode_command(answers[0])
            assert answer.code == SUCCESS, answer.remark

    def run(self, seconds: float) -> int:
        """Send for some time; return how many answers came."""
        peers = {peer: self._frames[n % QUEUES] for n, peer in enumerate(self._sockets)}
        with selectors.DefaultSelector() as selector:
            for peer, data in peers.items():
                selector.register(peer, selectors.EVENT_READ, data)
                peer.sendall(data)
            count, end_s = 0, time.monotonic() + seconds
            while selector.get_map():
                ready = selector.select()
                is_over = time.monotonic() > end_s
                for key, _ in ready:
                    peer = cast(socket.socket, key.fileobj)
                    # One small answer comes in one piece.
                    peer.recv(65_536)
                    if is_over:
                        selector.unregister(peer)
                    else:
                        peer.sendall(key.data)
                count += len(ready)
        return count


class Side:
    """A broker on its CPU, and the load for it."""

    def __init__(self, home: Path, options: argparse.Namespace, *, is_guarded: bool) -> None:
        """Start it, and see that it takes the load."""
        settings = GUARDED if is_guarded else ()
        port = machine.free_port()
        launch = Mailboat().launch(home, port, Variant(http=False, settings=settings))
        command = ["taskset", "-c", str(machine.server_cpu()), *launch.command]
        environment = environment_of(launch)
        if is_guarded:
            environment |= {"MAILBOAT_INIT_AUTHENTICATION_USER": USER}
        self.costs_us: list[float] = []
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        try:
            assert self._process.stdout is not None
            self._process.stdout.readline()
            body = bytes(options.body)
            self._load = Load(port, options.connections, body, is_signed=is_guarded)
            self._load.check()
            self._load.run(WARMUP_S)
        except BaseException:
            self.close()
            raise

    def measure(self, seconds: float) -> None:
        """Note the broker's processor time for a message."""
        before_s = machine.process_cpu_s(self._process.pid)
        count = self._load.run(seconds)
        spent_s = machine.process_cpu_s(self._process.pid) - before_s
        self.costs_us.append(spent_s / count * 1e6)

    def __str__(self) -> str:
        """Return the median and what it is of."""
        found = sorted(round(one, 2) for one in self.costs_us)
        return f"{statistics.median(self.costs_us):6.2f} us a message  {found}"

    def close(self) -> None:
        """End the broker, and with it the connections."""
        self._process.terminate()
        self._process.wait()


def main() -> None:
    """Measure in turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--body", type=int, default=1024)
    options = parser.parse_args()
    os.sched_setaffinity(0, {machine.generator_cpu()})
    with (
        tempfile.TemporaryDirectory(prefix="mailboat-bench-") as folder,
        closing(Side(Path(folder) / "open", options, is_guarded=False)) as plain,
        closing(Side(Path(folder) / "guarded", options, is_guarded=True)) as guarded,
    ):
        for _ in range(options.turns):
            plain.measure(options.seconds)
            guarded.measure(options.seconds)
    print(f"open    {plain}")
    print(f"guarded {guarded}")
    more_us = statistics.median(guarded.costs_us) - statistics.median(plain.costs_us)
    print(f"a signature costs {more_us:.2f} us")


if __name__ == "__main__":
    main()
