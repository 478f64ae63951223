"""What the benchmark decides by itself: when a load is warm, who is faster, what is reached."""

import subprocess
import sys
from pathlib import Path

import pytest

from mailboat.testing.virtual_time import VirtualTime

# Test folders are no packages, so the modules beside this file are found by path.
sys.path.insert(0, str(Path(__file__).parent))

from bench_halts import excuses, quantile, summary
from bench_machine import BenchError, tree_cpu_s, tree_of
from bench_rows import chosen_rows
from bench_steady import agree, warm_up
from bench_targets import Limit, Result, Target, checks, faster_of, ratio_to_faster


class Load:
    """Windows of ten seconds each with given costs, and the clock that they move."""

    def __init__(self, *costs: float) -> None:
        """Begin with the clock."""
        self.costs = list(costs)
        self.clock = VirtualTime()

    def window(self) -> float:
        """Return the next cost."""
        self.clock.advance(10)
        return self.costs.pop(0)

    def warm_up(self, at_least_windows: int = 2, at_most_s: float = 1000.0):
        """Warm up by these windows."""
        return warm_up(
            self.window,
            at_least_windows=at_least_windows,
            at_most_s=at_most_s,
            clock=self.clock.monotonic,
        )


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(100, 95, True), (95, 100, True), (100, 94.9, False), (94.9, 100, False), (0, 0, True)],
)
def test_windows_agree_within_five_per_cent_of_the_larger(first, second, expected):
    """The bound itself still agrees, in either order."""
    assert agree(first, second) is expected


def test_warm_up_ends_when_the_last_two_windows_agree():
    """Only neighbours are compared: 100 and 101 have a 60 between them."""
    found = Load(200, 100, 60, 101, 99, 7).warm_up()
    assert found.windows == (200, 100, 60, 101, 99)
    assert (found.is_steady, found.seconds, found.complaint()) == (True, 50.0, "")


def test_a_fresh_process_has_to_show_more_windows():
    """Interpreted code is steady, too: two equal windows at the start are not believed."""
    found = Load(200, 200, 120, 119, 7).warm_up(at_least_windows=4)
    assert (found.windows, found.is_steady) == ((200, 200, 120, 119), True)


def test_a_warm_up_that_never_settles_ends_in_time_and_says_so():
    """No window begins after the bound; the sentence has the last two."""
    found = Load(200, 100, 50, 25, 12).warm_up(at_most_s=25.0)
    assert (found.windows, found.is_steady, found.seconds) == ((200, 100, 50), False, 30.0)
    assert (
        found.complaint() == "not warm: no two windows agreed within 5% in 30 s (last 100 and 50)"
    )


def test_a_warm_up_compares_two_windows_however_short_the_time():
    """A single window says nothing."""
    assert Load(10, 10.1, 3).warm_up(at_most_s=0.0).is_steady


def peers(**costs: float) -> list[Result]:
    """Return results of peers with these CPU costs; their rate is a million by cost."""
    return [Result("r", name, 1e6 / us, {"cpu_us": us}) for name, us in costs.items()]


def test_cpu_is_how_many_times_ours_the_faster_peer_needs():
    """The cheaper of two peers counts, wherever it stands."""
    ours = Result("r", "mailboat", 50_000, {"cpu_us": 20.0})
    both = peers(slow=155.0, fast=78.0)
    assert ratio_to_faster("cpu", ours, both) == pytest.approx(3.9)
    assert ratio_to_faster("cpu", ours, both[::-1]) == pytest.approx(3.9)
    assert faster_of("cpu", both).system == "fast"


def test_seconds_are_a_share_of_the_shorter_and_rates_of_the_higher():
    """For `less` the smallest peer counts, for `more` the largest."""
    ours, both = Result("r", "mailboat", 4.0), [Result("r", "a", 16.0), Result("r", "b", 10.0)]
    assert ratio_to_faster("less", ours, both) == pytest.approx(0.4)
    assert ratio_to_faster("more", ours, both) == pytest.approx(0.25)


def test_a_peer_without_a_number_is_not_the_faster():
    """A peer that measured nothing (0) is left out; without any there is no ratio."""
    ours = Result("r", "mailboat", 4.0, {"cpu_us": 10.0})
    nothing = Result("r", "a", 0.0, {"cpu_us": 0.0})
    assert ratio_to_faster("cpu", ours, [nothing, *peers(b=30.0)]) == pytest.approx(3.0)
    assert ratio_to_faster("cpu", ours, [nothing]) is None
    assert ratio_to_faster("less", ours, []) is None


def reached(target: Target, ours: Result, **others: Result) -> list[bool | None]:
    """Return the verdicts."""
    return [check.is_reached for check in checks(target, ours, others)]


