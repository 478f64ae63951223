import json

import pytest

from mailboat.client.handler_runner import ConsumeLater
from mailboat.client.push_consumer import PushConsumer
from mailboat.model.message import MessageExt
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.command import RemotingCommand

# Written by the encoder of rocketmq 4.9.8: body "hello", TAGS=TagA, k=v, queue 1, offset 2.
RECORD = bytes.fromhex(
    "0000006f daa320a7 3610a686 00000001 00000000 0000000000000002 00000000000003e8 00000000 "
    "0000018bcfe56800 0a000001000004d2 0000018bcfe5687b 0a00000200002a9f 00000000 "
    "0000000000000000 00000005 68656c6c6f 02 5431 000d 6b017602 54414753 01 54616741"
)


@pytest.fixture
async def ask(make_peer, name_server):
    """Return a function: start a consumer of T1 with a handler, and have it consume a message."""
    consumers: list[PushConsumer] = []

    async def ask_consumer(
        handler, record: bytes = RECORD, group: str = "G", order: bool = False
    ) -> RemotingCommand:
        peer = await make_peer()
        name_server.set_route("T1", {"a": peer.address})
        for code in (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT):
            peer.answer(code, lambda command: command.response(0))
        consumer = PushConsumer("G", namesrv=name_server.address, order=order)
        consumers.append(consumer)
        consumer.subscribe("T1", "*", handler)
        await consumer.start()
        request = RemotingCommand.request(
            RequestCode.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": group}, record
        )
        (connection,) = peer.connections
        return await connection.request(request, 5.0)

    yield ask_consumer
    for consumer in consumers:
        await consumer.close(patience_s=0)


@pytest.mark.parametrize(
    ("error", "result", "remark"),
    [
        (None, "CR_SUCCESS", None),
        (ConsumeLater(3), "CR_LATER", "ConsumeLater('delay level 3')"),
        (ValueError("bad"), "CR_THROW_EXCEPTION", "ValueError('bad')"),
    ],
)
@pytest.mark.parametrize("order", [False, True])
async def test_answer_tells_how_the_handler_fared(ask, error, result, remark, order: bool):
    """The handler gets the message, and its outcome goes back in RocketMQ's words."""
    seen: list[MessageExt] = []

    async def handle(messages: list[MessageExt]) -> None:
        seen.extend(messages)
        if error is not None:
            raise error

    answer = await ask(handle, order=order)
    fields = json.loads(answer.body)
    assert fields.pop("spentTimeMills") >= 0
    assert answer.code == 0
    assert fields == {
        "order": order, "autoCommit": True, "consumeResult": result, "remark": remark,
    }  # fmt: skip
    assert [message.payload() for message in seen] == [b"hello"]


@pytest.mark.parametrize(("record", "group"), [(RECORD, "H"), (b"x", "G"), (RECORD * 2, "G")])
async def test_impossible_request_is_refused(ask, record: bytes, group: str):
    """Another group, or anything but one message, reaches no handler."""

    async def handle(messages: list[MessageExt]) -> None:
        raise AssertionError("the handler was called")

    answer = await ask(handle, record, group)
    assert answer.code == 1
    assert answer.remark
