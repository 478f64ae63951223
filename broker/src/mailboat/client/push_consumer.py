"""Reading messages as they come, with a handler for each topic.

Clustering: the members of the group share the queues, offsets are stored at the brokers, a failed
message comes again. Broadcasting: every member reads every queue, offsets are in a local file, a
failed message is dropped with a warning. Either way a message may come twice, so handlers must bear
that.

Source: apache/rocketmq client/impl/consumer/DefaultMQPushConsumerImpl.java.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from mailboat.client.addresses import DEFAULT_NAMESRV
from mailboat.client.allocation import Allocation, allocate_averagely
from mailboat.client.background import BackgroundTasks, repeat
from mailboat.client.broker_calls import send_message_back
from mailboat.client.consume_service import (
    ConsumeService,
    ConsumeSettings,
    ConsumingSink,
    Handler,
)
from mailboat.client.consumer_status import ConsumerStatus, ConsumerStatusProcessors
from mailboat.client.instance import ClientInstance, ConsumerMembership
from mailboat.client.local_offsets import LocalOffsets
from mailboat.client.process_queue import FlowLimits, ProcessQueue
from mailboat.client.pulling import Puller
from mailboat.client.queue_offsets import QueueOffsets, StartPoint
from mailboat.client.queue_reader import ERROR_PAUSE_S, QueueReader
from mailboat.client.rebalance import AssignmentListener, Rebalancer
from mailboat.errors import MailboatError, RouteNotFoundError
from mailboat.model.message import MessageExt
from mailboat.model.message_queue import MessageQueue
from mailboat.model.names import check_group, check_topic, retry_topic
from mailboat.model.subscription import SUBSCRIBE_ALL, SubscriptionData, build_subscription
from mailboat.protocol.heartbeat import CONSUME_PASSIVELY, ConsumerData

logger = logging.getLogger(__name__)

PULL_BATCH: Final = 32
CONCURRENCY: Final = 20
CONSUME_TIMEOUT_S: Final = 15 * 60.0
MAX_RECONSUME_TIMES: Final = 16
PERSIST_INTERVAL_S: Final = 5.0
CLOSE_PATIENCE_S: Final = 5.0


class MessageModel(Enum):
    """Do the members of a group share the messages, or does each get all; the wire's words."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class PushConsumer:
    """Calls handlers with messages; `async with` starts and closes it, after `subscribe`."""

    def __init__(
        self,
        group: str,
        *,
        namesrv: str = DEFAULT_NAMESRV,
        model: MessageModel = MessageModel.CLUSTERING,
        start_point: StartPoint | None = None,
        strategy: Allocation = allocate_averagely,
        concurrency: int = CONCURRENCY,
        batch_size: int = 1,
        consume_timeout_s: float = CONSUME_TIMEOUT_S,
        max_reconsume_times: int = MAX_RECONSUME_TIMES,
        flow_limits: FlowLimits | None = None,
        offsets_path: Path | None = None,
    ) -> None:
        """Prepare a consumer.

        Args:
            group: the consumer group.
            namesrv: name servers as `HOST:PORT;...`.
            model: share the messages with the group, or read all of them.
            start_point: where the group begins in queues of which it has no offset; their end, if
                not given.
            strategy: how the members of the group share queues; the same for all of them.
            concurrency: handlers that run at the same time; 1 keeps the order of a queue, as long
                as no handler fails.
            batch_size: messages given to a handler at a time, at most.
            consume_timeout_s: a handler that takes longer is cancelled and counts as failed.
            max_reconsume_times: how often a message comes again before it is a dead letter.
            flow_limits: how much of a queue may be pulled and not yet finished.
            offsets_path: the offsets file of a broadcasting consumer; by default
                `~/.mailboat_offsets/GROUP/offsets.json`.

        Raises:
            IllegalMessageError: the group's name is illegal.
            ConfigError: `namesrv` is not a list of addresses.
        """
        check_group(group)
        self.group = group
        self._instance = ClientInstance(namesrv)
        self._puller = Puller(self._instance.remoting, self._instance.routes)
        self._offsets = QueueOffsets(self._instance.remoting, self._instance.routes)
        self._local_offsets = _local_offsets(model, group, offsets_path)
        self._model = model
        self._concurrency = concurrency
        self._start_point = start_point or StartPoint()
        self._max_reconsume_times = max_reconsume_times
        self._flow_limits = flow_limits or FlowLimits()
        self._handlers: dict[str, Handler] = {}
        self._subscriptions: dict[str, SubscriptionData] = {}
        settings = ConsumeSettings(concurrency, batch_size, consume_timeout_s)
        send_back = None if self._local_offsets else self._send_back
        self._service = ConsumeService(self._handlers, settings, send_back)
        self._workers = BackgroundTasks()
        self._rebalancer = Rebalancer(
            self._instance,
            group,
            strategy=None if self._local_offsets else strategy,
            assign=self._take_queues,
        )
        self._rebalance_task: asyncio.Task[None] | None = None
        self._readers: dict[MessageQueue, asyncio.Task[None]] = {}
        self._process_queues: dict[MessageQueue, ProcessQueue] = {}
        self._storing = asyncio.Lock()
        self._started_ms = 0
        self.on_assignment: list[AssignmentListener] = []
        """Called when queues came to this member or went away."""
        processors = ConsumerStatusProcessors(group, self.status, self.move_queue)
        processors.register(self._instance.handle)

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        await self.close()

    def subscribe(self, topic: str, expression: str, handler: Handler) -> None:
        """Have `handler` called with the messages of a topic; before or after the start.

        Args:
            topic: the topic; it may be created later.
            expression: tags to take, such as `TagA || TagB`, or `*` for every message.
            handler: an async function that takes a list of messages and raises to get them again.

        Raises:
            IllegalMessageError: the topic's name is illegal, or the expression names no tag.
        """
        check_topic(topic)
        self._handlers[topic] = handler
        self._subscriptions[topic] = build_subscription(topic, expression, _now_ms())
        self._rebalancer.add_topic(topic)
        if self._started_ms:
            self._instance.want_heartbeat()
            self._rebalancer.wake()

    async def start(self) -> None:
        """Join the group and begin to consume; queues arrive as soon as brokers answer.

        Raises:
            MailboatError: the local offsets file is damaged.
        """
        if self._local_offsets is not None:
            await self._local_offsets.load()
        else:
            topic = retry_topic(self.group)
            self._subscriptions[topic] = build_subscription(topic, SUBSCRIBE_ALL, _now_ms())
            self._rebalancer.add_topic(topic)
        await self._instance.start()
        self._started_ms = _now_ms()
        self._instance.join_as_consumer(
            self.group, ConsumerMembership(self._describe, self._rebalancer.wake)
        )
        await self._learn_routes()
        await self._instance.send_heartbeats()
        self._service.start(self._workers)
        self._instance.tasks.spawn(
            repeat(self.save_offsets, every_s=PERSIST_INTERVAL_S), "save offsets"
        )
        self._rebalance_task = self._rebalancer.start()

    async def close(self, patience_s: float = CLOSE_PATIENCE_S) -> None:
        """Stop pulling, let running handlers finish, store the offsets, leave the group.

        Args:
            patience_s: how long running handlers may take; then they are cancelled, and their
                messages come again.
        """
        if self._rebalance_task is not None:
            self._rebalance_task.cancel()
        for reader in self._readers.values():
            reader.cancel()
        await self._service.stop(patience_s)
        await self._workers.cancel_all()
        await self.save_offsets()
        await self._instance.close()

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer reads now."""
        return sorted(self._readers)

    async def save_offsets(self) -> None:
        """Store how far each queue is finished, and wait until the brokers have it.

        Failures are logged and left to the next time.
        """
        await self._store(self._process_queues.values())

    async def _store(self, process_queues: Iterable[ProcessQueue]) -> None:
        """Store how far queues are finished.

        One store at a time, each answered before the next one begins: brokers work on requests in
        several threads and could otherwise keep the older of two offsets.
        """
        async with self._storing:
            offsets = {held.queue: held.commit_offset for held in process_queues}
            if self._local_offsets is not None:
                await self._local_offsets.save(offsets)
                return
            results = await asyncio.gather(
                *(self._offsets.commit(self.group, *item) for item in offsets.items()),
                return_exceptions=True,
            )
        for queue, result in zip(offsets, results, strict=True):
            if isinstance(result, MailboatError):
                logger.warning("offset of queue=%s not stored: %s", queue, result)
            elif result is not None:
                raise result

    async def move_queue(self, queue: MessageQueue, queue_offset: int) -> None:
        """Go on reading a queue of ours at another offset; what was read ahead is dropped.

        Raises:
            BrokerError, RemotingError, RouteNotFoundError: the offset could not be stored.
        """
        if queue not in self._readers:
            return
        self._stop(queue)
        if self._local_offsets is not None:
            await self._local_offsets.save({queue: queue_offset})
        else:
            await self._offsets.commit(self.group, queue, queue_offset)
        self._read(queue, queue_offset)

    def status(self) -> ConsumerStatus:
        """Return what administrators may ask about this consumer."""
        return ConsumerStatus(
            namesrv=";".join(self._instance.name_servers.addresses),
            started_ms=self._started_ms,
            concurrency=self._concurrency,
            subscriptions=list(self._subscriptions.values()),
            process_queues=dict(self._process_queues),
        )

    async def _learn_routes(self) -> None:
        """Learn where the topics are, so that the first heartbeat reaches their brokers."""
        for topic in self._subscriptions:
            try:
                await self._instance.routes.read_queues(topic)
            except RouteNotFoundError as error:
                logger.debug("topic=%s is looked for again later: %s", topic, error)
            except MailboatError as error:
                logger.warning("topic=%s is looked for again later: %s", topic, error)

    def _describe(self) -> ConsumerData:
        return ConsumerData(
            self.group,
            consume_type=CONSUME_PASSIVELY,
            message_model=self._model.value,
            consume_from_where=self._start_point.where.value,
            subscription_data_set=list(self._subscriptions.values()),
        )

    async def _take_queues(self, topic: str, own: set[MessageQueue]) -> None:
        held = {queue for queue in self._readers if queue.topic == topic}
        left = [
            self._process_queues[queue] for queue in held - own if queue in self._process_queues
        ]
        for queue in held - own:
            self._stop(queue)
        for queue in sorted(own - held):
            self._read(queue, None)
        if held != own:
            for listener in self.on_assignment:
                listener(topic, sorted(own))
        if left:
            await self._store(left)

    def _read(self, queue: MessageQueue, queue_offset: int | None) -> None:
        self._readers[queue] = self._instance.tasks.spawn(
            self._run_reader(queue, queue_offset), f"read {queue}"
        )

    def _stop(self, queue: MessageQueue) -> None:
        self._readers.pop(queue).cancel()
        held = self._process_queues.pop(queue, None)
        if held is not None:
            held.drop()

    async def _run_reader(self, queue: MessageQueue, queue_offset: int | None) -> None:
        while queue_offset is None:
            try:
                queue_offset = await self._first_offset(queue)
            except MailboatError as error:
                logger.warning("position queue=%s unknown, tried again: %s", queue, error)
                await asyncio.sleep(ERROR_PAUSE_S)
        process_queue = ProcessQueue(queue, queue_offset, self._flow_limits)
        self._process_queues[queue] = process_queue
        reader = QueueReader(
            self._puller,
            self.group,
            queue,
            self._subscriptions[queue.topic],
            PULL_BATCH,
            ConsumingSink(process_queue, self._service),
        )
        await reader.read_from(queue_offset)

    async def _first_offset(self, queue: MessageQueue) -> int:
        if self._local_offsets is not None:
            stored = self._local_offsets.get(queue)
        else:
            stored = await self._offsets.committed(self.group, queue)
        if stored is not None:
            return stored
        return await self._offsets.start_of(queue, self._start_point)

    async def _send_back(self, process_queue: ProcessQueue, message: MessageExt) -> None:
        queue = process_queue.queue
        await send_message_back(
            self._instance.remoting,
            await self._instance.routes.master_address(queue),
            self.group,
            message,
            broker_name=queue.broker_name,
            max_reconsume_times=self._max_reconsume_times,
        )


def _local_offsets(model: MessageModel, group: str, path: Path | None) -> LocalOffsets | None:
    """Return the offsets file of a broadcasting consumer; a clustering one has none."""
    if model is MessageModel.CLUSTERING:
        return None
    return LocalOffsets(path or Path.home() / ".mailboat_offsets" / group / "offsets.json")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
