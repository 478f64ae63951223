"""`mailboat message browse`: the messages of a topic, without consuming them."""

import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import click

from mailboat.cli.client_command import (
    json_option,
    run,
    start_point_option,
    time_option,
)
from mailboat.cli.message.rows import COLUMNS, full_row, short_row
from mailboat.cli.output import message_row, print_json, print_record, print_rows
from mailboat.cli.progress import Scan
from mailboat.cli.servers import Servers, servers_options
from mailboat.client.admin import Admin
from mailboat.client.admin.messages import BROWSE_BATCH, PlacedMessage
from mailboat.client.pulling import PullStatus
from mailboat.client.queue_offsets import ConsumeFromWhere, StartPoint
from mailboat.model.message import MessageExt
from mailboat.model.message_queue import MessageQueue
from mailboat.model.printable import printable, printable_json
from mailboat.model.subscription import EXPRESSION_SQL92, SubscriptionData, build_subscription

DEFAULT_MAX: Final = 20
# Read at a time when the newest messages are looked for from the end of a queue.
BACKWARD_CHUNK: Final = 256


@click.command()
@click.argument("topic")
@start_point_option("--from", "start_point", default="first", help_text="Where to begin.")
@time_option("--to", "end_ms", help_text="Only messages stored at this time or earlier.")
@click.option("--tags", metavar="'A || B'", help="Only messages with these tags.")
@click.option("--sql", metavar="EXPRESSION", help="Only messages whose properties match.")
@click.option(
    "--max",
    "max_messages",
    type=click.IntRange(1),
    help=f"At most so many.  [default: {DEFAULT_MAX}; no limit with --follow]",
)
@click.option("-b", "--broker", help="Only queues of the broker with this name.")
@click.option(
    "-q",
    "--queue-id",
    "queue_ids",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only the queue with this id; may be repeated.",
)
@click.option("--follow", is_flag=True, help="Go on as new messages come, until Ctrl-C or --max.")
@json_option
@servers_options
def command(
    topic: str,
    start_point: StartPoint,
    end_ms: int | None,
    tags: str | None,
    sql: str | None,
    max_messages: int | None,
    broker: str | None,
    queue_ids: tuple[int, ...],
    follow: bool,
    as_json: bool,
    servers: Servers,
) -> None:
    """Show messages of TOPIC without consuming them.

    No group's offsets change. Messages are shown in the order of storing: the oldest ones from
    --from on, or with `--from last` the newest ones. With --follow each is printed as it comes,
    with --json as a line of its own, and `--from last` shows only new ones.

    \b
    Examples:
      mailboat message browse orders --max 5
      mailboat message browse orders --from 2026-01-31T08:00 --to 2026-01-31T09:00 --tags paid
      mailboat message browse orders --sql "amount > 100" --json
      mailboat message browse %DLQ%billing --from last
      mailboat message browse orders --from last --follow
    """
    if tags is not None and sql is not None:
        raise click.UsageError("messages are selected by either --tags or --sql")
    if follow and end_ms is not None:
        raise click.UsageError("--follow has no end; leave out --to")
    look = Look(
        start_point,
        end_ms,
        _subscription(topic, tags, sql),
        max_messages if follow else max_messages or DEFAULT_MAX,
    )

    async def work() -> list[PlacedMessage]:
        async with servers.admin() as admin:
            queues = await admin.offsets.queues(topic, broker_name=broker, queue_ids=queue_ids)
            if follow:
                await _follow(admin, queues, look, as_json=as_json)
                return []
            return await browse(admin, queues, look)

    found = run(work())
    if not follow:
        _print(found, topic, as_json=as_json)


@dataclass(frozen=True, slots=True)
class Look:
    """What is looked for: where to begin, until when, which messages, how many."""

    start_point: StartPoint
    end_ms: int | None
    subscription: SubscriptionData
    max_messages: int | None

    @property
    def is_newest_first(self) -> bool:
        """The newest messages are wanted, not the oldest ones."""
        return self.start_point.where is ConsumeFromWhere.LAST_OFFSET

    def takes(self, message: MessageExt) -> bool:
        """Tell whether a message lies in the time range; old brokers find times inexactly."""
        stored_ms = message.store_timestamp_ms
        begin_ms = self.start_point.timestamp_ms
        if self.start_point.where is ConsumeFromWhere.TIMESTAMP and stored_ms < begin_ms:
            return False
        return self.end_ms is None or stored_ms <= self.end_ms


def _subscription(topic: str, tags: str | None, sql: str | None) -> SubscriptionData:
    if sql is not None:
        return SubscriptionData(topic, sql, expression_type=EXPRESSION_SQL92)
    return build_subscription(topic, tags)


