"""The route table: what registrations, silence and lost connections do to the routes."""

import itertools
from dataclasses import replace

import pytest
from route_examples import FOREIGN, MASTER, OTHER, SLAVE, found, queue

from mailboat.errors import BrokerError, PlaceTakenError
from mailboat.model.data_version import DataVersion
from mailboat.model.topic import TopicConfig
from mailboat.namesrv.registrations import BrokerAddress, Registration
from mailboat.namesrv.route_info import MAX_BROKERS, RouteInfoManager
from mailboat.protocol.route import BrokerData, QueueData
from mailboat.testing.virtual_time import VirtualTime


def test_a_registered_topic_has_a_route(routes: RouteInfoManager) -> None:
    """The route holds the broker's address by id and the queue numbers it registered."""
    routes.register(MASTER, "connection")
    route = routes.route("T")
    assert route is not None
    assert route.broker_datas == [BrokerData("c", "a", {0: "10.0.0.1:10911"})]
    assert route.queue_datas == [QueueData("a", 4, 3, 6, 0)]
    assert routes.route("unknown") is None


def test_the_brokers_of_a_topic_share_its_route(routes: RouteInfoManager) -> None:
    """Each broker name adds its queues; slaves join the master's entry."""
    for registration in (MASTER, SLAVE, OTHER):
        routes.register(registration, registration)
    route = routes.route("T")
    assert route is not None
    assert route.broker_datas == [
        BrokerData("c", "a", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}),
        BrokerData("c", "b", {0: "10.0.0.3:10911"}),
    ]
    assert [item.broker_name for item in route.queue_datas] == ["a", "b"]


def test_a_slave_is_told_its_master(routes: RouteInfoManager) -> None:
    """Only a slave whose master is registered gets addresses."""
    assert routes.register(SLAVE, "s").address is None
    assert routes.register(MASTER, "m").address is None
    assert routes.register(SLAVE, "s") == ("10.0.0.1:10911", "10.0.0.1:10912")


def test_only_the_masters_topics_count(routes: RouteInfoManager) -> None:
    """A slave's table is a copy that may be old."""
    routes.register(MASTER, "m")
    old_copy = {"T": TopicConfig("T", 1, 1), "OLD": TopicConfig("OLD")}
    routes.register(replace(SLAVE, topics=old_copy), "s")
    assert queue(routes, "T").read_queue_nums == 4
    assert routes.route("OLD") is None


def test_a_new_version_changes_the_queues(routes: RouteInfoManager) -> None:
    """The same version changes nothing, another one does, whatever its number."""
    routes.register(MASTER, "m")
    wider = {"T": TopicConfig("T", 8, 8), "U": TopicConfig("U", 1, 1)}
    routes.register(replace(MASTER, topics=wider), "m")
    assert queue(routes, "T").write_queue_nums == 3
    routes.register(replace(MASTER, topics=wider, data_version=DataVersion(0, 999)), "m")
    assert queue(routes, "T").write_queue_nums == 8


def test_one_new_topic_may_be_registered_alone(routes: RouteInfoManager) -> None:
    """A broker that made a topic sends that one only; the others keep their routes."""
    routes.register(MASTER, "m")
    alone = replace(MASTER, topics={"N": TopicConfig("N")}, data_version=DataVersion(2, 1001))
    routes.register(alone, "m")
    assert sorted(found(routes.topics())) == ["N", "T", "U"]


def test_one_topic_is_refused_as_the_first_word_of_a_broker(routes: RouteInfoManager) -> None:
    """As RocketMQ: it would pass for all of the broker's topics until its version changes."""
    with pytest.raises(BrokerError, match="must register all of its topics") as caught:
        routes.register(replace(MASTER, topics={"N": TopicConfig("N")}), "m")
    assert caught.value.code == 1
    assert routes.cluster_info().broker_addr_table == {}
    assert routes.broker_count() == 0


