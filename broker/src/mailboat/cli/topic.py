"""`mailboat topic`: topics."""

from typing import Any, Final

import click

from mailboat.cli.client_command import json_option, namesrv_option, run
from mailboat.cli.output import print_json, print_rows, time_text
from mailboat.client.admin import Admin
from mailboat.client.admin.cluster import BrokerAddress
from mailboat.model.names import is_retry_or_dlq, is_system_topic
from mailboat.model.topic import Perm, TopicConfig
from mailboat.protocol.route import TopicRouteData

_QUEUES: Final = click.IntRange(1, 65_536)
_PERMS: Final = {"r": Perm.READ, "w": Perm.WRITE, "rw": Perm.READ | Perm.WRITE}


@click.group()
def command() -> None:
    """Create, list, describe and delete topics."""


@command.command("list")
@click.option("--all", "with_system", is_flag=True, help="The system's and the groups' own too.")
@json_option
@namesrv_option
def list_topics(with_system: bool, as_json: bool, namesrv: str) -> None:
    """List the topics, the brokers that hold them, and their queues."""
    rows = run(_list(namesrv, with_system=with_system))
    print_rows(rows, ("topic", "brokers", "read_queues", "write_queues", "perm"), as_json=as_json)


async def _list(namesrv: str, *, with_system: bool) -> list[dict[str, Any]]:
    async with Admin(namesrv=namesrv) as admin:
        table: dict[str, dict[str, Any]] = {}
        for master in await admin.cluster.masters():
            for name, config in (await admin.topics.configs(master.address)).items():
                if not with_system and _is_hidden(name, master):
                    continue
                row = table.setdefault(name, _row(config))
                row["brokers"].append(master.broker_name)
        return [table[name] for name in sorted(table)]


def _is_hidden(topic: str, broker: BrokerAddress) -> bool:
    """Tell whether brokers or groups made a topic for themselves."""
    own = (broker.cluster, broker.broker_name, f"{broker.cluster}_REPLY_TOPIC")
    return is_system_topic(topic) or is_retry_or_dlq(topic) or topic in own


def _row(config: TopicConfig) -> dict[str, Any]:
    return {
        "topic": config.topic_name,
        "brokers": [],
        "read_queues": config.read_queue_nums,
        "write_queues": config.write_queue_nums,
        "perm": perm_text(config.perm),
    }


@command.command()
@click.argument("topic")
@click.option("-r", "--read-queues", type=_QUEUES, default=8, show_default=True)
@click.option("-w", "--write-queues", type=_QUEUES, default=8, show_default=True)
@click.option("--perm", type=click.Choice(list(_PERMS)), default="rw", show_default=True)
@click.option("--order", is_flag=True, help="Mark the topic as ordered.")
@click.option("-c", "--cluster", help="Only on the masters of this cluster.")
@click.option("-b", "--broker", help="Only on the master with this name.")
@namesrv_option
def create(
    topic: str,
    read_queues: int,
    write_queues: int,
    perm: str,
    order: bool,
    cluster: str | None,
    broker: str | None,
    namesrv: str,
) -> None:
    """Create TOPIC on every master, or change it where it exists."""
    config = TopicConfig(topic, read_queues, write_queues, _PERMS[perm], order=order)

    async def work() -> list[str]:
        async with Admin(namesrv=namesrv) as admin:
            return await admin.topics.create(config, cluster=cluster, broker_name=broker)

    click.echo(f"topic {topic} is on {', '.join(run(work()))}")


@command.command()
@click.argument("topic")
@click.option("--yes", is_flag=True, help="Do not ask.")
@namesrv_option
def delete(topic: str, yes: bool, namesrv: str) -> None:
    """Delete TOPIC and its messages from every broker."""
    if not yes:
        click.confirm(f"Delete topic {topic} and its messages?", abort=True)

    async def work() -> None:
        async with Admin(namesrv=namesrv) as admin:
            await admin.topics.delete(topic)

    run(work())
    click.echo(f"topic {topic} is deleted")


@command.command()
@click.argument("topic")
@json_option
@namesrv_option
def route(topic: str, as_json: bool, namesrv: str) -> None:
    """Show which brokers hold TOPIC."""

    async def work() -> TopicRouteData:
        async with Admin(namesrv=namesrv) as admin:
            return await admin.topics.route(topic)

    data = run(work())
    brokers = {broker.broker_name: broker for broker in data.broker_datas}
    rows = []
    for queues in sorted(data.queue_datas, key=lambda queues: queues.broker_name):
        broker = brokers.get(queues.broker_name)
        addresses = dict(sorted(broker.broker_addrs.items())) if broker else {}
        rows.append(
            {
                "broker": queues.broker_name,
                "cluster": broker.cluster if broker else None,
                "read_queues": queues.read_queue_nums,
                "write_queues": queues.write_queue_nums,
                "perm": perm_text(queues.perm),
                "addresses": [f"{number}={address}" for number, address in addresses.items()],
            }
        )
    columns = ("broker", "cluster", "read_queues", "write_queues", "perm", "addresses")
    print_rows(rows, columns, as_json=as_json)


@command.command()
@click.argument("topic")
@json_option
@namesrv_option
def stats(topic: str, as_json: bool, namesrv: str) -> None:
    """Show how many messages each queue of TOPIC holds."""

    async def work() -> list[dict[str, Any]]:
        async with Admin(namesrv=namesrv) as admin:
            return [
                {
                    "broker": queue.broker_name,
                    "queue": queue.queue_id,
                    "min_offset": bounds.min_offset,
                    "max_offset": bounds.max_offset,
                    "messages": bounds.max_offset - bounds.min_offset,
                    "last_update": time_text(bounds.last_update_timestamp),
                }
                for queue, bounds in (await admin.topics.stats(topic)).items()
            ]

    rows = run(work())
    if as_json:
        print_json({"messages": sum(row["messages"] for row in rows), "queues": rows})
        return
    columns = ("broker", "queue", "min_offset", "max_offset", "messages", "last_update")
    print_rows(rows, columns, as_json=False)
    click.echo(f"{sum(row['messages'] for row in rows)} messages")


def perm_text(perm: int) -> str:
    """Return a permission as RocketMQ writes it, such as `RW-`."""
    return "".join(
        letter if perm & bit else "-"
        for letter, bit in (("R", Perm.READ), ("W", Perm.WRITE), ("X", Perm.INHERIT))
    )
