"""`/metrics`: what the process counts, in Prometheus' text format.

One page is made at most once a second, however often it is asked for, some milliseconds at a time;
it changes as a whole. Names that users choose
(topics, groups) become labels of a bounded number of series, so a million topics are not a million
series; no label holds a client id, an address or a key.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from mailboat import __version__, core
from mailboat.broker.controller import BrokerController
from mailboat.broker.stats import FlowCounter
from mailboat.log_lines import line_handler
from mailboat.namesrv.controller import NamesrvController
from mailboat.remoting.turns import SERVER, asker, in_turns
from mailboat.security.tls import ServerTls
from mailboat.web.context import WebContext
from mailboat.web.delay_metrics import delay_metrics
from mailboat.web.lag import Steps, largest_lags
from mailboat.web.quota_metrics import quota_metrics
from mailboat.web.replica_metrics import replica_metrics
from mailboat.web.store_metrics import store_metrics
from mailboat.web.transaction_metrics import transaction_metrics

TOPIC_SERIES_MAX: Final = 200
"""Topics with series of their own; the others only show in the sum of all."""

LAG_SERIES_MAX: Final = 200
CACHE_S: Final = 1.0

_LAG_CANDIDATES: Final = 2_000  # Each costs a look at every queue of a topic.
_LAG_REST: Final = 10

_STORE_GAUGES: Final = (
    (
        "mailboat_unflushed_bytes",
        "Bytes of the log not known to be on disk.",
        "unflushed_bytes",
    ),
    (
        "mailboat_unflushed_age_seconds",
        "Age of the oldest byte not known to be on disk.",
        "unflushed_age_seconds",
    ),
    (
        "mailboat_dispatch_behind_bytes",
        "Bytes of the log not yet visible to consumers.",
        "dispatch_behind_bytes",
    ),
    ("mailboat_commit_log_bytes", "Bytes of the log that are kept.", "commit_log_bytes"),
    ("mailboat_commit_log_min_offset", "First physical offset.", "min_physical_offset"),
    ("mailboat_commit_log_max_offset", "Physical offset of the end.", "max_physical_offset"),
    (
        "mailboat_commit_log_flushed_offset",
        "Physical offset below which all is on disk.",
        "flushed_physical_offset",
    ),
    ("mailboat_queues", "Queues that hold or held messages.", "queue_count"),
    ("mailboat_damaged_bytes", "Bytes that recovery set aside as damaged.", "damaged_bytes"),
)
"""Name, text, and field of `StoreState`."""


def add_routes(app: web.Application, context: WebContext) -> None:
    """Serve the metrics."""
    app.router.add_get("/metrics", MetricsPage(context).answer)


class MetricsPage:
    """The page and its age."""

    def __init__(self, context: WebContext, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Show one process; `clock` counts seconds."""
        self._clock = clock
        self._registry = CollectorRegistry()
        self._metrics = ProcessMetrics(context)
        self._registry.register(self._metrics)
        ProcessCollector(registry=self._registry)
        self._making = asyncio.Lock()
        self._page = b""
        self._made_s = float("-inf")

    async def answer(self, _: web.Request) -> web.Response:
        """Answer with a page that is a second old at most, but for the lags of groups."""
        page = await self.render()
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def render(self) -> bytes:
        """Return the page, made anew when it is too old; all who wait for it get the same one."""
        async with self._making:
            if self._clock() - self._made_s >= CACHE_S:
                asker.set(SERVER)  # Not for this peer alone.
                await in_turns(self._metrics.look())
                self._page = generate_latest(self._registry)
                self._made_s = self._clock()
        return self._page


