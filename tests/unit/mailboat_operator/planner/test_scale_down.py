"""Fewer groups: one at a time, the last first, and none that holds what nobody has read."""

from dataclasses import replace
from typing import Any

import pytest
from model_cluster import ModelCluster, settle
from operator_samples import BROKER_SPEC

from mailboat_operator.planner.actions import ConfigureBroker, Delete, Evict
from mailboat_operator.planner.broker import plan_broker

GROUPS = 4


def cluster_of_four(**spec: Any) -> ModelCluster:
    """Return four settled groups that hold unread messages."""
    cluster = ModelCluster(BROKER_SPEC | {"groups": GROUPS} | spec)
    cluster.unread = {f"orders-g{group}-0": 1000 for group in range(GROUPS)}
    settle(cluster, plan_broker)
    cluster.writes.clear()
    cluster.events.clear()
    return cluster


def groups_of(cluster: ModelCluster) -> list[str]:
    """Return the groups that there are."""
    return sorted(item["metadata"]["name"] for item in cluster.of_kind("StatefulSet"))


def progressing(cluster: ModelCluster) -> tuple[str, str]:
    """Return reason and message of Progressing."""
    (found,) = [item for item in cluster.status["conditions"] if item["type"] == "Progressing"]
    return found["reason"], found["message"]


def permission(cluster: ModelCluster, group: int) -> str:
    """Return what a broker allows."""
    return cluster.running_config[f"orders-g{group}-0"]["brokerPermission"]


def test_one_group_at_a_time_and_only_when_it_is_read():
    """`kubectl scale` to 1: the last group takes no more messages and goes when it is read; nobody
    touches the next one before."""
    cluster = cluster_of_four()
    cluster.change(groups=1)
    settle(cluster, plan_broker)
    assert groups_of(cluster) == [f"orders-g{group}" for group in range(4)]
    assert [permission(cluster, group) for group in range(4)] == ["6", "6", "6", "4"]
    waits = "orders-g3 takes no more messages and goes when what it holds is read"
    assert progressing(cluster) == ("Draining", waits)
    told = [event.reason for event in cluster.events]
    assert told == ["GroupDraining"]
    cluster.unread["orders-g3-0"] = 0
    settle(cluster, plan_broker)
    assert groups_of(cluster) == ["orders-g0", "orders-g1", "orders-g2"]
    assert [permission(cluster, group) for group in range(3)] == ["6", "6", "4"]
    cluster.unread.clear()
    settle(cluster, plan_broker, check=one_goes)
    assert groups_of(cluster) == ["orders-g0"]
    assert progressing(cluster)[0] == "Settled"
    assert permission(cluster, 0) == "6"


def one_goes(cluster: ModelCluster) -> None:
    """Assert that all groups but at most one are whole."""
    sets = set(groups_of(cluster))
    pods = {name.removesuffix("-0") for name, _ in cluster.pods()}
    assert len(sets ^ pods) <= 1


def test_a_group_that_is_wanted_again_takes_messages_again():
    """Whoever scaled by mistake scales back, and loses nothing."""
    cluster = cluster_of_four()
    cluster.change(groups=1)
    settle(cluster, plan_broker)
    cluster.change(groups=GROUPS)
    settle(cluster, plan_broker)
    assert [permission(cluster, group) for group in range(4)] == ["6"] * 4
    assert cluster.taken_down == []
    assert progressing(cluster)[0] == "Settled"


def test_what_came_between_the_look_and_the_stop_is_waited_for():
    """Numbers from before the broker took no more messages say nothing."""
    cluster = cluster_of_four()
    cluster.unread.clear()
    cluster.change(groups=3)
    cluster.carry_out(plan_broker(cluster.snapshot()))
    snapshot = cluster.snapshot()
    said = snapshot.observations["orders-g3-0"]
    assert (said.config or {})["brokerPermission"] == "4"
    older = {"orders-g3-0": replace(said, is_retention_older=True)}
    cluster.carry_out(plan_broker(replace(snapshot, observations=snapshot.observations | older)))
    assert len(groups_of(cluster)) == GROUPS
    settle(cluster, plan_broker)
    assert len(groups_of(cluster)) == 3


def test_messages_that_are_older_than_they_are_kept_are_not_waited_for():
    """Nobody has a right to them any more."""
    cluster = cluster_of_four()
    cluster.newest_s = cluster.now_s - 72 * 3600 + 3600
    cluster.change(groups=3)
    settle(cluster, plan_broker)
    assert len(groups_of(cluster)) == GROUPS
    cluster.clock.advance(3600)
    settle(cluster, plan_broker)
    assert len(groups_of(cluster)) == 3


