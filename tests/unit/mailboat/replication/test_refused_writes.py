"""A leader that has no right to write its lease any more."""

import pytest

from mailboat.replication.actions import Action, WriteLease
from mailboat.replication.durable import Durable
from mailboat.replication.events import (
    Event,
    HandOver,
    LeaseRead,
    LeaseWritten,
    Outcome,
    Received,
    Ticked,
)
from mailboat.replication.frames import Ack, Hello
from mailboat.replication.lease import Lease, Member
from mailboat.replication.replica import Replica
from mailboat.replication.state import Settings
from mailboat.testing.virtual_time import START_S, VirtualTime

_ME, _OTHER = Member(0, "volume-0"), Member(1, "volume-1")


def _settings(ordinal: int, *, is_sync: bool) -> Settings:
    return Settings(ordinal, f"pod-{ordinal}/uid/boot", "kernel", is_sync_master=is_sync)


class _Handing:
    """A leader with a follower that has everything, up to its write that hands over."""

    def __init__(self, *, is_sync: bool) -> None:
        self.clock = VirtualTime()
        durable = Durable(_ME.store_id, trusted_boot="kernel")
        self.leader = Replica(_settings(0, is_sync=is_sync), durable, 0, self.clock.monotonic())
        self.clock.advance(10)
        stored = Lease(1, None, 0, frozenset({_ME, _OTHER}), 1, is_sole=True)
        self.tell(LeaseRead(stored))
        won = self.next_write()
        self.answer(won, Outcome.APPLIED)
        assert self.leader.leading is not None
        epoch = self.leader.leading.epoch
        self.tell(Received(_OTHER, Hello(1, 0, "pod-1/uid/boot")))
        self.tell(Received(_OTHER, Ack(1, epoch, 0, 0, counts=True)))
        self.tell(HandOver(1))
        self.first = self.next_write()
        assert self.first.lease.holder is not None
        assert self.first.lease.holder.member == _OTHER

    def tell(self, event: Event) -> list[Action]:
        return self.leader.handle(event, self.clock.monotonic())

    def next_write(self) -> WriteLease:
        while self.clock.monotonic() < START_S + 20:
            self.clock.advance(0.1)
            for action in self.tell(Ticked()):
                if isinstance(action, WriteLease):
                    return action
        raise AssertionError("nothing is written")

    def answer(self, write: WriteLease, outcome: Outcome) -> None:
        version = (write.replaced or 0) + 1
        lease = write.lease._replace(version=version) if outcome is Outcome.APPLIED else None
        self.tell(LeaseWritten(write.request, outcome, lease))


@pytest.mark.parametrize("is_sync", [True, False])
def test_what_may_have_been_handed_over_is_not_taken_back(*, is_sync: bool) -> None:
    """The first write was applied and its answer lost; then the leader's pod was deleted."""
    group = _Handing(is_sync=is_sync)
    group.answer(group.first, Outcome.UNKNOWN)
    group.answer(group.next_write(), Outcome.REFUSED)
    durable = Durable(_OTHER.store_id, trusted_boot="kernel")
    successor = Replica(_settings(1, is_sync=is_sync), durable, 0, group.clock.monotonic())
    successor.handle(LeaseRead(group.first.lease._replace(version=3)), group.clock.monotonic())
    assert successor.has_authority
    assert not group.leader.has_authority
    assert group.leader.refusal()


def test_what_was_not_handed_over_is_taken_back() -> None:
    """The only write that could have done it was refused: clients are served to the end."""
    group = _Handing(is_sync=True)
    group.answer(group.first, Outcome.REFUSED)
    assert group.leader.has_authority
    assert not group.leader.refusal()
