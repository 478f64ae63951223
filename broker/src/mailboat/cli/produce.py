"""`mailboat produce`: lines to messages, sent in batches.

Lines that are there together travel together: a read of a file fills batches, a line typed at a
terminal is sent at once. Several batches are under way at a time, so lines of different batches may
be stored in another order, and at an end before the end of the input the batches under way are
waited for: what it says then of the lines is certain.
"""

import asyncio
import base64
import binascii
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click
import msgspec

from mailboat.cli.client_command import explain, run
from mailboat.cli.input_lines import open_input, read_lines
from mailboat.cli.progress import Counter
from mailboat.cli.sent_lines import Fate, SentLines, name_lines
from mailboat.cli.servers import Servers, servers_options
from mailboat.client.checks import MAX_BODY_BYTES, check_destination, check_message, is_delayed
from mailboat.client.producer import Producer
from mailboat.client.send_result import SendResult, SendStatus
from mailboat.client.sending import is_unanswered
from mailboat.errors import BrokerError, IllegalMessageError, MailboatError, UnknownOutcomeError
from mailboat.model.message import Message
from mailboat.model.names import is_retry_or_dlq
from mailboat.model.properties import MAX_PROPERTIES_BYTES, PropertyName, encode_properties
from mailboat.protocol.codes import ResponseCode

GROUP: Final = "mailboat-cli"
BATCH_MESSAGES: Final = 1000
BATCH_BYTES: Final = 512 * 1024
BATCHES_UNDER_WAY: Final = 8
SEND_TIMEOUT_S: Final = 10.0
# A broker that restarts is waited for this long.
PATIENCE_S: Final = 30.0
RETRY_PAUSE_S: Final = 0.5
# How long answers are waited for after Ctrl-C; a second one ends at once.
INTERRUPT_PATIENCE_S: Final = 3.0
# A body as JSON is at most six times as long (`\u0000`), and so are its properties.
_MAX_JSON_LINE_BYTES: Final = 6 * (MAX_BODY_BYTES + MAX_PROPERTIES_BYTES) + 1024
# What the id and WAIT take of the properties of each message.
_OWN_PROPERTIES_BYTES: Final = 100
_BUSY_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.GO_AWAY,
    }
)

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
    help="Read this file or named pipe instead of standard input.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help='Lines are JSON: {"body", "key", "tags", "properties"}, or "body_base64" for bytes.',
)
@click.option("--tags", metavar="TAG", help="Tag of every message (not with --json).")
@click.option("--group", default=GROUP, show_default=True, help="Producer group.")
@servers_options
def command(
    topic: str, path: Path | None, as_json: bool, tags: str | None, group: str, servers: Servers
) -> None:
    """Send each line of standard input to TOPIC as one message.

    Empty lines are skipped: RocketMQ has no empty messages. A broker that is away or busy is waited
    for for 30 s; a line whose answer was lost is sent again with the same id (UNIQ_KEY) and may
    then be stored twice.

    An end before the end of the input, by a line that is no message, a refusal or Ctrl-C, waits for
    what is under way, and the last line on standard error says which lines are stored and which is
    the first that is not: `tail -n +N` goes on there.

    \b
    Exit codes:
      0    every line was answered SEND_OK
      1    it ended early: the lines before the one named are stored, none from it on
      5    lines from the one named on are stored too, or may be: sending from there again may
           store them twice; or lines were answered FLUSH_DISK_TIMEOUT or another doubt
      130  Ctrl-C, and 143 SIGTERM: the last line says the same as above
    """
    if as_json and tags is not None:
        raise click.UsageError("--tags does not go with --json: each line has its own tags")
    check_destination(topic)
    to_message = _json_reader(topic) if as_json else _line_reader(topic, tags)
    max_line_bytes = _MAX_JSON_LINE_BYTES if as_json else MAX_BODY_BYTES
    with open_input(path) as descriptor:
        total_bytes = None if path is None else os.fstat(descriptor).st_size or None
        counter = Counter("sent", quiet_on_stdout=False, total_bytes=total_bytes)
        lines = read_lines(descriptor, max_line_bytes)
        batches = _batches(lines, to_message, counter, one_by_one=is_retry_or_dlq(topic))
        sending = _Sending(servers.producer(group), counter)
        try:
            with counter:
                run(sending.run(batches))
        except (KeyboardInterrupt, click.exceptions.Exit):
            click.echo(f"mailboat: interrupted; {sending.sent.summary()}", err=True)
            raise
        sending.report()


