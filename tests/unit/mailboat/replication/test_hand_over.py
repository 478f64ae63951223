"""A master that hands over, where a person says who leads."""

from mailboat.replication.actions import Action, Persist, WriteLease
from mailboat.replication.durable import Durable
from mailboat.replication.epochs import epoch_after, leader_of
from mailboat.replication.events import HandOver, LeaseWritten, Outcome, Received, Ticked
from mailboat.replication.frames import Ack, Hello
from mailboat.replication.lease import Member
from mailboat.replication.replica import Replica
from mailboat.replication.state import ByHand, Settings


def _lead() -> Replica:
    group = ByHand(replicas=2, min_in_sync=1, begins=True)
    settings = Settings(0, "boot", "kernel", by_hand=group)
    replica = Replica(settings, Durable("volume-0"), 0, 0.0)
    for tenth in range(10):
        replica.handle(Ticked(), tenth / 10)
    assert replica.is_leading
    return replica


def _tick(replica: Replica, now_s: float) -> list[Action]:
    """Let time pass; what is wanted of the lease is done at once."""
    found = replica.handle(Ticked(), now_s)
    for action in found:
        if isinstance(action, WriteLease):
            written = action.lease._replace(version=action.lease.version + 1)
            replica.handle(LeaseWritten(action.request, Outcome.APPLIED, written), now_s)
    return found


def test_whoever_hands_over_remembers_it_first() -> None:
    """The epoch of the next leader is durable before anybody can lead it.

    Else the former one might begin again after a crash, with a follower that has not heard of it.
    """
    replica = _lead()
    assert replica.leading is not None
    epoch = replica.leading.epoch
    slave = Member(1, "volume-1")
    replica.handle(Received(slave, Hello(1, 0, "boot-1")), 1.0)
    replica.handle(Received(slave, Ack(1, epoch, 0, 0)), 1.0)
    _tick(replica, 1.1)
    assert slave in replica.leading.recorded
    replica.handle(HandOver(1), 1.2)
    actions = _tick(replica, 1.3)
    handed = next(action for action in actions if isinstance(action, WriteLease))
    assert handed.lease.holder is not None
    assert handed.lease.holder.member == slave
    assert handed.lease.epoch == epoch_after(epoch, 1)
    assert leader_of(handed.lease.epoch) == 1
    before = actions[: actions.index(handed)]
    assert [action.state.seen for action in before if isinstance(action, Persist)] == [
        handed.lease.epoch
    ]
