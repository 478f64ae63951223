"""The queues that a push consumer reads now, from the assignment to the last stored offset.

Source: apache/rocketmq client/impl/consumer/RebalanceImpl.java (updateProcessQueueTableInRebalance)
and RebalancePushImpl.java.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from mailboat.client.consume_service import ConsumingSink, MessageService
from mailboat.client.instance import ClientInstance
from mailboat.client.offset_store import OffsetStore
from mailboat.client.orderly_service import OrderlyService
from mailboat.client.process_queue import FlowLimits, ProcessQueue
from mailboat.client.pulling import Puller
from mailboat.client.queue_locks import QueueLocks
from mailboat.client.queue_offsets import QueueOffsets, StartPoint
from mailboat.client.queue_reader import ERROR_PAUSE_S, QueueReader
from mailboat.client.rebalance import AssignmentListener, tell_assignment
from mailboat.client.refusals import pause_s
from mailboat.errors import MailboatError
from mailboat.model.message_queue import MessageQueue
from mailboat.model.subscription import SubscriptionData

logger = logging.getLogger(__name__)

PULL_BATCH: Final = 32
# A queue that another member still holds is asked for again this soon.
LOCK_RETRY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """What is read, and where it begins."""

    group: str
    subscriptions: Mapping[str, SubscriptionData]
    """By topic; topics may be added while queues are read."""
    start_point: StartPoint
    flow_limits: FlowLimits


class HeldQueues:
    """Reads assigned queues into a service that consumes them, in any order."""

    def __init__(
        self,
        instance: ClientInstance,
        settings: ReadSettings,
        offset_store: OffsetStore,
        service: MessageService,
    ) -> None:
        """Begin without queues."""
        self._instance = instance
        self._settings = settings
        self._offset_store = offset_store
        self._offsets = QueueOffsets(instance.remoting, instance.routes)
        self._puller = Puller(instance.remoting, instance.routes)
        self._service = service
        self._readers: dict[MessageQueue, asyncio.Task[None]] = {}
        self.process_queues: dict[MessageQueue, ProcessQueue] = {}
        """What is unfinished of each queue whose reading has begun."""
        self.on_assignment: list[AssignmentListener] = []
        """Called when queues came or went away."""
        # A queue that `move` has in hand is nobody's for a moment; `take` must not read it then.
        self._changing = asyncio.Lock()
        self._is_closing = False

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are read, or about to be."""
        return sorted(self._readers)

    async def take(self, topic: str, own: set[MessageQueue]) -> None:
        """Read exactly these queues of a topic from now on; returns when lost ones are stored."""
        async with self._changing:
            held = {queue for queue in self._readers if queue.topic == topic}
            left = {queue: self._stop(queue) for queue in held - own}
            for queue in sorted(own - held):
                self._read(queue, None)
            if held != own:
                tell_assignment(self.on_assignment, topic, own)
            await self._leave(left)

    async def move(self, queue: MessageQueue, queue_offset: int) -> None:
        """Go on reading a queue at another offset; what was read ahead is dropped.

        Raises:
            BrokerError, RemotingError, RouteNotFoundError: the offset could not be stored.
        """
        async with self._changing:
            if queue not in self._readers:
                return
            self._stop(queue)
            begin_offset = None
            try:
                await self._offset_store.move(queue, queue_offset)
                begin_offset = queue_offset
            finally:
                # Where the move failed, at the offset that is stored.
                self._read(queue, begin_offset)

    async def save_offsets(self) -> None:
        """Store how far each queue is finished; failures are logged and left to the next time."""
        await self._store(self.process_queues.values())

    def stop_reading(self) -> None:
        """Pull no more; what is held stays."""
        self._is_closing = True
        for reader in self._readers.values():
            self._instance.tasks.cancel(reader)

    async def close(self) -> None:
        """Store the offsets, after the last handler has ended."""
        await self.save_offsets()

    async def _prepare(self, queue: MessageQueue) -> None:
        """Return when `queue` may be read."""

    async def _leave(self, left: Mapping[MessageQueue, ProcessQueue | None]) -> None:
        """Store how far queues were finished that went to other members, if they were begun."""
        begun = [held for held in left.values() if held is not None]
        if begun:
            await self._store(begun)

    async def _store(self, process_queues: Iterable[ProcessQueue]) -> None:
        offsets = {held.queue: held.commit_offset for held in process_queues}
        await self._offset_store.save(offsets)

    def _read(self, queue: MessageQueue, queue_offset: int | None) -> None:
        assert queue not in self._readers
        if not self._is_closing:
            self._readers[queue] = self._instance.tasks.spawn(
                partial(self._run_reader, queue, queue_offset), f"read {queue}"
            )

    def _stop(self, queue: MessageQueue) -> ProcessQueue | None:
        self._instance.tasks.cancel(self._readers.pop(queue))
        held = self.process_queues.pop(queue, None)
        if held is not None:
            held.drop()
        return held

    async def _run_reader(self, queue: MessageQueue, queue_offset: int | None) -> None:
        await self._prepare(queue)
        failed = self.process_queues.get(queue)
        if failed is not None:
            # This reader is begun anew, and may have failed between two steps: what is unfinished
            # comes again.
            failed.drop()
            queue_offset = failed.commit_offset
        while queue_offset is None:
            try:
                queue_offset = await self._first_offset(queue)
            except MailboatError as error:
                if not self._is_refused("position", queue, error):
                    logger.warning("position queue=%s unknown, tried again: %s", queue, error)
                await asyncio.sleep(pause_s(error, ERROR_PAUSE_S))
        settings = self._settings
        process_queue = ProcessQueue(queue, queue_offset, settings.flow_limits)
        self.process_queues[queue] = process_queue
        reader = QueueReader(
            self._puller,
            settings.group,
            queue,
            settings.subscriptions[queue.topic],
            PULL_BATCH,
            ConsumingSink(process_queue, self._service),
            self._instance.refusals,
        )
        await reader.read_from(queue_offset)

    def _is_refused(self, what: str, queue: MessageQueue, error: MailboatError) -> bool:
        """Tell of a refusal; return False for an error that is none."""
        subject = f"{what} topic={queue.topic} group={self._settings.group}"
        return self._instance.refusals.tell(subject, error)

    async def _first_offset(self, queue: MessageQueue) -> int:
        stored = await self._offset_store.stored(queue)
        since_ms = self._instance.first_looks.since_ms(queue)
        return await self._offsets.first_of(queue, self._settings.start_point, stored, since_ms)


