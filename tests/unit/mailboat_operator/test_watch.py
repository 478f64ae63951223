"""Tests of what a change marks, of the signs of life of watches, and of the regular lists."""

import asyncio
from typing import Any

import kopf
import pytest
from aiohttp import web
from fake_kubernetes import FakeKubernetes
from kubernetes.aio.client import ApiClient

from mailboat.testing.virtual_time import VirtualTime
from mailboat_operator.cache import ObjectCache
from mailboat_operator.kinds import (
    BROKER,
    CHILD_KINDS,
    POD,
    SERVICE,
    STATEFUL_SET,
    STORAGE_CLASS,
    ResourceKey,
    watched_kinds,
)
from mailboat_operator.kube_api import ForbiddenError, KubeApi, KubeApiError
from mailboat_operator.metrics import OperatorMetrics
from mailboat_operator.settings import OperatorSettings
from mailboat_operator.sight import Sight
from mailboat_operator.watch import (
    ChangeHub,
    Resync,
    WatchClock,
    kopf_registry,
    kopf_settings,
    watch_session,
)

Manifest = dict[str, Any]
_SETTINGS = OperatorSettings(image="i", pod_name="p", pod_namespace="system")


class _Marked:
    def __init__(self) -> None:
        self.keys: list[str] = []
        self.pods: list[str] = []
        self.cache = ObjectCache()
        self.hub = ChangeHub(
            self.cache,
            self._mark,
            pod_changed=lambda pod: self.pods.append(pod["metadata"]["name"]),
            pod_gone=lambda pod: self.pods.append("-" + pod["metadata"]["name"]),
        )
        self._version = 0
        self.more = asyncio.Event()

    async def wait_for(self, key: str) -> None:
        while key not in self.keys:
            await self.more.wait()
            self.more.clear()

    def _mark(self, key: ResourceKey) -> None:
        self.keys.append(str(key))
        self.more.set()

    def object(self, kind: str, name: str, **parts: Any) -> Manifest:
        self._version += 1
        metadata = {
            "namespace": "shop",
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": str(self._version),
            "labels": parts.pop("labels", {}),
        }
        return {"kind": kind, "apiVersion": "v1", "metadata": metadata, **parts}

    def see(self, kind: str, name: str, **parts: Any) -> list[str]:
        self.keys.clear()
        self.hub.seen(self.object(kind, name, **parts))
        return sorted(self.keys)


@pytest.fixture
def marked() -> _Marked:
    """A hub that notes what it marks."""
    return _Marked()


def _ready(is_ready: bool) -> Manifest:
    return {"conditions": [{"type": "Ready", "status": str(is_ready)}]}


def test_children_mark_their_owner(marked: _Marked) -> None:
    """A change of any child marks the resource that its label names, once per change."""
    for kind in CHILD_KINDS:
        labels = {"mailboat.dev/broker": "orders"}
        assert marked.see(kind.kind, f"{kind.kind}-1", labels=labels) == ["Broker/shop/orders"]
    assert marked.see("Service", "ns", labels={"mailboat.dev/name-server": "ns"}) == [
        "NameServer/shop/ns"
    ]
    assert marked.see("Service", "foreign") == []


def test_the_renewal_of_a_lease_marks_nobody(marked: _Marked) -> None:
    """Every leader writes its Lease every few seconds; another leader, set or minimum counts."""
    labels = {"mailboat.dev/broker": "orders"}
    topic = marked.object("Topic", "t", spec={"brokerRef": "orders"})
    marked.hub.seen(topic)

    def renewed(holder: str, **annotations: str) -> list[str]:
        manifest = marked.object("Lease", "orders-g0", labels=labels)
        manifest["spec"] = {"holderIdentity": holder}
        manifest["metadata"]["annotations"] = {
            f"mailboat.dev/{key}": text for key, text in annotations.items()
        }
        marked.keys.clear()
        marked.hub.seen(manifest)
        return sorted(marked.keys)

    assert renewed("a/1/x", epoch="1", renewals="1") == ["Broker/shop/orders"]
    assert renewed("a/1/x", epoch="1", renewals="2") == []
    both = ["Broker/shop/orders", "Topic/shop/t"]
    assert renewed("b/1/x", epoch="2", renewals="3") == both
    assert renewed("b/1/x", epoch="2", renewals="4", **{"in-sync": "0:a,1:b"}) == both
    assert renewed("b/1/x", epoch="2", renewals="5", **{"in-sync": "0:a,1:b"}) == []
    assert (
        marked.cache.get("Lease", "shop", "orders-g0")["metadata"]["annotations"][
            "mailboat.dev/renewals"
        ]
        == "5"
    )


