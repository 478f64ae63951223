"""The admin client against a real name server and real brokers."""

import time
from pathlib import Path

import pytest

from mailboat.client import (
    Admin,
    ConsumeFromWhere,
    Message,
    Producer,
    PullConsumer,
    StartPoint,
)
from mailboat.errors import BrokerError, MailboatError, RouteNotFoundError
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.model.topic import TopicConfig
from mailboat.testing.cluster import Cluster


async def test_topic_lives_from_create_to_delete(tmp_path: Path):
    """A topic is on every master with its queues, can be changed, and goes away."""
    async with Cluster(tmp_path, brokers=2) as cluster:
        async with Admin(namesrv=cluster.namesrv_addresses) as admin:
            assert await admin.topics.create(TopicConfig("T", 3, 2)) == ["broker-a", "broker-b"]
            assert "T" in await admin.topics.names()
            route = await admin.topics.route("T")
            assert [
                (queues.broker_name, queues.read_queue_nums, queues.write_queue_nums)
                for queues in sorted(route.queue_datas, key=lambda each: each.broker_name)
            ] == [("broker-a", 3, 2), ("broker-b", 3, 2)]
            await admin.topics.create(TopicConfig("T", 4, 4), broker_name="broker-b")
            configs = [
                (await admin.topics.configs(master.address))["T"]
                for master in await admin.cluster.masters()
            ]
            assert [config.read_queue_nums for config in configs] == [3, 4]
            await admin.topics.delete("T")
            assert "T" not in await admin.topics.names()
            with pytest.raises(RouteNotFoundError):
                await admin.topics.route("T")


async def test_brokers_describe_themselves(tmp_path: Path):
    """Clusters, masters, numbers and settings of each broker can be asked for."""
    async with Cluster(tmp_path, brokers=2) as cluster:
        async with Admin(namesrv=cluster.namesrv_addresses) as admin:
            names = [broker.broker_name for broker in await admin.cluster.brokers()]
            assert names == ["broker-a", "broker-b"]
            (master,) = await admin.cluster.masters(broker_name="broker-b")
            table = await admin.cluster.runtime_info(master.address)
            assert table["brokerVersionDesc"] == "V5_3_3"
            config = await admin.cluster.broker_config(master.address)
            assert config["brokerName"] == "broker-b"
            with pytest.raises(RouteNotFoundError, match="broker-a, broker-b"):
                await admin.cluster.masters(broker_name="broker-z")


async def test_messages_are_found_by_id_key_and_place(tmp_path: Path):
    """Each way of asking leads to the message."""
    async with Cluster(tmp_path) as cluster:
        namesrv = cluster.namesrv_addresses
        async with Producer("G", namesrv=namesrv) as producer:
            results = [
                await producer.send(Message("T", b"%d" % number, keys=["all", f"k{number}"]))
                for number in range(20)
            ]
        async with Admin(namesrv=namesrv) as admin:
            wanted = results[7]
            by_id = await admin.messages.by_offset_id(wanted.offset_message_id)
            (by_unique,) = await admin.messages.by_unique_key("T", wanted.message_id)
            (by_key,) = await admin.messages.by_key("T", "k7")
            by_place = await admin.messages.at(wanted.message_queue, wanted.queue_offset)
            assert by_id == by_unique == by_key == by_place
            assert by_id.body == b"7"
            found = await admin.messages.by_key("T", "all")
            assert [message.body for message in found] == [b"%d" % i for i in range(20)]
            later_ms = found[-1].store_timestamp_ms + 1
            assert await admin.messages.by_key("T", "all", begin_ms=later_ms) == []
            assert await admin.messages.by_key("T", "nothing") == []
            assert await admin.messages.at(wanted.message_queue, 1000) is None


async def test_missing_message_is_an_error(tmp_path: Path):
    """An id that names a place without a message is refused by the broker it names."""
    async with Cluster(tmp_path) as cluster:
        async with Producer("G", namesrv=cluster.namesrv_addresses) as producer:
            result = await producer.send(Message("T", b"x"))
        wrong = result.offset_message_id[:-8] + "00FFFFFF"
        async with Admin(namesrv=cluster.namesrv_addresses) as admin:
            with pytest.raises(BrokerError):
                await admin.messages.by_offset_id(wrong)