def test_a_broker_name_belongs_to_one_cluster(routes: RouteInfoManager) -> None:
    """Two clusters with one broker name would mix their messages; the second is told to change."""
    routes.register(MASTER, "m")
    with pytest.raises(BrokerError, match="is taken by cluster c"):
        routes.register(replace(MASTER, cluster_name="d", address="10.9.9.9:1"), "x")
    assert routes.broker_addresses("a") == {0: "10.0.0.1:10911"}


def test_two_clusters_may_use_the_same_address(routes: RouteInfoManager) -> None:
    """A private address is not unique; unregistering one leaves the other."""
    routes.register(MASTER, "m")
    routes.register(replace(FOREIGN, address=MASTER.address), "f")
    routes.unregister(BrokerAddress("d", MASTER.address), "x")
    routes.unregister(BrokerAddress("d", MASTER.address), "a")
    assert routes.broker_addresses("a") == {0: MASTER.address}
    assert routes.broker_addresses("x") == {}


def test_a_changed_address_replaces_the_old_one(routes: RouteInfoManager) -> None:
    """A broker that moved has one address; what remains of the old one does not end the new one."""
    routes.register(replace(MASTER, identity="x"), "old")
    moved = replace(MASTER, address="10.0.0.9:10911", identity="x")
    routes.register(moved, "new")
    routes.connection_closed("old")
    assert routes.broker_addresses("a") == {0: "10.0.0.9:10911"}
    assert routes.route("T") is not None


RIVAL = replace(MASTER, address="10.0.0.9:10911")


@pytest.mark.parametrize(
    ("first", "second"), [("", ""), ("x", "y"), ("x", ""), ("", "y")], ids=lambda text: text or "-"
)
def test_another_broker_of_the_name_does_not_take_the_place(
    routes: RouteInfoManager, clock: VirtualTime, first: str, second: str
) -> None:
    """While the first one lives, the second one is told who that is; no route changes."""
    routes.register(replace(MASTER, identity=first), "m")
    for _ in range(5):
        clock.advance(30)
        with pytest.raises(PlaceTakenError, match="which lives: give this broker") as caught:
            routes.register(replace(RIVAL, topics={}, identity=second), "rival")
        assert caught.value.held_by == "10.0.0.1:10911"
        routes.register(replace(MASTER, identity=first), "m")
    assert routes.broker_addresses("a") == {0: "10.0.0.1:10911"}
    assert sorted(found(routes.topics())) == ["T", "U"]
    assert routes.data_version(RIVAL.key) is None
    routes.unregister(RIVAL.key, "a")
    assert routes.broker_addresses("a") == {0: "10.0.0.1:10911"}


@pytest.mark.parametrize("how", ["closed", "unregistered", "away", "silent", "own time", "elected"])
def test_the_place_of_a_broker_that_is_gone_is_free(
    routes: RouteInfoManager, clock: VirtualTime, how: str
) -> None:
    """Its connection ended, it said so, or it was not heard for longer than a broker is silent; so
    a broker of any kind may move. One with a newer state was elected."""
    first = replace(MASTER, route_kept_s=60.0 if how == "away" else 0.0)
    first = replace(first, expired_timeout_s=10.0) if how == "own time" else first
    routes.register(first, "m")
    version = MASTER.data_version
    match how:
        case "closed" | "away":
            routes.connection_closed("m")
        case "unregistered":
            routes.unregister(MASTER.key, "a")
        case "silent":
            clock.advance(65.1)
        case "own time":
            clock.advance(10.1)
        case "elected":
            version = replace(version, state_version=1)
    routes.register(replace(RIVAL, data_version=version), "rival")
    assert routes.broker_addresses("a") == {0: "10.0.0.9:10911"}


def test_one_connection_may_bring_another_address(routes: RouteInfoManager) -> None:
    """It is the same process."""
    routes.register(MASTER, "m")
    routes.register(RIVAL, "m")
    assert routes.broker_addresses("a") == {0: "10.0.0.9:10911"}


