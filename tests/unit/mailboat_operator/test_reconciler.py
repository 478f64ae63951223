"""Tests of one turn: the snapshot that a planner gets, and what becomes of its plan."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from aiohttp import web
from fake_kubernetes import FakeKubernetes

from mailboat.testing.virtual_time import START_S, START_WALL_MS, VirtualTime
from mailboat_operator.apply import Applier
from mailboat_operator.broker_api import BrokerApi
from mailboat_operator.cache import ObjectCache
from mailboat_operator.events import EventPoster
from mailboat_operator.kinds import ResourceKey
from mailboat_operator.kube_api import ConflictError, KubeApi
from mailboat_operator.metrics import OperatorMetrics
from mailboat_operator.planner.actions import (
    Apply,
    Evict,
    Notify,
    Plan,
    PutTopic,
    ResizeClaim,
    SetFinalizers,
    Step,
)
from mailboat_operator.planner.snapshot import (
    BrokerSnapshot,
    EvictionRefusal,
    NameServerSnapshot,
    Observation,
    TopicSnapshot,
)
from mailboat_operator.reconciler import Planners, Reconciler, StepsFailedError
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


async def test_a_refused_eviction_is_the_planners_to_tell(
    kubernetes: FakeKubernetes, rig: Rig
) -> None:
    """The next plan has the words, for as long as it asks; it is no refusal of what the spec wants,
    however long it lasts."""

    async def refuse(request: web.Request) -> web.Response | None:
        if not request.path.endswith("/eviction"):
            return None
        return web.json_response({"message": "not with this budget"}, status=429)

    kubernetes.faults = [refuse]
    await _stored(kubernetes, rig)
    await kubernetes.put("pods", _child("Pod", "orders-g0-0"))
    conditions = [
        {"type": "Ready", "status": "True", "reason": "AllGroupsServing"},
        {"type": "Progressing", "status": "True", "reason": "Rolling"},
    ]
    evict = Evict("orders-g0-0", "uid-orders-g0-0", "its template has changed")
    rig.planner.plan = Plan((Step("rollout", (evict,)),), {"conditions": conditions})
    for _ in range(2):
        with pytest.raises(StepsFailedError):
            await rig.turn()
        rig.clock.advance(300)
    seen = [snapshot.refused_evictions for snapshot in rig.planner.snapshots]
    assert seen == [{}, {"orders-g0-0": EvictionRefusal("not with this budget")}]
    broker = kubernetes.find("brokers", "shop", "orders")
    assert broker is not None
    assert broker["status"]["conditions"] == conditions
    kubernetes.faults = []
    await rig.turn()
    await rig.turn()
    assert rig.planner.snapshots[-1].refused_evictions == {}


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


_BY_NAME = 'admission webhook "names.example" denied the request: no such name'


class _Refusal:
    """The API server's answer to calls of one path's end; none while `status` is 0."""

    def __init__(self, kubernetes: FakeKubernetes, end: str, status: int, words: str) -> None:
        self.end, self.status, self.words = end, status, words
        kubernetes.faults = [self._answer]

    async def _answer(self, request: web.Request) -> web.Response | None:
        if self.status == 0 or request.method == "GET" or not request.path.endswith(self.end):
            return None
        return web.json_response({"kind": "Status", "message": self.words}, status=self.status)


def _status(generation: int, *, ready: bool = True) -> Manifest:
    """What a planner says of pods that serve, whatever became of the objects."""
    told = {"message": "", "lastTransitionTime": "2001-01-01T00:00:00Z"}
    return {
        "observedGeneration": generation,
        "conditions": [
            {"type": "Ready", "status": str(ready), "reason": "AllGroupsServing", **told},
            {"type": "Progressing", "status": "True", "reason": "Updating", **told},
            {"type": "StorageReady", "status": "True", "reason": "VolumesReady", **told},
        ],
    }


def _conditions(kubernetes: FakeKubernetes) -> dict[str, tuple[str, str, str]]:
    broker = kubernetes.find("brokers", "shop", "orders")
    assert broker is not None
    return {
        item["type"]: (item["status"], item["reason"], item["message"])
        for item in (broker.get("status") or {}).get("conditions") or ()
    }


def _events(kubernetes: FakeKubernetes) -> list[tuple[str, str, str]]:
    found = [body for key, body in kubernetes.objects.items() if key[0] == "events"]
    return [(event["type"], event["reason"], event["note"]) for event in found]


@pytest.mark.parametrize("status", [400, 403, 422])
async def test_what_is_refused_is_told(kubernetes: FakeKubernetes, rig: Rig, status: int) -> None:
    """Neither Ready nor Progressing hides that an object was refused; the words are told once.

    Once the object is taken the status is the planner's own again.
    """
    await _stored(kubernetes, rig)
    refusal = _Refusal(kubernetes, "/configmaps/a", status, _BY_NAME)
    rig.planner.plan = Plan(steps=(Step("config", (_apply("a"),)),), status=_status(1))
    for _ in range(3):
        with pytest.raises(StepsFailedError):
            await rig.turn()
        rig.clock.advance(700)
    words = f"apply /api/v1/namespaces/shop/configmaps/a: {_BY_NAME} (HTTP {status})"
    assert _conditions(kubernetes) == {
        "Ready": ("False", "ApplyRefused", words),
        "Progressing": ("False", "ApplyRefused", words),
        "StorageReady": ("True", "VolumesReady", ""),
    }
    assert _events(kubernetes) == [("Warning", "ApplyRefused", words)]
    written = [call for call in kubernetes.writes() if call.path.endswith("/orders/status")]
    assert len(written) == 1
    refusal.status = 0
    await rig.turn()
    assert _conditions(kubernetes)["Ready"] == ("True", "AllGroupsServing", "")
    assert _conditions(kubernetes)["Progressing"] == ("True", "Updating", "")


async def test_other_words_are_told_anew(kubernetes: FakeKubernetes, rig: Rig) -> None:
    """A refusal for another reason is another event and another message."""
    await _stored(kubernetes, rig)
    refusal = _Refusal(kubernetes, "/configmaps/a", 403, "exceeded quota: a")
    rig.planner.plan = Plan(steps=(Step("config", (_apply("a"),)),), status=_status(1))
    for words in ("exceeded quota: a", "exceeded quota: b"):
        refusal.words = words
        with pytest.raises(StepsFailedError):
            await rig.turn()
        assert words in _conditions(kubernetes)["Ready"][2]
    assert len(_events(kubernetes)) == 2


async def test_a_refusal_ends_with_its_step(kubernetes: FakeKubernetes, rig: Rig) -> None:
    """A spec that no longer asks for what was refused is not held back by it."""
    await _stored(kubernetes, rig)
    _Refusal(kubernetes, "/configmaps/a", 422, "invalid")
    rig.planner.plan = Plan(steps=(Step("config", (_apply("a"),)),), status=_status(1))
    with pytest.raises(StepsFailedError):
        await rig.turn()
    rig.planner.plan = Plan(steps=(), status=_status(1))
    await rig.turn()
    assert _conditions(kubernetes)["Ready"][:2] == ("True", "AllGroupsServing")


async def test_a_taken_name_stays_the_reason(kubernetes: FakeKubernetes, rig: Rig) -> None:
    """What the planner found to mend first is not painted over."""
    await _stored(kubernetes, rig)
    _Refusal(kubernetes, "/configmaps/a", 422, "invalid")
    status = _status(1, ready=False)
    status["conditions"][0]["reason"] = "NameTaken"
    rig.planner.plan = Plan(steps=(Step("config", (_apply("a"),)),), status=status)
    with pytest.raises(StepsFailedError):
        await rig.turn()
    found = _conditions(kubernetes)
    assert (found["Ready"][1], found["Progressing"][1]) == ("NameTaken", "ApplyRefused")


@pytest.mark.parametrize(("step", "reason"), [("budget", "Rolling"), ("rollout", "ApplyRefused")])
async def test_a_roll_goes_on_beside_a_refusal(
    kubernetes: FakeKubernetes, rig: Rig, step: str, reason: str
) -> None:
    """Only a refusal of the roll itself ends it; Ready tells of any."""
    await _stored(kubernetes, rig)
    _Refusal(kubernetes, "/configmaps/a", 403, _BY_NAME)
    status = _status(1)
    status["conditions"][1]["reason"] = "Rolling"
    rig.planner.plan = Plan(steps=(Step(step, (_apply("a"),)),), status=status)
    with pytest.raises(StepsFailedError):
        await rig.turn()
    found = _conditions(kubernetes)
    assert (found["Ready"][1], found["Progressing"][1]) == ("ApplyRefused", reason)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (500, 'failed calling webhook "names.example": connection refused'),
        (409, "the object has been modified"),
        (403, "unable to create new content in namespace shop because it is being terminated"),
    ],
)
async def test_what_may_pass_is_shown_only_when_it_lasts(
    kubernetes: FakeKubernetes, rig: Rig, status: int, words: str
) -> None:
    """For a minute nothing is claimed of the new spec, neither Ready nor a refusal; then it is."""
    await _stored(kubernetes, rig)
    _Refusal(kubernetes, "/configmaps/a", status, words)
    rig.planner.plan = Plan(steps=(Step("config", (_apply("a"),)),), status=_status(1))
    for passed_s in (0, 59):
        rig.clock.advance(passed_s)
        with pytest.raises(StepsFailedError):
            await rig.turn()
        assert _conditions(kubernetes) == {}
        assert _events(kubernetes) == []
    rig.clock.advance(1)
    with pytest.raises(StepsFailedError):
        await rig.turn()
    assert _conditions(kubernetes)["Ready"][:2] == ("False", "ApplyRefused")
    assert words in _conditions(kubernetes)["Ready"][2]
    assert len(_events(kubernetes)) == 1


async def test_a_passing_failure_of_a_known_spec_changes_nothing(
    kubernetes: FakeKubernetes, rig: Rig
) -> None:
    """A child that is put back and fails once neither takes Ready away nor stops the status."""
    await _stored(kubernetes, rig, status=_status(1))
    _Refusal(kubernetes, "/configmaps/a", 500, "busy")
    status = _status(1)
    status["conditions"][2]["reason"] = "Resizing"
    rig.planner.plan = Plan(steps=(Step("config", (_apply("a"),)),), status=status)
    with pytest.raises(StepsFailedError):
        await rig.turn()
    assert _conditions(kubernetes)["Ready"][0] == "True"
    assert _conditions(kubernetes)["StorageReady"][1] == "Resizing"


async def test_a_refused_size_is_the_volumes_own_matter(
    kubernetes: FakeKubernetes, rig: Rig
) -> None:
    """The brokers serve: the planner gets the words, for StorageReady and an event of its own.

    They stay while the plan has no step for it, and go when the size is taken.
    """
    await _stored(kubernetes, rig)
    claim = _child("PersistentVolumeClaim", "data-orders-g0-0", spec={})
    rig.cache.update(await kubernetes.put("persistentvolumeclaims", claim))
    live = kubernetes.find("persistentvolumeclaims", "shop", "data-orders-g0-0")
    assert live is not None
    refusal = _Refusal(kubernetes, "/data-orders-g0-0", 403, "exceeded quota: storage")
    version = live["metadata"]["resourceVersion"]
    resize = ResizeClaim("data-orders-g0-0", live["metadata"]["uid"], version, 1 << 30)
    asking = Plan(steps=(Step("volumes", (resize,)),), status=_status(1))
    rig.planner.plan = asking
    with pytest.raises(StepsFailedError):
        await rig.turn()
    assert _conditions(kubernetes)["Ready"][:2] == ("True", "AllGroupsServing")
    assert _conditions(kubernetes)["Progressing"][1] == "Updating"
    assert _events(kubernetes) == []
    rig.planner.plan = Plan(steps=(), status=_status(1))
    await rig.turn()
    await rig.turn()
    refusal.status, rig.planner.plan = 0, asking
    await rig.turn()
    rig.planner.plan = Plan(steps=(), status=_status(1))
    await rig.turn()
    seen = [snapshot.refused_sizes for snapshot in rig.planner.snapshots]
    words = (
        "patch /api/v1/namespaces/shop/persistentvolumeclaims/data-orders-g0-0:"
        " exceeded quota: storage (HTTP 403)"
    )
    assert seen == [{}, *[{"data-orders-g0-0": words}] * 3, {}]


async def test_a_topic_tells_what_a_broker_refuses(kubernetes: FakeKubernetes, rig: Rig) -> None:
    """A broker's refusal of a topic is final like the API server's, and has its words."""

    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "too many queues"}}, status=400)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    topic = {
        "apiVersion": "mailboat.dev/v1alpha1",
        "kind": "Topic",
        "metadata": {"namespace": "shop", "name": "t1"},
        "spec": {"brokerRef": "orders"},
    }
    rig.cache.update(await kubernetes.put("topics", topic))
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    put = PutTopic(url, "t1", read_queue_nums=9999, write_queue_nums=9999, perm=6)
    rig.planner.plan = Plan(steps=(Step("topic", (put,)),), status=_status(1, ready=False))
    try:
        with pytest.raises(StepsFailedError):
            await rig.turn(_TOPIC_KEY)
    finally:
        await runner.cleanup()
    stored = kubernetes.find("topics", "shop", "t1")
    assert stored is not None
    ready = stored["status"]["conditions"][0]
    assert (ready["type"], ready["reason"]) == ("Ready", "ApplyRefused")
    assert "too many queues" in ready["message"]


async def test_failing_steps_do_not_hide_what_is_due(kubernetes: FakeKubernetes, rig: Rig) -> None:
    """A turn that fails in one step still says when the others want the next one."""
    await _stored(kubernetes, rig)
    _Refusal(kubernetes, "/configmaps/a", 422, "invalid")
    rig.planner.plan = Plan(
        steps=(Step("config", (_apply("a"),)),), status=_status(1), again_after_s=5.0
    )
    with pytest.raises(StepsFailedError) as caught:
        await rig.turn()
    assert caught.value.again_after_s == 5.0


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
