"""Logging of the server processes: one line per event on standard error, as text or as JSON.

What comes from outside is escaped here, for every logger at once (`mailboat.model.printable`).
"""

import logging
import sys
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from mailboat.log_lines import LineHandler
from mailboat.model.printable import PrintableFormatter, printable_json

LogFormat: TypeAlias = Literal["text", "json"]


class JsonFormatter(logging.Formatter):
    """One JSON object per event: time (UTC), level, the process where there are several, logger,
    message, and the error if there is one."""

    def __init__(self, process: str | None = None) -> None:
        """Name the process, or none where there is only one."""
        super().__init__()
        self._process = {} if process is None else {"process": process}

    def format(self, record: logging.LogRecord) -> str:
        """Write one event."""
        moment = datetime.fromtimestamp(record.created, UTC)
        event = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            **self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            event["error"] = self.formatException(record.exc_info)
        return printable_json(event)


def configure_logging(log_format: LogFormat, *, debug: bool, process: str | None = None) -> None:
    """Send the log to standard error; INFO and above, or everything with `debug`.

    Where several processes write there, each line names its `process`.
    """
    root = logging.getLogger()
    root.addHandler(_handler(log_format, process))
    root.setLevel(logging.DEBUG if debug else logging.INFO)


def name_process(log_format: LogFormat, process: str) -> None:
    """Name this process in its log from now on; it is a copy of one that has a log already."""
    # The thread of the other one was not copied.
    logging.getLogger().handlers[:] = [_handler(log_format, process)]


def _handler(log_format: LogFormat, process: str | None) -> logging.Handler:
    if sys.stderr is None:
        return logging.NullHandler()
    formatter = _formatter(log_format, process)
    try:
        return LineHandler(formatter, sys.stderr.fileno())
    except OSError:
        # A program that runs this command has put a stream of its own there.
        handler = logging.StreamHandler()
        handler.setFormatter(formatter)
        return handler


def _formatter(log_format: LogFormat, process: str | None) -> logging.Formatter:
    if log_format == "json":
        return JsonFormatter(process)
    # It stands in a format string.
    name = "" if process is None else process.replace("%", "%%") + " "
    return PrintableFormatter(f"%(asctime)s %(levelname)s {name}%(name)s %(message)s")