def test_an_older_state_does_not_replace_a_newer_one(routes: RouteInfoManager) -> None:
    """With a lower stateVersion another address is not taken for the same broker id."""
    routes.register(replace(MASTER, data_version=DataVersion(1, 1, state_version=2)), "m")
    late = replace(
        MASTER, address="10.0.0.9:10911", data_version=DataVersion(9, 9, state_version=1)
    )
    routes.register(late, "late")
    assert routes.broker_addresses("a") == {0: "10.0.0.1:10911"}
    assert routes.broker_count() == 1


def test_a_slave_that_calls_itself_an_older_master_is_in_no_route(
    routes: RouteInfoManager,
) -> None:
    """Nobody would notice when it goes; with its next registration as a slave it is back."""
    routes.register(replace(MASTER, data_version=DataVersion(1, 1, state_version=2)), "m")
    routes.register(SLAVE, "s")
    older = replace(SLAVE, broker_id=0, data_version=DataVersion(9, 9, state_version=1))
    routes.register(older, "s")
    assert routes.broker_addresses("a") == {0: "10.0.0.1:10911"}
    routes.register(SLAVE, "s")
    assert routes.broker_addresses("a") == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}
    routes.connection_closed("s")
    assert routes.broker_addresses("a") == {0: "10.0.0.1:10911"}


def _elected(registration: Registration, state_version: int, counter: int = 1) -> Registration:
    return replace(registration, data_version=DataVersion(counter, 1, state_version))


@pytest.mark.parametrize("address", ["10.0.0.1:10911", "10.0.0.9:10911"])
@pytest.mark.parametrize("how", ["lives", "away", "gone"])
def test_a_deposed_master_is_passed_over(routes: RouteInfoManager, how: str, address: str) -> None:
    """At its old address or the new one's, also while the new one is away, slaves being there."""
    routes.register(_elected(SLAVE, 17), "s")
    newer = replace(_elected(MASTER, 17), route_kept_s=60.0 if how == "away" else 0.0)
    routes.register(newer, "m")
    if how != "lives":
        routes.connection_closed("m")
    before, count = routes.broker_addresses("a"), routes.broker_count()
    stale = replace(_elected(MASTER, 8, 99), address=address, topics={})
    routes.register(stale, "stale")
    routes.connection_closed("stale")
    assert routes.broker_count() == count
    assert routes.broker_addresses("a") == before
    assert queue(routes, "T").write_queue_nums == 3
    routes.register(_elected(MASTER, 17, 2), "back")
    assert routes.broker_addresses("a") == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}


def test_an_elected_master_is_taken_while_the_old_one_registers(routes: RouteInfoManager) -> None:
    """However long the old one's topics take to be read."""
    many = {f"t-{number}": TopicConfig(f"t-{number}") for number in range(2_000)}
    steps = routes.register_in_steps(replace(_elected(MASTER, 8), topics=many), "m")
    next(steps)
    routes.register(_elected(replace(SLAVE, broker_id=0), 17), "s")
    for _ in steps:
        pass
    assert routes.broker_addresses("a") == {0: "10.0.0.2:10911"}


def test_a_master_that_is_replaced_while_it_registers_stops_no_cleaning(
    routes: RouteInfoManager,
) -> None:
    """The other one takes its number, and leaves before the first is done."""
    many = {f"t-{number}": TopicConfig(f"t-{number}") for number in range(2_000)}
    steps = routes.register_in_steps(replace(_elected(MASTER, 8), topics=many), "m")
    next(steps)
    other = _elected(replace(MASTER, address="10.0.0.9:10911"), 17)
    routes.register(other, "other")
    routes.unregister(other.key, "a")
    cleaning = routes.clean()
    next(cleaning, None)
    for _ in steps:
        pass
    for _ in cleaning:
        pass
    routes.register(OTHER, "b")
    routes.unregister(OTHER.key, "b")
    for _ in routes.clean():
        pass
    assert found(routes.topics()) == []


