"""Notices when the machine or its disk stands still, for tests with clocks and time limits in them.

Virtual machines are halted for seconds, and so are their disks. Afterwards every time limit is over
at once: Java brokers and clients drop connections after 3 s without an answer, routes are gone
until the next registration, messages are late. The report of a test that failed says what stood
still meanwhile. A recording that many tests look at is taken again as a whole (`undisturbed`); a
test that failed is looked at again by `tests/gate.py` alone, halt or not.

A process of its own does the measuring, so that a busy test is not taken for a halt. It is asked
through a pipe: one byte for the halts so far, the end of the pipe to end it.
"""

from __future__ import annotations

import json
import math
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

TICK_S = 0.1
DISK_TICK_S = 0.5
SHORTEST_S = 1.0
MAX_TAKES = 3

Taken = TypeVar("Taken")


class MachineHalts:
    """The halts of this run, and a plugin that reports them."""

    def __init__(self) -> None:
        """Begin to measure."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C is for pytest, which asks once more before it ends.
            process_group=0,
        )
        # Its first answer shows that it measures.
        self.since(0.0)
        self._test_began_s = time.monotonic()
        self._taken_again = 0

    @property
    def pid(self) -> int:
        """The process that measures."""
        return self._process.pid

    def since(self, began_s: float) -> list[tuple[float, str]]:
        """Return how long each halt was, in seconds, and of what, if it ended after `began_s`.

        Times are those of `time.monotonic`, which all processes share.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"?")
        self._process.stdin.flush()
        halts = json.loads(self._process.stdout.readline())
        return [(halt_s, what) for end_s, halt_s, what in halts if end_s > began_s]

    def undisturbed(self, take: Callable[[], Taken]) -> Taken:
        """Return what `take` returns, or raise as it does, when no halt fell into it.

        It is called three times at most; the last time counts as it is.
        """
        for _ in range(MAX_TAKES - 1):
            began_s = time.monotonic()
            try:
                taken = take()
            except Exception:
                if not self.since(began_s):
                    raise
            else:
                if not self.since(began_s):
                    return taken
            self._taken_again += 1
        return take()

    def close(self) -> None:
        """End the measuring process."""
        self._process.communicate()

    def pytest_runtest_logstart(self) -> None:
        """Remember when a test begins."""
        self._test_began_s = time.monotonic()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Say in the report of a failed test what stood still meanwhile."""
        report = yield
        if report.failed and (halts := self.since(self._test_began_s)):
            text = ", ".join(f"the {what} for {halt_s:.1f} s" for halt_s, what in halts)
            report.sections.append(("It stood still", text))
        return report

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell the process that reports, if that is another one, what was taken again here."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["taken_again"] = self._taken_again

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController) -> None:
        """Add what a process of pytest-xdist has taken again; one that was killed tells nothing."""
        self._taken_again += getattr(node, "workeroutput", {}).get("taken_again", 0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how often something stood still in this run."""
        if halts := self.since(0.0):
            terminalreporter.write_line(
                f"Machine or disk stood still {len(halts)} times, {max(halts)[0]:.1f} s at the "
                f"longest; {self._taken_again} recordings were taken again."
            )


class _Measures:
    """What the measuring process has found, as lists of (end in s, length in s, what halted)."""

    def __init__(self) -> None:
        """Begin without halts."""
        self.halts: list[tuple[float, float, str]] = []
        self._sync_began_s = math.inf

    def watch_disk(self) -> None:
        """Write and sync one byte again and again."""
        with tempfile.TemporaryFile() as file:
            while True:
                began_s = self._sync_began_s = time.monotonic()
                os.pwrite(file.fileno(), b"x", 0)
                os.fdatasync(file.fileno())
                # Noted before it counts as over: who is told of no halt is told of none later.
                self._note(began_s, 0.0, "disk")
                self._sync_began_s = math.inf
                time.sleep(DISK_TICK_S)

    def watch_clock(self) -> None:
        """Sleep again and again; answer questions with all halts, until they end."""
        began_s = time.monotonic()
        while True:
            asked, _, _ = select.select([0], [], [], TICK_S)
            # From look to look: a halt may also fall between an answer and the next sleep.
            began_s = self._note(began_s, TICK_S, "machine")
            if asked:
                if not os.read(0, 1):
                    return
                found = self.halts.copy()
                now_s = time.monotonic()
                if now_s - self._sync_began_s > SHORTEST_S:
                    found.append((now_s, now_s - self._sync_began_s, "disk"))
                os.write(1, json.dumps(found).encode() + b"\n")

    def _note(self, began_s: float, meant_s: float, what: str) -> float:
        now_s = time.monotonic()
        if now_s - began_s > meant_s + SHORTEST_S:
            self.halts.append((now_s, now_s - began_s - meant_s, what))
        return now_s


if __name__ == "__main__":
    measures = _Measures()
    threading.Thread(target=measures.watch_disk, daemon=True).start()
    measures.watch_clock()
