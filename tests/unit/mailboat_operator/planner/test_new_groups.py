"""More groups: a new one gets the topics that the others have, once."""

from typing import Any

import pytest
from model_cluster import ModelCluster, settle
from operator_samples import BROKER_SPEC

from mailboat_operator.planner.actions import CopyDeclarations, Plan
from mailboat_operator.planner.broker import plan_broker
from mailboat_operator.planner.snapshot import BrokerSnapshot


def cluster_of_two() -> ModelCluster:
    """Return two settled groups with a topic on both, and one on the first alone."""
    cluster = ModelCluster(BROKER_SPEC | {"groups": 2})
    settle(cluster, plan_broker)
    assert copies(cluster) == []
    cluster.topics = {"orders-g0-0": {"paid", "mine"}, "orders-g1-0": {"paid"}}
    cluster.events.clear()
    return cluster


def copies(cluster: ModelCluster) -> list[CopyDeclarations]:
    """Return what was copied."""
    return [item for item in cluster.writes if isinstance(item, CopyDeclarations)]


def pending(cluster: ModelCluster) -> list[str]:
    """Return the groups that wait for topics by the status."""
    return [entry["name"] for entry in cluster.status["brokers"] if entry.get("topics")]


def progressing(cluster: ModelCluster) -> dict[str, Any]:
    """Return the Progressing condition."""
    (found,) = [item for item in cluster.status["conditions"] if item["type"] == "Progressing"]
    return found


def test_a_new_group_gets_what_the_others_have():
    """Once, when it serves; what only one of them has stays there, and the event tells."""
    cluster = cluster_of_two()
    cluster.change(groups=3)
    settle(cluster, plan_broker)
    assert copies(cluster) == [CopyDeclarations("orders-g2-0", ("orders-g0-0", "orders-g1-0"))]
    assert cluster.topics["orders-g2-0"] == {"paid"}
    assert pending(cluster) == []
    assert [event.reason for event in cluster.events if "Copied" in event.reason] == [
        "TopicsCopied"
    ]
    # A topic that is deleted on one broker later stays deleted there.
    cluster.topics["orders-g2-0"].clear()
    cluster.evict("orders-g2-0")
    settle(cluster, plan_broker)
    assert len(copies(cluster)) == 1


def test_it_is_not_forgotten_while_it_cannot_be_done():
    """It stands in the status until the new group serves and another one answers."""
    cluster = cluster_of_two()
    cluster.unreachable.update({"orders-g0-0", "orders-g1-0"})
    cluster.change(groups=3)
    settle(cluster, plan_broker)
    assert pending(cluster) == ["orders-g2"]
    assert copies(cluster) == []
    message = "topics and consumer groups are yet to be copied to orders-g2"
    assert (progressing(cluster)["reason"], progressing(cluster)["message"]) == (
        "Updating",
        message,
    )
    cluster.unreachable.clear()
    settle(cluster, plan_broker)
    assert pending(cluster) == []
    assert cluster.topics["orders-g2-0"] == {"paid"}


@pytest.mark.parametrize("actions", range(2, 6))
def test_operators_that_die_get_it_done(actions):
    """Whoever comes next finds in the status what is left to do."""
    cluster = cluster_of_two()

    def short_lives(snapshot: BrokerSnapshot) -> Plan:
        plan = plan_broker(snapshot)
        done = cluster.carry_out(plan, actions=actions)
        return Plan((), plan.status if done < actions else cluster.status)

    cluster.change(groups=4)
    settle(cluster, short_lives)
    assert cluster.topics["orders-g2-0"] == cluster.topics["orders-g3-0"] == {"paid"}
    assert pending(cluster) == []


def test_a_group_that_comes_back_gets_what_was_made_since():
    """Its kept volume has the topics of then."""
    cluster = cluster_of_two()
    cluster.change(groups=1)
    settle(cluster, plan_broker)
    cluster.topics["orders-g0-0"].add("new")
    cluster.change(groups=2)
    settle(cluster, plan_broker)
    assert cluster.topics["orders-g1-0"] == {"paid", "mine", "new"}