@dataclass(slots=True)
class _Batch:
    """Messages that travel together, and the lines that they come from."""

    first_line: int
    last_line: int = 0
    size_bytes: int = 0
    messages: list[Message] = field(default_factory=list)


class _BadInput(Exception):
    """The input cannot be read on; the lines before `line` were given away."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line


class _Sending:
    """Sends batches, several at a time, and knows what became of each."""

    def __init__(self, producer: Producer, counter: Counter) -> None:
        self.sent = SentLines()
        self._producer = producer
        self._counter = counter
        self._room = asyncio.Semaphore(BATCHES_UNDER_WAY)
        self._under_way: set[asyncio.Task[None]] = set()
        # Set when nothing more is begun: no failed batch is tried again because of an interrupt.
        self._is_interrupted = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._failures: dict[int, str] = {}
        self._defects: list[BaseException] = []

    async def run(self, batches: AsyncIterator[_Batch]) -> None:
        """Send all batches; after a failure or an interrupt, end with those that are under way."""
        async with self._producer:
            await self._run(batches)

    async def _run(self, batches: AsyncIterator[_Batch]) -> None:
        self._reading = asyncio.ensure_future(self._read(batches))
        try:
            await asyncio.wait([self._reading])
            if self._under_way:
                await asyncio.wait(self._under_way)
        finally:
            # After an interrupt; else nothing is left to be done.
            self._is_interrupted.set()
            self._reading.cancel()
            await asyncio.wait([self._reading])
            if self._under_way:
                await asyncio.wait(self._under_way, timeout=INTERRUPT_PATIENCE_S)
            for task in self._under_way:
                task.cancel()
            if self._under_way:
                await asyncio.wait(self._under_way)
        for defect in self._defects:
            raise defect
        if not self._reading.cancelled():
            self._reading.result()

    def report(self) -> None:
        """Say what is not as it should be.

        Raises:
            MailboatError: not every line is stored; nothing behind those that are is.
            UnknownOutcomeError: lines behind the first that is not stored are stored or may be.
        """
        if not self._failures and self.sent.is_exact:
            return
        reason = self._failures[min(self._failures)] if self._failures else None
        text = self.sent.summary() if reason is None else f"{reason}; {self.sent.summary()}"
        raise MailboatError(text) if self.sent.is_exact else UnknownOutcomeError(text)

    async def _read(self, batches: AsyncIterator[_Batch]) -> None:
        try:
            async for batch in batches:
                if not batch.messages:
                    self.sent.add(batch.first_line, batch.last_line, Fate.STORED)
                    continue
                await self._room.acquire()
                task = asyncio.ensure_future(self._send(batch))
                self._under_way.add(task)
                task.add_done_callback(self._done)
        except _BadInput as error:
            self._failures[error.line] = f"line {error.line}: {error}"

    def _done(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._room.release()
        if not task.cancelled() and (defect := task.exception()) is not None:
            self._defects.append(defect)
            self._stop_reading()

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def _send(self, batch: _Batch) -> None:
        """Send one batch and note what became of its lines."""
        attempts = _Attempts()
        fate = Fate.NOT_STORED
        try:
            result = await self._send_patiently(batch, attempts)
            attempts.is_unanswered = attempts.is_unanswered or result.is_repeated
            fate = Fate.STORED if result.status is SendStatus.SEND_OK else Fate.DOUBTFUL
            if fate is Fate.DOUBTFUL:
                lines = name_lines([(batch.first_line, batch.last_line)])
                self._counter.note(f"{lines}: answered {result.status.value}")
        except MailboatError as error:
            fate = Fate.DOUBTFUL if attempts.is_unanswered else Fate.NOT_STORED
            lines = name_lines([(batch.first_line, batch.last_line)])
            self._failures[batch.first_line] = f"{lines}: {explain(error)}"
            self._stop_reading()
        except BaseException:
            # Cancelled, or a defect.
            is_asked = attempts.is_unanswered or attempts.is_under_way
            fate = Fate.DOUBTFUL if is_asked else Fate.NOT_STORED
            raise
        finally:
            self.sent.add(batch.first_line, batch.last_line, fate)
        if fate is Fate.STORED:
            messages = batch.messages
            self._counter.add(len(messages), sum(len(message.body) for message in messages))
            if attempts.is_unanswered:
                self._counter.resent_messages += len(messages)

    async def _send_patiently(self, batch: _Batch, attempts: "_Attempts") -> SendResult:
        """Send a batch, waiting for a broker that is away or busy.

        Raises:
            MailboatError: nobody took it.
        """
        for message in batch.messages:
            # Every attempt sends the same id.
            message.properties.setdefault(PropertyName.UNIQ_KEY, self._producer.next_unique_key())
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + PATIENCE_S
        while True:
            attempts.is_under_way = True
            try:
                return await self._send_once(batch.messages)
            except MailboatError as error:
                attempts.is_under_way = False
                attempts.is_unanswered = attempts.is_unanswered or is_unanswered(error)
                is_over = self._is_interrupted.is_set() or loop.time() >= deadline_s
                if is_over or not _is_worth_waiting(error):
                    raise
            try:
                async with asyncio.timeout(RETRY_PAUSE_S):
                    await self._is_interrupted.wait()
            except TimeoutError:
                continue

    async def _send_once(self, messages: list[Message]) -> SendResult:
        if len(messages) == 1:
            # By itself it may be delayed, and is compressed where it is large.
            return await self._producer.send(messages[0], timeout_s=SEND_TIMEOUT_S)
        return await self._producer.send_batch(messages, timeout_s=SEND_TIMEOUT_S)


@dataclass(slots=True)
class _Attempts:
    """How far the sending of one batch has come."""

    is_under_way: bool = False
    is_unanswered: bool = False
    """An attempt was sent and not answered: it may be stored."""


def _is_worth_waiting(error: MailboatError) -> bool:
    return error.retriable or (isinstance(error, BrokerError) and error.code in _BUSY_CODES)


async def _batches(
    all_lines: AsyncIterator[list[bytes]],
    to_message: ToMessage,
    counter: Counter,
    *,
    one_by_one: bool = False,
) -> AsyncIterator[_Batch]:
    """Yield the messages of each read, cut to the size of batches; `counter` counts skipped lines.

    Lines that are no messages have batches without messages, or follow the messages of one.

    Raises:
        _BadInput: a line is not a message, or there is no reading on; what was read before was
            yielded.
    """
    next_line = 1
    try:
        async for lines in all_lines:
            for batch in _cut(lines, next_line, to_message, counter, one_by_one=one_by_one):
                yield batch
            next_line += len(lines)
    except IllegalMessageError as error:
        raise _BadInput(next_line, str(error)) from error
    except OSError as error:
        raise _BadInput(next_line, f"cannot be read: {error.strerror or error}") from error


def _cut(
    lines: list[bytes],
    next_line: int,
    to_message: ToMessage,
    counter: Counter,
    *,
    one_by_one: bool,
) -> Iterator[_Batch]:
    """Yield the batches of some lines, the first of which is the line `next_line`.

    Raises:
        _BadInput: a line is not a message; those before it were yielded.
    """
    batch = _Batch(next_line)
    for number, line in enumerate(lines, next_line):
        try:
            message = to_message(line)
        except IllegalMessageError as error:
            if batch.last_line:
                yield batch
            raise _BadInput(number, str(error)) from error
        if message is None:
            counter.skipped_lines += 1
            batch.last_line = number
            continue
        size_bytes = len(line) + len(message.tags or "")
        if one_by_one or is_delayed(message):
            # Brokers take no such messages in batches.
            size_bytes = BATCH_BYTES
        # A large line goes by itself: with others the batch might be larger than any request.
        if batch.last_line and (size_bytes >= BATCH_BYTES or not batch.messages):
            yield batch
            batch = _Batch(number)
        batch.messages.append(message)
        batch.last_line = number
        batch.size_bytes += size_bytes
        if len(batch.messages) >= BATCH_MESSAGES or batch.size_bytes >= BATCH_BYTES:
            yield batch
            batch = _Batch(number + 1)
    if batch.last_line:
        yield batch


def _line_reader(topic: str, tags: str | None) -> ToMessage:
    _check_properties(Message(topic, b"x", tags))

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
        _check_properties(message)
        return message

    return to_message


def _check_properties(message: Message) -> None:
    """Refuse properties that no broker takes, here where the line is known.

    Raises:
        IllegalMessageError: they are too long, or hold what is no text or separates them.
    """
    text = encode_properties(message.all_properties())
    try:
        size_bytes = len(text.encode()) + _OWN_PROPERTIES_BYTES
    except UnicodeEncodeError as error:
        raise IllegalMessageError(f"tags, keys or properties are no text: {error}") from error
    if size_bytes > MAX_PROPERTIES_BYTES:
        raise IllegalMessageError(
            f"tags, keys and properties take {size_bytes} bytes; at most {MAX_PROPERTIES_BYTES} "
            "are allowed"
        )