async def browse(admin: Admin, queues: Sequence[MessageQueue], look: Look) -> list[PlacedMessage]:
    """Return what is looked for in some queues, in the order of storing."""
    ranges: list[tuple[MessageQueue, int, int]] = []
    for queue in queues:
        first = await _start_of(admin, queue, look.start_point, newest=look.is_newest_first)
        ranges.append((queue, first, await admin.offsets.maximum(queue)))
    found: list[PlacedMessage] = []
    read = _read_backward if look.is_newest_first else _read_forward
    with Scan("messages", sum(end - first for _, first, end in ranges)) as scan:
        for queue, first, end in ranges:
            found += await read(admin, queue, first, end, look, scan.advance)
    found.sort(key=lambda each: (each.message.store_timestamp_ms, each.message.physical_offset))
    limit = look.max_messages
    assert limit is not None
    return found[-limit:] if look.is_newest_first else found[:limit]


async def _start_of(
    admin: Admin, queue: MessageQueue, start_point: StartPoint, *, newest: bool
) -> int:
    """Return the first offset to look at; for the newest messages, that is as far as one may go."""
    if start_point.where is ConsumeFromWhere.TIMESTAMP:
        return await admin.offsets.at_time(queue, start_point.timestamp_ms)
    if start_point.where is ConsumeFromWhere.LAST_OFFSET and not newest:
        return await admin.offsets.maximum(queue)
    return await admin.offsets.minimum(queue)


async def _read_forward(
    admin: Admin,
    queue: MessageQueue,
    first: int,
    end: int,
    look: Look,
    advance: Callable[[int], None],
) -> list[PlacedMessage]:
    """Return the first messages of a queue that are looked for."""
    found: list[PlacedMessage] = []
    queue_offset = first
    limit = look.max_messages
    while queue_offset < end and (limit is None or len(found) < limit):
        result = await admin.messages.read(
            queue,
            queue_offset,
            max_messages=min(BROWSE_BATCH, end - queue_offset),
            subscription=look.subscription,
        )
        messages = [message for message in result.messages if message.queue_offset < end]
        found += (PlacedMessage(queue, message) for message in messages if look.takes(message))
        if result.status is PullStatus.NO_NEW_MSG or result.next_offset <= queue_offset:
            break
        if look.end_ms is not None and any(
            message.store_timestamp_ms > look.end_ms for message in messages
        ):
            break
        advance(result.next_offset - queue_offset)
        queue_offset = result.next_offset
    return found


async def _read_backward(
    admin: Admin,
    queue: MessageQueue,
    first: int,
    end: int,
    look: Look,
    advance: Callable[[int], None],
) -> list[PlacedMessage]:
    """Return the last messages of a queue that are looked for."""
    found: list[PlacedMessage] = []
    limit = look.max_messages
    while end > first and (limit is None or len(found) < limit):
        begin = max(first, end - BACKWARD_CHUNK)
        messages = admin.messages.browse(queue, begin, end, look.subscription)
        chunk = [PlacedMessage(queue, each) async for each in messages if look.takes(each)]
        found = chunk + found
        advance(end - begin)
        end = begin
    return found if limit is None else found[-limit:]


async def _follow(
    admin: Admin, queues: Sequence[MessageQueue], look: Look, *, as_json: bool
) -> None:
    starts = {
        queue: await _start_of(admin, queue, look.start_point, newest=False) for queue in queues
    }
    shown = 0
    async with aclosing(admin.messages.follow(starts, look.subscription)) as messages:
        async for found in messages:
            if not look.takes(found.message):
                continue
            click.echo(line(found, as_json=as_json))
            sys.stdout.flush()
            shown += 1
            if shown == look.max_messages:
                return


def line(found: PlacedMessage, *, as_json: bool) -> str:
    """Return a message as one line."""
    if as_json:
        return printable_json(placed_row(found))
    row = short_row(found.message, found.queue.broker_name)
    place = f"{found.queue.broker_name}/{found.queue.queue_id}@{found.message.queue_offset}"
    text = f"{row['store_time']} {place} {row['message_id']} {row['tags'] or '-'} {row['body']}"
    return printable(text)


def placed_row(found: PlacedMessage) -> dict[str, Any]:
    """Return a message as a JSON object, with the name of its broker."""
    return {**message_row(found.message), "broker": found.queue.broker_name}


def _print(found: Sequence[PlacedMessage], topic: str, *, as_json: bool) -> None:
    if as_json:
        print_json([placed_row(each) for each in found])
    elif not found:
        click.echo(f"no message in topic {topic} matches", err=True)
    elif len(found) == 1:
        print_record({**full_row(found[0].message), "broker": found[0].queue.broker_name})
    else:
        rows = [short_row(each.message, each.queue.broker_name) for each in found]
        print_rows(rows, COLUMNS, as_json=False)
