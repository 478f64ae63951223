"""Peers that answer what a test tells them, over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.route import BrokerData, QueueData, TopicRouteData, encode_topic_route
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.remoting.server import RemotingServer

Answer = RemotingCommand | None
Script = Callable[[RemotingCommand], Answer | Awaitable[Answer]]


class Peer:
    """A server that answers by script and remembers what it was asked."""

    def __init__(self) -> None:
        """Prepare a peer that knows no request."""
        self.requests: list[RemotingCommand] = []
        self._asked = asyncio.Event()
        self.connections: list[Connection] = []
        self._dispatcher = Dispatcher()
        self._server = RemotingServer(self._dispatcher, name="peer")

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self._server.port}"

    def answer(self, code: int, script: Script) -> None:
        """Answer requests of one code by `script`."""

        def processor(
            connection: Connection, command: RemotingCommand
        ) -> Answer | Awaitable[Answer]:
            self.requests.append(command)
            self._asked.set()
            if connection not in self.connections:
                self.connections.append(connection)
            return script(command)

        self._dispatcher.register(code, processor)

    def asked(self, code: int) -> list[RemotingCommand]:
        """Return the requests of one code, in order."""
        return [command for command in self.requests if command.code == code]

    async def wait_asked(self, code: int, count: int = 1) -> list[RemotingCommand]:
        """Return the requests of one code once there are `count` of them."""
        async with asyncio.timeout(5):
            while len(self.asked(code)) < count:
                self._asked.clear()
                await self._asked.wait()
        return self.asked(code)

    def push(self, command: RemotingCommand) -> None:
        """Send a one-way request to every client that has asked something."""
        for connection in self.connections:
            connection.send_oneway(command)

    async def start(self) -> None:
        """Listen on a free port."""
        await self._server.start("127.0.0.1", 0)

    async def close(self) -> None:
        """Stop listening and close the connections."""
        await self._server.close(drain_s=0.1)


class NameServer(Peer):
    """A name server whose routes are set by the test."""

    def __init__(self) -> None:
        """Begin without routes."""
        super().__init__()
        self.routes: dict[str, TopicRouteData] = {}
        self.damaged: set[str] = set()
        """Topics whose route is answered with what is none."""
        self.held: dict[str, asyncio.Event] = {}
        """Topics whose route as it was when asked for is told once the event is set."""
        self.answer(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route)

    def set_route(
        self, topic: str, brokers: dict[str, str], *, queues: int = 2, perm: int = 6
    ) -> None:
        """Put a topic with `queues` queues on each of the brokers (name to address)."""
        self.routes[topic] = TopicRouteData(
            [QueueData(name, queues, queues, perm) for name in brokers],
            [BrokerData("C", name, {0: address}) for name, address in brokers.items()],
        )

    async def _route(self, command: RemotingCommand) -> RemotingCommand:
        answer = self._answer(command)
        if command.ext_fields["topic"] in self.held:
            await self.held[command.ext_fields["topic"]].wait()
        return answer

    def _answer(self, command: RemotingCommand) -> RemotingCommand:
        if command.ext_fields["topic"] in self.damaged:
            return command.response(ResponseCode.SUCCESS, body=b"no route")
        route = self.routes.get(command.ext_fields["topic"])
        if route is None:
            return command.response(ResponseCode.TOPIC_NOT_EXIST, "no route")
        return command.response(ResponseCode.SUCCESS, body=encode_topic_route(route))


MakePeer = Callable[[], Awaitable[Peer]]


@pytest.fixture
async def name_server() -> AsyncIterator[NameServer]:
    """Return a running name server without routes."""
    server = NameServer()
    await server.start()
    yield server
    await server.close()


@pytest.fixture
async def make_peer() -> AsyncIterator[MakePeer]:
    """Return a function that starts peers; they are closed after the test."""
    peers: list[Peer] = []

    async def make() -> Peer:
        peer = Peer()
        peers.append(peer)
        await peer.start()
        return peer

    yield make
    for peer in peers:
        await peer.close()
