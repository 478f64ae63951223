"""Tests of how actions are carried out, against a small API server."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from aiohttp import web
from fake_kubernetes import FakeKubernetes
from kubernetes.aio.client import ApiClient

from mailboat_operator.apply import Applier, NameTakenError, StaleError, StoppingError
from mailboat_operator.broker_api import BrokerApi, BrokerRefusedError, StrangerError
from mailboat_operator.cache import ObjectCache
from mailboat_operator.events import EventPoster
from mailboat_operator.kube_api import (
    ConflictError,
    EvictionRefusedError,
    KubeApi,
    KubeApiError,
)
from mailboat_operator.leader import NotLeaderError
from mailboat_operator.metrics import OperatorMetrics
from mailboat_operator.planner.actions import (
    Action,
    Apply,
    ConfigureBroker,
    Delete,
    DeleteTopic,
    Evict,
    Notify,
    Patch,
    PutTopic,
    ResizeClaim,
    SetFinalizers,
    Step,
)

Manifest = dict[str, Any]
_BROKER: Manifest = {
    "apiVersion": "mailboat.dev/v1alpha1",
    "kind": "Broker",
    "metadata": {"namespace": "shop", "name": "orders"},
    "spec": {},
}
_LABELS = {"mailboat.dev/broker": "orders", "app.kubernetes.io/managed-by": "mailboat-operator"}


@pytest.fixture
def cache() -> ObjectCache:
    """An empty cache."""
    return ObjectCache()


@pytest.fixture
async def applier(
    kube_api: KubeApi, cache: ObjectCache, metrics: OperatorMetrics
) -> AsyncIterator[Applier]:
    """Carries actions out on the fake server."""
    events = EventPoster(kube_api, metrics, "operator-0")
    brokers = BrokerApi(metrics)
    yield Applier(kube_api, cache, brokers, events, metrics)
    await brokers.close()


def _child(kind: str, name: str = "orders-g0", **parts: Any) -> Manifest:
    version = "apps/v1" if kind == "StatefulSet" else "v1"
    metadata = {"name": name, "labels": _LABELS}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **parts}


def _in_shop(manifest: Manifest) -> Manifest:
    return {**manifest, "metadata": {**manifest["metadata"], "namespace": "shop"}}


async def _run(applier: Applier, *actions: Action, resource: Manifest = _BROKER) -> None:
    await applier.run(resource, Step("test", actions))


async def test_apply_is_seen_by_the_next_plan(
    kubernetes: FakeKubernetes, applier: Applier, cache: ObjectCache
) -> None:
    """What was applied is in the cache at once, in the namespace of the resource."""
    await _run(applier, Apply(_child("Service", spec={"ports": []})))
    kept = cache.get("Service", "shop", "orders-g0")
    assert kept is not None
    assert kept["metadata"]["uid"]
    assert kubernetes.find("services", "shop", "orders-g0") is not None


async def test_conflicting_fields_are_taken_back(
    kubernetes: FakeKubernetes, applier: Applier, caplog: pytest.LogCaptureFixture
) -> None:
    """Only after a conflict, and with a line in the log, are fields taken from another manager."""
    await _run(applier, Apply(_child("Service", spec={"a": 1})))
    kubernetes.owned_by_others.add(("Service", "orders-g0"))
    with caplog.at_level(logging.WARNING):
        await _run(applier, Apply(_child("Service", spec={"a": 2})))
    assert "another manager" in caplog.text
    assert [call.query["force"] for call in kubernetes.writes()] == ["false", "false", "true"]
    service = kubernetes.find("services", "shop", "orders-g0")
    assert service is not None
    assert service["spec"]["a"] == 2


@pytest.mark.parametrize("is_known", [False, True])
async def test_what_belongs_to_someone_else_is_left_alone(
    kubernetes: FakeKubernetes, applier: Applier, cache: ObjectCache, is_known: bool
) -> None:
    """An object under another controller is not taken over, whether the cache has it or not."""
    owner = {"kind": "NameServer", "name": "orders", "uid": "other", "controller": True}
    service = _in_shop(_child("Service", spec={"a": 1}))
    service["metadata"] = {**service["metadata"], "ownerReferences": [owner]}
    stored = await kubernetes.put("services", service)
    if is_known:
        cache.update(stored)
    reason = "Service orders-g0 exists and belongs to NameServer orders"
    with pytest.raises(NameTakenError, match=reason) as caught:
        await _run(applier, Apply(_child("Service", spec={"a": 2})))
    assert caught.value.live["metadata"]["uid"] == stored["metadata"]["uid"]
    assert kubernetes.writes() == []


async def test_what_was_taken_since_the_cache_saw_it_is_not_forced(
    kubernetes: FakeKubernetes, applier: Applier
) -> None:
    """A conflict is looked into before fields are taken: by now the object may be another's."""
    await _run(applier, Apply(_child("Service", spec={"a": 1})))
    await kubernetes.remove("services", "shop", "orders-g0", is_told=False)
    theirs = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "orders-g0"}}
    await kubernetes.put("services", _in_shop({**theirs, "spec": {"a": 7}}))
    kubernetes.owned_by_others.add(("Service", "orders-g0"))
    with pytest.raises(NameTakenError, match="was not made by the operator"):
        await _run(applier, Apply(_child("Service", spec={"a": 2})))
    service = kubernetes.find("services", "shop", "orders-g0")
    assert service is not None
    assert service["spec"]["a"] == 7


