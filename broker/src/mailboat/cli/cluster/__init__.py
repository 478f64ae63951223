"""`mailboat cluster`: clusters, brokers and name servers."""

from typing import Final

import click

from mailboat.cli.lazy import LazyGroup, SubCommand

TABLE: Final[dict[str, SubCommand]] = {
    "list": SubCommand("show", "List the clusters and their brokers.", "list_clusters"),
    "brokers": SubCommand("show", "List the brokers with versions, rates and disks.", "brokers"),
    "show": SubCommand("show", "Show every number that BROKER tells of itself.", "show"),
    "producers": SubCommand("show", "List the producers that are connected.", "producers"),
    "config": SubCommand("settings", "Show the configuration of BROKER.", "config"),
    "configure": SubCommand("settings", "Change settings of BROKER while it runs.", "configure"),
    "namesrv-config": SubCommand(
        "settings", "Show the configuration of the name servers.", "namesrv_config"
    ),
    "wipe-write-perm": SubCommand(
        "settings", "Let producers send no more to BROKER.", "wipe_write_perm"
    ),
    "add-write-perm": SubCommand(
        "settings", "Let producers send to BROKER again.", "add_write_perm"
    ),
    "clean": SubCommand("settings", "Let BROKER delete what has expired.", "clean"),
}


@click.group(cls=LazyGroup, table=TABLE, package="mailboat.cli.cluster")
def command() -> None:
    """Show clusters and brokers; change the settings of brokers."""
