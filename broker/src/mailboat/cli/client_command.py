"""What the client commands share: questions, running a coroutine, errors in words, times."""

import asyncio
import logging
import math
import signal
import ssl
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import closing
from datetime import datetime
from typing import Any, Final, TypeVar

import click

from mailboat.cli.main import DEBUG_KEY, EXIT_TERMINATED
from mailboat.cli.servers import connects_plainly, signing_access_key
from mailboat.client.queue_offsets import ConsumeFromWhere, StartPoint
from mailboat.client.refusals import is_denied
from mailboat.errors import (
    BrokerError,
    ConnectError,
    ConnectionLostError,
    MailboatError,
    PartlyDoneError,
)
from mailboat.model.printable import PrintableFormatter
from mailboat.protocol.codes import response_code_name
from mailboat.security.tls import is_other_name, is_out_of_time

_Command = TypeVar("_Command", bound=Callable[..., Any])
T = TypeVar("T")
S = TypeVar("S")

REQUESTS_AT_A_TIME: Final = 16

_CHECK_OWN: Final = "check --tls, --tls-cert and --tls-key against what that port asks for"
_TLS_ONLY: Final = "a port that takes TLS only does that to a command without --tls"

# Fewer digits are a year or a date without separators rather than milliseconds since 1970.
_MS_DIGITS: Final = 12
_INT64_DIGITS: Final = 19
_TIME_FORM: Final = "a time such as 2026-01-31T08:00:00 or milliseconds since 1970"


class Seconds(click.FloatRange):
    """A number of seconds: NaN, which is in no order with others, is none."""

    name = "seconds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read it."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return seconds


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
        # Ctrl-C may come before the loop starts them. Python warns of coroutines left like that.
        with closing(work), closing(_until_terminated(work)) as until_terminated:
            return asyncio.run(until_terminated)
    except (BrokerError, ConnectError, ConnectionLostError, PartlyDoneError) as error:
        raise MailboatError(explain(error)) from error


def explain(error: BaseException) -> str:
    """Return what an error says, refusals and missing servers in words for people."""
    if isinstance(error, BrokerError):
        name = response_code_name(error.code)
        return f"refused with {name} ({error.code}): {error.remark}{_who_asked(error)}"
    if isinstance(error, PartlyDoneError):
        return f"{explain(error.cause)}; {error.done}"
    if isinstance(error, ConnectError):
        return f"no connection to {error}; {_what_may_help(error)}"
    if isinstance(error, ConnectionLostError) and connects_plainly():
        return f"{error}; {_TLS_ONLY}"
    return str(error)


def _what_may_help(error: ConnectError) -> str:
    """Return what to do where no connection came about."""
    cause = error.__cause__
    if isinstance(cause, ConnectionLostError):
        return _TLS_ONLY if connects_plainly() else _CHECK_OWN
    if isinstance(cause, ssl.SSLCertVerificationError):
        if is_other_name(cause):
            return (
                "a certificate has to have the name or IP address by which its server is reached: "
                "that of --namesrv, and what a broker tells clients (brokerIP1); or all of them "
                "have one that --tls-server-name says"
            )
        if is_out_of_time(cause):
            return "renew it on the server, or set the clock of this machine"
        return "--tls-trust names the file of the authority that signed it"
    if isinstance(cause, ssl.SSLError):
        return _CHECK_OWN
    return "check that a server runs there, and the name servers (--namesrv or MAILBOAT_NAMESRV)"


def _who_asked(error: BrokerError) -> str:
    """Return what to do about a refusal that depends on who asks."""
    if not is_denied(error):
        return ""
    access_key = signing_access_key()
    if access_key is None:
        return (
            "; the request was not signed: --access-key (MAILBOAT_ACCESS_KEY) says who you are, "
            "MAILBOAT_SECRET_KEY or --secret-key-file proves it"
        )
    return f"; it was signed as {access_key}: check the secret key, and what that user may do"


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
    if text.isascii() and text.isdigit() and _MS_DIGITS <= len(text) <= _INT64_DIGITS:
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
