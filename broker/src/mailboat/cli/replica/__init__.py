"""`mailboat replica`: the copies of a broker, and which of them leads."""

from typing import Final

import click

from mailboat.cli.lazy import LazyGroup, SubCommand

TABLE: Final[dict[str, SubCommand]] = {
    "status": SubCommand("commands", "Show a replica, and what it knows of the others.", "status"),
    "promote": SubCommand("commands", "Let a replica lead.", "promote"),
    "handover": SubCommand("commands", "Let ORDINAL lead in place of the master.", "handover"),
    "demote": SubCommand("commands", "Let whoever has most lead in place of the master.", "demote"),
}


@click.group(cls=LazyGroup, table=TABLE, package="mailboat.cli.replica")
def command() -> None:
    """Show the replicas of a broker, and say which of them leads.

    Each command asks one broker over its HTTP port.
    """
