"""Pull and push consumers against a real name server and real brokers."""

import asyncio
from collections import Counter
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
    PullStatus,
    PushConsumer,
    StartPoint,
    instance,
)
from mailboat.errors import MailboatError, RouteNotFoundError
from mailboat.model.topic import TopicConfig
from mailboat.testing.cluster import Cluster

FIRST = StartPoint(ConsumeFromWhere.FIRST_OFFSET)
LAST = StartPoint(ConsumeFromWhere.LAST_OFFSET)
PATIENCE_S = 20.0


async def send_numbers(cluster: Cluster, numbers: range, tags: str | None = None) -> None:
    """Send numbers to topic T."""
    async with Producer("G", namesrv=cluster.namesrv_addresses) as producer:
        for number in numbers:
            await producer.send(Message("T", b"%d" % number, tags))


def numbers_of(messages: list[MessageExt]) -> list[int]:
    """Return the numbers of messages, in the order they came."""
    return [int(message.payload()) for message in messages]


async def poll_all(consumer: PullConsumer, count: int) -> list[MessageExt]:
    """Poll until `count` messages came."""
    messages: list[MessageExt] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(messages) < count:
            messages += await consumer.poll(timeout_s=1.0)
    return messages


class Receiver:
    """A handler that remembers messages."""

    def __init__(self) -> None:
        """Begin without messages."""
        self.messages: list[MessageExt] = []
        self._came = asyncio.Event()

    async def __call__(self, messages: list[MessageExt]) -> None:
        """Remember the messages."""
        self.messages += messages
        self._came.set()

    async def wait(self, count: int) -> list[int]:
        """Return the numbers once there are `count` messages."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.messages) < count:
                self._came.clear()
                await self._came.wait()
        return numbers_of(self.messages)


def assigned(consumer: PushConsumer | PullConsumer, count: int) -> asyncio.Future[None]:
    """Return a future that is done once the consumer has `count` queues of topic T."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def listener(topic: str, queues: list[MessageQueue]) -> None:
        if topic == "T" and len(queues) == count and not done.done():
            done.set_result(None)

    consumer.on_assignment.append(listener)
    return done


# Pull consumer


async def test_assigned_queues_are_read_from_the_start(tmp_path: Path):
    """Every message of every queue comes once, each queue in order."""
    async with Cluster(tmp_path) as cluster:
        await send_numbers(cluster, range(200))
        namesrv = cluster.namesrv_addresses
        async with PullConsumer("C", namesrv=namesrv, start_point=FIRST) as consumer:
            consumer.assign(await consumer.message_queues("T"))
            messages = await poll_all(consumer, 200)
        assert sorted(numbers_of(messages)) == list(range(200))
        for queue_id in range(4):
            own = [message.queue_offset for message in messages if message.queue_id == queue_id]
            assert own == list(range(50))


async def test_commit_is_where_the_next_consumer_begins(tmp_path: Path):
    """What was polled and committed does not come again; what was only polled does."""
    async with Cluster(tmp_path) as cluster:
        await send_numbers(cluster, range(40))
        namesrv = cluster.namesrv_addresses
        async with PullConsumer("C", namesrv=namesrv, start_point=FIRST) as consumer:
            consumer.assign(await consumer.message_queues("T"))
            first = await consumer.poll(7, PATIENCE_S)
            await consumer.commit()
            await consumer.poll(7, PATIENCE_S)
        async with PullConsumer("C", namesrv=namesrv) as consumer:
            consumer.assign(await consumer.message_queues("T"))
            second = await poll_all(consumer, 40 - len(first))
        assert sorted(numbers_of(first) + numbers_of(second)) == list(range(40))


async def test_seek_goes_anywhere(tmp_path: Path):
    """After a seek the next message of that queue is the one asked for."""
    async with Cluster(tmp_path) as cluster:
        await send_numbers(cluster, range(40))
        async with PullConsumer("C", namesrv=cluster.namesrv_addresses) as consumer:
            queue = (await consumer.message_queues("T"))[0]
            consumer.assign([queue])
            consumer.seek(queue, 8)
            assert [message.queue_offset for message in await poll_all(consumer, 2)] == [8, 9]
            consumer.seek(queue, 3)
            messages = await consumer.poll(1, PATIENCE_S)
            assert (messages[0].queue_offset, consumer.position(queue)) == (3, 4)
            with pytest.raises(MailboatError, match="not assigned"):
                consumer.seek(MessageQueue("T", "broker-a", 3), 0)