async def test_a_service_gives_way_when_its_address_is_taken(
    kubernetes: FakeKubernetes, applier: Applier, cache: ObjectCache
) -> None:
    """What the API server calls invalid is replaced by the fallback, if there is one."""

    code = 422

    async def taken(request: web.Request) -> web.Response | None:
        is_asked = "10.0.0.9" in await request.text()
        if not is_asked:
            return None
        return web.Response(status=code, text="provided IP is already allocated")

    kubernetes.faults = [taken]
    wanted = _child("Service", spec={"clusterIP": "10.0.0.9"})
    with pytest.raises(KubeApiError, match="already allocated"):
        await _run(applier, Apply(wanted))
    fallback = _child("Service", spec={"ports": []})
    code = 500
    with pytest.raises(KubeApiError, match="HTTP 500"):
        await _run(applier, Apply(wanted, fallback))
    code = 422
    await _run(applier, Apply(wanted, fallback))
    service = cache.get("Service", "shop", "orders-g0")
    assert service is not None
    assert service["spec"]["clusterIP"] != "10.0.0.9"


async def test_delete_removes_what_the_plan_saw(
    kubernetes: FakeKubernetes, applier: Applier
) -> None:
    """A delete names uid, version and what becomes of the dependents."""
    stored = await kubernetes.put("statefulsets", _in_shop(_child("StatefulSet")))
    uid, version = stored["metadata"]["uid"], stored["metadata"]["resourceVersion"]
    await _run(applier, Delete("StatefulSet", "orders-g0", uid, version, True, "grown"))
    assert kubernetes.find("statefulsets", "shop", "orders-g0") is None
    assert kubernetes.writes()[-1].body == {
        "kind": "DeleteOptions",
        "apiVersion": "v1",
        "preconditions": {"uid": uid, "resourceVersion": version},
        "propagationPolicy": "Orphan",
    }


async def test_delete_spares_another_object(kubernetes: FakeKubernetes, applier: Applier) -> None:
    """Another uid, or a change since the plan, stops the delete before it is sent."""
    stored = await kubernetes.put("pods", _in_shop(_child("Pod")))
    uid, version = stored["metadata"]["uid"], stored["metadata"]["resourceVersion"]
    with pytest.raises(StaleError, match="another object"):
        await _run(applier, Delete("Pod", "orders-g0", "older-uid", None, False, "roll"))
    await kubernetes.put("pods", {**stored, "status": {"phase": "Running"}})
    with pytest.raises(StaleError, match="has changed"):
        await _run(applier, Delete("Pod", "orders-g0", uid, version, False, "roll"))
    assert kubernetes.writes() == []
    await _run(applier, Delete("Pod", "orders-g0", uid, None, False, "roll"))
    assert kubernetes.find("pods", "shop", "orders-g0") is None


