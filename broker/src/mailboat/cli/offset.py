"""`mailboat offset`: the offsets of consumer groups."""

import click

from mailboat.cli.client_command import (
    json_option,
    namesrv_option,
    run,
    start_point_option,
)
from mailboat.cli.group import group_progress
from mailboat.cli.output import print_rows
from mailboat.client.admin import Admin
from mailboat.client.queue_offsets import StartPoint
from mailboat.model.message_queue import MessageQueue


@click.group()
def command() -> None:
    """Show and move the offsets of a consumer group."""


@command.command()
@click.argument("group")
@click.option("-t", "--topic", help="Only this topic.")
@json_option
@namesrv_option
def show(group: str, topic: str | None, as_json: bool, namesrv: str) -> None:
    """Show the stored offsets of GROUP."""
    rows = run(group_progress(namesrv, group, topic))
    columns = ("topic", "broker", "queue", "consumer_offset", "broker_offset", "lag")
    print_rows(rows, columns, as_json=as_json)


@command.command()
@click.argument("group")
@click.argument("topic")
@start_point_option("--to", "target", default=None, help_text="Where the group goes on.")
@json_option
@namesrv_option
def reset(group: str, topic: str, target: StartPoint, as_json: bool, namesrv: str) -> None:
    """Let GROUP go on at the first or last message of TOPIC, or at a time.

    A group that is online is moved by its broker and goes on within seconds.
    """

    async def work() -> dict[MessageQueue, int]:
        async with Admin(namesrv=namesrv) as admin:
            return await admin.offsets.reset(group, topic, target)

    rows = [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "new_offset": new_offset,
        }
        for queue, new_offset in run(work()).items()
    ]
    print_rows(rows, ("topic", "broker", "queue", "new_offset"), as_json=as_json)
