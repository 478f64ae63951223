"""What a promoted replica knows beside the log: nothing that was answered is forgotten."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from raw_client import RawClient
from real_time import at_most_s
from replica_nodes import ReplicaNodes, same_log

from mailboat.broker import administration
from mailboat.broker.replicas.log_stream import LogStream
from mailboat.broker.replicas.shared_tables import SharedTables
from mailboat.broker.replicas.tables import Kind
from mailboat.client import (
    ConsumeFromWhere,
    Message,
    Producer,
    PushConsumer,
    StartPoint,
    TransactionProducer,
    TransactionState,
)
from mailboat.errors import BrokerError
from mailboat.model.message_queue import MessageQueue
from mailboat.model.names import SCHEDULE_TOPIC
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import RequestCode
from mailboat.replication.frames import TablesKept
from mailboat.replication.lease import Member
from mailboat.testing.receiver import Receiver

FIRST = StartPoint(ConsumeFromWhere.FIRST_OFFSET)


async def _send(nodes: ReplicaNodes, bodies: list[bytes], topic: str = "T", level: int = 0) -> None:
    async with Producer("P", namesrv=nodes.namesrv) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, delay_level=level))


def _queue_ends(nodes: ReplicaNodes, ordinal: int, topic: str) -> dict[int, int]:
    store = nodes.broker(ordinal).store
    keys = [key for key in store.queue_keys() if key[0] == topic]
    return {queue_id: store.max_offset(topic, queue_id) for _, queue_id in keys}


async def test_a_slave_knows_what_an_administrator_was_answered(tmp_path: Path) -> None:
    """Topics and groups are on the slave's disk when the answer comes, and those deleted not."""
    async with ReplicaNodes(tmp_path, 2) as nodes:
        await nodes.in_sync()
        master = nodes.broker(0)
        made = TopicConfig("made", read_queue_nums=3, write_queue_nums=3, perm=6)
        await administration.update_topic(master, made)
        await administration.update_topic(master, TopicConfig("gone", perm=6))
        await administration.update_group(master, SubscriptionGroupConfig("g", retry_max_times=5))
        await administration.update_group(master, SubscriptionGroupConfig("h"))
        await administration.delete_topic(master, "gone")
        await administration.delete_group(master, "h", clean_offset=True)
        master.offsets.commit("g", "made", 0, 0)
        await nodes.until(lambda: bool(nodes.broker(1).offsets.queues("g", "made")))
        await administration.delete_offsets(master, "g", "made")
        assert not nodes.broker(1).offsets.queues("g", "made")
        config = tmp_path / "replica-1/config"
        assert b'"made"' in (config / "topics.json").read_bytes()
        assert b'"g"' in (config / "subscriptionGroup.json").read_bytes()
        slave = nodes.broker(1)
        assert slave.topics.table["made"] == made
        assert "gone" not in slave.topics.table
        assert slave.groups.table["g"].retry_max_times == 5
        assert "h" not in slave.groups.table
        assert slave.topics.data_version == master.topics.data_version
        await nodes.switch(1)
        assert slave.topics.table["made"] == made
        assert slave.topics.data_version.state_version == nodes.group(1).view()[1]


async def test_a_new_slave_has_the_tables_before_it_counts(tmp_path: Path) -> None:
    """What was there before it came, and what it had and the master has not."""
    async with ReplicaNodes(tmp_path, 3) as nodes:
        await nodes.in_sync()
        await nodes.stop(2)
        await nodes.in_sync()
        master = nodes.broker(0)
        for number in range(450):
            master.groups.update(SubscriptionGroupConfig(f"g-{number}"))
        await administration.update_topic(master, TopicConfig("made", perm=6))
        await administration.delete_group(master, "g-7", clean_offset=True)
        await nodes.start(2)
        slave = nodes.broker(2)
        slave.groups.table["left"] = SubscriptionGroupConfig("left")
        await nodes.in_sync()
        assert slave.groups.table == master.groups.table
        assert slave.topics.table["made"] == master.topics.table["made"]