async def test_poll_waits_for_new_messages(tmp_path: Path):
    """A poll at the end of a queue returns with the next message, or empty when time is over."""
    async with Cluster(tmp_path) as cluster:
        await send_numbers(cluster, range(4))
        namesrv = cluster.namesrv_addresses
        async with PullConsumer("C", namesrv=namesrv, start_point=LAST) as consumer:
            consumer.assign(await consumer.message_queues("T"))
            assert await consumer.poll(timeout_s=0.2) == []
            polling = asyncio.ensure_future(consumer.poll(timeout_s=PATIENCE_S))
            await send_numbers(cluster, range(4, 5))
            assert numbers_of(await polling) == [4]


async def test_tags_select_messages(tmp_path: Path):
    """Only messages with a wanted tag come, and the commit passes the others."""
    async with Cluster(tmp_path) as cluster:
        await send_numbers(cluster, range(10), "a")
        await send_numbers(cluster, range(10, 20), "b")
        await send_numbers(cluster, range(20, 30))
        namesrv = cluster.namesrv_addresses
        async with PullConsumer("C", namesrv=namesrv, start_point=FIRST) as consumer:
            consumer.assign(await consumer.message_queues("T"), "b || c")
            assert sorted(numbers_of(await poll_all(consumer, 10))) == list(range(10, 20))
            assert await consumer.poll(timeout_s=0.2) == []
            await consumer.commit()
        async with Admin(namesrv=namesrv) as admin:
            stats = await admin.groups.stats("C")
        assert sum(each.consumer_offset for each in stats.offset_table.values()) == 30


async def test_low_level_pull(tmp_path: Path):
    """A single pull tells the bounds of the queue and keeps the records as they came."""
    async with Cluster(tmp_path) as cluster:
        await send_numbers(cluster, range(40))
        async with PullConsumer("C", namesrv=cluster.namesrv_addresses) as consumer:
            queue = (await consumer.message_queues("T"))[0]
            result = await consumer.pull(queue, 2, 5)
            assert result.status is PullStatus.FOUND
            assert (result.next_offset, result.min_offset, result.max_offset) == (7, 0, 10)
            assert [message.queue_offset for message in result.messages] == [2, 3, 4, 5, 6]
            assert len(result.body) == sum(m.store_size_bytes for m in result.messages)
            beyond = await consumer.pull(queue, 10)
            assert (beyond.status, beyond.next_offset) == (PullStatus.NO_NEW_MSG, 10)
            wrong = await consumer.pull(queue, 11)
            assert (wrong.status, wrong.next_offset) == (PullStatus.OFFSET_ILLEGAL, 10)


async def test_subscribers_share_queues(tmp_path: Path):
    """Two members of a group get two of four queues each; alone, one gets all again."""
    async with Cluster(tmp_path) as cluster:
        await send_numbers(cluster, range(4))
        namesrv = cluster.namesrv_addresses
        async with PullConsumer("C", namesrv=namesrv, start_point=FIRST) as first:
            alone = assigned(first, 4)
            await first.subscribe("T")
            await asyncio.wait_for(alone, PATIENCE_S)
            halved, alone_again = assigned(first, 2), asyncio.Future()
            async with PullConsumer("C", namesrv=namesrv, start_point=FIRST) as second:
                other_half = assigned(second, 2)
                await second.subscribe("T")
                await asyncio.wait_for(asyncio.gather(halved, other_half), PATIENCE_S)
                assert sorted(first.assignment + second.assignment) == sorted(
                    await first.message_queues("T")
                )
                alone_again = assigned(first, 4)
            await asyncio.wait_for(alone_again, PATIENCE_S)


async def test_a_queue_that_goes_away_is_committed_first(tmp_path: Path):
    """With `commit_lost` the other member begins behind what was handed out."""
    async with Cluster(tmp_path) as cluster:
        await send_numbers(cluster, range(40))
        namesrv = cluster.namesrv_addresses
        first = PullConsumer("C", namesrv=namesrv, start_point=FIRST, commit_lost=True)
        second = PullConsumer("C", namesrv=namesrv, start_point=FIRST)
        async with first, second, Admin(namesrv=namesrv) as admin:
            await first.subscribe("T")
            ends = Counter(message.queue_id for message in await poll_all(first, 40))
            shared = assigned(first, 2)
            before = set(first.assignment)
            await second.subscribe("T")
            await asyncio.wait_for(shared, PATIENCE_S)
            # Of its own queues, after those that went.
            await first.commit()
            for queue in before - set(first.assignment):
                assert await admin.offsets.committed("C", queue) == ends[queue.queue_id]


async def test_a_group_that_was_moved_back_is_committed_anew(tmp_path: Path):
    """Also where the consumer comes to the very place that it has committed before."""
    async with Cluster(tmp_path) as cluster:
        await send_numbers(cluster, range(8))
        namesrv = cluster.namesrv_addresses
        consumer = PullConsumer("C", namesrv=namesrv, start_point=FIRST)
        async with consumer, Admin(namesrv=namesrv) as admin:
            await consumer.subscribe("T")
            await poll_all(consumer, 8)
            await consumer.commit()
            await admin.offsets.reset("C", "T", FIRST)
            assert sorted(numbers_of(await poll_all(consumer, 8))) == list(range(8))
            await consumer.commit()
            for queue in consumer.assignment:
                assert await consumer.committed(queue) == await consumer.max_offset(queue)


