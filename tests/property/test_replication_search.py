"""All orders of a few steps of two and three replicas."""

import pytest
from daily import some_of
from promises import promised

from mailboat.replication.leading import Leading
from mailboat.testing.replica_search import Budget, search
from mailboat.testing.replica_simulator import InvariantError


@pytest.mark.slow  # Tens of thousands of states.
@pytest.mark.parametrize(
    ("size", "min_in_sync", "budget", "states"),
    some_of(
        [
            (2, 1, Budget(messages=1, ticks=1, waits=1, deaths=1), 4_000),
            (2, 1, Budget(messages=1, waits=2, deaths=1), 4_000),
            (2, 1, Budget(messages=1, waits=2, lost_answers=1), 5_000),
            (2, 2, Budget(messages=1, ticks=1, waits=1, deaths=1), 4_000),
            (3, 2, Budget(waits=2), 4_000),
        ],
        1,
    ),
)
def test_all_invariants_hold_in_every_state(
    size: int, min_in_sync: int, budget: Budget, states: int
) -> None:
    """Whatever comes first; a second epoch begins in some of the states."""
    with promised("all invariants hold"):
        found = search(size=size, min_in_sync=min_in_sync, budget=budget)
    assert found.states > states
    assert found.epoch == 2


def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that confirms alone is seen in some state."""
    monkeypatch.setattr(
        Leading, "advance", lambda self: self._replica.confirm(self._replica.kept_end)
    )
    with pytest.raises(InvariantError, match="I3") as caught:
        search(size=2, min_in_sync=1, budget=Budget(messages=1))
    assert caught.value.__notes__ == ["0 stores"]
