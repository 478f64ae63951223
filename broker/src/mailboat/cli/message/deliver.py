"""`mailboat message deliver`: a stored message, handed to one consumer now."""

from typing import Final

import click

from mailboat.cli.client_command import json_option, run
from mailboat.cli.main import EXIT_OK, EXIT_RUNTIME
from mailboat.cli.message.find import find_by_id
from mailboat.cli.output import print_json, print_record
from mailboat.cli.servers import Servers, servers_options
from mailboat.client.admin.messages import DirectConsumption

# Go clients give the position in Java's enum.
_GOOD: Final = frozenset({"CR_SUCCESS", "CR_COMMIT", "0", "3"})


@click.command()
@click.argument("message_id")
@click.argument("group")
@click.argument("client_id")
@click.option("-t", "--topic", help="Needed for an id that the producer gave.")
@json_option
@servers_options
def command(
    message_id: str, group: str, client_id: str, topic: str | None, as_json: bool, servers: Servers
) -> int:
    """Have one member of GROUP consume a message now.

    For finding out why a message fails: the member with CLIENT_ID (see `mailboat group members`)
    is handed the message outside of its turn, and its answer is shown. No offset changes and
    nothing is sent back. The exit code is 0 where the member consumed the message.

    \b
    Example:
      mailboat message deliver 7F0000010B5C5D1E2F3A0000C8470001 billing 10.0.0.7@4242 -t orders
    """

    async def work() -> DirectConsumption:
        async with servers.admin() as admin:
            message = (await find_by_id(admin, message_id, topic))[-1]
            return await admin.messages.consume_directly(message, group, client_id)

    found = run(work())
    document = {"result": found.result, "remark": found.remark, "spent_ms": found.spent_ms}
    if as_json:
        print_json(document)
    else:
        print_record(document)
    return EXIT_OK if found.result in _GOOD else EXIT_RUNTIME
