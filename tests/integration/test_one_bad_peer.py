"""Whatever one peer sends, leaves unsent or does not read, the broker's memory has its budget.

Each test has a peer that behaves badly and one that is served meanwhile. What is kept is looked at
where the bytes are: in the buffers of the broker's connections, after each round of its loop.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing, suppress
from pathlib import Path

import pytest
from raw_client import RawClient
from real_time import at_most_s

from mailboat.broker.controller import BrokerController
from mailboat.model.message_id import decode_offset_message_id
from mailboat.model.subscription import SubscriptionData
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand, decode_command
from mailboat.protocol.frame import FrameDecoder
from mailboat.protocol.heartbeat import (
    BROADCASTING,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    encode_heartbeat,
)
from mailboat.testing.cluster import Cluster

MIB = 1 << 20
BUDGET = 32 * MIB
TOPIC = "T"
GROUP = "G"


class Watched:
    """A broker, and the most bytes that its connections kept at a time."""

    def __init__(self, broker: BrokerController) -> None:
        """Watch from now on."""
        self.broker = broker
        self.most_bytes = 0
        self._look()

    @property
    def address(self) -> str:
        """Where it listens."""
        return self.broker.address

    def kept_bytes(self) -> int:
        """Return the unread answers and unfinished frames that are in memory."""
        return sum(
            connection.unsent_bytes() + connection._decoder.buffered_bytes
            for connection in self.broker._server.connections
        )

    def close(self) -> None:
        """Look no more."""
        self._handle.cancel()

    def _look(self) -> None:
        self.most_bytes = max(self.most_bytes, self.kept_bytes())
        self._handle = asyncio.get_running_loop().call_later(0.001, self._look)


class DeafPeer:
    """A connection whose peer reads only when it is told to."""

    def __init__(self, address: str) -> None:
        """Connect."""
        host, _, port = address.rpartition(":")
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.connect((host, int(port)))
        self._socket.setblocking(False)

    async def send(self, data: bytes) -> None:
        """Send bytes."""
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def answers(self, count: int) -> list[RemotingCommand]:
        """Read so many answers; fewer if the connection ends."""
        loop, decoder = asyncio.get_running_loop(), FrameDecoder()
        found: list[RemotingCommand] = []
        while len(found) < count:
            data = await loop.sock_recv(self._socket, MIB)
            if not data:
                break
            found += map(decode_command, decoder.feed(data))
        return found

    def close(self) -> None:
        """Disconnect."""
        self._socket.close()


Connect = Callable[[str], DeafPeer]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connect peers that do not read and disconnect them in the end."""
    with ExitStack() as peers:

        def connect(address: str) -> DeafPeer:
            return peers.enter_context(closing(DeafPeer(address)))

        yield connect


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    """Run a broker with the smallest budget."""
    options = {
        "unsentBudgetBytes": str(BUDGET),
        "mappedFileSizeCommitLog": str(64 * MIB),
        "maxMessageSize": str(8 * MIB),
    }
    async with Cluster(tmp_path, options=options) as cluster:
        watched = Watched(cluster.broker())
        yield watched
        watched.close()


@asynccontextmanager
async def good_client(watched: Watched) -> AsyncIterator[RawClient]:
    """Connect a client that knows how to behave, with a topic and a group."""
    client = RawClient(watched.address)
    await client.make_topic(TOPIC)
    await client.heartbeat(TOPIC, group=GROUP, producer="PG")
    try:
        yield client
    finally:
        await client.close()


def pull_request(queue_offset: int, opaque: int) -> bytes:
    """Return a pull that waits for a message."""
    fields = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "queueOffset": queue_offset,
        "maxMsgNums": 1, "sysFlag": 6, "commitOffset": 0, "suspendTimeoutMillis": 60_000,
        "subscription": "*", "subVersion": 0, "expressionType": "TAG",
    }  # fmt: skip
    command = RemotingCommand.request(RequestCode.PULL_MESSAGE, fields)
    command.opaque = opaque
    return command.encode()


async def until(check: Callable[[], bool], within_s: float = 20.0) -> None:
    """Wait for something that nothing tells of."""
    async with asyncio.timeout(within_s):
        while not check():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)


