"""`mailboat message send`: one message."""

import asyncio
import os
from typing import Any, Final

import click

from mailboat.cli.client_command import json_option, run
from mailboat.cli.input_lines import standard_input
from mailboat.cli.main import EXIT_OK, EXIT_UNKNOWN
from mailboat.cli.output import print_json, print_record
from mailboat.cli.servers import Servers, servers_options
from mailboat.client.checks import MAX_BODY_BYTES
from mailboat.client.producer import Producer
from mailboat.client.send_result import SendResult, SendStatus
from mailboat.client.sending import is_unanswered
from mailboat.errors import (
    IllegalMessageError,
    MailboatError,
    RouteNotFoundError,
    UnknownOutcomeError,
)
from mailboat.model.message import Message
from mailboat.model.message_queue import MessageQueue
from mailboat.model.properties import PropertyName

GROUP: Final = "mailboat-cli"
SEND_TIMEOUT_S: Final = 10.0
_UNKNOWN: Final = "the message may or may not be stored"


def parse_properties(
    ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    """Return `NAME=VALUE` options as a table.

    Raises:
        BadParameter: one of them is not of that form.
    """
    properties: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{text!r} is not of the form NAME=VALUE")
        properties[name] = value
    return properties


@click.command()
@click.argument("topic")
@click.argument("body")
@click.option("--tags", metavar="TAG", help="The message's tag.")
@click.option("-k", "--key", "keys", multiple=True, help="An index key; may be repeated.")
@click.option(
    "-p",
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    callback=parse_properties,
    help="A property; may be repeated.",
)
@click.option(
    "--delay-level",
    type=click.IntRange(0, 1000),
    default=0,
    help="Deliver later: a level of messageDelayLevel, such as 1 for 1 s and 5 for 1 min.",
)
@click.option("-b", "--broker", help="To a queue of the broker with this name.")
@click.option("-q", "--queue-id", type=click.IntRange(min=0), help="To the queue with this id.")
@click.option("--group", default=GROUP, show_default=True, help="Producer group.")
@json_option
@servers_options
def command(
    topic: str,
    body: str,
    tags: str | None,
    keys: tuple[str, ...],
    properties: dict[str, str],
    delay_level: int,
    broker: str | None,
    queue_id: int | None,
    group: str,
    as_json: bool,
    servers: Servers,
) -> int:
    """Send one message to TOPIC.

    BODY is its text, or - for all of standard input. For many messages use `mailboat produce`.
    The exit code is 0 only where the broker answered SEND_OK. It is 5 where the message may or may
    not be stored: no answer came, or another one such as FLUSH_DISK_TIMEOUT.

    \b
    Examples:
      mailboat message send orders '{"id": 4711}' --tags new -k order-4711
      mailboat message send orders - -p region=eu -b broker-a -q 3 < order.json
    """
    data = _read_body() if body == "-" else os.fsencode(body)
    if delay_level:
        properties = {**properties, PropertyName.DELAY: str(delay_level)}
    message = Message(topic, data, tags, list(keys) or None, properties)

    async def work() -> SendResult:
        async with servers.producer(group) as producer:
            queue = await _choose(producer, topic, broker, queue_id)
            try:
                return await producer.send(message, queue=queue, timeout_s=SEND_TIMEOUT_S)
            except MailboatError as error:
                if is_unanswered(error):
                    raise UnknownOutcomeError(f"{error}; {_UNKNOWN}") from error
                raise
            except asyncio.CancelledError:
                click.echo(f"mailboat: interrupted; {_UNKNOWN}", err=True)
                raise

    result = run(work())
    document = result_row(result)
    if as_json:
        print_json(document)
    else:
        print_record(document)
    return EXIT_OK if result.status is SendStatus.SEND_OK else EXIT_UNKNOWN


def _read_body() -> bytes:
    """Return what is on standard input, but not much more of it than a message may hold."""
    with open(standard_input(), "rb", closefd=False) as file:
        body = file.read(MAX_BODY_BYTES + 1)
    if len(body) > MAX_BODY_BYTES:
        raise IllegalMessageError(
            f"standard input holds more than the {MAX_BODY_BYTES} bytes of the largest message"
        )
    return body


async def _choose(
    producer: Producer, topic: str, broker: str | None, queue_id: int | None
) -> MessageQueue | None:
    """Return the first queue that was asked for, or None where any will do."""
    if broker is None and queue_id is None:
        return None
    queues = await producer.queues(topic)
    for queue in queues:
        if broker in (None, queue.broker_name) and queue_id in (None, queue.queue_id):
            return queue
    places = ", ".join(f"{queue.broker_name}/{queue.queue_id}" for queue in queues)
    raise RouteNotFoundError(
        f"topic {topic} has no such queue that takes messages; there are {places}"
    )


def result_row(result: SendResult) -> dict[str, Any]:
    """Return where a message is stored."""
    return {
        "status": result.status.value,
        "message_id": result.message_id,
        "offset_message_id": result.offset_message_id,
        "topic": result.message_queue.topic,
        "broker": result.message_queue.broker_name,
        "queue": result.message_queue.queue_id,
        "queue_offset": result.queue_offset,
    }
