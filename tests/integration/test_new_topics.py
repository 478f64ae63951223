"""Topics that messages make: what waits for their file, and what does not."""

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from raw_client import RawClient, broker_settings, connected

from mailboat.broker.controller import BrokerController
from mailboat.disk.real import RealDisk
from mailboat.model.batch import encode_batch
from mailboat.model.message import Message
from mailboat.model.record import decode_records
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand
from mailboat.store.message_inner import MessageInner
from mailboat.testing.disk_wrapper import DiskWrapper


class SlowTopics(DiskWrapper):
    """A disk on which the file of topics is renamed into place when `go` is set."""

    def __init__(self) -> None:
        """Let everything pass until `go` is cleared."""
        super().__init__(RealDisk())
        self.go = threading.Event()
        self.go.set()
        self.fails = False

    def rename(self, source: str, target: str) -> None:
        """Rename, late or never where it is about topics."""
        if target.endswith("/topics.json"):
            assert self.go.wait(20)
            if self.fails:
                raise OSError(28, "No space left on device")
        super().rename(source, target)


@pytest.fixture
async def disk() -> AsyncIterator[SlowTopics]:
    """Return a disk; at the end nobody waits for it any more."""
    disk = SlowTopics()
    yield disk
    disk.go.set()


@asynccontextmanager
async def running(
    root: Path, disk: SlowTopics, flush: str = "ASYNC_FLUSH"
) -> AsyncIterator[BrokerController]:
    """Run a broker on a disk."""
    controller = BrokerController(broker_settings(root, flush), disk=disk)
    await controller.start()
    try:
        yield controller
    finally:
        await controller.shutdown()


def send(
    client: RawClient, topic: str, body: bytes, properties: str = "", *, batch: bool = False
) -> "asyncio.Task[RemotingCommand]":
    """Send without waiting for the answer."""
    fields: dict[str, ExtValue] = {
        "a": "PG", "b": topic, "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1,
        "h": 0, "i": properties, "j": 0, "k": False, "m": batch,
    }  # fmt: skip
    code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
    if batch:
        body = encode_batch([Message(topic, body)], ["U"])
    return asyncio.ensure_future(client.call(code, fields, body))


async def bodies(client: RawClient, topic: str) -> list[bytes]:
    """Return what queue 0 of a topic holds."""
    answer = await client.pull("G", topic, 0)
    return [message.body for message in decode_records(answer.body)]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_sends_of_a_new_topic_wait_and_others_do_not(
    tmp_path: Path, disk: SlowTopics, flush: str
) -> None:
    """While the file is written other topics are served; then the new one has everything in the
    order in which it came, batches too, and a send that comes last is last."""
    async with running(tmp_path, disk, flush) as broker:
        async with connected(broker, "a", "b") as [client, other]:
            await other.send("Known", b"x")
            disk.go.clear()
            waiting = [send(client, "T", b"%d" % number) for number in range(700)]
            waiting.append(send(client, "T", b"batch", batch=True))
            waiting += [send(client, "T", b"%d" % number) for number in range(700, 720)]
            await other.send("Known", b"y")
            assert not any(task.done() for task in waiting)
            assert broker.topics.select("T") is None
            disk.go.set()
            answers = await asyncio.gather(*waiting)
            assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
            offsets = [int(answer.ext_fields["queueOffset"]) for answer in answers]
            assert offsets == list(range(len(waiting)))
            await client.send("T", b"last")
            assert broker.store.max_offset("T", 0) == len(waiting) + 1


async def test_a_topic_whose_file_is_not_written_takes_no_message(
    tmp_path: Path, disk: SlowTopics
) -> None:
    """Every send that waits is refused with the reason, nothing of it appears later, and the
    topic may be made once the disk is well."""
    async with running(tmp_path, disk) as broker:
        async with connected(broker, "a") as [client]:
            await client.heartbeat("T", group="G")
            await broker.topics.persist()
            disk.go.clear()
            disk.fails = True
            waiting = [send(client, "T", b"%d" % number) for number in range(3)]
            await asyncio.sleep(0.05)
            disk.go.set()
            for answer in await asyncio.gather(*waiting):
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
                assert "topic T was not made because" in (answer.remark or "")
            assert broker.topics.select("T") is None
            disk.fails = False
            await client.send("T", b"again")
            assert await bodies(client, "T") == [b"again"]


async def test_a_stop_answers_what_waits_for_a_topic(tmp_path: Path, disk: SlowTopics) -> None:
    """A disk that hangs must not leave senders without an answer; the refusal says why."""
    controller = BrokerController(broker_settings(tmp_path), disk=disk)
    await controller.start()
    async with connected(controller, "a") as [client]:
        disk.go.clear()
        waiting = send(client, "T", b"1")
        await asyncio.sleep(0.05)
        stop = asyncio.create_task(controller.shutdown())
        answer = await waiting
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "the broker is stopping" in (answer.remark or "")
        disk.go.set()
        await stop


