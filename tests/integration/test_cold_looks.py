"""Administration and delivery of messages that only the disk may have: the loop never reads first.

Whatever is asked about a message, another thread has read it before the event loop does: on a disk
that hangs, whoever asks waits, and nobody else.
"""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from guarded import client_of, guarded_broker, known_as, usual_users

from mailboat.broker.controller import BrokerController
from mailboat.broker.supervisor import TaskProgress
from mailboat.config import BrokerConfig, MessageStoreConfig, Settings
from mailboat.disk.real import RealDisk
from mailboat.model.message_queue import MessageQueue
from mailboat.model.names import HALF_TOPIC
from mailboat.model.properties import encode_properties
from mailboat.model.record import decode_records
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.stats_bodies import decode_consume_stats, decode_topic_stats
from mailboat.remoting.client import RemotingClient
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.remoting.shares import ADDRESSES
from mailboat.store.consume_queue import UNIT
from mailboat.store.message_inner import MessageInner, PutStatus

HOST = bytes((127, 0, 0, 1)) + (10911).to_bytes(4, "big")
MESSAGES = 60
PAGE = 4096


class Reads:
    """Which pages of log and queues other threads have read, and what the loop read before them."""

    def __init__(self) -> None:
        """Nothing was read yet."""
        self.warm: set[tuple[str, int]] = set()
        self.on_loop: list[str] = []
        self.gate: threading.Event | None = None

    def note(self, fd: int, size: int, position: int) -> None:
        """Take note of a read; one of another thread waits for the gate."""
        path = os.readlink(f"/proc/self/fd/{fd}")
        if "/commitlog/" not in path and "/consumequeue/" not in path:
            return
        pages = {(path, page) for page in range(position // PAGE, (position + size) // PAGE + 1)}
        if threading.current_thread() is not threading.main_thread():
            if self.gate is not None:
                self.gate.wait(60)
            self.warm |= pages
        elif (path, position // PAGE) not in self.warm:
            self.on_loop.append(f"{path} at {position}")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Watch all reads of the disk."""
    noted = Reads()
    pread = RealDisk.pread

    def watched(fd: int, size: int, position: int) -> bytes:
        noted.note(fd, size, position)
        return pread(fd, size, position)

    monkeypatch.setattr(RealDisk, "pread", staticmethod(watched))
    return noted


@pytest.fixture
async def broker(tmp_path: Path, reads: Reads) -> AsyncIterator[BrokerController]:
    """Start a broker of which every message counts as one that is on the disk only."""
    config = MessageStoreConfig(
        store_path_root_dir=str(tmp_path),
        mapped_file_size_commit_log=1 << 16,
        mapped_file_size_consume_queue=2_000,
        access_message_in_memory_max_ratio=0,
        disk_max_used_space_ratio=95,
        disk_space_clean_forcibly_ratio=100,
        disk_space_warning_level_ratio=100,
    )
    own = BrokerConfig(bind_address="127.0.0.1", listen_port=0)
    broker = BrokerController(Settings(role="broker", store=config, broker=own))
    await broker.start()
    broker.topics.table["t"] = TopicConfig("t", 1, 1)
    broker.groups.update(SubscriptionGroupConfig("g"))
    properties = encode_properties({"KEYS": "k"}).encode()
    for number in range(MESSAGES):
        body = b"%d" % number + bytes(5_000)
        message = MessageInner("t", 0, body, properties, 0, None, "k", 0, 0, 1, HOST)
        broker.store.put_messages([message])
        assert message.status == PutStatus.PUT_OK
    while broker.store.has_unwritten:
        broker.store.background()
        await asyncio.sleep(0)
    broker.offsets.commit("g", "t", 0, 20)
    reads.warm.clear()
    reads.on_loop.clear()
    yield broker
    if reads.gate is not None:
        reads.gate.set()
    await broker.shutdown()


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    """Return a client of any broker."""
    client = RemotingClient(Dispatcher())
    yield client
    await client.close()


QUEUE = {"topic": "t", "queueId": 0}
GROUP = {"topic": "t", "group": "g"}
REQUESTS: list[tuple[int, dict[str, Any]]] = [
    (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {**QUEUE, "timestamp": 1}),
    (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {**QUEUE, "timestamp": 1 << 60}),
    (RequestCode.GET_EARLIEST_MSG_STORETIME, QUEUE),
    (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "t"}),
    (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": "t"}),
    (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
    (RequestCode.QUERY_CONSUME_TIME_SPAN, GROUP),
    (
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        {**GROUP, "timestamp": 5, "isForce": "true"},
    ),
    (
        RequestCode.PULL_MESSAGE,
        {
            **QUEUE, "consumerGroup": "g", "queueOffset": 5, "maxMsgNums": 32, "sysFlag": 4,
            "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
        },
    ),
    (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 0}),
    (
        RequestCode.CONSUMER_SEND_MSG_BACK,
        {"offset": 0, "group": "g", "delayLevel": 3, "originTopic": "t"},
    ),
    (
        RequestCode.QUERY_MESSAGE,
        {
            "topic": "t", "key": "k", "maxNum": 8, "beginTimestamp": 0, "endTimestamp": 1 << 60,
        },
    ),
    (RequestCode.QUERY_CONSUME_QUEUE, {**QUEUE, "index": 0, "count": 10}),
    (RequestCode.QUERY_CONSUMER_OFFSET, {**QUEUE, "consumerGroup": "new"}),
]  # fmt: skip


@pytest.mark.parametrize(("code", "fields"), REQUESTS)
async def test_the_loop_reads_nothing_first(
    broker: BrokerController, client: RemotingClient, reads: Reads, code: int, fields: Any
) -> None:
    """While the disk hangs others are answered; the answer is what it is on any other disk."""
    reads.gate = threading.Event()
    command = RemotingCommand.request(code, fields)
    asked = asyncio.create_task(client.request(broker.address, command, 60))
    most = RemotingCommand.request(RequestCode.GET_MAX_OFFSET, QUEUE)
    answer = await client.request(broker.address, most, 60)
    assert answer.ext_fields["offset"] == str(MESSAGES)
    assert not asked.done()
    reads.gate.set()
    answer = await asked
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
    assert reads.on_loop == []


async def put_and_write(broker: BrokerController, message: MessageInner) -> MessageInner:
    """Store a message, and write what is in memory of its queue."""
    broker.store.put_messages([message])
    assert message.status == PutStatus.PUT_OK
    while broker.store.has_unwritten:
        broker.store.background()
        await asyncio.sleep(0)
    return message


async def test_delayed_messages_are_read_before_they_are_delivered(
    broker: BrokerController, reads: Reads
) -> None:
    """Those that come due on a disk that hangs wait for it; then they are delivered, in order."""
    reads.gate = threading.Event()
    for number in range(3):
        message = MessageInner("t", 0, b"%d" % number, b"", 0, None, None, 0, 0, 1, HOST)
        await put_and_write(broker, broker.schedule.park(message, {"KEYS": "d"}, 1))
    (source,) = (one for one in broker.schedule.progress if one.level == 1)
    while not source.is_being_read:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.01)
    assert broker.store.max_offset("t", 0) == MESSAGES
    reads.gate.set()
    while broker.store.max_offset("t", 0) < MESSAGES + 3:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.01)
    assert reads.on_loop == []
    found = broker.store.get_message("t", 0, MESSAGES, 3, 1 << 20, None)
    bodies = [message.body for message in decode_records(b"".join(found.slices))]
    assert bodies == [b"0", b"1", b"2"]


async def test_half_messages_are_read_before_they_end(
    broker: BrokerController, client: RemotingClient, reads: Reads
) -> None:
    """An end names a place of the log, a round of checks has those of all that are open."""
    properties = {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "u", "REAL_TOPIC": "t",
                  "REAL_QID": "0", "CHECK_IMMUNITY_TIME_IN_SECONDS": "0"}  # fmt: skip
    packed = encode_properties(properties).encode()
    half = MessageInner(HALF_TOPIC, 0, b"half", packed, 0, None, "u", 0, 0, 1, HOST)
    await put_and_write(broker, half)
    broker.transactions.ledger.window.extend(1)
    reads.gate = threading.Event()
    end = {
        "producerGroup": "p", "tranStateTableOffset": half.queue_offset, "commitOrRollback": 8,
        "commitLogOffset": half.physical_offset, "fromTransactionCheck": "false", "msgId": "u",
    }  # fmt: skip
    command = RemotingCommand.request(RequestCode.END_TRANSACTION, end)
    asked = asyncio.create_task(client.request(broker.address, command, 60))
    other = RemotingCommand.request(RequestCode.GET_MAX_OFFSET, QUEUE)
    assert (await client.request(broker.address, other, 60)).code == ResponseCode.SUCCESS
    assert not asked.done()
    reads.gate.set()
    assert (await asked).code == ResponseCode.SUCCESS
    assert broker.store.max_offset("t", 0) == MESSAGES + 1
    assert reads.on_loop == []


async def test_a_guard_reads_nothing_first(tmp_path: Path, reads: Reads) -> None:
    """The topic of the message that is named decides. Who is nobody has nothing read at all."""
    async with (
        guarded_broker(tmp_path, usual_users()) as broker,
        client_of(broker, known_as("root")) as root,
        client_of(broker, None) as nobody,
    ):
        await root.make_topic("T")
        await root.send("T", b"x")
        broker.store.warming.hot_bytes = 0
        reads.warm.clear()
        reads.on_loop.clear()
        place = {"offset": 0}
        answer = await nobody.call(RequestCode.VIEW_MESSAGE_BY_ID, place)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert not reads.warm
        answer = await root.call(RequestCode.VIEW_MESSAGE_BY_ID, place)
        assert answer.code == ResponseCode.SUCCESS
        assert reads.on_loop == []


async def test_rounds_of_checks_wait_for_the_disk(broker: BrokerController, reads: Reads) -> None:
    """Each open half message is read by another thread first."""
    properties = {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "u", "REAL_TOPIC": "t",
                  "REAL_QID": "0"}  # fmt: skip
    packed = encode_properties(properties).encode()
    half = MessageInner(HALF_TOPIC, 0, b"half", packed, 0, None, "u", 0, 0, 1, HOST)
    await put_and_write(broker, half)
    transactions = broker.transactions
    transactions.ledger.window.extend(1)
    progress = TaskProgress("round", 60, time.monotonic)
    await progress.finish(transactions._checks.round(), 0)
    assert reads.on_loop == []
    assert reads.warm


async def test_a_half_message_that_ends_while_a_round_reads_it_stays_ended(
    broker: BrokerController, reads: Reads
) -> None:
    """Nobody is asked about it again, and it is not given up."""
    packed = encode_properties({"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "u"}).encode()
    for _ in range(2):
        half = MessageInner(HALF_TOPIC, 0, b"half", packed, 0, None, "u", 0, 0, 1, HOST)
        await put_and_write(broker, half)
    transactions = broker.transactions
    window = transactions.ledger.window
    window.extend(2)
    reads.gate = threading.Event()
    progress = TaskProgress("round", 60, time.monotonic)
    rounds = asyncio.create_task(progress.finish(transactions._checks.round(), 0))
    while not broker.store_threads._reads.waiting:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.01)
    window.close(0)
    window.close(1)
    reads.gate.set()
    await rounds
    assert window.open_count == 0
    assert not window.is_open(0)


async def test_delayed_messages_are_read_as_they_are_delivered(
    broker: BrokerController, reads: Reads
) -> None:
    """Of large ones a megabyte is read at a time: no more is delivered before the next."""
    broker.schedule.restorer = None
    body = bytes(15_000)
    for _ in range(200):
        message = MessageInner("t", 0, body, b"", 0, None, None, 0, 0, 1, HOST)
        broker.store.put_messages([broker.schedule.park(message, {}, 1)])
        assert message.status == PutStatus.PUT_OK
    while broker.store.has_unwritten:
        broker.store.background()
        await asyncio.sleep(0)
    while broker.store.max_offset("t", 0) < MESSAGES + 200:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.01)
    assert reads.on_loop == []


async def test_looks_have_a_share_by_address(
    broker: BrokerController, client: RemotingClient, reads: Reads
) -> None:
    """While the disk hangs one address waits with so many of them: others still have places. What
    needs no disk is answered."""
    reads.gate = threading.Event()
    fields = {**QUEUE, "consumerGroup": "new"}
    share = broker.store_threads.places.limit // ADDRESSES

    async def ask(code: int, **fields: Any) -> int:
        return (
            await client.request(broker.address, RemotingCommand.request(code, fields), 60)
        ).code

    look = RequestCode.GET_TOPIC_STATS_INFO
    looks = [asyncio.create_task(ask(look, topic="t")) for _ in "abcd"]
    while not broker.store_threads.places.taken:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.01)
    assert await ask(RequestCode.GET_ALL_TOPIC_CONFIG) == ResponseCode.SUCCESS
    assert await ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG) == ResponseCode.SUCCESS
    code = RequestCode.QUERY_CONSUMER_OFFSET
    asked = [asyncio.create_task(ask(code, **fields)) for _ in range(share + 10)]
    done, _ = await asyncio.wait(asked, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    assert {task.result() for task in done} == {ResponseCode.SYSTEM_BUSY}
    assert broker.store_threads.can_read
    reads.gate.set()
    await asyncio.gather(*asked, *looks)
    assert broker.store_threads.places.taken == 0


async def test_an_offset_that_is_committed_meanwhile_is_answered(
    broker: BrokerController, client: RemotingClient, reads: Reads
) -> None:
    """A new group's member asks where to begin; another one commits while the disk is read."""
    reads.gate = threading.Event()
    fields = {**QUEUE, "consumerGroup": "new"}
    command = RemotingCommand.request(RequestCode.QUERY_CONSUMER_OFFSET, fields)
    asked = asyncio.create_task(client.request(broker.address, command, 60))
    while not broker.store_threads.places.taken:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.01)
    broker.offsets.commit("new", "t", 0, 7)
    reads.gate.set()
    assert (await asked).ext_fields["offset"] == "7"


async def test_a_search_by_time_over_a_gap_reads_nothing_first(
    broker: BrokerController, client: RemotingClient, reads: Reads
) -> None:
    """Behind units without a message the next message is as cold as any other."""
    queue = broker.store.queues.by_key["t", 0]
    queue.append_blanks(MESSAGES + 50)
    message = MessageInner("t", 0, b"behind", b"", 0, None, None, 0, 0, 1, HOST)
    await put_and_write(broker, message)
    reads.warm.clear()
    fields = {**QUEUE, "timestamp": broker.store.store_timestamp("t", 0, MESSAGES + 50)}
    reads.on_loop.clear()
    command = RemotingCommand.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)
    answer = await client.request(broker.address, command, 60)
    assert answer.code == ResponseCode.SUCCESS
    assert reads.on_loop == []


async def test_a_unit_that_has_lost_a_bit_makes_no_message_hot(broker: BrokerController) -> None:
    """It leads behind the log's end, where everything would be in memory."""
    queue = broker.store.queues.by_key["t", 0]
    physical_offset, size, code = queue.unit(5) or (0, 0, 0)
    queue.replace_unit(5, UNIT.pack(physical_offset | 1 << 44, size, code))
    begin = broker.store.warming.reading(queue, 5)
    assert begin is not None
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    begin(ended.set_result)
    assert await ended == 1
    assert not broker.store.warming.is_hot(queue, 20)


async def test_what_is_answered_is_right(broker: BrokerController, client: RemotingClient) -> None:
    """Times and places of messages that were read elsewhere first."""
    times = [broker.store.store_timestamp("t", 0, number) for number in range(MESSAGES)]
    queue = MessageQueue("t", broker.settings.broker.broker_name, 0)

    async def ask(code: int, **fields: Any) -> RemotingCommand:
        return await client.request(broker.address, RemotingCommand.request(code, fields), 60)

    for time_ms in (times[0] - 1, times[30], times[-1], times[-1] + 1):
        wanted = next((at for at, known in enumerate(times) if known >= time_ms), MESSAGES)
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        answer = await ask(code, **QUEUE, timestamp=time_ms)
        assert answer.ext_fields["offset"] == str(wanted)
    answer = await ask(RequestCode.GET_EARLIEST_MSG_STORETIME, **QUEUE)
    assert answer.ext_fields["timestamp"] == str(times[0])
    answer = await ask(RequestCode.GET_TOPIC_STATS_INFO, topic="t")
    assert decode_topic_stats(answer.body)[queue].last_update_timestamp == times[-1]
    answer = await ask(RequestCode.GET_CONSUME_STATS, consumerGroup="g", topic="t")
    assert decode_consume_stats(answer.body).offset_table[queue].last_timestamp == times[19]