async def test_group_is_made_and_its_lag_seen(tmp_path: Path):
    """A group's settings are stored, and its lag is what it has still to consume."""
    async with Cluster(tmp_path) as cluster:
        namesrv = cluster.namesrv_addresses
        async with Admin(namesrv=namesrv) as admin:
            await admin.groups.create(SubscriptionGroupConfig("C", retry_max_times=3))
            assert (await admin.groups.configs())["C"].retry_max_times == 3
            async with Producer("G", namesrv=namesrv) as producer:
                for number in range(40):
                    await producer.send(Message("T", b"%d" % number))
            async with PullConsumer("C", namesrv=namesrv) as consumer:
                queues = await consumer.message_queues("T")
                consumer.assign(queues)
                for queue in queues:
                    consumer.seek(queue, 4)
                await consumer.commit()
            stats = await admin.groups.stats("C", "T")
            assert {
                (each.broker_offset, each.consumer_offset) for each in stats.offset_table.values()
            } == {(10, 4)}
            assert await admin.topics.consumer_groups("T") == {"C"}
            assert await admin.groups.connection("C") is None


async def test_offline_group_is_moved(tmp_path: Path):
    """A group that is not online goes on at the beginning, the end, or a time."""
    async with Cluster(tmp_path) as cluster:
        namesrv = cluster.namesrv_addresses
        async with Producer("G", namesrv=namesrv) as producer:
            for number in range(20):
                await producer.send(Message("T", b"%d" % number))
            between_ms = time.time_ns() // 1_000_000 + 1
            while time.time_ns() // 1_000_000 <= between_ms:
                pass
            for number in range(20):
                await producer.send(Message("T", b"%d" % number))
        async with Admin(namesrv=namesrv) as admin:
            with pytest.raises(BrokerError, match="C"):
                await admin.offsets.reset("C", "T", StartPoint(ConsumeFromWhere.LAST_OFFSET))
            await admin.groups.create(SubscriptionGroupConfig("C"))
            for target, expected in (
                (StartPoint(ConsumeFromWhere.LAST_OFFSET), 10),
                (StartPoint(ConsumeFromWhere.FIRST_OFFSET), 0),
                (StartPoint(ConsumeFromWhere.TIMESTAMP, between_ms), 5),
            ):
                moved = await admin.offsets.reset("C", "T", target)
                assert set(moved.values()) == {expected}
                for queue in moved:
                    assert await admin.offsets.committed("C", queue) == expected


async def test_online_group_is_moved_by_its_broker(tmp_path: Path):
    """A member goes on where the group was reset to, without being started anew."""
    async with Cluster(tmp_path) as cluster:
        namesrv = cluster.namesrv_addresses
        async with Producer("G", namesrv=namesrv) as producer:
            await producer.send(Message("T", b"x"))
        first = StartPoint(ConsumeFromWhere.FIRST_OFFSET)
        async with (
            PullConsumer("C", namesrv=namesrv, start_point=first) as consumer,
            Admin(namesrv=namesrv) as admin,
        ):
            await consumer.subscribe("T")
            assert [each.body for each in await consumer.poll(10, 10.0)] == [b"x"]
            await consumer.commit()
            assert set((await admin.offsets.reset("C", "T", first)).values()) == {0}
            assert [each.body for each in await consumer.poll(10, 30.0)] == [b"x"]


async def test_online_group_is_not_moved_behind_its_back(tmp_path: Path):
    """Offsets that a member would store again at once are not changed; the error says why."""
    async with Cluster(tmp_path) as cluster:
        namesrv = cluster.namesrv_addresses
        async with Producer("G", namesrv=namesrv) as producer:
            await producer.send(Message("T", b"x"))
        async with PullConsumer("C", namesrv=namesrv) as consumer, Admin(namesrv=namesrv) as admin:
            await admin.groups.create(SubscriptionGroupConfig("D"))
            await admin.offsets.reset("D", "T", StartPoint(ConsumeFromWhere.FIRST_OFFSET))
            await consumer.subscribe("T")
            with pytest.raises(MailboatError, match="1 members online"):
                await admin.offsets.clone("D", "C")
