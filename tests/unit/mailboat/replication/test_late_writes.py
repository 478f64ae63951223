"""A candidate whose write of the lease is late, and that hears of the former leader meanwhile."""

from collections.abc import Callable
from typing import TypeVar

import pytest

from mailboat.replication.actions import Action, Send, WriteLease
from mailboat.replication.durable import Durable
from mailboat.replication.epochs import EpochStart
from mailboat.replication.events import Event, LeaseRead, LeaseWritten, Outcome, Received, Ticked
from mailboat.replication.frames import Beat, Hello, Welcome
from mailboat.replication.lease import Holder, Lease, Member
from mailboat.replication.replica import Replica
from mailboat.replication.state import Settings
from mailboat.testing.virtual_time import VirtualTime

_ME, _LEADER = Member(0, "s0"), Member(1, "s1")
_HELD = Lease(9, Holder(1, "s1", "g-1/uid-1/b1"), 4, frozenset({_ME, _LEADER}), 1, 7)
_EPOCHS = (EpochStart(4, 0),)
_Found = TypeVar("_Found")


class _Candidate:
    def __init__(self) -> None:
        self.clock = VirtualTime()
        durable = Durable("s0", seen=4, epochs=_EPOCHS, trusted_boot="k")
        self.replica = Replica(Settings(0, "g-0/uid-0/b0", "k"), durable, 0, self.clock.monotonic())

    def tell(self, event: Event) -> list[Action]:
        return self.replica.handle(event, self.clock.monotonic())

    def wait_for(self, find: Callable[[Action], _Found | None]) -> _Found:
        """Let time pass until something is done; the lease is read meanwhile, and is the same."""
        for _ in range(200):
            self.clock.advance(0.1)
            for action in [*self.tell(LeaseRead(_HELD)), *self.tell(Ticked())]:
                if (found := find(action)) is not None:
                    return found
        raise AssertionError("it is not done")


def _write(action: Action) -> WriteLease | None:
    return action if isinstance(action, WriteLease) else None


def _hello(action: Action) -> Hello | None:
    is_hello = isinstance(action, Send) and isinstance(action.frame, Hello)
    return action.frame if is_hello else None


@pytest.mark.parametrize("is_answered", [True, False])
def test_what_was_granted_meanwhile_counts(*, is_answered: bool) -> None:
    """The former leader, cut off from the store, may go on by the grants of all members."""
    candidate = _Candidate()
    replica = candidate.replica
    write = candidate.wait_for(_write)
    if not is_answered:
        candidate.tell(LeaseWritten(write.request, Outcome.UNKNOWN, None))
    hello = candidate.wait_for(_hello)
    candidate.tell(Received(_LEADER, Welcome(hello.session, "", 4, _EPOCHS, 0, 0, 0)))
    beat = Beat(hello.session, 4, 1, 0, 0, has_authority=True, is_heard=True)
    candidate.tell(Received(_LEADER, beat))
    granted_s = candidate.clock.monotonic()
    won = write.lease._replace(version=10)
    if is_answered:
        candidate.tell(LeaseWritten(write.request, Outcome.APPLIED, won))
    else:
        candidate.tell(LeaseRead(won))
    assert replica.is_leading
    while not replica.has_authority:
        candidate.clock.advance(0.1)
        for action in candidate.tell(Ticked()):
            if isinstance(action, WriteLease):
                renewed = action.lease._replace(version=action.lease.version + 1)
                candidate.tell(LeaseWritten(action.request, Outcome.APPLIED, renewed))
    # The leader's own clock may be slower: 3 s of it, and half as much again.
    assert granted_s + 4.5 <= candidate.clock.monotonic() < granted_s + 5
