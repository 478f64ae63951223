import asyncio

import pytest

from mailboat.client import routes
from mailboat.client.name_servers import NameServers
from mailboat.client.routes import RouteCache, build_route
from mailboat.errors import NoWritableQueueError, RemoteProtocolError, RouteNotFoundError
from mailboat.model.message_queue import MessageQueue
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.route import BrokerData, QueueData, TopicRouteData
from mailboat.remoting.client import RemotingClient


@pytest.fixture
async def cache(name_server):
    """Return an empty cache in front of the name server."""
    remoting = RemotingClient()
    yield RouteCache(NameServers([name_server.address], remoting))
    await remoting.close()


def test_queues_are_sorted_and_split_by_permission():
    """Write queues need WRITE, read queues READ; both are in Java's order."""
    route = build_route(
        "T",
        TopicRouteData(
            [QueueData("b", 1, 2, 6), QueueData("a", 2, 2, 4), QueueData("c", 1, 1, 2)],
            [BrokerData("C", name, {0: f"{name}:1"}) for name in "abc"],
        ),
    )
    assert [str(queue) for queue in route.write_queues] == ["T@b:0", "T@b:1", "T@c:0"]
    assert [str(queue) for queue in route.read_queues] == ["T@a:0", "T@a:1", "T@b:0"]


def test_broker_without_master_takes_no_messages():
    """A broker of which only a slave is up can be read and not written."""
    data = TopicRouteData([QueueData("a", 1, 1, 6)], [BrokerData("C", "a", {1: "a:2"})])
    route = build_route("T", data)
    assert route.write_queues == ()
    assert len(route.read_queues) == 1


def test_order_configuration_names_the_queues():
    """An ordered topic is written to exactly the queues that its configuration names."""
    data = TopicRouteData(
        [QueueData("a", 8, 8, 6)], [BrokerData("C", "a", {0: "a:1"})], order_topic_conf="a:2;b:1"
    )
    route = build_route("T", data)
    assert [str(queue) for queue in route.write_queues] == ["T@a:0", "T@a:1", "T@b:0"]


@pytest.mark.parametrize("count", [100_001, (1 << 31) - 1])
def test_no_room_is_made_for_queues_without_number(count):
    """A name server may say anything."""
    brokers = [BrokerData("C", "a", {0: "a:1"})]
    with pytest.raises(RemoteProtocolError, match=f"T names {count} queues, a client takes 100000"):
        build_route("T", TopicRouteData([QueueData("a", count, 1, 6)], brokers))
    with pytest.raises(RemoteProtocolError, match=f"T names {count} queues"):
        build_route("T", TopicRouteData([QueueData("a", 1, count, 6)], brokers))
    halves = [QueueData("a", 60_000, 1, 6), QueueData("b", 60_000, 1, 6)]
    with pytest.raises(RemoteProtocolError, match="T names 120000 queues"):
        build_route("T", TopicRouteData(halves, brokers))
    assert build_route("T", TopicRouteData([QueueData("a", -1, -1, 6)], brokers)).read_queues == ()


@pytest.mark.parametrize("order", ["a:3000000000", "a:10001", f"a:{'9' * 5000}", "a", "a:-1", ":;"])
def test_an_odd_order_configuration_names_no_queue(order):
    """No number of it is taken at its word."""
    data = TopicRouteData(
        [QueueData("a", 8, 8, 6)], [BrokerData("C", "a", {0: "a:1"})], order_topic_conf=order
    )
    assert build_route("T", data).write_queues == ()


async def test_route_is_asked_for_once(cache, name_server):
    """Many callers at the same time and later ones share one question."""
    name_server.set_route("T", {"a": "127.0.0.1:1"})
    await asyncio.gather(*(cache.write_queues("T") for _ in range(20)))
    await cache.read_queues("T")
    assert len(name_server.requests) == 1


async def test_unknown_topic_borrows_the_default_route(cache, name_server):
    """A producer gets min(4, TBW102's) queues of the brokers that create topics."""
    name_server.set_route("TBW102", {"a": "127.0.0.1:1"}, queues=8, perm=7)
    queues = await cache.write_queues("New")
    assert queues == tuple(MessageQueue("New", "a", number) for number in range(4))


