"""Questions about a group's consumers, some of them handed on to the clients; over real sockets."""

import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest
from raw_client import BROKER_NAME, RawClient, connected

from mailboat.broker.controller import BrokerController
from mailboat.broker.processors import client_admin
from mailboat.model.message_queue import MessageQueue
from mailboat.model.record import decode_records
from mailboat.model.subscription import SubscriptionData
from mailboat.protocol.bodies import decode_group_list, decode_topic_list
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand
from mailboat.protocol.consumer_bodies import (
    decode_consumer_status,
    decode_group_subscription,
    decode_time_spans,
    encode_client_status,
)

QUEUE = MessageQueue("T", BROKER_NAME, 0)


@pytest.fixture
async def client(broker: BrokerController) -> AsyncIterator[RawClient]:
    """Connect member `a` of group G; topic T has one queue."""
    async with connected(broker, "a") as [client]:
        await client.make_topic("T")
        await client.heartbeat("T", group="G")
        yield client


# -- 309 ------------------------------------------------------------------------------------------


def directly(message_id: str | None, **fields: ExtValue) -> dict[str, ExtValue]:
    """Return what mqadmin consumeMessageDirectly sends."""
    return {
        "consumerGroup": "G",
        "clientId": "a",
        "msgId": message_id,
        "brokerName": "any",
        "topic": "T",
        **fields,
    }


async def test_a_consumer_is_handed_a_message(broker: BrokerController, client: RawClient) -> None:
    """The stored message goes along as it is, and the client's answer comes back as it is."""
    await client.send("T", b"first")
    message_id = await client.send("T", b"again", properties="KEYS\x01k1\x02")
    result = b'{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":1}'
    client.respond = lambda command: command.response(ResponseCode.SUCCESS, body=result)
    async with connected(broker, "tool") as [tool]:
        answer = await tool.ok(RequestCode.CONSUME_MESSAGE_DIRECTLY, directly(message_id))
    assert answer.body == result
    push = await client.next_push(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    assert not push.is_oneway
    assert push.ext_fields["consumerGroup"] == "G"
    assert push.ext_fields["brokerName"] == BROKER_NAME
    [message] = decode_records(push.body)
    assert (message.topic, message.queue_offset, message.body) == ("T", 1, b"again")
    assert message.properties["KEYS"] == "k1"


async def test_a_consumers_refusal_is_handed_back(client: RawClient) -> None:
    """Code and remark are the client's own."""
    message_id = await client.send("T", b"body")
    client.respond = lambda command: command.response(ResponseCode.SYSTEM_ERROR, "no such group")
    answer = await client.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, directly(message_id))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "no such group")


@pytest.mark.parametrize(
    ("message_id", "fields", "code", "words"),
    [
        (None, {}, ResponseCode.SYSTEM_ERROR, "msgId"),
        ("x", {}, ResponseCode.INVALID_PARAMETER, "not a message id"),
        ("7F00000100002A9F00000000FFFFFFFF", {}, ResponseCode.SYSTEM_ERROR, "can not find"),
        ("", {"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST, "unknown"),
        ("", {"clientId": "b"}, ResponseCode.SYSTEM_ERROR, "not online"),
        ("", {"clientId": None}, ResponseCode.SYSTEM_ERROR, "clientId"),
        ("", {"consumerGroup": "H"}, ResponseCode.SYSTEM_ERROR, "not online"),
    ],
)
async def test_consuming_directly_is_refused(
    client: RawClient,
    message_id: str | None,
    fields: dict[str, ExtValue],
    code: int,
    words: str,
) -> None:
    """The answer names what is missing: message, topic, client or group."""
    stored = await client.send("T", b"body")
    if message_id == "":
        message_id = stored
    answer = await client.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, directly(message_id, **fields))
    assert answer.code == code
    assert words in (answer.remark or "")


async def test_a_client_that_does_not_answer_is_given_up(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """207 after ten seconds, as RocketMQ has it; here a little sooner."""
    monkeypatch.setattr(client_admin, "_RELAY_TIMEOUT_S", 0.05)
    message_id = await client.send("T", b"body")
    answer = await client.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, directly(message_id))
    assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
    answer = await client.call(
        RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "G", "clientId": "a"}
    )
    assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT


async def test_a_client_that_goes_meanwhile_is_given_up(
    broker: BrokerController, client: RawClient
) -> None:
    """The end of its connection ends the question."""
    message_id = await client.send("T", b"body")
    async with connected(broker, "tool") as [tool]:
        asking = asyncio.create_task(
            tool.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, directly(message_id))
        )
        await client.next_push(RequestCode.CONSUME_MESSAGE_DIRECTLY)
        await client.close()
        answer = await asyncio.wait_for(asking, 5)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "invoke consumer" in (answer.remark or "")