class ProcessMetrics(Collector):
    """Reads the parts of one process when a page is made."""

    def __init__(self, context: WebContext) -> None:
        """Look at one process, with `look`."""
        self._context = context
        self._topics = BoundedFlows(TOPIC_SERIES_MAX)
        self._metrics: list[Metric] = []
        self._lags = GroupLags()

    def describe(self) -> list[Metric]:
        """Name no metric beforehand: the parts are not there yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with the value that the last look found."""
        return iter(self._metrics)

    def look(self) -> Steps[None]:
        """Find every metric's value anew, a few at a time; then they change all at once."""
        broker = self._context.broker
        if broker is not None and broker.store.is_open:
            yield from self._lags.look(broker)
        metrics = []
        for metric in self._present():
            metrics.append(metric)
            yield
        self._metrics = metrics

    def _present(self) -> Iterator[Metric]:
        context = self._context
        yield InfoMetricFamily(
            "mailboat_build",
            "Version and role.",
            {"version": __version__, "role": context.settings.role},
        )
        yield InfoMetricFamily(
            "mailboat_core",
            "Whether the compiled core does the work of the hot path, or Python.",
            {"implementation": core.FOUND.implementation, "version": __version__},
        )
        yield _gauge("mailboat_serving", "1 while clients are served.", context.phase == "serving")
        log = line_handler()
        if log is not None:
            yield _counter(
                "mailboat_log_lines_dropped",
                "Lines of the log that nobody took in time, or that could not be written.",
                log.dropped,
            )
            yield _counter(
                "mailboat_log_lines_withheld",
                "Lines of the log that were too many of their kind.",
                log.withheld,
            )
        if context.tls is not None:
            yield from _tls_metrics(context.tls)
        if context.namesrv is not None:
            yield from _namesrv_metrics(context.namesrv)
        broker = context.broker
        if broker is not None and broker.store.is_open:
            yield from _message_metrics(broker)
            yield from self._topics.metrics(broker.stats.topic_flows())
            yield from _client_metrics(broker)
            yield from _store_metrics(broker)
            yield from store_metrics(broker, context.settings)
            yield from delay_metrics(broker.schedule, broker.retry)
            yield from transaction_metrics(broker.transactions)
            yield from quota_metrics(broker)
            if broker.replicas is not None and broker.replicas.is_begun:
                yield from replica_metrics(broker.replicas.report())
            yield self._lags.metric()


class GroupLags:
    """The largest lags; behind a bounded number of groups nobody looks.

    They are counted anew for each page, but never for more than a tenth of the time: with very many
    queues they are some seconds old.
    """

    def __init__(self) -> None:
        """Know none yet."""
        self._lags: list[tuple[int, str, str]] = []
        self._due_s = float("-inf")

    def look(self, broker: BrokerController) -> Steps[None]:
        """Count the lags if it is time to."""
        begin_s = time.monotonic()
        if begin_s < self._due_s:
            return
        self._lags = yield from largest_lags(
            broker, pairs_max=_LAG_CANDIDATES, count=LAG_SERIES_MAX
        )
        end_s = time.monotonic()
        self._due_s = end_s + _LAG_REST * (end_s - begin_s)

    def metric(self) -> Metric:
        """Show what was counted last."""
        metric = GaugeMetricFamily(
            "mailboat_group_lag_messages",
            "Messages that a group has not consumed.",
            labels=["group", "topic"],
        )
        for lag, group, topic in self._lags:
            metric.add_metric([group, topic], lag)
        return metric


class BoundedFlows:
    """Counters by topic for a bounded number of topics, which keep their series for good.

    The first topics that send get the series. A counter never goes back: what a deleted topic
    counted stays in its series.
    """

    def __init__(self, series_max: int) -> None:
        """Give at most `series_max` topics series of their own."""
        self._series_max = series_max
        self._series: dict[str, _Series] = {}

    def metrics(self, flows: dict[str, FlowCounter]) -> Iterator[Metric]:
        """Yield messages and bytes by topic."""
        free = self._series_max - len(self._series)
        for topic in islice((name for name in flows if name not in self._series), free):
            self._series[topic] = _Series()
        messages = CounterMetricFamily(
            "mailboat_topic_messages_in", "Messages stored, by topic.", labels=["topic"]
        )
        size = CounterMetricFamily(
            "mailboat_topic_bytes_in", "Bytes of stored records, by topic.", labels=["topic"]
        )
        for topic, series in self._series.items():
            series.update(flows.get(topic))
            messages.add_metric([topic], series.messages)
            size.add_metric([topic], series.size_bytes)
        yield messages
        yield size


class _Series:
    """The count of one topic over all its lives."""

    __slots__ = ("_flow", "_messages_before", "_size_before", "messages", "size_bytes")

    def __init__(self) -> None:
        self._flow: FlowCounter | None = None
        self._messages_before = 0
        self._size_before = 0
        self.messages = 0
        self.size_bytes = 0

    def update(self, flow: FlowCounter | None) -> None:
        if flow is not self._flow:
            self._flow = flow
            self._messages_before, self._size_before = self.messages, self.size_bytes
        if flow is not None:
            self.messages = self._messages_before + flow.messages
            self.size_bytes = self._size_before + flow.size_bytes


