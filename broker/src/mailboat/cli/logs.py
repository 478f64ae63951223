"""Logging of the server processes: one line per event on standard error, as text or as JSON.

What comes from outside is escaped here, for every logger at once (`mailboat.model.printable`).
"""

import logging
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from mailboat.model.printable import PrintableFormatter, printable_json

LogFormat: TypeAlias = Literal["text", "json"]


class JsonFormatter(logging.Formatter):
    """One JSON object per event: time (UTC), level, logger, message, and the error if there is
    one."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one event."""
        moment = datetime.fromtimestamp(record.created, UTC)
        event = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            event["error"] = self.formatException(record.exc_info)
        return printable_json(event)


def configure_logging(log_format: LogFormat, *, debug: bool) -> None:
    """Send the log to standard error; INFO and above, or everything with `debug`."""
    handler = logging.StreamHandler()
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if debug else logging.INFO)
