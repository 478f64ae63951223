"""The compiled load generator: built on first use, run on its own CPU.

`python tests/benchmarks/bench_generator.py` builds it and prints its path.
"""

import contextlib
import hashlib
import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_machine import (
    CACHE_DIR,
    BenchError,
    generator_cpu,
    machine_busy_s,
    process_cpu_s,
)

_SOURCE = Path(__file__).with_name("loadgen.c")
_FLAGS = ["-O2", "-std=gnu11", "-Wall"]
# The longest a run may take beyond its own warm-up and measuring time.
_GRACE_S = 120.0

Answer = dict[str, Any]


def build_generator() -> Path:
    """Compile loadgen.c unless this very source is already compiled; return the program."""
    digest = hashlib.sha256(_SOURCE.read_bytes() + " ".join(_FLAGS).encode()).hexdigest()[:16]
    program = CACHE_DIR / f"loadgen-{digest}"
    if program.exists():
        return program
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise BenchError("no C compiler was found; install one (cc or gcc) or set CC")
    CACHE_DIR.mkdir(parents=True, exist_ok=True)
    fresh = program.with_name(f"{program.name}.{os.getpid()}")
    command = [compiler, *_FLAGS, "-o", str(fresh), str(_SOURCE)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise BenchError(f"{compiler} could not build loadgen.c: {result.stderr.strip()}")
    fresh.rename(program)
    return program


def start_generator(
    mode: str, port: int, *, pinned: bool = True, **options: object
) -> subprocess.Popen[str]:
    """Start the generator, on its CPU if pinned; option `pull_max=32` becomes `--pull-max 32`."""
    command = ["taskset", "-c", str(generator_cpu())] if pinned else []
    command += [str(build_generator()), mode]
    for name, value in {"port": port, **options}.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def finish_generator(process: subprocess.Popen[str], timeout_s: float) -> Answer:
    """Wait for the generator's line of JSON; its complaints become a BenchError."""
    try:
        output, complaints = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise BenchError(f"the load generator was not done after {timeout_s:.0f} s") from None
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        raise BenchError(complaints.strip() or f"load generator ended with {process.returncode}")
    answer: Answer = json.loads(output.strip().splitlines()[-1])
    answer["complaints"] = complaints.strip()
    return answer


def run_generator(
    mode: str, port: int, *, warmup: float, seconds: float, server_pid: int, **options: object
) -> Answer:
    """Run one load to its end and add what else was busy on the machine, in cores."""
    began, busy, server = time.monotonic(), machine_busy_s(), process_cpu_s(server_pid)
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    options |= {"warmup": warmup, "seconds": seconds, "server_pid": server_pid}
    answer = finish_generator(start_generator(mode, port, **options), warmup + seconds + _GRACE_S)
    own_after = resource.getrusage(resource.RUSAGE_CHILDREN)
    foreign = machine_busy_s() - busy - (process_cpu_s(server_pid) - server)
    foreign -= own_after.ru_utime + own_after.ru_stime - own.ru_utime - own.ru_stime
    answer["foreign_cores"] = round(max(foreign, 0.0) / (time.monotonic() - began), 2)
    return answer


@contextlib.contextmanager
def idle_connections(port: int, count: int, server_pid: int) -> Iterator[Answer]:
    """Hold idle connections, each with an answered heartbeat, while the body runs.

    The yielded dictionary is filled with the generator's report when the body has ended.
    """
    answer: Answer = {}
    process = start_generator(
        "idle", port, connections=count, queues=1, server_pid=server_pid, seconds=60
    )
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            finish_generator(process, _GRACE_S)
        yield answer
        answer |= finish_generator(process, _GRACE_S)
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    print(build_generator())