async def test_entries_of_any_size_reach_a_new_slave(tmp_path: Path) -> None:
    """Groups whose members hold very many queues, by long names."""
    topic, holder = "T" * 127, "c" * 255
    queues = [MessageQueue(topic, "broker-a", queue_id) for queue_id in range(10_000)]
    async with ReplicaNodes(tmp_path, 2) as nodes:
        await nodes.in_sync()
        await nodes.stop(1)
        locks = nodes.broker(0).queue_locks
        for number in range(5):
            locks.lock(f"g-{number}", holder, queues)
        await nodes.start(1)
        slave = nodes.broker(1).queue_locks
        await nodes.until(lambda: len(slave.groups()) == 5)
        assert slave.holder("g-4", topic, 9_999) == holder


async def test_who_lacks_the_tables_does_not_count(tmp_path: Path) -> None:
    """A slave that has all of the log, and has not said that it has the tables too."""
    async with ReplicaNodes(tmp_path, 3) as nodes:
        await nodes.in_sync()
        await nodes.stop(2)
        await nodes.in_sync()
        tables, take = nodes.group(0)._tables, nodes.group(0)._tables.kept

        def kept(member: Member, frame: TablesKept) -> None:
            """Lose what the new slave says."""
            if member.ordinal != 2:
                take(member, frame)

        tables.kept = kept  # type: ignore[method-assign]
        await nodes.start(2)
        replica = nodes.group(0).replica
        leading = replica.leading
        assert leading is not None
        await nodes.until(lambda: nodes.group(2).is_following)
        await nodes.until(
            lambda: any(
                member.ordinal == 2 and end == replica.end for member, end in leading.acked.items()
            )
        )
        assert {member.ordinal for member in leading._wanted_set()} == {0, 1}
        del tables.kept
        await nodes.stop(2)
        await nodes.start(2)
        await nodes.in_sync()
        assert {member.ordinal for member in leading.recorded} == {0, 1, 2}


async def test_an_answer_waits_for_the_slave(tmp_path: Path) -> None:
    """Without a slave that says that it has it a topic is not made, and the sender is told so."""
    async with ReplicaNodes(tmp_path, 2, {"slaveTimeout": "300"}) as nodes:
        await nodes.in_sync()
        await _send(nodes, [b"first"])
        tables = nodes.group(0)._tables

        def kept(_member: Member, _frame: TablesKept) -> None:
            """Lose what the slave says."""

        tables.kept = kept  # type: ignore[method-assign]
        master = nodes.broker(0)
        with pytest.raises(BrokerError, match="in-sync"):
            await administration.update_topic(master, TopicConfig("made", perm=6))
        assert "made" not in master.topics.table
        await nodes.until(lambda: "made" not in nodes.broker(1).topics.table)
        del tables.kept
        await administration.update_topic(master, TopicConfig("made", perm=6))
        assert "made" in nodes.broker(1).topics.table


