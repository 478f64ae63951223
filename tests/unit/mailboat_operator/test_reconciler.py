"""Tests of one turn: the snapshot that a planner gets, and what becomes of its plan."""

from typing import Any

import pytest
from aiohttp import web
from fake_kubernetes import FakeKubernetes
from reconciler_rig import _TOPIC_KEY, Manifest, Rig, _apply, _child, _stored

from mailboat.testing.virtual_time import START_S, START_WALL_MS
from mailboat_operator.kube_api import ConflictError
from mailboat_operator.metrics import OperatorMetrics
from mailboat_operator.planner.actions import Notify, Plan, SetFinalizers, Step
from mailboat_operator.reconciler import StepsFailedError


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
    assert (snapshot.now_s, snapshot.monotonic_s) == (START_WALL_MS / 1000, START_S)
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
    assert 'operator_step_failures_total{kind="Broker",namespace="shop",step="one"} 1.0' in text


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


@pytest.mark.parametrize("is_named", [False, True])
async def test_a_topic_is_looked_up_at_every_ready_broker(
    kubernetes: FakeKubernetes, rig: Rig, is_named: bool
) -> None:
    """Ready pods are asked; one without the topic says None, one that fails is left out, and so is
    one at whose address another broker answers."""
    await _stored(kubernetes, rig)

    known = {"read_queue_nums": 8, "write_queue_nums": 8, "perm": 6}
    servers = []
    for group, status in enumerate((200, 404, 500, 200)):

        async def answer(_: web.Request, status: int = status) -> web.Response:
            return web.json_response(known, status=status)

        # At the address of the last one a broker answers that is none of this Broker's.
        name = {"broker_name": f"{'orders' if group < 3 else 'bills'}-g{group}"}

        async def who(_: web.Request, name: Manifest = name) -> web.Response:
            return web.json_response(name)

        app = web.Application()
        app.router.add_get("/api/v1/broker", who)
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
    for claim in ("data-orders-g7-0", "data-orders-gx-0", "backup"):
        rig.cache.update(_child("PersistentVolumeClaim", claim))
    # A broker may have a name that is not its group's: its file says which.
    conf = "brokerName=bills-g3\nbrokerId=0\n" if is_named else "brokerId=0\n"
    rig.cache.update(_child("ConfigMap", "orders-g3", data={"broker.conf": conf}))
    try:
        await rig.turn(_TOPIC_KEY)
    finally:
        for runner in servers:
            await runner.cleanup()
    (snapshot,) = rig.planner.snapshots
    assert sorted(snapshot.endpoints) == [f"orders-g{group}" for group in range(4)]
    assert snapshot.volumes == {"orders-g7": "data-orders-g7-0"}
    named = {"orders-g3": known} if is_named else {}
    assert snapshot.topics == {"orders-g0": known, "orders-g1": None} | named
    assert snapshot.broker.name == "orders"


async def test_a_topic_is_planned_with_those_that_name_the_same_topic(
    kubernetes: FakeKubernetes, rig: Rig
) -> None:
    """Itself and its rivals, and no Topic of another name or Broker."""
    await _stored(kubernetes, rig)
    specs = {
        "t1": {"brokerRef": "orders"},
        "second": {"brokerRef": "orders", "topicName": "t1"},
        "other": {"brokerRef": "orders"},
        "elsewhere": {"brokerRef": "payments", "topicName": "t1"},
    }
    for name, spec in specs.items():
        topic_manifest = {
            "apiVersion": "mailboat.dev/v1alpha1",
            "kind": "Topic",
            "metadata": {"namespace": "shop", "name": name},
            "spec": spec,
        }
        rig.cache.update(await kubernetes.put("topics", topic_manifest))
    await rig.turn(_TOPIC_KEY)
    (snapshot,) = rig.planner.snapshots
    assert {rival["metadata"]["name"] for rival in snapshot.rivals} == {"t1", "second"}


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


def _pod(name: str, **metadata: Any) -> Manifest:
    labels = {
        "mailboat.dev/broker": "orders",
        "app.kubernetes.io/managed-by": "mailboat-operator",
    }
    common = {"namespace": "shop", "name": name, "labels": labels, **metadata}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": common, "spec": {}}