def test_who_loses_a_child_is_marked(marked: _Marked) -> None:
    """A label that is taken off or changed concerns the resource that it named before.

    So it does when nobody heard of the change, and a list shows it.
    """
    labels = {"mailboat.dev/broker": "orders"}
    for name in ("a", "b"):
        marked.see("StatefulSet", name, labels=labels)
    assert marked.see("StatefulSet", "a") == ["Broker/shop/orders"]
    assert marked.see("StatefulSet", "b", labels={"mailboat.dev/broker": "bills"}) == [
        "Broker/shop/bills",
        "Broker/shop/orders",
    ]
    marked.see("StatefulSet", "a", labels=labels)
    marked.keys.clear()
    marked.hub.listed(STATEFUL_SET, "shop", [marked.object("StatefulSet", "a")], 99)
    assert sorted(marked.keys) == ["Broker/shop/bills", "Broker/shop/orders"]


def test_a_child_whose_label_is_put_back_is_seen_again(marked: _Marked) -> None:
    """Without the label by which it is watched a child is told DELETED, and yet it lives."""
    labels = {"mailboat.dev/broker": "orders"}
    marked.see("StatefulSet", "a", labels=labels)
    marked.hub.gone(marked.object("StatefulSet", "a", labels=labels))
    assert marked.see("StatefulSet", "a", labels=labels) == ["Broker/shop/orders"]
    orders = ResourceKey("Broker", "shop", "orders")
    assert list(marked.cache.owned_by("StatefulSet", orders)) == ["a"]


def test_nothing_is_marked_twice_for_one_state(marked: _Marked) -> None:
    """The same state from a list and from a watch is one change."""
    broker = marked.object("Broker", "orders", spec={})
    marked.hub.seen(broker)
    marked.hub.seen(broker)
    marked.hub.listed(BROKER, None, [broker], 99)
    assert marked.keys == ["Broker/shop/orders"]


def test_dependents_are_marked(marked: _Marked) -> None:
    """A NameServer marks the Brokers that name it and their Users, who are in a Secret of it; a
    Broker marks its Topics and Users; others stay."""
    marked.see("Broker", "orders", spec={"nameServers": {"ref": "ns"}})
    marked.see("Broker", "bills", spec={"nameServers": {"addresses": ["x:1"]}})
    marked.see("User", "u1", spec={"brokerRef": "orders"})
    marked.see("User", "u2", spec={"brokerRef": "bills"})
    marked.see("Topic", "t1", spec={"brokerRef": "orders"})
    marked.see("Topic", "t2", spec={"brokerRef": "bills"})
    # A status is nothing that others look at: written often, it must not wake a thousand topics.
    assert marked.see(
        "Broker", "bills", spec={"nameServers": {"addresses": ["x:1"]}}, status={}
    ) == ["Broker/shop/bills"]
    assert marked.see("NameServer", "ns", spec={}) == [
        "Broker/shop/orders",
        "NameServer/shop/ns",
        "User/shop/u1",
    ]
    assert marked.see("Broker", "orders", spec={"nameServers": {"ref": "ns"}, "groups": 2}) == [
        "Broker/shop/orders",
        "Topic/shop/t1",
        "User/shop/u1",
    ]


