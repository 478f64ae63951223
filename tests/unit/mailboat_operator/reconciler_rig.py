"""A reconciler on the fake API server, with a planner that plans what a test says."""

from collections.abc import Mapping
from typing import Any

from fake_kubernetes import FakeKubernetes

from mailboat.testing.virtual_time import VirtualTime
from mailboat_operator.apply import Applier
from mailboat_operator.broker_api import BrokerApi
from mailboat_operator.cache import ObjectCache
from mailboat_operator.events import EventPoster
from mailboat_operator.kinds import ResourceKey
from mailboat_operator.kube_api import KubeApi
from mailboat_operator.metrics import OperatorMetrics
from mailboat_operator.planner.actions import Apply, Plan
from mailboat_operator.planner.snapshot import (
    BrokerSnapshot,
    NameServerSnapshot,
    Observation,
    TopicSnapshot,
)
from mailboat_operator.reconciler import Planners, Reconciler
from mailboat_operator.sight import Sight

Manifest = dict[str, Any]
_KEY = ResourceKey("Broker", "shop", "orders")
_TOPIC_KEY = ResourceKey("Topic", "shop", "t1")


class _FakePlanner:
    """Keeps the snapshots it got, and answers with a plan of the test's."""

    def __init__(self) -> None:
        self.snapshots: list[Any] = []
        self.plan = Plan(steps=(), status={})

    def __call__(self, snapshot: BrokerSnapshot | NameServerSnapshot | TopicSnapshot) -> Plan:
        self.snapshots.append(snapshot)
        return self.plan


class _NoNumbers:
    def observations(self, namespace: str, pods: Mapping[str, Manifest]) -> dict[str, Observation]:
        return {}


class Rig:
    """A reconciler with its cache on the fake API server."""

    def __init__(self, api: KubeApi, metrics: OperatorMetrics) -> None:
        """Nothing is known yet."""
        self.cache = ObjectCache()
        self.sight = Sight()
        self.clock = VirtualTime()
        self.planner = planner = _FakePlanner()
        self.brokers = BrokerApi(metrics)
        events = EventPoster(api, metrics, "operator-0", monotonic=self.clock.monotonic)
        self.reconciler = Reconciler(
            self.cache,
            Applier(api, self.cache, self.brokers, events, metrics),
            self.brokers,
            _NoNumbers(),
            Planners(broker=planner, name_server=planner, topic=planner, user=planner),
            metrics,
            self.sight,
            default_image="mailboat:1",
            reads_storage_classes=True,
            monotonic=self.clock.monotonic,
            wall=self.clock.time,
        )

    async def turn(self, key: ResourceKey = _KEY) -> float | None:
        """Take one turn."""
        return await self.reconciler.reconcile(key)


async def _stored(kubernetes: FakeKubernetes, rig: Rig, **parts: Any) -> Manifest:
    broker = {
        "apiVersion": "mailboat.dev/v1alpha1",
        "kind": "Broker",
        "metadata": {"namespace": "shop", "name": "orders"},
        "spec": {"nameServers": {"ref": "ns"}, "storage": {"size": "8Gi"}},
        **parts,
    }
    stored = await kubernetes.put("brokers", broker)
    rig.cache.update(stored)
    return stored


def _child(kind: str, name: str, **parts: Any) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {
            "namespace": "shop",
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "labels": {"mailboat.dev/broker": "orders"},
        },
        **parts,
    }


def _apply(name: str) -> Apply:
    labels = {"app.kubernetes.io/managed-by": "mailboat-operator"}
    metadata = {"namespace": "shop", "name": name, "labels": labels}
    return Apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
