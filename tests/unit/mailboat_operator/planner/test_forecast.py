"""Rates and forecasts: unknown is never zero, a deletion never looks like room to come."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailboat_operator.planner.forecast import (
    Rates,
    Release,
    level_bytes,
    rates_of,
    read_volume,
    releases_of,
    time_until,
)
from mailboat_operator.planner.snapshot import Observation, UseSample, VolumeNumbers

MIB = 1 << 20
GIB = 1 << 30
HOUR_S = 3600


def series(
    rate: float, *, span_s: float, every_s: float = 15.0, start_s: float = 0.0
) -> tuple[UseSample, ...]:
    """Make samples of a volume that fills with what is written to it."""
    count = int(span_s / every_s) + 1
    return tuple(
        UseSample(
            start_s + index * every_s,
            GIB + int(rate * index * every_s),
            int(rate * index * every_s),
        )
        for index in range(count)
    )


def test_steady_filling_has_its_rate() -> None:
    """A MiB per second is seen as a MiB per second in both windows."""
    rates = rates_of(series(MIB, span_s=3600))
    assert rates == Rates(MIB, MIB, MIB, MIB)
    assert rates.fill == MIB


@pytest.mark.parametrize(
    ("samples", "short_known", "long_known"),
    [
        ((), False, False),
        (series(MIB, span_s=0), False, False),
        (series(MIB, span_s=45), False, False),
        (series(MIB, span_s=75), True, False),
        (series(MIB, span_s=885), True, False),
        (series(MIB, span_s=900), True, True),
        (series(MIB, span_s=3600, every_s=400), False, True),
    ],
)
def test_too_little_history_is_unknown(
    samples: tuple[UseSample, ...], short_known: bool, long_known: bool
) -> None:
    """A rate needs three samples and a minute, or a quarter of an hour; else it is None, not 0."""
    rates = rates_of(samples)
    assert (rates.used_5m is not None, rates.written_5m is not None) == (short_known, short_known)
    assert (rates.used_1h is not None, rates.written_1h is not None) == (long_known, long_known)


def test_deleted_segments_do_not_slow_the_rate() -> None:
    """A volume that lost a GiB to deletion still fills at the rate at which it is written."""
    samples = [
        UseSample(sample.monotonic_s, sample.used_bytes - (GIB if index > 100 else 0), written)
        for index, sample in enumerate(series(MIB, span_s=3600))
        for written in (sample.written_bytes,)
    ]
    rates = rates_of(samples)
    assert rates.used_1h == pytest.approx(MIB)
    assert rates.fill == pytest.approx(MIB)


def test_reserved_segments_do_not_look_like_a_flood() -> None:
    """Used bytes that leap by a whole segment within 5 minutes leave the log's rate as it is."""
    samples = [
        UseSample(index * 15.0, GIB * (1 + index // 60), index * 15 * MIB) for index in range(62)
    ]
    rates = rates_of(samples)
    assert rates.short == pytest.approx(MIB)
    assert rates.used_5m is not None
    assert rates.used_5m > 3 * MIB


def test_filling_that_is_not_written_to_the_log_counts() -> None:
    """Files of somebody else fill the volume too: with no log growth the used bytes decide."""
    samples = [UseSample(index * 15.0, index * 15 * MIB, 7) for index in range(10)]
    assert rates_of(samples).fill == pytest.approx(MIB)


def test_pessimistic_rate_is_the_larger() -> None:
    """A burst in the last minutes counts although the hour was calm, and the other way round."""
    calm = series(1000, span_s=3300)
    burst = [
        UseSample(calm[-1].monotonic_s + 15 * step, calm[-1].used_bytes + 15 * step * MIB,
                  calm[-1].written_bytes + 15 * step * MIB)
        for step in range(1, 21)
    ]  # fmt: skip
    assert rates_of([*calm, *burst]).fill == pytest.approx(MIB)
    quiet = [
        UseSample(burst[-1].monotonic_s + 15 * step, burst[-1].used_bytes, burst[-1].written_bytes)
        for step in range(1, 61)
    ]
    rates = rates_of([*burst, *quiet])
    assert rates.short == 0
    assert rates.fill == pytest.approx(285 * MIB / 1185)


def test_gap_is_averaged_over() -> None:
    """Half an hour without samples neither invents a leap nor loses one."""
    samples = [item for item in series(MIB, span_s=3600) if not 900 < item.monotonic_s < 2700]
    assert rates_of(samples).fill == pytest.approx(MIB)


@pytest.mark.parametrize("field", ["clock", "log"])
def test_history_before_a_restart_is_left_out(field: str) -> None:
    """A clock or a log that begins anew drops what lay before it."""
    before = series(100 * MIB, span_s=600, start_s=5000.0 if field == "clock" else 0.0)
    after = series(MIB, span_s=600, start_s=100.0 if field == "clock" else 700.0)
    assert rates_of([*before, *after]).fill == pytest.approx(MIB)


@pytest.mark.parametrize(
    ("rate", "releases", "expected"),
    [
        (1.0, (), 100.0),
        (0.0, (), math.inf),
        (None, (), None),
        (1.0, ((0.0, 50),), 150.0),
        (1.0, ((50.0, 20), (110.0, 1000)), 1120.0),
        (1.0, ((50.0, 5), (110.0, 1000)), 105.0),
        (1.0, ((101.0, 1000),), 100.0),
        (2.0, ((10.0, 100),), 100.0),
        (None, ((0.0, 50),), None),
    ],
)
def test_time_until(
    rate: float | None, releases: tuple[tuple[float, int], ...], expected: float | None
) -> None:
    """The time to 100 bytes of room is exact, with what is deleted on the way."""
    found = time_until(1000, 900, rate, [Release(*release) for release in releases])
    assert found == expected


def test_time_above_the_level() -> None:
    """Above the level there is no time left, whether the rate is known or not."""
    assert time_until(1000, 1000, None, ()) == 0
    assert time_until(1000, 1200, 1.0, [Release(5.0, 900)]) == 0
    assert time_until(1000, 1200, 1.0, [Release(0.0, 300)]) == 100


@given(
    st.floats(0.01, 1e9),
    st.integers(0, 10**12),
    st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 10**9)), max_size=8),
)
def test_time_until_is_monotone(
    rate: float, used_bytes: int, releases: list[tuple[float, int]]
) -> None:
    """More used bytes, a higher rate or fewer releases never give more time."""
    given_releases = [Release(*release) for release in releases]
    level = 10**12 // 2
    base = time_until(level, used_bytes, rate, given_releases)
    more_used = time_until(level, used_bytes + 10**6, rate, given_releases)
    faster = time_until(level, used_bytes, rate * 2, given_releases)
    fewer = time_until(level, used_bytes, rate, given_releases[1:])
    assert base is not None
    for other in (more_used, faster, fewer):
        assert other is not None
        assert other <= base * (1 + 1e-9) + 1e-9


