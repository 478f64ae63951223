"""A group of `mailboat.replication` replicas in simulated time, and what must always hold.

One seed is one life of the group: a network that drops, delays, doubles and reorders frames and
fails in one direction, a store of the lease that loses answers, applies writes late or is away,
clocks of different speed, processes that die between any two actions, machines that lose power.
After `Group.live` the faults end, and `Group.heal` sees that the group is whole again.

Of the log one record is one byte: its physical offset is its number.
"""

import dataclasses
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
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
    Leave,
    LinkClosed,
    Linked,
    LogAppended,
    LogFlushed,
    Outcome,
    Received,
    Release,
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


class _Count:
    """Numbers from 1, in an object that can be pickled."""

    def __init__(self) -> None:
        self._last = 0

    def __next__(self) -> int:
        self._last += 1
        return self._last


@dataclass
class _Streaming:
    session: int
    epoch: int
    at: int


@dataclass
class Machine:
    """One replica's disk, and the process on it while there is one."""

    ordinal: int
    rate: float
    durable: Durable
    log: list[Record] = field(default_factory=list)
    flushed: int = 0
    agreed: int = 0
    """How much of the log is known to be what was confirmed."""

    kernel_boot: int = 1
    place: int = 1
    """Where its processes run: each fourth one runs elsewhere, as a pod that was made anew."""

    process: Replica | None = None
    streams: dict[int, _Streaming] = field(default_factory=dict)

    @property
    def member(self) -> Member:
        """The replica, as the recorded set names it."""
        return Member(self.ordinal, self.durable.store_id)


