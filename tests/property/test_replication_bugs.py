"""Bugs planted in replication, each of which many lives of a group must find.

The numbers are those of the design's list. Not here: what a replica's carrier does with queue
offsets, locks and offsets of consumers (9, 19, 20, 27b); and acknowledgements of an older epoch
(14c), which are of no session of the present one either.
"""

import dataclasses
from collections.abc import Callable

import pytest
from daily import some_of
from promises import PromiseBroken, promised
from replication_lives import live

from mailboat.replication import following
from mailboat.replication.actions import CutLog, Lead, Persist
from mailboat.replication.election import Election
from mailboat.replication.epochs import Epochs, consistent_end
from mailboat.replication.events import Outcome
from mailboat.replication.following import Following
from mailboat.replication.frames import Ack, Answer, Beat, Welcome
from mailboat.replication.leading import Leading
from mailboat.replication.lease import Lease, Member
from mailboat.replication.replica import Replica
from mailboat.testing.replica_simulator import Group, InvariantError

# A planted bug shows in one of so many lives.
_LIVES_OF_A_BUG = 3000
_LIFE_S = 40.0

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


def _dropped_counts_no_more(patch: pytest.MonkeyPatch) -> None:
    """Who is being dropped does not count although the answer has not come (3)."""

    def required(self: Leading) -> frozenset[Member]:
        added = frozenset().union(*self._pending)
        return self.recorded.intersection(*self._pending) | added

    patch.setattr(Leading, "required", required)


def _no_answer_is_failed(patch: pytest.MonkeyPatch) -> None:
    """A write of the lease without an answer is taken for one that failed (3b)."""
    written = Leading.lease_written

    def failed(self: Leading, request: int, outcome: Outcome, lease: Lease | None) -> None:
        write = self._write
        written(self, request, outcome, lease)
        if outcome is Outcome.UNKNOWN and write is not None:
            self._pending.discard(write.in_sync)
            self.advance()

    patch.setattr(Leading, "lease_written", failed)


def _refused_takes_all_back(patch: pytest.MonkeyPatch) -> None:
    """Whoever may not write the lease leads on, though it gave that up before, unanswered."""
    written = Leading.lease_written

    def refused(self: Leading, request: int, outcome: Outcome, lease: Lease | None) -> None:
        self._may_have_ended = False
        written(self, request, outcome, lease)

    patch.setattr(Leading, "lease_written", refused)


def _epoch_is_noted_late(patch: pytest.MonkeyPatch) -> None:
    """A leader opens before its epoch is durable (5)."""
    lead = Replica.lead

    def late(self: Replica, *args: object, lost: bool) -> None:
        lead(self, *args, lost=lost)  # type: ignore[arg-type]
        at = next(n for n, action in enumerate(self._actions) if isinstance(action, Lead))
        self._actions[at - 1], self._actions[at] = self._actions[at], self._actions[at - 1]

    patch.setattr(Replica, "lead", late)


def _cuts_to_confirmed(patch: pytest.MonkeyPatch) -> None:
    """A follower cuts off what it does not know to be confirmed (6)."""
    welcomed = Following._welcomed

    def cut(self: Following, welcome: Welcome) -> None:
        replica = self._replica
        if replica.end > replica.confirmed and welcome.epoch >= replica.durable.seen:
            replica.act(CutLog(replica.confirmed))
            replica.end = replica.flushed_end = replica.confirmed
        welcomed(self, welcome)

    patch.setattr(Following, "_welcomed", cut)


def _compares_newest_epoch_alone(patch: pytest.MonkeyPatch) -> None:
    """Logs are the same up to the end of the leader's newest epoch that is not newer (7)."""

    def newest(mine: Epochs, my_end: int, theirs: Epochs, their_end: int) -> int | None:
        last = max((entry.epoch for entry in mine), default=0)
        later = [entry.start for entry in theirs if entry.epoch > last]
        return min([my_end, their_end, *later])

    patch.setattr(following, "consistent_end", newest)


