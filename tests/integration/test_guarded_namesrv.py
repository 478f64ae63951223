"""A name server that asks who it is, and brokers that tell it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from access_matrix import NAME_SERVER, NOBODIES, REFUSED, SOMEBODIES, Fields
from guarded import (
    GUARDED,
    PLAIN,
    SignedClient,
    Users,
    guarded_broker,
    known_as,
    transport,
    usual_users,
)
from small_store import small_store

from mailboat.config import BrokerConfig, NamesrvConfig, Settings
from mailboat.config.security import SecurityConfig
from mailboat.config.settings import Role
from mailboat.config.tls import TlsConfig
from mailboat.errors import ConfigError
from mailboat.model.data_version import DataVersion
from mailboat.model.topic import TopicConfig
from mailboat.namesrv.controller import NamesrvController
from mailboat.node import Node
from mailboat.protocol.codes import RequestCode as Code
from mailboat.protocol.register_broker import encode_register_broker
from mailboat.protocol.route import decode_topic_route
from mailboat.protocol.topic_table import TopicConfigTable
from mailboat.security.client_security import ClientTls, Credentials
from mailboat.security.needs import namesrv_rows

INNER: Final = '{"accessKey":"inner","secretKey":"of-the-brokers"}'
SIGNS: Final = SecurityConfig(inner_client_authentication_credentials=INNER)

OF_BROKER: Final[Fields] = {
    "clusterName": "C", "brokerName": "evil", "brokerAddr": "6.6.6.6:10911", "brokerId": 0,
    "haServerAddr": "6.6.6.6:10912",
}  # fmt: skip
BODY: Final = encode_register_broker(
    TopicConfigTable(DataVersion(0, 1, 1), {name: TopicConfig(name) for name in ("T", "V")})
)


@asynccontextmanager
async def guarded_namesrv(users: Users, tls: TlsConfig = PLAIN) -> AsyncIterator[NamesrvController]:
    """Run a name server that asks everybody who they are."""
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1")
    settings = Settings(role="namesrv", namesrv=config, security=GUARDED, tls=tls)
    controller = NamesrvController(settings, users=users)
    await controller.start()
    try:
        yield controller
    finally:
        await controller.shutdown()


@pytest.fixture
def users() -> Users:
    """Return one user of each kind, and that of the brokers."""
    users = usual_users()
    users.add("inner", is_super=True)
    users.change("inner", secrets=(b"of-the-brokers",))
    return users


@pytest.fixture
async def namesrv(users: Users) -> AsyncIterator[NamesrvController]:
    """Run a name server."""
    async with guarded_namesrv(users) as controller:
        yield controller


@asynccontextmanager
async def asking(
    port: int, credentials: Credentials | None, tls: ClientTls | None = None
) -> AsyncIterator[SignedClient]:
    """Connect one client to a name server."""
    client = SignedClient(f"127.0.0.1:{port}", credentials, tls)
    try:
        yield client
    finally:
        await client.close()


def known(namesrv: NamesrvController) -> dict[str, object]:
    """Return what a request could have changed."""
    return {
        "brokers": repr(namesrv.routes.cluster_info()),
        "route": repr(namesrv.routes.route("T")),
        "kv": repr(namesrv.kv_config.namespace("N")),
    }


@pytest.mark.parametrize("kind", ["plain", "tls"])
async def test_matrix(tmp_path: Path, users: Users, kind: str) -> None:
    """Every request by everybody, and no effect of any that is refused."""
    everybody = {**NOBODIES, **SOMEBODIES, "inner": known_as("inner", "of-the-brokers")}
    wrong = []
    spoken = transport(kind, tmp_path)
    async with guarded_namesrv(users, spoken.server) as namesrv, AsyncExitStack() as stack:
        clients = {
            who: await stack.enter_async_context(asking(namesrv.port, credentials, spoken.client))
            for who, credentials in everybody.items()
        }
        for row in NAME_SERVER:
            for who, client in clients.items():
                before = known(namesrv)
                answer = await client.call(row.code, row.fields, row.body)
                at = f"{row.code} {row.fields} by {who}"
                # Brokers are a Super user too.
                expected = row.root if who == "inner" else getattr(row, who, REFUSED)
                if answer.code != expected:
                    wrong.append(f"{at}: {answer.code} not {expected}: {answer.remark}")
                if answer.code == REFUSED and known(namesrv) != before:
                    wrong.append(f"{at} had an effect")
    assert wrong == []


async def test_no_request_is_left_out_of_the_matrix(namesrv: NamesrvController) -> None:
    """Whatever a name server answers has a row there, and one in the table of needs."""
    answered = set(namesrv.dispatcher.codes)
    assert set(namesrv_rows()) == answered
    assert answered <= {row.code for row in NAME_SERVER}


async def test_a_broker_registers_with_its_own_credentials(
    tmp_path: Path, namesrv: NamesrvController, users: Users
) -> None:
    """And clients of it get the route."""
    address = f"127.0.0.1:{namesrv.port}"
    async with guarded_broker(
        tmp_path, users, replace(GUARDED, inner_client_authentication_credentials=INNER),
        namesrv_addr=address,
    ) as broker:  # fmt: skip
        assert [state.registered for state in broker.registration.states()] == [True]
        async with asking(broker.port, known_as("root")) as root:
            await root.make_topic("T")
        async with asking(namesrv.port, known_as("producer")) as producer:
            answer = await producer.ok(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        (data,) = decode_topic_route(answer.body).broker_datas
        assert data.broker_addrs == {0: broker.address}
    # It has said good-bye, signed too.
    assert namesrv.routes.broker_addresses("broker-a") == {}


@pytest.mark.parametrize(
    "inner", ["", '{"accessKey":"inner","secretKey":"a-wrong-one"}'], ids=["none", "wrong"]
)
async def test_a_broker_that_cannot_prove_itself_is_not_registered(
    tmp_path: Path,
    namesrv: NamesrvController,
    users: Users,
    inner: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It serves those who know it, and says why others do not."""
    security = replace(GUARDED, inner_client_authentication_credentials=inner)
    address = f"127.0.0.1:{namesrv.port}"
    async with guarded_broker(tmp_path, users, security, namesrv_addr=address) as broker:
        (state,) = broker.registration.states()
        assert not state.registered
        assert state.error is not None
        assert f"CODE: {REFUSED}" in state.error
    assert "; innerClientAuthenticationCredentials says who this broker is" in caplog.text
    assert "evil" not in known(namesrv)["brokers"]  # type: ignore[operator]
    assert "broker-a" not in str(known(namesrv)["brokers"])


