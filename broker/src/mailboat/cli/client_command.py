"""What the client commands share: name servers, running a coroutine, reading a point in time."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, Final, TypeVar

import click

from mailboat.cli.main import DEBUG_KEY, debug_option
from mailboat.client.addresses import DEFAULT_NAMESRV, parse_namesrv
from mailboat.client.queue_offsets import ConsumeFromWhere, StartPoint
from mailboat.errors import ConfigError

_Command = TypeVar("_Command", bound=Callable[..., Any])
T = TypeVar("T")

# Fewer digits are a year or a date without separators rather than milliseconds since 1970.
_MS_DIGITS: Final = 12


def _check_namesrv(ctx: click.Context, param: click.Parameter, value: str) -> str:
    try:
        parse_namesrv(value)
    except ConfigError as error:
        raise click.BadParameter(error.reason) from error
    return value


def namesrv_option(command: _Command) -> _Command:
    """Add `-n`/`--namesrv` and `--debug` to a command."""
    option = click.option(
        "-n",
        "--namesrv",
        metavar="HOST:PORT;...",
        envvar="MAILBOAT_NAMESRV",
        default=DEFAULT_NAMESRV,
        show_default=True,
        show_envvar=True,
        callback=_check_namesrv,
        help="Name servers.",
    )
    return option(debug_option(command))


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")
"""Add `--json` to a command that prints a table."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine; warnings of the client library reach standard error."""
    debug = bool(click.get_current_context().find_root().meta.get(DEBUG_KEY))
    logging.basicConfig(
        format="mailboat: %(message)s" if not debug else "%(asctime)s %(name)s %(message)s",
        level=logging.DEBUG if debug else logging.WARNING,
    )
    return asyncio.run(work)


def start_point_option(
    flag: str, name: str, *, default: str | None, help_text: str
) -> Callable[[_Command], _Command]:
    """Add an option that takes `first`, `last` or a time; it is required without a default."""
    return click.option(
        flag,
        name,
        metavar="first|last|TIME",
        default=default,
        required=default is None,
        show_default=default is not None,
        callback=_to_start_point,
        help=help_text,
    )


def _to_start_point(ctx: click.Context, param: click.Parameter, text: str) -> StartPoint:
    if text == "first":
        return StartPoint(ConsumeFromWhere.FIRST_OFFSET)
    if text == "last":
        return StartPoint(ConsumeFromWhere.LAST_OFFSET)
    timestamp_ms = _timestamp_ms(text)
    if timestamp_ms is None:
        raise click.BadParameter(
            f"{text!r} is neither 'first', 'last', nor a time such as 2026-01-31T08:00:00 "
            "or milliseconds since 1970"
        )
    return StartPoint(ConsumeFromWhere.TIMESTAMP, timestamp_ms)


def _timestamp_ms(text: str) -> int | None:
    """Read epoch milliseconds, or an ISO date and time (local time where it names no zone)."""
    if text.isascii() and text.isdigit() and len(text) >= _MS_DIGITS:
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
