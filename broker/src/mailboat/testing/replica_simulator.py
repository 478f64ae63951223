"""A group of `mailboat.replication` replicas in simulated time, and what must always hold.

One seed is one life of the group: a network that drops, delays, doubles and reorders frames and
fails in one direction, a store of the lease that loses answers, applies writes late or is away,
clocks of different speed, processes that die between any two actions, machines that lose power.
After `Group.live` the faults end, and `Group.heal` sees that the group is whole again.

Of the log one record is one byte: its physical offset is its number.
"""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from mailboat.replication import actions, frames
from mailboat.replication.durable import Durable
from mailboat.replication.epochs import EpochStart
from mailboat.replication.events import (
    Event,
    HandOver,
    HolderDied,
    LeaseRead,
    LeaseWritten,
    LogAppended,
    LogFlushed,
    Outcome,
    Received,
    Ticked,
)
from mailboat.replication.lease import Holder, Lease, Member
from mailboat.replication.replica import Replica
from mailboat.replication.state import Settings

_TICK_S = 0.1
_CHUNK = 4


class InvariantError(AssertionError):
    """Something does not hold that must; the text begins with its name."""


class Record(NamedTuple):
    """One byte of the log: who wrote it, and which message it is."""

    epoch: int
    number: int


@dataclass
class _Streaming:
    session: int
    epoch: int
    at: int


@dataclass
class _Machine:
    """One replica's disk, and the process on it while there is one."""

    ordinal: int
    rate: float
    durable: Durable
    log: list[Record] = field(default_factory=list)
    flushed: int = 0
    kernel_boot: int = 1
    process: Replica | None = None
    streams: dict[int, _Streaming] = field(default_factory=dict)

    @property
    def member(self) -> Member:
        return Member(self.ordinal, self.durable.store_id)


