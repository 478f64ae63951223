"""Tests of what is done about the objects that replicas write too."""

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from fake_kubernetes import FakeKubernetes

from mailboat_operator.apply import Applier, NameTakenError, StaleError
from mailboat_operator.broker_api import BrokerApi
from mailboat_operator.cache import ObjectCache
from mailboat_operator.events import EventPoster
from mailboat_operator.kube_api import KubeApi
from mailboat_operator.metrics import OperatorMetrics
from mailboat_operator.planner.actions import (
    Action,
    Create,
    CreateSecret,
    HandOver,
    SetLeaseMinimum,
    Step,
    TakeUpLease,
)

Manifest = dict[str, Any]
_BROKER: Manifest = {
    "apiVersion": "mailboat.dev/v1alpha1",
    "kind": "Broker",
    "metadata": {"namespace": "shop", "name": "orders", "uid": "b1"},
}
_LABELS = {"mailboat.dev/broker": "orders", "app.kubernetes.io/managed-by": "mailboat-operator"}


def _lease(**parts: Any) -> Manifest:
    owner = {"kind": "Broker", "name": "orders", "uid": "b1", "controller": True}
    metadata = {
        "name": "orders-g0",
        "namespace": "shop",
        "labels": _LABELS,
        "ownerReferences": [owner],
        "annotations": {"mailboat.dev/min-in-sync": "2", "mailboat.dev/renewals": "7"},
    } | parts
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}


@pytest.fixture
def cache() -> ObjectCache:
    """An empty cache."""
    return ObjectCache()


@pytest.fixture
async def applier(
    kube_api: KubeApi, cache: ObjectCache, metrics: OperatorMetrics
) -> AsyncIterator[Applier]:
    """Carries actions out on the fake server."""
    brokers = BrokerApi(metrics)
    yield Applier(kube_api, cache, brokers, EventPoster(kube_api, metrics, "o"), metrics)
    await brokers.close()


async def _run(applier: Applier, action: Action) -> bool:
    return await applier.run(_BROKER, Step("test", (action,)))


async def test_a_lease_is_made_once(
    kubernetes: FakeKubernetes, applier: Applier, cache: ObjectCache
) -> None:
    """It is in the cache at once; one that is there is the replicas', whatever it says."""
    assert await _run(applier, Create(_lease()))
    assert cache.get("Lease", "shop", "orders-g0") is not None
    held = await kubernetes.put("leases", _lease(annotations={"mailboat.dev/epoch": "3"}))
    assert not await _run(applier, Create(_lease()))
    assert kubernetes.find("leases", "shop", "orders-g0") == held


async def test_a_lease_of_somebody_else_is_left_alone(
    kubernetes: FakeKubernetes, applier: Applier
) -> None:
    """Its name is taken, and the user is told so."""
    theirs = await kubernetes.put("leases", _lease(labels={}, ownerReferences=[]))
    with pytest.raises(NameTakenError):
        await _run(applier, Create(_lease()))
    assert kubernetes.find("leases", "shop", "orders-g0") == theirs


async def test_a_secret_is_made_of_chance_and_never_read(
    kubernetes: FakeKubernetes, applier: Applier, cache: ObjectCache
) -> None:
    """Each is another one; one that is there stays, and nothing of it is kept in memory."""
    made = []
    for name in ("orders-replication", "bills-replication"):
        metadata = {"name": name, "namespace": "shop", "labels": _LABELS}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque"}
        assert await _run(applier, CreateSecret(secret, "secret"))
        stored = kubernetes.find("secrets", "shop", name)
        assert stored is not None
        made.append(stored["stringData"]["secret"])
        assert not await _run(applier, CreateSecret(secret, "secret"))
        assert kubernetes.find("secrets", "shop", name) == stored
    assert len(set(made)) == 2
    assert all(len(bytes.fromhex(text)) == 32 for text in made)
    assert list(cache.all_of("Secret")) == []
    assert {call.verb for call in kubernetes.calls if "/secrets" in call.path} == {"POST"}