def test_topics_look_again_only_when_a_pod_becomes_ready_or_not(marked: _Marked) -> None:
    """A pod's status changes often; only a change of readiness concerns the topics."""
    marked.see("Topic", "t1", spec={"brokerRef": "orders"})
    labels = {"mailboat.dev/broker": "orders"}
    both = ["Broker/shop/orders", "Topic/shop/t1"]
    assert marked.see("Pod", "orders-g0-0", labels=labels, status=_ready(False)) == both
    assert marked.see("Pod", "orders-g0-0", labels=labels, status=_ready(False)) == both[:1]
    assert marked.see("Pod", "orders-g0-0", labels=labels, status=_ready(True)) == both
    marked.keys.clear()
    marked.hub.gone(marked.object("Pod", "orders-g0-0", labels=labels))
    assert sorted(marked.keys) == both
    assert marked.pods == ["orders-g0-0"] * 3 + ["-orders-g0-0"]


def test_a_storage_class_concerns_every_broker(marked: _Marked) -> None:
    """Whether volumes can grow may have changed for each of them."""
    marked.see("Broker", "orders", spec={})
    marked.see("Broker", "bills", spec={})
    assert marked.see("StorageClass", "fast") == ["Broker/shop/bills", "Broker/shop/orders"]


def test_silence_is_counted_per_watch() -> None:
    """Each kind in each namespace has its own silence; an event or a new request ends it."""
    time = VirtualTime()
    clock = WatchClock((BROKER, POD), ("shop", "bank"), monotonic=time.monotonic, wall=time.time)
    time.advance(50)
    clock.heard("Pod", "shop")
    key = clock.key_of_path("/apis/mailboat.dev/v1alpha1/namespaces/bank/brokers")
    assert key == ("Broker", "bank")
    clock.began(key)
    assert dict(clock.silences()) == {
        ("Broker", "shop"): 50,
        ("Broker", "bank"): 0,
        ("Pod", "shop"): 0,
        ("Pod", "bank"): 50,
    }
    assert clock.last_heard() == [(("Pod",), time.time()), (("Broker",), time.time())]
    assert not clock.is_complete.is_set()
    for other in (("Broker", "shop"), ("Pod", "shop"), ("Pod", "bank")):
        clock.began(other)
    assert clock.is_complete.is_set()


def test_kopf_keeps_nothing_and_tells_nobody() -> None:
    """Kopf posts no events, needs no peering, scans nothing, and watches children by label."""
    settings = kopf_settings(_SETTINGS)
    assert not settings.posting.enabled
    assert settings.scanning.disabled
    assert settings.peering.standalone
    assert settings.watching.inactivity_timeout < _SETTINGS.deaf_seconds / 1.5
    assert settings.networking.request_timeout == 15
    selectors = settings.watching.label_selectors
    assert len(selectors) == len(CHILD_KINDS)
    assert set(selectors.values()) == {"app.kubernetes.io/managed-by=mailboat-operator"}
    pauses = iter(settings.networking.error_backoffs)  # type: ignore[arg-type]
    assert all(next(pauses) <= 12 for _ in range(100))


def test_only_event_handlers_are_registered(marked: _Marked) -> None:
    """No handler of a kind that would put finalizers or annotations on an object."""
    kinds = watched_kinds(is_cluster_wide=True)
    clock = WatchClock(kinds, ())

    def no_session() -> kopf.AiohttpSession:
        raise AssertionError("not called")

    registry = kopf_registry(marked.hub, clock, kinds, no_session)
    assert len(registry._watching.get_all_handlers()) == len(kinds)
    for other in (registry._changing, registry._spawning, registry._indexing, registry._webhooks):
        assert list(other.get_all_handlers()) == []  # type: ignore[attr-defined]


