"""What the job tells Prometheus, of this process since its start."""

from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from mailboat.model.message_queue import MessageQueue
from mailboat_spark.planning import QueueBounds

_BATCH_SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class JobMetrics:
    """The numbers, in a registry of their own."""

    def __init__(self, job: str, group: str, version: str) -> None:
        """Begin at zero."""
        self.registry = CollectorRegistry()
        info = Gauge(
            "mailboat_job_info", "Always 1.", ["job", "group", "version"], registry=self.registry
        )
        info.labels(job, group, version).set(1)
        self._rows = Counter(
            "mailboat_job_rows", "Rows of finished batches.", registry=self.registry
        )
        self._batches = Counter(
            "mailboat_job_batches", "Finished batches with rows.", registry=self.registry
        )
        self._batch_seconds = Histogram(
            "mailboat_job_batch_duration_seconds",
            "Time from trigger to commit of batches with rows.",
            buckets=_BATCH_SECONDS,
            registry=self.registry,
        )
        self._last_progress = Gauge(
            "mailboat_job_last_progress_timestamp_seconds",
            "When a batch or a task ended, or a trigger found nothing to do.",
            registry=self.registry,
        )
        self._last_batch = Gauge(
            "mailboat_job_last_batch_id", "Number of the last batch.", registry=self.registry
        )
        self._lag = Gauge(
            "mailboat_job_lag_messages",
            "Messages on the brokers that no finished batch has read.",
            ["topic"],
            registry=self.registry,
        )
        self._offsets = Gauge(
            "mailboat_job_next_queue_offset",
            "The next offset to read, after the last finished batch.",
            ["topic", "broker", "queue"],
            registry=self.registry,
        )
        self._lag_failures = Counter(
            "mailboat_job_lag_failures",
            "How often the brokers could not be asked for their offsets.",
            registry=self.registry,
        )

    def batch(self, batch_id: int, rows: int, duration_ms: int) -> None:
        """Count a finished batch."""
        self._last_batch.set(batch_id)
        if rows:
            self._rows.inc(rows)
            self._batches.inc()
            self._batch_seconds.observe(duration_ms / 1000)

    def alive(self, timestamp_s: float) -> None:
        """Note a sign of life of the query."""
        self._last_progress.set(timestamp_s)

    def offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Show where the job is."""
        for queue, queue_offset in offsets.items():
            self._offsets.labels(queue.topic, queue.broker_name, str(queue.queue_id)).set(
                queue_offset
            )

    def lag(self, messages: Mapping[str, int]) -> None:
        """Show how far behind the job is, by topic."""
        for topic, behind in messages.items():
            self._lag.labels(topic).set(behind)

    def lag_failed(self) -> None:
        """Count a question to the brokers that failed."""
        self._lag_failures.inc()

    def text(self) -> bytes:
        """Return the numbers in Prometheus's format."""
        return generate_latest(self.registry)


def lag_by_topic(
    bounds: Mapping[MessageQueue, QueueBounds], offsets: Mapping[MessageQueue, int]
) -> dict[str, int]:
    """Return how many messages are unread, by topic; a queue without an offset is unread whole."""
    found: dict[str, int] = {}
    for queue, bound in bounds.items():
        start = max(offsets.get(queue, bound.minimum), bound.minimum)
        found[queue.topic] = found.get(queue.topic, 0) + max(0, bound.maximum - start)
    return found
