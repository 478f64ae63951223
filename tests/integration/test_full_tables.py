"""Every request that there is, of a server whose tables are as full as they may be.

`loop_holds` watches what the server does meanwhile and afterwards: nothing that one request asks
for may take more than 50 ms of the loop at a time. A request that is not in the matrices of the
access tests fails there, so that none is left out here.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import aiohttp
import pytest
from access_matrix import BROKER, NAME_SERVER, Row, filled
from http_matrix import ASKS, OPEN, Ask
from raw_client import RawClient

from mailboat.broker.controller import BrokerController
from mailboat.broker.groups import MAX_GROUPS
from mailboat.broker.membership import ClientInfo, close_silent
from mailboat.errors import BrokerError, PeerBusyError
from mailboat.model.data_version import DataVersion
from mailboat.model.subscription import SubscriptionData, SubscriptionGroupConfig
from mailboat.model.topic import TopicConfig
from mailboat.namesrv.controller import NamesrvController
from mailboat.namesrv.registrations import Registration
from mailboat.protocol.codes import ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.heartbeat import ConsumerData
from mailboat.remoting.connection import Connection
from mailboat.remoting.turns import listed_in_turns
from mailboat.testing.cluster import Cluster

pytestmark = pytest.mark.slow  # To fill the tables alone takes 10 s.

TOPICS = 50_000
QUEUES = 10_000
MEMBERS_OF_G = 150_000
ONLINE_GROUPS = 30_000
PRODUCERS = 20_000
CLIENTS_A_CONNECTION = 2_000
"""More of those that subscribe to topics of their own would take more than 8 MiB."""


class Far:
    """The connection of clients at some address: it takes what it is told, and answers nothing."""

    is_closed = False
    is_write_paused = False

    def __init__(self, address: str, number: int) -> None:
        """Be one of many."""
        self.peer_address = self.peer_host = address
        self.peer = f"{address}:{number}"

    def send_oneway(self, command: RemotingCommand) -> None:
        """Take a push."""

    async def request(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Take no request."""
        raise PeerBusyError(f"{self.peer} has no room for a request")

    def close(self) -> None:
        """Be closed."""
        self.is_closed = True


class Crowd:
    """Clients of two addresses, thousands to a connection."""

    def __init__(self, broker: BrokerController) -> None:
        """Know nobody."""
        self._broker = broker
        self._count = 0
        self.connections: list[Connection] = []

    def client(self) -> ClientInfo:
        """Return one more client."""
        if self._count % CLIENTS_A_CONNECTION == 0:
            far = Far(f"10.0.0.{len(self.connections) % 2}", len(self.connections))
            self.connections.append(cast(Connection, far))
        self._count += 1
        client_id = f"10.0.0.1@{self._count}#client"
        return ClientInfo(self.connections[-1], client_id, "JAVA", 479)

    def consume(self, group: str, *topics: str) -> None:
        """Let one more client consume topics in a group."""
        subscriptions = [SubscriptionData(topic, sub_version=1) for topic in topics]
        data = ConsumerData(group, subscription_data_set=subscriptions)
        self._broker.consumers.register(self.client(), data)

    def produce(self, group: str) -> None:
        """Let one more client be a producer."""
        self._broker.producers.register(self.client(), group)


