"""Warming up until it shows: windows of load are repeated until two in a row agree.

A just-in-time compiler is done at no fixed time, so a fixed warm-up measures the compiler's
progress on one machine and not on another. The bound of time is for what never settles.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

TOLERANCE = 0.05


@dataclass(frozen=True)
class WarmUp:
    """How a warm-up went; `windows` are what was compared, in its own unit, oldest first."""

    windows: tuple[float, ...]
    seconds: float
    is_steady: bool
    """Whether the last two windows agreed; if not, the bound of time ended it."""

    def as_fields(self) -> dict[str, Any]:
        """Return it as plain data for a result."""
        fields = asdict(self)
        return fields | {"windows": [round(window, 3) for window in self.windows]}

    def complaint(self) -> str:
        """Return what is to be said of it: nothing if it became steady."""
        if self.is_steady:
            return ""
        last = " and ".join(f"{window:.4g}" for window in self.windows[-2:])
        return (
            f"not warm: no two windows agreed within {TOLERANCE:.0%} in {self.seconds:.0f} s"
            f" (last {last})"
        )


def agree(first: float, second: float) -> bool:
    """Tell whether two numbers differ by at most 5 % of the larger one."""
    return abs(first - second) <= TOLERANCE * max(abs(first), abs(second))


def warm_up(
    take_window: Callable[[], float],
    *,
    at_least_windows: int,
    at_most_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> WarmUp:
    """Take windows until the last two agree, or until the time is up.

    Args:
        take_window: puts load on for a while and returns the number that has to settle.
        at_least_windows: so many are taken before any two may agree: code that is still
            interpreted is steady, too.
        at_most_s: no window begins after this many seconds; the two that can be compared are
            taken in any case.
        clock: seconds.
    """
    began_s = clock()
    windows: list[float] = []
    while True:
        windows.append(take_window())
        elapsed_s = clock() - began_s
        if len(windows) < 2:
            continue
        if len(windows) >= at_least_windows and agree(windows[-2], windows[-1]):
            return WarmUp(tuple(windows), elapsed_s, is_steady=True)
        if elapsed_s >= at_most_s:
            return WarmUp(tuple(windows), elapsed_s, is_steady=False)
