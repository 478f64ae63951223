"""When a volume grows by itself and by how much; when retention is shortened instead.

The order of remedies: what has expired goes first, then the volume grows, and only where it cannot
grow do messages that every group has read go early, never before `minHours`. The broker itself
deletes and refuses; this only moves its live setting `readFileReservedTime` and the volume's size.

Everything follows from its arguments. What has to outlive the operator (when a volume last grew,
which size was refused, when retention was last changed) is read from the resource's status.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from mailboat_operator.crds.retention import RetentionSpec, ThresholdsSpec
from mailboat_operator.crds.storage import AutoGrowSpec
from mailboat_operator.planner.forecast import (
    SHORT_FORECAST_S,
    Rates,
    Release,
    level_bytes,
    time_until,
)
from mailboat_operator.planner.snapshot import VolumeNumbers

MEBIBYTE: Final = 1 << 20
GIBIBYTE: Final = 1 << 30

SETTLE_S: Final = 75.0
"""Shortest time between two growths whatever the cooldown says, unless the numbers show the last
one: until then they may be those of the smaller volume."""

IMMINENT_S: Final = 1800.0
"""Writes that will be refused within that time are as good as refused."""

SHORTEN_EVERY_S: Final = 300.0
LENGTHEN_EVERY_S: Final = 1800.0
_COOLDOWN_MARGIN_S: Final = 600.0
_RESIZING_HORIZON_S: Final = 600.0
_COARSE_FROM_BYTES: Final = 16 * GIBIBYTE
_WORTH_PARTS: Final = 100
"""A growth by less than this part of the volume is not worth another attempt."""

Blocked = Literal[
    "Disabled", "AtMaxSize", "Cooldown", "ResizeInfeasible", "ClassCannotGrow", "Refused",
    "Resizing",
]  # fmt: skip
"""Why a volume does not grow although it should."""


@dataclass(frozen=True, slots=True)
class GrowthCase:
    """Everything that a growth is decided by."""

    auto_grow: AutoGrowSpec
    thresholds: ThresholdsSpec
    size_bytes: int
    """What the claim asks for and has."""

    numbers: VolumeNumbers
    rates: Rates
    releases: Sequence[Release]
    forced_releases: Sequence[Release]
    """What goes when, once all that is read may go: as above forceClean."""

    is_emergency: bool
    """Writes are refused, or there is no room for one more."""

    now_s: float
    last_growth_s: float | None
    last_emergency_s: float | None
    grown_from_bytes: int | None = None
    """What the claim had before it last grew; None: not known."""

    infeasible_bytes: int | None = None
    """The smallest size that the storage driver lately said it cannot make."""

    settle_s: float = SETTLE_S
    """So long the numbers may be those of the volume before it last grew."""

    is_second_try: bool = False
    """A larger size was just refused: the cooldown has not begun anew."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What was decided, and why."""

    size_bytes: int | None = None
    blocked: Blocked | None = None
    why: str = ""
    """The numbers that made it; empty when there is no need to grow."""

    past_cooldown: bool = False
    """The cooldown was passed over because of an emergency."""

    wait_s: float = 0.0
    """Of a cooldown: how long it still lasts."""


@dataclass(frozen=True, slots=True)
class RetentionCase:
    """Everything that the retention of read messages is decided by."""

    retention: RetentionSpec
    current_hours: int
    """What the broker works with."""

    numbers: VolumeNumbers
    rates: Rates
    releases_for: Callable[[int], Sequence[Release]]
    """What goes when, if read messages are kept for so many hours."""

    blocked: Blocked | None
    """Why the volume cannot grow; None: it can, or there is no need."""

    horizon_s: float
    """For how long there should be room."""

    since_change_s: float | None
    """How long ago the retention was last changed; None: never."""


def time_to_force_clean(case: GrowthCase) -> float | None:
    """Return in how many seconds forceClean is reached; None if the rate is unknown."""
    return _time_to_force_clean(case.thresholds, case.numbers, case.rates.fill, case.releases)


def shown_time_to_force_clean(case: GrowthCase) -> float | None:
    """Return the same, but leave to the rate of the last hour what is far away.

    By that of a few minutes a file that was made once would fill the volume within days, and
    minutes later never.
    """
    left_s = time_to_force_clean(case)
    if left_s is None or left_s <= SHORT_FORECAST_S:
        return left_s
    return time_to_force_clean(replace(case, rates=case.rates.of_last_hour))