def test_a_slave_changes_no_topic(routes: RouteInfoManager) -> None:
    """Whatever it says of them, and however new that is."""
    routes.register(MASTER, "m")
    topics = {"T": TopicConfig("T", 9, 9), "mine": TopicConfig("mine")}
    routes.register(replace(_elected(SLAVE, 17), topics=topics), "s")
    assert queue(routes, "T").write_queue_nums == 3
    assert "mine" not in found(routes.topics())


def test_a_slave_that_became_master_leaves_its_old_number(routes: RouteInfoManager) -> None:
    """One address has one broker id."""
    routes.register(MASTER, "m")
    routes.register(SLAVE, "s")
    routes.unregister(MASTER.key, "a")
    routes.register(replace(SLAVE, broker_id=0), "s")
    assert routes.broker_addresses("a") == {0: "10.0.0.2:10911"}


def test_unregistering_the_last_address_ends_broker_cluster_and_topics(
    routes: RouteInfoManager,
) -> None:
    """Nothing remains of a broker name without addresses; others keep the topic."""
    routes.register(MASTER, "m")
    routes.register(OTHER, "o")
    routes.register(FOREIGN, "f")
    routes.unregister(FOREIGN.key, "x")
    routes.unregister(MASTER.key, "a")
    info = routes.cluster_info()
    assert info.cluster_addr_table == {"c": ["b"]}
    assert list(info.broker_addr_table) == ["b"]
    assert [item.broker_name for item in routes.route("T").queue_datas] == ["b"]  # type: ignore[union-attr]
    routes.unregister(OTHER.key, "b")
    assert found(routes.topics()) == []
    assert routes.cluster_info().cluster_addr_table == {}


def test_a_group_without_master_keeps_its_routes(routes: RouteInfoManager) -> None:
    """Consumers may go on reading from a slave."""
    routes.register(MASTER, "m")
    routes.register(SLAVE, "s")
    routes.connection_closed("m")
    route = routes.route("T")
    assert route is not None
    assert route.broker_datas == [BrokerData("c", "a", {1: "10.0.0.2:10911"})]


def test_unregistering_an_unknown_broker_is_fine(routes: RouteInfoManager) -> None:
    """A broker that says good-bye twice breaks nothing."""
    routes.unregister(MASTER.key, "a")
    assert routes.broker_count() == 0


def test_a_closed_connection_drops_its_brokers_only(routes: RouteInfoManager) -> None:
    """Others stay; a broker that came back on a new connection is not dropped with the old one."""
    routes.register(MASTER, "old")
    routes.register(OTHER, "o")
    routes.register(MASTER, "new")
    routes.connection_closed("old")
    assert routes.broker_addresses("a") != {}
    routes.connection_closed("new")
    assert routes.broker_addresses("a") == {}
    assert routes.broker_addresses("b") != {}


def test_silence_drops_a_broker_and_names_its_connection(
    routes: RouteInfoManager, clock: VirtualTime
) -> None:
    """120 s without a word end a broker's routes, 120 s exactly do not."""
    routes.register(MASTER, "m")
    clock.advance(60)
    routes.register(OTHER, "o")
    clock.advance(60)
    assert routes.drop_silent() == []
    clock.advance(0.1)
    assert routes.drop_silent() == ["m"]
    assert routes.broker_addresses("a") == {}
    assert routes.broker_addresses("b") != {}


def test_a_sign_of_life_counts_as_much_as_a_registration(
    routes: RouteInfoManager, clock: VirtualTime
) -> None:
    """A refresh of a known broker restarts its time; of an unknown one it is nothing."""
    routes.register(MASTER, "m")
    clock.advance(119)
    routes.refresh(MASTER.key)
    routes.refresh(OTHER.key)
    clock.advance(119)
    assert routes.drop_silent() == []
    assert routes.broker_count() == 1


