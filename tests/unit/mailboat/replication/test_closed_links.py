"""How long a leader waits for a member of its set whose link ended, and what a new link means."""

from dataclasses import replace

from mailboat.replication.actions import Action, Send, WriteLease
from mailboat.replication.durable import Durable
from mailboat.replication.epochs import EpochStart
from mailboat.replication.events import (
    LeaseRead,
    LeaseWritten,
    LinkClosed,
    Linked,
    LogAppended,
    Outcome,
    Promote,
    Received,
    Ticked,
)
from mailboat.replication.frames import Ack, Answer, Ask, Hello, Welcome
from mailboat.replication.lease import Holder, Lease, Member
from mailboat.replication.replica import Replica
from mailboat.replication.state import ByHand, Settings

_SLAVES = (Member(1, "volume-1"), Member(2, "volume-2"))


class _Leader:
    """A leader of three replicas, both others in its set; every write of the lease succeeds."""

    def __init__(self, min_in_sync: int = 2) -> None:
        settings = Settings(0, "boot-0", "kernel", by_hand=ByHand(3, min_in_sync, begins=True))
        self.replica = Replica(settings, Durable("volume-0"), 0, 0.0)
        self.at_s = 0.0
        self._tell(Promote(accepts_loss=False))
        assert self.replica.leading is not None
        for member in _SLAVES:
            self._tell(Received(member, Hello(7, 0, f"boot-{member.ordinal}")))
            self.acknowledge(member)

    def _tell(self, event: object) -> None:
        todo: list[Action] = self.replica.handle(event, self.at_s)  # type: ignore[arg-type]
        for action in todo:
            match action:
                case Send(ordinal, Ask(attempt, epoch)):
                    member = _SLAVES[ordinal - 1]
                    answer = Answer(attempt, epoch, 0, 0, 0, False, True, False, (0, 0))
                    self._tell(Received(member, answer))
                case WriteLease(request, _, lease):
                    written = lease._replace(version=lease.version + 1)
                    self._tell(LeaseWritten(request, Outcome.APPLIED, written))

    def acknowledge(self, member: Member) -> None:
        """Have a slave say that it has all of the log."""
        leading = self.replica.leading
        assert leading is not None
        self._tell(Received(member, Ack(7, leading.epoch, self.replica.end, 0, True)))

    def live_until(self, at_s: float, *others: Member) -> None:
        """Let time pass, in which some slaves answer all beats."""
        while self.at_s < at_s:
            self.at_s = round(self.at_s + 0.1, 1)
            for member in others:
                self.acknowledge(member)
            self._tell(Ticked())

    def tell(self, event: object) -> None:
        """Tell it what happened."""
        self._tell(event)

    @property
    def in_sync(self) -> set[int]:
        """The set, by ordinal."""
        assert self.replica.leading is not None
        return {member.ordinal for member in self.replica.leading.recorded}


def test_who_is_gone_is_waited_for_a_second() -> None:
    """A message is confirmed without it then, and not earlier."""
    leader = _Leader()
    assert leader.in_sync == {0, 1, 2}
    leader.live_until(5.0, *_SLAVES)
    leader.tell(LinkClosed(_SLAVES[1]))
    leader.tell(LogAppended(100))
    leader.live_until(5.9, _SLAVES[0])
    assert leader.in_sync == {0, 1, 2}
    assert leader.replica.confirmed == 0
    leader.live_until(6.0, _SLAVES[0])
    assert leader.in_sync == {0, 1}
    assert leader.replica.confirmed == 100


def test_a_link_that_comes_back_within_a_second_changes_nothing() -> None:
    """Nor does one that ends again and again."""
    leader = _Leader()
    leader.live_until(5.0, *_SLAVES)
    for at_s in (5.0, 6.5, 8.0):
        leader.tell(LinkClosed(_SLAVES[1]))
        leader.live_until(at_s + 0.9, _SLAVES[0])
        leader.tell(Linked(_SLAVES[1]))
        leader.live_until(at_s + 1.5, *_SLAVES)
        assert leader.in_sync == {0, 1, 2}


def test_who_is_needed_stays() -> None:
    """The set keeps its least size, whoever is gone."""
    leader = _Leader(min_in_sync=3)
    leader.live_until(5.0, *_SLAVES)
    leader.tell(LinkClosed(_SLAVES[1]))
    leader.live_until(9.0, _SLAVES[0])
    assert leader.in_sync == {0, 1, 2}
    assert leader.replica.refusal()


def test_a_follower_begins_again_with_a_new_link() -> None:
    """What was on its way by the former one is lost, and nobody would notice in a silent group."""
    settings = Settings(1, "boot-1", "kernel", by_hand=ByHand(2, 2, begins=False))
    follower = Replica(settings, Durable("volume-1"), 0, 0.0)
    master = Member(0, "volume-0")
    lease = Lease(1, Holder(0, "volume-0", "boot-0"), 1, frozenset({master}), 1)
    said = _hellos(follower.handle(LeaseRead(lease), 0.0) + follower.handle(Ticked(), 0.1))
    assert len(said) == 1
    follower.handle(Linked(master), 0.2)
    welcome = Welcome(said[0].session, "group", 1, (EpochStart(1, 0),), 0, 0, 0)
    assert not _hellos(follower.handle(Received(master, welcome), 0.3))
    assert follower.following is not None
    assert follower.following.is_joined
    assert not _hellos(follower.handle(Linked(_SLAVES[1]), 0.4))
    [again] = _hellos(follower.handle(Linked(master), 0.5))
    assert again.session != said[0].session
    assert not _hellos(follower.handle(Received(master, welcome), 0.6))
    follower.handle(Received(master, replace(welcome, session=again.session)), 0.7)
    assert follower.following.is_joined


def _hellos(todo: list[Action]) -> list[Hello]:
    return [item.frame for item in todo if isinstance(item, Send) and isinstance(item.frame, Hello)]
