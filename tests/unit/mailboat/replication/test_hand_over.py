"""A master that hands over, where a person says who leads."""

from mailboat.replication.actions import Action, Persist, Send, WriteLease
from mailboat.replication.durable import Durable
from mailboat.replication.epochs import EpochStart, leader_of
from mailboat.replication.events import Event, HandOver, LeaseWritten, Outcome, Received, Ticked
from mailboat.replication.frames import Ack, Hello, TakeOver
from mailboat.replication.lease import Member
from mailboat.replication.replica import Replica
from mailboat.replication.state import ByHand, Settings


def _lead() -> Replica:
    group = ByHand(replicas=2, min_in_sync=1, begins=True)
    settings = Settings(0, "boot", "kernel", by_hand=group)
    led = Durable("volume-0", seen=8, epochs=(EpochStart(8, 0),), is_whole=True)
    replica = Replica(settings, led, 0, 0.0)
    for tenth in range(10):
        replica.handle(Ticked(), tenth / 10)
    assert replica.is_leading
    return replica


def _handle(replica: Replica, event: Event, now_s: float) -> list[Action]:
    """Let something happen; what is wanted of the lease is done at once."""
    found = replica.handle(event, now_s)
    for action in found:
        if isinstance(action, WriteLease):
            written = action.lease._replace(version=action.lease.version + 1)
            replica.handle(LeaseWritten(action.request, Outcome.APPLIED, written), now_s)
    return found


def test_whoever_hands_over_remembers_it_first() -> None:
    """That the next epoch is another one's is durable before that one is told to lead.

    Else the former leader might go on after a crash, with a follower that has not heard of it.
    """
    replica = _lead()
    assert replica.leading is not None
    epoch = replica.leading.epoch
    slave = Member(1, "volume-1")
    replica.handle(Received(slave, Hello(1, 0, "boot-1")), 1.0)
    _handle(replica, Received(slave, Ack(1, epoch, 0, 0, counts=True)), 1.0)
    assert slave in replica.leading.recorded
    replica.handle(HandOver(1), 1.2)
    actions = _handle(replica, Ticked(), 1.3)
    assert replica.stopped == "handed over"
    told = actions.index(Send(1, TakeOver(1, epoch)))
    before = [action.state.seen for action in actions[:told] if isinstance(action, Persist)]
    assert [leader_of(seen) for seen in before] == [1]
    assert before[0] > epoch
