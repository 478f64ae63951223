import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from mailboat.cli import demo_leftovers

# A process that starts a child which starts another one, makes a folder, and is then interrupted.
SCRIPT = """
import json, os, subprocess, sys, time
from pathlib import Path
from mailboat.cli.demo_leftovers import Leftovers

leftovers = Leftovers()
leftovers.watch_signals()
folder = Path(sys.argv[1])
with leftovers.held():
    if sys.argv[2] == "held":
        os.kill(os.getpid(), int(sys.argv[3]))
    (folder / "sub").mkdir(parents=True)
    leftovers.add_folder(folder)
    child = subprocess.Popen(
        ["sh", "-c", f"{sys.argv[4]} sleep 100 & echo $!; wait"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    leftovers.add_group(child.pid)
    print(json.dumps([child.pid, int(child.stdout.readline())]), flush=True)
sys.stdin.readline()
"""

ZOMBIE_PARENT = """
import subprocess, sys
child = subprocess.Popen(["sleep", "100"], start_new_session=True)
print(child.pid, flush=True)
sys.stdin.readline()
"""


def is_running(pid):
    """Tell whether a process runs; an ended one that nobody has waited for does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def interrupt(tmp_path, number, *, when, ignore=""):
    """Run the script, interrupt it, and return its exit code and errors; nothing may be left."""
    folder = tmp_path / "work"
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), when, str(int(number)), ignore],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        pids = json.loads(script.stdout.readline())
        if when == "later":
            script.send_signal(number)
        _, errors = script.communicate(timeout=40)
    finally:
        script.kill()
        script.communicate()
    assert [pid for pid in pids if is_running(pid)] == []
    assert not folder.exists()
    return script.returncode, errors


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_children_of_children_and_folders_go(tmp_path, number, code):
    """The exit code is the shell's for the signal, and nobody says a word."""
    assert interrupt(tmp_path, number, when="later") == (code, b"")


def test_a_signal_while_a_child_is_started_waits_for_it(tmp_path):
    """What is just being made is noted first and then removed like the rest."""
    assert interrupt(tmp_path, signal.SIGTERM, when="held") == (143, b"")


def test_a_child_that_ignores_sigterm_is_killed(tmp_path, monkeypatch):
    """The end does not depend on the children's good manners."""
    script = SCRIPT.replace("leftovers = Leftovers()", "import mailboat.cli.demo_leftovers as m\n"
                            "m.STOP_TIMEOUT_S = 0.5\nleftovers = Leftovers()")  # fmt: skip
    monkeypatch.setattr(sys.modules[__name__], "SCRIPT", script)
    code, errors = interrupt(tmp_path, signal.SIGTERM, when="later", ignore="trap '' TERM;")
    assert (code, errors) == (143, b"")


def test_an_ended_child_that_nobody_waits_for_is_no_reason_to_wait(monkeypatch):
    """In a container whose first process reaps nobody, stopping still takes no time."""
    monkeypatch.setattr(demo_leftovers, "STOP_TIMEOUT_S", 1000.0)
    # The middle process takes the role of that first process: it never waits for the last one.
    middle = subprocess.Popen(
        [sys.executable, "-c", ZOMBIE_PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        demo_leftovers.stop_groups([int(middle.stdout.readline())])
    finally:
        middle.kill()
        middle.communicate()
