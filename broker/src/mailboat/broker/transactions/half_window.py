"""Which half messages are open, and since when they are there.

A half message is known by its offset in the half topic's queue. Everything below the window's start
has ended; within the window each half message takes four bytes, ended or not, so a million of them
are 4 MB however long the oldest stays open. The start is what the group CID_RMQ_SYS_TRANS commits.

Source: apache/rocketmq broker/transaction/queue/TransactionalMessageServiceImpl.java (check), which
keeps a map of ended ones per round and stores every open one again.
"""

from array import array
from bisect import bisect_right
from typing import Final

_ENDED: Final = -1
_FIRST_WAIT: Final = -2
_TICKS_A_SECOND: Final = 10
_LAST_TICK: Final = (1 << 31) + _FIRST_WAIT
_SCAN: Final = 4096
_ENDED_BLOCK: Final = array("i", [_ENDED]) * _SCAN
# What has ended is cut off in pieces, so that each costs little.
_TRIM: Final = 65_536


class HalfWindow:
    """The state of the half messages from `start` to `end`, both queue offsets.

    A state is the number of checks, or that it ended, or until when nobody is asked about it.
    """

    __slots__ = ("_base", "_states", "open_count", "start")

    def __init__(self, start: int, end: int) -> None:
        """Begin with open half messages only."""
        self._base = start
        self._states = array("i", bytes(4 * (end - start)))
        self.start = start
        """Queue offset of the first open half message, or `end`."""

        self.open_count = end - start

    @property
    def end(self) -> int:
        """The queue offset after the last half message that is known."""
        return self._base + len(self._states)

    def extend(self, end: int) -> None:
        """Take in the half messages below `end`; they are open."""
        added = end - self.end
        if added > 0:
            self._states.frombytes(bytes(4 * added))
            self.open_count += added

    def is_open(self, queue_offset: int) -> bool:
        """Tell whether a half message is known and has not ended."""
        if not self.start <= queue_offset < self.end:
            return False
        return self._states[queue_offset - self._base] != _ENDED

    def close(self, queue_offset: int) -> None:
        """Note that a half message has ended; once more, or for an old one, it does nothing."""
        if not self.is_open(queue_offset):
            return
        self._states[queue_offset - self._base] = _ENDED
        self.open_count -= 1
        if queue_offset == self.start:
            self._advance()

    def close_before(self, queue_offset: int) -> int:
        """Note that everything below an offset has ended; return how much of it was open."""
        begin, end = self.start - self._base, min(queue_offset, self.end) - self._base
        if end <= begin:
            return 0
        gone = self._states[begin:end]
        self._states[begin:end] = array("i", [_ENDED]) * len(gone)
        closed = len(gone) - gone.count(_ENDED)
        self.open_count -= closed
        self._advance()
        return closed

    def checks(self, queue_offset: int) -> int:
        """Return how often somebody was asked about an open half message."""
        return max(self._states[queue_offset - self._base], 0)

    def count_check(self, queue_offset: int) -> None:
        """Note that it was one more time."""
        self._states[queue_offset - self._base] = self.checks(queue_offset) + 1

    def forget_checks(self, queue_offset: int) -> None:
        """Begin again with an open half message."""
        self._states[queue_offset - self._base] = 0

    def wait_until(self, queue_offset: int, second: float) -> None:
        """Leave an open half message alone until a second of the caller's clock, which began at
        0."""
        tick = min(int(second * _TICKS_A_SECOND), _LAST_TICK)
        self._states[queue_offset - self._base] = _FIRST_WAIT - tick

    def is_waiting(self, queue_offset: int, now: float) -> bool:
        """Tell whether an open half message is to be left alone."""
        state = self._states[queue_offset - self._base]
        return state <= _FIRST_WAIT and now * _TICKS_A_SECOND < _FIRST_WAIT - state

    def next_open(self, queue_offset: int, limit: int) -> int:
        """Return the first open offset from one on, or where the search stopped.

        A call looks at a bounded number of offsets, all below `limit`.
        """
        offset = max(queue_offset, self.start)
        states, base = self._states, self._base
        stop = min(offset + _SCAN, limit)
        while offset < stop and states[offset - base] == _ENDED:
            offset += 1
        return offset

    def _pass_ended(self, index: int, stop: int) -> int:
        states = self._states
        while index < stop and states[index] == _ENDED:
            index += 1
        return index

    def _advance(self) -> None:
        states = self._states
        index, size = self.start - self._base, len(states)
        index = self._pass_ended(index, min(index + _SCAN, size))
        # A million may have ended behind the one that was open: those are passed by the block.
        while states[index : index + _SCAN] == _ENDED_BLOCK:
            index += _SCAN
        index = self._pass_ended(index, size)
        self.start = self._base + index
        if index >= _TRIM or index == size:
            del states[:index]
            self._base = self.start


class ArrivalTimes:
    """When half messages arrived, to the second: one mark for all between two looks."""

    __slots__ = ("_ends", "_seconds")

    def __init__(self, end: int) -> None:
        """Know nothing of what lies below `end`."""
        self._ends = [end]
        self._seconds = [0.0]

    def note(self, end: int, now: float) -> None:
        """Note that everything below `end` is there now."""
        if end > self._ends[-1]:
            self._ends.append(end)
            self._seconds.append(now)

    def seconds(self, queue_offset: int, now: float) -> float:
        """Return when a half message arrived; `now` for one that came after the last look."""
        place = bisect_right(self._ends, queue_offset)
        return self._seconds[place] if place < len(self._seconds) else now

    def forget_before(self, queue_offset: int) -> None:
        """Drop what is not asked for any more."""
        place = bisect_right(self._ends, queue_offset) - 1
        if place > 0:
            del self._ends[:place], self._seconds[:place]


class OpProgress:
    """How far the op topic's queue is no longer needed.

    An op record is needed while one of its half messages lies at or above the window's start: a
    restart reads it again. Neighbours share a mark, so that what is kept stays small.
    """

    __slots__ = ("_highest", "_stops", "start")

    _RECORDS_A_MARK: Final = 64

    def __init__(self, start: int) -> None:
        """Begin with the first op record that may be needed."""
        self.start = start
        self._stops: list[int] = []
        self._highest: list[int] = []

    def note(self, op_offset: int, half_offset: int) -> None:
        """Take in the next op record, whose highest half message is given."""
        last_start = self._stops[-2] if len(self._stops) > 1 else self.start
        if self._stops and op_offset - last_start < self._RECORDS_A_MARK:
            self._stops[-1] = op_offset + 1
            self._highest[-1] = max(self._highest[-1], half_offset)
        else:
            self._stops.append(op_offset + 1)
            self._highest.append(half_offset)

    def advance(self, window_start: int) -> int:
        """Return the first op offset that is needed while halves from `window_start` on may be
        open."""
        count = 0
        while count < len(self._stops) and self._highest[count] < window_start:
            count += 1
        if count:
            self.start = self._stops[count - 1]
            del self._stops[:count], self._highest[:count]
        return self.start
