"""`mailboat offset show|reset|skip|clone`: offsets shown and moved."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from mailboat.cli.client_command import (
    dry_run_option,
    json_option,
    run,
    start_point_option,
)
from mailboat.cli.group.show import group_progress, refuse_unknown
from mailboat.cli.output import print_rows
from mailboat.cli.servers import Servers, servers_options
from mailboat.client.admin import Admin
from mailboat.client.admin.offsets import OffsetMove
from mailboat.client.queue_offsets import ConsumeFromWhere, StartPoint

_SHOW_COLUMNS: Final = (
    "topic",
    "broker",
    "queue",
    "consumer_offset",
    "broker_offset",
    "lag",
    "last_consumed",
)
_MOVE_COLUMNS: Final = (
    "topic",
    "broker",
    "queue",
    "old_offset",
    "new_offset",
    "max_offset",
    "lag",
    "new_lag",
)
_END: Final = StartPoint(ConsumeFromWhere.LAST_OFFSET)

_Command = Callable[..., Any]


@click.command()
@click.argument("group")
@click.option("-t", "--topic", help="Only this topic.")
@json_option
@servers_options
def show(group: str, topic: str | None, as_json: bool, servers: Servers) -> None:
    """Show the stored offsets of GROUP.

    \b
    Example:
      mailboat offset show billing -t orders
    """
    rows = run(group_progress(servers, group, topic))
    print_rows(rows, _SHOW_COLUMNS, as_json=as_json)


def _queue_options(command: _Command) -> _Command:
    """Add `-b`/`--broker` and `-q`/`--queue-id`."""
    broker = click.option("-b", "--broker", help="Only the queues of this broker.")
    queue_ids = click.option(
        "-q",
        "--queue-id",
        "queue_ids",
        type=click.IntRange(min=0),
        multiple=True,
        help="Only the queue with this id; may be repeated.",
    )
    return broker(queue_ids(command))


@click.command()
@click.argument("group")
@click.argument("topic")
@start_point_option(
    "--to",
    "point",
    default=None,
    required=False,
    help_text="Where the group goes on; earliest and latest are first and last.",
)
@click.option("--offset", "queue_offset", type=click.IntRange(min=0), help="Go on at this offset.")
@_queue_options
@dry_run_option
@json_option
@servers_options
def reset(
    group: str,
    topic: str,
    point: StartPoint | None,
    queue_offset: int | None,
    broker: str | None,
    queue_ids: tuple[int, ...],
    dry_run: bool,
    as_json: bool,
    servers: Servers,
) -> None:
    """Let GROUP go on at another place of TOPIC.

    A group that is online is moved by its broker, which tells the members; they go on there within
    seconds. What is shown as old offset leads back. --dry-run shows both and changes nothing. Where
    a broker fails after others were done, the error names the queues that were moved.

    \b
    Examples:
      mailboat offset reset billing orders --to first --dry-run
      mailboat offset reset billing orders --to 2026-01-31T08:00:00
      mailboat offset reset billing orders --offset 1200 -b broker-a -q 3
    """
    if (point is None) == (queue_offset is None):
        raise click.UsageError("say where to go on with either --to or --offset")
    if queue_offset is not None and not queue_ids:
        raise click.UsageError("--offset needs --queue-id: each queue has offsets of its own")
    target = point if point is not None else queue_offset
    assert target is not None
    moves = run(
        _reset(servers, group, topic, target, broker=broker, queue_ids=queue_ids, dry_run=dry_run)
    )
    _print_moves(moves, dry_run=dry_run, as_json=as_json)


@click.command()
@click.argument("group")
@click.argument("topic")
@_queue_options
@dry_run_option
@json_option
@servers_options
def skip(
    group: str,
    topic: str,
    broker: str | None,
    queue_ids: tuple[int, ...],
    dry_run: bool,
    as_json: bool,
    servers: Servers,
) -> None:
    """Let GROUP go on at the end of TOPIC.

    Everything that it has not consumed yet is passed over; the lag that is shown is what is
    skipped. The same as `mailboat offset reset GROUP TOPIC --to last`.

    \b
    Examples:
      mailboat offset skip billing orders --dry-run
      mailboat offset skip billing orders
    """
    moves = run(
        _reset(servers, group, topic, _END, broker=broker, queue_ids=queue_ids, dry_run=dry_run)
    )
    _print_moves(moves, dry_run=dry_run, as_json=as_json)


async def _reset(
    servers: Servers,
    group: str,
    topic: str,
    target: StartPoint | int,
    *,
    broker: str | None,
    queue_ids: tuple[int, ...],
    dry_run: bool,
) -> list[dict[str, Any]]:
    """Plan a move and make it; the rows say where the group really is afterwards."""
    async with servers.admin() as admin:
        moves = await admin.offsets.plan(
            group, topic, target, broker_name=broker, queue_ids=queue_ids
        )
        moved = {move.queue: move.after for move in moves}
        if dry_run:
            await _refuse_offline_unknown(admin, group)
        else:
            moved = await admin.offsets.reset(
                group, topic, target, broker_name=broker, queue_ids=queue_ids
            )
        return [move_row(move, moved.get(move.queue, move.after)) for move in moves]


async def _refuse_offline_unknown(admin: Admin, group: str) -> None:
    """Raise MailboatError where a group has no member and no broker knows it."""
    if await admin.groups.connection(group) is None:
        await refuse_unknown(admin, group)


@click.command()
@click.argument("source")
@click.argument("destination")
@click.option("-t", "--topic", help="Only this topic.")
@dry_run_option
@json_option
@servers_options
def clone(
    source: str, destination: str, topic: str | None, dry_run: bool, as_json: bool, servers: Servers
) -> None:
    """Let one group go on where another one is.

    DESTINATION gets the offsets of SOURCE in every queue that SOURCE has one of; both must exist,
    and DESTINATION must be offline, since members would store their own offsets again. Where a
    broker fails, the error names the queues whose offsets were stored before.

    \b
    Examples:
      mailboat offset clone billing billing-v2 --dry-run
      mailboat offset clone billing billing-v2 -t orders
    """

    async def work() -> list[OffsetMove]:
        async with servers.admin() as admin:
            if dry_run:
                await _refuse_offline_unknown(admin, destination)
                return await admin.offsets.plan_clone(source, destination, topic)
            return await admin.offsets.clone(source, destination, topic)

    rows = [move_row(move, move.after) for move in run(work())]
    _print_moves(rows, dry_run=dry_run, as_json=as_json)


def move_row(move: OffsetMove, new_offset: int) -> dict[str, Any]:
    """Return a row that says where a group was in a queue and where it is now.

    The lag is that before the move: from the old offset, or the queue's first one, to the end.
    """
    start = move.min_offset if move.before is None else max(move.before, move.min_offset)
    return {
        "topic": move.queue.topic,
        "broker": move.queue.broker_name,
        "queue": move.queue.queue_id,
        "old_offset": move.before,
        "new_offset": new_offset,
        "min_offset": move.min_offset,
        "max_offset": move.max_offset,
        "lag": move.max_offset - start,
        "new_lag": move.max_offset - max(new_offset, move.min_offset),
    }


def _print_moves(rows: Sequence[dict[str, Any]], *, dry_run: bool, as_json: bool) -> None:
    print_rows(rows, _MOVE_COLUMNS, as_json=as_json)
    if dry_run and not as_json:
        click.echo("nothing is changed: --dry-run")
