"""The metrics of quotas: of users that have some and have asked for something, a bounded number."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from mailboat.broker.controller import BrokerController
from mailboat.broker.quotas.made_names import Kind
from mailboat.broker.quotas.service import QUEUE_LOCKS
from mailboat.broker.quotas.user_use import CONNECTIONS, HELD_PULLS

USER_SERIES_MAX: Final = 200
"""Users with series of their own, the first that came."""


def quota_metrics(broker: BrokerController) -> Iterator[Metric]:
    """Yield them all; a broker that knows no users has none of them."""
    quotas = broker.quotas
    if quotas is None:
        return
    refused = CounterMetricFamily(
        "mailboat_user_quota_refused",
        "What a quota of a user refused.",
        labels=["user", "quota"],
    )
    delayed = CounterMetricFamily(
        "mailboat_user_quota_delayed",
        "Answers and pulls that a quota of a user had wait.",
        labels=["user", "quota"],
    )
    used = GaugeMetricFamily(
        "mailboat_user_quota_used",
        "What a user with quotas has now, of what is counted and is no rate.",
        labels=["user", "quota"],
    )
    for use in islice(quotas.uses(), USER_SERIES_MAX):
        for metric, counts in ((refused, use.refused), (delayed, use.delayed)):
            for quota, count in counts.items():
                metric.add_metric([use.name, quota], count)
        counted = {
            CONNECTIONS: len(use.connections),
            HELD_PULLS: use.held_pulls,
            QUEUE_LOCKS: broker.queue_locks.held_by(use.name),
            Kind.TOPIC.value: quotas.made.count(use.name, Kind.TOPIC),
            Kind.GROUP.value: quotas.made.count(use.name, Kind.GROUP),
        }
        for quota, number in counted.items():
            used.add_metric([use.name, quota], number)
    yield refused
    yield delayed
    yield used
