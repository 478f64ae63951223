"""Waiting for the disk to fill or empty by some percent.

Whoever steers the volume from outside learns of a fast change at once, not with its next look.
"""

import asyncio
from typing import Final

from mailboat.store.retention import Retention

MAX_WAIT_S: Final = 60.0
MAX_WAITING: Final = 64


class PressureWatch:
    """Wakes who waits for the volume of one store."""

    def __init__(self, retention: Retention) -> None:
        """Watch the looks that the store takes at its volume anyway."""
        self._retention = retention
        self._waiting: dict[asyncio.Future[None], tuple[int, int]] = {}
        retention.on_look = self._looked

    @property
    def is_full(self) -> bool:
        """Nobody else may wait."""
        return len(self._waiting) >= MAX_WAITING

    async def wait(self, from_percent: int, by_percent: int, timeout_s: float) -> bool:
        """Return whether the pressure has moved so far away from a value, once it has.

        Args:
            from_percent: the pressure that the caller knows of.
            by_percent: the smallest move worth to know of, at least 1.
            timeout_s: return False after so long.
        """
        if self._has_moved(from_percent, by_percent):
            return True
        moved = asyncio.get_running_loop().create_future()
        self._waiting[moved] = (from_percent, by_percent)
        try:
            async with asyncio.timeout(timeout_s):
                await moved
        except TimeoutError:
            return False
        finally:
            del self._waiting[moved]
        return self._has_moved(from_percent, by_percent)

    def release(self) -> None:
        """Let all go that wait: the server ends."""
        for moved in self._waiting:
            if not moved.done():
                moved.set_result(None)

    def _looked(self) -> None:
        for moved, wanted in self._waiting.items():
            if self._has_moved(*wanted) and not moved.done():
                moved.set_result(None)

    def _has_moved(self, from_percent: int, by_percent: int) -> bool:
        percent = self._retention.pressure_percent
        return percent is not None and abs(percent - from_percent) >= by_percent
