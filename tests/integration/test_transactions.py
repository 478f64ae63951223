"""Transactions over real sockets: what consumers see of each way in which one can end.

A producer here is a plain connection that sends what RocketMQ's producers send: a half message with
TRAN_MSG and PGROUP (310), its end (37), and ends again when the broker asks (39).
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from small_store import small_store

from mailboat.broker.controller import BrokerController
from mailboat.config import BrokerConfig, Settings
from mailboat.disk import Disk, VolumeUsage
from mailboat.disk.real import RealDisk
from mailboat.model.message import MessageExt
from mailboat.model.message_id import decode_offset_message_id
from mailboat.model.record import decode_record, decode_records
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.heartbeat import HeartbeatData, ProducerData, encode_heartbeat
from mailboat.remoting.client import RemotingClient
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.store.message_inner import MessageInner, PutStatus
from mailboat.web.context import WebContext
from mailboat.web.metrics import MetricsPage

UNKNOWN, COMMIT, ROLLBACK = 0, 8, 12
HALF, OP_HALF = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP, GROUP = "TRANS_CHECK_MAX_TIME_TOPIC", "CID_RMQ_SYS_TRANS"
PATIENCE_S = 60
"""What only a broker that hangs takes."""

FAST = {"transaction_time_out": 40, "transaction_check_interval": 40}
NO_CHECKS = {"transaction_time_out": 60_000, "transaction_check_interval": 60_000}


class Half(NamedTuple):
    """A half message as its producer knows it."""

    key: str
    message_id: str
    queue_offset: int
    physical_offset: int


class Producer:
    """One connection of a producer; it answers no question by itself."""

    def __init__(self, address: str, group: str = "pg") -> None:
        """Prepare a producer of a group; `join` makes it a member."""
        self.address, self.group = address, group
        self.questions: asyncio.Queue[RemotingCommand] = asyncio.Queue()
        dispatcher = Dispatcher()
        dispatcher.register(RequestCode.CHECK_TRANSACTION_STATE, self._asked)
        self._remoting = RemotingClient(dispatcher)
        self._prepared = 0

    async def call(self, code: int, fields: dict[str, Any], body: bytes = b"") -> RemotingCommand:
        """Send a request and return the answer."""
        command = RemotingCommand.request(code, fields, body)
        return await self._remoting.request(self.address, command, PATIENCE_S)

    async def join(self) -> None:
        """Send a heartbeat: from now on the broker may ask this producer."""
        data = HeartbeatData(f"10.0.0.1@{id(self)}")
        data.producer_data_set.append(ProducerData(self.group))
        await self.call(RequestCode.HEART_BEAT, {}, encode_heartbeat(data))

    async def send(self, properties: dict[str, str], topic: str = "t") -> RemotingCommand:
        """Send a message with these properties."""
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        fields = {
            "a": self.group, "b": topic, "c": "TBW102", "d": 4, "e": 1, "f": 4,
            "g": int(time.time() * 1000), "h": 0, "i": text, "j": 0, "k": "false", "m": "false",
        }  # fmt: skip
        return await self.call(RequestCode.SEND_MESSAGE_V2, fields, b"paid")

    async def prepare(self, topic: str = "t", **properties: str) -> Half:
        """Store a half message for queue 1 of a topic."""
        self._prepared += 1
        key = f"{self.group}-{self._prepared}"
        known = {"TRAN_MSG": "true", "PGROUP": self.group, "UNIQ_KEY": key, "TAGS": "TagA"}
        answer = await self.send(known | properties, topic)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert answer.ext_fields["queueId"] == "1"
        assert answer.ext_fields["transactionId"] == properties.get("UNIQ_KEY", key)
        message_id = answer.ext_fields["msgId"]
        physical_offset = decode_offset_message_id(message_id).physical_offset
        return Half(key, message_id, int(answer.ext_fields["queueOffset"]), physical_offset)

    async def end(self, half: Half, state: int, **changes: Any) -> RemotingCommand:
        """End a transaction, with an answer."""
        fields = {
            "producerGroup": self.group,
            "tranStateTableOffset": half.queue_offset,
            "commitLogOffset": half.physical_offset,
            "commitOrRollback": state,
            "fromTransactionCheck": False,
            "msgId": half.key,
            "transactionId": half.key,
        }
        return await self.call(RequestCode.END_TRANSACTION, fields | changes)

    async def asked(self) -> tuple[Half, MessageExt]:
        """Wait for a question; return the half message as it says, and the message in it."""
        async with asyncio.timeout(PATIENCE_S):
            command = await self.questions.get()
        assert command.is_oneway
        fields = command.ext_fields
        offsets = int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"])
        message, _ = decode_record(command.body, verify=False)
        assert fields["transactionId"] == fields["msgId"] == message.unique_key
        return Half(fields["msgId"], fields["offsetMsgId"], *offsets), message

    async def read(self, topic: str = "t", queue_id: int = 1) -> list[MessageExt]:
        """Pull everything that one queue holds."""
        found: list[MessageExt] = []
        fields = {
            "consumerGroup": "readers", "topic": topic, "queueId": queue_id, "maxMsgNums": 32,
            "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*",
            "subVersion": 0,
        }  # fmt: skip
        while True:
            answer = await self.call(RequestCode.PULL_MESSAGE, fields | {"queueOffset": len(found)})
            if answer.code != ResponseCode.SUCCESS:
                return found
            found += decode_records(answer.body)

    async def close(self) -> None:
        """Close the connection."""
        await self._remoting.close()

    def _asked(self, _connection: Connection, command: RemotingCommand) -> None:
        self.questions.put_nowait(command)


class FillingDisk(RealDisk):
    """A disk that is full when a test says so."""

    def __init__(self) -> None:
        """Begin with room."""
        super().__init__()
        self.is_full = False

    def usage(self, path: str) -> VolumeUsage:
        """Return the state of a volume of a gigabyte."""
        size_bytes = 1 << 30
        used_bytes = size_bytes if self.is_full else 0
        return VolumeUsage(1, size_bytes, used_bytes, size_bytes - used_bytes, 1000, 900)


class SlowDisk(RealDisk):
    """A disk that syncs when a test lets it."""

    def __init__(self) -> None:
        """Begin with a fast one."""
        super().__init__()
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.is_syncing = threading.Event()

    def fdatasync(self, fd: int) -> None:
        """Sync once that is allowed."""
        self.is_syncing.set()
        assert self.may_sync.wait(PATIENCE_S)
        super().fdatasync(fd)


def _settings(root: Path, store: dict[str, Any], **broker: Any) -> Settings:
    return Settings(
        role="broker",
        broker=BrokerConfig(listen_port=0, bind_address="127.0.0.1", **broker),
        store=small_store(root, **store),
    )


@contextlib.asynccontextmanager
async def _running(
    root: Path, *, flush: str = "ASYNC_FLUSH", disk: Disk | None = None, **broker: Any
) -> AsyncIterator[tuple[BrokerController, Producer]]:
    """Run a broker and a producer that is connected to it and no member yet."""
    store: dict[str, Any] = {"flush_disk_type": flush}
    if isinstance(disk, FillingDisk):
        store |= {"disk_max_used_space_ratio": 75, "disk_space_clean_forcibly_ratio": 85}
        store |= {"disk_space_warning_level_ratio": 90}
    settings = _settings(root, store, **(NO_CHECKS | broker))
    controller = BrokerController(settings, disk=disk)
    await controller.start()
    producer = Producer(controller.address)
    try:
        yield controller, producer
    finally:
        await producer.close()
        await controller.shutdown()


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what the broker does by itself."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_commit_shows_the_message_and_a_rollback_does_not(
    tmp_path: Path, flush: str
) -> None:
    """Nobody sees a half message; a commit shows it where it was sent to, once and for all."""
    async with _running(tmp_path, flush=flush) as (broker, producer):
        first = await producer.prepare(KEYS="order-1")
        second = await producer.prepare()
        assert (first.queue_offset, second.queue_offset) == (0, 1)
        assert await producer.read() == []
        assert (await producer.end(second, ROLLBACK)).code == ResponseCode.SUCCESS
        assert (await producer.end(first, COMMIT)).code == ResponseCode.SUCCESS
        (message,) = await producer.read()
        assert (message.body, message.tags, message.unique_key) == (b"paid", "TagA", first.key)
        assert message.sys_flag & 0xC == 0x8
        assert message.prepared_transaction_offset == first.physical_offset
        hidden = {"TRAN_MSG", "REAL_TOPIC", "REAL_QID"}
        assert not hidden & message.properties.keys()
        assert message.properties["__transactionId__"] == first.key
        found = broker.store.query_message("t", "order-1", 8, 0, 1 << 60)
        assert len(found.records) == 1
        assert [op.body for op in await producer.read(OP_HALF, 0)] == [b"1", b"0"]
        assert {op.tags for op in await producer.read(OP_HALF, 0)} == {"d"}
        assert broker.transactions.open_halves == 0
        counters = broker.transactions.counters
        assert (counters.committed, counters.rolled_back) == (1, 1)


async def test_an_end_is_acknowledged_when_it_is_durable(tmp_path: Path) -> None:
    """With SYNC_FLUSH nobody hears of a commit, and nobody sees it, before it is on the disk."""
    disk = SlowDisk()
    async with _running(tmp_path, flush="SYNC_FLUSH", disk=disk) as (_, producer):
        half = await producer.prepare()
        disk.may_sync.clear()
        disk.is_syncing.clear()
        end = asyncio.create_task(producer.end(half, COMMIT))
        assert await asyncio.to_thread(disk.is_syncing.wait, PATIENCE_S)
        assert await producer.read() == []
        assert not end.done()
        disk.may_sync.set()
        assert (await end).code == ResponseCode.SUCCESS
        assert len(await producer.read()) == 1


async def test_ends_without_an_answer_are_stored_too(tmp_path: Path) -> None:
    """RocketMQ's producers end one-way; the ends of one read share one op record."""
    async with _running(tmp_path) as (broker, producer):
        halves = [await producer.prepare() for _ in range(3)]
        await asyncio.gather(*[producer.end(half, COMMIT) for half in halves])
        assert len(await producer.read()) == 3
        ops = [op.body for op in await producer.read(OP_HALF, 0)]
        assert sorted(b",".join(ops).split(b",")) == [b"0", b"1", b"2"]
        reader, writer = await asyncio.open_connection(*broker.address.split(":"))
        half = await producer.prepare()
        fields = {
            "producerGroup": "pg", "tranStateTableOffset": half.queue_offset,
            "commitLogOffset": half.physical_offset, "commitOrRollback": COMMIT, "msgId": half.key,
        }  # fmt: skip
        command = RemotingCommand.request(RequestCode.END_TRANSACTION, fields, oneway=True)
        writer.write(command.encode())
        await _until(lambda: _is_count(producer, 4))
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()


