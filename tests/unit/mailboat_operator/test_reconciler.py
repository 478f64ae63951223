"""Tests of one turn: the snapshot that a planner gets, and what becomes of its plan."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from aiohttp import web
from fake_kubernetes import FakeKubernetes

from mailboat_operator.apply import Applier
from mailboat_operator.broker_api import BrokerApi
from mailboat_operator.cache import ObjectCache
from mailboat_operator.events import EventPoster
from mailboat_operator.kinds import ResourceKey
from mailboat_operator.kube_api import ConflictError, KubeApi
from mailboat_operator.metrics import OperatorMetrics
from mailboat_operator.planner.actions import Apply, Notify, Plan, SetFinalizers, Step
from mailboat_operator.planner.snapshot import (
    BrokerSnapshot,
    NameServerSnapshot,
    Observation,
    TopicSnapshot,
)
from mailboat_operator.reconciler import Planners, Reconciler, StepsFailedError

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
        self.planner = _FakePlanner()
        self.brokers = BrokerApi(metrics)
        events = EventPoster(api, metrics, "operator-0")
        self.reconciler = Reconciler(
            self.cache,
            Applier(api, self.cache, self.brokers, events, metrics),
            self.brokers,
            _NoNumbers(),
            Planners(broker=self.planner, name_server=self.planner, topic=self.planner),
            metrics,
            default_image="mailboat:1",
            reads_storage_classes=True,
            monotonic=lambda: 50.0,
            wall=lambda: 1e9,
        )

    async def turn(self, key: ResourceKey = _KEY) -> float | None:
        """Take one turn."""
        return await self.reconciler.reconcile(key)


@pytest.fixture
async def rig(kube_api: KubeApi, metrics: OperatorMetrics) -> AsyncIterator[Rig]:
    """A reconciler that knows one Broker's API server."""
    made = Rig(kube_api, metrics)
    yield made
    await made.brokers.close()


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


async def test_the_planner_sees_everything(kubernetes: FakeKubernetes, rig: Rig) -> None:
    """The snapshot has the typed resource, its children by kind, its NameServer and the classes."""
    await _stored(kubernetes, rig)
    for kind in ("StatefulSet", "Pod", "PersistentVolumeClaim", "Service", "ConfigMap"):
        rig.cache.update(_child(kind, f"{kind}-1"))
    rig.cache.update(
        {
            "apiVersion": "mailboat.dev/v1alpha1",
            "kind": "NameServer",
            "metadata": {"namespace": "shop", "name": "ns", "resourceVersion": "1"},
            "spec": {"replicas": 3},
        }
    )
    rig.cache.update({"kind": "StorageClass", "metadata": {"name": "fast"}})
    await rig.turn()
    (snapshot,) = rig.planner.snapshots
    assert snapshot.resource.name == "orders"
    assert snapshot.resource.spec.storage.size == "8Gi"
    children = snapshot.children
    assert list(children.stateful_sets) == ["StatefulSet-1"]
    assert list(children.pods) == ["Pod-1"]
    assert list(children.claims) == ["PersistentVolumeClaim-1"]
    assert list(children.services) == ["Service-1"]
    assert list(children.config_maps) == ["ConfigMap-1"]
    assert snapshot.name_server.spec.replicas == 3
    assert list(snapshot.storage_classes) == ["fast"]
    assert (snapshot.now_s, snapshot.monotonic_s) == (1e9, 50.0)
    assert snapshot.default_image == "mailboat:1"


async def test_a_failed_step_stops_no_other(
    kubernetes: FakeKubernetes, rig: Rig, metrics: OperatorMetrics
) -> None:
    """The other steps and the status are carried out; then the turn counts as failed."""

    async def refuse(request: web.Request) -> web.Response | None:
        return web.Response(status=500) if request.path.endswith("/bad") else None

    kubernetes.faults = [refuse]
    await _stored(kubernetes, rig)
    rig.planner.plan = Plan(
        steps=(
            Step("one", (_apply("bad"), _apply("after-bad"))),
            Step("two", (_apply("good"),)),
        ),
        status={"phase": "x"},
    )
    with pytest.raises(StepsFailedError, match="Broker/shop/orders: failed: one"):
        await rig.turn()
    assert kubernetes.find("configmaps", "shop", "good") is not None
    assert kubernetes.find("configmaps", "shop", "after-bad") is None
    broker = kubernetes.find("brokers", "shop", "orders")
    assert broker is not None
    assert broker["status"] == {"phase": "x"}
    text = metrics.exposition().decode()
    assert 'operator_step_failures_total{kind="Broker",step="one"} 1.0' in text


