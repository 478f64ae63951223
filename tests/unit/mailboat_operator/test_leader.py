"""Tests of the election: an in-memory Lease with delays and failures, and virtual time."""

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mailboat.testing.virtual_time import VirtualTime
from mailboat_operator import leader
from mailboat_operator.kube_api import ConflictError, KubeUnreachableError, NotFoundError
from mailboat_operator.leader import LeaderElector, LeaseLostError, NotLeaderError

Manifest = dict[str, Any]


class MemoryLease:
    """A Lease that compares versions as the API server does; each replica has its own way to it."""

    def __init__(self) -> None:
        """Begin without a Lease."""
        self.lease: Manifest | None = None
        self.version = 0

    def way(self) -> "Way":
        """A way to the Lease that can be broken by itself."""
        return Way(self)


class Way:
    """One replica's connection."""

    def __init__(self, store: MemoryLease) -> None:
        """Begin unbroken."""
        self._store = store
        self.before: Callable[[], Awaitable[None]] | None = None
        self.after: Callable[[], Awaitable[None]] | None = None
        self.loses_answers = False

    async def read(self) -> Manifest | None:
        """The Lease."""
        await self._travel()
        return copy.deepcopy(self._store.lease)

    async def create(self, lease: Manifest) -> Manifest:
        """Make it."""
        await self._travel()
        if self._store.lease is not None:
            raise ConflictError(409, "create", "exists")
        return self._keep(lease)

    async def replace(self, lease: Manifest) -> Manifest:
        """Change it."""
        await self._travel()
        now = self._store.lease
        if now is None:
            raise NotFoundError(404, "update", "not found")
        if lease["metadata"]["resourceVersion"] != now["metadata"]["resourceVersion"]:
            raise ConflictError(409, "update", "modified")
        kept = self._keep(lease)
        if self.after is not None:
            await self.after()
        return kept

    async def _travel(self) -> None:
        if self.before is not None:
            await self.before()

    def _keep(self, lease: Manifest) -> Manifest:
        self._store.version += 1
        kept = copy.deepcopy(lease)
        kept["metadata"] = {"resourceVersion": str(self._store.version)}
        self._store.lease = kept
        if self.loses_answers:
            raise KubeUnreachableError("the answer was lost")
        return copy.deepcopy(kept)


async def _unreachable() -> None:
    raise KubeUnreachableError("cut off")


async def _hang() -> None:
    await asyncio.Event().wait()


def _elector(
    way: Way, name: str, time: VirtualTime, *, wall: VirtualTime | None = None
) -> LeaderElector:
    return LeaderElector(way, name, monotonic=time.monotonic, wall=(wall or time).time)


async def test_first_takes_and_second_waits(driven_time: VirtualTime) -> None:
    """One replica leads while it renews, however long; the other one may not write."""
    store = MemoryLease()
    first = _elector(store.way(), "a", driven_time)
    second = _elector(store.way(), "b", driven_time)
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(300)
    assert first.is_leader
    assert not waiting.done()
    with pytest.raises(NotLeaderError):
        second.check_may_write()
    for task in (holding, waiting):
        task.cancel()


@pytest.mark.parametrize("break_way", [_unreachable, _hang])
async def test_a_cut_off_leader_stops_before_another_starts(
    driven_time: VirtualTime, break_way: Callable[[], Awaitable[None]]
) -> None:
    """The old leader stops writing seconds before the new one starts, which is within 20 s."""
    store = MemoryLease()
    way = store.way()
    first, second = _elector(way, "a", driven_time), _elector(store.way(), "b", driven_time)
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(23)
    way.before = break_way
    cut_s = driven_time.monotonic()
    with pytest.raises(LeaseLostError):
        await holding
    stopped_s = driven_time.monotonic()
    assert not first.is_leader
    assert not waiting.done()
    await waiting
    assert second.is_leader
    assert driven_time.monotonic() - stopped_s > 2
    assert driven_time.monotonic() - cut_s < 20


async def test_a_late_answer_counts_from_the_question(driven_time: VirtualTime) -> None:
    """A renewal is as old as its request: another replica may have seen it right then."""
    store = MemoryLease()
    way = store.way()
    first = _elector(way, "a", driven_time)
    began_s = driven_time.monotonic()
    await first.acquire()
    holding = asyncio.create_task(first.hold())

    async def slow() -> None:
        await asyncio.sleep(3)

    way.after = slow
    await asyncio.sleep(8.01)
    assert first.is_leader
    way.before = _unreachable
    with pytest.raises(LeaseLostError):
        await holding
    assert driven_time.monotonic() - began_s < leader.RENEW_S + leader.HOLD_S + 0.1


