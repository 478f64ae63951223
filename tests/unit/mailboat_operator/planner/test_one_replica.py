"""What is made of a Broker without replicas: the same bytes as before there were any.

An operator that is upgraded must not roll such a Broker. `one_replica.json` was written before
there were replicas; another text there means that every Broker of every user is rolled.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from model_cluster import ModelCluster, settle
from operator_samples import BROKER_SPEC

from mailboat_operator.planner.broker import plan_broker

GOLDEN = Path(__file__).with_name("one_replica.json")
EVERYTHING: dict[str, Any] = {
    "groups": 2,
    "config": {"flushDiskType": "SYNC_FLUSH", "slaveTimeout": "1000"},
    "podTemplate": {"labels": {"team": "a"}, "env": [{"name": "TZ", "value": "CET"}]},
    "networkPolicy": {"clientsFrom": [{"podSelector": {}}]},
    "pvcRetention": {"whenDeleted": "Delete", "whenScaled": "Delete"},
}


def applied(spec: dict[str, Any]) -> dict[str, Any]:
    """Return every manifest that was applied until the Broker was settled, by kind and name."""
    cluster = ModelCluster(BROKER_SPEC | spec)
    cluster.http_peers = ({"podSelector": {"matchLabels": {"app": "operator"}}},)
    settle(cluster, plan_broker)
    return cluster.applied


@pytest.mark.parametrize(
    ("name", "spec"),
    [("least", {}), ("everything", EVERYTHING)],
)
@pytest.mark.parametrize("more", [{}, {"replicas": 1, "replication": {"mode": "Async"}}])
def test_manifests_without_replicas_are_those_of_before(name, spec, more):
    """Kind by kind, byte by byte."""
    golden = json.loads(GOLDEN.read_text(encoding="ascii"))[name]
    found = applied(spec | more)
    assert found.keys() == golden.keys()
    for key, manifest in golden.items():
        assert json.dumps(found[key], sort_keys=True) == json.dumps(manifest, sort_keys=True), key
