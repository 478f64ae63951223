"""How far all consumer groups together have read the CommitLog.

A segment is read once the oldest unread message of every group lies behind it. A group's topics
are those in which it has offsets, those that its connected members subscribe to, and its %RETRY%
topic. In each of their queues everything from the committed offset on is unread, and everything
where there is none. What lies in queues that a topic has no more is unread as well, but holds up
nothing: no route leads there, and nobody would ever read it.

What cannot be known is not counted: members of broadcasting groups keep their offsets themselves,
and a group that will come one day has none. Only `fileReservedTime` keeps messages for those. While
there is no group at all, nothing counts as read.

Looking at all queues of all groups is cut into slices: `slices` yields whenever some were looked
at. Between two rounds the last result stands; positions only rise, so it errs on the safe side.
Where one may have fallen (an offset was set back, a group is new), nothing counts as read until
the next round. Nothing here knows the event loop, and nothing but a round looks at all groups.

Subscriptions are in no file. After a restart nothing may go as read before the members of the
earlier run can have come back: a group without an offset is not known until then.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Set
from itertools import chain, islice
from typing import Final, NamedTuple, Protocol

from mailboat.model.names import RETRY_PREFIX, TRANSACTIONS_GROUP, retry_topic
from mailboat.remoting.turns import Wait, sorted_steps
from mailboat.store.queue_table import RaisedQueue

_QUEUES_A_SLICE: Final = 50
_NAMES_A_SLICE: Final = 2_000
_SLICES_AT_ONCE: Final = 200
_ROUND_EVERY_S: Final = 5.0  # While something moves.
_ASKED_EVERY_S: Final = 1.0

MEMBERS_RETURN_S: Final = 75.0
"""How long it may take until all members are back after a restart. Java's clients find a broker
that was away with their next look at the routes (pollNameServerInterval, 30 s) and introduce
themselves with their next heartbeat (heartbeatBrokerInterval, 30 s); the rest is for slow ones."""

GROUPS_MAX: Final = 200
"""Most groups whose progress is kept from one round to the next."""

SERIES_MAX: Final = 200
"""Pairs of group and topic with a count of their own; further ones share a sum."""


class GroupProgress(NamedTuple):
    """The oldest message that a group has not read, and how many there are in all its queues."""

    group: str
    topic: str
    queue_id: int
    physical_offset: int
    unread_messages: int


class Offsets(Protocol):
    """The committed offsets (`mailboat.broker.offsets`)."""

    commits: int
    lowered: int
    removals: int

    def groups(self) -> set[str]:
        """Return every group that has offsets."""
        ...

    def topics_of(self, group: str) -> set[str]:
        """Return the topics in which a group has offsets."""
        ...

    def groups_of(self, topic: str) -> set[str]:
        """Return the groups that have offsets in a topic; the set is the caller's."""
        ...

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """Return a group's offsets in a topic, by queue."""
        ...


class Subscriptions(Protocol):
    """What connected members subscribe to (`mailboat.broker.membership`)."""

    changes: int

    def clustering_groups(self) -> list[str]:
        """Return the groups with members, but for broadcasting ones."""
        ...

    def clustering_topics(self, group: str) -> Set[str]:
        """Return what the members of a group subscribe to; nothing of a broadcasting one."""
        ...

    def groups_on_topic(self, topic: str) -> set[str]:
        """Return the groups that subscribe to a topic; the set is the caller's."""
        ...


class Queues(Protocol):
    """The queues of the store."""

    def queue_keys(self) -> list[tuple[str, int]]:
        """Return topic and id of every queue."""
        ...

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first queue offset that is still there."""
        ...

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after the last visible message."""
        ...

    def physical_position(
        self, topic: str, queue_id: int, queue_offset: int
    ) -> Generator[Wait | None, None, int | None]:
        """Return where a message lies in the log, None when the queue does not say."""
        ...