async def test_resync_finds_what_was_missed(
    kubernetes: FakeKubernetes, kube_api: KubeApi, marked: _Marked
) -> None:
    """A list after a gap marks only what changed or is gone, a regular one marks everything."""
    labels = {
        "app.kubernetes.io/managed-by": "mailboat-operator",
        "mailboat.dev/broker": "orders",
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "shop", "name": "orders-g0", "labels": labels},
    }
    broker = {
        "apiVersion": "mailboat.dev/v1alpha1",
        "kind": "Broker",
        "metadata": {"namespace": "shop", "name": "bills"},
        "spec": {},
    }
    await kubernetes.put("services", service)
    await kubernetes.put("brokers", broker)
    resync = Resync(kube_api, marked.hub, Sight(), (BROKER, SERVICE), (), every_s=0.5)
    await resync.run_once()
    assert sorted(marked.keys) == ["Broker/shop/bills", "Broker/shop/orders"]
    marked.keys.clear()
    await kubernetes.remove("services", "shop", "orders-g0", is_told=False)
    task = asyncio.create_task(resync.run())
    resync.gap_seen()
    async with asyncio.timeout(5):
        await marked.wait_for("Broker/shop/bills")
    assert marked.keys == ["Broker/shop/orders", "Broker/shop/bills"]
    assert marked.cache.owned_by("Service", ResourceKey("Broker", "shop", "orders")) == {}
    task.cancel()


class _Forbidden:
    """Answers with an error whatever touches one of the paths."""

    def __init__(self, kubernetes: FakeKubernetes, *paths: str, status: int = 403) -> None:
        self.paths, self.status = set(paths), status
        kubernetes.faults = [self._answer]

    async def _answer(self, request: web.Request) -> web.Response | None:
        if request.path not in self.paths:
            return None
        return web.json_response({"message": "forbidden"}, status=self.status)


def _broker(namespace: str, name: str) -> Manifest:
    metadata = {"namespace": namespace, "name": name}
    return {
        "apiVersion": "mailboat.dev/v1alpha1",
        "kind": "Broker",
        "metadata": metadata,
        "spec": {},
    }


_IN_BANK = "/apis/mailboat.dev/v1alpha1/namespaces/bank/brokers"


@pytest.mark.parametrize("status", [403, 404])
async def test_a_namespace_that_is_refused_costs_no_other(
    kubernetes: FakeKubernetes, kube_api: KubeApi, marked: _Marked, status: int
) -> None:
    """Its list is told as refused, the others are read; with the right all of it is planned."""
    forbidden = _Forbidden(kubernetes, _IN_BANK, status=status)
    for namespace in ("bank", "shop"):
        await kubernetes.put("brokers", _broker(namespace, "orders"))
    sight = Sight()
    kinds = (BROKER, SERVICE)
    resync = Resync(kube_api, marked.hub, sight, kinds, ("bank", "shop"), every_s=600)
    await resync.run_once()
    assert marked.keys == ["Broker/shop/orders"]
    assert sight.refusals() == [(("Broker", "bank"), 1.0)]
    assert not sight.sees_all_of("bank")
    assert sight.sees_all_of("shop")
    # Known from before, as after a Role that was away for a while: unchanged, and never planned.
    stored = kubernetes.find("brokers", "bank", "orders")
    assert stored is not None
    marked.cache.update(stored)
    forbidden.paths.clear()
    task = asyncio.create_task(resync.run())
    resync.gap_seen()
    async with asyncio.timeout(5):
        await marked.wait_for("Broker/bank/orders")
    assert sight.refusals() == []
    task.cancel()


async def test_all_other_lists_are_read_before_a_failure_counts(
    kubernetes: FakeKubernetes, kube_api: KubeApi, marked: _Marked
) -> None:
    """An API server that fails is no missing right: the round fails, but not what was read."""
    _Forbidden(kubernetes, _IN_BANK, status=500)

    async def wait(request: web.Request) -> None:
        if "/shop/" in request.path:
            await asyncio.sleep(0.1)

    kubernetes.faults.append(wait)
    await kubernetes.put("brokers", _broker("shop", "orders"))
    sight = Sight()
    resync = Resync(kube_api, marked.hub, sight, (BROKER,), ("bank", "shop"), every_s=600)
    with pytest.raises(KubeApiError):
        await resync.run_once()
    assert marked.keys == ["Broker/shop/orders"]
    assert sight.refusals() == []


