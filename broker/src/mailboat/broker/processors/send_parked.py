"""Sends that wait until their topic is made."""

import sys
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

from mailboat.broker.dispatcher import Send
from mailboat.broker.topic_creation import TopicCreation
from mailboat.errors import BrokerError
from mailboat.model.batch import count_messages
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import RequestCode, ResponseCode

PARKED_MAX: Final = 10_000
"""Sends that wait for topics; sendThreadPoolQueueCapacity, beyond which RocketMQ refuses too."""

PARKED_MAX_BYTES: Final = 64 * 1024 * 1024
"""Bodies and properties of these sends, as they lie in memory."""

_TOGETHER_MAX: Final = 256
_TOGETHER_MAX_BYTES: Final = 4 * 1024 * 1024
# Of client batches, each of which may have many more.
_TOGETHER_MAX_MESSAGES: Final = 500


class ParkedSends:
    """What waits for topics, within one budget for all of them."""

    def __init__(
        self,
        store: Callable[[list[Send], TopicConfig], None],
        refuse: Callable[[list[Send], BrokerError], None],
    ) -> None:
        """Keep the sends of one broker.

        Args:
            store: stores and answers sends whose topic is durable now.
            refuse: answers sends whose topic is not made.
        """
        self._store = store
        self._refuse = refuse
        self._queues: dict[TopicCreation, _Queue] = {}
        self._count = 0
        self._bytes = 0

    def park(self, creation: TopicCreation, send: Send) -> None:
        """Keep a send until its topic is made.

        Raises:
            BrokerError: too many wait.
        """
        size = _size(send)
        if self._count >= PARKED_MAX or self._bytes + size > PARKED_MAX_BYTES:
            raise BrokerError(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]{self._count} messages wait until their topics are made, try again "
                "later",
            )
        queue = self._queues.get(creation)
        if queue is None:
            queue = self._queues[creation] = creation.guest = _Queue(self, creation)
        queue.sends.append(send)
        self._count += 1
        self._bytes += size

    def store_some(self, creation: TopicCreation) -> bool:
        """Store the oldest sends that wait for a topic; tell whether that were all.

        Those that cannot be stored go on waiting.
        """
        waiting = self._queues[creation].sends
        sends: list[Send] = []
        size = messages = 0
        for send in islice(waiting, _TOGETHER_MAX):
            if size >= _TOGETHER_MAX_BYTES or messages >= _TOGETHER_MAX_MESSAGES:
                break
            sends.append(send)
            size += _size(send)
            messages += _messages(send)
        if sends:
            self._store(sends, creation.config)
        for _ in sends:
            waiting.popleft()
        self._let_go(sends)
        if not waiting:
            del self._queues[creation]
        return not waiting

    def refuse_all(self, creation: TopicCreation, error: BrokerError) -> None:
        """Refuse what waits for a topic."""
        sends = list(self._queues.pop(creation).sends)
        self._let_go(sends)
        self._refuse(sends, error)

    def _let_go(self, sends: list[Send]) -> None:
        self._count -= len(sends)
        self._bytes -= sum(map(_size, sends))


def _size(send: Send) -> int:
    """Return what a send keeps: of the header these two may be long."""
    _, request, body = send
    fields = request.fields
    return len(body) + sys.getsizeof(fields.properties) + sys.getsizeof(fields.producer_group)


def _messages(send: Send) -> int:
    _, request, body = send
    is_batch = request.code == RequestCode.SEND_BATCH_MESSAGE or request.fields.batch
    return count_messages(body) if is_batch else 1


class _Queue:
    """The sends that wait for one topic: a `mailboat.broker.topic_creation.Guest`."""

    __slots__ = ("_creation", "_parked", "sends")

    def __init__(self, parked: ParkedSends, creation: TopicCreation) -> None:
        self._parked = parked
        self._creation = creation
        self.sends: deque[Send] = deque()

    def proceed(self) -> bool:
        return self._parked.store_some(self._creation)

    def refused(self, error: BrokerError) -> None:
        self._parked.refuse_all(self._creation, error)
