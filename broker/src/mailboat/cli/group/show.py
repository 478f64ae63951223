"""`mailboat group list|show|lag|members`: what groups there are, who is in them, how far they
are."""

from typing import Any, Final

import click

from mailboat.cli.client_command import each, json_option, run
from mailboat.cli.group.change import SETTING_COLUMNS, setting_row
from mailboat.cli.output import print_json, print_record, print_rows, print_section, time_text
from mailboat.cli.progress import Scan
from mailboat.cli.servers import Servers, servers_options
from mailboat.client.admin import Admin
from mailboat.client.admin.groups import is_position_group
from mailboat.errors import MailboatError
from mailboat.model.message_queue import MessageQueue
from mailboat.model.names import SYSTEM_GROUPS, is_retry_or_dlq
from mailboat.protocol.client_connections import ConsumerConnection
from mailboat.protocol.codes import version_name
from mailboat.protocol.stats_bodies import ConsumeStats

LAG_COLUMNS: Final = (
    "topic",
    "broker",
    "queue",
    "broker_offset",
    "consumer_offset",
    "lag",
    "last_consumed",
    "member",
)
MEMBER_COLUMNS: Final = ("client_id", "address", "language", "version", "queues")


@click.command("list")
@click.option("--all", "with_system", is_flag=True, help="The system's and mailboat's own too.")
@json_option
@servers_options
def list_groups(with_system: bool, as_json: bool, servers: Servers) -> None:
    """List the groups with their members and their lag.

    \b
    Examples:
      mailboat group list
      mailboat group list --json | jq '.[] | select(.lag > 1000)'
    """

    async def work() -> list[dict[str, Any]]:
        async with servers.admin() as admin:
            names = [
                name for name in await admin.groups.configs() if with_system or not is_hidden(name)
            ]
            with Scan("groups", len(names)) as scan:
                return await each(names, lambda name: _summary(admin, name), scan.advance)

    columns = ("group", "members", "type", "model", "topics", "lag")
    print_rows(run(work()), columns, as_json=as_json)


def is_hidden(group: str) -> bool:
    """Tell whether a group is the system's own, or only holds the position of a redrive."""
    return group in SYSTEM_GROUPS or is_position_group(group)


async def _summary(admin: Admin, group: str) -> dict[str, Any]:
    connection = await admin.groups.connection(group)
    stats = await admin.groups.stats(group)
    return {
        "group": group,
        "members": len(connection.connection_set) if connection else 0,
        "type": connection.consume_type if connection else None,
        "model": connection.message_model if connection else None,
        "topics": sorted(
            {queue.topic for queue in stats.offset_table if not is_retry_or_dlq(queue.topic)}
        ),
        "lag": sum(
            wrapper.broker_offset - wrapper.consumer_offset
            for wrapper in stats.offset_table.values()
        ),
    }


@click.command()
@click.argument("group")
@json_option
@servers_options
def show(group: str, as_json: bool, servers: Servers) -> None:
    """Show GROUP: settings, members, subscriptions and lag.

    The lag is how many messages of a queue the group has still to consume; the member is who
    reads the queue now. Members of groups that broadcast keep their offsets to themselves.

    \b
    Example:
      mailboat group show billing
    """
    document = run(_describe(servers, group))
    if as_json:
        print_json(document)
        return
    names = ("group", "lag", "consume_tps", "type", "model", "consume_from")
    print_record({name: document[name] for name in names})
    print_section("Settings", document["settings"], SETTING_COLUMNS)
    print_section("Members", document["members"], MEMBER_COLUMNS)
    print_section("Subscriptions", document["subscriptions"], ("topic", "type", "expression"))
    print_section("Queues", document["queues"], LAG_COLUMNS)


async def _describe(servers: Servers, group: str) -> dict[str, Any]:
    async with servers.admin() as admin:
        settings = await admin.groups.configs_by_broker(group)
        connection = await admin.groups.connection(group)
        if not settings and connection is None:
            await refuse_unknown(admin, group)
        stats = await admin.groups.stats(group)
        owners = await _owners(admin, group, connection)
    rows = lag_rows(stats, owners)
    return {
        "group": group,
        "lag": sum(row["lag"] for row in rows),
        "consume_tps": round(stats.consume_tps, 1),
        "type": connection.consume_type if connection else None,
        "model": connection.message_model if connection else None,
        "consume_from": connection.consume_from_where if connection else None,
        "settings": [setting_row(name, config) for name, config in sorted(settings.items())],
        "members": member_rows(connection, owners),
        "subscriptions": _subscription_rows(connection),
        "queues": rows,
    }


