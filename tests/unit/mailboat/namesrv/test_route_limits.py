"""Who may have how much of the route table, and whose a name is."""

from dataclasses import replace

import pytest
from route_examples import MASTER, OTHER, SLAVE, found, queue

import mailboat.namesrv.route_info as route_info
from mailboat.errors import BrokerError, PlaceTakenError
from mailboat.model.data_version import DataVersion
from mailboat.model.topic import TopicConfig
from mailboat.namesrv.registrations import BrokerAddress
from mailboat.namesrv.route_info import ROUTE_BYTES, RouteInfoManager
from mailboat.protocol.route import QueueData
from mailboat.testing.virtual_time import VirtualTime


def _host(number: int) -> str:
    return f"192.0.2.{number}"


def test_all_connections_register_only_so_many_brokers(
    clock: VirtualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every answer about a cluster names all of them; those that are known go on."""
    monkeypatch.setattr(route_info, "MAX_BROKERS_IN_ALL", 4)
    routes = RouteInfoManager(clock=clock.monotonic)
    for number in range(4):
        one = replace(MASTER, broker_name=f"b{number}", address=f"h:{number}", host=_host(number))
        routes.register(one, number)
    more = replace(MASTER, broker_name="more", address="h:more", host=_host(9))
    with pytest.raises(BrokerError, match=r"so many brokers .* would exceed the limit, 4 in all"):
        routes.register(more, "other")
    routes.register(replace(MASTER, broker_name="b0", address="h:0", host=_host(0)), 0)
    routes.connection_closed(1)
    routes.register(more, "other")
    assert routes.broker_count() == 4


def test_one_address_takes_a_quarter_of_the_places(
    clock: VirtualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By many connections, also by brokers that are away; they have room for others again."""
    monkeypatch.setattr(route_info, "MAX_BROKERS_IN_ALL", 8)
    routes = RouteInfoManager(clock=clock.monotonic)
    for number in range(2):
        one = replace(
            MASTER, broker_name=f"b{number}", address=f"h:{number}", host=_host(1),
            route_kept_s=3600.0,
        )  # fmt: skip
        routes.register(one, number)
        routes.connection_closed(number)
    more = replace(MASTER, broker_name="more", address="h:more", host=_host(1))
    with pytest.raises(BrokerError, match=r"the limit, 2 for the address 192\.0\.2\.1"):
        routes.register(more, "m")
    routes.register(replace(OTHER, host=_host(2)), "o")
    # One of them moves, and makes room where it was.
    routes.register(replace(MASTER, broker_name="b1", address="h:1", host=_host(3)), "moved")
    routes.register(more, "m")
    clock.advance(3601)
    routes.drop_silent()
    routes.register(replace(more, broker_name="another", address="h:another"), "m")


def _many(*numbers: int) -> dict[str, TopicConfig]:
    return {f"t{number:05d}": TopicConfig(f"t{number:05d}") for number in numbers}


def test_the_topics_of_an_address_have_a_bound(
    clock: VirtualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever registers ever new ones, or adds them one by one, is told; those before stay, and
    others have room."""
    monkeypatch.setattr(route_info, "MAX_ROUTE_BYTES", 400 * (ROUTE_BYTES + 6))
    routes = RouteInfoManager(clock=clock.monotonic)
    first = replace(MASTER, topics=_many(*range(60)))
    routes.register(first, "m")
    other = replace(OTHER, topics=_many(*range(30, 90)))
    with pytest.raises(BrokerError, match="not all topics of broker b have a route"):
        routes.register(other, "o")
    assert len(found(routes.topics())) == 70
    assert routes.data_version(BrokerAddress("c", OTHER.address)) is None
    # What it has is taken again, and another version of it.
    routes.register(replace(first, data_version=DataVersion(2, 1000)), "m")
    added = QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=1, perm=6)
    with pytest.raises(BrokerError, match="not all topics of broker a have a route"):
        routes.add_topic("t99999", [added])
    routes.delete_topic("t00000")
    routes.add_topic("t99999", [added])
    with pytest.raises(BrokerError, match="not all topics of broker a have a route"):
        routes.register(replace(first, data_version=DataVersion(3, 1000)), "m")
    routes.register(replace(other, host=_host(2), data_version=DataVersion(2, 1000)), "o")
    assert routes.route("t00089") is not None
    # What broker b has is counted at its new address, and its old one has room again.
    routes.register(replace(first, data_version=DataVersion(4, 1000)), "m")


def test_the_topics_of_all_brokers_have_a_bound(
    clock: VirtualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four addresses can take all there is."""
    monkeypatch.setattr(route_info, "MAX_ROUTE_BYTES", 40 * (ROUTE_BYTES + 6))
    routes = RouteInfoManager(clock=clock.monotonic)
    for number in range(5):
        one = replace(
            MASTER, broker_name=f"b{number}", address=f"h:{number}", host=_host(number),
            topics=_many(*range(10)),
        )  # fmt: skip
        if number < 4:
            routes.register(one, number)
            continue
        with pytest.raises(BrokerError, match=f"{40 * (ROUTE_BYTES + 6)} in all: not all topics"):
            routes.register(one, number)


@pytest.mark.parametrize("how", ["delete", "leave", "leave out", "come back"])
def test_topics_that_are_gone_make_room(
    clock: VirtualTime, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """However they went, the next ones are taken; again and again."""
    monkeypatch.setattr(route_info, "MAX_ROUTE_BYTES", 8_000 * (ROUTE_BYTES + 6))
    routes = RouteInfoManager(clock=clock.monotonic)
    for number in range(5):
        topics = _many(*range(number * 2_000, (number + 1) * 2_000))
        version = DataVersion(number, 1000)
        routes.delete_unlisted_topics = how == "leave out"
        routes.register(replace(MASTER, topics=topics, data_version=version), "m")
        assert sorted(found(routes.topics())) == sorted(topics)
        if how == "leave":
            routes.unregister(BrokerAddress("c", MASTER.address), "a")
            assert list(routes.clean())
        elif how == "come back":
            routes.unregister(BrokerAddress("c", MASTER.address), "a", route_kept_s=60)
        elif how == "delete":
            for topic in topics:
                routes.delete_topic(topic)


def test_topics_that_are_left_out_go_in_slices(routes: RouteInfoManager) -> None:
    """Hundreds of thousands may, and each takes a few microseconds."""
    routes.register(replace(MASTER, topics=_many(*range(5_000))), "m")
    routes.delete_unlisted_topics = True
    fewer = replace(MASTER, topics=_many(1, 2), data_version=DataVersion(2, 1000))
    counts = [routes.topic_count() for _ in routes.register_in_steps(fewer, "m")]
    assert counts[:10] == [4_502, *range(4_002, 0, -500), 2][:10]
    assert sorted(found(routes.topics())) == sorted(fewer.topics)


@pytest.mark.parametrize("how", ["away", "silent", "same connection", "same store"])
def test_a_name_moves_to_another_cluster_once_nobody_has_it(
    routes: RouteInfoManager, clock: VirtualTime, how: str
) -> None:
    """Its brokers there have no routes any more."""
    routes.register(replace(MASTER, route_kept_s=600.0, identity="store"), "m")
    moved = replace(MASTER, cluster_name="d", address="10.0.0.9:10911")
    with pytest.raises(PlaceTakenError, match=r"is taken by cluster c, of which 10\.0\.0\.1:10911"):
        routes.register(moved, "n")
    connection = "m" if how == "same connection" else "n"
    if how == "away":
        routes.connection_closed("m")
    elif how == "silent":
        clock.advance(route_info.HEARD_S + 1)
    elif how == "same store":
        moved = replace(moved, identity="store")
    routes.register(moved, connection)
    info = routes.cluster_info()
    assert info.cluster_addr_table == {"d": ["a"]}
    assert info.broker_addr_table["a"].broker_addrs == {0: "10.0.0.9:10911"}
    route = routes.route("T")
    assert route is not None
    assert [each.cluster for each in route.broker_datas] == ["d"]


@pytest.mark.parametrize("count", [-1, 10_001, (1 << 31) - 1])
def test_clients_are_told_of_so_many_queues_only(
    routes: RouteInfoManager, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a broker or an administrator says: each client makes room for each of them."""
    fitting = 0 if count < 0 else 10_000
    topics = {"T": TopicConfig("T", count, 1), "U": TopicConfig("U")}
    routes.register(replace(MASTER, topics=topics), "m")
    assert queue(routes, "T").read_queue_nums == fitting
    routes.add_topic("X", [QueueData("a", 1, count, 6)])
    assert queue(routes, "X").write_queue_nums == fitting
    assert "1 topics have names" in caplog.text


def test_a_very_long_name_gets_no_route(routes: RouteInfoManager) -> None:
    """It could be 64 KiB, for each topic."""
    names = {"n" * 512: TopicConfig("n" * 512), "n" * 513: TopicConfig("n" * 513)}
    routes.register(replace(MASTER, topics=names), "m")
    assert found(routes.topics()) == ["n" * 512]


def test_an_elected_group_keeps_its_name_from_another_cluster(routes: RouteInfoManager) -> None:
    """State versions say something within a group only."""
    routes.register(replace(MASTER, data_version=DataVersion(1, 1000, 3)), "m")
    with pytest.raises(PlaceTakenError, match="is taken by cluster c"):
        routes.register(replace(MASTER, cluster_name="d", address="10.0.0.9:10911"), "n")


def test_who_is_refused_takes_no_name_of_another_cluster(routes: RouteInfoManager) -> None:
    """The routes of the broker that is away stay."""
    routes.register(replace(MASTER, route_kept_s=600.0), "m")
    routes.connection_closed("m")
    one = {"T": TopicConfig("T")}
    with pytest.raises(BrokerError, match="must register all of its topics"):
        routes.register(
            replace(MASTER, cluster_name="d", address="10.0.0.9:10911", topics=one), "n"
        )
    assert routes.route("U") is not None


def test_a_master_at_another_address_than_its_slave_is_taken(routes: RouteInfoManager) -> None:
    """The slave came first, of whose topics nothing is counted; both go again."""
    routes.register(replace(SLAVE, host=_host(1)), "s")
    routes.register(replace(MASTER, host=_host(2)), "m")
    assert routes.route("T") is not None
    routes.connection_closed("m")
    routes.connection_closed("s")
    assert routes.cluster_info().broker_addr_table == {}
    routes.register(replace(SLAVE, host=_host(1)), "s")
    routes.connection_closed("s")
    assert routes.broker_count() == 0
