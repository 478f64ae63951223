"""Transactions over real sockets: what consumers see of each way in which one can end."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from transaction_broker import (
    COMMIT,
    FAST,
    GIVEN_UP,
    GROUP,
    HALF,
    OP_HALF,
    PATIENCE_S,
    ROLLBACK,
    UNKNOWN,
    FillingDisk,
    Half,
    Producer,
    SlowDisk,
    running,
    until,
)

from mailboat.broker.controller import BrokerController
from mailboat.model.message_id import decode_offset_message_id
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.store.message_inner import MessageInner, PutStatus
from mailboat.web.context import WebContext
from mailboat.web.metrics import MetricsPage


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_commit_shows_the_message_and_a_rollback_does_not(
    tmp_path: Path, flush: str
) -> None:
    """Nobody sees a half message; a commit shows it where it was sent to, once and for all."""
    async with running(tmp_path, flush=flush) as (broker, producer):
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
    async with running(tmp_path, flush="SYNC_FLUSH", disk=disk) as (_, producer):
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
    async with running(tmp_path) as (broker, producer):
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
        await until(lambda: _is_count(producer, 4))
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()


async def _is_count(producer: Producer, count: int) -> bool:
    return len(await producer.read()) == count


@pytest.mark.parametrize("restart", [False, True])
async def test_a_second_end_changes_nothing(tmp_path: Path, restart: bool) -> None:
    """The same end again is acknowledged, another one refused; the message comes once."""
    async with running(tmp_path) as (_, producer):
        kept, dropped = await producer.prepare(), await producer.prepare()
        await producer.end(kept, COMMIT)
        await producer.end(dropped, ROLLBACK)
        if not restart:
            await _check_second_ends(producer, kept, dropped)
    async with running(tmp_path) as (_, producer):
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
    async with running(tmp_path) as (_, producer):
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
    async with running(tmp_path) as (broker, producer):
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
    async with running(tmp_path) as (broker, producer):
        half = await producer.prepare()
        end = broker.store.commit_log.end
        answer = await producer.end(half, COMMIT, **changes)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert sentence in (answer.remark or "")
        assert broker.store.commit_log.end == end
        assert (await producer.end(half, COMMIT)).code == ResponseCode.SUCCESS


async def test_only_a_half_message_can_be_committed(tmp_path: Path) -> None:
    """A message of another topic is none, even with the properties of one."""
    async with running(tmp_path) as (_, producer):
        answer = await producer.send({"PGROUP": "pg", "REAL_TOPIC": "t", "REAL_QID": "0"})
        place = decode_offset_message_id(answer.ext_fields["msgId"])
        answer = await producer.end(Half("k", "", 0, place.physical_offset), COMMIT)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert len(await producer.read()) == 1
        assert await producer.read(queue_id=0) == []


async def test_what_cannot_be_a_half_message_is_refused(tmp_path: Path) -> None:
    """No group, a delay as well, or a broker that takes none; nothing is stored."""
    async with running(tmp_path) as (broker, producer):
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
    async with running(tmp_path, **FAST) as (_, producer):
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
    async with running(tmp_path, **FAST, transaction_check_max=1000) as (broker, producer):
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
    async with running(tmp_path, **FAST, transaction_check_max=3) as (broker, producer):
        await producer.join()
        half = await producer.prepare()
        times = [(await producer.asked())[1].properties["TRANSACTION_CHECK_TIMES"] for _ in "123"]
        assert times == ["1", "2", "3"]
        await until(lambda: _holds(producer, GIVEN_UP))
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
    async with running(tmp_path) as (broker, producer):
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
        await until(lambda: _holds(producer, GIVEN_UP))
        assert producer.questions.empty()


async def _holds(producer: Producer, topic: str) -> bool:
    return bool(await producer.read(topic, 0))


async def test_only_what_was_given_up_or_is_open_can_be_resumed(tmp_path: Path) -> None:
    """An ended transaction is not asked about again, however its message is named."""
    async with running(tmp_path) as (_, producer):
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
    async with running(tmp_path, **FAST, transaction_check_max=2) as (broker, producer):
        half = await producer.prepare()
        await until(lambda: _holds(producer, GIVEN_UP))
        (given_up,) = await producer.read(GIVEN_UP, 0)
        assert given_up.unique_key == half.key
        assert broker.transactions.counters.checks_unsent == 2


async def test_immunity_puts_questions_off(tmp_path: Path) -> None:
    """CHECK_IMMUNITY_TIME_IN_SECONDS of a message stands in for transactionTimeOut."""
    async with running(tmp_path, **FAST) as (broker, producer):
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
    async with running(tmp_path) as (_, producer):
        halves = [await producer.prepare() for _ in range(200)]
        for half in halves[::2]:
            await producer.end(half, COMMIT if half.queue_offset % 4 else ROLLBACK)
    async with running(tmp_path, **FAST) as (broker, producer):
        await producer.join()
        asked = {(await producer.asked())[0].queue_offset for _ in range(100)}
        assert asked == set(range(1, 200, 2))
        assert broker.transactions.open_halves == 100
        for half in halves[1::2]:
            await producer.end(half, COMMIT)
        assert broker.transactions.open_halves == 0
        assert len(await producer.read()) == 150


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
async def test_a_commit_without_its_op_record_is_not_repeated(tmp_path: Path, index: bool) -> None:
    """A kill between the message and its op record: the message is found, and delivered once."""
    store = {"message_index_enable": index}
    async with running(tmp_path, store=store) as (broker, producer):
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
    async with running(tmp_path, store=store, **FAST) as (broker, producer):
        await producer.join()
        question, _ = await producer.asked()
        assert question.key == open_one.key
        assert broker.transactions.open_halves == 1
        assert (await producer.end(cut_off, COMMIT)).code == ResponseCode.SUCCESS
        assert (await producer.end(cut_off, ROLLBACK)).code == ResponseCode.SYSTEM_ERROR
        assert len(await producer.read()) == 2


async def test_a_deleted_topic_keeps_the_transaction_open(tmp_path: Path) -> None:
    """A commit to it is refused; once the topic is there again the next one delivers."""
    async with running(tmp_path) as (broker, producer):
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
    async with running(tmp_path, disk=disk) as (broker, producer):
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
    async with running(tmp_path, **FAST, transaction_check_max=2) as (broker, producer):
        for state in (COMMIT, COMMIT, ROLLBACK):
            await producer.end(await producer.prepare(), state)
        await producer.prepare()
        await until(lambda: _holds(producer, GIVEN_UP))
        await producer.prepare(CHECK_IMMUNITY_TIME_IN_SECONDS="600")
        await until(lambda: _is_open_count(broker, 1))
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
    async with running(tmp_path, transaction_time_out=80) as (broker, producer):
        first, second = await producer.prepare(), await producer.prepare()
        await producer.end(second, COMMIT)

        async def is_committed(half: int, op: int) -> bool:
            return broker.offsets.queues(GROUP, HALF) == {0: half} and (
                broker.offsets.queues(GROUP, OP_HALF) == {0: op}
            )

        await until(lambda: is_committed(0, 0))
        await producer.end(first, COMMIT)
        await until(lambda: is_committed(2, 2))


async def test_retention_keeps_what_an_open_transaction_needs(tmp_path: Path) -> None:
    """The committed offsets count as a reader's; alone they make nobody else's messages read."""
    async with running(tmp_path, transaction_time_out=80) as (broker, producer):
        await producer.send({})
        half = await producer.prepare()
        await until(lambda: _is_position(broker, 0))
        # A group that has read everything.
        for queue_id in range(4):
            broker.offsets.commit("readers", "t", queue_id, broker.store.max_offset("t", queue_id))
        await until(lambda: _is_position(broker, half.physical_offset))
        await producer.end(half, ROLLBACK)
        await until(lambda: _is_position(broker, broker.store.commit_log.end))


async def _is_position(broker: BrokerController, physical_offset: int) -> bool:
    if not broker.offsets.queues(GROUP, HALF):
        return False
    for _ in broker.reading.slices():
        continue
    return broker.reading.position() == physical_offset