class LockedQueues(HeldQueues):
    """Reads a queue only while its lock is held, and gives the lock back after the last handler.

    The lock comes before the question for the offset: the member before us stores its own as the
    last thing it does with a queue.
    """

    def __init__(
        self,
        instance: ClientInstance,
        settings: ReadSettings,
        offset_store: OffsetStore,
        service: OrderlyService,
        locks: QueueLocks,
    ) -> None:
        """Begin without queues and locks."""
        super().__init__(instance, settings, offset_store, service)
        self._orderly = service
        self._locks = locks
        self._leaving: dict[MessageQueue, asyncio.Task[None]] = {}
        locks.on_lost.append(self._lock_lost)

    async def close(self) -> None:
        """Store the offsets and give the locks back, after the last handler has ended."""
        if self._leaving:
            await asyncio.wait(self._leaving.values())
        try:
            await super().close()
        finally:
            await self._locks.release_all()

    async def _prepare(self, queue: MessageQueue) -> None:
        """Return when the lock of `queue` is held."""
        leaving = self._leaving.get(queue)
        if leaving is not None:
            # The queue came back before our last handler was done with it.
            await asyncio.wait([leaving])
        while True:
            try:
                if await self._locks.acquire(queue):
                    return
                retry_s = LOCK_RETRY_S
            except MailboatError as error:
                if not self._is_refused("lock", queue, error):
                    logger.warning("lock of queue=%s not known, asked again: %s", queue, error)
                retry_s = pause_s(error, LOCK_RETRY_S)
            await asyncio.sleep(retry_s)

    async def _leave(self, left: Mapping[MessageQueue, ProcessQueue | None]) -> None:
        """Let the running handlers end, store the offsets, unlock; without being waited for."""
        for queue, held in left.items():
            task = self._instance.tasks.spawn(
                partial(self._leave_one, queue, held), f"leave {queue}"
            )
            self._leaving[queue] = task
            task.add_done_callback(partial(self._left, queue))

    def _left(self, queue: MessageQueue, task: asyncio.Task[None]) -> None:
        if self._leaving.get(queue) is task:
            del self._leaving[queue]

    async def _leave_one(self, queue: MessageQueue, held: ProcessQueue | None) -> None:
        await self._orderly.wait_for_handler(queue)
        if held is not None:
            await self._store([held])
        await self._locks.release([queue])

    async def _store(self, process_queues: Iterable[ProcessQueue]) -> None:
        """Store offsets where the lock is held; elsewhere another member's may be further."""
        await super()._store(held for held in process_queues if self._locks.is_held(held.queue))

    def _lock_lost(self, queue: MessageQueue) -> None:
        """Begin anew with a queue that others may have consumed, at the offset they stored."""
        if queue in self._readers:
            self._stop(queue)
            self._read(queue, None)
