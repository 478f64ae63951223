"""Which queue the next message of a topic goes to.

Source: apache/rocketmq client/impl/producer/TopicPublishInfo.java and
client/latency/MQFaultStrategy.java.
"""

import random
from collections.abc import Sequence

from mailboat.client.latency_fault import LatencyFaults
from mailboat.model.message_queue import MessageQueue


class QueueSelection:
    """Round-robin over a topic's queues, one position for each topic, from a random start."""

    __slots__ = ("_faults", "_positions")

    def __init__(self, faults: LatencyFaults | None = None) -> None:
        """Select plainly, or around slow brokers when `faults` are given."""
        self._faults = faults
        self._positions: dict[str, int] = {}

    def select(
        self, topic: str, queues: Sequence[MessageQueue], last_broker: str | None = None
    ) -> MessageQueue:
        """Return the next of `queues`, which must not be empty.

        Args:
            topic: whose position moves on.
            queues: the queues that take messages.
            last_broker: the broker that just failed; another one is taken if there is any.
        """
        if self._faults is not None:
            chosen = self._select_available(topic, queues, self._faults)
            if chosen is not None:
                return chosen
        for _ in range(len(queues)):
            queue = self._next(topic, queues)
            if queue.broker_name != last_broker:
                return queue
        return self._next(topic, queues)

    def _select_available(
        self, topic: str, queues: Sequence[MessageQueue], faults: LatencyFaults
    ) -> MessageQueue | None:
        for _ in range(len(queues)):
            queue = self._next(topic, queues)
            if faults.is_available(queue.broker_name):
                return queue
        least_bad = faults.least_bad({queue.broker_name for queue in queues})
        own = [queue for queue in queues if queue.broker_name == least_bad]
        return self._next(topic, own) if own else None

    def _next(self, topic: str, queues: Sequence[MessageQueue]) -> MessageQueue:
        position = self._positions.get(topic)
        position = random.randrange(1 << 30) if position is None else position + 1
        self._positions[topic] = position
        return queues[position % len(queues)]
