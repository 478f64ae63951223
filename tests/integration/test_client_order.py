"""Orderly consumers of ours on a real broker."""

import asyncio
import random
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from mailboat.client import (
    Admin,
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    StartPoint,
    orderly_service,
)
from mailboat.model.topic import TopicConfig
from mailboat.testing.cluster import Cluster
from mailboat.testing.receiver import Receiver

FIRST = StartPoint(ConsumeFromWhere.FIRST_OFFSET)
PATIENCE_S = 30.0
QUEUES = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(4)]


class Ledger:
    """A handler that writes down numbers by queue, and sometimes fails."""

    def __init__(self) -> None:
        """Begin empty."""
        self.numbers: defaultdict[int, list[int]] = defaultdict(list)
        self.overlaps: list[int] = []
        self._running: Counter[int] = Counter()
        self._written = asyncio.Event()
        self._random = random.Random(7)

    async def __call__(self, messages: list[MessageExt]) -> None:
        """Write the numbers down, after a while, or fail."""
        queue_id = messages[0].queue_id
        self._running[queue_id] += 1
        if self._running[queue_id] > 1:
            self.overlaps.append(queue_id)
        try:
            await asyncio.sleep(self._random.random() * 0.01)
            if self._random.random() < 0.02:
                raise RuntimeError("not now")
            self.numbers[queue_id] += [int(message.payload()) for message in messages]
            self._written.set()
        finally:
            self._running[queue_id] -= 1

    async def wait(self, count: int) -> None:
        """Return once each queue has brought so many numbers."""
        async with asyncio.timeout(PATIENCE_S):
            while any(len(set(self.numbers[queue.queue_id])) < count for queue in QUEUES):
                self._written.clear()
                await self._written.wait()

    def first_times(self, queue_id: int) -> list[int]:
        """Return the numbers of a queue in order, each where it came for the first time."""
        return list(dict.fromkeys(self.numbers[queue_id]))


async def make_topic(cluster: Cluster, queues: int) -> None:
    """Create topic T."""
    async with Admin(namesrv=cluster.namesrv_addresses) as admin:
        await admin.topics.create(TopicConfig("T", queues, queues))


async def send(producer: Producer, numbers: range) -> None:
    """Send the numbers to each queue."""
    for number in numbers:
        for queue in QUEUES:
            await producer.send(Message("T", b"%d" % number), queue=queue)


def member(cluster: Cluster, ledger: Ledger) -> PushConsumer:
    """Return an orderly consumer of topic T."""
    consumer = PushConsumer("C", namesrv=cluster.namesrv_addresses, start_point=FIRST, order=True)
    consumer.subscribe("T", "*", ledger)
    return consumer


async def wait_assignment(consumer: PushConsumer, count: int) -> None:
    """Return once the consumer has so many queues of T."""
    changed = asyncio.Event()
    consumer.on_assignment.append(lambda topic, queues: changed.set())
    async with asyncio.timeout(PATIENCE_S):
        while sum(queue.topic == "T" for queue in consumer.assignment) != count:
            changed.clear()
            await changed.wait()


async def test_order_is_kept_when_members_come_and_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Each queue is consumed in order, by one member at a time, though handlers fail."""
    monkeypatch.setattr(orderly_service, "SUSPEND_S", 0.05)
    ledger = Ledger()
    async with Cluster(tmp_path) as cluster:
        await make_topic(cluster, 4)
        async with Producer("P", namesrv=cluster.namesrv_addresses) as producer:
            await send(producer, range(100))
            async with member(cluster, ledger) as first:
                await wait_assignment(first, 4)
                async with member(cluster, ledger) as second:
                    await wait_assignment(second, 2)
                    await wait_assignment(first, 2)
                    await send(producer, range(100, 200))
                    await ledger.wait(200)
                await wait_assignment(first, 4)
                await send(producer, range(200, 230))
                await ledger.wait(230)
    assert ledger.overlaps == []
    for queue in QUEUES:
        assert ledger.first_times(queue.queue_id) == list(range(230))
        # Every queue was left in order, so nothing came twice but what failed, which is not noted.
        assert ledger.numbers[queue.queue_id] == list(range(230))


async def test_order_is_kept_over_a_restart_of_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A consumer goes on in order when the broker comes back, and misses nothing."""
    monkeypatch.setattr(orderly_service, "SUSPEND_S", 0.05)
    ledger = Ledger()
    async with Cluster(tmp_path) as cluster:
        await make_topic(cluster, 4)
        async with (
            Producer("P", namesrv=cluster.namesrv_addresses) as producer,
            member(cluster, ledger),
        ):
            await send(producer, range(50))
            await ledger.wait(20)
            await cluster.stop_broker()
            await cluster.start_broker(0)
            await send(producer, range(50, 80))
            await ledger.wait(80)
    assert ledger.overlaps == []
    for queue in QUEUES:
        assert ledger.first_times(queue.queue_id) == list(range(80))


async def test_failing_message_holds_up_its_queue_and_becomes_a_dead_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A message is tried 1 + 2 times before those behind it, then it is a dead letter."""
    monkeypatch.setattr(orderly_service, "SUSPEND_S", 0.05)
    tries: list[tuple[bytes, int]] = []
    receiver = Receiver()

    async def handle(messages: list[MessageExt]) -> None:
        tries.append((messages[0].payload(), messages[0].reconsume_times))
        if messages[0].payload() == b"bad":
            raise RuntimeError("never")
        await receiver(messages)

    async with Cluster(tmp_path) as cluster:
        namesrv = cluster.namesrv_addresses
        async with Producer("P", namesrv=namesrv) as producer:
            queue = (await producer.queues("T"))[0]
            for body in (b"before", b"bad", b"behind"):
                await producer.send(Message("T", body, tags="t", keys="k"), queue=queue)
        consumer = PushConsumer(
            "C", namesrv=namesrv, start_point=FIRST, order=True, max_reconsume_times=2
        )
        consumer.subscribe("T", "*", handle)
        async with consumer:
            await receiver.wait(2)
        async with PullConsumer("D", namesrv=namesrv) as reader:
            dead_queue = MessageQueue("%DLQ%C", "broker-a", 0)
            (dead,) = (await reader.pull(dead_queue, 0, suspend_s=5.0)).messages
    assert tries == [(b"before", 0), (b"bad", 0), (b"bad", 1), (b"bad", 2), (b"behind", 0)]
    assert (dead.payload(), dead.tags, dead.keys) == (b"bad", "t", "k")
    assert dead.properties["RETRY_TOPIC"] == "T"


async def test_broadcasting_in_order_needs_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Every member reads every queue in order, a failing message before those behind it."""
    monkeypatch.setattr(orderly_service, "SUSPEND_S", 0.05)
    ledgers = [Ledger(), Ledger()]
    async with Cluster(tmp_path / "cluster") as cluster:
        await make_topic(cluster, 4)
        consumers = []
        for number, ledger in enumerate(ledgers):
            consumer = PushConsumer(
                "C",
                namesrv=cluster.namesrv_addresses,
                model=MessageModel.BROADCASTING,
                order=True,
                start_point=FIRST,
                offsets_path=tmp_path / f"offsets-{number}.json",
            )
            consumer.subscribe("T", "*", ledger)
            consumers.append(consumer)
        async with (
            Producer("P", namesrv=cluster.namesrv_addresses) as producer,
            consumers[0],
            consumers[1],
        ):
            await send(producer, range(60))
            for ledger in ledgers:
                await ledger.wait(60)
    for ledger in ledgers:
        assert [ledger.numbers[queue.queue_id] for queue in QUEUES] == [list(range(60))] * 4
