"""Request and reply through the broker over real sockets, as RocketMQ 5.3 does it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from raw_client import RawClient, broker_settings, connected, running_broker

from mailboat.broker.controller import BrokerController
from mailboat.broker.processors import reply
from mailboat.model.message import MessageExt
from mailboat.model.message_id import decode_offset_message_id
from mailboat.model.properties import decode_properties
from mailboat.model.record import decode_records
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = (
    "MSG_TYPE\x01reply\x02CORRELATION_ID\x01c1\x02REPLY_TO_CLIENT\x01asker\x02TTL\x013000\x02"
)


@pytest.fixture
async def asker(broker: BrokerController) -> AsyncIterator[RawClient]:
    """Connect a producer that takes replies."""
    async with connected(broker, "asker") as [client]:
        await client.heartbeat(producer="askers")
        client.respond = lambda command: command.response(ResponseCode.SUCCESS)
        yield client


@pytest.fixture
async def replier(broker: BrokerController) -> AsyncIterator[RawClient]:
    """Connect a client that replies."""
    async with connected(broker, "replier") as [client]:
        yield client


def short_names(**changes: ExtValue) -> dict[str, ExtValue]:
    """Return what a Java consumer sends with 325."""
    return {
        "a": "repliers", "b": REPLY_TOPIC, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 12345,
        "h": 7, "i": PROPERTIES, "j": 0, "k": False, "m": False, **changes,
    }  # fmt: skip


def long_names(**changes: ExtValue) -> dict[str, ExtValue]:
    """Return what a Go consumer sends with 324."""
    return {
        "producerGroup": "repliers", "topic": REPLY_TOPIC, "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4, "queueId": 0, "sysFlag": 0, "bornTimestamp": 12345, "flag": 7,
        "properties": PROPERTIES, "reconsumeTimes": 0, "unitMode": False, **changes,
    }  # fmt: skip


async def stored_replies(client: RawClient) -> list[MessageExt]:
    """Return what the reply topic holds."""
    answer = await client.pull("X", REPLY_TOPIC, 0)
    return decode_records(answer.body) if answer.code == ResponseCode.SUCCESS else []


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.SEND_REPLY_MESSAGE, long_names()),
        (RequestCode.SEND_REPLY_MESSAGE_V2, short_names()),
    ],
)
async def test_a_reply_reaches_the_client_that_waits(
    broker: BrokerController,
    asker: RawClient,
    replier: RawClient,
    code: int,
    fields: dict[str, ExtValue],
) -> None:
    """With everything that the reply carried and where it came from; the replier hears of it."""
    answer = await replier.ok(code, fields, b"the reply")
    push = await asker.next_push(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
    assert not push.is_oneway
    assert push.body == b"the reply"
    expected = {
        "producerGroup": "repliers", "topic": REPLY_TOPIC, "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0", "bornTimestamp": "12345",
        "flag": "7", "reconsumeTimes": "0", "unitMode": "false", "storeHost": broker.address,
    }  # fmt: skip
    assert expected.items() <= push.ext_fields.items()
    assert push.ext_fields["bornHost"].startswith("127.0.0.1:")
    assert int(push.ext_fields["storeTimestamp"]) > 1_700_000_000_000
    properties = decode_properties(push.ext_fields["properties"])
    assert properties.pop("PUSH_REPLY_TIME").isdigit()
    region = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert properties == decode_properties(PROPERTIES) | region
    assert answer.ext_fields["MSG_REGION"] == "DefaultRegion"
    assert answer.ext_fields["TRACE_ON"] == "true"


async def test_a_reply_is_stored(asker: RawClient, replier: RawClient) -> None:
    """In the reply topic, as it was sent; the answer names its place."""
    answer = await replier.ok(RequestCode.SEND_REPLY_MESSAGE_V2, short_names(), b"the reply")
    [message] = await stored_replies(asker)
    assert message.body == b"the reply"
    assert decode_properties(PROPERTIES).items() <= message.properties.items()
    assert "PUSH_REPLY_TIME" not in message.properties
    assert (message.flag, message.born_timestamp_ms) == (7, 12345)
    assert answer.ext_fields["queueId"] == "0"
    assert answer.ext_fields["queueOffset"] == "0"
    place = decode_offset_message_id(answer.ext_fields["msgId"])
    assert place.physical_offset == message.physical_offset


async def test_replies_need_not_be_stored(tmp_path: Path) -> None:
    """storeReplyMessageEnable=false hands them on and keeps nothing."""
    async with (
        running_broker(tmp_path, store_reply_message_enable=False) as broker,
        connected(broker, "asker", "replier") as [asker, replier],
    ):
        await asker.heartbeat(producer="askers")
        asker.respond = lambda command: command.response(ResponseCode.SUCCESS)
        answer = await replier.ok(RequestCode.SEND_REPLY_MESSAGE_V2, short_names(), b"reply")
        assert answer.ext_fields["msgId"] == "0"
        assert answer.ext_fields["queueOffset"] == "0"
        assert await stored_replies(asker) == []


async def test_a_reply_is_durable_when_it_is_acknowledged(tmp_path: Path) -> None:
    """With SYNC_FLUSH the answer waits for the disk, as that of every send does."""
    controller = BrokerController(broker_settings(tmp_path, "SYNC_FLUSH"))
    await controller.start()
    try:
        async with connected(controller, "asker", "replier") as [asker, replier]:
            await asker.heartbeat(producer="askers")
            asker.respond = lambda command: command.response(ResponseCode.SUCCESS)
            await replier.ok(RequestCode.SEND_REPLY_MESSAGE_V2, short_names(), b"reply")
            store = controller.store
            assert store.flushed_offset == store.commit_log.end > 0
    finally:
        await controller.shutdown()


async def test_a_client_that_is_not_there_gets_no_reply(replier: RawClient) -> None:
    """The replier is told, and nothing is stored: what is answered with an error never is."""
    answer = await replier.call(RequestCode.SEND_REPLY_MESSAGE_V2, short_names(), b"reply")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "channel of <asker> not found" in (answer.remark or "")
    assert answer.ext_fields["TRACE_ON"] == "true"
    assert await stored_replies(replier) == []


async def test_a_client_that_refuses_or_does_not_answer_is_told_of(
    asker: RawClient, replier: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replier's answer says that the reply did not arrive."""
    monkeypatch.setattr(reply, "_PUSH_TIMEOUT_S", 0.05)

    async def answer() -> RemotingCommand:
        return await replier.call(RequestCode.SEND_REPLY_MESSAGE_V2, short_names(), b"reply")

    asker.respond = lambda command: command.response(ResponseCode.SYSTEM_ERROR, "who are you")
    refused = await answer()
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "who are you" in (refused.remark or "")
    asker.respond = lambda _: None
    silent = await answer()
    assert silent.code == ResponseCode.SYSTEM_ERROR
    assert "asker" in (silent.remark or "")