async def test_a_paused_leader_may_not_write_when_it_wakes(driven_time: VirtualTime) -> None:
    """Without a single instruction run meanwhile, the right to write is gone after the pause."""
    store = MemoryLease()
    first = _elector(store.way(), "a", driven_time)
    await first.acquire()
    assert first.is_leader
    driven_time.advance(11)
    with pytest.raises(NotLeaderError):
        first.check_may_write()


async def test_takeover_ignores_foreign_clocks(driven_time: VirtualTime) -> None:
    """A renewTime hours away in either direction neither hastens nor delays a takeover."""
    foreign = VirtualTime()
    for ahead_ms in (-86_400_000, 86_400_000):
        foreign.set_wall(driven_time.wall_ms() + ahead_ms)
        store = MemoryLease()
        first = _elector(store.way(), "a", driven_time, wall=foreign)
        second = _elector(store.way(), "b", driven_time)
        await first.acquire()
        began_s = driven_time.monotonic()
        await second.acquire()
        assert leader.LEASE_S <= driven_time.monotonic() - began_s < 20


async def test_release_lets_the_next_in_at_once(driven_time: VirtualTime) -> None:
    """After a release the next replica waits for one poll only, and the old one may not write."""
    store = MemoryLease()
    first, second = _elector(store.way(), "a", driven_time), _elector(store.way(), "b", driven_time)
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(3)
    await first.release()
    released_s = driven_time.monotonic()
    assert not first.is_leader
    await waiting
    assert driven_time.monotonic() - released_s <= leader.POLL_S + 0.1
    assert store.lease is not None
    assert store.lease["spec"]["leaseTransitions"] == 1


async def test_of_two_that_try_at_once_one_gets_it(driven_time: VirtualTime) -> None:
    """Two replicas that find the Lease free at the same moment do not both lead."""
    store = MemoryLease()
    electors = [_elector(store.way(), name, driven_time) for name in "abcd"]
    waiting = [asyncio.create_task(elector.acquire()) for elector in electors]
    await asyncio.sleep(1)
    assert sum(elector.is_leader for elector in electors) == 1
    for task in waiting:
        task.cancel()


async def test_short_troubles_do_not_cost_the_lease(driven_time: VirtualTime) -> None:
    """A renewal that fails, or an API server that takes 3 s each time, and the leader goes on."""
    store = MemoryLease()
    way = store.way()
    first = _elector(way, "a", driven_time)
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    way.before = _unreachable
    await asyncio.sleep(5.5)

    async def slow() -> None:
        await asyncio.sleep(3)

    way.before = slow
    await asyncio.sleep(60)
    assert first.is_leader
    assert not holding.done()
    holding.cancel()


async def test_a_lost_answer_is_found_out(driven_time: VirtualTime) -> None:
    """A taking or renewal whose answer was lost did happen; the version is read again."""
    store = MemoryLease()
    way = store.way()
    first = _elector(way, "a", driven_time)
    way.loses_answers = True
    acquiring = asyncio.create_task(first.acquire())
    await asyncio.sleep(1)
    way.loses_answers = False
    await acquiring
    holding = asyncio.create_task(first.hold())
    await asyncio.sleep(4)
    way.loses_answers = True
    await asyncio.sleep(2)
    way.loses_answers = False
    await asyncio.sleep(30)
    assert first.is_leader
    holding.cancel()


async def test_a_stolen_lease_is_noticed(driven_time: VirtualTime) -> None:
    """Somebody else's name in the Lease ends the leadership with the next renewal."""
    store = MemoryLease()
    first = _elector(store.way(), "a", driven_time)
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    await asyncio.sleep(1)
    assert store.lease is not None
    thief = store.way()
    await thief.replace({**store.lease, "spec": {**store.lease["spec"], "holderIdentity": "thief"}})
    with pytest.raises(LeaseLostError, match="held by thief"):
        await holding
    assert not first.is_leader


async def test_a_lease_that_is_deleted_makes_no_second_leader(driven_time: VirtualTime) -> None:
    """Its holder stops at the next renewal, and the standby waits for longer than that."""
    store = MemoryLease()
    first, second = _elector(store.way(), "a", driven_time), _elector(store.way(), "b", driven_time)
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(6)
    store.lease = None
    deleted_s = driven_time.monotonic()
    with pytest.raises(LeaseLostError, match="the Lease is gone"):
        await holding
    assert driven_time.monotonic() - deleted_s <= leader.RENEW_S + 0.1
    assert not first.is_leader
    assert not second.is_leader
    await waiting
    assert second.is_leader
    assert driven_time.monotonic() - deleted_s < 20


async def test_the_time_that_is_left_is_told(driven_time: VirtualTime) -> None:
    """A write that takes longer could arrive when somebody else writes."""
    first = _elector(MemoryLease().way(), "a", driven_time)
    await first.acquire()
    assert first.check_may_write() == pytest.approx(leader.HOLD_S)
    driven_time.advance(7.5)
    assert first.check_may_write() == pytest.approx(leader.HOLD_S - 7.5)