async def test_a_change_between_read_and_delete_is_refused_by_the_server(
    kubernetes: FakeKubernetes, applier: Applier
) -> None:
    """The precondition holds also for the moment between the second look and the delete."""
    stored = await kubernetes.put("statefulsets", _in_shop(_child("StatefulSet")))
    uid, version = stored["metadata"]["uid"], stored["metadata"]["resourceVersion"]

    async def change(request: web.Request) -> None:
        if request.method == "DELETE":
            kubernetes.faults.clear()
            await kubernetes.put("statefulsets", {**stored, "spec": {"replicas": 3}})

    kubernetes.faults = [change]  # type: ignore[list-item]
    with pytest.raises(ConflictError):
        await _run(applier, Delete("StatefulSet", "orders-g0", uid, version, True, "grown"))
    assert kubernetes.find("statefulsets", "shop", "orders-g0") is not None


async def test_delete_of_what_is_gone_is_done(applier: Applier) -> None:
    """A repeat after a crash finds nothing, and that is success."""
    await _run(applier, Delete("Pod", "orders-g0", "u", None, False, "roll"))


async def test_an_eviction_takes_what_the_plan_saw(
    kubernetes: FakeKubernetes, applier: Applier, metrics: OperatorMetrics
) -> None:
    """It is asked for by the eviction API and names the uid; one of another uid stays."""
    stored = await kubernetes.put("pods", _in_shop(_child("Pod")))
    with pytest.raises(ConflictError):
        await _run(applier, Evict("orders-g0", "older-uid", "roll"))
    await _run(applier, Evict("orders-g0", stored["metadata"]["uid"], "roll"))
    assert kubernetes.find("pods", "shop", "orders-g0") is None
    call = kubernetes.writes()[-1]
    assert (call.verb, call.path) == ("POST", "/api/v1/namespaces/shop/pods/orders-g0/eviction")
    assert call.body == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "orders-g0", "namespace": "shop"},
        "deleteOptions": {"preconditions": {"uid": stored["metadata"]["uid"]}},
    }
    assert 'operator_pod_restarts_total{step="test"} 1.0' in metrics.exposition().decode()
    await _run(applier, Evict("orders-g0", "u", "a repeat finds nothing"))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"message": "Cannot evict pod as it would violate it."}, "Cannot evict pod as it would"),
        (None, "no reason given"),
    ],
)
async def test_a_budget_may_say_not_now(
    kubernetes: FakeKubernetes, applier: Applier, answer: Manifest | None, words: str
) -> None:
    """429 is asked once and ends the step, with the server's words; the pod stays, untold."""

    async def refuse(request: web.Request) -> web.Response | None:
        if not request.path.endswith("/eviction"):
            return None
        return web.Response(status=429) if answer is None else web.json_response(answer, status=429)

    kubernetes.faults = [refuse]
    stored = await kubernetes.put("pods", _in_shop(_child("Pod")))
    notice = Notify("Normal", "PodRestarted", "Restarting orders-g0")
    with pytest.raises(EvictionRefusedError, match=words):
        await _run(applier, Evict("orders-g0", stored["metadata"]["uid"], "roll"), notice)
    assert len(kubernetes.writes()) == 1
    assert kubernetes.find("pods", "shop", "orders-g0") is not None


