import pytest

from mailboat.client.name_servers import NameServers
from mailboat.client.queue_offsets import ConsumeFromWhere, QueueOffsets, StartPoint
from mailboat.client.routes import RouteCache
from mailboat.errors import BrokerError, RouteNotFoundError
from mailboat.model.message_queue import MessageQueue
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.remoting.client import RemotingClient

QUEUE = MessageQueue("T", "a", 1)
RETRY = MessageQueue("%RETRY%G", "a", 0)


@pytest.fixture
async def broker(make_peer, name_server):
    """Return a broker whose queues hold 5 to 9."""
    peer = await make_peer()
    peer.answer(
        RequestCode.GET_MIN_OFFSET, lambda command: command.response(0, ext_fields={"offset": 5})
    )
    peer.answer(
        RequestCode.GET_MAX_OFFSET, lambda command: command.response(0, ext_fields={"offset": 10})
    )
    peer.answer(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        lambda command: command.response(0, ext_fields={"offset": 7}),
    )
    for topic in (QUEUE.topic, RETRY.topic):
        name_server.set_route(topic, {"a": peer.address})
    return peer


@pytest.fixture
async def offsets(broker, name_server):
    """Return offsets asked from that broker."""
    remoting = RemotingClient()
    yield QueueOffsets(remoting, RouteCache(NameServers([name_server.address], remoting)))
    await remoting.close()


@pytest.mark.parametrize(
    ("where", "queue", "expected"),
    [
        (ConsumeFromWhere.FIRST_OFFSET, QUEUE, 5),
        (ConsumeFromWhere.LAST_OFFSET, QUEUE, 10),
        (ConsumeFromWhere.TIMESTAMP, QUEUE, 7),
        (ConsumeFromWhere.FIRST_OFFSET, RETRY, 5),
        (ConsumeFromWhere.LAST_OFFSET, RETRY, 5),
        (ConsumeFromWhere.TIMESTAMP, RETRY, 10),
    ],
)
async def test_new_group_begins_where_it_asks(offsets, where, queue, expected):
    """First, last or a time; a group's own failed messages are not skipped by `last`."""
    assert await offsets.start_of(queue, StartPoint(where, 1700000000000)) == expected


async def test_unset_offset_is_not_zero(offsets, broker):
    """Code 22 means that the group has no offset, and brokers are asked not to say 0 instead."""
    broker.answer(
        RequestCode.QUERY_CONSUMER_OFFSET,
        lambda command: command.response(ResponseCode.QUERY_NOT_FOUND, "none"),
    )
    assert await offsets.committed("G", QUEUE) is None
    (request,) = broker.asked(RequestCode.QUERY_CONSUMER_OFFSET)
    assert request.ext_fields == {
        "consumerGroup": "G", "topic": "T", "queueId": "1", "setZeroIfNotFound": "false",
        "bname": "a",
    }  # fmt: skip


async def test_other_refusals_are_errors(offsets, broker):
    """A broker that cannot answer must not look like a group without an offset."""
    broker.answer(RequestCode.QUERY_CONSUMER_OFFSET, lambda command: command.response(1, "trouble"))
    with pytest.raises(BrokerError, match="trouble"):
        await offsets.committed("G", QUEUE)


async def test_a_commit_is_answered(offsets, broker):
    """Commits ask for an answer, so that two of them cannot pass each other."""
    broker.answer(RequestCode.UPDATE_CONSUMER_OFFSET, lambda command: command.response(0))
    await offsets.commit("G", QUEUE, 7)
    (request,) = broker.asked(RequestCode.UPDATE_CONSUMER_OFFSET)
    assert (request.ext_fields["commitOffset"], request.is_oneway) == ("7", False)


async def test_unknown_broker_is_an_error(offsets, name_server):
    """A queue of a broker that nobody knows cannot be asked about."""
    with pytest.raises(RouteNotFoundError, match="broker z"):
        await offsets.minimum(MessageQueue("T", "z", 0))
