"""The log of the server processes as JSON."""

import json
import logging
import sys

from mailboat.cli.logs import JsonFormatter


def test_an_event_is_one_json_object() -> None:
    """Time in UTC with milliseconds, level, logger and the message with its arguments."""
    record = logging.LogRecord("a.b", logging.WARNING, "f", 1, "x=%d\ny", (5,), None)
    record.created = 0.25
    assert json.loads(JsonFormatter().format(record)) == {
        "time": "1970-01-01T00:00:00.250+00:00",
        "level": "WARNING",
        "logger": "a.b",
        "message": "x=5\ny",
    }
    assert "\n" not in JsonFormatter().format(record)


def test_an_error_brings_its_traceback() -> None:
    """The traceback stays inside the one line."""
    try:
        raise ValueError("bad")
    except ValueError:
        record = logging.LogRecord("a", logging.ERROR, "f", 1, "m", None, sys.exc_info())
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert "ValueError: bad" in json.loads(line)["error"]