async def test_a_stop_stores_what_waited_for_a_topic_in_time(
    tmp_path: Path, disk: SlowTopics
) -> None:
    """A send that was read before the stop is stored and answered, and its topic is kept."""
    controller = BrokerController(broker_settings(tmp_path), disk=disk)
    await controller.start()
    async with connected(controller, "a") as [client]:
        disk.go.clear()
        waiting = send(client, "T", b"1")
        await asyncio.sleep(0.05)
        stop = asyncio.create_task(controller.shutdown())
        await asyncio.sleep(0.05)
        disk.go.set()
        assert (await waiting).code == ResponseCode.SUCCESS
        await stop
    async with running(tmp_path, disk) as again:
        async with connected(again, "a") as [client]:
            assert await bodies(client, "T") == [b"1"]


async def test_too_many_sends_that_wait_are_refused(tmp_path: Path, disk: SlowTopics) -> None:
    """64 MiB of messages may wait for their topics; the next is SYSTEM_BUSY, and stored nowhere."""
    body = bytes(1_000_000)
    async with running(tmp_path, disk) as broker:
        async with connected(broker, "a") as [client]:
            await client.send("Known", b"x")
            disk.go.clear()
            waiting = [send(client, f"T{number % 3}", body) for number in range(67)]
            answer = await send(client, "T0", body)
            assert answer.code == ResponseCode.SYSTEM_BUSY
            assert (answer.remark or "").startswith("[OVERLOAD]67 messages wait")
            disk.go.set()
            for stored in await asyncio.gather(*waiting):
                assert stored.code == ResponseCode.SUCCESS, stored.remark
            assert broker.store.max_offset("T0", 0) == 23


async def test_properties_of_sends_that_wait_count_too(tmp_path: Path, disk: SlowTopics) -> None:
    """A send without much of a body may have 30 KB of properties, four times that in memory with
    one letter outside of the BMP: some hundred of them are as much as may wait."""
    properties = "k\x01\U0001f6a4" + "x" * 30_000 + "\x02"
    async with running(tmp_path, disk) as broker:
        async with connected(broker, "a") as [client]:
            await client.send("Known", b"x")
            disk.go.clear()
            waiting = [send(client, "T", b"x", properties) for _ in range(600)]
            refused = await waiting[-1]
            assert refused.code == ResponseCode.SYSTEM_BUSY
            disk.go.set()
            codes = [answer.code for answer in await asyncio.gather(*waiting)]
            assert codes.count(ResponseCode.SUCCESS) in range(550, 560)
            assert codes.count(ResponseCode.SYSTEM_BUSY) == 600 - codes.count(0)


async def test_an_administrators_topic_takes_no_message_before_it_is_durable(
    tmp_path: Path, disk: SlowTopics
) -> None:
    """Neither a send nor a second administrator is told that all is well while the file is
    written: after a kill the topic would be gone, and its messages with it."""
    async with running(tmp_path, disk) as broker:
        async with connected(broker, "a", "b", "c") as [client, other, third]:
            await client.send("Known", b"x")
            disk.go.clear()
            waiting = [asyncio.ensure_future(client.make_topic("T", 3))]
            await asyncio.sleep(0.05)
            sent = send(other, "T", b"1")
            waiting.append(asyncio.ensure_future(third.make_topic("T", 5)))
            await asyncio.sleep(0.2)
            assert not any(task.done() for task in (*waiting, sent))
            disk.go.set()
            await asyncio.gather(*waiting)
            assert (await sent).code == ResponseCode.SUCCESS
            made = broker.topics.select("T")
            assert made is not None
            assert made.write_queue_nums == 5
    async with running(tmp_path, disk) as again:
        made = again.topics.select("T")
        assert made is not None
        assert made.write_queue_nums == 5
        async with connected(again, "a") as [client]:
            assert await bodies(client, "T") == [b"1"]


async def test_what_could_not_be_saved_is_not_well_the_second_time(
    tmp_path: Path, disk: SlowTopics
) -> None:
    """A topic that could not be made or deleted is not acknowledged when it is asked for again on
    the same full disk."""
    async with running(tmp_path, disk) as broker:
        async with connected(broker, "a") as [client]:
            await client.make_topic("Known")
            disk.fails = True
            for _ in range(2):
                with pytest.raises(AssertionError, match="topic T was not made because"):
                    await client.make_topic("T")
                assert broker.topics.select("T") is None
            for _ in range(2):
                with pytest.raises(AssertionError, match="topic Known is changed, but that"):
                    await client.make_topic("Known", 2)
            for _ in range(2):
                answer = await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Known"})
                assert answer.code == ResponseCode.SYSTEM_ERROR
            disk.fails = False
            await client.make_topic("T")
            await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Known"})
    async with running(tmp_path, disk) as again:
        assert again.topics.select("T") is not None
        assert again.topics.select("Known") is None


