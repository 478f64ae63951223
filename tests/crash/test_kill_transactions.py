"""The real process is killed in the middle of transactions, again and again.

Producers prepare, commit and roll back with many requests in flight, forget some ends, and answer
the broker's questions. What they decide about a transaction never changes; so after all kills each
committed message is there exactly once, and no message that was rolled back.
"""

import asyncio
import signal
from collections import Counter
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

import pytest
from kill_process import BrokerProcess, PlainConnection, read_queue, send_request
from promises import promised

from mailboat.model.message_id import decode_offset_message_id
from mailboat.model.record import decode_record
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.heartbeat import HeartbeatData, ProducerData, encode_heartbeat

# Real processes are killed, many times.
pytestmark = pytest.mark.slow

_CYCLES: Final = 20
_TOPIC: Final = "killed"
_GROUP: Final = "pg"
_HALF, _OP_HALF = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
_PRODUCERS: Final = 3
_DEPTH: Final = 8
_COMMIT, _ROLLBACK = 8, 12
_OPTIONS: Final = {
    "transactionTimeOut": 100,
    "transactionCheckInterval": 100,
    "transactionCheckMax": 10_000,
    "transactionOpMsgMaxSize": 20,
}


@dataclass(slots=True)
class _Transaction:
    """What one producer decided, and what the broker acknowledged of it."""

    decision: int
    is_forgotten: bool
    is_oneway: bool
    is_prepared: bool = False
    is_ended: bool = False
    is_over: bool = False
    """Its end was acknowledged in an earlier life of the broker, which may ask no more."""


class _Producer:
    """One connection to one life of the broker."""

    def __init__(self, connection: PlainConnection, book: dict[str, _Transaction]) -> None:
        self._connection = connection
        self._book = book
        self._keys: dict[int, str] = {}
        self._ends: dict[int, str] = {}

    async def join(self, client_id: str) -> None:
        data = HeartbeatData(client_id)
        data.producer_data_set.append(ProducerData(_GROUP))
        heartbeat = RemotingCommand.request(RequestCode.HEART_BEAT, {}, encode_heartbeat(data))
        assert (await self._connection.call(heartbeat)).code == ResponseCode.SUCCESS

    async def work(self, numbers: "count[int]", random: Random) -> None:
        """Begin and end transactions until the broker is gone."""
        try:
            while True:
                while len(self._keys) + len(self._ends) < _DEPTH:
                    self._prepare(f"T{next(numbers)}", random)
                self._take(await self._connection.receive())
        except OSError:
            return
        finally:
            await self._connection.close()

    async def answer_questions(self) -> None:
        """Say how each transaction ended that the broker asks about."""
        try:
            while True:
                self._take(await self._connection.receive())
        finally:
            await self._connection.close()

    def _prepare(self, key: str, random: Random) -> None:
        decision = random.choice((_COMMIT, _ROLLBACK))
        self._book[key] = _Transaction(decision, random.random() < 0.15, random.random() < 0.3)
        text = f"TRAN_MSG\x01true\x02PGROUP\x01{_GROUP}\x02UNIQ_KEY\x01{key}\x02"
        body = key.encode() + b" " + random.randbytes(random.randrange(400))
        request = send_request(_TOPIC, random.randrange(4), body, text)
        self._keys[self._connection.send(request)] = key

    def _take(self, command: RemotingCommand) -> None:
        """Handle an answer or a question."""
        if not command.is_response:
            assert command.code == RequestCode.CHECK_TRANSACTION_STATE
            message, _ = decode_record(command.body, verify=False)
            fields = command.ext_fields
            places = int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"])
            key = str(message.unique_key)
            with promised("who has ended a transaction is not asked about it"):
                assert not self._book[key].is_over, key
            self._end(key, places, from_check=True)
        elif command.opaque in self._keys:
            self._prepared(self._keys.pop(command.opaque), command)
        else:
            key = self._ends.pop(command.opaque)
            assert command.code == ResponseCode.SUCCESS, command
            self._book[key].is_ended = True

    def _prepared(self, key: str, answer: RemotingCommand) -> None:
        assert answer.code == ResponseCode.SUCCESS, answer
        self._book[key].is_prepared = True
        if not self._book[key].is_forgotten:
            place = decode_offset_message_id(answer.ext_fields["msgId"])
            places = int(answer.ext_fields["queueOffset"]), place.physical_offset
            self._end(key, places, from_check=False)

    def _end(self, key: str, places: tuple[int, int], *, from_check: bool) -> None:
        transaction = self._book[key]
        fields: dict[str, str | int | bool] = {
            "producerGroup": _GROUP, "tranStateTableOffset": places[0],
            "commitLogOffset": places[1], "commitOrRollback": transaction.decision,
            "fromTransactionCheck": from_check, "msgId": key,
        }  # fmt: skip
        command = RemotingCommand.request(
            RequestCode.END_TRANSACTION, fields, oneway=transaction.is_oneway
        )
        opaque = self._connection.send(command)
        if not transaction.is_oneway:
            self._ends[opaque] = key


