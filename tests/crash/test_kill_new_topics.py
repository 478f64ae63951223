"""The real process is killed ten times while first messages make topics.

A message that was acknowledged must be found, in the topic that it made: with a route, and with
everything that was acknowledged in the order in which it was sent.
"""

import asyncio
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

import pytest
from daily import some_of
from kill_process import BrokerProcess, PlainConnection, read_queue, send_request
from promises import promised

from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.topic_table import decode_topic_table

_CYCLES: Final = 10
_PRODUCERS: Final = 3
_IN_FLIGHT: Final = 4
"""Messages that are sent to a new topic before the first of them is answered."""


async def _produce(
    address: tuple[str, int], names: "count[int]", acknowledged: dict[str, dict[int, int]]
) -> None:
    """Make one topic after the other by sending to it, until the broker is gone."""
    try:
        connection = await PlainConnection.open(address)
    except OSError:
        return
    try:
        while True:
            topic = f"new-{next(names)}"
            numbers = {}
            for number in range(_IN_FLIGHT):
                request = send_request(topic, 0, b"%d" % number, queues=1)
                numbers[connection.send(request)] = number
            for _ in range(_IN_FLIGHT):
                answer = await connection.receive()
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                offset = int(answer.ext_fields["queueOffset"])
                acknowledged.setdefault(topic, {})[numbers[answer.opaque]] = offset
    except OSError:
        return
    finally:
        await connection.close()


async def _check(address: tuple[str, int], acknowledged: dict[str, dict[int, int]]) -> None:
    """Find what was acknowledged since the last look, in order."""
    connection = await PlainConnection.open(address)
    answer = await connection.call(RemotingCommand.request(RequestCode.GET_ALL_TOPIC_CONFIG))
    topics = decode_topic_table(answer.body).topic_config_table
    for topic, offsets in acknowledged.items():
        with promised("a topic that a message made is there"):
            assert topic in topics
        bodies = [message.body for message in (await read_queue(connection, topic, 0)).messages]
        with promised("messages of a new topic are there in order"):
            assert bodies == [b"%d" % number for number in range(len(bodies))]
            for number, offset in offsets.items():
                assert bodies[offset] == b"%d" % number
    await connection.close()


@pytest.mark.crash
@pytest.mark.timeout(300)
@pytest.mark.parametrize("flush_disk_type", some_of(["ASYNC_FLUSH", "SYNC_FLUSH"], 1))
async def test_kills_lose_no_topic_that_a_message_made(
    tmp_path: Path, flush_disk_type: str
) -> None:
    """Through ten kills every acknowledged message is in its topic."""
    random = Random(11)
    names = count()
    total = 0
    broker: BrokerProcess | None = None

    def start() -> BrokerProcess:
        return BrokerProcess(tmp_path, flush_disk_type).wait_ready()

    acknowledged: dict[str, dict[int, int]] = {}
    try:
        for _ in range(_CYCLES):
            broker = await asyncio.to_thread(start)
            await _check(broker.address, acknowledged)
            acknowledged = {}
            tasks = [
                asyncio.create_task(_produce(broker.address, names, acknowledged))
                for _ in range(_PRODUCERS)
            ]
            # What is being tested is a kill at any moment of the work.
            await asyncio.sleep(random.uniform(0.05, 0.3))
            await asyncio.to_thread(broker.kill)
            await asyncio.gather(*tasks)
            total += len(acknowledged)
        broker = await asyncio.to_thread(start)
        await _check(broker.address, acknowledged)
    finally:
        if broker is not None:
            broker.kill()
    assert total > 2 * _CYCLES
    assert "Traceback" not in (tmp_path / "log").read_text()
