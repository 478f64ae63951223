"""How the operator gets in at brokers: by HTTPS and a token, where the pod takes them."""

import base64
import ssl
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from mailboat.testing.virtual_time import VirtualTime
from mailboat_operator.broker_api import BrokerApi, BrokerApiError, http_url
from mailboat_operator.cache import ObjectCache
from mailboat_operator.kinds import Kind
from mailboat_operator.kube_api import NotFoundError
from mailboat_operator.metrics import OperatorMetrics
from mailboat_operator.pod_access import FRESH_S, NoAccessError, PodAccess

trustme = pytest.importorskip("trustme")

TOKEN = "planted-token-0123456789"
NAME = "orders-g0-0.orders-brokers.shop.svc"


def pod(port: int = 8080, *, scheme: str | None = "HTTPS", volumes: bool = True) -> dict[str, Any]:
    """Return a pod at this machine's own address."""
    probe = {"path": "/readyz"} | ({"scheme": scheme} if scheme else {})
    mounted = [
        {"name": "tls", "secret": {"secretName": "orders-tls"}},
        {"name": "http-token", "secret": {"secretName": "http"}},
    ]
    return {
        "kind": "Pod",
        "metadata": {
            "name": "orders-g0-0", "namespace": "shop", "uid": "u", "resourceVersion": "1"
        },
        "spec": {
            "hostname": "orders-g0-0",
            "subdomain": "orders-brokers",
            "volumes": mounted if volumes else [],
            "containers": [
                {
                    "ports": [{"name": "http", "containerPort": port}],
                    "readinessProbe": {"httpGet": probe},
                }
            ],
        },
        "status": {"podIP": "127.0.0.1"},
    }  # fmt: skip


class Secrets:
    """An API server that has Secrets only."""

    def __init__(self) -> None:
        """Start empty."""
        self.data: dict[str, dict[str, bytes]] = {}
        self.reads: list[str] = []

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any]:
        """Read one by its name."""
        assert (kind.kind, namespace) == ("Secret", "shop")
        self.reads.append(name)
        if name not in self.data:
            raise NotFoundError(404, f"get {name}", "not found")
        return {"data": {key: base64.b64encode(it).decode() for key, it in self.data[name].items()}}


@pytest.fixture
def authority() -> Any:
    """An authority of certificates."""
    return trustme.CA()


@pytest.fixture
def secrets(authority: Any) -> Secrets:
    """The Secrets that the pod mounts."""
    made = Secrets()
    made.data["http"] = {"token": f"\n{TOKEN}\nan-older-token-0123456789\n".encode()}
    made.data["orders-tls"] = {"ca.crt": authority.cert_pem.bytes(), "tls.key": b"never looked at"}
    return made


class Server:
    """What answers at the pod's address."""

    def __init__(self) -> None:
        """Nobody has asked."""
        self.seen: list[str | None] = []
        self.port = 0

    async def handle(self, request: web.Request) -> web.Response:
        """Note what proves who asks."""
        self.seen.append(request.headers.get("Authorization"))
        return web.json_response({"values": {}})


