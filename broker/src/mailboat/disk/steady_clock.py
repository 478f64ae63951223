"""A wall clock that no jump moves: the wall time at its making plus the time that has passed since.

Where on the monotonic clock the wall time was read is known within a bracket only. So there are two
clocks, which agree up to that bracket. Let W be the machine's wall clock, and nobody set it:

    now_ms()    at most W: what it shows has surely come
    next_ms()   above W, in whole milliseconds: what it shows has surely not come yet

What begins at `next_ms` of one run, and is over when `now_ms` of the same or another run has got
that far, has lasted its time and never less, however long the bracket of either run is. That holds
to the nanosecond, and so also between any two times that are read of W and cut to whole
milliseconds. With one clock for both it would not hold: the run that parks and the run that
delivers err by different amounts, and whole milliseconds hide up to two of them.

The price is at most 1 ms and both brackets, which are some microseconds as a rule.

Should the process be held up in each of the tries that `read_clock_pair` makes, the brackets are as
long as the shortest of these halts. Things are late by that much then, and not early.
"""

from mailboat.disk import Disk


class SteadyClock:
    """Epoch milliseconds that follow the monotonic clock of a disk."""

    __slots__ = ("_base_ms", "_earliest_s", "_latest_s", "_monotonic")

    def __init__(self, disk: Disk) -> None:
        """Begin with the wall time of now."""
        pair = disk.clock_pair()
        self._monotonic = disk.monotonic
        self._base_ms, passed_ns = divmod(pair.wall_ns, 1_000_000)
        # The monotonic times between which the wall clock began the millisecond of `_base_ms`.
        self._earliest_s = pair.before_s - passed_ns / 1e9
        self._latest_s = pair.after_s - passed_ns / 1e9

    def now_ms(self) -> int:
        """Return the last whole millisecond that has surely begun: never ahead of the wall."""
        return self._base_ms + int((self._monotonic() - self._latest_s) * 1000)

    def next_ms(self) -> int:
        """Return the first whole millisecond that has surely not begun."""
        return self._base_ms + int((self._monotonic() - self._earliest_s) * 1000) + 1
