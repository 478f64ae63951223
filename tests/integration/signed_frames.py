"""Every frame that servers of this process get, and what a signature has to be.

The signature is worked out here from RocketMQ's rule (AclUtils.java): HMAC-SHA1 over the values of
all ext fields but itself, in the order of their names, and the body. `_UNIQUE_KEY_QUERY` is left
out for clients up to V4_9_3 (399).
"""

import base64
import hashlib
import hmac

import pytest

from mailboat.protocol.codes import RequestCode, request_code_name
from mailboat.protocol.command import RemotingCommand, decode_command
from mailboat.protocol.frame import FrameDecoder
from mailboat.remoting.connection import Connection

# What brokers ask name servers by themselves.
OF_BROKERS = {
    RequestCode.REGISTER_BROKER,
    RequestCode.UNREGISTER_BROKER,
    RequestCode.QUERY_DATA_VERSION,
}


class Frames:
    """What arrived at accepted connections, as it came."""

    def __init__(self) -> None:
        """Begin without frames."""
        self.commands: list[RemotingCommand] = []
        self._decoders: dict[Connection, FrameDecoder] = {}

    def note(self, connection: Connection, data: bytes) -> None:
        """Take note of a read."""
        decoder = self._decoders.setdefault(connection, FrameDecoder())
        self.commands += map(decode_command, decoder.feed(data))

    @property
    def requests(self) -> list[RemotingCommand]:
        """The requests of clients."""
        return [
            command
            for command in self.commands
            if not command.is_response and command.code not in OF_BROKERS
        ]

    def codes(self) -> set[int]:
        """Return which requests came."""
        return {command.code for command in self.requests}

    def check_all_signed(self, access_key: str, secret: str) -> None:
        """Fail for a request without a valid signature, and for an answer with one."""
        wrong = [
            request_code_name(command.code)
            for command in self.requests
            if command.ext_fields.get("AccessKey") != access_key
            or command.ext_fields.get("Signature") != signature_of(command, secret)
        ]
        assert wrong == []
        answers = [command for command in self.commands if command.is_response]
        assert [answer for answer in answers if "Signature" in answer.ext_fields] == []


def signature_of(command: RemotingCommand, secret: str) -> str:
    """Return the signature that a request should have."""
    left_out = {"Signature"}
    if command.version <= 399:
        left_out.add("_UNIQUE_KEY_QUERY")
    fields = command.ext_fields
    content = "".join(fields[name] for name in sorted(fields.keys() - left_out)).encode()
    made = hmac.new(secret.encode(), content + command.body, hashlib.sha1).digest()
    return base64.b64encode(made).decode()


def note_frames(monkeypatch: pytest.MonkeyPatch) -> Frames:
    """Note what all servers of this process get from now on."""
    frames = Frames()
    receive = Connection.data_received

    def noted(connection: Connection, data: bytes) -> None:
        if connection.is_accepted:
            frames.note(connection, data)
        receive(connection, data)

    monkeypatch.setattr(Connection, "data_received", noted)
    return frames
