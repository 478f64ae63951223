"""A broker and its name servers over real sockets."""

import asyncio
import json
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from small_store import small_store

from mailboat.broker import registration
from mailboat.broker.controller import BrokerController
from mailboat.broker.registration import NamesrvRegistration
from mailboat.config import BrokerConfig, NamesrvConfig, Settings
from mailboat.model.batch import encode_batch
from mailboat.model.message import Message
from mailboat.model.topic import Perm
from mailboat.namesrv.controller import NamesrvController
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand
from mailboat.protocol.heartbeat import ConsumerData, HeartbeatData, encode_heartbeat
from mailboat.protocol.register_broker import decode_register_broker
from mailboat.protocol.route import decode_topic_route
from mailboat.remoting.client import RemotingClient
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.remoting.server import RemotingServer

REQUEST_S = 15.0
"""Less than a broker waits for the answer of a name server (registerBrokerTimeoutMills)."""


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """Close in the end, in reverse order, what a test opened."""
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def client(stack: AsyncExitStack) -> RemotingClient:
    """Return a client of brokers and name servers."""
    client = RemotingClient()
    stack.push_async_callback(client.close)
    return client


async def start_namesrv(stack: AsyncExitStack, port: int = 0) -> NamesrvController:
    """Run a name server."""
    namesrv = NamesrvController(
        Settings(role="namesrv", namesrv=NamesrvConfig(listen_port=port, bind_address="127.0.0.1"))
    )
    await namesrv.start()
    stack.push_async_callback(namesrv.shutdown)
    return namesrv


async def start_broker(
    stack: AsyncExitStack,
    root: Path,
    *ports: int,
    route_kept_seconds: int = 0,
    flush_disk_type: str = "ASYNC_FLUSH",
) -> BrokerController:
    """Run a broker that knows the name servers on these ports."""
    broker = BrokerController(
        Settings(
            role="broker",
            broker=BrokerConfig(
                listen_port=0,
                bind_address="127.0.0.1",
                namesrv_addr=";".join(f"127.0.0.1:{port}" for port in ports),
                route_kept_seconds=route_kept_seconds,
            ),
            store=small_store(root, flush_disk_type=flush_disk_type),
        )
    )
    await broker.start()
    stack.push_async_callback(broker.shutdown)
    return broker


class SlowNamesrv:
    """A name server that takes its time: it answers registrations only while `go` is set."""

    def __init__(self) -> None:
        """Begin with answers."""
        self.go = asyncio.Event()
        self.go.set()
        self.requests: list[RemotingCommand] = []
        dispatcher = Dispatcher()
        dispatcher.register(RequestCode.REGISTER_BROKER, self._answer)
        dispatcher.register(RequestCode.UNREGISTER_BROKER, self._answer)
        self.server = RemotingServer(dispatcher, name="slow namesrv")

    async def start(self, stack: AsyncExitStack) -> int:
        """Listen; return the port."""
        await self.server.start("127.0.0.1", 0)
        stack.push_async_callback(self.server.close)
        return self.server.port

    async def _answer(self, _: Connection, command: RemotingCommand) -> RemotingCommand:
        self.requests.append(command)
        await self.go.wait()
        return command.response(ResponseCode.SUCCESS)


async def addresses_of(client: RemotingClient, port: int, topic: str) -> list[str]:
    """Return the addresses that a name server gives for a topic."""
    request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    answer = await client.request(f"127.0.0.1:{port}", request, REQUEST_S)
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return []
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    route = decode_topic_route(answer.body)
    return [address for data in route.broker_datas for address in data.broker_addrs.values()]


