"""The broker's answers about topics, messages and itself over real sockets; what they should be is
what a Java 5.3 broker answers, or the reason why mailboat answers something better."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from request_client import Client, client_of, make_topic, topic_fields
from small_store import small_store

from mailboat.broker.controller import BrokerController
from mailboat.config import BrokerConfig, Settings
from mailboat.model.message_id import decode_offset_message_id
from mailboat.model.message_queue import MessageQueue
from mailboat.model.record import decode_records
from mailboat.model.topic import TopicConfig
from mailboat.protocol.bodies import decode_kv_table, decode_topic_list
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue
from mailboat.protocol.stats_bodies import decode_topic_stats
from mailboat.protocol.topic_table import decode_topic_config, decode_topic_table


def settings(root: Path, **broker: Any) -> Settings:
    """Return the settings of a small broker on a free port."""
    return Settings(
        role="broker",
        broker=BrokerConfig(listen_port=0, bind_address="127.0.0.1", **broker),
        store=small_store(root),
    )


@pytest.fixture
async def client(broker: BrokerController) -> AsyncIterator[Client]:
    """Connect a client to the broker."""
    async with client_of(broker) as client:
        yield client


# -- topics ---------------------------------------------------------------------------------------


async def test_a_topic_is_made_shown_changed_and_deleted(
    broker: BrokerController, client: Client, tmp_path: Path
) -> None:
    """The life of a topic by administration; each step is in the file when it is answered."""
    file = tmp_path / "config" / "topics.json"
    assert (await make_topic(client, "T")).code == ResponseCode.SUCCESS
    assert json.loads(file.read_bytes())["topicConfigTable"]["T"]["readQueueNums"] == 4
    answer = await client.call(RequestCode.GET_TOPIC_CONFIG, {"topic": "T", "lo": True})
    assert decode_topic_config(answer.body) == TopicConfig("T", 4, 4)
    await make_topic(client, "T", readQueueNums=8, perm=4, attributes="+message.type=NORMAL")
    table = decode_topic_table((await client.call(RequestCode.GET_ALL_TOPIC_CONFIG)).body)
    assert table.topic_config_table["T"] == TopicConfig(
        "T", 8, 4, 4, attributes={"message.type": "NORMAL"}
    )
    # A topic that is made counts twice: when it is written, and when it is there.
    assert table.data_version.counter == 3
    answer = await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert answer.code == ResponseCode.SUCCESS
    assert "T" not in json.loads(file.read_bytes())["topicConfigTable"]
    answer = await client.call(RequestCode.GET_TOPIC_CONFIG, {"topic": "T", "lo": True})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_an_unknown_topic_is_deleted_without_complaint(client: Client) -> None:
    """mqadmin deletes a topic on every broker, whether it is there or not."""
    answer = await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "unknown"})
    assert answer.code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("code", "fields", "words"),
    [
        (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("../../etc"), "illegal character"),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("TBW102"), "broker's own"),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T", perm=9), "permission 9"),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T", readQueueNums=-1), "-1 read"),
        (
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            topic_fields("T", attributes="+queue.type=BatchCQ"),
            "cannot be 'BatchCQ'",
        ),
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "SCHEDULE_TOPIC_XXXX"}, "broker's own"),
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": ""}, "is empty"),
    ],
)
async def test_an_illegal_topic_change_is_refused(
    client: Client, code: int, fields: dict[str, ExtValue], words: str
) -> None:
    """The answer is 29, as from RocketMQ 5, with one sentence that says what is wrong."""
    answer = await client.call(code, fields)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert words in (answer.remark or "")


async def test_a_missing_field_is_named(client: Client) -> None:
    """Where the original answers a NullPointerException, the field is named."""
    answer = await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "T"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "field 'readQueueNums' is missing" in (answer.remark or "")


async def test_topic_stats_show_every_queue(client: Client) -> None:
    """One entry per queue, also where reading and writing differ; empty queues read 0, 0, 0."""
    await make_topic(client, "T", readQueueNums=3, writeQueueNums=2)
    await client.send("T", b"one", 1)
    await client.send("T", b"two", 1)
    answer = await client.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
    stats = decode_topic_stats(answer.body)
    assert sorted(queue.queue_id for queue in stats) == [0, 1, 2]
    empty, full = stats[MessageQueue("T", "broker-a", 0)], stats[MessageQueue("T", "broker-a", 1)]
    assert (empty.min_offset, empty.max_offset, empty.last_update_timestamp) == (0, 0, 0)
    assert (full.min_offset, full.max_offset) == (0, 2)
    assert full.last_update_timestamp > 1_600_000_000_000
    # Java's and Go's readers need the keys as raw objects.
    assert b'{{"brokerName":"broker-a","queueId":0,"topic":"T"}:' in answer.body


async def test_the_brokers_own_topics_are_listed(client: Client) -> None:
    """mqadmin leaves these out of its lists."""
    answer = await client.call(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    topics, _ = decode_topic_list(answer.body)
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a"} <= set(topics)


# -- messages -------------------------------------------------------------------------------------


async def test_a_message_is_found_by_its_id(client: Client) -> None:
    """33 returns the one record that the id names; another offset is refused."""
    message_id = await client.send("T", b"hello", 0)
    physical_offset = decode_offset_message_id(message_id).physical_offset
    answer = await client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": physical_offset})
    (message,) = decode_records(answer.body)
    assert (message.topic, message.body) == ("T", b"hello")
    assert message.offset_message_id == message_id
    answer = await client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": physical_offset + 1})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"can not find message by the offset, {physical_offset + 1}"


async def test_messages_are_found_by_key(client: Client) -> None:
    """12 finds by key and by unique key; nothing found is 22, with the index's bounds all the
    same."""
    for number in range(3):
        properties = f"KEYS\x01order-{number % 2}\x02UNIQ_KEY\x01id-{number}\x02"
        await client.send("T", b"%d" % number, 0, properties)
    fields: dict[str, ExtValue] = {
        "topic": "T",
        "key": "order-0",
        "maxNum": 32,
        "beginTimestamp": 0,
        "endTimestamp": 2**63 - 1,
    }
    answer = await client.call(RequestCode.QUERY_MESSAGE, fields)
    assert [message.body for message in decode_records(answer.body)] == [b"0", b"2"]
    assert int(answer.ext_fields["indexLastUpdatePhyoffset"]) > 0
    answer = await client.call(
        RequestCode.QUERY_MESSAGE, {**fields, "key": "id-1", "_UNIQUE_KEY_QUERY": True}
    )
    assert [message.body for message in decode_records(answer.body)] == [b"1"]
    answer = await client.call(RequestCode.QUERY_MESSAGE, {**fields, "key": "nothing"})
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    assert {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"} <= set(answer.ext_fields)


async def test_a_key_is_in_the_index_soon_after_its_send(
    client: Client, broker: BrokerController
) -> None:
    """Within 100 ms and with nobody asking for it."""
    loop = asyncio.get_running_loop()
    built = asyncio.Event()
    background = broker.store.background

    def tell() -> None:
        background()
        built.set()

    broker.store.background = tell  # type: ignore[method-assign]
    waited_s = []
    for number in range(8):
        await client.send("T", b"x", 0, f"UNIQ_KEY\x01id-{number}\x02")
        begin_s = loop.time()
        async with asyncio.timeout(5):
            while sum(broker.store.index.entry_counts) <= number:
                built.clear()
                await built.wait()
        waited_s.append(loop.time() - begin_s)
    # Half of them, as a busy machine may be late with anything.
    assert sorted(waited_s)[3] < 0.1


async def test_an_answer_never_breaks_the_frame(tmp_path: Path) -> None:
    """Five messages of four million bytes under one key do not fit a frame; those that fit come."""
    small = settings(tmp_path)
    store = dataclasses.replace(small.store, mapped_file_size_commit_log=32 << 20)
    broker = BrokerController(dataclasses.replace(small, store=store))
    await broker.start()
    client = Client(broker.address)
    for _ in range(5):
        await client.send("T", bytes(4_000_000), 0, "KEYS\x01k\x02")
    answer = await client.call(
        RequestCode.QUERY_MESSAGE,
        {"topic": "T", "key": "k", "maxNum": 64, "beginTimestamp": 0, "endTimestamp": 2**62},
    )
    await client.close()
    await broker.shutdown()
    assert [len(message.body) for message in decode_records(answer.body)] == [4_000_000] * 4


# -- the broker itself ----------------------------------------------------------------------------


# What mqadmin brokerStatus, clusterList and exportMetrics of versions 4.9 and 5 read.
RUNTIME_KEYS = """
brokerVersionDesc brokerVersion putTps getTransferedTps getTransferredTps sendThreadPoolQueueSize
pullThreadPoolQueueSize sendThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueHeadWaitTimeMills
pageCacheLockTimeMills earliestMessageTimeStamp commitLogDiskRatio consumeQueueDiskRatio
msgPutTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow
msgGetTotalYesterdayMorning msgGetTotalTodayMorning msgGetTotalTodayNow brokerActive
ackThreadPoolQueueSize ackThreadPoolQueueHeadWaitTimeMills timerReadBehind timerOffsetBehind
timerCongestNum timerEnqueueTps timerDequeueTps putMessageAverageSize getFoundTps getTotalTps
getMissTps commitLogMaxOffset commitLogMinOffset bootTimestamp runtime putMessageDistributeTime
""".split()


async def test_runtime_info_has_every_key_that_tools_read(client: Client) -> None:
    """All values are texts; counters and bounds follow what was sent."""
    answer = await client.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    info = decode_kv_table(answer.body)
    assert set(RUNTIME_KEYS) - set(info) == set()
    assert info["earliestMessageTimeStamp"] == "-1"
    assert info["msgPutTotalTodayNow"] == "0"
    await client.send("T", b"hello", 0)
    info = decode_kv_table((await client.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body)
    assert info["msgPutTotalTodayNow"] == "1"
    assert int(info["commitLogMaxOffset"]) > 100
    assert int(info["earliestMessageTimeStamp"]) > 1_600_000_000_000
    assert all(
        len(info[key].split(" ")) == 3
        for key in info
        if key.endswith("Tps") and not key.startswith("timer")
    )


async def test_the_configuration_is_shown(client: Client) -> None:
    """26 answers lines of key=value under RocketMQ's keys, and the version of them."""
    answer = await client.call(RequestCode.GET_BROKER_CONFIG)
    lines = dict(line.split("=", 1) for line in answer.body.decode().splitlines())
    assert lines["brokerName"] == "broker-a"
    assert lines["flushDiskType"] == "ASYNC_FLUSH"
    assert lines["mappedFileSizeCommitLog"] == str(1 << 20)
    assert "counter" in json.loads(answer.ext_fields["version"])


async def test_an_unknown_request_is_told(client: Client) -> None:
    """Code 3 with the words that clients know."""
    answer = await client.call(31234)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == " request type 31234 not supported"
