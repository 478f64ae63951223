"""Committed offsets and the ends of their queues: nothing that is stored is skipped."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from raw_client import RawClient, broker_settings, connected

from mailboat.broker.controller import BrokerController
from mailboat.disk import read_file
from mailboat.disk.json_file import JsonFile
from mailboat.model.record import decode_records
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue
from mailboat.testing.simulated_disk import SimulatedDisk

ROOT = "/store"
OFFSETS = f"{ROOT}/config/consumerOffset.json"
NEW = [b"new 0", b"new 1", b"new 2"]


@pytest.fixture
async def client(broker: BrokerController) -> AsyncIterator[RawClient]:
    """Connect a client that has made topic T and is a member of group G."""
    async with connected(broker, "a") as [client]:
        await client.make_topic("T")
        await client.heartbeat("T", group="G")
        yield client


# -- beyond the end -------------------------------------------------------------------------------


@pytest.mark.parametrize("beyond", [3, 50, (1 << 63) - 1])
async def test_a_commit_beyond_the_end_is_refused(client: RawClient, beyond: int) -> None:
    """It counts messages that nobody has stored: the group would skip those that come.

    So neither a commit of its own nor one that rides on a pull moves the offset.
    """
    await client.send("T", b"one")
    await client.send("T", b"two")
    await client.commit("G", "T", 1)
    answer = await client.commit("G", "T", beyond)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert f"commitOffset {beyond} is beyond the end of queue 0 of topic T" in (answer.remark or "")
    assert await client.committed("G", "T") == 1
    await client.pull("G", "T", 0, commit_offset=beyond)
    assert await client.committed("G", "T") == 1
    await client.pull("G", "T", 0, commit_offset=2)
    assert await client.committed("G", "T") == 2


async def test_a_reader_beyond_the_end_goes_on_where_its_group_was(client: RawClient) -> None:
    """A member that outlived the loss of the log's end skips nothing that was stored since."""
    for body in NEW:
        await client.send("T", body)
    await client.commit("G", "T", 1)
    answer = await client.pull("G", "T", 50)
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert answer.ext_fields["nextBeginOffset"] == "1"
    answer = await client.pull("H", "T", 50)
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert answer.ext_fields["nextBeginOffset"] == "3"


async def test_a_topic_that_is_made_anew_is_read_from_its_beginning(client: RawClient) -> None:
    """Whoever has read the former one further: all of the new one is new."""
    for body in NEW:
        await client.send("T", body)
    await client.commit("G", "T", 3)
    await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    await client.make_topic("T")
    await client.send("T", b"first")
    answer = await client.pull("G", "T", 3)
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert answer.ext_fields["nextBeginOffset"] == "0"
    assert await client.committed("G", "T") in (None, 0)


async def test_no_offset_comes_with_the_end_of_the_queue(client: RawClient) -> None:
    """A group that begins at the end learns it with the same answer."""
    await client.send("T", b"one")
    fields: dict[str, ExtValue] = {
        "consumerGroup": "G", "topic": "T", "queueId": 0, "setZeroIfNotFound": False,
    }  # fmt: skip
    answer = await client.call(RequestCode.QUERY_CONSUMER_OFFSET, fields)
    assert (answer.code, answer.ext_fields) == (ResponseCode.QUERY_NOT_FOUND, {"maxOffset": "1"})


# -- power cuts -----------------------------------------------------------------------------------


async def start(disk: SimulatedDisk) -> BrokerController:
    """Start a broker that flushes only when it is asked to, and saves its tables all the time."""
    settings = broker_settings(Path(ROOT), flush_consumer_offset_interval=10)
    store = dataclasses.replace(settings.store, flush_interval_commit_log=60_000)
    controller = BrokerController(dataclasses.replace(settings, store=store), disk=disk)
    await controller.start()
    return controller


async def saved_offset(disk: SimulatedDisk, queue_offset: int) -> None:
    """Wait until the file of a disk holds an offset of group G."""
    async with asyncio.timeout(20):
        while True:
            if disk.exists(OFFSETS):
                table = json.loads(read_file(disk, OFFSETS))["offsetTable"]
                if table.get("T@G") == {"0": queue_offset}:
                    return
            await asyncio.sleep(0.01)


async def read_new_messages(disk: SimulatedDisk) -> tuple[int, int, list[bytes]]:
    """Start on a disk, store new messages, and return the group's offset, the end of the queue
    before them, and what the group reads."""
    controller = await start(disk)
    try:
        async with connected(controller, "b") as [client]:
            end = controller.store.max_offset("T", 0)
            for body in NEW:
                await client.send("T", body)
            await client.heartbeat("T", group="G")
            committed = await client.committed("G", "T")
            assert committed is not None
            answer = await client.pull("G", "T", committed)
            assert answer.code == ResponseCode.SUCCESS
            return committed, end, [message.body for message in decode_records(answer.body)]
    finally:
        await controller.shutdown()


async def test_a_power_cut_leaves_no_offset_that_skips_messages() -> None:
    """Offsets are saved once what they count is durable: whatever of the log's end is lost, the
    group reads what is stored next."""
    disk = SimulatedDisk()
    controller = await start(disk)
    try:
        async with connected(controller, "a") as [client]:
            await client.make_topic("T")
            await client.heartbeat("T", group="G")
            for number in range(10):
                await client.send("T", b"old %d" % number)
            flushed = asyncio.Event()
            controller.flush.wait(controller.store.commit_log.end, lambda ok: flushed.set())
            await flushed.wait()
            for number in range(10, 50):
                await client.send("T", b"old %d" % number)
            await client.commit("G", "T", 50)
            await saved_offset(disk, 50)
            crashed = [disk.crash(Random(seed)) for seed in range(20)]
    finally:
        await controller.shutdown()
    for after in crashed:
        committed, end, read = await read_new_messages(after)
        assert committed <= end
        assert read[-len(NEW) :] == NEW


async def test_offsets_beyond_the_log_are_set_back_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As a broker finds them that RocketMQ, or an older mailboat, left behind a power cut."""
    disk = SimulatedDisk()
    controller = await start(disk)
    try:
        async with connected(controller, "a") as [client]:
            await client.make_topic("T")
            await client.send("T", b"old")
    finally:
        await controller.shutdown()
    table = {"T@G": {0: 50}, "T@H": {0: 1}, "gone@G": {0: 7}}
    JsonFile(disk, OFFSETS).save(json.dumps({"dataVersion": {}, "offsetTable": table}).encode())
    assert await read_new_messages(disk) == (1, 1, NEW)
    lines = [record.message for record in caplog.records if "set back" in record.message]
    assert len(lines) == 1
    assert "group=G topic=T queue=0 50->1" in lines[0]
    assert "group=H" not in lines[0]
    await saved_offset(disk, 1)
    assert json.loads(read_file(disk, OFFSETS))["offsetTable"]["T@H"] == {"0": 1}


async def test_offsets_are_not_saved_where_the_log_cannot_be_flushed() -> None:
    """A stop after a failed flush leaves the file as it was."""
    disk = SimulatedDisk()
    controller = await start(disk)
    async with connected(controller, "a") as [client]:
        await client.make_topic("T")
        await client.heartbeat("T", group="G")
        await client.send("T", b"one")
        controller.store.commit_log.poison("planted")
        await client.commit("G", "T", 1)
        with pytest.raises(OSError, match="not flushed"):
            await controller.offsets.persist()
    await controller.shutdown()
    assert not disk.exists(OFFSETS)
