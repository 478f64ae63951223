"""`mailboat message by-id|by-key|by-offset`: looking messages up."""

import click

from mailboat.cli.client_command import json_option, run, time_option
from mailboat.cli.message.rows import print_messages
from mailboat.cli.servers import Servers, servers_options
from mailboat.client.admin import Admin
from mailboat.errors import BrokerError, IllegalMessageError, MailboatError, RemotingError
from mailboat.model.message import MessageExt


@click.command("by-id")
@click.argument("message_id")
@click.option("-t", "--topic", help="Needed for an id that the producer gave.")
@json_option
@servers_options
def by_id(message_id: str, topic: str | None, as_json: bool, servers: Servers) -> None:
    """Find the message with MESSAGE_ID.

    There are two kinds: the broker's, which names its address and needs nothing else, and the
    producer's (message_id of a send result), which needs --topic.

    \b
    Examples:
      mailboat message by-id 7F00000100002A9F00000000000003E8
      mailboat message by-id 7F0000010B5C5D1E2F3A0000C8470001 -t orders
    """

    async def work() -> list[MessageExt]:
        async with servers.admin() as admin:
            return await find_by_id(admin, message_id, topic)

    print_messages(run(work()), as_json=as_json, what=f"id {message_id}")


async def find_by_id(admin: Admin, message_id: str, topic: str | None) -> list[MessageExt]:
    """Look for a producer's id first, as it may look like a broker's.

    Raises:
        MailboatError: there is no such message.
    """
    if topic is not None:
        found = await admin.messages.by_unique_key(topic, message_id)
        if found:
            return found
    try:
        return [await admin.messages.by_offset_id(message_id)]
    except (RemotingError, BrokerError, IllegalMessageError) as error:
        hint = "" if topic else "; if it is a producer's id, name its topic with --topic"
        raise MailboatError(f"no message with id {message_id}{hint} ({error})") from error


@click.command("by-key")
@click.argument("topic")
@click.argument("key")
@click.option(
    "--max",
    "max_messages",
    type=click.IntRange(1, 10_000),
    default=64,
    show_default=True,
    help="At most so many from each broker.",
)
@time_option("--begin", "begin_ms", help_text="Stored at this time or later.")
@time_option("--end", "end_ms", help_text="Stored at this time or earlier.")
@json_option
@servers_options
def by_key(
    topic: str,
    key: str,
    max_messages: int,
    begin_ms: int | None,
    end_ms: int | None,
    as_json: bool,
    servers: Servers,
) -> None:
    """Find the messages of TOPIC that carry KEY.

    Oldest first.

    \b
    Examples:
      mailboat message by-key orders order-4711
      mailboat message by-key orders order-4711 --begin 2026-01-31T08:00:00 --json
    """

    async def work() -> list[MessageExt]:
        async with servers.admin() as admin:
            return await admin.messages.by_key(
                topic, key, max_messages=max_messages, begin_ms=begin_ms or 0, end_ms=end_ms or 0
            )

    print_messages(run(work()), as_json=as_json, what=f"key {key} in topic {topic}")


@click.command("by-offset")
@click.argument("topic")
@click.argument("broker")
@click.argument("queue_id", type=click.IntRange(min=0))
@click.argument("queue_offset", type=click.IntRange(min=0))
@json_option
@servers_options
def by_offset(
    topic: str, broker: str, queue_id: int, queue_offset: int, as_json: bool, servers: Servers
) -> None:
    """Find the message at a place of a queue.

    The place is QUEUE_OFFSET of queue QUEUE_ID of TOPIC on the broker with the name BROKER.

    \b
    Example:
      mailboat message by-offset orders broker-a 3 1200
    """

    async def work() -> list[MessageExt]:
        async with servers.admin() as admin:
            return await find_at(admin, topic, broker, queue_id, queue_offset)

    what = f"offset {queue_offset} in queue {queue_id} of topic {topic} on {broker}"
    print_messages(run(work()), as_json=as_json, what=what)


async def find_at(
    admin: Admin, topic: str, broker: str, queue_id: int, queue_offset: int
) -> list[MessageExt]:
    """Return the message at a place, or nothing.

    Raises:
        RouteNotFoundError: there is no such queue.
    """
    (queue,) = await admin.offsets.queues(topic, broker_name=broker, queue_ids=[queue_id])
    message = await admin.messages.at(queue, queue_offset)
    return [] if message is None else [message]
