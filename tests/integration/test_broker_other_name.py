"""Requests for a broker whose address this one has got: refused, nothing of them is done."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from raw_client import BROKER_NAME, RawClient, connected, running_broker

from mailboat.model.message_queue import MessageQueue
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue
from mailboat.protocol.lock_batch import LockBatch, decode_locked, encode_lock_batch

QUEUE: dict[str, ExtValue] = {"consumerGroup": "G", "topic": "T", "queueId": 0}
SEND: dict[str, ExtValue] = {
    "a": "PG", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": "", "j": 0,
}  # fmt: skip
LONG_SEND: dict[str, ExtValue] = {
    "producerGroup": "PG", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
    "queueId": 0, "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "properties": "",
}  # fmt: skip
PULL: dict[str, ExtValue] = {
    **QUEUE, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 5, "commitOffset": 2,
    "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
}  # fmt: skip
REQUESTS = {
    "pull": (RequestCode.PULL_MESSAGE, PULL),
    "query": (RequestCode.QUERY_CONSUMER_OFFSET, QUEUE),
    "commit": (RequestCode.UPDATE_CONSUMER_OFFSET, {**QUEUE, "commitOffset": 2}),
    "minimum": (RequestCode.GET_MIN_OFFSET, QUEUE),
    "maximum": (RequestCode.GET_MAX_OFFSET, QUEUE),
    "by-time": (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {**QUEUE, "timestamp": 0}),
    "earliest": (RequestCode.GET_EARLIEST_MSG_STORETIME, QUEUE),
    "end-of-a-transaction": (
        RequestCode.END_TRANSACTION,
        {
            "producerGroup": "PG",
            "tranStateTableOffset": 0,
            "commitLogOffset": 0,
            "commitOrRollback": 0,
        },
    ),
    "statistics": (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}),
    "change-of-a-topic": (
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        {
            "topic": "NEW2",
            "defaultTopic": "TBW102",
            "readQueueNums": 1,
            "writeQueueNums": 1,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": False,
        },
    ),
    "send": (RequestCode.SEND_MESSAGE_V2, SEND),
    "send-that-makes-a-topic": (RequestCode.SEND_MESSAGE_V2, {**SEND, "b": "NEW"}),
    "send-anywhere": (RequestCode.SEND_MESSAGE_V2, {**SEND, "e": -1}),
    "long-send": (RequestCode.SEND_MESSAGE, LONG_SEND),
    "send-back": (
        RequestCode.CONSUMER_SEND_MSG_BACK,
        {"group": "G", "offset": 0, "delayLevel": 0, "maxReconsumeTimes": 16},
    ),
}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[RawClient]:
    """Connect a client that has sent three messages to T and has committed 1."""
    async with running_broker(tmp_path) as broker, connected(broker, "a") as [client]:
        await client.make_topic("T")
        await client.heartbeat("T", group="G")
        for body in (b"one", b"two", b"three"):
            await client.send("T", body)
        await client.commit("G", "T", 1)
        yield client


async def call(client: RawClient, request: str, broker_name: str) -> int:
    """Make a request that names a broker; return the code of the answer."""
    code, fields = REQUESTS[request]
    named = "n" if code == RequestCode.SEND_MESSAGE_V2 else "bname"
    is_send = code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_MESSAGE)
    return (await client.call(code, {**fields, named: broker_name}, b"x" if is_send else b"")).code


@pytest.mark.parametrize("request_name", REQUESTS)
async def test_a_request_for_another_broker_is_refused(
    client: RawClient, request_name: str
) -> None:
    """Its queues have the same numbers, but other messages and offsets."""
    code = await call(client, request_name, "broker-of-old")
    assert code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert await client.committed("G", "T") == 1
    end = await client.ok(RequestCode.GET_MAX_OFFSET, QUEUE)
    assert end.ext_fields["offset"] == "3"
    new = await client.call(RequestCode.GET_MAX_OFFSET, {**QUEUE, "topic": "NEW"})
    assert new.code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("broker_name", ["", "__syslo__"])
async def test_a_request_that_names_no_broker_is_taken(
    client: RawClient, request_name: str, broker_name: str
) -> None:
    """Clients before 4.9 send no name, and static topics have one that is no broker's."""
    assert await call(client, request_name, broker_name) == ResponseCode.SUCCESS


def lock_body(client_id: str, *broker_names: str) -> bytes:
    """Return a member's wish for queue 0 of T at some brokers."""
    queues = {MessageQueue("T", name, 0) for name in broker_names}
    return encode_lock_batch(LockBatch("G", client_id, queues))


@pytest.mark.parametrize("names", [["broker-of-old"], [BROKER_NAME, "broker-of-old"]])
async def test_queues_of_another_broker_are_neither_locked_nor_given_back(
    client: RawClient, names: list[str]
) -> None:
    """The body names the broker, not the header; whoever holds the queue here is not disturbed."""
    body = lock_body("other", *names)
    refused = await client.call(RequestCode.LOCK_BATCH_MQ, body=body)
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert await client.lock("G", "T", 0) == {0}
    body = lock_body(client.client_id, *names)
    refused = await client.call(RequestCode.UNLOCK_BATCH_MQ, body=body)
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    answer = await client.ok(RequestCode.LOCK_BATCH_MQ, body=lock_body("other", BROKER_NAME))
    assert decode_locked(answer.body) == set()


@pytest.mark.parametrize("broker_name", ["", "__syslo__"])
async def test_queues_without_a_broker_are_locked(client: RawClient, broker_name: str) -> None:
    """As those of a static topic, whose broker is none."""
    answer = await client.ok(RequestCode.LOCK_BATCH_MQ, body=lock_body("a", broker_name))
    assert len(decode_locked(answer.body)) == 1


@pytest.mark.parametrize(
    ("code", "fields", "named"),
    [
        (RequestCode.SEND_REPLY_MESSAGE_V2, SEND, "n"),
        (RequestCode.SEND_REPLY_MESSAGE, LONG_SEND, "bname"),
    ],
)
async def test_a_reply_for_another_broker_is_not_handed_on(
    client: RawClient, code: int, fields: dict[str, ExtValue], named: str
) -> None:
    """Here nobody waits for it."""
    refused = await client.call(code, {**fields, named: "broker-of-old"}, b"x")
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    own = await client.call(code, {**fields, named: BROKER_NAME}, b"x")
    assert own.code == ResponseCode.SYSTEM_ERROR