async def test_assigned_consumer_takes_nothing_from_the_group(tmp_path: Path):
    """A consumer that chooses its queues is no member: the members' shares do not change."""
    async with Cluster(tmp_path) as cluster:
        await send_numbers(cluster, range(4))
        namesrv = cluster.namesrv_addresses
        async with PullConsumer("C", namesrv=namesrv, start_point=FIRST) as single:
            single.assign(await single.message_queues("T"))
            await poll_all(single, 4)
            async with Admin(namesrv=namesrv) as admin:
                assert await admin.groups.connection("C") is None


async def test_unknown_topic_is_an_error(tmp_path: Path):
    """Subscribing to a topic that is not there says so."""
    async with Cluster(tmp_path) as cluster:
        async with PullConsumer("C", namesrv=cluster.namesrv_addresses) as consumer:
            with pytest.raises(RouteNotFoundError, match="nope"):
                await consumer.subscribe("nope")


# Push consumer


async def test_push_consumer_gets_old_and_new_messages(tmp_path: Path):
    """What is there and what is sent later comes, exactly once in a quiet cluster."""
    async with Cluster(tmp_path) as cluster:
        await send_numbers(cluster, range(50))
        receiver = Receiver()
        consumer = PushConsumer("C", namesrv=cluster.namesrv_addresses, start_point=FIRST)
        consumer.subscribe("T", "*", receiver)
        async with consumer:
            await receiver.wait(50)
            await send_numbers(cluster, range(50, 80))
            assert Counter(await receiver.wait(80)) == Counter(range(80))


async def test_closed_consumer_has_committed(tmp_path: Path):
    """After a close the group's offsets are those of what was consumed: the next gets the rest."""
    async with Cluster(tmp_path) as cluster:
        await send_numbers(cluster, range(20))
        received: list[int] = []
        for upper in (20, 30):
            receiver = Receiver()
            consumer = PushConsumer("C", namesrv=cluster.namesrv_addresses, start_point=FIRST)
            consumer.subscribe("T", "*", receiver)
            async with consumer:
                await receiver.wait(upper - len(received))
            received += numbers_of(receiver.messages)
            await send_numbers(cluster, range(20, 30))
        assert sorted(received) == list(range(30))


async def test_new_group_at_the_end_skips_old_messages(tmp_path: Path):
    """A group that begins at the end gets what is sent after it has its queues."""
    async with Cluster(tmp_path) as cluster:
        await send_numbers(cluster, range(20))
        receiver = Receiver()
        consumer = PushConsumer("C", namesrv=cluster.namesrv_addresses, start_point=LAST)
        consumer.subscribe("T", "*", receiver)
        async with consumer:
            # The first commit of a queue tells that its beginning is settled.
            async with PullConsumer("C", namesrv=cluster.namesrv_addresses) as other:
                for queue in await other.message_queues("T"):
                    async with asyncio.timeout(PATIENCE_S):
                        while await other.committed(queue) is None:
                            await consumer.save_offsets()
            await send_numbers(cluster, range(20, 28))
            assert sorted(await receiver.wait(8)) == list(range(20, 28))


async def test_queues_that_come_later_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A topic grows, another is made: what is sent before the group looks again is the group's."""
    monkeypatch.setattr(instance, "ROUTE_POLL_INTERVAL_S", 2.0)
    async with Cluster(tmp_path) as cluster:
        admin = Admin(namesrv=cluster.namesrv_addresses)
        receiver = Receiver()
        consumer = PushConsumer("C", namesrv=cluster.namesrv_addresses, start_point=LAST)
        consumer.subscribe("T", "*", receiver)
        consumer.subscribe("later", "*", receiver)
        producer = Producer("G", namesrv=cluster.namesrv_addresses)
        async with admin, producer:
            await admin.topics.create(TopicConfig("T", 1, 1))
            has_first = assigned(consumer, 1)
            async with consumer:
                await has_first
                await admin.topics.create(TopicConfig("T", 3, 3))
                queues = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(3)]
                for number, queue in enumerate(queues[1:]):
                    await producer.send(Message("T", b"%d" % number), queue=queue)
                for number in range(2, 6):
                    await producer.send(Message("later", b"%d" % number))
                assert sorted(await receiver.wait(6)) == list(range(6))