def test_a_broker_may_name_its_own_time(routes: RouteInfoManager, clock: VirtualTime) -> None:
    """RocketMQ 5 brokers send heartbeatTimeoutMillis."""
    routes.register(replace(MASTER, expired_timeout_s=10.0), "m")
    clock.advance(10.1)
    assert routes.drop_silent() == ["m"]


def test_versions_tell_whether_a_registration_is_needed(routes: RouteInfoManager) -> None:
    """Unknown brokers and other versions count as changed."""
    assert routes.is_changed(MASTER.key, MASTER.data_version)
    routes.register(MASTER, "m")
    assert not routes.is_changed(MASTER.key, DataVersion(1, 1000))
    assert routes.is_changed(MASTER.key, DataVersion(1, 1001))
    assert routes.data_version(MASTER.key) == DataVersion(1, 1000)
    assert routes.data_version(OTHER.key) is None


def test_write_permission_is_taken_and_given_back(routes: RouteInfoManager) -> None:
    """Wiping leaves READ, giving back sets READ and WRITE; both count the broker's topics."""
    routes.register(MASTER, "m")
    routes.register(OTHER, "o")
    assert routes.set_write_permission("a", writable=False) == 2
    assert (queue(routes, "T").perm, queue(routes, "T", "b").perm) == (4, 6)
    assert routes.set_write_permission("a", writable=True) == 2
    assert queue(routes, "T").perm == 6
    assert routes.set_write_permission("unknown", writable=False) == 0


def test_wiped_permission_lasts_until_the_version_changes(routes: RouteInfoManager) -> None:
    """The half-minute registration of an unchanged broker does not give it back."""
    routes.register(MASTER, "m")
    routes.set_write_permission("a", writable=False)
    routes.register(MASTER, "m")
    assert queue(routes, "T").perm == 4
    routes.register(replace(MASTER, data_version=DataVersion(2, 1001)), "m")
    assert queue(routes, "T").perm == 6


def test_a_topic_is_deleted_everywhere_or_in_one_cluster(routes: RouteInfoManager) -> None:
    """A cluster name limits the deletion to that cluster's brokers."""
    routes.register(MASTER, "m")
    routes.register(FOREIGN, "f")
    routes.delete_topic("T", "d")
    assert [item.broker_name for item in routes.route("T").queue_datas] == ["a"]  # type: ignore[union-attr]
    routes.delete_topic("U")
    assert found(routes.topics()) == ["T"]
    routes.delete_topic("T", "unknown")
    routes.delete_topic("unknown")
    assert found(routes.topics()) == ["T"]


def test_topics_are_listed_by_cluster(routes: RouteInfoManager) -> None:
    """Only topics that a broker of the cluster serves are there."""
    routes.register(MASTER, "m")
    extra = {"V": TopicConfig("V"), "W": TopicConfig("W")}
    routes.register(replace(FOREIGN, topics=extra), "f")
    assert sorted(found(routes.topics_of_cluster("c"))) == ["T", "U"]
    assert sorted(found(routes.topics_of_cluster("d"))) == ["V", "W"]
    assert found(routes.topics_of_cluster("unknown")) == []


def test_system_topics_are_named_as_clusters_and_brokers(routes: RouteInfoManager) -> None:
    """Tools ask the broker whose address comes with them for the rest."""
    assert routes.any_broker_address() == ""
    routes.register(MASTER, "m")
    routes.register(OTHER, "o")
    assert routes.system_topics() == ["c", "a", "b"]
    assert routes.any_broker_address() == "10.0.0.1:10911"


def test_unit_topics_are_told_by_their_flags(routes: RouteInfoManager) -> None:
    """Bit 0 is unit, bit 1 is unit subscription."""
    topics = {str(flag): TopicConfig(str(flag), topic_sys_flag=flag) for flag in range(4)}
    routes.register(replace(MASTER, topics=topics), "m")
    assert sorted(found(routes.topics_by_unit_flags(mask=1, value=1))) == ["1", "3"]
    assert sorted(found(routes.topics_by_unit_flags(mask=2, value=2))) == ["2", "3"]
    assert sorted(found(routes.topics_by_unit_flags(mask=3, value=2))) == ["2"]


