"""Delay, transactions, order, retries, conditions and codecs of our client against real brokers.

The brokers' clocks are turned up: delay level 3, the first retry, is 2 s, and open transactions are
asked about after 3 s, and then every 2 s.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import random
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from interop_client import JavaClient
from interop_jars import SERVER_LINES
from interop_servers import start_java_broker

from mailboat.client import (
    Admin,
    ConsumeFromWhere,
    ConsumeLater,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PullStatus,
    PushConsumer,
    Sql,
    StartPoint,
    TransactionProducer,
    TransactionState,
)
from mailboat.errors import BrokerError
from mailboat.model.names import dlq_topic
from mailboat.model.sys_flag import COMPRESSION_TYPE_MASK
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import ResponseCode
from mailboat.testing.receiver import Receiver

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

BROKER = "broker-java"
FIRST = StartPoint(ConsumeFromWhere.FIRST_OFFSET)
PATIENCE_S = 60.0
CONFIG = {
    "messageDelayLevel": "1s 5s 2s 2s 2s 2s 2s 2s",
    "transactionCheckInterval": 2000,
    # Release 5 notes the ends of transactions in batches; until then it asks about ended ones too.
    "transactionOpBatchInterval": 100,
    "transactionTimeOut": 3000,
    "enablePropertyFilter": "true",
}


@dataclass(frozen=True)
class JavaCluster:
    """A running Java name server and broker of one release line."""

    line: str
    namesrv: str


@pytest.fixture(scope="module", params=SERVER_LINES)
def cluster(
    request: pytest.FixtureRequest,
    java_namesrv: Callable[[str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[JavaCluster]:
    """The real RocketMQ of one release line."""
    line: str = request.param
    namesrv = java_namesrv(line)
    folder = tmp_path_factory.mktemp(f"features-{line}")
    broker = start_java_broker(
        line, folder / "home", folder / "store", namesrv, name=BROKER, config=CONFIG
    )
    yield JavaCluster(line, namesrv)
    # The store is thrown away, so nothing is gained by the long way of a clean stop.
    broker.kill()


@pytest.fixture(scope="module")
def java_client(
    cluster: JavaCluster,
    java_classpath: Callable[[str, str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[JavaClient]:
    """A stock client of the brokers' line."""
    line = {"4.9.7": "4.9.8"}.get(cluster.line, cluster.line)
    java_classpath("client", line)
    client = JavaClient(line, cluster.namesrv, tmp_path_factory.mktemp(f"client-{line}"))
    yield client
    client.close()


async def _create(cluster: JavaCluster, topic: str, queues: int) -> list[MessageQueue]:
    async with Admin(namesrv=cluster.namesrv) as admin:
        await admin.topics.create(TopicConfig(topic, queues, queues))
    return [MessageQueue(topic, BROKER, queue_id) for queue_id in range(queues)]


Handle = Callable[[list[MessageExt]], Awaitable[None]]


def _consumer(
    cluster: JavaCluster,
    topic: str,
    handler: Handle,
    *,
    order: bool = False,
    max_reconsume_times: int | None = None,
) -> PushConsumer:
    consumer = PushConsumer(
        "G-" + topic,
        namesrv=cluster.namesrv,
        start_point=FIRST,
        order=order,
        max_reconsume_times=max_reconsume_times,
    )
    consumer.subscribe(topic, "*", handler)
    return consumer


