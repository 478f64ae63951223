"""The metrics of disk, retention and refusals; docs/retention.md lists names and meaning."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from mailboat.broker.controller import BrokerController
from mailboat.broker.reading_progress import ReadingProgress
from mailboat.config import Settings
from mailboat.store.cleaner import Cleaner
from mailboat.store.message_store import MessageStore
from mailboat.store.retention import REASONS, Retention, Threshold, thresholds_of
from mailboat.web.retention import effective_seconds

_LEVELS = ("expire", "force_clean", "reject_writes")
_WRITE_STATES = ("open", "rejecting", "failed")


def store_metrics(broker: BrokerController, started_with: Settings) -> Iterator[Metric]:
    """Yield them all; `started_with` are the settings of the file and the command line."""
    store = broker.store
    store.cleaner.refresh()
    yield from _volume_metrics(store)
    yield from _threshold_metrics(store.retention, started_with)
    yield from _cleaner_metrics(store.cleaner)
    yield from _lost_metrics(broker.reading)
    yield from _write_metrics(store)


def _volume_metrics(store: MessageStore) -> Iterator[Metric]:
    usage, log = store.retention.usage, store.commit_log
    if usage is not None:
        yield _gauge(
            "store_volume_capacity_bytes", "Size of the CommitLog's volume.", usage.capacity_bytes
        )
        yield _gauge("store_volume_used_bytes", "Used bytes of it.", usage.used_bytes)
        yield _gauge(
            "store_volume_available_bytes", "Bytes of it that can be filled.", usage.available_bytes
        )
        inodes = GaugeMetricFamily("store_volume_inodes", "Inodes of it.", labels=["state"])
        inodes.add_metric(["used"], usage.inodes_total - usage.inodes_free)
        inodes.add_metric(["free"], usage.inodes_free)
        yield inodes
    yield _gauge("store_commitlog_bytes", "Bytes of the log that are kept.", log.end - log.start)
    yield _gauge(
        "store_preallocated_bytes",
        "Bytes of the volume that the log has reserved and not written yet.",
        log.preallocated_bytes,
    )
    oldest_ms = store.cleaner.times.first_ms(log.segments[0]) if log.segments else None
    if oldest_ms is not None:
        yield _gauge(
            "store_oldest_message_timestamp_seconds",
            "Store time of the oldest message that is kept.",
            oldest_ms / 1000,
        )


def _threshold_metrics(retention: Retention, started_with: Settings) -> Iterator[Metric]:
    ratio = GaugeMetricFamily(
        "store_threshold_ratio",
        "Used part of the volume above which a level begins: as started (spec), as in force.",
        labels=["level", "source"],
    )
    free = GaugeMetricFamily(
        "store_threshold_free_bytes",
        "Free bytes below which a level begins, 0 for none: as started (spec), as in force.",
        labels=["level", "source"],
    )
    for source, thresholds in (
        ("spec", thresholds_of(started_with.store)),
        ("effective", retention.thresholds),
    ):
        for level in _LEVELS:
            threshold: Threshold = getattr(thresholds, level)
            ratio.add_metric([level, source], threshold.percent / 100)
            free.add_metric([level, source], threshold.free_bytes)
    yield ratio
    yield free
    active = GaugeMetricFamily(
        "store_level_active", "1 while the volume is above a level.", labels=["level"]
    )
    for level in _LEVELS:
        active.add_metric([level], float(getattr(retention.active, level)))
    yield active
    yield _gauge(
        "store_retention_effective_seconds",
        "Age at which a message that every group has read may go above the level expire.",
        effective_seconds(retention),
    )


def _cleaner_metrics(cleaner: Cleaner) -> Iterator[Metric]:
    files = CounterMetricFamily(
        "store_files_deleted", "CommitLog files deleted, by reason.", labels=["reason"]
    )
    size = CounterMetricFamily(
        "store_bytes_deleted", "Bytes of these files, by reason.", labels=["reason"]
    )
    for reason in REASONS:
        files.add_metric([reason], cleaner.files[reason])
        size.add_metric([reason], cleaner.size_bytes[reason])
    yield files
    yield size
    reclaimable = GaugeMetricFamily(
        "store_reclaimable_bytes",
        "Bytes of whole files that could go: past retention, or younger and read by every group.",
        labels=["reason"],
    )
    for reason, size_bytes in cleaner.reclaimable_bytes().items():
        reclaimable.add_metric([reason], size_bytes)
    yield reclaimable
    if cleaner.last_round_ms:
        yield _gauge(
            "store_cleaner_last_run_timestamp_seconds",
            "When retention last looked for files to delete.",
            cleaner.last_round_ms / 1000,
        )


def _lost_metrics(reading: ReadingProgress) -> Iterator[Metric]:
    lost = CounterMetricFamily(
        "store_unconsumed_deleted_messages",
        "Messages deleted before a group had read them.",
        labels=["group", "topic"],
    )
    for (group, topic), messages in reading.lost.items():
        lost.add_metric([group, topic], messages)
    yield lost
    yield CounterMetricFamily(
        "store_unconsumed_deleted_other_messages",
        "The same of all pairs of group and topic without a series of their own.",
        value=float(reading.lost_elsewhere),
    )
    yield CounterMetricFamily(
        "store_unconsumed_deleted_dropped_series",
        "Pairs of group and topic that got no series.",
        value=float(len(reading.dropped_series)),
    )


def _write_metrics(store: MessageStore) -> Iterator[Metric]:
    rejected = CounterMetricFamily(
        "store_writes_rejected", "Messages that were refused, by reason.", labels=["reason"]
    )
    for reason, count in store.writes_rejected.items():
        rejected.add_metric([reason], count)
    yield rejected
    state = GaugeMetricFamily(
        "store_write_state",
        "1 for the state in which the store is, whoever leads.",
        labels=["state"],
    )
    present = _write_state(store)
    for name in _WRITE_STATES:
        state.add_metric([name], float(name == present))
    yield state


def _write_state(store: MessageStore) -> str:
    if store.commit_log.failure is not None:
        return "failed"
    is_refused = store.own_refusal() is not None or store.commit_log.no_room is not None
    return "rejecting" if is_refused else "open"


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))
