"""TLS of whole processes: broker, name server, HTTP and replicas, with certificates that change."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
from certificates import Authority, Pair
from raw_client import RawClient
from replica_nodes import ReplicaNodes

from mailboat.config import load_settings
from mailboat.errors import ConfigError, RemotingError
from mailboat.node import Node
from mailboat.protocol.codes import RequestCode
from mailboat.remoting import dialing
from mailboat.security.client_security import ClientSecurity, ClientTls
from mailboat.testing.cluster import SMALL_STORE

TOPIC = "T"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Return whom all trust."""
    return Authority(tmp_path / "certificates")


def tls_options(authority: Authority, pair: Pair, **changes: str) -> dict[str, str]:
    """Return the settings of a server that speaks TLS only, also in its own connections."""
    return {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(pair.certificate),
        "tls.server.keyPath": str(pair.key),
        "tls.enable": "true",
        "tls.client.trustCertPath": str(authority.trust),
    } | changes


@contextlib.asynccontextmanager
async def standalone(root: Path, options: dict[str, str]) -> AsyncIterator[Node]:
    """Run a broker and its name server in one process."""
    overrides = {
        **SMALL_STORE,
        "storePathRootDir": str(root / "store"),
        "bindAddress": "127.0.0.1",
        "listenPort": "0",
        "namesrvListenPort": "0",
        "httpPort": "0",
        **options,
    }
    node = Node(load_settings("standalone", overrides=overrides))
    await node.start()
    try:
        await node.wait_http()
        yield node
    finally:
        await node.shutdown()


@contextlib.asynccontextmanager
async def client_of(node: Node, tls: ClientTls | None) -> AsyncIterator[RawClient]:
    """Connect to the broker of a process."""
    client = RawClient(node.addresses()["broker"], security=ClientSecurity(tls=tls))
    try:
        yield client
    finally:
        await client.close()


async def wait_until(holds: Callable[[], bool], within_s: float = 10) -> None:
    """Wait until something holds that nobody tells."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def stored(node: Node) -> int:
    """Return how many bytes the log has."""
    assert node.broker is not None
    return node.broker.store.commit_log.end


async def test_enforcing_process_stores_nothing_that_comes_plainly(
    tmp_path: Path, authority: Authority
) -> None:
    """It registers at its own name server, takes messages by TLS, and plain ones not at all."""
    pair = authority.issue("127.0.0.1")
    async with standalone(tmp_path, tls_options(authority, pair)) as node:
        assert node.broker is not None
        assert node.broker.registration.name_servers == {node.addresses()["namesrv"]: True}
        tls = ClientTls(str(authority.trust))
        async with client_of(node, tls) as client:
            await client.make_topic(TOPIC)
            for number in range(40):
                async with client_of(node, None) as plain:
                    with pytest.raises(RemotingError):
                        await plain.send(TOPIC, b"%d" % number)
            assert stored(node) == 0
            await client.send(TOPIC, b"by TLS")
            assert stored(node) > 0
            route = RawClient(node.addresses()["namesrv"], security=ClientSecurity(tls=tls))
            await route.ok(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
            await route.close()


@pytest.mark.parametrize("enable", ["false", "true"])
async def test_broker_reaches_its_own_name_server_that_wants_a_certificate(
    tmp_path: Path, authority: Authority, enable: str
) -> None:
    """It shows the server's where it has no other, and does not check itself."""
    pair = authority.issue("broker.example")
    changes = {
        "tls.server.need.client.auth": "require",
        "tls.server.trustCertPath": str(authority.trust),
        "tls.enable": enable,
    }
    async with standalone(tmp_path, tls_options(authority, pair, **changes)) as node:
        assert node.broker is not None
        assert node.broker.registration.name_servers == {node.addresses()["namesrv"]: True}