async def test_borrowed_route_is_replaced_soon(cache, name_server, monkeypatch):
    """Once the topic exists, its own route is used without waiting for the 30 s poll."""
    monkeypatch.setattr("mailboat.client.routes._MAKESHIFT_TTL_S", 0.0)
    name_server.set_route("TBW102", {"a": "127.0.0.1:1"}, queues=8, perm=7)
    assert len(await cache.write_queues("New")) == 4
    name_server.set_route("New", {"a": "127.0.0.1:1"}, queues=7)
    assert len(await cache.write_queues("New")) == 7


async def test_a_new_master_is_found_soon(cache, name_server, monkeypatch):
    """Producers that have found no master ask again with a send, not with the next poll only."""
    monkeypatch.setattr("mailboat.client.routes._MAKESHIFT_TTL_S", 0.0)
    name_server.set_route("T", {"a": "127.0.0.1:1"}, perm=4)
    with pytest.raises(NoWritableQueueError):
        await cache.write_queues("T")
    name_server.set_route("T", {"a": "127.0.0.1:2"})
    assert cache.known_write_queues("T") == ()
    assert await cache.write_queues("T")


async def test_consumers_do_not_borrow(cache, name_server):
    """A topic that nobody registered has no queues to read, whatever producers borrowed."""
    name_server.set_route("TBW102", {"a": "127.0.0.1:1"}, perm=7)
    await cache.write_queues("New")
    with pytest.raises(RouteNotFoundError, match="New"):
        await cache.read_queues("New")


async def test_no_default_topic_is_an_error(cache):
    """Without a topic and without TBW102 there is nowhere to send."""
    with pytest.raises(RouteNotFoundError, match="create it"):
        await cache.write_queues("New")


async def test_topic_without_write_permission(cache, name_server):
    """A read-only topic is another error than an unknown one."""
    name_server.set_route("T", {"a": "127.0.0.1:1"}, perm=4)
    with pytest.raises(NoWritableQueueError, match="permission"):
        await cache.write_queues("T")


async def test_refresh_tells_listeners_only_of_changes(cache, name_server):
    """Listeners hear of the first route and of changed ones, not of equal ones."""
    heard: list[str] = []
    cache.on_change.append(heard.append)
    name_server.set_route("T", {"a": "127.0.0.1:1"})
    await cache.write_queues("T")
    await cache.refresh_all()
    assert heard == ["T"]
    name_server.set_route("T", {"a": "127.0.0.1:1"}, queues=5)
    await cache.refresh_all()
    assert heard == ["T", "T"]
    assert len(await cache.write_queues("T")) == 5


async def test_moved_broker_is_found_again(cache, name_server):
    """After a refresh the address is the new one, though another topic's route is older."""
    name_server.set_route("T", {"a": "127.0.0.1:1"})
    name_server.set_route("U", {"a": "127.0.0.1:1"})
    (queue, *_) = await cache.write_queues("T")
    await cache.write_queues("U")
    name_server.set_route("T", {"a": "127.0.0.1:2"})
    await cache.refresh("T")
    assert await cache.master_address(queue) == "127.0.0.1:2"


async def test_vanished_topic_keeps_its_old_route(cache, name_server):
    """A name server that lost a topic for a moment does not stop the client."""
    name_server.set_route("T", {"a": "127.0.0.1:1"})
    await cache.write_queues("T")
    del name_server.routes["T"]
    await cache.refresh_all()
    assert len(await cache.write_queues("T")) == 2


async def test_route_of_a_deleted_topic_brings_no_dead_address_back(cache, name_server):
    """A broker moved after a topic was deleted; then another broker appears in other routes."""
    for topic in ("orders", "both", "old"):
        name_server.set_route(topic, {"a": "10.0.0.1:1"})
        await cache.write_queues(topic)
    (queue, *_) = await cache.write_queues("orders")
    del name_server.routes["old"]
    name_server.set_route("orders", {"a": "10.0.0.2:1"})
    name_server.set_route("both", {"a": "10.0.0.2:1", "b": "10.0.0.3:1"})
    await cache.refresh("orders")
    assert await cache.master_address(queue) == "10.0.0.2:1"
    await cache.refresh_all()
    assert await cache.master_address(queue) == "10.0.0.2:1"
    assert cache.topic_addresses("old") == ["10.0.0.2:1"]
    assert cache.broker_addresses(masters_only=True) == ["10.0.0.2:1", "10.0.0.3:1"]


