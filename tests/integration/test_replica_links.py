"""The port for other replicas: who does not belong there gets nothing, and does no harm."""

import asyncio
from pathlib import Path

import pytest
from replica_nodes import ReplicaNodes

from mailboat.errors import ConfigError
from mailboat.replication.frames import Ack, Hello, Refused
from mailboat.replication.wire import FIRST_BYTE, Decoder, Open, encode


def _replicas_port(nodes: ReplicaNodes) -> int:
    """Return where the first replica listens for others."""
    replicas = nodes.broker(0).replicas
    assert replicas is not None
    return replicas.peers.port


async def _connect(nodes: ReplicaNodes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", _replicas_port(nodes))
    # By its first byte the other side knows what it is to say.
    writer.write(bytes([FIRST_BYTE]))
    return reader, writer


async def _open_of(reader: asyncio.StreamReader, decoder: Decoder) -> Open:
    while True:
        for message in decoder.feed(await reader.read(65_536)):
            assert isinstance(message, Open)
            return message


async def _until_closed(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(10):
        try:
            while await reader.read(65_536):
                continue
        except ConnectionResetError:
            return


def _named(opened: Open, **changes: object) -> bytes:
    values = {name: getattr(opened, name) for name in Open.__slots__}
    return encode(Open(**{**values, **changes}))[1:]


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        encode(Hello(1, 1 << 60, "b")),
        encode(Ack(1, 8, 1 << 50, 0, True)),
        b"\xb0\x01\x02\x00\x00\x10\x00\x00" + bytes(100_000),
    ],
)
async def test_strangers_are_sent_away(tmp_path: Path, data: bytes) -> None:
    """Whoever does not begin as a replica is disconnected; the group goes on."""
    async with ReplicaNodes(tmp_path, 2) as nodes:
        await nodes.in_sync()
        reader, writer = await asyncio.open_connection("127.0.0.1", _replicas_port(nodes))
        writer.write(data)
        await _until_closed(reader)
        writer.close()
        assert not nodes.group(0).refusal()
        assert nodes.leader() == 0


@pytest.mark.parametrize(
    "changes",
    [{"group": "other"}, {"ordinal": 0}, {"ordinal": 2}, {"segment_bytes": 1 << 30}],
)
async def test_another_group_is_sent_away(tmp_path: Path, changes: dict[str, object]) -> None:
    """A replica of another group, one with a number that is taken, or other segments is refused."""
    async with ReplicaNodes(tmp_path, 2) as nodes:
        await nodes.in_sync()
        reader, writer = await _connect(nodes)
        opened = await _open_of(reader, Decoder())
        writer.write(_named(opened, **{"ordinal": 1, "store_id": "s", **changes}))
        await _until_closed(reader)
        writer.close()
        assert not nodes.group(0).refusal()


async def test_with_a_secret_only_who_knows_it_is_believed(tmp_path: Path) -> None:
    """Replicas that share a secret are in sync; who has none, or a wrong one, deposes nobody."""
    secret = tmp_path / "secret"
    secret.write_text("of this group\n")
    async with ReplicaNodes(tmp_path, 2, {"haSecretFile": str(secret)}) as nodes:
        await nodes.in_sync()
        for nonce in ("", "00"):
            reader, writer = await _connect(nodes)
            opened = await _open_of(reader, Decoder())
            assert len(opened.nonce) == 32
            stranger = _named(opened, nonce=nonce, ordinal=1, store_id="s", epoch=1 << 40, leader=1)
            writer.write(stranger + encode(Refused(1 << 40)))
            await _until_closed(reader)
            writer.close()
        # Slaves of RocketMQ know no secret.
        reader, writer = await asyncio.open_connection("127.0.0.1", _replicas_port(nodes))
        writer.write(bytes(8))
        await _until_closed(reader)
        writer.close()
        assert nodes.leader() == 0
        assert not nodes.group(0).refusal()


async def test_a_secret_that_is_not_there_is_said(tmp_path: Path) -> None:
    """A replica without its secret does not start."""
    options = {"haSecretFile": str(tmp_path / "none"), "inSyncReplicas": "1"}
    with pytest.raises(ConfigError, match="haSecretFile"):
        async with ReplicaNodes(tmp_path, 1, options):
            pass


async def test_who_says_nothing_keeps_no_replica_out(tmp_path: Path) -> None:
    """However many connect and are silent, a slave that comes is linked."""
    async with ReplicaNodes(tmp_path, 2) as nodes:
        await nodes.in_sync()
        await nodes.stop(1)
        port = _replicas_port(nodes)
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(80)]
        await nodes.start(1)
        await nodes.in_sync()
        closed = [reader for reader, _ in silent if reader.at_eof() or reader.exception()]
        assert len(closed) >= 16
        for _, writer in silent:
            writer.close()
