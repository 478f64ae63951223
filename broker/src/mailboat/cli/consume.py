"""`mailboat consume`: the messages of a topic, one line each."""

import asyncio
import json
import sys
from typing import Final

import click

from mailboat.cli.client_command import namesrv_option, run, start_point_option
from mailboat.cli.output import message_row
from mailboat.cli.progress import Counter
from mailboat.client.pull_consumer import PullConsumer
from mailboat.client.queue_offsets import StartPoint
from mailboat.model.message import MessageExt

GROUP: Final = "mailboat-cli"
POLL_MESSAGES: Final = 1024
POLL_TIMEOUT_S: Final = 1.0
COMMIT_INTERVAL_S: Final = 5.0


@click.command()
@click.argument("topic")
@click.option("--group", default=GROUP, show_default=True, help="Consumer group.")
@start_point_option(
    "--from",
    "start_point",
    default="first",
    help_text="Where a group begins that has not consumed the topic yet.",
)
@click.option("--tags", default="*", metavar="'A || B'", help="Only messages with these tags.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many messages.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    metavar="S",
    help="End after so many seconds without a message.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each message as a line of JSON.")
@namesrv_option
def command(
    topic: str,
    group: str,
    start_point: StartPoint,
    tags: str,
    count: int | None,
    timeout_s: float | None,
    as_json: bool,
    namesrv: str,
) -> None:
    """Print the messages of TOPIC, one line each, and go on as new ones come.

    What was printed is committed for the group: the next call, or another member of the group that
    runs at the same time, gets the messages after it. End it with --count, --timeout or Ctrl-C.
    """
    consumer = PullConsumer(group, namesrv=namesrv, start_point=start_point)
    run(_consume(consumer, topic, tags, _Printer(as_json=as_json), count, timeout_s))


class _Printer:
    """Writes messages to standard output."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def write(self, messages: list[MessageExt]) -> int:
        """Print the messages and return how many bytes their bodies have."""
        if self._as_json:
            lines = [
                json.dumps(message_row(message), ensure_ascii=False).encode()
                for message in messages
            ]
        else:
            lines = [message.payload() for message in messages]
        lines.append(b"")
        sys.stdout.buffer.write(b"\n".join(lines))
        sys.stdout.buffer.flush()
        return sum(len(message.body) for message in messages)


async def _consume(
    consumer: PullConsumer,
    topic: str,
    tags: str,
    printer: _Printer,
    count: int | None,
    timeout_s: float | None,
) -> None:
    with Counter("consumed", quiet_on_stdout=True) as counter:
        async with consumer:
            await consumer.subscribe(topic, tags)
            try:
                await _print_messages(consumer, printer, counter, count, timeout_s)
            except asyncio.CancelledError:
                # Ctrl-C: what was polled was printed. (An output that broke does not get here.)
                await consumer.commit()
                raise
            await consumer.commit()


async def _print_messages(
    consumer: PullConsumer,
    printer: _Printer,
    counter: Counter,
    count: int | None,
    timeout_s: float | None,
) -> None:
    loop = asyncio.get_running_loop()
    last_message_s = committed_s = loop.time()
    while count is None or counter.messages < count:
        wanted = POLL_MESSAGES if count is None else min(POLL_MESSAGES, count - counter.messages)
        wait_s = POLL_TIMEOUT_S
        if timeout_s is not None:
            wait_s = min(wait_s, max(0.0, last_message_s + timeout_s - loop.time()))
        messages = await consumer.poll(wanted, wait_s)
        now_s = loop.time()
        if messages:
            counter.add(len(messages), printer.write(messages))
            last_message_s = now_s
        elif timeout_s is not None and now_s - last_message_s >= timeout_s:
            return
        if now_s - committed_s >= COMMIT_INTERVAL_S:
            await consumer.commit()
            committed_s = now_s
