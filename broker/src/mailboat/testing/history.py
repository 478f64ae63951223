"""What was promised to senders and shown to consumers, and whether a store still keeps to it.

One checker for every crash test: the simulated disk, the killed process, injected errors. A test
tells what it sent, what it was answered and what it saw; after a crash it hands over everything
that can be read. The promises:

    acknowledged        there exactly once, at the queue offset that was answered, unchanged
    refused             not there, ever
    unknown             there once or not at all
    seen by a consumer  there for good, except under ASYNC_FLUSH after a power cut
    offsets             without gaps or repeats; never given to a second message
    order               within a queue that of sending, for what went over one connection; in the
                        log nothing lies before what was acknowledged before it was sent
    power cut, ASYNC    only the newest of the log are lost, none that a finished flush covered

Replicas are the same store in several places: what is read anywhere belongs to one history. Only
of a group that acknowledges what one replica has (ASYNC_MASTER) the newest may be lost, from
`may_lose_from` on.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, NoReturn, TypeAlias

QueueKey: TypeAlias = tuple[str, int]
"""Topic and queue id."""


class Outcome(Enum):
    """What the sender knows; UNKNOWN until there is an answer."""

    UNKNOWN = "unknown"
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    LOST = "lost, as it was allowed to be"


class Crash(Enum):
    """What happened before a check."""

    NONE = "none, or the death of the process"
    POWER_CUT_SYNC_FLUSH = "power cut under SYNC_FLUSH"
    POWER_CUT_ASYNC_FLUSH = "power cut under ASYNC_FLUSH"


@dataclass(slots=True, eq=False)
class Sent:
    """One message that was sent; the body is its identity."""

    number: int
    key: QueueKey
    body: bytes
    outcome: Outcome = Outcome.UNKNOWN
    queue_offset: int = -1
    physical_offset: int = -1
    is_seen: bool = False
    session: int = 0
    """The connection on which it was sent."""

    settled_at: int = -1
    """How many messages had been sent when it was known to be stored."""

    def __str__(self) -> str:
        """Name the message in a violation."""
        place = f"{self.key[0]}/{self.key[1]}@{self.queue_offset}"
        return f"message {self.number} ({self.outcome.value}) at {place}, {self.physical_offset}"


class Found(NamedTuple):
    """One message that was read."""

    queue_offset: int
    physical_offset: int
    body: bytes


class QueueView(NamedTuple):
    """Everything that can be read of one queue."""

    min_offset: int
    max_offset: int
    messages: list[Found]


class HistoryViolation(AssertionError):
    """A promise was broken; `anomaly` names which."""

    def __init__(self, anomaly: str, text: str) -> None:
        """Name the promise and the message."""
        super().__init__(f"{anomaly}: {text}")
        self.anomaly = anomaly


@dataclass(slots=True)
class History:
    """The story of one store directory; the same object goes on over crashes.

    `durable_below`: everything below this physical offset was covered by a flush that finished.
    `expired_below`: everything below this one may have been deleted by retention.
    `may_lose_from`: messages from this number on may be lost, acknowledged and seen ones too.
    """

    sent: list[Sent] = field(default_factory=list)
    durable_below: int = 0
    expired_below: int = 0
    may_lose_from: int = sys.maxsize
    _by_body: dict[bytes, Sent] = field(default_factory=dict)
    _by_place: dict[tuple[QueueKey, int], Sent] = field(default_factory=dict)

    def send(self, topic: str, queue_id: int, body: bytes, session: int = 0) -> Sent:
        """Note a message about to be sent; its body must be like no other."""
        message = Sent(len(self.sent), (topic, queue_id), body, session=session)
        assert body not in self._by_body
        self.sent.append(message)
        self._by_body[body] = message
        return message

    def acknowledge(self, message: Sent, queue_offset: int, physical_offset: int) -> None:
        """Note SEND_OK.

        Raises:
            HistoryViolation: the offset belongs to another message.
        """
        self._place(message, queue_offset, physical_offset)
        message.outcome = Outcome.ACKNOWLEDGED
        if message.settled_at < 0:
            message.settled_at = len(self.sent)

    def refuse(self, message: Sent) -> None:
        """Note an answer that says nothing was stored."""
        message.outcome = Outcome.REFUSED

    def see(self, key: QueueKey, messages: Iterable[Found]) -> None:
        """Note what a consumer was given.

        Raises:
            HistoryViolation: it should not have been given that.
        """
        for found in messages:
            message = self._identify(key, found)
            self._place(message, found.queue_offset, found.physical_offset)
            message.is_seen = True

    def check(self, queues: Mapping[QueueKey, QueueView], crash: Crash) -> None:
        """Check everything readable against everything promised; changes nothing.

        Raises:
            HistoryViolation: a promise is broken.
        """
        present: dict[Sent, Found] = {}
        for key, view in queues.items():
            self._check_queue(key, view, present)
        self._check_log_order(present)
        self._check_missing(present, queues, crash)

    def adopt(self, queues: Mapping[QueueKey, QueueView], crash: Crash) -> None:
        """Check, then go on from what is there: it is there for good, what is missing was lost.

        Raises:
            HistoryViolation: a promise is broken.
        """
        self.check(queues, crash)
        present = {
            self._by_body[found.body]: (key, found)
            for key, view in queues.items()
            for found in view.messages
        }
        for message in self.sent:
            if message in present or message.outcome is Outcome.REFUSED:
                continue
            if message.physical_offset >= self.expired_below or message.physical_offset < 0:
                self._by_place.pop((message.key, message.queue_offset), None)
                message.outcome = Outcome.LOST
        for message, (_, found) in present.items():
            self.acknowledge(message, found.queue_offset, found.physical_offset)
            message.is_seen = True

    def _place(self, message: Sent, queue_offset: int, physical_offset: int) -> None:
        holder = self._by_place.setdefault((message.key, queue_offset), message)
        if holder is not message:
            if max(message.number, holder.number) < self.may_lose_from:
                _fail("offset given twice", f"{message} was stored where {holder} is")
            if holder.number >= self.may_lose_from:
                self._by_place[message.key, queue_offset] = message
        if (message.queue_offset, message.physical_offset) not in (
            (-1, -1),
            (queue_offset, physical_offset),
        ):
            _fail("moved", f"{message} is now at {queue_offset}, {physical_offset}")
        message.queue_offset, message.physical_offset = queue_offset, physical_offset

    def _identify(self, key: QueueKey, found: Found) -> Sent:
        message = self._by_body.get(found.body)
        if message is None:
            _fail("changed or never sent", f"{found} in {key}")
        if message.key != key:
            _fail("in another queue", f"{message} was found in {key}")
        if message.outcome is Outcome.REFUSED:
            _fail("refused but stored", f"{message} was found as {found.queue_offset}")
        if message.outcome is Outcome.LOST:
            _fail("lost and back again", f"{message} was found as {found.queue_offset}")
        return message

    def _check_queue(self, key: QueueKey, view: QueueView, present: dict[Sent, Found]) -> None:
        offsets = [found.queue_offset for found in view.messages]
        if offsets != list(range(view.min_offset, view.max_offset)):
            _fail("gap", f"{key} from {view.min_offset} to {view.max_offset} serves {offsets}")
        last: dict[int, int] = {}
        for found in view.messages:
            message = self._identify(key, found)
            if message in present:
                _fail("stored twice", f"{message} again as {found.queue_offset}")
            if (message.queue_offset, message.physical_offset) not in ((-1, -1), found[:2]):
                _fail("moved", f"{message} was found at {found[:2]}")
            before = last.get(message.session, -1)
            if message.number <= before:
                _fail("order", f"{message} comes after message {before}")
            last[message.session] = message.number
            present[message] = found

    def _check_log_order(self, present: dict[Sent, Found]) -> None:
        """Check that nothing lies before what was known to be stored before it was sent.

        So no leader acknowledges anything once a later one has.
        """
        newest: Sent | None = None
        for message, _ in sorted(present.items(), key=lambda item: item[1].physical_offset):
            if newest is not None and 0 <= message.settled_at <= newest.number:
                _fail("order", f"{message} was stored before {newest} was sent, and is behind it")
            if newest is None or message.number > newest.number:
                newest = message

    def _check_missing(
        self,
        present: dict[Sent, Found],
        queues: Mapping[QueueKey, QueueView],
        crash: Crash,
    ) -> None:
        log_end = max((found.physical_offset for found in present.values()), default=-1)
        for message in self.sent:
            if message in present or message.outcome in (Outcome.REFUSED, Outcome.LOST):
                continue
            if message.outcome is Outcome.UNKNOWN and not message.is_seen:
                continue
            if message.physical_offset < self.expired_below:
                view = queues.get(message.key)
                if view is None or view.max_offset <= message.queue_offset:
                    _fail("offsets start again", f"{message} has expired, {view} follows")
                continue
            if message.number >= self.may_lose_from:
                continue
            if crash is not Crash.POWER_CUT_ASYNC_FLUSH:
                word = "acknowledged" if message.outcome is Outcome.ACKNOWLEDGED else "seen"
                _fail(f"{word} and lost", f"{message} after {crash.value}")
            if message.physical_offset < self.durable_below:
                _fail("flushed and lost", f"{message}, flushed up to {self.durable_below}")
            if message.physical_offset < log_end:
                _fail("lost from the middle", f"{message}, the log goes on to {log_end}")


def _fail(anomaly: str, text: str) -> NoReturn:
    raise HistoryViolation(anomaly, text)