def _acks_of_connections(patch: pytest.MonkeyPatch) -> None:
    """Each connection counts, so that one follower may count twice (14)."""
    acknowledged = Leading._acknowledged
    by_connection: dict[Leading, dict[int, int]] = {}

    def count(self: Leading, sender: Member, ack: Ack) -> None:
        if ack.end <= self._replica.end:
            by_connection.setdefault(self, {})[ack.session] = ack.end
        acknowledged(self, sender, ack)
        self.advance()

    def advance(self: Leading) -> None:
        ends = sorted(by_connection.get(self, {}).values(), reverse=True)
        needed = len(self.required()) - 1
        if len(ends) >= needed:
            self._replica.confirm(min([self._replica.kept_end, *ends[:needed]]))

    patch.setattr(Leading, "_acknowledged", count)
    patch.setattr(Leading, "advance", advance)


def _acks_beyond_the_end(patch: pytest.MonkeyPatch) -> None:
    """An acknowledgement of more than there is is believed (14b)."""
    acknowledged = Leading._acknowledged

    def believe(self: Leading, sender: Member, ack: Ack) -> None:
        acknowledged(self, sender, dataclasses.replace(ack, end=min(ack.end, self._replica.end)))
        if sender in self._sessions and self._sessions[sender].number == ack.session:
            self.acked[sender] = max(self.acked.get(sender, 0), ack.end)

    patch.setattr(Leading, "_acknowledged", believe)


def _silent_do_not_count(patch: pytest.MonkeyPatch) -> None:
    """A member that is not connected is left out while it is in the set (16)."""

    def required(self: Leading) -> frozenset[Member]:
        me = self._replica.member
        return frozenset(m for m in self.recorded if m == me or not self._is_silent(m, 1.0))

    patch.setattr(Leading, "required", required)


def _hands_over_to_anybody(patch: pytest.MonkeyPatch) -> None:
    """The lease is handed over before who gets it has everything, or is in the set (23)."""
    hand_over = Leading._try_to_hand_over

    def early(self: Leading, successor: Member) -> None:
        self.acked[successor] = self._replica.confirmed = self._replica.end
        self.recorded |= {successor}
        hand_over(self, successor)

    patch.setattr(Leading, "_try_to_hand_over", early)

    def anybody(self: Leading, ordinal: int) -> None:
        for member in self._sessions:
            if member.ordinal == ordinal:
                self._successor = member
                self._parked_until_s = self._replica.now_s + 1.5

    patch.setattr(Leading, "hand_over", anybody)


def _goes_on_alone(patch: pytest.MonkeyPatch) -> None:
    """A later epoch ends nothing before the next read; until then it acknowledges alone (24)."""
    stop = Replica.stop

    def alone(self: Replica, reason: str) -> None:
        if self.leading is None or not reason.endswith("has begun"):
            stop(self, reason)
            return
        self.leading.recorded = frozenset({self.member})
        self.leading._pending.clear()
        self.leading.advance()

    patch.setattr(Replica, "stop", alone)


def _authority_at_once(patch: pytest.MonkeyPatch) -> None:
    """Who leads because the holder is said to be dead has authority at once (27)."""
    lead = Replica.lead

    def at_once(self: Replica, lease: Lease, sent_s: float, _from_s: float, *, lost: bool) -> None:
        lead(self, lease, sent_s, self.now_s, lost=lost)

    patch.setattr(Replica, "lead", at_once)