async def test_the_newest_of_two_connections_gets_the_reply(
    broker: BrokerController, asker: RawClient, replier: RawClient
) -> None:
    """A client that came back on another connection, while its old one lingers, is found."""
    async with connected(broker, "asker") as [again]:
        again.respond = lambda command: command.response(ResponseCode.SUCCESS)
        await again.heartbeat(producer="askers")
        await replier.ok(RequestCode.SEND_REPLY_MESSAGE_V2, short_names(), b"reply")
        await again.next_push(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
    await asyncio.sleep(0)
    assert asker.pushed.empty()


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"b": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION, "SCHEDULE_TOPIC_XXXX"),
        ({"b": "bad name"}, ResponseCode.INVALID_PARAMETER, "bad name"),
        ({"b": "unknown", "c": "none"}, ResponseCode.TOPIC_NOT_EXIST, "unknown"),
        ({"e": 1}, ResponseCode.INVALID_PARAMETER, "queueId[1]"),
        ({"i": "CORRELATION_ID\x01c1\x02"}, ResponseCode.SYSTEM_ERROR, "REPLY_TO_CLIENT"),
        ({"b": None}, ResponseCode.SYSTEM_ERROR, "'b'"),
        ({"e": "x"}, ResponseCode.SYSTEM_ERROR, "'e'"),
    ],
)
async def test_replies_that_make_no_sense_are_refused(
    asker: RawClient, replier: RawClient, changes: dict[str, ExtValue], code: int, words: str
) -> None:
    """Nobody is bothered by them."""
    answer = await replier.call(RequestCode.SEND_REPLY_MESSAGE_V2, short_names(**changes), b"reply")
    assert answer.code == code
    assert words in (answer.remark or "")
    assert asker.pushed.empty()


async def test_a_request_carries_the_cluster_for_its_reply(
    asker: RawClient, replier: RawClient
) -> None:
    """The replier derives the reply topic from the CLUSTER property, which the broker adds."""
    await asker.make_topic("requests")
    await asker.send("requests", b"?", properties="REPLY_TO_CLIENT\x01asker\x02")
    answer = await replier.pull("X", "requests", 0)
    [request] = decode_records(answer.body)
    assert request.properties["CLUSTER"] + "_REPLY_TOPIC" == REPLY_TOPIC
