"""The real process is killed while a group consumes in order, again and again.

Two members behave as RocketMQ's orderly consumers do: lock a queue, read it from the committed
offset on, commit, keep what they know while the broker is away, go on after it came back. Before
each kill some queues move from one member to the other; the new one asks for them at once, the old
one gives them back when it is ready.
"""

import asyncio
import itertools
import signal
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import pytest
from kill_process import BrokerProcess, PlainConnection, send_request
from promises import promised

from mailboat.model.message_queue import MessageQueue
from mailboat.model.record import decode_records
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand
from mailboat.protocol.lock_batch import LockBatch, decode_locked, encode_lock_batch

# Real processes are killed, many times.
pytestmark = pytest.mark.slow

_TOPIC: Final = "ordered"
_GROUP: Final = "orderly"
_QUEUES: Final = range(4)
_CYCLES: Final = 20


class _Consumed(NamedTuple):
    """One message that a member consumed; `is_start` when it had just asked where to begin."""

    client_id: str
    queue_offset: int
    number: int
    is_start: bool


class _World:
    """What was acknowledged and consumed, by queue, and which member each queue is meant for."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, dict[int, int]] = defaultdict(dict)
        self.consumed: dict[int, list[_Consumed]] = defaultdict(list)
        self.wanted: dict[int, str] = {}
        self.holders: dict[int, str] = {}
        """Who believes to hold a queue, whatever the broker knows."""
        self.numbers = itertools.count()

    @promised("a queue has one holder")
    def locked(self, queue_id: int, client_id: str) -> None:
        """Note that a member was told that it holds a queue."""
        assert self.holders.setdefault(queue_id, client_id) == client_id, "two hold one queue"


class _Member:
    """One orderly consumer; what it knows outlives its connections."""

    def __init__(self, client_id: str, world: _World) -> None:
        self._client_id = client_id
        self._world = world
        self._positions: dict[int, int] = {}
        self._is_start: set[int] = set()
        self._given_back: set[int] = set()
        self._asks: PlainConnection

    async def run(self, address: tuple[str, int]) -> None:
        """Consume until the broker is gone."""
        try:
            self._asks = await PlainConnection.open(address)
        except OSError:
            return
        # What it was given, or gave back, in a request whose answer was lost would wait for 30 s.
        self._given_back = set(_QUEUES) - self._positions.keys()
        try:
            while True:
                await self._rebalance()
                for queue_id in sorted(self._positions):
                    await self._consume(queue_id)
                await asyncio.sleep(0)
        except OSError:
            return
        finally:
            await self._asks.close()

    async def _rebalance(self) -> None:
        """Renew the locks of the queues held, ask for those meant for this member, give back."""
        world = self._world
        meant = {each for each in _QUEUES if world.wanted[each] == self._client_id}
        self._given_back -= meant
        answer = await self._ask_locks(RequestCode.LOCK_BATCH_MQ, meant | self._positions.keys())
        held = {queue.queue_id for queue in decode_locked(answer.body)}
        with promised("a kill takes no lock away"):
            assert held >= self._positions.keys(), "a holder lost its lock"
        for queue_id in held - self._positions.keys():
            # A member that does not hear where to begin has not begun.
            position = await self._committed(queue_id)
            world.locked(queue_id, self._client_id)
            self._positions[queue_id] = position
            self._is_start.add(queue_id)
        for queue_id in self._positions.keys() - meant:
            await self._commit(queue_id)
            del self._positions[queue_id]
            # From here on it no longer consumes it, whatever becomes of the request.
            del world.holders[queue_id]
            self._given_back.add(queue_id)
        if self._given_back:
            await self._ask_locks(RequestCode.UNLOCK_BATCH_MQ, self._given_back)
            self._given_back.clear()

    async def _consume(self, queue_id: int) -> None:
        answer = await self._ask(
            RequestCode.PULL_MESSAGE,
            queue_id,
            queueOffset=self._positions[queue_id], maxMsgNums=8, sysFlag=4, commitOffset=0,
            suspendTimeoutMillis=0, subscription="*", subVersion=0,
        )  # fmt: skip
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        for message in decode_records(answer.body):
            self._world.consumed[queue_id].append(
                _Consumed(
                    self._client_id,
                    message.queue_offset,
                    int(message.body),
                    queue_id in self._is_start,
                )
            )
            self._is_start.discard(queue_id)
            self._positions[queue_id] = message.queue_offset + 1
        await self._commit(queue_id)

    async def _committed(self, queue_id: int) -> int:
        answer = await self._ask(RequestCode.QUERY_CONSUMER_OFFSET, queue_id)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return int(answer.ext_fields["offset"])

    async def _commit(self, queue_id: int) -> None:
        answer = await self._ask(
            RequestCode.UPDATE_CONSUMER_OFFSET, queue_id, commitOffset=self._positions[queue_id]
        )
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def _ask(self, code: int, queue_id: int, **fields: ExtValue) -> RemotingCommand:
        place: dict[str, ExtValue] = {
            "consumerGroup": _GROUP, "topic": _TOPIC, "queueId": queue_id,
        }  # fmt: skip
        return await self._asks.call(RemotingCommand.request(code, place | fields))

    async def _ask_locks(self, code: int, queue_ids: set[int]) -> RemotingCommand:
        queues = {MessageQueue(_TOPIC, "broker-a", queue_id) for queue_id in queue_ids}
        body = encode_lock_batch(LockBatch(_GROUP, self._client_id, queues))
        answer = await self._asks.call(RemotingCommand.request(code, body=body))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer


async def _produce(address: tuple[str, int], world: _World, queue_id: int) -> None:
    """Send numbers that rise to one queue, one after the other, until the broker is gone."""
    try:
        connection = await PlainConnection.open(address)
    except OSError:
        return
    try:
        while True:
            number = next(world.numbers)
            answer = await connection.call(send_request(_TOPIC, queue_id, str(number).encode()))
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            world.acknowledged[queue_id][number] = int(answer.ext_fields["queueOffset"])
            await asyncio.sleep(0.002)
    except OSError:
        return
    finally:
        await connection.close()


async def _make_topic(address: tuple[str, int]) -> None:
    connection = await PlainConnection.open(address)
    fields: dict[str, ExtValue] = {
        "topic": _TOPIC, "defaultTopic": "TBW102", "readQueueNums": len(_QUEUES),
        "writeQueueNums": len(_QUEUES), "perm": 6, "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0, "order": True,
    }  # fmt: skip
    code = RequestCode.UPDATE_AND_CREATE_TOPIC
    assert (await connection.call(RemotingCommand.request(code, fields))).code == 0
    await connection.close()


async def _cycle(
    broker: BrokerProcess, world: _World, members: dict[str, _Member], random: Random
) -> None:
    """Let members and producers work, move queues, kill the broker in the middle."""
    tasks = [asyncio.create_task(member.run(broker.address)) for member in members.values()]
    random.shuffle(tasks)
    tasks += [asyncio.create_task(_produce(broker.address, world, each)) for each in _QUEUES]
    # What is being tested is a kill at any moment of the work.
    for _ in range(2):
        await asyncio.sleep(random.uniform(0.05, 0.15))
        for queue_id in _QUEUES:
            world.wanted[queue_id] = random.choice(sorted(members))
    await asyncio.sleep(random.uniform(0.0, 0.03))
    await asyncio.to_thread(broker.kill)
    await asyncio.gather(*tasks)


async def _drain(broker: BrokerProcess, world: _World, members: dict[str, _Member]) -> None:
    """Consume until every acknowledged message was seen."""
    tasks = [asyncio.create_task(member.run(broker.address)) for member in members.values()]
    async with asyncio.timeout(20):
        while any(
            world.acknowledged[each].keys() - {one.number for one in world.consumed[each]}
            for each in _QUEUES
        ):
            await asyncio.wait(tasks, timeout=0.1, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done():
                    task.result()
    assert await asyncio.to_thread(broker.end, signal.SIGTERM) == 0
    await asyncio.gather(*tasks)


@promised("a queue is consumed in order")
def _check_order(consumed: list[_Consumed], acknowledged: dict[int, int]) -> None:
    """No message is skipped; one comes again only where a member began at a committed offset."""
    numbers: dict[int, int] = {}
    previous = -1
    for one in consumed:
        assert numbers.setdefault(one.queue_offset, one.number) == one.number
        if one.is_start:
            assert one.queue_offset <= previous + 1
        else:
            assert one.queue_offset == previous + 1
        previous = one.queue_offset
    in_order = [numbers[queue_offset] for queue_offset in sorted(numbers)]
    assert in_order == sorted(in_order)
    for number, queue_offset in acknowledged.items():
        assert numbers[queue_offset] == number


@pytest.mark.crash
@pytest.mark.timeout(300)
async def test_kills_keep_the_order_of_queues(tmp_path: Path) -> None:
    """Through 20 kills no queue has two holders, none is skipped, and nothing goes backwards."""
    random = Random(7)
    world = _World()
    members = {client_id: _Member(client_id, world) for client_id in ("a", "b")}
    world.wanted = {queue_id: random.choice(sorted(members)) for queue_id in _QUEUES}
    brokers: list[BrokerProcess] = []

    def start() -> BrokerProcess:
        brokers.append(BrokerProcess(tmp_path, "ASYNC_FLUSH"))
        return brokers[-1].wait_ready()

    try:
        for cycle in range(_CYCLES):
            broker = await asyncio.to_thread(start)
            if not cycle:
                await _make_topic(broker.address)
            await _cycle(broker, world, members, random)
        await _drain(await asyncio.to_thread(start), world, members)
    finally:
        for broker in brokers:
            broker.kill()
    for queue_id in _QUEUES:
        _check_order(world.consumed[queue_id], world.acknowledged[queue_id])
        assert {one.client_id for one in world.consumed[queue_id]} == set(members)
    assert sum(map(len, world.acknowledged.values())) > 20 * _CYCLES
    assert "Traceback" not in (tmp_path / "log").read_text()
