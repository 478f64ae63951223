"""`mailboat message show`: one message in full."""

from typing import Any, Final

import click

from mailboat.cli.client_command import json_option, run
from mailboat.cli.message.find import find_at, find_by_id
from mailboat.cli.message.rows import full_row
from mailboat.cli.output import body_text, hex_dump, print_json, print_record, print_section
from mailboat.cli.servers import Servers, servers_options
from mailboat.client.admin import Admin
from mailboat.errors import MailboatError
from mailboat.model.message import MessageExt

_GROUP_COLUMNS: Final = ("group", "state", "online", "consumer_offset")
_SHOWN_APART: Final = ("body", "body_base64", "properties", "groups", "copies")


@click.command()
@click.argument("message_id", required=False)
@click.option("-t", "--topic", help="Needed for an id that the producer gave, and for a place.")
@click.option("-b", "--broker", help="The message at a place: on the broker with this name,")
@click.option("-q", "--queue-id", type=click.IntRange(min=0), help="in this queue,")
@click.option("--offset", "queue_offset", type=click.IntRange(min=0), help="at this offset.")
@click.option("--hex", "as_hex", is_flag=True, help="Show the body in hex, also if it is text.")
@json_option
@servers_options
def command(
    message_id: str | None,
    topic: str | None,
    broker: str | None,
    queue_id: int | None,
    queue_offset: int | None,
    as_hex: bool,
    as_json: bool,
    servers: Servers,
) -> None:
    """Show one message in full, and what groups did with it.

    The message is named by MESSAGE_ID (the broker's, or the producer's with --topic) or by its
    place (--topic, --broker, --queue-id and --offset).

    \b
    A group's state is one of
      consumed      the group is past it
      filtered      the group is past it, and its tags leave it out
      not consumed  the group has still to consume it
      retrying      it failed and comes again
      dead letter   it failed too often and is in the group's dead letters
      broadcast     each member has offsets of its own, which no broker knows
      unknown       the group has no offset in the queue

    \b
    Examples:
      mailboat message show 7F00000100002A9F00000000000003E8
      mailboat message show -t orders -b broker-a -q 3 --offset 1200
    """
    place = (broker, queue_id, queue_offset)
    if message_id is None:
        is_clear = topic is not None and None not in place
    else:
        is_clear = place == (None, None, None)
    if not is_clear:
        raise click.UsageError(
            "name the message by its id, or by --topic, --broker, --queue-id and --offset"
        )

    async def work() -> dict[str, Any]:
        async with servers.admin() as admin:
            if message_id is not None:
                found = await find_by_id(admin, message_id, topic)
            else:
                found = await find_at(
                    admin, topic or "", broker or "", queue_id or 0, queue_offset or 0
                )
            if not found:
                raise MailboatError(f"topic {topic} has no message at offset {queue_offset}")
            # A message that was sent twice has the same id twice; the newest is shown.
            return await _document(admin, found[-1], copies=len(found))

    document = run(work())
    if as_json:
        print_json(document)
    else:
        _print(document, as_hex=as_hex)


async def _document(admin: Admin, message: MessageExt, *, copies: int) -> dict[str, Any]:
    queue = await admin.standing.queue_of(message)
    row = full_row(message)
    row["broker"] = None if queue is None else queue.broker_name
    row["properties"] = message.properties
    row["copies"] = copies
    row["groups"] = [
        {
            "group": standing.group,
            "state": standing.state.value,
            "online": standing.online,
            "consumer_offset": standing.consumer_offset,
        }
        for standing in await admin.standing.of_message(message)
    ]
    return row


def _print(document: dict[str, Any], *, as_hex: bool) -> None:
    print_record({name: value for name, value in document.items() if name not in _SHOWN_APART})
    if document["copies"] > 1:
        click.echo(f"\n{document['copies']} messages have this id; this is the newest")
    properties = [
        {"property": name, "value": value} for name, value in document["properties"].items()
    ]
    print_section("Properties", properties, ("property", "value"))
    print_section("Groups", document["groups"], _GROUP_COLUMNS)
    payload = body_bytes(document)
    click.echo(f"\nBody ({len(payload)} bytes)")
    click.echo(hex_dump(payload) if as_hex else body_text(payload))


def body_bytes(row: dict[str, Any]) -> bytes:
    """Return the body that `message_row` wrote as text or in base64."""
    text = row.get("body")
    if text is not None:
        return str(text).encode()
    import base64

    return base64.b64decode(row["body_base64"])
