"""Random bytes, led by coverage, against what strangers reach: signatures, TLS's first bytes.

    python tests/soak/fuzz_doors.py signatures|entrance [options of libFuzzer: -runs=100000 -seed=1]

What was carried out is judged again here, with hmac over what the processor got. It needs
`atheris`, which has wheels for some versions of Python only.
"""

import asyncio
import base64
import hmac
import json
import logging
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import atheris

with atheris.instrument_imports(include=["mailboat"]):
    from certificates import Authority

    from mailboat.config.tls import TlsConfig
    from mailboat.protocol.command import RemotingCommand
    from mailboat.protocol.frame import SERIALIZE_JSON, encode_frame
    from mailboat.remoting.connection import Connection
    from mailboat.remoting.connection_set import ConnectionSet
    from mailboat.remoting.guarded import GuardedDispatcher
    from mailboat.remoting.limits import RemotingLimits
    from mailboat.remoting.tls_entrance import TlsEntrance
    from mailboat.security.audit import AuditLog
    from mailboat.security.guard import Guard
    from mailboat.security.needs import broker_rows
    from mailboat.security.rules import PolicyRules, parse_entry
    from mailboat.security.tls import ServerTls
    from mailboat.security.users import User

NAME: Final = "orders"
SECRET: Final = b"a-secret-of-soak"
TOPIC: Final = "T"
SEND: Final = 10
SEND_V2: Final = 310
EDITS_MAX: Final = 12
BODY: Final = b"body"
FIELDS: Final = {
    "a": "P", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
    "i": "k\x01v\x02", "j": "0", "k": "false", "m": "false", "AccessKey": NAME,
}  # fmt: skip
FIRST_HELLO: Final = bytes.fromhex("16030100c8010000c40303")


class Directory:
    """One user that may send to one topic."""

    revision = 0

    def __init__(self) -> None:
        """Make the user."""
        self.on_changed: list[Callable[[], None]] = []
        rules = PolicyRules([parse_entry(f"Topic:{TOPIC}", ["Pub"], [], "Allow")])
        self._user = User(NAME, (SECRET,), rules)

    def get(self, access_key: str) -> User | None:
        """Return the user, if it is asked for."""
        return self._user if access_key == NAME else None


class Peer(asyncio.Transport):
    """A peer that reads everything and keeps nothing."""

    def __init__(self) -> None:
        """Stand for a connected socket."""
        super().__init__({"peername": ("10.0.0.1", 5000)})
        self._is_closed = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the mark."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Ignore who takes what comes: the caller gives it."""
        self.protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take the bytes."""
        assert not self._is_closed

    def get_write_buffer_size(self) -> int:
        """Return 0: the peer reads at once."""
        return 0

    def pause_reading(self) -> None:
        """Go on: what was said is said."""

    def resume_reading(self) -> None:
        """Go on."""

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    def close(self) -> None:
        """Take note."""
        self._is_closed = True

    def abort(self) -> None:
        """Take note."""
        self._is_closed = True


def signed_values(fields: dict[str, str]) -> bytes:
    """Return the values that are signed, in the order of their names."""
    names = sorted(name for name in fields if name != "Signature")
    return "".join(fields[name] for name in names).encode(errors="replace")


def signature(fields: dict[str, str], body: bytes) -> str:
    """Return the user's signature."""
    mac = hmac.digest(SECRET, signed_values(fields) + body, "sha1")
    return base64.b64encode(mac).decode()


def frame(fields: dict[str, str], body: bytes) -> bytes:
    """Return a request as Java's clients write it."""
    header = json.dumps(
        {"code": SEND_V2, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": 1,
         "serializeTypeCurrentRPC": "JSON", "version": 401}, separators=(",", ":"),
    ).encode()  # fmt: skip
    return encode_frame(SERIALIZE_JSON, header, body)


def check(command: RemotingCommand) -> None:
    """Fail where somebody else than the user made these fields, or it sent elsewhere."""
    fields = dict(command.ext_fields)
    assert fields["AccessKey"] == NAME, fields
    assert fields["Signature"] == signature(fields, bytes(command.body)), fields
    if command.code in (SEND, SEND_V2):
        assert fields["b" if command.code == SEND_V2 else "topic"] == TOPIC, fields