def test_releases_follow_age_reading_and_order() -> None:
    """Read segments go after readHours, others after hours, none before the one in front."""
    now_s = 1_000_000.0
    segment = {"size_bytes": 10}
    retention = {
        "segments": [
            segment | {"last_timestamp_ms": int((now_s - 30 * HOUR_S) * 1000), "is_read": True},
            segment | {"last_timestamp_ms": int((now_s - 29 * HOUR_S) * 1000), "is_read": False},
            segment | {"last_timestamp_ms": int((now_s - 28 * HOUR_S) * 1000), "is_read": True},
            segment | {"last_timestamp_ms": int(now_s * 1000), "is_read": True},
        ]
    }
    found = releases_of(retention, now_s=now_s, hours=48, read_hours=24)
    assert found == (Release(0.0, 10), Release(19.0 * HOUR_S, 10), Release(19.0 * HOUR_S, 10))
    assert releases_of(None, now_s=now_s, hours=48, read_hours=24) == ()
    only_sum = {"segments": [], "reclaimable": {"expired_bytes": 77, "read_bytes": 5}}
    assert releases_of(only_sum, now_s=now_s, hours=48, read_hours=24) == (Release(0.0, 77),)


def test_segments_that_stay_release_nothing() -> None:
    """Not those of unknown age, nor any behind them; not one being written, nor one not begun."""
    old_ms = 1000
    segment = {"size_bytes": 10, "is_read": True, "last_timestamp_ms": old_ms}
    segments = [segment | {"physical_offset": offset} for offset in (0, 10, 20, 30, 40)]
    retention = {"segments": segments, "max_physical_offset": 25}
    now_s = 1_000_000.0
    assert len(releases_of(retention, now_s=now_s, hours=48, read_hours=24)) == 2
    segments[1]["last_timestamp_ms"] = -1
    assert len(releases_of(retention, now_s=now_s, hours=48, read_hours=24)) == 1