async def _is_count(producer: Producer, count: int) -> bool:
    return len(await producer.read()) == count


@pytest.mark.parametrize("restart", [False, True])
async def test_a_second_end_changes_nothing(tmp_path: Path, restart: bool) -> None:
    """The same end again is acknowledged, another one refused; the message comes once."""
    async with _running(tmp_path) as (_, producer):
        kept, dropped = await producer.prepare(), await producer.prepare()
        await producer.end(kept, COMMIT)
        await producer.end(dropped, ROLLBACK)
        if not restart:
            await _check_second_ends(producer, kept, dropped)
    async with _running(tmp_path) as (_, producer):
        await _check_second_ends(producer, kept, dropped)


async def _check_second_ends(producer: Producer, kept: Half, dropped: Half) -> None:
    for half, state, code in (
        (kept, COMMIT, ResponseCode.SUCCESS),
        (kept, ROLLBACK, ResponseCode.SYSTEM_ERROR),
        (dropped, ROLLBACK, ResponseCode.SUCCESS),
        (dropped, COMMIT, ResponseCode.SYSTEM_ERROR),
    ):
        assert (await producer.end(half, state)).code == code
    assert [message.unique_key for message in await producer.read()] == [kept.key]


async def test_two_ends_at_once_deliver_once(tmp_path: Path) -> None:
    """The producer's own end and its answer to a question may come with one read."""
    async with _running(tmp_path) as (_, producer):
        half = await producer.prepare()
        answers = await asyncio.gather(
            producer.end(half, COMMIT),
            producer.end(half, COMMIT, fromTransactionCheck=True),
            producer.end(half, ROLLBACK),
        )
        assert [answer.code for answer in answers] == [0, 0, ResponseCode.SYSTEM_ERROR]
        assert len(await producer.read()) == 1


