"""`mailboat topic list|show|route|stats`: what topics there are, and what they hold."""

from typing import Any

import click

from mailboat.cli.client_command import json_option, run
from mailboat.cli.output import print_json, print_record, print_rows, print_section, time_text
from mailboat.cli.progress import Scan
from mailboat.cli.servers import Servers, servers_options
from mailboat.client.admin import Admin
from mailboat.client.admin.cluster import BrokerAddress
from mailboat.model.names import is_retry_or_dlq, is_system_topic
from mailboat.model.topic import Perm, TopicConfig

ROUTE_COLUMNS = ("broker", "cluster", "read_queues", "write_queues", "perm", "addresses")
QUEUE_COLUMNS = ("broker", "queue", "min_offset", "max_offset", "messages", "last_update")

# Newer Java brokers make more topics with this prefix than those that every broker has.
_JAVA_SYSTEM_PREFIX = "RMQ_SYS_"


@click.command("list")
@click.option("--all", "with_system", is_flag=True, help="The system's and the groups' own too.")
@click.option("-c", "--cluster", help="Only topics on the masters of this cluster.")
@json_option
@servers_options
def list_topics(with_system: bool, cluster: str | None, as_json: bool, servers: Servers) -> None:
    """List the topics, their brokers and their queues.

    \b
    Examples:
      mailboat topic list
      mailboat topic list --all --json
    """
    rows = run(_list(servers, with_system=with_system, cluster=cluster))
    print_rows(rows, ("topic", "brokers", "read_queues", "write_queues", "perm"), as_json=as_json)


async def _list(
    servers: Servers, *, with_system: bool, cluster: str | None = None
) -> list[dict[str, Any]]:
    async with servers.admin() as admin:
        table: dict[str, dict[str, Any]] = {}
        for master in await admin.cluster.masters(cluster=cluster):
            for name, config in (await admin.topics.configs(master.address)).items():
                if not with_system and _is_hidden(name, master):
                    continue
                row = table.setdefault(name, _row(config))
                row["brokers"].append(master.broker_name)
        return [table[name] for name in sorted(table)]


def _is_hidden(topic: str, broker: BrokerAddress) -> bool:
    """Tell whether brokers or groups made a topic for themselves."""
    own = (broker.cluster, broker.broker_name, f"{broker.cluster}_REPLY_TOPIC")
    return (
        is_system_topic(topic)
        or is_retry_or_dlq(topic)
        or topic.startswith(_JAVA_SYSTEM_PREFIX)
        or topic in own
    )


def _row(config: TopicConfig) -> dict[str, Any]:
    return {
        "topic": config.topic_name,
        "brokers": [],
        "read_queues": config.read_queue_nums,
        "write_queues": config.write_queue_nums,
        "perm": perm_text(config.perm),
    }


@click.command()
@click.argument("topic")
@json_option
@servers_options
def show(topic: str, as_json: bool, servers: Servers) -> None:
    """Show TOPIC: brokers, settings, queues and groups.

    Groups are those that consume the topic now or have an offset in it.

    \b
    Example:
      mailboat topic show orders
    """
    document = run(_describe(servers, topic))
    if as_json:
        print_json(document)
        return
    names = ("topic", "messages", "order", "groups")
    print_record({name: document[name] for name in names})
    print_section("Brokers", document["brokers"], (*ROUTE_COLUMNS, "order", "attributes"))
    print_section("Queues", document["queues"], QUEUE_COLUMNS)


async def _describe(servers: Servers, topic: str) -> dict[str, Any]:
    async with servers.admin() as admin:
        brokers = await _route_rows(admin, topic)
        masters = {broker.broker_name: broker for broker in await admin.cluster.masters()}
        with Scan("brokers", len(brokers)) as scan:
            for row in brokers:
                master = masters.get(row["broker"])
                table = await admin.topics.configs(master.address) if master else {}
                config = table.get(topic)
                row["order"] = config.order if config else None
                row["attributes"] = config.attributes if config else {}
                scan.advance()
        queues = await _queue_rows(admin, topic)
        return {
            "topic": topic,
            "messages": sum(row["messages"] for row in queues),
            "order": await admin.topics.order(topic),
            "groups": sorted(await admin.topics.consumer_groups(topic)),
            "brokers": brokers,
            "queues": queues,
        }


@click.command()
@click.argument("topic")
@json_option
@servers_options
def route(topic: str, as_json: bool, servers: Servers) -> None:
    """Show which brokers hold TOPIC.

    \b
    Example:
      mailboat topic route orders
    """

    async def work() -> list[dict[str, Any]]:
        async with servers.admin() as admin:
            return await _route_rows(admin, topic)

    print_rows(run(work()), ROUTE_COLUMNS, as_json=as_json)


async def _route_rows(admin: Admin, topic: str) -> list[dict[str, Any]]:
    data = await admin.topics.route(topic)
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
    return rows


@click.command()
@click.argument("topic")
@json_option
@servers_options
def stats(topic: str, as_json: bool, servers: Servers) -> None:
    """Show how many messages each queue of TOPIC holds.

    \b
    Example:
      mailboat topic stats orders --json
    """

    async def work() -> list[dict[str, Any]]:
        async with servers.admin() as admin:
            return await _queue_rows(admin, topic)

    rows = run(work())
    if as_json:
        print_json({"messages": sum(row["messages"] for row in rows), "queues": rows})
        return
    print_rows(rows, QUEUE_COLUMNS, as_json=False)
    click.echo(f"{sum(row['messages'] for row in rows)} messages")


async def _queue_rows(admin: Admin, topic: str) -> list[dict[str, Any]]:
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


def perm_text(perm: int) -> str:
    """Return a permission as RocketMQ writes it, such as `RW-`."""
    return "".join(
        letter if perm & bit else "-"
        for letter, bit in (("R", Perm.READ), ("W", Perm.WRITE), ("X", Perm.INHERIT))
    )