def test_a_topic_can_be_added_on_known_brokers_only(routes: RouteInfoManager) -> None:
    """A queue on a broker that nobody knows would be a route to nowhere."""
    routes.register(MASTER, "m")
    routes.add_topic("N", [QueueData("a", 2, 2, 6), QueueData("ghost", 2, 2, 6)])
    assert [item.broker_name for item in routes.route("N").queue_datas] == ["a"]  # type: ignore[union-attr]
    routes.add_topic("M", [QueueData("ghost", 2, 2, 6)])
    assert routes.route("M") is None


@pytest.mark.parametrize("delete_unlisted", [False, True])
def test_topics_left_out_of_a_registration(clock: VirtualTime, delete_unlisted: bool) -> None:
    """They keep their route unless deleteTopicWithBrokerRegistration is set."""
    routes = RouteInfoManager(clock=clock.monotonic, delete_unlisted_topics=delete_unlisted)
    routes.register(MASTER, "m")
    fewer = {"T": TopicConfig("T"), "V": TopicConfig("V")}
    routes.register(replace(MASTER, topics=fewer, data_version=DataVersion(2, 1001)), "m")
    assert (routes.route("U") is None) is delete_unlisted


def test_a_route_is_a_copy(routes: RouteInfoManager) -> None:
    """What a caller does to a route does not change the table."""
    routes.register(MASTER, "m")
    route = routes.route("T")
    assert route is not None
    route.broker_datas[0].broker_addrs.clear()
    route.queue_datas.clear()
    assert routes.broker_addresses("a") == {0: "10.0.0.1:10911"}
    assert queue(routes, "T").read_queue_nums == 4


LEAVER = replace(MASTER, route_kept_s=60.0)
"""Says with its registration that its routes are to stay for a minute."""


def _leave(routes: RouteInfoManager, how: str) -> None:
    """End a broker that registered as `LEAVER` through the connection "m"."""
    if how == "unregistered":
        routes.unregister(MASTER.key, "a", route_kept_s=60.0)
    routes.connection_closed("m")


@pytest.mark.parametrize("how", ["unregistered", "connection lost"])
def test_a_broker_that_restarts_stays_in_the_routes_without_write_permission(
    routes: RouteInfoManager, how: str
) -> None:
    """A client that looks meanwhile knows its address and its queues, and sends nothing there."""
    routes.register(LEAVER, "m")
    _leave(routes, how)
    route = routes.route("T")
    assert route is not None
    assert route.broker_datas == [BrokerData("c", "a", {0: "10.0.0.1:10911"})]
    assert route.queue_datas == [QueueData("a", 4, 3, 4, 0)]
    assert routes.cluster_info().cluster_addr_table == {"c": ["a"]}
    assert routes.broker_count() == 0


@pytest.mark.parametrize("how", ["unregistered", "connection lost"])
def test_a_broker_that_is_back_takes_sends_again(
    routes: RouteInfoManager, clock: VirtualTime, how: str
) -> None:
    """Though its topics are of the version that they had; and it stays for good."""
    routes.register(LEAVER, "m")
    _leave(routes, how)
    assert routes.data_version(MASTER.key) is None
    routes.register(LEAVER, "new")
    assert queue(routes, "T").perm == 6
    assert routes.broker_count() == 1
    routes.connection_closed("m")
    clock.advance(61)
    assert routes.drop_silent() == []
    assert queue(routes, "T").perm == 6


@pytest.mark.parametrize("how", ["unregistered", "connection lost"])
def test_a_broker_that_does_not_come_back_is_dropped(
    routes: RouteInfoManager, clock: VirtualTime, how: str
) -> None:
    """When the time is over, not before; there is no connection left to close."""
    routes.register(LEAVER, "m")
    _leave(routes, how)
    clock.advance(60)
    assert routes.drop_silent() == []
    assert routes.broker_addresses("a") == {0: "10.0.0.1:10911"}
    clock.advance(0.1)
    assert routes.drop_silent() == []
    assert found(routes.topics()) == []
    assert routes.cluster_info().cluster_addr_table == {}