async def test_an_answer_does_not_wait_for_later_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes that never cease are each answered in time, also where the disk is slow."""
    async with ReplicaNodes(tmp_path, 2, {"slaveTimeout": "1000"}) as nodes:
        await nodes.in_sync()
        table = nodes.group(0)._tables._by_kind[Kind.LOCKS]
        persist = table.persist

        async def persist_slowly() -> None:
            await persist()
            await asyncio.sleep(0.2)

        monkeypatch.setattr(table, "persist", persist_slowly)
        changes = []
        for number in range(20):
            config = SubscriptionGroupConfig(f"g-{number}")
            change = administration.update_group(nodes.broker(0), config)
            changes.append(asyncio.create_task(change))
            await asyncio.sleep(0.1)
        await asyncio.gather(*changes)
        assert "g-19" in nodes.broker(1).groups.table


async def test_offsets_and_resets_outlive_a_switch(tmp_path: Path) -> None:
    """A group goes on where it was; who was set back stays there although it was further."""
    async with ReplicaNodes(tmp_path, 2) as nodes, AsyncExitStack() as stack:
        await nodes.in_sync()
        client = RawClient(nodes.broker(0).address)
        stack.push_async_callback(client.close)
        await client.make_topic("T", 1)
        await client.heartbeat("T", group="G")
        await client.heartbeat("T", group="H")
        await _send(nodes, [b"%d" % number for number in range(10)])
        for group in ("G", "H"):
            fields = {"consumerGroup": group, "topic": "T", "queueId": 0, "commitOffset": 8}
            await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        slave = nodes.broker(1).offsets
        await nodes.until(lambda: slave.query("H", "T", 0) == slave.query("G", "T", 0) == 8)
        fields = {"group": "H", "topic": "T", "timestamp": 0, "isForce": True}
        await client.ok(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        # Known when it is answered, and on the disk.
        assert slave.query("H", "T", 0) == 0
        assert slave.is_reset("H", "T", 0)
        assert b"resetOffset" in (tmp_path / "replica-1/config/consumerOffset.json").read_bytes()
        await nodes.switch(1)
        assert (slave.query("G", "T", 0), slave.query("H", "T", 0)) == (8, 0)


async def test_offsets_of_very_many_groups_are_told_soon(tmp_path: Path) -> None:
    """However many have moved, and they keep nothing else waiting."""
    async with ReplicaNodes(tmp_path, 2) as nodes:
        await nodes.in_sync()
        for number in range(60_000):
            nodes.broker(0).offsets.commit(f"g-{number}", "T", 0, 1)
            if number % 1_000 == 0:
                await asyncio.sleep(0)
        # One frame each half second would take 30 s.
        await nodes.until(
            lambda: len(nodes.broker(1).offsets.groups()) == 60_000, timeout_s=at_most_s(4, 25)
        )


async def test_a_reset_is_on_the_disk_while_another_one_is_written(tmp_path: Path) -> None:
    """One that comes while the slave writes its offsets is answered by the next write."""
    async with ReplicaNodes(tmp_path, 2) as nodes, AsyncExitStack() as stack:
        await nodes.in_sync()
        client = RawClient(nodes.broker(0).address)
        stack.push_async_callback(client.close)
        await client.make_topic("T", 1)
        for group in ("G", "H"):
            await client.heartbeat("T", group=group)
        slave = nodes.broker(1).offsets
        await slave.persist()
        begun, may_go_on = asyncio.Event(), asyncio.Event()
        flushed = slave._saver.before_write
        assert flushed is not None

        async def wait() -> None:
            begun.set()
            await may_go_on.wait()
            await flushed()

        slave.save_behind(wait)

        async def reset(group: str) -> None:
            fields = {"group": group, "topic": "T", "timestamp": 0, "isForce": True}
            await client.ok(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
            path = tmp_path / "replica-1/config/consumerOffset.json"
            assert f"T@{group}".encode() in path.read_bytes()

        first = asyncio.create_task(reset("G"))
        await begun.wait()
        second = asyncio.create_task(reset("H"))
        await nodes.until(lambda: slave.is_reset("H", "T", 0))
        may_go_on.set()
        await asyncio.gather(first, second)


async def test_a_handover_takes_the_last_offsets_along(tmp_path: Path) -> None:
    """What was committed a moment before is known to the next master."""
    async with ReplicaNodes(tmp_path, 2) as nodes:
        await nodes.in_sync()
        await _send(nodes, [b"%d" % number for number in range(64)])
        ends = _queue_ends(nodes, 0, "T")
        nodes.group(0).hand_over(1)
        for queue_id, end in ends.items():
            nodes.broker(0).offsets.commit("G", "T", queue_id, end)
        await nodes.until(lambda: nodes.group(1).is_leading)
        assert nodes.broker(1).offsets.queues("G", "T") == ends


async def test_a_master_that_ends_tells_its_last_offsets(tmp_path: Path) -> None:
    """What consumers committed until it closed is known to whoever is promoted then."""
    async with ReplicaNodes(tmp_path, 2) as nodes:
        await nodes.in_sync()
        await _send(nodes, [b"%d" % number for number in range(64)])
        ends = _queue_ends(nodes, 0, "T")
        for queue_id, end in ends.items():
            nodes.broker(0).offsets.commit("G", "T", queue_id, end)
        await nodes.switch(1)
        assert nodes.broker(1).offsets.queues("G", "T") == ends


async def test_what_is_committed_at_a_slave_comes_to_the_master(tmp_path: Path) -> None:
    """While there is no master slaves take offsets; the master has them when it is back."""
    async with ReplicaNodes(tmp_path, 2) as nodes, AsyncExitStack() as stack:
        await nodes.in_sync()
        client = RawClient(nodes.broker(0).address)
        stack.push_async_callback(client.close)
        await client.make_topic("T", 1)
        for group in ("G", "H"):
            await client.heartbeat("T", group=group)
        await _send(nodes, [b"%d" % number for number in range(10)])
        for group in ("G", "H"):
            nodes.broker(0).offsets.commit(group, "T", 0, 3)
        slave = nodes.broker(1).offsets
        await nodes.until(lambda: slave.query("H", "T", 0) == slave.query("G", "T", 0) == 3)
        await nodes.stop(0)
        at_slave = RawClient(nodes.broker(1).address)
        stack.push_async_callback(at_slave.close)
        for group, queue_offset in (("G", 9), ("H", 2)):
            fields = {
                "consumerGroup": group,
                "topic": "T",
                "queueId": 0,
                "commitOffset": queue_offset,
            }
            await at_slave.ok(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        assert slave.query("G", "T", 0) == 9
        await nodes.stop(1)
        await nodes.start(1)
        slave = nodes.broker(1).offsets
        await nodes.start(0)
        await nodes.in_sync()
        assert nodes.leader() == 0
        master = nodes.broker(0).offsets
        await nodes.until(lambda: master.query("G", "T", 0) == 9 and not slave.taken())
        # Back is for those who say so at the master.
        assert master.query("H", "T", 0) == 3


async def test_a_master_that_is_killed_knows_of_whom_its_slave_has_commits(
    tmp_path: Path,
) -> None:
    """What no file had when it died is as if it had never been: no slave may have heard of it."""
    options = {"flushConsumerOffsetInterval": "600000"}
    async with ReplicaNodes(tmp_path, 2, options) as nodes, AsyncExitStack() as stack:
        await nodes.in_sync()
        client = RawClient(nodes.broker(0).address)
        stack.push_async_callback(client.close)
        await client.make_topic("T", 1)
        await client.heartbeat("T", group="G")
        await _send(nodes, [b"%d" % number for number in range(10)])
        assert (await client.commit("G", "T", 5)).code == 0
        slave = nodes.broker(1).offsets
        await nodes.until(lambda: slave.query("G", "T", 0) == 5)
        # Going back makes no file either.
        assert (await client.commit("G", "T", 4)).code == 0
        await nodes.until(lambda: slave.query("G", "T", 0) == 4)
        path = tmp_path / "replica-0/config/consumerOffset.json"
        killed_with = path.read_bytes() if path.exists() else b'{"offsetTable":{}}'
        await nodes.stop(0)
        path.write_bytes(killed_with)
        at_slave = RawClient(nodes.broker(1).address)
        stack.push_async_callback(at_slave.close)
        assert (await at_slave.commit("G", "T", 9)).code == 0
        await nodes.start(0)
        await nodes.in_sync()
        await nodes.until(lambda: nodes.broker(0).offsets.query("G", "T", 0) == 9)
        await nodes.until(lambda: not slave.taken() and slave.query("G", "T", 0) == 9)


async def test_a_slave_brings_no_offsets_of_another_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a topic that was made anew, or a group that a clone has set back, at the master."""
    async with ReplicaNodes(tmp_path, 3) as nodes, AsyncExitStack() as stack:
        await nodes.in_sync()
        client = RawClient(nodes.broker(0).address)
        stack.push_async_callback(client.close)
        places = [("G", "T"), ("G", "U"), ("H", "U")]
        for topic in ("T", "U"):
            await client.make_topic(topic, 1)
            for group in ("G", "H"):
                await client.heartbeat(topic, group=group)
            await _send(nodes, [b"%d" % number for number in range(10)], topic)
        for group, topic in places:
            nodes.broker(0).offsets.commit(group, topic, 0, 1)
        slave = nodes.broker(2).offsets
        await nodes.until(lambda: all(slave.query(*place, 0) == 1 for place in places))
        await nodes.until(lambda: nodes.broker(2).store.max_offset("U", 0) == 10)
        await nodes.stop(0)
        at_slave = RawClient(nodes.broker(2).address)
        stack.push_async_callback(at_slave.close)
        for group, topic in places[:2]:
            assert (await at_slave.commit(group, topic, 8)).code == 0
        with monkeypatch.context() as patch:
            # What the slave has to say is late.
            patch.setattr(SharedTables, "_tell_commits", lambda _: None)
            await nodes.start(0)
            await nodes.in_sync()
            master = nodes.broker(0)
            await administration.delete_topic(master, "T")
            await administration.update_topic(master, TopicConfig("T", 1, 1, perm=6))
            await _send(nodes, [b"new-%d" % number for number in range(10)])
            back = RawClient(master.address)
            stack.push_async_callback(back.close)
            await back.ok(
                RequestCode.CLONE_GROUP_OFFSET,
                {"srcGroup": "H", "destGroup": "G", "topic": "U"},
            )
        await nodes.until(lambda: not slave.taken())
        await asyncio.sleep(1)
        for offsets in (master.offsets, slave):
            assert (offsets.query("G", "T", 0), offsets.query("G", "U", 0)) == (-1, 1)


