"""Three brokers on machines of their own: what happens when processes stop, at any point."""

from pathlib import Path

import pytest
from process_faults import FAULTS
from promises import promised
from rounds import ROUNDS, chosen, life, seeds


@pytest.mark.crash
@pytest.mark.timeout(120 + 60 * ROUNDS)
@pytest.mark.parametrize("seed", seeds())
async def test_no_end_of_a_process_loses_what_was_acknowledged(
    tmp_path: Path, shim_library: Path, seed: int
) -> None:
    """Whoever leads has it, consumers saw nothing else, and all logs are equal in the end."""
    flush = "ASYNC_FLUSH" if seed % 2 else "SYNC_FLUSH"
    async with life(tmp_path, shim_library, seed, flushDiskType=flush) as one:
        for fault in chosen(FAULTS, seed):
            await one.round(fault)
        assert one.load.acknowledged > 50 * ROUNDS
        with promised(f"nothing acknowledged is lost, seed {seed}"):
            assert one.lost == 0