async def make_topic(client: RemotingClient, broker: BrokerController, topic: str) -> None:
    """Make a topic as mqadmin does."""
    fields: dict[str, ExtValue] = {
        "topic": topic, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "order": False,
    }  # fmt: skip
    request = RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    answer = await client.request(broker.address, request, REQUEST_S)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def join_group(client: RemotingClient, broker: BrokerController, group: str) -> None:
    """Send the heartbeat of a group's consumer, which has to succeed."""
    body = encode_heartbeat(HeartbeatData("c", [], [ConsumerData(group)]))
    request = RemotingCommand.request(RequestCode.HEART_BEAT, body=body)
    answer = await client.request(broker.address, request, REQUEST_S)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def first_send(
    client: RemotingClient, broker: BrokerController, topic: str, *, as_batch: bool = False
) -> RemotingCommand:
    """Send to a topic that may not be there yet, a message or a batch of two."""
    fields: dict[str, ExtValue] = {
        "a": "PG", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": "",
        "j": 0, "k": False, "m": as_batch,
    }  # fmt: skip
    code = RequestCode.SEND_BATCH_MESSAGE if as_batch else RequestCode.SEND_MESSAGE_V2
    batch = encode_batch([Message(topic, b"one"), Message(topic, b"two")], ["K1", "K2"])
    request = RemotingCommand.request(code, fields, batch if as_batch else b"one")
    return await client.request(broker.address, request, REQUEST_S)


def let_changes_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let whoever waits for a name server do so beyond the time of any request, which then fails.

    Without it a wait takes a second, as requests do on a busy machine.
    """
    monkeypatch.setattr(NamesrvRegistration.register_now, "__defaults__", (60.0,))
    for name in ("_FIRST_RETRY_S", "_LAST_RETRY_S"):
        monkeypatch.setattr(registration, name, 120.0)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition of somebody else's state holds."""
    async with asyncio.timeout(60):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.02)


async def test_a_started_broker_is_known(
    stack: AsyncExitStack, client: RemotingClient, tmp_path: Path
) -> None:
    """When start returns, a producer finds the model topic and may send to a new one."""
    namesrv = await start_namesrv(stack)
    broker = await start_broker(stack, tmp_path, namesrv.port)
    assert await addresses_of(client, namesrv.port, "TBW102") == [broker.address]
    assert broker.registration.name_servers == {f"127.0.0.1:{namesrv.port}": True}


async def test_every_name_server_is_told(
    stack: AsyncExitStack, client: RemotingClient, tmp_path: Path
) -> None:
    """With several name servers each of them knows the topics; a double address counts once."""
    first, second = await start_namesrv(stack), await start_namesrv(stack)
    broker = await start_broker(stack, tmp_path, first.port, second.port, first.port)
    await make_topic(client, broker, "T")
    assert await addresses_of(client, first.port, "T") == [broker.address]
    assert await addresses_of(client, second.port, "T") == [broker.address]
    assert len(broker.registration.name_servers) == 2


async def test_a_new_topic_is_known_when_it_is_answered(
    stack: AsyncExitStack, client: RemotingClient, tmp_path: Path
) -> None:
    """mqadmin asks for the route right after the answer, and so do consumers of %RETRY%."""
    namesrv = await start_namesrv(stack)
    broker = await start_broker(stack, tmp_path, namesrv.port)
    for number in range(20):
        await make_topic(client, broker, f"T{number}")
        assert await addresses_of(client, namesrv.port, f"T{number}") == [broker.address]
        await join_group(client, broker, f"G{number}")
        assert await addresses_of(client, namesrv.port, f"%RETRY%G{number}") == [broker.address]


async def test_a_new_group_is_answered_after_its_registration(
    stack: AsyncExitStack, client: RemotingClient, tmp_path: Path
) -> None:
    """The heartbeat waits for a slow name server, though not for ever."""
    namesrv = SlowNamesrv()
    broker = await start_broker(stack, tmp_path, await namesrv.start(stack))
    namesrv.go.clear()
    heartbeat = asyncio.create_task(join_group(client, broker, "G"))
    done, _ = await asyncio.wait({heartbeat}, timeout=0.3)
    assert not done
    namesrv.go.set()
    await heartbeat
    table = decode_register_broker(namesrv.requests[-1].body)
    assert "%RETRY%G" in table.topic_config_table


async def test_a_registration_says_who_the_broker_is(
    stack: AsyncExitStack, client: RemotingClient, tmp_path: Path
) -> None:
    """Every field that a Java name server needs is there, and the checksum is that of the body."""
    namesrv = SlowNamesrv()
    broker = await start_broker(stack, tmp_path, await namesrv.start(stack))
    request = namesrv.requests[0]
    identity = json.loads((tmp_path / "mailboat" / "identity.json").read_text())["id"]
    assert request.ext_fields == {
        "brokerIdentity": identity,
        "brokerName": "broker-a",
        "brokerAddr": broker.address,
        "clusterName": "DefaultCluster",
        "brokerId": "0",
        "haServerAddr": broker.address,
        "compressed": "false",
        "bodyCrc32": str(zlib.crc32(request.body) & 0x7FFFFFFF),
    }
    assert decode_register_broker(request.body).topic_config_table["TBW102"].perm == 7


