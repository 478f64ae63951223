"""Reading messages as they come, with a handler for each topic.

Clustering: the members of the group share the queues, offsets are stored at the brokers, a failed
message comes again. Broadcasting: every member reads every queue, offsets are in a local file, a
failed message is dropped with a warning. Either way a message may come twice, so handlers must bear
that.

In order: each queue is locked by the member that reads it, has one handler at a time, and a message
that fails holds up those behind it. Without order, messages of a queue are consumed side by side.

Source: apache/rocketmq client/impl/consumer/DefaultMQPushConsumerImpl.java.
"""

import asyncio
import logging
import time
from enum import Enum
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from mailboat.client.addresses import DEFAULT_NAMESRV
from mailboat.client.allocation import Allocation, allocate_averagely
from mailboat.client.background import BackgroundTasks, repeat
from mailboat.client.callbacks import Closing
from mailboat.client.consume_directly import ConsumeDirectlyProcessor
from mailboat.client.consume_service import ConsumeService, MessageService
from mailboat.client.consumer_status import ConsumerStatus, ConsumerStatusProcessors
from mailboat.client.handler_runner import ConsumeSettings, Handler
from mailboat.client.held_queues import HeldQueues, LockedQueues, ReadSettings
from mailboat.client.instance import ClientInstance, ConsumerMembership
from mailboat.client.local_offsets import LocalOffsets
from mailboat.client.offset_store import GroupOffsetStore, LocalOffsetStore, OffsetStore
from mailboat.client.orderly_service import OrderlyService
from mailboat.client.process_queue import FlowLimits
from mailboat.client.queue_locks import QueueLocks
from mailboat.client.queue_offsets import QueueOffsets, StartPoint
from mailboat.client.rebalance import AssignmentListener, Rebalancer
from mailboat.client.retries import UNLIMITED, Retries
from mailboat.client.subscriptions import Expression, check_subscriptions, subscribe_to
from mailboat.errors import ConfigError, MailboatError, RouteNotFoundError
from mailboat.model.message_queue import MessageQueue
from mailboat.model.names import check_group, check_topic, retry_topic
from mailboat.model.subscription import SUBSCRIBE_ALL, SubscriptionData
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.heartbeat import CONSUME_PASSIVELY, ConsumerData
from mailboat.security.client_security import OPEN, ClientSecurity

