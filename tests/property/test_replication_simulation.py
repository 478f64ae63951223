"""Many lives of a group of replicas, and bugs that they must find.

A life that fails says its seed, which repeats it. `MAILBOAT_REPLICATION_LIVES=100000` has more.
"""

import os
from collections.abc import Callable

import pytest

from mailboat.replication import following
from mailboat.replication.actions import CutLog, Persist
from mailboat.replication.election import Election
from mailboat.replication.epochs import Epochs, consistent_end
from mailboat.replication.leading import Leading
from mailboat.replication.lease import Lease, Member
from mailboat.replication.replica import Replica
from mailboat.testing.replica_simulator import Group, InvariantError

_LIVES = int(os.environ.get("MAILBOAT_REPLICATION_LIVES", "1200"))
_LIFE_S = 40.0
# Replicas and `min_in_sync`; the seed chooses.
_SHAPES = ((3, 2), (3, 2), (3, 1), (3, 2), (2, 1), (3, 2), (5, 2), (5, 3))
# A planted bug shows in one of so many lives.
_LIVES_OF_A_BUG = 3000


def _live(seed: int, *, is_sync_flush: bool) -> Group:
    size, min_in_sync = _SHAPES[seed % len(_SHAPES)]
    group = Group(seed, size=size, min_in_sync=min_in_sync, is_sync_flush=is_sync_flush)
    try:
        group.live(_LIFE_S)
        group.heal()
    except InvariantError as error:
        error.add_note(f"seed {seed}, is_sync_flush {is_sync_flush}")
        raise
    return group


@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_sync_flush", [False, True])
@pytest.mark.parametrize("part", range(4))
def test_nothing_acknowledged_is_lost(part: int, *, is_sync_flush: bool) -> None:
    """Whatever fails, all invariants hold, and the group is whole again afterwards."""
    lives = _LIVES // 8
    acknowledged = epochs = waiting = 0
    for seed in range(part * lives, (part + 1) * lives):
        group = _live(seed, is_sync_flush=is_sync_flush)
        acknowledged += group.acknowledged_end
        epochs += group.lease.epoch
        waiting += group.waits_for_person
    # The lives are worth something: messages were stored, and more than one replica led.
    assert acknowledged > 50 * lives
    assert epochs > 2 * lives
    assert waiting < lives / 50


def test_a_life_repeats_itself() -> None:
    """The same seed gives the same life, whatever order sets have in this process."""
    first, second = (_live(11, is_sync_flush=False) for _ in range(2))
    assert first.lease == second.lease
    assert first.confirmed == second.confirmed


Plant = Callable[[pytest.MonkeyPatch], None]


def _acks_of_enough(patch: pytest.MonkeyPatch) -> None:
    """`min_in_sync` copies are enough, whoever is in the set (1)."""

    def advance(self: Leading) -> None:
        replica = self._replica
        ends = sorted([replica.kept_end, *self.acked.values()], reverse=True)
        if len(ends) >= self._lease.min_in_sync:
            replica.confirm(ends[self._lease.min_in_sync - 1])

    patch.setattr(Leading, "advance", advance)


def _added_counts_after_the_answer(patch: pytest.MonkeyPatch) -> None:
    """Who is being added does not count until the answer has come (2, 3b)."""
    patch.setattr(Leading, "required", lambda self: self.recorded)


