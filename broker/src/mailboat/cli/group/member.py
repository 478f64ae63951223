"""`mailboat group member`: one consumer from the inside."""

from typing import Any, Final

import click

from mailboat.cli.client_command import json_option, run
from mailboat.cli.output import print_json, print_record, print_section, time_text
from mailboat.cli.servers import Servers, servers_options
from mailboat.protocol.running_info import ConsumerRunningInfo, ProcessQueueInfo

_QUEUE_COLUMNS: Final = (
    "topic",
    "broker",
    "queue",
    "commit_offset",
    "held_messages",
    "held_mib",
    "locked",
    "last_pull",
    "last_consume",
)
_RATE_COLUMNS: Final = (
    "topic",
    "pull_tps",
    "pull_ms",
    "consume_ok_tps",
    "consume_failed_tps",
    "consume_ms",
    "failed_last_hour",
)


@click.command()
@click.argument("group")
@click.argument("client_id")
@json_option
@servers_options
def command(group: str, client_id: str, as_json: bool, servers: Servers) -> None:
    """Show what one member of GROUP says of itself.

    The broker relays the question to the member with CLIENT_ID (see `mailboat group members`):
    what it subscribes to, what it holds of each queue, and its rates.

    \b
    Example:
      mailboat group member billing 10.0.0.7@4242
    """

    async def work() -> ConsumerRunningInfo:
        async with servers.admin() as admin:
            return await admin.groups.running_info(group, client_id)

    document = {"group": group, "client_id": client_id, **member_document(run(work()))}
    if as_json:
        print_json(document)
        return
    print_record({"group": group, "client_id": client_id, **document["properties"]})
    print_section("Subscriptions", document["subscriptions"], ("topic", "type", "expression"))
    print_section("Queues", document["queues"], _QUEUE_COLUMNS)
    print_section("Rates", document["rates"], _RATE_COLUMNS)


def member_document(info: ConsumerRunningInfo) -> dict[str, Any]:
    """Return what a member says as lists of rows."""
    return {
        "properties": dict(sorted(info.properties.items())),
        "subscriptions": [
            {"topic": each.topic, "type": each.expression_type, "expression": each.sub_string}
            for each in sorted(info.subscription_set, key=lambda each: each.topic)
        ],
        "queues": [
            {
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                **_held(info.mq_table[queue]),
            }
            for queue in sorted(info.mq_table)
        ],
        "rates": [
            {
                "topic": topic,
                "pull_tps": round(status.pull_tps, 2),
                "pull_ms": round(status.pull_rt, 2),
                "consume_ok_tps": round(status.consume_ok_tps, 2),
                "consume_failed_tps": round(status.consume_failed_tps, 2),
                "consume_ms": round(status.consume_rt, 2),
                "failed_last_hour": status.consume_failed_msgs,
            }
            for topic, status in sorted(info.status_table.items())
        ],
    }


def _held(info: ProcessQueueInfo) -> dict[str, Any]:
    return {
        "commit_offset": info.commit_offset,
        "held_messages": info.cached_msg_count,
        "held_mib": info.cached_msg_size_in_mi_b,
        "locked": info.locked,
        "dropped": info.dropped,
        "last_pull": time_text(info.last_pull_timestamp),
        "last_consume": time_text(info.last_consume_timestamp),
    }
