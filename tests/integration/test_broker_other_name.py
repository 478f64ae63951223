"""Requests for a broker whose address this one has got: refused, nothing of them is done."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from raw_client import RawClient, connected, running_broker

from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue

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