def test_a_group_that_says_nothing_waits():
    """Whether it is read is not known; what is not known is not thrown away."""
    cluster = cluster_of_four()
    cluster.unread.clear()
    cluster.unreachable.add("orders-g3-0")
    cluster.change(groups=3)
    settle(cluster, plan_broker)
    assert len(groups_of(cluster)) == GROUPS
    assert "has not said whether what it holds is read" in progressing(cluster)[1]


@pytest.mark.parametrize("when_scaled", ["Retain", "Delete"])
def test_proceed_takes_the_groups_at_once_but_one_by_one(when_scaled):
    """The user has said that unread messages are not waited for; no setting is changed for it."""
    cluster = cluster_of_four(
        scaleDown={"whenUnread": "Proceed"}, pvcRetention={"whenScaled": when_scaled}
    )
    cluster.change(groups=1)
    settle(cluster, plan_broker, check=one_goes)
    assert groups_of(cluster) == ["orders-g0"]
    assert [item for item in cluster.writes if isinstance(item, ConfigureBroker)] == []
    claims = {item["metadata"]["name"] for item in cluster.of_kind("PersistentVolumeClaim")}
    assert len(claims) == (4 if when_scaled == "Retain" else 1)


@pytest.mark.parametrize(("when_scaled", "left"), [("Retain", 3), ("Delete", 4)])
def test_a_group_that_does_not_serve_goes_only_with_its_volume_kept(when_scaled, left):
    """Its messages are out of reach already; they are not deleted for that."""
    cluster = cluster_of_four(pvcRetention={"whenScaled": when_scaled})
    cluster.crashing.add("orders-g3-0")
    cluster.change(groups=3)
    for _ in range(20):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        cluster.step()
    assert len(groups_of(cluster)) == GROUPS
    assert "is not ready, so nobody can read what it holds" in progressing(cluster)[1]
    cluster.clock.advance(600)
    settle(cluster, plan_broker)
    assert len(groups_of(cluster)) == left


def drained() -> ModelCluster:
    """Return four groups whose last one is to go and has served for hours, with unread messages."""
    cluster = cluster_of_four()
    cluster.clock.advance(7200)
    cluster.change(groups=3)
    settle(cluster, plan_broker)
    return cluster


def end(cluster: ModelCluster, name: str) -> None:
    """Let a node's drain tell a pod to end, which it is at."""
    cluster.objects["Pod", name]["metadata"]["deletionTimestamp"] = cluster.time()


def replace_pod(cluster: ModelCluster, name: str) -> None:
    """Let a pod be gone, and the next one not begun."""
    cluster.evict(name)
    cluster._run_stateful_set(cluster.objects["StatefulSet", name.removesuffix("-0")])


@pytest.mark.parametrize(
    "happens",
    [
        end,
        ModelCluster.evict,
        replace_pod,
        ModelCluster.restart,
        lambda cluster, name: cluster.remove("StatefulSet", name.removesuffix("-0")),
    ],
    ids=["pod ends", "pod is gone", "pod is new", "container ends", "StatefulSet is gone"],
)
def test_a_group_whose_pod_is_on_its_way_is_waited_for(happens):
    """A drain of its node while a group waits to be read is not the end of it."""
    cluster = drained()
    happens(cluster, "orders-g3-0")
    for _ in range(3):
        cluster.writes.clear()
        cluster.carry_out(plan_broker(cluster.snapshot()))
        assert [item for item in cluster.writes if isinstance(item, Delete | Evict)] == []
        assert progressing(cluster)[0] == "Draining"
        assert "orders-g3" in progressing(cluster)[1]
        if happens in (end, replace_pod, ModelCluster.restart):
            cluster.clock.advance(100)
    cluster.unread.clear()
    settle(cluster, plan_broker)
    assert len(groups_of(cluster)) == 3


def test_a_group_that_never_ran_goes_at_once():
    """There is nothing on its new volume; what a pod before it wrote is another matter."""
    cluster = ModelCluster(BROKER_SPEC | {"groups": 3})
    settle(cluster, plan_broker)
    cluster.unschedulable = True
    cluster.change(groups=4)
    for _ in range(3):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        cluster.step()
    assert len(groups_of(cluster)) == 4
    cluster.change(groups=3)
    cluster.carry_out(plan_broker(cluster.snapshot()))
    cluster.step()
    assert len(groups_of(cluster)) == 3