def test_the_time_begins_when_the_broker_leaves(
    routes: RouteInfoManager, clock: VirtualTime
) -> None:
    """Its connection ends a little later, which neither drops it nor gives it more time."""
    routes.register(LEAVER, "m")
    routes.unregister(MASTER.key, "a", route_kept_s=60.0)
    clock.advance(30)
    routes.connection_closed("m")
    clock.advance(30)
    routes.drop_silent()
    assert routes.broker_addresses("a") == {0: "10.0.0.1:10911"}
    clock.advance(0.1)
    routes.drop_silent()
    assert routes.broker_addresses("a") == {}


def test_a_broker_that_unregisters_for_good_is_dropped_at_once(routes: RouteInfoManager) -> None:
    """What it said for the case of a restart does not count then."""
    routes.register(LEAVER, "m")
    routes.unregister(MASTER.key, "a")
    assert found(routes.topics()) == []


def test_silence_drops_a_broker_for_good(routes: RouteInfoManager, clock: VirtualTime) -> None:
    """A broker that hangs for 120 s is not about to be back."""
    routes.register(LEAVER, "m")
    clock.advance(120.1)
    assert routes.drop_silent() == ["m"]
    assert found(routes.topics()) == []


@pytest.mark.parametrize("address", [MASTER.address, "10.0.0.9:10911"])
def test_what_a_broker_lost_while_it_was_away_has_no_route(
    routes: RouteInfoManager, address: str
) -> None:
    """It may be back with an older volume."""
    routes.register(LEAVER, "m")
    routes.connection_closed("m")
    older = {"T": TopicConfig("T", 4, 3), "V": TopicConfig("V")}
    routes.register(replace(LEAVER, topics=older, address=address), "new")
    assert sorted(found(routes.topics())) == ["T", "V"]


def test_a_broker_that_is_back_names_all_of_its_topics(routes: RouteInfoManager) -> None:
    """One topic alone would end the routes of the others."""
    routes.register(LEAVER, "m")
    routes.connection_closed("m")
    with pytest.raises(BrokerError, match="must register all of its topics"):
        routes.register(replace(LEAVER, topics={"N": TopicConfig("N")}), "new")
    assert sorted(found(routes.topics())) == ["T", "U"]


def test_a_broker_may_be_back_at_another_address(
    routes: RouteInfoManager, clock: VirtualTime
) -> None:
    """The address that it left has no say in its routes then, however new its topics were."""
    routes.register(replace(LEAVER, data_version=DataVersion(9, 9, state_version=2)), "m")
    routes.connection_closed("m")
    routes.register(replace(LEAVER, address="10.0.0.9:10911"), "new")
    assert routes.broker_addresses("a") == {0: "10.0.0.9:10911"}
    assert queue(routes, "T").perm == 6
    clock.advance(61)
    routes.drop_silent()
    assert routes.broker_addresses("a") == {0: "10.0.0.9:10911"}
    assert queue(routes, "T").perm == 6


def test_the_old_connection_of_a_broker_that_moved_says_nothing(routes: RouteInfoManager) -> None:
    """Its end takes no write permission from the broker at its new address."""
    routes.register(replace(LEAVER, identity="x"), "old")
    routes.register(replace(LEAVER, address="10.0.0.9:10911", identity="x"), "new")
    routes.connection_closed("old")
    assert queue(routes, "T").perm == 6
    assert routes.broker_count() == 1


