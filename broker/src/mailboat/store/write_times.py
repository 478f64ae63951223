"""How long writes to the CommitLog took, counted as RocketMQ counts them.

Source: apache/rocketmq store/StoreStatsService.java (setPutMessageEntireTimeMax,
getPutMessageDistributeTimeStringInfo) @ rocketmq-all-5.3.3.
"""

from bisect import bisect_right
from typing import Final

_BOUNDS_S: Final = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0)
_NAMES: Final = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]",
    "[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip


class WriteTimes:
    """Counts of writes by how long they took; one write may hold many messages."""

    def __init__(self) -> None:
        """Nothing was written yet."""
        self.counts = [0] * len(_NAMES)
        """Writes below 1, 10, 50, 100, 200 and 500 ms, 1, 2, 3, 4, 5 and 10 s, and all others."""

    def note(self, seconds: float) -> None:
        """Count a write."""
        self.counts[bisect_right(_BOUNDS_S, seconds)] += 1

    def spelled(self) -> str:
        """Return the counts as GET_BROKER_RUNTIME_INFO has them."""
        return " ".join(f"{name}:{count}" for name, count in zip(_NAMES, self.counts, strict=True))