def _set_back_lease_is_believed(patch: pytest.MonkeyPatch) -> None:
    """A lease that went back in time is taken for the newest (28)."""
    read = Leading.lease_read

    def adopt(self: Leading, lease: Lease | None) -> None:
        if lease is not None and lease.holder == self._replica.me:
            self._adopt(lease)
        else:
            read(self, lease)

    patch.setattr(Leading, "lease_read", adopt)


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
    (_dropped_counts_no_more, False),
    (_no_answer_is_failed, False),
    (_refused_takes_all_back, False),
    (_epoch_is_noted_late, False),
    (_cuts_to_confirmed, False),
    (_compares_newest_epoch_alone, False),
    (_acks_of_connections, False),
    (_acks_beyond_the_end, False),
    (_silent_do_not_count, False),
    (_hands_over_to_anybody, False),
    (_goes_on_alone, False),
    (_authority_at_once, False),
    (_set_back_lease_is_believed, False),
]


@pytest.mark.timeout(600)
@pytest.mark.slow  # Some bugs show in one of a thousand lives.
@pytest.mark.parametrize(("plant", "is_sync_flush"), some_of(_BUGS, 4))
def test_a_planted_bug_is_caught(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, *, is_sync_flush: bool
) -> None:
    """Lives end at an invariant."""
    plant(monkeypatch)
    with pytest.raises(PromiseBroken) as caught:
        _live_many(is_sync_flush=is_sync_flush)
    assert isinstance(caught.value.__cause__, InvariantError)


def _live_many(*, is_sync_flush: bool) -> None:
    for seed in range(_LIVES_OF_A_BUG):
        live(seed, life_s=_LIFE_S, is_sync_flush=is_sync_flush)


@pytest.mark.slow  # As many lives as a bug has.
def test_a_wrong_order_of_candidates_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever tries first, as by a difference of ends that overflows (25), nothing is lost."""
    answer = Replica._answer

    def overflown(self: Replica, attempt: int) -> Answer:
        said = answer(self, attempt)
        return dataclasses.replace(said, end=-said.end)

    monkeypatch.setattr(Replica, "_answer", overflown)
    led = 0
    for seed in range(300):
        led += live(seed, life_s=_LIFE_S, is_sync_flush=seed % 2 == 0).leaders
    assert led > 300


def _leader_without_authority() -> int:
    """Return how many led, where the first is cut off from the lease and one of two others."""
    group = Group(4)
    group.has_faults = False
    group.live(20.0)
    assert group.lease.holder is not None
    leader = group.lease.holder.ordinal
    group.cut_off_lease(leader)
    group.block(leader, (leader + 1) % 3)
    group.live(25.0)
    return group.leaders


def test_another_one_leads_where_the_leader_has_no_authority() -> None:
    """That it lives is no reason to wait for it."""
    assert _leader_without_authority() == 2


def test_a_veto_for_who_lives_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody leads where a follower vetoes for a leader that only lives (27c)."""
    follow = Following._follow_beat

    def hear(self: Following, beat: Beat) -> None:
        follow(self, beat)
        self._replica.authority_heard_until_s = self._replica.now_s + 3.0

    monkeypatch.setattr(Following, "_follow_beat", hear)
    assert _leader_without_authority() == 1


def _snapshots_of_volumes() -> None:
    """Set a volume back to what it was, and take the leader away, in some groups."""
    for seed in range(10):
        group = Group(seed)
        group.has_faults = False
        group.live(20.0)
        assert group.lease.holder is not None
        leader = group.lease.holder.ordinal
        group.set_back_volume((leader + 1) % 3, records=10)
        group.kill(leader, until_healed=True)
        group.live(30.0)
        group.heal()


@promised("all invariants hold")
def test_a_volume_set_back_does_not_lead() -> None:
    """Where one other member answers that it knows of more."""
    _snapshots_of_volumes()


def test_a_volume_set_back_that_leads_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lacks what was acknowledged (28b)."""
    told = Replica._answer

    def nothing(self: Replica, attempt: int) -> Answer:
        return dataclasses.replace(told(self, attempt), confirmed=0, end=0)

    monkeypatch.setattr(Replica, "_answer", nothing)
    with pytest.raises(InvariantError, match="I4"):
        _snapshots_of_volumes()
