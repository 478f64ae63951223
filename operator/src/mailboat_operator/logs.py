"""How the operator's log lines look: key=value for people and grep, or one JSON object each."""

import json
import logging
import sys
import time


class TextFormatter(logging.Formatter):
    """`time=... level=... logger=... message="..."`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, also for an exception: its trace is quoted into it."""
        return " ".join(f"{key}={_quoted(value)}" for key, value in _members(self, record).items())


class JsonFormatter(logging.Formatter):
    """The same members as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON."""
        return json.dumps(_members(self, record))


def configure_logging(level: str, log_format: str) -> None:
    """Send all loggers to stderr in one form; the libraries below us speak only of trouble."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    if level != "DEBUG":
        handler.addFilter(_is_worth_a_line)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    quiet = logging.DEBUG if level == "DEBUG" else logging.WARNING
    for name in ("kopf", "aiohttp.access", "asyncio", "kubernetes"):
        logging.getLogger(name).setLevel(quiet)


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Kopf tells of each try of each of its requests; the first one is told by our own session."""
    return not (record.name.startswith("kopf.") and "will retry" in record.getMessage())


def _members(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, str]:
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    members = {
        "time": f"{moment}.{int(record.msecs):03d}Z",
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
    }
    if record.exc_info:
        members["exception"] = formatter.formatException(record.exc_info)
    return members


def _quoted(value: str) -> str:
    plain = value and all(character.isprintable() and character not in ' "=' for character in value)
    return value if plain else json.dumps(value)
