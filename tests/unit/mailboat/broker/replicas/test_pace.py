"""How long a copy of the log waits."""

import pytest

from mailboat.broker.replicas.pace import Pace


def test_a_copy_goes_at_its_rate() -> None:
    """Ten seconds' worth takes ten seconds, less the burst after a rest."""
    pace = Pace(100.0, 1_000_000)
    now_s = 100.0
    for _ in range(100):
        now_s += pace.wait_s(now_s, 100_000, log_end=0)
    assert now_s == pytest.approx(110.0, abs=0.051)


def test_two_copies_share_the_rate() -> None:
    """Whoever asks second waits for both."""
    pace = Pace(0.0, 1_000_000)
    assert pace.wait_s(10.0, 500_000, log_end=0) == pytest.approx(0.45)
    assert pace.wait_s(10.0, 500_000, log_end=0) == pytest.approx(0.95)


def test_a_rest_is_not_saved_up() -> None:
    """After an hour without copies the rate is the same."""
    pace = Pace(0.0, 1_000_000)
    pace.wait_s(0.0, 1_000_000, log_end=0)
    assert pace.wait_s(3_600.0, 1_000_000, log_end=0) == pytest.approx(0.95)


def test_a_copy_is_faster_than_the_log_grows() -> None:
    """2 MB/s of new messages: 3 MB/s, though 1 is set."""
    pace = Pace(0.0, 1_000_000)
    pace.wait_s(0.0, 0, log_end=5_000_000)
    pace.wait_s(2.0, 0, log_end=9_000_000)
    assert pace.wait_s(2.0, 3_000_000, log_end=9_000_000) == pytest.approx(0.95)


def test_zero_is_no_bound() -> None:
    """Nothing waits."""
    assert Pace(0.0, 0).wait_s(0.0, 1 << 40, log_end=0) == 0
