"""A program that puts on load for itself and prints one line of JSON a window, until told to end.

The clients and the Spark job are such programs: they stay warm between their windows.
"""

import contextlib
import json
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_brokers import Launch, end_group, environment_of
from bench_machine import BenchError, tree_cpu_s

Window = dict[str, Any]
"""`messages`, `seconds` and, where the program knows them, `cpu_s` of its own process and
`failures`; added here: `tree_cpu_s` of it and its children, since the window before."""


class Windows:
    """The windows of a running program."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        """Read from its stdout; what it says of itself lies in the log."""
        self._process = process
        self._cpu_s = 0.0
        self._log = log
        self._unread = b""

    def next(self, timeout_s: float) -> Window:
        """Wait for the next window and add the CPU of all its processes since the last.

        Raises:
            BenchError: the program ended, or said nothing for this long.
        """
        stdout = self._process.stdout
        assert stdout is not None
        while b"\n" not in self._unread:
            readable, _, _ = select.select([stdout], [], [], timeout_s)
            if not readable:
                raise BenchError(f"no window within {timeout_s:.0f} s: {self._log_tail()}")
            # Not `read`: it would wait for more than there is.
            data = stdout.read1(65536)
            if not data:
                raise BenchError(f"it ended early: {self._log_tail()}")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        window: Window = json.loads(line)
        before_s, self._cpu_s = self._cpu_s, tree_cpu_s(self._process.pid)
        window["tree_cpu_s"] = self._cpu_s - before_s
        return window

    def _log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-600:].strip()


@contextlib.contextmanager
def running_windows(launch: Launch, home: Path, cpus: str) -> Iterator[Windows]:
    """Run a program on these CPUs and yield its windows; it is killed afterwards."""
    home.mkdir(parents=True, exist_ok=True)
    log = home / "windows.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            ["taskset", "-c", cpus, *launch.command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=home,
            env=environment_of(launch),
            start_new_session=True,
        )
    try:
        yield Windows(process, log)
    finally:
        end_group(process)
        assert process.stdout is not None
        process.stdout.close()
