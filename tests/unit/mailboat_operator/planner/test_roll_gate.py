"""What a roll waits for, for how long, and who is told: a Broker with three groups."""

from typing import Any

from model_cluster import ModelCluster, settle
from operator_samples import BROKER_SPEC

from mailboat_operator.planner.actions import Delete
from mailboat_operator.planner.broker import plan_broker
from mailboat_operator.planner.snapshot import fresh_for_s

ADDRESSES = ["ns-0:9876", "ns-1:9876", "ns-2:9876"]
PODS = ["orders-g0-0", "orders-g1-0", "orders-g2-0"]


def cluster_of_three() -> ModelCluster:
    """Return three settled groups with three name servers."""
    cluster = ModelCluster(BROKER_SPEC | {"groups": 3, "nameServers": {"addresses": ADDRESSES}})
    settle(cluster, plan_broker)
    cluster.events.clear()
    return cluster


def pass_time(cluster: ModelCluster, seconds: float) -> None:
    """Let operator and controllers work for some time."""
    end_s = cluster.now_s + seconds
    while cluster.now_s < end_s:
        cluster.carry_out(plan_broker(cluster.snapshot()))
        cluster.step()


def condition(cluster: ModelCluster, name: str) -> dict[str, Any]:
    """Return a condition of the status."""
    (found,) = [item for item in cluster.status["conditions"] if item["type"] == name]
    return found


def taken(cluster: ModelCluster) -> list[str]:
    """Return the pods that were taken down, in order."""
    return [name for name, _ in cluster.taken_down]


def test_a_name_server_that_is_away_holds_no_roll_up():
    """Nobody is registered there, so nobody is missed there; a dead entry of addresses is such."""
    cluster = cluster_of_three()
    cluster.lost_name_servers.add(("*", "ns-2:9876"))
    cluster.change(image="mailboat:2")
    pass_time(cluster, 400.0)
    assert taken(cluster) == PODS
    assert condition(cluster, "Progressing")["reason"] == "Settled"


def test_a_broker_that_one_name_server_has_lost_blocks_the_roll_by_name():
    """The others are registered there, so the roll waits; after ten minutes that is told, once, and
    it goes on when the broker is back."""
    cluster = cluster_of_three()
    cluster.lost_name_servers.add(("orders-g0-0", "ns-1:9876"))
    cluster.change(image="mailboat:2")
    pass_time(cluster, 550.0)
    assert taken(cluster) == ["orders-g0-0"]
    waits = "orders-g0-0 is not registered at ns-1:9876"
    progressing = condition(cluster, "Progressing")
    assert (progressing["status"], progressing["reason"]) == ("True", "Rolling")
    assert waits in progressing["message"]
    pass_time(cluster, 300.0)
    progressing = condition(cluster, "Progressing")
    assert (progressing["status"], progressing["reason"]) == ("False", "RollBlocked")
    assert progressing["message"] == waits
    pass_time(cluster, 600.0)
    assert taken(cluster) == ["orders-g0-0"]
    told = [event.message for event in cluster.events if event.reason == "RollBlocked"]
    assert told == [waits]
    cluster.lost_name_servers.clear()
    pass_time(cluster, 300.0)
    assert taken(cluster) == PODS
    assert condition(cluster, "Progressing")["reason"] == "Settled"


def test_brokers_that_the_operator_cannot_reach_are_told():
    """A NetworkPolicy may keep the operator out: a condition and one event say so, roll or not."""
    cluster = cluster_of_three()
    cluster.unreachable.update(PODS)
    pass_time(cluster, 60.0)
    assert [event.reason for event in cluster.events] == []
    cluster.clock.advance(120.0)
    pass_time(cluster, 60.0)
    applied = condition(cluster, "ConfigApplied")
    assert (applied["status"], applied["reason"]) == ("Unknown", "Unreachable")
    assert "orders-g1-0 is ready and does not answer the operator" in applied["message"]
    assert [event.reason for event in cluster.events] == ["BrokerUnreachable"]
    cluster.change(image="mailboat:2")
    pass_time(cluster, 1200.0)
    assert taken(cluster) == []
    assert condition(cluster, "Progressing")["reason"] == "RollBlocked"
    assert "has not said how it is" in condition(cluster, "Progressing")["message"]
    assert [event.reason for event in cluster.events] == ["BrokerUnreachable", "RollBlocked"]


def test_healthy_pods_are_evicted_and_no_pod_is_deleted():
    """The API server compares each eviction with the budget: a drain may have taken another one."""
    cluster = cluster_of_three()
    cluster.change(image="mailboat:2")
    pass_time(cluster, 400.0)
    deleted = [item for item in cluster.writes if isinstance(item, Delete) and item.kind == "Pod"]
    assert taken(cluster) == PODS
    assert deleted == []


def test_brokers_that_are_asked_every_five_minutes_are_not_unknown_in_between():
    """With the longest collectSeconds nothing is written at rest, and a roll of three goes on."""
    cluster = cluster_of_three()
    cluster.collect_s, cluster.fresh_s = 300.0, fresh_for_s(300.0)
    pass_time(cluster, 310.0)
    cluster.writes.clear()
    for _ in range(100):
        plan = plan_broker(cluster.snapshot())
        assert plan.status == cluster.status
        assert condition(cluster, "ConfigApplied")["status"] == "True"
        cluster.clock.advance(13.0)
    cluster.change(image="mailboat:2")
    pass_time(cluster, 400.0)
    assert taken(cluster) == PODS


def test_words_are_old_after_three_looks():
    """And after a minute at the earliest."""
    assert [fresh_for_s(every_s) for every_s in (1.0, 15.0, 20.0, 30.0, 300.0)] == [
        60.0, 60.0, 60.0, 90.0, 900.0,
    ]  # fmt: skip


def test_a_container_that_ends_is_no_roll():
    """After an OOM kill the kubelet has it back: nobody is told of a template that cannot start,
    nor of the end of a roll."""
    cluster = cluster_of_three()
    pass_time(cluster, 1200.0)
    cluster.restart("orders-g1-0")
    for _ in range(3):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        assert condition(cluster, "Progressing")["reason"] == "Settled"
        cluster.step()
    assert cluster.events == []
    cluster.crashing.add("orders-g1-0")
    pass_time(cluster, 60.0)
    assert condition(cluster, "Progressing")["reason"] == "Settled"
    assert "orders-g1-0: CrashLoopBackOff" in condition(cluster, "Ready")["message"]
    cluster.change(image="mailboat:2")
    cluster.crashing.clear()
    pass_time(cluster, 400.0)
    assert sorted(taken(cluster)) == PODS