async def _delivered(connection: PlainConnection) -> Counter[str]:
    """Count what consumers see, by key."""
    found: Counter[str] = Counter()
    for queue_id in range(4):
        content = await read_queue(connection, _TOPIC, queue_id)
        found.update(str(message.unique_key) for message in content.messages)
    return found


@promised("each commit is there once, and no rollback")
def _check(delivered: Counter[str], book: dict[str, _Transaction]) -> None:
    """Check what must hold at any time."""
    assert not [key for key, times in delivered.items() if times > 1]
    assert not [key for key in delivered if book[key].decision == _ROLLBACK]
    promised = {key for key, one in book.items() if one.is_ended and one.decision == _COMMIT}
    assert promised <= delivered.keys()


async def _cycle(
    broker: BrokerProcess, book: dict[str, _Transaction], numbers: "count[int]", random: Random
) -> None:
    for transaction in book.values():
        transaction.is_over = transaction.is_ended
    reader = await PlainConnection.open(broker.address)
    if book:
        _check(await _delivered(reader), book)
    await reader.close()
    producers = []
    for place in range(_PRODUCERS):
        producers.append(_Producer(await PlainConnection.open(broker.address), book))
        await producers[-1].join(f"10.0.0.1@{place}")
    workers = [
        asyncio.create_task(producer.work(numbers, Random(random.random())))
        for producer in producers
    ]
    # What is being tested is a kill at any moment of the work.
    await asyncio.sleep(random.uniform(0.05, 0.4))
    await asyncio.to_thread(broker.kill)
    await asyncio.gather(*workers)


async def _settle(broker: BrokerProcess, book: dict[str, _Transaction]) -> None:
    """Answer questions until every half message has ended, then look at everything."""
    for transaction in book.values():
        transaction.is_over = transaction.is_ended
    producer = _Producer(await PlainConnection.open(broker.address), book)
    await producer.join("10.0.0.1@settle")
    answering = asyncio.create_task(producer.answer_questions())
    reader = await PlainConnection.open(broker.address)
    try:
        async with asyncio.timeout(30):
            while not await _is_all_ended(reader):
                assert not answering.done()
                await asyncio.sleep(0.05)
        delivered = await _delivered(reader)
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        await reader.close()
    _check(delivered, book)
    expected = {key for key, one in book.items() if one.is_prepared and one.decision == _COMMIT}
    with promised("each commit is there once all have ended"):
        assert expected <= delivered.keys()


async def _is_all_ended(reader: PlainConnection) -> bool:
    halves = await read_queue(reader, _HALF, 0)
    ops = await read_queue(reader, _OP_HALF, 0)
    named = {int(text) for op in ops.messages for text in op.body.split(b",")}
    return named == {half.queue_offset for half in halves.messages}


@pytest.mark.crash
@pytest.mark.timeout(300)
async def test_kills_lose_no_commit_and_deliver_no_rollback(tmp_path: Path) -> None:
    """Each committed message comes once, a rolled-back one never, wherever the kill fell."""
    book: dict[str, _Transaction] = {}
    numbers, random = count(), Random(11)
    brokers: list[BrokerProcess] = []

    def start(cycle: int) -> BrokerProcess:
        flush = "SYNC_FLUSH" if cycle % 2 else "ASYNC_FLUSH"
        brokers.append(BrokerProcess(tmp_path, flush, _OPTIONS))
        return brokers[-1].wait_ready()

    try:
        for cycle in range(_CYCLES):
            await _cycle(await asyncio.to_thread(start, cycle), book, numbers, random)
        broker = await asyncio.to_thread(start, 0)
        await _settle(broker, book)
        assert await asyncio.to_thread(broker.end, signal.SIGTERM) == 0
    finally:
        for broker in brokers:
            broker.kill()
    assert "Traceback" not in (tmp_path / "log").read_text()
    outcomes = Counter((one.decision, one.is_ended) for one in book.values())
    assert outcomes[_COMMIT, True] > 10 * _CYCLES
    assert outcomes[_ROLLBACK, True] > 10 * _CYCLES
