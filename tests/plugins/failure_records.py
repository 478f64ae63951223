"""Writes each failure of a run to a file, for `tests/gate.py`, which looks at it a second time.

`MAILBOAT_TEST_GATE_RECORDS` names the file. It holds one JSON object a line: a failure has
`nodeid`, `when` (collect, setup, call or teardown), `message`, `promise_broken`, `load` (of one
minute) and `uptime_s`; the last line has `passed`, the number of tests that passed, `exit_status`,
`lost_workers`, the processes of pytest-xdist that ended wrongly and not within a test, `unrun`, how
many of the selected tests have not come to their end, and `seconds`, how long the tests of each
file took. A run that was cut off has no last line.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from promises import PromiseBroken

VARIABLE: Final = "MAILBOAT_TEST_GATE_RECORDS"
_PROMISE: Final = ("promise_broken", "true")
_RAISED: Final = "mailboat_raised"
_MESSAGE_CHARACTERS: Final = 500


def is_broken_promise(error: BaseException | None) -> bool:
    """Tell whether an error is `PromiseBroken`, came of one or has one within it."""
    waiting, seen = [error], set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, PromiseBroken):
            return True
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
    return False


class FailureRecords:
    """A plugin for every process of a run; the one that reports also writes."""

    def __init__(self, path: Path | None) -> None:
        """Write to a file, or to none in a process of pytest-xdist."""
        self._path = path
        self._passed_count = 0
        self._lost_workers = 0
        self._selected: frozenset[str] = frozenset()
        self._ended: set[str] = set()
        self._seconds: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Mark the report of a broken promise: the error itself stays in its process."""
        report = yield
        if report.failed and call.excinfo and is_broken_promise(call.excinfo.value):
            report.user_properties.append(_PROMISE)
        return report

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note what is to be run; with pytest-xdist nothing is, in this process."""
        self._selected |= {item.nodeid for item in session.items}

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Note what is to be run."""
        self._selected |= frozenset(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write a failure."""
        # A test that took its process along is reported only once, as a failure of no phase.
        if report.when not in ("setup", "call"):
            self._ended.add(report.nodeid)
        self._seconds[report.nodeid.partition("::")[0]] += report.duration
        if report.passed and report.when == "call":
            self._passed_count += 1
        if report.failed:
            # A process that a test started says it in its output only.
            text = "".join([report.longreprtext, *(text for _, text in report.sections)])
            is_promise = PromiseBroken.__name__ in text
            is_promise |= any(tuple(pair) == _PROMISE for pair in report.user_properties)
            self._write_failure(report.nodeid, report.when or "", is_promise, report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Write an error of the collection."""
        if report.failed:
            self._write_failure(report.nodeid, "collect", False, report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Count a process of pytest-xdist that ended wrongly."""
        has_raised = getattr(node, "workeroutput", {}).get(_RAISED, False)
        self._lost_workers += error is not None or has_raised

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self) -> None:
        """Leave out a process that a test took along: that test failed."""
        self._lost_workers -= 1

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(
        self, session: pytest.Session, exitstatus: int
    ) -> Generator[None, object, object]:
        """Write how the run ended; a process of pytest-xdist says whether anything raised."""
        try:
            result = yield
        except BaseException:
            getattr(session.config, "workeroutput", {})[_RAISED] = True
            raise
        self._write(
            {
                "passed": self._passed_count,
                "exit_status": int(exitstatus),
                "lost_workers": self._lost_workers,
                "unrun": len(self._selected - self._ended),
                "seconds": dict(self._seconds),
            }
        )
        return result

    def _write_failure(
        self,
        nodeid: str,
        when: str,
        is_promise: bool,
        report: pytest.TestReport | pytest.CollectReport,
    ) -> None:
        self._write(
            {
                "nodeid": nodeid,
                "when": when,
                "message": _message(report)[:_MESSAGE_CHARACTERS],
                "promise_broken": is_promise,
                "load": os.getloadavg()[0],
                "uptime_s": round(time.clock_gettime(time.CLOCK_BOOTTIME)),
            }
        )

    def _write(self, record: dict[str, object]) -> None:
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(record) + "\n")


def _message(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the line that says what was wrong, or all that is known."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message if crash is not None else report.longreprtext


def records_of(config: pytest.Config) -> FailureRecords:
    """Return the plugin for this process.

    It writes where a gate started the run, and only there: what a test starts writes nothing.
    """
    path = os.environ.pop(VARIABLE, None)
    return FailureRecords(None if path is None or hasattr(config, "workerinput") else Path(path))
