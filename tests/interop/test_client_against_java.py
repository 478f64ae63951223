"""mailboat's own client against the real Java servers of both release lines.

Where it matters that the servers and not our client say what is stored, a stock Java client
looks at the same messages.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from interop_client import JavaClient
from interop_jars import SERVER_LINES
from interop_servers import start_java_broker

from mailboat.client import (
    Admin,
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    PullConsumer,
    PullStatus,
    PushConsumer,
    SendResult,
    SendStatus,
    StartPoint,
)
from mailboat.errors import RouteNotFoundError
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.model.topic import TopicConfig
from mailboat.protocol.route import TopicRouteData

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

BROKER = "broker-java"
FIRST = StartPoint(ConsumeFromWhere.FIRST_OFFSET)
# A retried message comes back after 10 s, or with the client's next look at the queues.
PATIENCE_S = 60.0


@dataclass(frozen=True)
class JavaCluster:
    """A running Java name server and broker with a stock client of the same line."""

    namesrv: str
    broker: str
    client: JavaClient


@pytest.fixture(scope="module", params=SERVER_LINES)
def cluster(
    request: pytest.FixtureRequest,
    java_namesrv: Callable[[str], str],
    java_classpath: Callable[[str, str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[JavaCluster]:
    """The real RocketMQ of one release line."""
    line: str = request.param
    client_line = {"4.9.7": "4.9.8"}.get(line, line)
    java_classpath("client", client_line)
    namesrv = java_namesrv(line)
    folder = tmp_path_factory.mktemp(f"cluster-{line}")
    broker = start_java_broker(line, folder / "home", folder / "store", namesrv, name=BROKER)
    client = JavaClient(client_line, namesrv, folder / "client")
    yield JavaCluster(namesrv, broker.address, client)
    client.close()
    # The store is thrown away, so nothing is gained by the long way of a clean stop.
    broker.kill()


@pytest.fixture
async def producer(cluster: JavaCluster) -> AsyncIterator[Producer]:
    """A started producer of ours."""
    async with Producer("ours", namesrv=cluster.namesrv) as producer:
        yield producer


@pytest.fixture
async def admin(cluster: JavaCluster) -> AsyncIterator[Admin]:
    """An admin client of ours."""
    async with Admin(namesrv=cluster.namesrv) as admin:
        yield admin


class Receiver:
    """A handler that keeps what it gets and lets a test wait for it."""

    def __init__(self) -> None:
        """Begin empty."""
        self.messages: list[MessageExt] = []
        self._arrived = asyncio.Condition()

    async def __call__(self, messages: list[MessageExt]) -> None:
        """Take messages from the consumer."""
        async with self._arrived:
            self.messages += messages
            self._arrived.notify_all()

    async def wait(self, count: int, timeout_s: float = PATIENCE_S) -> list[MessageExt]:
        """Return the messages once there are this many."""
        async with asyncio.timeout(timeout_s), self._arrived:
            await self._arrived.wait_for(lambda: len(self.messages) >= count)
        return self.messages


def _queue(topic: str, queue_id: int) -> MessageQueue:
    return MessageQueue(topic, BROKER, queue_id)


def _bodies(messages: list[MessageExt]) -> Counter[bytes]:
    return Counter(message.payload() for message in messages)


async def _send_each(producer: Producer, topic: str, bodies: list[bytes]) -> list[SendResult]:
    return [await producer.send(Message(topic, body)) for body in bodies]


async def _assigned(consumer: PushConsumer, topic: str, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        # The client has no event for this; a program has no need of one.
        while sum(q.topic == topic for q in consumer.assignment) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_java_consumer_gets_what_our_producer_sends(
    cluster: JavaCluster, producer: Producer, admin: Admin, topic: str
) -> None:
    """Body, tag, keys, properties, flag and both ids reach a stock consumer unchanged."""
    await admin.topics.create(TopicConfig(topic, read_queue_nums=3, write_queue_nums=3))
    results = [
        await producer.send(
            Message(
                topic,
                b"body %d" % i,
                tags="\u84dd\u8272",
                keys=[f"order-{i}", "all"],
                properties={"colour": "a b=c;d", "umlaut": "gr\u00fc\u00df"},
                flag=5,
            ),
            queue=_queue(topic, i % 3),
        )
        for i in range(9)
    ]
    assert {result.status for result in results} == {SendStatus.SEND_OK}
    for queue_id in range(3):
        await _dispatched(admin, _queue(topic, queue_id), 3)
    pulled = await asyncio.to_thread(cluster.client.call, "pull", topic=topic, all="true")
    stored = {(message["queueId"], message["queueOffset"]): message for message in pulled}
    assert len(stored) == len(pulled) == 9
    for i, result in enumerate(results):
        message = stored[result.message_queue.queue_id, result.queue_offset]
        assert (message["queueId"], message["queueOffset"]) == (i % 3, i // 3)
        assert base64.b64decode(message["body"]) == b"body %d" % i
        assert message["msgId"] == result.message_id
        assert message["offsetMsgId"] == result.offset_message_id
        assert message["tags"] == "\u84dd\u8272"
        assert message["keys"] == f"order-{i} all"
        assert message["properties"]["colour"] == "a b=c;d"
        assert message["properties"]["umlaut"] == "gr\u00fc\u00df"
        assert message["flag"] == 5
        assert message["bornHost"].startswith("127.0.0.1:")


async def test_our_push_consumer_gets_what_a_java_producer_sends(
    cluster: JavaCluster, topic: str
) -> None:
    """Old and new messages, batches and compressed ones, arrive once; offsets are committed."""
    noise = random.Random(3).randbytes(20_000)
    _java_send(cluster, topic, b"single", count=8, keys="k{i}", tags="red")
    receiver = Receiver()
    consumer = PushConsumer("G-" + topic, namesrv=cluster.namesrv, start_point=FIRST)
    consumer.subscribe(topic, "*", receiver)
    async with consumer:
        await receiver.wait(8)
        await asyncio.to_thread(
            _java_send, cluster, topic, b"batch", count=5, mode="batch", tags="blue"
        )
        await asyncio.to_thread(_java_send, cluster, topic, noise, exact="true")
        messages = await receiver.wait(14)
    assert _bodies(messages) == Counter(
        [*(b"single#%d" % i for i in range(8)), *(b"batch#%d" % i for i in range(5)), noise]
    )
    singles = {message.payload(): message for message in messages}
    assert singles[b"single#3"].keys == "k3"
    assert singles[b"single#3"].tags == "red"
    assert singles[b"batch#2"].tags == "blue"
    committed = cluster.client.call("committed", topic=topic, group="G-" + topic)
    assert sum(event["committed"] for event in committed) == 14


def _java_send(cluster: JavaCluster, topic: str, body: bytes, **params: object) -> None:
    encoded = base64.b64encode(body).decode()
    call = cluster.client.start("send", topic=topic, body=encoded, group="java", **params)
    call.wait_done()


async def test_a_topic_is_created_by_the_first_send(
    producer: Producer, admin: Admin, topic: str
) -> None:
    """Sends to a new topic go round its four queues, which have a route afterwards."""
    results = await _send_each(producer, topic, [b"%d" % i for i in range(8)])
    queues = Counter(result.message_queue.queue_id for result in results)
    assert queues == {0: 2, 1: 2, 2: 2, 3: 2}
    (queue_data,) = (await _routed(admin, topic)).queue_datas
    assert (queue_data.read_queue_nums, queue_data.write_queue_nums) == (4, 4)
    assert topic in await admin.topics.names()


async def test_batches_one_way_and_selected_sends(
    cluster: JavaCluster, producer: Producer, admin: Admin, topic: str
) -> None:
    """A batch lies side by side, a selector chooses the queue, a one-way send is stored."""
    await admin.topics.create(TopicConfig(topic, read_queue_nums=2, write_queue_nums=2))
    batch = [Message(topic, b"batch %d" % i, keys=f"b{i}") for i in range(5)]
    result = await producer.send_batch(batch, queue=_queue(topic, 1))
    assert (result.message_queue.queue_id, result.queue_offset) == (1, 0)
    selected = await producer.send(
        Message(topic, b"selected"), selector=lambda queues, _: max(queues)
    )
    assert (selected.message_queue.queue_id, selected.queue_offset) == (1, 5)
    await producer.send_oneway(Message(topic, b"one-way"), queue=_queue(topic, 0))
    await _dispatched(admin, _queue(topic, 1), 6)
    async with PullConsumer("G-" + topic, namesrv=cluster.namesrv) as consumer:
        pulled = await consumer.pull(_queue(topic, 1), 0)
        one_way = await consumer.pull(_queue(topic, 0), 0, suspend_s=10)
    assert pulled.status is PullStatus.FOUND
    assert [message.payload() for message in pulled.messages] == [
        *(b"batch %d" % i for i in range(5)),
        b"selected",
    ]
    ids = [message.unique_key for message in pulled.messages[:5]]
    assert result.message_id.split(",") == ids
    assert [message.payload() for message in one_way.messages] == [b"one-way"]


@pytest.mark.parametrize("kind", ["text", "noise"])
async def test_large_bodies_are_compressed_and_readable_for_java(
    cluster: JavaCluster, producer: Producer, topic: str, kind: str
) -> None:
    """What our producer compresses a stock client decompresses, and so do we."""
    body = b"again and " * 20_000 if kind == "text" else random.Random(5).randbytes(300_000)
    result = await producer.send(Message(topic, body))
    (java,) = await asyncio.to_thread(
        cluster.client.call, "view", topic=topic, msgId=result.offset_message_id
    )
    assert java["bodySha256"] == hashlib.sha256(body).hexdigest()
    if kind == "text":
        assert java["storeSize"] < 10_000
    async with PullConsumer("G-" + topic, namesrv=cluster.namesrv) as consumer:
        pulled = await consumer.pull(result.message_queue, result.queue_offset, suspend_s=10)
    assert [message.payload() for message in pulled.messages] == [body]


async def test_pull_statuses_and_next_offsets(
    cluster: JavaCluster, producer: Producer, admin: Admin, topic: str
) -> None:
    """Our pull reads found, no new, no match and illegal offset as RocketMQ means them."""
    await admin.topics.create(TopicConfig(topic, read_queue_nums=1, write_queue_nums=1))
    queue = _queue(topic, 0)
    for i in range(10):
        await producer.send(Message(topic, b"%d" % i, tags="red"), queue=queue)
    await _dispatched(admin, queue, 10)

    async with PullConsumer("G-" + topic, namesrv=cluster.namesrv) as consumer:

        async def pull(queue_offset: int, expression: str = "*") -> tuple[PullStatus, int, int]:
            result = await consumer.pull(queue, queue_offset, 4, expression=expression)
            return result.status, result.next_offset, result.max_offset

        assert await pull(3) == (PullStatus.FOUND, 7, 10)
        assert await pull(10) == (PullStatus.NO_NEW_MSG, 10, 10)
        assert await pull(50) == (PullStatus.OFFSET_ILLEGAL, 10, 10)
        assert await pull(0, "green") == (PullStatus.NO_MATCHED_MSG, 10, 10)


async def test_a_pull_consumer_goes_on_where_it_committed(
    cluster: JavaCluster, producer: Producer, admin: Admin, topic: str
) -> None:
    """Polled and committed messages stay behind; the next consumer of the group goes on."""
    group = "G-" + topic
    await _send_each(producer, topic, [b"old %d" % i for i in range(40)])
    await _routed(admin, topic)
    async with PullConsumer(group, namesrv=cluster.namesrv, start_point=FIRST) as consumer:
        await consumer.subscribe(topic)
        old = await _poll(consumer, 40)
        await consumer.commit()
    assert _bodies(old) == Counter(b"old %d" % i for i in range(40))
    await _send_each(producer, topic, [b"new %d" % i for i in range(8)])
    async with PullConsumer(group, namesrv=cluster.namesrv, start_point=FIRST) as consumer:
        await consumer.subscribe(topic)
        new = await _poll(consumer, 8)
    assert _bodies(new) == Counter(b"new %d" % i for i in range(8))


async def test_a_pull_consumer_reads_assigned_queues_from_where_it_seeks(
    cluster: JavaCluster, producer: Producer, admin: Admin, topic: str
) -> None:
    """With assigned queues exactly the messages from the sought offsets on are polled."""
    await admin.topics.create(TopicConfig(topic, read_queue_nums=2, write_queue_nums=2))
    for queue_id, i in itertools.product(range(2), range(10)):
        await producer.send(Message(topic, b"%d" % i), queue=_queue(topic, queue_id))
    async with PullConsumer("G-" + topic, namesrv=cluster.namesrv) as consumer:
        queues = await consumer.message_queues(topic)
        assert queues == [_queue(topic, 0), _queue(topic, 1)]
        for queue in queues:
            await _dispatched(admin, queue, 10)
        consumer.assign(queues)
        consumer.seek(queues[0], 4)
        consumer.seek(queues[1], 9)
        messages = await _poll(consumer, 7)
    assert sorted((m.queue_id, m.queue_offset) for m in messages) == [
        *((0, i) for i in range(4, 10)),
        (1, 9),
    ]


async def _dispatched(admin: Admin, queue: MessageQueue, count: int) -> None:
    """Wait until a queue has so many messages.

    A Java broker's queues follow its log, and from an offset behind the end of an empty queue it
    moves a consumer to 0.
    """
    async with asyncio.timeout(PATIENCE_S):
        while await admin.offsets.maximum(queue) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def _routed(admin: Admin, topic: str) -> TopicRouteData:
    """Wait for the route of a topic that a first send made, and return it.

    Release 4.9 tells its name server one-way, and acknowledges the send meanwhile.
    """
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await admin.topics.route(topic)
            except RouteNotFoundError:
                await asyncio.sleep(0.02)


async def _poll(consumer: PullConsumer, count: int) -> list[MessageExt]:
    messages: list[MessageExt] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(messages) < count:
            messages += await consumer.poll()
    return messages


async def test_members_of_a_group_share_the_queues(
    cluster: JavaCluster, producer: Producer, topic: str
) -> None:
    """One of our consumers and a Java one split the queues and get each message once."""
    await _send_each(producer, topic, [b"first"])
    group = "G-" + topic
    receiver = Receiver()
    ours = PushConsumer(group, namesrv=cluster.namesrv, start_point=FIRST)
    ours.subscribe(topic, "*", receiver)
    async with ours:
        await receiver.wait(1)
        await _assigned(ours, topic, 4)
        java = cluster.client.start("push", topic=topic, group=group)
        await asyncio.to_thread(java.wait_done)
        await _assigned(ours, topic, 2)
        await asyncio.to_thread(
            cluster.client.call, "await_queues", topic=topic, handle=java.number, count=2
        )
        await _send_each(producer, topic, [b"%d" % i for i in range(40)])
        await receiver.wait(21)
        theirs = await asyncio.to_thread(java.wait_messages, 20)
        received = _bodies(receiver.messages) + Counter(
            base64.b64decode(message["body"]) for message in theirs
        )
        # What was there before the second member joined may come to both.
        del received[b"first"]
        assert received == Counter(b"%d" % i for i in range(40))
        await asyncio.to_thread(cluster.client.call, "stop", handle=java.number)
        await _assigned(ours, topic, 4)


async def test_broadcasting_members_each_get_everything(
    cluster: JavaCluster, producer: Producer, topic: str, tmp_path: Path
) -> None:
    """Two broadcasting consumers of one group both get all messages."""
    await _send_each(producer, topic, [b"first"])
    receivers = [Receiver(), Receiver()]
    consumers = [
        PushConsumer(
            "G-" + topic,
            namesrv=cluster.namesrv,
            model=MessageModel.BROADCASTING,
            start_point=FIRST,
            offsets_path=tmp_path / f"offsets-{i}.json",
        )
        for i in range(2)
    ]
    for consumer, receiver in zip(consumers, receivers, strict=True):
        consumer.subscribe(topic, "*", receiver)
    async with consumers[0], consumers[1]:
        for consumer in consumers:
            await _assigned(consumer, topic, 4)
        await _send_each(producer, topic, [b"%d" % i for i in range(8)])
        for receiver in receivers:
            messages = await receiver.wait(9)
            assert _bodies(messages) == Counter([b"first", *(b"%d" % i for i in range(8))])


async def test_tag_subscriptions(cluster: JavaCluster, producer: Producer, topic: str) -> None:
    """Only messages of the subscribed tags arrive: non-ASCII ones, and none of the same hash."""
    tags = ["red", "\u84dd\u8272", "Aa", "BB", "green"]
    for i in range(20):
        await producer.send(Message(topic, b"%d" % i, tags=tags[i % 5]))
    receiver = Receiver()
    consumer = PushConsumer("G-" + topic, namesrv=cluster.namesrv, start_point=FIRST)
    # "Aa" and "BB" have the same Java hash, so the broker sends both.
    consumer.subscribe(topic, "\u84dd\u8272 || Aa", receiver)
    async with consumer:
        messages = await receiver.wait(8)
        # The mark comes last, so nothing that should not come is still on its way.
        await producer.send(Message(topic, b"mark", tags="Aa"), queue=_queue(topic, 0))
        messages = await receiver.wait(9)
    assert _bodies(messages) == Counter(
        [*(b"%d" % i for i in range(20) if i % 5 in (1, 2)), b"mark"]
    )


async def test_a_failed_message_comes_again(
    cluster: JavaCluster, producer: Producer, topic: str
) -> None:
    """A handler that raises gets its message again, counted, and the others only once."""
    receiver = Receiver()

    async def handler(messages: list[MessageExt]) -> None:
        await receiver(messages)
        if messages[0].payload() == b"bad" and messages[0].reconsume_times == 0:
            raise RuntimeError("not now")

    consumer = PushConsumer("G-" + topic, namesrv=cluster.namesrv, start_point=FIRST)
    consumer.subscribe(topic, "*", handler)
    await _send_each(producer, topic, [b"good", b"bad", b"fine"])
    async with consumer:
        messages = await receiver.wait(4)
    assert _bodies(messages) == {b"good": 1, b"bad": 2, b"fine": 1}
    again = messages[-1]
    assert (again.payload(), again.reconsume_times, again.topic) == (b"bad", 1, topic)


async def test_admin_finds_messages(
    cluster: JavaCluster, producer: Producer, admin: Admin, topic: str
) -> None:
    """A message is found by its offset id, its unique id and each of its keys."""
    results = [
        await producer.send(Message(topic, b"%d" % i, keys=[f"order-{i}", "all"])) for i in range(6)
    ]
    await _routed(admin, topic)
    async with asyncio.timeout(PATIENCE_S):
        # A Java broker's index follows its log.
        while len(await admin.messages.by_key(topic, "all")) < len(results):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    for i, result in enumerate(results):
        by_id = await admin.messages.by_offset_id(result.offset_message_id)
        (by_unique,) = await admin.messages.by_unique_key(topic, result.message_id)
        (by_key,) = await admin.messages.by_key(topic, f"order-{i}")
        for message in (by_id, by_unique, by_key):
            assert message.payload() == b"%d" % i
            assert message.message_id == result.message_id
            assert message.store_address == cluster.broker
    found = await admin.messages.by_key(topic, "all")
    assert {message.message_id for message in found} == {result.message_id for result in results}


async def test_admin_knows_topics_offsets_and_groups(
    cluster: JavaCluster, producer: Producer, admin: Admin, topic: str
) -> None:
    """Topics, offsets by end and time, committed offsets, lag and resets are the broker's."""
    assert [broker.address for broker in await admin.cluster.masters()] == [cluster.broker]
    runtime = await admin.cluster.runtime_info(cluster.broker)
    assert runtime["brokerVersionDesc"].startswith("V")
    assert await admin.topics.create(TopicConfig(topic, read_queue_nums=1, write_queue_nums=1)) == [
        BROKER
    ]
    queue, group = _queue(topic, 0), "G-" + topic
    for i in range(5):
        await producer.send(Message(topic, b"%d" % i), queue=queue)
        # Of several messages of one millisecond 4.9 finds any.
        await asyncio.sleep(0.002)
    await _dispatched(admin, queue, 5)
    messages = [message async for message in admin.messages.browse(queue, 0, 5)]
    stored = [message.store_timestamp_ms for message in messages]
    assert [message.payload() for message in messages] == [b"%d" % i for i in range(5)]
    assert (await admin.offsets.minimum(queue), await admin.offsets.maximum(queue)) == (0, 5)
    assert await admin.offsets.at_time(queue, 0) == 0
    assert await admin.offsets.at_time(queue, stored[3]) == 3
    assert (await admin.topics.stats(topic))[queue].max_offset == 5

    await admin.groups.create(SubscriptionGroupConfig(group))
    assert group in await admin.groups.configs()
    async with PullConsumer(group, namesrv=cluster.namesrv, start_point=FIRST) as consumer:
        await consumer.subscribe(topic)
        await _poll(consumer, 5)
        await consumer.commit()
        connection = await admin.groups.connection(group)
        assert connection is not None
        assert topic in connection.subscription_table
    assert await admin.offsets.committed(group, queue) == 5
    stats = (await admin.groups.stats(group, topic)).offset_table[queue]
    assert (stats.broker_offset, stats.consumer_offset) == (5, 5)
    assert await admin.offsets.reset(group, topic, FIRST) == {queue: 0}
    await admin.groups.delete(group)
    await admin.topics.delete(topic)
    assert topic not in await admin.topics.names()
