"""`mailboat replica`: the copies of a broker, and which of them leads."""

from typing import Final

import click

from mailboat.cli.lazy import LazyGroup, SubCommand

TABLE: Final[dict[str, SubCommand]] = {
    "status": SubCommand("commands", "Show a replica, and what it knows of the others.", "status"),
    "follow": SubCommand("following", "See a replica of a Java master through.", "follow"),
    "promote": SubCommand("commands", "Let a replica lead.", "promote"),
    "handover": SubCommand("commands", "Let ORDINAL lead in place of the master.", "handover"),
    "copy": SubCommand("logs", "Let a slave get its whole log anew.", "copy"),
    "import": SubCommand("logs", "Take over the store of a stopped broker.", "import_store"),
    "demote": SubCommand("commands", "Let whoever has most lead in place of the master.", "demote"),
}


@click.group(cls=LazyGroup, table=TABLE, package="mailboat.cli.replica")
def command() -> None:
    """Show the replicas of a broker, say which of them leads, and where one gets its log.

    Each command asks one broker over its HTTP port.
    """