async def test_locks_outlive_a_switch(tmp_path: Path) -> None:
    """The new master gives no queue to anybody but the member that may still believe in it."""
    async with ReplicaNodes(tmp_path, 2) as nodes, AsyncExitStack() as stack:
        await nodes.in_sync()
        clients = [RawClient(nodes.broker(ordinal).address, "a") for ordinal in range(2)]
        other = RawClient(nodes.broker(1).address, "b")
        for client in (*clients, other):
            stack.push_async_callback(client.close)
        await clients[0].make_topic("T", 2)
        await clients[0].heartbeat("T", group="G")
        assert await clients[0].lock("G", "T", 0) == {0}
        assert nodes.broker(1).queue_locks.holder("G", "T", 0) == "a"
        assert b'"a"' in (tmp_path / "replica-1/mailboat/queueLocks.json").read_bytes()
        await nodes.switch(1)
        # Alone, nobody else would know of it.
        batch = other._lock_body("G", "T", [1])
        assert (await other.call(RequestCode.LOCK_BATCH_MQ, body=batch)).code != 0
        assert await clients[1].lock("G", "T", 0) == {0}
        await nodes.start(0)
        await nodes.in_sync()
        assert await other.lock("G", "T", 0, 1) == {1}
        assert await clients[1].lock("G", "T", 0, 1) == {0}


