"""Tests of what a change marks, of the signs of life of watches, and of the regular lists."""

import asyncio
from typing import Any

import kopf
import pytest
from fake_kubernetes import FakeKubernetes

from mailboat_operator.cache import ObjectCache
from mailboat_operator.kinds import BROKER, CHILD_KINDS, POD, SERVICE, ResourceKey, watched_kinds
from mailboat_operator.kube_api import KubeApi
from mailboat_operator.settings import OperatorSettings
from mailboat_operator.watch import ChangeHub, Resync, WatchClock, kopf_registry, kopf_settings

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


def test_nothing_is_marked_twice_for_one_state(marked: _Marked) -> None:
    """The same state from a list and from a watch is one change."""
    broker = marked.object("Broker", "orders", spec={})
    marked.hub.seen(broker)
    marked.hub.seen(broker)
    marked.hub.listed(BROKER, None, [broker], 99)
    assert marked.keys == ["Broker/shop/orders"]


def test_dependents_are_marked(marked: _Marked) -> None:
    """A NameServer marks the Brokers that name it; a Broker marks its Topics; others stay."""
    marked.see("Broker", "orders", spec={"nameServers": {"ref": "ns"}})
    marked.see("Broker", "bills", spec={"nameServers": {"addresses": ["x:1"]}})
    marked.see("Topic", "t1", spec={"brokerRef": "orders"})
    marked.see("Topic", "t2", spec={"brokerRef": "bills"})
    # A status is nothing that others look at: written often, it must not wake a thousand topics.
    assert marked.see(
        "Broker", "bills", spec={"nameServers": {"addresses": ["x:1"]}}, status={}
    ) == ["Broker/shop/bills"]
    assert marked.see("NameServer", "ns", spec={}) == ["Broker/shop/orders", "NameServer/shop/ns"]
    assert marked.see("Broker", "orders", spec={"nameServers": {"ref": "ns"}, "groups": 2}) == [
        "Broker/shop/orders",
        "Topic/shop/t1",
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
    now_s = 100.0
    clock = WatchClock((BROKER, POD), ("shop", "bank"), monotonic=lambda: now_s, wall=lambda: 7.0)
    now_s = 150.0
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
    assert clock.last_heard() == [(("Pod",), 7.0), (("Broker",), 7.0)]
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
    resync = Resync(kube_api, marked.hub, (BROKER, SERVICE), (), every_s=0.5)
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