class ReadingProgress:
    """The result of the last round, and what groups lost unread."""

    def __init__(
        self,
        offsets: Offsets,
        queues: Queues,
        subscriptions: Subscriptions,
        log_end: Callable[[], int],
        readable: Callable[[str], int],
        clock: Callable[[], float],
    ) -> None:
        """Look at the tables of one broker.

        Args:
            offsets: the committed offsets.
            queues: the store.
            subscriptions: of connected members; they call `subscribed`.
            log_end: gives the physical offset below which every message is in its queue.
            readable: gives how many queues of a topic have a route, by its name.
            clock: monotonic seconds.
        """
        self._offsets = offsets
        self._queues = queues
        self._subscriptions = subscriptions
        self._log_end = log_end
        self._readable = readable
        self._clock = clock
        self._members_back_s = clock()
        self._round_s = 0.0
        self._is_asked = False
        self._position = 0
        self._stamp: _Stamp | None = None
        self._known: dict[str, frozenset[str]] = {}
        self._came: set[str] = set()
        self._is_grown = False
        self._removals: deque[list[RaisedQueue]] = deque()
        self._counting: Iterator[None] = iter(())
        self.also_unread: list[Callable[[], int | None]] = []
        """Give the oldest physical offset that the broker itself still needs: delayed messages and
        others that wait in its own topics. None for nothing."""

        self.groups: list[GroupProgress] = []
        """The first `GROUPS_MAX` of the groups with unread messages, as of the last round; the
        oldest position first."""

        self.group_count = 0
        """How many groups had unread messages in the last round."""

        self.rounds_done = 0
        self.lost: dict[tuple[str, str], int] = {}
        """Messages that went before a group read them, by group and topic; for `SERIES_MAX` pairs,
        which keep their count for good."""

        self.lost_elsewhere = 0
        """The same for all other pairs together."""

        self.dropped_series: set[tuple[str, str]] = set()
        """Those other pairs, as far as they were counted."""

    def await_members(self) -> None:
        """Let nothing go as read until the members of an earlier run can have come back."""
        self._members_back_s = self._clock() + MEMBERS_RETURN_S

    def position(self) -> int:
        """Return the physical offset below which everything may go as read; 0 when that is not
        known."""
        return 0 if self._clock() < self._members_back_s else self.known_position()

    def known_position(self) -> int:
        """Return the physical offset below which every group that is known has read everything; 0
        when that is not known.

        It is `position`, but for the time in which members are awaited.
        """
        if not self.is_current:
            return 0
        needed = [found for find in self.also_unread if (found := find()) is not None]
        return min([self._position, *needed])

    @property
    def is_current(self) -> bool:
        """No offset was set back and no group came since the last round."""
        stamp = self._stamp
        return stamp is not None and stamp.lowered == self._offsets.lowered and not self._is_grown

    def subscribed(self, group: str) -> None:
        """Take note that a group may have more topics than before, or is new."""
        self._came.add(group)
        self._is_grown |= not self._is_known(group, self._known)

    def _is_known(self, group: str, known: dict[str, frozenset[str]]) -> bool:
        return self._subscriptions.clustering_topics(group) <= known.get(group, frozenset())

    def ask_for_round(self) -> None:
        """Have the next round soon: retention waits for what is read."""
        self._is_asked = True

    @property
    def is_round_due(self) -> bool:
        """The result is not current, or something moved and it is time to see what, or somebody
        asked."""
        if not self.is_current:
            return True
        now_s = self._clock()
        age_s = now_s - self._round_s
        if self._stamp != self._present():
            # While members are awaited no round lets anything go: then asking is no hurry.
            asked_s = _ASKED_EVERY_S if now_s < self._members_back_s else 0.0
            return age_s >= (asked_s if self._is_asked else _ROUND_EVERY_S)
        # Not all that lets go of messages shows in the stamp: a deleted topic does not.
        return self._is_asked and age_s >= _ASKED_EVERY_S

    def removed(self, raised: list[RaisedQueue]) -> None:
        """Count the messages that went with the log before they were read.

        At once, because a group moves its offset as soon as it notices; what would take too long
        is left to the next slices.
        """
        self._removals.append(raised)
        for _ in islice(self._count_removed(), _SLICES_AT_ONCE):
            continue

    def slices(self) -> Iterator[Wait | None]:
        """Count what went unread, then find every group's oldest unread position anew.

        Yields after each slice of work; a round that is not finished changes no result.
        """
        yield from self._count_removed()
        self._is_asked, self._round_s = False, self._clock()
        stamp = self._present()
        # Whoever comes from here on is looked at again below.
        self._came.clear()
        known: dict[str, frozenset[str]] = {}
        names = self._offsets.groups()
        yield None
        names.update(self._subscriptions.clustering_groups())
        yield None
        queue_ids: dict[str, list[int]] = {}
        for number, (topic, queue_id) in enumerate(self._queues.queue_keys(), 1):
            queue_ids.setdefault(topic, []).append(queue_id)
            if number % _NAMES_A_SLICE == 0:
                yield None
        found: list[GroupProgress] = []
        for group in names:
            oldest: GroupProgress | None = None
            unread = 0
            subscribed = frozenset(self._subscriptions.clustering_topics(group))
            if subscribed:
                known[group] = subscribed
            topics = subscribed | {retry_topic(group)}
            for item in self._unread_of(group, topics, queue_ids, stamp.log_end):
                if not isinstance(item, GroupProgress):
                    yield item
                    continue
                unread += item.unread_messages
                if oldest is None or item.physical_offset < oldest.physical_offset:
                    oldest = item
            if oldest is not None:
                found.append(oldest._replace(unread_messages=unread))
            yield None
        found = yield from sorted_steps(found, lambda item: (item.physical_offset, item.group))
        is_grown = False
        while self._came:
            for _ in range(min(len(self._came), _NAMES_A_SLICE)):
                is_grown |= not self._is_known(self._came.pop(), known)
            yield None
        self._is_grown = is_grown
        self._known, known = known, self._known
        self.groups, self.group_count = found[:GROUPS_MAX], len(found)
        # The broker's own reading of half messages says nothing about everybody else's.
        has_readers = any(name != TRANSACTIONS_GROUP for name in names)
        oldest_unread = found[0].physical_offset if found else stamp.log_end
        self._position = min(stamp.log_end, oldest_unread) if has_readers else 0
        self._stamp = stamp
        self.rounds_done += 1
        # To free a hundred thousand objects takes time as well.
        while found or known:
            del found[-_NAMES_A_SLICE:]
            for _ in range(min(len(known), _NAMES_A_SLICE)):
                known.popitem()
            yield None

    def _present(self) -> "_Stamp":
        offsets = self._offsets
        return _Stamp(
            offsets.lowered,
            self._subscriptions.changes,
            offsets.commits,
            offsets.removals,
            self._log_end(),
        )

    def _unread_of(
        self,
        group: str,
        subscribed: frozenset[str],
        queue_ids: dict[str, list[int]],
        log_end: int,
    ) -> Generator[GroupProgress | Wait | None, None, None]:
        """Yield each queue that a group has not read to its end, None after each slice, and what to
        wait for.

        What nobody can read any more lies at the log's end, where it holds up nothing.
        """
        queues = self._queues
        looked_at = 0
        for topic in (yield from sorted_steps(self._offsets.topics_of(group) | subscribed)):
            committed = self._offsets.queues(group, topic)
            readable = self._readable(topic)
            looked_at += 1
            if looked_at % _QUEUES_A_SLICE == 0:
                yield None
            for queue_id in queue_ids.get(topic, ()):
                looked_at += 1
                if looked_at % _QUEUES_A_SLICE == 0:
                    yield None
                low, high = queues.min_offset(topic, queue_id), queues.max_offset(topic, queue_id)
                queue_offset = max(committed.get(queue_id, low), low)
                if queue_offset < high:
                    position = log_end
                    if queue_id < readable:
                        position = yield from self._position_of(topic, queue_id, queue_offset)
                    unread = high - queue_offset
                    yield GroupProgress(group, topic, queue_id, position, unread)

    def _position_of(
        self, topic: str, queue_id: int, queue_offset: int
    ) -> Generator[Wait | None, None, int]:
        try:
            position = yield from self._queues.physical_position(topic, queue_id, queue_offset)
        except OSError:
            position = None
        # What the queue does not say may be the oldest message of all.
        return 0 if position is None else position

    def _count_removed(self) -> Iterator[None]:
        """Return the one count that is under way, or begin it."""
        if self._removals:
            self._counting = chain(self._counting, self._count(self._removals.popleft()))
        return self._counting

    def _count(self, raised: list[RaisedQueue]) -> Iterator[None]:
        groups_of: dict[str, set[str]] = {}
        looked_at = 0
        for item in raised:
            if item.topic not in groups_of:
                groups_of[item.topic] = yield from self._groups_of(item.topic)
            for group in groups_of[item.topic]:
                looked_at += 1
                committed = self._offsets.queues(group, item.topic).get(item.queue_id, 0)
                self._add_lost(group, item.topic, item.new_min - max(item.old_min, committed))
                if looked_at % _QUEUES_A_SLICE == 0:
                    yield

    def _groups_of(self, topic: str) -> Generator[None, None, set[str]]:
        groups = self._offsets.groups_of(topic)
        for number, group in enumerate(self._subscriptions.groups_on_topic(topic), 1):
            if topic in self._subscriptions.clustering_topics(group):
                groups.add(group)
            if number % _NAMES_A_SLICE == 0:
                yield
        if topic.startswith(RETRY_PREFIX):
            groups.add(topic.removeprefix(RETRY_PREFIX))
        return groups

    def _add_lost(self, group: str, topic: str, lost: int) -> None:
        if lost <= 0:
            return
        key = (group, topic)
        if key in self.lost or len(self.lost) < SERIES_MAX:
            self.lost[key] = self.lost.get(key, 0) + lost
        else:
            self.lost_elsewhere += lost
            if len(self.dropped_series) < 10 * SERIES_MAX:
                self.dropped_series.add(key)


class _Stamp(NamedTuple):
    """What a round was made of: the first may lower a position, the others raise it."""

    lowered: int
    changes: int
    commits: int
    removals: int
    log_end: int
