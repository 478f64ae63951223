"""What clients see of a slave: refusals that send them elsewhere, reads, offsets."""

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from raw_client import RawClient
from replica_nodes import ReplicaNodes

from mailboat.client import (
    ConsumeFromWhere,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    StartPoint,
)
from mailboat.client.admin import Admin
from mailboat.errors import BrokerError
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue
from mailboat.testing.receiver import Receiver

FIRST = StartPoint(ConsumeFromWhere.FIRST_OFFSET)
READABLE = {"slaveReadEnable": "true"}


async def _prepare(nodes: ReplicaNodes, count: int = 10) -> None:
    """Have a topic T of one queue with messages, and a group G, that the slave shows too."""
    await nodes.in_sync()
    client = RawClient(nodes.broker(0).address)
    await client.make_topic("T", 1)
    await client.heartbeat("T", group="G")
    for number in range(count):
        await client.send("T", b"m-%d" % number)
    await client.close()
    slave = nodes.broker(1)
    await nodes.until(lambda: slave.store.max_offset("T", 0) == count)
    await nodes.until(lambda: "G" in slave.groups.table)


async def test_a_slave_refuses_what_is_its_masters(tmp_path: Path) -> None:
    """With the codes by which stock clients go elsewhere, and nothing is written or made."""
    async with ReplicaNodes(tmp_path, 2) as nodes, AsyncExitStack() as stack:
        await _prepare(nodes)
        slave = nodes.broker(1)
        client = RawClient(slave.address)
        stack.push_async_callback(client.close)
        end, version = slave.store.commit_log.end, replace(slave.topics.data_version)
        sends = [(RequestCode.SEND_MESSAGE_V2, topic) for topic in ("T", "new")]
        for code, topic in (*sends, (RequestCode.SEND_REPLY_MESSAGE_V2, "new")):
            fields: dict[str, ExtValue] = {
                "a": "PG", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1,
                "h": 0, "i": "", "j": 0, "k": False,
            }  # fmt: skip
            answer = await client.call(code, fields, b"x")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        back: dict[str, ExtValue] = {"offset": 0, "group": "G", "delayLevel": 0}
        ended: dict[str, ExtValue] = {
            "producerGroup": "PG", "tranStateTableOffset": 0, "commitLogOffset": 0,
            "commitOrRollback": 8, "fromTransactionCheck": False, "msgId": "", "transactionId": "",
        }  # fmt: skip
        made: dict[str, ExtValue] = {
            "topic": "new", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1,
            "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
        }  # fmt: skip
        reset: dict[str, ExtValue] = {
            "group": "G", "topic": "T", "timestamp": 0, "isForce": True
        }  # fmt: skip
        expected = [
            (RequestCode.CONSUMER_SEND_MSG_BACK, back, ResponseCode.SERVICE_NOT_AVAILABLE),
            (RequestCode.END_TRANSACTION, ended, ResponseCode.SLAVE_NOT_AVAILABLE),
            (RequestCode.UPDATE_AND_CREATE_TOPIC, made, ResponseCode.SYSTEM_ERROR),
            (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, ResponseCode.SYSTEM_ERROR),
            (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G"}, ResponseCode.SYSTEM_ERROR),
            (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset, ResponseCode.SYSTEM_ERROR),
            (RequestCode.CLEAN_UNUSED_TOPIC, {}, ResponseCode.SYSTEM_ERROR),
        ]
        for code, fields, refusal in expected:
            assert (await client.call(code, fields)).code == refusal, code
        body = client._lock_body("G", "T", [0])
        for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
            answer = await client.call(code, body=body)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (await client.pull("G", "T", 0)).code == ResponseCode.SYSTEM_BUSY
        # Who comes with a group that the master does not know makes none.
        await client.heartbeat("T", group="unknown")
        assert slave.store.commit_log.end == end
        assert slave.topics.data_version == version
        assert not {"new", "%RETRY%unknown"} & slave.topics.table.keys()
        assert "unknown" not in slave.groups.table
        assert "T" in slave.topics.table


async def test_too_few_replicas_is_rocketmqs_answer(tmp_path: Path) -> None:
    """SYSTEM_ERROR with RocketMQ 5's words, before anything is written or a topic is made."""
    async with ReplicaNodes(tmp_path, 2) as nodes, AsyncExitStack() as stack:
        await _prepare(nodes)
        await nodes.stop(1)
        await nodes.until(lambda: bool(nodes.group(0).refusal()))
        master = nodes.broker(0)
        end = master.store.commit_log.end
        producer = Producer("P", namesrv=nodes.namesrv, retries=0)
        await stack.enter_async_context(producer)
        for topic in ("T", "new"):
            with pytest.raises(BrokerError, match="in-sync replicas not enough") as error:
                await producer.send(Message(topic, b"x"))
            assert error.value.code == ResponseCode.SYSTEM_ERROR
        assert master.store.commit_log.end == end
        assert "new" not in master.topics.table


async def test_reads_at_a_slave(tmp_path: Path) -> None:
    """It serves what is confirmed, and sends who has everything back to a master that lives."""
    async with ReplicaNodes(tmp_path, 2, READABLE) as nodes, AsyncExitStack() as stack:
        await _prepare(nodes)
        client = RawClient(nodes.broker(1).address)
        stack.push_async_callback(client.close)
        answer = await client.pull("G", "T", 4, commit_offset=4)
        assert answer.code == ResponseCode.SUCCESS
        assert answer.ext_fields["nextBeginOffset"] == "10"
        assert answer.ext_fields["suggestWhichBrokerId"] == "0"
        # As RocketMQ's: commits come by themselves where a pull goes to a slave.
        assert nodes.broker(1).offsets.query("G", "T", 0) == -1
        # 12: the master may have it already.
        for queue_offset, suspend_ms in ((10, 0), (10, 15_000), (12, 15_000)):
            answer = await client.pull("G", "T", queue_offset, suspend_ms=suspend_ms)
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert answer.ext_fields["nextBeginOffset"] == str(queue_offset)
            assert answer.ext_fields["suggestWhichBrokerId"] == "0"
        await nodes.stop(0)
        await nodes.until(lambda: not nodes.group(1).is_following)
        answer = await client.pull("G", "T", 10, suspend_ms=1)
        assert answer.code == ResponseCode.PULL_NOT_FOUND


async def test_who_is_far_behind_is_sent_to_a_slave(tmp_path: Path) -> None:
    """To the one that its group names, if slaves may be read at all."""
    async with ReplicaNodes(tmp_path, 2) as nodes, AsyncExitStack() as stack:
        await _prepare(nodes)
        master = nodes.broker(0)
        client = RawClient(master.address)
        stack.push_async_callback(client.close)
        master.store.warming.hot_bytes = 0
        for allowed, suggested in (("false", "0"), ("true", "1")):
            master.change_config({"slaveReadEnable": allowed})
            answer = await client.pull("G", "T", 4)
            assert answer.code == ResponseCode.SUCCESS
            assert answer.ext_fields["suggestWhichBrokerId"] == suggested


async def test_a_consumer_goes_on_at_a_slave_and_comes_back(tmp_path: Path) -> None:
    """While the master is away a group reads on; nothing comes again when it is back."""
    async with ReplicaNodes(tmp_path, 2, READABLE) as nodes:
        await _prepare(nodes)
        await nodes.stop(0)
        receiver = Receiver()
        consumer = PushConsumer("G", namesrv=nodes.namesrv, start_point=FIRST)
        consumer.subscribe("T", "*", receiver)
        async with consumer:
            assert len(await receiver.wait(10)) == 10
        assert nodes.broker(1).offsets.query("G", "T", 0) == 10
        await nodes.start(0)
        await nodes.in_sync()
        master = nodes.broker(0)
        await nodes.until(lambda: master.offsets.query("G", "T", 0) == 10)
        async with Producer("P", namesrv=nodes.namesrv) as producer:
            await producer.send(Message("T", b"last"))
        again = Receiver()
        consumer = PushConsumer("G", namesrv=nodes.namesrv, start_point=FIRST)
        consumer.subscribe("T", "*", again)
        async with consumer:
            assert await again.wait(1) == [b"last"]


async def test_a_reset_is_noticed_once(tmp_path: Path) -> None:
    """At the master, or while that is away at a slave, which tells it."""
    async with ReplicaNodes(tmp_path, 2, READABLE) as nodes, AsyncExitStack() as stack:
        await _prepare(nodes)
        slave, client = nodes.broker(1), RawClient(nodes.broker(0).address)
        stack.push_async_callback(client.close)
        reset: dict[str, ExtValue] = {
            "group": "G", "topic": "T", "timestamp": 0, "isForce": True
        }  # fmt: skip
        await client.ok(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
        at_slave = RawClient(slave.address)
        stack.push_async_callback(at_slave.close)
        answer = await at_slave.pull("G", "T", 4)
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert answer.ext_fields["nextBeginOffset"] == "4"
        assert slave.offsets.is_reset("G", "T", 0)
        await nodes.stop(0)
        await nodes.until(lambda: not nodes.group(1).is_following)
        answer = await at_slave.pull("G", "T", 4)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert answer.ext_fields["nextBeginOffset"] == "0"
        assert (await at_slave.commit("G", "T", 10)).code == ResponseCode.SUCCESS
        await nodes.start(0)
        await nodes.in_sync()
        master = nodes.broker(0)
        await nodes.until(lambda: master.offsets.query("G", "T", 0) == 10)
        answer = await client.pull("G", "T", 10)
        assert answer.code == ResponseCode.PULL_NOT_FOUND


async def test_a_pull_consumer_reads_offsets_at_a_slave(tmp_path: Path) -> None:
    """Bounds and committed offsets come from a slave while there is no master."""
    async with ReplicaNodes(tmp_path, 2, READABLE) as nodes:
        await _prepare(nodes)
        nodes.broker(0).offsets.commit("G", "T", 0, 6)
        await nodes.until(lambda: nodes.broker(1).offsets.query("G", "T", 0) == 6)
        await nodes.stop(0)
        async with PullConsumer("G", namesrv=nodes.namesrv) as consumer:
            [queue] = await consumer.message_queues("T")
            assert await consumer.max_offset(queue) == 10
            assert await consumer.committed(queue) == 6
            result = await consumer.pull(queue, 6)
            assert [message.payload() for message in result.messages][:1] == [b"m-6"]


async def test_the_lag_of_a_group_is_asked_of_a_slave(tmp_path: Path) -> None:
    """It does not count as none while there is no master."""
    async with ReplicaNodes(tmp_path, 2) as nodes:
        await _prepare(nodes)
        nodes.broker(0).offsets.commit("G", "T", 0, 6)
        await nodes.until(lambda: nodes.broker(1).offsets.query("G", "T", 0) == 6)
        await nodes.stop(0)
        async with Admin(namesrv=nodes.namesrv) as admin:
            stats = await admin.groups.stats("G")
        assert [
            (queue.topic, entry.broker_offset - entry.consumer_offset)
            for queue, entry in stats.offset_table.items()
        ] == [("T", 4)]
