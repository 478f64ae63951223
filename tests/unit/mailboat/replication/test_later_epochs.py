"""A leader by a lease is asked to be followed by a replica that knows of a later epoch."""

from mailboat.replication.actions import Action, Send, WriteLease
from mailboat.replication.durable import Durable
from mailboat.replication.events import Event, LeaseRead, LeaseWritten, Outcome, Received, Ticked
from mailboat.replication.frames import Hello, Welcome
from mailboat.replication.lease import LARGEST_LEAP, Holder, Lease, Member
from mailboat.replication.replica import Replica
from mailboat.replication.state import Settings
from mailboat.testing.virtual_time import VirtualTime

_ME, _KEPT = Member(0, "s0"), Member(1, "kept")


class _Leader:
    """The only member of a group that has begun anew, in its first epoch."""

    def __init__(self) -> None:
        self.clock = VirtualTime()
        settings, durable = Settings(0, "g-0/uid/boot", "k"), Durable("s0", trusted_boot="k")
        self.replica = Replica(settings, durable, 0, self.clock.monotonic())
        self.clock.advance(10)
        self.tell(LeaseRead(Lease(1, None, 0, frozenset({_ME}), 1, is_sole=True)))
        while not self.replica.is_leading:
            self.clock.advance(0.1)
            self.answer(self.tell(Ticked()), Outcome.APPLIED)
        self.clock.advance(1)

    def tell(self, event: Event) -> list[Action]:
        return self.replica.handle(event, self.clock.monotonic())

    def answer(self, wanted: list[Action], outcome: Outcome) -> None:
        for action in wanted:
            if isinstance(action, WriteLease):
                written = action.lease._replace(version=(action.replaced or 0) + 1)
                is_applied = outcome is Outcome.APPLIED
                told = LeaseWritten(action.request, outcome, written if is_applied else None)
                self.tell(told)

    def greeted(self, seen: int) -> list[Action]:
        return self.tell(Received(_KEPT, Hello(7, seen, "g-1/uid/boot")))


def test_a_volume_of_another_life_deposes_nobody() -> None:
    """One epoch more is enough, however many there were: it would take a start for each else."""
    leader = _Leader()
    leader.answer(leader.greeted(1007), Outcome.APPLIED)
    assert leader.replica.leading is not None
    assert leader.replica.leading.epoch == 1008
    (welcome,) = [action.frame for action in leader.greeted(1007) if isinstance(action, Send)]
    assert isinstance(welcome, Welcome)
    assert not leader.replica.stopped


def test_a_leader_that_was_replaced_stops() -> None:
    """Its write is of a version that is no more, and the lease says why."""
    leader = _Leader()
    leader.answer(leader.greeted(2), Outcome.CONFLICT)
    other = Holder(2, "s2", "g-2/uid/boot")
    lease = Lease(9, other, 2, frozenset({Member(2, "s2")}), 1, 9, is_sole=True)
    leader.tell(LeaseRead(lease))
    assert leader.replica.stopped


def test_an_epoch_from_nowhere_changes_nothing() -> None:
    """After the largest number there would be no other one."""
    leader = _Leader()
    assert leader.greeted(LARGEST_LEAP + 2) == []
    assert leader.replica.is_leading
