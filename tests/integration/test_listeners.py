"""Listeners: ports for clients elsewhere, who are told addresses of their own and no others."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from guarded import until
from raw_client import RawClient

from mailboat.broker import controller
from mailboat.client import Message, MessageQueue, Producer, PullConsumer
from mailboat.config import load_settings
from mailboat.config.listeners import ListenerConfig
from mailboat.config.tls import TlsConfig
from mailboat.errors import ConfigError, RemotingError, RouteNotFoundError
from mailboat.node import Node
from mailboat.protocol.codes import RequestCode
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.remoting.limits import RemotingLimits
from mailboat.remoting.server import RemotingServer
from mailboat.security.client_security import OPEN, ClientSecurity, ClientTls
from mailboat.security.tls import ServerTls
from mailboat.testing.cluster import SMALL_STORE

TOPIC = "T"
OUTSIDE = {"name": "outside", "port": 0, "tls": "disabled"}


class Relay:
    """What leads to a server from elsewhere: a node port, a load balancer, a proxy."""

    def __init__(self) -> None:
        """Lead nowhere yet."""
        self.port = self.target = self.connections = 0
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Relay":
        """Listen."""
        self._server = await asyncio.start_server(self._lead, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        """End every connection."""
        assert self._server is not None
        self._server.close()
        for pipe in self._pipes:
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    @property
    def address(self) -> str:
        """Where clients find it."""
        return f"127.0.0.1:{self.port}"

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, back = await asyncio.open_connection("127.0.0.1", self.target)
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.ensure_future(_copy(source, sink))
            self._pipes.add(task)
            task.add_done_callback(self._pipes.discard)


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65_536):
            sink.write(data)
            await sink.drain()
    except OSError:
        pass
    finally:
        sink.close()


@contextlib.asynccontextmanager
async def standalone(root: Path, **options: str) -> AsyncIterator[Node]:
    """Run a broker and its name server, each with a listener `outside` unless told otherwise."""
    listeners = json.dumps([OUTSIDE])
    overrides = {
        **SMALL_STORE,
        "storePathRootDir": str(root / "store"),
        "listenPort": "0",
        "namesrvListenPort": "0",
        "httpPort": "-1",
        "listeners": listeners,
        "namesrvListeners": listeners,
        **options,
    }
    node = Node(load_settings("standalone", overrides=overrides))
    await node.start()
    try:
        yield node
    finally:
        await node.shutdown()


def ports(node: Node, name: str = "outside") -> tuple[int, int]:
    """Return where the name server and the broker have a listener."""
    assert node.namesrv is not None
    assert node.broker is not None
    return node.namesrv.listener_ports[name], node.broker.listener_addresses.ports[name]


@contextlib.asynccontextmanager
async def client_at(port: int, security: ClientSecurity = OPEN) -> AsyncIterator[RawClient]:
    """Connect to a port."""
    client = RawClient(f"127.0.0.1:{port}", security=security)
    try:
        yield client
    finally:
        await client.close()


async def route_at(port: int, security: ClientSecurity = OPEN) -> Any:
    """Return the addresses by broker name that a name server's port names for the topic."""
    async with client_at(port, security) as client:
        answer = await client.ok(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
    brokers = json.loads(answer.body)["brokerDatas"]
    return {broker["brokerName"]: broker["brokerAddrs"] for broker in brokers}


async def test_an_ordered_topic_has_the_queues_of_brokers_that_are_told(tmp_path: Path) -> None:
    """Its configuration leads to no broker that has no address there; at home it is whole."""
    async with standalone(tmp_path) as node:
        assert node.broker is not None
        async with client_at(node.broker.port) as client:
            await client.make_topic(TOPIC)
        orders = {"namespace": "ORDER_TOPIC_CONFIG", "key": TOPIC, "value": "broker-a:4;broker-b:4"}
        expected = ["broker-a:4;broker-b:4", "broker-a:4"]
        found = []
        assert node.namesrv is not None
        for port in (node.namesrv.port, ports(node)[0]):
            async with client_at(port) as client:
                await client.ok(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true")
                await client.ok(RequestCode.PUT_KV_CONFIG, orders)
                answer = await client.ok(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
            found.append(json.loads(answer.body)["orderTopicConf"])
        assert found == expected


async def test_a_client_elsewhere_gets_along_with_the_listeners_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds the broker by the address that is told there, sends, and reads what it sent."""
    monkeypatch.setattr(controller, "CHECK_INTERVAL_S", 0.02)
    path = tmp_path / "addresses.json"
    async with Relay() as names, Relay() as broker:
        async with standalone(tmp_path, advertisedAddressesFile=str(path)) as node:
            names.target, broker.target = ports(node)
            assert node.broker is not None
            addresses = node.broker.listener_addresses
            async with Producer("G", namesrv=names.address, retries=0) as producer:
                with pytest.raises(RouteNotFoundError):
                    # Its address is not known yet, and that of the others would lead nowhere.
                    await producer.send(Message(TOPIC, b"too early"))
            path.write_text(json.dumps({"outside": broker.address}))
            await until(lambda: addresses.addresses() != {})
            assert broker.connections == 0
            async with Producer("G", namesrv=names.address) as producer:
                sent = await producer.send(Message(TOPIC, b"from elsewhere"))
            async with PullConsumer("C", namesrv=names.address) as consumer:
                queue = MessageQueue(TOPIC, "broker-a", sent.message_queue.queue_id)
                found = await consumer.pull(queue, 0)
            assert [message.body for message in found.messages] == [b"from elsewhere"]
            assert broker.connections == 2


async def test_each_port_of_a_name_server_tells_its_own_addresses(tmp_path: Path) -> None:
    """By the main one, those inside are told what they would be without listeners."""
    listeners = [
        OUTSIDE | {"advertised": "mail.example.com:30920"},
        {"name": "far", "port": 0, "advertised": "[2001:db8::7]:443"},
        {"name": "near", "port": 0},
    ]
    names = [{"name": name, "port": 0} for name in ("outside", "far", "near", "unknown")]
    options = {"listeners": json.dumps(listeners), "namesrvListeners": json.dumps(names)}
    async with standalone(tmp_path, **options) as node:
        assert node.namesrv is not None
        assert node.broker is not None
        async with client_at(node.broker.port) as client:
            await client.make_topic(TOPIC)
        told = {name: await route_at(node.namesrv.port) for name in ("main",)}
        for name in ("outside", "far", "near"):
            told[name] = await route_at(ports(node, name)[0])
        near = f"127.0.0.1:{node.broker.listener_addresses.ports['near']}"
        assert told == {
            "main": {"broker-a": {"0": node.broker.address}},
            "outside": {"broker-a": {"0": "mail.example.com:30920"}},
            "far": {"broker-a": {"0": "[2001:db8::7]:443"}},
            "near": {"broker-a": {"0": near}},
        }
        async with client_at(node.namesrv.listener_ports["unknown"]) as client:
            answer = await client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
        assert answer.code == 17


async def test_another_address_is_told_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the listener said one itself, and nothing else has changed."""
    monkeypatch.setattr(controller, "CHECK_INTERVAL_S", 0.02)
    path = tmp_path / "addresses.json"
    listeners = json.dumps([OUTSIDE | {"advertised": "mail.example.com:1"}])
    options = {"advertisedAddressesFile": str(path), "nodeIP": "192.0.2.9"}
    async with standalone(tmp_path, listeners=listeners, **options) as node:
        assert node.broker is not None
        async with client_at(node.broker.port) as client:
            await client.make_topic(TOPIC)
        port, _ = ports(node)
        assert await route_at(port) == {"broker-a": {"0": "mail.example.com:1"}}
        for written, told in (
            ("{nodeIP}:30100", "192.0.2.9:30100"),
            ("lb.example.com:10920", "lb.example.com:10920"),
        ):
            path.write_text(json.dumps({"outside": written}))
            async with asyncio.timeout(10):
                while await route_at(port) != {"broker-a": {"0": told}}:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)


async def test_a_listener_speaks_what_it_says_whatever_the_main_port_does(tmp_path: Path) -> None:
    """Plain inside; outside by TLS and with a certificate of ours, or nothing is taken."""
    authority, foreign = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    server = authority.issue("127.0.0.1")
    own = authority.issue("client.example", file="client")
    other = foreign.issue("client.example", file="client")
    listeners = json.dumps([OUTSIDE | {"tls": "enforcing", "clientAuth": "required"}])
    options = {
        "listeners": listeners,
        "namesrvListeners": listeners,
        "tls.server.certPath": str(server.certificate),
        "tls.server.keyPath": str(server.key),
        "tls.server.trustCertPath": str(authority.trust),
    }
    async with standalone(tmp_path, **options) as node:
        assert node.broker is not None
        assert node.broker.registration.name_servers == {node.addresses()["namesrv"]: True}
        async with client_at(node.broker.port) as client:
            await client.make_topic(TOPIC)
            await client.send(TOPIC, b"plain, inside")
        before = node.broker.store.commit_log.end
        names, port = ports(node)
        trust = str(authority.trust)
        for security in (
            OPEN,
            ClientSecurity(tls=ClientTls(trust)),
            ClientSecurity(tls=ClientTls(trust, str(other.certificate), str(other.key))),
        ):
            for where in (names, port):
                async with client_at(where, security) as client:
                    with pytest.raises(RemotingError):
                        await client.send(TOPIC, b"a stranger's")
        assert node.broker.store.commit_log.end == before
        security = ClientSecurity(tls=ClientTls(trust, str(own.certificate), str(own.key)))
        assert await route_at(names, security) == {"broker-a": {"0": f"127.0.0.1:{port}"}}
        async with client_at(port, security) as client:
            await client.send(TOPIC, b"by TLS")
        assert node.broker.store.commit_log.end > before


async def test_two_listeners_ask_for_different_certificates(tmp_path: Path) -> None:
    """One for any client that speaks TLS, permissive, one for those with a certificate."""
    authority = Authority(tmp_path / "ours")
    server = authority.issue("127.0.0.1")
    listeners = json.dumps(
        [
            {"name": "open", "port": 0, "tls": "permissive"},
            {"name": "shut", "port": 0, "tls": "enforcing", "clientAuth": "required"},
        ]
    )
    options = {
        "listeners": listeners,
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(server.certificate),
        "tls.server.keyPath": str(server.key),
        "tls.server.trustCertPath": str(authority.trust),
    }
    async with standalone(tmp_path, **options) as node:
        assert node.broker is not None
        at = node.broker.listener_addresses.ports
        by_tls = ClientSecurity(tls=ClientTls(str(authority.trust)))
        for port, security, is_taken in (
            (at["open"], OPEN, True),
            (at["open"], by_tls, True),
            (at["shut"], by_tls, False),
            (node.broker.port, by_tls, True),
            (node.broker.port, OPEN, False),
        ):
            async with client_at(port, security) as client:
                if is_taken:
                    await client.make_topic(TOPIC)
                else:
                    with pytest.raises(RemotingError):
                        await client.make_topic(TOPIC)


@pytest.mark.parametrize("key", ["listeners", "namesrvListeners"])
@pytest.mark.parametrize(
    ("listener", "options", "missing"),
    [
        ({"tls": "permissive"}, {}, "tls.server.certPath"),
        (
            {"tls": "enforcing", "clientAuth": "optional"},
            {"tls.server.certPath": "a", "tls.server.keyPath": "b"},
            "tls.server.trustCertPath",
        ),
    ],
)
async def test_a_listener_without_certificates_stops_the_start(
    tmp_path: Path, key: str, listener: dict[str, str], options: dict[str, str], missing: str
) -> None:
    """With the missing setting and the listener that asks for it."""
    changes = {key: json.dumps([OUTSIDE | listener])} | options
    with pytest.raises(ConfigError, match=missing) as refused:
        async with standalone(tmp_path, **changes):
            pytest.fail("it has started")
    assert "of listener outside" in str(refused.value)


@pytest.mark.parametrize("key", ["listeners", "namesrvListeners"])
async def test_a_port_that_another_process_has_stops_the_start(tmp_path: Path, key: str) -> None:
    """Nothing of it is left listening."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            async with standalone(tmp_path, **{key: json.dumps([OUTSIDE | {"port": port}])}):
                pytest.fail("it has started")
    async with standalone(tmp_path, **{key: json.dumps([OUTSIDE | {"port": port}])}) as node:
        assert port in ports(node)


async def test_a_stranger_is_one_by_every_port(tmp_path: Path) -> None:
    """Who is asked is asked by a listener as well."""
    options = {
        "authenticationEnabled": "true",
        "initAuthenticationUser": '{"username":"admin","password":"a-long-secret"}',
        "innerClientAuthenticationCredentials": (
            '{"accessKey":"admin","secretKey":"a-long-secret"}'
        ),
    }
    async with standalone(tmp_path, **options) as node:
        for port in ports(node):
            async with client_at(port) as client:
                answer = await client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
                assert answer.code in (1, 16)
                assert "No topic route" not in (answer.remark or "")


async def test_what_has_not_shaken_hands_counts_together_at_all_ports(tmp_path: Path) -> None:
    """Strangers at one port are not as many more at each other one."""
    pair = Authority(tmp_path / "ours").issue("127.0.0.1")
    listener = ListenerConfig(name="outside", port=0, tls="enforcing")
    config = TlsConfig(
        server_mode="enforcing",
        server_cert_path=str(pair.certificate),
        server_key_path=str(pair.key),
    )
    limits = RemotingLimits(max_connections=4)
    server = RemotingServer(Dispatcher(), limits, name="test", tls=ServerTls(config, [listener]))
    ports = [await server.start("127.0.0.1", 0), await server.start_listener("127.0.0.1", listener)]
    try:
        silent = [await asyncio.open_connection("127.0.0.1", ports[0]) for _ in range(4)]
        reader, writer = await asyncio.open_connection("127.0.0.1", ports[1])
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        for one in (*(each for _, each in silent), writer):
            one.close()
    finally:
        await server.close(0.5)
