"""The operator's own metrics, in a registry of their own; alerts and probes share one truth."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 600.0)

LabelledValues = Iterable[tuple[tuple[str, ...], float]]


class OperatorMetrics:
    """Every counter and gauge of the operator, by attribute."""

    def __init__(self) -> None:
        """Make all of them, at zero."""
        self.registry = CollectorRegistry()
        self.reconcile_total = self._counter("reconcile", "Resources worked on.", "kind", "result")
        self.reconcile_duration = Histogram(
            "operator_reconcile_duration_seconds",
            "Time for one resource.",
            ["kind"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.step_failures_total = self._counter(
            "step_failures", "Steps of a plan that failed.", "kind", "namespace", "step"
        )
        self.leader = self._gauge("leader", "1 while this replica acts.")
        self.queue_depth = self._gauge("queue_depth", "Resources that wait to be worked on.")
        self.loop_lag = self._gauge("loop_lag_seconds", "How late the event loop is.")
        self.api_requests_total = self._counter(
            "api_requests", "Calls of the API server; code 0: no answer.", "verb", "code"
        )
        self.watch_requests_total = self._counter(
            "watch_requests", "Lists and watches that were begun.", "kind", "verb"
        )
        self.volume_resize_total = self._counter(
            "volume_resize", "Claims that were asked to grow.", "result"
        )
        self.autogrow_total = self._counter(
            "autogrow", "Decisions to grow a volume by itself.", "result"
        )
        self.config_live_updates_total = self._counter(
            "config_live_updates", "Settings sent to running brokers.", "result"
        )
        self.pod_restarts_total = self._counter(
            "pod_restarts", "Pods that were deleted so that they start anew.", "step"
        )
        self.events_total = self._counter("events", "Kubernetes events posted.", "type", "reason")
        self.broker_requests_total = self._counter(
            "broker_requests", "Calls of brokers' HTTP APIs.", "verb", "result"
        )

    def serve(
        self, name: str, text: str, labels: list[str], read: Callable[[], LabelledValues]
    ) -> None:
        """Add a gauge that is read when it is asked for, so that no label outlives its object."""
        self.registry.register(_ReadGauge(f"operator_{name}", text, labels, read))

    def exposition(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"operator_{name}_total", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"operator_{name}", text, registry=self.registry)


class _ReadGauge(Collector):
    def __init__(
        self, name: str, text: str, labels: list[str], read: Callable[[], LabelledValues]
    ) -> None:
        self._name, self._text, self._labels, self._read = name, text, labels, read

    def describe(self) -> Iterable[Metric]:
        return [GaugeMetricFamily(self._name, self._text, labels=self._labels)]

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(self._name, self._text, labels=self._labels)
        for labels, value in self._read():
            family.add_metric(labels, value)
        return [family]
