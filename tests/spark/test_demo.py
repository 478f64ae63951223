"""`mailboat demo` as a user runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow.parquet
import pytest

from mailboat.cli.demo_lines import PART_BYTES
from mailboat.cli.demo_tally import committed_files

pytestmark = [pytest.mark.timeout(300)]


def environment(temporary_dir=None):
    """Return an environment in which the command finds the packages under test."""
    roots = [path for path in sys.path if path.endswith("src")]
    added = {"PYTHONPATH": os.pathsep.join(roots)}
    if temporary_dir is not None:
        added["TMPDIR"] = str(temporary_dir)
    return {**os.environ, **added}


def run_demo(*arguments, stdin=b"", temporary_dir=None):
    """Run the command and return its exit code, output and errors."""
    done = subprocess.run(
        [sys.executable, "-m", "mailboat.cli", "demo", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        env=environment(temporary_dir),
        timeout=280,
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.spark
@pytest.mark.quick
def test_odd_lines_arrive_byte_by_byte(tmp_path):
    """Binary, empty, huge and unfinished lines arrive as they are, and nothing else does."""
    huge = bytes(range(1, 10)) * (PART_BYTES // 9) + bytes(range(11, 256)) * 10
    folder = tmp_path / "in put"
    folder.mkdir()
    (folder / "odd.bin").write_bytes(b"\xff\xfe\x00\n\n  \r\nx\n" + huge + b"\nno end of line")
    (folder / "empty.txt").write_bytes(b"")
    kept = tmp_path / "kept"
    code, out, errors = run_demo("--input", folder, "--keep", kept)
    assert code == 0, out + errors
    assert "All 6 messages arrived once and unchanged." in out
    assert "1 lines without content were left out." in out
    assert "1 lines longer than 4,000,000 bytes were sent in parts." in out
    rows = {}
    for path in committed_files(kept / "parquet"):
        for row in pyarrow.parquet.read_table(path, columns=["keys", "tags", "value"]).to_pylist():
            rows[row["keys"]] = (row["tags"], row["value"])
    assert rows == {
        "odd.bin:1": ("odd", b"\xff\xfe\x00"),
        "odd.bin:3": ("odd", b"  "),
        "odd.bin:4": ("odd", b"x"),
        "odd.bin:5.1": ("odd", huge[:PART_BYTES]),
        "odd.bin:5.2": ("odd", huge[PART_BYTES:]),
        "odd.bin:6": ("odd", b"no end of line"),
    }


def test_an_empty_input_is_refused_and_leaves_nothing(tmp_path):
    """Nothing to send is an error with one sentence, and no folder stays behind."""
    code, out, errors = run_demo("--input", "-", stdin=b"\n\n", temporary_dir=tmp_path)
    assert code == 1
    assert errors == "mailboat: standard input holds no line with content; nothing was sent\n"
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_missing_input_is_wrong_usage(tmp_path):
    """A file that is not there is named before anything is started."""
    code, _, errors = run_demo("--input", tmp_path / "none")
    assert code == 2
    assert f"{tmp_path / 'none'} does not exist" in errors


def test_a_full_folder_is_not_written_over(tmp_path):
    """--keep takes a new folder only."""
    (tmp_path / "mine").write_text("precious")
    code, _, errors = run_demo("--input", Path(__file__), "--keep", tmp_path)
    assert code == 2
    assert "is not empty" in errors
    assert (tmp_path / "mine").read_text() == "precious"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
def test_an_interrupted_demo_leaves_nothing(tmp_path, number, code):
    """Ctrl-C while it waits for input: the broker is stopped and the folder removed."""
    demo = subprocess.Popen(
        [sys.executable, "-m", "mailboat.cli", "demo", "--input", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(tmp_path),
    )
    try:
        demo.stdin.write(b"a line\n")
        demo.stdin.flush()
        while not demo.stdout.readline().startswith(b"send ..."):
            assert demo.poll() is None, demo.stderr.read()
        broker = psutil.Process(demo.pid).children()[0]
        demo.send_signal(number)
        demo.wait(30)
        errors = demo.stderr.read()
    finally:
        demo.kill()
        demo.communicate()
    assert demo.returncode == code, errors
    assert errors == b""
    # Its parent is gone: on some machines nobody collects what an ended process leaves.
    assert not broker.is_running() or broker.status() == psutil.STATUS_ZOMBIE
    assert list(tmp_path.iterdir()) == []
