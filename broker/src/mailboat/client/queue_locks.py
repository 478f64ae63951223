"""Locks of queues, kept at their brokers: only the holder of a queue's lock consumes it in order.

A lock is renewed every 20 s and counts as held for 30 s after the last grant; the broker gives it
to nobody else for 60 s. So a member that cannot reach the broker stops before another may begin.

Source: apache/rocketmq client/impl/consumer/RebalanceImpl.java (lock, lockAll, unlock) and
ProcessQueue.java (isLockExpired).
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from mailboat.client.background import BackgroundTasks, repeat
from mailboat.client.broker_calls import call
from mailboat.client.instance import ClientInstance
from mailboat.client.refusals import pause_s
from mailboat.errors import MailboatError
from mailboat.model.message_queue import MessageQueue
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.lock_batch import LockBatch, decode_locked, encode_lock_batch

logger = logging.getLogger(__name__)

RENEW_INTERVAL_S: Final = 20.0
VALIDITY_S: Final = 30.0
BROKER_VALIDITY_S: Final = 60.0
# A broker that did not answer is asked again this soon, so that one lost answer loses no lock.
RETRY_INTERVAL_S: Final = 1.0


class QueueLocks:
    """The locks that one member of a group holds."""

    __slots__ = ("_clock", "_granted_s", "_group", "_instance", "_renew_soon", "on_lost")

    def __init__(
        self, instance: ClientInstance, group: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Lock queues for `group` in the name of this client; `clock` gives seconds."""
        self._clock = clock
        self._instance = instance
        self._group = group
        self._granted_s: dict[MessageQueue, float] = {}
        self._renew_soon = asyncio.Event()
        self.on_lost: list[Callable[[MessageQueue], None]] = []
        """Called with each queue that another member holds, or may have held in between."""

    def start(self, tasks: BackgroundTasks) -> None:
        """Renew the locks from now on."""
        tasks.spawn(
            partial(repeat, self.renew, every_s=RENEW_INTERVAL_S, wake=self._renew_soon),
            "renew locks",
        )

    def is_held(self, queue: MessageQueue) -> bool:
        """Tell whether no other member can be consuming `queue`."""
        granted_s = self._granted_s.get(queue)
        return granted_s is not None and self._clock() - granted_s < VALIDITY_S

    def granted_ms_ago(self, queue: MessageQueue) -> int | None:
        """Return how long ago the lock of `queue` was last granted; None where it is not held."""
        granted_s = self._granted_s.get(queue)
        return None if granted_s is None else int((self._clock() - granted_s) * 1000)

    async def acquire(self, queue: MessageQueue) -> bool:
        """Ask for a lock once; tell whether it is held now.

        Raises:
            BrokerError, RemotingError, RouteNotFoundError: refused, not answered, broker unknown.
        """
        asked_s = self._clock()
        if queue not in await self._ask(RequestCode.LOCK_BATCH_MQ, {queue}):
            return False
        self._granted_s[queue] = asked_s
        return True

    async def renew(self) -> None:
        """Renew every lock; those that were given to others are lost."""
        by_broker = self._by_broker(self._granted_s)
        await asyncio.gather(*(self._renew(queues) for queues in by_broker.values()))

    async def release(self, queues: Iterable[MessageQueue]) -> None:
        """Give locks back, also those whose grant is still on its way.

        A broker that does not answer keeps them for a minute.
        """
        for left in self._by_broker(queues).values():
            for queue in left:
                self._granted_s.pop(queue, None)
            try:
                await self._ask(RequestCode.UNLOCK_BATCH_MQ, left)
            except MailboatError as error:
                logger.warning("locks not given back, they run out by themselves: %s", error)

    async def release_all(self) -> None:
        """Give every lock back."""
        await self.release(list(self._granted_s))

    async def _renew(self, queues: set[MessageQueue]) -> None:
        asked_s = self._clock()
        try:
            locked = await self._ask(RequestCode.LOCK_BATCH_MQ, queues)
        except MailboatError as error:
            if not self._instance.refusals.tell(f"renew locks group={self._group}", error):
                logger.warning("locks of %d queues not renewed: %s", len(queues), error)
            retry_s = pause_s(error, RETRY_INTERVAL_S)
            asyncio.get_running_loop().call_later(retry_s, self._renew_soon.set)
            return
        for queue in queues & self._granted_s.keys():
            # After this long another member may have held the lock and given it back.
            is_too_late = asked_s - self._granted_s[queue] >= BROKER_VALIDITY_S
            if queue in locked and not is_too_late:
                self._granted_s[queue] = asked_s
            else:
                logger.warning("lock of queue=%s was lost", queue)
                del self._granted_s[queue]
                for listener in self.on_lost:
                    listener(queue)

    async def _ask(self, code: int, queues: set[MessageQueue]) -> set[MessageQueue]:
        """Ask the broker of these queues; return those that are locked now (LOCK_BATCH_MQ)."""
        address = await self._instance.routes.master_address(next(iter(queues)))
        batch = LockBatch(self._group, self._instance.client_id, queues)
        body = encode_lock_batch(batch)
        response = await call(self._instance.remoting, address, code, body=body)
        return decode_locked(response.body) if code == RequestCode.LOCK_BATCH_MQ else set()

    def _by_broker(self, queues: Iterable[MessageQueue]) -> dict[str, set[MessageQueue]]:
        by_broker: dict[str, set[MessageQueue]] = defaultdict(set)
        for queue in queues:
            by_broker[queue.broker_name].add(queue)
        return by_broker
