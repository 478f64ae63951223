"""What a SYNC_MASTER answers while a replica of its set has not acknowledged a message."""

import asyncio
from pathlib import Path

import pytest
from raw_client import RawClient
from replica_nodes import ReplicaNodes

from mailboat.broker.replicas.shared_tables import SharedTables
from mailboat.model.properties import encode_properties
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand, decode_command
from mailboat.protocol.frame import FrameDecoder


def _halt(nodes: ReplicaNodes, ordinal: int) -> SharedTables:
    """Have a slave take nothing more of the log, as if it were about to delete queues."""
    replicas = nodes.broker(ordinal).replicas
    assert replicas is not None
    replicas.tables._deleting += 1
    return replicas.tables


def _go_on(tables: SharedTables) -> None:
    tables._deleting -= 1
    tables.on_deleted()


async def _prepare(nodes: ReplicaNodes) -> None:
    await nodes.in_sync()
    client = RawClient(nodes.broker(0).address)
    await client.make_topic("T", 1)
    await client.close()


def _send(body: bytes, properties: str = "") -> RemotingCommand:
    fields: dict[str, ExtValue] = {
        "a": "PG", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1,
        "h": 0, "i": properties, "j": 0, "k": False,
    }  # fmt: skip
    request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, fields, body)
    request.opaque = len(body)
    return request


async def _answer(reader: asyncio.StreamReader) -> RemotingCommand:
    size = await reader.readexactly(4)
    [frame] = FrameDecoder().feed(size + await reader.readexactly(int.from_bytes(size, "big")))
    return decode_command(frame)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_an_unknown_outcome_is_answered_once(tmp_path: Path, flush: str) -> None:
    """FLUSH_SLAVE_TIMEOUT once the time is over; the message is shown later without a word."""
    options = {"slaveTimeout": "500", "syncFlushTimeout": "500", "flushDiskType": flush}
    async with ReplicaNodes(tmp_path, 2, options) as nodes:
        await _prepare(nodes)
        store = nodes.broker(0).store
        tables = _halt(nodes, 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", nodes.broker(0).port)
        try:
            writer.write(_send(b"late").encode())
            assert (await _answer(reader)).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
            assert store.max_offset("T", 0) == 0
            _go_on(tables)
            await nodes.until(lambda: store.max_offset("T", 0) == 1)
            await nodes.until(lambda: not nodes.group(0).refusal())
            # Whatever is said next is of the next message.
            writer.write(_send(b"the next one").encode())
            answer = await _answer(reader)
            assert (answer.opaque, answer.code) == (len(b"the next one"), ResponseCode.SUCCESS)
            assert answer.ext_fields["queueOffset"] == "1"
        finally:
            writer.close()


async def test_who_does_not_wait_is_answered_before_the_message_is_shown(tmp_path: Path) -> None:
    """WAIT=false: at once, as by a master alone; consumers see it once the slave has it."""
    async with ReplicaNodes(tmp_path, 2) as nodes:
        await _prepare(nodes)
        store = nodes.broker(0).store
        tables = _halt(nodes, 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", nodes.broker(0).port)
        try:
            async with asyncio.timeout(0.5):
                writer.write(_send(b"soon", encode_properties({"WAIT": "false"})).encode())
                answer = await _answer(reader)
            assert answer.code == ResponseCode.SUCCESS
            assert store.max_offset("T", 0) == 0
            _go_on(tables)
            await nodes.until(lambda: store.max_offset("T", 0) == 1)
        finally:
            writer.close()