async def test_pods_of_nobody_go_after_their_broker(kubernetes: FakeKubernetes, rig: Rig) -> None:
    """A pod that lost its StatefulSet just before the Broker went is deleted, no other one is."""
    controlled = [{"kind": "StatefulSet", "name": "x", "uid": "u", "controller": True}]
    foreign = {"mailboat.dev/broker": "orders", "app.kubernetes.io/managed-by": "helm"}
    for pod in (
        _pod("orders-g0-0"),
        _pod("orders-g1-0", ownerReferences=controlled),
        _pod("orders-g2-0", labels=foreign),
        _pod("orders-g3-0", deletionTimestamp="2026-01-01T00:00:00Z"),
    ):
        rig.cache.update(await kubernetes.put("pods", pod))
    assert await rig.turn() is None
    kept = sorted(name for plural, _, name in kubernetes.objects if plural == "pods")
    assert kept == ["orders-g1-0", "orders-g2-0", "orders-g3-0"]
    (call,) = kubernetes.writes()
    assert set(call.body["preconditions"]) == {"uid", "resourceVersion"}


async def test_pods_stay_while_their_broker_may_be_there(
    kubernetes: FakeKubernetes, rig: Rig
) -> None:
    """A cache that has not heard of the Broker yet is no proof; nor is one that may not read."""
    rig.cache.update(await kubernetes.put("pods", _pod("orders-g0-0")))
    broker = {"apiVersion": "mailboat.dev/v1alpha1", "kind": "Broker", "spec": {}}
    metadata = {"namespace": "shop", "name": "orders"}
    await kubernetes.put("brokers", {**broker, "metadata": metadata})
    await rig.turn()
    await kubernetes.remove("brokers", "shop", "orders")
    rig.sight.refused("Broker", "shop", "HTTP 403")
    await rig.turn()
    assert kubernetes.writes() == []
    rig.sight.granted("Broker", "shop")
    await rig.turn()
    assert kubernetes.find("pods", "shop", "orders-g0-0") is None


async def test_what_is_half_seen_is_not_planned(kubernetes: FakeKubernetes, rig: Rig) -> None:
    """With one kind of the namespace hidden the plan would be wrong; other namespaces go on."""
    await _stored(kubernetes, rig)
    rig.sight.refused("Pod", "shop", "HTTP 403")
    assert await rig.turn() is None
    assert rig.planner.snapshots == []
    rig.sight.granted("Pod", "shop")
    rig.sight.refused("Pod", "bank", "HTTP 403")
    await rig.turn()
    assert len(rig.planner.snapshots) == 1


async def test_hidden_storage_classes_are_unknown(kubernetes: FakeKubernetes, rig: Rig) -> None:
    """A right that is missing on them is not the same as that there are none."""
    await _stored(kubernetes, rig)
    await rig.turn()
    rig.sight.refused("StorageClass", None, "HTTP 403")
    await rig.turn()
    assert [snapshot.storage_classes for snapshot in rig.planner.snapshots] == [{}, None]


@pytest.mark.parametrize(
    ("phase", "mounts", "is_seen"),
    [
        ("Running", "data-orders-g0-0", True),
        ("Pending", "data-orders-g0-0", False),
        ("Running", "another", False),
    ],
)
async def test_a_claim_made_by_hand_is_seen(
    kubernetes: FakeKubernetes, rig: Rig, phase: str, mounts: str, is_seen: bool
) -> None:
    """What a running broker works on gets the labels of its StatefulSet's template, once."""
    await _stored(kubernetes, rig)
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": {}}
    metadata = {"namespace": "shop", "name": "data-orders-g0-0", "labels": {"team": "sales"}}
    await kubernetes.put("persistentvolumeclaims", {**claim, "metadata": metadata})
    labels = _pod("x")["metadata"]["labels"]
    template = {"metadata": {"name": "data", "labels": labels}}
    rig.cache.update(_child("StatefulSet", "orders-g0", spec={"volumeClaimTemplates": [template]}))
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": mounts}}]
    rig.cache.update(
        _child("Pod", "orders-g0-0", spec={"volumes": volumes}, status={"phase": phase})
    )
    await rig.turn()
    await rig.turn()
    seen = [list(snapshot.children.claims) for snapshot in rig.planner.snapshots]
    assert seen == [["data-orders-g0-0"] if is_seen else []] * 2
    stored = kubernetes.find("persistentvolumeclaims", "shop", "data-orders-g0-0")
    assert stored is not None
    wanted = {"team": "sales", **labels} if is_seen else {"team": "sales"}
    assert stored["metadata"]["labels"] == wanted
    assert len([call for call in kubernetes.writes() if "claims" in call.path]) == is_seen
