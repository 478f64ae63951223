"""Which half messages are open: whatever the order of ends, and in little memory."""

import sys
import time
from random import Random

from mailboat.broker.transactions.half_window import ArrivalTimes, HalfWindow, OpProgress


def _open_offsets(window: HalfWindow) -> list[int]:
    found, offset = [], window.start
    while (offset := window.next_open(offset, window.end)) < window.end:
        if window.is_open(offset):
            found.append(offset)
            offset += 1
    return found


def test_the_window_says_what_a_set_says() -> None:
    """Ends in any order, twice, unknown: open is what came and was not ended."""
    random = Random(7)
    window, model, end = HalfWindow(40, 50), set(range(40, 50)), 50
    for _ in range(3000):
        if random.random() < 0.3:
            added = random.randrange(4)
            model.update(range(end, end + added))
            end += added
            window.extend(end)
        else:
            offset = random.randrange(max(end - 60, 0), end + 3)
            assert window.is_open(offset) == (offset in model)
            window.close(offset)
            model.discard(offset)
        assert window.open_count == len(model)
        assert window.start == min(model, default=end)
    assert _open_offsets(window) == sorted(model)


def test_what_ended_costs_four_bytes_behind_an_open_one() -> None:
    """A million ends behind one open half message take 4 MB; nothing when that one ends."""
    window = HalfWindow(0, 1_000_001)
    for offset in range(1, 1_000_001):
        window.close(offset)
    assert (window.start, window.open_count) == (0, 1)
    assert sys.getsizeof(window._states) < 5_000_000
    began_s = time.thread_time()
    window.close(0)
    assert time.thread_time() - began_s < 0.05  # 130 ms one by one
    assert (window.start, window.open_count) == (1_000_001, 0)
    assert sys.getsizeof(window._states) < 1_000


def test_checks_count_until_forgotten() -> None:
    """The count is per half message; waiting is no check."""
    window = HalfWindow(5, 8)
    window.count_check(6)
    window.count_check(6)
    assert [window.checks(offset) for offset in (5, 6, 7)] == [0, 2, 0]
    window.forget_checks(6)
    window.wait_until(7, 12.5)
    assert [window.checks(offset) for offset in (5, 6, 7)] == [0, 0, 0]
    assert window.is_waiting(7, 12.4)
    assert not window.is_waiting(7, 12.5)
    assert not window.is_waiting(5, 0.0)
    window.wait_until(7, 1e15)
    assert window.is_waiting(7, 2e8)
    window.count_check(7)
    assert window.checks(7) == 1
    assert not window.is_waiting(7, 0.0)


def test_close_before_counts_only_the_open_ones() -> None:
    """What went with the log is counted once, and never beyond the end."""
    window = HalfWindow(0, 10)
    window.close(3)
    assert window.close_before(5) == 4
    assert window.close_before(5) == 0
    assert window.close_before(99) == 5
    assert window.start == 10


def test_arrival_is_the_first_look_that_saw_it() -> None:
    """A half message is never older than it is, and what lies before the first look has no time."""
    times = ArrivalTimes(10)
    times.note(12, 1.0)
    times.note(12, 2.0)
    times.note(15, 3.0)
    assert [times.seconds(offset, 9.0) for offset in (10, 11, 12, 14, 15)] == [1, 1, 3, 3, 9]
    times.forget_before(12)
    assert [times.seconds(offset, 9.0) for offset in (12, 14, 15)] == [3, 3, 9]
    times.forget_before(99)
    times.note(16, 4.0)
    assert times.seconds(15, 9.0) == 4


def test_an_op_record_is_needed_while_one_of_its_halves_may_be_open() -> None:
    """The committed op offset never passes a record that a restart needs, and catches up."""
    random = Random(3)
    progress, window = OpProgress(0), HalfWindow(0, 5000)
    named: list[int] = []
    offsets = list(range(5000))
    for start in range(0, 5000, 40):
        part = offsets[start : start + 40]
        random.shuffle(part)
        offsets[start : start + 40] = part
    for op_offset, half_offset in enumerate(offsets):
        named.append(half_offset)
        progress.note(op_offset, half_offset)
        window.close(half_offset)
        start = progress.advance(window.start)
        assert all(half < window.start for half in named[:start])
        # Neighbours share a mark, 64 at most, and ends came within 40 places of order.
        assert op_offset + 1 - start <= 64 + 40 + 64
    assert progress.advance(window.start) == 5000
