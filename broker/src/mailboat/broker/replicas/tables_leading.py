"""A leader tells its followers of its tables: all there is when one joins, then what changes.

Entries are sent as they are when they are sent, in the order of the link: whatever comes last is
right. What answers wait for is numbered, and followers say up to which number they have it on their
disks. Offsets and what is delivered of delayed messages follow soon and are waited for by nobody:
what a switch takes back of them comes twice.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mailboat.broker.replicas.link import Link
from mailboat.broker.replicas.tables import WEIGHT_A_FRAME, Kind, Table, encode_entries
from mailboat.errors import BrokerError
from mailboat.protocol.codes import ResponseCode
from mailboat.remoting.turns import listed_in_turns
from mailboat.replication.frames import Tables, TablesKept
from mailboat.replication.lease import Member

BEGINS: Final = 1
"""`Tables.part`: all entries of the table follow, and there is no other one."""

ENDS: Final = 2
"""`Tables.part`: those were all."""

FIRST_NUMBER: Final = 1
"""Of tables in which nothing has changed since the epoch began."""

_SOON_S: Final = 0.5


@dataclass(slots=True)
class _Delay:
    """Which delayed messages are delivered, once a follower has the log up to an end."""

    log_end: int
    body: bytes


@dataclass(slots=True, eq=False)
class _Follower:
    """One session with a follower."""

    member: Member
    link: Link
    session: int
    whole: Iterator[Tables] | None = None
    whole_number: int = 0
    """The number at which it has all tables, 0 before that is sent."""

    kept: int = -1
    delay: _Delay | None = None
    told_delay: bytes = b""


@dataclass(slots=True, eq=False)
class _Waiter:
    number: int
    deadline_s: float
    done: asyncio.Future[bool]


class LeadingTables:
    """The tables of one epoch that is led here."""

    def __init__(
        self,
        epoch: int,
        tables: Sequence[Table],
        deletions: Callable[[], dict[str, int]],
        delay: Callable[[], bytes],
        log_end: Callable[[], int],
        timeout_s: float,
    ) -> None:
        """Begin without followers.

        Args:
            epoch: the epoch.
            tables: all that followers are to have.
            deletions: where the log ended when topics were deleted.
            delay: how far delayed messages are delivered.
            log_end: where the log ends, with all that was delivered.
            timeout_s: how long anybody waits for followers.
        """
        self.epoch = epoch
        self._tables = tables
        self._deletions = deletions
        self._delay = delay
        self._log_end = log_end
        self._acked: Mapping[Member, int] = {}
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._followers: dict[int, _Follower] = {}
        self.number = FIRST_NUMBER
        """Of the newest change. Who has all tables without another one has them as new as everybody
        else, whenever it came."""

        self._waiters: list[_Waiter] = []
        self._required: frozenset[Member] = frozenset()
        self._is_due = self._is_ended = False
        self._told_s = self._loop.time()

    # -- followers ------------------------------------------------------------------------------

    @property
    def has_followers(self) -> bool:
        """Whether there is anybody to tell."""
        return bool(self._followers)

    def begin(self, member: Member, link: Link, session: int) -> None:
        """Send a follower all there is, before any of the log that it lacks."""
        follower = _Follower(member, link, session)
        follower.whole = self._all(follower)
        self._followers[member.ordinal] = follower
        # Which records belong to a topic's former life has to be known before they come.
        deletions = encode_entries(self._deletions())
        link.send(Tables(session, self.epoch, 0, Kind.DELETIONS, 0, deletions))
        self._loop.call_soon(self._go_on, follower)

    def lost(self, link: Link) -> None:
        """Forget whoever was linked."""
        self._followers = {
            ordinal: follower
            for ordinal, follower in self._followers.items()
            if follower.link is not link
        }

    def roomy(self, link: Link) -> None:
        """Go on with what waited for a follower to read."""
        for follower in self._followers.values():
            if follower.link is link:
                self._loop.call_soon(self._go_on, follower)

    def kept(self, member: Member, frame: TablesKept) -> bool:
        """Note how far a follower has the tables; tell whether it has all that there were."""
        follower = self._followers.get(member.ordinal)
        if follower is None or (frame.session, frame.epoch) != (follower.session, self.epoch):
            return False
        # What it had before this session may not be all.
        if not follower.whole_number or frame.number < follower.whole_number:
            return False
        follower.kept = max(follower.kept, frame.number)
        self._settle()
        return True

    def _all(self, follower: _Follower) -> Iterator[Tables]:
        for table in self._tables:
            part, weight = BEGINS, 0
            some: list[str] = []
            for key in table.keys():
                if weight >= WEIGHT_A_FRAME:
                    yield self._frame(follower, table, some, part)
                    part, some, weight = 0, [], 0
                some.append(key)
                weight += table.weigh(key)
            yield self._frame(follower, table, some, part | ENDS)
        follower.whole_number = self.number
        yield Tables(follower.session, self.epoch, self.number, Kind.ALL, 0, b"")

    def _go_on(self, follower: _Follower) -> None:
        if follower.whole is None or self._followers.get(follower.member.ordinal) is not follower:
            return
        if not follower.link.has_room:
            return  # `roomy` goes on.
        frame = next(follower.whole, None)
        if frame is None:
            follower.whole = None
            return
        follower.link.send(frame)
        self._loop.call_soon(self._go_on, follower)

    def _frame(
        self,
        follower: _Follower,
        table: Table,
        keys: Sequence[str],
        part: int,
        number: int = 0,
        body: bytes | None = None,
    ) -> Tables:
        body = table.encode(keys) if body is None else body
        return Tables(follower.session, self.epoch, number, table.kind, part, body)

    # -- changes --------------------------------------------------------------------------------

    def changed(self) -> None:
        """Tell followers soon of what answers wait for."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._tell_soon)

    def _tell_soon(self) -> None:
        self._is_due = False
        if self._tell_some(is_awaited=True, is_numbered=True):
            self.changed()

    def _tell_some(self, *, is_awaited: bool, is_numbered: bool) -> bool:
        """Tell followers of some changes; tell whether there are more."""
        for table in self._tables:
            if table.is_awaited == is_awaited and table.journal:
                keys = table.journal.take(WEIGHT_A_FRAME, table.weigh)
                number = self._next_number() if is_numbered else 0
                body = table.encode(keys) if self._followers else b""
                for follower in self._followers.values():
                    follower.link.send(self._frame(follower, table, keys, 0, number, body))
        return any(table.journal for table in self._tables if table.is_awaited == is_awaited)

    def _tell_in_steps(self) -> Iterator[None]:
        for is_awaited in (True, False):
            while self._tell_some(is_awaited=is_awaited, is_numbered=True):
                yield

    def tell_all(self) -> None:
        """Tell followers of all that they do not know yet, before another one leads."""
        for is_awaited in (True, False):
            while self._tell_some(is_awaited=is_awaited, is_numbered=is_awaited):
                pass
        self._tell_of_delay()

    def deleted(self, topic: str, log_end: int) -> None:
        """Tell followers that a topic's messages are gone that were stored before a place."""
        body = encode_entries({topic: log_end})
        number = self._next_number()
        for follower in self._followers.values():
            frame = Tables(follower.session, self.epoch, number, Kind.DELETIONS, 0, body)
            follower.link.send(frame)

    def _next_number(self) -> int:
        self.number += 1
        return self.number

    def tick(self, required: frozenset[Member], acked: Mapping[Member, int]) -> None:
        """Tell of offsets and deliveries now and then, and let waiters go.

        Args:
            required: who has to know what is answered, this replica left out.
            acked: how far followers have the log, now and later.
        """
        self._required, self._acked = required, acked
        now_s = self._loop.time()
        if now_s >= self._told_s + _SOON_S:
            self._told_s = now_s
            self._tell_of_delay()
            self._tell_of_offsets(self._untold_offsets)
        self._settle()
        for waiter in self._waiters:
            if now_s >= waiter.deadline_s and not waiter.done.done():
                waiter.done.set_result(False)

    @property
    def _untold_offsets(self) -> int:
        return sum(len(table.journal) for table in self._tables if not table.is_awaited)

    def _tell_of_offsets(self, count: int) -> None:
        """Tell of so many offsets that have changed, some in each round of the loop."""
        before = self._untold_offsets
        if self._is_ended or not before:
            return
        self._tell_some(is_awaited=False, is_numbered=False)
        count -= before - self._untold_offsets
        if count > 0:
            self._loop.call_soon(self._tell_of_offsets, count)

    def _tell_of_delay(self) -> None:
        """Tell each follower what was delivered up to where it has the log.

        It would never deliver what it takes for delivered and has no copy of.
        """
        if not self._followers:
            return
        newest = _Delay(self._log_end(), self._delay())
        for follower in self._followers.values():
            acked = self._acked.get(follower.member, -1)
            if follower.delay is None or acked >= newest.log_end:
                follower.delay = newest
            if acked >= follower.delay.log_end:
                self._send_delay(follower, follower.delay.body)
                follower.delay = None

    def _send_delay(self, follower: _Follower, body: bytes) -> None:
        if body != follower.told_delay:
            follower.told_delay = body
            follower.link.send(Tables(follower.session, self.epoch, 0, Kind.DELAY, 0, body))

    # -- who waits ------------------------------------------------------------------------------

    async def known(self, required: frozenset[Member]) -> None:
        """Return once everybody who has to knows what has changed so far.

        Raises:
            BrokerError: SYSTEM_ERROR, that is not known in time.
        """
        self._required = required
        await listed_in_turns(self._tell_in_steps())
        deadline_s = self._loop.time() + self._timeout_s
        waiter = _Waiter(self.number, deadline_s, self._loop.create_future())
        self._waiters.append(waiter)
        self._settle()
        try:
            if await waiter.done:
                return
        finally:
            self._waiters.remove(waiter)
        raise not_known()

    def end(self) -> None:
        """Let everybody go: this replica leads no more."""
        self._is_ended = True
        for waiter in self._waiters:
            if not waiter.done.done():
                waiter.done.set_result(False)

    def _settle(self) -> None:
        if not self._waiters:
            return
        kept = [self._kept_by(member) for member in self._required]
        for waiter in self._waiters:
            if not waiter.done.done() and all(number >= waiter.number for number in kept):
                waiter.done.set_result(True)

    def _kept_by(self, member: Member) -> int:
        follower = self._followers.get(member.ordinal)
        return follower.kept if follower is not None and follower.member == member else -1


def not_known() -> BrokerError:
    """Return the answer where nobody can say that a change outlives a switch of the master."""
    return BrokerError(
        ResponseCode.SYSTEM_ERROR,
        "the replicas in the in-sync set do not all know of the change in time, and it may be "
        "undone if another one leads; ask again",
    )
