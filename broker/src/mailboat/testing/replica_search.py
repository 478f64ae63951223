"""Every order of a few steps of a small group of `mailboat.replication` replicas, breadth first.

The group begins with a leader that all follow. From there a step is: a frame arrives, or a link
loses what it holds; a replica's clock goes on; a message is stored; the store of the lease answers,
or its answer is lost; a process dies and begins anew. Of each kind there are only so many. What
`mailboat.testing.replica_simulator` checks is checked after every step.
"""

import pickle
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from random import Random

from mailboat.replication import actions, frames
from mailboat.replication.events import (
    LeaseRead,
    LeaseWritten,
    LogAppended,
    LogFlushed,
    Outcome,
    Received,
    Ticked,
)
from mailboat.replication.lease import Lease, Member
from mailboat.replication.replica import Replica
from mailboat.testing.replica_simulator import Group, InvariantError, Machine, Record

_STEP_S = 0.5
# Longer than a lease, and than anything that was promised.
_LONG_S = 10.0
# Nothing is left to chance; the simulator asks all the same.
_RANDOM = Random(0)
_SAME = ("random", "_queue", "_leases")
_PLAIN = (str, int, float, bool, bytes, Enum, type(None))


@dataclass
class Budget:
    """How often each kind of step may happen still."""

    messages: int = 0
    ticks: int = 0
    waits: int = 0
    deaths: int = 0
    lost_answers: int = 0
    lost_frames: int = 0


class SteppedGroup(Group):
    """A group that moves by the steps that it is told."""

    def __init__(self, *, size: int, min_in_sync: int, budget: Budget) -> None:
        """Make a group in which a replica leads, and all follow."""
        self.links: dict[tuple[int, int], list[tuple[Member, frames.Frame]]] = {}
        self.operations: dict[int, list[actions.ReadLease | actions.WriteLease]] = {}
        self.clocks_s = dict.fromkeys(range(size), 100.0)
        self.budget = budget
        super().__init__(0, size=size, min_in_sync=min_in_sync)
        self.has_faults = False
        for machine in self._machines:
            machine.rate = 1.0
        while len([m for m in self._machines if m.process and m.process.following]) < size - 1:
            self._go_on()
        for _ in range(3):
            self._go_on()
        # Who knows the newest renewal is nearest to trying.
        while any(m.process and m.process.lease != self.lease for m in self._machines):
            self._go_on()

    def _go_on(self) -> None:
        """Let time pass, and all that is under way arrive."""
        for ordinal in self.clocks_s:
            self._tick(ordinal, _LONG_S if self.lease.epoch == 0 and ordinal == 0 else _STEP_S)
            while self.links or self.operations:
                for pair in list(self.links):
                    self._arrive(pair)
                for other in list(self.operations):
                    self._serve(other, is_lost=False)

    def __getstate__(self) -> dict[str, object]:
        """Return what differs between states."""
        return {name: value for name, value in vars(self).items() if name not in _SAME}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Add what is the same in all states."""
        vars(self).update(state, random=_RANDOM, _queue=[], _leases=[])

    # -- steps ------------------------------------------------------------------------------------

    def steps(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yield what can happen now, with a name."""
        for pair in self.links:
            yield f"a frame {pair} arrives", partial(self._arrive, pair)
            if self.budget.lost_frames:
                yield f"frames {pair} are lost", partial(self._lose, pair)
        for ordinal in self.operations:
            yield f"the lease answers {ordinal}", partial(self._serve, ordinal, is_lost=False)
            if self.budget.lost_answers:
                yield f"no answer to {ordinal}", partial(self._serve, ordinal, is_lost=True)
        for machine in self._machines:
            process, ordinal = machine.process, machine.ordinal
            if process is None:
                yield f"{ordinal} starts", partial(self._start, machine)
                continue
            if self.budget.ticks:
                yield f"{ordinal} ticks", partial(self._spend_tick, ordinal)
            if self.budget.waits:
                yield f"{ordinal} waits", partial(self._spend_wait, ordinal)
            if self.budget.deaths:
                yield f"{ordinal} dies", partial(self._die, machine)
            if self.budget.messages and process.leading and not process.refusal():
                yield f"{ordinal} stores", partial(self._store, machine)

    def _arrive(self, pair: tuple[int, int]) -> None:
        sender, frame = self.links[pair].pop(0)
        if not self.links[pair]:
            del self.links[pair]
        self._tell(self._machines[pair[1]], Received(sender, frame))

    def _lose(self, pair: tuple[int, int]) -> None:
        self.budget.lost_frames -= 1
        del self.links[pair]

    def _serve(self, ordinal: int, *, is_lost: bool) -> None:
        operation = self.operations[ordinal].pop(0)
        if not self.operations[ordinal]:
            del self.operations[ordinal]
        self.budget.lost_answers -= is_lost
        machine = self._machines[ordinal]
        if isinstance(operation, actions.ReadLease):
            if not is_lost:
                self._tell(machine, LeaseRead(self.lease))
            return
        written: Lease | None = None
        if self.lease.version == operation.replaced:
            written = operation.lease._replace(version=self.lease.version + 1)
            self._check_lease(written)
            self.lease = self._stored = written
            self._check_copies()
        outcome = Outcome.CONFLICT if written is None else Outcome.APPLIED
        if is_lost:
            outcome, written = Outcome.UNKNOWN, None
        self._tell(machine, LeaseWritten(operation.request, outcome, written))

    def _spend_tick(self, ordinal: int) -> None:
        self.budget.ticks -= 1
        self._tick(ordinal, _STEP_S)

    def _spend_wait(self, ordinal: int) -> None:
        self.budget.waits -= 1
        self._tick(ordinal, _LONG_S)

    def _tick(self, ordinal: int, seconds: float) -> None:
        self.clocks_s[ordinal] += seconds
        self._tell(self._machines[ordinal], Ticked())

    def _die(self, machine: Machine) -> None:
        self.budget.deaths -= 1
        self._kill(machine)

    def _store(self, machine: Machine) -> None:
        assert machine.process is not None
        assert machine.process.leading is not None
        self.budget.messages -= 1
        machine.log.append(Record(machine.process.leading.epoch, len(machine.log)))
        self._tell(machine, LogAppended(len(machine.log)))

    # -- what the group does with time and links ---------------------------------------------------

    def _at(self, delay_s: float, step: Callable[[], None]) -> None:
        """Do nothing: steps come from outside."""

    def _tell(self, machine: Machine, event: object) -> None:
        self.now_s = self.clocks_s[machine.ordinal]
        super()._tell(machine, event)  # type: ignore[arg-type]
        if machine.flushed < len(machine.log):
            machine.flushed = len(machine.log)
            super()._tell(machine, LogFlushed(machine.flushed))
        self._pump(machine)

    def _kill(self, machine: Machine, longest_s: float = 0.0) -> None:
        machine.process = None
        machine.streams.clear()
        self.operations.pop(machine.ordinal, None)
        for pair in [pair for pair in self.links if machine.ordinal in pair]:
            del self.links[pair]

    def _send(self, machine: Machine, ordinal: int, frame: frames.Frame) -> None:
        if self._machines[ordinal].process is not None:
            self.links.setdefault((machine.ordinal, ordinal), []).append((machine.member, frame))

    def _read_lease(self, machine: Machine, process: Replica) -> None:
        self.operations.setdefault(machine.ordinal, []).append(actions.ReadLease())

    def _write_lease(
        self,
        machine: Machine,
        process: Replica,
        request: int,
        replaced: int | None,
        lease: Lease,
    ) -> None:
        write = actions.WriteLease(request, replaced, lease)
        self.operations.setdefault(machine.ordinal, []).append(write)

    def _check_authority(self) -> None:
        """Do nothing: clocks run as they like here."""


