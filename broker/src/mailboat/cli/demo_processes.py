"""The demo's two child processes: the broker and the Spark job."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from mailboat.errors import MailboatError

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 15.0
JOB_MODULE: Final = "mailboat_spark.demo_job"
JAVA_MODULE: Final = "mailboat_spark.java"
_LOG_TAIL_LINES: Final = 15
# One machine, one reader: larger answers and smaller segments than a shared broker would use.
_BROKER_SETTINGS: Final = {
    "mappedFileSizeCommitLog": 134_217_728,
    "maxTransferBytesOnMessageInMemory": 4_194_304,
    "maxTransferCountOnMessageInMemory": 4096,
}


def check_spark_ready() -> None:
    """Refuse to begin when the Spark job could not run at the end.

    Raises:
        MailboatError: a package or Java is missing; the text says how to install it.
    """
    for package in ("pyspark", "pyarrow", "mailboat_spark"):
        if importlib.util.find_spec(package) is None:
            raise MailboatError(
                f"the demo needs the package {package}; install it with: "
                "pip install 'mailboat[spark]'"
            )
    found = subprocess.run(
        [sys.executable, "-m", JAVA_MODULE], stderr=subprocess.PIPE, text=True, check=False
    )
    if found.returncode != 0:
        raise MailboatError(found.stderr.strip())


@contextmanager
def running_broker(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Run `mailboat standalone` on free ports; gives its addresses and stops it at the end.

    Raises:
        MailboatError: it did not start; the text ends with its last log lines.
    """
    command = [sys.executable, "-m", "mailboat.cli", "standalone"]
    command += ["--data-dir", str(folder / "store"), "--no-http", "--ready-json"]
    command += ["--namesrv-port", "0", "--broker-port", "0"]
    for key, value in _BROKER_SETTINGS.items():
        command += ["-o", f"{key}={value}"]
    log = folder / "broker.log"
    with _child(command, log) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            code = process.wait(START_TIMEOUT_S)
            raise MailboatError(f"the broker ended with code {code} at its start{_tail(log)}")
        yield json.loads(line)
        if process.poll() is not None:
            raise MailboatError(f"the broker ended with code {process.returncode}{_tail(log)}")


def run_job(
    folder: Path, work_dir: Path, namesrv: str, topic: str
) -> Generator[Mapping[str, Any], None, None]:
    """Run the Spark job to its end and yield what it tells; temporary files go to `work_dir`.

    Raises:
        MailboatError: it failed; the text ends with its last log lines.
    """
    command = [sys.executable, "-m", JOB_MODULE, "--namesrv", namesrv, "--topic", topic]
    command += ["--output", str(folder / "parquet"), "--work-dir", str(work_dir)]
    command += ["--group", "demo", "--cores", str(min(os.cpu_count() or 1, 8))]
    log = folder / "spark.log"
    with _child(command, log) as process:
        assert process.stdout is not None
        for line in process.stdout:
            # Java may print a line of its own.
            if line.startswith(b'{"event"'):
                yield json.loads(line)
        code = process.wait()
        if code != 0:
            raise MailboatError(f"the Spark job ended with code {code}{_tail(log)}")


@contextmanager
def _child(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as log_file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log_file,
            # Ctrl-C reaches the demo alone, which then stops its children in order.
            start_new_session=True,
        )
        try:
            yield process
        finally:
            _stop(process)
            assert process.stdout is not None
            process.stdout.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a child and the children that it has itself."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
    # Java leaves the session's group a moment after the job that started it.
    deadline_s = time.monotonic() + STOP_TIMEOUT_S
    while _group_lives(process.pid) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    if _group_lives(process.pid):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _group_lives(group_id: int) -> bool:
    try:
        os.killpg(group_id, 0)
    except ProcessLookupError:
        return False
    return True


def _tail(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").splitlines()[-_LOG_TAIL_LINES:]
    return "; its last words:\n" + "\n".join(lines) if lines else ""
