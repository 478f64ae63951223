"""Whole turns for a User: the API server, brokers that read what is mounted, and the planner."""

import base64
import copy
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from fake_kubernetes import FakeKubernetes

from mailboat.security.user_records import UserRecord, decode_user
from mailboat_operator.apply import Applier
from mailboat_operator.broker_api import BrokerApi
from mailboat_operator.cache import ObjectCache
from mailboat_operator.events import EventPoster
from mailboat_operator.kinds import ResourceKey
from mailboat_operator.kube_api import KubeApi
from mailboat_operator.metrics import OperatorMetrics
from mailboat_operator.planner.broker import plan_broker
from mailboat_operator.planner.name_server import plan_name_server
from mailboat_operator.planner.topic import plan_topic
from mailboat_operator.planner.user import plan_user
from mailboat_operator.pod_access import PodAccess
from mailboat_operator.reconciler import Planners, Reconciler
from mailboat_operator.sight import Sight

KEY = ResourceKey("User", "shop", "till")
USERS = "mailboat-broker-users-orders"
OWN = "till-mailboat-user"
TOKEN = "planted-token-0123456789"
BROKER: dict[str, Any] = {
    "apiVersion": "mailboat.dev/v1alpha1",
    "kind": "Broker",
    "metadata": {"namespace": "shop", "name": "orders"},
    "spec": {
        "nameServers": {"addresses": ["ns.example:9876"]},
        "storage": {"size": "8Gi"},
        "authentication": {"superUserSecretRef": {"name": "admin"}},
        "authorization": {},
        "http": {"tokenSecretRef": {"name": "http"}},
    },
}
USER = {
    "apiVersion": "mailboat.dev/v1alpha1",
    "kind": "User",
    "metadata": {"namespace": "shop", "name": "till"},
    "spec": {"brokerRef": "orders"},
}


class _NoNumbers:
    def observations(self, namespace: str, pods: Any) -> dict[str, Any]:
        return {}


class _Broker:
    """A locked broker that reads its users when the test says so."""

    def __init__(self) -> None:
        self.user: UserRecord | None = None
        self.port = 0

    async def handle(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.json_response({"error": "no"}, status=401)
        if request.path == "/api/v1/broker":
            return web.json_response({"broker_name": "orders-g0"})
        assert request.path == "/api/v1/users/till"
        if self.user is None:
            return web.json_response({"error": "there is no such user"}, status=404)
        shown = {"user": "till", "revision": self.user.revision, "is_enabled": True}
        return web.json_response(shown)


class World:
    """All that takes part."""

    def __init__(self, kubernetes: FakeKubernetes, api: KubeApi, metrics: OperatorMetrics) -> None:
        """Begin without any object."""
        self.kubernetes = kubernetes
        self.broker = _Broker()
        self.cache = ObjectCache()
        self.api = BrokerApi(metrics, access=PodAccess(api.get, self.cache).of)
        self.reconciler = Reconciler(
            self.cache,
            Applier(api, self.cache, self.api, EventPoster(api, metrics, "operator-0"), metrics),
            self.api,
            _NoNumbers(),
            Planners(
                broker=plan_broker, name_server=plan_name_server, topic=plan_topic, user=plan_user
            ),
            metrics,
            Sight(),
            default_image="mailboat:1",
            reads_storage_classes=False,
        )

    async def put(self, plural: str, manifest: dict[str, Any]) -> None:
        """Store an object, and let the watch tell of it."""
        self.cache.update(await self.kubernetes.put(plural, manifest))

    def value(self, secret: str, key: str) -> str | None:
        """Return what a key of a Secret holds."""
        found = self.kubernetes.find("secrets", "shop", secret) or {}
        text = (found.get("data") or {}).get(key)
        return None if text is None else base64.b64decode(text).decode()

    def read(self) -> None:
        """Let the broker read what is mounted."""
        text = self.value(USERS, "till.json")
        self.broker.user = None if text is None else decode_user(text.encode())

    async def turn(self) -> None:
        """Take one turn, as the queue does; what it wrote is in the cache."""
        await self.reconciler.reconcile(KEY)
        live = self.kubernetes.find("users", "shop", "till")
        if live is not None:
            self.cache.update(live)

    def conditions(self) -> dict[str, str]:
        """Return the reason of each condition."""
        live = self.kubernetes.find("users", "shop", "till") or {}
        return {item["type"]: item["reason"] for item in live["status"]["conditions"]}


@pytest.fixture
async def world(
    kubernetes: FakeKubernetes, kube_api: KubeApi, metrics: OperatorMetrics
) -> AsyncIterator[World]:
    """A locked Broker with one pod, and a User of it."""
    made = World(kubernetes, kube_api, metrics)
    app = web.Application()
    app.router.add_get("/{path:.*}", made.broker.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    token = base64.b64encode(TOKEN.encode()).decode()
    await kubernetes.put(
        "secrets", {"metadata": {"namespace": "shop", "name": "http"}, "data": {"token": token}}
    )
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": "shop",
            "name": "orders-g0-0",
            "labels": {"mailboat.dev/broker": "orders"},
        },
        "spec": {
            "volumes": [{"name": "http-token", "secret": {"secretName": "http"}}],
            "containers": [{"ports": [{"name": "http", "containerPort": runner.addresses[0][1]}]}],
        },
        "status": {"podIP": "127.0.0.1", "phase": "Running"},
    }
    await made.put("pods", pod)
    await made.put("brokers", BROKER)
    await made.put("users", USER)
    yield made
    await made.api.close()
    await runner.cleanup()


