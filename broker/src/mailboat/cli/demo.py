"""`mailboat demo`: the whole story on one machine, checked to the last byte."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from mailboat.cli.demo_leftovers import Leftovers
from mailboat.cli.demo_lines import PART_BYTES, STDIN, LineSource
from mailboat.cli.demo_processes import check_spark_ready, run_job, running_broker
from mailboat.cli.demo_sender import send_lines
from mailboat.cli.demo_tally import (
    ParquetTally,
    Tally,
    committed_files,
    differences,
    tally_parquet,
)
from mailboat.cli.demo_view import DemoView, disk_use
from mailboat.cli.main import EXIT_OK, EXIT_RUNTIME
from mailboat.errors import MailboatError

TOPIC: Final = "demo"
DEFAULT_MESSAGES: Final = 200_000
STREAM_STAGE: Final = "stream to Parquet"
TEMPORARY_PREFIX: Final = "mailboat-demo-"


@click.command(name="demo")
@click.option(
    "--input",
    "given",
    metavar="FILE",
    help="A file or folder whose lines to send, or - for standard input.  [default: the sources of"
    " this machine's Python]",
)
@click.option(
    "--messages",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"At most so many messages.  [default: all of FILE; {DEFAULT_MESSAGES} without it]",
)
@click.option(
    "--keep",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep store, Parquet files and logs in this new folder.",
)
def command(given: str | None, messages: int | None, keep: Path | None) -> int:
    """Send real lines through broker and Spark and compare the counts.

    Starts a broker, sends one message per line (topic demo, key PATH:LINE, tag from the path), lets
    a Spark job write the topic to Parquet, and compares both sides: every message must have arrived
    once and unchanged. Exit code 1 if one did not. Everything is removed at the end, unless --keep
    is given.

    Lines without content are left out, lines longer than 4,000,000 bytes are sent in parts.
    """
    if given not in (None, STDIN) and not Path(str(given)).exists():
        raise click.BadParameter(f"{given} does not exist", param_hint="--input")
    if given is None and messages is None:
        messages = DEFAULT_MESSAGES
    check_spark_ready()
    view = DemoView(Console())
    source = LineSource(given, messages)
    leftovers = Leftovers()
    leftovers.watch_signals()
    with ExitStack() as stack:
        folder = _new_folder(keep) if keep else stack.enter_context(_temporary(leftovers))
        is_whole = _run(view, leftovers, folder, source, messages)
        if keep is not None:
            click.echo(f"Kept in {folder}: store, parquet, broker.log, spark.log")
    return EXIT_OK if is_whole else EXIT_RUNTIME


def _run(
    view: DemoView, leftovers: Leftovers, folder: Path, source: LineSource, messages: int | None
) -> bool:
    """Run every stage, show the report, and tell whether both sides are equal."""
    lines = source.lines()
    first = next(lines, None)
    if first is None:
        raise MailboatError(f"{source.description} holds no line with content; nothing was sent")
    with ExitStack() as stack:
        with view.stage("start broker"):
            namesrv = stack.enter_context(running_broker(leftovers, folder))["namesrv"]
        view.say(f"Sending lines of {source.description}.")
        with view.stage("send", messages) as update:
            sent = send_lines(namesrv, TOPIC, chain([first], lines), update)
        _tell_odd_lines(view, source)
        # A short path of its own, also with --keep: sockets lie there.
        work_dir = stack.enter_context(_temporary(leftovers))
        job = stack.enter_context(closing(run_job(leftovers, folder, work_dir, namesrv, TOPIC)))
        with view.stage("start Spark"):
            next(job)
        with view.stage(STREAM_STAGE, sent.messages) as update:
            for event in job:
                update(event["rows"])
        disk_bytes = _disk_bytes(folder)
    arrived = ParquetTally()
    with view.stage("compare", sent.messages) as update:
        for arrived in tally_parquet(committed_files(folder / "parquet")):
            update(arrived.tally.messages)
    rates = dict.fromkeys(("send", STREAM_STAGE), sent.messages)
    view.report(sent, arrived.tally, disk_bytes, rates)
    return _judge(view, sent, arrived)


def _judge(view: DemoView, sent: Tally, arrived: ParquetTally) -> bool:
    found = differences(sent, arrived)
    for sentence in found:
        click.echo(f"mailboat: {sentence}", err=True)
    if not found:
        view.say(f"All {sent.messages:,} messages arrived once and unchanged.")
    return not found


def _tell_odd_lines(view: DemoView, source: LineSource) -> None:
    counts = source.counts
    if counts.empty_lines:
        view.say(f"{counts.empty_lines:,} lines without content were left out.")
    if counts.split_lines:
        view.say(
            f"{counts.split_lines:,} lines longer than {PART_BYTES:,} bytes were sent in parts."
        )


def _disk_bytes(folder: Path) -> dict[str, int]:
    store = folder / "store"
    parts = {
        "commit log (reserved)": store / "commitlog",
        "consume queues": store / "consumequeue",
        "index": store / "index",
        "Parquet": folder / "parquet",
    }
    return {name: disk_use(path) for name, path in parts.items()}


def _new_folder(keep: Path) -> Path:
    """Make the folder to keep; one that holds something is refused."""
    if keep.exists() and any(keep.iterdir()):
        raise click.BadParameter(f"{keep} is not empty; name a new folder", param_hint="--keep")
    keep.mkdir(parents=True, exist_ok=True)
    return keep.resolve()


@contextmanager
def _temporary(leftovers: Leftovers) -> Iterator[Path]:
    """Give a folder that is removed at the end, whatever that end is."""
    with leftovers.held():
        folder = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX))
        leftovers.add_folder(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
