"""The port for other replicas: who does not belong there gets nothing, and does no harm."""

import asyncio
import contextlib
import logging
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from real_time import at_most_s
from replica_nodes import ReplicaNodes

from mailboat.errors import ConfigError
from mailboat.replication.frames import Ack, Answer, Ask, Hello, Refused
from mailboat.replication.wire import FIRST_BYTE, Decoder, Message, Open, Proof, encode, proof


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
async def test_strangers_are_sent_away(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever does not begin as a replica is disconnected, in one line; the group goes on."""
    async with ReplicaNodes(tmp_path, 2) as nodes:
        await nodes.in_sync()
        caplog.clear()
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", _replicas_port(nodes))
            writer.write(data)
            await _until_closed(reader)
            writer.close()
        assert len([line for line in caplog.records if line.levelno >= logging.WARNING]) == 1
        assert not nodes.group(0).refusal()
        assert nodes.leader() == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"group": "other"},
        {"ordinal": 0},
        {"ordinal": 2},
        {"segment_bytes": 1 << 30},
        {"total_replicas": 3},
        {"in_sync_replicas": 1},
    ],
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


@pytest.mark.parametrize("ends_above", [1 << 30, 1 << 56])
async def test_an_epoch_that_a_stranger_speaks_of_ends_no_group(
    tmp_path: Path, ends_above: int
) -> None:
    """It ends who leads until a person says who does; out of all reason it is not believed."""
    async with ReplicaNodes(tmp_path, 3) as nodes:
        await nodes.in_sync()
        first = nodes.broker(0)
        epoch = nodes.group(0).replica.last_epoch
        reader, writer = await _connect(nodes)
        opened = await _open_of(reader, Decoder())
        told = {"epoch": ends_above, "leader": 1, "leader_store_id": "s", "leader_boot": "b"}
        # Nobody else is taken for a replica that is linked.
        boot = nodes.group(1).replica.me.boot
        writer.write(_named(opened, ordinal=1, store_id="s", boot=boot, **told))
        await _until_closed(reader)
        writer.close()
        if ends_above > 1 << 40:
            await nodes.in_sync()
            assert nodes.group(0).replica.last_epoch == epoch
        else:
            # That nobody leads that epoch is for a person to know.
            await nodes.until(lambda: nodes.has_begun_anew(0, first))
            again = nodes.broker(0).replicas
            assert again is not None
            await nodes.until(lambda: len(again.peers.links()) == 2)
            await nodes.promote(0)
            await nodes.in_sync()
            assert nodes.group(0).replica.last_epoch > ends_above
        await asyncio.sleep(1.5)
        assert nodes.leader() == 0


async def test_a_second_replica_with_one_number_is_sent_away(tmp_path: Path) -> None:
    """The one that is linked and heard keeps its place, and a person is told of both."""
    async with ReplicaNodes(tmp_path, 2) as nodes:
        await nodes.in_sync()
        link = nodes.broker(0).replicas.peers.link_to(1)
        reader, writer = await _connect(nodes)
        opened = await _open_of(reader, Decoder())
        writer.write(_named(opened, ordinal=1, store_id="s", boot="b", address="127.0.0.1:9"))
        await _until_closed(reader)
        writer.close()
        peers = nodes.broker(0).replicas.peers
        assert link is not None
        assert peers.link_to(1) is link
        assert "give each its own" in peers.troubles["127.0.0.1:9"]
        assert not nodes.group(0).refusal()


async def test_who_is_sent_away_is_not_listened_to(tmp_path: Path) -> None:
    """What a replica of another group says in one breath with its name deposes nobody."""
    async with ReplicaNodes(tmp_path, 2) as nodes:
        await nodes.in_sync()
        group = nodes.group(0)
        reader, writer = await _connect(nodes)
        opened = await _open_of(reader, Decoder())
        stranger = _named(opened, group="other", ordinal=1, store_id="s", boot="b")
        writer.write(stranger + encode(Refused(1 << 40)))
        await _until_closed(reader)
        writer.close()
        assert nodes.group(0) is group
        assert nodes.leader() == 0


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


@pytest.mark.parametrize("shown", ["nothing", "no nonce", "another secret", "the secret"])
async def test_a_stranger_is_told_nothing_without_the_secret(tmp_path: Path, shown: str) -> None:
    """Whoever says what a replica of the group would, and cannot prove it, is none of them."""
    secret = tmp_path / "secret"
    secret.write_text("of this group\n")
    async with ReplicaNodes(tmp_path, 2, {"haSecretFile": str(secret)}) as nodes:
        await nodes.in_sync()
        await nodes.stop(1)
        await nodes.until(lambda: not nodes.group(0).is_linked(1))
        reader, writer = await _connect(nodes)
        decoder = Decoder()
        opened = await _open_of(reader, decoder)
        nonce = "" if shown == "no nonce" else "00" * 16
        me = replace(opened, nonce=nonce, ordinal=1, store_id="s", boot="b", leader=-1, epoch=0)
        said = encode(me)[1:]
        if "secret" in shown:
            key = b"of this group" if shown == "the secret" else b"of another one"
            said += encode(proof(key, has_connected=True, own=me, other_nonce=opened.nonce))
        writer.write(said + encode(Ask(7)))
        heard: list[Message] = []
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(5):
                while not any(isinstance(message, Answer) for message in heard):
                    data = await reader.read(65_536)
                    if not data:
                        break
                    heard += decoder.feed(data)
        writer.close()
        is_believed = any(not isinstance(message, Open | Proof) for message in heard)
        assert is_believed == (shown == "the secret"), heard


async def test_a_secret_may_be_replaced(tmp_path: Path) -> None:
    """As where somebody deletes a Secret, and another one is made: all files are the new one soon.

    A replica that begins anew has the new one from its start, and the others never begin anew by
    themselves.
    """
    secret = tmp_path / "secret"
    secret.write_text("of this group\n")
    async with ReplicaNodes(tmp_path, 2, {"haSecretFile": str(secret)}) as nodes:
        await nodes.in_sync()
        secret.unlink()
        await nodes.stop(1)
        secret.write_text("another one\n")
        await nodes.start(1)
        # The set is as small as it may be all the while.
        await nodes.until(lambda: nodes.group(0).is_linked(1) and not nodes.group(0).refusal())
        assert nodes.leader() == 0


@pytest.mark.parametrize("instead", ["fifo", "folder", "huge"])
async def test_what_is_no_secret_keeps_nobody_waiting(tmp_path: Path, instead: str) -> None:
    """Whatever lies in its place: the secret of before counts, and the broker answers."""
    secret = tmp_path / "secret"
    secret.write_text("of this group\n")
    async with ReplicaNodes(tmp_path, 2, {"haSecretFile": str(secret)}) as nodes:
        await nodes.in_sync()
        secret.unlink()
        if instead == "folder":
            secret.mkdir()
        elif instead == "huge":
            secret.write_bytes(b"x" * 1_000_000)
        else:
            os.mkfifo(secret)
            # Whoever waits for a writer, gets one in the end.
            end = threading.Timer(15, lambda: os.close(os.open(secret, os.O_RDWR)))
            end.start()
        begin_s = time.monotonic()
        reader, writer = await _connect(nodes)
        opened = await _open_of(reader, Decoder())
        assert time.monotonic() - begin_s < at_most_s(2, 12)
        replicas = nodes.broker(0).replicas
        assert replicas is not None
        link = replicas.peers.link_to(1)
        assert link is not None
        link.close("the test ends it")
        await nodes.until(lambda: replicas.peers.link_to(1) not in (None, link))
        assert opened.nonce
        writer.close()
        if instead == "fifo":
            end.cancel()
    if instead == "fifo":
        end.join()


async def test_a_replica_does_not_believe_its_own_proof(tmp_path: Path) -> None:
    """Whoever is connected to by a replica, and sends it what it proves back, is not believed."""
    secret = tmp_path / "secret"
    secret.write_text("of this group\n")
    closed = asyncio.Event()
    async with ReplicaNodes(tmp_path, 2, {"haSecretFile": str(secret)}) as nodes:
        await nodes.in_sync()

        async def reflect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked = Decoder()
            connecting = await _open_of(reader, asked)
            own_reader, own_writer = await _connect(nodes)
            connected = await _open_of(own_reader, Decoder())
            writer.write(bytes([FIRST_BYTE]) + _named(connected, ordinal=1, boot="b"))
            proofs: list[Proof] = []
            while not proofs:
                found = asked.feed(await reader.read(65_536))
                proofs += [message for message in found if isinstance(message, Proof)]
            stranger = _named(connected, nonce=connecting.nonce, ordinal=1, boot="b")
            own_writer.write(stranger + encode(proofs[0]))
            await _until_closed(own_reader)
            for one in (writer, own_writer):
                one.close()
            closed.set()

        server = await asyncio.start_server(reflect, "127.0.0.1", 0)
        replicas = nodes.broker(0).replicas
        assert replicas is not None
        link = replicas.peers.link_to(1)
        assert link is not None
        replicas.peers.add_address(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with asyncio.timeout(10):
            await closed.wait()
        server.close()
        # Of two links to one replica the newer one would have counted.
        assert replicas.peers.link_to(1) is link


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


async def test_who_does_not_say_who_it_is_keeps_no_replica_out(tmp_path: Path) -> None:
    """However many begin as replicas do and show no secret, a slave that comes is linked."""
    secret = tmp_path / "secret"
    secret.write_text("of this group\n")
    async with ReplicaNodes(tmp_path, 2, {"haSecretFile": str(secret)}) as nodes:
        await nodes.in_sync()
        await nodes.stop(1)
        replicas = nodes.broker(0).replicas
        assert replicas is not None
        strangers = [await _connect(nodes) for _ in range(40)]
        await nodes.start(1)
        # Before anybody is sent away for being silent.
        await nodes.until(lambda: 1 in replicas.peers.links(), 4)
        await _until_closed(strangers[0][0])
        for _, writer in strangers:
            writer.close()


async def test_an_address_may_become_that_of_another_replica(tmp_path: Path) -> None:
    """As where pods get new ones: who needed no link to who was there gets one to who is now."""
    async with ReplicaNodes(tmp_path, 3) as nodes:
        await nodes.in_sync()
        # From now on it knows all addresses.
        await nodes.stop(1)
        await nodes.start(1)
        await nodes.in_sync()
        for ordinal in (2, 0):
            await nodes.stop(ordinal)
        nodes.swap_ports(0, 2)
        for ordinal in (0, 2):
            await nodes.start(ordinal)
        await nodes.in_sync()


async def test_what_is_no_address_is_said(tmp_path: Path) -> None:
    """A replica that tells nonsense of another one ends nobody's search."""
    async with ReplicaNodes(tmp_path, 3) as nodes:
        await nodes.in_sync()
        replicas = nodes.broker(1).replicas
        assert replicas is not None
        peers = replicas.peers
        nonsense = ["a:99999", ":-1", "x", "\u00ad:1", f"{'a' * 300}.b:1"]
        for address in nonsense:
            peers.close_all("to see")

            def is_tried(address: str = address) -> bool:
                peers._known[0] = address  # Until the other replica says better again.
                return address in peers.troubles

            await nodes.until(is_tried)
        # Told by a name server.
        assert nodes.leader() == 0
        peers.add_address(f"127.0.0.1:{_replicas_port(nodes)}")
        await nodes.until(lambda: 0 in peers.links())


@pytest.mark.parametrize(
    ("part", "met"),
    [("http", "it speaks HTTP"), ("broker", "it ended the connection without a word")],
)
async def test_another_port_in_ha_master_address_is_said(
    tmp_path: Path, part: str, met: str
) -> None:
    """What was met there, and which key has it wrong."""
    async with ReplicaNodes(tmp_path, 2, {"httpPort": "0"}) as nodes:
        await nodes.wait_http()
        address = nodes.addresses(0)[part]
        replicas = nodes.broker(1).replicas
        assert replicas is not None
        replicas.peers._seeds.append(address)
        await nodes.until(lambda: address in replicas.peers.troubles)
        trouble = replicas.peers.troubles[address]
        assert met in trouble
        assert "look at haMasterAddress" in trouble
        assert f"{address}: {trouble}" in replicas.report().troubles
