"""A guarded broker, its users, and clients that send signed frames of any shape."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from certificates import Authority
from raw_client import RawClient, broker_settings

from mailboat.broker.controller import BrokerController
from mailboat.config.security import SecurityConfig
from mailboat.config.tls import TlsConfig
from mailboat.protocol.command import ExtValue, RemotingCommand, decode_command
from mailboat.protocol.frame import FrameDecoder
from mailboat.security.client_security import ClientSecurity, ClientTls, Credentials
from mailboat.security.rules import NO_RULES, PolicyRules, parse_entry
from mailboat.security.signing import sign
from mailboat.security.users import User

GUARDED: Final = SecurityConfig(authentication_enabled=True, authorization_enabled=True)
SECRET: Final = "12345678"
PLAIN: Final = TlsConfig()


@dataclass(slots=True)
class Users:
    """Users that a test makes and changes."""

    table: dict[str, User] = field(default_factory=dict)
    revision: int = 0
    on_changed: list[Callable[[], None]] = field(default_factory=list)

    def get(self, access_key: str) -> User | None:
        """Return a user, also a disabled one."""
        return self.table.get(access_key)

    def add(self, name: str, *rules: tuple[str, str], is_super: bool = False) -> None:
        """Make a user; a rule is a resource and its actions, "Topic:T" and "Pub,Sub"."""
        entries = [
            parse_entry(resource, actions.split(","), [], "Allow") for resource, actions in rules
        ]
        self.table[name] = User(
            name,
            (SECRET.encode(),),
            PolicyRules(entries) if entries else NO_RULES,
            is_super=is_super,
        )

    def change(self, name: str, **changes: Any) -> None:
        """Change a user, as a directory that has read its file anew."""
        self.table[name] = replace(self.table[name], **changes)
        self.revision += 1
        for listener in self.on_changed:
            listener()


def usual_users() -> Users:
    """Return one of each kind: all of them have the same secret."""
    users = Users()
    users.add("root", is_super=True)
    users.add("nothing")
    users.add("producer", ("Topic:T", "Pub"))
    users.add("consumer", ("Topic:T", "Sub"), ("Group:G", "Sub"))
    users.add("disabled", ("*", "All"))
    users.change("disabled", is_enabled=False)
    return users


@asynccontextmanager
async def guarded_broker(
    root: Path,
    users: Users,
    security: SecurityConfig = GUARDED,
    *,
    tls: TlsConfig = PLAIN,
    **broker: Any,
) -> AsyncIterator[BrokerController]:
    """Run a broker that asks everybody who they are."""
    settings = replace(broker_settings(root, **broker), security=security, tls=tls)
    controller = BrokerController(settings, users=users)
    await controller.start()
    try:
        yield controller
    finally:
        await controller.shutdown()


class SignedClient(RawClient):
    """A `RawClient` that signs what it sends, or does it wrong."""

    def __init__(
        self, address: str, credentials: Credentials | None, tls: ClientTls | None = None
    ) -> None:
        """Prepare a client; without credentials it signs nothing."""
        name = "nobody" if credentials is None else credentials.access_key
        super().__init__(address, f"{name}@1", security=ClientSecurity(tls=tls))
        self.credentials = credentials

    async def call(
        self, code: int, ext_fields: Mapping[str, ExtValue] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Send a signed request and return the answer."""
        command = RemotingCommand.request(code, ext_fields, body)
        command.language = self.language
        if self.credentials is not None:
            sign(command, self.credentials)
        return await self._remoting.request(self.address, command, 20.0)


async def until(is_so: Callable[[], bool]) -> None:
    """Return once something is so."""
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110 - the broker tells nobody.
            await asyncio.sleep(0.005)


def known_as(name: str, secret: str = SECRET) -> Credentials:
    """Return the credentials of one of the `usual_users`."""
    return Credentials(name, secret)


@asynccontextmanager
async def client_of(
    broker: BrokerController, credentials: Credentials | None, tls: ClientTls | None = None
) -> AsyncIterator[SignedClient]:
    """Connect one client."""
    client = SignedClient(broker.address, credentials, tls)
    try:
        yield client
    finally:
        await client.close()


def signed_frame(
    code: int,
    fields: Mapping[str, ExtValue],
    credentials: Credentials | None,
    body: bytes = b"",
    *,
    opaque: int = 1,
    is_oneway: bool = False,
    form: int = 0,
) -> bytes:
    """Return a request as it goes over the wire."""
    command = RemotingCommand.request(code, fields, body, oneway=is_oneway)
    command.opaque = opaque
    command.serialize_type = form
    if credentials is not None:
        sign(command, credentials)
    return command.encode()


def json_frame(header: str, body: bytes = b"") -> bytes:
    """Return a frame with a JSON header of any text."""
    data = header.encode()
    return struct.pack(">II", 4 + len(data) + len(body), len(data)) + data + body


class Wire:
    """One connection that writes bytes and reads answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Talk over these."""
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder()
        self._answers: list[RemotingCommand] = []

    def write(self, *frames: bytes) -> None:
        """Send frames with one write."""
        self._writer.write(b"".join(frames))

    async def answers(self, count: int) -> list[RemotingCommand]:
        """Return the next answers."""
        async with asyncio.timeout(20):
            while len(self._answers) < count:
                data = await self._reader.read(1 << 16)
                assert data, "the broker closed the connection"
                self._answers += map(decode_command, self._decoder.feed(data))
        taken, self._answers = self._answers[:count], self._answers[count:]
        return taken

    async def codes(self, count: int) -> dict[int, int]:
        """Return the codes of the next answers by their opaques."""
        return {answer.opaque: answer.code for answer in await self.answers(count)}


@asynccontextmanager
async def wire_to(broker: BrokerController) -> AsyncIterator[Wire]:
    """Connect to a broker."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()


def send_fields(topic: str, **more: ExtValue) -> dict[str, ExtValue]:
    """Return the header of a send."""
    return {
        "a": "PG", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": "",
        "j": 0, "k": False, **more,
    }  # fmt: skip


def pull_fields(topic: str, group: str, **more: ExtValue) -> dict[str, ExtValue]:
    """Return the header of a pull."""
    return {
        "consumerGroup": group, "topic": topic, "queueId": 0, "queueOffset": 0, "maxMsgNums": 32,
        "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*",
        "subVersion": 0, "expressionType": "TAG", **more,
    }  # fmt: skip


def everything(broker: BrokerController) -> dict[str, object]:
    """Return what a request could have changed: the store, the tables, the members."""
    return {
        "log": broker.store.commit_log.end,
        "topics": {name: repr(config) for name, config in broker.topics.table.items()},
        "groups": {name: repr(config) for name, config in broker.groups.table.items()},
        "offsets": b"".join(broker.offsets.encode()),
        "consumers": sorted(broker.consumers.groups),
        "producers": sorted(broker.producers.groups),
        "settings": broker.settings,
        "held": len(broker.pull_holds),
    }


@dataclass(frozen=True)
class Transport:
    """What is spoken at both ends."""

    server: TlsConfig = PLAIN
    client: ClientTls | None = None


def transport(kind: str, folder: Path) -> Transport:
    """Return "plain", or "tls" with certificates made in a folder."""
    if kind == "plain":
        return Transport()
    authority = Authority(folder / "certificates")
    pair = authority.issue("127.0.0.1")
    server = TlsConfig(
        server_mode="enforcing",
        server_cert_path=str(pair.certificate),
        server_key_path=str(pair.key),
        http_mode="enforcing",
    )
    return Transport(server, ClientTls(str(authority.trust)))