@pytest.mark.parametrize("status", [500, 503])
async def test_a_second_budget_is_told_apart_from_other_failures(
    kubernetes: FakeKubernetes, applier: Applier, status: int
) -> None:
    """Kubernetes answers 500 with these words; what else fails there is no word of a budget."""
    said = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not"
    said = f"{said} support." if status == 500 else "the webhook does not answer"

    async def refuse(request: web.Request) -> web.Response | None:
        is_eviction = request.path.endswith("/eviction")
        return web.json_response({"message": said}, status=status) if is_eviction else None

    kubernetes.faults = [refuse]
    stored = await kubernetes.put("pods", _in_shop(_child("Pod")))
    expected = EvictionRefusedError if status == 500 else KubeApiError
    with pytest.raises(expected) as caught:
        await _run(applier, Evict("orders-g0", stored["metadata"]["uid"], "roll"))
    assert len(kubernetes.writes()) == 1
    if isinstance(caught.value, EvictionRefusedError):
        assert caught.value.refusal.has_many_budgets
        assert "more than one PodDisruptionBudget selects the pod" in caught.value.refusal.words


async def test_resize_asks_for_the_size_once(
    kubernetes: FakeKubernetes, applier: Applier, metrics: OperatorMetrics
) -> None:
    """Only the request of the very claim and version changes, in a form that people read."""
    claim = _in_shop(_child("PersistentVolumeClaim", spec={"volumeName": "pv-1"}))
    stored = await kubernetes.put("persistentvolumeclaims", claim)
    uid, version = stored["metadata"]["uid"], stored["metadata"]["resourceVersion"]
    await _run(applier, ResizeClaim("orders-g0", uid, version, 10 << 30))
    changed = kubernetes.find("persistentvolumeclaims", "shop", "orders-g0")
    assert changed is not None
    assert changed["spec"] == {
        "volumeName": "pv-1",
        "resources": {"requests": {"storage": "10Gi"}},
    }
    with pytest.raises(ConflictError):
        await _run(applier, ResizeClaim("orders-g0", uid, version, 20 << 30))
    text = metrics.exposition().decode()
    assert 'operator_volume_resize_total{result="asked"} 1.0' in text
    assert 'operator_volume_resize_total{result="failed"} 1.0' in text


async def test_what_is_in_the_way_goes_only_when_the_apply_is_refused(
    kubernetes: FakeKubernetes, applier: Applier, cache: ObjectCache
) -> None:
    """An apply that is taken removes nothing; a refused one leaves the place free."""
    stored = await kubernetes.put("statefulsets", _in_shop(_child("StatefulSet", spec={"a": 1})))
    cache.update(stored)
    metadata = stored["metadata"]
    rival = Delete("StatefulSet", "orders-g0", metadata["uid"], None, True, "in the way")
    resource = await kubernetes.put("brokers", _BROKER)
    stored["metadata"]["ownerReferences"] = [
        {"kind": "Broker", "uid": resource["metadata"]["uid"], "controller": True}
    ]
    apply = Apply(_child("StatefulSet", spec={"a": 2}), in_the_way=rival)
    await _run(applier, apply, resource=resource)
    assert kubernetes.find("statefulsets", "shop", "orders-g0") is not None

    async def invalid(request: web.Request) -> web.Response | None:
        return web.Response(status=422) if request.method == "PATCH" else None

    kubernetes.faults = [invalid]
    await _run(applier, apply, resource=resource)
    assert kubernetes.find("statefulsets", "shop", "orders-g0") is None


async def test_scaling_away_changes_replicas_and_policy_of_the_very_object(
    kubernetes: FakeKubernetes, applier: Applier
) -> None:
    """No replicas, and whenScaled Delete; the rest of the StatefulSet stays, another is refused."""
    policy = {"whenDeleted": "Retain", "whenScaled": "Retain"}
    spec = {"replicas": 1, "serviceName": "s", "persistentVolumeClaimRetentionPolicy": policy}
    stored = await kubernetes.put("statefulsets", _in_shop(_child("StatefulSet", spec=spec)))
    uid, version = stored["metadata"]["uid"], stored["metadata"]["resourceVersion"]
    away = {"replicas": 0, "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"}}
    patch = Patch("StatefulSet", "orders-g0", uid, version, {"spec": away}, "spec.groups is 0")
    await _run(applier, patch)
    changed = kubernetes.find("statefulsets", "shop", "orders-g0")
    assert changed is not None
    assert changed["spec"] == {
        "replicas": 0,
        "serviceName": "s",
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Delete"},
    }
    with pytest.raises(ConflictError):
        await _run(applier, patch)


