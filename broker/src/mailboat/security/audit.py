"""What the guard did: refusals and administrative requests, as lines of JSON.

Each event is one line of ASCII, whatever names hold, so that nobody can write lines of their own.
Lines are written by a thread: a disk that hangs holds nobody up. What comes faster than `PER_S`
lines a second of one kind of event is counted and not written, and so is what does not fit into the
queue: strangers that are refused by the thousand hide nothing of what somebody changes.

The file is opened anew for each batch, so that it may be moved away at any time.
"""

import json
import logging
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from mailboat.errors import ConfigError

_log: Final = logging.getLogger(__name__)

PER_S: Final = 200
"""Most lines of one kind of event in a second."""

_QUEUE_LINES: Final = 1_000
_TEXT_MAX: Final = 200
_MODE: Final = 0o600
_KEY: Final = "auditLogPath"
_BATCH: Final = 100

Value = str | int | bool | None


def shown(text: str) -> str:
    """Return what a peer said as ASCII on one line and not longer than a log bears."""
    cut = text if len(text) <= _TEXT_MAX else text[:_TEXT_MAX] + "..."
    return ascii(cut)


class AuditLog:
    """A file of events, or none."""

    def __init__(self, path: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Append to a file, to none where the path is empty; `close` ends.

        Raises:
            ConfigError: the file cannot be written.
        """
        self._path = path
        self._clock = clock
        self._second_s = clock()
        # By kind of event.
        self._in_second: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self._lines: queue.Queue[str | None] = queue.Queue(_QUEUE_LINES)
        self._thread: threading.Thread | None = None
        if path:
            try:
                os.close(_open(path))
            except OSError as error:
                raise ConfigError(_KEY, path, f"cannot be written: {error.strerror}") from error
            self._thread = threading.Thread(target=self._write, name="audit log", daemon=True)
            self._thread.start()

    def note(self, event: str, **values: Value) -> None:
        """Write one event, unless there are too many of its kind."""
        if self._thread is None:
            return
        now_s = self._clock()
        if now_s - self._second_s >= 1.0:
            self._second_s = now_s
            self._in_second.clear()
        if self._in_second[event] >= PER_S:
            self._left_out[event] += 1
            return
        self._in_second[event] += 1
        if self._left_out[event]:
            values["leftOutBefore"] = self._left_out[event]
        cut = {
            name: value[:_TEXT_MAX] if isinstance(value, str) else value
            for name, value in values.items()
        }
        time_ms = time.time_ns() // 1_000_000
        try:
            self._lines.put_nowait(json.dumps({"timeMs": time_ms, "event": event, **cut}))
        except queue.Full:
            self._left_out[event] += 1
        else:
            self._left_out[event] = 0

    def close(self) -> None:
        """Write what waits, for a second at most, and end."""
        if self._thread is not None:
            try:
                self._lines.put(None, timeout=1.0)
            except queue.Full:
                return  # The thread hangs; it ends with the process.
            self._thread.join(1.0)
            self._thread = None

    def _write(self) -> None:
        is_failing = False
        is_open = True
        while is_open:
            batch = [self._lines.get()]
            while len(batch) < _BATCH and not self._lines.empty():
                batch.append(self._lines.get())
            is_open = None not in batch
            text = "".join(f"{line}\n" for line in batch if line is not None)
            try:
                descriptor = _open(self._path)
                with open(descriptor, "a", encoding="ascii") as file:
                    file.write(text)
            except OSError as error:
                if not is_failing:
                    _log.error("the audit log cannot be written path=%s: %s", self._path, error)
                is_failing = True
            else:
                is_failing = False


def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _MODE)