async def test_group_shares_messages_when_members_come_and_go(tmp_path: Path):
    """Every message comes to one member at least; after a member left, to the other one."""
    async with Cluster(tmp_path, brokers=2) as cluster:
        namesrv = cluster.namesrv_addresses
        async with Admin(namesrv=namesrv) as admin:
            await admin.topics.create(TopicConfig("T", 2, 2))
        await send_numbers(cluster, range(8))
        receivers = [Receiver(), Receiver()]
        first, second = (PushConsumer("C", namesrv=namesrv, start_point=FIRST) for _ in receivers)
        for consumer, receiver in zip((first, second), receivers, strict=True):
            consumer.subscribe("T", "*", receiver)
        queues = 4
        async with first:
            await receivers[0].wait(8)
            shared = [assigned(first, queues // 2), assigned(second, queues // 2)]
            async with second:
                await asyncio.wait_for(asyncio.gather(*shared), PATIENCE_S)
                await send_numbers(cluster, range(100, 140))
                # Two of the four queues are the second member's: half of the messages.
                await asyncio.gather(receivers[0].wait(8 + 20), receivers[1].wait(20))
                received = receivers[0].messages + receivers[1].messages
                assert set(numbers_of(received)) == {*range(8), *range(100, 140)}
                alone = assigned(first, queues)
            await asyncio.wait_for(alone, PATIENCE_S)
            seen = len(receivers[0].messages)
            await send_numbers(cluster, range(200, 220))
            await receivers[0].wait(seen + 20)


async def test_failed_message_comes_again(tmp_path: Path):
    """A message whose handler raised is consumed again; test_client_retry.py looks closer."""
    async with Cluster(tmp_path, options={"messageDelayLevel": "1s"}) as cluster:
        await send_numbers(cluster, range(1))
        receiver = Receiver()

        async def failing_once(messages: list[MessageExt]) -> None:
            await receiver(messages)
            if len(receiver.messages) == 1:
                raise ValueError("not now")

        consumer = PushConsumer("C", namesrv=cluster.namesrv_addresses, start_point=FIRST)
        consumer.subscribe("T", "*", failing_once)
        async with consumer:
            assert await receiver.wait(2) == [0, 0]
        assert receiver.messages[1].topic == "T"
        assert receiver.messages[1].reconsume_times == 1


async def test_broadcasting_members_each_get_everything(tmp_path: Path):
    """Both members read all queues; where each stopped is in its own file."""
    async with Cluster(tmp_path / "cluster") as cluster:
        await send_numbers(cluster, range(20))

        def member(receiver: Receiver, name: str) -> PushConsumer:
            consumer = PushConsumer(
                "C",
                namesrv=cluster.namesrv_addresses,
                model=MessageModel.BROADCASTING,
                start_point=FIRST,
                offsets_path=tmp_path / name / "offsets.json",
            )
            consumer.subscribe("T", "*", receiver)
            return consumer

        receivers = [Receiver(), Receiver()]
        async with member(receivers[0], "one"), member(receivers[1], "two"):
            for receiver in receivers:
                assert sorted(await receiver.wait(20)) == list(range(20))
        await send_numbers(cluster, range(20, 30))
        again = Receiver()
        async with member(again, "one"):
            assert sorted(await again.wait(10)) == list(range(20, 30))


async def test_broker_restart_is_survived(tmp_path: Path):
    """A consumer goes on by itself when its broker was away, and misses nothing."""
    async with Cluster(tmp_path) as cluster:
        await send_numbers(cluster, range(10))
        receiver = Receiver()
        consumer = PushConsumer("C", namesrv=cluster.namesrv_addresses, start_point=FIRST)
        consumer.subscribe("T", "*", receiver)
        async with consumer:
            await receiver.wait(10)
            await cluster.stop_broker(0)
            await cluster.start_broker(0)
            await send_numbers(cluster, range(10, 30))
            assert set(range(30)) <= set(await receiver.wait(30))


async def test_consumer_tells_administrators_about_itself(tmp_path: Path):
    """The group's members, what they hold and how far they are can be asked from outside."""
    async with Cluster(tmp_path) as cluster:
        await send_numbers(cluster, range(8))
        namesrv = cluster.namesrv_addresses
        receiver = Receiver()
        consumer = PushConsumer("C", namesrv=namesrv, start_point=FIRST, concurrency=3)
        consumer.subscribe("T", "*", receiver)
        async with consumer, Admin(namesrv=namesrv) as admin:
            await receiver.wait(8)
            connection = await admin.groups.connection("C")
            assert connection is not None
            (member,) = connection.connection_set
            assert set(connection.subscription_table) == {"T", "%RETRY%C"}
            info = await admin.groups.running_info("C", member.client_id)
            assert info.properties["PROP_THREADPOOL_CORE_SIZE"] == "3"
            finished = {
                queue.queue_id: held.commit_offset
                for queue, held in info.mq_table.items()
                if queue.topic == "T"
            }
            assert finished == {0: 2, 1: 2, 2: 2, 3: 2}