async def test_delayed_messages_outlive_a_switch(tmp_path: Path) -> None:
    """Each is delivered after its time, what the old master has delivered not once more."""
    options = {"messageDelayLevel": "1s 5s"}
    async with ReplicaNodes(tmp_path, 2, options) as nodes:
        await nodes.in_sync()
        bodies = [b"soon-%d" % number for number in range(5)]
        late = [b"late-%d" % number for number in range(5)]
        await _send(nodes, bodies, level=1)
        await _send(nodes, late, level=2)
        slave = nodes.broker(1).schedule.progress
        # Told once the slave has the copies.
        await nodes.until(lambda: slave._durable.offset_table.get(1) == 5)
        await nodes.switch(1)
        receiver = Receiver()
        await nodes.start(0)
        await nodes.in_sync()
        consumer = PushConsumer("C", namesrv=nodes.namesrv, start_point=FIRST)
        consumer.subscribe("T", "*", receiver)
        async with consumer:
            received = await receiver.wait(10, timeout_s=60)
        assert sorted(received) == sorted([*bodies, *late])
        for message in receiver.messages:
            # From before the send to the record that consumers read.
            waited_ms = message.store_timestamp_ms - message.born_timestamp_ms
            assert waited_ms >= (5_000 if message.body.startswith(b"late") else 1_000)


