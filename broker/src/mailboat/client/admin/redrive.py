"""Putting a group's dead letters back where they came from.

A redrive reads `%DLQ%GROUP` queue by queue in batches. Every letter of a batch is stored at its
destination before the position behind the batch is committed, so an end in between, by whatever
cause, loses nothing and repeats at most the batch that was under way. The position is a committed
offset of a group of its own name: it survives the machine that ran the redrive.

Source: the records that apache/rocketmq broker/processor/AbstractSendMessageProcessor.java
(consumerSendMsgBack) makes of messages that failed too often.
"""

import asyncio
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from mailboat.client.admin import Admin
from mailboat.client.admin.groups import POSITION_PREFIX
from mailboat.client.producer import Producer
from mailboat.client.pulling import PullStatus
from mailboat.client.send_result import SendStatus
from mailboat.client.sending import is_unanswered
from mailboat.errors import (
    MailboatError,
    RemotingError,
    RouteNotFoundError,
    UnknownOutcomeError,
)
from mailboat.model.message import Message, MessageExt
from mailboat.model.message_queue import MessageQueue
from mailboat.model.names import RETRY_PREFIX, check_group, check_topic, dlq_topic, retry_topic
from mailboat.model.properties import PropertyName
from mailboat.model.subscription import SubscriptionGroupConfig

BATCH: Final = 32
SEND_TIMEOUT_S: Final = 10.0
# A broker that restarts is waited for this long.
PATIENCE_S: Final = 30.0
RETRY_PAUSE_S: Final = 0.5

_DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"  # RocketMQ 5 adds it
# What brokers and consumers wrote on the message's way to the dead letters: it is none of the
# producer's, and a delay or a half message would come to life again.
_LEFT_BEHIND: Final = frozenset(
    {
        PropertyName.CLUSTER,
        PropertyName.CRC32,
        PropertyName.DELAY,
        PropertyName.INNER_BASE,
        PropertyName.INNER_NUM,
        PropertyName.MAX_OFFSET,
        PropertyName.MAX_RECONSUME_TIMES,
        PropertyName.MESSAGE_REGION,
        PropertyName.MIN_OFFSET,
        PropertyName.ORIGIN_MESSAGE_ID,
        PropertyName.POP_CK,
        PropertyName.PRODUCER_GROUP,
        PropertyName.REAL_QUEUE_ID,
        PropertyName.REAL_TOPIC,
        PropertyName.RECONSUME_TIME,
        PropertyName.RETRY_TOPIC,
        PropertyName.TRACE_ON,
        PropertyName.TRANSACTION_PREPARED,
        PropertyName.WAIT,
        _DLQ_ORIGIN_TOPIC,
        "DLQ_ORIGIN_MESSAGE_ID",
        "1ST_POP_TIME",
        "CONSUME_START_TIME",
        "MAILBOAT_DELIVER_MS",
        "TIMER_DELAY_LEVEL",
        "TIMER_DELAY_MS",
        "TIMER_DELAY_SEC",
        "TIMER_DELIVER_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_OUT_MS",
        "TIMER_ROLL_TIMES",
        "TRANSACTION_CHECK_TIMES",
        "__transactionId__",
    }
)
_STORED: Final = frozenset({SendStatus.SEND_OK, SendStatus.SLAVE_NOT_AVAILABLE})


@dataclass(frozen=True, slots=True)
class Selection:
    """Which dead letters: all, or those stored as dead letters in a time range, or with some ids.

    Both ends of the range belong to it. Ids are the producer's or the broker's of the dead letter.
    """

    begin_ms: int | None = None
    end_ms: int | None = None
    message_ids: tuple[str, ...] = ()

    def takes(self, letter: MessageExt) -> bool:
        """Tell whether a letter lies in the time range."""
        stored_ms = letter.store_timestamp_ms
        return (self.begin_ms is None or stored_ms >= self.begin_ms) and (
            self.end_ms is None or stored_ms <= self.end_ms
        )


