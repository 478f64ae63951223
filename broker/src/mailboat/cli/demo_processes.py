"""The demo's two child processes: the broker and the Spark job."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from mailboat.cli.demo_leftovers import Leftovers
from mailboat.errors import MailboatError

START_TIMEOUT_S: Final = 60.0
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
def running_broker(leftovers: Leftovers, folder: Path) -> Iterator[Mapping[str, Any]]:
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
    with _child(leftovers, command, log) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            code = process.wait(START_TIMEOUT_S)
            raise MailboatError(f"the broker ended with code {code} at its start{_tail(log)}")
        yield json.loads(line)
        if process.poll() is not None:
            raise MailboatError(f"the broker ended with code {process.returncode}{_tail(log)}")


def run_job(
    leftovers: Leftovers, folder: Path, work_dir: Path, namesrv: str, topic: str
) -> Generator[Mapping[str, Any], None, None]:
    """Run the Spark job to its end and yield what it tells; temporary files go to `work_dir`.

    Raises:
        MailboatError: it failed; the text ends with its last log lines.
    """
    command = [sys.executable, "-m", JOB_MODULE, "--namesrv", namesrv, "--topic", topic]
    command += ["--output", str(folder / "parquet"), "--work-dir", str(work_dir)]
    command += ["--group", "demo", "--cores", str(min(os.cpu_count() or 1, 8))]
    log = folder / "spark.log"
    with _child(leftovers, command, log) as process:
        assert process.stdout is not None
        for line in process.stdout:
            # Java may print a line of its own.
            if line.startswith(b'{"event"'):
                yield json.loads(line)
        code = process.wait()
        if code != 0:
            raise MailboatError(f"the Spark job ended with code {code}{_tail(log)}")


@contextmanager
def _child(
    leftovers: Leftovers, command: list[str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as log_file, leftovers.held():
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log_file,
            # A group of its own: Ctrl-C reaches the demo alone, and what the child starts ends too.
            start_new_session=True,
        )
        leftovers.add_group(process.pid)
    try:
        yield process
    finally:
        leftovers.stop_group(process.pid)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _tail(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").splitlines()[-_LOG_TAIL_LINES:]
    return "; its last words:\n" + "\n".join(lines) if lines else ""
