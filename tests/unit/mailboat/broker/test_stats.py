"""Promises of mailboat.broker.stats."""

import pytest

from mailboat.broker.stats import BrokerStats, Span
from mailboat.testing.virtual_time import VirtualTime

DAY_MS = 24 * 3600 * 1000
SPANS: tuple[Span, ...] = ("minute", "hour", "day")


def make_stats() -> tuple[BrokerStats, VirtualTime]:
    """Return fresh counters and their clock."""
    clock = VirtualTime()
    return BrokerStats(clock.monotonic, lambda: clock.wall_ms() // DAY_MS), clock


def run(stats: BrokerStats, clock: VirtualTime, seconds: int, per_second: int) -> None:
    """Let seconds pass in each of which messages are stored and pulled."""
    for _ in range(seconds):
        if per_second:
            stats.record_put("T", per_second, per_second * 100)
            stats.record_get("T", "G", per_second, per_second * 100)
        clock.advance(1)
        stats.sample()


def rates(stats: BrokerStats, key: str) -> list[float]:
    """Return the three rates under a runtime key."""
    return [float(part) for part in stats.runtime_info()[key].split(" ")]


def test_rates_cover_ten_seconds_a_minute_and_ten_minutes() -> None:
    """The three numbers of putTps are messages per second over their windows."""
    stats, clock = make_stats()
    run(stats, clock, 590, 0)
    run(stats, clock, 10, 30)
    assert rates(stats, "putTps") == pytest.approx([30.0, 5.0, 0.5], abs=0.001)
    assert rates(stats, "getTransferredTps") == pytest.approx([30.0, 5.0, 0.5], abs=0.001)
    assert rates(stats, "getFoundTps") == pytest.approx([1.0, 10 / 60, 10 / 600], abs=0.001)


def test_rates_after_a_burst_fall_to_zero() -> None:
    """What is older than a window is out of it."""
    stats, clock = make_stats()
    run(stats, clock, 10, 30)
    run(stats, clock, 700, 0)
    assert rates(stats, "putTps") == [0.0, 0.0, 0.0]


def test_both_spellings_of_transferred_are_there() -> None:
    """Tools of version 4 read getTransferedTps, those of version 5 getTransferredTps."""
    stats, clock = make_stats()
    run(stats, clock, 10, 3)
    info = stats.runtime_info()
    assert info["getTransferedTps"] == info["getTransferredTps"]
    assert all(isinstance(value, str) for value in info.values())


def test_totals_are_kept_at_midnight() -> None:
    """The morning totals move on when the day changes, as mqadmin's inTotalYest needs them."""
    stats, clock = make_stats()
    stats.record_put("T", 5, 500)
    clock.set_wall(clock.wall_ms() + DAY_MS)
    stats.sample()
    stats.record_put("T", 7, 700)
    clock.set_wall(clock.wall_ms() + DAY_MS)
    stats.sample()
    stats.record_put("T", 1, 100)
    info = stats.runtime_info()
    assert info["msgPutTotalYesterdayMorning"] == "5"
    assert info["msgPutTotalTodayMorning"] == "12"
    assert info["msgPutTotalTodayNow"] == "13"


def test_flows_have_their_own_rate() -> None:
    """A topic's and a group's rate are over the last minute."""
    stats, clock = make_stats()
    run(stats, clock, 120, 12)
    assert stats.topic_put_tps("T") == pytest.approx(12.0)
    assert stats.group_get_tps("T", "G") == pytest.approx(12.0)
    assert stats.topic_put_tps("unknown") == 0.0
    run(stats, clock, 120, 0)
    assert stats.topic_put_tps("T") == 0.0


def test_deleted_topics_and_groups_are_forgotten() -> None:
    """Counters do not outlive what they count."""
    stats, _ = make_stats()
    stats.record_get("T", "G", 1, 1)
    stats.record_get("U", "G", 1, 1)
    stats.record_put("T", 1, 1)
    stats.forget_topic("T")
    assert list(stats.topic_flows()) == []
    assert list(stats.group_flows()) == [("U", "G")]
    stats.forget_group("G")
    assert list(stats.group_flows()) == []


def test_average_size_and_failures_are_counted() -> None:
    """putMessageAverageSize is bytes per message, and refused messages are counted apart."""
    stats, _ = make_stats()
    stats.record_put("T", 4, 1000)
    stats.record_put_failed(2)
    info = stats.runtime_info()
    assert float(info["putMessageAverageSize"]) == 250.0
    assert info["putMessageFailedTimes"] == "2"


def test_a_young_flow_counts_from_its_first_message() -> None:
    """Minute, hour and day are the same then, also before the first sample."""
    stats, clock = make_stats()
    stats.record_put("T", 5, 500)
    clock.advance(4)
    flow = stats.topic_flows()["T"]
    for span in SPANS:
        assert flow.counted(span, stats.now()) == (5, 500, 4.0)


def test_minute_hour_and_day_forget_one_after_the_other() -> None:
    """A message counts for the span and what its samples are apart, never longer."""
    stats, clock = make_stats()
    stats.record_put("T", 7, 700)
    flow = stats.topic_flows()["T"]

    def counted() -> list[int]:
        return [flow.counted(span, stats.now()).messages for span in SPANS]

    run(stats, clock, 60, 0)
    assert counted() == [7, 7, 7]
    run(stats, clock, 10, 0)
    assert counted() == [0, 7, 7]
    run(stats, clock, 3600 - 70, 0)
    assert counted() == [0, 7, 7]
    run(stats, clock, 600, 0)
    assert counted() == [0, 0, 7]
    run(stats, clock, 24 * 3600 - 4200, 0)
    assert counted() == [0, 0, 7]
    run(stats, clock, 3600, 0)
    assert counted() == [0, 0, 0]


def test_spans_have_their_length() -> None:
    """A rate over an hour divides by an hour: the oldest sample is that old and no older."""
    stats, clock = make_stats()
    run(stats, clock, 2 * 3600, 10)
    flow = stats.topic_flows()["T"]
    hour = flow.counted("hour", stats.now())
    assert hour.seconds == pytest.approx(3600, abs=600)
    assert hour.messages == 10 * hour.seconds
    assert hour.size_bytes == 100 * hour.messages