async def test_cluster_wide_only_storage_classes_can_be_done_without(
    kubernetes: FakeKubernetes, kube_api: KubeApi, marked: _Marked
) -> None:
    """Without a right on Brokers in the whole cluster nothing can be served, and that is said."""
    classes = "/apis/storage.k8s.io/v1/storageclasses"
    forbidden = _Forbidden(kubernetes, classes)
    sight = Sight()
    resync = Resync(kube_api, marked.hub, sight, (BROKER, STORAGE_CLASS), (), every_s=600)
    await resync.run_once()
    assert not sight.sees("StorageClass", None)
    assert sight.sees_all_of("shop")
    forbidden.paths = {"/apis/mailboat.dev/v1alpha1/brokers"}
    with pytest.raises(ForbiddenError):
        await resync.run_once()


async def test_a_refused_watch_is_neither_deaf_nor_waited_for(
    kubernetes: FakeKubernetes,
    kube_api: KubeApi,
    api_client: ApiClient,
    metrics: OperatorMetrics,
    marked: _Marked,
) -> None:
    """A 403 is an answer; no answer is silence, also where there were 403s before."""
    time = VirtualTime()
    clock = WatchClock((BROKER,), ("bank", "shop"), monotonic=time.monotonic)
    sight = Sight()
    resync = Resync(kube_api, marked.hub, sight, (BROKER,), ("bank", "shop"), every_s=600)
    session = watch_session(api_client, clock, resync, sight, metrics).aiohttp_session
    forbidden = _Forbidden(kubernetes, _IN_BANK)
    in_shop = _IN_BANK.replace("bank", "shop")

    async def ask(path: str, **query: str) -> None:
        async with session.get(kubernetes.url + path, params={"timeoutSeconds": "0", **query}):
            pass

    async with session:
        time.advance(50)
        await ask(_IN_BANK)
        assert not clock.is_complete.is_set()
        await ask(in_shop)
        await ask(in_shop, watch="true", resourceVersion="100")
        assert clock.is_complete.is_set()
        assert dict(clock.silences()) == {("Broker", "bank"): 0, ("Broker", "shop"): 0}
        assert not sight.sees("Broker", "bank")
        time.advance(100)
        forbidden.status = 503
        await ask(_IN_BANK)
        assert dict(clock.silences())["Broker", "bank"] == 100
        # What is answered again makes all be listed again, the only proof of sight.
        forbidden.paths.clear()
        for query in ({}, {"watch": "true", "resourceVersion": "100"}):
            resync._gap.clear()
            await ask(_IN_BANK, **query)
            assert resync._gap.is_set()
            assert not sight.sees("Broker", "bank")


async def test_a_refused_watch_of_the_cluster_is_waited_for(
    kubernetes: FakeKubernetes,
    kube_api: KubeApi,
    api_client: ApiClient,
    metrics: OperatorMetrics,
    marked: _Marked,
) -> None:
    """What is needed everywhere stays a complaint: nothing is served without it."""
    time = VirtualTime()
    clock = WatchClock((BROKER,), (), monotonic=time.monotonic)
    sight = Sight()
    resync = Resync(kube_api, marked.hub, sight, (BROKER,), (), every_s=600)
    path = "/apis/mailboat.dev/v1alpha1/brokers"
    _Forbidden(kubernetes, path)
    async with watch_session(api_client, clock, resync, sight, metrics).aiohttp_session as session:
        time.advance(100)
        async with session.get(kubernetes.url + path):
            pass
    assert dict(clock.silences()) == {("Broker", None): 100}
    assert not clock.is_complete.is_set()
