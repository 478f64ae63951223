"""A name server on a real socket: brokers that come, go and fall silent, and its other duties."""

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mailboat.config import load_settings
from mailboat.model.data_version import DataVersion
from mailboat.model.topic import TopicConfig
from mailboat.namesrv.controller import NamesrvController
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand
from mailboat.protocol.frame import FrameDecoder
from mailboat.protocol.register_broker import encode_register_broker
from mailboat.protocol.route import decode_topic_route
from mailboat.protocol.topic_table import TopicConfigTable
from mailboat.remoting.client import RemotingClient
from mailboat.testing.cluster import Cluster
from mailboat.testing.virtual_time import VirtualTime

IDENTITY: dict[str, ExtValue] = {
    "brokerName": "broker-a",
    "brokerAddr": "10.0.0.1:10911",
    "clusterName": "DefaultCluster",
    "brokerId": 0,
    "haServerAddr": "10.0.0.1:10912",
}
TABLE = TopicConfigTable(
    DataVersion(1, 1), {"T": TopicConfig("T", 4, 4), "U": TopicConfig("U", 1, 1)}
)
LOCAL = {"bindAddress": "127.0.0.1", "listenPort": "0", "httpPort": "-1"}


class Peer:
    """A broker or client of one name server."""

    def __init__(self, namesrv: NamesrvController) -> None:
        """Connect with the first request."""
        self.address = f"127.0.0.1:{namesrv.port}"
        self.client = RemotingClient()

    async def ask(
        self, code: int, ext_fields: dict[str, ExtValue] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Send a request and return its answer."""
        command = RemotingCommand.request(code, ext_fields, body)
        return await self.client.request(self.address, command, 5.0)

    async def register(self) -> None:
        """Register the broker of IDENTITY."""
        answer = await self.ask(
            RequestCode.REGISTER_BROKER, IDENTITY, encode_register_broker(TABLE)
        )
        assert answer.code == ResponseCode.SUCCESS

    async def knows(self, topic: str) -> bool:
        """Ask for a route."""
        answer = await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        return answer.code == ResponseCode.SUCCESS


@pytest.fixture
def clock() -> VirtualTime:
    """Return a clock that stands still."""
    return VirtualTime()


@pytest.fixture
async def namesrv(clock: VirtualTime) -> AsyncIterator[NamesrvController]:
    """Run a name server that looks for silent brokers all the time."""
    overrides = {**LOCAL, "scanNotActiveBrokerInterval": "10"}
    controller = NamesrvController(
        load_settings("namesrv", overrides=overrides), clock=clock.monotonic
    )
    await controller.start()
    yield controller
    await controller.shutdown()


@pytest.fixture
async def broker(namesrv: NamesrvController) -> AsyncIterator[Peer]:
    """Return a peer that plays the broker."""
    peer = Peer(namesrv)
    yield peer
    await peer.client.close()


@pytest.fixture
async def client(namesrv: NamesrvController) -> AsyncIterator[Peer]:
    """Return a peer that plays a client."""
    peer = Peer(namesrv)
    yield peer
    await peer.client.close()


async def _until_unknown(client: Peer, topic: str) -> None:
    async with asyncio.timeout(5):
        while await client.knows(topic):
            continue


async def test_a_registered_topic_is_routed(broker: Peer, client: Peer) -> None:
    """What a broker registers on one connection, a client finds on another."""
    assert not await client.knows("T")
    await broker.register()
    answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    route = decode_topic_route(answer.body)
    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}
    assert route.queue_datas[0].write_queue_nums == 4


async def test_a_closed_connection_ends_the_routes(broker: Peer, client: Peer) -> None:
    """A broker that was killed is gone at once, not after two minutes."""
    await broker.register()
    assert await client.knows("T")
    broker.client.close_address(broker.address)
    await _until_unknown(client, "T")


async def test_a_broker_that_comes_back_is_routed_again(broker: Peer, client: Peer) -> None:
    """Losing the connection costs nothing but the next registration."""
    await broker.register()
    broker.client.close_address(broker.address)
    await _until_unknown(client, "T")
    await broker.register()
    assert await client.knows("T")


async def test_a_silent_broker_is_dropped_and_disconnected(
    broker: Peer, client: Peer, clock: VirtualTime, namesrv: NamesrvController
) -> None:
    """120 s without a registration end routes and connection, though the connection is open."""
    await broker.register()
    clock.advance(119)
    await asyncio.sleep(0.05)
    assert await client.knows("T")
    assert namesrv.connection_count == 2
    clock.advance(2)
    await _until_unknown(client, "T")
    async with asyncio.timeout(5):
        while namesrv.connection_count != 1:
            assert not await client.knows("T")


async def test_a_registration_without_answer_is_taken(
    namesrv: NamesrvController, client: Peer
) -> None:
    """Java brokers register a new topic with the oneway flag; nothing must come back for it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", namesrv.port)
    body = encode_register_broker(TABLE)
    oneway = RemotingCommand.request(RequestCode.REGISTER_BROKER, IDENTITY, body, oneway=True)
    oneway.opaque = 1
    query = RemotingCommand.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    query.opaque = 2
    writer.write(oneway.encode() + query.encode())
    head = await reader.readexactly(4)
    frame = head + await reader.readexactly(struct.unpack(">I", head)[0])
    [(_, header, answer_body)] = FrameDecoder().feed(frame)
    assert b'"opaque":2' in header
    assert answer_body == b'{"topicList":["T","U"]}'
    assert await client.knows("T")
    writer.close()
    await writer.wait_closed()


async def test_an_unknown_request_is_answered(client: Peer) -> None:
    """RocketMQ 4.9's name server lets such a client wait for its timeout."""
    answer = await client.ask(9999)
    assert (answer.code, answer.remark) == (3, " request type 9999 not supported")


async def test_ending_a_name_server_closes_its_connections(client: Peer) -> None:
    """Clients notice at once and ask another one."""
    controller = NamesrvController(load_settings("namesrv", overrides=LOCAL))
    await controller.start()
    peer = Peer(controller)
    assert not await peer.knows("T")
    await controller.shutdown()
    assert controller.connection_count == 0
    await peer.client.close()


async def test_a_standalone_name_server_keeps_order_configurations(tmp_path: Path) -> None:
    """The queues of an ordered topic are known again after a restart."""
    overrides = {
        "storePathRootDir": str(tmp_path),
        "namesrvListenPort": "0",
        "namesrvBindAddress": "127.0.0.1",
    }
    settings = load_settings("standalone", overrides=overrides)
    key: dict[str, ExtValue] = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}
    for fields in (key | {"value": "broker-a:4"}, None):
        controller = NamesrvController(settings)
        await controller.start()
        peer = Peer(controller)
        if fields is not None:
            assert (await peer.ask(RequestCode.PUT_KV_CONFIG, fields)).code == 0
        answer = await peer.ask(RequestCode.GET_KV_CONFIG, key)
        assert answer.ext_fields["value"] == "broker-a:4"
        await peer.client.close()
        await controller.shutdown()
    assert (tmp_path / "namesrv" / "kvConfig.json").exists()


