"""Reading messages when the program asks for them.

Either the program chooses its queues (`assign`), or the members of the group share those of a
topic (`subscribe`). `poll` hands messages out in queue order; `commit` stores how far the polls
came, so a message counts as consumed once a later commit returns.

Source: apache/rocketmq client/impl/consumer/DefaultLitePullConsumerImpl.java.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Final, Self

from mailboat.client.addresses import DEFAULT_NAMESRV
from mailboat.client.allocation import Allocation, allocate_averagely
from mailboat.client.instance import ClientInstance, ConsumerMembership
from mailboat.client.pulling import Puller, PullRequest, PullResult
from mailboat.client.queue_buffer import QueueBuffer
from mailboat.client.queue_offsets import QueueOffsets, StartPoint
from mailboat.client.queue_reader import ERROR_PAUSE_S, QueueReader
from mailboat.client.rebalance import AssignmentListener, Rebalancer, tell_assignment
from mailboat.client.refusals import pause_s
from mailboat.client.subscriptions import Expression, check_subscriptions, subscribe_to
from mailboat.errors import MailboatError
from mailboat.model.message import MessageExt
from mailboat.model.message_queue import MessageQueue
from mailboat.model.names import check_group
from mailboat.model.subscription import SUBSCRIBE_ALL, SubscriptionData
from mailboat.protocol.heartbeat import CONSUME_ACTIVELY, ConsumerData
from mailboat.security.client_security import OPEN, ClientSecurity

logger = logging.getLogger(__name__)

PULL_BATCH: Final = 1024


class PullConsumer:
    """Polls messages; `async with` starts and closes it. Use it from one task at a time.

    Example:
        async with PullConsumer("billing") as consumer:
            await consumer.subscribe("orders", Sql("amount > 100"))
            for message in await consumer.poll():
                await store(message.payload())
            await consumer.commit()
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str = DEFAULT_NAMESRV,
        security: ClientSecurity = OPEN,
        start_point: StartPoint | None = None,
        strategy: Allocation = allocate_averagely,
        pull_batch: int = PULL_BATCH,
        commit_lost: bool = False,
    ) -> None:
        """Prepare a consumer.

        Args:
            group: the consumer group whose offsets are read and committed.
            namesrv: name servers as `HOST:PORT;...`.
            security: what requests are signed with, and how servers are connected to.
            start_point: where the group begins in queues of which it has no offset; their end, if
                not given. Of a queue made later nothing is skipped that came after `subscribe`.
            strategy: how the members of the group share queues (`subscribe` only).
            pull_batch: how many messages to ask a broker for at a time.
            commit_lost: commit a queue that goes to another member, as far as `poll` handed it out
                (`subscribe` only). For programs that are done with messages before they next wait
                for anything; without it the other member gets what was not committed again.

        Raises:
            IllegalMessageError: the group's name is illegal.
            ConfigError: `namesrv` is not a list of addresses.
        """
        check_group(group)
        self.group = group
        self._instance = ClientInstance(namesrv, security)
        self._puller = Puller(self._instance.remoting, self._instance.routes)
        self._offsets = QueueOffsets(self._instance.remoting, self._instance.routes)
        self._start_point = start_point or StartPoint()
        self._pull_batch = pull_batch
        self._commit_lost = commit_lost
        self._strategy = strategy
        self._rebalancer: Rebalancer | None = None
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._buffers: dict[MessageQueue, QueueBuffer] = {}
        self._readers: dict[MessageQueue, asyncio.Task[None]] = {}
        # One commit at a time: brokers have several threads, and could keep the older offset.
        self._committing = asyncio.Lock()
        self._arrived = asyncio.Event()
        self.on_assignment: list[AssignmentListener] = []
        """Called when the group gave queues to this member or took some away (`subscribe` only)."""

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

    async def start(self) -> None:
        """Begin; brokers are connected when they are first asked for something."""
        await self._instance.start()

    async def close(self) -> None:
        """Stop reading, leave the group and close the connections; nothing is committed."""
        await self._instance.close()

    # Choosing queues

    async def message_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be read.

        Raises:
            RouteNotFoundError, RemotingError: the topic is unknown, or there is nobody to ask.
        """
        return list(await self._instance.routes.read_queues(topic))

    def assign(
        self, queues: Iterable[MessageQueue], expression: Expression = SUBSCRIBE_ALL
    ) -> None:
        """Read exactly these queues from now on, whoever else reads them.

        Args:
            queues: what to read; queues read so far keep their position, others are let go.
            expression: tags to take, such as `TagA || TagB`, or a condition such as `Sql("a > 5")`;
                if a broker refuses it, the log says so and no message comes from there.

        Raises:
            IllegalMessageError: the expression is empty.
            MailboatError: the consumer shares queues with its group (`subscribe`).
        """
        if self._rebalancer is not None:
            raise MailboatError("this consumer subscribes, so its group assigns the queues")
        wanted = set(queues)
        subscriptions = {queue.topic: subscribe_to(queue.topic, expression) for queue in wanted}
        changed = {
            topic for topic, data in subscriptions.items() if self._subscriptions.get(topic) != data
        }
        self._subscriptions = subscriptions
        for queue in [q for q in self._buffers if q not in wanted or q.topic in changed]:
            self._stop(queue)
        for queue in sorted(wanted - self._buffers.keys()):
            self._read(queue, None)

    async def subscribe(self, topic: str, expression: Expression = SUBSCRIBE_ALL) -> None:
        """Share the queues of a topic with the other members of the group.

        Args:
            topic: the topic, which must exist.
            expression: as for `assign`.

        Raises:
            IllegalMessageError: the expression is empty.
            BrokerError: a broker does not understand an SQL condition, or does not filter by them.
            RouteNotFoundError, RemotingError: the topic is unknown, or there is nobody to ask.
            MailboatError: queues were assigned before.
        """
        if self._rebalancer is None and self._buffers:
            raise MailboatError("queues are assigned to this consumer, so it cannot subscribe")
        now_ms = time.time_ns() // 1_000_000
        subscription = subscribe_to(topic, expression, now_ms)
        await self.message_queues(topic)
        await check_subscriptions(self._instance, self.group, [subscription])
        self._subscriptions[topic] = subscription
        if self._rebalancer is None:
            rebalancer = Rebalancer(
                self._instance, self.group, strategy=self._strategy, assign=self._take_queues
            )
            self._instance.join_as_consumer(
                self.group, ConsumerMembership(self._describe, rebalancer.wake)
            )
            await self._instance.send_heartbeats()
            rebalancer.add_topic(topic)
            rebalancer.start()
            # Last: a call that was cancelled before may be made again.
            self._rebalancer = rebalancer
        else:
            self._rebalancer.add_topic(topic)
            await self._instance.send_heartbeats()
            self._rebalancer.wake()

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer reads now."""
        return sorted(self._buffers)

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Go on reading an assigned queue at another offset; what was read ahead is dropped.

        Raises:
            MailboatError: the queue is not assigned.
        """
        if queue not in self._buffers:
            raise MailboatError(f"{queue} is not assigned to this consumer")
        self._stop(queue)
        self._read(queue, queue_offset)

    # Reading

    async def poll(
        self, max_messages: int = PULL_BATCH, timeout_s: float = 1.0
    ) -> list[MessageExt]:
        """Return messages that have come; wait for the first one, return none after the time."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        # Lets the readers run even if the caller never waits for anything else. It must come before
        # messages are taken: a caller that is cancelled here has not lost any.
        await asyncio.sleep(0)
        while True:
            messages = self._take(max_messages)
            if messages:
                return messages
            self._arrived.clear()
            try:
                async with asyncio.timeout_at(deadline_s):
                    await self._arrived.wait()
            except TimeoutError:
                return []

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset that `poll` goes on with in an assigned queue, if it is known."""
        buffer = self._buffers.get(queue)
        return None if buffer is None else buffer.position

    async def commit(self) -> None:
        """Store the position of every queue for the group and wait until the brokers have them.

        Raises:
            BrokerError, RemotingError, RouteNotFoundError: a position could not be stored; some may
                be.
        """
        for error in (await self._commit(self._buffers)).values():
            raise error

    # Asking about queues, assigned or not

    async def pull(
        self,
        queue: MessageQueue,
        queue_offset: int,
        max_messages: int = PULL_BATCH,
        *,
        expression: Expression = SUBSCRIBE_ALL,
        suspend_s: float = 0.0,
    ) -> PullResult:
        """Send one pull request; nothing is assigned, read ahead or committed.

        Args:
            queue: the queue, of any topic.
            queue_offset: the first offset wanted.
            max_messages: at most so many; brokers send fewer.
            expression: as for `assign`.
            suspend_s: how long the broker may wait for a message before it answers.

        Raises:
            BrokerError, RemotingError, RouteNotFoundError: refused, not answered, broker unknown.
        """
        subscription = subscribe_to(queue.topic, expression)
        request = PullRequest(
            self.group, queue, queue_offset, subscription, max_messages, suspend_s
        )
        return await self._puller.pull(request)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's stored offset of a queue, or None; raises as `commit`."""
        return await self._offsets.committed(self.group, queue)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the first offset that a queue still holds; raises as `commit`."""
        return await self._offsets.minimum(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue gets; raises as `commit`."""
        return await self._offsets.maximum(queue)

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time; raises as `commit`."""
        return await self._offsets.at_time(queue, timestamp_ms)

    # Behind the scenes

    def _take(self, max_messages: int) -> list[MessageExt]:
        """Take messages out of the buffers; the buffer that gave some goes behind the others."""
        messages: list[MessageExt] = []
        for queue in list(self._buffers):
            buffer = self._buffers[queue]
            if not buffer.is_empty:
                messages += buffer.give(max_messages - len(messages))
                self._buffers[queue] = self._buffers.pop(queue)
                if len(messages) >= max_messages:
                    break
        return messages

    def _describe(self) -> ConsumerData:
        return ConsumerData(
            self.group,
            consume_type=CONSUME_ACTIVELY,
            consume_from_where=self._start_point.where.value,
            subscription_data_set=list(self._subscriptions.values()),
        )

    async def _take_queues(self, topic: str, own: set[MessageQueue]) -> None:
        held = {queue for queue in self._buffers if queue.topic == topic}
        lost = {queue: self._buffers[queue] for queue in held - own}
        for queue in lost:
            self._stop(queue)
        for queue in sorted(own - held):
            self._read(queue, None)
        if held != own:
            tell_assignment(self.on_assignment, topic, own)
        if self._commit_lost:
            for queue, error in (await self._commit(lost)).items():
                logger.warning("offset of queue=%s not stored as it went away: %s", queue, error)

    async def _commit(
        self, buffers: Mapping[MessageQueue, QueueBuffer]
    ) -> dict[MessageQueue, MailboatError]:
        """Store the positions that are not stored yet; return which could not be, and why."""
        async with self._committing:
            positions = {
                queue: buffer.position
                for queue, buffer in buffers.items()
                if buffer.position is not None and buffer.position != buffer.committed
            }
            changed = {queue: buffers[queue] for queue in positions}
            # Before the answers: where the broker moves the group meanwhile, it is forgotten again.
            for queue, buffer in changed.items():
                buffer.committed = positions[queue]
            not_stored: Iterable[MessageQueue] = positions
            try:
                not_stored = failures = await self._offsets.commit_all(self.group, positions)
            finally:
                for queue in not_stored:
                    changed[queue].committed = None
        return failures

    def _read(self, queue: MessageQueue, queue_offset: int | None) -> None:
        buffer = QueueBuffer(queue_offset, self._arrived)
        self._buffers[queue] = buffer
        reader = QueueReader(
            self._puller,
            self.group,
            queue,
            self._subscriptions[queue.topic],
            self._pull_batch,
            buffer,
            self._instance.refusals,
        )
        self._readers[queue] = self._instance.tasks.spawn(
            partial(self._run_reader, reader, buffer), f"read {queue}"
        )

    async def _run_reader(self, reader: QueueReader, buffer: QueueBuffer) -> None:
        while buffer.position is None:
            try:
                buffer.begin(await self._first_position(reader.queue))
            except MailboatError as error:
                subject = f"position topic={reader.queue.topic} group={self.group}"
                if not self._instance.refusals.tell(subject, error):
                    logger.warning(
                        "position queue=%s unknown, tried again: %s", reader.queue, error
                    )
                await asyncio.sleep(pause_s(error, ERROR_PAUSE_S))
        # Not `position`: where this is begun anew, what was read before waits in the buffer.
        assert buffer.read_to is not None
        await reader.read_from(buffer.read_to)

    async def _first_position(self, queue: MessageQueue) -> int:
        position = await self._offsets.position(self.group, queue)
        since_ms = self._instance.first_looks.since_ms(queue)
        return await self._offsets.first_of(queue, self._start_point, position, since_ms)

    def _stop(self, queue: MessageQueue) -> None:
        self._instance.tasks.cancel(self._readers.pop(queue))
        del self._buffers[queue]