async def test_answer_that_says_nothing_new_of_its_topic_still_tells_addresses(cache, name_server):
    """Name servers differ for a while: the newest answer wins, whatever topic it is for."""
    name_server.set_route("T", {"a": "10.0.0.2:1"})
    (queue, *_) = await cache.write_queues("T")
    name_server.set_route("U", {"a": "10.0.0.1:1"})
    await cache.write_queues("U")
    assert await cache.master_address(queue) == "10.0.0.1:1"
    heard: list[str] = []
    cache.on_change.append(heard.append)
    await cache.refresh("T")
    assert await cache.master_address(queue) == "10.0.0.2:1"
    assert heard == ["T"]


async def test_slow_answer_of_an_earlier_question_tells_no_address(cache, name_server):
    """The answer that comes last may be the older one."""
    name_server.set_route("T", {"a": "10.0.0.1:1"})
    name_server.set_route("U", {"a": "10.0.0.2:1"})
    may_answer = name_server.held["T"] = asyncio.Event()
    reading = asyncio.ensure_future(cache.read_queues("T"))
    await name_server.wait_asked(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    await cache.read_queues("U")
    may_answer.set()
    (queue, *_) = await reading
    assert await cache.master_address(queue) == "10.0.0.2:1"


async def test_topic_that_stays_away_is_no_reason_for_heartbeats(
    cache, name_server, monkeypatch: pytest.MonkeyPatch
):
    """After two minutes; until then a name server may just have lost it."""
    name_server.set_route("T", {"a": "10.0.0.1:1"})
    name_server.set_route("U", {"b": "10.0.0.2:1"})
    (queue, *_) = await cache.write_queues("T")
    await cache.write_queues("U")
    del name_server.routes["T"]
    await cache.refresh_all()
    assert cache.broker_addresses(masters_only=True) == ["10.0.0.1:1", "10.0.0.2:1"]
    monkeypatch.setattr(routes, "GONE_AFTER_S", 0.0)
    assert cache.broker_addresses(masters_only=True) == ["10.0.0.2:1"]
    assert await cache.master_address(queue) == "10.0.0.1:1"
    name_server.set_route("T", {"a": "10.0.0.1:1"})
    await cache.refresh_all()
    assert cache.broker_addresses(masters_only=True) == ["10.0.0.1:1", "10.0.0.2:1"]


async def test_broker_that_no_route_names_is_forgotten(cache, name_server):
    """A broker that was taken out of every topic gets no heartbeats any more."""
    name_server.set_route("T", {"a": "10.0.0.1:1", "b": "10.0.0.2:1"})
    await cache.write_queues("T")
    name_server.set_route("T", {"b": "10.0.0.2:1"})
    await cache.refresh_all()
    assert cache.broker_addresses(masters_only=False) == ["10.0.0.2:1"]


async def test_reads_go_where_the_broker_suggests(cache, name_server):
    """A suggested slave is used while it is known, else the master, else anybody."""
    brokers = [BrokerData("C", "a", {0: "m:1", 1: "s:1"}), BrokerData("C", "b", {2: "s:2"})]
    queues = [QueueData("a", 1, 1, 6), QueueData("b", 1, 1, 6)]
    name_server.routes["T"] = TopicRouteData(queues, brokers)
    first, second = await cache.read_queues("T")
    assert await cache.read_address(first, 1) == "s:1"
    assert await cache.read_address(first, 7) == "m:1"
    assert await cache.read_address(second, 0) == "s:2"
    assert cache.broker_addresses(masters_only=True) == ["m:1"]
    assert sorted(cache.broker_addresses(masters_only=False)) == ["m:1", "s:1", "s:2"]
