"""The gate: runs one stage of the tests and looks at each failure a second time.

    python tests/gate.py STAGE [--workers=N] PATH... [-- OPTION...]
    python tests/gate.py summary
    python tests/gate.py slowest

A test that failed is run again alone, in a fresh process with nothing beside it, twice at most. If
it fails again, the stage is red. If it passes, the test is unstable: the stage stays green, the
table at the end names the test, and `.cache/unstable.jsonl` keeps it. The stage is red as well

- when a promise about data or time was broken (`promises.PromiseBroken`), in either look;
- when more than 10 tests failed first, or more than 8 were unstable in all stages of a run;
- when the run did not come to its end within its time, or nothing was run.

`tests/quarantine.toml` names the tests that run and never decide. `MAILBOAT_TEST_GATE_RUN` names
the run that several stages belong to. This file needs the standard library alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
MAX_FIRST_FAILURES: Final = 10
MAX_UNSTABLE: Final = 8
SECOND_LOOKS: Final = 2
RECORDS_VARIABLE: Final = "MAILBOAT_TEST_GATE_RECORDS"
RUN_VARIABLE: Final = "MAILBOAT_TEST_GATE_RUN"
DAY_VARIABLE: Final = "MAILBOAT_TEST_DAY"
"""Some tests take other cases each day. A second look has to take those of the first."""

STAGE_TIMEOUT_S: Final = 3600
LOOK_TIMEOUT_S: Final = 1800
SLOWEST_FILES: Final = 30
_CACHE: Final = ROOT / ".cache"
_SECONDS: Final = "seconds.json"
_FAILED: Final = 1
# Only this process may say that the run ended, when pytest has returned: pytest ends with 1 as well
# when something raises behind its last test.
_RECORDED_RUN: Final = f"""
import json, os, sys, pytest
records = os.environ["{RECORDS_VARIABLE}"]
status = int(pytest.main())
with open(records, "a") as file:
    file.write(json.dumps({{"ended": status}}) + chr(10))
