"""Which former run of a replica is over: one in the same pod is, one in another pod may live."""

import pytest

from mailboat.replication import actions
from mailboat.replication.durable import Durable
from mailboat.replication.epochs import EpochStart
from mailboat.replication.events import (
    HolderDied,
    LeaseRead,
    LeaseWritten,
    Outcome,
    Received,
    Ticked,
)
from mailboat.replication.frames import Answer, Ask, Beat, Welcome
from mailboat.replication.lease import Holder, Lease, Member
from mailboat.replication.replica import Replica
from mailboat.replication.state import Settings

_ME, _OTHER = Member(0, "s0"), Member(1, "s1")
_BOTH = frozenset({_ME, _OTHER})


def _replica() -> Replica:
    durable = Durable("s0", seen=4, epochs=(EpochStart(4, 0),), trusted_boot="k")
    return Replica(Settings(0, "g-0/uid-1/b2", "k"), durable, 0, 100.0)


def _lease(boot: str, *, is_sole: bool = True, lease_s: float = 0) -> Lease:
    return Lease(9, Holder(0, "s0", boot), 4, _BOTH, 1, 7, is_sole, lease_s)


def _written_s(replica: Replica, lease: Lease, until_s: float) -> tuple[float, actions.WriteLease]:
    """Let time pass while the lease does not change; return when it is written, and how."""
    for tenth in range(1000, int(until_s * 10)):
        now_s = tenth / 10
        for event in (LeaseRead(lease), Ticked()):
            for action in replica.handle(event, now_s):
                if isinstance(action, actions.WriteLease):
                    return now_s, action
    raise AssertionError("the lease was not written")


def test_a_former_run_in_the_same_pod_is_over() -> None:
    """Its place is taken at once, with its authority, however long ago it renewed the lease."""
    now_s, write = _written_s(_replica(), _lease("g-0/uid-1/b1"), 102)
    assert now_s < 101
    assert write.replaced == 9
    assert write.lease.holder == Holder(0, "s0", "g-0/uid-1/b2")
    assert (write.lease.epoch, write.lease.in_sync, write.lease.is_sole) == (5, _BOTH, True)


def test_a_former_run_in_another_pod_may_live() -> None:
    """A pod was deleted by force: its process is given the whole lease, and its authority."""
    now_s, write = _written_s(_replica(), _lease("g-0/uid-0/b1"), 120)
    assert 109 <= now_s < 110
    # It is the same volume, so it stays in the set; but somebody else may believe to lead.
    assert (write.lease.epoch, write.lease.in_sync, write.lease.is_sole) == (5, _BOTH, False)


@pytest.mark.parametrize(("lease_s", "waits_s"), [(60, 60), (6, 9), (0, 9)])
def test_the_longer_time_counts(lease_s: float, waits_s: float) -> None:
    """`leaseSeconds` becomes shorter: followers are told first, their leader last."""
    boot = "g-0/uid-0/b1"
    now_s, write = _written_s(_replica(), _lease(boot, lease_s=lease_s), 200)
    assert 100 + waits_s <= now_s < 101 + waits_s
    assert not write.lease.is_sole


def test_who_is_found_dead_leaves_its_time_behind() -> None:
    """Its place is taken at once, and its authority may last as long as it was told."""
    replica = _replica()
    lease = Lease(9, Holder(1, "s1", "g-1/uid-3/b1"), 4, _BOTH, 1, lease_s=60)
    replica.handle(LeaseRead(lease), 105.0)
    replica.handle(HolderDied(), 105.0)
    now_s, write = _written_s(replica, lease, 110)
    won = LeaseWritten(write.request, Outcome.APPLIED, write.lease._replace(version=10))
    replica.handle(won, now_s)
    assert replica.is_leading
    begins_s = next(
        tenth / 10
        for tenth in range(int(now_s * 10), 2000)
        if _renewed(replica, tenth / 10) and replica.has_authority
    )
    assert 165 <= begins_s < 166


def _renewed(replica: Replica, now_s: float) -> bool:
    """Let a leader renew its lease, if it wants to."""
    for action in replica.handle(Ticked(), now_s):
        if isinstance(action, actions.WriteLease):
            lease = action.lease._replace(version=action.lease.version + 1)
            replica.handle(LeaseWritten(action.request, Outcome.APPLIED, lease), now_s)
    return True


def test_who_is_found_dead_is_not_heard_any_more() -> None:
    """A leader whose process is gone was heard a moment ago: that keeps nobody else from trying."""
    replica = _replica()
    lease = Lease(9, Holder(1, "s1", "g-1/uid-3/b1"), 4, _BOTH, 1)
    hello = next(
        action.frame.session
        for action in replica.handle(LeaseRead(lease), 100.1)
        if isinstance(action, actions.Send)
    )
    welcome = Welcome(hello, "", 4, (EpochStart(4, 0),), 0, 0, 0)
    replica.handle(Received(_OTHER, welcome), 100.2)
    replica.handle(Received(_OTHER, Beat(hello, 4, 1, 0, 0, True, True)), 100.3)
    assert _answer(replica, 100.4).hears_authority
    replica.handle(HolderDied(), 100.5)
    assert not _answer(replica, 100.5).hears_authority


def _answer(replica: Replica, now_s: float) -> Answer:
    sent = replica.handle(Received(Member(2, "s2"), Ask(1)), now_s)
    answers = [a.frame for a in sent if isinstance(a, actions.Send) and a.ordinal == 2]
    assert isinstance(answers[0], Answer)
    return answers[0]