def test_a_slave_that_restarts_keeps_its_address(
    routes: RouteInfoManager, clock: VirtualTime
) -> None:
    """What clients may write is its master's matter."""
    routes.register(MASTER, "m")
    slave = replace(SLAVE, topics={"T": MASTER.topics["T"], "OLD": TopicConfig("OLD")})
    routes.register(replace(slave, route_kept_s=60.0), "s")
    routes.connection_closed("s")
    routes.register(replace(slave, route_kept_s=60.0), "s")
    assert sorted(found(routes.topics())) == ["T", "U"]
    routes.connection_closed("s")
    assert routes.broker_addresses("a") == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}
    assert queue(routes, "T").perm == 6
    clock.advance(60.1)
    routes.drop_silent()
    assert routes.broker_addresses("a") == {0: "10.0.0.1:10911"}


@pytest.mark.parametrize("is_away", [True, False])
def test_a_broker_that_changed_its_name_leaves_no_routes_behind(
    routes: RouteInfoManager, clock: VirtualTime, is_away: bool
) -> None:
    """The old name has the same address: consumers would read each message once for each name, and
    nobody would ever take it away."""
    routes.register(replace(MASTER, route_kept_s=60.0), "old")
    if is_away:
        routes.connection_closed("old")
    routes.register(replace(MASTER, broker_name="b"), "new")
    route = routes.route("T")
    assert route is not None
    assert [queue.broker_name for queue in route.queue_datas] == ["b"]
    assert routes.broker_addresses("a") == {}
    routes.connection_closed("old")
    routes.connection_closed("new")
    clock.advance(10_000)
    routes.drop_silent()
    assert routes.route("T") is None
    assert routes.cluster_info().broker_addr_table == {}


def test_a_broker_that_left_has_no_route_before_its_topics_are_cleaned(
    routes: RouteInfoManager,
) -> None:
    """With many topics the cleaning comes later; what it finds of a broker that is back it leaves
    alone."""
    many = {f"T{number}": TopicConfig(f"T{number}", 1, 1) for number in range(3_000)}
    called = []
    routes.on_left = lambda: called.append("")
    routes.register(replace(MASTER, topics=many), "m")
    routes.register(replace(OTHER, topics={"T1": many["T1"], "T2": many["T2"]}), "o")
    routes.unregister(MASTER.key, "a")
    assert called
    assert routes.route("T0") is None
    assert queue(routes, "T1", "b")
    assert sorted(found(routes.topics())) == ["T1", "T2"]
    routes.register(replace(MASTER, topics={name: many[name] for name in ("T2", "T3")}), "m")
    for _ in routes.clean():
        pass
    assert routes.topic_count() == 3
    assert {name: len(routes.route(name).queue_datas) for name in ("T1", "T2", "T3")} == {  # type: ignore[union-attr]
        "T1": 1,
        "T2": 2,
        "T3": 1,
    }


def test_brokers_that_go_together_are_forgotten_in_steps(routes: RouteInfoManager) -> None:
    """Each may be small; their routes are gone at once, the names of their topics come later."""
    calls = []
    routes.on_left = lambda: calls.append("")
    for number in range(20):
        topics = {f"T{number}-{one}": TopicConfig("T") for one in range(400)}
        broker = replace(MASTER, broker_name=f"b{number}", address=f"h:{number}", topics=topics)
        routes.register(broker, "m")
    routes.connection_closed("m")
    assert calls
    assert routes.route("T0-0") is None
    counts = [routes.topic_count()]
    for _ in routes.clean():
        counts.append(routes.topic_count())
    assert counts[0] == 8_000
    assert counts[-1] == 0
    assert max(before - after for before, after in itertools.pairwise(counts)) <= 500


def test_one_connection_registers_only_so_many_brokers(routes: RouteInfoManager) -> None:
    """Each one has to be taken away again when the connection ends."""
    for number in range(MAX_BROKERS):
        routes.register(replace(MASTER, broker_name=f"b{number}", address=f"h:{number}"), "m")
    with pytest.raises(BrokerError, match="through this connection already"):
        routes.register(replace(MASTER, broker_name="more", address="h:more"), "m")
    routes.register(replace(MASTER, broker_name="b0", address="h:0"), "m")
    routes.register(replace(MASTER, broker_name="more", address="h:more"), "other")
