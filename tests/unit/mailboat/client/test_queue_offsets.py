import asyncio

import pytest

from mailboat.client.name_servers import NameServers
from mailboat.client.queue_offsets import ConsumeFromWhere, QueueOffsets, StartPoint
from mailboat.client.routes import RouteCache
from mailboat.errors import BrokerError, RequestTimeoutError, RouteNotFoundError
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


@pytest.mark.parametrize(
    ("told", "where", "queue", "expected"),
    [
        ({"maxOffset": 8}, ConsumeFromWhere.LAST_OFFSET, QUEUE, 8),
        ({}, ConsumeFromWhere.LAST_OFFSET, QUEUE, 10),
        ({"maxOffset": 8}, ConsumeFromWhere.LAST_OFFSET, RETRY, 5),
        ({"maxOffset": 8}, ConsumeFromWhere.FIRST_OFFSET, QUEUE, 5),
        ({"maxOffset": 8}, ConsumeFromWhere.TIMESTAMP, QUEUE, 7),
    ],
)
async def test_what_comes_between_two_questions_is_not_skipped(
    offsets, broker, told, where, queue, expected
):
    """The answer that there is no offset says where the end was, 8; the next one would say 10."""
    broker.answer(
        RequestCode.QUERY_CONSUMER_OFFSET,
        lambda command: command.response(ResponseCode.QUERY_NOT_FOUND, "none", told),
    )
    position = await offsets.position("G", queue)
    assert await offsets.first_of(queue, StartPoint(where), position) == expected


async def test_queue_that_came_later_is_read_from_the_first_look_on(offsets, broker):
    """Its end, 8 or 10, lies behind messages that were sent while the group was there."""
    broker.answer(
        RequestCode.QUERY_CONSUMER_OFFSET,
        lambda command: command.response(ResponseCode.QUERY_NOT_FOUND, "none", {"maxOffset": 8}),
    )
    last = StartPoint(ConsumeFromWhere.LAST_OFFSET)
    position = await offsets.position("G", QUEUE)
    assert await offsets.first_of(QUEUE, last, position, 1700000000000) == 7
    assert await offsets.first_of(RETRY, last, position, 1700000000000) == 5
    assert await offsets.first_of(QUEUE, last, position._replace(stored=3), 1700000000000) == 3


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


async def test_a_broker_makes_one_table_for_the_first_offsets(offsets, broker):
    """Java brokers lose an offset when two threads make the group's table of a topic at once."""
    tables: dict[str, dict[str, str]] = {}

    async def commit_as_java(command):
        fields = command.ext_fields
        table = tables.get(fields["topic"], {})
        # Other threads run here; what they found missing they will put over ours.
        await asyncio.sleep(0.02)
        table[fields["queueId"]] = fields["commitOffset"]
        tables[fields["topic"]] = table
        return command.response(0)

    broker.answer(RequestCode.UPDATE_CONSUMER_OFFSET, commit_as_java)
    queues = [MessageQueue(topic, "a", i) for topic in (QUEUE.topic, RETRY.topic) for i in range(5)]
    assert await offsets.commit_all("G", {queue: queue.queue_id + 7 for queue in queues}) == {}
    expected = {str(i): str(i + 7) for i in range(5)}
    assert tables == {QUEUE.topic: expected, RETRY.topic: expected}


async def test_a_queue_that_is_not_stored_holds_up_no_other(offsets, broker):
    """Refusals and silence are told by queue; what could be stored is."""

    async def refuse_some(command):
        if command.ext_fields["queueId"] == "1":
            return command.response(1, "trouble")
        if command.ext_fields["queueId"] == "2":
            await asyncio.sleep(5)
        return command.response(0)

    broker.answer(RequestCode.UPDATE_CONSUMER_OFFSET, refuse_some)
    queues = [MessageQueue("T", "a", i) for i in range(4)]
    failures = await offsets.commit_all("G", dict.fromkeys(queues, 7), timeout_s=0.5)
    assert failures.keys() == {queues[1], queues[2]}
    assert isinstance(failures[queues[1]], BrokerError)
    assert isinstance(failures[queues[2]], RequestTimeoutError)


async def test_unknown_broker_is_an_error(offsets, name_server):
    """A queue of a broker that nobody knows cannot be asked about."""
    with pytest.raises(RouteNotFoundError, match="broker z"):
        await offsets.minimum(MessageQueue("T", "z", 0))