async def test_a_user_comes_and_goes(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """From nothing to Ready, and from there to nothing; no secret is in a log or an event."""
    caplog.set_level(logging.DEBUG)
    await world.turn()
    assert world.value(OWN, "secretKey") is None
    await world.turn()
    assert world.conditions()["Applied"] == "UserPending"
    world.read()
    await world.turn()
    secret = world.value(OWN, "secretKey")
    assert secret is not None
    assert len(secret) >= 43
    await world.turn()
    assert set(world.conditions().values()) == {"UserReady", "SecretThere", "Applied"}
    writes = len(world.kubernetes.writes())
    await world.turn()
    assert len(world.kubernetes.writes()) == writes

    live = world.kubernetes.find("users", "shop", "till")
    assert live is not None
    assert live["metadata"]["finalizers"] == ["mailboat.dev/user"]
    live["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    await world.put("users", live)
    await world.turn()
    assert world.value(USERS, "till.json") is None
    await world.turn()
    still = world.kubernetes.find("users", "shop", "till")
    assert still is not None
    assert still["metadata"]["finalizers"]
    world.read()
    await world.turn()
    gone = world.kubernetes.find("users", "shop", "till")
    assert gone is None or not gone["metadata"].get("finalizers")

    shown = caplog.text + str(world.kubernetes.find("users", "shop", "till"))
    shown += str([call.body for call in world.kubernetes.calls if "events" in call.path])
    assert secret not in shown
    assert TOKEN not in shown


async def test_the_files_of_other_users_stay(world: World) -> None:
    """One Secret has them all, and a turn changes what is its own."""
    other = base64.b64encode(b"{}").decode()
    await world.turn()
    found = world.kubernetes.find("secrets", "shop", USERS)
    assert found is not None
    found["data"]["cashier.json"] = other
    await world.kubernetes.put("secrets", found)
    user = {**USER, "spec": {"brokerRef": "orders", "disabled": True}}
    await world.put("users", user)
    await world.turn()
    after = world.kubernetes.find("secrets", "shop", USERS)
    assert after is not None
    assert after["data"]["cashier.json"] == other
    assert '"userStatus": "disable"' in str(world.value(USERS, "till.json"))


async def test_the_name_servers_of_before_are_found(world: World) -> None:
    """Those of the namespace whom the Broker does not name, or that outlive it."""
    spec = {"authentication": {"superUserSecretRef": {"name": "admin"}}}
    for name in ("ns", "ns2"):
        manifest = {
            "apiVersion": "mailboat.dev/v1alpha1",
            "kind": "NameServer",
            "metadata": {"namespace": "shop", "name": name},
            "spec": spec,
        }
        await world.put("nameservers", manifest)
    for name in ("ns", "ns2"):
        broker = copy.deepcopy(BROKER)
        broker["spec"]["nameServers"] = {"ref": name}
        await world.put("brokers", broker)
        await world.turn()
    assert world.value("mailboat-name-server-users-ns", "orders.till.json") is None
    assert world.value("mailboat-name-server-users-ns2", "orders.till.json") is not None
    gone = world.cache.get("Broker", "shop", "orders")
    assert gone is not None
    world.cache.remove(gone)
    await world.turn()
    assert world.value("mailboat-name-server-users-ns2", "orders.till.json") is None
