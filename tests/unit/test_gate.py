"""The gate on suites with planted failures. Each run starts pytest up to four times."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

TESTS = Path(__file__).resolve().parents[1]
MAX_QUARANTINED = 10
MAX_QUARANTINE_DAYS = 14
CONFTEST = """
from failure_records import records_of

def pytest_configure(config):
    config.pluginmanager.register(records_of(config))
"""
# `tries` counts over processes how often a test has begun.
HEAD = """
import pathlib
import pytest
from promises import PromiseBroken, promised

def tries(name):
    with pathlib.Path(__file__).with_name(name).open("a+") as file:
        file.write("x")
        file.seek(0)
        return len(file.read())

def test_good():
    pass
"""
UNSTABLE = """
@pytest.mark.parametrize("text", ["a b", "[c]"])
def test_second_try(text):
    assert tries("second" + text) == 2
"""
THIRD = """
def test_third_try():
    assert tries("third") == 3
"""
ALWAYS = """
def test_bad():
    assert not tries("bad")
"""
BROKEN = """
def test_lost_once():
    with promised("nothing is lost"):
        assert tries("lost") == 2
"""
BROKEN_LATER = """
def test_lost_at_the_second_look():
    count = tries("lost")
    assert count > 1, "late"
    if count == 2:
        raise ExceptionGroup("two", [ValueError(), PromiseBroken("lost")])
"""
BROKEN_IN_TEARDOWN = """
@pytest.fixture
def lost():
    yield
    with promised("nothing is lost"):
        assert tries("lost") > 1

def test_late(lost):
    assert tries("late") > 1
"""
BROKEN_ELSEWHERE = """
import subprocess, sys

def test_a_program_finds_a_loss():
    code = "from promises import PromiseBroken; raise PromiseBroken('lost')"
    assert tries("lost") > 1 or not subprocess.run([sys.executable, "-c", code]).returncode
"""
STARTS_PYTEST = """
import os, subprocess, sys

def test_starts_pytest():
    command = [sys.executable, "-m", "pytest", "-k", "good or bad", __file__]
    assert subprocess.run(command).returncode == 1

def test_bad():
    if "test_starts_pytest" in os.environ.get("PYTEST_CURRENT_TEST", "") or tries("bad") == 1:
        assert False

def test_ends_the_run():
    os._exit(0)
"""
ENDS_WRONGLY = """
import os

def pytest_sessionfinish(session):
    if hasattr(session.config, "workerinput"):
        os._exit(3)
    if not session.config.option.numprocesses:
        raise ValueError
"""
RAISES_IN_A_WORKER = """
def pytest_sessionfinish(session):
    if hasattr(session.config, "workerinput"):
        raise ValueError
"""
LEAVES = """
def test_leaves():
    pytest.exit("enough", returncode=0)

def test_never_begun():
    assert False
"""
DIES = """
import os

def test_dies():
    os._exit(1)
"""
SKIPPED_LATER = """
def test_skipped_at_the_second_look():
    if tries("skipped") > 1:
        pytest.skip("not here")
    assert False