def _frozen(value: object) -> object:
    """Return what two equal states have in common."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, dict):
        return tuple(sorted((repr(key), _frozen(item)) for key, item in value.items()))
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(repr(item) for item in value))
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(item) for item in value)
    if hasattr(value, "__dict__"):
        items = vars(value).items()
        return tuple((k, _frozen(v)) for k, v in items if k not in ("_replica", "settings"))
    return repr(value)


def _key(group: SteppedGroup) -> int:
    parts = (group._machines, group.links, group.operations, group.lease, vars(group.budget))
    return hash((_frozen(parts), group.acknowledged_end, tuple(group.confirmed)))


def _group_of(state: bytes) -> SteppedGroup:
    """Return a group as it was."""
    group: SteppedGroup = pickle.loads(state)  # noqa: S301 - its own
    return group


@dataclass
class Found:
    """How many states there are, and the newest epoch in one of them."""

    states: int = 1
    epoch: int = 0


def search(*, size: int, min_in_sync: int, budget: Budget) -> Found:
    """See every state that a group can reach.

    Raises:
        InvariantError: with the steps that lead there.
    """
    group = SteppedGroup(size=size, min_in_sync=min_in_sync, budget=budget)
    seen = {_key(group)}
    found = Found()
    left: deque[tuple[bytes, tuple[str, ...]]] = deque([(pickle.dumps(group), ())])
    while left:
        state, path = left.popleft()
        names: list[str] = [name for name, _ in _group_of(state).steps()]
        for number, name in enumerate(names):
            group = _group_of(state)
            try:
                list(group.steps())[number][1]()
            except InvariantError as error:
                error.add_note("; ".join((*path, name)))
                raise
            key = _key(group)
            found.epoch = max(found.epoch, group.lease.epoch)
            if key not in seen:
                seen.add(key)
                left.append((pickle.dumps(group), (*path, name)))
    found.states = len(seen)
    return found
