"""The `mailboat` command: finds the sub-command, and turns errors into one sentence and an exit
code."""

import os
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from typing import Final

import click

from mailboat import __version__, core
from mailboat.cli.lazy import LazyGroup, SubCommand
from mailboat.cli.standard_error import keep_standard_error
from mailboat.errors import MailboatError, UnknownOutcomeError
from mailboat.model.printable import printable

EXIT_OK: Final = 0
EXIT_RUNTIME: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNKNOWN: Final = UnknownOutcomeError.exit_code
EXIT_INTERRUPTED: Final = 130
EXIT_TERMINATED: Final = 143

DEBUG_KEY: Final = "mailboat.debug"
"""Key in the click context's `meta` that says whether tracebacks are wanted."""


SUB_COMMANDS: Final[dict[str, SubCommand]] = {
    "standalone": SubCommand("standalone", "Run a name server and a broker in one process."),
    "namesrv": SubCommand("namesrv", "Run a name server."),
    "broker": SubCommand("broker", "Run a broker."),
    "produce": SubCommand("produce", "Send the lines of standard input to a topic."),
    "consume": SubCommand("consume", "Print the messages of a topic."),
    "topic": SubCommand("topic", "Create, list, show, change and delete topics."),
    "group": SubCommand("group", "Show consumer groups, their members and their lag; change them."),
    "cluster": SubCommand("cluster", "Show clusters and brokers; change the settings of brokers."),
    "replica": SubCommand("replica", "Show the replicas of a broker; say which of them leads."),
    "message": SubCommand("message", "Find, show and send messages; put dead letters back."),
    "offset": SubCommand("offset", "Show, move and clone the offsets of a consumer group."),
    "store": SubCommand("store", "Check, dump or repair a store directory that is not in use."),
    "demo": SubCommand("demo", "Send real lines through broker and Spark and compare the counts."),
}


def _set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.find_root().meta[DEBUG_KEY] = True


debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    callback=_set_debug,
    help="Show tracebacks and log at DEBUG level.",
)
"""Accepted by the `mailboat` command and by every server command."""


@click.group(
    cls=LazyGroup,
    table=SUB_COMMANDS,
    package="mailboat.cli",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "--version", message=f"mailboat %(version)s ({core.FOUND})")
@debug_option
def cli() -> None:
    """A message queue that speaks RocketMQ: broker, name server and tools.

    `mailboat standalone` starts everything on this machine. Each command explains itself with
    --help.

    \b
    Exit codes: 0 ok, 1 runtime error, 2 wrong usage, 3 wrong configuration, 4 damaged store,
    5 messages were sent that may or may not be stored, 130 Ctrl-C, 143 SIGTERM.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `arguments` default to those of the process."""
    keep_standard_error()
    words = list(sys.argv[1:] if arguments is None else arguments)
    context: click.Context | None = None
    try:
        core.FOUND.check()
        with cli.make_context("mailboat", words) as context:
            result = cli.invoke(context)
        if sys.stdout is not None:
            sys.stdout.flush()
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except click.ClickException as exc:
        click.echo(f"{_command_path(exc)}: {exc.format_message()}", err=True)
        return exc.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return _output_closed()
    except Exception as exc:
        return _report(exc, debug=context is not None and bool(context.meta.get(DEBUG_KEY)))
    return result if isinstance(result, int) else EXIT_OK


def _command_path(exc: click.ClickException) -> str:
    """Return the command that a usage error is about, as the user typed it."""
    context = exc.ctx if isinstance(exc, click.UsageError) else None
    return "mailboat" if context is None else context.command_path


def describe_error(exc: Exception) -> tuple[str, int]:
    """Return one sentence about what went wrong, and the exit code; a fault of ours says so."""
    if isinstance(exc, MailboatError):
        return str(exc), exc.exit_code
    if isinstance(exc, OSError):
        return _os_error_text(exc), EXIT_RUNTIME
    text = f"internal error: {type(exc).__name__}: {exc}; --debug shows the traceback"
    return text, EXIT_RUNTIME


def _report(exc: Exception, *, debug: bool) -> int:
    # Late, as it is for servers and for what goes wrong.
    from mailboat.log_lines import say

    tell = partial(click.echo, err=True)
    if debug:
        say("".join(traceback.format_exception(exc)).rstrip(), tell)
    text, code = describe_error(exc)
    say(f"mailboat: {printable(text)}", tell)
    return code


def _os_error_text(exc: OSError) -> str:
    reason = exc.strerror or str(exc)
    return f"{exc.filename}: {reason}" if exc.filename is not None else reason


def _output_closed() -> int:
    """The reader of our output went away (`| head`): end quietly."""
    # Python flushes standard output once more at exit and would complain about the pipe.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_OK