async def test_rest_writes_nothing(kubernetes: FakeKubernetes, rig: Rig) -> None:
    """A plan without steps and with the status that is there makes no call at all."""
    await _stored(kubernetes, rig, status={"phase": "x"})
    rig.planner.plan = Plan(steps=(), status={"phase": "x"}, again_after_s=30)
    assert await rig.turn() == 30
    assert kubernetes.calls == []


async def test_status_of_a_changed_spec_is_left_to_the_next_turn(
    kubernetes: FakeKubernetes, rig: Rig
) -> None:
    """A spec that changed during the turn gets no status that was made for the old one."""
    stored = await _stored(kubernetes, rig)
    changed = await kubernetes.put("brokers", {**stored, "spec": {**stored["spec"], "groups": 2}})
    rig.planner.plan = Plan(steps=(), status={"phase": "x"})
    with pytest.raises(ConflictError):
        await rig.turn()
    broker = kubernetes.find("brokers", "shop", "orders")
    assert broker is not None
    assert "status" not in broker
    rig.cache.update(changed)
    await rig.turn()
    broker = kubernetes.find("brokers", "shop", "orders")
    assert broker is not None
    assert broker["status"] == {"phase": "x"}


async def test_status_follows_the_turns_own_writes(kubernetes: FakeKubernetes, rig: Rig) -> None:
    """A finalizer set in the same turn makes another version, and the status still fits it."""
    stored = await _stored(kubernetes, rig)
    finalizers = SetFinalizers(("mailboat.dev/x",), stored["metadata"]["resourceVersion"])
    rig.planner.plan = Plan(steps=(Step("finalizer", (finalizers,)),), status={"phase": "x"})
    await rig.turn()
    broker = kubernetes.find("brokers", "shop", "orders")
    assert broker is not None
    assert broker["status"] == {"phase": "x"}
    assert broker["metadata"]["finalizers"] == ["mailboat.dev/x"]