class Group:
    """Replicas, their network, their lease and one client."""

    def __init__(
        self, seed: int, *, size: int = 3, min_in_sync: int = 2, is_sync_flush: bool = False
    ) -> None:
        """Make a group whose members are all in sync and have nothing."""
        self.random = Random(seed)
        # Its own: what else happens in a life does not depend on it.
        self._link_random = Random(seed)
        self.now_s = 100.0
        self.is_sync_flush = is_sync_flush
        self.has_faults = True
        self._heals = False
        self.waits_for_person = False
        self.set_back = self.losses = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = _Count()
        self._machines = [
            Machine(ordinal, self.random.uniform(0.85, 1.2), Durable(f"s{ordinal}"))
            for ordinal in range(size)
        ]
        self._blocked: set[tuple[int, int]] = set()
        # Links on which beats get through, and no messages.
        self._set_back_volumes: set[int] = set()
        self._clogged: set[tuple[int, int]] = set()
        self._is_lease_away: set[int] = set()
        # Until when a replica has no right to write the lease.
        self._refused_until_s: dict[int, float] = {}
        self._arrivals_s: dict[tuple[int, int], float] = {}
        members = frozenset(machine.member for machine in self._machines)
        self.lease = Lease(1, None, 0, members, min_in_sync)
        self._stored: Lease | None = self.lease
        self._leases = [self.lease]
        self._version = 1
        # What was ever shown, and answered, by physical offset.
        self.confirmed: list[Record] = []
        self.acknowledged_end = 0
        self._leaders: dict[int, Holder] = {}
        for machine in self._machines:
            self._start(machine)
        self._at(0.05, self._send_a_message)
        self._at(1.0, self._fail)
        self._at(2.0, self._close_a_link)

    @property
    def leaders(self) -> int:
        """How many epochs were led."""
        return len(self._leaders)

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
        self._heals = True
        self._mend_links()
        for machine in self._machines:
            if machine.process is None:
                self._start(machine)
        end_s = self.now_s + seconds
        while True:
            before = self.acknowledged_end
            self._run_until(self.now_s + 3)
            lack = self._lack(before)
            if not lack:
                return
            if self.now_s >= end_s:
                break
        if self._may_wait_for_person():
            self.waits_for_person = True
            return
        raise InvariantError(f"I16: {lack}")

    def _lack(self, acknowledged_before: int) -> str:
        """Say what the group still lacks to be whole."""
        leaders = [m for m in self._machines if m.process is not None and m.process.leading]
        if len(leaders) != 1 or self.acknowledged_end == acknowledged_before:
            return f"{len(leaders)} lead, {acknowledged_before} messages acknowledged"
        end = max(len(machine.log) for machine in self._machines)
        for machine in self._machines:
            if len(machine.log) < end - 20 or not self._agrees(machine, self.acknowledged_end - 20):
                return f"replica {machine.ordinal} has another log"
            shorter = min(len(machine.log), len(leaders[0].log))
            if machine.log[:shorter] != leaders[0].log[:shorter]:
                return f"replica {machine.ordinal} has another tail"
        return ""

    def _may_wait_for_person(self) -> bool:
        """Tell whether nobody may lead by himself.

        A set that lost a volume, and whose others may have lost what they had not flushed, or all
        of which lost what they knew to be confirmed; or a lease that went back in time while
        nobody led.
        """
        if any(m.process is not None and m.process.leading for m in self._machines):
            return False
        members = [m for m in self._machines if m.member in self.lease.in_sync]
        known_end = max((m.durable.confirmed for m in members), default=0)
        have_lost = all(self._is_suspect(m) and len(m.log) < known_end for m in members)
        is_one_gone = len(members) < len(self.lease.in_sync)
        return is_one_gone or have_lost or self._stored is not self.lease

    def _mend_links(self) -> None:
        self._blocked.clear()
        self._clogged.clear()
        self._is_lease_away.clear()
        self._refused_until_s.clear()

    def _run_until(self, end_s: float) -> None:
        while self._queue and self._queue[0][0] <= end_s:
            self.now_s, _, step = heapq.heappop(self._queue)
            step()
        self.now_s = end_s

    def _at(self, delay_s: float, step: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now_s + delay_s, next(self._count), step))

    # -- processes ------------------------------------------------------------------------------

    def _start(self, machine: Machine) -> None:
        machine.streams.clear()
        machine.flushed = len(machine.log)
        now_s = self.now_s * machine.rate
        settings = self._settings(machine)
        process = machine.process = Replica(settings, machine.durable, len(machine.log), now_s)

        def tick() -> None:
            if machine.process is not process:
                return
            flushes = self.random.random() < (0.5 if self.is_sync_flush else 0.03)
            if machine.flushed < len(machine.log) and flushes:
                machine.flushed = len(machine.log)
                self._tell(machine, LogFlushed(machine.flushed))
            self._tell(machine, Ticked())
            self._pump(machine)
            self._at(_TICK_S * self.random.uniform(0.8, 1.2), tick)

        self._at(self.random.random() * _TICK_S, tick)

    def _settings(self, machine: Machine) -> Settings:
        number = next(self._count)
        machine.place += number % 4 == 0
        return Settings(
            machine.ordinal,
            f"p{machine.place}/b{number}",
            f"k{machine.kernel_boot}",
            is_sync_flush=self.is_sync_flush,
        )

    def _tell(self, machine: Machine, event: Event) -> None:
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

    def block(self, one: int, other: int) -> None:
        """Let nothing pass between two replicas; `heal` ends it."""
        self._blocked |= {(one, other), (other, one)}

    def cut_off_lease(self, ordinal: int) -> None:
        """Keep the lease from a replica; `heal` ends it."""
        self._is_lease_away.add(ordinal)

    def set_back_volume(self, ordinal: int, *, records: int) -> None:
        """Put a volume back to the state it had when its log ended at `records`."""
        machine = self._machines[ordinal]
        self._cut_log(machine, records)
        self._set_back_volumes.add(machine.ordinal)
        machine.durable = machine.durable._replace(confirmed=records)
        self._kill(machine)

    def clog(self, sender: int, receiver: int) -> None:
        """Let beats through to a replica, and no messages; `heal` ends it."""
        self._clogged.add((sender, receiver))

    def kill(self, ordinal: int, *, until_healed: bool = False) -> None:
        """End a process; it begins anew after a few seconds, or with `heal`."""
        if until_healed:
            self._machines[ordinal].process = None
        else:
            self._kill(self._machines[ordinal])

    def _kill(self, machine: Machine, longest_s: float = 6.0) -> None:
        machine.process = None
        machine.streams.clear()
        # What a dead process sent may be late; a new connection does not wait for it.
        for pair in [pair for pair in self._arrivals_s if machine.ordinal in pair]:
            del self._arrivals_s[pair]

        self._tell_others(machine, LinkClosed(machine.member))

        def start() -> None:
            if machine.process is None:
                self._start(machine)
                self._tell_others(machine, Linked(machine.member))

        self._at(self.random.uniform(0.3, longest_s), start)

    def _tell_others(self, machine: Machine, event: Linked | LinkClosed) -> None:
        """Let most of the others see that the links to a machine have ended, or are there again."""
        for other in self._machines:
            if other is not machine and self._link_random.random() < 0.8:
                delay_s = self._link_random.uniform(0.001, 0.3)
                self._at(delay_s, partial(self._tell, other, event))

    def _close_a_link(self) -> None:
        """End the link between two machines, and have it made again."""
        self._at(self._link_random.uniform(1.0, 8.0), self._close_a_link)
        if not self.has_faults:
            return
        one, other = self._link_random.sample(self._machines, 2)
        pairs = {(one.ordinal, other.ordinal), (other.ordinal, one.ordinal)} - self._blocked
        self._blocked |= pairs
        self._tell(one, LinkClosed(other.member))
        self._tell(other, LinkClosed(one.member))

        def make_again() -> None:
            self._blocked -= pairs
            self._tell(one, Linked(other.member))
            self._tell(other, Linked(one.member))

        self._at(self._link_random.uniform(0.05, 2.0), make_again)

    def _cut_power(self, machine: Machine) -> None:
        """Lose some of what was not flushed, for good."""
        self._cut_log(machine, self.random.randint(machine.flushed, len(machine.log)))
        machine.flushed = len(machine.log)
        machine.kernel_boot += 1
        self._kill(machine)
        self._check_copies()

    def _lose_disk(self, machine: Machine) -> None:
        """Replace the volume by an empty one."""
        machine.durable = Durable(f"s{next(self._count)}")
        self._cut_log(machine, 0)
        self._kill(machine)

    def _cut_log(self, machine: Machine, end: int) -> None:
        del machine.log[end:]
        machine.flushed = min(machine.flushed, end)
        machine.agreed = min(machine.agreed, end)

    def _perform(self, machine: Machine, process: Replica, action: actions.Action) -> None:
        match action:
            case actions.Persist(state):
                machine.durable = state
            case actions.Note(state):
                note = partial(self._note, machine, machine.durable, state)
                self._at(self.random.uniform(0.0, 0.05), note)
            case actions.CutLog(end):
                self._cut_log(machine, end)
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
                self._alarm(machine, text)

    def _alarm(self, machine: Machine, text: str) -> None:
        if not self.losses:
            raise InvariantError(f"I11: {text}")
        self._lose_disk(machine)  # As the person decides, who was told of the loss.

    # -- network --------------------------------------------------------------------------------

    def _send(self, machine: Machine, ordinal: int, frame: frames.Frame) -> None:
        sender = machine.member
        pair = machine.ordinal, ordinal
        target = self._machines[ordinal]

        def arrive() -> None:
            if pair not in self._blocked:
                self._tell(target, Received(sender, frame))

        chance = self.random.random() if self.has_faults else 0.5
        if isinstance(frame, frames.Ack) and 0.5 < chance < 0.502:
            # What no follower sends, and a leader does not believe.
            frame = dataclasses.replace(frame, end=frame.end + 1000)
        if chance < 0.01 or pair in self._blocked:
            return
        # In order, as a connection delivers them, but for what comes a second time.
        most_s = 3.0 if chance > 0.998 else 0.03
        arrival_s = self.now_s + self.random.uniform(0.001, most_s)
        arrival_s = self._arrivals_s[pair] = max(arrival_s, self._arrivals_s.get(pair, 0.0))
        self._at(arrival_s - self.now_s, arrive)
        if chance < 0.03:
            self._at(self.random.uniform(0.01, self.random.choice((1.0, 4.0, 20.0))), arrive)

    def _note(self, machine: Machine, before: Durable, state: Durable) -> None:
        """Make a state durable if nothing else is since; it is lost with the process."""
        if machine.process is not None and machine.durable is before:
            machine.durable = state

    def _pump(self, machine: Machine) -> None:
        process = machine.process
        if process is None or process.leading is None:
            return
        for ordinal, stream in machine.streams.items():
            if process.leading.epoch != stream.epoch:
                return
            if (machine.ordinal, ordinal) in self._clogged:
                continue
            while stream.at < len(machine.log):
                records = tuple(machine.log[stream.at : stream.at + _CHUNK])
                end = stream.at + len(records)
                confirmed = process.confirmed
                data = frames.Data(stream.session, stream.epoch, stream.at, end, confirmed, records)
                stream.at = end
                self._send(machine, ordinal, data)

    # -- the lease ------------------------------------------------------------------------------

    def _read_lease(self, machine: Machine, process: Replica) -> None:
        def read() -> None:
            lease = self._stored
            self._at(self.random.uniform(0.001, 0.02), lambda: answer(lease))

        def answer(lease: Lease | None) -> None:
            if machine.process is process and machine.ordinal not in self._is_lease_away:
                self._tell(machine, LeaseRead(lease))

        self._at(self.random.uniform(0.001, 0.03), read)

    def _write_lease(
        self,
        machine: Machine,
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
            if (None if self._stored is None else self._stored.version) == replaced:
                outcome = Outcome.APPLIED
                self._version += 1
                written = lease._replace(version=self._version)
                self._check_lease(written)
                self.lease = self._stored = written
                self._leases.append(written)
                self._check_copies()
            if chance >= 0.05:
                self._at(0.005, lambda: answer(outcome, written))

        if not is_away and self.now_s < self._refused_until_s.get(machine.ordinal, 0.0):
            self._at(0.005, lambda: answer(Outcome.REFUSED, None))
            return
        if chance < 0.02:
            # Its pod was deleted, or an API server has just begun; what was sent before may count.
            self._refused_until_s[machine.ordinal] = self.now_s + 4.0
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
                for _ in range(self.random.choice((1, 1, 1, 6))):
                    machine.log.append(Record(process.leading.epoch, next(self._count)))
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
        pair = machine.ordinal, other.ordinal
        match self.random.randrange(12):
            case 0:
                # In order, or not.
                if machine.process is not None and self.random.random() < 0.3:
                    self._tell(machine, Leave())
                    self._at(0.1, lambda: self._kill(machine))
                else:
                    self._kill(machine)
            case 1:
                self._cut_power(machine)
            case 2:
                self._blocked.add(pair)
            case 3:
                self._split()
            case 4:
                self._clogged.add(pair)
            case 5 | 6:
                self._mend_links()
            case number:
                self._fail_otherwise(number, machine, other)

    def _split(self) -> None:
        """Let no frame pass between some replicas and the others, and all pass elsewhere."""
        self._mend_links()
        some = self.random.randrange(1, (1 << len(self._machines)) - 1)
        sides = [some >> machine.ordinal & 1 for machine in self._machines]
        for machine, side in enumerate(sides):
            self._blocked |= {(machine, peer) for peer, its in enumerate(sides) if its != side}

    def _fail_otherwise(self, number: int, machine: Machine, other: Machine) -> None:
        match number:
            case 7:
                release = Release(leaves=self.now_s % 2 < 1)
                self._tell(machine, release if machine is other else HandOver(other.ordinal))
            case 8:
                # Whether it is true or not.
                self._tell(machine, HolderDied())
            case 9:
                # A second volume is lost only where the copies are more than the group asks for.
                lost = machine.member in self.lease.in_sync
                if not lost or len(self.lease.in_sync) > self.lease.min_in_sync + 1:
                    self._lose_disk(machine)
            case 10:
                self._is_lease_away.add(machine.ordinal)
            case 11:
                self._set_back_lease()

    def _set_back_lease(self) -> None:
        """Lose the lease, or put an old one in its place, where a leader lives to write it anew.

        All know the present epoch, and nothing else fails for a while: what an old set allows a
        replica that knows no better, with everybody else away, is lost.
        """
        led = any(m.process is not None and m.process.has_authority for m in self._machines)
        all_know = all(m.process and m.durable.seen == self.lease.epoch for m in self._machines)
        if not led or not all_know:
            return
        self.set_back += 1
        self._mend_links()
        self.has_faults = False
        self._version += 1
        old = self.random.choice([None, *self._leases[-20:]])
        self._stored = None if old is None else old._replace(version=self._version)

        def go_on() -> None:
            self.has_faults = not self._heals

        self._at(12.0, go_on)

    # -- invariants -----------------------------------------------------------------------------

    def _check_authority(self) -> None:
        leading = [m for m in self._machines if m.process is not None and m.process.leading]
        if len(leading) < 2:
            return
        holders = [m.ordinal for m in leading if m.process and self._has_authority(m, m.process)]
        if len(holders) > 1:
            raise InvariantError(f"I8: {holders} have authority")

    def _has_authority(self, machine: Machine, process: Replica) -> bool:
        before_s, process.now_s = process.now_s, self.now_s * machine.rate
        try:
            return process.has_authority
        finally:
            process.now_s = before_s

    def _check_leader(
        self, machine: Machine, process: Replica, epoch: int, start: int, *, may_have_lost: bool
    ) -> None:
        before = self._leaders.setdefault(epoch, process.me)
        if before != process.me and self._is_known(epoch, before, machine):
            raise InvariantError(f"I1: two lead epoch {epoch}")
        self._leaders[epoch] = process.me
        if EpochStart(epoch, start) not in machine.durable.epochs:
            raise InvariantError(f"I1: epoch {epoch} is not durable")
        if not may_have_lost:
            self._check_not_suspect(machine)
            self._check_copy(machine, "I4")
            return
        # All members lost power: it is reported, and forgiven.
        self.losses += 1
        while not self._agrees(machine, len(self.confirmed)):
            self.confirmed.pop()
        self.acknowledged_end = min(self.acknowledged_end, len(self.confirmed))
        for other in self._machines:
            other.agreed = min(other.agreed, len(self.confirmed))

    def _is_known(self, epoch: int, leader: Holder, new: Machine) -> bool:
        """Tell whether anybody still has something of an epoch whose leader may have lost it."""
        if leader.member == new.member:
            return True
        return any(
            machine.member == leader.member
            or any(entry.epoch == epoch for entry in machine.durable.epochs)
            for machine in self._machines
            if machine is not new
        )

    def _check_not_suspect(self, machine: Machine) -> None:
        if self._is_suspect(machine):
            raise InvariantError(
                f"I10: replica {machine.ordinal} may have lost something, and leads"
            )

    def _check_confirmed(self, machine: Machine, process: Replica, end: int) -> None:
        if end > len(machine.log):
            raise InvariantError(f"I5: {end} confirmed, the log ends at {len(machine.log)}")
        known = min(end, len(self.confirmed))
        if not self._agrees(machine, known):
            raise InvariantError("I6: what could be read is another message now")
        self.confirmed += machine.log[known:end]
        if process.leading is not None and end > self.acknowledged_end:
            self.acknowledged_end = end
            self._check_copies()

    def _check_lease(self, lease: Lease) -> None:
        if len(lease.in_sync) < lease.min_in_sync or lease.epoch < self.lease.epoch:
            raise InvariantError(f"I9: {lease}")
        if lease.holder is not None and lease.holder.member not in lease.in_sync:
            raise InvariantError(f"I10: the holder is not in {lease}")

    def _check_copies(self) -> None:
        for machine in self._machines:
            is_old = self._is_suspect(machine) or machine.ordinal in self._set_back_volumes
            if machine.member in self.lease.in_sync and not is_old:
                self._check_copy(machine, "I3")

    def _is_suspect(self, machine: Machine) -> bool:
        is_same_run = machine.durable.trusted_boot in ("", f"k{machine.kernel_boot}")
        return not self.is_sync_flush and not is_same_run

    def _check_copy(self, machine: Machine, name: str) -> None:
        end = self.acknowledged_end
        if not self._agrees(machine, end):
            raise InvariantError(f"{name}: replica {machine.ordinal} lacks what was acknowledged")
        if self.is_sync_flush and name == "I3" and machine.flushed < end:
            raise InvariantError(f"{name}: replica {machine.ordinal} has not flushed it")

    def _agrees(self, machine: Machine, end: int) -> bool:
        """Tell whether a log has what was confirmed below `end`."""
        at = machine.agreed
        if at < end:
            if machine.log[at:end] != self.confirmed[at:end]:
                return False
            machine.agreed = end
        return True
