"""The operator's log lines: names and errors of others stay inside them."""

import json
import logging

import pytest

from mailboat_operator.logs import JsonFormatter, TextFormatter

HOSTILE = "pod-0\ntime=2026 level=error message=forged\x1b[2J\x9b\u202e"


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_an_event_is_one_line_of_plain_characters(formatter: logging.Formatter) -> None:
    """Whatever a broker or the cluster answers."""
    record = logging.LogRecord("a", logging.INFO, "f", 1, "said %s", (HOSTILE,), None)
    line = formatter.format(record)
    assert line.isprintable()
    assert "\n" not in line


def test_json_means_what_was_said() -> None:
    """The text is whole for whoever reads it back."""
    record = logging.LogRecord("a", logging.INFO, "f", 1, "said %s", (HOSTILE,), None)
    assert json.loads(JsonFormatter().format(record))["message"] == f"said {HOSTILE}"
