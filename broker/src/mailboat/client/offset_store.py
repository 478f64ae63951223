"""Where a push consumer keeps how far its group has come.

Source: apache/rocketmq client/consumer/store/{RemoteBrokerOffsetStore,LocalFileOffsetStore}.java.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

from mailboat.client.broker_calls import GroupPosition
from mailboat.client.local_offsets import LocalOffsets
from mailboat.client.queue_offsets import QueueOffsets
from mailboat.client.refusals import Refusals
from mailboat.errors import MailboatError
from mailboat.model.message_queue import MessageQueue

logger = logging.getLogger(__name__)


class OffsetStore(Protocol):
    """Offsets by queue, at the brokers or in a local file."""

    async def load(self) -> None:
        """Read what is read once, at the start."""

    async def stored(self, queue: MessageQueue) -> GroupPosition:
        """Return the offset of a queue, if there is one."""

    async def move(self, queue: MessageQueue, queue_offset: int) -> None:
        """Store an offset that an administrator chose, or raise."""

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store these offsets and wait until they are kept; what cannot be stored is logged."""


class GroupOffsetStore:
    """Offsets of a group that shares its queues, at the master of each queue."""

    __slots__ = ("_group", "_offsets", "_refusals", "_saving")

    def __init__(self, offsets: QueueOffsets, group: str, refusals: Refusals) -> None:
        """Keep the offsets of `group`."""
        self._offsets = offsets
        self._group = group
        self._refusals = refusals
        self._saving = asyncio.Lock()

    async def load(self) -> None:
        """Do nothing: brokers are asked for each queue."""

    async def stored(self, queue: MessageQueue) -> GroupPosition:
        """Ask for the group's offset of a queue.

        Raises:
            BrokerError, RemotingError, RouteNotFoundError: refused, not answered, broker unknown.
        """
        return await self._offsets.position(self._group, queue)

    async def move(self, queue: MessageQueue, queue_offset: int) -> None:
        """Store an offset; raises as `stored`.

        One that is being saved must not come after it.
        """
        async with self._saving:
            await self._offsets.commit(self._group, queue, queue_offset)

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store offsets; what cannot be stored is logged and left to the next time.

        One call at a time, each answered before the next one begins: brokers work on requests in
        several threads and could otherwise keep the older of two offsets.
        """
        async with self._saving:
            failures = await self._offsets.commit_all(self._group, offsets)
        for queue, error in failures.items():
            subject = f"store offsets topic={queue.topic} group={self._group}"
            if not self._refusals.tell(subject, error):
                logger.warning("offset of queue=%s not stored: %s", queue, error)


class LocalOffsetStore:
    """Offsets of a broadcasting consumer, in a file."""

    __slots__ = ("_offsets", "_saving")

    def __init__(self, offsets: LocalOffsets) -> None:
        """Keep them in `offsets`."""
        self._offsets = offsets
        self._saving = asyncio.Lock()

    async def load(self) -> None:
        """Read the file.

        Raises:
            MailboatError: it cannot be read, or its content is not a table of offsets.
        """
        await self._offsets.load()

    async def stored(self, queue: MessageQueue) -> GroupPosition:
        """Return the offset that the file holds for a queue."""
        return GroupPosition(self._offsets.get(queue))

    async def move(self, queue: MessageQueue, queue_offset: int) -> None:
        """Store an offset.

        Raises:
            MailboatError: the file cannot be written; the old one is still there.
        """
        async with self._saving:
            await self._offsets.save({queue: queue_offset})

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store offsets, one call at a time; a failure is logged and left to the next time."""
        try:
            async with self._saving:
                await self._offsets.save(offsets)
        except MailboatError as error:
            logger.warning("offsets not stored, tried again later: %s", error)