async def test_forged_registrations_change_no_route(
    tmp_path: Path, namesrv: NamesrvController, users: Users
) -> None:
    """What would send producers to somebody else."""
    security = replace(GUARDED, inner_client_authentication_credentials=INNER)
    address = f"127.0.0.1:{namesrv.port}"
    async with guarded_broker(tmp_path, users, security, namesrv_addr=address) as broker:
        async with asking(broker.port, known_as("root")) as root:
            await root.make_topic("T")
        before = known(namesrv)
        forged = OF_BROKER | {"brokerName": "broker-a", "clusterName": "DefaultCluster"}
        for credentials in (None, known_as("producer"), known_as("inner", "guessed")):
            async with asking(namesrv.port, credentials) as client:
                for code in (Code.REGISTER_BROKER, Code.UNREGISTER_BROKER):
                    answer = await client.call(code, forged, BODY)
                    assert answer.code == REFUSED
        assert known(namesrv) == before


def standalone(root: Path, security: SecurityConfig) -> Settings:
    """Return the settings of a process of both on free ports."""
    return Settings(
        role="standalone",
        broker=BrokerConfig(listen_port=0, bind_address="127.0.0.1", http_port=-1),
        store=small_store(root),
        namesrv=NamesrvConfig(listen_port=0, bind_address="127.0.0.1"),
        security=security,
    )  # fmt: skip


async def test_standalone_needs_no_credentials_for_itself(tmp_path: Path) -> None:
    """It makes some for each start, and one directory of users serves both of its parts."""
    security = replace(
        GUARDED, init_authentication_user='{"username":"root","password":"12345678"}'
    )
    node = Node(standalone(tmp_path, security))
    await node.start()
    try:
        assert node.broker is not None
        assert node.namesrv is not None
        assert [state.registered for state in node.broker.registration.states()] == [True]
        async with asking(node.broker.port, known_as("root")) as root:
            await root.make_topic("T")
            settings = await root.ok(Code.GET_BROKER_CONFIG)
        for secret in (b"12345678", node.broker.settings.security
                       .inner_client_authentication_credentials.encode()):  # fmt: skip
            assert secret not in settings.body
        async with asking(node.namesrv.port, known_as("root")) as root:
            await root.ok(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        async with asking(node.namesrv.port, None) as nobody:
            answer = await nobody.call(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
            assert answer.code == REFUSED
    finally:
        await node.shutdown()


@pytest.mark.parametrize(
    "security",
    [
        SecurityConfig(authentication_enabled=True),
        SecurityConfig(acl_enable=True),
        SecurityConfig(acl_enable=True, plain_acl_file="/no/such/file.yml"),
        SecurityConfig(authentication_enabled=True, auth_users_path="/no/such/folder"),
    ],
    ids=["no user", "no file named", "no file", "no folder"],
)
async def test_what_cannot_be_guarded_does_not_start(
    tmp_path: Path, security: SecurityConfig
) -> None:
    """Rather than with a door that is open, or that nobody can open."""
    roles: tuple[Role, ...] = ("standalone", "broker", "namesrv")
    for role in roles:
        node = Node(replace(standalone(tmp_path, security), role=role))
        if role == "standalone" and security == SecurityConfig(authentication_enabled=True):
            continue  # It has a user of its own.
        with pytest.raises(ConfigError):
            await node.start()
        assert node.broker is None
        assert node.namesrv is None


async def test_an_open_server_is_open(tmp_path: Path) -> None:
    """Without the keys nothing is asked, whatever is signed."""
    node = Node(standalone(tmp_path, SIGNS))
    await node.start()
    try:
        assert node.broker is not None
        assert node.broker.guard is None
        assert type(node.broker.dispatcher).__name__ == "BrokerDispatcher"
        for credentials in (None, known_as("stranger")):
            async with asking(node.broker.port, credentials) as client:
                await client.make_topic("T")
                await client.send("T", b"x")
    finally:
        await node.shutdown()
