import pytest

from mailboat.client.latency_fault import LatencyFaults, not_available_ms
from mailboat.testing.virtual_time import VirtualTime


@pytest.mark.parametrize(
    ("latency_ms", "expected_ms"),
    [
        (0, 0),
        (549, 0),
        (550, 30000),
        (999, 30000),
        (1000, 60000),
        (2000, 120000),
        (3000, 180000),
        (14999, 180000),
        (15000, 600000),
        (30000, 600000),
    ],
)
def test_pause_is_javas(latency_ms: int, expected_ms: int):
    """The pause for a latency is what MQFaultStrategy of 4.9.7 computes."""
    assert not_available_ms(latency_ms) == expected_ms


def test_slow_broker_is_back_after_its_pause():
    """A broker that took 600 ms is passed over for 30 s and not longer."""
    clock = VirtualTime()
    faults = LatencyFaults(clock.monotonic)
    faults.record("a", 600)
    assert not faults.is_available("a")
    clock.advance(29.9)
    assert not faults.is_available("a")
    clock.advance(0.1)
    assert faults.is_available("a")


def test_failed_broker_is_away_for_ten_minutes():
    """A failure counts as 30 s of latency, however quickly it came."""
    clock = VirtualTime()
    faults = LatencyFaults(clock.monotonic)
    faults.record("a", 1, failed=True)
    clock.advance(599.9)
    assert not faults.is_available("a")
    clock.advance(0.1)
    assert faults.is_available("a")


def test_fast_answer_ends_a_pause():
    """The last send counts: a broker that answers fast again is available."""
    faults = LatencyFaults(VirtualTime().monotonic)
    faults.record("a", 600)
    faults.record("a", 10)
    assert faults.is_available("a")


def test_least_bad_is_back_first():
    """When all are away, the one that is back first is the one to try."""
    faults = LatencyFaults(VirtualTime().monotonic)
    faults.record("a", 3000)
    faults.record("b", 600)
    faults.record("c", 2000)
    assert faults.least_bad({"a", "b", "c"}) == "b"
    assert faults.least_bad({"a", "c"}) == "c"
    assert faults.least_bad({"x"}) is None
