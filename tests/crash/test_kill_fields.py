"""The real process is killed after clients have said everything that a message's header can say.

Each bit of sysFlag comes by every request that stores a message, and with the far ends of the other
numbers; what is delayed, prepared and sent back is stored a second time. All of it is there after a
kill, and again when ConsumeQueues and index are built anew from the log.
"""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from kill_process import BrokerProcess, PlainConnection, QueueContent, read_queue
from promises import promised

from mailboat.model.batch import encode_batch
from mailboat.model.message import Message
from mailboat.model.message_id import decode_offset_message_id
from mailboat.model.subscription import SubscriptionData
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.heartbeat import ConsumerData, HeartbeatData, ProducerData, encode_heartbeat

_TOPIC: Final = "fields"
_OTHER: Final = "other"
_GROUP: Final = "G"
_RETRY: Final = "%RETRY%G"
_DLQ: Final = "%DLQ%G"
_BITS: Final = [0, *(1 << bit for bit in range(31)), -(1 << 31), -1, 2**31 - 1]
_INT32: Final = (0, -1, 2**31 - 1, -(2**31))
_INT64: Final = (0, -1, 2**63 - 1, -(2**63))
_OPTIONS: Final = {"messageDelayLevel": "1s", "mappedFileSizeConsumeQueue": 20_000}
_LONG: Final = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums",
    "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties",
    "j": "reconsumeTimes", "k": "unitMode", "m": "batch",
}  # fmt: skip
_Content = dict[tuple[str, int], QueueContent]
# Topic and queue of each way, by which it is known again.
_PLAIN, _LONG_NAMES, _BATCH, _REPLY, _REPLY_V2, _DELAYED, _HALF = range(7)
_REPLIES: Final = (_REPLY, _REPLY_V2)
_ASKER: Final = "10.0.0.2@1"
_PLACES: Final = [
    *((_TOPIC, queue_id) for queue_id in range(7)),
    (_OTHER, 0), (_RETRY, 0), (_DLQ, 0), ("SCHEDULE_TOPIC_XXXX", 0),
    ("RMQ_SYS_TRANS_HALF_TOPIC", 0), ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0),
]  # fmt: skip


def _send(
    code: int, topic: str, queue_id: int, number: int, properties: str = ""
) -> RemotingCommand:
    fields: dict[str, str | int] = {
        "a": "producers", "b": topic, "c": "TBW102", "d": 8, "e": queue_id,
        "f": _BITS[number % len(_BITS)], "g": _INT64[number % 4], "h": _INT32[number % 4],
        "i": f"UNIQ_KEY\x01U{queue_id}-{number}\x02{properties}", "j": _INT32[number % 4],
        "k": "false", "m": code == RequestCode.SEND_BATCH_MESSAGE,
    }  # fmt: skip
    body = b"%d" % number
    if code == RequestCode.SEND_BATCH_MESSAGE:
        item = Message(topic, body, flag=_INT32[number % 4])
        body = encode_batch([item] * 2, [f"B{number}a", f"B{number}b"])
    if code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE):
        fields = {_LONG[name]: value for name, value in fields.items()}
    return RemotingCommand.request(code, fields, body)


def _requests() -> Iterator[tuple[int, RemotingCommand]]:
    for number in range(len(_BITS)):
        for queue_id, code in (
            (_PLAIN, RequestCode.SEND_MESSAGE_V2),
            (_LONG_NAMES, RequestCode.SEND_MESSAGE),
            (_BATCH, RequestCode.SEND_BATCH_MESSAGE),
            (_REPLY, RequestCode.SEND_REPLY_MESSAGE),
            (_REPLY_V2, RequestCode.SEND_REPLY_MESSAGE_V2),
        ):
            properties = f"REPLY_TO_CLIENT\x01{_ASKER}\x02" if queue_id in _REPLIES else ""
            yield queue_id, _send(code, _TOPIC, queue_id, number, properties)
        yield (
            _DELAYED,
            _send(RequestCode.SEND_MESSAGE_V2, _TOPIC, _DELAYED, number, "DELAY\x011\x02"),
        )
        marks = "TRAN_MSG\x01true\x02PGROUP\x01producers\x02"
        yield _HALF, _send(RequestCode.SEND_MESSAGE_V2, _TOPIC, _HALF, number, marks)


def _end_transaction(answer: RemotingCommand) -> RemotingCommand:
    place = decode_offset_message_id(answer.ext_fields["msgId"])
    fields: dict[str, str | int] = {
        "producerGroup": "producers", "tranStateTableOffset": answer.ext_fields["queueOffset"],
        "commitLogOffset": place.physical_offset, "commitOrRollback": 8,
    }  # fmt: skip
    return RemotingCommand.request(RequestCode.END_TRANSACTION, fields)