async def test_permissive_process_serves_both(tmp_path: Path, authority: Authority) -> None:
    """Clients move to TLS one by one."""
    options = tls_options(
        authority, authority.issue("127.0.0.1"), **{"tls.server.mode": "permissive"}
    )
    async with standalone(tmp_path, options) as node:
        async with (
            client_of(node, None) as plain,
            client_of(node, ClientTls(str(authority.trust))) as tls,
        ):
            await plain.make_topic(TOPIC)
            for number in range(10):
                await plain.send(TOPIC, b"%d" % number)
                await tls.send(TOPIC, b"%d" % number)
            assert (await tls.pull("G", TOPIC, 19)).ext_fields["nextBeginOffset"] == "20"


async def test_rotation_under_traffic_fails_no_send(tmp_path: Path, authority: Authority) -> None:
    """Certificates are replaced file by file while old and new connections send."""
    pair = authority.issue("127.0.0.1")
    options = tls_options(authority, pair)
    async with standalone(tmp_path, options) as node, contextlib.AsyncExitStack() as stack:
        assert node.broker is not None
        tls = ClientTls(str(authority.trust))
        server_tls = node.broker.tls
        assert server_tls is not None
        lasting = [await stack.enter_async_context(client_of(node, tls)) for _ in range(4)]
        await lasting[0].make_topic(TOPIC)
        is_over = asyncio.Event()

        async def send_on(client: RawClient) -> int:
            sent = 0
            while not is_over.is_set():
                await client.send(TOPIC, b"%d" % sent)
                sent += 1
            return sent

        async def send_anew() -> int:
            sent = 0
            while not is_over.is_set():
                async with client_of(node, tls) as client:
                    await client.send(TOPIC, b"%d" % sent)
                sent += 1
            return sent

        sending = [asyncio.create_task(send_on(client)) for client in lasting]
        sending += [asyncio.create_task(send_anew()) for _ in range(2)]
        shown = set()
        for number in range(12):
            fresh = authority.issue("127.0.0.1", file="fresh", valid_to_days=30 + number)
            pair.certificate.write_bytes(fresh.certificate.read_bytes())
            await asyncio.to_thread(server_tls.look)
            assert "does not belong" in server_tls.problem
            await asyncio.sleep(0.02)
            pair.key.write_bytes(fresh.key.read_bytes())
            await asyncio.to_thread(server_tls.look)
            assert server_tls.problem == ""
            assert server_tls.validity is not None
            shown.add(server_tls.validity.not_after_s)
            await asyncio.sleep(0.05)
        is_over.set()
        counts = await asyncio.gather(*sending)
        assert len(shown) == 12
        assert min(counts) > 0
        answer = await lasting[0].pull("G", TOPIC, 0)
        assert answer.ext_fields["maxOffset"] == str(sum(counts))


