import pytest

from mailboat.client.instance import ClientInstance
from mailboat.client.pull_consumer import PullConsumer
from mailboat.client.pulling import PullResult, PullStatus
from mailboat.client.push_consumer import PushConsumer
from mailboat.client.subscriptions import Sql, check_subscriptions, subscribe_to
from mailboat.errors import BrokerError, IllegalMessageError
from mailboat.model.message import MessageExt
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.heartbeat import decode_check_client_config

CHECK = RequestCode.CHECK_CLIENT_CONFIG
# Written by the encoder of rocketmq 4.9.8: body "hello", TAGS=TagA, k=v, queue 1, offset 2.
RECORD = bytes.fromhex(
    "0000006f daa320a7 3610a686 00000001 00000000 0000000000000002 00000000000003e8 00000000 "
    "0000018bcfe56800 0a000001000004d2 0000018bcfe5687b 0a00000200002a9f 00000000 "
    "0000000000000000 00000005 68656c6c6f 02 5431 000d 6b017602 54414753 01 54616741"
)


def test_condition_travels_as_sql92():
    """The text is passed on as it is, with RocketMQ's name of the language and no tags."""
    data = subscribe_to("T", Sql("a > 5 OR b = 'x || y'"), 7)
    assert (data.topic, data.sub_string, data.sub_version) == ("T", "a > 5 OR b = 'x || y'", 7)
    assert (data.expression_type, data.tags_set, data.code_set) == ("SQL92", set(), set())


def test_text_is_a_tag_expression():
    """Text is never taken for SQL."""
    data = subscribe_to("T", "a || b")
    assert (data.expression_type, data.tags_set) == ("TAG", {"a", "b"})


def test_empty_condition_is_refused():
    """An empty condition is a mistake and not `every message`."""
    with pytest.raises(IllegalMessageError, match="empty"):
        subscribe_to("T", Sql(" "))


def test_conditions_are_not_checked_again():
    """The client takes what the broker let through, whatever its tag."""
    result = PullResult(PullStatus.FOUND, 3, 0, 3, RECORD, subscribe_to("T1", Sql("TAGS = 'x'")))
    assert [message.tags for message in result.messages] == ["TagA"]


@pytest.fixture
async def brokers(make_peer, name_server):
    """Return two brokers that hold topic T."""
    peers = [await make_peer(), await make_peer()]
    name_server.set_route("T", {"a": peers[0].address, "b": peers[1].address})
    return peers


async def handle(messages: list[MessageExt]) -> None:
    """Take messages; none come."""


async def test_every_broker_is_asked_about_conditions_only(brokers, name_server):
    """Each broker of the topic gets the condition, and no question about tags."""
    for broker in brokers:
        broker.answer(CHECK, lambda command: command.response(0))
    instance = ClientInstance(name_server.address)
    await instance.start()
    await instance.routes.read_queues("T")
    subscriptions = [
        subscribe_to("T", Sql("a > 5"), 7), subscribe_to("T", "tag"), subscribe_to("U", Sql("b")),
    ]  # fmt: skip
    await check_subscriptions(instance, "G", subscriptions)
    await instance.close()
    for broker in brokers:
        (request,) = broker.asked(CHECK)
        check = decode_check_client_config(request.body)
        assert (check.group, check.client_id) == ("G", instance.client_id)
        assert check.subscription_data == subscriptions[0]


async def test_refused_condition_fails_the_start(brokers, name_server):
    """A broker that cannot parse the condition stops the start, and nothing runs on."""
    brokers[0].answer(CHECK, lambda command: command.response(0))
    brokers[1].answer(CHECK, lambda command: command.response(23, "no such operator"))
    consumer = PushConsumer("G", namesrv=name_server.address)
    consumer.subscribe("T", Sql("a ~ 5"), handle)
    with pytest.raises(BrokerError, match="no such operator"):
        await consumer.start()
    assert brokers[0].asked(RequestCode.HEART_BEAT) == []
    async with PullConsumer("G", namesrv=name_server.address) as pull:
        with pytest.raises(BrokerError, match="no such operator"):
            await pull.subscribe("T", Sql("a ~ 5"))
        assert pull.assignment == []
