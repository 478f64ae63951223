"""Tests of the election: an in-memory Lease with delays and failures, and clocks of our own."""

import asyncio
import copy
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from mailboat_operator import leader
from mailboat_operator.kube_api import ConflictError, KubeUnreachableError, NotFoundError
from mailboat_operator.leader import LeaderElector, LeaseLostError, NotLeaderError

Manifest = dict[str, Any]

_NS: Final = 1_000_000_000

# For twelve days on, floats of seconds lie equally far apart: sums and differences of times do not
# round, and 15 s of the one who waits are 15 s of the one who looks on.
_BEGIN_S: Final = 1 << 20


class SimulatedTime:
    """A loop clock that jumps to the next timer: minutes pass at once, in the right order."""

    def __init__(self) -> None:
        """Take the running loop's clock over, and begin at a time of no machine."""
        self._loop = asyncio.get_running_loop()
        self._now_ns = _BEGIN_S * _NS
        self._real_select = self._loop._selector.select  # type: ignore[attr-defined]
        self._loop.time = self.now  # type: ignore[method-assign]
        self._loop._selector.select = self._select  # type: ignore[attr-defined]

    def now(self) -> float:
        """The simulated time in seconds."""
        return self._now_ns / _NS

    def advance(self, seconds: float) -> None:
        """Let time pass without a turn of the loop."""
        self._now_ns += math.ceil(seconds * _NS)

    def _select(self, timeout: float | None) -> Any:
        if timeout:
            self.advance(timeout)
        return self._real_select(0)


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


@pytest.fixture
async def simulated() -> SimulatedTime:
    """Time that passes as fast as it is waited for."""
    return SimulatedTime()


def _elector(way: Way, name: str, time: SimulatedTime, *, wall_s: float = 0.0) -> LeaderElector:
    return LeaderElector(way, name, monotonic=time.now, wall=lambda: wall_s)


async def test_first_takes_and_second_waits(simulated: SimulatedTime) -> None:
    """One replica leads while it renews, however long; the other one may not write."""
    store = MemoryLease()
    first = _elector(store.way(), "a", simulated)
    second = _elector(store.way(), "b", simulated)
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
    simulated: SimulatedTime, break_way: Callable[[], Awaitable[None]]
) -> None:
    """The old leader stops writing seconds before the new one starts, which is within 20 s."""
    store = MemoryLease()
    way = store.way()
    first, second = _elector(way, "a", simulated), _elector(store.way(), "b", simulated)
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(23)
    way.before = break_way
    cut_s = simulated.now()
    with pytest.raises(LeaseLostError):
        await holding
    stopped_s = simulated.now()
    assert not first.is_leader
    assert not waiting.done()
    await waiting
    assert second.is_leader
    assert simulated.now() - stopped_s > 2
    assert simulated.now() - cut_s < 20


async def test_a_late_answer_counts_from_the_question(simulated: SimulatedTime) -> None:
    """A renewal is as old as its request: another replica may have seen it right then."""
    store = MemoryLease()
    way = store.way()
    first = _elector(way, "a", simulated)
    began_s = simulated.now()
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
    assert simulated.now() - began_s < leader.RENEW_S + leader.HOLD_S + 0.1


async def test_a_paused_leader_may_not_write_when_it_wakes(simulated: SimulatedTime) -> None:
    """Without a single instruction run meanwhile, the right to write is gone after the pause."""
    store = MemoryLease()
    first = _elector(store.way(), "a", simulated)
    await first.acquire()
    assert first.is_leader
    simulated.advance(11)
    with pytest.raises(NotLeaderError):
        first.check_may_write()


async def test_takeover_ignores_foreign_clocks(simulated: SimulatedTime) -> None:
    """A renewTime hours away in either direction neither hastens nor delays a takeover."""
    for wall_s in (-86400.0 + 1e9, 1e9 + 86400.0):
        store = MemoryLease()
        first = _elector(store.way(), "a", simulated, wall_s=wall_s)
        second = _elector(store.way(), "b", simulated, wall_s=1e9)
        await first.acquire()
        began_s = simulated.now()
        await second.acquire()
        assert leader.LEASE_S <= simulated.now() - began_s < 20


async def test_release_lets_the_next_in_at_once(simulated: SimulatedTime) -> None:
    """After a release the next replica waits for one poll only, and the old one may not write."""
    store = MemoryLease()
    first, second = _elector(store.way(), "a", simulated), _elector(store.way(), "b", simulated)
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(3)
    await first.release()
    released_s = simulated.now()
    assert not first.is_leader
    await waiting
    assert simulated.now() - released_s <= leader.POLL_S + 0.1
    assert store.lease is not None
    assert store.lease["spec"]["leaseTransitions"] == 1


async def test_of_two_that_try_at_once_one_gets_it(simulated: SimulatedTime) -> None:
    """Two replicas that find the Lease free at the same moment do not both lead."""
    store = MemoryLease()
    electors = [_elector(store.way(), name, simulated) for name in "abcd"]
    waiting = [asyncio.create_task(elector.acquire()) for elector in electors]
    await asyncio.sleep(1)
    assert sum(elector.is_leader for elector in electors) == 1
    for task in waiting:
        task.cancel()


async def test_short_troubles_do_not_cost_the_lease(simulated: SimulatedTime) -> None:
    """A renewal that fails, or an API server that takes 3 s each time, and the leader goes on."""
    store = MemoryLease()
    way = store.way()
    first = _elector(way, "a", simulated)
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


async def test_a_lost_answer_is_found_out(simulated: SimulatedTime) -> None:
    """A taking or renewal whose answer was lost did happen; the version is read again."""
    store = MemoryLease()
    way = store.way()
    first = _elector(way, "a", simulated)
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


async def test_a_stolen_lease_is_noticed(simulated: SimulatedTime) -> None:
    """Somebody else's name in the Lease ends the leadership with the next renewal."""
    store = MemoryLease()
    first = _elector(store.way(), "a", simulated)
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    await asyncio.sleep(1)
    assert store.lease is not None
    thief = store.way()
    await thief.replace({**store.lease, "spec": {**store.lease["spec"], "holderIdentity": "thief"}})
    with pytest.raises(LeaseLostError, match="held by thief"):
        await holding
    assert not first.is_leader


async def test_a_lease_that_is_deleted_makes_no_second_leader(simulated: SimulatedTime) -> None:
    """Its holder stops at the next renewal, and the standby waits for longer than that."""
    store = MemoryLease()
    first, second = _elector(store.way(), "a", simulated), _elector(store.way(), "b", simulated)
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(6)
    store.lease = None
    deleted_s = simulated.now()
    with pytest.raises(LeaseLostError, match="the Lease is gone"):
        await holding
    assert simulated.now() - deleted_s <= leader.RENEW_S + 0.1
    assert not first.is_leader
    assert not second.is_leader
    await waiting
    assert second.is_leader
    assert simulated.now() - deleted_s < 20


async def test_the_time_that_is_left_is_told(simulated: SimulatedTime) -> None:
    """A write that takes longer could arrive when somebody else writes."""
    first = _elector(MemoryLease().way(), "a", simulated)
    await first.acquire()
    assert first.check_may_write() == pytest.approx(leader.HOLD_S)
    simulated.advance(7.5)
    assert first.check_may_write() == pytest.approx(leader.HOLD_S - 7.5)
