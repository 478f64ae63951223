"""The condition of a store, for people and dashboards."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class SegmentState:
    """One CommitLog segment for people and dashboards."""

    physical_offset: int
    size_bytes: int
    last_store_timestamp_ms: int


@dataclass(slots=True)
class StoreState:
    """Condition of a store: `refusal` says why sends are refused, `failed` what needs a restart."""

    min_physical_offset: int
    max_physical_offset: int
    flushed_physical_offset: int
    unflushed_bytes: int
    unflushed_age_seconds: float
    dispatch_behind_bytes: int
    commit_log_bytes: int
    disk_used_percent: int | None
    refusal: str | None
    failed: str | None
    corrupt_records: int
    unreadable_records: int
    recovered_records: int
    recovered_tail_bytes: int
    damaged_bytes: int
    queue_count: int
    segments: list[SegmentState] = field(default_factory=list)
