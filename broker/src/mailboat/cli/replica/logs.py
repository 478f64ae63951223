"""`mailboat replica copy|import`: where a slave gets its log."""

from pathlib import Path
from typing import Final

import click

from mailboat.cli.replica.broker_http import BrokerHttp, ask
from mailboat.cli.replica.commands import http_options

_IMPORT_WITHIN_S: Final = 3600.0


@click.command()
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Also where fewer than inSyncReplicas others have all that is confirmed.",
)
@http_options
def copy(accept_loss: bool, http: BrokerHttp) -> None:
    """Let a slave get its whole log anew from its master.

    It keeps its log aside, in mailboat/diverged below its store, and is a new member of the group:
    it counts for no message before it has everything. That takes as much room as the log has.

    \b
    Example:
      mailboat replica copy --http 10.0.0.2:8080
    """
    replica = ask(http, "POST", "/api/v1/replica/copy", {"accept_loss": accept_loss})["replica"]
    click.echo(
        f"replica {replica} begins anew and gets the log from its master; the former one lies in "
        "mailboat/diverged below its store"
    )


@click.command("import")
@click.argument("directory", metavar="DIR")
@http_options
def import_store(directory: str, http: BrokerHttp) -> None:
    """Take over what the store DIR of a stopped master has and a slave has not.

    DIR is a folder of RocketMQ or mailboat on the machine of the slave that is asked. What it has
    beyond the end of the slave's log is put behind that, if the log before is the same in both.
    Topics and groups are taken over if they are newer, offsets and delivered delayed messages where
    they are further. Nothing in DIR is changed.

    \b
    Example:
      mailboat replica import /var/lib/rocketmq/store --http 10.0.0.2:8080
    """
    path = str(Path(directory).absolute())
    body = {"path": path}
    found = ask(http, "POST", "/api/v1/replica/import", body, _IMPORT_WITHIN_S)
    click.echo(
        f"{found['size_bytes']} bytes of the log, which ends at {found['end']} now; "
        f"{found['topics']} topics, {found['groups']} groups, offsets of {found['offsets']} groups "
        f"in topics, {found['delay_levels']} delay levels"
    )
    if found["torn_bytes"]:
        click.echo(f"left out: {found['torn_bytes']} bytes of a last record that is not whole")