async def test_a_patch_changes_the_very_object_in_what_it_names(
    kubernetes: FakeKubernetes, applier: Applier
) -> None:
    """A null takes a field off, a list is put there whole; an older version is refused."""
    claim = _in_shop(_child("PersistentVolumeClaim", spec={"volumeName": "pv-1", "extra": 1}))
    stored = await kubernetes.put("persistentvolumeclaims", claim)
    uid, version = stored["metadata"]["uid"], stored["metadata"]["resourceVersion"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "uid-of-c"}
    changes = {"metadata": {"ownerReferences": [owner]}, "spec": {"extra": None}}
    patch = Patch("PersistentVolumeClaim", "orders-g0", uid, version, changes, "whenDeleted")
    await _run(applier, patch)
    changed = kubernetes.find("persistentvolumeclaims", "shop", "orders-g0")
    assert changed is not None
    assert changed["metadata"]["ownerReferences"] == [owner]
    assert changed["metadata"]["labels"] == stored["metadata"]["labels"]
    assert changed["spec"] == {"volumeName": "pv-1"}
    with pytest.raises(ConflictError):
        await _run(applier, patch)


async def test_a_failure_ends_the_step_before_it_is_told(
    kubernetes: FakeKubernetes, applier: Applier
) -> None:
    """The event that tells of an action is not posted when the action failed."""
    grown = Notify("Normal", "VolumeGrowing", "8Gi -> 10Gi")
    with pytest.raises(KubeApiError):
        await _run(applier, ResizeClaim("orders-g0", "u", "1", 10 << 30), grown)
    assert [call.path for call in kubernetes.writes() if "/events" in call.path] == []


async def test_an_event_is_posted_once(
    kubernetes: FakeKubernetes, applier: Applier, metrics: OperatorMetrics
) -> None:
    """The same words about the same resource are posted once; other words are another event."""
    resource = await kubernetes.put("brokers", _BROKER)
    grown = Notify("Normal", "VolumeGrowing", "8Gi -> 10Gi", related_pod="orders-g0-0")
    for _ in range(3):
        await _run(applier, grown, resource=resource)
    await _run(applier, Notify("Normal", "VolumeGrowing", "10Gi -> 12Gi"), resource=resource)
    events = [call.body for call in kubernetes.writes()]
    assert [event["note"] for event in events] == ["8Gi -> 10Gi", "10Gi -> 12Gi"]
    first = events[0]
    assert first["regarding"]["uid"] == resource["metadata"]["uid"]
    assert first["related"]["name"] == "orders-g0-0"
    assert (first["type"], first["reason"]) == ("Normal", "VolumeGrowing")
    assert 'operator_autogrow_total{result="grown"} 2.0' in metrics.exposition().decode()


async def test_an_event_that_cannot_be_posted_harms_nothing(
    kubernetes: FakeKubernetes, applier: Applier
) -> None:
    """Without the right to post events the work goes on, and a later try is made."""

    async def forbidden(request: web.Request) -> web.Response | None:
        return web.Response(status=403) if "/events" in request.path else None

    kubernetes.faults = [forbidden]
    notice = Notify("Warning", "RollBlocked", "no image")
    await _run(applier, notice, Apply(_child("Service")))
    assert kubernetes.find("services", "shop", "orders-g0") is not None
    kubernetes.faults = []
    await _run(applier, notice)
    assert any(key[0] == "events" for key in kubernetes.objects)


