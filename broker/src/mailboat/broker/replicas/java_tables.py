"""The tables of a master of RocketMQ, taken over while its log is followed.

RocketMQ's slaves ask each 10 s for all there is: topics (21), consumer groups (201), offsets of
consumers (43), delivered delayed messages (45); so it is done here. Everything is checked before it
is taken: an entry that is odd is left out, and said once; what is here of that name stays.

- Topics and groups become those of the master.
- Offsets only rise: consumers commit here while the master is away, and it is not told. One that
  the master has set back since it was asked before goes back here as well.
- Delayed messages count as delivered once the log here has the copies: else nobody would deliver
  them after a switch.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Generator
from typing import Final, NamedTuple, Protocol

from mailboat.broker.foreign_tables import replace_groups, replace_topics, shown_odd
from mailboat.broker.groups import SubscriptionGroupManager
from mailboat.broker.offsets import ConsumerOffsetManager
from mailboat.broker.schedule import ScheduleMessageService
from mailboat.broker.supervisor import TaskProgress
from mailboat.broker.topics import TopicConfigManager
from mailboat.errors import MailboatError
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.delay_offsets import DelayOffsets
from mailboat.protocol.followed_tables import (
    read_delay_offsets,
    read_groups,
    read_offsets,
    read_topics,
)
from mailboat.remoting.turns import in_turns

_log: Final = logging.getLogger(__name__)

_EVERY_S: Final = 10.0
_MAY_TAKE_S: Final = 120.0

_Steps = Generator[None, None, None]


class Managers(Protocol):
    """The parts of a broker that have the tables."""

    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    offsets: ConsumerOffsetManager
    schedule: ScheduleMessageService


class Master(Protocol):
    """Who is followed."""

    @property
    def session(self) -> int:
        """Another number for each connection over which its log comes, 0 while none does."""
        ...

    def followed(self) -> Awaitable[object]:
        """Return once its log comes."""
        ...

    def ask(self, code: int) -> Awaitable[bytes]:
        """Return the body of its answer; raises MailboatError."""
        ...

    def ask_end(self) -> Awaitable[int]:
        """Return the physical offset where its log ends; raises MailboatError."""
        ...


class _Delivered(NamedTuple):
    """Which delayed messages are delivered, by copies that lie below a physical offset."""

    state: DelayOffsets
    log_end: int


class JavaTables:
    """The tables of the one master of RocketMQ that is followed."""

    def __init__(self, managers: Managers, master: Master, log_end: Callable[[], int]) -> None:
        """Take them over; `log_end` says how far its log is here, as a physical offset."""
        self._managers = managers
        self._master = master
        self._log_end = log_end
        self._known_of = 0
        self._known: dict[str, dict[int, int]] = {}
        self._delivered: _Delivered | None = None
        self._odd: dict[str, list[str]] = {}
        self.problem = ""
        """Why the tables are not taken over, empty while they are."""

        self._loop = asyncio.get_running_loop()
        self._taken_s = -math.inf

    @property
    def age_s(self) -> float:
        """How long ago all of them were taken over; infinite before."""
        return self._loop.time() - self._taken_s

    async def run(self, progress: TaskProgress) -> None:
        """Take the tables over while the master is followed; runs for ever."""
        while True:
            progress.beat(math.inf)
            await self._master.followed()
            progress.beat(_MAY_TAKE_S)
            try:
                await self.take()
            except MailboatError as error:
                if str(error) != self.problem:
                    _log.warning("the tables of the master of RocketMQ: %s", error)
                self.problem = str(error)
            progress.beat(_EVERY_S * 2)
            await asyncio.sleep(_EVERY_S)

    async def take(self) -> None:
        """Take over all tables once, for as long as the log comes over one connection.

        Raises:
            MailboatError: the master did not answer, or with something else.
        """
        session = self._master.session
        if session != self._known_of:
            self._known_of, self._known = session, {}
        for code, take in (
            (RequestCode.GET_ALL_TOPIC_CONFIG, self._take_topics),
            (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self._take_groups),
            (RequestCode.GET_ALL_CONSUMER_OFFSET, self._take_offsets),
        ):
            steps = take(await self._master.ask(code))
            await in_turns(self._while_followed(session, steps))
        body = await self._master.ask(RequestCode.GET_ALL_DELAY_OFFSET)
        delay = await in_turns(read_delay_offsets(body))
        self._say_odd("delay levels", delay.odd)
        # Asked for afterwards: the copies of all that is delivered lie below it.
        log_end = await self._master.ask_end()
        if not session or session != self._master.session:
            return
        if self._delivered is None:
            # Behind a master that is written to, only an old answer is ever reached.
            self._delivered = _Delivered(delay.state, log_end)
            self.written()
        self._taken_s = self._loop.time()
        self.problem = ""

    def written(self) -> None:
        """Take note of more of the log: the copies of delayed messages may be there."""
        waiting = self._delivered
        if waiting is not None and self._log_end() >= waiting.log_end:
            self._delivered = None
            self._managers.schedule.progress.follow_further(waiting.state)

    def _while_followed(self, session: int, steps: _Steps) -> _Steps:
        """Take steps while the log comes: who has begun to lead has tables of its own."""
        while session and session == self._master.session:
            try:
                next(steps)
            except StopIteration:
                return
            yield

    # -- one table each -------------------------------------------------------------------------

    def _take_topics(self, body: bytes) -> _Steps:
        """Have the topics that the master has.

        Raises:
            BrokerError: they do not fit a registration; those that do are taken.
        """
        found = yield from read_topics(body)
        self._say_odd("topics", found.odd)
        yield from replace_topics(found, self._managers.topics)

    def _take_groups(self, body: bytes) -> _Steps:
        """Have the consumer groups that the master has, and those that every broker has.

        Raises:
            BrokerError: they are too many; those for which there is room are taken.
        """
        found = yield from read_groups(body)
        self._say_odd("consumer groups", found.odd)
        yield from replace_groups(found, self._managers.groups)

    def _take_offsets(self, body: bytes) -> _Steps:
        """Let offsets rise, and fall where the master has set them back."""
        offsets, known = self._managers.offsets, self._known
        found = yield from read_offsets(body)
        self._say_odd("offsets of consumers", found.odd)
        for key, queues in found.table.items():
            offsets.follow_untold(key, queues, known.get(key, {}))
            known[key] = known.get(key, {}) | queues
            yield
        for key in known.keys() - found.table.keys() - found.left_out:
            topic, _, group = key.partition("@")
            offsets.remove(group, topic)
            del known[key]
            yield

    def _say_odd(self, what: str, odd: list[str]) -> None:
        if odd != self._odd.get(what, []):
            self._odd[what] = odd
            text = shown_odd(odd) or "none any more"
            _log.warning("%s of the master of RocketMQ that are left out: %s", what, text)