@dataclass(frozen=True, slots=True)
class Destination:
    """Where dead letters go: to their own topics, or to the group's retry topic.

    `topic` is for letters that do not say where they came from.
    """

    group: str
    topic: str | None = None
    to_group: bool = False

    def of(self, letter: MessageExt) -> str:
        """Return the topic that a letter goes to.

        Raises:
            MailboatError: it does not say where it came from, and there is no topic for such.
        """
        origin = origin_topic(letter) or self.topic
        if origin is None:
            raise MailboatError(
                f"dead letter {letter.message_id} of group {self.group} (queue {letter.queue_id}, "
                f"offset {letter.queue_offset}) does not say which topic it came from; name one "
                "for such letters with --topic"
            )
        return retry_topic(self.group) if self.to_group else origin

    def message(self, letter: MessageExt) -> Message:
        """Return the message to send for a letter; its id, tags, keys and properties stay.

        So does its body, as it is stored: one that cannot be unpacked must not keep others back.
        """
        properties = {k: v for k, v in letter.properties.items() if k not in _LEFT_BEHIND}
        topic = self.of(letter)
        if self.to_group:
            properties[PropertyName.RETRY_TOPIC] = origin_topic(letter) or self.topic or topic
        return Message(topic, letter.body, properties=properties, flag=letter.flag)


@dataclass(slots=True)
class RedriveReport:
    """What a redrive has done so far."""

    group: str
    dead_letter_topic: str
    position_group: str | None
    """The group whose offsets are the position; None where none is kept."""
    dry_run: bool
    read: int = 0
    redriven: Counter[str] = field(default_factory=Counter)
    """Letters by the topic that they went to, or would go to."""

    @property
    def redriven_total(self) -> int:
        """How many letters went back, or would go."""
        return self.redriven.total()


@dataclass(frozen=True, slots=True)
class _Stretch:
    """The part of one queue that a redrive reads."""

    queue: MessageQueue
    begin_offset: int
    end_offset: int


