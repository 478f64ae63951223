"""What is shown of volumes: `status.storage`, StorageReady and DiskPressure.

Numbers are rounded and forecasts coarse, so that nothing is written while little happens. Numbers
that are too old are never shown as fine: DiskPressure is Unknown then, whatever they were.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from mailboat_operator.crds.status import ThresholdName
from mailboat_operator.planner.actions import Notify
from mailboat_operator.planner.autopilot import time_text
from mailboat_operator.planner.conditions import (
    CLAIM_DELETED,
    DISK_PRESSURE,
    STORAGE_READY,
    Finding,
    previous_condition,
    timestamp,
)
from mailboat_operator.planner.forecast import Reading

SHOWN_S: Final = 7 * 86_400
"""A forecast beyond is not shown."""

_YEAR_10000_MS: Final = 253_402_300_800_000
"""Later times, as of a broker whose clock was far off, have no spelling."""

_SAME_FACTOR: Final = 1.6
_MESSAGES_MAX: Final = 3
_MESSAGE_LENGTH: Final = 1024
_REASONS_FALSE: Final = (
    CLAIM_DELETED,
    "VolumesPending",
    "ResizeInfeasible",
    "ResizeRefused",
    "ClassCannotGrow",
    "Resizing",
)
_REASONS_TRUE: Final = ("ShrinkRefused", "AtMaxSize", "LargerThanSpec", "VolumesReady")
_PRESSURES: Final = ("RejectingWrites", "ForceCleaning", "NumbersStale", "Expiring", "Enough")
_LEVELS: Final[tuple[tuple[str, ThresholdName, str], ...]] = (
    ("expire", "expire", "Expiring"),
    ("force_clean", "forceClean", "ForceCleaning"),
    ("reject_writes", "rejectWrites", "RejectingWrites"),
)


def storage_ready(found: Sequence[tuple[str, str]]) -> Finding:
    """Make one finding of every volume's reason and message: the worst reason, who has it."""
    for reason in (*_REASONS_FALSE, *_REASONS_TRUE):
        messages = [message for given, message in found if given == reason]
        if messages:
            text = _joined(messages) or "every volume has its size"
            return Finding(STORAGE_READY, reason in _REASONS_TRUE, reason, text)
    return Finding(STORAGE_READY, True, "VolumesReady", "there is no volume")


def disk_pressure(found: Sequence[tuple[str, str]]) -> Finding:
    """Make one finding of how full every volume is."""
    for reason in _PRESSURES:
        messages = [message for given, message in found if given == reason]
        if not messages:
            continue
        if reason == "Enough":
            return Finding(DISK_PRESSURE, False, reason, "every volume is below thresholds.expire")
        holds = None if reason == "NumbersStale" else True
        return Finding(DISK_PRESSURE, holds, reason, _joined(messages))
    return Finding(DISK_PRESSURE, None, "NumbersStale", "there is no volume")


def pressure_notices(status: Mapping[str, Any], pressure: Finding) -> tuple[Notify, ...]:
    """Return what there is to tell when the pressure rose or went."""
    before = previous_condition(status, DISK_PRESSURE)
    was = before.get("status")
    if pressure.holds and (was != "True" or before.get("reason") != pressure.reason):
        text = f"{pressure.reason}: {pressure.message}"
        return (Notify("Warning", "DiskPressureRaised", text),)
    if pressure.holds is False and was == "True":
        return (Notify("Normal", "DiskPressureCleared", pressure.message),)
    return ()


def pressure_of(name: str, reading: Reading, *, has_pod: bool) -> tuple[str, str]:
    """Return the reason and the sentence about how full one volume is."""
    numbers = reading.numbers
    if not reading.is_fresh or numbers is None:
        why = _stale_text(reading) if has_pod else "its pod does not exist"
        return "NumbersStale", f"{name}: {why}"
    retention = reading.retention or {}
    active = retention.get("active") or {}
    reason = "Enough"
    for key, _, level_reason in _LEVELS:
        if active.get(key):
            reason = level_reason
    if retention.get("refusal"):
        reason = "RejectingWrites"
    return reason, f"{name}: {numbers.used_percent}% used"


def active_thresholds(reading: Reading) -> tuple[ThresholdName, ...]:
    """Return the thresholds that are in force, as far as that is known."""
    active = (reading.retention or {}).get("active") or {}
    return tuple(name for key, name, _ in _LEVELS if active.get(key)) if reading.is_fresh else ()


def inodes_percent(reading: Reading) -> int | None:
    """Return the used part of the inodes, rounded up; None if it is not known."""
    volume = (reading.retention or {}).get("volume") or {}
    total = int(volume.get("inodes_total") or 0)
    if not total or not reading.is_fresh:
        return None
    return min(100, -(-100 * int(volume.get("inodes_used") or 0) // total))


def oldest_time(reading: Reading) -> str | None:
    """Return when the oldest message was stored, to the hour."""
    oldest_ms = int((reading.retention or {}).get("oldest_message_timestamp_ms") or -1)
    is_known = 0 <= oldest_ms < _YEAR_10000_MS
    return timestamp(oldest_ms // 3_600_000 * 3600) if is_known else None


def time_field(time_s: float | None) -> str | None:
    """Spell a time for the status."""
    return None if time_s is None else timestamp(time_s)


def message_field(text: str) -> str | None:
    """Cut a sentence to what the status takes."""
    return text[:_MESSAGE_LENGTH] or None


def forecast_field(left_s: float | None, shown: object) -> str | None:
    """Return the forecast for people; what is shown stays until it is far from the truth."""
    if left_s is None or left_s > SHOWN_S:
        return None
    shown_s = _shown_seconds(shown)
    if shown_s is not None and shown_s / _SAME_FACTOR <= left_s <= shown_s * _SAME_FACTOR:
        return str(shown)
    return time_text(left_s)


def _stale_text(reading: Reading) -> str:
    source, numbers = reading.source, reading.numbers
    if source == "kubelet" and numbers is not None:
        percent = numbers.used_percent
        return f"the broker does not answer; by the kubelet's count {percent}% is used"
    if source == "stale" and numbers is not None:
        return (
            "the broker does not answer; its last numbers, carried forward, say"
            f" {numbers.used_percent}% used"
        )
    if source == "stale":
        return "the broker has not answered for 10 minutes and nobody else has numbers"
    return "the broker has not given its numbers yet"


def _joined(messages: list[str]) -> str:
    shown = "; ".join(message for message in messages[:_MESSAGES_MAX] if message)
    more = len(messages) - _MESSAGES_MAX
    return f"{shown}; and {more} more" if more > 0 and shown else shown


_UNITS: Final[Mapping[str, Callable[[int], float]]] = {
    "s": float,
    "m": lambda number: number * 60.0,
    "h": lambda number: number * 3600.0,
    "d": lambda number: number * 86_400.0,
}


def _shown_seconds(text: object) -> float | None:
    if not isinstance(text, str) or not text[:-1].isdigit() or text[-1:] not in _UNITS:
        return None
    return _UNITS[text[-1]](int(text[:-1]))
