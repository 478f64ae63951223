"""`mailboat message redrive`: dead letters back to where they came from."""

import asyncio
from typing import Any, Final

import click

from mailboat.cli.client_command import (
    dry_run_option,
    explain,
    json_option,
    run,
    time_option,
)
from mailboat.cli.main import EXIT_UNKNOWN
from mailboat.cli.output import print_json
from mailboat.cli.progress import Scan
from mailboat.cli.servers import Servers, servers_options
from mailboat.client.admin.redrive import (
    BATCH,
    Destination,
    Redrive,
    RedriveReport,
    Selection,
    default_position_group,
)
from mailboat.errors import MailboatError, UnknownOutcomeError

GROUP: Final = "mailboat-cli"


@click.command()
@click.argument("group")
@time_option("--begin", "begin_ms", help_text="Only those that died at this time or later.")
@time_option("--end", "end_ms", help_text="Only those that died at this time or earlier.")
@click.option(
    "--id",
    "message_ids",
    multiple=True,
    metavar="MESSAGE_ID",
    help="Only the dead letter with this id, the producer's or the broker's; may be repeated.",
)
@click.option(
    "-t", "--topic", help="Where dead letters go that do not say which topic they came from."
)
@click.option(
    "--to-group",
    is_flag=True,
    help="Give them to GROUP only, through its retry topic; other groups do not get them again.",
)
@click.option("--position", metavar="NAME", help="Keep the position under this group name.")
@click.option("--restart", is_flag=True, help="Begin with the oldest, whatever the position says.")
@click.option(
    "--batch",
    "batch_size",
    type=click.IntRange(1, BATCH),
    default=BATCH,
    show_default=True,
    help="Messages between two commits of the position.",
)
@dry_run_option
@json_option
@servers_options
def command(
    group: str,
    begin_ms: int | None,
    end_ms: int | None,
    message_ids: tuple[str, ...],
    topic: str | None,
    to_group: bool,
    position: str | None,
    restart: bool,
    batch_size: int,
    dry_run: bool,
    as_json: bool,
    servers: Servers,
) -> None:
    """Put dead letters of GROUP back to where they came from.

    Each message of %DLQ%GROUP is sent again to the topic that it was sent to at first, with its id,
    tags, keys and properties; every group of that topic gets it again (but see --to-group). The
    dead letter stays where it is until its time is over.

    How far the redrive is, is stored at the brokers as the offset of the group
    mailboat-redrive-GROUP, batch by batch, after the messages of the batch are stored. A second run
    goes on where the first one ended, and takes only letters that died since. A run that is
    interrupted, by whatever cause, loses no message; the next one repeats at most the last batch. A
    time range has a position of its own, with a number in its name. --id keeps no position: the
    same ids again are sent again. Exit code 5: a message of the last batch may or may not be
    stored, and the next run sends it again.

    \b
    Examples:
      mailboat message redrive billing --dry-run
      mailboat message redrive billing
      mailboat message redrive billing --begin 2026-01-31T08:00 --end 2026-01-31T09:00 --to-group
      mailboat message redrive billing --id 7F0000010B5C5D1E2F3A0000C8470001
    """
    by_range = begin_ms is not None or end_ms is not None
    if message_ids and (by_range or position is not None or restart):
        raise click.UsageError("--id goes with none of --begin, --end, --position and --restart")
    selection = Selection(begin_ms, end_ms, tuple(dict.fromkeys(message_ids)))
    destination = Destination(group, topic, to_group)
    report = run(
        _redrive(
            servers,
            destination,
            selection,
            position_group=position or default_position_group(group, selection),
            restart=restart,
            dry_run=dry_run,
            batch_size=batch_size,
        )
    )
    if as_json:
        print_json(report_row(report))
    else:
        click.echo(summary(report))


async def _redrive(
    servers: Servers,
    destination: Destination,
    selection: Selection,
    *,
    position_group: str,
    restart: bool,
    dry_run: bool,
    batch_size: int,
) -> RedriveReport:
    async with servers.admin() as admin, servers.producer(GROUP) as producer:
        redrive = Redrive(
            admin,
            producer,
            destination,
            selection,
            position_group=position_group,
            restart=restart,
            dry_run=dry_run,
            batch_size=batch_size,
        )
        total = await redrive.prepare()
        with Scan("dead letters", total) as scan:
            try:
                return await redrive.run(scan.advance)
            except MailboatError as error:
                kind = UnknownOutcomeError if error.exit_code == EXIT_UNKNOWN else MailboatError
                raise kind(f"{explain(error)} ({_so_far(redrive)})") from error
            except asyncio.CancelledError:
                click.echo(f"mailboat: interrupted ({_so_far(redrive)})", err=True)
                raise


def _so_far(redrive: Redrive) -> str:
    if redrive.report.dry_run:
        return "nothing was sent: --dry-run"
    return f"{redrive.report.redriven_total} messages were redriven before; run it again to go on"


def report_row(report: RedriveReport) -> dict[str, Any]:
    """Return what a redrive has done as a JSON object."""
    return {
        "group": report.group,
        "dead_letter_topic": report.dead_letter_topic,
        "position_group": report.position_group,
        "dry_run": report.dry_run,
        "read": report.read,
        "redriven": report.redriven_total,
        "not_selected": report.read - report.redriven_total,
        "to": [
            {"topic": topic, "messages": messages}
            for topic, messages in sorted(report.redriven.items())
        ],
    }


def summary(report: RedriveReport) -> str:
    """Return what a redrive has done in one sentence for people."""
    verb = "would redrive" if report.dry_run else "redrove"
    if not report.read:
        where = "" if report.position_group is None else f" after position {report.position_group}"
        return f"group {report.group} has no dead letters{where}"
    parts = [f"{count} to {topic}" for topic, count in sorted(report.redriven.items())]
    text = f"{verb} {report.redriven_total} of {report.read} dead letters of group {report.group}"
    if parts:
        text += f": {', '.join(parts)}"
    if report.position_group is not None and not report.dry_run:
        text += f"; the position is kept as group {report.position_group}"
    return text