def fill(broker: BrokerController) -> Crowd:
    """Make as many topics, groups, offsets and members as a broker has room for."""
    broker.topics.update(TopicConfig("T", QUEUES, QUEUES))
    for number in range(TOPICS):
        topic = f"topic-of-a-service-{number:06d}"
        broker.topics.update(TopicConfig(topic, 4, 4))
        broker.offsets.commit("G", topic, 0, 0)
    for queue_id in range(QUEUES):
        broker.offsets.commit("G", "T", queue_id, 0)
    for number in range(MAX_GROUPS - len(broker.groups.table) - 10):
        group = f"group-of-a-service-{number:06d}"
        broker.groups.update(SubscriptionGroupConfig(group))
        broker.offsets.commit(group, "T", 0, 0)
    crowd = Crowd(broker)
    for _ in range(MEMBERS_OF_G):
        crowd.consume("G", "T")
    for number in range(ONLINE_GROUPS):
        group = f"group-of-a-service-{number:06d}"
        crowd.consume(group, "T", f"%RETRY%{group}")
    for _ in range(PRODUCERS):
        crowd.produce("PG")
    return crowd


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Run a name server and a broker."""
    async with Cluster(tmp_path, options={"httpPort": "0"}) as running:
        yield running


async def ask_all(
    client: RawClient, rows: list[Row], stored: dict[str, str], broker: BrokerController | None
) -> None:
    """Send every request of a matrix; the topic and the group that it is about are there."""
    for row in rows:
        if broker is not None:
            broker.topics.update(TopicConfig("T", QUEUES, QUEUES))
            broker.groups.update(SubscriptionGroupConfig("G"))
        answer = await client.call(row.code, filled(row, stored), row.body)
        if answer.code != ResponseCode.SUCCESS:
            assert 0 < len(answer.remark or "") < 1_000, (row, answer.remark)
            assert "internal error" not in (answer.remark or ""), (row, answer.remark)


async def ask_http(address: str) -> None:
    """Send every request of the HTTP API."""
    asks = [Ask(method, path) for method, path in sorted(OPEN)] + list(ASKS.values())
    async with aiohttp.ClientSession(f"http://{address}") as session:
        for ask in asks:
            async with session.request(ask.method, ask.path, json=ask.body) as answer:
                text = await answer.text()
                assert answer.status < 500 or answer.status == 503, (ask, text[:200])


async def test_no_request_of_a_full_broker_holds_it(cluster: Cluster) -> None:
    """100,000 groups, 50,000 topics, one of them with 10,000 queues, 200,000 members.

    It takes a minute: every answer has tens of thousands of lines, and there are 150 requests.
    """
    loop = asyncio.get_running_loop()
    broker = cluster.broker()
    client = RawClient(broker.address)
    for topic in "TU":
        await client.make_topic(topic)
    stored = {topic: await client.send(topic, b"x") for topic in "TU"}
    await client.heartbeat("T", group="G")
    crowd = fill(broker)
    assert await broker.registration.register_now(30.0)
    rounds = broker.reading.rounds_done
    broker.reading.ask_for_round()
    await ask_all(client, BROKER, stored, broker)
    await ask_http(await cluster.http_address())
    broker.reading.ask_for_round()
    async with asyncio.timeout(60):
        while broker.reading.rounds_done < rounds + 2:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.1)
    # A connection that ends takes what it carries along; the others go with their silence.
    for members in (broker.consumers, broker.producers):
        for place in (0, -12, -1):
            loop.call_soon(members.connection_closed, crowd.connections[place])
    await asyncio.sleep(0)
    await loop.create_task(close_silent(broker.consumers, broker.producers, -1.0))
    assert not broker.consumers.groups
    assert not broker.producers.groups
    await client.close()


def registration(number: int, topics: int) -> Registration:
    """Return what one of many brokers says."""
    names = [f"topic-of-a-service-{topic:06d}" for topic in range(topics)]
    return Registration(
        cluster_name="DefaultCluster",
        broker_name=f"broker-{number}",
        broker_id=0,
        address=f"10.{number % 20}.{number // 20 // 250}.{number // 20 % 250}:10911",
        ha_server_address="",
        data_version=DataVersion(1, 1),
        topics={name: TopicConfig(name, 8, 8, topic_sys_flag=3) for name in names},
        host=f"10.{number % 20}.0.1",
    )


async def fill_name_server(namesrv: NamesrvController) -> None:
    """Register as many brokers as there may be, a few of them with very many topics."""
    for number in range(10):
        large = registration(number, 100_000)
        await listed_in_turns(namesrv.routes.register_in_steps(large, f"large-{number}"))
    for number in range(10, 10_000):
        try:
            small = registration(number, 1)
            await listed_in_turns(namesrv.routes.register_in_steps(small, f"small-{number}"))
        except BrokerError:
            return
    raise AssertionError("there is no end to the brokers")


async def test_no_request_of_a_full_name_server_holds_it(cluster: Cluster) -> None:
    """100,000 topics on ten brokers each, one of them on all of 5,000 brokers.

    It takes half a minute: the lists have 100,000 lines.
    """
    namesrv = cluster.name_server()
    await fill_name_server(namesrv)
    client = RawClient(cluster.namesrv_addresses)
    rows = [
        *NAME_SERVER,
        *(
            Row(row.code, {**row.fields, "topic": "topic-of-a-service-000000"}, row.body)
            for row in NAME_SERVER
            if "topic" in row.fields
        ),
        *(
            Row(row.code, {**row.fields, "cluster": "DefaultCluster", "brokerName": "broker-1"})
            for row in NAME_SERVER
            if row.fields.keys() & {"cluster", "brokerName"}
        ),
    ]
    await ask_all(client, rows, {}, None)
    await client.close()
