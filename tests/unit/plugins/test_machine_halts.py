"""The plugin that notices halts; here what measures is stopped, not the machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import machine_halts
import pytest
from machine_halts import MAX_TAKES, MachineHalts

HALT_S = 1.5
# A suite whose tests halt what measures, as the machine would.
SUITE = """
def test_wrong_and_late(halt):
    halt()
    assert False

def test_wrong():
    assert False

def test_late(halt):
    halt()
"""
CONFTEST = """
import functools
import pytest
from machine_halts import MachineHalts
from test_machine_halts import stop_measuring

def pytest_configure(config):
    config.halts = MachineHalts()
    config.pluginmanager.register(config.halts)
    config.add_cleanup(config.halts.close)

@pytest.fixture
def halt(pytestconfig):
    return functools.partial(stop_measuring, pytestconfig.halts)
"""


def stop_measuring(halts: MachineHalts) -> None:
    """Halt what measures; return when all of that halt is known.

    The disk's part may end after the machine's: a sync that was stopped has to end first.
    """
    os.kill(halts.pid, signal.SIGSTOP)
    time.sleep(HALT_S)
    os.kill(halts.pid, signal.SIGCONT)
    while halts.since(time.monotonic()):
        pass


@pytest.fixture
def halts() -> Iterator[MachineHalts]:
    """A measuring process of the test's own."""
    halts = MachineHalts()
    yield halts
    halts.close()


def test_a_halt_is_measured(halts: MachineHalts) -> None:
    """Its length is that of the halt, and it belongs to the time in which it ended."""
    before_s = time.monotonic()
    stop_measuring(halts)
    after_s = time.monotonic()
    longest_s, _ = max(halts.since(before_s))
    assert HALT_S - machine_halts.TICK_S <= longest_s <= after_s - before_s + 1
    assert halts.since(time.monotonic()) == []


@pytest.mark.parametrize(("disturbed", "takes"), [(0, 1), (1, 2), (MAX_TAKES, MAX_TAKES)])
def test_what_was_disturbed_is_taken_again(halts: MachineHalts, disturbed: int, takes: int) -> None:
    """The first undisturbed recording counts, else the last one."""
    taken = []

    def take() -> int:
        if len(taken) < disturbed:
            stop_measuring(halts)
        taken.append(None)
        return len(taken)

    assert halts.undisturbed(take) == takes


def test_errors_of_an_undisturbed_recording_are_errors(halts: MachineHalts) -> None:
    """Only a halt explains an error away."""
    taken = []

    def take() -> None:
        taken.append(None)
        if len(taken) == 1:
            stop_measuring(halts)
        raise ValueError(len(taken))

    with pytest.raises(ValueError, match="2"):
        halts.undisturbed(take)


def test_the_report_of_a_failure_names_the_halt(tmp_path: Path) -> None:
    """A failure stays a failure, and a test that was only late passes."""
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    folders = [str(Path(file).parent) for file in (machine_halts.__file__, __file__)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 failed, 1 passed" in done.stdout
    assert done.stdout.count("It stood still") == 1
    assert "the machine for " in done.stdout