"""


class Done(NamedTuple):
    """How the gate ended."""

    exit_code: int
    output: str
    unstable: list[dict[str, Any]]


def run_gate(root: Path, suite: str, *words: str, quarantine: str = "", conftest: str = "") -> Done:
    """Run a copy of the gate over one file of tests."""
    (root / "tests").mkdir(exist_ok=True)
    shutil.copy(TESTS / "gate.py", root / "tests" / "gate.py")
    (root / "tests" / "quarantine.toml").write_text(quarantine)
    (root / "tests" / "conftest.py").write_text(CONFTEST + conftest)
    (root / "tests" / "test_suite.py").write_text(HEAD + suite)
    (root / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider -p xdist.plugin\n")
    environ = os.environ | {
        "PYTHONPATH": str(TESTS / "plugins"),
        "MAILBOAT_TEST_GATE_RUN": "run",
        # Half of the time that pytest takes to start.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    environ.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        [sys.executable, "tests/gate.py", "stage", "tests/test_suite.py", *words],
        cwd=root,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    kept = root / ".cache" / "unstable.jsonl"
    lines = kept.read_text().splitlines() if kept.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return Done(done.returncode, done.stdout + done.stderr, rows)


@pytest.mark.parametrize("workers", ["--workers=0", "--workers=2"])
def test_what_passes_alone_is_unstable(tmp_path: Path, workers: str) -> None:
    """It is named with its first message and does not make the stage red."""
    done = run_gate(tmp_path, UNSTABLE + THIRD, workers)
    assert done.exit_code == 0, done.output
    assert {row["nodeid"] for row in done.unstable} == {
        "tests/test_suite.py::test_second_try[a b]",
        "tests/test_suite.py::test_second_try[[c]]",
        "tests/test_suite.py::test_third_try",
    }
    assert "== unstable tests: 3" in done.output
    assert "assert 1 == 3" in done.output
    assert all(row["stage"] == "stage" and row["uptime_s"] > 0 for row in done.unstable)


@pytest.mark.parametrize(
    ("suite", "tried", "times", "reason"),
    [
        (ALWAYS, "bad", 3, "1 tests failed"),
        (BROKEN, "lost", 1, "a promise was broken: tests/test_suite.py::test_lost_once"),
        (BROKEN_LATER, "lost", 2, "a promise was broken: tests/test_suite.py::test_lost_at"),
        (BROKEN_IN_TEARDOWN, "late", 1, "a promise was broken: tests/test_suite.py::test_late"),
        (BROKEN_ELSEWHERE, "lost", 1, "a promise was broken: tests/test_suite.py::test_a_program"),
        (SKIPPED_LATER, "skipped", 3, "1 tests failed"),
    ],
)
def test_what_stays_wrong_is_red(
    tmp_path: Path, suite: str, tried: str, times: int, reason: str
) -> None:
    """A failure has two more tries, a broken promise none, and a skip is no pass."""
    done = run_gate(tmp_path, suite)
    assert done.exit_code == 1
    assert f"== stage stage is red: {reason}" in done.output
    assert len((tmp_path / "tests" / tried).read_text()) == times
    assert done.unstable == []


@pytest.mark.parametrize(
    ("suite", "words", "reason"),
    [
        (DIES, [], "pytest ended with 1 before its end"),
        (STARTS_PYTEST, [], "pytest ended with 0 before its end"),
        ("import nothing_of_the_kind", [], "pytest ended with 2 before its end"),
        ("", ["--", "--deselect=tests/test_suite.py"], "pytest ended with 5"),
        ("", ["--", "--no-such-option"], "pytest ended with 4"),
    ],
)
def test_a_run_without_results_is_red(
    tmp_path: Path, suite: str, words: list[str], reason: str
) -> None:
    """Nothing is looked at again."""
    done = run_gate(tmp_path, suite, *words)
    assert done.exit_code == 1
    assert f"== stage stage is red: {reason}" in done.output
    assert "second look" not in done.output


@pytest.mark.parametrize(
    ("workers", "reason"),
    [
        ("0", "pytest ended with 1 before its end"),
        ("1", "processes ended wrongly after their tests"),
    ],
)
def test_what_raises_behind_the_last_test_is_red(tmp_path: Path, workers: str, reason: str) -> None:
    """An unstable test does not hide it."""
    done = run_gate(tmp_path, UNSTABLE, f"--workers={workers}", conftest=ENDS_WRONGLY)
    assert done.exit_code == 1
    assert reason in done.output


def test_a_process_of_xdist_that_raises_behind_its_last_test_is_red(tmp_path: Path) -> None:
    """What it had to say of its tests was said before."""
    done = run_gate(tmp_path, "", "--workers=1", conftest=RAISES_IN_A_WORKER)
    assert done.exit_code == 1, done.output
    assert "1 processes ended wrongly after their tests" in done.output


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_run_that_a_test_ends_is_red(tmp_path: Path, workers: str) -> None:
    """With an exit code of 0, and all that was run had passed."""
    done = run_gate(tmp_path, LEAVES, f"--workers={workers}")
    assert done.exit_code == 1, done.output
    assert "tests were not run to their end" in done.output


def test_a_row_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    """A full disk or a kill leaves one."""
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "unstable.jsonl").write_text('{"run": "run", "sta')
    assert run_gate(tmp_path, "").exit_code == 0


def test_a_process_of_xdist_that_dies_is_looked_at_again(tmp_path: Path) -> None:
    """Its test fails again, as it ends that process as well."""
    done = run_gate(tmp_path, DIES, "--workers=1")
    assert done.exit_code == 1
    assert "second look 2 at tests/test_suite.py::test_dies" in done.output
    assert "1 tests failed" in done.output


def test_a_second_look_has_the_options_of_the_run(tmp_path: Path) -> None:
    """But those of pytest-xdist, which has no part in it."""
    done = run_gate(tmp_path, UNSTABLE, "--workers=1", "--", "-m", "not slow")
    assert done.exit_code == 0
    assert "second look 1 at tests/test_suite.py::" in done.output


def test_very_many_failures_are_not_looked_at_again(tmp_path: Path) -> None:
    """Eleven are no accident."""
    suite = '@pytest.mark.parametrize("n", range(11))\ndef test_bad(n):\n    assert False\n'
    done = run_gate(tmp_path, suite)
    assert done.exit_code == 1
    assert "11 tests failed, and at most 10 are looked at again" in done.output
    assert "second look" not in done.output


def test_unstable_tests_of_all_stages_count(tmp_path: Path) -> None:
    """The ninth of a run makes its stage red."""
    (tmp_path / ".cache").mkdir()
    rows = [{"run": "run"}] * 7 + [{"run": "another"}]
    (tmp_path / ".cache" / "unstable.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    done = run_gate(tmp_path, UNSTABLE)
    assert done.exit_code == 1
    assert "more than 8 tests of this run are unstable" in done.output


def test_the_quarantine_does_not_decide(tmp_path: Path) -> None:
    """Its tests run and are reported, even with a broken promise."""
    entry = '[[test]]\nnodeid = "tests/test_suite.py::test_lost_once"\n'
    done = run_gate(tmp_path, BROKEN, quarantine=entry)
    assert done.exit_code == 0
    assert "quarantined, failed and not counted: tests/test_suite.py::test_lost_once" in done.output


def test_the_quarantine_is_small_and_short() -> None:
    """A test stays there for two weeks at most, with its reason and what would mend it."""
    entries = tomllib.loads((TESTS / "quarantine.toml").read_text()).get("test", [])
    assert len(entries) <= MAX_QUARANTINED
    for entry in entries:
        assert set(entry) == {"nodeid", "since", "reason", "mended_by"}
        age = datetime.now(UTC).date() - entry["since"]
        assert age.days <= MAX_QUARANTINE_DAYS, entry["nodeid"]
