"""Metrics of transactions: half messages that are open, and what became of the others."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from mailboat.broker.transactions import TransactionalMessageService


def transaction_metrics(transactions: TransactionalMessageService) -> Iterator[Metric]:
    """Yield them all."""
    counters = transactions.counters
    yield GaugeMetricFamily(
        "mailboat_half_messages",
        "Half messages that are neither committed nor rolled back.",
        value=float(transactions.open_halves),
    )
    ended = CounterMetricFamily(
        "mailboat_transactions_ended",
        "Half messages that ended; given_up ones lie in TRANS_CHECK_MAX_TIME_TOPIC, lost ones "
        "could no longer be read.",
        labels=["outcome"],
    )
    ended.add_metric(["committed"], counters.committed)
    ended.add_metric(["rolled_back"], counters.rolled_back)
    ended.add_metric(["given_up"], counters.given_up)
    ended.add_metric(["lost"], counters.lost)
    yield ended
    checks = CounterMetricFamily(
        "mailboat_transaction_checks",
        "Questions about open half messages; unsent ones found no producer of the group.",
        labels=["result"],
    )
    checks.add_metric(["sent"], counters.checks_sent)
    checks.add_metric(["unsent"], counters.checks_unsent)
    yield checks