class Redrive:
    """One run; `prepare` it, then `run` it. `report` is right also after an error."""

    def __init__(
        self,
        admin: Admin,
        producer: Producer,
        destination: Destination,
        selection: Selection,
        *,
        position_group: str | None = None,
        restart: bool = False,
        dry_run: bool = False,
        batch_size: int = BATCH,
    ) -> None:
        """Plan a redrive of the group of `destination`; nothing is asked yet.

        Args:
            admin: reads dead letters and keeps the position.
            producer: sends; a dry run only asks it where messages would go.
            destination: where letters go.
            selection: which letters. Single ids are looked up and move no position.
            position_group: under which name the position is kept; see `default_position_group`.
            restart: begin with the oldest letter, whatever the position says.
            dry_run: send nothing and move no position.
            batch_size: letters between two commits of the position.

        Raises:
            IllegalMessageError: a name is illegal.
        """
        self._admin = admin
        self._producer = producer
        self._destination = destination
        self._selection = selection
        self._restart = restart
        self._batch_size = batch_size
        group = destination.group
        check_group(group)
        if destination.topic is not None:
            check_topic(destination.topic)
        position = position_group or default_position_group(group, selection)
        if not selection.message_ids:
            check_group(position)
        self.report = RedriveReport(
            group, dlq_topic(group), None if selection.message_ids else position, dry_run
        )
        self._stretches: list[_Stretch] = []
        self._letters: list[MessageExt] = []

    async def prepare(self) -> int:
        """Find out what is to be read and return how many letters at most.

        Raises:
            RouteNotFoundError: the group has no dead letters, or they cannot be read, or one of
                the ids is not there.
        """
        topic = self.report.dead_letter_topic
        if self._selection.message_ids:
            self._letters = [await self._find(each) for each in self._selection.message_ids]
            return len(self._letters)
        for queue in await self._queues(topic):
            stretch = await self._stretch(queue)
            if stretch.begin_offset < stretch.end_offset:
                self._stretches.append(stretch)
        return sum(each.end_offset - each.begin_offset for each in self._stretches)

    async def run(self, on_progress: Callable[[int], None]) -> RedriveReport:
        """Put the letters back; `on_progress` hears how many were read, batch by batch.

        Raises:
            MailboatError: a letter could not be sent, or does not say where it came from, or the
                topic that it came from is gone. What was redriven before is behind the position.
            UnknownOutcomeError: a letter may or may not have been stored; it comes again.
        """
        for begin in range(0, len(self._letters), self._batch_size):
            batch = self._letters[begin : begin + self._batch_size]
            self.report.read += len(batch)
            try:
                await self._send_all(batch)
            except _SendFailure as failure:
                raise failure.cause from None
            on_progress(len(batch))
        if self._stretches and not self.report.dry_run:
            await self._make_position_group()
        for stretch in self._stretches:
            await self._run_queue(stretch, on_progress)
        return self.report

    async def _queues(self, topic: str) -> list[MessageQueue]:
        try:
            return await self._admin.offsets.queues(topic)
        except RouteNotFoundError:
            if topic not in await self._admin.topics.names():
                raise RouteNotFoundError(
                    f"group {self.report.group} has no dead letters: there is no topic {topic}"
                ) from None
            raise RouteNotFoundError(
                f"the dead letters of group {self.report.group} cannot be read; allow it with "
                f"'mailboat topic update {topic} --perm rw'"
            ) from None

    async def _find(self, message_id: str) -> MessageExt:
        topic = self.report.dead_letter_topic
        await self._queues(topic)
        found = await self._admin.messages.by_unique_key(topic, message_id)
        if not found:
            try:
                letter = await self._admin.messages.by_offset_id(message_id)
            except MailboatError:
                letter = None
            if letter is not None and letter.topic == topic:
                return letter
        if not found:
            raise RouteNotFoundError(
                f"group {self.report.group} has no dead letter with id {message_id}; "
                f"'mailboat message browse {topic}' shows what it has"
            )
        # A letter that died again after an earlier redrive is there twice; the newest counts.
        return found[-1]

    async def _stretch(self, queue: MessageQueue) -> _Stretch:
        offsets = self._admin.offsets
        begin_offset = await offsets.minimum(queue)
        end_offset = await offsets.maximum(queue)
        if self._selection.begin_ms is not None:
            begin_offset = await offsets.at_time(queue, self._selection.begin_ms)
        if not self._restart and self.report.position_group is not None:
            committed = await offsets.committed(self.report.position_group, queue)
            # A position behind the end is of dead letters that were deleted with their topic.
            if committed is not None and committed <= end_offset:
                begin_offset = max(begin_offset, committed)
        return _Stretch(queue, begin_offset, end_offset)

    async def _run_queue(self, stretch: _Stretch, on_progress: Callable[[int], None]) -> None:
        queue, queue_offset = stretch.queue, stretch.begin_offset
        while queue_offset < stretch.end_offset:
            result = await self._admin.messages.read(
                queue,
                queue_offset,
                max_messages=min(self._batch_size, stretch.end_offset - queue_offset),
            )
            batch = [each for each in result.messages if each.queue_offset < stretch.end_offset]
            if result.status is PullStatus.NO_NEW_MSG or result.next_offset <= queue_offset:
                return
            await self._run_batch(queue, batch)
            queue_offset = min(result.next_offset, stretch.end_offset)
            await self._commit(queue, queue_offset)
            self.report.read += len(batch)
            on_progress(len(batch))
            if self._is_past_end(batch):
                return

    def _is_past_end(self, batch: Sequence[MessageExt]) -> bool:
        end_ms = self._selection.end_ms
        return end_ms is not None and bool(batch) and batch[-1].store_timestamp_ms > end_ms

    async def _run_batch(self, queue: MessageQueue, batch: Sequence[MessageExt]) -> None:
        """Send what is selected of a batch; after a failure, keep what went before the failure."""
        wanted = [letter for letter in batch if self._selection.takes(letter)]
        try:
            await self._send_all(wanted)
        except _SendFailure as failure:
            try:
                await self._commit(queue, failure.letter.queue_offset)
            except MailboatError as error:
                # The next run repeats the batch from its start.
                raise failure.cause from error
            raise failure.cause from None

    async def _send_all(self, letters: Sequence[MessageExt]) -> None:
        """Send letters at the same time.

        Raises:
            _SendFailure: the first, in the letters' order, that is not stored.
        """
        # Before anything of the batch is sent: a letter without a destination ends the run.
        messages = [self._destination.message(letter) for letter in letters]
        for topic in {message.topic for message in messages}:
            await self._producer.queues(topic)
        if self.report.dry_run:
            self.report.redriven.update(message.topic for message in messages)
            return
        flags = [letter.sys_flag for letter in letters]
        results = await asyncio.gather(*map(self._send, messages, flags), return_exceptions=True)
        failures: list[_SendFailure] = []
        for letter, message, error in zip(letters, messages, results, strict=True):
            if error is None:
                self.report.redriven[message.topic] += 1
            elif isinstance(error, MailboatError):
                failures.append(_SendFailure(letter, error))
            else:
                raise error
        if failures:
            raise failures[0]

    async def _send(self, message: Message, sys_flag: int) -> None:
        """Send one message with a stored body, waiting for a broker that is away."""
        # Every try sends the same id.
        message.properties.setdefault(PropertyName.UNIQ_KEY, self._producer.next_unique_key())
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + PATIENCE_S
        unanswered: MailboatError | None = None
        while True:
            try:
                result = await self._producer.send_stored(
                    message, sys_flag, timeout_s=SEND_TIMEOUT_S
                )
            except MailboatError as error:
                if is_unanswered(error):
                    unanswered = error
                if isinstance(error, RemotingError) and loop.time() < deadline_s:
                    await asyncio.sleep(RETRY_PAUSE_S)
                    continue
                if unanswered is None:
                    raise
                raise UnknownOutcomeError(
                    f"{message.topic}: {unanswered}, so a message may or may not be stored"
                ) from error
            if result.status not in _STORED:
                raise UnknownOutcomeError(
                    f"{message.topic}: the broker answered {result.status.value}, so a message may "
                    "or may not be stored; run the redrive again once the broker is well"
                )
            return

    async def _commit(self, queue: MessageQueue, queue_offset: int) -> None:
        position = self.report.position_group
        if position is not None and not self.report.dry_run:
            await self._admin.offsets.commit(position, queue, queue_offset)

    async def _make_position_group(self) -> None:
        """Make the group whose offsets are the position: brokers refuse offsets of unknown ones."""
        position = self.report.position_group
        assert position is not None
        known = await self._admin.groups.configs_by_broker(position)
        for master in await self._admin.cluster.masters():
            if master.broker_name not in known:
                config = SubscriptionGroupConfig(position, consume_broadcast_enable=False)
                await self._admin.groups.create(config, broker_name=master.broker_name)


class _SendFailure(Exception):
    """A letter was not stored."""

    def __init__(self, letter: MessageExt, cause: MailboatError) -> None:
        super().__init__(str(cause))
        self.letter = letter
        self.cause = cause


def default_position_group(group: str, selection: Selection) -> str:
    """Return under which name a redrive keeps its position.

    Each time range has its own, or letters outside of it would count as redriven.
    """
    if selection.begin_ms is None and selection.end_ms is None:
        return POSITION_PREFIX + group
    text = f"{selection.begin_ms}-{selection.end_ms}"
    return f"{POSITION_PREFIX}{group}-{zlib.crc32(text.encode()):08x}"


def origin_topic(letter: MessageExt) -> str | None:
    """Return the topic that a dead letter was sent to at first, or None where it does not say."""
    for name in (PropertyName.RETRY_TOPIC, _DLQ_ORIGIN_TOPIC):
        topic = letter.properties.get(name)
        if topic and not topic.startswith(RETRY_PREFIX):
            return topic
    return None
