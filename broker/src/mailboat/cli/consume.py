"""`mailboat consume`: the messages of a topic, one line each."""

import asyncio
import json
import logging
import sys
from typing import Final

import click

from mailboat.cli.client_command import Seconds, explain, run, start_point_option
from mailboat.cli.output import message_row, payload_of
from mailboat.cli.progress import Counter
from mailboat.cli.servers import Servers, servers_options
from mailboat.client.pull_consumer import PullConsumer
from mailboat.client.queue_offsets import StartPoint
from mailboat.errors import MailboatError
from mailboat.model.message import MessageExt

logger = logging.getLogger(__name__)

GROUP: Final = "mailboat-cli"
POLL_MESSAGES: Final = 1024
POLL_TIMEOUT_S: Final = 1.0
COMMIT_INTERVAL_S: Final = 1.0


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
    type=Seconds(min=0),
    metavar="S",
    help="End after so many seconds without a message.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each message as a line of JSON.")
@servers_options
def command(
    topic: str,
    group: str,
    start_point: StartPoint,
    tags: str,
    count: int | None,
    timeout_s: float | None,
    as_json: bool,
    servers: Servers,
) -> None:
    """Print the messages of TOPIC, one line each, and go on as new ones come.

    What was printed is committed for the group: the next call, or another member of the group that
    runs at the same time, gets the messages after it. A member that comes or goes may get again
    what was printed within the second before. End it with --count, --timeout, Ctrl-C or SIGTERM.
    Where the end cannot be committed, it says how many messages come again.
    """
    if sys.stdout is None:
        raise click.UsageError("standard output is closed; messages would be lost")
    consumer = PullConsumer(
        group,
        namesrv=servers.namesrv,
        security=servers.security,
        start_point=start_point,
        commit_lost=True,
    )
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
            lines = [payload_of(message) for message in messages]
        lines.append(b"")
        sys.stdout.buffer.write(b"\n".join(lines))
        sys.stdout.buffer.flush()
        return sum(len(message.body) for message in messages)


class _Committer:
    """Commits what was printed, now and then and at the end."""

    def __init__(self, consumer: PullConsumer, counter: Counter) -> None:
        self._consumer = consumer
        self._counter = counter
        self._committed_messages = 0
        self._committed_s = asyncio.get_running_loop().time()

    async def commit_sometimes(self) -> None:
        """Commit if it is time; a broker that is away now may be back the next time."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._committed_s >= COMMIT_INTERVAL_S:
            self._committed_s = now_s
            try:
                await self._commit()
            except MailboatError as error:
                logger.warning("not committed, tried again later: %s", explain(error))

    async def commit_end(self) -> None:
        """Commit everything.

        Raises:
            MailboatError: it is not committed; the text says how many messages come again.
        """
        try:
            await self._commit()
        except MailboatError as error:
            again = self._counter.messages - self._committed_messages
            raise MailboatError(
                f"{explain(error)}; up to {again} printed messages are not committed and come again"
            ) from error

    async def _commit(self) -> None:
        messages = self._counter.messages
        await self._consumer.commit()
        self._committed_messages = messages


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
            committer = _Committer(consumer, counter)
            try:
                await _print_messages(consumer, printer, counter, committer, count, timeout_s)
            except asyncio.CancelledError:
                # Ctrl-C: what was polled was printed. (An output that broke does not get here.)
                await committer.commit_end()
                raise
            await committer.commit_end()


async def _print_messages(
    consumer: PullConsumer,
    printer: _Printer,
    counter: Counter,
    committer: _Committer,
    count: int | None,
    timeout_s: float | None,
) -> None:
    loop = asyncio.get_running_loop()
    last_message_s = loop.time()
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
        await committer.commit_sometimes()
