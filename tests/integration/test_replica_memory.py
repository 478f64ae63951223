"""What one peer sends, or does not read, costs a replica little memory and holds up nobody."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from loop_lag import LoopLag
from replica_nodes import ReplicaNodes

from mailboat.replication.epochs import EpochStart
from mailboat.replication.frames import Ack, Ask, Beat, Hello, Tables, TablesKept, Welcome
from mailboat.replication.wire import FIRST_BYTE, VERSION, Decoder, Message, Open, encode
from mailboat.store.message_inner import MessageInner
from mailboat.store.message_store import MessageStore
from mailboat.testing.store_simulator import HOST

pytestmark = pytest.mark.slow  # They fill buffers.


def _fill(store: MessageStore, count: int) -> None:
    """Store so many megabytes."""
    for _ in range(count):
        message = MessageInner(
            topic="orders",
            queue_id=0,
            body=bytes(1_000_000),
            properties=b"",
            tags_code=0,
            unique_key=None,
            keys=None,
            flag=0,
            sys_flag=0,
            born_timestamp_ms=1_700_000_000_000,
            born_host=HOST,
        )
        store.put_messages([message])


@asynccontextmanager
async def _link(
    nodes: ReplicaNodes, to: int = 0
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, Open]]:
    """Be the replica 2 of a group, which is not there, on a link to another one."""
    replicas = nodes.broker(to).replicas
    assert replicas is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", replicas.peers.port)
    writer.write(bytes([FIRST_BYTE]))
    [opened] = Decoder().feed(await reader.read(65_536))
    assert isinstance(opened, Open)
    own = replace(opened, ordinal=2, store_id="s", boot="b", epoch=0, leader=-1)
    writer.write(encode(own)[1:])
    await nodes.until(lambda: replicas.peers.link_to(2) is not None)
    yield reader, writer, own
    writer.close()


@asynccontextmanager
async def _third(
    nodes: ReplicaNodes,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, Open]]:
    """Be the replica 2 of a group, which has just ended, on a link to the master."""
    await nodes.in_sync()
    await nodes.stop(2)
    async with _link(nodes) as link:
        yield link


async def _read_all(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while await reader.read(65_536):
            continue


@pytest.mark.parametrize(
    "message",
    [
        Ask(1),
        Hello(1, 0, "b"),
        TablesKept(1, 1, 1),
        Ack(1, 8, 1, 0, True),
        Beat(1, 1, 1, 1, 1, True, True),
    ],
)
async def test_a_flood_of_frames_holds_up_nobody(tmp_path: Path, message: Message) -> None:
    """Thousands of frames in a read are taken a few at a time, and all of them."""
    async with ReplicaNodes(tmp_path, 3) as nodes, _third(nodes) as (reader, writer, _):
        flood = encode(message) * 20_000
        reading = asyncio.create_task(_read_all(reader))
        async with LoopLag() as lag:
            writer.write(flood)
            await writer.drain()
            await asyncio.sleep(1)
        assert lag.longest_s < 0.1
        replicas = nodes.broker(0).replicas
        assert replicas is not None
        link = replicas.peers.link_to(2)
        assert link is not None
        await nodes.until(lambda: not link._has_more)
        writer.close()
        await reading
        assert nodes.leader() == 0


async def test_who_does_not_read_is_disconnected(tmp_path: Path) -> None:
    """What waits in memory for one peer stays below 32 MiB, whatever it asks for."""
    async with ReplicaNodes(tmp_path, 3) as nodes, _third(nodes) as (_, writer, _):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        replicas = nodes.broker(0).replicas
        assert replicas is not None
        link = replicas.peers.link_to(2)
        assert link is not None
        assert link._transport is not None
        # Of each question the answer is much larger.
        replica = nodes.group(0).replica
        many = tuple(EpochStart(epoch, 0) for epoch in range(1, 20_000))
        replica.durable = replica.durable._replace(epochs=(*many, *replica.durable.epochs))
        session = 0
        with suppress(ConnectionError):
            while not link.ending:
                session += 1
                writer.write(encode(Hello(session, 0, "b")))
                await writer.drain()
                await asyncio.sleep(0)
                assert link._transport.get_write_buffer_size() < 32 << 20
        assert link.ending == "it does not read"


@pytest.mark.parametrize(
    "message",
    [
        Welcome(1, "g", 1, (EpochStart(1, 1),) * 400_000, 0, 0, 0),
        Hello(1, 0, "b" * 513),
        Tables(1, 8, 1, 7, 0, b"\xdd" + (300_000).to_bytes(4, "big") + bytes(300_000)),
    ],
)
async def test_what_is_larger_than_any_is_refused(tmp_path: Path, message: Message) -> None:
    """It is not even looked at."""
    async with ReplicaNodes(tmp_path, 3) as nodes, _third(nodes) as (reader, writer, _):
        frame = encode(message)
        async with LoopLag() as lag:
            writer.write(frame)
            async with asyncio.timeout(10):
                await _read_all(reader)
        assert lag.longest_s < 0.1
        assert nodes.leader() == 0


@pytest.mark.parametrize("count", [1_500_000, 20_000])
async def test_many_commits_in_a_frame_are_refused(tmp_path: Path, count: int) -> None:
    """As many as a follower says at once are taken; more hold up nobody, and none of them is."""
    many = msgspec.msgpack.encode([("t@g", 0, dict.fromkeys(range(count), 0), {})])
    few = msgspec.msgpack.encode([("t@g", 0, dict.fromkeys(range(1000), 0), {})])
    async with ReplicaNodes(tmp_path, 3) as nodes, _third(nodes) as (reader, writer, _):
        epoch = nodes.group(0).replica.last_epoch
        offsets = nodes.broker(0).offsets
        async with LoopLag() as lag:
            writer.write(encode(Tables(1, epoch, 0, 7, 0, few)))
            await nodes.until(lambda: len(offsets.queues("g", "t") or ()) == 1000)
            writer.write(encode(Tables(1, epoch, 0, 7, 0, many)))
            async with asyncio.timeout(10):
                await _read_all(reader)
        assert lag.longest_s < 0.1
        assert len(offsets.queues("g", "t") or ()) == 1000
        assert nodes.leader() == 0


async def test_who_asks_for_many_promises_waits_for_each(tmp_path: Path) -> None:
    """Each is a write of a file: nothing of the thousands behind it is kept in memory."""
    async with ReplicaNodes(tmp_path, 3) as nodes:
        await nodes.in_sync()
        for ordinal in (2, 0):
            await nodes.stop(ordinal)
        async with _link(nodes, 1) as (reader, writer, _):
            reading = asyncio.create_task(_read_all(reader))
            group = nodes.group(1)
            # Nobody promises anything who has just heard of a leader.
            replica = group.replica
            await nodes.until(lambda: replica.now_s > replica.authority_heard_until_s)
            seen = replica.durable.seen
            numbers = range(seen + 1, seen + 50_000)
            writer.write(b"".join(encode(Ask(number, number, number)) for number in numbers))
            most = 0
            async with asyncio.timeout(20):
                while replica.durable.seen < seen + 60:
                    most = max(most, len(group._todo))
                    await asyncio.sleep(0.001)
            assert 16 < most < 100
            reading.cancel()


@pytest.mark.parametrize("kind", [kind for kind in range(15) if kind not in (4, 14)])
async def test_no_records_follow_other_frames(tmp_path: Path, kind: int) -> None:
    """They are not waited for: of tables and records together 36 MiB would have to be kept."""
    async with ReplicaNodes(tmp_path, 3) as nodes, _third(nodes) as (reader, writer, _):
        sizes = (1000).to_bytes(4, "big") + (20 << 20).to_bytes(4, "big")
        writer.write(bytes([FIRST_BYTE, VERSION, kind, 0]) + sizes + bytes(4))
        # Before it would be for being silent.
        async with asyncio.timeout(3):
            await _read_all(reader)
        assert nodes.leader() == 0


async def test_a_link_is_that_of_one_replica(tmp_path: Path) -> None:
    """Whoever says to be another volume, and another, is forgotten with its connection."""
    async with ReplicaNodes(tmp_path, 3) as nodes, _third(nodes) as (reader, writer, own):
        writer.write(encode(replace(own, store_id="t")) + encode(Hello(1, 0, "b")))
        # Before it would be for being silent.
        async with asyncio.timeout(3):
            await _read_all(reader)
        assert nodes.leader() == 0
