"""All that our client can ask is signed, by each way that requests take to a connection."""

import ast
import asyncio
from pathlib import Path

import pytest
from every_request import OPTIONS, use_everything
from signed_frames import note_frames

from mailboat.client import Admin, ClientSecurity, Credentials
from mailboat.errors import MailboatError
from mailboat.protocol.codes import RequestCode
from mailboat.testing.cluster import Cluster

ALICE = ClientSecurity(Credentials("alice", "alice-secret"))
CLIENT = Path(__file__).parents[2] / "broker" / "src" / "mailboat" / "client"
# Brokers ask these, and clients answer.
ASKED_BY_BROKERS = {
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
}


def codes_of_the_client() -> set[int]:
    """Return the codes that the client's source names and that it sends."""
    names = {
        node.attr
        for path in CLIENT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "RequestCode"
    }
    return {getattr(RequestCode, name) for name in names} - ASKED_BY_BROKERS


async def test_every_request_of_the_client_is_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that it sends by itself: heartbeats, locks, offsets, ends of transactions."""
    frames = note_frames(monkeypatch)
    async with Cluster(tmp_path, options=OPTIONS) as cluster:
        await use_everything(cluster.namesrv_addresses, ALICE)
    frames.check_all_signed("alice", "alice-secret")
    missing = codes_of_the_client() - frames.codes()
    assert missing == set()


async def test_an_id_does_not_lead_a_signed_request_to_a_stranger(tmp_path: Path) -> None:
    """The address of a broker is part of an id, which may come from anybody."""
    connections: list[asyncio.StreamWriter] = []

    def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)

    stranger = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = stranger.sockets[0].getsockname()[1]
    try:
        async with (
            Cluster(tmp_path) as cluster,
            Admin(namesrv=cluster.namesrv_addresses, security=ALICE) as admin,
        ):
            with pytest.raises(MailboatError, match="know no broker at 127"):
                await admin.messages.by_offset_id(f"7F000001{port:08X}{0:016X}")
        assert connections == []
    finally:
        stranger.close()