async def test_files_are_looked_at_by_the_process_itself(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broker and name server notice a new pair, and a bad one is seen in the metrics."""
    monkeypatch.setattr("mailboat.broker.controller.CHECK_INTERVAL_S", 0.05)
    monkeypatch.setattr("mailboat.namesrv.controller.CHECK_INTERVAL_S", 0.05)
    pair = authority.issue("127.0.0.1", valid_to_days=5)
    options = tls_options(authority, pair, httpTlsMode="enforcing")
    async with standalone(tmp_path, options) as node:
        assert node.broker is not None
        assert node.namesrv is not None
        holders = [node.broker.tls, node.namesrv.tls]
        before = [holder.validity for holder in holders]
        authority.issue("127.0.0.1", valid_to_days=50)
        await wait_until(lambda: all(h.validity != b for h, b in zip(holders, before, strict=True)))
        pair.key.write_text("words")
        await wait_until(lambda: all(holder.problem for holder in holders))
        context = ssl.create_default_context(cafile=str(authority.trust))
        async with aiohttp.ClientSession() as session:
            url = f"https://{node.addresses()['https']}/metrics"
            async with session.get(url, ssl=context) as answer:
                page = await answer.text()
        assert "mailboat_tls_files_refused 1.0" in page
        assert holders[0].validity is not None
        value = float(
            next(
                line.split()[1]
                for line in page.splitlines()
                if line.startswith("mailboat_tls_certificate_expiry_timestamp_seconds ")
            )
        )
        assert value == holders[0].validity.not_after_s
        async with aiohttp.ClientSession() as session:
            url = f"https://{node.addresses()['https']}/api/v1/broker"
            async with session.get(url, ssl=context) as answer:
                said = (await answer.json())["tls"]
        assert said["valid_until_timestamp_ms"] == value * 1000
        assert said["valid_from_timestamp_ms"] == holders[0].validity.not_before_s * 1000
        assert "holds no private key" in said["problem"]
        async with client_of(node, ClientTls(str(authority.trust))) as client:
            await client.make_topic(TOPIC)


async def test_http_by_tls_follows_new_certificates_and_answers_nothing_plainly(
    tmp_path: Path, authority: Authority
) -> None:
    """Probes are answered by TLS whatever clients of the broker have to show."""
    pair = authority.issue("127.0.0.1")
    changes = {
        "tls.server.need.client.auth": "require",
        "tls.server.trustCertPath": str(authority.trust),
        "httpTlsMode": "enforcing",
    }
    async with standalone(tmp_path, tls_options(authority, pair, **changes)) as node:
        assert "http" not in node.addresses()
        address = node.addresses()["https"]
        context = ssl.create_default_context(cafile=str(authority.trust))
        async with aiohttp.ClientSession() as session:
            for probe in ("livez", "readyz", "startupz"):
                async with session.get(f"https://{address}/{probe}", ssl=context) as answer:
                    assert answer.status == 200
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"http://{address}/livez")
            body = {"messages": [{"body": "x" * 100_000}] * 5}
            url = f"https://{address}/api/v1/topics"
            async with session.get(url, ssl=context, json=body) as answer:
                assert answer.status == 200
        assert node.broker is not None
        assert node.broker.tls is not None
        authority.issue("other.example")
        await asyncio.to_thread(node.broker.tls.look)
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientConnectorCertificateError, match="mismatch"):
                await session.get(f"https://{address}/livez", ssl=context)


async def test_plain_brokers_may_have_http_by_tls(tmp_path: Path, authority: Authority) -> None:
    """One does not need the other."""
    pair = authority.issue("127.0.0.1")
    options = {
        "tls.server.certPath": str(pair.certificate),
        "tls.server.keyPath": str(pair.key),
        "httpTlsMode": "enforcing",
    }
    async with standalone(tmp_path, options) as node:
        async with client_of(node, None) as client:
            await client.make_topic(TOPIC)
        context = ssl.create_default_context(cafile=str(authority.trust))
        async with aiohttp.ClientSession() as session:
            url = f"https://{node.addresses()['https']}/readyz"
            async with session.get(url, ssl=context) as answer:
                assert answer.status == 200


async def test_bad_files_stop_the_start_in_one_sentence(
    tmp_path: Path, authority: Authority
) -> None:
    """Nothing listens with half of what was asked for."""
    pair = authority.issue("127.0.0.1")
    for changes, key in (
        ({"tls.server.keyPath": ""}, "tls.server.keyPath"),
        ({"tls.server.certPath": "/nowhere.pem"}, "tls.server.certPath"),
        ({"tls.client.trustCertPath": "/nowhere.pem"}, "tls.client.trustCertPath"),
    ):
        with pytest.raises(ConfigError) as raised:
            async with standalone(tmp_path, tls_options(authority, pair, **changes)):
                pass
        assert raised.value.key == key
        assert "\n" not in str(raised.value)


# -- replicas ------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["none", "require"])
async def test_replicas_follow_by_tls(tmp_path: Path, authority: Authority, asked: str) -> None:
    """The log goes over TLS, with certificates of both sides where these are asked for."""
    pair = authority.issue("127.0.0.1")
    options = tls_options(
        authority,
        pair,
        **{
            "tls.server.need.client.auth": asked,
            "tls.server.trustCertPath": str(authority.trust),
            "tls.client.certPath": str(pair.certificate),
            "tls.client.keyPath": str(pair.key),
            "inSyncReplicas": "2",
        },
    )
    tls = ClientTls(str(authority.trust), str(pair.certificate), str(pair.key))
    async with ReplicaNodes(tmp_path, 2, options, namesrv_options=options_of(options)) as nodes:
        await wait_until(lambda: nodes.leader() is not None, 20)
        leader = nodes.leader()
        assert leader is not None
        address = nodes.broker(leader).address
        client = RawClient(address, security=ClientSecurity(tls=tls))
        await wait_until(lambda: not nodes.group(leader).refusal(), 20)
        await client.make_topic(TOPIC)
        await client.send(TOPIC, bytes(200_000))
        end = nodes.broker(leader).store.commit_log.end
        assert end > 200_000
        follower = nodes.broker(1 - leader)
        await wait_until(lambda: follower.store.commit_log.end == end)
        await client.close()


def options_of(options: dict[str, str]) -> dict[str, str]:
    """Return those of a replica that a name server has too."""
    return {key: value for key, value in options.items() if key.startswith("tls.")}


async def test_plain_replicas_follow_where_their_name_server_wants_tls(
    tmp_path: Path, authority: Authority
) -> None:
    """What they connect to the name server by is not what they listen to each other with."""
    server = options_of(tls_options(authority, authority.issue("127.0.0.1")))
    options = {
        "tls.enable": "true",
        "tls.client.trustCertPath": str(authority.trust),
        "inSyncReplicas": "2",
    }
    async with ReplicaNodes(tmp_path, 2, options, namesrv_options=server) as nodes:
        await wait_until(lambda: nodes.leader() is not None, 20)
        leader = nodes.leader()
        assert leader is not None
        await wait_until(lambda: not nodes.group(leader).refusal(), 20)


async def test_replica_that_is_not_trusted_does_not_join(
    tmp_path: Path, authority: Authority
) -> None:
    """One that speaks plainly is told of, and one that trusts another authority says so."""
    pair = authority.issue("127.0.0.1")
    options = tls_options(authority, pair) | {"inSyncReplicas": "2"}
    del options["tls.client.trustCertPath"]
    foreign = Authority(tmp_path / "foreign")

    class Nodes(ReplicaNodes):
        def own_options(self, ordinal: int) -> dict[str, str]:
            trust = foreign.trust if ordinal else authority.trust
            return super().own_options(ordinal) | {"tls.client.trustCertPath": str(trust)}

    async with Nodes(tmp_path, 2, options, namesrv_options=options_of(options)) as nodes:
        replicas = nodes.broker(1).replicas
        assert replicas is not None
        await wait_until(lambda: bool(replicas.peers.troubles))
        (trouble,) = set(replicas.peers.troubles.values())
        assert "its certificate is not trusted" in trouble
        assert replicas.peers.links() == {}


async def test_client_looks_at_its_files_again(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection after a change of the trusted authorities uses them."""
    monkeypatch.setattr(dialing, "CHECK_INTERVAL_S", 0.0)
    trust = tmp_path / "trust.pem"
    trust.write_bytes(Authority(tmp_path / "former").trust.read_bytes())
    pair = authority.issue("127.0.0.1")
    async with standalone(tmp_path, tls_options(authority, pair)) as node:
        async with client_of(node, ClientTls(str(trust))) as client:
            with pytest.raises(RemotingError, match="not trusted"):
                await client.make_topic(TOPIC)
            trust.write_bytes(authority.trust.read_bytes())
            await client.make_topic(TOPIC)