async def _send_everything(connection: PlainConnection) -> None:
    for way, request in _requests():
        answer = await connection.call(request)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        if way == _HALF:
            end = await connection.call(_end_transaction(answer))
            assert end.code == ResponseCode.SUCCESS, end.remark


@asynccontextmanager
async def _asker(address: tuple[str, int]) -> AsyncIterator[None]:
    """Have a producer connected that takes replies: what nobody takes is not stored."""
    connection = await PlainConnection.open(address)
    try:
        data = HeartbeatData(_ASKER)
        data.producer_data_set.append(ProducerData("askers"))
        heartbeat = RemotingCommand.request(RequestCode.HEART_BEAT, body=encode_heartbeat(data))
        assert (await connection.call(heartbeat)).code == ResponseCode.SUCCESS
        responding = asyncio.create_task(connection.respond_to_all())
        yield
        responding.cancel()
    finally:
        await connection.close()


async def _send_back(connection: PlainConnection) -> None:
    data = HeartbeatData("10.0.0.1@1")
    data.consumer_data_set.append(
        ConsumerData(_GROUP, subscription_data_set=[SubscriptionData(_TOPIC)])
    )
    heartbeat = RemotingCommand.request(RequestCode.HEART_BEAT, body=encode_heartbeat(data))
    assert (await connection.call(heartbeat)).code == ResponseCode.SUCCESS
    for message in (await read_queue(connection, _TOPIC, _PLAIN)).messages:
        fields: dict[str, str | int] = {
            "offset": message.physical_offset, "group": _GROUP, "delayLevel": 0,
        }  # fmt: skip
        request = RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
        answer = await connection.call(request)
        assert answer.code == ResponseCode.SUCCESS, answer.remark


async def _read_all(connection: PlainConnection) -> _Content:
    return {place: await read_queue(connection, *place) for place in _PLACES}


async def _prepare(address: tuple[str, int]) -> _Content:
    """Store everything, wait for what comes later, return all of it."""
    connection = await PlainConnection.open(address)
    try:
        async with _asker(address):
            await _send_everything(connection)
        await _send_back(connection)
        deadline_s = time.monotonic() + 30
        while True:
            places = (_RETRY, 0), (_DLQ, 0), (_TOPIC, _DELAYED)
            counts = [len((await read_queue(connection, *place)).messages) for place in places]
            if sum(counts) == 2 * len(_BITS) or time.monotonic() > deadline_s:
                break
            # The delay of a second, which is what is waited for.
            await asyncio.sleep(0.1)
        for number in range(50):
            request = _send(RequestCode.SEND_MESSAGE_V2, _OTHER, 0, 4 * len(_BITS) * number)
            assert (await connection.call(request)).code == ResponseCode.SUCCESS
        return await _read_all(connection)
    finally:
        await connection.close()


async def _look(address: tuple[str, int]) -> _Content:
    connection = await PlainConnection.open(address)
    try:
        return await _read_all(connection)
    finally:
        await connection.close()


@promised("what clients said is there, unchanged")
def _check(before: _Content, after: _Content) -> None:
    """Check that nothing is missing; what had its delay may have been delivered once more."""
    for place, content in before.items():
        assert after[place].messages[: len(content.messages)] == content.messages, place
        if place[0] == _OTHER or (place[0] == _TOPIC and place[1] != _DELAYED):
            assert after[place] == content


def _remove_derived(directory: Path) -> None:
    (store,) = [path.parent for path in directory.rglob("consumequeue")]
    for derived in ("consumequeue", "index", "mailboat"):
        shutil.rmtree(store / derived)


@pytest.mark.crash
@pytest.mark.timeout(300)
async def test_whatever_clients_say_survives_a_kill_and_a_rebuild(tmp_path: Path) -> None:
    """Nothing is damaged, missing or changed, and each way has stored what it was given."""
    brokers: list[BrokerProcess] = []

    def start() -> BrokerProcess:
        brokers.append(BrokerProcess(tmp_path, "ASYNC_FLUSH", _OPTIONS))
        return brokers[-1].wait_ready()

    try:
        broker = await asyncio.to_thread(start)
        before = await _prepare(broker.address)
        await asyncio.to_thread(broker.kill)
        broker = await asyncio.to_thread(start)
        _check(before, await _look(broker.address))
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(_remove_derived, tmp_path)
        broker = await asyncio.to_thread(start)
        _check(before, await _look(broker.address))
    finally:
        for broker in brokers:
            broker.kill()
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    with promised("a kill damages and skips nothing"):
        assert "damaged physical_offset" not in log
        assert "skipped" not in log
    for queue_id in range(7):
        count = len(_BITS) * (2 if queue_id == _BATCH else 1)
        assert len(before[_TOPIC, queue_id].messages) == count, queue_id
    tries = before[_RETRY, 0].messages + before[_DLQ, 0].messages
    assert len(tries) == len(_BITS)
    assert all(0 < message.reconsume_times < 2**31 for message in tries)
    assert len(before[_OTHER, 0].messages) == 50
