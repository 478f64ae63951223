"""How fast a volume fills, and when it will be full.

A rate needs enough samples over enough time: without them it is unknown (None) and never zero. The
history is allowed to have gaps, to begin anew, and to show deletions: what was deleted in between
is put back, so that one removed segment does not make a filling volume look like a shrinking one.
What the broker will delete by itself is given to the forecast as releases instead.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from mailboat_operator.planner.snapshot import (
    FRESH_S,
    Manifest,
    Observation,
    UseSample,
    VolumeNumbers,
)

FORECAST_S: Final = 600.0
"""So long the last numbers may be carried forward at the last rate; beyond `fresh_s` at least."""

SHORT_FORECAST_S: Final = 6 * 3600.0
"""So far ahead the rate of the last minutes is worth something to people."""

SHORT_WINDOW_S: Final = 300.0
LONG_WINDOW_S: Final = 3600.0
_SHORT_SPAN_S: Final = 60.0
_LONG_SPAN_S: Final = 900.0
_SAMPLES_MIN: Final = 3

NumbersFrom = Literal["broker", "kubelet", "stale", "none"]


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes per second over the last 5 minutes and the last hour; None is unknown."""

    used_5m: float | None = None
    """By how much the used bytes grew, deletions undone."""

    used_1h: float | None = None
    written_5m: float | None = None
    """By how much the CommitLog grew."""

    written_1h: float | None = None

    @property
    def short(self) -> float | None:
        """The rate of the last minutes.

        A broker reserves whole segments, so over minutes the used bytes move in leaps: as long as
        the log grows, the log is the better measure.
        """
        return self.written_5m if self.written_5m else self.used_5m

    @property
    def long(self) -> float | None:
        """The rate of the last hour, with all that is written beside the log."""
        return _max_known(self.used_1h, self.written_1h)

    @property
    def fill(self) -> float | None:
        """The pessimistic rate: the largest of those that are known."""
        return _max_known(self.short, self.long)

    @property
    def of_last_hour(self) -> "Rates":
        """Those of the last hour alone."""
        return replace(self, used_5m=None, written_5m=None)


UNKNOWN_RATES: Final = Rates()


class Release(NamedTuple):
    """Bytes that the broker will delete once they are needed."""

    after_s: float
    """From when on it may; 0: now."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What can be said about a volume now."""

    numbers: VolumeNumbers | None
    """The volume; carried forward while the broker's numbers are stale."""

    source: NumbersFrom
    age_s: float | None
    """How old the broker's last numbers are."""

    rates: Rates
    retention: Manifest | None
    """What the broker said; None when that is too old to be used at all."""

    @property
    def is_fresh(self) -> bool:
        """Whether the broker itself said so lately (`fresh_s`)."""
        return self.source == "broker"


NO_READING: Final = Reading(None, "none", None, UNKNOWN_RATES, None)


def rates_of(samples: Sequence[UseSample]) -> Rates:
    """Return the rates at the time of the last sample."""
    samples = _since_restart(samples)
    used_5m, written_5m = _rates_within(samples, SHORT_WINDOW_S, _SHORT_SPAN_S)
    used_1h, written_1h = _rates_within(samples, LONG_WINDOW_S, _LONG_SPAN_S)
    return Rates(used_5m, used_1h, written_5m, written_1h)


def time_until(
    level_bytes: float, used_bytes: float, rate: float | None, releases: Iterable[Release]
) -> float | None:
    """Return in how many seconds the used bytes reach a level although all releases are taken.

    Args:
        level_bytes: The level.
        used_bytes: What is used now.
        rate: Bytes per second; None is unknown.
        releases: What the broker deletes by itself by then.

    Returns:
        Seconds, 0 above the level, infinity if it is never reached; None if the rate is unknown
        and the level is not reached yet.
    """
    room = level_bytes - used_bytes
    for after_s, size_bytes in sorted(releases):
        if after_s > 0 and room <= 0:
            return 0.0
        if after_s > 0 and rate is None:
            return None
        if after_s > 0 and rate and room / rate <= after_s:
            return room / rate
        room += size_bytes
    if room <= 0:
        return 0.0
    if rate is None:
        return None
    return room / rate if rate > 0 else math.inf


