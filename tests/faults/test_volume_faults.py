"""Three brokers on machines of their own: what happens to their volumes and clocks."""

from pathlib import Path
from typing import Final

import pytest
from promises import promised
from rounds import ROUNDS, chosen, life, seeds
from volume_faults import FAULTS

_VOLUME_BYTES: Final = 192 << 20


@pytest.mark.crash
@pytest.mark.timeout(120 + 60 * ROUNDS)
@pytest.mark.parametrize("seed", seeds())
async def test_no_volume_loses_what_was_acknowledged(
    tmp_path: Path, shim_library: Path, seed: int
) -> None:
    """Whoever leads has it, consumers saw nothing else, and all logs are equal in the end."""
    flush = "SYNC_FLUSH" if seed % 2 else "ASYNC_FLUSH"
    async with life(
        tmp_path, shim_library, seed, flushDiskType=flush, disk_bytes=_VOLUME_BYTES
    ) as one:
        for fault in chosen(FAULTS, seed):
            await one.round(fault)
        assert one.load.acknowledged > 50 * ROUNDS
        with promised(f"nothing acknowledged is lost, seed {seed}"):
            assert one.lost == 0