def _seen_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A follower does not keep the epoch it follows (4)."""
    persist = Replica.persist

    def forget(self: Replica, durable: object) -> None:
        persist(self, durable)  # type: ignore[arg-type]
        is_leading = vars(self).get("leading") is not None
        if not is_leading and self._actions and isinstance(self._actions[-1], Persist):
            self._actions[-1] = Persist(self.durable._replace(seen=0, epochs=()))

    patch.setattr(Replica, "persist", forget)


def _cuts_nothing(patch: pytest.MonkeyPatch) -> None:
    """A follower keeps all that is above the end of the epoch: it cuts nothing (8)."""

    def whole(mine: Epochs, my_end: int, theirs: Epochs, their_end: int) -> int | None:
        end = consistent_end(mine, my_end, theirs, their_end)
        return end if end is None else my_end

    patch.setattr(following, "consistent_end", whole)


def _leader_cuts_its_tail(patch: pytest.MonkeyPatch) -> None:
    """A new leader drops what it does not know to be confirmed (10)."""
    lead = Replica.lead

    def cut(self: Replica, *args: object, lost: bool) -> None:
        if self.end > self.confirmed:
            self.act(CutLog(self.confirmed))
            self.end = self.flushed_end = self.confirmed
        lead(self, *args, lost=lost)  # type: ignore[arg-type]

    patch.setattr(Replica, "lead", cut)


def _any_volume(patch: pytest.MonkeyPatch) -> None:
    """A replaced volume keeps its place in the set (11)."""
    may_try = Election.may_try

    def by_ordinal(self: Election, lease: Lease) -> bool:
        me = self._replica.member
        if any(member.ordinal == me.ordinal for member in lease.in_sync):
            others = {member for member in lease.in_sync if member.ordinal != me.ordinal}
            lease = lease._replace(in_sync=frozenset({*others, me}))
        return may_try(self, lease)

    patch.setattr(Election, "may_try", by_ordinal)


def _suspects_lead(patch: pytest.MonkeyPatch) -> None:
    """Who lost power under ASYNC_FLUSH may lead (12)."""
    patch.setattr(Replica, "_may_have_lost", lambda _self: False)


def _written_is_enough(patch: pytest.MonkeyPatch) -> None:
    """Under SYNC_FLUSH a follower, and the leader itself, count what is only written (13)."""
    patch.setattr(Replica, "kept_end", property(lambda self: self.end))


def _silent_members_do_not_count(patch: pytest.MonkeyPatch) -> None:
    """Who has never acknowledged anything is left out of the minimum (15)."""

    def required(self: Leading) -> frozenset[Member]:
        me = self._replica.member
        return frozenset({me, *(m for m in self.recorded if m in self.acked)})

    patch.setattr(Leading, "required", required)


def _hold_from_the_answer(patch: pytest.MonkeyPatch) -> None:
    """Authority by the lease lasts for ever once the lease was written (17)."""
    patch.setattr(Leading, "_is_sure", property(lambda self: not self._has_renounced))


def _grants_of_a_majority(patch: pytest.MonkeyPatch) -> None:
    """The failsafe takes the grants of one other member for those of all (26)."""

    def is_sure(self: Leading) -> bool:
        times, now_s = self._replica.times, self._replica.now_s
        return not self._has_renounced and (
            now_s < self._renewal_sent_s + times.hold_s
            or any(now_s < s.granted_s + times.grant_s for s in self._sessions.values())
        )

    patch.setattr(Leading, "_is_sure", property(is_sure))


def _timed_out_is_won(patch: pytest.MonkeyPatch) -> None:
    """A candidate whose write had no answer leads as if it were applied (22)."""
    written = Election.lease_written

    def won(self: Election, request: int, outcome: object, lease: Lease | None) -> None:
        if request == self._request and lease is None and self._replica.lease is not None:
            replica = self._replica
            mine = self._replica.lease._replace(holder=replica.me, epoch=self.tried_epoch)
            replica.lead(mine, self._sent_s, self._authority_from_s, lost=False)
        else:
            written(self, request, outcome, lease)  # type: ignore[arg-type]

    patch.setattr(Election, "lease_written", won)


def _set_below_the_minimum(patch: pytest.MonkeyPatch) -> None:
    """Members are dropped until the leader is alone (21)."""
    wanted = Leading._wanted_set

    def all_silent(self: Leading) -> frozenset[Member]:
        lease, self._lease = self._lease, self._lease._replace(min_in_sync=1)
        try:
            return wanted(self)
        finally:
            self._lease = lease

    patch.setattr(Leading, "_wanted_set", all_silent)


def _confirms_what_it_lacks(patch: pytest.MonkeyPatch) -> None:
    """A follower shows what is confirmed elsewhere, whether it has it or not (18)."""
    confirm = Replica.confirm

    def beyond(self: Replica, end: int) -> None:
        confirm(self, end if self.leading is not None else end + 1)

    patch.setattr(Replica, "confirm", beyond)


_BUGS: list[tuple[Plant, bool]] = [
    (_acks_of_enough, False),
    (_added_counts_after_the_answer, False),
    (_seen_is_forgotten, False),
    (_cuts_nothing, False),
    (_leader_cuts_its_tail, False),
    (_any_volume, False),
    (_suspects_lead, False),
    (_written_is_enough, True),
    (_silent_members_do_not_count, False),
    (_hold_from_the_answer, False),
    (_grants_of_a_majority, False),
    (_timed_out_is_won, False),
    (_set_below_the_minimum, False),
    (_confirms_what_it_lacks, False),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("plant", "is_sync_flush"), _BUGS)
def test_a_planted_bug_is_caught(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, *, is_sync_flush: bool
) -> None:
    """Lives end at an invariant."""
    plant(monkeypatch)
    with pytest.raises(InvariantError):
        _live_many(is_sync_flush=is_sync_flush)


def _live_many(*, is_sync_flush: bool) -> None:
    for seed in range(_LIVES_OF_A_BUG):
        _live(seed, is_sync_flush=is_sync_flush)
