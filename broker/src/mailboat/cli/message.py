"""`mailboat message`: finding messages."""

from collections.abc import Sequence
from typing import Any, Final

import click

from mailboat.cli.client_command import (
    json_option,
    namesrv_option,
    run,
    start_point_option,
)
from mailboat.cli.output import message_row, print_json, print_rows
from mailboat.client.admin import Admin
from mailboat.client.queue_offsets import ConsumeFromWhere, StartPoint
from mailboat.errors import BrokerError, IllegalMessageError, MailboatError, RemotingError
from mailboat.model.message import MessageExt
from mailboat.model.message_queue import MessageQueue

_BODY_WIDTH: Final = 80
_COLUMNS: Final = (
    "store_time",
    "topic",
    "broker_queue",
    "queue_offset",
    "message_id",
    "tags",
    "body",
)


@click.group()
def command() -> None:
    """Find messages by id, key or place."""


@command.command("by-id")
@click.argument("message_id")
@click.option("-t", "--topic", help="Needed for an id that the producer gave.")
@json_option
@namesrv_option
def by_id(message_id: str, topic: str | None, as_json: bool, namesrv: str) -> None:
    """Show the message with MESSAGE_ID.

    There are two kinds: the broker's, which names its address and needs nothing else, and the
    producer's (message_id of a send result), which needs --topic.
    """
    _print(run(_find(message_id, topic, namesrv)), as_json=as_json, what=f"id {message_id}")


async def _find(message_id: str, topic: str | None, namesrv: str) -> list[MessageExt]:
    """Look for a producer's id first, as it may look like a broker's."""
    async with Admin(namesrv=namesrv) as admin:
        if topic is not None:
            found = await admin.messages.by_unique_key(topic, message_id)
            if found:
                return found
        try:
            return [await admin.messages.by_offset_id(message_id)]
        except (RemotingError, BrokerError, IllegalMessageError) as error:
            hint = "" if topic else "; if it is a producer's id, name its topic with --topic"
            raise MailboatError(f"no message with id {message_id}{hint} ({error})") from error


@command.command("by-key")
@click.argument("topic")
@click.argument("key")
@click.option("--max", "max_messages", type=click.IntRange(1, 10_000), default=64)
@start_point_option("--begin", "begin", default="first", help_text="Stored after this time.")
@json_option
@namesrv_option
def by_key(
    topic: str, key: str, max_messages: int, begin: StartPoint, as_json: bool, namesrv: str
) -> None:
    """Show the messages of TOPIC that carry KEY, oldest first."""

    async def work() -> list[MessageExt]:
        async with Admin(namesrv=namesrv) as admin:
            return await admin.messages.by_key(
                topic, key, max_messages=max_messages, begin_ms=begin.timestamp_ms
            )

    _print(run(work()), as_json=as_json, what=f"key {key} in topic {topic}")


@command.command("by-offset")
@click.argument("topic")
@click.argument("broker")
@click.argument("queue_id", type=click.IntRange(min=0))
@click.argument("queue_offset", type=click.IntRange(min=0))
@json_option
@namesrv_option
def by_offset(
    topic: str, broker: str, queue_id: int, queue_offset: int, as_json: bool, namesrv: str
) -> None:
    """Show the message at QUEUE_OFFSET of queue QUEUE_ID of TOPIC on BROKER (its name)."""
    queue = MessageQueue(topic, broker, queue_id)

    async def work() -> list[MessageExt]:
        async with Admin(namesrv=namesrv) as admin:
            message = await admin.messages.at(queue, queue_offset)
            return [] if message is None else [message]

    _print(run(work()), as_json=as_json, what=f"offset {queue_offset} in {queue}")


@command.command()
@click.argument("topic")
@start_point_option("--from", "start_point", default="first", help_text="Where to begin.")
@click.option("--max", "max_messages", type=click.IntRange(1), default=20, show_default=True)
@click.option("-q", "--queue-id", type=click.IntRange(min=0), help="Only this queue.")
@json_option
@namesrv_option
def browse(
    topic: str,
    start_point: StartPoint,
    max_messages: int,
    queue_id: int | None,
    as_json: bool,
    namesrv: str,
) -> None:
    """Show messages of TOPIC without consuming them; no group's offsets change.

    `--from last` shows the newest messages of each queue.
    """

    async def work() -> list[MessageExt]:
        async with Admin(namesrv=namesrv) as admin:
            queues = [
                queue
                for queue in await admin.topics.stats(topic)
                if queue_id in (None, queue.queue_id)
            ]
            return await _browse(admin, queues, start_point, max_messages)

    _print(run(work()), as_json=as_json, what=f"a place in topic {topic}")


async def _browse(
    admin: Admin, queues: Sequence[MessageQueue], start_point: StartPoint, max_messages: int
) -> list[MessageExt]:
    """Return messages of each queue in turn, at most `max_messages` in all, in order of storing."""
    messages: list[MessageExt] = []
    for queue in queues:
        first = await admin.offsets.minimum(queue)
        end = await admin.offsets.maximum(queue)
        if start_point.where is ConsumeFromWhere.TIMESTAMP:
            first = await admin.offsets.at_time(queue, start_point.timestamp_ms)
        elif start_point.where is ConsumeFromWhere.LAST_OFFSET:
            first = max(first, end - max_messages)
        last = min(end, first + max_messages)
        messages += [message async for message in admin.messages.browse(queue, first, last)]
    messages.sort(key=lambda message: (message.store_timestamp_ms, message.physical_offset))
    if start_point.where is ConsumeFromWhere.LAST_OFFSET:
        return messages[-max_messages:]
    return messages[:max_messages]


def _print(messages: Sequence[MessageExt], *, as_json: bool, what: str) -> None:
    if as_json:
        print_json([message_row(message) for message in messages])
    elif not messages:
        click.echo(f"no message with {what}", err=True)
    elif len(messages) == 1:
        rows = [{"field": name, "value": value} for name, value in _fields(messages[0])]
        print_rows(rows, ("field", "value"), as_json=False)
    else:
        print_rows([_short_row(message) for message in messages], _COLUMNS, as_json=False)


def _fields(message: MessageExt) -> list[tuple[str, Any]]:
    row = message_row(message)
    row["born_address"] = message.born_address
    row["store_address"] = message.store_address
    row["physical_offset"] = message.physical_offset
    return list(row.items())


def _short_row(message: MessageExt) -> dict[str, Any]:
    row = message_row(message)
    text = row.get("body", f"<{len(message.payload())} bytes>")
    if len(text) > _BODY_WIDTH:
        text = text[: _BODY_WIDTH - 3] + "..."
    row["body"] = text.replace("\n", " ")
    row["broker_queue"] = f"{message.store_address} {message.queue_id}"
    return row
