"""Offsets of queues, asked from and stored at the brokers, and where a new group begins.

Source: apache/rocketmq client/consumer/store/RemoteBrokerOffsetStore.java and
client/impl/consumer/RebalancePushImpl.java (computePullFromWhere).
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from mailboat.client import broker_calls
from mailboat.client.broker_calls import GroupPosition
from mailboat.client.routes import RouteCache
from mailboat.errors import MailboatError, RequestTimeoutError
from mailboat.model.message_queue import MessageQueue
from mailboat.model.names import RETRY_PREFIX
from mailboat.remoting.client import RemotingClient

# Clocks of members and brokers differ.
_CLOCKS_DIFFER_MS: Final = 60_000


class ConsumeFromWhere(Enum):
    """Where a group begins that has no stored offset; the values are the wire's names."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class StartPoint:
    """`ConsumeFromWhere` with the time that TIMESTAMP needs, in epoch milliseconds."""

    where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    timestamp_ms: int = 0


class FirstLooks:
    """Which queues of each topic a member found when it first looked.

    What is sent to a queue that comes later, because the topic grows or is made, is sent while the
    group is there: its end is no place for the group to begin at.
    """

    __slots__ = ("_found", "_looked_ms")

    def __init__(self) -> None:
        """Begin before the first look."""
        self._found: dict[str, frozenset[MessageQueue]] = {}
        self._looked_ms: dict[str, int] = {}

    def note(self, topic: str, queues: Iterable[MessageQueue]) -> None:
        """Note what a look at a topic found; only the first one counts."""
        if topic not in self._found:
            self._found[topic] = frozenset(queues)
            self._looked_ms[topic] = time.time_ns() // 1_000_000

    def since_ms(self, queue: MessageQueue) -> int | None:
        """Return from when on the messages of a queue are the group's, if it came later."""
        if queue in self._found.get(queue.topic, (queue,)):
            return None
        return self._looked_ms[queue.topic] - _CLOCKS_DIFFER_MS


class QueueOffsets:
    """Reads and stores offsets at the master of each queue, at a slave while there is none.

    Every method raises BrokerError (refused), RemotingError (no answer) or RouteNotFoundError.
    """

    __slots__ = ("_remoting", "_routes")

    def __init__(self, remoting: RemotingClient, routes: RouteCache) -> None:
        """Ask the brokers in `routes` over `remoting`."""
        self._remoting = remoting
        self._routes = routes

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Return a group's stored offset, or None."""
        return (await self.position(group, queue)).stored

    async def position(self, group: str, queue: MessageQueue) -> GroupPosition:
        """Return where a group is in a queue."""
        address = await self._routes.offsets_address(queue)
        return await broker_calls.query_consumer_offset(self._remoting, address, group, queue)

    async def commit(self, group: str, queue: MessageQueue, queue_offset: int) -> None:
        """Store a group's offset and wait until the broker has it."""
        address = await self._routes.offsets_address(queue)
        await broker_calls.update_consumer_offset(
            self._remoting, address, group, queue, queue_offset
        )

    async def commit_all(
        self,
        group: str,
        offsets: Mapping[MessageQueue, int],
        *,
        timeout_s: float | None = None,
    ) -> dict[MessageQueue, MailboatError]:
        """Store a group's offsets of several queues; return which could not be stored, and why.

        One queue of each topic and broker goes before the others. With the first offset a Java
        broker makes the group's table of the topic; of two tables that two of its threads make at
        the same time it keeps one (ConsumerOffsetManager.java, commitOffset).

        Args:
            group: the group whose offsets these are.
            offsets: the next offset to read, by queue.
            timeout_s: how long one queue may take, with the search for its broker; None leaves it
                to the requests.
        """

        async def store(queue: MessageQueue) -> MailboatError | None:
            try:
                async with asyncio.timeout(timeout_s):
                    await self.commit(group, queue, offsets[queue])
            except TimeoutError:
                return RequestTimeoutError(f"{queue}: offset not stored in time")
            except MailboatError as error:
                return error
            return None

        first = {(queue.topic, queue.broker_name): queue for queue in offsets}.values()
        failures: dict[MessageQueue, MailboatError] = {}
        for queues in (list(first), list(offsets.keys() - first)):
            errors = await asyncio.gather(*map(store, queues))
            failures |= {queue: error for queue, error in zip(queues, errors, strict=True) if error}
        return failures

    async def minimum(self, queue: MessageQueue) -> int:
        """Return the first offset that the queue still holds."""
        address = await self._routes.offsets_address(queue)
        return await broker_calls.min_offset(self._remoting, address, queue)

    async def maximum(self, queue: MessageQueue) -> int:
        """Return the offset that the queue's next message gets."""
        address = await self._routes.offsets_address(queue)
        return await broker_calls.max_offset(self._remoting, address, queue)

    async def at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time."""
        address = await self._routes.offsets_address(queue)
        return await broker_calls.search_offset(self._remoting, address, queue, timestamp_ms)

    async def first_of(
        self,
        queue: MessageQueue,
        start: StartPoint,
        position: GroupPosition,
        since_ms: int | None = None,
    ) -> int:
        """Return where to begin to read: at the stored offset, else where a new group begins.

        One that begins at the end begins at the end that was told with the answer: what is stored
        between two questions is not skipped. With `since_ms` (see `FirstLooks`) it begins with what
        was stored then.
        """
        if position.stored is not None:
            return position.stored
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        if start.where is ConsumeFromWhere.LAST_OFFSET and not is_retry:
            if since_ms is not None:
                return await self.at_time(queue, since_ms)
            if position.end is not None:
                return position.end
        return await self.start_of(queue, start)

    async def start_of(self, queue: MessageQueue, start: StartPoint) -> int:
        """Return where a group without a stored offset begins.

        Retry topics hold the group's own failed messages: they are read from the beginning, except
        by a group that begins at a time, which has not failed at anything yet.
        """
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        if start.where is ConsumeFromWhere.FIRST_OFFSET:
            return await self.minimum(queue)
        if start.where is ConsumeFromWhere.LAST_OFFSET:
            return await (self.minimum(queue) if is_retry else self.maximum(queue))
        if is_retry:
            return await self.maximum(queue)
        return await self.at_time(queue, start.timestamp_ms)
