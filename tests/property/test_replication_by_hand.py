"""Many lives of a group in which a person says who leads, and bugs that they must find.

Each day has others. A life that fails says how it is repeated. `MAILBOAT_REPLICATION_LIVES` says
how many there are.
"""

import dataclasses
import os
from collections.abc import Callable

import pytest
from daily import first_seed, some_of
from promises import PromiseBroken, promised
from replication_lives import live_by_hand

from mailboat.replication.frames import Ack, Answer, Ask
from mailboat.replication.hand_election import HandElection
from mailboat.replication.leading import Leading
from mailboat.replication.lease import Member
from mailboat.replication.replica import Replica
from mailboat.testing.hand_simulator import HandGroup
from mailboat.testing.replica_simulator import InvariantError

_LIVES = int(os.environ.get("MAILBOAT_REPLICATION_LIVES", "2000")) * 2 // 5
_PARTS = 4
# A planted bug shows in one of so many lives.
_LIVES_OF_A_BUG = 6000
_LIFE_OF_A_BUG_S = 40.0


@pytest.mark.slow  # Thousands of lives.
@pytest.mark.timeout(0)
@pytest.mark.parametrize("part", range(_PARTS))
def test_nothing_acknowledged_is_lost(part: int) -> None:
    """Whoever is promoted, whenever, and whatever fails, all invariants hold."""
    lives = -(-_LIVES // _PARTS)
    acknowledged = leaders = losses = handovers = 0
    first = first_seed() + part * lives
    for seed in range(first, first + lives):
        # Some are long enough for volumes to be replaced, and become whole again.
        life_s = 40.0 if seed % 23 == 0 else 8.0
        group = live_by_hand(seed, life_s=life_s, is_sync_flush=seed // 10 % 2 == 1)
        acknowledged += group.acknowledged_end
        leaders += group.leaders
        losses += group.losses
        handovers += group.handovers
    assert acknowledged > 20 * lives
    assert leaders > 1.5 * lives
    assert handovers > lives / 20
    # Where so many lose power at once that nobody can know what was confirmed.
    assert losses < lives / 4


def test_a_new_group_begins_by_itself() -> None:
    """Empty volumes need nobody; the same seed gives the same life."""
    first, second = (HandGroup(3) for _ in range(2))
    for group in (first, second):
        group.has_faults = False
        group.live(10.0)
    assert first.acknowledged_end > 10
    assert first.leaders == 1
    assert first.promotions == 0
    assert first.confirmed == second.confirmed


def test_a_leader_hands_over() -> None:
    """The one that is named leads soon, without a person, and the former leader follows."""
    group = HandGroup(4)
    group.has_faults = False
    group.live(5.0)
    before = group.acknowledged_end
    group.hand_over(2)
    group.live(8.0)
    assert (group.leaders, group.handovers, group.promotions) == (2, 1, 0)
    assert group.acknowledged_end > before + 5
    assert group.leading() == [2]


def test_a_leader_of_one_copy_goes_on_alone() -> None:
    """Where one copy is enough, who led last waits for nobody."""
    group = HandGroup(5, size=2, min_in_sync=1)
    group.has_faults = False
    group.live(5.0)
    before = group.acknowledged_end
    group.kill(1, until_healed=True)
    group.kill(0)
    group.live(10.0)
    assert group.leaders == 2
    assert group.acknowledged_end > before + 10


def _forgotten_promise() -> None:
    """One leads whom a cut off leader does not know; a volume is lost that had promised it."""
    group = HandGroup(9)
    group.has_faults = False
    group.live(6.0)
    group.isolate(0)
    group.live(4.0)
    begun = group.acknowledged_end
    group.promote(1)
    group.live(10.0)
    before = group.acknowledged_end
    assert group.leaders == 2
    assert before > begun
    group.isolate(1)
    group.lose_disk(2)
    group.live(20.0)
    assert group.acknowledged_end == before
    group.heal()


@promised("all invariants hold")
def test_an_empty_volume_follows_no_leader_of_the_past() -> None:
    """It does not count before it has asked everybody for the newest epoch."""
    _forgotten_promise()


Plant = Callable[[pytest.MonkeyPatch], None]


def _promise_is_volatile(patch: pytest.MonkeyPatch) -> None:
    """A promise is said, and kept by nobody."""

    def answer(self: Replica, ask: Ask) -> None:
        self.promised = max(getattr(self, "promised", 0), ask.epoch)  # type: ignore[attr-defined]

    told = Replica._answer

    def promised(self: Replica, attempt: int) -> Answer:
        said = told(self, attempt)
        return dataclasses.replace(said, seen=max(said.seen, getattr(self, "promised", 0)))

    patch.setattr(Replica, "_promise", answer)
    patch.setattr(Replica, "_answer", promised)


def _one_answer_fewer(patch: pytest.MonkeyPatch) -> None:
    """One replica fewer is asked than must be."""
    lacks = HandElection._what_lacks

    def fewer(self: HandElection, answers: dict[int, Answer]) -> str:
        refusal = lacks(self, answers)
        return "" if refusal.startswith("1 more") else refusal

    patch.setattr(HandElection, "_what_lacks", fewer)


def _length_alone(patch: pytest.MonkeyPatch) -> None:
    """The longest log leads, whatever epoch it is of."""

    def has_more(self: HandElection, answer: Answer) -> bool:
        return answer.end > self._replica.end

    patch.setattr(HandElection, "_has_more", has_more)


def _epoch_alone(patch: pytest.MonkeyPatch) -> None:
    """Who has the newest epoch leads, however long its log is."""

    def has_more(self: HandElection, answer: Answer) -> bool:
        return answer.last_epoch > self._replica.last_epoch

    patch.setattr(HandElection, "_has_more", has_more)


def _told(change: Callable[[Answer], Answer]) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        told = Replica._answer
        patch.setattr(Replica, "_answer", lambda self, attempt: change(told(self, attempt)))

    return plant


def _resumes_without_asking(patch: pytest.MonkeyPatch) -> None:
    """Who led last goes on, whatever others know."""
    refusal = HandElection._refusal

    def none(self: HandElection, epoch: int, answers: dict[int, Answer]) -> str:
        return refusal(self, epoch, answers) if self._is_wanted else ""

    patch.setattr(HandElection, "_refusal", none)


def _asks_once(patch: pytest.MonkeyPatch) -> None:
    """Nobody promises: what others have is asked, and then led."""

    def lead(self: HandElection, answers: dict[int, Answer]) -> None:
        seen = max([self._replica.durable.seen, *(a.seen for a in answers.values())])
        self._lead((seen // 8 + 1) * 8 + self._replica.member.ordinal)

    patch.setattr(HandElection, "_prepare", lead)


def _own_promise_forgotten(patch: pytest.MonkeyPatch) -> None:
    """It leads although it has promised a later epoch to another one meanwhile."""
    refusal = HandElection._refusal

    def without(self: HandElection, epoch: int, answers: dict[int, Answer]) -> str:
        said = refusal(self, epoch, answers)
        return refusal(self, 0, answers) if said.endswith("is about to begin") else said

    patch.setattr(HandElection, "_refusal", without)


def _unknown_volumes_acknowledge(patch: pytest.MonkeyPatch) -> None:
    """What a replaced volume has counts before it knows who leads."""
    acknowledged = Leading._acknowledged

    def all_count(self: Leading, sender: Member, ack: Ack) -> None:
        acknowledged(self, sender, dataclasses.replace(ack, counts=True))

    patch.setattr(Leading, "_acknowledged", all_count)


def _does_not_ask_around(patch: pytest.MonkeyPatch) -> None:
    """A replaced volume follows whom it finds, though it has forgotten a promise."""
    patch.setattr(Replica, "knows_newest", property(lambda _: True, lambda *_: None), raising=False)


def _written_is_whole(patch: pytest.MonkeyPatch) -> None:
    """Under SYNC_FLUSH a volume is whole with what is not flushed yet, and acknowledges it."""
    patch.setattr(Replica, "kept_end", property(lambda self: self.end))


def _fewer_than_enough(patch: pytest.MonkeyPatch) -> None:
    """Who was promoted confirms before it has enough followers."""
    init = Leading.__init__

    def alone(self: Leading, *args: object) -> None:
        init(self, *args)  # type: ignore[arg-type]
        self._lease = self._lease._replace(min_in_sync=1)

    patch.setattr(Leading, "__init__", alone)


_BUGS: list[tuple[str, Plant, bool]] = [
    ("promise is volatile", _promise_is_volatile, False),
    ("one answer fewer", _one_answer_fewer, False),
    ("length alone", _length_alone, False),
    ("epoch alone", _epoch_alone, False),
    ("empty volumes count", _told(lambda a: dataclasses.replace(a, is_whole=True)), False),
    ("suspects count", _told(lambda a: dataclasses.replace(a, is_suspect=False)), False),
    ("resumes without asking", _resumes_without_asking, False),
    ("asks once", _asks_once, False),
    ("own promise forgotten", _own_promise_forgotten, False),
    ("written is whole", _written_is_whole, True),
    ("fewer than enough", _fewer_than_enough, False),
]


@pytest.mark.timeout(600)
@pytest.mark.slow  # Some bugs show in one of a thousand lives.
@pytest.mark.parametrize(
    ("plant", "is_sync_flush"), [pytest.param(*bug, id=name) for name, *bug in some_of(_BUGS, 2)]
)
def test_a_planted_bug_is_caught(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, *, is_sync_flush: bool
) -> None:
    """Lives end at an invariant."""
    plant(monkeypatch)
    with pytest.raises(PromiseBroken) as caught:
        _live_many(is_sync_flush=is_sync_flush)
    assert isinstance(caught.value.__cause__, InvariantError)


def _live_many(*, is_sync_flush: bool) -> None:
    for seed in range(0, _LIVES_OF_A_BUG, 2):  # Mostly three replicas, two copies.
        live_by_hand(seed, life_s=_LIFE_OF_A_BUG_S, is_sync_flush=is_sync_flush)


@pytest.mark.parametrize("plant", [_unknown_volumes_acknowledge, _does_not_ask_around])
def test_a_bug_of_empty_volumes_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two leaders confirm different messages."""
    plant(monkeypatch)
    with pytest.raises(InvariantError):
        _forgotten_promise()
