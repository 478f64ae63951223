"""Orderly push consumers and a scripted broker: what is asked, and in which order."""

import asyncio

import pytest

from mailboat.client import held_queues, queue_locks
from mailboat.client.push_consumer import PushConsumer
from mailboat.errors import BrokerError
from mailboat.model.message import MessageExt
from mailboat.model.message_queue import MessageQueue
from mailboat.protocol.bodies import consumer_id_list_slices
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.heartbeat import decode_heartbeat
from mailboat.protocol.lock_batch import decode_lock_batch, encode_locked

LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
QUERY, COMMIT = RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET
PULL, MEMBERS = RequestCode.PULL_MESSAGE, RequestCode.GET_CONSUMER_LIST_BY_GROUP
QUEUE = MessageQueue("T1", "a", 0)
# Written by the encoder of rocketmq 4.9.8: body "hello", TAGS=TagA, k=v, queue 1, offset 2.
RECORD = bytes.fromhex(
    "0000006f daa320a7 3610a686 00000001 00000000 0000000000000002 00000000000003e8 00000000 "
    "0000018bcfe56800 0a000001000004d2 0000018bcfe5687b 0a00000200002a9f 00000000 "
    "0000000000000000 00000005 68656c6c6f 02 5431 000d 6b017602 54414753 01 54616741"
)


class Broker:
    """A broker with one queue of topic T1, in which one message lies at offset 2."""

    def __init__(self, peer) -> None:
        """Give the queue and its lock to whoever asks."""
        self.peer = peer
        self.members: list[str] = []
        self.is_locked_by_other = False
        self.committed = 2
        peer.answer(RequestCode.HEART_BEAT, self._heartbeat)
        peer.answer(RequestCode.UNREGISTER_CLIENT, lambda command: command.response(0))
        peer.answer(MEMBERS, self._list)
        peer.answer(LOCK, self._lock)
        peer.answer(UNLOCK, lambda command: command.response(0))
        peer.answer(QUERY, lambda c: c.response(0, ext_fields={"offset": self.committed}))
        self.commit = self._commit
        peer.answer(COMMIT, lambda command: self.commit(command))
        peer.answer(PULL, self._pull)

    def _heartbeat(self, command: RemotingCommand) -> RemotingCommand:
        client_id = decode_heartbeat(command.body).client_id
        if client_id not in self.members:
            self.members.append(client_id)
        return command.response(0)

    def _list(self, command: RemotingCommand) -> RemotingCommand:
        return command.response(0, body=b"".join(consumer_id_list_slices(self.members)))

    def _lock(self, command: RemotingCommand) -> RemotingCommand:
        queues = decode_lock_batch(command.body).queues
        return command.response(0, body=encode_locked(set() if self.is_locked_by_other else queues))

    def _commit(self, command: RemotingCommand) -> RemotingCommand:
        self.committed = int(command.ext_fields["commitOffset"])
        return command.response(0)

    def _pull(self, command: RemotingCommand) -> RemotingCommand | None:
        if int(command.ext_fields["queueOffset"]) != 2:
            # As a broker that parks the pull.
            return None
        fields = {"nextBeginOffset": 3, "minOffset": 0, "maxOffset": 3, "suggestWhichBrokerId": 0}
        return command.response(0, ext_fields=fields, body=RECORD)

    def codes(self, *wanted: int) -> list[int]:
        """Return the codes of the requests so far that are among `wanted`."""
        return [command.code for command in self.peer.requests if command.code in wanted]

    async def running_info(self) -> bytes:
        """Ask the consumer how it is."""
        request = RemotingCommand.request(
            RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "G"}
        )
        (connection, *_) = self.peer.connections
        return (await connection.request(request, 5.0)).body

    async def round_trips(self, count: int) -> None:
        """Let everything come that the consumer has no reason to wait with."""
        for _ in range(count):
            await self.running_info()

    def give_the_queue_away(self) -> None:
        """Say that the group has a member before ours, which gets the one queue."""
        self.members.insert(0, "0")
        fields = {"consumerGroup": "G"}
        code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        self.peer.push(RemotingCommand.request(code, fields))

    def give_the_queue_back(self) -> None:
        """Say that the other member has left."""
        del self.members[0]
        fields = {"consumerGroup": "G"}
        code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        self.peer.push(RemotingCommand.request(code, fields))