async def serve(certificate: Any) -> tuple[Server, web.AppRunner]:
    """Start a server with a certificate; None: a plain one."""
    made, context = Server(), None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
    app = web.Application()
    app.router.add_get("/{path:.*}", made.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    made.port = runner.addresses[0][1]
    return made, runner


@pytest.fixture
async def ask(secrets: Secrets, metrics: OperatorMetrics) -> AsyncIterator[Any]:
    """Asks a pod with the operator's own client."""
    cache = ObjectCache()
    api = BrokerApi(metrics, access=PodAccess(secrets.get, cache).of)

    async def made(one: dict[str, Any]) -> dict[str, str]:
        cache.update(one)
        url = http_url(one)
        assert url is not None
        return await api.config(url)

    yield made
    await api.close()


async def test_the_token_goes_to_the_pod_with_the_right_certificate(
    ask: Any, authority: Any
) -> None:
    """The name that counts is the pod's, not the address that is connected to."""
    server, runner = await serve(authority.issue_cert(NAME))
    assert await ask(pod(server.port)) == {}
    assert server.seen == [f"Bearer {TOKEN}"]
    await runner.cleanup()


@pytest.mark.parametrize("is_other_name", [True, False])
async def test_nobody_else_gets_the_token(ask: Any, authority: Any, is_other_name: bool) -> None:
    """Neither another pod of the same authority, nor the right name by another authority."""
    issuer = authority if is_other_name else trustme.CA()
    name = "others-g0-0.others-brokers.shop.svc" if is_other_name else NAME
    server, runner = await serve(issuer.issue_cert(name))
    with pytest.raises(BrokerApiError) as error:
        await ask(pod(server.port))
    assert server.seen == []
    assert TOKEN not in str(error.value)
    await runner.cleanup()


async def test_a_pod_of_before_is_asked_as_before(ask: Any, secrets: Secrets) -> None:
    """It mounts no token and is asked plainly, and no Secret is read for it."""
    server, runner = await serve(None)
    assert await ask(pod(server.port, scheme=None, volumes=False)) == {}
    assert (server.seen, secrets.reads) == ([None], [])
    await runner.cleanup()


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
async def test_whose_address_was_an_ended_pods_gets_no_token_of_it(
    secrets: Secrets, phase: str
) -> None:
    """An evicted pod keeps its address in its status, and Kubernetes gives it to another one."""
    ended = pod(scheme=None)
    ended["status"]["phase"] = phase
    assert http_url(ended) is None
    stranger = pod(scheme=None, volumes=False)
    stranger["metadata"] |= {"namespace": "elsewhere", "uid": "v"}
    for manifests in ([ended, stranger], [stranger, ended], [ended]):
        cache = ObjectCache()
        for manifest in manifests:
            cache.update(manifest)
        found = await PodAccess(secrets.get, cache).of("http://127.0.0.1:8080/api/v1/broker")
        assert found.headers == {}
    assert secrets.reads == []


async def test_a_plain_pod_with_a_token_gets_it(ask: Any, secrets: Secrets) -> None:
    """TLS and token are two things."""
    server, runner = await serve(None)
    assert await ask(pod(server.port, scheme=None)) == {}
    assert (server.seen, secrets.reads) == ([f"Bearer {TOKEN}"], ["http"])
    await runner.cleanup()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "Secret shop/http cannot be read"),
        ({"http": {}}, "Secret shop/http has no key token"),
        ({"http": {"token": b"\n \n"}}, "Secret shop/http has no token"),
        ({"http": {"token": b"t"}, "orders-tls": {"ca.crt": b"x"}}, "holds no certificate"),
        ({"http": {"token": b"t"}, "orders-tls": {}}, "has no key ca.crt"),
    ],
)
async def test_what_is_missing_is_said(
    ask: Any, secrets: Secrets, data: dict[str, dict[str, bytes]], words: str
) -> None:
    """It ends in the log, and in the condition of a broker that cannot be reached."""
    secrets.data = data
    with pytest.raises(BrokerApiError, match=words):
        await ask(pod())


async def test_a_secret_is_read_again_once_it_may_have_changed(secrets: Secrets) -> None:
    """Not for each request, and not seldom."""
    clock, cache = VirtualTime(), ObjectCache()
    cache.update(pod(scheme=None))
    access = PodAccess(secrets.get, cache, monotonic=clock.monotonic)
    for _ in range(3):
        await access.of("http://127.0.0.1:8080/api/v1/config")
    assert secrets.reads == ["http"]
    secrets.data["http"] = {"token": b"another-token-0123456789"}
    clock.advance(FRESH_S)
    found = await access.of("http://127.0.0.1:8080/x")
    assert found.headers == {"Authorization": "Bearer another-token-0123456789"}
    assert "another-token" not in repr(found)
    secrets.data.clear()
    clock.advance(FRESH_S)
    with pytest.raises(NoAccessError):
        await access.of("http://127.0.0.1:8080/x")
