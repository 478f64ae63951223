"""What the operator reads from a Broker."""

import pytest

from mailboat_operator.crds.broker import (
    AutoGrowSpec,
    RetentionSpec,
    StorageSpec,
    cluster_name_of,
    parse_broker,
)
from mailboat_operator.crds.common import Metadata
from mailboat_operator.crds.retention import ExpireLevel
from mailboat_operator.errors import InvalidResourceError


def test_smallest_broker(make):
    """Two fields make a Broker; the rest has the defaults that the design names."""
    spec = parse_broker(make("Broker", {})).spec
    assert (spec.groups, spec.image, spec.config, spec.resources) == (1, None, {}, None)
    assert spec.storage.segment_size_bytes == 1 << 30
    assert not spec.storage.auto_grow.enabled
    thresholds = spec.retention.thresholds
    assert (thresholds.expire.percent, thresholds.force_clean.percent) == (75, 85)
    assert (thresholds.reject_writes.percent, thresholds.hysteresis_percent) == (90, 3)
    assert (spec.retention.hours, spec.retention.shortest_hours) == (72, 72)
    assert (spec.shutdown.drain_seconds, spec.shutdown.grace_seconds) == (5, 60)
    assert (spec.pvc_retention.when_deleted, spec.pvc_retention.when_scaled) == ("Retain",) * 2


def test_metadata_and_status_are_kept(make):
    """What Kubernetes knows of the object and what was seen last come along."""
    manifest = make("Broker", {"status": {"groups": 3}})
    manifest["metadata"] |= {
        "namespace": "shop",
        "uid": "u-1",
        "generation": 7,
        "resourceVersion": "42",
        "labels": {"a": "b"},
        "deletionTimestamp": "2026-11-21T04:00:00Z",
        "finalizers": ["mailboat.dev/topic"],
        "managedFields": [{"manager": "kubectl"}],
    }
    broker = parse_broker(manifest)
    assert broker.metadata == Metadata(
        name="orders",
        namespace="shop",
        uid="u-1",
        generation=7,
        resource_version="42",
        labels={"a": "b"},
        deletion_timestamp="2026-11-21T04:00:00Z",
        finalizers=("mailboat.dev/topic",),
    )
    assert (broker.name, broker.namespace, broker.status) == ("orders", "shop", {"groups": 3})


def test_cluster_is_named_after_the_broker_unless_told(make):
    """A Broker's groups form a cluster of its name."""
    assert cluster_name_of(parse_broker(make("Broker", {}))) == "orders"
    named = make("Broker", {"spec.clusterName": "DefaultCluster"})
    assert cluster_name_of(parse_broker(named)) == "DefaultCluster"


def test_fields_of_a_newer_schema_are_left_out(make):
    """An operator that is older than the CRD goes on with what it knows."""
    assert parse_broker(make("Broker", {"spec.listeners": []})).spec.groups == 1


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("spec.groups", "2", "Broker shop/orders: spec.groups: expected int, got str"),
        ("spec.groups", 0, "Broker shop/orders: spec.groups: expected int >= 1"),
        ("spec.storage", {}, "Broker shop/orders: spec.storage.size: is missing; give it a value"),
        (
            "spec.storage.size",
            "20gb",
            "Broker shop/orders: spec.storage.size: must be a size such as 512Mi or 100Gi",
        ),
        (
            "spec.storage.autoGrow",
            {"cooldown": "6 h"},
            "Broker shop/orders: spec.storage.autoGrow.cooldown: must be a time such as 30m, 6h or"
            " 6h30m",
        ),
        (
            "spec.retention",
            {"deleteWindow": ["4-5"]},
            "Broker shop/orders: spec.retention.deleteWindow[0]: must be whole hours of the day"
            " such as 04:00-06:00",
        ),
        (
            "spec.nameServers",
            {"addresses": ["here"]},
            "Broker shop/orders: spec.nameServers.addresses[0]: must be host:port, the port from 1"
            " to 65535",
        ),
        (
            "spec.config",
            {"x": "a\nb"},
            "Broker shop/orders: spec.config[]: must be one line of text",
        ),
        (
            "spec.shutdown",
            {"graceSeconds": 15},
            "Broker shop/orders: spec.shutdown: graceSeconds must be at least drainSeconds + 15",
        ),
        (
            "metadata.name",
            "orders.eu",
            "Broker shop/orders.eu: metadata.name: must start with a letter, hold a-z 0-9 - only"
            " and have at most 48 characters, because Services and StatefulSets are named after it",
        ),
    ],
)
def test_wrong_broker_gets_one_clear_sentence(make, field, value, sentence):
    """An error names the object, the field, and what to do."""
    manifest = make("Broker", {"metadata.namespace": "shop", field: value})
    with pytest.raises(InvalidResourceError) as caught:
        parse_broker(manifest)
    assert str(caught.value) == sentence
    assert caught.value.field == sentence.split(": ")[1]


def test_object_without_metadata_is_an_error_not_a_crash():
    """Even what is no object at all is refused by a sentence."""
    with pytest.raises(InvalidResourceError, match=r"metadata\.name: is missing"):
        parse_broker({"kind": "Broker"})


def test_sizes_and_times_are_numbers():
    """Planners get bytes and seconds."""
    auto_grow = AutoGrowSpec(enabled=True, max_size="1Ti", step="25%", cooldown="90m")
    storage = StorageSpec(size="100Gi", segment_size="512Mi", auto_grow=auto_grow)
    assert (storage.size_bytes, storage.segment_size_bytes) == (100 << 30, 512 << 20)
    assert (auto_grow.max_size_bytes, auto_grow.cooldown_s) == (1 << 40, 5_400)
    assert auto_grow.when_full_within_s == 21_600
    assert auto_grow.growth_step.bytes_of(100 << 30) == 25 << 30
    assert AutoGrowSpec().max_size_bytes is None
    assert ExpireLevel(free_bytes="2Gi").free_size_bytes == 2 << 30
    assert ExpireLevel().free_size_bytes == 0


@pytest.mark.parametrize(
    ("windows", "hours"),
    [
        (("04:00-05:00",), (4,)),
        (("04:00-06:00", "05:00-07:00"), (4, 5, 6)),
        (("22:00-02:00",), (0, 1, 22, 23)),
        (("23:00-24:00",), (23,)),
        (("00:00-24:00",), tuple(range(24))),
    ],
)
def test_delete_hours(windows, hours):
    """A window is the hours that begin in it, also over midnight."""
    assert RetentionSpec(delete_window=windows).delete_hours == hours


def test_retention_may_be_shortened_to_min_hours():
    """Without minHours retention is never shortened; with it, down to it, 0 included."""
    assert RetentionSpec(hours=48).shortest_hours == 48
    assert RetentionSpec(hours=48, min_hours=0).shortest_hours == 0


def test_pieces_of_a_pod_are_taken_over_as_written(make):
    """What Kubernetes checks is not changed on the way."""
    env = [{"name": "TZ", "value": "Europe/Berlin"}]
    spread = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "x": 1}]
    template = {"env": env, "topologySpreadConstraints": spread, "nodeSelector": {"disk": "nvme"}}
    resources = {"requests": {"cpu": 1, "memory": "1Gi"}}
    fields = {"spec.podTemplate": template, "spec.resources": resources}
    spec = parse_broker(make("Broker", fields)).spec
    assert spec.pod_template is not None
    assert spec.pod_template.env == env
    assert spec.pod_template.topology_spread_constraints == spread
    assert spec.pod_template.node_selector == {"disk": "nvme"}
    assert spec.resources == resources