sys.exit(status)
"""


class Failure(NamedTuple):
    """What the first report of a failed test says."""

    nodeid: str
    when: str
    message: str
    promise_broken: bool
    load: float
    uptime_s: int


@dataclass
class Outcome:
    """How one run of pytest ended."""

    exit_status: int
    failures: list[Failure] = field(default_factory=list)
    passed_count: int | None = None
    """None if the run did not come to its end."""

    seconds: dict[str, float] = field(default_factory=dict)
    """How long the tests of each file took."""

    lost_workers: int = 0
    """Processes of pytest-xdist that ended wrongly, and not within a test."""

    unrun: int = 0
    """Tests that were to be run and did not come to their end."""

    @property
    def has_passed(self) -> bool:
        """Something was run to its end, and all of it passed."""
        has_run = bool(self.passed_count) and not self.unrun
        return self.exit_status == 0 and has_run and not self.failures


@dataclass
class Verdict:
    """What the gate says of one stage."""

    stage: str
    passed_count: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    failed: list[Failure] = field(default_factory=list)
    unstable: list[Failure] = field(default_factory=list)
    quarantined: list[Failure] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    """Why the stage is red; empty when it is green."""


class Gate:
    """One stage and its second looks."""

    def __init__(self, stage: str, workers: int, paths: Sequence[str], options: Sequence[str]):
        """Run the tests of some paths.

        Args:
            stage: its name in the table.
            workers: how many processes run them; 0 is one, without pytest-xdist.
            paths: files, folders or node ids.
            options: those of pytest, also for the second looks.
        """
        self._stage = stage
        self._paths = paths
        self._options = options
        self._spread = ("-p", "no:xdist")
        if workers:
            # Each file stays in one process. pyproject.toml and tests/conftest.py order them.
            kind = ("--dist=loadfile", "--no-loadscope-reorder")
            self._spread = (f"--numprocesses={workers}", *kind)

    def decide(self, quarantine: frozenset[str], unstable_before: int) -> Verdict:
        """Run the stage.

        Args:
            quarantine: node ids of the tests that do not decide.
            unstable_before: how many tests earlier stages of this run found unstable.
        """
        first = run_pytest([*self._spread, *self._options, *self._paths], STAGE_TIMEOUT_S)
        verdict = Verdict(self._stage, first.passed_count or 0, first.seconds)
        if first.exit_status not in (0, _FAILED) or first.passed_count is None:
            verdict.reasons.append(f"pytest ended with {first.exit_status} before its end")
        elif not first.passed_count and not first.failures:
            verdict.reasons.append("no test was run")
        if first.lost_workers:
            verdict.reasons.append(
                f"{first.lost_workers} processes ended wrongly after their tests"
            )
        if first.unrun:
            verdict.reasons.append(f"{first.unrun} tests were not run to their end")
        failures = first_of_each(first.failures)
        for nodeid in quarantine & failures.keys():
            verdict.quarantined.append(failures.pop(nodeid))
        if first.exit_status == _FAILED and not first.failures:
            verdict.reasons.append("pytest ended with 1 and named no test")
        too_many = len(failures) > MAX_FIRST_FAILURES
        if too_many:
            verdict.reasons.append(
                f"{len(failures)} tests failed, and at most {MAX_FIRST_FAILURES} are looked at "
                "again"
            )
        for failure in failures.values():
            if too_many or not self._passes_alone(failure, verdict):
                verdict.failed.append(failure)
            else:
                verdict.unstable.append(failure)
        if verdict.failed:
            verdict.reasons.append(f"{len(verdict.failed)} tests failed")
        if verdict.unstable and unstable_before + len(verdict.unstable) > MAX_UNSTABLE:
            verdict.reasons.append(f"more than {MAX_UNSTABLE} tests of this run are unstable")
        return verdict

    def _passes_alone(self, failure: Failure, verdict: Verdict) -> bool:
        if failure.promise_broken:
            verdict.reasons.append(f"a promise was broken: {failure.nodeid}")
            return False
        if failure.when == "collect":
            return False
        for number in range(1, SECOND_LOOKS + 1):
            print(f"== second look {number} at {failure.nodeid}", flush=True)
            # The evidence of the first look is in the usual folder, which keeps three runs only.
            folder = tempfile.mkdtemp(prefix="mailboat-look-")
            again = run_pytest(
                ["-p", "no:xdist", *self._options, failure.nodeid],
                LOOK_TIMEOUT_S,
                PYTEST_DEBUG_TEMPROOT=folder,
            )
            if again.has_passed:
                shutil.rmtree(folder, ignore_errors=True)
                return True
            if any(one.promise_broken for one in again.failures):
                verdict.reasons.append(f"a promise was broken: {failure.nodeid}")
                return False
        return False


def first_of_each(failures: Sequence[Failure]) -> dict[str, Failure]:
    """Return the first failure of each test, marked when any of them broke a promise."""
    first: dict[str, Failure] = {}
    for failure in failures:
        known = first.setdefault(failure.nodeid, failure)
        if failure.promise_broken and not known.promise_broken:
            first[failure.nodeid] = known._replace(promise_broken=True)
    return first


def run_pytest(arguments: Sequence[str], timeout_s: float, **variables: str) -> Outcome:
    """Run pytest in a process of its own; return what it recorded."""
    with tempfile.TemporaryDirectory(prefix="mailboat-gate-") as folder:
        records = Path(folder, "records.jsonl")
        process = subprocess.Popen(
            [sys.executable, "-c", _RECORDED_RUN, *arguments],
            cwd=ROOT,
            env=os.environ | {RECORDS_VARIABLE: str(records)} | variables,
            process_group=0,
        )
        try:
            exit_status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            print(f"== pytest is ended after {timeout_s} s", flush=True)
            os.killpg(process.pid, signal.SIGKILL)
            exit_status = process.wait()
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGINT)
            process.wait()
            raise
        return read_outcome(exit_status, records)


def read_outcome(exit_status: int, records: Path) -> Outcome:
    """Return what the plugin `failure_records` wrote of a run."""
    outcome = Outcome(exit_status)
    has_ended = is_agreed = False
    for line in records.read_text().splitlines() if records.exists() else ():
        record = json.loads(line)
        if "nodeid" in record:
            outcome.failures.append(Failure(**record))
        elif "passed" in record:
            outcome.passed_count = record["passed"]
            outcome.lost_workers = record["lost_workers"]
            outcome.unrun = record["unrun"]
            outcome.seconds = record["seconds"]
            is_agreed = record["exit_status"] == exit_status
        else:
            has_ended = record["ended"] == exit_status and is_agreed
    if not has_ended:
        outcome.passed_count = None
    return outcome


def read_quarantine(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a quarantine file: `nodeid`, `since`, `reason` and `mended_by`."""
    return tomllib.loads(path.read_text()).get("test", [])


# -- what is kept and printed -----------------------------------------------------------------


def keep_seconds(stage: str, seconds: Mapping[str, float], cache: Path) -> None:
    """Keep how long the tests of each file took in a stage, when it was last run."""
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / _SECONDS
    known = kept_seconds(path)
    known[stage] = seconds
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(known))
    new.replace(path)