async def test_making_a_topic_among_many_holds_nobody_up(tmp_path: Path, disk: SlowTopics) -> None:
    """With 40,000 topics a new one costs the loop no more than with one: nothing takes 50 ms of
    its processor time at once."""
    async with running(tmp_path, disk) as broker:
        for number in range(40_000):
            broker.topics.update(TopicConfig(f"topic-{number:06d}", 4, 4))
        await broker.topics.persist()
        async with connected(broker, "a") as [client]:
            await client.send("First", b"x")
            # A look at all objects of this test process is not what is measured.
            gc.freeze()
            longest = 0.0
            sending = asyncio.gather(*(send(client, f"T{number}", b"x") for number in range(5)))
            begin = time.thread_time()
            while not sending.done():
                await asyncio.sleep(0)
                now = time.thread_time()
                longest = max(longest, now - begin)
                begin = now
            assert {answer.code for answer in await sending} == {ResponseCode.SUCCESS}
            gc.unfreeze()
            assert longest < 0.05


async def test_a_topic_is_made_though_what_waited_for_it_failed(
    tmp_path: Path, disk: SlowTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waited is told that the outcome is open, and the next message is stored; topics that
    are made at the same time are none the worse for it."""
    async with running(tmp_path, disk) as broker:
        put_messages = broker.store.put_messages

        def put(messages: list[MessageInner]) -> None:
            if messages[0].topic == "T":
                raise RuntimeError("planted")
            put_messages(messages)

        async with connected(broker, "a") as [client]:
            await client.heartbeat("T", "U", group="G")
            await broker.topics.persist()
            disk.go.clear()
            waiting = [send(client, "T", b"%d" % number) for number in range(300)]
            other = send(client, "U", b"other")
            await asyncio.sleep(0.05)
            monkeypatch.setattr(broker.store, "put_messages", put)
            disk.go.set()
            for answer in await asyncio.gather(*waiting):
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert "topic T was made, but what waited for it failed" in (answer.remark or "")
            assert (await other).code == ResponseCode.SUCCESS
            monkeypatch.undo()
            await client.send("T", b"again")
            assert await bodies(client, "T") == [b"again"]


async def test_a_topic_that_is_deleted_while_it_is_made_is_gone(
    tmp_path: Path, disk: SlowTopics
) -> None:
    """It is as if the request had come a little later: what was sent is acknowledged, then all of
    it goes."""
    async with running(tmp_path, disk) as broker:
        async with connected(broker, "a", "b") as [client, admin]:
            await client.send("Known", b"x")
            disk.go.clear()
            sent = send(client, "T", b"1")
            await asyncio.sleep(0.05)
            assert broker.topics.is_being_made("T")
            delete = RequestCode.DELETE_TOPIC_IN_BROKER
            deleted = asyncio.ensure_future(admin.call(delete, {"topic": "T"}))
            await asyncio.sleep(0.05)
            disk.go.set()
            assert (await sent).code == ResponseCode.SUCCESS
            assert (await deleted).code == ResponseCode.SUCCESS
            assert broker.topics.select("T") is None
            assert not broker.store.has_queue("T", 0)
            await client.send("T", b"2")
            await client.heartbeat("T", group="G")
            assert await bodies(client, "T") == [b"2"]
            assert (await admin.call(delete, {"topic": "T"})).code == ResponseCode.SUCCESS
    async with running(tmp_path, disk) as again:
        assert again.topics.select("T") is None


async def test_queues_of_a_topic_that_is_being_made_are_not_unused(
    tmp_path: Path, disk: SlowTopics
) -> None:
    """What waits is stored before the topic is in the table."""
    async with running(tmp_path, disk) as broker:
        async with connected(broker, "a", "b") as [client, admin]:
            await client.send("T", b"1")
            broker.topics.delete("T")
            disk.go.clear()
            sent = send(client, "T", b"2")
            await asyncio.sleep(0.05)
            assert broker.topics.is_being_made("T")
            answer = await admin.call(RequestCode.CLEAN_UNUSED_TOPIC)
            assert answer.code == ResponseCode.SUCCESS
            assert broker.store.max_offset("T", 0) == 1
            disk.go.set()
            assert (await sent).ext_fields["queueOffset"] == "1"