def _subscription_rows(connection: ConsumerConnection | None) -> list[dict[str, Any]]:
    if connection is None:
        return []
    return [
        {
            "topic": topic,
            "type": subscription.expression_type,
            "expression": subscription.sub_string or "*",
        }
        for topic, subscription in sorted(connection.subscription_table.items())
    ]


async def _owners(
    admin: Admin, group: str, connection: ConsumerConnection | None
) -> dict[MessageQueue, str]:
    if connection is None:
        return {}
    return await admin.groups.owners(
        group, [member.client_id for member in connection.connection_set]
    )


@click.command()
@click.argument("group")
@click.option("-t", "--topic", help="Only this topic.")
@json_option
@servers_options
def lag(group: str, topic: str | None, as_json: bool, servers: Servers) -> None:
    """Show how far GROUP is in each queue.

    The lag is how many messages the group has still to consume; the member is who reads the queue
    now.

    \b
    Examples:
      mailboat group lag billing
      mailboat group lag billing -t orders --json
    """
    rows = run(group_progress(servers, group, topic, with_members=True))
    total = sum(row["lag"] for row in rows)
    if as_json:
        print_json({"group": group, "lag": total, "queues": rows})
        return
    print_rows(rows, LAG_COLUMNS, as_json=False)
    click.echo(f"lag {total}")


async def group_progress(
    servers: Servers, group: str, topic: str | None, *, with_members: bool = False
) -> list[dict[str, Any]]:
    """Return a row for each queue that a group has an offset of.

    Raises:
        MailboatError: there is no such group, or no such topic.
    """
    async with servers.admin() as admin:
        stats = await admin.groups.stats(group, topic)
        connection = await admin.groups.connection(group)
        if not stats.offset_table and connection is None:
            await refuse_unknown(admin, group)
        if topic and not stats.offset_table:
            await admin.topics.route(topic)
        owners = await _owners(admin, group, connection) if with_members else {}
        return lag_rows(stats, owners)


async def refuse_unknown(admin: Admin, group: str) -> None:
    """Raise MailboatError where no broker knows a group without members."""
    if not await admin.groups.configs_by_broker(group):
        raise MailboatError(
            f"there is no group {group}; 'mailboat group list --all' shows those there are"
        )


def lag_rows(stats: ConsumeStats, owners: dict[MessageQueue, str]) -> list[dict[str, Any]]:
    """Return a row for each queue, with the member that reads it."""
    return [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "broker_offset": wrapper.broker_offset,
            "consumer_offset": wrapper.consumer_offset,
            "lag": wrapper.broker_offset - wrapper.consumer_offset,
            "last_consumed": time_text(wrapper.last_timestamp),
            "member": owners.get(queue),
        }
        for queue, wrapper in sorted(stats.offset_table.items())
    ]


@click.command()
@click.argument("group")
@json_option
@servers_options
def members(group: str, as_json: bool, servers: Servers) -> None:
    """Show who consumes for GROUP now.

    Each member is asked, through the broker, which queues it reads.

    \b
    Example:
      mailboat group members billing
    """

    async def work() -> list[dict[str, Any]]:
        async with servers.admin() as admin:
            connection = await admin.groups.connection(group)
            if connection is None:
                await refuse_unknown(admin, group)
            return member_rows(connection, await _owners(admin, group, connection))

    print_rows(run(work()), MEMBER_COLUMNS, as_json=as_json)


def member_rows(
    connection: ConsumerConnection | None, owners: dict[MessageQueue, str]
) -> list[dict[str, Any]]:
    """Return a row for each member, with the queues that it reads."""
    if connection is None:
        return []
    return [
        {
            "client_id": member.client_id,
            "address": member.client_addr,
            "language": member.language,
            "version": version_name(member.version),
            "queues": [str(queue) for queue in sorted(owners) if owners[queue] == member.client_id],
        }
        for member in sorted(connection.connection_set, key=lambda member: member.client_id)
    ]
