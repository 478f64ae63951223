"""`mailboat topic create|update|delete`: topics made, changed and deleted."""

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
from mailboat.cli.topic.show import perm_text
from mailboat.errors import MailboatError
from mailboat.model.topic import Perm, TopicConfig

_QUEUES: Final = click.IntRange(1, 65_536)
_PERMS: Final = {"r": Perm.READ, "w": Perm.WRITE, "rw": Perm.READ | Perm.WRITE}
_COLUMNS: Final = ("broker", "read_queues", "write_queues", "perm", "order")


def _to_attributes(
    ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    attributes = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise click.BadParameter(f"{text!r} is not of the form NAME=VALUE")
        attributes[name] = value
    return attributes


attribute_option = click.option(
    "--attribute",
    "attributes",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_to_attributes,
    help="An attribute of RocketMQ 5, such as message.type=FIFO; may be repeated.",
)


@click.command()
@click.argument("topic")
@click.option("-r", "--read-queues", type=_QUEUES, default=8, show_default=True)
@click.option("-w", "--write-queues", type=_QUEUES, default=8, show_default=True)
@click.option("--perm", type=click.Choice(list(_PERMS)), default="rw", show_default=True)
@click.option("--order", is_flag=True, help="Mark the topic as ordered.")
@attribute_option
@cluster_option
@broker_option
@servers_options
def create(
    topic: str,
    read_queues: int,
    write_queues: int,
    perm: str,
    order: bool,
    attributes: dict[str, str],
    cluster: str | None,
    broker: str | None,
    servers: Servers,
) -> None:
    """Create TOPIC on every master.

    Where it exists it gets these settings, defaults included; `mailboat topic update` changes
    only what is named. With --order the name servers keep which queues producers use, so that a
    broker that is away moves no key to another queue.

    \b
    Examples:
      mailboat topic create orders
      mailboat topic create payments -r 4 -w 4 --order -c DefaultCluster
    """
    config = TopicConfig(
        topic, read_queues, write_queues, _PERMS[perm], order=order, attributes=attributes
    )

    async def work() -> list[str]:
        async with servers.admin() as admin:
            return await admin.topics.create(config, cluster=cluster, broker_name=broker)

    click.echo(f"topic {topic} is on {', '.join(run(work()))}")


@click.command()
@click.argument("topic")
@click.option("-r", "--read-queues", type=_QUEUES)
@click.option("-w", "--write-queues", type=_QUEUES)
@click.option("--perm", type=click.Choice(list(_PERMS)))
@click.option("--order/--no-order", default=None, help="Mark the topic as ordered, or not.")
@attribute_option
@cluster_option
@broker_option
@json_option
@servers_options
def update(
    topic: str,
    read_queues: int | None,
    write_queues: int | None,
    perm: str | None,
    order: bool | None,
    attributes: dict[str, str],
    cluster: str | None,
    broker: str | None,
    as_json: bool,
    servers: Servers,
) -> None:
    """Change settings of TOPIC.

    What is not named stays as it is on each master that has the topic. To shrink a topic, first
    take away write queues, and read queues once they are consumed to the end.

    \b
    Examples:
      mailboat topic update orders --perm r
      mailboat topic update orders -w 4 -b broker-a
    """
    changes: dict[str, Any] = {
        "read_queue_nums": read_queues,
        "write_queue_nums": write_queues,
        "perm": None if perm is None else _PERMS[perm],
        "order": order,
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    if not changes and not attributes:
        raise click.UsageError("name something to change, such as --perm rw")

    def change(config: TopicConfig) -> TopicConfig:
        return replace(config, attributes=attributes, **changes)

    async def work() -> dict[str, TopicConfig]:
        async with servers.admin() as admin:
            return await admin.topics.update(topic, change, cluster=cluster, broker_name=broker)

    rows = [
        {
            "broker": name,
            "read_queues": config.read_queue_nums,
            "write_queues": config.write_queue_nums,
            "perm": perm_text(config.perm),
            "order": config.order,
        }
        for name, config in sorted(run(work()).items())
    ]
    if as_json:
        print_json({"topic": topic, "brokers": rows})
    else:
        print_rows(rows, _COLUMNS, as_json=False)


@click.command()
@click.argument("topic")
@click.option("-c", "--cluster", help="Only from the masters of this cluster.")
@yes_option
@servers_options
def delete(topic: str, cluster: str | None, yes: bool, servers: Servers) -> None:
    """Delete TOPIC and its messages.

    Its queues and the offsets of groups in it are gone at once; the bytes go with the retention of
    the log.

    \b
    Example:
      mailboat topic delete orders --yes
    """
    where = f"cluster {cluster}" if cluster else "every broker"
    confirm(f"Delete topic {topic} and its messages from {where}?", yes=yes)

    async def work() -> None:
        async with servers.admin() as admin:
            is_known = await admin.topics.is_known(topic, cluster=cluster)
            # What an earlier try has left somewhere goes in any case.
            await admin.topics.delete(topic, cluster=cluster)
            if not is_known:
                of_cluster = f" of cluster {cluster}" if cluster else ""
                raise MailboatError(f"no broker{of_cluster} has a topic {topic}")

    run(work())
    click.echo(f"topic {topic} is deleted")
