"""A group of ASYNC_MASTER on machines of their own: what it loses with its leader, no more."""

from pathlib import Path

import pytest
from network_faults import (
    leader_cut_off_and_replaced,
    leader_cut_off_from_replicas_and_replaced,
)
from process_faults import (
    handed_over,
    killed_while_promoted,
    leader_halted_and_replaced,
    leader_killed,
)
from rounds import ROUNDS, chosen, life, seeds

_FAULTS = (
    leader_killed,
    leader_cut_off_and_replaced,
    leader_cut_off_from_replicas_and_replaced,
    handed_over,
    leader_halted_and_replaced,
    killed_while_promoted,
)


@pytest.mark.crash
@pytest.mark.timeout(120 + 60 * ROUNDS)
@pytest.mark.parametrize("seed", seeds())
async def test_only_the_newest_are_lost(tmp_path: Path, shim_library: Path, seed: int) -> None:
    """Of what was acknowledged before the last second, all is there, whoever leads then."""
    options = {"brokerRole": "ASYNC_MASTER", "inSyncReplicas": 1}
    async with life(tmp_path, shim_library, seed, **options) as one:
        for fault in chosen(_FAULTS, seed, len(_FAULTS)):
            await one.round(fault)
        assert one.load.acknowledged > 50 * len(_FAULTS)
        print(f"lost {one.lost} of {one.load.acknowledged}")