async def test_what_is_gone_or_going_is_left_alone(kubernetes: FakeKubernetes, rig: Rig) -> None:
    """A Broker that is deleted gets no children, in no stage of its deletion."""
    assert await rig.turn() is None
    stored = await _stored(kubernetes, rig)
    metadata = {**stored["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    rig.cache.update(
        {**stored, "metadata": {**metadata, "resourceVersion": str(kubernetes.version + 1)}}
    )
    assert await rig.turn() is None
    assert rig.planner.snapshots == []


async def test_an_unreadable_spec_is_told(kubernetes: FakeKubernetes, rig: Rig) -> None:
    """A spec that by-passed the rules is one event and a condition, no crash and no loop."""
    await _stored(kubernetes, rig, spec={"storage": {"size": "many"}})
    assert await rig.turn() is None
    assert rig.planner.snapshots == []
    events = [body for key, body in kubernetes.objects.items() if key[0] == "events"]
    assert [event["reason"] for event in events] == ["InvalidSpec"]
    broker = kubernetes.find("brokers", "shop", "orders")
    assert broker is not None
    (ready,) = broker["status"]["conditions"]
    assert (ready["type"], ready["status"], ready["reason"]) == ("Ready", "False", "InvalidSpec")
    assert ready["message"].startswith("Broker shop/orders: spec.")
    writes = len(kubernetes.writes())
    await rig.turn()
    assert len(kubernetes.writes()) == writes


@pytest.mark.parametrize(
    ("topic_spec", "broker_spec", "kept"),
    [
        ({"queues": 8}, {"nameServers": {"ref": "ns"}, "storage": {"size": "8Gi"}}, ["other/x"]),
        ({"brokerRef": "orders"}, {"storage": 8}, ["other/x", "mailboat.dev/topic"]),
    ],
)
async def test_a_topic_that_nobody_can_read_may_go(
    kubernetes: FakeKubernetes,
    rig: Rig,
    topic_spec: Manifest,
    broker_spec: Manifest,
    kept: list[str],
) -> None:
    """Its own spec being unreadable frees it; its Broker's does not: that can be mended."""
    await _stored(kubernetes, rig, spec=broker_spec)
    metadata = {
        "namespace": "shop",
        "name": "t1",
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "finalizers": ["other/x", "mailboat.dev/topic"],
    }
    topic = {"apiVersion": "mailboat.dev/v1alpha1", "kind": "Topic", "metadata": metadata}
    rig.cache.update(await kubernetes.put("topics", {**topic, "spec": topic_spec}))
    await rig.turn(_TOPIC_KEY)
    stored = kubernetes.find("topics", "shop", "t1")
    assert stored is not None
    assert stored["metadata"]["finalizers"] == kept


async def test_a_name_that_is_taken_is_seen_by_the_planner(
    kubernetes: FakeKubernetes, rig: Rig
) -> None:
    """What stood in the way is among the children from the next turn on, until it is gone."""
    await _stored(kubernetes, rig)
    metadata = {"namespace": "shop", "name": "a"}
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    await kubernetes.put("configmaps", theirs)
    rig.planner.plan = Plan(steps=(Step("one", (_apply("a"),)),), status={})
    with pytest.raises(StepsFailedError):
        await rig.turn()
    rig.planner.plan = Plan(steps=(), status={})
    await rig.turn()
    await kubernetes.remove("configmaps", "shop", "a")
    await rig.turn()
    seen = [list(snapshot.children.config_maps) for snapshot in rig.planner.snapshots]
    assert seen == [[], ["a"], []]


async def test_a_topic_is_looked_up_at_every_ready_broker(
    kubernetes: FakeKubernetes, rig: Rig
) -> None:
    """Ready pods are asked; one without the topic says None, one that fails is left out."""
    await _stored(kubernetes, rig)

    servers = []
    for status in (200, 404, 500):

        async def answer(_: web.Request, status: int = status) -> web.Response:
            return web.json_response({"topic": "t1"}, status=status)

        app = web.Application()
        app.router.add_get("/api/v1/topics/t1", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        servers.append(runner)
    for group, runner in enumerate(servers):
        ports = [{"name": "http", "containerPort": runner.addresses[0][1]}]
        ready = {"type": "Ready", "status": "True"}
        pod = _child("Pod", f"orders-g{group}-0", spec={"containers": [{"ports": ports}]})
        rig.cache.update({**pod, "status": {"podIP": "127.0.0.1", "conditions": [ready]}})
    rig.cache.update(_child("Pod", "orders-g9-0", spec={}, status={"podIP": "127.0.0.1"}))
    topic_manifest = {
        "apiVersion": "mailboat.dev/v1alpha1",
        "kind": "Topic",
        "metadata": {"namespace": "shop", "name": "t1"},
        "spec": {"brokerRef": "orders"},
    }
    rig.cache.update(await kubernetes.put("topics", topic_manifest))
    try:
        await rig.turn(_TOPIC_KEY)
    finally:
        for runner in servers:
            await runner.cleanup()
    (snapshot,) = rig.planner.snapshots
    assert sorted(snapshot.endpoints) == ["orders-g0", "orders-g1", "orders-g2"]
    assert snapshot.topics == {"orders-g0": {"topic": "t1"}, "orders-g1": None}
    assert snapshot.broker.name == "orders"


async def test_own_changes_are_planned_on_at_once(kubernetes: FakeKubernetes, rig: Rig) -> None:
    """After a change of its own the resource is planned again soon; after a no-op it is not."""
    await _stored(kubernetes, rig)
    rig.planner.plan = Plan(steps=(Step("one", (_apply("a"),)),), status={}, again_after_s=60)
    soon_s = await rig.turn()
    assert soon_s is not None
    assert soon_s < 1
    assert await rig.turn() == 60


async def test_an_event_waits_for_its_action(kubernetes: FakeKubernetes, rig: Rig) -> None:
    """Within a step the event is posted after the action, never before it."""
    await _stored(kubernetes, rig)
    rig.planner.plan = Plan(
        steps=(Step("one", (_apply("a"), Notify("Normal", "ConfigChanged", "a"))),), status={}
    )
    await rig.turn()
    assert [call.path.split("/")[-2:] for call in kubernetes.writes()] == [
        ["configmaps", "a"],
        ["shop", "events"],
    ]