def decide_growth(case: GrowthCase) -> Growth:
    """Decide whether a volume grows now, and to which size."""
    why = _trigger(case)
    if not why:
        return Growth()
    auto_grow = case.auto_grow
    limit = auto_grow.max_size_bytes
    if not auto_grow.enabled or limit is None:
        return Growth(blocked="Disabled", why=why)
    if case.size_bytes >= limit:
        return Growth(blocked="AtMaxSize", why=why)
    past_cooldown = False
    wait_s = _wait_s(case.last_growth_s, max(auto_grow.cooldown_s, _settle_s(case)), case.now_s)
    if wait_s > 0 and not case.is_second_try:
        if not _may_pass_cooldown(case):
            return Growth(blocked="Cooldown", why=why, wait_s=wait_s)
        past_cooldown = True
    size_bytes = _next_size(case, limit)
    if case.infeasible_bytes is not None and size_bytes >= case.infeasible_bytes:
        middle = (case.size_bytes + case.infeasible_bytes) // 2
        size_bytes = middle // MEBIBYTE * MEBIBYTE
        if size_bytes - case.size_bytes < max(MEBIBYTE, case.size_bytes // _WORTH_PARTS):
            return Growth(blocked="ResizeInfeasible", why=why)
    return Growth(size_bytes=size_bytes, why=why, past_cooldown=past_cooldown)


def horizon_s(auto_grow: AutoGrowSpec, growth: Growth) -> float:
    """Return for how long there has to be room without a growth."""
    if growth.blocked == "Cooldown":
        return min(float(auto_grow.when_full_within_s), growth.wait_s + _COOLDOWN_MARGIN_S)
    if growth.blocked == "Resizing":
        return min(float(auto_grow.when_full_within_s), _RESIZING_HORIZON_S)
    return float(auto_grow.when_full_within_s)


def decide_read_hours(case: RetentionCase) -> int:
    """Decide for how many hours messages are kept that every group has read.

    Shortened to the longest time that leaves room until the horizon, soon and only while the volume
    cannot grow; lengthened again to what leaves room for twice as long, and less often.
    """
    shortest, longest = case.retention.shortest_hours, case.retention.hours
    if not shortest <= case.current_hours <= longest:
        # The bounds were moved; they hold at once.
        return min(max(case.current_hours, shortest), longest)
    since_s = case.since_change_s
    if case.blocked is not None and (since_s is None or since_s >= SHORTEN_EVERY_S):
        wanted, _ = _longest_safe(case, case.horizon_s)
        if wanted < case.current_hours:
            return wanted
    if case.current_hours < longest and (since_s is None or since_s >= LENGTHEN_EVERY_S):
        wanted, is_safe = _longest_safe(case, 2 * case.horizon_s)
        if is_safe and wanted >= min(longest, case.current_hours + max(1, longest // 24)):
            return wanted
    return case.current_hours


def rate_text(rate: float | None) -> str:
    """Spell a rate for people."""
    if rate is None:
        return "at an unknown rate"
    for unit, size in (("GiB", GIBIBYTE), ("MiB", MEBIBYTE), ("KiB", 1 << 10)):
        if rate >= size:
            return f"at {rate / size:.1f} {unit}/s"
    return f"at {rate:.0f} B/s"


def time_text(time_s: float) -> str:
    """Spell a time for people, in the unit that fits."""
    for unit, size_s in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if time_s >= 2 * size_s or (unit != "d" and time_s >= size_s):
            return f"{time_s / size_s:.0f}{unit}"
    return f"{time_s:.0f}s"


def _trigger(case: GrowthCase) -> str:
    """Return the numbers for which the volume should grow; empty if it should not."""
    numbers, auto_grow = case.numbers, case.auto_grow
    fill = case.rates.fill
    left_s = time_to_force_clean(case)
    will_be_full = left_s is not None and left_s < auto_grow.when_full_within_s
    after = _without_reclaimable(numbers, case.releases)
    too_full = after.used_percent >= auto_grow.when_used_percent
    stays_refused = case.is_emergency and after.used_bytes >= _resume_bytes(case.thresholds, after)
    if not (will_be_full or too_full or stays_refused):
        return ""
    when = ""
    if left_s is not None and left_s < 7 * 86_400:
        when = f", forceClean {f'in {time_text(left_s)}' if left_s > 0 else 'is reached'}"
    refused = ", writes are refused" if case.is_emergency else ""
    return f"{numbers.used_percent}% used, fills {rate_text(fill)}{when}{refused}"


def _next_size(case: GrowthCase, limit: int) -> int:
    """Return the size after as few steps as last until the volume may grow again.

    A burst of some minutes may look as if it went on for ever: no more than the volume's own size
    is added at a time, unless a single step is more.
    """
    size_bytes = case.size_bytes
    step_bytes = max(case.auto_grow.growth_step.bytes_of(size_bytes), MEBIBYTE)
    unit = GIBIBYTE if size_bytes >= _COARSE_FROM_BYTES else MEBIBYTE

    def after(steps: int) -> int:
        wanted = size_bytes + steps * step_bytes
        return min(-(-wanted // unit) * unit, limit)

    def is_enough(steps: int) -> bool:
        return _lasts(case, after(steps) - size_bytes)

    most = max(1, min(size_bytes, limit - size_bytes) // step_bytes)
    return after(1 + bisect_left(range(1, most), True, key=is_enough))


def _lasts(case: GrowthCase, more_bytes: int) -> bool:
    numbers = replace(
        case.numbers,
        capacity_bytes=case.numbers.capacity_bytes + more_bytes,
        available_bytes=case.numbers.available_bytes + more_bytes,
    )
    after = _without_reclaimable(numbers, case.releases)
    if after.used_percent >= case.auto_grow.when_used_percent:
        return False
    left_s = _time_to_force_clean(case.thresholds, numbers, case.rates.fill, case.releases)
    return left_s is None or left_s > case.auto_grow.cooldown_s


def _time_to_force_clean(
    thresholds: ThresholdsSpec,
    numbers: VolumeNumbers,
    rate: float | None,
    releases: Sequence[Release],
) -> float | None:
    return time_until(_limit_bytes(thresholds, numbers), numbers.used_bytes, rate, releases)


def _limit_bytes(thresholds: ThresholdsSpec, numbers: VolumeNumbers) -> int:
    """Return where forceClean begins, or rejectWrites if its free bytes come first."""
    return min(
        level_bytes(numbers, level.percent, level.free_size_bytes)
        for level in (thresholds.force_clean, thresholds.reject_writes)
    )


def _resume_bytes(thresholds: ThresholdsSpec, numbers: VolumeNumbers) -> int:
    """Return down to where writes stay refused once they are."""
    fillable = numbers.used_bytes + numbers.available_bytes
    level = thresholds.reject_writes
    limit_bytes = level_bytes(numbers, level.percent, level.free_size_bytes)
    return limit_bytes - fillable * thresholds.hysteresis_percent // 100


def _without_reclaimable(numbers: VolumeNumbers, releases: Sequence[Release]) -> VolumeNumbers:
    """Return the volume as it is once all that may go now is gone."""
    freed = sum(release.size_bytes for release in releases if release.after_s <= 0)
    freed = min(freed, numbers.used_bytes)
    return replace(
        numbers,
        used_bytes=numbers.used_bytes - freed,
        available_bytes=numbers.available_bytes + freed,
    )


def _may_pass_cooldown(case: GrowthCase) -> bool:
    """Once within a cooldown, when writes are refused or will soon be whatever is deleted."""
    if _wait_s(case.last_growth_s, _settle_s(case), case.now_s) > 0:
        return False
    if _wait_s(case.last_emergency_s, case.auto_grow.cooldown_s, case.now_s) > 0:
        return False
    level, numbers = case.thresholds.reject_writes, case.numbers
    limit_bytes = level_bytes(numbers, level.percent, level.free_size_bytes)
    fill, used_bytes = case.rates.fill, numbers.used_bytes
    left_s = time_until(limit_bytes, used_bytes, fill, case.forced_releases)
    return case.is_emergency or (left_s is not None and left_s < IMMINENT_S)


def _settle_s(case: GrowthCase) -> float:
    """Return for how long after a growth the numbers may be those of the smaller volume.

    No file system is larger than its volume: one that is larger than the volume was has grown.
    """
    grown_from_bytes = case.grown_from_bytes
    is_shown = grown_from_bytes is not None and case.numbers.capacity_bytes > grown_from_bytes
    return 0.0 if is_shown else case.settle_s


def _wait_s(last_s: float | None, pause_s: float, now_s: float) -> float:
    """Return how long a pause still lasts; a time in the future is a clock that was set back."""
    if last_s is None or last_s > now_s + pause_s:
        return 0.0
    return max(0.0, last_s + pause_s - now_s)


def _longest_safe(case: RetentionCase, span_s: float) -> tuple[int, bool]:
    """Return the longest retention that leaves room for a time, and whether it does.

    Where none does, the longest that is as good as the shortest: what is unread is not helped by
    shortening.
    """
    limit_bytes = _limit_bytes(case.retention.thresholds, case.numbers)
    shortest, longest = case.retention.shortest_hours, case.retention.hours

    def left_s(hours: int) -> float:
        releases = case.releases_for(hours)
        found = time_until(limit_bytes, case.numbers.used_bytes, case.rates.fill, releases)
        return math.inf if found is None else found

    if shortest == longest:
        return longest, True
    wanted_s = min(span_s, left_s(shortest))
    unsafe_from = bisect_left(
        range(shortest + 1, longest + 1), True, key=lambda hours: left_s(hours) < wanted_s
    )
    return shortest + unsafe_from, wanted_s >= span_s