@pytest.mark.parametrize("name", ["t" * 253, "t" * 235 + "-" * 10 + "t", "t" * 235 + ".a" * 9])
async def test_events_fit_whatever_they_are_about(
    kubernetes: FakeKubernetes, applier: Applier, name: str
) -> None:
    """Names near their limit, and words of more bytes than characters, keep no event back."""
    resource = {**_BROKER, "metadata": {**_BROKER["metadata"], "name": name}}
    words = "\N{SNOWMAN}" * 1024
    await _run(applier, Notify("Warning", "ApplyRefused", words), resource=resource)
    (event,) = [body for key, body in kubernetes.objects.items() if key[0] == "events"]
    assert event["note"] == "\N{SNOWMAN}" * (1024 // 3)
    assert event["metadata"]["name"].startswith("t" * 235)
    assert event["regarding"]["name"] == name


async def test_status_is_written_only_when_it_differs(
    kubernetes: FakeKubernetes, applier: Applier, cache: ObjectCache
) -> None:
    """An equal status costs no call; a new one is in the cache afterwards."""
    stored = await kubernetes.put("brokers", _BROKER)
    assert await applier.write_status(stored, {"groups": 1})
    written = cache.get("Broker", "shop", "orders")
    assert written is not None
    assert not await applier.write_status(written, {"groups": 1})
    assert len(kubernetes.writes()) == 1


async def test_finalizers_are_replaced(kubernetes: FakeKubernetes, applier: Applier) -> None:
    """The list becomes what the plan says, guarded by the version."""
    stored = await kubernetes.put("brokers", _BROKER)
    version = stored["metadata"]["resourceVersion"]
    await _run(applier, SetFinalizers(("mailboat.dev/topic",), version), resource=stored)
    changed = kubernetes.find("brokers", "shop", "orders")
    assert changed is not None
    assert changed["metadata"]["finalizers"] == ["mailboat.dev/topic"]
    with pytest.raises(ConflictError):
        await _run(applier, SetFinalizers((), version), resource=stored)


async def test_stopping_begins_nothing_more(kubernetes: FakeKubernetes, applier: Applier) -> None:
    """After SIGTERM the rest of a step is left for the next leader."""
    applier.stop()
    with pytest.raises(StoppingError):
        await _run(applier, Apply(_child("Service")))
    with pytest.raises(StoppingError):
        await applier.write_status(_in_shop(_BROKER), {"x": 1})
    assert kubernetes.calls == []


class _FakeBroker:
    """A broker's HTTP API on a free port, for the pod orders-g0-0."""

    def __init__(self, cache: ObjectCache) -> None:
        self.received: list[tuple[str, str, Any]] = []
        self.name = "orders-g0"
        self.url = ""
        self._cache = cache
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Serve, and put the pod into the cache."""
        app = web.Application()
        app.router.add_get("/api/v1/broker", self._broker)
        app.router.add_route("*", "/{path:.*}", self._change)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}"
        ports = [{"name": "http", "containerPort": port}]
        pod = _in_shop(_child("Pod", "orders-g0-0", spec={"containers": [{"ports": ports}]}))
        pod["metadata"]["resourceVersion"] = "1"
        self._cache.update({**pod, "status": {"podIP": "127.0.0.1"}})

    async def close(self) -> None:
        """Stop serving."""
        assert self._runner is not None
        await self._runner.cleanup()

    async def _broker(self, _: web.Request) -> web.Response:
        return web.json_response({"broker_name": self.name})

    async def _change(self, request: web.Request) -> web.Response:
        text = await request.text()
        values = json.loads(text) if text else None
        self.received.append((request.method, request.path, values))
        if values == {"fileReservedTime": "0"}:
            return web.json_response({"error": "fileReservedTime: too short"}, status=400)
        return web.json_response({"values": {"fileReservedTime": "48"}, "live_keys": []})


@pytest.fixture
async def broker(cache: ObjectCache) -> AsyncIterator[_FakeBroker]:
    """The broker of the pod orders-g0-0."""
    made = _FakeBroker(cache)
    await made.start()
    yield made
    await made.close()


async def test_nothing_goes_to_a_broker_without_the_lease(
    api_client: ApiClient, cache: ObjectCache, metrics: OperatorMetrics, broker: _FakeBroker
) -> None:
    """A leader that was paused sends no topic and no setting either when it wakes up."""

    def refuse() -> None:
        raise NotLeaderError("no")

    api = KubeApi(api_client, metrics, timeout_s=1.0, check_may_write=refuse)
    brokers = BrokerApi(metrics)
    applier = Applier(api, cache, brokers, EventPoster(api, metrics, "operator-0"), metrics)
    actions: tuple[Action, ...] = (
        PutTopic(broker.url, "t", 8, 8, 6),
        DeleteTopic(broker.url, "t"),
        ConfigureBroker("orders-g0-0", {"fileReservedTime": "48"}),
    )
    try:
        for action in actions:
            with pytest.raises(NotLeaderError):
                await _run(applier, action)
    finally:
        await brokers.close()
    assert broker.received == []


async def test_live_settings_do_not_go_to_another_broker(
    applier: Applier, broker: _FakeBroker
) -> None:
    """An address that another broker has by now is left alone."""
    broker.name = "bills-g0"
    with pytest.raises(StrangerError):
        await _run(applier, ConfigureBroker("orders-g0-0", {"fileReservedTime": "48"}))
    assert broker.received == []


async def test_an_action_that_is_cut_off_is_remembered(
    kubernetes: FakeKubernetes, applier: Applier
) -> None:
    """Its outcome is unknown, so the Lease must not be given back; one that failed is known."""
    begun = asyncio.Event()

    async def hang(_: web.Request) -> None:
        begun.set()
        await asyncio.Event().wait()

    with pytest.raises(StaleError):
        await _run(applier, ConfigureBroker("orders-g9-0", {}))
    assert not applier.was_cut_off
    kubernetes.faults = [hang]
    for act in (
        lambda: _run(applier, Apply(_child("Service"))),
        lambda: applier.write_status(
            _in_shop({**_BROKER, "metadata": {**_BROKER["metadata"], "resourceVersion": "1"}}),
            {"x": 1},
        ),
    ):
        applier._was_cut_off = False
        begun.clear()
        acting = asyncio.create_task(act())
        await begun.wait()
        acting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acting
        assert applier.was_cut_off


async def test_live_settings_go_to_the_pod(
    kube_api: KubeApi, cache: ObjectCache, metrics: OperatorMetrics, broker: _FakeBroker
) -> None:
    """Live settings are sent to the pod's address, and its answer or refusal is passed on."""
    noted: list[tuple[str, str, Mapping[str, str]]] = []
    refused: list[tuple[str, str, Mapping[str, str], str]] = []
    brokers = BrokerApi(metrics)
    applier = Applier(
        kube_api,
        cache,
        brokers,
        EventPoster(kube_api, metrics, "operator-0"),
        metrics,
        note_config=lambda *told: noted.append(told),
        note_refusal=lambda *told: refused.append(told),
    )
    try:
        await _run(applier, ConfigureBroker("orders-g0-0", {"fileReservedTime": "48"}))
        with pytest.raises(BrokerRefusedError, match="too short"):
            await _run(applier, ConfigureBroker("orders-g0-0", {"fileReservedTime": "0"}))
        with pytest.raises(StaleError, match="no address"):
            await _run(applier, ConfigureBroker("orders-g1-0", {"fileReservedTime": "48"}))
    finally:
        await brokers.close()
    path = "/api/v1/config"
    assert broker.received == [
        ("PATCH", path, {"fileReservedTime": "48"}),
        ("PATCH", path, {"fileReservedTime": "0"}),
    ]
    sentence = "fileReservedTime: too short"
    assert refused == [("shop", "orders-g0-0", {"fileReservedTime": "0"}, sentence)]
    assert noted == [("shop", "orders-g0-0", {"fileReservedTime": "48"})]
