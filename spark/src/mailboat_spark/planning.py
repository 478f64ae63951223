"""Which offsets a micro-batch covers, and how they are shared out among tasks. Pure.

Admission follows Kafka's source: each queue gets its share of `maxOffsetsPerTrigger` by backlog;
ours gives every queue with a backlog at least one offset, and never more than the limit in sum.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mailboat.model.message_queue import MessageQueue
from mailboat_spark.offsets import QueueOffsets

# A task costs the JVM about as much as reading so many rows; smaller ranges share a task.
ROWS_PER_TASK: Final = 10_000


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """What a queue holds: from `minimum` up to, and without, `maximum`."""

    minimum: int
    maximum: int


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The offsets `start` up to, and without, `end` of one queue."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of offsets."""
        return self.end - self.start


def admit(
    starts: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int], limit: int | None
) -> QueueOffsets:
    """Return the end of the next batch: at most `limit` offsets between `starts` and it, in sum.

    Queues are those of `ends`, each of which has a start. A start beyond its end stays at its end.
    """
    backlogs = {queue: ends[queue] - starts[queue] for queue in ends if ends[queue] > starts[queue]}
    total = sum(backlogs.values())
    if limit is None or total <= limit:
        return dict(ends)
    shares = _shares(backlogs, total, limit)
    return {
        queue: starts[queue] + shares.get(queue, 0) if queue in backlogs else end
        for queue, end in ends.items()
    }


def _shares(backlogs: Mapping[MessageQueue, int], total: int, limit: int) -> QueueOffsets:
    # Longest backlog first; equal ones by name, so that the same state gives the same plan.
    ordered = sorted(backlogs, key=lambda queue: (-backlogs[queue], queue))
    shares = dict.fromkeys(ordered[:limit], 1)
    left = limit - len(shares)
    # The rest by backlog, rounded down; rounding leaves fewer than one offset per queue.
    for queue in shares:
        shares[queue] += min(backlogs[queue] - 1, left * (backlogs[queue] - 1) // total)
    left = limit - sum(shares.values())
    for queue in ordered:
        extra = min(left, backlogs[queue] - shares.get(queue, 0))
        if extra > 0:
            shares[queue] = shares.get(queue, 0) + extra
            left -= extra
    return shares


def plan_tasks(
    ranges: Iterable[QueueRange], min_partitions: int | None = None
) -> list[list[QueueRange]]:
    """Share ranges out among tasks of about equal size; empty ranges vanish.

    Small ranges share a task. Ranges are cut only where `min_partitions` asks for more tasks than
    there are ranges.
    """
    wanted = [queue_range for queue_range in ranges if queue_range.size > 0]
    total = sum(queue_range.size for queue_range in wanted)
    if not total:
        return []
    tasks = min(len(wanted), -(-total // ROWS_PER_TASK))
    if min_partitions is not None:
        tasks = max(tasks, min(min_partitions, total))
    if tasks > len(wanted):
        wanted = _cut(wanted, tasks)
    # The longest range goes to the task that has least so far.
    heap: list[tuple[int, int, list[QueueRange]]] = [(0, index, []) for index in range(tasks)]
    for queue_range in sorted(wanted, key=lambda r: (-r.size, r.queue, r.start)):
        size, index, members = heap[0]
        members.append(queue_range)
        heapq.heapreplace(heap, (size + queue_range.size, index, members))
    filled = sorted((index, members) for _, index, members in heap if members)
    return [sorted(members, key=lambda r: (r.queue, r.start)) for _, members in filled]


def _cut(ranges: list[QueueRange], pieces: int) -> list[QueueRange]:
    """Cut ranges into so many pieces; the one with the largest pieces gets the next cut."""
    counts = dict.fromkeys(ranges, 1)
    heap = [(-float(whole.size), index) for index, whole in enumerate(ranges)]
    heapq.heapify(heap)
    for _ in range(pieces - len(ranges)):
        whole = ranges[heap[0][1]]
        counts[whole] += 1
        heapq.heapreplace(heap, (-(whole.size / counts[whole]), heap[0][1]))
    return [
        QueueRange(
            whole.queue,
            whole.start + whole.size * index // count,
            whole.start + whole.size * (index + 1) // count,
        )
        for whole, count in counts.items()
        for index in range(count)
    ]