class Signatures:
    """A guarded server, and requests with a few bytes changed, left out or put in."""

    def __init__(self) -> None:
        """Prepare the server."""
        rows = broker_rows("soak", lambda *_: ())
        self._rows = rows
        self._carried_out: list[RemotingCommand] = []
        self.try_one(b"")
        assert len(self._carried_out) == 1, "the request without a change has to be carried out"

    def try_one(self, data: bytes) -> None:
        """Change a signed request as `data` says, and send it."""
        source = atheris.FuzzedDataProvider(data)
        fields = FIELDS | {"Signature": signature(FIELDS, BODY)}
        body = BODY
        for _ in range(source.ConsumeIntInRange(0, EDITS_MAX)):
            name = source.PickValueInList([*FIELDS, "Signature", "x", "body"])
            if name == "body":
                body = source.ConsumeBytes(24)
            elif source.ConsumeBool():
                fields[name] = source.ConsumeUnicode(24)
            else:
                fields.pop(name, None)
        request = bytearray(frame(fields, body))
        for _ in range(source.ConsumeIntInRange(0, EDITS_MAX)):
            place = source.ConsumeIntInRange(0, len(request))
            put_in = source.ConsumeBytes(source.ConsumeIntInRange(0, 24))
            request[place : place + source.ConsumeIntInRange(0, 8)] = put_in
        if len(request) >= 8 and source.ConsumeBool():
            # The lengths of a whole frame again, or little of it would be looked at.
            header_bytes = max(0, len(request) - 8 - source.ConsumeIntInRange(0, 8))
            struct.pack_into(">II", request, 0, len(request) - 4, header_bytes)
        self._carried_out.clear()
        asyncio.run(self._send(bytes(request)))
        # Not where they are carried out: what a processor raises is answered.
        for command in self._carried_out:
            check(command)

    async def _send(self, request: bytes) -> None:
        # Made anew: failures before must not keep this one from being looked at.
        guard = Guard(Directory(), self._rows, authorizes=True, audit=AuditLog(""))
        dispatcher = GuardedDispatcher(guard)
        for code in self._rows:
            dispatcher.register(code, self._carry_out)
        owner = ConnectionSet(RemotingLimits(), name="soak", capacity=None, expects_frames=True)
        connection = Connection(dispatcher, owner)
        connection.connection_made(Peer())
        connection.data_received(request)
        connection.connection_lost(None)

    def _carry_out(self, _: Connection, command: RemotingCommand) -> RemotingCommand:
        self._carried_out.append(command)
        return command.response(0)


class Entrance:
    """The first bytes of connections to a port that takes TLS only."""

    def __init__(self) -> None:
        """Prepare a certificate."""
        self._folder = tempfile.TemporaryDirectory()
        pair = Authority(Path(self._folder.name)).issue("127.0.0.1")
        paths = {"server_cert_path": str(pair.certificate), "server_key_path": str(pair.key)}
        self._tls = ServerTls(TlsConfig(server_mode="enforcing", **paths))

    def try_one(self, data: bytes) -> None:
        """Say something, in pieces."""
        asyncio.run(self._say(data))

    def _make_app(self) -> asyncio.BaseProtocol:
        raise AssertionError("nobody has finished a handshake")

    async def _say(self, data: bytes) -> None:
        source = atheris.FuzzedDataProvider(data)
        entrance = TlsEntrance(
            lambda: self._tls.context,
            self._make_app,
            lambda *_: None,
            takes_plain=False,
            timeout_s=10.0,
        )
        peer = Peer()
        peer.set_protocol(entrance.make())
        self._now(peer).connection_made(peer)
        if source.ConsumeBool():
            self._now(peer).data_received(FIRST_HELLO)
        while source.remaining_bytes() and not peer.is_closing():
            piece = source.ConsumeBytes(source.ConsumeIntInRange(1, 64))
            if piece:
                self._now(peer).data_received(piece)
            await asyncio.sleep(0)
        self._now(peer).connection_lost(None)
        await asyncio.sleep(0)
        assert len(entrance) == 0, "a connection that has ended is still counted"
        entrance.close()

    def _now(self, peer: Peer) -> Any:
        return peer.protocol


TARGETS: Final[dict[str, Callable[[], Signatures | Entrance]]] = {
    "signatures": Signatures,
    "entrance": Entrance,
}

if __name__ == "__main__":
    logging.disable()
    target = TARGETS[sys.argv.pop(1)]()
    atheris.Setup(sys.argv, target.try_one)
    atheris.Fuzz()
