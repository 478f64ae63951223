"""Who may be promoted, where a person says who leads: and who goes on by itself."""

import pytest

from mailboat.replication.actions import Persist, Send, Stop
from mailboat.replication.durable import Durable
from mailboat.replication.epochs import EpochStart, leader_of
from mailboat.replication.events import LeaseRead, Promote, Received, Ticked
from mailboat.replication.frames import Answer, Ask, Refused
from mailboat.replication.hand_election import HandElection
from mailboat.replication.lease import Holder, Lease, Member
from mailboat.replication.replica import Replica
from mailboat.replication.state import ByHand, Settings

_EPOCH, _END = 41, 150
"""The newest epoch is that of replica 1."""


def _promote(ordinal: int, tables: tuple[int, int], answered: tuple[int, int]) -> str:
    """Promote a replica that has more of the log than another one, which has other tables.

    Returns:
        why it does not lead, empty if it does.
    """
    group = ByHand(replicas=3, min_in_sync=2, begins=False)
    settings = Settings(ordinal, "boot", "kernel", by_hand=group)
    epochs = (EpochStart(8, 0), EpochStart(_EPOCH, 100))
    durable = Durable(
        f"volume-{ordinal}", seen=_EPOCH, epochs=epochs, is_whole=True, trusted_boot="kernel"
    )
    replica = Replica(settings, durable, _END, 0.0)
    replica.tables = tables
    election = replica.election
    assert isinstance(election, HandElection)
    seen, todo = _EPOCH, replica.handle(Promote(accepts_loss=False), 0.0)
    for tenth in range(50):
        todo += replica.handle(Ticked(), tenth / 10)
        while todo:
            action = todo.pop(0)
            if isinstance(action, Send) and isinstance(action.frame, Ask) and action.ordinal == 0:
                ask = action.frame
                seen = max(seen, ask.epoch)
                answer = Answer(
                    ask.attempt, seen, _EPOCH, 120, 0,
                    is_suspect=False, is_whole=True, hears_authority=False, tables=answered,
                )  # fmt: skip
                todo += replica.handle(Received(Member(0, "volume-0"), answer), tenth / 10)
        if replica.is_leading or election.outcome:
            break
    assert replica.is_leading != bool(election.outcome)
    return election.outcome


def test_a_former_leader_does_not_go_on_once_it_has_heard_of_a_later_one() -> None:
    """Where one replica is enough to confirm nobody need answer it: it would depose that one."""
    group = ByHand(replicas=2, min_in_sync=1, begins=True)
    settings = Settings(0, "boot", "kernel", is_sync_master=False, by_hand=group)
    epochs = (EpochStart(8, 0),)
    durable = Durable("volume-0", seen=8, epochs=epochs, is_whole=True, trusted_boot="kernel")
    replica = Replica(settings, durable, _END, 0.0)
    leader = Holder(1, "volume-1", "boot-1")
    replica.handle(LeaseRead(Lease(1, leader, _EPOCH, frozenset({leader.member}), 1)), 0.0)
    for tenth in range(50):
        replica.handle(Ticked(), tenth / 10)
    assert not replica.is_leading
    assert replica.durable.seen == 8


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_deposed_leader_does_not_go_on_after_its_next_start(is_linked: bool) -> None:
    """Where nobody need answer it, it would lead before it hears of the later one, for ever."""
    group = ByHand(replicas=2, min_in_sync=1, begins=True)
    settings = Settings(0, "boot", "kernel", is_sync_master=False, by_hand=group)
    epochs = (EpochStart(8, 0),)
    durable = Durable("volume-0", seen=8, epochs=epochs, is_whole=True, trusted_boot="kernel")
    replica = Replica(settings, durable, _END, 0.0)
    todo = [action for tenth in range(9) for action in replica.handle(Ticked(), tenth / 10)]
    assert replica.is_leading
    leader = Holder(1, "volume-1", "boot-1")
    if is_linked:
        todo += replica.handle(Received(leader.member, Refused(_EPOCH)), 1.0)
    else:
        lease = Lease(1, leader, _EPOCH, frozenset({leader.member}), 1)
        todo += replica.handle(LeaseRead(lease), 1.0)
    assert isinstance(todo[-1], Stop)
    *_, kept = [action.state for action in todo if isinstance(action, Persist)]
    assert kept.seen == _EPOCH
    replica = Replica(settings, kept, _END, 2.0)
    for tenth in range(50):
        replica.handle(Ticked(), 2 + tenth / 10)
    assert not replica.is_leading


@pytest.mark.parametrize("answered", [(_EPOCH, 2), (_EPOCH, 9)])
def test_tables_of_an_own_epoch_are_nowhere_newer(answered: tuple[int, int]) -> None:
    """A follower may have kept a change that its leader had not: it was answered to nobody."""
    assert leader_of(_EPOCH) == 1
    assert _promote(1, (_EPOCH, 1), answered) == ""


@pytest.mark.parametrize(
    ("ordinal", "tables", "answered"),
    [(2, (_EPOCH, 1), (_EPOCH, 2)), (1, (8, 5), (_EPOCH, 1)), (1, (_EPOCH, 7), (48, 1))],
)
def test_whoever_has_newer_tables_of_another_one_is_to_lead(
    ordinal: int, tables: tuple[int, int], answered: tuple[int, int]
) -> None:
    """What they say may have been answered."""
    refusal = _promote(ordinal, tables, answered)
    assert "replica 0 has newer topics" in refusal
    # That one is refused as well, for the sake of the log.
    assert "less of the log, so that neither may lead" in refusal
    assert "let it lead" not in refusal
