"""`mailboat message`: finding, showing and sending messages, putting dead letters back."""

from typing import Final

import click

from mailboat.cli.lazy import LazyGroup, SubCommand

TABLE: Final[dict[str, SubCommand]] = {
    "browse": SubCommand("browse", "Show messages of TOPIC without consuming them."),
    "by-id": SubCommand("find", "Find the message with MESSAGE_ID.", "by_id"),
    "by-key": SubCommand("find", "Find the messages of TOPIC that carry KEY.", "by_key"),
    "by-offset": SubCommand("find", "Find the message at a place of a queue.", "by_offset"),
    "show": SubCommand("show", "Show one message in full, and what groups did with it."),
    "send": SubCommand("send", "Send one message to TOPIC."),
    "deliver": SubCommand("deliver", "Have one member of GROUP consume a message now."),
    "redrive": SubCommand("redrive", "Put dead letters of GROUP back to where they came from."),
}


@click.group(cls=LazyGroup, table=TABLE, package="mailboat.cli.message")
def command() -> None:
    """Find, show and send messages; put dead letters back."""