async def test_delayed_messages_count_as_delivered_where_the_copy_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that ends before its slaves have what it delivered takes no message along."""
    async with ReplicaNodes(tmp_path, 3, {"messageDelayLevel": "2s"}) as nodes:
        await nodes.in_sync()
        await _send(nodes, [b"first"])
        await _send(nodes, [b"late-%d" % number for number in range(5)], level=1)
        for ordinal in (1, 2):
            await nodes.until(
                lambda ordinal=ordinal: _queue_ends(nodes, ordinal, SCHEDULE_TOPIC) == {0: 5}
            )
        with monkeypatch.context() as patch:
            # As where the log is read slowly.
            patch.setattr(LogStream, "pump", lambda _: None)
            await nodes.until(lambda: nodes.broker(0).schedule.delivered == 5)
            await nodes.stop(0)
        await nodes.promote(1)
        await nodes.in_sync()
        await nodes.until(lambda: sum(_queue_ends(nodes, 1, "T").values()) == 6)


async def test_a_slave_keeps_what_is_parked(tmp_path: Path) -> None:
    """Its retention does not take for read what it may have to deliver one day."""
    async with ReplicaNodes(tmp_path, 2, {"messageDelayLevel": "1h"}) as nodes:
        await nodes.in_sync()
        await _send(nodes, [b"first"])
        await _send(nodes, [b"late-%d" % number for number in range(5)], level=1)
        await nodes.until(lambda: _queue_ends(nodes, 1, SCHEDULE_TOPIC) == {0: 5})
        parked = nodes.broker(0).schedule.unread_position()
        assert parked is not None
        assert nodes.broker(1).schedule.unread_position() == parked


async def test_transactions_outlive_a_switch(tmp_path: Path) -> None:
    """A half message of the old master is asked about by the new one, and committed there."""
    options = {"transactionTimeOut": "500", "transactionCheckInterval": "200"}
    asked = asyncio.Event()

    async def execute(_message: Message, _transaction_id: str) -> TransactionState:
        return TransactionState.UNKNOWN

    async def check(_message: Message) -> TransactionState:
        if nodes.leader() != 1:
            return TransactionState.UNKNOWN
        asked.set()
        return TransactionState.COMMIT

    async with ReplicaNodes(tmp_path, 2, options) as nodes:
        await nodes.in_sync()
        await _send(nodes, [b"first"])
        async with TransactionProducer("PT", check, namesrv=nodes.namesrv) as producer:
            await producer.send_in_transaction(Message("T", b"half"), execute)
        await nodes.switch(1)
        await nodes.start(0)
        await nodes.in_sync()
        receiver = Receiver()
        consumer = PushConsumer("C", namesrv=nodes.namesrv, start_point=FIRST)
        consumer.subscribe("T", "*", receiver)
        # Any producer of the group may be asked.
        other = TransactionProducer("PT", check, namesrv=nodes.namesrv, topics=["T"])
        async with consumer, other:
            assert set(await receiver.wait(2)) == {b"first", b"half"}
        assert asked.is_set()


async def test_a_topic_that_is_made_again_begins_anew_everywhere(tmp_path: Path) -> None:
    """The slave's queues have nothing of its former life, also on one that was away meanwhile."""
    async with ReplicaNodes(tmp_path, 3) as nodes:
        await nodes.in_sync()
        master = nodes.broker(0)
        await administration.update_topic(master, TopicConfig("T", 1, 1, perm=6))
        await _send(nodes, [b"old-%d" % number for number in range(10)])
        await nodes.until(lambda: _queue_ends(nodes, 2, "T") == {0: 10})
        await nodes.stop(2)
        await nodes.in_sync()
        await administration.delete_topic(master, "T")
        assert _queue_ends(nodes, 1, "T") == {}
        await administration.update_topic(master, TopicConfig("T", 1, 1, perm=6))
        await _send(nodes, [b"new-%d" % number for number in range(3)])
        await nodes.start(2)
        await nodes.in_sync()
        for ordinal in (1, 2):
            await nodes.until(lambda ordinal=ordinal: _queue_ends(nodes, ordinal, "T") == {0: 3})


async def test_who_has_older_tables_is_not_promoted(tmp_path: Path) -> None:
    """Of two replicas with the same log the one leads that knows what was answered last."""
    async with ReplicaNodes(tmp_path, 3) as nodes:
        await nodes.in_sync()
        await _send(nodes, [b"first"])
        await nodes.until(lambda: nodes.group(2).replica.durable.is_whole)
        await nodes.stop(2)
        await nodes.in_sync()
        await administration.update_topic(nodes.broker(0), TopicConfig("made", perm=6))
        await nodes.stop(0)
        await nodes.start(2)
        await nodes.until(lambda: 1 in nodes.broker(2).replicas.peers.links())
        assert same_log(nodes.log_bytes(2), nodes.log_bytes(1))
        assert "newer topics" in await nodes.try_to_promote(2)
        await nodes.promote(1)
        await nodes.in_sync()
        assert "made" in nodes.broker(2).topics.table


async def test_who_joined_last_has_no_newer_tables(tmp_path: Path) -> None:
    """Of two replicas with the same tables the one with more of the log is to lead."""
    async with ReplicaNodes(tmp_path, 3) as nodes:
        await nodes.in_sync()
        await _send(nodes, [b"first"])
        await nodes.stop(2)
        await nodes.in_sync()
        await nodes.start(2)
        await nodes.in_sync()
        await nodes.stop(2)
        await nodes.in_sync()
        await _send(nodes, [b"second"])
        await nodes.stop(0)
        await nodes.start(2)
        await nodes.until(lambda: 1 in nodes.broker(2).replicas.peers.links())
        # Replica 1 may not have heard that the second message is confirmed before the master went.
        answer = await nodes.try_to_promote(2)
        assert "more of the log" in answer or "more that was confirmed" in answer
        await nodes.promote(1)
