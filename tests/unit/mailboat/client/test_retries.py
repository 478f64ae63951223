import pytest

from mailboat.client.instance import ClientInstance
from mailboat.client.retries import Retries, restore_topic
from mailboat.errors import BrokerError
from mailboat.model.message import MessageExt
from mailboat.model.message_queue import MessageQueue
from mailboat.model.properties import decode_properties
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.command import RemotingCommand

BACK, SEND = RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2
QUEUE = MessageQueue("T", "a", 1)
# The offset id of 10.0.0.2:10911 and physical offset 1000.
OFFSET_ID = "0A00000200002A9F00000000000003E8"


def failed_message(reconsume_times: int = 2, **properties: str) -> MessageExt:
    """Return a compressed message of topic T that failed."""
    host = bytes.fromhex("0a00000200002a9f")
    return MessageExt(
        "T", b"zip", 1, 7, 1000, 0, 5, 0x331, 0, 0, host, 0, host, reconsume_times, 0, properties
    )


def stored(command: RemotingCommand) -> RemotingCommand:
    """Answer a send as a broker that stored it."""
    return command.response(0, ext_fields={"msgId": "x", "queueId": 0, "queueOffset": 0})


@pytest.fixture
async def broker(make_peer, name_server):
    """Return a broker that holds topic T and the group's retry topic."""
    peer = await make_peer()
    for topic in ("T", "%RETRY%G"):
        name_server.set_route(topic, {"a": peer.address})
    return peer


@pytest.fixture
async def retries(name_server):
    """Return the retries of group G, of which a message has 16."""
    instance = ClientInstance(name_server.address)
    yield Retries(instance, "G", 16)
    await instance.close()


@pytest.mark.parametrize("delay_level", [0, 5, -1])
async def test_message_goes_back_to_its_broker(broker, retries: Retries, delay_level: int):
    """The broker is told which message, of which group, and when it shall come again."""
    broker.answer(BACK, lambda command: command.response(0))
    await retries.give_back(QUEUE, failed_message(UNIQ_KEY="ID"), delay_level)
    (request,) = broker.asked(BACK)
    assert request.ext_fields == {
        "offset": "1000", "group": "G", "delayLevel": str(delay_level), "originMsgId": "ID",
        "originTopic": "T", "unitMode": "false", "maxReconsumeTimes": "16", "bname": "a",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("asked_level", "delay_level", "times"), [(0, "5", "3"), (9, "9", "3"), (-1, "5", "17")]
)
async def test_message_that_is_not_taken_back_is_published(
    broker, retries: Retries, asked_level, delay_level, times
):
    """It is sent to the retry topic with what RocketMQ needs to count and to find its origin."""
    broker.answer(BACK, lambda command: command.response(1, "not found"))
    broker.answer(SEND, stored)
    message = failed_message(UNIQ_KEY="ID", TAGS="t", TRAN_MSG="true", p="v")
    await retries.give_back(QUEUE, message, asked_level)
    (request,) = broker.asked(SEND)
    fields = request.ext_fields
    assert (fields["a"], fields["b"]) == ("CLIENT_INNER_PRODUCER", "%RETRY%G")
    assert (fields["j"], fields["l"], fields["h"]) == (times, "16", "5")
    # Compressed as it was; the addresses' bits are the new record's own.
    assert (fields["f"], request.body) == (str(0x301), b"zip")
    assert decode_properties(fields["i"]) == {
        "UNIQ_KEY": "ID", "TAGS": "t", "p": "v", "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "ID",
        "DELAY": delay_level,
    }  # fmt: skip
    assert message.properties["TRAN_MSG"] == "true"


async def test_origin_is_the_first_message(broker, retries: Retries):
    """A message that was published before keeps the id it had at first, or its place's."""
    broker.answer(BACK, lambda command: command.response(1, "not found"))
    broker.answer(SEND, stored)
    await retries.give_back(QUEUE, failed_message(ORIGIN_MESSAGE_ID="FIRST"), 0)
    await retries.give_back(QUEUE, failed_message(), 0)
    origins = [
        decode_properties(request.ext_fields["i"])["ORIGIN_MESSAGE_ID"]
        for request in broker.asked(SEND)
    ]
    assert origins == ["FIRST", OFFSET_ID]


async def test_nobody_takes_the_message(broker, retries: Retries):
    """The last refusal is raised, so that the message is consumed again."""
    broker.answer(BACK, lambda command: command.response(1, "not found"))
    broker.answer(SEND, lambda command: command.response(13, "too large"))
    with pytest.raises(BrokerError, match="too large"):
        await retries.give_back(QUEUE, failed_message(), 0)


async def test_given_up_message_has_used_its_tries(broker, retries: Retries):
    """In order, a message goes to the retry topic with as many tries as allowed: it is dead."""
    broker.answer(SEND, stored)
    await retries.give_up(failed_message(reconsume_times=16))
    (request,) = broker.asked(SEND)
    assert (request.ext_fields["j"], request.ext_fields["l"]) == ("16", "16")
    assert decode_properties(request.ext_fields["i"])["DELAY"] == "19"


def test_topic_of_a_retried_message_is_restored():
    """Only a message of a retry topic has another topic than it says."""
    retried = failed_message(RETRY_TOPIC="U")
    restore_topic(retried)
    assert retried.topic == "T"
    retried.topic = "%RETRY%G"
    restore_topic(retried)
    assert retried.topic == "U"
