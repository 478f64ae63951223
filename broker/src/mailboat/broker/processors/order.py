"""Locks of queues for consumers in order: 41 LOCK_BATCH_MQ, 42 UNLOCK_BATCH_MQ.

A queue that this broker does not have is not locked, which a client takes for a queue that another
member holds.

Source: apache/rocketmq broker/processor/AdminBrokerProcessor.java (lockBatchMQ, unlockBatchMQ)
@ rocketmq-all-5.3.3.
"""

import asyncio
import logging
from collections.abc import Awaitable, Generator, Iterable, Iterator
from itertools import islice
from typing import Final

from mailboat.broker.context import BrokerContext
from mailboat.broker.processors.checks import (
    refuse_on_slave,
    require_own_name,
    require_queue,
)
from mailboat.broker.quotas.service import UserQuotas
from mailboat.errors import BrokerError
from mailboat.model.message_queue import MessageQueue, in_order
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.lock_batch import LockBatch, decode_lock_batch, locked_slices
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher, Lane
from mailboat.remoting.turns import first_turn, in_turns, joined_in_turns

_QUEUES_A_SLICE: Final = 50  # Each one may be a line of the log.

_log = logging.getLogger(__name__)


def register(dispatcher: Dispatcher, controller: BrokerContext) -> None:
    """Answer this module's requests."""
    processor = OrderProcessor(controller)
    dispatcher.register(RequestCode.LOCK_BATCH_MQ, processor.lock, Lane.MEMBER)
    dispatcher.register(RequestCode.UNLOCK_BATCH_MQ, processor.unlock, Lane.MEMBER)


class OrderProcessor:
    """Locks queues for the members of a group."""

    def __init__(self, broker: BrokerContext) -> None:
        """Work on the locks of `broker`."""
        self._broker = broker
        self._quotas = broker.quotas
        self._saves: set[asyncio.Task[str | None]] = set()

    async def lock(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Lock queues for a member; return those that it holds now.

        A new holder is durable, here and on the replicas in the in-sync set, before it hears of it,
        so that neither a restart nor another master forgets it. Where the disk is full the answer
        says that it is not: consumers are what drains the disk.
        """
        batch = self._read(command)
        refuse_on_slave(self._broker)
        group, asker = batch.consumer_group, command.asked_by
        if self._quotas is not None:
            self._quotas.refuse_group(asker, group)
        groups, maker = self._broker.groups, connection.peer_address
        if groups.find(group, maker) is None:
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{group}] does not exist, and is not made: "
                f"{groups.why_not_made(group, maker)}",
            )
        locked = await in_turns(self._lock(batch, asker, maker))
        problem = await self._save()
        locks = self._broker.queue_locks
        if not locks.are_known(group, locked):
            await self._broker.known_to_replicas()
            locks.note_known(group, batch.client_id, locked)
        body = await joined_in_turns(locked_slices(locked))
        return command.response(ResponseCode.SUCCESS, problem, body=body)

    def _lock(
        self, batch: LockBatch, asker: str, host: str
    ) -> Generator[None, None, list[MessageQueue]]:
        """Return the queues that the member holds now, in order."""
        locked: list[MessageQueue] = []
        group = batch.consumer_group
        for queues in _slices_of(batch.queues):
            known = [queue for queue in queues if self._is_known(group, queue)]
            if self._quotas is not None:
                known = self._within_quota(self._quotas, asker, batch, known)
            held = self._broker.queue_locks.lock(group, batch.client_id, known, asker, host)
            locked += [queue for queue in known if queue in held]
            yield
        return locked

    def _within_quota(
        self, quotas: UserQuotas, asker: str, batch: LockBatch, queues: list[MessageQueue]
    ) -> list[MessageQueue]:
        """Leave out the queues that would be too many: to the member others hold them."""
        locks, member = self._broker.queue_locks, (batch.consumer_group, batch.client_id)
        new = [one for one in queues if locks.would_count(*member, one, asker)]
        may = set(quotas.lockable(asker, new, locks.held_by(asker)))
        return [one for one in queues if one in may or one not in new]

    def _unlock(self, batch: LockBatch) -> Generator[None, None, bool]:
        for queues in _slices_of(batch.queues):
            self._broker.queue_locks.unlock(batch.consumer_group, batch.client_id, queues)
            yield
        return True

    def unlock(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Give a member's queues back; what it does not hold is no error.

        The answer does not wait for the disk. A consumer that leaves waits 1 s for it, then closes
        the connection, and its last offsets come after others have taken its queues over.
        """
        refuse_on_slave(self._broker)
        work = self._unlock(self._read(command))
        if first_turn(work) is None:
            return self._unlock_rest(command, work)
        return self._unlocked(command)

    async def _unlock_rest(
        self, command: RemotingCommand, work: Generator[None, None, bool]
    ) -> RemotingCommand:
        await in_turns(work)
        return self._unlocked(command)

    def _unlocked(self, command: RemotingCommand) -> RemotingCommand:
        # A restart would give them to the member again, and nobody else for 30 s.
        save = asyncio.get_running_loop().create_task(self._save())
        self._saves.add(save)
        save.add_done_callback(self._saves.discard)
        return command.response(ResponseCode.SUCCESS)

    async def _save(self) -> str | None:
        """Make the locks durable; return why they are not, for people."""
        try:
            await self._broker.queue_locks.persist()
        except OSError as error:
            # A full disk must not keep consumers out: they are what drains it.
            _log.warning("locks of queues are not saved yet: %s", error)
            reason = error.strerror or error
            return f"not durable yet, a restart would forget these locks: {reason}"
        return None

    def _read(self, command: RemotingCommand) -> LockBatch:
        """Return what a member wants.

        Raises:
            BrokerError: INVALID_PARAMETER, it does not say who it is; SERVICE_NOT_AVAILABLE, it is
                about the queues of a broker of another name.
            RemoteProtocolError: the body is none.
        """
        batch = decode_lock_batch(command.body)
        if not batch.consumer_group or not batch.client_id:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER,
                "the request to lock queues needs a consumerGroup and a clientId",
            )
        for broker_name in {queue.broker_name for queue in batch.queues}:
            require_own_name(self._broker, broker_name)
        return batch

    def _is_known(self, group: str, queue: MessageQueue) -> bool:
        try:
            require_queue(self._broker, queue.topic, queue.queue_id)
        except BrokerError as error:
            _log.debug("queue not locked group=%s queue=%s: %s", group, queue, error.remark)
            return False
        return self._broker.topics.select(queue.topic) is not None


def _slices_of(queues: Iterable[MessageQueue]) -> Iterator[list[MessageQueue]]:
    """Cut queues, in order, into lists whose locks take a moment."""
    ordered = iter(in_order(queues))
    while some := list(islice(ordered, _QUEUES_A_SLICE)):
        yield some
