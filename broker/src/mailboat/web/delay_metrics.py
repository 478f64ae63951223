"""The metrics of delayed messages, retries and dead letters."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from mailboat.broker.retry import RetryService
from mailboat.broker.schedule import ScheduleMessageService


def delay_metrics(schedule: ScheduleMessageService, retry: RetryService) -> Iterator[Metric]:
    """Yield them all."""
    parked = GaugeMetricFamily(
        "mailboat_delay_parked_messages", "Messages that wait, by delay level.", labels=["level"]
    )
    late = GaugeMetricFamily(
        "mailboat_delay_late_seconds",
        "How long the first message of a delay level is overdue.",
        labels=["level"],
    )
    for level, parked_messages, late_ms in schedule.states():
        parked.add_metric([str(level)], parked_messages)
        late.add_metric([str(level)], late_ms / 1000)
    yield parked
    yield late
    yield CounterMetricFamily(
        "mailboat_delay_delivered_messages",
        "Delayed messages that were stored where they belong.",
        value=float(schedule.delivered),
    )
    yield CounterMetricFamily(
        "mailboat_delay_skipped_messages",
        "Delayed messages that were not delivered: expired, damaged or without a topic.",
        value=float(schedule.skipped),
    )
    yield CounterMetricFamily(
        "mailboat_retry_messages",
        "Messages that consumers sent back, or again to a retry topic, for another try.",
        value=float(retry.counts.sent_back),
    )
    yield CounterMetricFamily(
        "mailboat_dead_letters",
        "Messages that were tried too often and went into a dead-letter topic.",
        value=float(retry.counts.dead_letters),
    )
