"""No delayed message is early, wherever the process is held up between two looks at a clock.

Each look at a clock takes a planted time. The clocks are read as `RealDisk` reads them,
the files are in memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Final
from unittest.mock import patch

import pytest
from delayed_life import Life
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mailboat.disk import ClockPair, real
from mailboat.disk.real import RealDisk
from mailboat.disk.steady_clock import SteadyClock
from mailboat.testing.disk_wrapper import DiskWrapper
from mailboat.testing.virtual_time import VirtualTime

_MS: Final = 1_000_000
_S: Final = 1_000 * _MS
_DELAY_NS: Final = 1 * _S
_LOOK_NS: Final = 40


class Machine(VirtualTime):
    """The clocks of one machine; `pauses_ns` come before the next looks, then none."""

    def __init__(self, fraction_ns: int) -> None:
        """Begin some months after the machine's start."""
        super().__init__()
        self.pauses_ns: list[int] = []
        self.advance(10_000_000)
        # A millisecond of one clock begins within one of the other.
        self.pass_ns(_MS - 456_789)
        self.set_wall(self.wall_ms())
        self.pass_ns(456_789 + fraction_ns)

    @property
    def wall_ns(self) -> int:
        """What the wall clock shows, epoch nanoseconds."""
        return super().time_ns()

    def pass_ns(self, nanoseconds: int) -> None:
        """Let time pass."""
        self.advance(nanoseconds / _S)

    def time_ns(self) -> int:
        """Look at the wall clock."""
        self._look()
        return super().time_ns()

    def monotonic(self) -> float:
        """Look at the monotonic clock."""
        self._look()
        return super().monotonic()

    def _look(self) -> None:
        self.pass_ns(self.pauses_ns.pop(0) if self.pauses_ns else _LOOK_NS)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Give real disks these clocks."""
        with patch.object(real, "time", self):
            yield


class MachineDisk(DiskWrapper):
    """The files of another disk, and the clocks as `RealDisk` reads the machine's."""

    def wall_ms(self) -> int:
        """Return the wall clock, epoch milliseconds."""
        return RealDisk().wall_ms()

    def monotonic(self) -> float:
        """Return seconds that only ever go up."""
        return RealDisk().monotonic()

    def clock_pair(self) -> ClockPair:
        """Return both clocks, read so that they belong together."""
        return RealDisk().clock_pair()


def _wait_across_a_restart(machine: Machine, pauses_ns: list[list[int]], step_ns: int) -> int:
    """Park a message, kill the broker, and let another one deliver; return its wait.

    Args:
        machine: whose clocks tell.
        pauses_ns: those of the first start, of the parking and of the second start.
        step_ns: what passes between two looks for due messages, more and more once it is late.
    """
    with machine.running():
        machine.pauses_ns = list(pauses_ns[0])
        life = Life(wrap=MachineDisk)
        machine.pauses_ns = list(pauses_ns[1])
        sent_ns = machine.wall_ns
        life.park(1)
        machine.pauses_ns = list(pauses_ns[2])
        life = Life(life.disk.kill(), wrap=MachineDisk)
        machine.pauses_ns = []
        # Nothing is due for long: the looks begin shortly before.
        machine.pass_ns(max(0, sent_ns + _DELAY_NS - 20 * step_ns - machine.wall_ns))
        life.work()
        while not life.bodies():
            if machine.wall_ns > sent_ns + _DELAY_NS:
                step_ns *= 2
            machine.pass_ns(step_ns)
            life.work()
        queue = life.store.queues.get("T", 2)
        assert queue is not None
        unit = queue.unit(0)
        assert unit is not None
        stored_ms = life.store.commit_log.last_store_timestamp_ms
        # As one sees it who knows whole milliseconds only.
        assert stored_ms - sent_ns // _MS >= _DELAY_NS // _MS
        return machine.wall_ns - sent_ns


_pause = st.just(_LOOK_NS) | st.integers(0, 2 * _MS) | st.integers(0, 50 * _MS)
_always = st.builds(lambda pause_ns: [pause_ns] * 60, _pause)
_pauses = st.lists(_pause, max_size=40) | _always
_SLOW: Final = [5 * _MS] * 60


@settings(max_examples=30)
@given(
    fraction_ns=st.integers(0, _MS),
    pauses_ns=st.lists(_pauses, min_size=3, max_size=3),
    step_ns=st.sampled_from([20_000, 333_333, _MS]),
)
@example(0, [_SLOW, [], []], 20_000)
@example(0, [[], [], _SLOW], 20_000)
@example(999_999, [_SLOW, [], _SLOW], 20_000)
def test_nothing_is_early_wherever_a_process_is_held_up(
    fraction_ns: int, pauses_ns: list[list[int]], step_ns: int
) -> None:
    """Neither by a nanosecond, nor as told by two times in whole milliseconds."""
    waited_ns = _wait_across_a_restart(Machine(fraction_ns), pauses_ns, step_ns)
    assert waited_ns >= _DELAY_NS


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("start", [0, 2])
def test_one_pause_at_a_start_makes_nothing_early_nor_late(start: int, place: int) -> None:
    """The pair is read again, so that a pause costs nobody more than the rounding does."""
    pauses_ns: list[list[int]] = [[], [], []]
    pauses_ns[start] = [_LOOK_NS] * place + [5 * _MS]
    waited_ns = _wait_across_a_restart(Machine(900_000), pauses_ns, 20_000)
    assert _DELAY_NS <= waited_ns < _DELAY_NS + 3 * _MS


def test_the_machine_s_clock_is_between_both_clocks_of_a_broker() -> None:
    """However long the brackets are: a thousand starts, each with pauses of another kind."""
    for seed in range(1_000):
        random = Random(seed)
        machine = Machine(random.randrange(_MS))
        longest_ns = random.choice([100, 100_000, _MS, 50 * _MS])
        machine.pauses_ns = [random.randrange(longest_ns) for _ in range(60)]
        with machine.running():
            clock = SteadyClock(RealDisk())
            machine.pauses_ns = []
            for _ in range(5):
                machine.pass_ns(random.randrange(10 * _S))
                assert clock.now_ms() * _MS <= machine.wall_ns
                before_ns = machine.wall_ns
                assert clock.next_ms() * _MS > before_ns
