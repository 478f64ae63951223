"""`mailboat produce`: lines to messages, sent in batches.

Lines that are there together travel together: a read of a file fills batches, a line typed at a
terminal is sent at once. Several batches are under way at a time, so lines of different batches may
be stored in another order.
"""

import asyncio
import base64
import binascii
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import click
import msgspec

from mailboat.cli.client_command import namesrv_option, run
from mailboat.cli.input_lines import read_lines
from mailboat.cli.progress import Counter
from mailboat.client.checks import check_destination, check_message
from mailboat.client.producer import Producer
from mailboat.errors import IllegalMessageError, MailboatError
from mailboat.model.message import Message

GROUP: Final = "mailboat-cli"
BATCH_MESSAGES: Final = 1000
BATCH_BYTES: Final = 512 * 1024
BATCHES_UNDER_WAY: Final = 8
SEND_TIMEOUT_S: Final = 10.0
# A broker that restarts is waited for this long.
PATIENCE_S: Final = 30.0
RETRY_PAUSE_S: Final = 0.5

ToMessage = Callable[[bytes], Message | None]


class _JsonLine(msgspec.Struct):
    """A line of `--json` input; other fields are ignored."""

    body: str | None = None
    body_base64: str | None = None
    key: str | list[str] | None = None
    tags: str | None = None
    properties: dict[str, str] = {}


@click.command()
@click.argument("topic")
@click.option(
    "-f",
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read this file instead of standard input.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help='Lines are JSON: {"body", "key", "tags", "properties"}, or "body_base64" for bytes.',
)
@click.option("--tags", metavar="TAG", help="Tag of every message (not with --json).")
@click.option("--group", default=GROUP, show_default=True, help="Producer group.")
@namesrv_option
def command(
    topic: str, path: Path | None, as_json: bool, tags: str | None, group: str, namesrv: str
) -> None:
    """Send each line of standard input to TOPIC as one message.

    Empty lines are skipped: RocketMQ has no empty messages. A broker that is away is waited for
    for 30 s; a line whose answer was lost is sent again and may then be stored twice.
    """
    if as_json and tags is not None:
        raise click.UsageError("--tags does not go with --json: each line has its own tags")
    check_destination(topic)
    to_message = _json_reader(topic) if as_json else _line_reader(topic, tags)
    run(_produce(to_message, path, group=group, namesrv=namesrv))


async def _produce(to_message: ToMessage, path: Path | None, *, group: str, namesrv: str) -> None:
    descriptor = sys.stdin.fileno() if path is None else os.open(path, os.O_RDONLY)
    total_bytes = None if path is None else os.fstat(descriptor).st_size
    try:
        with Counter("sent", quiet_on_stdout=False, total_bytes=total_bytes) as counter:
            async with Producer(group, namesrv=namesrv) as producer:
                await _send_all(producer, _batches(descriptor, to_message, counter), counter)
    finally:
        if path is not None:
            os.close(descriptor)


async def _send_all(
    producer: Producer, batches: AsyncIterator[list[Message]], counter: Counter
) -> None:
    """Send batches, several at a time; the first that fails ends it all.

    Raises:
        MailboatError: what the first failed batch raised.
    """
    room = asyncio.Semaphore(BATCHES_UNDER_WAY)

    async def send(batch: list[Message]) -> None:
        try:
            await _send(producer, batch)
            counter.add(len(batch), sum(len(message.body) for message in batch))
        finally:
            room.release()

    try:
        async with asyncio.TaskGroup() as tasks:
            async for batch in batches:
                await room.acquire()
                tasks.create_task(send(batch))
    except* MailboatError as errors:
        raise _first(errors) from None


def _first(errors: BaseExceptionGroup[MailboatError]) -> MailboatError:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, MailboatError)
    return error


async def _send(producer: Producer, batch: list[Message]) -> None:
    """Send one batch, waiting for a broker that is away."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + PATIENCE_S
    while True:
        try:
            await producer.send_batch(batch, timeout_s=SEND_TIMEOUT_S)
        except MailboatError as error:
            if not error.retriable or loop.time() >= deadline_s:
                raise
            await asyncio.sleep(RETRY_PAUSE_S)
        else:
            return


async def _batches(
    descriptor: int, to_message: ToMessage, counter: Counter
) -> AsyncIterator[list[Message]]:
    """Yield the messages of each read, cut to the size of batches; `counter` counts skipped lines.

    Raises:
        IllegalMessageError: a line is not a message; the text gives its number.
    """
    number = 0
    async for lines in read_lines(descriptor):
        batch: list[Message] = []
        size_bytes = 0
        for line in lines:
            number += 1
            try:
                message = to_message(line)
            except IllegalMessageError as error:
                raise IllegalMessageError(f"line {number}: {error}") from error
            if message is None:
                counter.skipped_lines += 1
                continue
            batch.append(message)
            size_bytes += len(line)
            if len(batch) >= BATCH_MESSAGES or size_bytes >= BATCH_BYTES:
                yield batch
                batch = []
                size_bytes = 0
        if batch:
            yield batch


def _line_reader(topic: str, tags: str | None) -> ToMessage:
    def to_message(line: bytes) -> Message | None:
        if not line:
            return None
        message = Message(topic, line, tags)
        check_message(message)
        return message

    return to_message


def _json_reader(topic: str) -> ToMessage:
    decode = msgspec.json.Decoder(_JsonLine).decode

    def to_message(line: bytes) -> Message | None:
        if not line.strip():
            return None
        try:
            fields = decode(line)
            if fields.body_base64 is not None:
                body = base64.b64decode(fields.body_base64, validate=True)
            else:
                body = (fields.body or "").encode()
        except (ValueError, binascii.Error, RecursionError) as error:
            raise IllegalMessageError(f"not a message in JSON: {error}") from error
        message = Message(topic, body, fields.tags, fields.key, fields.properties)
        check_message(message)
        return message

    return to_message