# -- 223 ------------------------------------------------------------------------------------------


def knows(queue_offset: int) -> bytes:
    """Return what a client says of its progress."""
    return encode_client_status({QUEUE: queue_offset})


def tells(client: RawClient, body: bytes) -> None:
    """Let a client answer the question for its progress."""

    def respond(command: RemotingCommand) -> RemotingCommand | None:
        if command.code != RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
            return None
        assert command.ext_fields == {"topic": "T", "group": "G"}
        return command.response(ResponseCode.SUCCESS, body=body)

    client.respond = respond


async def test_members_are_asked_for_their_progress(
    broker: BrokerController, client: RawClient
) -> None:
    """All of them or one; the answer lists them by client id, queues as raw object keys."""
    fields: dict[str, ExtValue] = {"topic": "T", "group": "G"}
    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    async with connected(broker, "b") as [other]:
        await other.heartbeat("T", group="G")
        # What fastjson writes: object keys that are objects.
        tells(client, knows(7))
        tells(other, b'{"messageQueueTable":{"{\\"brokerName\\":\\"broker-a\\",\\"queueId\\":0,'
                     b'\\"topic\\":\\"T\\"}":9}}')  # fmt: skip
        answer = await client.ok(code, fields)
        assert answer.body == (
            b'{"consumerTable":{"a":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:7},'
            b'"b":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:9}},"messageQueueTable":{}}'
        )
        answer = await client.ok(code, {**fields, "clientAddr": "b"})
        assert decode_consumer_status(answer.body) == {"b": {QUEUE: 9}}


