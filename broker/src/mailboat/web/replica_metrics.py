"""The metrics of replication; a broker without replicas has none of them."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from mailboat.broker.replicas.report import PeerReport, ReplicaReport

_ROLES = ("master", "slave", "joining")


def replica_metrics(report: ReplicaReport) -> Iterator[Metric]:
    """Yield them all."""
    role = GaugeMetricFamily(
        "mailboat_replica_role",
        "1 for the role of this replica; joining is neither master nor slave yet.",
        labels=["role"],
    )
    for name in _ROLES:
        role.add_metric([name], float(name == report.role))
    yield role
    yield _gauge("epoch", "Newest epoch of which the log may hold something.", report.epoch)
    yield _gauge(
        "confirmed_offset",
        "Physical offset below which every replica of the in-sync set has the log.",
        report.confirmed_offset,
    )
    yield _gauge("min_in_sync", "Replicas without which no send is taken.", report.min_in_sync)
    if report.in_sync is not None:
        yield _gauge("in_sync", "Replicas in the in-sync set, the master too.", len(report.in_sync))
    yield _gauge("needs_person", "1 while nothing goes on without a person.", bool(report.alarm))
    yield _gauge(
        "cannot_write",
        "1 while this replica cannot store what it is sent; its status says why.",
        bool(report.write_trouble),
    )
    yield _gauge(
        "damaged_ranges",
        "Ranges of the log known to be damaged and not repaired.",
        report.damaged_ranges,
    )
    yield _gauge(
        "diverged_bytes",
        "Of logs that others did not have, kept aside until somebody removes them.",
        report.diverged_bytes,
    )
    yield CounterMetricFamily(
        "mailboat_replica_repaired_bytes",
        "Of damaged records that were put back from other replicas.",
        value=report.repaired_bytes,
    )
    yield from _peer_metrics(report.peers)


def _peer_metrics(peers: list[PeerReport]) -> Iterator[Metric]:
    linked = _peer_gauge("linked", "1 while there is a link to another replica.")
    in_sync = _peer_gauge("in_sync", "1 for a replica in the in-sync set, by its master.")
    lag = _peer_gauge(
        "lag_bytes", "Of a slave, by its master: what it lacks. Of the master: what this one lacks."
    )
    silent = _peer_gauge("silent_seconds", "How long nothing was heard of another replica.")
    rate = _peer_gauge("bytes_per_second", "Of the log, in either direction, in the last second.")
    for peer in peers:
        labels = [str(peer.ordinal)]
        linked.add_metric(labels, float(peer.is_linked))
        rate.add_metric(labels, peer.bytes_per_second)
        for family, value in (
            (in_sync, peer.is_in_sync),
            (lag, peer.lag_bytes),
            (silent, peer.silent_seconds),
        ):
            if value is not None:
                family.add_metric(labels, float(value))
    yield from (linked, in_sync, lag, silent, rate)


def _peer_gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"mailboat_replica_peer_{name}", text, labels=["replica"])


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"mailboat_replica_{name}", text, value=float(value))