logger = logging.getLogger(__name__)

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
    """Calls handlers with messages; `async with` starts and closes it, after `subscribe`.

    Example:
        async def handle(messages: list[MessageExt]) -> None:
            for message in messages:
                await store(message.payload())  # raising means: deliver it again later

        consumer = PushConsumer("billing", order=True)
        consumer.subscribe("orders", "new || paid", handle)
        async with consumer:
            await stop_signal.wait()
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str = DEFAULT_NAMESRV,
        security: ClientSecurity = OPEN,
        model: MessageModel = MessageModel.CLUSTERING,
        order: bool = False,
        start_point: StartPoint | None = None,
        strategy: Allocation = allocate_averagely,
        concurrency: int = CONCURRENCY,
        batch_size: int = 1,
        consume_timeout_s: float = CONSUME_TIMEOUT_S,
        max_reconsume_times: int | None = None,
        flow_limits: FlowLimits | None = None,
        offsets_path: Path | None = None,
    ) -> None:
        """Prepare a consumer.

        Args:
            group: the consumer group.
            namesrv: name servers as `HOST:PORT;...`.
            security: what requests are signed with, and how servers are connected to.
            model: share the messages with the group, or read all of them.
            order: consume the messages of each queue one after the other, as they lie in it. A
                message that fails comes again after a second, before those behind it.
            start_point: where the group begins in queues of which it has no offset; their end, if
                not given. Of a queue made later nothing is skipped that came after the start.
            strategy: how the members of the group share queues; the same for all of them.
            concurrency: handlers at the same time; with `order`, one for each queue at most.
            batch_size: messages given to a handler at a time, at most.
            consume_timeout_s: a handler that takes longer is cancelled and counts as failed.
            max_reconsume_times: how often a message comes again before it is a dead letter; 16
                if not given, and with `order` without end.
            flow_limits: how much of a queue may be pulled and not yet finished.
            offsets_path: the offsets file of a broadcasting consumer; by default
                `~/.mailboat_offsets/GROUP/offsets.json`.

        Raises:
            IllegalMessageError: the group's name is illegal.
            ConfigError: `namesrv` is not a list of addresses, or the home folder is not known.
        """
        check_group(group)
        self.group = group
        self._instance = ClientInstance(namesrv, security)
        self._model = model
        self._is_shared = model is MessageModel.CLUSTERING
        self._offset_store = self._make_offset_store(offsets_path)
        self._order = order
        self._concurrency = concurrency
        self._start_point = start_point or StartPoint()
        self._handlers: dict[str, Handler] = {}
        self._closing = Closing(self._handlers)
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._locks = QueueLocks(self._instance, group) if order and self._is_shared else None
        settings = ConsumeSettings(concurrency, batch_size, consume_timeout_s)
        most_times = _most_times(max_reconsume_times, is_ordered=order)
        self._service, self._queues = self._assemble(settings, most_times, flow_limits)
        self._workers = BackgroundTasks()
        self._rebalancer = Rebalancer(
            self._instance,
            group,
            strategy=strategy if self._is_shared else None,
            assign=self._queues.take,
        )
        self._rebalance_task: asyncio.Task[None] | None = None
        self._started_ms = 0
        self.on_assignment: list[AssignmentListener] = self._queues.on_assignment
        """Called when queues came to this member or went away."""
        self._answer_brokers(consume_timeout_s)

    def _answer_brokers(self, consume_timeout_s: float) -> None:
        """Answer what administrators ask members of a group, through the brokers."""
        status = ConsumerStatusProcessors(self.group, self.status, self._queues.move)
        status.register(self._instance.handle)
        directly = ConsumeDirectlyProcessor(
            self.group, self._handlers, consume_timeout_s, order=self._order
        )
        self._instance.handle(RequestCode.CONSUME_MESSAGE_DIRECTLY, directly.process)

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

    def subscribe(self, topic: str, expression: Expression, handler: Handler) -> None:
        """Have `handler` called with the messages of a topic; before or after the start.

        Args:
            topic: the topic; it may be created later.
            expression: tags to take, such as `TagA || TagB`, `*` for every message, or a condition
                such as `Sql("amount > 100")`. Brokers are asked about conditions at the start;
                later, one that they refuse shows in the log and brings no messages.
            handler: an async function that takes a list of messages and raises to get them again,
                `ConsumeLater` to choose when.

        Raises:
            IllegalMessageError: the topic's name is illegal, or the expression is empty.
        """
        check_topic(topic)
        self._handlers[topic] = handler
        self._subscriptions[topic] = subscribe_to(topic, expression, _now_ms())
        self._rebalancer.add_topic(topic)
        if self._started_ms:
            self._instance.want_heartbeat()
            self._rebalancer.wake()

    async def start(self) -> None:
        """Join the group and begin to consume; queues arrive as soon as brokers answer.

        Raises:
            BrokerError: a broker does not understand an SQL condition, or does not filter by them.
            MailboatError: the local offsets file is damaged or cannot be read.
        """
        await self._offset_store.load()
        if self._is_shared:
            topic = retry_topic(self.group)
            self._subscriptions[topic] = subscribe_to(topic, SUBSCRIBE_ALL, _now_ms())
            self._rebalancer.add_topic(topic)
        try:
            await self._instance.start()
            await self._join()
        except BaseException:
            # A start that failed, or was cancelled wherever it was, leaves nothing behind.
            await self.close(patience_s=0.0)
            raise

    async def _join(self) -> None:
        await self._learn_routes()
        await check_subscriptions(self._instance, self.group, list(self._subscriptions.values()))
        self._started_ms = _now_ms()
        self._instance.join_as_consumer(
            self.group, ConsumerMembership(self._describe, self._rebalancer.wake)
        )
        await self._instance.send_heartbeats()
        self._service.start(self._workers)
        if self._locks is not None:
            self._locks.start(self._instance.tasks)
        self._instance.tasks.spawn(
            partial(repeat, self.save_offsets, every_s=PERSIST_INTERVAL_S), "save offsets"
        )
        self._rebalance_task = self._rebalancer.start()

    async def close(self, patience_s: float = CLOSE_PATIENCE_S) -> None:
        """Stop pulling, let running handlers finish, store the offsets, leave the group.

        Calling it again waits for the same end. A handler may call it, to stop after so many
        messages, but does not wait: no handler begins after that, and the end comes once those that
        run have returned.

        Args:
            patience_s: how long running handlers may take; then they are cancelled, and their
                messages come again. The first call counts.
        """
        await self._closing.run(partial(self._close, patience_s))

    async def _close(self, patience_s: float) -> None:
        try:
            if self._rebalance_task is not None:
                self._instance.tasks.cancel(self._rebalance_task)
            self._queues.stop_reading()
            await self._service.stop(patience_s)
            await self._workers.cancel_all()
            await self._queues.close()
        finally:
            await self._instance.close()

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer reads now."""
        return self._queues.assignment

    async def save_offsets(self) -> None:
        """Store how far each queue is finished, and wait until the brokers have it.

        Failures are logged and left to the next time.
        """
        await self._queues.save_offsets()

    def status(self) -> ConsumerStatus:
        """Return what administrators may ask about this consumer."""
        return ConsumerStatus(
            namesrv=";".join(self._instance.name_servers.addresses),
            started_ms=self._started_ms,
            concurrency=self._concurrency,
            subscriptions=list(self._subscriptions.values()),
            process_queues=dict(self._queues.process_queues),
            order=self._order,
            locks=self._locks,
        )

    def _make_offset_store(self, path: Path | None) -> OffsetStore:
        if self._is_shared:
            offsets = QueueOffsets(self._instance.remoting, self._instance.routes)
            return GroupOffsetStore(offsets, self.group, self._instance.refusals)
        if path is None:
            try:
                home = Path.home()
            except RuntimeError as error:
                raise ConfigError(
                    "offsets_path", "", "there is no home folder to keep offsets in; name a file"
                ) from error
            path = home / ".mailboat_offsets" / self.group / "offsets.json"
        return LocalOffsetStore(LocalOffsets(path))

    def _assemble(
        self,
        consume: ConsumeSettings,
        max_reconsume_times: int,
        flow_limits: FlowLimits | None,
    ) -> tuple[MessageService, HeldQueues]:
        """Return what consumes messages and what reads queues, as the model and `order` ask."""
        instance, locks = self._instance, self._locks
        read = ReadSettings(
            self.group, self._subscriptions, self._start_point, flow_limits or FlowLimits()
        )
        retries = Retries(instance, self.group, max_reconsume_times) if self._is_shared else None
        if not self._order:
            give_back = None if retries is None else retries.give_back
            service = ConsumeService(self._handlers, consume, give_back)
            return service, HeldQueues(instance, read, self._offset_store, service)
        orderly = OrderlyService(
            self._handlers,
            consume,
            may_consume=locks.is_held if locks else lambda queue: True,
            max_reconsume_times=max_reconsume_times,
            retries=retries,
        )
        if locks is None:
            return orderly, HeldQueues(instance, read, self._offset_store, orderly)
        return orderly, LockedQueues(instance, read, self._offset_store, orderly, locks)

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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _most_times(given: int | None, *, is_ordered: bool) -> int:
    """Return how often a message comes again."""
    if given is not None:
        return given
    return UNLIMITED if is_ordered else MAX_RECONSUME_TIMES
