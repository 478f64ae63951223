"""A model cluster whose Broker is settled, and what a plan does and says."""

from typing import Any

from model_cluster import ModelCluster, settle
from operator_samples import BROKER_SPEC

from mailboat_operator.planner.actions import Action, Plan
from mailboat_operator.planner.broker import plan_broker


def cluster_at_rest(**spec: Any) -> ModelCluster:
    """Return a cluster in which the Broker is settled."""
    cluster = ModelCluster(BROKER_SPEC | spec)
    settle(cluster, plan_broker)
    cluster.writes.clear()
    cluster.events.clear()
    cluster.taken_down.clear()
    return cluster


def actions_of(plan: Plan) -> list[Action]:
    """Return everything that a plan does."""
    return [action for step in plan.steps for action in step.actions]


def condition(status: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a condition of a status."""
    (found,) = [item for item in status["conditions"] if item["type"] == name]
    return found
