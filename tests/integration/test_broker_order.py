"""Locks of queues and the order that they keep, over real sockets."""

import asyncio
import errno
import json
import threading
from pathlib import Path

import pytest
from raw_client import RawClient, broker_settings, connected, running_broker

from mailboat.broker.controller import BrokerController
from mailboat.broker.queue_locks import QueueLockManager
from mailboat.disk.real import RealDisk
from mailboat.model.record import decode_records
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.testing.virtual_time import VirtualTime


def use_clock(broker: BrokerController) -> VirtualTime:
    """Let the locks of a broker follow a clock of the test."""
    clock = VirtualTime()
    broker.queue_locks = QueueLockManager(RealDisk(), broker.store.paths.own, clock=clock.monotonic)
    broker.queue_locks.load()
    return clock


async def test_the_answer_has_rocketmqs_form(broker: BrokerController) -> None:
    """`lockOKMQSet` lists the queues as they were asked for; Go reads nothing else."""
    async with connected(broker, "a") as [client]:
        await client.make_topic("T")
        await client.heartbeat("T", group="G")
        answer = await client.call(
            RequestCode.LOCK_BATCH_MQ,
            body=b'{"clientId":"a","consumerGroup":"G","onlyThisBroker":false,"mqSet":'
            b'[{"brokerName":"broker-a","queueId":0,"topic":"T"}]}',
        )
        assert answer.code == ResponseCode.SUCCESS
        assert answer.body == (
            b'{"lockOKMQSet":[{"brokerName":"broker-a","queueId":0,"topic":"T"}]}'
        )


async def test_a_queue_is_locked_for_one_member(broker: BrokerController) -> None:
    """The second member gets only what the first one has not, until that one gives it back."""
    async with connected(broker, "a", "b") as [first, second]:
        await first.make_topic("T", 4)
        assert await first.lock("G", "T", 0, 1) == {0, 1}
        assert await second.lock("G", "T", 0, 1, 2, 3) == {2, 3}
        assert await second.lock("H", "T", 0) == {0}
        await first.unlock("G", "T", 0)
        assert await second.lock("G", "T", 0, 1) == {0}


class _HeldDisk(RealDisk):
    """A disk on which locks are saved only while `go` is set."""

    def __init__(self) -> None:
        """Begin like any other disk."""
        super().__init__()
        self.go = threading.Event()
        self.go.set()

    def rename(self, source: str, target: str) -> None:
        """Wait where a new file of locks takes its place."""
        assert not target.endswith("/queueLocks.json") or self.go.wait(20)
        super().rename(source, target)


async def test_a_slow_disk_holds_up_no_member_that_leaves(tmp_path: Path) -> None:
    """It would close its connection after a second, before its last offsets are stored; what it
    gave back is free after a restart too."""
    disk = _HeldDisk()
    broker = BrokerController(broker_settings(tmp_path), disk=disk)
    await broker.start()
    async with connected(broker, "a") as [client]:
        await client.make_topic("T")
        assert await client.lock("G", "T", 0) == {0}
        disk.go.clear()
        await asyncio.wait_for(client.unlock("G", "T", 0), 10)
        disk.go.set()
    await broker.shutdown()
    async with running_broker(tmp_path) as again, connected(again, "b") as [other]:
        assert await other.lock("G", "T", 0) == {0}


class _FullDisk(RealDisk):
    """A disk without room for a new file, while it is full."""

    is_full = True

    def open(self, path: str, *, create: bool = False, is_private: bool = False) -> int:
        """Open what is there."""
        if create and self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return super().open(path, create=create, is_private=is_private)


async def test_a_lock_that_is_not_durable_says_so(broker: BrokerController) -> None:
    """A full disk keeps no consumer out, but a restart would forget who has what."""
    disk = _FullDisk()
    broker.queue_locks = QueueLockManager(disk, broker.store.paths.own)
    async with connected(broker, "a") as [client]:
        await client.make_topic("T")
        await client.heartbeat("T", group="G")
        queue = {"brokerName": "broker-a", "queueId": 0, "topic": "T"}
        body = json.dumps({"clientId": "a", "consumerGroup": "G", "mqSet": [queue]}).encode()
        answer = await client.ok(RequestCode.LOCK_BATCH_MQ, body=body)
        assert json.loads(answer.body) == {"lockOKMQSet": [queue]}
        assert "a restart would forget these locks: No space left" in (answer.remark or "")
    disk.is_full = False


async def test_the_retry_topic_can_be_locked(broker: BrokerController) -> None:
    """Orderly consumers lock every queue they are given, that of their retry topic too."""
    async with connected(broker, "a") as [client]:
        await client.make_topic("T")
        await client.heartbeat("T", group="G")
        assert await client.lock("G", "%RETRY%G", 0) == {0}


