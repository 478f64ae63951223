"""The real process is killed twenty times while a consumer sends everything back.

A consumer that can handle nothing sends each message back until it is a dead letter. A send-back
that was answered must lead to the next try, or the consumer, which has committed behind it, never
sees the message again; one that was not answered is repeated, as real consumers do.
"""

import asyncio
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import pytest
from daily import some_of
from kill_process import (
    BrokerProcess,
    PlainConnection,
    has_delivered_all,
    read_queue,
    send_request,
)
from promises import promised

from mailboat.model.message import MessageExt
from mailboat.model.subscription import SubscriptionData
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.heartbeat import ConsumerData, HeartbeatData, encode_heartbeat

# Real processes are killed, many times.
pytestmark = pytest.mark.slow

_TOPIC: Final = "refused"
_GROUP: Final = "G"
_RETRY: Final = "%RETRY%G"
_DLQ: Final = "%DLQ%G"
_TRIES: Final = 3
_ROUND: Final = 10
"""Messages that are new in each life."""

_OPTIONS: Final = {"messageDelayLevel": "1s", "flushConsumerOffsetInterval": 100}


@dataclass(slots=True)
class _Consumer:
    """What the consumer did; a place is a record's physical offset."""

    answered: set[int] = field(default_factory=set)
    attempts: Counter[tuple[bytes, int]] = field(default_factory=Counter)
    """Sends-back by body and by how often the message had been tried."""

    sent: int = 0
    acknowledged: set[bytes] = field(default_factory=set)


async def _join(connection: PlainConnection) -> None:
    """Be a member of the group, which has its retry topic from then on."""
    data = HeartbeatData("10.0.0.1@1")
    data.consumer_data_set.append(
        ConsumerData(_GROUP, subscription_data_set=[SubscriptionData(_TOPIC)])
    )
    answer = await connection.call(
        RemotingCommand.request(RequestCode.HEART_BEAT, body=encode_heartbeat(data))
    )
    assert answer.code == ResponseCode.SUCCESS


async def _send_some(connection: PlainConnection, consumer: _Consumer) -> None:
    for _ in range(_ROUND):
        body = b"%d" % consumer.sent
        properties = f"UNIQ_KEY\x01U{consumer.sent}\x02"
        consumer.sent += 1
        request = send_request(_TOPIC, 0, body, properties, queues=1)
        answer = await connection.call(request)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        consumer.acknowledged.add(body)


async def _send_back_new(connection: PlainConnection, consumer: _Consumer) -> int:
    """Send back what was not yet; return how many there were."""
    count = 0
    for topic in (_TOPIC, _RETRY):
        for message in (await read_queue(connection, topic, 0)).messages:
            if message.physical_offset in consumer.answered:
                continue
            count += 1
            consumer.attempts[message.body, message.reconsume_times] += 1
            fields: dict[str, str | int] = {
                "offset": message.physical_offset, "group": _GROUP, "delayLevel": 0,
                "originMsgId": message.message_id, "originTopic": _TOPIC, "unitMode": "false",
                "maxReconsumeTimes": _TRIES,
            }  # fmt: skip
            command = RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
            answer = await connection.call(command)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            consumer.answered.add(message.physical_offset)
    return count


async def _consume(address: tuple[str, int], consumer: _Consumer) -> None:
    """Send messages and send them back until the broker is gone."""
    connection = await PlainConnection.open(address)
    try:
        await _join(connection)
        await _send_some(connection, consumer)
        while True:
            await _send_back_new(connection, consumer)
            await asyncio.sleep(0.01)
    except OSError:
        return
    finally:
        await connection.close()


async def _finish(
    address: tuple[str, int], consumer: _Consumer
) -> tuple[bool, dict[str, list[MessageExt]]]:
    """Go on until every message is dead; return whether nothing waits, and what is there."""
    connection = await PlainConnection.open(address)
    try:
        await _join(connection)
        quiet_since_s = time.monotonic()
        # A try comes a second after the one before.
        while time.monotonic() - quiet_since_s < 2.5:
            if await _send_back_new(connection, consumer):
                quiet_since_s = time.monotonic()
            await asyncio.sleep(0.05)
        are_all = await has_delivered_all(connection) and not await _send_back_new(
            connection, consumer
        )
        found = {
            topic: (await read_queue(connection, topic, 0)).messages
            for topic in (_TOPIC, _RETRY, _DLQ)
        }
        return are_all, found
    finally:
        await connection.close()


@promised("a message that was sent back is not lost, doubled or changed")
def _check(found: dict[str, list[MessageExt]], consumer: _Consumer, kills: int) -> int:
    """Hold what is there against what was promised; return how many came twice."""
    sent = {message.body for message in found[_TOPIC]}
    assert consumer.acknowledged <= sent
    assert {message.body for message in found[_DLQ]} <= sent
    for message in found[_RETRY]:
        assert 1 <= message.reconsume_times <= _TRIES
        assert message.properties["RETRY_TOPIC"] == _TOPIC
    for message in found[_DLQ]:
        assert message.reconsume_times == _TRIES + 1
    # A try is stored once for each send-back; a kill can double what was delivered since the last
    # save of the progress, and each copy is sent back.
    copies = Counter((message.body, message.reconsume_times) for message in found[_RETRY])
    copies.update((message.body, message.reconsume_times) for message in found[_DLQ])
    doubles = 0
    for (body, times), count in copies.items():
        allowed = consumer.attempts[body, times - 1]
        assert count <= allowed + (kills if times <= _TRIES else 0), (body, times, count)
        doubles += max(count - allowed, 0)
    return doubles


@pytest.mark.crash
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("flush_disk_type", "cycles"), some_of([("ASYNC_FLUSH", 10), ("SYNC_FLUSH", 10)], 1)
)
async def test_kills_lose_no_message_that_was_sent_back(
    tmp_path: Path, flush_disk_type: str, cycles: int
) -> None:
    """Kill -9 while messages go from try to try: each ends as a dead letter, none is lost."""
    random = Random(cycles)
    consumer = _Consumer()
    brokers: list[BrokerProcess] = []

    def start() -> BrokerProcess:
        brokers.append(BrokerProcess(tmp_path, flush_disk_type, _OPTIONS))
        return brokers[-1].wait_ready()

    try:
        for cycle in range(cycles):
            broker = await asyncio.to_thread(start)
            task = asyncio.create_task(_consume(broker.address, consumer))
            # What is being tested is a kill at any moment of the work.
            await asyncio.sleep(random.uniform(0.1, 1.0) if cycle % 4 else 1.5)
            await asyncio.to_thread(broker.kill)
            await task
        broker = await asyncio.to_thread(start)
        are_all, found = await _finish(broker.address, consumer)
        doubles = _check(found, consumer, cycles)
        # Of a slow machine's saves fewer come before a kill.
        assert doubles <= 4 * cycles + consumer.sent // 4, doubles
        lacking = {one.body for one in found[_TOPIC]} - {one.body for one in found[_DLQ]}
        # While some wait still, the machine may have been too slow for those that are lacking.
        with promised("each message ends as a dead letter") if are_all else nullcontext():
            assert not lacking, "messages are lost"
    finally:
        for broker in brokers:
            broker.kill()
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    with promised("no delayed message is skipped"):
        assert "skipped" not in log
    assert consumer.sent >= 2 * cycles
