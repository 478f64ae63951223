"""Many lives of a group of replicas whose lease a store keeps.

Each day has others. A life that fails says how it is repeated. `MAILBOAT_REPLICATION_LIVES` (2000)
says how many there are: three fifths are here, the others in `test_replication_by_hand.py`.
"""

import os

import pytest
from daily import first_seed
from replication_lives import live

from mailboat.testing.replica_simulator import Group

_LIVES = int(os.environ.get("MAILBOAT_REPLICATION_LIVES", "2000")) * 3 // 5
_PARTS = 4


@pytest.mark.slow  # Thousands of lives.
@pytest.mark.timeout(0)
@pytest.mark.parametrize("part", range(_PARTS))
def test_nothing_acknowledged_is_lost(part: int) -> None:
    """Whatever fails, all invariants hold, and the group is whole again afterwards."""
    lives = -(-_LIVES // _PARTS)
    acknowledged = leaders = waiting = 0
    first = first_seed() + part * lives
    for seed in range(first, first + lives):
        # Some are long enough for leases to end more than once.
        life_s = 40.0 if seed % 25 == 0 else 8.0
        group = live(seed, life_s=life_s, is_sync_flush=seed // 8 % 2 == 1)
        acknowledged += group.acknowledged_end
        leaders += group.leaders
        waiting += group.waits_for_person
    # The lives are worth something: messages were stored, and leaders changed. A mean of 300 lives
    # is five standard deviations from its limit, so that no day is an unlucky one.
    assert acknowledged > 30 * lives
    assert leaders > 1.05 * lives
    assert waiting <= lives / 50 + 1


def test_a_life_repeats_itself() -> None:
    """The same seed gives the same life, whatever order sets have in this process."""
    first, second = (live(11, life_s=40.0, is_sync_flush=False) for _ in range(2))
    assert first.lease == second.lease
    assert first.confirmed == second.confirmed


def test_who_lags_is_dropped() -> None:
    """One that answers, and gets no messages, holds up the others for a few seconds only."""
    group = Group(4)
    group.has_faults = False
    group.live(20.0)
    assert group.lease.holder is not None
    leader = group.lease.holder.ordinal
    slow = (leader + 1) % 3
    assert len(group.lease.in_sync) == 3
    group.clog(leader, slow)
    group.live(1.0)
    before = group.acknowledged_end
    group.live(7.0)
    assert slow not in {member.ordinal for member in group.lease.in_sync}
    assert group.acknowledged_end > before + 5
    group.heal()
    group.live(5.0)
    assert len(group.lease.in_sync) == 3