class Gate:
    """A handler that waits until it is let through."""

    def __init__(self) -> None:
        """Begin closed."""
        self.calls = 0
        self.entered = asyncio.Event()
        self.may_leave = asyncio.Event()

    async def __call__(self, messages: list[MessageExt]) -> None:
        """Stay until told to leave."""
        self.calls += 1
        self.entered.set()
        await self.may_leave.wait()


@pytest.fixture
async def broker(make_peer, name_server, monkeypatch):
    """Return a broker with a queue of topic T1."""
    monkeypatch.setattr(held_queues, "LOCK_RETRY_S", 0.01)
    peer = await make_peer()
    name_server.set_route("T1", {"a": peer.address}, queues=1)
    return Broker(peer)


@pytest.fixture
async def gate():
    """Return a closed handler."""
    return Gate()


@pytest.fixture
async def consumer(broker, name_server, gate):
    """Return a started orderly consumer of topic T1."""
    consumer = PushConsumer("G", namesrv=name_server.address, order=True)
    consumer.subscribe("T1", "*", gate)
    await consumer.start()
    yield consumer
    await consumer.close(patience_s=0)


async def wait_assignment(consumer: PushConsumer, queues: list[MessageQueue]) -> None:
    """Return once the consumer has these queues of T1."""
    changed = asyncio.Event()
    consumer.on_assignment.append(lambda topic, own: changed.set())
    async with asyncio.timeout(5):
        while consumer.assignment != queues:
            changed.clear()
            await changed.wait()


async def test_lock_comes_before_offset_and_pull(broker: Broker, consumer, gate: Gate):
    """The offset is asked for under the lock, since the member before stores it last."""
    await gate.entered.wait()
    assert broker.codes(LOCK, QUERY, PULL)[:3] == [LOCK, QUERY, PULL]


async def test_queue_that_is_locked_by_another_member_is_not_read(
    broker: Broker, name_server, gate: Gate
):
    """The lock is asked for again and again, and nothing else before it is granted."""
    broker.is_locked_by_other = True
    consumer = PushConsumer("G", namesrv=name_server.address, order=True)
    consumer.subscribe("T1", "*", gate)
    async with consumer:
        await broker.peer.wait_asked(LOCK, 3)
        assert broker.codes(QUERY, PULL) == []
        broker.is_locked_by_other = False
        await gate.entered.wait()
        gate.may_leave.set()


async def test_queue_is_left_after_its_handler_has_ended(
    broker: Broker, consumer: PushConsumer, gate: Gate
):
    """The offset is stored after the running handler and before the lock goes back."""
    await gate.entered.wait()
    broker.give_the_queue_away()
    await wait_assignment(consumer, [])
    await broker.round_trips(5)
    assert broker.codes(COMMIT, UNLOCK) == []
    before = len(broker.peer.requests)
    gate.may_leave.set()
    await broker.peer.wait_asked(UNLOCK)
    after = [c.code for c in broker.peer.requests[before:] if c.code in (COMMIT, UNLOCK)]
    assert after == [COMMIT, UNLOCK]
    assert broker.committed == 3
    (request,) = broker.peer.asked(UNLOCK)
    assert decode_lock_batch(request.body).queues == {QUEUE}


async def test_queue_that_comes_back_at_once_waits_for_its_leave(
    broker: Broker, consumer: PushConsumer, gate: Gate
):
    """A queue that was given away and back is unlocked, then locked again, and read once more."""
    await gate.entered.wait()
    broker.give_the_queue_away()
    await wait_assignment(consumer, [])
    broker.give_the_queue_back()
    await wait_assignment(consumer, [QUEUE])
    assert broker.codes(LOCK) == [LOCK]
    gate.may_leave.set()
    await broker.peer.wait_asked(LOCK, 2)
    assert broker.codes(LOCK, UNLOCK) == [LOCK, UNLOCK, LOCK]
    assert gate.calls == 1


async def test_close_stores_and_unlocks(broker: Broker, consumer: PushConsumer, gate: Gate):
    """Closing stores the offset and gives the lock back before the group is left."""
    await gate.entered.wait()
    gate.may_leave.set()
    await consumer.close()
    left = RequestCode.UNREGISTER_CLIENT
    assert broker.codes(COMMIT, UNLOCK, left) == [COMMIT, UNLOCK, left]
    assert broker.committed == 3


