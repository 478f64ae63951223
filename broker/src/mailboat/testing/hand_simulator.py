"""A group of `mailboat.replication` replicas in simulated time in which a person says who leads.

There is no store of the lease: what a leader writes is so at once, and whoever talks to another
replica hears whom that one believes to lead. The person promotes replicas at random times, while
another one leads, or two at once, and has leaders hand over. Volumes and power are lost; of volumes
no more than one fewer than have each message.

What `mailboat.testing.replica_simulator` checks holds here too, but for authority, which a person
answers for. In place of the recorded set, as many replicas as the group asks for have what was
acknowledged, without those that lost a volume or power.
"""

from mailboat.replication import actions, frames
from mailboat.replication.events import HandOver, LeaseRead, LeaseWritten, Outcome, Promote
from mailboat.replication.hand_election import HandElection
from mailboat.replication.lease import Lease
from mailboat.replication.replica import Replica
from mailboat.replication.state import ByHand, Settings
from mailboat.testing.replica_simulator import Group, InvariantError, Machine

_OPEN_S = 1.0


class HandGroup(Group):
    """Replicas, their network, a person and one client."""

    def __init__(
        self, seed: int, *, size: int = 3, min_in_sync: int = 2, is_sync_flush: bool = False
    ) -> None:
        """Make a group of empty volumes in which replica 0 begins."""
        self._size, self._min_in_sync = size, min_in_sync
        # What a replica has been told of who leads, in this run of its process.
        self._believed: dict[Replica, Lease] = {}
        self._lost_volumes = 0
        self.promotions = self.handovers = 0
        super().__init__(seed, size=size, min_in_sync=min_in_sync, is_sync_flush=is_sync_flush)
        self._at(0.5, self._open_links)
        self._at(3.0, self._promote_somebody)
        self._at(5.0, self._hand_over_to_somebody)

    # -- who leads --------------------------------------------------------------------------------

    def _settings(self, machine: Machine) -> Settings:
        by_hand = ByHand(self._size, self._min_in_sync, begins=machine.ordinal == 0)
        return Settings(
            machine.ordinal,
            f"b{next(self._count)}",
            f"k{machine.kernel_boot}",
            is_sync_flush=self.is_sync_flush,
            by_hand=by_hand,
        )

    def _believe(self, process: Replica, lease: Lease | None) -> None:
        known = self._believed.get(process)
        if lease is not None and (known is None or lease.epoch > known.epoch):
            self._believed[process] = lease

    def _open_links(self) -> None:
        """Let neighbours tell each other who leads, as each new link does."""
        for sender in self._machines:
            for target in self._machines:
                if sender is not target and self.random.random() < 0.7:
                    self._open(sender, target)
        living = {m.process for m in self._machines}
        self._believed = {p: lease for p, lease in self._believed.items() if p in living}
        self._at(_OPEN_S * self.random.uniform(0.7, 1.3), self._open_links)

    def _open(self, sender: Machine, target: Machine) -> None:
        if sender.process is None or (sender.ordinal, target.ordinal) in self._blocked:
            return
        self._believe(sender.process, sender.process.lease)
        lease = self._believed.get(sender.process)

        def arrive() -> None:
            if target.process is not None:
                self._believe(target.process, lease)

        self._at(self.random.uniform(0.001, 0.05), arrive)

    def _read_lease(self, machine: Machine, process: Replica) -> None:
        self._believe(process, process.lease)
        lease = self._believed.get(process)

        def answer() -> None:
            if machine.process is process:
                self._tell(machine, LeaseRead(lease))

        self._at(self.random.uniform(0.0, 0.05), answer)

    def _write_lease(
        self,
        machine: Machine,
        process: Replica,
        request: int,
        replaced: int | None,
        lease: Lease,
    ) -> None:
        if process.leading is None or lease.epoch != process.leading.epoch:
            raise InvariantError(f"I9: {lease} is not of the epoch that is led")
        if lease.holder != process.me or process.member not in lease.in_sync:
            raise InvariantError(f"I10: the holder is not in {lease}")
        written = lease._replace(version=(replaced or 0) + 1)

        def answer() -> None:
            if machine.process is process:
                self._tell(machine, LeaseWritten(request, Outcome.APPLIED, written))

        self._at(0.0, answer)

    # -- the person and the faults ----------------------------------------------------------------

    def _promote_somebody(self) -> None:
        self._at(self.random.uniform(0.3, 5.0), self._promote_somebody)
        if not self.has_faults:
            return
        for machine in self.random.sample(self._machines, self.random.choice((1, 1, 1, 2))):
            self._promote(machine, accepts_loss=False)

    def _hand_over_to_somebody(self) -> None:
        self._at(self.random.uniform(2.0, 8.0), self._hand_over_to_somebody)
        if self.has_faults:
            self.hand_over(self.random.choice(self._machines).ordinal)

    def leading(self) -> list[int]:
        """Return who leads, as it believes itself."""
        return [m.ordinal for m in self._machines if m.process is not None and m.process.leading]

    def hand_over(self, ordinal: int) -> None:
        """Have whoever leads let another replica lead."""
        for machine in self._machines:
            if machine.process is not None and machine.process.leading is not None:
                self._tell(machine, HandOver(ordinal))

    def promote(self, ordinal: int) -> None:
        """Want a replica to lead."""
        self._promote(self._machines[ordinal], accepts_loss=False)

    def lose_disk(self, ordinal: int) -> None:
        """Put an empty volume in the place of one."""
        self._lost_volumes += 1
        self._lose_disk(self._machines[ordinal])

    def isolate(self, ordinal: int) -> None:
        """Cut a replica off from all others; those talk to each other."""
        self._mend_links()
        for machine in range(self._size):
            if machine != ordinal:
                self._blocked |= {(machine, ordinal), (ordinal, machine)}

    def _promote(self, machine: Machine, *, accepts_loss: bool) -> None:
        self.promotions += 1
        # What links there seem to be is not what there is.
        seem = self.random.choice(
            (None, frozenset(), frozenset({self.random.randrange(self._size)}))
        )
        self._tell(machine, Promote(accepts_loss=accepts_loss, reachable=seem))

        def look() -> None:
            process = machine.process
            if process is None or not isinstance(process.election, HandElection):
                return
            if process.election.outcome and self.has_faults and self.random.random() < 0.5:
                self._tell(machine, Promote(accepts_loss=False))

        self._at(1.0, look)

    def _fail_otherwise(self, number: int, machine: Machine, other: Machine) -> None:
        if number in (8, 9) and self._lost_volumes < self._min_in_sync - 1:
            self._lost_volumes += 1
            self._lose_disk(machine)
        elif number in (7, 10):
            # The one that matters, most often.
            for leader in self._machines:
                if leader.process is not None and leader.process.leading is not None:
                    self._kill(leader)
        elif number == 11:
            self._take_two_away()

    def _take_two_away(self) -> None:
        """Leave one of three that may know least, and try to have it lead."""
        one, other, third = self.random.sample(range(max(self._size, 3)), 3)
        if max(one, other, third) >= self._size:
            return
        self._blocked |= {(one, third), (other, third)}

        def fail() -> None:
            if self.has_faults:
                self._kill(self._machines[one], longest_s=20.0)
                self._cut_power(self._machines[other])
                self._mend_links()

        self._at(1.0, fail)
        for delay_s in (5.0, 7.0, 9.0):
            self._at(delay_s, lambda: self._promote(self._machines[third], accepts_loss=False))

    def heal(self, seconds: float = 60.0) -> None:
        """End all faults; then the person promotes until somebody leads, and all have the same.

        Raises:
            InvariantError: they do not.
        """
        self._at(3.0, lambda: self._promote_in_turn(1))
        super().heal(seconds)

    def _promote_in_turn(self, turn: int) -> None:
        if any(m.process is not None and m.process.leading for m in self._machines):
            self._at(1.5, lambda: self._promote_in_turn(turn))
            return
        if turn > 2 * self._size and self._nobody_may_lead():
            # The person has to choose, and takes the one that has most.
            machine = max(self._machines, key=self._rank)
            self._promote(machine, accepts_loss=True)
        else:
            self._promote(self._machines[turn % self._size], accepts_loss=False)
        self._at(1.5, lambda: self._promote_in_turn(turn + 1))

    @staticmethod
    def _rank(machine: Machine) -> tuple[int, int]:
        end = len(machine.log)
        return max((e.epoch for e in machine.durable.epochs if e.start <= end), default=0), end

    def _nobody_may_lead(self) -> bool:
        """Tell whether nobody can know what was confirmed.

        Too many have lost power; or volumes were lost before all replicas had followed once.
        """
        keep = sum(m.durable.is_whole and not self._is_suspect(m) for m in self._machines)
        is_any_new = any(self._is_suspect(m) or not m.durable.epochs for m in self._machines)
        return is_any_new and keep <= self._size - self._min_in_sync

    def _may_wait_for_person(self) -> bool:
        return False

    # -- invariants -------------------------------------------------------------------------------

    def _check_authority(self) -> None:
        """Do nothing: that no other one leads is for the person to see."""

    def _check_not_suspect(self, machine: Machine) -> None:
        """Do nothing: who lost power may lead if enough others have no more of the log."""

    def _check_copies(self) -> None:
        end = self.acknowledged_end
        copies = sum(
            self._agrees(m, end) and (not self.is_sync_flush or m.flushed >= end)
            for m in self._machines
        )
        lost = sum(self._is_suspect(m) and not self._agrees(m, end) for m in self._machines)
        if copies + lost + self._lost_volumes + self.losses < self._min_in_sync:
            raise InvariantError(f"I3: {copies} replicas have what was acknowledged")

    def _perform(self, machine: Machine, process: Replica, action: actions.Action) -> None:
        if isinstance(action, actions.Persist) and action.state.seen < machine.durable.seen:
            raise InvariantError(f"I9: replica {machine.ordinal} forgets a promise")
        if isinstance(action, actions.Send) and isinstance(action.frame, frames.TakeOver):
            self.handovers += 1
        super()._perform(machine, process, action)
