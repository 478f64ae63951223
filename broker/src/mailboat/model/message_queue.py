"""The identity of a queue.

Source: apache/rocketmq common/message/MessageQueue.java.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic on one broker; orders by topic, broker name, queue id as Java does."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        """Return `topic@broker:queue`."""
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"
