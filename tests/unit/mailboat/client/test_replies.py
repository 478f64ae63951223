import asyncio

import pytest

from mailboat.client.producer import Producer
from mailboat.errors import IllegalMessageError, RequestTimeoutError
from mailboat.model.message import Message, MessageExt
from mailboat.model.properties import decode_properties, encode_properties
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.heartbeat import decode_heartbeat

SEND, REPLY = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_REPLY_MESSAGE_V2
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
HEARTBEAT = RequestCode.HEART_BEAT


def stored(command: RemotingCommand) -> RemotingCommand:
    """Answer a send as a broker that stored it."""
    return command.response(0, ext_fields={"msgId": "x", "queueId": 0, "queueOffset": 0})


def received(**properties: str) -> MessageExt:
    """Return a message that a consumer got."""
    return MessageExt("T", b"?", 0, 0, 0, 0, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, properties)


@pytest.fixture
async def broker(make_peer, name_server):
    """Return a broker with topic T and the reply topic of cluster C."""
    peer = await make_peer()
    for topic in ("T", "C_REPLY_TOPIC"):
        name_server.set_route(topic, {"a": peer.address})
    for code in (HEARTBEAT, RequestCode.UNREGISTER_CLIENT):
        peer.answer(code, lambda command: command.response(0))
    peer.answer(SEND, stored)
    return peer


async def asked(broker, count: int = 1) -> dict[str, str]:
    """Return the properties of the last of so many requests."""
    request = (await broker.wait_asked(SEND, count))[-1]
    return decode_properties(request.ext_fields["i"])


async def push(broker, correlation_id: str, body: bytes) -> RemotingCommand:
    """Push a reply as a Java broker does; return the client's answer."""
    fields = {
        "producerGroup": "R", "topic": "C_REPLY_TOPIC", "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4, "queueId": 0, "sysFlag": 0, "bornTimestamp": 1, "flag": 0,
        "properties": encode_properties({"CORRELATION_ID": correlation_id, "colour": "blue"}),
        "reconsumeTimes": 0, "unitMode": False, "bornHost": "/10.0.0.1:1234",
        "storeHost": "/10.0.0.2:10911", "storeTimestamp": 2,
    }  # fmt: skip
    (connection, *_) = broker.connections
    return await connection.request(RemotingCommand.request(PUSH, fields, body), 5.0)


async def test_request_returns_its_reply(broker, name_server):
    """The request names this client, which the broker knows before, and its reply ends it."""
    async with Producer("P", namesrv=name_server.address) as producer:
        message = Message("T", b"?", properties={"p": "v"})
        asking = asyncio.create_task(producer.request(message, timeout_s=7.0))
        properties = await asked(broker)
        heartbeat = decode_heartbeat(broker.asked(HEARTBEAT)[0].body)
        assert broker.requests[0].code == HEARTBEAT
        answer = await push(broker, properties["CORRELATION_ID"], b"!")
        reply = await asking
    assert answer.code == 0
    assert (properties["REPLY_TO_CLIENT"], properties["TTL"]) == (heartbeat.client_id, "7000")
    assert properties["p"] == "v"
    assert message.properties == {"p": "v"}
    assert (reply.payload(), reply.properties["colour"]) == (b"!", "blue")
    assert (reply.born_address, reply.store_address) == ("10.0.0.1:1234", "10.0.0.2:10911")


async def test_replies_find_their_requests(broker, name_server):
    """Two requests at a time get each its own reply, and an unknown one is dropped."""
    async with Producer("P", namesrv=name_server.address) as producer:
        first = asyncio.create_task(producer.request(Message("T", b"1")))
        first_id = (await asked(broker))["CORRELATION_ID"]
        second = asyncio.create_task(producer.request(Message("T", b"2")))
        second_id = (await asked(broker, 2))["CORRELATION_ID"]
        assert (await push(broker, "unknown", b"?")).code == 0
        await push(broker, second_id, b"to 2")
        await push(broker, first_id, b"to 1")
        replies = [(await task).payload() for task in (first, second)]
    assert replies == [b"to 1", b"to 2"]


async def test_no_reply_is_a_timeout(broker, name_server):
    """A request that nobody answers ends in time, and a late reply does no harm."""
    async with Producer("P", namesrv=name_server.address) as producer:
        with pytest.raises(RequestTimeoutError, match="no reply"):
            await producer.request(Message("T", b"?"), timeout_s=0.2)
        late = await push(broker, (await asked(broker))["CORRELATION_ID"], b"!")
    assert late.code == 0


async def test_reply_goes_to_who_asked(broker, name_server):
    """It is sent with code 325 to the reply topic of the request's cluster."""
    broker.answer(REPLY, stored)
    asking = {"CLUSTER": "C", "CORRELATION_ID": "I", "REPLY_TO_CLIENT": "X", "TTL": "9"}
    async with Producer("P", namesrv=name_server.address) as producer:
        await producer.reply(received(**asking, other="o"), b"!")
    (request,) = broker.asked(REPLY)
    properties = decode_properties(request.ext_fields["i"])
    assert (request.ext_fields["b"], request.body) == ("C_REPLY_TOPIC", b"!")
    del properties["UNIQ_KEY"]
    assert properties == {
        "MSG_TYPE": "reply", "CORRELATION_ID": "I", "REPLY_TO_CLIENT": "X", "TTL": "9",
        "WAIT": "true",
    }  # fmt: skip


async def test_message_that_asks_nothing_gets_no_reply(name_server):
    """A plain message has nobody to reply to."""
    async with Producer("P", namesrv=name_server.address) as producer:
        with pytest.raises(IllegalMessageError, match="no request"):
            await producer.reply(received(CLUSTER="C"), b"!")
