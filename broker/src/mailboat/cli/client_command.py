"""What the client commands share: options, questions, running a coroutine, reading a time."""

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

import click

from mailboat.cli.main import DEBUG_KEY, EXIT_TERMINATED, debug_option
from mailboat.client.addresses import DEFAULT_NAMESRV, parse_namesrv
from mailboat.client.queue_offsets import ConsumeFromWhere, StartPoint
from mailboat.errors import (
    BrokerError,
    ConfigError,
    ConnectError,
    MailboatError,
    PartlyDoneError,
)
from mailboat.model.printable import PrintableFormatter
from mailboat.protocol.codes import response_code_name

_Command = TypeVar("_Command", bound=Callable[..., Any])
T = TypeVar("T")
S = TypeVar("S")

REQUESTS_AT_A_TIME: Final = 16

# Fewer digits are a year or a date without separators rather than milliseconds since 1970.
_MS_DIGITS: Final = 12
_TIME_FORM: Final = "a time such as 2026-01-31T08:00:00 or milliseconds since 1970"


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


yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
"""Add `--yes` to a command that asks before it destroys something."""

dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be done.")
"""Add `--dry-run` to a command that changes something."""

cluster_option = click.option("-c", "--cluster", help="Only on the masters of this cluster.")
"""Add `-c`/`--cluster`."""

broker_option = click.option("-b", "--broker", help="Only on the broker with this name.")
"""Add `-b`/`--broker`."""


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is destroyed; nothing is asked with `--yes`.

    Raises:
        Abort: the answer is no.
        UsageError: there is nobody to ask.
    """
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError(
            "there is no terminal to ask whether you are sure; add --yes",
            click.get_current_context(),
        )
    click.confirm(question, abort=True, err=True)


async def each(
    items: Sequence[S], work: Callable[[S], Awaitable[T]], done: Callable[[], None] | None = None
) -> list[T]:
    """Return the result of some work for each item; several run at a time, `done` counts them."""
    room = asyncio.Semaphore(REQUESTS_AT_A_TIME)

    async def one(item: S) -> T:
        async with room:
            result = await work(item)
        if done is not None:
            done()
        return result

    return list(await asyncio.gather(*map(one, items)))


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine; warnings of the client library reach standard error.

    Raises:
        MailboatError: what the coroutine raised; refusals and missing servers in words for people.
        Exit: SIGTERM came, which ends the coroutine as Ctrl-C does.
    """
    debug = bool(click.get_current_context().find_root().meta.get(DEBUG_KEY))
    handler = logging.StreamHandler()
    handler.setFormatter(
        PrintableFormatter("%(asctime)s %(name)s %(message)s" if debug else "mailboat: %(message)s")
    )
    level = logging.DEBUG if debug else logging.WARNING
    logging.basicConfig(level=level, handlers=[handler])
    try:
        return asyncio.run(_until_terminated(work))
    except (BrokerError, ConnectError, PartlyDoneError) as error:
        raise MailboatError(explain(error)) from error


def explain(error: BaseException) -> str:
    """Return what an error says, refusals and missing servers in words for people."""
    if isinstance(error, BrokerError):
        return f"refused with {response_code_name(error.code)} ({error.code}): {error.remark}"
    if isinstance(error, PartlyDoneError):
        return f"{explain(error.cause)}; {error.done}"
    if isinstance(error, ConnectError):
        return (
            f"no connection to {error}; check that a server runs there, and the name servers "
            "(--namesrv or MAILBOAT_NAMESRV)"
        )
    return str(error)


async def _until_terminated(work: Coroutine[Any, Any, T]) -> T:
    """Do the work; SIGTERM cancels it, so that it can say and keep what it has done."""
    task = asyncio.current_task()
    assert task is not None
    is_terminated = False

    def terminate() -> None:
        nonlocal is_terminated
        is_terminated = True
        task.cancel()

    if threading.current_thread() is threading.main_thread():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
    try:
        return await work
    except asyncio.CancelledError:
        if is_terminated:
            raise click.exceptions.Exit(EXIT_TERMINATED) from None
        raise


def start_point_option(
    flag: str, name: str, *, default: str | None, help_text: str, required: bool = True
) -> Callable[[_Command], _Command]:
    """Add an option that takes `first`, `last` or a time; it is required without a default.

    With `required=False` the value is None where the option is not given.
    """
    return click.option(
        flag,
        name,
        metavar="first|last|TIME",
        default=default,
        required=required and default is None,
        show_default=default is not None,
        callback=_to_start_point,
        help=help_text,
    )


def _to_start_point(
    ctx: click.Context, param: click.Parameter, text: str | None
) -> StartPoint | None:
    if text is None:
        return None
    if text in ("first", "earliest"):
        return StartPoint(ConsumeFromWhere.FIRST_OFFSET)
    if text in ("last", "latest"):
        return StartPoint(ConsumeFromWhere.LAST_OFFSET)
    timestamp_ms = _timestamp_ms(text)
    if timestamp_ms is None:
        raise click.BadParameter(f"{text!r} is neither 'first', 'last', nor {_TIME_FORM}")
    return StartPoint(ConsumeFromWhere.TIMESTAMP, timestamp_ms)


def time_option(flag: str, name: str, *, help_text: str) -> Callable[[_Command], _Command]:
    """Add an option that takes a time; the value is epoch milliseconds, or None without it."""
    return click.option(flag, name, metavar="TIME", callback=_to_timestamp_ms, help=help_text)


def _to_timestamp_ms(ctx: click.Context, param: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    timestamp_ms = _timestamp_ms(text)
    if timestamp_ms is None:
        raise click.BadParameter(f"{text!r} is not {_TIME_FORM}")
    return timestamp_ms


def _timestamp_ms(text: str) -> int | None:
    """Read epoch milliseconds, or an ISO date and time (local time where it names no zone)."""
    if text.isascii() and text.isdigit() and len(text) >= _MS_DIGITS:
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
