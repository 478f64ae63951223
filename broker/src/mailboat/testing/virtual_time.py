"""The one clock of the tests: it stands still until a test moves it.

Whatever waits for a time is tested with it: leases, expiry, delay, back-off, registration, long
polls, supervisors, loops of the operator. Nothing real is behind it, so a slow machine changes no
result, and hours pass at once.

The library `looptime` moves the time of an event loop too. Its clock is the loop's own: code
without a loop cannot read it, and a test cannot move it. So it is not used here.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from mailboat.disk import ClockPair

_NS: Final = 1_000_000_000
_NS_OF_MS: Final = 1_000_000

START_S: Final = 1 << 20
"""Where the monotonic clock begins.

From here on, for twelve days, floats of seconds lie equally far apart, and closer than nanoseconds.
So each nanosecond has a float of its own, and differences of times do not round: 15 s of the one
who waits are 15 s of the one who looks on.
"""

START_WALL_MS: Final = 1_700_000_000_000
"""What the wall clock shows at the start: 2023-11-14 22:13:20 UTC."""


class VirtualTime:
    """Integer nanoseconds since a fixed start, on a monotonic clock and on a wall clock."""

    def __init__(self) -> None:
        """Begin at the start."""
        self._now_ns = START_S * _NS
        self._wall_ahead_ns = START_WALL_MS * _NS_OF_MS - self._now_ns

    # What the product reads.

    def monotonic(self) -> float:
        """Return seconds that only ever go up."""
        return self._now_ns / _NS

    def time_ns(self) -> int:
        """Return the wall clock, epoch nanoseconds."""
        return self._now_ns + self._wall_ahead_ns

    def wall_ms(self) -> int:
        """Return the wall clock, epoch milliseconds."""
        return self.time_ns() // _NS_OF_MS

    def time(self) -> float:
        """Return the wall clock, epoch seconds; floats of this size are 0.2 microseconds apart."""
        return self.time_ns() / _NS

    def clock_pair(self) -> ClockPair:
        """Return both clocks; no time passes between two looks."""
        return ClockPair(self.time_ns(), self.monotonic(), self.monotonic())

    # What tests do.

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks, rounded to nanoseconds."""
        assert seconds >= 0
        self._now_ns += round(seconds * _NS)

    def set_wall(self, epoch_ms: int) -> None:
        """Set the wall clock forward or back; no time passes."""
        self._wall_ahead_ns = epoch_ms * _NS_OF_MS - self._now_ns

    @contextmanager
    def driving_loop(self) -> Iterator[None]:
        """Let the running loop live in this time: it jumps to the next timer when nothing is ready.

        What comes from sockets and threads takes no time, and timers do not wait for it. So this is
        for code that waits for timers and for itself only.
        """
        loop: Any = asyncio.get_running_loop()
        select = loop._selector.select

        def jump(timeout: float | None) -> Any:
            if timeout is None or timeout <= 0:
                return select(timeout)
            events = select(0)
            if not events:
                # What is due within half a nanosecond would else be waited for forever.
                self._now_ns += max(round(timeout * _NS), 1)
            return events

        loop.time, loop._selector.select = self.monotonic, jump
        try:
            yield
        finally:
            # The loop's time does not run back: both clocks count from somewhere of their own.
            del loop.time, loop._selector.select