def kept_seconds(path: Path) -> dict[str, Mapping[str, float]]:
    """Return what `keep_seconds` kept, by stage and file; nothing of a file that is no JSON."""
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        known: dict[str, Mapping[str, float]] = json.loads(path.read_text())
        return known
    return {}


def print_slowest(cache: Path) -> None:
    """Print the files whose tests take longest, as a table in Markdown."""
    known = kept_seconds(cache / _SECONDS)
    rows = [(seconds, stage, file) for stage in known for file, seconds in known[stage].items()]
    print("| seconds | stage | file |\n|---:|---|---|")
    for seconds, stage, file in sorted(rows, reverse=True)[:SLOWEST_FILES]:
        print(f"| {seconds:.0f} | {stage} | {file} |")


def keep(verdict: Verdict, seconds: float, run: str, cache: Path) -> None:
    """Append a verdict to the files of the cache."""
    cache.mkdir(parents=True, exist_ok=True)
    rows: list[tuple[str, Mapping[str, object]]] = [
        ("unstable.jsonl", {"run": run, "stage": verdict.stage, **failure._asdict()})
        for failure in verdict.unstable
    ]
    stage = {
        "run": run,
        "stage": verdict.stage,
        "seconds": round(seconds),
        "passed": verdict.passed_count,
        "failed": [failure.nodeid for failure in verdict.failed],
        "unstable": len(verdict.unstable),
        "quarantined": [failure.nodeid for failure in verdict.quarantined],
        "reasons": verdict.reasons,
    }
    for name, row in [*rows, ("stages.jsonl", stage)]:
        # One write a row: other stages may run at the same time.
        with (cache / name).open("ab", buffering=0) as file:
            file.write(json.dumps(row).encode() + b"\n")


def kept(name: str, run: str, cache: Path) -> list[dict[str, Any]]:
    """Return the rows of one run; a row that was cut off is of no run."""
    path = cache / name
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    return [row for row in rows if row.get("run") == run]


def print_unstable(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the table of unstable tests."""
    print(f"== unstable tests: {len(rows)}")
    for row in rows:
        print(f"  {row['stage']}: {row['nodeid']} ({row['when']})")
        print(f"    load {row['load']:.1f}, up {row['uptime_s']} s")
        print("    " + row["message"].partition("\n")[0])


def print_summary(run: str, cache: Path) -> None:
    """Print what all stages of a run found."""
    print(f"{'stage':<14}{'passed':>8}{'failed':>8}{'unstable':>10}{'quarantined':>13}")
    for row in kept("stages.jsonl", run, cache):
        failed, quarantined = len(row["failed"]), len(row["quarantined"])
        print(
            f"{row['stage']:<14}{row['passed']:>8}{failed:>8}{row['unstable']:>10}{quarantined:>13}"
        )
        for text in (*row["reasons"], *row["failed"]):
            print(f"    {text}")
    print_unstable(kept("unstable.jsonl", run, cache))


def main(arguments: Sequence[str]) -> int:
    """Run a stage, or print the summary of a run; return the exit code."""
    run = os.environ.get(RUN_VARIABLE) or f"{time.time_ns()}-{os.getpid()}"
    if list(arguments) == ["summary"]:
        print_summary(run, _CACHE)
        return 0
    if list(arguments) == ["slowest"]:
        print_slowest(_CACHE)
        return 0
    if "--" in arguments:
        split = list(arguments).index("--")
        arguments, options = arguments[:split], arguments[split + 1 :]
    else:
        options = []
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("paths", nargs="*")
    words = parser.parse_intermixed_args(arguments)
    stage = words.stage
    os.environ.setdefault(DAY_VARIABLE, str(datetime.now(UTC).toordinal()))
    began_s = time.monotonic()
    quarantine = read_quarantine(ROOT / "tests" / "quarantine.toml")
    verdict = Gate(stage, words.workers, words.paths, options).decide(
        frozenset(entry["nodeid"] for entry in quarantine),
        len(kept("unstable.jsonl", run, _CACHE)),
    )
    keep(verdict, time.monotonic() - began_s, run, _CACHE)
    keep_seconds(stage, verdict.seconds, _CACHE)
    if verdict.unstable:
        print_unstable([{"stage": stage, **one._asdict()} for one in verdict.unstable])
    for failure in verdict.quarantined:
        print(f"== quarantined, failed and not counted: {failure.nodeid}")
    for reason in verdict.reasons:
        print(f"== stage {stage} is red: {reason}")
    return 1 if verdict.reasons else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
