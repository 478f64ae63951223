"""Growth and retention are decided by numbers alone, inside their bounds."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailboat_operator.crds.retention import RetentionSpec, ThresholdsSpec
from mailboat_operator.crds.storage import AutoGrowSpec
from mailboat_operator.planner.autopilot import (
    Growth,
    GrowthCase,
    RetentionCase,
    decide_growth,
    decide_read_hours,
    horizon_s,
    time_text,
)
from mailboat_operator.planner.forecast import Rates, Release
from mailboat_operator.planner.snapshot import VolumeNumbers

MIB = 1 << 20
GIB = 1 << 30
HOUR_S = 3600.0
NOW_S = 1_700_000_000.0
GROWS = AutoGrowSpec(enabled=True, max_size="400Gi")


def numbers(used_percent: float, size_bytes: int = 100 * GIB) -> VolumeNumbers:
    """Make a volume of which so much is used."""
    used = int(size_bytes * used_percent / 100)
    return VolumeNumbers(size_bytes, used, size_bytes - used, "broker")


def rates(per_s: float | None) -> Rates:
    """Make the rates of a steady stream."""
    return Rates(per_s, per_s, per_s, per_s)


def growth_case(used_percent: float = 50, **changes: Any) -> GrowthCase:
    """Make a case: 100 GiB, no known rate, may grow to 400 GiB."""
    case = GrowthCase(
        auto_grow=GROWS,
        thresholds=ThresholdsSpec(),
        size_bytes=100 * GIB,
        numbers=numbers(used_percent),
        rates=Rates(),
        releases=(),
        forced_releases=(),
        is_emergency=False,
        now_s=NOW_S,
        last_growth_s=None,
        last_emergency_s=None,
    )
    return replace(case, **changes)


@pytest.mark.parametrize(
    ("case", "size_gib"),
    [
        (growth_case(79), None),
        (growth_case(79.5), 120),  # 79.5 % counts as 80, as df rounds.
        (growth_case(80), 120),
        # 35 GiB to forceClean: 6 h at 1.66 MiB/s, less is no reason yet.
        (growth_case(50, rates=rates(1.6 * MIB)), None),
        (growth_case(50, rates=rates(1.7 * MIB)), 120),
        # 4 MiB/s are 84.4 GiB until the cooldown is over: 134.4 are 85 % of 158.1.
        (growth_case(50, rates=rates(4.0 * MIB)), 160),
        # Not more than twice the size at once, however fast it fills.
        (growth_case(50, rates=rates(100 * MIB)), 200),
        # 30 GiB of the 82 may go at once: they are deleted, not paid for.
        (growth_case(82, releases=(Release(0.0, 30 * GIB),)), None),
        (growth_case(82, releases=(Release(60.0, 30 * GIB),)), 120),
        # What goes within the six hours helps against the forecast.
        (growth_case(60, rates=rates(1.7 * MIB), releases=(Release(HOUR_S, 30 * GIB),)), None),
        # 100 Gi used to 96 %: a step leaves 80 % of 120 Gi, one more is needed.
        (growth_case(96), 140),
    ],
)
def test_growth_by_use_and_forecast(case: GrowthCase, size_gib: int | None) -> None:
    """A volume grows from whenUsedPercent on, or when forceClean is within whenFullWithin."""
    growth = decide_growth(case)
    assert growth.size_bytes == (None if size_gib is None else size_gib * GIB)
    assert bool(growth.why) == (size_gib is not None)


@pytest.mark.parametrize(
    ("changes", "blocked"),
    [
        ({"auto_grow": AutoGrowSpec()}, "Disabled"),
        ({"auto_grow": AutoGrowSpec(enabled=True, max_size="100Gi")}, "AtMaxSize"),
        ({"auto_grow": AutoGrowSpec(enabled=True, max_size="90Gi")}, "AtMaxSize"),
        ({"last_growth_s": NOW_S - 6 * HOUR_S + 1}, "Cooldown"),
        ({"last_growth_s": NOW_S - 6 * HOUR_S}, None),
        ({"last_growth_s": NOW_S + 9 * HOUR_S}, None),  # The clock was set back.
        ({"infeasible_bytes": 110 * GIB}, None),
        ({"infeasible_bytes": 101 * GIB}, "ResizeInfeasible"),
    ],
)
def test_what_keeps_a_full_volume_from_growing(changes: dict[str, Any], blocked: str) -> None:
    """Each bound gives its reason, and no size."""
    growth = decide_growth(growth_case(85, **changes))
    assert growth.blocked == blocked
    assert (growth.size_bytes is None) == (blocked is not None)
    assert "85% used" in growth.why


def test_a_refused_size_makes_the_next_smaller() -> None:
    """120 GiB was refused: the next attempt is half way, and is made in spite of the cooldown."""
    case = growth_case(85, infeasible_bytes=120 * GIB, last_growth_s=NOW_S - 10, is_second_try=True)
    assert decide_growth(case).size_bytes == 110 * GIB


def test_emergency_passes_the_cooldown_once() -> None:
    """Refused writes let a volume grow within its cooldown, but not a second time within it."""
    case = growth_case(92, is_emergency=True, last_growth_s=NOW_S - HOUR_S)
    growth = decide_growth(case)
    assert growth.size_bytes is not None
    assert growth.past_cooldown
    again = replace(case, last_growth_s=NOW_S - 300, last_emergency_s=NOW_S - 300)
    assert decide_growth(again).blocked == "Cooldown"
    late = replace(case, last_emergency_s=NOW_S - 7 * HOUR_S)
    assert decide_growth(late).past_cooldown
    # Right after a growth the numbers may still be those from before it.
    just_grown = replace(case, last_growth_s=NOW_S - 5)
    assert decide_growth(just_grown).blocked == "Cooldown"
    assert decide_growth(replace(just_grown, grown_from_bytes=100 * GIB)).blocked == "Cooldown"
    assert decide_growth(replace(just_grown, grown_from_bytes=99 * GIB)).past_cooldown


@pytest.mark.parametrize(
    ("since_growth_s", "grown_from_bytes", "blocked"),
    [
        (74, None, "Cooldown"),
        (75, None, None),
        # 100 GiB of file system do not show that a volume of 100 GiB has grown, a byte more does.
        (74, 100 * GIB, "Cooldown"),
        (0, 100 * GIB - 1, None),
    ],
)
def test_without_cooldown_numbers_must_show_the_last_growth(
    since_growth_s: int, grown_from_bytes: int | None, blocked: str | None
) -> None:
    """The next growth is decided by numbers of the grown volume, or after 75 s."""
    case = growth_case(
        85,
        auto_grow=AutoGrowSpec(enabled=True, max_size="400Gi", cooldown="0s"),
        size_bytes=120 * GIB,
        last_growth_s=NOW_S - since_growth_s,
        grown_from_bytes=grown_from_bytes,
    )
    growth = decide_growth(case)
    assert growth.blocked == blocked
    assert (growth.size_bytes is None) == (blocked is not None)
    assert not growth.past_cooldown


def test_writes_that_will_soon_be_refused_pass_the_cooldown() -> None:
    """Half an hour before rejectWrites is an emergency, unless deleting what is read helps."""
    case = growth_case(86, rates=rates(4 * GIB / 1700), last_growth_s=NOW_S - HOUR_S)
    assert decide_growth(case).past_cooldown
    helped = replace(case, forced_releases=(Release(0.0, GIB),))
    assert decide_growth(helped).blocked == "Cooldown"
    later = replace(case, rates=rates(4 * GIB / 1900))
    assert decide_growth(later).blocked == "Cooldown"


def test_emergency_by_free_bytes() -> None:
    """Writes refused by rejectWrites.freeBytes at low per cent are a reason to grow."""
    thresholds = ThresholdsSpec(reject_writes=type(ThresholdsSpec().reject_writes)(
        free_bytes="60Gi"))  # fmt: skip
    case = growth_case(45, thresholds=thresholds, is_emergency=True, rates=rates(0.0))
    assert decide_growth(case).size_bytes == 120 * GIB


@pytest.mark.parametrize(
    ("size_bytes", "step", "limit", "expected"),
    [
        (256 * MIB, "20%", "1Gi", 308 * MIB),
        (256 * MIB, "64Mi", "1Gi", 320 * MIB),
        (256 * MIB, "20%", "270Mi", 270 * MIB),
        (17 * GIB, "20%", "1Ti", 21 * GIB),
        (3 * MIB, "1%", "1Gi", 4 * MIB),
    ],
)
def test_sizes_are_rounded_up(size_bytes: int, step: str, limit: str, expected: int) -> None:
    """Whole Mi, whole Gi from 16 Gi on, never beyond maxSize."""
    case = growth_case(
        auto_grow=AutoGrowSpec(enabled=True, step=step, max_size=limit),
        size_bytes=size_bytes,
        numbers=numbers(80.5, size_bytes),
    )
    assert decide_growth(case).size_bytes == expected


@given(
    st.integers(64 * MIB, 2000 * GIB),
    st.floats(0, 100),
    st.none() | st.floats(0, 1e9),
    st.sampled_from(["1%", "20%", "100%", "1Gi", "300Gi"]),
    st.none() | st.integers(0, 30 * 3600),
    st.booleans(),
    st.none() | st.integers(64 * MIB, 3000 * GIB),
)
def test_growth_stays_inside_its_bounds(
    size_bytes: int,
    used_percent: float,
    per_s: float | None,
    step: str,
    since_growth_s: int | None,
    is_emergency: bool,
    infeasible_bytes: int | None,
) -> None:
    """Whatever the numbers: larger than before, at most maxSize, below what was refused."""
    case = growth_case(
        auto_grow=AutoGrowSpec(enabled=True, step=step, max_size="1000Gi"),
        size_bytes=size_bytes,
        numbers=numbers(used_percent, size_bytes),
        rates=rates(per_s),
        is_emergency=is_emergency,
        last_growth_s=None if since_growth_s is None else NOW_S - since_growth_s,
        infeasible_bytes=infeasible_bytes,
    )
    growth = decide_growth(case)
    if growth.size_bytes is not None:
        assert size_bytes < growth.size_bytes <= 1000 * GIB
        assert infeasible_bytes is None or growth.size_bytes < infeasible_bytes
        assert growth.blocked is None
        more = replace(case, numbers=numbers(min(100.0, used_percent + 5), size_bytes))
        larger = decide_growth(more).size_bytes
        assert larger is not None
        assert larger >= growth.size_bytes


def releases_for(count: int, size_bytes: int) -> Any:
    """Make segments, the oldest written as many hours ago as there are, all of them read."""

    def releases(read_hours: int) -> Sequence[Release]:
        return [
            Release(max(0.0, (read_hours - age) * HOUR_S), size_bytes)
            for age in range(count, 0, -1)
        ]

    return releases


def retention_case(used_percent: float, per_s: float | None, **changes: Any) -> RetentionCase:
    """Make a case: a GiB of read messages in each of the last 70 hours, 100 GiB, min 12 h."""
    case = RetentionCase(
        retention=RetentionSpec(hours=72, min_hours=12),
        current_hours=72,
        numbers=numbers(used_percent),
        rates=rates(per_s),
        releases_for=releases_for(70, GIB),
        blocked="AtMaxSize",
        horizon_s=6 * HOUR_S,
        since_change_s=None,
    )
    return replace(case, **changes)


def test_retention_is_shortened_as_far_as_needed() -> None:
    """With 5 GiB of room and 3 GiB/h, 13 GiB have to go within 6 h: all older than 63 h."""
    # At h hours, those of age h - t and more are gone after t hours: 71 - h + t segments. The room
    # just before t = 6 is 5 + (71 - h + 5) - 3 * 6, which is 0 at h = 63 and below it at 64.
    case = retention_case(80, 3 * GIB / HOUR_S)
    assert decide_read_hours(case) == 63


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (retention_case(50, GIB / HOUR_S), 72),
        (retention_case(80, 3 * GIB / HOUR_S, blocked=None), 72),
        (retention_case(80, 3 * GIB / HOUR_S, since_change_s=299.0), 72),
        (retention_case(80, 3 * GIB / HOUR_S, since_change_s=300.0), 63),
        (retention_case(84, 500 * GIB / HOUR_S), 12),  # Nothing helps: as short as allowed.
        (retention_case(86, GIB, releases_for=lambda _: ()), 72),  # Nothing is read: of no use.
        (retention_case(84, None), 72),  # Unknown rate, still room: nothing is claimed.
        (retention_case(90, None), 65),  # 5 GiB above forceClean are certain.
        (retention_case(10, 0.0, current_hours=30), 72),
        (retention_case(10, 0.0, current_hours=30, since_change_s=1799.0), 30),
        (retention_case(10, 0.0, current_hours=72), 72),
        # Enough room for 6 h but not for 12: neither shorter nor longer.
        (retention_case(80, 3 * GIB / HOUR_S, current_hours=63), 63),
        (retention_case(80, 3 * GIB / HOUR_S, current_hours=60), 60),
        # Bounds that were moved hold at once.
        (retention_case(10, 0.0, current_hours=80, since_change_s=0.0), 72),
        (retention_case(10, 0.0, current_hours=5, since_change_s=0.0), 12),
        (retention_case(99, 0.0, retention=RetentionSpec()), 72),
    ],
)
def test_retention_steps(case: RetentionCase, expected: int) -> None:
    """Shortened only where growth cannot help, lengthened with room to spare, in bounds."""
    assert decide_read_hours(case) == expected


@given(
    st.integers(0, 100),
    st.none() | st.floats(0, 1e9),
    st.integers(0, 90),
    st.integers(0, 72),
    st.booleans(),
    st.none() | st.floats(0, 1e5),
)
def test_retention_never_leaves_its_bounds(
    used: int, per_s: float | None, current: int, shortest: int, blocked: bool, since: float | None
) -> None:
    """Always within minHours and hours, and deciding again at once changes nothing."""
    case = retention_case(
        used,
        per_s,
        retention=RetentionSpec(hours=72, min_hours=shortest),
        current_hours=current,
        blocked="Disabled" if blocked else None,
        since_change_s=since,
    )
    hours = decide_read_hours(case)
    assert shortest <= hours <= 72
    if hours != current:
        assert decide_read_hours(replace(case, current_hours=hours, since_change_s=0.0)) == hours


@given(st.integers(0, 99), st.floats(0, 1e8), st.floats(0, 1e8))
def test_retention_is_monotone(used: int, per_s: float, more: float) -> None:
    """A fuller volume or a faster stream never keeps messages for longer."""
    base = decide_read_hours(retention_case(used, per_s))
    assert decide_read_hours(retention_case(used + 1, per_s)) <= base
    assert decide_read_hours(retention_case(used, per_s + more)) <= base


def test_horizon_ends_with_the_cooldown() -> None:
    """Nothing is shortened for what a growth will solve once its cooldown is over."""
    assert horizon_s(GROWS, Growth(blocked="AtMaxSize")) == 6 * HOUR_S
    assert horizon_s(GROWS, Growth(blocked="Cooldown", wait_s=HOUR_S)) == HOUR_S + 600
    assert horizon_s(GROWS, Growth(blocked="Cooldown", wait_s=9 * HOUR_S)) == 6 * HOUR_S
    assert horizon_s(GROWS, Growth(blocked="Resizing")) == 600


@pytest.mark.parametrize(
    ("time_s", "text"),
    [(0, "0s"), (59, "59s"), (90, "2m"), (3600, "1h"), (18_000, "5h"), (170_000, "47h"),
     (172_800, "2d")],
)  # fmt: skip
def test_time_text(time_s: float, text: str) -> None:
    """Times are short enough for a printer column."""
    assert time_text(time_s) == text
