"""Which frames a connection signs: the requests of the end that has connected, and nothing else.

What a signature has to be is worked out here again from RocketMQ's rule (AclUtils.java): HMAC-SHA1
over the values of all ext fields but the signature, in the order of their names, then the body.
"""

import asyncio
import base64
import hashlib
import hmac

import pytest

from mailboat.protocol.command import RemotingCommand, decode_command
from mailboat.protocol.frame import SERIALIZE_BINARY, FrameDecoder
from mailboat.remoting.client import RemotingClient
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Answer, Dispatcher
from mailboat.remoting.server import RemotingServer
from mailboat.security.client_security import ClientSecurity, Credentials

ALICE = Credentials("alice", "alice-secret")
ASK_BACK = 1001
ECHO = 1000


def expected_signature(fields: dict[str, str], body: bytes, secret: str) -> str:
    """Return what RocketMQ's server compares with."""
    values = "".join(fields[name] for name in sorted(fields) if name != "Signature")
    content = values.encode() + body
    return base64.b64encode(hmac.new(secret.encode(), content, hashlib.sha1).digest()).decode()


class Noted:
    """A server that keeps the frames that it got, as they came, and can ask back."""

    def __init__(self) -> None:
        """Prepare it."""
        self.commands: list[RemotingCommand] = []
        dispatcher = Dispatcher()
        dispatcher.register(ECHO, self._echo)
        dispatcher.register(ASK_BACK, self._ask_back)
        self._server = RemotingServer(dispatcher, name="noted")
        self.answer_of_client: RemotingCommand | None = None
        self.got = asyncio.Event()

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self._server.port}"

    def _echo(self, _: Connection, command: RemotingCommand) -> Answer:
        self.commands.append(command)
        self.got.set()
        return None if command.is_oneway else command.response(0)

    async def _ask_back(self, connection: Connection, command: RemotingCommand) -> Answer:
        self.commands.append(command)
        question = RemotingCommand.request(ECHO, {"q": "1"})
        self.answer_of_client = await connection.request(question, 5)
        return command.response(0)

    async def __aenter__(self) -> "Noted":
        """Listen."""
        await self._server.start("127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        """End."""
        await self._server.close(0.1)


def request(binary: bool = False, body: bytes = b"body") -> RemotingCommand:
    """Return a request whose fields do not come in the order of their names."""
    command = RemotingCommand.request(ECHO, {"topic": "T", "b": 2, "Zone": "ü", "a": True}, body)
    if binary:
        command.serialize_type = SERIALIZE_BINARY
    return command


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("oneway", [False, True], ids=["request", "oneway"])
async def test_requests_of_a_client_with_credentials_are_signed(binary: bool, oneway: bool) -> None:
    """Both kinds of requests, with both kinds of headers."""
    async with Noted() as server:
        client = RemotingClient(security=ClientSecurity(ALICE))
        try:
            if oneway:
                await client.oneway(server.address, request(binary))
            else:
                await client.request(server.address, request(binary), 5)
            async with asyncio.timeout(5):
                await server.got.wait()
        finally:
            await client.close(0.1)
    [command] = server.commands
    assert command.is_oneway == oneway
    fields = command.ext_fields
    assert fields["AccessKey"] == "alice"
    assert fields["topic"] == "T"
    assert fields["Signature"] == expected_signature(fields, b"body", "alice-secret")


async def test_a_command_sent_twice_is_signed_for_what_it_says_then() -> None:
    """As one that is sent to the next server after the first has not answered."""
    async with Noted() as server:
        client = RemotingClient(security=ClientSecurity(ALICE))
        try:
            command = request()
            await client.request(server.address, command, 5)
            command.ext_fields["topic"] = "U"
            await client.request(server.address, command, 5)
        finally:
            await client.close(0.1)
    assert [each.ext_fields["topic"] for each in server.commands] == ["T", "U"]
    for each in server.commands:
        fields = each.ext_fields
        assert fields["Signature"] == expected_signature(fields, b"body", "alice-secret")


async def test_without_credentials_nothing_is_added() -> None:
    """An open server gets what it got before."""
    async with Noted() as server:
        client = RemotingClient()
        try:
            await client.request(server.address, request(), 5)
        finally:
            await client.close(0.1)
    assert server.commands[0].ext_fields.keys() == {"topic", "b", "Zone", "a"}


async def test_neither_answers_nor_the_questions_of_servers_are_signed() -> None:
    """A server has no key of its clients, and an answer is not a request."""
    asked: list[RemotingCommand] = []

    def answer(_: Connection, command: RemotingCommand) -> Answer:
        asked.append(command)
        return command.response(0, ext_fields={"x": "1"})

    dispatcher = Dispatcher()
    dispatcher.register(ECHO, answer)
    async with Noted() as server:
        client = RemotingClient(dispatcher, security=ClientSecurity(ALICE))
        try:
            await client.request(server.address, RemotingCommand.request(ASK_BACK), 5)
        finally:
            await client.close(0.1)
    assert asked[0].ext_fields == {"q": "1"}
    assert server.answer_of_client is not None
    assert server.answer_of_client.ext_fields == {"x": "1"}


async def test_a_client_that_answers_by_a_request_signs_it() -> None:
    """The answer to a transaction check is a request on the connection that the check came by."""
    dispatcher = Dispatcher()

    def end_transaction(connection: Connection, command: RemotingCommand) -> None:
        connection.send_oneway(RemotingCommand.request(ECHO, {"end": "1"}))

    dispatcher.register(307, end_transaction)
    frames = FrameDecoder()
    received: asyncio.Queue[RemotingCommand] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            gathered = frames.gather(data)
            for frame in [] if gathered is None else frames.cut(gathered):
                command = decode_command(frame)
                received.put_nowait(command)
                if "topic" in command.ext_fields:
                    writer.write(RemotingCommand.request(307, oneway=True).encode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    client = RemotingClient(dispatcher, security=ClientSecurity(ALICE))
    try:
        await client.oneway(f"{host}:{port}", request())
        async with asyncio.timeout(5):
            await received.get()
            fields = (await received.get()).ext_fields
        assert fields["end"] == "1"
        assert fields["Signature"] == expected_signature(fields, b"", "alice-secret")
    finally:
        await client.close(0.1)
        server.close()


async def test_a_token_of_temporary_credentials_is_sent_and_signed() -> None:
    """As RocketMQ's SessionCredentials with a security token."""
    async with Noted() as server:
        credentials = Credentials("alice", "alice-secret", "token")
        client = RemotingClient(security=ClientSecurity(credentials))
        try:
            await client.request(server.address, request(), 5)
        finally:
            await client.close(0.1)
    fields = server.commands[0].ext_fields
    assert fields["SecurityToken"] == "token"
    assert fields["Signature"] == expected_signature(fields, b"body", "alice-secret")


def test_secrets_do_not_show() -> None:
    """Neither the secret nor the token is in the text of what holds them."""
    text = repr(ClientSecurity(Credentials("alice", "alice-secret", "the-token")))
    assert "alice" in text
    assert "alice-secret" not in text
    assert "the-token" not in text