class Group:
    """Replicas, their network, their lease and one client."""

    def __init__(
        self, seed: int, *, size: int = 3, min_in_sync: int = 2, is_sync_flush: bool = False
    ) -> None:
        """Make a group whose members are all in sync and have nothing."""
        self.random = Random(seed)
        self.now_s = 100.0
        self.is_sync_flush = is_sync_flush
        self.has_faults = True
        self.waits_for_person = False
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count(1)
        self._machines = [
            _Machine(ordinal, self.random.uniform(0.85, 1.2), Durable(f"s{ordinal}"))
            for ordinal in range(size)
        ]
        self._blocked: set[tuple[int, int]] = set()
        self._is_lease_away: set[int] = set()
        self._arrivals_s: dict[tuple[int, int], float] = {}
        members = frozenset(machine.member for machine in self._machines)
        self.lease = Lease(1, None, 0, members, min_in_sync)
        # What was ever shown, and answered, by physical offset.
        self.confirmed: list[Record] = []
        self.acknowledged_end = 0
        self._leaders: dict[int, Holder] = {}
        self._starts: dict[int, int] = {}
        for machine in self._machines:
            self._start(machine)
        self._at(0.05, self._send_a_message)
        self._at(1.0, self._fail)

    # -- running ------------------------------------------------------------------------------

    def live(self, seconds: float) -> None:
        """Let time pass, with faults and a client."""
        self._run_until(self.now_s + seconds)

    def heal(self, seconds: float = 40.0) -> None:
        """End all faults; then somebody leads, and all logs become the same.

        Raises:
            InvariantError: they do not.
        """
        self.has_faults = False
        self._blocked.clear()
        self._is_lease_away.clear()
        for machine in self._machines:
            if machine.process is None:
                self._start(machine)
        self._run_until(self.now_s + seconds)
        before = self.acknowledged_end
        self._run_until(self.now_s + 3)
        leaders = [m for m in self._machines if m.process is not None and m.process.leading]
        if not leaders and self.lease.in_sync - {machine.member for machine in self._machines}:
            # Of a set that lost a volume, and whose others may have lost what they had not
            # flushed, nobody may lead by himself.
            self.waits_for_person = True
            return
        if len(leaders) != 1 or self.acknowledged_end == before:
            raise InvariantError(f"I16: {len(leaders)} lead, {before} messages acknowledged")
        ends = {len(machine.log) for machine in self._machines}
        for machine in self._machines:
            shorter = min(len(machine.log), len(leaders[0].log))
            if (
                max(ends) - len(machine.log) > 20
                or machine.log[:shorter] != leaders[0].log[:shorter]
            ):
                raise InvariantError(f"I16: replica {machine.ordinal} has another log")

    def _run_until(self, end_s: float) -> None:
        while self._queue and self._queue[0][0] <= end_s:
            self.now_s, _, step = heapq.heappop(self._queue)
            step()
        self.now_s = end_s

    def _at(self, delay_s: float, step: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now_s + delay_s, next(self._count), step))

    # -- processes ------------------------------------------------------------------------------

    def _start(self, machine: _Machine) -> None:
        boot = f"b{next(self._count)}"
        settings = Settings(
            machine.ordinal,
            boot,
            f"k{machine.kernel_boot}",
            is_sync_flush=self.is_sync_flush,
        )
        machine.streams.clear()
        machine.flushed = len(machine.log)
        now_s = self.now_s * machine.rate
        process = machine.process = Replica(settings, machine.durable, len(machine.log), now_s)

        def tick() -> None:
            if machine.process is not process:
                return
            if machine.flushed < len(machine.log) and self.random.random() < 0.5:
                machine.flushed = len(machine.log)
                self._tell(machine, LogFlushed(machine.flushed))
            self._tell(machine, Ticked())
            self._pump(machine)
            self._at(_TICK_S * self.random.uniform(0.8, 1.2), tick)

        self._at(self.random.random() * _TICK_S, tick)

    def _tell(self, machine: _Machine, event: Event) -> None:
        process = machine.process
        if process is None:
            return
        for action in process.handle(event, self.now_s * machine.rate):
            self._perform(machine, process, action)
            if self.has_faults and self.random.random() < 0.0005:
                self._kill(machine)
            if machine.process is not process:
                break
        self._check_authority()

    def _kill(self, machine: _Machine) -> None:
        machine.process = None
        machine.streams.clear()

        def start() -> None:
            if machine.process is None:
                self._start(machine)

        self._at(self.random.uniform(0.3, 6.0), start)

    def _cut_power(self, machine: _Machine) -> None:
        """Lose some of what was not flushed, for good."""
        kept = self.random.randint(machine.flushed, len(machine.log))
        del machine.log[kept:]
        machine.flushed = kept
        machine.kernel_boot += 1
        self._kill(machine)
        self._check_copies()

    def _lose_disk(self, machine: _Machine) -> None:
        """Replace the volume by an empty one."""
        machine.durable = Durable(f"s{next(self._count)}")
        machine.log.clear()
        machine.flushed = 0
        self._kill(machine)

    def _perform(self, machine: _Machine, process: Replica, action: actions.Action) -> None:
        match action:
            case actions.Persist(state):
                machine.durable = state
            case actions.CutLog(end):
                del machine.log[end:]
                machine.flushed = min(machine.flushed, end)
                self._check_copies()
            case actions.ResetLog():
                self._lose_disk(machine)
            case actions.WriteLog(physical_offset, _, records):
                assert physical_offset == len(machine.log)
                assert isinstance(records, tuple)
                machine.log += records
            case actions.Send(ordinal, frame):
                self._send(machine, ordinal, frame)
            case actions.Stream(ordinal, session, epoch, at):
                machine.streams[ordinal] = _Streaming(session, epoch, at)
            case actions.ReadLease():
                self._read_lease(machine, process)
            case actions.WriteLease(request, replaced, lease):
                self._write_lease(machine, process, request, replaced, lease)
            case actions.Lead(epoch, start, may_have_lost):
                self._check_leader(machine, process, epoch, start, may_have_lost=may_have_lost)
            case actions.Confirm(end):
                self._check_confirmed(machine, process, end)
            case actions.Stop():
                self._kill(machine)
            case actions.Alarm(text):
                raise InvariantError(f"I11: {text}")

    # -- network --------------------------------------------------------------------------------

    def _send(self, machine: _Machine, ordinal: int, frame: frames.Frame) -> None:
        sender = machine.member
        pair = machine.ordinal, ordinal
        target = self._machines[ordinal]

        def arrive() -> None:
            if pair not in self._blocked:
                self._tell(target, Received(sender, frame))

        chance = self.random.random() if self.has_faults else 1.0
        if chance < 0.01 or pair in self._blocked:
            return
        # In order, as a connection delivers them, but for what comes a second time.
        arrival_s = self.now_s + self.random.uniform(0.001, 0.03)
        arrival_s = self._arrivals_s[pair] = max(arrival_s, self._arrivals_s.get(pair, 0.0))
        self._at(arrival_s - self.now_s, arrive)
        if chance < 0.03:
            self._at(self.random.uniform(0.01, 4.0), arrive)

    def _pump(self, machine: _Machine) -> None:
        process = machine.process
        for ordinal, stream in machine.streams.items():
            if process is None or process.leading is None or process.leading.epoch != stream.epoch:
                return
            while stream.at < len(machine.log):
                records = tuple(machine.log[stream.at : stream.at + _CHUNK])
                end = stream.at + len(records)
                data = frames.Data(stream.session, stream.epoch, stream.at, end, records)
                stream.at = end
                self._send(machine, ordinal, data)

    # -- the lease ------------------------------------------------------------------------------

    def _read_lease(self, machine: _Machine, process: Replica) -> None:
        def answer() -> None:
            lease = self.lease
            if machine.process is process and machine.ordinal not in self._is_lease_away:
                self._tell(machine, LeaseRead(lease))

        self._at(self.random.uniform(0.005, 0.05), answer)

    def _write_lease(
        self,
        machine: _Machine,
        process: Replica,
        request: int,
        replaced: int | None,
        lease: Lease,
    ) -> None:
        chance = self.random.random() if self.has_faults else 1.0
        is_away = machine.ordinal in self._is_lease_away

        def answer(outcome: Outcome, written: Lease | None) -> None:
            if machine.process is process:
                self._tell(machine, LeaseWritten(request, outcome, written))

        def apply() -> None:
            written = None
            outcome = Outcome.CONFLICT
            if self.lease.version == replaced:
                outcome = Outcome.APPLIED
                written = lease._replace(version=self.lease.version + 1)
                self._check_lease(written)
                self.lease = written
                self._check_copies()
            if chance >= 0.05:
                self._at(0.005, lambda: answer(outcome, written))

        if not is_away:
            # A write without an answer may be applied long after it was given up.
            self._at(self.random.uniform(0.0, 5.0) if chance < 0.05 else 0.005, apply)
        if is_away or chance < 0.05:
            self._at(1.0, lambda: answer(Outcome.UNKNOWN, None))

    # -- the client and the faults ----------------------------------------------------------------

    def _send_a_message(self) -> None:
        for machine in self._machines:
            process = machine.process
            if process is not None and process.leading is not None and not process.refusal():
                record = Record(process.leading.epoch, next(self._count))
                machine.log.append(record)
                self._tell(machine, LogAppended(len(machine.log)))
                if self.random.random() < 0.7:
                    self._pump(machine)
        self._at(self.random.uniform(0.05, 0.5), self._send_a_message)

    def _fail(self) -> None:
        self._at(self.random.uniform(0.5, 4.0), self._fail)
        if not self.has_faults:
            return
        machine = self.random.choice(self._machines)
        other = self.random.choice(self._machines)
        match self.random.randrange(10):
            case 0:
                self._kill(machine)
            case 1:
                self._cut_power(machine)
            case 2:
                self._blocked.add((machine.ordinal, other.ordinal))
            case 3:
                for peer in self._machines:
                    self._blocked |= {
                        (machine.ordinal, peer.ordinal),
                        (peer.ordinal, machine.ordinal),
                    }
            case 4:
                self._is_lease_away.add(machine.ordinal)
            case 5 | 6:
                self._blocked.clear()
                self._is_lease_away.clear()
            case 7:
                self._tell(machine, HandOver(other.ordinal))
            case 8:
                # Whether it is true or not.
                self._tell(machine, HolderDied())
            case 9:
                # A second volume is lost only where the copies are more than the group asks for.
                lost = machine.member in self.lease.in_sync
                if not lost or len(self.lease.in_sync) > self.lease.min_in_sync + 1:
                    self._lose_disk(machine)

    # -- invariants -----------------------------------------------------------------------------

    def _check_authority(self) -> None:
        holders = [
            machine.ordinal
            for machine in self._machines
            if machine.process is not None
            and machine.process.leading is not None
            and self._has_authority(machine, machine.process)
        ]
        if len(holders) > 1:
            raise InvariantError(f"I8: {holders} have authority")

    def _has_authority(self, machine: _Machine, process: Replica) -> bool:
        before_s, process.now_s = process.now_s, self.now_s * machine.rate
        try:
            return process.has_authority
        finally:
            process.now_s = before_s

    def _check_leader(
        self, machine: _Machine, process: Replica, epoch: int, start: int, *, may_have_lost: bool
    ) -> None:
        if self._leaders.setdefault(epoch, process.me) != process.me:
            raise InvariantError(f"I1: two lead epoch {epoch}")
        if self._starts.setdefault(epoch, start) != start:
            raise InvariantError(f"I1: epoch {epoch} begins twice")
        if EpochStart(epoch, start) not in machine.durable.epochs:
            raise InvariantError(f"I1: epoch {epoch} is not durable")
        if process.is_suspect and not may_have_lost:
            raise InvariantError(
                f"I10: replica {machine.ordinal} may have lost something, and leads"
            )
        if not may_have_lost:
            self._check_copy(machine, "I4")
        elif len(machine.log) < self.acknowledged_end:
            # All members lost power: it is reported, and forgiven.
            self.acknowledged_end = len(machine.log)
            del self.confirmed[len(machine.log) :]

    def _check_confirmed(self, machine: _Machine, process: Replica, end: int) -> None:
        if end > len(machine.log):
            raise InvariantError(f"I5: {end} confirmed, the log ends at {len(machine.log)}")
        known = min(end, len(self.confirmed))
        if machine.log[:known] != self.confirmed[:known]:
            raise InvariantError("I6: what could be read is another message now")
        self.confirmed += machine.log[known:end]
        if process.leading is not None and end > self.acknowledged_end:
            self.acknowledged_end = end
            self._check_copies()

    def _check_lease(self, lease: Lease) -> None:
        if len(lease.in_sync) < lease.min_in_sync or lease.epoch < self.lease.epoch:
            raise InvariantError(f"I9: {lease}")
        if lease.holder is None or lease.holder.member not in lease.in_sync:
            raise InvariantError(f"I10: the holder is not in {lease}")

    def _check_copies(self) -> None:
        for machine in self._machines:
            if machine.member in self.lease.in_sync and not self._is_suspect(machine):
                self._check_copy(machine, "I3")

    def _is_suspect(self, machine: _Machine) -> bool:
        is_same_run = machine.durable.trusted_boot in ("", f"k{machine.kernel_boot}")
        return not self.is_sync_flush and not is_same_run

    def _check_copy(self, machine: _Machine, name: str) -> None:
        end = self.acknowledged_end
        if machine.log[:end] != self.confirmed[:end]:
            raise InvariantError(f"{name}: replica {machine.ordinal} lacks what was acknowledged")
        if self.is_sync_flush and name == "I3" and machine.flushed < end:
            raise InvariantError(f"{name}: replica {machine.ordinal} has not flushed it")