def test_reserved_room_counts_as_free() -> None:
    """As for the broker's thresholds: reserved and not yet written is not used."""
    seen = observation(seen_s=1000.0)
    assert seen.retention is not None
    told = replace(seen, retention=seen.retention | {"preallocated_bytes": 10 * GIB})
    assert read_volume(told, 1000.0).numbers == VolumeNumbers(
        100 * GIB, 40 * GIB, 60 * GIB, "broker"
    )


def test_level_is_per_cent_or_free_bytes() -> None:
    """Whichever is reached first: 85 % of a small volume, 10 bytes free of a large one."""
    numbers = VolumeNumbers(1100, 600, 400, "broker")
    assert level_bytes(numbers, 85, 0) == 850
    assert level_bytes(numbers, 85, 10) == 850
    assert level_bytes(numbers, 85, 300) == 700


def observation(
    *, seen_s: float | None, used_bytes: int = 50 * GIB, kubelet_used: int | None = None
) -> Observation:
    """Make what a broker with 100 GiB that fills by a MiB per second last said."""
    volume = {
        "capacity_bytes": 100 * GIB,
        "used_bytes": used_bytes,
        "available_bytes": 100 * GIB - used_bytes,
    }
    kubelet = None
    if kubelet_used is not None:
        kubelet = VolumeNumbers(100 * GIB, kubelet_used, 100 * GIB - kubelet_used, "kubelet")
    return Observation(
        pod_uid="uid",
        seen_monotonic_s=seen_s,
        error=None,
        broker=None,
        config=None,
        retention=None if seen_s is None else {"volume": volume},
        kubelet=kubelet,
        samples=series(MIB, span_s=600),
    )


@pytest.mark.parametrize(
    ("age_s", "kubelet_used", "source", "used_bytes"),
    [
        (0, None, "broker", 50 * GIB),
        (60, 90 * GIB, "broker", 50 * GIB),
        (61, None, "stale", 50 * GIB + 61 * MIB),
        (600, None, "stale", 50 * GIB + 600 * MIB),
        (600, 60 * GIB, "kubelet", 60 * GIB),
        (600, 40 * GIB, "stale", 50 * GIB + 600 * MIB),
        (601, 40 * GIB, "kubelet", 40 * GIB),
        (601, None, "stale", None),
        (None, 40 * GIB, "kubelet", 40 * GIB),
        (None, None, "none", None),
    ],
)
def test_numbers_by_age(
    age_s: float | None, kubelet_used: int | None, source: str, used_bytes: int | None
) -> None:
    """A minute the broker's, ten minutes the forecast or a fuller kubelet, then the kubelet's."""
    seen_s = None if age_s is None else 1000.0 - age_s
    reading = read_volume(observation(seen_s=seen_s, kubelet_used=kubelet_used), 1000.0)
    assert reading.source == source
    assert (reading.numbers.used_bytes if reading.numbers else None) == used_bytes
    assert reading.is_fresh == (source == "broker")
    if age_s is None or age_s > 600:
        assert reading.retention is None
        assert reading.rates.fill is None


def test_nobody_seen_is_no_reading() -> None:
    """A pod that was never asked has no numbers."""
    assert read_volume(None, 5.0).source == "none"