async def test_what_is_not_there_is_not_locked(broker: BrokerController) -> None:
    """Unknown topics and queues take no memory and are nobody's."""
    async with connected(broker, "a") as [client]:
        await client.make_topic("T", 2)
        assert await client.lock("G", "T", 0, 2, -1) == {0}
        assert await client.lock("G", "unknown", 0) == set()
        assert await client.lock("G", "%RETRY%unknown", 0) == set()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"consumerGroup":"G"}',
        b'{"consumerGroup":"","clientId":"a","mqSet":[]}',
        b'{"consumerGroup":"G","clientId":"a","mqSet":[{"topic":"T"}]}',
    ],
)
@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
async def test_malformed_locks_are_refused(
    broker: BrokerController, code: int, body: bytes
) -> None:
    """A request that does not say who wants what is answered by an error of one sentence."""
    async with connected(broker, "a") as [client]:
        answer = await client.call(code, body=body)
        assert answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER)
        assert answer.remark
        assert "internal" not in answer.remark


async def test_a_group_that_may_not_be_made_locks_nothing(tmp_path: Path) -> None:
    """Without autoCreateSubscriptionGroup an unknown group is refused, as its pulls are."""
    async with (
        running_broker(tmp_path, auto_create_subscription_group=False) as broker,
        connected(broker, "a") as [client],
    ):
        await client.make_topic("T")
        body = (
            b'{"consumerGroup":"G","clientId":"a","mqSet":'
            b'[{"brokerName":"broker-a","queueId":0,"topic":"T"}]}'
        )
        answer = await client.call(RequestCode.LOCK_BATCH_MQ, body=body)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def consume(client: RawClient, count: int) -> list[bytes]:
    """Consume messages of queue 0 from the committed offset on, one commit after each."""
    at = await client.committed("G", "T") or 0
    bodies: list[bytes] = []
    while len(bodies) < count:
        answer = await client.pull("G", "T", at, suspend_ms=5000)
        if answer.code != ResponseCode.SUCCESS:
            continue
        for message in decode_records(answer.body)[: count - len(bodies)]:
            bodies.append(message.body)
            at = message.queue_offset + 1
            assert (await client.commit("G", "T", at)).code == ResponseCode.SUCCESS
    return bodies


async def test_order_is_kept_when_a_member_dies(broker: BrokerController) -> None:
    """The survivor gets the queue when the lock of the dead one ends, and goes on behind it."""
    clock = use_clock(broker)
    bodies = [str(number).encode() for number in range(10)]
    async with connected(broker, "b") as [survivor]:
        await survivor.make_topic("T")
        await survivor.heartbeat("T", group="G")
        for body in bodies:
            await survivor.send("T", body)
        async with connected(broker, "a") as [member]:
            await member.heartbeat("T", group="G")
            assert await member.lock("G", "T", 0) == {0}
            seen = await consume(member, 4)
            await survivor.next_push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
        await survivor.next_push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
        # It may be alive behind a broken connection and consume what it has fetched.
        assert await survivor.lock("G", "T", 0) == set()
        clock.advance(60.001)
        assert await survivor.lock("G", "T", 0) == {0}
        seen += await consume(survivor, 6)
    assert seen == bodies


async def test_order_is_kept_through_a_rebalance(broker: BrokerController) -> None:
    """A queue that moves to another member is locked there only once it was given back."""
    bodies = [str(number).encode() for number in range(10)]
    async with connected(broker, "a", "b") as [old, new]:
        await old.make_topic("T")
        for body in bodies:
            await old.send("T", body)
        await old.heartbeat("T", group="G")
        assert await old.lock("G", "T", 0) == {0}
        seen = await consume(old, 5)
        await new.heartbeat("T", group="G")
        await old.next_push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
        assert await new.lock("G", "T", 0) == set()
        seen += await consume(old, 1)
        await old.unlock("G", "T", 0)
        assert await new.lock("G", "T", 0) == {0}
        assert await old.lock("G", "T", 0) == set()
        seen += await consume(new, 4)
    assert seen == bodies


@pytest.mark.parametrize("ends", ["cleanly", "killed"])
async def test_order_is_kept_through_a_restart(tmp_path: Path, ends: str) -> None:
    """After a restart the holder goes on at once; another member gets the queue 30 s later."""
    async with running_broker(tmp_path) as broker, connected(broker, "a") as [client]:
        await client.make_topic("T")
        await client.heartbeat("T", group="G")
        assert await client.lock("G", "T", 0) == {0}
        file = Path(broker.store.paths.own) / "queueLocks.json"
        durable_at_the_answer = file.read_bytes()
    if ends == "killed":
        file.write_bytes(durable_at_the_answer)
    async with running_broker(tmp_path) as broker, connected(broker, "b", "a") as [other, holder]:
        clock = use_clock(broker)
        await other.heartbeat("T", group="G")
        assert await other.lock("G", "T", 0) == set()
        assert await holder.lock("G", "T", 0) == {0}
        clock.advance(30.001)
        assert await other.lock("G", "T", 0) == set()
        clock.advance(30)
        assert await other.lock("G", "T", 0) == {0}


async def test_a_holder_that_does_not_come_back_blocks_for_thirty_seconds(tmp_path: Path) -> None:
    """That is how long it may go on without the broker, and no longer."""
    async with running_broker(tmp_path) as broker, connected(broker, "a") as [client]:
        await client.make_topic("T")
        await client.lock("G", "T", 0)
    async with running_broker(tmp_path) as broker, connected(broker, "b") as [other]:
        clock = use_clock(broker)
        clock.advance(30)
        assert await other.lock("G", "T", 0) == set()
        clock.advance(0.001)
        assert await other.lock("G", "T", 0) == {0}
