"""What groups have not consumed, counted some milliseconds at a time.

A topic may have ten thousand queues, and a hundred groups may read each of them: every generator
here yields after a few hundred queues and returns its result in the end.
"""

from collections.abc import Generator, Iterable
from itertools import islice
from typing import Final, NamedTuple, TypeVar

import msgspec

from mailboat.broker.controller import BrokerController
from mailboat.remoting.turns import sorted_steps

_QUEUES_A_STEP: Final = 200
_KEPT_QUEUES: Final = 50_000

_T = TypeVar("_T")
Steps = Generator[None, None, _T]
"""Yields after each step of work and returns the result."""


class QueueLagBody(msgspec.Struct):
    """One queue as a group sees it; `committed_offset` is null where the group has none."""

    queue_id: int
    committed_offset: int | None
    max_offset: int
    lag: int


class TopicLagBody(msgspec.Struct, omit_defaults=True):
    """What a group has not consumed of one topic; `queues` is empty where so many would be too
    many for one answer, and `queues_omitted` tells how many there are."""

    topic: str
    lag: int
    queues: list[QueueLagBody]
    queues_omitted: int = 0


class QueueBounds(NamedTuple):
    """One queue: its first offset and that of the next message."""

    queue_id: int
    min_offset: int
    max_offset: int


def queue_bounds(broker: BrokerController, topic: str) -> Steps[list[QueueBounds]]:
    """Look at a topic's queues: those that are configured and those that hold messages."""
    config, store = broker.topics.select(topic), broker.store
    configured = 0
    if config is not None:
        configured = max(config.read_queue_nums, config.write_queue_nums)
    found = []
    for some in some_of(sorted({*range(configured), *store.queue_ids(topic)})):
        found += [
            QueueBounds(each, store.min_offset(topic, each), store.max_offset(topic, each))
            for each in some
        ]
        yield
    return found


class LagCounter:
    """Counts for one answer; a topic's queues are looked at once for all of its groups."""

    def __init__(self, broker: BrokerController) -> None:
        """Look at one broker."""
        self._broker = broker
        self._bounds: dict[str, list[QueueBounds]] = {}
        self._kept = 0

    def lag(self, group: str, topic: str) -> Steps[int]:
        """Count the messages that a group has not consumed; without an offset that is all."""
        bounds = yield from self._bounds_of(topic)
        committed = self._broker.offsets.queues(group, topic)
        lag = 0
        for some in some_of(bounds):
            lag += sum(
                [
                    max(high - max(low, committed.get(queue_id, 0)), 0)
                    for queue_id, low, high in some
                    if high
                ]
            )
            yield
        return lag

    def body(self, group: str, topic: str, most_queues: int) -> Steps[TopicLagBody]:
        """Describe a group's lag in every queue, if these are not more than `most_queues`."""
        bounds = yield from self._bounds_of(topic)
        if len(bounds) > most_queues:
            lag = yield from self.lag(group, topic)
            return TopicLagBody(topic, lag, [], len(bounds))
        committed = self._broker.offsets.queues(group, topic)
        queues: list[QueueLagBody] = []
        for some in some_of(bounds):
            for queue_id, low, high in some:
                queue_offset = committed.get(queue_id)
                unread = max(high - max(low, queue_offset or 0), 0)
                queues.append(QueueLagBody(queue_id, queue_offset, high, unread))
            yield
        return TopicLagBody(topic, sum(queue.lag for queue in queues), queues)

    def _bounds_of(self, topic: str) -> Steps[list[QueueBounds]]:
        bounds = self._bounds.get(topic)
        if bounds is None:
            bounds = yield from queue_bounds(self._broker, topic)
            self._kept += len(bounds)
            if self._kept > _KEPT_QUEUES:
                self._bounds.clear()
                self._kept = len(bounds)
            self._bounds[topic] = bounds
        return bounds


def group_topics(broker: BrokerController, group: str) -> set[str]:
    """Return the topics that a group consumes: by its offsets, and by what its members
    subscribe."""
    info = broker.consumers.groups.get(group)
    topics = broker.offsets.topics_of(group)
    return topics if info is None else topics.union(info.subscriptions)


def largest_lags(
    broker: BrokerController, *, pairs_max: int, count: int
) -> Steps[list[tuple[int, str, str]]]:
    """Return lag, group and topic of the largest lags among the first pairs of group and topic."""
    pairs = []
    groups = broker.offsets.groups().union(broker.consumers.groups)
    for group in (yield from sorted_steps(groups)):
        in_order = yield from sorted_steps(group_topics(broker, group))
        pairs += [(topic, group) for topic in in_order]
        if len(pairs) >= pairs_max:
            break
        yield
    counter = LagCounter(broker)
    lags = []
    # By topic, so that the queues of one are looked at for all of its groups in a row.
    for topic, group in sorted(pairs[:pairs_max]):
        lag = yield from counter.lag(group, topic)
        lags.append((lag, group, topic))
        yield
    return sorted(lags, reverse=True)[:count]


def some_of(items: Iterable[_T]) -> Generator[list[_T], None, None]:
    """Cut items into lists, each of which is one step of work."""
    rest = iter(items)
    while some := list(islice(rest, _QUEUES_A_STEP)):
        yield some
