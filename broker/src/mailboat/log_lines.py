"""Takes lines of the log off the hands of whoever logs: a thread writes them.

A terminal that is stopped, a pipe that nobody reads and a full disk behind a file hold up the
thread and nobody else. Lines wait in a queue with a bound; beyond it they are dropped, counted, and
told once lines are written again.

What a peer can cause it can cause very often. So each kind of line (the text before its values are
put in) has a limit for each address that it names, and one for all of them. What is beyond is
counted, and told by the next line of its kind, or once the time of the limit is over. Values are
cut before they are put in: a peer chooses how long they are.
"""

import logging
import math
import os
import queue
import re
import select
import threading
import time
from collections.abc import Callable
from logging.handlers import QueueHandler
from typing import Final

MAX_WAITING: Final = 10_000
"""Most lines that wait to be written: some megabytes, as a rule."""

MAX_VALUE_LENGTH: Final = 1_024
"""Most characters of a text that is put into a line."""

MAX_LENGTH: Final = 8_192
"""Most characters of a line, tracebacks aside."""

WINDOW_S: Final = 10.0
"""The limits below are for so long."""

LINES_AN_ADDRESS: Final = 20
"""Most lines of one kind about one address."""

LINES_A_KIND: Final = 500
"""Most lines of one kind."""

_KEYS_MAX: Final = 10_000
_END_S: Final = 0.4
_WRITE_AGAIN_S: Final = 0.1
_PEER: Final = re.compile(r"\bpeer=(\S+)")
_ADDRESS: Final = re.compile(r"\b(?:address|host)=(\S+)")


class LineLimit:
    """Says which lines are too many; times are seconds of any clock that goes on."""

    def __init__(self) -> None:
        """Nothing was said yet."""
        self._began_s = 0.0
        self._said: dict[tuple[str, str], int] = {}
        self._withheld: dict[str, int] = {}

    def admit(self, kind: str, address: str, now_s: float) -> int | None:
        """Take note of a line; return how many of its kind were withheld before, None if it is.

        Args:
            kind: what it says, without its values.
            address: what it is about, empty where that is no peer.
            now_s: the time.
        """
        if now_s - self._began_s >= WINDOW_S or len(self._said) >= _KEYS_MAX:
            self._began_s = now_s
            self._said.clear()
        of_kind = self._said.get((kind, ""), 0)
        of_address = self._said.get((kind, address), 0)
        if of_kind >= LINES_A_KIND or (address and of_address >= LINES_AN_ADDRESS):
            self._withheld[kind] = self._withheld.get(kind, 0) + 1
            return None
        self._said[kind, ""] = of_kind + 1
        if address:
            self._said[kind, address] = of_address + 1
        return self._withheld.pop(kind, 0)

    def take_withheld(self, now_s: float) -> dict[str, int]:
        """Return how many lines of each kind were withheld and never told, once that is over."""
        if not self._withheld or now_s - self._began_s < WINDOW_S:
            return {}
        withheld, self._withheld = self._withheld, {}
        return withheld


class LineHandler(QueueHandler):
    """Hands formatted lines to a thread that writes them; never waits."""

    def __init__(self, formatter: logging.Formatter, fd: int) -> None:
        """Write to a file descriptor from now on.

        Args:
            formatter: makes one line of an event.
            fd: of a terminal, a pipe or a file; it stays open.
        """
        # Its lock is nobody's who is interrupted to log something else, as by a finalizer.
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        super().__init__(self._lines)
        self.setFormatter(formatter)
        self._fd = fd
        self._pid = os.getpid()
        # A finalizer may log while somebody logs.
        self._limit, self._limits = LineLimit(), threading.RLock()
        self.dropped = 0
        """How many lines were dropped: nobody took them in time, or they could not be written."""

        self.withheld = 0
        """How many lines were too many of their kind."""

        self._told = 0
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Hand an event on, unless there are too many of its kind."""
        try:
            self._emit(record)
        except Exception as error:
            # As with every handler: whoever logs is not to end by a line that cannot be made.
            self.say(f"a line of {record.name} cannot be written: {type(error).__name__}: {error}")

    def _emit(self, record: logging.LogRecord) -> None:
        message = _message_of(record)
        if record.levelno >= logging.INFO:  # Who wants to see more wants to see everything.
            kind = _cut(str(record.msg), MAX_VALUE_LENGTH)
            with self._limits:
                withheld = self._limit.admit(kind, _address_in(message), time.monotonic())
            if withheld is None:
                self.withheld += 1
                return
            if withheld:
                message += f" ({withheld} more lines of this kind were left out before it)"
        self.say(
            self.format(logging.makeLogRecord({**record.__dict__, "msg": message, "args": None}))
        )

    def say(self, line: str) -> None:
        """Hand a line on as it is."""
        if self._lines.qsize() < MAX_WAITING:
            self._lines.put(line)
        else:
            self.dropped += 1

    def close(self) -> None:
        """Wait for a moment for what is not written yet."""
        # A copy of this process has no copy of the thread.
        if os.getpid() == self._pid and self._thread.is_alive():
            self._lines.put(None)
            self._thread.join(_END_S)
        super().close()

    def _write_all(self) -> None:
        is_over = False
        while not is_over:
            try:
                line = self._lines.get(timeout=WINDOW_S)
            except queue.Empty:
                line = ""
            is_over = line is None
            if line and not self._write(line):
                self.dropped += 1
            dropped = self.dropped
            if dropped > self._told and self._warn(
                "%d lines of the log were dropped: nobody took them in time, or they could not be "
                "written",
                dropped - self._told,
            ):
                self._told = dropped
            with self._limits:
                withheld = self._limit.take_withheld(math.inf if is_over else time.monotonic())
            for kind, count in withheld.items():
                self._warn("%d more lines like %r were left out", count, kind)

    def _warn(self, text: str, *values: object) -> bool:
        record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, values, None)
        return self._write(self.format(record))

    def _write(self, line: str) -> bool:
        """Write a line; tell whether that worked."""
        data = (line + "\n").encode("utf-8", "backslashreplace")
        try:
            while data:
                try:
                    data = data[os.write(self._fd, data) :]
                except BlockingIOError:
                    select.select([], [self._fd], [], _WRITE_AGAIN_S)
        except (OSError, ValueError):
            # The disk behind it is full, or who reads it is gone. It may work again later.
            return False
        return True


def _message_of(record: logging.LogRecord) -> str:
    """Return what a line says, with no more than the beginning of what is long."""
    args = record.args
    if isinstance(args, tuple):
        args = tuple(
            _cut(value, MAX_VALUE_LENGTH) if isinstance(value, str) else value for value in args
        )
    message = str(record.msg)
    return _cut(message % args if args else message, MAX_LENGTH)


def _cut(text: str, length: int) -> str:
    left_out = len(text) - length
    return text if left_out <= 0 else f"{text[:length]}... ({left_out} more characters)"


def _address_in(message: str) -> str:
    """Return the address that a line is about, without a port; empty where it names none."""
    found = _PEER.search(message) or _ADDRESS.search(message)
    if found is None:
        return ""
    text = found[1].rstrip(",;:")
    if text.startswith("["):
        return text.partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def line_handler() -> LineHandler | None:
    """Return the handler of this process's log, None where it has none of ours."""
    handlers = logging.getLogger().handlers
    return next((each for each in handlers if isinstance(each, LineHandler)), None)


def say(sentence: str, otherwise: Callable[[str], None]) -> None:
    """Put a sentence among the lines of the log, where the process has one."""
    handler = line_handler()
    if handler is None:
        otherwise(sentence)
    else:
        handler.say(sentence)