async def test_an_end_that_is_not_known_yet_leaves_the_transaction_open(tmp_path: Path) -> None:
    """UNKNOWN is acknowledged and ends nothing; a number without meaning is refused."""
    async with _running(tmp_path) as (broker, producer):
        half = await producer.prepare()
        assert (await producer.end(half, UNKNOWN)).code == ResponseCode.SUCCESS
        answer = await producer.end(half, 5)
        assert (answer.code, "commitOrRollback" in (answer.remark or "")) == (1, True)
        assert await producer.read() == []
        assert (await producer.end(half, COMMIT)).code == ResponseCode.SUCCESS
        assert broker.transactions.open_halves == 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"producerGroup": "other"}, "The producer group wrong"),
        ({"tranStateTableOffset": 1}, "The transaction state table offset wrong"),
        ({"commitLogOffset": 3}, "Find prepared transaction message failed"),
        ({"commitLogOffset": 1 << 40}, "Find prepared transaction message failed"),
        ({"commitLogOffset": "x"}, "commitLogOffset"),
        ({"producerGroup": None}, "producerGroup"),
    ],
)
async def test_a_wrong_end_stores_nothing(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    """Group and both offsets must be those of the half message."""
    async with _running(tmp_path) as (broker, producer):
        half = await producer.prepare()
        end = broker.store.commit_log.end
        answer = await producer.end(half, COMMIT, **changes)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert sentence in (answer.remark or "")
        assert broker.store.commit_log.end == end
        assert (await producer.end(half, COMMIT)).code == ResponseCode.SUCCESS


async def test_only_a_half_message_can_be_committed(tmp_path: Path) -> None:
    """A message of another topic is none, even with the properties of one."""
    async with _running(tmp_path) as (_, producer):
        answer = await producer.send({"PGROUP": "pg", "REAL_TOPIC": "t", "REAL_QID": "0"})
        place = decode_offset_message_id(answer.ext_fields["msgId"])
        answer = await producer.end(Half("k", "", 0, place.physical_offset), COMMIT)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert len(await producer.read()) == 1
        assert await producer.read(queue_id=0) == []


async def test_what_cannot_be_a_half_message_is_refused(tmp_path: Path) -> None:
    """No group, a delay as well, or a broker that takes none; nothing is stored."""
    async with _running(tmp_path) as (broker, producer):
        for properties, code, word in (
            ({"TRAN_MSG": "true"}, ResponseCode.MESSAGE_ILLEGAL, "PGROUP"),
            (
                {"TRAN_MSG": "true", "PGROUP": "pg", "DELAY": "3"},
                ResponseCode.MESSAGE_ILLEGAL,
                "DELAY",
            ),
        ):
            answer = await producer.send(properties)
            assert (answer.code, word in (answer.remark or "")) == (code, True)
        broker.change_config({"rejectTransactionMessage": "true"})
        answer = await producer.send({"TRAN_MSG": "true", "PGROUP": "pg"})
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "sending transaction message is forbidden" in (answer.remark or "")
        assert broker.store.max_offset(HALF, 0) == 0


@pytest.mark.parametrize("state", [COMMIT, ROLLBACK])
async def test_a_forgotten_transaction_is_asked_about(tmp_path: Path, state: int) -> None:
    """A member of the group is asked until it says how it ended; then nobody any more."""
    async with _running(tmp_path, **FAST) as (_, producer):
        await producer.join()
        half = await producer.prepare()
        question, message = await producer.asked()
        assert question == half
        assert (message.topic, message.queue_id, message.body) == ("t", 1, b"paid")
        assert message.properties["PGROUP"] == "pg"
        assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
        await producer.end(question, UNKNOWN, fromTransactionCheck=True)
        again, message = await producer.asked()
        assert (again, message.properties["TRANSACTION_CHECK_TIMES"]) == (half, "2")
        answer = await producer.end(again, state, fromTransactionCheck=True)
        assert answer.code == ResponseCode.SUCCESS
        found = [message.unique_key for message in await producer.read()]
        assert found == ([half.key] if state == COMMIT else [])
        # Questions that were sent before the end have come before its answer.
        while not producer.questions.empty():
            producer.questions.get_nowait()
        await producer.prepare()
        assert (await producer.asked())[0] != half


async def test_members_are_asked_in_turn_and_others_never(tmp_path: Path) -> None:
    """Any live member of the group may answer; a producer of another group is not asked."""
    async with _running(tmp_path, **FAST, transaction_check_max=1000) as (broker, producer):
        second, stranger = Producer(broker.address), Producer(broker.address, "other")
        for member in (producer, second, stranger):
            await member.join()
        half = await producer.prepare()
        await producer.asked()
        question, _ = await second.asked()
        assert (await second.end(question, COMMIT, fromTransactionCheck=True)).code == 0
        assert question == half
        assert stranger.questions.empty()
        await second.close()
        await stranger.close()


async def test_a_transaction_that_nobody_ends_is_given_up_and_can_be_resumed(
    tmp_path: Path,
) -> None:
    """After transactionCheckMax questions it lies in TRANS_CHECK_MAX_TIME_TOPIC; 323 asks again."""
    async with _running(tmp_path, **FAST, transaction_check_max=3) as (broker, producer):
        await producer.join()
        half = await producer.prepare()
        times = [(await producer.asked())[1].properties["TRANSACTION_CHECK_TIMES"] for _ in "123"]
        assert times == ["1", "2", "3"]
        await _until(lambda: _holds(producer, GIVEN_UP))
        assert producer.questions.empty()
        (given_up,) = await producer.read(GIVEN_UP, 0)
        assert (given_up.body, given_up.unique_key) == (b"paid", half.key)
        assert given_up.properties["REAL_TOPIC"] == "t"
        assert given_up.properties["TRANSACTION_CHECK_TIMES"] == "3"
        assert broker.transactions.counters.given_up == 1
        assert broker.transactions.open_halves == 0
        assert (await producer.end(half, COMMIT)).code == ResponseCode.SYSTEM_ERROR
        answer = await producer.call(
            RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": given_up.offset_message_id}
        )
        assert answer.code == ResponseCode.SUCCESS
        question, message = await producer.asked()
        assert (question.key, message.properties["TRANSACTION_CHECK_TIMES"]) == (half.key, "1")
        await producer.end(question, COMMIT, fromTransactionCheck=True)
        assert [message.unique_key for message in await producer.read()] == [half.key]


async def test_checks_follow_settings_that_change(tmp_path: Path) -> None:
    """When and how often is asked can be changed while a transaction is open."""
    async with _running(tmp_path) as (broker, producer):
        await producer.join()
        half = await producer.prepare()
        broker.change_config(
            {
                "transactionTimeOut": "40",
                "transactionCheckInterval": "40",
                "transactionCheckMax": "1",
            }
        )
        question, _ = await producer.asked()
        assert question.key == half.key
        await _until(lambda: _holds(producer, GIVEN_UP))
        assert producer.questions.empty()


async def _holds(producer: Producer, topic: str) -> bool:
    return bool(await producer.read(topic, 0))


async def test_only_what_was_given_up_or_is_open_can_be_resumed(tmp_path: Path) -> None:
    """An ended transaction is not asked about again, however its message is named."""
    async with _running(tmp_path) as (_, producer):
        half = await producer.prepare()
        resume = RequestCode.RESUME_CHECK_HALF_MESSAGE
        assert (await producer.call(resume, {"msgId": half.message_id})).code == 0
        await producer.end(half, COMMIT)
        (message,) = await producer.read()
        for message_id in (half.message_id, message.offset_message_id, "00" * 16):
            answer = await producer.call(resume, {"msgId": message_id})
            assert answer.code == ResponseCode.SYSTEM_ERROR
        answer = await producer.call(resume, {"msgId": "x"})
        assert (answer.code, "is not a message id" in (answer.remark or "")) == (13, True)


async def test_checks_count_while_no_producer_is_there(tmp_path: Path) -> None:
    """As in RocketMQ: a group that stays away has its transactions given up."""
    async with _running(tmp_path, **FAST, transaction_check_max=2) as (broker, producer):
        half = await producer.prepare()
        await _until(lambda: _holds(producer, GIVEN_UP))
        (given_up,) = await producer.read(GIVEN_UP, 0)
        assert given_up.unique_key == half.key
        assert broker.transactions.counters.checks_unsent == 2


async def test_immunity_puts_questions_off(tmp_path: Path) -> None:
    """CHECK_IMMUNITY_TIME_IN_SECONDS of a message stands in for transactionTimeOut."""
    async with _running(tmp_path, **FAST) as (broker, producer):
        await producer.join()
        begin = time.monotonic()
        immune = await producer.prepare(CHECK_IMMUNITY_TIME_IN_SECONDS="1")
        plain = await producer.prepare()
        question, _ = await producer.asked()
        assert question == plain
        await producer.end(plain, ROLLBACK)
        while question != immune:
            question, _ = await producer.asked()
        assert time.monotonic() - begin >= 1.0
        # RocketMQ 5 leaves an end that comes so late to the checks.
        answer = await producer.end(immune, COMMIT)
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        assert (await producer.end(immune, COMMIT, fromTransactionCheck=True)).code == 0
        assert broker.transactions.counters.committed == 1


async def test_open_transactions_outlive_a_restart(tmp_path: Path) -> None:
    """Nothing but the log and the committed offsets is needed to find them, and only them."""
    async with _running(tmp_path) as (_, producer):
        halves = [await producer.prepare() for _ in range(200)]
        for half in halves[::2]:
            await producer.end(half, COMMIT if half.queue_offset % 4 else ROLLBACK)
    async with _running(tmp_path, **FAST) as (broker, producer):
        await producer.join()
        asked = {(await producer.asked())[0].queue_offset for _ in range(100)}
        assert asked == set(range(1, 200, 2))
        assert broker.transactions.open_halves == 100
        for half in halves[1::2]:
            await producer.end(half, COMMIT)
        assert broker.transactions.open_halves == 0
        assert len(await producer.read()) == 150


async def test_a_commit_without_its_op_record_is_not_repeated(tmp_path: Path) -> None:
    """A kill between the message and its op record: the message is found, and delivered once."""
    async with _running(tmp_path) as (broker, producer):
        half = await producer.prepare()
        await producer.end(half, COMMIT)
        (message,) = await producer.read()
        # The same again with no op record, as the kill would leave it.
        cut_off = await producer.prepare()
        copy = MessageInner(
            "t", 1, message.body, f"UNIQ_KEY\x01{cut_off.key}\x02".encode(), 0, cut_off.key, None,
            0, 0x8, 1, message.born_host, prepared_transaction_offset=cut_off.physical_offset,
        )  # fmt: skip
        broker.store.put_messages([copy])
        assert copy.status == PutStatus.PUT_OK
        open_one = await producer.prepare()
    async with _running(tmp_path, **FAST) as (broker, producer):
        await producer.join()
        question, _ = await producer.asked()
        assert question.key == open_one.key
        assert broker.transactions.open_halves == 1
        assert (await producer.end(cut_off, COMMIT)).code == ResponseCode.SUCCESS
        assert (await producer.end(cut_off, ROLLBACK)).code == ResponseCode.SYSTEM_ERROR
        assert len(await producer.read()) == 2


async def test_a_deleted_topic_keeps_the_transaction_open(tmp_path: Path) -> None:
    """A commit to it is refused; once the topic is there again the next one delivers."""
    async with _running(tmp_path) as (broker, producer):
        half = await producer.prepare()
        broker.topics.delete("t")
        answer = await producer.end(half, COMMIT)
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert broker.transactions.open_halves == 1
        broker.topics.update(TopicConfig("t", read_queue_nums=1, write_queue_nums=1))
        assert (await producer.end(half, COMMIT)).code == ResponseCode.SUCCESS
        # Nobody reads queue 1 of a topic that has one queue.
        assert len(await producer.read(queue_id=0)) == 1


@pytest.mark.parametrize("state", [COMMIT, ROLLBACK])
async def test_a_full_disk_keeps_the_transaction_open(tmp_path: Path, state: int) -> None:
    """An end that cannot be stored is refused, and taken once there is room."""
    disk = FillingDisk()
    async with _running(tmp_path, disk=disk) as (broker, producer):
        half = await producer.prepare()
        disk.is_full = True
        broker.store.clean()
        answer = await producer.end(half, state)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "disk is full" in (answer.remark or "")
        assert broker.transactions.open_halves == 1
        disk.is_full = False
        broker.store.clean()
        assert (await producer.end(half, state)).code == ResponseCode.SUCCESS
        assert len(await producer.read()) == (state == COMMIT)


async def test_metrics_show_open_transactions_and_outcomes(tmp_path: Path) -> None:
    """One gauge for what is open, counters for ends and questions."""
    async with _running(tmp_path, **FAST, transaction_check_max=2) as (broker, producer):
        for state in (COMMIT, COMMIT, ROLLBACK):
            await producer.end(await producer.prepare(), state)
        await producer.prepare()
        await _until(lambda: _holds(producer, GIVEN_UP))
        await producer.prepare(CHECK_IMMUNITY_TIME_IN_SECONDS="600")
        await _until(lambda: _is_open_count(broker, 1))
        page = (await MetricsPage(WebContext(broker.settings, broker=broker)).render()).decode()
    for line in (
        "mailboat_half_messages 1.0",
        'mailboat_transactions_ended_total{outcome="committed"} 2.0',
        'mailboat_transactions_ended_total{outcome="rolled_back"} 1.0',
        'mailboat_transactions_ended_total{outcome="given_up"} 1.0',
        'mailboat_transactions_ended_total{outcome="lost"} 0.0',
        'mailboat_transaction_checks_total{result="sent"} 0.0',
        'mailboat_transaction_checks_total{result="unsent"} 2.0',
    ):
        assert line in page.splitlines()


async def _is_open_count(broker: BrokerController, count: int) -> bool:
    return broker.transactions.open_halves == count


async def test_progress_follows_the_oldest_open_transaction(tmp_path: Path) -> None:
    """CID_RMQ_SYS_TRANS commits what a restart need not look at, and nothing that it needs."""
    async with _running(tmp_path, transaction_time_out=80) as (broker, producer):
        first, second = await producer.prepare(), await producer.prepare()
        await producer.end(second, COMMIT)

        async def is_committed(half: int, op: int) -> bool:
            return broker.offsets.queues(GROUP, HALF) == {0: half} and (
                broker.offsets.queues(GROUP, OP_HALF) == {0: op}
            )

        await _until(lambda: is_committed(0, 0))
        await producer.end(first, COMMIT)
        await _until(lambda: is_committed(2, 2))


async def test_retention_keeps_what_an_open_transaction_needs(tmp_path: Path) -> None:
    """The committed offsets count as a reader's; alone they make nobody else's messages read."""
    async with _running(tmp_path, transaction_time_out=80) as (broker, producer):
        await producer.send({})
        half = await producer.prepare()
        await _until(lambda: _is_position(broker, 0))
        # A group that has read everything.
        for queue_id in range(4):
            broker.offsets.commit("readers", "t", queue_id, broker.store.max_offset("t", queue_id))
        await _until(lambda: _is_position(broker, half.physical_offset))
        await producer.end(half, ROLLBACK)
        await _until(lambda: _is_position(broker, broker.store.commit_log.end))


async def _is_position(broker: BrokerController, physical_offset: int) -> bool:
    if not broker.offsets.queues(GROUP, HALF):
        return False
    for _ in broker.reading.slices():
        continue
    return broker.reading.position() == physical_offset
