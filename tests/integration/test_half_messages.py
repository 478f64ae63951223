"""Which half message an end may name, and what a check round may take for lost."""

import asyncio
import struct
import tracemalloc
from functools import partial
from pathlib import Path

import pytest
from transaction_broker import (
    COMMIT,
    GROUP,
    HALF,
    PATIENCE_S,
    ROLLBACK,
    Half,
    SlowDisk,
    running,
    until,
)

from mailboat.broker import administration
from mailboat.broker.controller import BrokerController
from mailboat.broker.transactions.checks import CheckRounds
from mailboat.errors import BrokerError
from mailboat.model.message_id import encode_offset_message_id
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand


async def test_what_a_body_holds_is_no_half_message(tmp_path: Path) -> None:
    """A body may hold the record of a half message, made for just the place where it will lie."""
    async with running(tmp_path) as (broker, producer):
        half, log = await producer.prepare(), broker.store.commit_log
        record = broker.store.look_message_by_offset(half.physical_offset)
        assert record is not None
        for queue_offset in (0, 1, 1 << 61):
            # A record has its queue offset at 20 and its place at 28; the body begins at 88.
            forged = struct.pack(">qq", queue_offset, log.end + 88)
            place = Half(half.key, "", queue_offset, log.end + 88)
            await producer.send({}, body=record[:20] + forged + record[36:])
            answer = await producer.end(place, COMMIT)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "Find prepared transaction message failed" in (answer.remark or "")
            answer = await producer.call(
                RequestCode.RESUME_CHECK_HALF_MESSAGE,
                {"msgId": encode_offset_message_id(log.store_host, place.physical_offset)},
            )
            assert answer.code == ResponseCode.SYSTEM_ERROR
        assert broker.transactions.ledger.window.end <= 1
        assert (await producer.end(half, COMMIT)).code == ResponseCode.SUCCESS
        assert [message.body for message in await producer.read()][-1:] == [b"paid"]
        assert len(await producer.read()) == 4


async def test_what_waits_for_its_flush_is_not_lost(tmp_path: Path) -> None:
    """A round that comes meanwhile cannot read it, though one behind it has ended already."""
    disk = SlowDisk()
    async with running(tmp_path, flush="SYNC_FLUSH", disk=disk) as (broker, producer):
        await producer.send({}, body=b"first")
        disk.may_sync.clear()
        disk.is_syncing.clear()
        waiting = asyncio.create_task(producer.prepare())
        assert await asyncio.to_thread(disk.is_syncing.wait, PATIENCE_S)
        other = await producer.prepare(WAIT="false")
        end = asyncio.create_task(producer.end(other, ROLLBACK))
        await until(lambda: _is_ended(broker, other))
        rounds = CheckRounds(broker, broker.transactions.ledger, broker.transactions.counters)
        assert len(list(rounds.round())) == 0
        disk.may_sync.set()
        assert (await end).code == ResponseCode.SUCCESS
        assert (await producer.end(await waiting, COMMIT)).code == ResponseCode.SUCCESS
        assert broker.transactions.counters.lost == 0
        assert [message.body for message in await producer.read()] == [b"first", b"paid"]


async def _is_ended(broker: BrokerController, half: Half) -> bool:
    window = broker.transactions.ledger.window
    return window.end > half.queue_offset and not window.is_open(half.queue_offset)


async def test_nobody_else_changes_what_the_broker_has_read(tmp_path: Path) -> None:
    """A reset of its own group would have the transactions that are open forgotten at a start."""
    async with running(tmp_path) as (broker, producer):
        half = await producer.prepare()
        place = {"topic": HALF, "group": GROUP, "consumerGroup": GROUP, "queueId": 0}
        for code, fields in (
            (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"timestamp": -1, "isForce": True}),
            (RequestCode.UPDATE_CONSUMER_OFFSET, {"commitOffset": 1}),
            (RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "readers", "destGroup": GROUP}),
            (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": GROUP, "cleanOffset": True}),
        ):
            answer = await producer.call(code, place | fields)
            assert answer.code == ResponseCode.NO_PERMISSION, (code, answer.remark)
            assert "the broker's own group" in (answer.remark or "")
        pull = place | {
            "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 1 | 4, "commitOffset": 1,
            "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
        }  # fmt: skip
        assert (await producer.call(RequestCode.PULL_MESSAGE, pull)).code == ResponseCode.SUCCESS
        with pytest.raises(BrokerError):
            await administration.delete_offsets(broker, GROUP, HALF)
        assert broker.offsets.query(GROUP, HALF, 0) <= 0
    async with running(tmp_path) as (_, producer):
        assert (await producer.end(half, COMMIT)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("damage", [b"\x01", bytes(20), b"\xff" * 20])
async def test_a_damaged_unit_ends_no_transaction(tmp_path: Path, damage: bytes) -> None:
    """What the half topic's queue says wrongly is still in the log."""
    async with running(tmp_path) as (broker, producer):
        halves = [await producer.prepare() for _ in range(3)]
        await until(lambda: _is_written(broker))
        queue_file = tmp_path / "consumequeue" / HALF / "0" / f"{0:020d}"
        units = bytearray(queue_file.read_bytes())
        units[7 : 7 + len(damage)] = damage
        units[27:28] = damage[:1]
        with queue_file.open("r+b") as file:
            file.write(units)
        broker.transactions.ledger.tick()
        rounds = CheckRounds(broker, broker.transactions.ledger, broker.transactions.counters)
        assert len(list(rounds.round())) == 3
        assert broker.transactions.counters.lost == 0
        for half in halves:
            assert (await producer.end(half, COMMIT)).code == ResponseCode.SUCCESS
        assert len(await producer.read()) == 3


async def _is_written(broker: BrokerController) -> bool:
    return not broker.store.queues.has_unwritten


async def test_ends_that_wait_for_a_flush_keep_no_bodies(tmp_path: Path) -> None:
    """The disk may hang for long, and whoever sends them may put anything in."""
    disk = SlowDisk()
    async with running(tmp_path, flush="SYNC_FLUSH", disk=disk) as (broker, producer):
        await producer.send({})
        halves = [await producer.prepare() for _ in range(8)]
        _, writer = await asyncio.open_connection(*broker.address.split(":"))
        disk.may_sync.clear()
        tracemalloc.start()
        try:
            for half in halves:
                fields = producer.end_fields(half, COMMIT)
                code, body = RequestCode.END_TRANSACTION, bytes(2 << 20)
                writer.write(RemotingCommand.request(code, fields, body, oneway=True).encode())
                await until(partial(_is_ended, broker, half))
            kept_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            disk.may_sync.set()
        writer.close()
        assert kept_bytes < 4 * len(body)
    async with running(tmp_path) as (_, producer):
        assert len(await producer.read()) == 9
