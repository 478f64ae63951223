"""How long messages are kept, and what happens as the disk fills."""

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from mailboat_operator.crds.common import DELETE_WINDOW_PATTERN, Rule
from mailboat_operator.crds.quantity import QUANTITY_PATTERN, parse_quantity

FreeBytes = Annotated[
    Annotated[str, Meta(max_length=24, pattern=QUANTITY_PATTERN)] | None,
    Meta(
        description="Free space below which the same happens, whatever the percentage. Default:"
        " only the percentage counts."
    ),
]
DeleteWindow = Annotated[str, Meta(max_length=11, pattern=DELETE_WINDOW_PATTERN)]


class _Level(msgspec.Struct, frozen=True, rename="camel"):
    """What the three thresholds share."""

    @property
    def free_size_bytes(self) -> int:
        """The free space in bytes; 0 if only the percentage counts."""
        text: str | None = getattr(self, "free_bytes", None)
        return 0 if text is None else parse_quantity(text)


class ExpireLevel(_Level, frozen=True, rename="camel"):
    """From where expired messages go at any hour."""

    percent: Annotated[
        int, Meta(description="Per cent of disk use from which it happens.", ge=10, le=95)
    ] = 75
    free_bytes: FreeBytes = None


class ForceCleanLevel(_Level, frozen=True, rename="camel"):
    """From where messages that every group has read go although they are not expired."""

    percent: Annotated[
        int, Meta(description="Per cent of disk use from which it happens.", ge=30, le=97)
    ] = 85
    free_bytes: FreeBytes = None


class RejectWritesLevel(_Level, frozen=True, rename="camel"):
    """From where producers are refused."""

    percent: Annotated[
        int, Meta(description="Per cent of disk use from which it happens.", ge=35, le=97)
    ] = 90
    free_bytes: FreeBytes = None


class ThresholdsSpec(msgspec.Struct, frozen=True, rename="camel"):
    """What happens from which use of the disk on."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.expire.percent <= self.forceClean.percent",
            message="thresholds.expire.percent must not be above thresholds.forceClean.percent",
            field=".expire.percent",
        ),
        Rule(
            cel="self.forceClean.percent <= self.rejectWrites.percent",
            message="thresholds.forceClean.percent must not be above"
            " thresholds.rejectWrites.percent",
            field=".forceClean.percent",
        ),
        Rule(
            cel="self.hysteresisPercent < self.expire.percent",
            message="thresholds.hysteresisPercent must be below thresholds.expire.percent",
            field=".hysteresisPercent",
        ),
        Rule(
            cel="!has(self.expire.freeBytes) || !has(self.forceClean.freeBytes)"
            " || quantity(self.expire.freeBytes)"
            ".compareTo(quantity(self.forceClean.freeBytes)) >= 0",
            message="thresholds.expire.freeBytes must not be below thresholds.forceClean.freeBytes",
            field=".expire.freeBytes",
        ),
        Rule(
            cel="!has(self.forceClean.freeBytes) || !has(self.rejectWrites.freeBytes)"
            " || quantity(self.forceClean.freeBytes)"
            ".compareTo(quantity(self.rejectWrites.freeBytes)) >= 0",
            message="thresholds.forceClean.freeBytes must not be below"
            " thresholds.rejectWrites.freeBytes",
            field=".forceClean.freeBytes",
        ),
        Rule(
            cel="!has(self.expire.freeBytes) || !has(self.rejectWrites.freeBytes)"
            " || quantity(self.expire.freeBytes)"
            ".compareTo(quantity(self.rejectWrites.freeBytes)) >= 0",
            message="thresholds.expire.freeBytes must not be below"
            " thresholds.rejectWrites.freeBytes",
            field=".expire.freeBytes",
        ),
    )

    expire: Annotated[
        ExpireLevel,
        Meta(description="From here, messages older than hours are deleted at any time of day."),
    ] = ExpireLevel()
    force_clean: Annotated[
        ForceCleanLevel,
        Meta(
            description="From here, the oldest messages that every consumer group has read are"
            " deleted although they are not expired."
        ),
    ] = ForceCleanLevel()
    reject_writes: Annotated[
        RejectWritesLevel, Meta(description="From here, producers are refused with an error.")
    ] = RejectWritesLevel()
    hysteresis_percent: Annotated[
        int,
        Meta(
            description="A threshold ends so many per cent of disk use below where it began.",
            ge=0,
            le=20,
        ),
    ] = 3

    def __post_init__(self) -> None:
        """Check what the API server checks, for manifests that did not come through it."""
        levels = (self.expire, self.force_clean, self.reject_writes)
        if not self.expire.percent <= self.force_clean.percent <= self.reject_writes.percent:
            raise ValueError("percent must not fall from expire to forceClean to rejectWrites")
        if self.hysteresis_percent >= self.expire.percent:
            raise ValueError("hysteresisPercent must be below expire.percent")
        sizes = [level.free_size_bytes for level in levels if level.free_size_bytes]
        if sizes != sorted(sizes, reverse=True):
            raise ValueError("freeBytes must not rise from expire to forceClean to rejectWrites")


class RetentionSpec(msgspec.Struct, frozen=True, rename="camel"):
    """How long messages are kept."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.minHours) || self.minHours <= self.hours",
            message="retention.minHours must not be above retention.hours",
            field=".minHours",
        ),
    )

    hours: Annotated[
        int,
        Meta(
            description="Hours that messages are kept after their CommitLog file was last written.",
            ge=1,
            le=1_000_000,
        ),
    ] = 72
    min_hours: Annotated[
        Annotated[int, Meta(ge=0, le=1_000_000)] | None,
        Meta(
            description="When a volume fills and cannot grow, messages that every consumer group"
            " has read may go after so many hours. Default: hours, so nothing goes early."
        ),
    ] = None
    delete_window: Annotated[
        tuple[DeleteWindow, ...],
        Meta(
            description="Hours of the day in which expired messages are deleted, such as"
            " 04:00-06:00, by the container's clock (UTC unless podTemplate.env sets TZ).",
            min_length=1,
            max_length=12,
            extra={
                "rules": (
                    Rule(
                        cel="self.all(window, window.substring(0, 2) != window.substring(6, 8))",
                        message="a window of retention.deleteWindow must not end in the hour in"
                        " which it begins; 00:00-24:00 is the whole day",
                    ),
                )
            },
        ),
    ] = ("04:00-05:00",)
    thresholds: Annotated[
        ThresholdsSpec, Meta(description="What happens from which use of the disk on.")
    ] = ThresholdsSpec()

    def __post_init__(self) -> None:
        """Check what the API server checks, for manifests that did not come through it."""
        if self.min_hours is not None and self.min_hours > self.hours:
            raise ValueError("minHours must not be above hours")
        for window in self.delete_window:
            if window[:2] == window[6:8]:
                raise ValueError(
                    f"deleteWindow {window} must not end in the hour in which it begins;"
                    " 00:00-24:00 is the whole day"
                )

    @property
    def shortest_hours(self) -> int:
        """Hours down to which retention may be shortened."""
        return self.hours if self.min_hours is None else self.min_hours

    @property
    def delete_hours(self) -> tuple[int, ...]:
        """The hours of the day in which expired messages are deleted, in order."""
        hours: set[int] = set()
        for window in self.delete_window:
            first, end = int(window[:2]), int(window[6:8])
            hours.update(hour % 24 for hour in range(first, end if end > first else end + 24))
        return tuple(sorted(hours))
