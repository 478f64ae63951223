"""`mailboat group create|update|delete`: groups made, changed and deleted."""

from dataclasses import replace
from typing import Any, Final

import click

from mailboat.cli.client_command import (
    broker_option,
    cluster_option,
    confirm,
    json_option,
    run,
    yes_option,
)
from mailboat.cli.output import print_json, print_rows
from mailboat.cli.servers import Servers, servers_options
from mailboat.errors import MailboatError
from mailboat.model.subscription import SubscriptionGroupConfig

_RETRIES: Final = click.IntRange(0, 10_000)
_RETRY_QUEUES: Final = click.IntRange(0, 64)
SETTING_COLUMNS: Final = (
    "broker",
    "retry_max_times",
    "retry_queues",
    "consume",
    "broadcast",
    "orderly",
)


@click.command()
@click.argument("group")
@click.option(
    "--retry-max-times",
    type=_RETRIES,
    default=16,
    show_default=True,
    help="After so many retries a message is a dead letter.",
)
@click.option("--retry-queues", type=_RETRY_QUEUES, default=1, show_default=True)
@click.option("--no-broadcast", is_flag=True, help="Refuse broadcasting consumers.")
@click.option("--orderly", is_flag=True, help="Mark the group as one that consumes in order.")
@cluster_option
@broker_option
@servers_options
def create(
    group: str,
    retry_max_times: int,
    retry_queues: int,
    no_broadcast: bool,
    orderly: bool,
    cluster: str | None,
    broker: str | None,
    servers: Servers,
) -> None:
    """Create GROUP on every master.

    Where it exists it gets these settings, defaults included; `mailboat group update` changes
    only what is named.

    \b
    Examples:
      mailboat group create billing
      mailboat group create billing --retry-max-times 3
    """
    config = SubscriptionGroupConfig(
        group,
        consume_broadcast_enable=not no_broadcast,
        consume_message_orderly=orderly,
        retry_queue_nums=retry_queues,
        retry_max_times=retry_max_times,
    )

    async def work() -> list[str]:
        async with servers.admin() as admin:
            return await admin.groups.create(config, cluster=cluster, broker_name=broker)

    click.echo(f"group {group} is on {', '.join(run(work()))}")


@click.command()
@click.argument("group")
@click.option("--retry-max-times", type=_RETRIES, help="Retries before a message is a dead letter.")
@click.option("--retry-queues", type=_RETRY_QUEUES)
@click.option("--consume/--no-consume", default=None, help="Let the group consume, or stop it.")
@click.option("--broadcast/--no-broadcast", default=None, help="Allow broadcasting, or refuse it.")
@click.option("--orderly/--no-orderly", default=None, help="Mark it as consuming in order, or not.")
@cluster_option
@broker_option
@json_option
@servers_options
def update(
    group: str,
    retry_max_times: int | None,
    retry_queues: int | None,
    consume: bool | None,
    broadcast: bool | None,
    orderly: bool | None,
    cluster: str | None,
    broker: str | None,
    as_json: bool,
    servers: Servers,
) -> None:
    """Change settings of GROUP.

    What is not named stays as it is on each master that knows the group.

    \b
    Examples:
      mailboat group update billing --retry-max-times 5
      mailboat group update billing --no-consume
    """
    changes: dict[str, Any] = {
        "retry_max_times": retry_max_times,
        "retry_queue_nums": retry_queues,
        "consume_enable": consume,
        "consume_broadcast_enable": broadcast,
        "consume_message_orderly": orderly,
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    if not changes:
        raise click.UsageError("name something to change, such as --retry-max-times 5")

    async def work() -> dict[str, SubscriptionGroupConfig]:
        async with servers.admin() as admin:
            return await admin.groups.update(
                group,
                lambda config: replace(config, **changes),
                cluster=cluster,
                broker_name=broker,
            )

    rows = [setting_row(name, config) for name, config in sorted(run(work()).items())]
    if as_json:
        print_json({"group": group, "brokers": rows})
    else:
        print_rows(rows, SETTING_COLUMNS, as_json=False)


def setting_row(broker_name: str, config: SubscriptionGroupConfig) -> dict[str, Any]:
    """Return the settings of a group on one broker."""
    return {
        "broker": broker_name,
        "retry_max_times": config.retry_max_times,
        "retry_queues": config.retry_queue_nums,
        "consume": config.consume_enable,
        "broadcast": config.consume_broadcast_enable,
        "orderly": config.consume_message_orderly,
    }


@click.command()
@click.argument("group")
@click.option("-c", "--cluster", help="Only from the masters of this cluster.")
@yes_option
@servers_options
def delete(group: str, cluster: str | None, yes: bool, servers: Servers) -> None:
    """Delete GROUP, its offsets and its dead letters.

    Its retry topic goes too. What it had still to consume stays in the topics.

    \b
    Example:
      mailboat group delete billing --yes
    """
    where = f"cluster {cluster}" if cluster else "every broker"
    confirm(f"Delete group {group} with its offsets and dead letters from {where}?", yes=yes)

    async def work() -> None:
        async with servers.admin() as admin:
            is_known = await admin.groups.is_known(group, cluster=cluster)
            # What an earlier try has left somewhere goes in any case.
            await admin.groups.delete(group, cluster=cluster)
            if not is_known:
                of_cluster = f" of cluster {cluster}" if cluster else ""
                raise MailboatError(f"no broker{of_cluster} knows a group {group}")

    run(work())
    click.echo(f"group {group} is deleted")