async def test_a_broker_registers_at_every_name_server(tmp_path: Path) -> None:
    """Each of two name servers gives the same route for a topic of either of two brokers."""
    async with Cluster(tmp_path, brokers=2, name_servers=2) as cluster:
        for index in range(2):
            info = cluster.name_server(index).routes.cluster_info()
            assert sorted(info.cluster_addr_table["DefaultCluster"]) == ["broker-a", "broker-b"]
            addresses = {
                name: data.broker_addrs[0] for name, data in info.broker_addr_table.items()
            }
            assert addresses == {
                "broker-a": cluster.broker(0).address,
                "broker-b": cluster.broker(1).address,
            }
            route = cluster.name_server(index).routes.route("TBW102")
            assert route is not None
            assert {item.broker_name for item in route.queue_datas} == {"broker-a", "broker-b"}


async def test_a_broker_that_ends_is_unregistered_and_comes_back(tmp_path: Path) -> None:
    """Its routes go with it; on the same port it is found again."""
    async with Cluster(tmp_path) as cluster:
        routes, address = cluster.name_server().routes, cluster.broker().address
        assert routes.broker_addresses("broker-a") == {0: address}
        await cluster.stop_broker()
        assert routes.broker_addresses("broker-a") == {}
        assert (await cluster.start_broker(0)).address == address
        assert routes.broker_addresses("broker-a") == {0: address}


async def test_many_brokers_that_go_hold_nobody_up(namesrv: NamesrvController) -> None:
    """One connection registers a hundred names and ends; another broker has very many topics. Each
    name is taken out of its own topics, not looked for in all: no callback takes long, which the
    tests of this folder watch."""
    topics = {f"topic-{number:05d}": TopicConfig(f"topic-{number:05d}") for number in range(60_000)}
    many = encode_register_broker(TopicConfigTable(DataVersion(1, 1), topics), compressed=True)
    honest, hostile = Peer(namesrv), Peer(namesrv)
    try:
        big = {**IDENTITY, "compressed": True}
        assert (await honest.ask(RequestCode.REGISTER_BROKER, big, many)).code == 0
        few = encode_register_broker(TABLE)
        for number in range(100):
            fake = {**IDENTITY, "brokerName": f"fake-{number}", "brokerAddr": f"10.0.1.1:{number}"}
            assert (await hostile.ask(RequestCode.REGISTER_BROKER, fake, few)).code == 0
        await hostile.client.close()
        await _until_unknown(honest, "T")
        wiped = await honest.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
        assert wiped.ext_fields["wipeTopicCount"] == "60000"
        assert (await honest.ask(RequestCode.UNREGISTER_BROKER, IDENTITY)).code == 0
        assert not await honest.knows("topic-00000")
        async with asyncio.timeout(5):
            while namesrv.routes.topic_count():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        await honest.client.close()
        await hostile.client.close()


async def test_a_full_key_value_table_keeps_no_broker_out(
    client: Peer, namesrv: NamesrvController
) -> None:
    """Each registration is answered with the order configurations: what would not fit a frame is
    not taken, and there is room again once a key is gone."""
    key: dict[str, ExtValue] = {"namespace": "ORDER_TOPIC_CONFIG", "value": "broker-a:4;" * 5_454}
    codes = set()
    for number in range(80):
        answer = await client.ask(RequestCode.PUT_KV_CONFIG, {**key, "key": f"k{number}"})
        codes.add(answer.code)
    assert codes == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR}
    assert "at most 4194304 are allowed" in (answer.remark or "")
    await client.register()
    await client.ask(RequestCode.DELETE_KV_CONFIG, {**key, "key": "k0"})
    again = await client.ask(RequestCode.PUT_KV_CONFIG, {**key, "key": "k0"})
    assert again.code == ResponseCode.SUCCESS
