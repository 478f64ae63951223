"""`mailboat topic`: topics."""

from typing import Final

import click

from mailboat.cli.lazy import LazyGroup, SubCommand

TABLE: Final[dict[str, SubCommand]] = {
    "list": SubCommand("show", "List the topics, their brokers and their queues.", "list_topics"),
    "show": SubCommand("show", "Show TOPIC: brokers, settings, queues and groups.", "show"),
    "route": SubCommand("show", "Show which brokers hold TOPIC.", "route"),
    "stats": SubCommand("show", "Show how many messages each queue of TOPIC holds.", "stats"),
    "create": SubCommand("change", "Create TOPIC on every master.", "create"),
    "update": SubCommand("change", "Change settings of TOPIC.", "update"),
    "delete": SubCommand("change", "Delete TOPIC and its messages.", "delete"),
}


@click.group(cls=LazyGroup, table=TABLE, package="mailboat.cli.topic")
def command() -> None:
    """Create, list, show, change and delete topics."""
