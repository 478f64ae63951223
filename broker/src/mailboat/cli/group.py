"""`mailboat group`: consumer groups."""

from typing import Any

import click

from mailboat.cli.client_command import json_option, namesrv_option, run
from mailboat.cli.output import print_json, print_rows
from mailboat.client.admin import Admin
from mailboat.errors import BrokerError
from mailboat.model.names import SYSTEM_GROUPS, is_retry_or_dlq
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.protocol.codes import version_name


@click.group()
def command() -> None:
    """Show consumer groups, their members and their lag."""


@command.command("list")
@click.option("--all", "with_system", is_flag=True, help="The system's own groups too.")
@json_option
@namesrv_option
def list_groups(with_system: bool, as_json: bool, namesrv: str) -> None:
    """List the groups with their members and their lag."""

    async def work() -> list[dict[str, Any]]:
        async with Admin(namesrv=namesrv) as admin:
            names = [
                name
                for name in await admin.groups.configs()
                if with_system or name not in SYSTEM_GROUPS
            ]
            return [await _summary(admin, name) for name in names]

    columns = ("group", "members", "model", "topics", "lag")
    print_rows(run(work()), columns, as_json=as_json)


async def _summary(admin: Admin, group: str) -> dict[str, Any]:
    connection = await admin.groups.connection(group)
    stats = await admin.groups.stats(group)
    return {
        "group": group,
        "members": len(connection.connection_set) if connection else 0,
        "model": connection.message_model if connection else None,
        "topics": sorted(
            {queue.topic for queue in stats.offset_table if not is_retry_or_dlq(queue.topic)}
        ),
        "lag": sum(
            wrapper.broker_offset - wrapper.consumer_offset
            for wrapper in stats.offset_table.values()
        ),
    }


@command.command()
@click.argument("group")
@click.option("--retry-max-times", type=click.IntRange(0, 10_000), default=16, show_default=True)
@click.option("--retry-queues", type=click.IntRange(0, 64), default=1, show_default=True)
@click.option("--no-broadcast", is_flag=True, help="Refuse broadcasting consumers.")
@namesrv_option
def create(
    group: str, retry_max_times: int, retry_queues: int, no_broadcast: bool, namesrv: str
) -> None:
    """Create GROUP on every master, or change it where it exists."""
    config = SubscriptionGroupConfig(
        group,
        consume_broadcast_enable=not no_broadcast,
        retry_queue_nums=retry_queues,
        retry_max_times=retry_max_times,
    )

    async def work() -> None:
        async with Admin(namesrv=namesrv) as admin:
            await admin.groups.create(config)

    run(work())
    click.echo(f"group {group} is there")


@command.command()
@click.argument("group")
@click.option("--yes", is_flag=True, help="Do not ask.")
@namesrv_option
def delete(group: str, yes: bool, namesrv: str) -> None:
    """Delete GROUP, its offsets, its retry topic and its dead letters."""
    if not yes:
        click.confirm(f"Delete group {group} with its offsets and dead letters?", abort=True)

    async def work() -> None:
        async with Admin(namesrv=namesrv) as admin:
            await admin.groups.delete(group)

    run(work())
    click.echo(f"group {group} is deleted")


@command.command()
@click.argument("group")
@click.option("-t", "--topic", help="Only this topic.")
@json_option
@namesrv_option
def lag(group: str, topic: str | None, as_json: bool, namesrv: str) -> None:
    """Show how far GROUP is in each queue, and how many messages it has still to consume."""
    rows = run(group_progress(namesrv, group, topic))
    total = sum(row["lag"] for row in rows)
    if as_json:
        print_json({"group": group, "lag": total, "queues": rows})
        return
    columns = ("topic", "broker", "queue", "broker_offset", "consumer_offset", "lag")
    print_rows(rows, columns, as_json=False)
    click.echo(f"lag {total}")


async def group_progress(namesrv: str, group: str, topic: str | None) -> list[dict[str, Any]]:
    """Return a row for each queue that a group has an offset of."""
    async with Admin(namesrv=namesrv) as admin:
        stats = await admin.groups.stats(group, topic)
    return [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "broker_offset": wrapper.broker_offset,
            "consumer_offset": wrapper.consumer_offset,
            "lag": wrapper.broker_offset - wrapper.consumer_offset,
        }
        for queue, wrapper in sorted(stats.offset_table.items())
    ]


@command.command()
@click.argument("group")
@json_option
@namesrv_option
def members(group: str, as_json: bool, namesrv: str) -> None:
    """Show who consumes for GROUP now, and which queues each member holds."""

    async def work() -> list[dict[str, Any]]:
        async with Admin(namesrv=namesrv) as admin:
            connection = await admin.groups.connection(group)
            if connection is None:
                return []
            return [
                {
                    "client_id": member.client_id,
                    "address": member.client_addr,
                    "language": member.language,
                    "version": version_name(member.version),
                    "queues": await _queues_of(admin, group, member.client_id),
                }
                for member in sorted(connection.connection_set, key=lambda m: m.client_id)
            ]

    columns = ("client_id", "address", "language", "version", "queues")
    print_rows(run(work()), columns, as_json=as_json)


async def _queues_of(admin: Admin, group: str, client_id: str) -> list[str] | None:
    """Return the queues of one member, or None where it does not tell."""
    try:
        info = await admin.groups.running_info(group, client_id)
    except BrokerError:
        return None
    return [str(queue) for queue in sorted(info.mq_table)]