def test_a_target_of_cpu_is_reached_from_its_ratio_on():
    """78 / 31.2 is 2.5: reached; a little more of ours is not."""
    [other] = peers(b=78.0)
    ours = Result("r", "mailboat", 1.0, {"cpu_us": 31.2})
    assert reached(Target("cpu", 2.5), ours, b=other) == [True]
    ours.details["cpu_us"] = 31.3
    assert reached(Target("cpu", 2.5), ours, b=other) == [False]
    assert reached(Target("cpu", 2.5), ours) == [None]


def test_bounds_hold_in_the_direction_of_their_kind():
    """At most so many cores, at least so many rows a second."""
    ours = Result("r", "mailboat", 0.28)
    assert reached(Target("less", 0.7, 0.28), ours, b=Result("r", "b", 0.39)) == [False, True]
    assert reached(Target("more", bound=0.3), ours) == [False]
    assert reached(Target("more", bound=0.28), ours) == [True]


def test_a_limit_may_be_a_peers_number():
    """Java's p99 of the same run is the bound; without that run nothing can be told."""
    limit = Limit("p99_us", "p99", of_peer="b")
    ours, other = Result("r", "mailboat", 1, {"p99_us": 900}), Result("r", "b", 1, {"p99_us": 899})
    assert reached(Target("less", limits=(limit,)), ours, b=other) == [False]
    other.details["p99_us"] = 900
    assert reached(Target("less", limits=(limit,)), ours, b=other) == [True]
    assert reached(Target("less", limits=(limit,)), ours) == [None]


def test_a_halt_of_the_machine_is_no_miss_and_no_success():
    """Only the limit that has an excuse is left open, with the reason."""
    limits = (Limit("p999_us", "p99.9", 10_000), Limit("max_us", "max", 50_000))
    ours = Result("r", "mailboat", 1, {"p999_us": 20_000, "max_us": 60_000})
    ours.details["excused"] = {"max_us": "the disk halted for 55 ms"}
    found = checks(Target("less", limits=limits), ours, {})
    assert [check.is_reached for check in found] == [False, None]
    assert [check.why_not for check in found] == ["", "the disk halted for 55 ms"]


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.5, 500), (0.99, 990), (0.999, 999), (1.0, 1000)]
)
def test_quantile_is_the_smallest_value_that_the_share_does_not_exceed(share, expected):
    """Of 1 to 1000, in any order, the 99.9th percentile is 999: one in a thousand is above."""
    assert quantile(list(range(1000, 0, -1)), share) == expected


def test_quantile_of_few_values_is_the_largest():
    """With less than a thousand values nothing is left out; of none there is none."""
    assert quantile([3.0, 1.0, 2.0], 0.999) == 3.0
    assert quantile([], 0.999) == 0.0


def test_short_delays_are_no_halts():
    """60 of 2,000 ms were halts of more than 10 ms."""
    found = summary("write", [0.1, 9.9, 20.0, 40.0, 10.0], 2000.0)
    assert found == {"write_max_ms": 40.0, "write_p999_ms": 40.0, "write_share": 0.03}


def halts(**values: float) -> dict[str, float]:
    """Return halts of a quiet machine but for these."""
    quiet = {"clock_max_ms": 1.0, "clock_share": 0.0, "write_max_ms": 0.5, "write_share": 0.0}
    return quiet | {"sync_max_ms": 900.0, "sync_share": 0.2} | values


def test_only_halts_that_are_long_enough_excuse_a_miss():
    """A halt of half the longest answer explains it; a slow sync explains nothing."""
    assert excuses(5.0, 60.0, halts()) == {}
    assert excuses(5.0, 60.0, halts(write_max_ms=29.0)) == {}
    assert excuses(5.0, 60.0, halts(write_max_ms=30.0)) == {
        "max_us": "the disk halted for 30 ms",
    }
    # One halt of 30 ms in 10 minutes is no reason for one message in a thousand.
    assert "p999_us" not in excuses(12.0, 60.0, halts(write_max_ms=30.0, write_share=0.00005))
    assert "p999_us" in excuses(12.0, 60.0, halts(write_max_ms=30.0, write_share=0.0005))


def test_rows_are_chosen_by_name_or_by_the_beginning_of_several():
    """A name that is a row is that row alone; they come in the order of the table."""
    assert [row.key for row in chosen_rows("start")] == ["start"]
    expected = ["tail", "client-send", "client-batch", "client-drain"]
    assert [row.key for row in chosen_rows("client,tail")] == expected
    with pytest.raises(BenchError, match="no row clients; there are send-64x1, "):
        chosen_rows("clients")


def test_the_cpu_of_children_belongs_to_the_tree():
    """A process that only waits for a child that works has the child's time."""
    work = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    program = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {work!r}])"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        assert len(tree_of(parent.pid)) == 2
        assert tree_cpu_s(parent.pid) >= 0.25
        parent.communicate(b"\n")
    assert tree_cpu_s(parent.pid) == 0.0
