"""What the benchmarks need to know of the machine: CPUs, CPU time, memory, free ports."""

import contextlib
import functools
import importlib.metadata
import os
import platform
import random
import resource
import socket
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE_DIR = REPOSITORY / ".cache" / "bench"

# Below it the kernel begins to take pages back by itself.
_LEFT_FREE_BYTES = 300 << 20
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class BenchError(Exception):
    """A row or the whole benchmark cannot run; the text says why in one sentence."""


class RowSkippedError(Exception):
    """A row does not fit this machine or this release; the text says why in one sentence."""


@dataclass(frozen=True)
class Memory:
    """Resident memory of a process in megabytes (10^6 bytes); `file_mb` is mapped page cache."""

    rss_mb: float
    anon_mb: float
    file_mb: float


@functools.cache
def server_cpu() -> int:
    """Return the CPU that every measured server is pinned to."""
    return min(os.sched_getaffinity(0))


@functools.cache
def generator_cpu() -> int:
    """Return the CPU of the load generator: the server's own when there is no second one."""
    return sorted(os.sched_getaffinity(0))[:2][-1]


def machine_busy_s() -> float:
    """Return the busy seconds of all CPUs since boot: foreign load shows in its growth."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_SECOND


def process_cpu_s(pid: int) -> float:
    """Return user and system seconds of a process from /proc/PID/stat (10 ms ticks)."""
    # The command's name may hold spaces and brackets; fields are counted from its end.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def tree_of(pid: int) -> list[int]:
    """Return a process and all its descendants, as far as they live."""
    pids = [pid]
    for parent in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
    return pids


def tree_cpu_s(pid: int) -> float:
    """Return user and system seconds of a process and all its living descendants."""
    total = 0.0
    for member in tree_of(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += process_cpu_s(member)
    return total


def memory_of(pid: int) -> Memory:
    """Return the resident memory of a process from /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)

    def megabytes(name: str) -> float:
        return int(values[name].split()[0]) * 1024 / 1e6

    return Memory(megabytes("VmRSS"), megabytes("RssAnon"), megabytes("RssFile"))


class FullMemory:
    """Cached pages of a file that takes no room on the disk, in all the memory that was free.

    So it is on a machine whose broker has stored more than its memory: new pages are old ones that
    are taken back. Free memory of a virtual machine may have to be fetched from the host first,
    which costs the one that touches it ten times as much as the copy, and goes back to the host
    within a second: `fill` is called before each measurement, for what others have freed.
    """

    def __init__(self, folder: Path) -> None:
        """Make the file, which needs no name."""
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)
        self._size_bytes = 0
        self._block = bytearray(1 << 20)

    def fill(self) -> None:
        """Read holes of the file until hardly any memory is free."""
        while (free_bytes := _free_memory_bytes()) > _LEFT_FREE_BYTES:
            self._size_bytes += free_bytes - _LEFT_FREE_BYTES // 2
            self._file.truncate(self._size_bytes)
            while self._file.readinto(self._block):
                pass

    def close(self) -> None:
        """Give the memory back."""
        self._file.close()


def _free_memory_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemFree:")) * 1024


def free_port() -> int:
    """Return a port that is free together with its neighbours.

    RocketMQ uses -2 and +1 too, a second broker of ours +10.

    It is below the ephemeral ports: a client that retries such a port before the server
    listens can otherwise be connected to itself.
    """
    for _ in range(200):
        port = random.randrange(12_000, 31_000)
        with contextlib.ExitStack() as sockets:
            try:
                for neighbour in range(port - 2, port + 12):
                    sockets.enter_context(socket.socket()).bind(("127.0.0.1", neighbour))
            except OSError:
                continue
            return port
    raise BenchError("no 14 free ports in a row between 12000 and 31000")


def raise_open_file_limit(needed: int) -> None:
    """Let this process and its children open `needed` files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise BenchError(f"{needed} open files are needed, the hard limit (ulimit -Hn) is {hard}")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def describe_machine() -> dict[str, str]:
    """Return what a reader must know to place the numbers."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    try:
        uvloop = importlib.metadata.version("uvloop")
    except importlib.metadata.PackageNotFoundError:
        uvloop = "not installed (asyncio's own loop)"
    return {
        "cpu": f"{os.cpu_count()} x {models[0] if models else platform.machine()}",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "uvloop": uvloop,
        "server on cpu": str(server_cpu()),
        "generator on cpu": str(generator_cpu()),
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


def as_fields(memory: Memory) -> dict[str, float]:
    """Return a memory reading as plain numbers for a result."""
    return {name: round(value, 1) for name, value in asdict(memory).items()}