async def _assigned(consumer: PushConsumer, topic: str, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        # The client has no event for this; a program has no need of one.
        while sum(q.topic == topic for q in consumer.assignment) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_delayed_message_comes_after_its_delay(cluster: JavaCluster, topic: str) -> None:
    """Level 3 of the broker's table comes 2 s later, whole, and not after what was sent later."""
    receiver = Receiver()
    await _create(cluster, topic, 1)
    async with (
        Producer("ours", namesrv=cluster.namesrv) as producer,
        _consumer(cluster, topic, receiver),
    ):
        sent_s = time.monotonic()
        delayed = Message(topic, b"late", tags="t", keys="k", properties={"p": "v"}, delay_level=3)
        result = await producer.send(delayed)
        await producer.send(Message(topic, b"now"))
        await receiver.wait(2)
        took_s = time.monotonic() - sent_s
    assert receiver.bodies == [b"now", b"late"]
    late = receiver.messages[1]
    assert 2.0 <= took_s < 5.0
    assert (late.tags, late.keys, late.properties["p"]) == ("t", "k", "v")
    assert late.message_id == result.message_id


class Bank:
    """The local transactions of a test: what to answer to `execute` and to checks."""

    def __init__(self) -> None:
        """Begin without transactions."""
        self.executed: dict[str, str] = {}
        self.checked: list[MessageExt] = []

    async def execute(self, message: Message, transaction_id: str) -> TransactionState:
        """Run a transaction; the body says how it ends."""
        text = message.body.decode()
        self.executed[transaction_id] = text
        if text.startswith("raise"):
            raise RuntimeError("the database went away")
        return TransactionState[text.split()[0].upper()]

    async def check(self, message: MessageExt) -> TransactionState:
        """Answer a broker; the last word of the body says what."""
        self.checked.append(message)
        text = message.payload().decode()
        times = sum(m.unique_key == message.unique_key for m in self.checked)
        if text.startswith("raise") and times == 1:
            raise RuntimeError("still away")
        return TransactionState[text.split()[-1].upper()]


async def test_transactions_end_as_the_program_says(cluster: JavaCluster, topic: str) -> None:
    """Committed messages come, rolled-back ones do not; about the unknown the broker asks."""
    bank, receiver = Bank(), Receiver()
    await _create(cluster, topic, 2)
    bodies = [
        b"commit",
        b"rollback",
        b"unknown commit",
        b"unknown rollback",
        b"raise commit",
        b"commit" + b" commit" * 1000,
    ]
    async with (
        TransactionProducer("P-" + topic, bank.check, namesrv=cluster.namesrv) as producer,
        _consumer(cluster, topic, receiver),
    ):
        results = [
            await producer.send_in_transaction(
                Message(topic, body, tags="t", properties={"n": str(i)}), bank.execute
            )
            for i, body in enumerate(bodies)
        ]
        expected = {*(bodies[i] for i in (0, 2, 4, 5)), b"the end"}
        await producer.send(Message(topic, b"the end"))
        while expected - set(receiver.bodies):
            await receiver.wait(len(receiver.messages) + 1)
        async with asyncio.timeout(PATIENCE_S):
            # A rollback has no sign of its own: wait for the question about it.
            while len({m.unique_key for m in bank.checked}) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    assert [result.state.name for result in results] == [
        "COMMIT", "ROLLBACK", "UNKNOWN", "UNKNOWN", "UNKNOWN", "COMMIT",
    ]  # fmt: skip
    ids = [result.sent.message_id for result in results]
    assert list(bank.executed) == ids
    # RocketMQ may deliver a message twice that is committed by two answers.
    assert set(receiver.bodies) == expected
    committed = {m.payload(): m for m in receiver.messages}
    for i in (0, 2, 4, 5):
        message = committed[bodies[i]]
        assert (message.unique_key, message.tags, message.properties["n"]) == (ids[i], "t", str(i))
    asked = {m.unique_key: m for m in bank.checked}
    assert set(asked) == {ids[2], ids[3], ids[4]}
    assert {m.topic for m in bank.checked} == {topic}


async def test_another_producer_of_the_group_is_asked(cluster: JavaCluster, topic: str) -> None:
    """After the sender has gone, a producer that only named the topic ends its transactions."""
    receiver, first, second = Receiver(), Bank(), Bank()
    await _create(cluster, topic, 1)
    group = "P-" + topic
    async with TransactionProducer(group, first.check, namesrv=cluster.namesrv) as producer:
        result = await producer.send_in_transaction(
            Message(topic, b"unknown unknown"), first.execute
        )

    async def check(message: MessageExt) -> TransactionState:
        second.checked.append(message)
        return TransactionState.COMMIT

    async with (
        TransactionProducer(group, check, topics=[topic], namesrv=cluster.namesrv),
        _consumer(cluster, topic, receiver),
    ):
        await receiver.wait(1)
    assert receiver.messages[0].unique_key == result.sent.message_id
    assert second.checked[0].unique_key == result.sent.message_id


async def test_order_is_kept_when_members_come_and_go(cluster: JavaCluster, topic: str) -> None:
    """Each queue is consumed in order, by one member at a time, though handlers fail."""
    queues = await _create(cluster, topic, 4)
    log: defaultdict[int, list[int]] = defaultdict(list)
    running: Counter[int] = Counter()
    overlaps: list[int] = []
    arrived = asyncio.Event()
    rng = random.Random(7)

    async def handle(messages: list[MessageExt]) -> None:
        queue_id = messages[0].queue_id
        running[queue_id] += 1
        if running[queue_id] > 1:
            overlaps.append(queue_id)
        try:
            await asyncio.sleep(rng.random() * 0.02)
            if rng.random() < 0.02:
                raise RuntimeError("not now")
            log[queue_id] += [int(message.payload()) for message in messages]
            arrived.set()
        finally:
            running[queue_id] -= 1

    def member() -> PushConsumer:
        consumer = PushConsumer(
            "G-" + topic, namesrv=cluster.namesrv, start_point=FIRST, order=True
        )
        consumer.subscribe(topic, "*", handle)
        return consumer

    async def wait_all(count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while any(len(set(log[queue.queue_id])) < count for queue in queues):
                arrived.clear()
                await arrived.wait()

    async def send(producer: Producer, numbers: range) -> None:
        for number in numbers:
            for queue in queues:
                await producer.send(Message(topic, b"%d" % number), queue=queue)

    async with Producer("ours", namesrv=cluster.namesrv) as producer:
        await send(producer, range(100))
        async with member() as first:
            await _assigned(first, topic, 4)
            async with member() as second:
                await _assigned(second, topic, 2)
                await send(producer, range(100, 200))
                await wait_all(200)
            await _assigned(first, topic, 4)
            await send(producer, range(200, 230))
            await wait_all(230)
    assert overlaps == []
    for numbers in log.values():
        assert _without_repeats(numbers) == list(range(230))


def _without_repeats(numbers: list[int]) -> list[int]:
    """Take out what was consumed before; what remains must be in order."""
    seen: set[int] = set()
    return [n for n in numbers if n not in seen and not seen.add(n)]  # type: ignore[func-returns-value]


async def test_order_is_kept_between_our_member_and_javas(
    cluster: JavaCluster, topic: str, java_client: JavaClient
) -> None:
    """Queues go in order from our consumer to a stock one and back, and no message comes twice."""
    queues = await _create(cluster, topic, 4)
    receiver = Receiver()

    async def send(producer: Producer, numbers: range) -> None:
        for number in numbers:
            for queue in queues:
                await producer.send(Message(topic, b"%d" % number), queue=queue)

    consumer = _consumer(cluster, topic, receiver, order=True)
    async with Producer("ours", namesrv=cluster.namesrv) as producer, consumer:
        await send(producer, range(20))
        await receiver.wait(80)
        java = java_client.start("push", topic=topic, group="G-" + topic, orderly="true")
        await asyncio.to_thread(java.wait_done)
        await _assigned(consumer, topic, 2)
        await send(producer, range(20, 40))
        theirs = await asyncio.to_thread(java.wait_messages, 40)
        await receiver.wait(120)
        await asyncio.to_thread(java_client.call, "stop", handle=java.number)
        await _assigned(consumer, topic, 4)
        await send(producer, range(40, 50))
        await receiver.wait(160)
    ours: defaultdict[int, list[int]] = defaultdict(list)
    for message in receiver.messages:
        ours[message.queue_id].append(int(message.payload()))
    javas: defaultdict[int, list[int]] = defaultdict(list)
    for event in theirs:
        javas[event["queueId"]].append(int(base64.b64decode(event["body"])))
    assert len(javas) == 2
    for queue in queues:
        middle = javas[queue.queue_id] or list(range(20, 40))
        assert middle == list(range(20, 40))
        kept = [n for n in range(50) if n not in javas[queue.queue_id]]
        assert ours[queue.queue_id] == kept


async def test_failing_message_holds_up_its_queue_and_becomes_a_dead_letter(
    cluster: JavaCluster, topic: str
) -> None:
    """In order, a message is tried 1 + 2 times before those behind it, then it is a dead letter."""
    (queue,) = await _create(cluster, topic, 1)
    tries: list[tuple[bytes, int]] = []
    receiver = Receiver()

    async def handle(messages: list[MessageExt]) -> None:
        tries.append((messages[0].payload(), messages[0].reconsume_times))
        if messages[0].payload() == b"bad":
            raise RuntimeError("never")
        await receiver(messages)

    async with Producer("ours", namesrv=cluster.namesrv) as producer:
        for body in (b"before", b"bad", b"behind"):
            await producer.send(Message(topic, body, tags="t", keys="k"), queue=queue)
        started_s = time.monotonic()
        consumer = _consumer(cluster, topic, handle, order=True, max_reconsume_times=2)
        async with consumer:
            await receiver.wait(2)
            took_s = time.monotonic() - started_s
            dead = await _dead_letter(cluster, topic)
    assert tries == [(b"before", 0), (b"bad", 0), (b"bad", 1), (b"bad", 2), (b"behind", 0)]
    assert took_s >= 2.0
    assert dead.payload() == b"bad"
    assert (dead.tags, dead.keys, dead.properties["RETRY_TOPIC"]) == ("t", "k", topic)


async def _dead_letter(cluster: JavaCluster, topic: str) -> MessageExt:
    """Return the first dead letter of the topic's group."""
    async with PullConsumer("reader", namesrv=cluster.namesrv) as reader:
        dead_queue = MessageQueue(dlq_topic("G-" + topic), BROKER, 0)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    found = await reader.pull(dead_queue, 0, suspend_s=5.0)
                except BrokerError as error:
                    # The broker makes the topic with the first dead letter.
                    assert error.code == ResponseCode.TOPIC_NOT_EXIST
                    await asyncio.sleep(0.1)
                    continue
                if found.status is PullStatus.FOUND:
                    return found.messages[0]


async def test_failed_message_comes_again_when_the_handler_says(
    cluster: JavaCluster, topic: str
) -> None:
    """A handler chooses the delay of the next try; the message keeps what it had."""
    receiver = Receiver()
    times: list[float] = []

    async def handle(messages: list[MessageExt]) -> None:
        times.append(time.monotonic())
        await receiver(messages)
        if messages[0].reconsume_times == 0:
            raise ConsumeLater(delay_level=2)

    async with Producer("ours", namesrv=cluster.namesrv) as producer:
        sent = await producer.send(Message(topic, b"x", tags="t", keys="k"))
    consumer = _consumer(cluster, topic, handle)
    async with consumer:
        await receiver.wait(2)
    first, again = receiver.messages
    assert first.message_id == again.message_id == sent.message_id
    assert (again.topic, again.reconsume_times, again.tags) == (topic, 1, "t")
    assert again.properties["ORIGIN_MESSAGE_ID"] == sent.offset_message_id
    assert times[1] - times[0] >= 5.0


async def test_message_that_the_broker_does_not_take_back_is_published(
    cluster: JavaCluster, topic: str
) -> None:
    """A message that the broker cannot find comes again all the same, through the retry topic."""
    receiver = Receiver()

    async def handle(messages: list[MessageExt]) -> None:
        await receiver(messages)
        if messages[0].reconsume_times == 0:
            # As if the file that holds the message had been deleted meanwhile.
            messages[0].physical_offset = 1 << 40
            raise RuntimeError("not now")

    async with Producer("ours", namesrv=cluster.namesrv) as producer:
        sent = await producer.send(Message(topic, b"compressed " * 1000, keys="k"))
    consumer = _consumer(cluster, topic, handle)
    async with consumer:
        await receiver.wait(2)
    again = receiver.messages[1]
    assert again.payload() == b"compressed " * 1000
    assert (again.topic, again.reconsume_times, again.keys) == (topic, 1, "k")
    assert again.message_id == sent.message_id


@pytest.mark.parametrize("way", ["wish", "tries", "order"])
async def test_dead_letters(cluster: JavaCluster, topic: str, way: str) -> None:
    """A message dies by the handler's wish, with or without order, or after its tries."""
    calls: list[int] = []

    async def handle(messages: list[MessageExt]) -> None:
        calls.append(messages[0].reconsume_times)
        if way == "tries":
            raise RuntimeError("never")
        raise ConsumeLater(delay_level=-1)

    async with Producer("ours", namesrv=cluster.namesrv) as producer:
        sent = await producer.send(Message(topic, b"x"))
    consumer = _consumer(
        cluster,
        topic,
        handle,
        order=way == "order",
        max_reconsume_times=1 if way == "tries" else None,
    )
    async with consumer:
        dead = await _dead_letter(cluster, topic)
    assert calls == ([0, 1] if way == "tries" else [0])
    assert (dead.payload(), dead.message_id) == (b"x", sent.message_id)
    assert dead.properties["RETRY_TOPIC"] == topic


async def test_conditions_are_the_brokers(cluster: JavaCluster, topic: str) -> None:
    """Push and pull consumers get exactly the messages for which an SQL condition is true."""
    queues = await _create(cluster, topic, 2)
    condition = Sql("a > 5 AND region IN ('eu', 'us')")
    async with Producer("ours", namesrv=cluster.namesrv) as producer:
        for i in range(10):
            properties = {"a": str(i), "region": ("eu", "asia")[i % 2]}
            message = Message(topic, b"%d" % i, tags="other", properties=properties)
            await producer.send(message, queue=queues[i // 5])
        await producer.send(Message(topic, b"no properties"), queue=queues[1])
        receiver = Receiver()
        consumer = PushConsumer("G-" + topic, namesrv=cluster.namesrv, start_point=FIRST)
        consumer.subscribe(topic, condition, receiver)
        async with consumer:
            await receiver.wait(2)
            properties = {"a": "7", "region": "us"}
            await producer.send(Message(topic, b"mark", properties=properties), queue=queues[1])
            await receiver.wait(3)
    assert receiver.bodies == [b"6", b"8", b"mark"]
    async with PullConsumer("P-" + topic, namesrv=cluster.namesrv, start_point=FIRST) as pull:
        result = await pull.pull(queues[1], 0, expression=Sql("a = 9"))
        assert [m.payload() for m in result.messages] == [b"9"]
        await pull.subscribe(topic, condition)
        polled: list[MessageExt] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(polled) < 3:
                polled += await pull.poll()
    assert [m.payload() for m in polled] == [b"6", b"8", b"mark"]


async def test_bad_condition_is_refused_at_the_start(cluster: JavaCluster, topic: str) -> None:
    """A condition that the broker cannot parse fails the start instead of every later pull."""
    await _create(cluster, topic, 1)
    consumer = PushConsumer("G-" + topic, namesrv=cluster.namesrv)
    consumer.subscribe(topic, Sql("a >"), Receiver())
    with pytest.raises(BrokerError) as caught:
        await consumer.start()
    assert caught.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    async with PullConsumer("P-" + topic, namesrv=cluster.namesrv) as pull:
        with pytest.raises(BrokerError):
            await pull.subscribe(topic, Sql("a >"))
        assert pull.assignment == []


async def test_request_and_reply(cluster: JavaCluster, topic: str) -> None:
    """Each request gets the reply of the consumer that got it, several at a time."""
    await _create(cluster, topic, 2)
    async with (
        Producer("replier", namesrv=cluster.namesrv) as replier,
        Producer("asker", namesrv=cluster.namesrv) as asker,
    ):

        async def answer(messages: list[MessageExt]) -> None:
            for message in messages:
                await replier.reply(message, b"re:" + message.payload())

        async with _consumer(cluster, topic, answer) as consumer:
            await _assigned(consumer, topic, 2)
            replies = await asyncio.gather(
                *(asker.request(Message(topic, b"%d" % i), timeout_s=20.0) for i in range(10))
            )
    assert [reply.payload() for reply in replies] == [b"re:%d" % i for i in range(10)]


@pytest.mark.parametrize("compression", ["zlib", "lz4", "zstd"])
async def test_codecs(
    cluster: JavaCluster,
    topic: str,
    compression: str,
    java_client: JavaClient,
) -> None:
    """Compressed bodies come back whole, to us and to a stock client of a line that knows them."""
    body = b"again and " * 20_000
    async with Producer(
        "ours", namesrv=cluster.namesrv, compression=compression, compression_level=3
    ) as producer:
        sent = await producer.send(Message(topic, body))
    async with PullConsumer("P-" + topic, namesrv=cluster.namesrv) as pull:
        (ours,) = (await pull.pull(sent.message_queue, sent.queue_offset, suspend_s=10)).messages
    assert ours.payload() == body
    assert ours.store_size_bytes < 10_000
    if compression != "zlib" and cluster.line.startswith("4."):
        return
    (java,) = await asyncio.to_thread(
        java_client.call, "view", topic=topic, msgId=sent.offset_message_id
    )
    assert java["bodySha256"] == hashlib.sha256(body).hexdigest()


# Producers of release line 4.9 compress with zlib only.
@pytest.mark.parametrize(
    "cluster", [line for line in SERVER_LINES if line >= "5."], indirect=True, scope="module"
)
@pytest.mark.parametrize(("name", "bits"), [("LZ4", 0x100), ("ZSTD", 0x200)])
async def test_bodies_that_java_compressed(
    cluster: JavaCluster, topic: str, name: str, bits: int, tmp_path: Path
) -> None:
    """What a stock producer of release 5 compresses comes back whole to us."""
    await _create(cluster, topic, 1)
    body = b"again and " * 20_000
    options = f"JAVA_TOOL_OPTIONS=-Drocketmq.message.compressType={name}"
    client = JavaClient(cluster.line, cluster.namesrv, tmp_path, launch=["env", options])
    try:
        await asyncio.to_thread(
            client.call,
            "send",
            topic=topic,
            group="java",
            exact="true",
            body=base64.b64encode(body).decode(),
        )
    finally:
        client.close()
    async with PullConsumer("P-" + topic, namesrv=cluster.namesrv) as pull:
        (message,) = (await pull.pull(MessageQueue(topic, BROKER, 0), 0, suspend_s=10)).messages
    assert message.sys_flag & COMPRESSION_TYPE_MASK == bits
    assert message.payload() == body
