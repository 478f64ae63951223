"""Child processes whose output is read line by line: the Java servers and mailboat itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from compiled_core import plain_environment

_SOURCE_DIR = Path(__file__).parents[2] / "broker" / "src"
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 60.0


class ProcessFailedError(Exception):
    """A child process ended or stayed silent; the text holds the end of its output."""


class LineProcess:
    """A child process with a thread that reads its standard output into a log and a callback.

    Standard error goes to the same log file, so that nothing of a failure is lost.
    """

    def __init__(
        self,
        command: Sequence[str],
        log_file: Path,
        *,
        env: Mapping[str, str] | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        """Start the command; `on_line` is called on the reading thread."""
        self._log_file = log_file
        self._on_line = on_line
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._at_end = False
        log_file.parent.mkdir(parents=True, exist_ok=True)
        self._log = log_file.open("a")
        self.process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
            errors="replace",
            env={**plain_environment(), **(env or {})},
        )
        self._reader = threading.Thread(
            target=self._read, name=f"read-{log_file.stem}", daemon=True
        )
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def _read(self) -> None:
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            line = raw.rstrip("\n")
            self._log.write(raw)
            self._log.flush()
            if self._on_line is not None:
                self._on_line(line)
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._at_end = True
            self._changed.notify_all()

    def wait_line(self, wanted: Callable[[str], bool], timeout_s: float) -> str:
        """Return the first line that is wanted; fail when the process ends or time is up."""

        def found() -> str | None:
            return next((line for line in self._lines if wanted(line)), None)

        with self._changed:
            self._changed.wait_for(lambda: self._at_end or found() is not None, timeout_s)
            line = found()
        if line is None:
            why = "ended" if self._at_end else f"did not get ready in {timeout_s:.0f} s"
            raise ProcessFailedError(f"{self._log_file.name} {why}:\n{self.log_tail()}")
        return line

    def log_tail(self) -> str:
        """The end of the log file, for messages of failures."""
        return self._log_file.read_text(errors="replace")[-4000:]

    def write_line(self, line: str) -> None:
        """Write a line to the standard input of the process."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def terminate(self, timeout_s: float = _STOP_TIMEOUT_S) -> int:
        """Send SIGTERM, wait for the end and return the exit code."""
        return self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> int:
        """Send SIGKILL, wait for the end and return the exit code."""
        return self._end(signal.SIGKILL, _STOP_TIMEOUT_S)

    def end_input(self, timeout_s: float = _STOP_TIMEOUT_S) -> int:
        """Close the standard input, wait for the end and return the exit code."""
        return self._end(None, timeout_s)

    def _end(self, signal_number: signal.Signals | None, timeout_s: float) -> int:
        if self.process.poll() is None and signal_number is not None:
            self.process.send_signal(signal_number)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if not self.process.stdin.closed:
            self.process.stdin.close()
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise ProcessFailedError(
                f"{self._log_file.name} did not end in {timeout_s:.0f} s:\n{self.log_tail()}"
            ) from None
        finally:
            self._reader.join()
            self.process.stdout.close()
            self._log.close()

    def __enter__(self) -> Self:
        """Return the process itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Kill the process when it still runs."""
        self.kill()


@dataclass(frozen=True)
class ReadyLine:
    """What `mailboat standalone --ready-json` prints once it serves."""

    namesrv: str
    broker: str
    http: str
    pid: int
    replicas: str = ""


class MailboatStandalone:
    """`mailboat standalone` as a child process that can be killed and started again.

    The ports of the first start are kept by every later start, as clients expect it.
    """

    def __init__(
        self,
        data_dir: Path,
        log_file: Path,
        config: Mapping[str, object],
        *,
        broker_port: int = 0,
    ) -> None:
        """Remember what to start; `config` holds RocketMQ configuration keys."""
        self._data_dir = data_dir
        self._log_file = log_file
        # Files of 64 MiB: each is reserved on the disk as a whole.
        self._config = {"mappedFileSizeCommitLog": 1 << 26, **config}
        self._ports = {"namesrv": "0", "broker": str(broker_port), "http": "0"}
        self._process: LineProcess | None = None
        self._ready: ReadyLine | None = None

    @property
    def ready(self) -> ReadyLine:
        """The addresses of the running process."""
        assert self._ready is not None, "not started"
        return self._ready

    def start(self, timeout_s: float = _START_TIMEOUT_S) -> ReadyLine:
        """Start the process and wait for its ready line."""
        command = [sys.executable, "-m", "mailboat.cli", "standalone"]
        command += ["--data-dir", str(self._data_dir), "--ready-json"]
        for role, port in self._ports.items():
            command += [f"--{role}-port", port]
        for key, value in self._config.items():
            command += ["-o", f"{key}={value}"]
        python_path = os.pathsep.join(
            filter(None, [str(_SOURCE_DIR), os.environ.get("PYTHONPATH", "")])
        )
        self._process = LineProcess(command, self._log_file, env={"PYTHONPATH": python_path})
        try:
            line = self._process.wait_line(lambda text: text.startswith("{"), timeout_s)
        except ProcessFailedError:
            self._process.kill()
            raise
        self._ready = ReadyLine(**json.loads(line))
        self._ports = {
            "namesrv": self._ready.namesrv.rpartition(":")[2],
            "broker": self._ready.broker.rpartition(":")[2],
            "http": self._ready.http.rpartition(":")[2],
        }
        return self._ready

    def kill(self) -> None:
        """Send SIGKILL and wait until the process is gone."""
        assert self._process is not None, "not started"
        self._process.kill()
        self._process = None

    def terminate(self) -> None:
        """Send SIGTERM; the process must end with 0, which is a clean stop."""
        assert self._process is not None, "not started"
        code = self._process.terminate(timeout_s=20)
        tail = self._process.log_tail()
        self._process = None
        if code != 0:
            raise ProcessFailedError(f"mailboat ended with {code} after SIGTERM:\n{tail}")

    def log_tail(self) -> str:
        """The end of what the processes have logged so far, for messages of failures."""
        return self._log_file.read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """Kill the process when it still runs."""
        if self._process is not None:
            self.kill()
