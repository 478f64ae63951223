"""`mailboat offset`: the offsets of consumer groups."""

from typing import Final

import click

from mailboat.cli.lazy import LazyGroup, SubCommand

TABLE: Final[dict[str, SubCommand]] = {
    "show": SubCommand("commands", "Show the stored offsets of GROUP.", "show"),
    "reset": SubCommand("commands", "Let GROUP go on at another place of TOPIC.", "reset"),
    "skip": SubCommand("commands", "Let GROUP go on at the end of TOPIC.", "skip"),
    "clone": SubCommand("commands", "Let one group go on where another one is.", "clone"),
}


@click.group(cls=LazyGroup, table=TABLE, package="mailboat.cli.offset")
def command() -> None:
    """Show, move and clone the offsets of a consumer group."""
