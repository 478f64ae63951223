"""The volume of a broker: its size, and how it may grow by itself."""

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from mailboat_operator.crds.common import RESOURCE_NAME_PATTERN, Rule
from mailboat_operator.crds.quantity import (
    DURATION_PATTERN,
    QUANTITY_PATTERN,
    STEP_PATTERN,
    GrowthStep,
    parse_duration,
    parse_quantity,
    parse_step,
)

SEGMENT_SIZE_MIN_BYTES = 1 << 20
SEGMENT_SIZE_MAX_BYTES = 2_147_483_647
SEGMENTS_MIN = 4
"""A volume holds at least so many segments: the one being written, the next one, and some to keep
and to delete."""

SEGMENTS_MAX = 20_000
"""A volume holds at most so many segments: a broker lists them all in one document, which is read
up to 4 MiB, at some 150 bytes each beside the groups of consumers."""

_QUANTITY = Meta(max_length=24, pattern=QUANTITY_PATTERN)
_DURATION = Meta(min_length=2, max_length=16, pattern=DURATION_PATTERN)
_FOUR_SEGMENTS = "quantity(self.segmentSize)" + 3 * ".add(quantity(self.segmentSize))"
_ALL_SEGMENTS = f"{SEGMENTS_MAX}.0 * quantity(self.segmentSize).asApproximateFloat()"
_TOO_MANY = (
    f"must be at most {SEGMENTS_MAX} x storage.segmentSize, so that a broker can list its files:"
    " make the Broker with a larger segmentSize"
)


class AutoGrowSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Whether and how a volume grows by itself."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!self.enabled || has(self.maxSize)",
            message="autoGrow needs maxSize: the size that no volume grows beyond",
            field=".maxSize",
        ),
    )

    enabled: Annotated[
        bool, Meta(description="Whether volumes grow by themselves, up to maxSize.")
    ] = False
    when_used_percent: Annotated[
        int,
        Meta(
            description="Per cent of disk use from which a volume grows. Below"
            " retention.thresholds.forceClean.percent.",
            ge=10,
            le=96,
        ),
    ] = 80
    when_full_within: Annotated[
        str,
        _DURATION,
        Meta(
            description="A volume also grows when, at the present rate, it reaches forceClean"
            " within this time.",
        ),
    ] = "6h"
    step: Annotated[
        str,
        Meta(
            description="How much a volume grows at a time: per cent of its size, or a size.",
            max_length=24,
            pattern=STEP_PATTERN,
        ),
    ] = "20%"
    max_size: Annotated[
        Annotated[str, _QUANTITY] | None,
        Meta(
            description="The size that no volume grows beyond. Needed when enabled; at least"
            " storage.size."
        ),
    ] = None
    cooldown: Annotated[
        str,
        _DURATION,
        Meta(
            description="Shortest time between two growths of a volume; some clouds allow one in"
            " six hours."
        ),
    ] = "6h"

    def __post_init__(self) -> None:
        """Check what the API server checks, for manifests that did not come through it."""
        if self.enabled and self.max_size is None:
            raise ValueError("autoGrow needs maxSize: the size that no volume grows beyond")

    @property
    def max_size_bytes(self) -> int | None:
        """The limit in bytes; None if there is none, which no enabled autoGrow has."""
        return None if self.max_size is None else parse_quantity(self.max_size)

    @property
    def when_full_within_s(self) -> int:
        """The forecast's span in seconds."""
        return parse_duration(self.when_full_within)

    @property
    def cooldown_s(self) -> int:
        """The pause between two growths in seconds."""
        return parse_duration(self.cooldown)

    @property
    def growth_step(self) -> GrowthStep:
        """The step as a value."""
        return parse_step(self.step)


class StorageSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The volume of each broker."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0",
            message="storage.size can only grow: Kubernetes cannot make a volume smaller",
            field=".size",
        ),
        Rule(
            cel="has(self.className) == has(oldSelf.className)"
            " && (!has(self.className) || self.className == oldSelf.className)",
            message="storage.className cannot be changed, added or removed: make a new Broker"
            " for another class",
            field=".className",
        ),
        Rule(
            cel="quantity(self.segmentSize).compareTo(quantity(oldSelf.segmentSize)) == 0",
            message="storage.segmentSize cannot be changed: the store's files have that size",
            field=".segmentSize",
        ),
        Rule(
            cel="quantity(self.segmentSize).compareTo(quantity('1Mi')) >= 0"
            f" && quantity(self.segmentSize).compareTo(quantity('{SEGMENT_SIZE_MAX_BYTES}')) <= 0",
            message="storage.segmentSize must be at least 1Mi and less than 2Gi",
            field=".segmentSize",
        ),
        Rule(
            cel=f"quantity(self.size).compareTo({_FOUR_SEGMENTS}) >= 0",
            message="storage.size must be at least 4 x storage.segmentSize",
            field=".size",
        ),
        Rule(
            cel="!has(self.autoGrow.maxSize)"
            " || quantity(self.autoGrow.maxSize).compareTo(quantity(self.size)) >= 0",
            message="storage.autoGrow.maxSize must be at least storage.size",
            field=".autoGrow.maxSize",
        ),
        Rule(
            cel=f"quantity(self.size).asApproximateFloat() <= {_ALL_SEGMENTS}",
            message=f"storage.size {_TOO_MANY}",
            field=".size",
        ),
        Rule(
            cel="!has(self.autoGrow.maxSize)"
            f" || quantity(self.autoGrow.maxSize).asApproximateFloat() <= {_ALL_SEGMENTS}",
            message=f"storage.autoGrow.maxSize {_TOO_MANY}",
            field=".autoGrow.maxSize",
        ),
    )

    size: Annotated[
        str,
        _QUANTITY,
        Meta(description="Size of each broker's volume. It can only grow."),
    ]
    class_name: Annotated[
        Annotated[str, Meta(min_length=1, max_length=253, pattern=RESOURCE_NAME_PATTERN)] | None,
        Meta(
            description="StorageClass of the volumes. Default: that of the cluster. Cannot be"
            " changed."
        ),
    ] = None
    segment_size: Annotated[
        str,
        _QUANTITY,
        Meta(
            description="Size of one CommitLog file, the unit in which old messages are deleted:"
            " 1Mi up to less than 2Gi, at most a quarter of size, and at least size and"
            f" autoGrow.maxSize divided by {SEGMENTS_MAX}. Cannot be changed.",
        ),
    ] = "1Gi"
    auto_grow: Annotated[
        AutoGrowSpec, Meta(description="Whether and how volumes grow by themselves.")
    ] = AutoGrowSpec()

    def __post_init__(self) -> None:
        """Check what the API server checks, for manifests that did not come through it."""
        if not SEGMENT_SIZE_MIN_BYTES <= self.segment_size_bytes <= SEGMENT_SIZE_MAX_BYTES:
            raise ValueError("segmentSize must be at least 1Mi and less than 2Gi")
        if self.size_bytes < SEGMENTS_MIN * self.segment_size_bytes:
            raise ValueError("size must be at least 4 x segmentSize")
        max_size_bytes = self.auto_grow.max_size_bytes
        if max_size_bytes is not None and max_size_bytes < self.size_bytes:
            raise ValueError("autoGrow.maxSize must be at least size")
        most_bytes = SEGMENTS_MAX * self.segment_size_bytes
        if self.size_bytes > most_bytes:
            raise ValueError(f"size {_TOO_MANY}")
        if max_size_bytes is not None and max_size_bytes > most_bytes:
            raise ValueError(f"autoGrow.maxSize {_TOO_MANY}")

    @property
    def size_bytes(self) -> int:
        """The volume's size in bytes."""
        return parse_quantity(self.size)

    @property
    def segment_size_bytes(self) -> int:
        """The size of a CommitLog file in bytes."""
        return parse_quantity(self.segment_size)