async def test_a_second_broker_of_the_name_is_told(
    stack: AsyncExitStack, client: RemotingClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is refused with the address of the first one, says so, and has the place after that."""
    namesrv = await start_namesrv(stack)
    first = await start_broker(stack, tmp_path / "first", namesrv.port)
    await make_topic(client, first, "T")
    second = await start_broker(stack, tmp_path / "second", namesrv.port)
    (state,) = second.registration.states()
    assert (state.registered, state.held_by) == (False, first.address)
    assert f"is registered at {first.address}, which lives" in str(state.error)
    assert second.registration.refusal() == (
        f"{first.address} has the broker name broker-a at name server 127.0.0.1:{namesrv.port}"
    )
    assert f"is registered at {first.address}" in caplog.text
    assert await addresses_of(client, namesrv.port, "T") == [first.address]
    assert first.registration.refusal() is None

    await first.shutdown()

    async def has_the_place() -> bool:
        return second.registration.states()[0].registered

    await eventually(has_the_place)
    assert namesrv.routes.broker_addresses("broker-a") == {0: second.address}
    assert second.registration.refusal() is None


async def test_the_end_is_told_before_it_comes(
    stack: AsyncExitStack, client: RemotingClient, tmp_path: Path
) -> None:
    """A broker unregisters first, so that producers turn away while it still answers."""
    namesrv = SlowNamesrv()
    broker = await start_broker(stack, tmp_path, await namesrv.start(stack))
    await broker.shutdown()
    request = namesrv.requests[-1]
    assert request.code == RequestCode.UNREGISTER_BROKER
    assert request.ext_fields == {
        "brokerName": "broker-a",
        "brokerAddr": broker.address,
        "clusterName": "DefaultCluster",
        "brokerId": "0",
    }


async def test_the_address_of_leaders_is_not_taken_back(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    """Whoever leads has the address of its group. One that leads no more leaves it to the next
    leader, which may have registered there before; one that begins to lead gives up its own."""
    namesrv = SlowNamesrv()
    broker = await start_broker(stack, tmp_path, await namesrv.start(stack))
    registration = broker.registration
    roles = [(1, "10.0.0.2:10911"), (0, "10.96.0.1:10911"), (2, "10.0.0.2:10911")]
    for broker_id, address in roles:
        registration.broker_id = lambda broker_id=broker_id: broker_id  # type: ignore[misc]
        registration.address = lambda address=address: address  # type: ignore[misc]
        assert await registration.register_now()
    told = [
        (request.code, request.ext_fields["brokerId"], request.ext_fields["brokerAddr"])
        for request in namesrv.requests[-4:]
    ]
    assert told == [
        (RequestCode.REGISTER_BROKER, "1", "10.0.0.2:10911"),
        (RequestCode.REGISTER_BROKER, "0", "10.96.0.1:10911"),
        (RequestCode.UNREGISTER_BROKER, "1", "10.0.0.2:10911"),
        (RequestCode.REGISTER_BROKER, "2", "10.0.0.2:10911"),
    ]


async def test_a_broker_that_may_be_back_says_for_how_long_its_routes_are_kept(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    """With each registration, in case that it is killed, and when it ends in order."""
    namesrv = SlowNamesrv()
    port = await namesrv.start(stack)
    broker = await start_broker(stack, tmp_path, port, route_kept_seconds=60)
    assert namesrv.requests[-1].ext_fields["routeKeptMillis"] == "60000"
    broker.change_config({"routeKeptSeconds": "5"})
    await broker.registration.register_now()
    assert namesrv.requests[-1].ext_fields["routeKeptMillis"] == "5000"
    await broker.shutdown()
    last = namesrv.requests[-1]
    assert last.code == RequestCode.UNREGISTER_BROKER
    assert last.ext_fields["routeKeptMillis"] == "5000"


async def test_a_name_server_that_is_left_keeps_no_routes(
    stack: AsyncExitStack, client: RemotingClient, tmp_path: Path
) -> None:
    """The broker runs on without it: what it knows would soon be wrong."""
    left, stays = await start_namesrv(stack), await start_namesrv(stack)
    broker = await start_broker(stack, tmp_path, left.port, stays.port, route_kept_seconds=60)
    broker.change_config({"namesrvAddr": f"127.0.0.1:{stays.port}"})

    async def is_left() -> bool:
        return await addresses_of(client, left.port, "TBW102") == []

    await eventually(is_left)
    assert await addresses_of(client, stays.port, "TBW102") == [broker.address]


async def test_the_routes_of_a_broker_that_restarts_are_kept(
    stack: AsyncExitStack, client: RemotingClient, tmp_path: Path
) -> None:
    """Whoever looks meanwhile finds its address; back, it takes sends again."""
    namesrv = await start_namesrv(stack)
    broker = await start_broker(stack, tmp_path, namesrv.port, route_kept_seconds=60)
    await broker.shutdown()
    assert await addresses_of(client, namesrv.port, "TBW102") == [broker.address]
    assert namesrv.routes.broker_count() == 0
    await start_broker(stack, tmp_path, namesrv.port, route_kept_seconds=60)
    assert namesrv.routes.broker_count() == 1
    route = namesrv.routes.route("TBW102")
    assert route is not None
    assert [item.perm & Perm.WRITE for item in route.queue_datas] == [Perm.WRITE]


async def test_a_topic_that_nobody_waits_for_is_registered(
    stack: AsyncExitStack, client: RemotingClient, tmp_path: Path
) -> None:
    """One that the broker makes for itself, such as a dead letter's, is registered at once."""
    namesrv = await start_namesrv(stack)
    broker = await start_broker(stack, tmp_path, namesrv.port)
    broker.topics.create_in_send("T", "TBW102", 4)

    async def is_known() -> bool:
        return await addresses_of(client, namesrv.port, "T") == [broker.address]

    await eventually(is_known)


@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("as_batch", [False, True], ids=["message", "batch"])
async def test_a_topic_made_by_a_message_is_known_when_it_is_answered(
    stack: AsyncExitStack,
    client: RemotingClient,
    tmp_path: Path,
    as_batch: bool,
    flush_disk_type: str,
) -> None:
    """Whoever asks for the route right after the first send finds it."""
    namesrv = await start_namesrv(stack)
    broker = await start_broker(stack, tmp_path, namesrv.port, flush_disk_type=flush_disk_type)
    for number in range(20):
        answer = await first_send(client, broker, f"T{number}", as_batch=as_batch)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert await addresses_of(client, namesrv.port, f"T{number}") == [broker.address]


@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("as_batch", [False, True], ids=["message", "batch"])
async def test_only_the_send_that_made_the_topic_waits(
    stack: AsyncExitStack,
    client: RemotingClient,
    tmp_path: Path,
    as_batch: bool,
    flush_disk_type: str,
) -> None:
    """It waits for a slow name server, stored and in its place; the next ones do not."""
    namesrv = SlowNamesrv()
    port = await namesrv.start(stack)
    broker = await start_broker(stack, tmp_path, port, flush_disk_type=flush_disk_type)
    namesrv.go.clear()
    first = asyncio.create_task(first_send(client, broker, "T", as_batch=as_batch))
    done, _ = await asyncio.wait({first}, timeout=0.3)
    assert not done
    second = await first_send(client, broker, "T")
    assert not first.done()
    namesrv.go.set()
    answer = await first
    assert (answer.code, second.code) == (ResponseCode.SUCCESS, ResponseCode.SUCCESS)
    assert answer.ext_fields["queueOffset"] == "0"
    assert second.ext_fields["queueOffset"] == ("2" if as_batch else "1")
    assert "T" in decode_register_broker(namesrv.requests[-1].body).topic_config_table


async def test_a_send_that_waits_is_answered_before_the_end(
    stack: AsyncExitStack, client: RemotingClient, tmp_path: Path
) -> None:
    """A broker that stops answers who made a topic, and leaves its name servers after that."""
    namesrv = SlowNamesrv()
    broker = await start_broker(stack, tmp_path, await namesrv.start(stack))
    namesrv.go.clear()
    registrations = len(namesrv.requests)
    first = asyncio.create_task(first_send(client, broker, "T"))

    async def is_asked() -> bool:
        return len(namesrv.requests) > registrations

    await eventually(is_asked)
    await broker.shutdown()
    assert (await first).code == ResponseCode.SUCCESS
    assert namesrv.requests[-1].code == RequestCode.UNREGISTER_BROKER


async def test_a_broker_that_leaves_registers_no_more(
    stack: AsyncExitStack,
    client: RemotingClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What still comes over connections that are open is answered, and calls nobody back."""
    namesrv = SlowNamesrv()
    broker = await start_broker(stack, tmp_path, await namesrv.start(stack))
    await broker.registration.unregister()
    let_changes_wait(monkeypatch)
    await make_topic(client, broker, "T")
    await join_group(client, broker, "G")
    assert (await first_send(client, broker, "U")).code == ResponseCode.SUCCESS
    assert namesrv.requests[-1].code == RequestCode.UNREGISTER_BROKER


async def test_a_broker_that_ends_is_forgotten(
    stack: AsyncExitStack, client: RemotingClient, tmp_path: Path
) -> None:
    """Shutdown unregisters before anything else, so that producers turn away."""
    namesrv = await start_namesrv(stack)
    broker = await start_broker(stack, tmp_path, namesrv.port)
    await broker.shutdown()
    assert await addresses_of(client, namesrv.port, "TBW102") == []


async def test_a_name_server_that_is_down_holds_nobody_up(
    stack: AsyncExitStack,
    client: RemotingClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker starts and serves without one of its name servers, and tells the other."""
    up, down = await start_namesrv(stack), await start_namesrv(stack)
    await down.shutdown()
    let_changes_wait(monkeypatch)
    broker = await start_broker(stack, tmp_path, down.port, up.port)
    for number in range(5):
        await make_topic(client, broker, f"T{number}")
        assert await addresses_of(client, up.port, f"T{number}") == [broker.address]
    assert broker.registration.name_servers == {
        f"127.0.0.1:{down.port}": False,
        f"127.0.0.1:{up.port}": True,
    }


@pytest.mark.parametrize("make", [make_topic, first_send], ids=["admin", "send"])
async def test_a_name_server_that_hangs_is_waited_for_once(
    stack: AsyncExitStack,
    client: RemotingClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[RemotingClient, BrokerController, str], Awaitable[object]],
) -> None:
    """A name server that takes connections and never answers costs one second, not one each."""

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    stack.callback(server.close)
    started = time.monotonic()
    broker = await start_broker(stack, tmp_path, server.sockets[0].getsockname()[1])
    assert time.monotonic() - started > 0.9
    let_changes_wait(monkeypatch)
    for number in range(5):
        await make(client, broker, f"T{number}")


async def test_a_name_server_that_comes_back_is_told_soon(
    stack: AsyncExitStack, client: RemotingClient, tmp_path: Path
) -> None:
    """After its restart a name server knows nothing; brokers do not wait for their next period."""
    first = await start_namesrv(stack)
    broker = await start_broker(stack, tmp_path, first.port)
    await make_topic(client, broker, "T")
    await first.shutdown()
    second = await start_namesrv(stack, first.port)

    async def is_known() -> bool:
        return await addresses_of(client, second.port, "T") == [broker.address]

    await eventually(is_known)
    assert broker.registration.name_servers == {f"127.0.0.1:{second.port}": True}


async def test_a_burst_of_changes_shares_registrations(
    stack: AsyncExitStack, client: RemotingClient, tmp_path: Path
) -> None:
    """A hundred topics at once do not make a hundred registrations, and none is left out."""
    namesrv = await start_namesrv(stack)
    broker = await start_broker(stack, tmp_path, namesrv.port)
    await asyncio.gather(*(make_topic(client, broker, f"T{number}") for number in range(100)))
    for number in range(100):
        assert await addresses_of(client, namesrv.port, f"T{number}") == [broker.address]