async def test_the_minimum_of_a_lease_is_changed_under_its_leaders_hands(
    kubernetes: FakeKubernetes, applier: Applier, cache: ObjectCache
) -> None:
    """What the leader wrote meanwhile stays: the number alone is put into the newest state."""
    stored = await kubernetes.put("leases", _lease())
    renewals = 7

    async def renew(request: web.Request) -> None:
        nonlocal renewals
        if request.method == "PUT" and renewals < 9:
            renewals += 1
            live = copy.deepcopy(kubernetes.find("leases", "shop", "orders-g0"))
            assert live is not None
            live["metadata"]["annotations"]["mailboat.dev/renewals"] = str(renewals)
            await kubernetes.put("leases", live)

    kubernetes.faults = [renew]
    assert await _run(applier, SetLeaseMinimum("orders-g0", stored["metadata"]["uid"], 1))
    for found in (
        kubernetes.find("leases", "shop", "orders-g0"),
        cache.get("Lease", "shop", "orders-g0"),
    ):
        assert found is not None
        annotations = found["metadata"]["annotations"]
        assert annotations == {"mailboat.dev/min-in-sync": "1", "mailboat.dev/renewals": "9"}


async def test_the_minimum_of_another_lease_is_left_alone(
    kubernetes: FakeKubernetes, applier: Applier
) -> None:
    """It was deleted and made anew since the plan saw it."""
    stored = await kubernetes.put("leases", _lease())
    with pytest.raises(StaleError):
        await _run(applier, SetLeaseMinimum("orders-g0", "older", 1))
    assert kubernetes.find("leases", "shop", "orders-g0") == stored


async def test_a_lease_that_its_leader_made_anew_is_taken_up(
    kubernetes: FakeKubernetes, applier: Applier, cache: ObjectCache
) -> None:
    """It gets labels and owner, and keeps what it says; without one nothing is made up."""
    marks = _lease()
    del marks["metadata"]["annotations"]
    assert not await _run(applier, TakeUpLease(marks))
    assert kubernetes.find("leases", "shop", "orders-g0") is None
    annotations = {"mailboat.dev/epoch": "3"}
    await kubernetes.put("leases", _lease(labels={}, ownerReferences=[], annotations=annotations))
    assert await _run(applier, TakeUpLease(marks))
    found = cache.get("Lease", "shop", "orders-g0")
    assert found is not None
    assert found["metadata"]["labels"] == _LABELS
    assert found["metadata"]["ownerReferences"] == marks["metadata"]["ownerReferences"]
    assert found["metadata"]["annotations"] == annotations


async def test_a_lease_that_belongs_to_others_is_not_taken_up(
    kubernetes: FakeKubernetes, applier: Applier
) -> None:
    """Whoever made it has an owner for it."""
    owner = {"kind": "Cron", "name": "x", "uid": "c1", "controller": True}
    stored = await kubernetes.put("leases", _lease(labels={}, ownerReferences=[owner]))
    with pytest.raises(StaleError):
        await _run(applier, TakeUpLease(_lease()))
    assert kubernetes.find("leases", "shop", "orders-g0") == stored


async def test_a_leader_is_asked_to_hand_over(applier: Applier, cache: ObjectCache) -> None:
    """The one that leads is told which one is to lead."""
    told: list[Any] = []

    async def hand_over(request: web.Request) -> web.Response:
        told.append(await request.json())
        return web.json_response({"leader": 0})

    async def broker(_: web.Request) -> web.Response:
        return web.json_response({"broker_name": "orders-g0"})

    app = web.Application()
    app.router.add_get("/api/v1/broker", broker)
    app.router.add_post("/api/v1/replica/handover", hand_over)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    ports = [{"name": "http", "containerPort": runner.addresses[0][1]}]
    metadata = {"namespace": "shop", "name": "orders-g0-2", "uid": "p2", "resourceVersion": "1"}
    pod = {"kind": "Pod", "metadata": metadata, "spec": {"containers": [{"ports": ports}]}}
    cache.update({**pod, "status": {"podIP": "127.0.0.1"}})
    try:
        assert await _run(applier, HandOver("orders-g0-2", (0,)))
    finally:
        await runner.cleanup()
    assert told == [{"to": 0}]
