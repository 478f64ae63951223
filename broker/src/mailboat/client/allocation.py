"""Who of a consumer group reads which queue: the five strategies.

Every member computes the allocation by itself, so all members (Java's among them) must come to the
same result: queues are sorted by topic, broker name and queue id, client ids by their text.

Source: apache/rocketmq client/consumer/rebalance/AllocateMessageQueue*.java and
common/consistenthash/ConsistentHashRouter.java.
"""

import bisect
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from mailboat.model.message_queue import MessageQueue

Allocation = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""`(own client id, sorted queues, sorted client ids) -> own queues`."""

VIRTUAL_NODES: Final = 10


def allocate_averagely(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Give each member one block of neighbouring queues; the first members get one more."""
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    share, rest = divmod(len(queues), len(client_ids))
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (1 if index < rest else 0)])


def allocate_by_circle(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Deal the queues out one by one, round after round."""
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


def allocate_by_consistent_hash(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Put every member on a ring ten times; a queue belongs to the next member on the ring.

    Few queues move when a member comes or goes.
    """
    if client_id not in client_ids:
        return []
    ring: dict[int, str] = {}
    for member in client_ids:
        for replica in range(VIRTUAL_NODES):
            ring[_ring_position(f"{member}-{replica}")] = member
    positions = sorted(ring)
    own: list[MessageQueue] = []
    for queue in queues:
        # The text is what Java's MessageQueue.toString() gives, so mixed groups agree.
        text = (
            f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
            f"queueId={queue.queue_id}]"
        )
        index = bisect.bisect_left(positions, _ring_position(text))
        if ring[positions[index % len(positions)]] == client_id:
            own.append(queue)
    return own


def allocate_by_machine_room(rooms: Collection[str]) -> Allocation:
    """Return a strategy that shares out only the queues of brokers named `room@name`."""

    def allocate(
        client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        near = [queue for queue in queues if _room(queue.broker_name) in rooms]
        index = client_ids.index(client_id)
        share, rest = divmod(len(near), len(client_ids))
        own = near[index * share : (index + 1) * share]
        if index < rest:
            own.append(near[share * len(client_ids) + index])
        return own

    return allocate


def allocate_by_config(
    queues_by_topic: Mapping[str, Sequence[MessageQueue]],
) -> Allocation:
    """Return a strategy that takes exactly the queues it is given, whoever else is there."""

    def allocate(
        client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        topics = dict.fromkeys(queue.topic for queue in queues)
        return [queue for topic in topics for queue in queues_by_topic.get(topic, ())]

    return allocate


def _room(broker_name: str) -> str | None:
    parts = broker_name.split("@")
    return parts[0] if len(parts) == 2 else None


def _ring_position(text: str) -> int:
    digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")
