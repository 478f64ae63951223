"""Whose former process led goes on at once; with authority only if that one had it."""

import pytest

from mailboat.replication.actions import WriteLease
from mailboat.replication.durable import Durable
from mailboat.replication.events import LeaseRead, LeaseWritten, Outcome, Ticked
from mailboat.replication.lease import Holder, Lease, Member
from mailboat.replication.replica import Replica
from mailboat.replication.state import Settings

_ME = Member(0, "volume-0")


def _restart(*, is_sole: bool) -> Replica:
    """Return a replica that leads again, one second after its start."""
    replica = Replica(Settings(0, "boot-2", "kernel"), Durable("volume-0", seen=2), 0, 0.0)
    lease = Lease(3, Holder(0, "volume-0", "boot-1"), 2, frozenset({_ME}), 1, is_sole=is_sole)
    found = replica.handle(LeaseRead(lease), 0.1)
    for tenth in range(2, 10):
        found += replica.handle(Ticked(), tenth / 10)
    [write] = [action for action in found if isinstance(action, WriteLease)]
    written = write.lease._replace(version=4)
    replica.handle(LeaseWritten(write.request, Outcome.APPLIED, written), 1.0)
    assert replica.leading is not None
    return replica


@pytest.mark.parametrize("is_sole", [False, True])
def test_authority_after_a_restart(*, is_sole: bool) -> None:
    """A former process that took over from one that seemed dead may have had to wait still."""
    replica = _restart(is_sole=is_sole)
    assert replica.has_authority is is_sole


def test_it_has_authority_once_nobody_else_can() -> None:
    """A whole lease after it has seen the former one, and then it says so."""
    replica = _restart(is_sole=False)
    written = []
    for tenth in range(10, 130):
        for action in replica.handle(Ticked(), tenth / 10):
            if isinstance(action, WriteLease):
                written.append((tenth / 10, action.lease.is_sole))
                lease = action.lease._replace(version=10 + tenth)
                answer = LeaseWritten(action.request, Outcome.APPLIED, lease)
                replica.handle(answer, tenth / 10)
        assert replica.has_authority is (tenth / 10 >= 0.1 + replica.times.lease_s)
    assert {is_sole for at_s, is_sole in written if at_s > 10} == {True}
    assert {is_sole for at_s, is_sole in written if at_s < 9} == {False}