def _tls_metrics(tls: ServerTls) -> Iterator[Metric]:
    if tls.validity is not None:
        yield _gauge(
            "mailboat_tls_certificate_expiry_timestamp_seconds",
            "When the certificate that is shown ends, in seconds since 1970.",
            tls.validity.not_after_s,
        )
        yield _gauge(
            "mailboat_tls_certificate_start_timestamp_seconds",
            "When the certificate that is shown began, in seconds since 1970.",
            tls.validity.not_before_s,
        )
    yield _gauge(
        "mailboat_tls_files_refused",
        "1 while the files of TLS cannot be used as they are, and those of before are.",
        bool(tls.problem),
    )


def _namesrv_metrics(namesrv: NamesrvController) -> Iterator[Metric]:
    yield _gauge("mailboat_namesrv_connections", "Open connections.", namesrv.connection_count)
    yield _gauge(
        "mailboat_namesrv_brokers", "Registered broker processes.", namesrv.routes.broker_count()
    )
    yield _gauge("mailboat_namesrv_topics", "Topics with a route.", namesrv.routes.topic_count())


def _message_metrics(broker: BrokerController) -> Iterator[Metric]:
    stats = broker.stats
    yield _counter("mailboat_messages_in", "Messages stored.", stats.put_messages)
    yield _counter("mailboat_bytes_in", "Bytes of stored records.", stats.put_bytes)
    yield _counter("mailboat_sends_refused", "Messages that the store refused.", stats.put_failed)
    yield _counter(
        "mailboat_send_wait_false",
        "Messages acknowledged before their flush although the broker flushes synchronously.",
        stats.put_without_wait,
    )
    yield _counter("mailboat_messages_out", "Messages handed to consumers.", stats.get_messages)
    yield _counter("mailboat_bytes_out", "Bytes of records handed to consumers.", stats.get_bytes)
    yield _counter("mailboat_pulls_found", "Pulls that returned messages.", stats.get_found)
    yield _counter("mailboat_pulls_empty", "Pulls that found nothing.", stats.get_missed)


def _client_metrics(broker: BrokerController) -> Iterator[Metric]:
    yield _gauge("mailboat_connections", "Open connections.", broker.connection_count)
    yield _gauge("mailboat_topics", "Topics, also the broker's own.", len(broker.topics.table))
    yield _gauge("mailboat_groups", "Consumer groups.", len(broker.groups.table))
    yield _gauge(
        "mailboat_groups_online", "Consumer groups with members.", len(broker.consumers.groups)
    )
    yield _gauge("mailboat_pulls_waiting", "Pulls that wait for a message.", len(broker.pull_holds))
    yield _counter(
        "mailboat_offset_commits_backward",
        "Commits that moved an offset back.",
        broker.offsets.backward_commits,
    )
    name_servers = broker.registration.name_servers
    yield _gauge("mailboat_name_servers", "Name servers of this broker.", len(name_servers))
    yield _gauge(
        "mailboat_name_servers_registered",
        "Name servers where the last registration succeeded.",
        sum(name_servers.values()),
    )
    yield _gauge(
        "mailboat_topics_unregistered",
        "Topics for which the last registration had no room: no client finds them.",
        broker.topics.unregistered,
    )


def _store_metrics(broker: BrokerController) -> Iterator[Metric]:
    state = broker.store.state()
    yield _gauge("mailboat_store_writable", "1 while sends are taken.", state.refusal is None)
    yield _gauge("mailboat_store_failed", "1 when only a restart helps.", state.failed is not None)
    yield _gauge("mailboat_segments", "Files of the CommitLog.", len(state.segments))
    if state.disk_used_percent is not None:
        used = state.disk_used_percent / 100
        yield _gauge("mailboat_disk_used_ratio", "Used part of the disk.", used)
    yield _counter(
        "mailboat_corrupt_records",
        "Reads of records that fail their checks.",
        state.corrupt_records,
    )
    yield _counter(
        "mailboat_unreadable_records",
        "Reads of records that the disk does not give (bad blocks, files cut short).",
        state.unreadable_records,
    )
    for name, text, attribute in _STORE_GAUGES:
        yield _gauge(name, text, getattr(state, attribute))


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=float(value))
