"""Model clusters whose Broker has replicas, and what is asked of them."""

from typing import Any

from model_cluster import ModelCluster, settle
from operator_samples import BROKER_SPEC

from mailboat_operator.planner.broker import plan_broker

PODS = ["orders-g0-0", "orders-g0-1", "orders-g0-2"]


def cluster_of(replicas: int = 3, **spec: Any) -> ModelCluster:
    """Return a cluster at rest in which each group has so many replicas."""
    cluster = ModelCluster(BROKER_SPEC | {"replicas": replicas} | spec)
    cluster.has_endpoints = True
    settle(cluster, plan_broker)
    forget(cluster)
    return cluster


def from_one_to(replicas: int, **spec: Any) -> ModelCluster:
    """Return a cluster whose Broker had no replicas and messages, and gets some."""
    cluster = ModelCluster(BROKER_SPEC | spec)
    cluster.has_endpoints = True
    settle(cluster, plan_broker)
    for pod, _ in cluster.pods():
        cluster.replicas.store(pod)["end"] = 1000
    forget(cluster)
    cluster.change(replicas=replicas)
    return cluster


def forget(cluster: ModelCluster) -> None:
    """Forget what was done so far."""
    cluster.writes.clear()
    cluster.events.clear()
    cluster.taken_down.clear()
    cluster.replicas.leaders.clear()


def condition(cluster: ModelCluster, name: str) -> dict[str, Any]:
    """Return a condition of the status."""
    (found,) = [item for item in cluster.status["conditions"] if item["type"] == name]
    return found


def group(cluster: ModelCluster, name: str = "orders-g0") -> dict[str, Any]:
    """Return what the status says of a group's replicas."""
    (found,) = [item for item in cluster.status["replicaGroups"] if item["name"] == name]
    return dict(found)


def taken(cluster: ModelCluster) -> list[str]:
    """Return the pods that were taken down, in order."""
    return [name for name, _ in cluster.taken_down]


def events(cluster: ModelCluster) -> list[str]:
    """Return the reasons of all events, in order."""
    return [event.reason for event in cluster.events]
