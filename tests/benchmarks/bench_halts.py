"""Measures how long the machine and its disk stood still beside a load, in milliseconds.

Virtual machines and their disks are halted now and then, and a broker's longest answer is no
shorter than that. A process of its own measures: a thread on the server's CPU that only sleeps, one
that writes into a file's page cache, and one that syncs that file, as a broker writes and flushes
its log. It runs until its stdin ends and then prints one line of JSON.
"""

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench_machine import server_cpu

# What counts as standing still: a busy machine answers within this.
HALT_MS = 10.0

_SLEEP_S = 0.002
_WRITE_EVERY_S = 0.01
_SYNC_EVERY_S = 0.05
_WRITE_BYTES = 4096
_FILE_BYTES = 64 << 20

Halts = dict[str, float]


@contextlib.contextmanager
def watch_halts(folder: Path) -> Iterator[Halts]:
    """Measure while the body runs; the yielded dictionary is filled when it has ended.

    For each of `clock`, `write` and `sync`: `_max_ms`, `_p999_ms`, and `_share`, the part of the
    time that was spent in halts of more than `HALT_MS`.
    """
    halts: Halts = {}
    process = subprocess.Popen(
        [sys.executable, __file__, str(folder), str(server_cpu())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        # Its first line shows that it measures.
        process.stdout.readline()
        yield halts
        output, _ = process.communicate(timeout=60)
        halts |= json.loads(output)
    finally:
        process.kill()
        process.wait()


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of all values do not exceed; 0 of none."""
    if not values:
        return 0.0
    rank = math.ceil(share * len(values))
    return sorted(values)[max(rank, 1) - 1]


def summary(name: str, delays_ms: Sequence[float], elapsed_ms: float) -> Halts:
    """Return what is told of one kind of halt."""
    halted_ms = sum(delay for delay in delays_ms if delay > HALT_MS)
    return {
        f"{name}_max_ms": round(max(delays_ms, default=0.0), 2),
        f"{name}_p999_ms": round(quantile(delays_ms, 0.999), 2),
        f"{name}_share": round(halted_ms / elapsed_ms, 6),
    }


def excuses(p999_ms: float, max_ms: float, halts: Halts) -> dict[str, str]:
    """Return why a bound on `p999_us` or `max_us` may be missed without the broker's doing.

    A halt explains the longest answer if it took at least half as long: requests that piled up
    meanwhile are answered behind it. It explains the 99.9th percentile if the machine stood still
    for half of the thousandth of the time that this leaves out. A sync that takes long explains
    nothing: no answer waits for one.
    """
    found: dict[str, str] = {}
    for name, what in (("clock", "machine"), ("write", "disk")):
        longest_ms, share = halts[f"{name}_max_ms"], halts[f"{name}_share"]
        if longest_ms > HALT_MS and longest_ms >= max_ms / 2:
            found.setdefault("max_us", f"the {what} halted for {longest_ms:.0f} ms")
        if longest_ms >= p999_ms / 2 and share >= 0.0005:
            found.setdefault("p999_us", f"the {what} halted for {share:.2%} of the time")
    return found


def _main(folder: str, cpu: int) -> None:
    delays: dict[str, list[float]] = {"clock": [], "write": [], "sync": []}
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:

        def sleep() -> None:
            time.sleep(_SLEEP_S)

        def write() -> None:
            if file.tell() >= _FILE_BYTES:
                file.seek(0)
            file.write(bytes(_WRITE_BYTES))

        def sync() -> None:
            os.fdatasync(file.fileno())

        began_s = time.monotonic()
        watches = [
            ("clock", sleep, _SLEEP_S, 0.0, {cpu}),
            ("write", write, 0.0, _WRITE_EVERY_S, set()),
            ("sync", sync, 0.0, _SYNC_EVERY_S, set()),
        ]
        for name, step, meant_s, pause_s, cpus in watches:
            arguments = (delays[name], step, meant_s, pause_s, cpus)
            threading.Thread(target=_watch, args=arguments, daemon=True).start()
        print("measuring", flush=True)
        sys.stdin.read()
        elapsed_ms = (time.monotonic() - began_s) * 1000
        found: Halts = {}
        for name, of_one in delays.items():
            found |= summary(name, of_one.copy(), elapsed_ms)
        print(json.dumps(found), flush=True)
        # The threads still use the files.
        os._exit(0)


def _watch(
    delays_ms: list[float],
    step: Callable[[], None],
    meant_s: float,
    pause_s: float,
    cpus: set[int],
) -> None:
    if cpus:
        os.sched_setaffinity(0, cpus)
    while True:
        began_s = time.monotonic()
        step()
        delays_ms.append(max(time.monotonic() - began_s - meant_s, 0.0) * 1000)
        time.sleep(pause_s)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
