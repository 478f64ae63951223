"""Clients that are who their certificates say: at brokers, name servers and over HTTP."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from certificates import Authority, Pair
from guarded import SignedClient, known_as, pull_fields, send_fields, until

from mailboat.config import load_settings
from mailboat.errors import ConfigError
from mailboat.node import Node
from mailboat.protocol.codes import RequestCode as Code
from mailboat.protocol.codes import ResponseCode
from mailboat.security.client_security import ClientTls, Credentials
from mailboat.testing.cluster import SMALL_STORE

NO_GROUP = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
SUCCESS, REFUSED = ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION
USERS = {
    "root": '{"username":"root","password":"12345678","userType":"Super"}',
    "producer": (
        '{"username":"producer","password":"12345678","policies":[{"entries":['
        '{"resource":"Topic:T","actions":["Pub"],"decision":"Allow"}]}]}'
    ),
    "consumer": (
        '{"username":"consumer","password":"12345678","policies":[{"entries":['
        '{"resource":"Topic:T","actions":["Sub"],"decision":"Allow"},'
        '{"resource":"Group:G","actions":["Sub"],"decision":"Allow"}]}]}'
    ),
    "bounded": (
        '{"username":"bounded","password":"12345678","userType":"Super",'
        '"quotas":{"groups":1,"queueLocks":2,"heldPulls":1,"publishMessagesPerSecond":2}}'
    ),
    "off": '{"username":"off","password":"12345678","userType":"Super","userStatus":"disable"}',
}


@dataclass
class Place:
    """A process, and whom it trusts."""

    node: Node
    authority: Authority
    users: Path

    @asynccontextmanager
    async def client(
        self, pair: Pair | None, credentials: Credentials | None = None, *, of: str = "broker"
    ) -> AsyncIterator[SignedClient]:
        """Connect by TLS with a certificate, or without."""
        shown = ("", "") if pair is None else (str(pair.certificate), str(pair.key))
        tls = ClientTls(str(self.authority.trust), *shown)
        client = SignedClient(self.node.addresses()[of], credentials, tls)
        try:
            yield client
        finally:
            await client.close()

    def issue(self, name: str) -> Pair:
        """Make a client's certificate."""
        return self.authority.issue("client.example", file=f"of-{name}", common_name=name)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """Run a guarded name server and broker that take certificates for what they say."""
    authority = Authority(tmp_path / "ours")
    server = authority.issue("127.0.0.1")
    users = tmp_path / "users"
    users.mkdir()
    for name, text in USERS.items():
        (users / f"{name}.json").write_text(text)
    overrides = {
        **SMALL_STORE,
        "storePathRootDir": str(tmp_path / "store"),
        "listenPort": "0",
        "namesrvListenPort": "0",
        "httpPort": "0",
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authUsersPath": str(users),
        "tls.server.mode": "permissive",
        "tls.server.certPath": str(server.certificate),
        "tls.server.keyPath": str(server.key),
        "tls.server.need.client.auth": "optional",
        "tls.server.trustCertPath": str(authority.trust),
        "tls.server.clientIdentity": "CN",
        "httpTlsMode": "enforcing",
    }
    node = Node(load_settings("standalone", overrides=overrides))
    await node.start()
    try:
        await node.wait_http()
        found = Place(node, authority, users)
        async with found.client(found.issue("root")) as root:
            await root.make_topic("T")
        yield found
    finally:
        await node.shutdown()