async def test_long_polls_of_a_peer_that_does_not_read(watched: Watched, connect: Connect) -> None:
    """One message for 400 of them costs its size once; all are answered when the peer reads."""
    async with good_client(watched) as client:
        peer = connect(watched.address)
        await peer.send(b"".join(pull_request(0, number) for number in range(400)))
        await until(lambda: len(watched.broker.pull_holds) == 400)
        began_s = time.monotonic()
        await client.send(TOPIC, b"x" * (MIB // 2))
        await client.send(TOPIC, b"y")
        assert time.monotonic() - began_s < at_most_s(2, 20)
        answer = await client.pull(GROUP, TOPIC, 1)
        assert answer.code == ResponseCode.SUCCESS
        assert watched.most_bytes < 4 * MIB
        async with asyncio.timeout(60):
            answers = await peer.answers(400)
        assert [answer.opaque for answer in answers] == list(range(400))
        assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
        assert watched.most_bytes < 4 * MIB


async def test_long_polls_of_many_peers_that_do_not_read(
    watched: Watched, connect: Connect
) -> None:
    """Their answers stay within the budget in sum, and whoever reads goes on being served."""
    async with good_client(watched) as client:
        for _ in range(60):
            await connect(watched.address).send(pull_request(0, 1))
        await until(lambda: len(watched.broker.pull_holds) == 60)
        await client.send(TOPIC, b"x" * (4 * MIB))
        for number in range(5):
            answer = await client.pull(GROUP, TOPIC, number)
            assert answer.code == ResponseCode.SUCCESS
            await client.send(TOPIC, b"y")
        assert watched.most_bytes < BUDGET


async def test_frames_that_are_never_finished(watched: Watched, connect: Connect) -> None:
    """Sixty times 15 MiB stay within the budget; a large message of another peer gets through."""
    part = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, body=bytes(15 * MIB)).encode()
    async with good_client(watched) as client:
        peers = [connect(watched.address) for _ in range(60)]

        async def begin(peer: DeafPeer) -> None:
            # Its connection may be closed.
            with suppress(OSError):
                await peer.send(part[:-1])

        sends = [asyncio.create_task(begin(peer)) for peer in peers]
        await asyncio.wait(sends, timeout=20)
        await client.send(TOPIC, b"x" * (4 * MIB))
        # One read of each connection may come before the budget is looked at.
        assert watched.most_bytes < BUDGET + MIB
        for send in sends:
            send.cancel()


async def reply(client: RawClient, name: str, size: int = 10) -> RemotingCommand:
    """Reply to the client of a name."""
    fields: dict[str, ExtValue] = {
        "a": "repliers", "b": "R", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0,
        "i": f"REPLY_TO_CLIENT\x01{name}\x02", "j": 0, "k": False, "m": False,
    }  # fmt: skip
    return await client.call(RequestCode.SEND_REPLY_MESSAGE_V2, fields, bytes(size))


async def test_replies_to_a_client_that_does_not_read(watched: Watched, connect: Connect) -> None:
    """What another peer answers it is refused, not kept; others get their replies."""
    async with good_client(watched) as client:
        client.respond = lambda command: command.response(ResponseCode.SUCCESS)
        deaf = connect(watched.address)
        await deaf.send(_producer_heartbeat("deaf"))
        assert [answer.code for answer in await deaf.answers(1)] == [ResponseCode.SUCCESS]

        # One after the other, for what a client sends at once counts as kept for that client; the
        # first ones are held, until the system's buffers are full and it shows that nobody reads.
        replies = []
        for _ in range(12):
            replies.append(asyncio.create_task(reply(client, "deaf", 4 * MIB)))
            await asyncio.wait(replies[-1:], timeout=1)
        refused = [task.result() for task in replies if task.done()]
        assert len(refused) >= 8
        assert {answer.code for answer in refused} == {ResponseCode.SYSTEM_ERROR}
        assert "does not read what it is sent" in (refused[0].remark or "")
        assert watched.most_bytes < BUDGET
        answer = await reply(client, client.client_id)
        assert answer.code == ResponseCode.SUCCESS
        for task in replies:
            task.cancel()


async def test_replies_to_a_client_that_does_not_answer(watched: Watched) -> None:
    """It has its share of them; locks, sends-back and heartbeats of others go on, and replies."""
    async with good_client(watched) as client, AsyncExitStack() as others:
        client.respond = lambda command: command.response(ResponseCode.SUCCESS)
        silent = RawClient(watched.address, "silent")
        others.push_async_callback(silent.close)
        await silent.heartbeat(producer="silents")
        senders = [RawClient(watched.address, f"sender{number}") for number in range(5)]
        for sender in senders:
            others.push_async_callback(sender.close)
        replies = [
            asyncio.create_task(reply(sender, "silent")) for sender in senders for _ in range(1000)
        ]
        await until(lambda: silent.pushed.qsize() == 1024, 60)
        await until(lambda: sum(task.done() for task in replies) == 3976, 60)
        refused = [task.result() for task in replies if task.done()]
        assert {answer.code for answer in refused} == {ResponseCode.SYSTEM_ERROR}
        assert "has 1024 requests to answer first" in (refused[0].remark or "")
        assert await client.lock(GROUP, TOPIC, 0) == {0}
        await client.heartbeat(TOPIC, group=GROUP)
        message_id = await client.send(TOPIC, b"x")
        place = decode_offset_message_id(message_id).physical_offset
        back: dict[str, ExtValue] = {"group": GROUP, "offset": place, "delayLevel": 3}
        await client.ok(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert (await reply(client, client.client_id)).code == ResponseCode.SUCCESS
        for task in replies:
            task.cancel()
        await asyncio.wait(replies)


async def test_heartbeats_of_ever_new_clients(watched: Watched) -> None:
    """What they leave behind is bounded for a connection, and gone with it; a refused group is not
    made, and what the connection has already goes on."""
    broker = watched.broker
    async with good_client(watched) as client:
        peer = RawClient(watched.address)

        async def beat(client_id: str, **sizes: int) -> RemotingCommand:
            data = HeartbeatData(
                client_id,
                [ProducerData(f"producer-{group}") for group in sizes],
                [
                    ConsumerData(group, subscription_data_set=[SubscriptionData(TOPIC, "x" * size)])
                    for group, size in sizes.items()
                ],
            )
            return await peer.call(RequestCode.HEART_BEAT, body=encode_heartbeat(data))

        codes = [(await beat(f"c{n}", **{f"g{n}": 250_000})).code for n in range(100)]
        assert codes[:30] == [ResponseCode.SUCCESS] * 30
        assert set(codes[40:]) == {ResponseCode.SYSTEM_ERROR}
        kept = sum(
            len(subscription.sub_string)
            for info in broker.consumers.groups.values()
            for subscription in info.subscriptions.values()
        )
        assert kept < 8 * MIB
        assert broker.groups.select("g29") is not None
        assert broker.topics.select("%RETRY%g29") is not None
        assert broker.groups.select("g99") is None
        assert broker.topics.select("%RETRY%g99") is None

        # The refused one stands in front of one that is known.
        [before] = broker.consumers.groups["g29"].members
        answer = await beat("c29", g99=250_000, g29=10)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "of its groups are not registered: the groups and subscriptions of this " in (
            answer.remark or ""
        )
        [after] = broker.consumers.groups["g29"].members
        assert after.last_heartbeat > before.last_heartbeat
        assert "g99" not in broker.consumers.groups

        await client.heartbeat(TOPIC, group=GROUP)
        await peer.close()
        await until(lambda: set(broker.consumers.groups) == {GROUP})
        assert set(broker.producers.groups) == {"PG"}
        assert broker.consumers._limits.size_bytes < 10_000


async def test_an_expression_that_waits_is_kept_once(watched: Watched, connect: Connect) -> None:
    """However often heartbeats bring it before the worker has come to it."""
    filters = watched.broker.sql_filters
    subscriptions = [
        SubscriptionData(f"t{number}", "a > 1", expression_type="SQL92") for number in range(100)
    ]
    # Members of a broadcasting group are told nothing of each other.
    consumer = ConsumerData(GROUP, message_model=BROADCASTING, subscription_data_set=subscriptions)
    data = HeartbeatData("c", [], [consumer])
    filters._is_running = True  # The worker has something else to do.
    request = RemotingCommand.request(RequestCode.HEART_BEAT, body=encode_heartbeat(data))
    peer = connect(watched.address)
    await peer.send(request.encode() * 50)
    answers = await peer.answers(50)
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    assert len(filters._waiting["a > 1"]) == 1
    filters._run_next()
    await filters.check("a > 1")
    assert not filters.is_waiting("a > 1")


def _producer_heartbeat(client_id: str) -> bytes:
    body = b'{"clientID":"%s","producerDataSet":[{"groupName":"deaf"}],"consumerDataSet":[]}'
    command = RemotingCommand.request(RequestCode.HEART_BEAT, body=body % client_id.encode())
    command.opaque = 1
    return command.encode()