async def test_members_that_do_not_say_are_left_out(
    broker: BrokerController, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One silent or confused client does not hide the others; when nobody says, it is 207."""
    monkeypatch.setattr(client_admin, "_STATUS_TIMEOUT_S", 0.05)
    fields: dict[str, ExtValue] = {"topic": "T", "group": "G"}
    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    async with connected(broker, "b", "c") as [confused, silent]:
        await confused.heartbeat("T", group="G")
        await silent.heartbeat("T", group="G")
        tells(client, knows(7))
        tells(confused, b"[]")
        assert decode_consumer_status((await client.ok(code, fields)).body) == {"a": {QUEUE: 7}}
        answer = await client.call(code, {**fields, "clientAddr": "c"})
        assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT


@pytest.mark.parametrize(
    ("limit", "value", "reason"),
    [
        ("_STATUS_MAX_MEMBERS", 1, "has 2 consumers, at most 1 are asked at once"),
        ("_STATUS_MAX_BYTES_OF_ALL", 150, "has more than 150 bytes"),
    ],
)
async def test_very_many_members_are_asked_one_by_one(
    broker: BrokerController,
    client: RawClient,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    value: int,
    reason: str,
) -> None:
    """All their answers at once would take too much memory, and no frame would hold them."""
    monkeypatch.setattr(client_admin, limit, value)
    fields: dict[str, ExtValue] = {"topic": "T", "group": "G"}
    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    async with connected(broker, "b") as [other]:
        await other.heartbeat("T", group="G")
        tells(client, knows(7))
        tells(other, knows(9))
        answer = await client.call(code, fields)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert reason in (answer.remark or "")
        assert "by clientAddr" in (answer.remark or "")
        answer = await client.ok(code, {**fields, "clientAddr": "b"})
        assert decode_consumer_status(answer.body) == {"b": {QUEUE: 9}}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group": "H"}, ResponseCode.SYSTEM_ERROR),
        ({"clientAddr": "b"}, ResponseCode.SYSTEM_ERROR),
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"group": None}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_the_progress_of_nobody_is_refused(
    client: RawClient, fields: dict[str, ExtValue], code: int
) -> None:
    """Without members there is nobody to ask."""
    answer = await client.call(
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T", "group": "G", **fields}
    )
    assert answer.code == code
    assert answer.remark


# -- 303, 345, 343, 300, 43 -----------------------------------------------------------------------


async def later_than(
    time_ms: int, client: RawClient, fields: dict[str, ExtValue]
) -> RemotingCommand:
    """Ask for the ages once the clock shows another millisecond."""
    while True:
        is_later = int(time.time() * 1000) > time_ms
        answer = await client.ok(RequestCode.QUERY_CONSUME_TIME_SPAN, fields)
        if is_later:
            return answer


async def test_the_age_of_what_is_read_is_shown(client: RawClient) -> None:
    """First, last and last consumed message by store time, and the age of the first unread one."""
    await client.make_topic("T", 2)
    for number in range(4):
        await client.send("T", str(number).encode())
    await client.commit("G", "T", 3)
    times = [
        record.store_timestamp_ms
        for record in decode_records((await client.pull("X", "T", 0)).body)
    ]
    fields: dict[str, ExtValue] = {"topic": "T", "group": "G"}
    answer = await later_than(times[3], client, fields)
    span, empty = decode_time_spans(answer.body)
    now_ms = int(time.time() * 1000)
    assert (span.message_queue.queue_id, empty.message_queue.queue_id) == (0, 1)
    assert (span.message_queue.topic, span.message_queue.broker_name) == ("T", BROKER_NAME)
    assert (span.min_time_stamp, span.max_time_stamp) == (times[0], times[3])
    assert span.consume_time_stamp == times[2]
    assert 0 < span.delay_time <= now_ms - times[3]
    assert (empty.min_time_stamp, empty.max_time_stamp, empty.consume_time_stamp) == (-1, -1, -1)
    assert empty.delay_time == 0
    await client.commit("G", "T", 4)
    span, _ = decode_time_spans((await client.ok(RequestCode.QUERY_CONSUME_TIME_SPAN, fields)).body)
    assert (span.consume_time_stamp, span.delay_time) == (times[3], 0)


async def test_a_group_that_has_read_nothing_is_as_old_as_the_queue(client: RawClient) -> None:
    """Without an offset the first message counts as the next one."""
    await client.send("T", b"0")
    [record] = decode_records((await client.pull("X", "T", 0)).body)
    fields: dict[str, ExtValue] = {"topic": "T", "group": "G"}
    answer = await later_than(record.store_timestamp_ms, client, fields)
    [span] = decode_time_spans(answer.body)
    assert span.consume_time_stamp == record.store_timestamp_ms
    assert 0 < span.delay_time <= int(time.time() * 1000) - record.store_timestamp_ms


async def test_a_groups_subscription_is_shown(client: RawClient) -> None:
    """What its members said with their heartbeats; null for a topic they do not read."""
    code = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER
    answer = await client.ok(code, {"group": "G", "topic": "T"})
    assert json.loads(answer.body).keys() == {"group", "topic", "subscriptionData"}
    assert decode_group_subscription(answer.body) == SubscriptionData("T", sub_version=1)
    answer = await client.ok(code, {"group": "G", "topic": "U"})
    assert json.loads(answer.body) == {"group": "G", "topic": "U"}
    assert decode_group_subscription(answer.body) is None


async def test_groups_and_topics_find_each_other(client: RawClient) -> None:
    """By stored offsets, and groups of a topic by subscriptions too."""
    await client.make_topic("U")
    await client.commit("G", "U", 0)
    groups = await client.ok(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"})
    assert decode_group_list(groups.body) == ["G"]
    topics = await client.ok(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "G"})
    assert decode_topic_list(topics.body)[0] == ["U"]


async def test_all_offsets_are_shown(client: RawClient) -> None:
    """As a slave reads them: topic@group, then queue ids as keys."""
    await client.commit("G", "T", 0)
    answer = await client.ok(RequestCode.GET_ALL_CONSUMER_OFFSET)
    assert json.loads(answer.body)["offsetTable"] == {"T@G": {"0": 0}}


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        ("QUERY_CONSUME_TIME_SPAN", {"topic": "x", "group": "G"}, ResponseCode.TOPIC_NOT_EXIST),
        (
            "QUERY_CONSUME_TIME_SPAN",
            {"topic": "T", "group": "x"},
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ),
        ("QUERY_CONSUME_TIME_SPAN", {"topic": "T"}, ResponseCode.SYSTEM_ERROR),
        ("QUERY_CONSUME_TIME_SPAN", {"group": "G"}, ResponseCode.SYSTEM_ERROR),
        (
            "QUERY_SUBSCRIPTION_BY_CONSUMER",
            {"topic": "T", "group": "x"},
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ),
        ("QUERY_SUBSCRIPTION_BY_CONSUMER", {"topic": "T"}, ResponseCode.SYSTEM_ERROR),
        ("QUERY_TOPIC_CONSUME_BY_WHO", {}, ResponseCode.SYSTEM_ERROR),
        ("QUERY_TOPICS_BY_CONSUMER", {}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_questions_about_what_is_not_there_are_refused(
    client: RawClient, code: str, fields: dict[str, ExtValue], expected: int
) -> None:
    """Unknown topics and groups, and missing fields, never look like success."""
    answer = await client.call(getattr(RequestCode, code), fields)
    assert answer.code == expected
    assert answer.remark
    assert "internal" not in answer.remark
