"""The real process is killed in the middle of its work, again and again.

Producers talk to it over plain sockets, many requests in flight on each, single messages and
batches. After each restart everything is pulled: what was acknowledged is there exactly once, where
the answer said and unchanged; queue offsets have no gap.
"""

import asyncio
import signal
from pathlib import Path
from random import Random
from typing import Final

import pytest
from daily import some_of
from kill_process import BrokerProcess, PlainConnection, read_queue, send_request
from promises import promised

from mailboat.model.batch import encode_batch
from mailboat.model.message import Message
from mailboat.model.message_id import decode_offset_message_id
from mailboat.protocol.codes import ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.testing.history import Crash, Found, History, QueueKey, QueueView, Sent

# Real processes are killed, many times.
pytestmark = pytest.mark.slow

_TOPIC: Final = "killed"
_PRODUCERS: Final = 4
_DEPTH: Final = 8


async def _produce(address: tuple[str, int], history: History, queue_id: int) -> None:
    """Send to one queue until the broker is gone, noting every answer."""
    connection = await PlainConnection.open(address)
    in_flight: dict[int, list[Sent]] = {}
    is_batch = queue_id == 0
    random = Random(queue_id)
    try:
        while True:
            while len(in_flight) < _DEPTH:
                sent = [_next(history, queue_id, random) for _ in range(5 if is_batch else 1)]
                if is_batch:
                    keys = [f"U{one.number}" for one in sent]
                    body = encode_batch([Message(_TOPIC, one.body) for one in sent], keys)
                    request = send_request(_TOPIC, queue_id, body, queues=_PRODUCERS, batch=True)
                else:
                    text = f"UNIQ_KEY\x01U{sent[0].number}\x02"
                    request = send_request(_TOPIC, queue_id, sent[0].body, text, queues=_PRODUCERS)
                in_flight[connection.send(request)] = sent
            answer = await connection.receive()
            _note(history, in_flight.pop(answer.opaque), answer)
    except OSError:
        return
    finally:
        await connection.close()


def _next(history: History, queue_id: int, random: Random) -> Sent:
    body = b"%d %d " % (queue_id, len(history.sent)) + random.randbytes(random.randrange(600))
    return history.send(_TOPIC, queue_id, body)


@promised("what is acknowledged has its own place")
def _note(history: History, sent: list[Sent], answer: RemotingCommand) -> None:
    if answer.code == ResponseCode.SUCCESS:
        first = int(answer.ext_fields["queueOffset"])
        ids = answer.ext_fields["msgId"].split(",")
        for place, (one, text) in enumerate(zip(sent, ids, strict=True)):
            offset = decode_offset_message_id(text).physical_offset
            history.acknowledge(one, first + place, offset)
    elif answer.code != ResponseCode.FLUSH_DISK_TIMEOUT:
        for one in sent:
            history.refuse(one)


async def _read_all(address: tuple[str, int]) -> dict[QueueKey, QueueView]:
    connection = await PlainConnection.open(address)
    try:
        return {
            (_TOPIC, queue_id): await _read_queue(connection, queue_id)
            for queue_id in range(_PRODUCERS)
        }
    finally:
        await connection.close()


async def _read_queue(connection: PlainConnection, queue_id: int) -> QueueView:
    content = await read_queue(connection, _TOPIC, queue_id)
    found = [
        Found(message.queue_offset, message.physical_offset, message.body)
        for message in content.messages
    ]
    return QueueView(content.min_offset, content.max_offset, found)


async def _cycle(broker: BrokerProcess, history: History, random: Random) -> None:
    """Check what is there, then load the broker and kill it."""
    if history.sent:
        views = await _read_all(broker.address)
        with promised("SEND_OK survives kill -9"):
            history.adopt(views, Crash.NONE)
    producers = [
        asyncio.create_task(_produce(broker.address, history, queue_id))
        for queue_id in range(_PRODUCERS)
    ]
    # What is being tested is a kill at any moment of the work.
    await asyncio.sleep(random.uniform(0.02, 0.25))
    await asyncio.to_thread(broker.kill)
    await asyncio.gather(*producers)


@pytest.mark.crash
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("flush_disk_type", "cycles"), some_of([("ASYNC_FLUSH", 13), ("SYNC_FLUSH", 12)], 1)
)
async def test_kills_lose_double_and_change_nothing(
    tmp_path: Path, flush_disk_type: str, cycles: int
) -> None:
    """SEND_OK survives kill -9: there once, at its offset, unchanged, without gaps."""
    history = History()
    random = Random(cycles)
    brokers: list[BrokerProcess] = []

    def start() -> BrokerProcess:
        brokers.append(BrokerProcess(tmp_path, flush_disk_type))
        return brokers[-1].wait_ready()

    try:
        for cycle in range(cycles):
            if cycle % 4 == 3:
                # The start after a kill is killed as well.
                brokers.append(BrokerProcess(tmp_path, flush_disk_type))
                await asyncio.sleep(random.uniform(0.1, 0.5))
                await asyncio.to_thread(brokers[-1].kill)
            await _cycle(await asyncio.to_thread(start), history, random)
        for _ in range(2):
            broker = await asyncio.to_thread(start)
            views = await _read_all(broker.address)
            with promised("SEND_OK survives kill -9"):
                history.adopt(views, Crash.NONE)
            assert await asyncio.to_thread(broker.end, signal.SIGTERM) == 0
    finally:
        for broker in brokers:
            broker.kill()
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    with promised("a kill damages nothing"):
        assert "damaged physical_offset" not in log
    stored = sum(1 for sent in history.sent if sent.is_seen)
    assert stored > 100 * cycles
