"""`mailboat group`: consumer groups."""

from typing import Final

import click

from mailboat.cli.lazy import LazyGroup, SubCommand

TABLE: Final[dict[str, SubCommand]] = {
    "list": SubCommand("show", "List the groups with their members and their lag.", "list_groups"),
    "show": SubCommand("show", "Show GROUP: settings, members, subscriptions and lag.", "show"),
    "lag": SubCommand("show", "Show how far GROUP is in each queue.", "lag"),
    "members": SubCommand("show", "Show who consumes for GROUP now.", "members"),
    "member": SubCommand("member", "Show what one member of GROUP says of itself."),
    "create": SubCommand("change", "Create GROUP on every master.", "create"),
    "update": SubCommand("change", "Change settings of GROUP.", "update"),
    "delete": SubCommand("change", "Delete GROUP, its offsets and its dead letters.", "delete"),
}


@click.group(cls=LazyGroup, table=TABLE, package="mailboat.cli.group")
def command() -> None:
    """Show consumer groups, their members and their lag; change them."""
