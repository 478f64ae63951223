"""Notices when the machine stands still, for tests that have clocks and time limits in them.

Virtual machines are halted for seconds. Afterwards every time limit is over at once: Java brokers
and clients drop connections after 3 s without an answer, routes are gone until the next
registration, messages are late. A test that fails while the machine stood still is run once more,
the report says so ("R" and "rerun"); without a measured halt, a failure is a failure. What many
tests look at is taken again as a whole (`undisturbed`).

A process of its own does the measuring, so that a busy test is not taken for a halt. It is asked
through a pipe: one byte for the halts so far, the end of the pipe to end it.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from typing import TypeVar

import pytest

TICK_S = 0.1
SHORTEST_S = 1.0
MAX_TAKES = 3

Taken = TypeVar("Taken")


class MachineHalts:
    """The halts of this run, and a plugin that repeats the tests that fell into one."""

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

    def since(self, began_s: float) -> list[float]:
        """Return how long each halt was, in seconds, of those that ended after `began_s`.

        Times are those of `time.monotonic`, which all processes share.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"?")
        self._process.stdin.flush()
        halts = json.loads(self._process.stdout.readline())
        return [halt_s for end_s, halt_s in halts if end_s > began_s]

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

    def met(self) -> bool:
        """Tell whether the machine stood still during this test."""
        return bool(self.since(self._test_began_s))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Let every test be run once more, if it fails and met a halt."""
        for item in items:
            item.add_marker(pytest.mark.flaky(reruns=1, condition=self.met))

    def pytest_runtest_logstart(self) -> None:
        """Remember when a test begins."""
        self._test_began_s = time.monotonic()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Say in the report of a failed test how long the machine stood still meanwhile."""
        report = yield
        if report.failed and (halts := self.since(self._test_began_s)):
            text = ", ".join(f"{halt_s:.1f} s" for halt_s in halts)
            report.sections.append(("The machine stood still", text))
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how often the machine stood still in this run."""
        if halts := self.since(0.0):
            terminalreporter.write_line(
                f"The machine stood still {len(halts)} times, {max(halts):.1f} s at the longest; "
                f"{self._taken_again} recordings were taken again."
            )


def _measure() -> None:
    halts: list[tuple[float, float]] = []
    before_s = time.monotonic()
    while True:
        asked, _, _ = select.select([0], [], [], TICK_S)
        now_s = time.monotonic()
        if now_s - before_s > TICK_S + SHORTEST_S:
            halts.append((now_s, now_s - before_s - TICK_S))
        before_s = now_s
        if asked:
            if not os.read(0, 1):
                return
            os.write(1, json.dumps(halts).encode() + b"\n")


if __name__ == "__main__":
    _measure()