async def test_lost_lock_begins_the_queue_anew(broker: Broker, consumer: PushConsumer, gate: Gate):
    """A lock that went to another member stops the queue: lock, offset and pull come again."""
    await gate.entered.wait()
    broker.is_locked_by_other = True
    assert consumer.status().locks is not None
    await consumer.status().locks.renew()
    await broker.peer.wait_asked(LOCK, 4)
    assert broker.codes(QUERY) == [QUERY]
    # What this member finished meanwhile is not stored over what the holder of the lock stores.
    gate.may_leave.set()
    await consumer.save_offsets()
    assert broker.codes(COMMIT) == []
    broker.is_locked_by_other = False
    await broker.peer.wait_asked(QUERY, 2)
    await broker.peer.wait_asked(PULL, 2)


async def test_status_tells_administrators_of_the_lock(
    broker: Broker, consumer: PushConsumer, gate: Gate
):
    """The running info says that the queue is consumed in order and locked."""
    await gate.entered.wait()
    body = await broker.running_info()
    assert b'"PROP_CONSUMEORDERLY":"true"' in body
    assert b'"locked":true' in body
    assert b'"lastLockTimestamp":0' not in body


async def test_offset_is_not_stored_without_the_lock(
    broker: Broker, consumer: PushConsumer, gate: Gate, monkeypatch
):
    """While the lock is in doubt, an older offset could go over that of its new holder."""
    await gate.entered.wait()
    gate.may_leave.set()
    with monkeypatch.context() as doubt:
        doubt.setattr(queue_locks, "VALIDITY_S", 0.0)
        await consumer.save_offsets()
        assert broker.codes(COMMIT) == []
    await consumer.save_offsets()
    assert broker.codes(COMMIT) == [COMMIT]


@pytest.fixture
async def unordered(broker, name_server, gate):
    """Return a started consumer of topic T1 that asks for no locks."""
    consumer = PushConsumer("G", namesrv=name_server.address)
    consumer.subscribe("T1", "*", gate)
    await consumer.start()
    yield consumer
    await consumer.close(patience_s=0)


async def test_rebalance_while_a_queue_is_moved_starts_no_second_reader(
    broker: Broker, unordered: PushConsumer, gate: Gate
):
    """A queue that waits for its new offset is not held, and yet nobody else may read it."""
    await gate.entered.wait()
    await broker.peer.wait_asked(PULL, 2)
    may_store, is_stored = asyncio.Event(), asyncio.Event()

    async def slow(command: RemotingCommand) -> RemotingCommand:
        await may_store.wait()
        is_stored.set()
        return command.response(0)

    broker.commit = slow
    moving = asyncio.ensure_future(unordered._queues.move(QUEUE, 3))
    await broker.peer.wait_asked(COMMIT)
    asked = len(broker.peer.asked(MEMBERS))
    unordered._rebalancer.wake()
    await broker.peer.wait_asked(MEMBERS, asked + 1)
    await broker.round_trips(3)
    may_store.set()
    await moving
    await broker.peer.wait_asked(PULL, 3)
    await broker.round_trips(3)
    readers = [task for task in asyncio.all_tasks() if task.get_name() == f"read {QUEUE}"]
    assert len(readers) == 1
    assert [c.ext_fields["queueOffset"] for c in broker.peer.asked(PULL)] == ["2", "3", "3"]


async def test_queue_whose_move_fails_is_read_on(
    broker: Broker, unordered: PushConsumer, gate: Gate
):
    """A broker that does not store the new offset costs the move and not the queue."""
    await gate.entered.wait()
    await broker.peer.wait_asked(PULL, 2)
    broker.commit = lambda command: command.response(1, "no")
    with pytest.raises(BrokerError):
        await unordered._queues.move(QUEUE, 3)
    assert unordered.assignment == [QUEUE]
    await broker.peer.wait_asked(PULL, 3)


async def test_queue_that_is_moved_while_the_consumer_closes_is_not_read(
    broker: Broker, unordered: PushConsumer, gate: Gate
):
    """A reader that begins after the end would never end."""
    await gate.entered.wait()
    await broker.peer.wait_asked(PULL, 2)
    may_store = asyncio.Event()

    async def slow(command: RemotingCommand) -> RemotingCommand:
        await may_store.wait()
        return command.response(0)

    broker.commit = slow
    moving = asyncio.ensure_future(unordered._queues.move(QUEUE, 3))
    await broker.peer.wait_asked(COMMIT)
    unordered._queues.stop_reading()
    may_store.set()
    await moving
    assert unordered.assignment == []