def releases_of(
    retention: Manifest | None, *, now_s: float, hours: int, read_hours: int
) -> tuple[Release, ...]:
    """Return when the broker may delete which segment, by what it said of them.

    Args:
        retention: GET /api/v1/retention; None is unknown: nothing can be counted on.
        now_s: Wall time.
        hours: After which every message goes.
        read_hours: After which messages go that every group has read.
    """
    if retention is None:
        return ()
    segments = retention.get("segments")
    if not segments:
        expired = int((retention.get("reclaimable") or {}).get("expired_bytes") or 0)
        return (Release(0.0, expired),) if expired else ()
    releases = []
    earliest_s = 0.0
    end = retention.get("max_physical_offset")
    for segment in segments[:-1]:
        size_bytes = int(segment.get("size_bytes") or 0)
        newest_ms = int(segment.get("last_timestamp_ms") or -1)
        is_full = end is None or int(segment.get("physical_offset") or 0) + size_bytes <= int(end)
        if newest_ms < 0 or not is_full:
            # Being written, not begun, or of unknown age: it stays, and all that follow with it.
            break
        kept_hours = min(hours, read_hours) if segment.get("is_read") else hours
        # Segments go in order: none before the one in front of it.
        earliest_s = max(earliest_s, newest_ms / 1000 + kept_hours * 3600 - now_s)
        releases.append(Release(earliest_s, size_bytes))
    return tuple(releases)


def level_bytes(numbers: VolumeNumbers, percent: int, free_bytes: int) -> int:
    """Return from how many used bytes on a threshold is reached, by per cent or by free bytes."""
    fillable = numbers.used_bytes + numbers.available_bytes
    by_percent = fillable * percent // 100
    return min(by_percent, fillable - free_bytes) if free_bytes else by_percent


def read_volume(
    observation: Observation | None, monotonic_s: float, fresh_s: float = FRESH_S
) -> Reading:
    """Return what can be said about a volume: by the broker, by its forecast, by the kubelet.

    Args:
        observation: What the broker said; None if it never did.
        monotonic_s: The operator's clock.
        fresh_s: Numbers that are older are no longer shown as if they were true.
    """
    if observation is None:
        return NO_READING
    seen_s, retention = observation.seen_monotonic_s, observation.retention
    age_s = None if seen_s is None else max(0.0, monotonic_s - seen_s)
    rates = rates_of(observation.samples)
    numbers = _broker_numbers(retention)
    if numbers is not None and age_s is not None and age_s <= fresh_s:
        return Reading(numbers, "broker", age_s, rates, retention)
    kubelet = observation.kubelet
    if numbers is not None and age_s is not None and age_s <= max(FORECAST_S, 2 * fresh_s):
        ahead = _carried_forward(numbers, rates.fill, age_s)
        if kubelet is None or kubelet.used_percent <= ahead.used_percent:
            return Reading(ahead, "stale", age_s, rates, retention)
        return Reading(kubelet, "kubelet", age_s, rates, retention)
    if kubelet is not None:
        return Reading(kubelet, "kubelet", age_s, UNKNOWN_RATES, None)
    source: NumbersFrom = "none" if numbers is None else "stale"
    return Reading(None, source, age_s, UNKNOWN_RATES, None)


def _broker_numbers(retention: Manifest | None) -> VolumeNumbers | None:
    """Return the volume as the broker's thresholds see it: reserved room still is room."""
    volume = (retention or {}).get("volume")
    if not retention or not volume:
        return None
    used_bytes = int(volume["used_bytes"])
    reserved_bytes = min(used_bytes, int(retention.get("preallocated_bytes") or 0))
    return VolumeNumbers(
        capacity_bytes=int(volume["capacity_bytes"]),
        used_bytes=used_bytes - reserved_bytes,
        available_bytes=int(volume["available_bytes"]) + reserved_bytes,
        source="broker",
    )


def _carried_forward(numbers: VolumeNumbers, rate: float | None, age_s: float) -> VolumeNumbers:
    more = min(numbers.available_bytes, math.ceil((rate or 0.0) * age_s))
    return replace(
        numbers,
        used_bytes=numbers.used_bytes + more,
        available_bytes=numbers.available_bytes - more,
    )


def _since_restart(samples: Sequence[UseSample]) -> Sequence[UseSample]:
    """Drop what lies before a clock or a log that began anew."""
    first = 0
    for index in range(1, len(samples)):
        before, after = samples[index - 1], samples[index]
        if after.monotonic_s <= before.monotonic_s or after.written_bytes < before.written_bytes:
            first = index
    return samples[first:]


def _rates_within(
    samples: Sequence[UseSample], window_s: float, span_min_s: float
) -> tuple[float | None, float | None]:
    """Return the growth of used and of written bytes per second within a window."""
    if not samples:
        return None, None
    end_s = samples[-1].monotonic_s
    within = [sample for sample in samples if end_s - sample.monotonic_s <= window_s]
    span_s = end_s - within[0].monotonic_s
    if len(within) < _SAMPLES_MIN or span_s < span_min_s:
        return None, None
    grown = 0
    for before, after in pairwise(within):
        used = after.used_bytes - before.used_bytes
        grown += used if used >= 0 else after.written_bytes - before.written_bytes
    written = within[-1].written_bytes - within[0].written_bytes
    return grown / span_s, written / span_s


def _max_known(*values: float | None) -> float | None:
    return max((value for value in values if value is not None), default=None)