async def test_an_unsigned_request_is_of_whom_the_certificate_names(place: Place) -> None:
    """With that user's rules; at the name server as well."""
    producer = place.issue("producer")
    async with place.client(producer) as client:
        assert (await client.call(Code.SEND_MESSAGE_V2, send_fields("T"), b"x")).code == SUCCESS
        assert (await client.call(Code.SEND_MESSAGE_V2, send_fields("U"), b"x")).code == REFUSED
        assert (await client.call(Code.PULL_MESSAGE, pull_fields("T", "G"))).code == REFUSED
        assert (await client.call(Code.GET_BROKER_CONFIG)).code == REFUSED
        assert (await client.call(12345)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    async with place.client(producer, of="namesrv") as client:
        await client.ok(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        assert (await client.call(Code.GET_BROKER_CLUSTER_INFO)).code == REFUSED


async def test_who_signs_is_who_he_signs_as(place: Place) -> None:
    """A certificate makes no wrong signature good, nor one without a name."""
    root = place.issue("root")
    async with place.client(root, known_as("producer")) as client:
        assert (await client.call(Code.SEND_MESSAGE_V2, send_fields("T"), b"x")).code == SUCCESS
        assert (await client.call(Code.GET_BROKER_CONFIG)).code == REFUSED
    async with place.client(root, known_as("root", "another")) as client:
        assert (await client.call(Code.GET_BROKER_CONFIG)).code == REFUSED
    async with place.client(root) as client:
        for field in ("AccessKey", "Signature", "SecurityToken"):
            answer = await client.call(Code.GET_BROKER_CONFIG, {field: ""})
            assert answer.code == REFUSED, field
        assert (await client.call(Code.GET_BROKER_CONFIG)).code == SUCCESS


async def test_whoever_is_no_user_gets_nothing_by_a_certificate(place: Place) -> None:
    """Of nobody, of one that is disabled, without one, and plainly."""
    for name in ("stranger", "off", "Root", "root "):
        async with place.client(place.issue(name)) as client:
            assert (await client.call(Code.GET_BROKER_CONFIG)).code == REFUSED, name
    async with place.client(None) as client:
        assert (await client.call(Code.GET_BROKER_CONFIG)).code == REFUSED
    plain = SignedClient(place.node.addresses()["broker"], None)
    assert (await plain.call(Code.GET_BROKER_CONFIG)).code == REFUSED
    await plain.close()


async def test_a_user_that_is_taken_away_is_nobody_on_open_connections(place: Place) -> None:
    """The certificate says who it is, the users whether that is anybody; a pull that waits ends."""
    assert place.node.broker is not None
    directory = place.node.broker.directory
    assert directory is not None
    async with place.client(place.issue("consumer")) as client:
        parked = pull_fields("T", "G", suspendTimeoutMillis=60_000, sysFlag=6)
        waiting = asyncio.create_task(client.call(Code.PULL_MESSAGE, parked))
        broker = place.node.broker
        await until(lambda: len(broker.pull_holds) == 1)
        (place.users / "consumer.json").unlink()
        directory.look()
        directory.refresh()
        async with asyncio.timeout(10):
            assert (await waiting).code == REFUSED
        assert (await client.call(Code.PULL_MESSAGE, parked)).code == REFUSED


async def test_a_certificate_administers_as_its_user_does(place: Place) -> None:
    """Only a Super user makes another one, however it has proved who it is; the log names it."""
    boss = {"username": "boss", "password": "87654321", "userType": "Super"}
    body = json.dumps(boss).encode()
    async with place.client(place.issue("root")) as client:
        await client.ok(Code.AUTH_CREATE_USER, {"username": "boss"}, body)
    async with place.client(None, known_as("boss", "87654321")) as client:
        await client.ok(Code.GET_BROKER_CONFIG)


@pytest.mark.parametrize("signs", [False, True])
async def test_quotas_hold_for_users_by_certificate(place: Place, signs: bool) -> None:
    """All of them, as for those that sign."""
    credentials = known_as("bounded") if signs else None
    pair = None if signs else place.issue("bounded")
    async with place.client(place.issue("root")) as root:
        await root.make_topic("L", 4)
        await root.heartbeat("T", group="G")
    async with place.client(pair, credentials) as client:
        await client.heartbeat("T", group="A")
        with pytest.raises(AssertionError, match="has made as many groups"):
            await client.heartbeat("T", group="B")
        body = client._lock_body("C", "L", (0,))
        assert (await client.call(Code.LOCK_BATCH_MQ, body=body)).code == NO_GROUP
        back = {"group": "D", "offset": 0, "delayLevel": 0}
        await client.call(Code.SEND_MESSAGE_V2, send_fields("T"), b"x")
        assert (await client.call(Code.CONSUMER_SEND_MSG_BACK, back)).code == NO_GROUP
        assert (await client.call(Code.PULL_MESSAGE, pull_fields("T", "E"))).code == NO_GROUP
        assert len(await client.lock("G", "L", 0, 1, 2, 3)) == 2
        parked = pull_fields("L", "G", suspendTimeoutMillis=60_000, sysFlag=6)
        waiting = asyncio.create_task(client.call(Code.PULL_MESSAGE, parked))
        broker = place.node.broker
        assert broker is not None
        await until(lambda: len(broker.pull_holds) == 1)
        assert (await client.call(Code.PULL_MESSAGE, parked)).code == ResponseCode.SYSTEM_BUSY
        waiting.cancel()
        sends = [client.call(Code.SEND_MESSAGE_V2, send_fields("T"), b"x") for _ in range(9)]
        codes = [answer.code for answer in await asyncio.gather(*sends)]
        assert ResponseCode.FLOW_CONTROL in codes
    assert broker.groups.table.keys().isdisjoint("BCDE")
    assert broker.queue_locks.held_by("bounded") == 2


@pytest.mark.parametrize(
    ("name", "status"),
    [("root", 200), ("producer", 403), ("off", 401), ("stranger", 401), ("", 401)],
)
async def test_http_takes_a_certificate_for_what_it_says(
    place: Place, name: str, status: int
) -> None:
    """Credentials count before it, and probes need none."""
    context = ssl.create_default_context(cafile=str(place.authority.trust))
    if name:
        pair = place.issue(name)
        context.load_cert_chain(pair.certificate, pair.key)
    base = f"https://{place.node.addresses()['https']}"
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(base, connector=connector) as session:
        async with session.get("/api/v1/config") as answer:
            assert answer.status == status
        async with session.get("/livez") as answer:
            assert answer.status == 200
        wrong = {"Authorization": "Bearer another-token-than-that"}
        async with session.get("/api/v1/config", headers=wrong) as answer:
            assert answer.status == 401


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs authenticationEnabled=true"),
        ({"authenticationEnabled": "true"}, "needs a port that speaks TLS"),
    ],
)
def test_certificates_name_users_where_there_are_both(options: dict[str, str], words: str) -> None:
    """What would do nothing stops the start."""
    with pytest.raises(ConfigError, match="clientIdentity") as refused:
        load_settings("broker", overrides={"tls.server.clientIdentity": "CN", **options})
    assert words in str(refused.value)
