"""How a follower learns what is confirmed, and notes it."""

from mailboat.replication.actions import Confirm, Note, Persist, WriteLog
from mailboat.replication.durable import Durable
from mailboat.replication.epochs import EpochStart
from mailboat.replication.events import LeaseRead, Received, Ticked
from mailboat.replication.frames import Data, Welcome
from mailboat.replication.lease import Holder, Lease, Member
from mailboat.replication.replica import Replica
from mailboat.replication.state import Settings

_LEADER = Member(0, "volume-0")
_EPOCHS = (EpochStart(1, 0),)


def _follow() -> tuple[Replica, int]:
    """Return a follower with an empty log, and its session."""
    replica = Replica(Settings(1, "boot", "kernel"), Durable("volume-1"), 0, 0.0)
    lease = Lease(1, Holder(0, "volume-0", "boot-0"), 1, frozenset({_LEADER}), 1)
    replica.handle(LeaseRead(lease), 0.1)
    replica.handle(Ticked(), 0.6)
    assert replica.following is not None
    session = replica.following.session
    replica.handle(Received(_LEADER, Welcome(session, "g", 1, _EPOCHS, 0, 0, 0)), 0.7)
    assert replica.following.is_joined
    return replica, session


def test_what_arrives_says_how_far_the_log_is_confirmed() -> None:
    """It is shown as far as it is written here, and after that."""
    replica, session = _follow()
    records = b"x" * 100
    actions = replica.handle(
        Received(_LEADER, Data(session, 1, 0, 100, confirmed=40, records=records)), 0.8
    )
    assert [a for a in actions if isinstance(a, WriteLog | Confirm)] == [
        WriteLog(0, 100, records),
        Confirm(40),
    ]
    # What the leader has confirmed and this one has not been sent is not here to be shown.
    actions = replica.handle(
        Received(_LEADER, Data(session, 1, 100, 200, confirmed=900, records=records)), 0.9
    )
    assert Confirm(200) in actions


def test_the_mark_is_noted_without_anybody_waiting() -> None:
    """A second after it moved, once, and not by an action that others wait for."""
    replica, session = _follow()
    replica.handle(Received(_LEADER, Data(session, 1, 0, 100, confirmed=40, records=b"")), 0.8)
    actions = replica.handle(Ticked(), 2.0)
    assert [a.state.confirmed for a in actions if isinstance(a, Note)] == [40]
    assert not any(isinstance(a, Persist) for a in actions)
    assert not any(isinstance(a, Note) for a in replica.handle(Ticked(), 4.0))
