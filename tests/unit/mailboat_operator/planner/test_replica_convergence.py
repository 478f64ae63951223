"""Whatever happens and whenever the operator dies, a Broker with replicas ends as its spec says."""

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cluster import BROKEN_IMAGE, ModelCluster, duplicate, pod_is_ready, settle
from operator_samples import BROKER_SPEC

from mailboat_operator.planner.actions import Plan
from mailboat_operator.planner.broker import plan_broker
from mailboat_operator.planner.pods import revision
from mailboat_operator.planner.snapshot import BrokerSnapshot

CHANGES: dict[str, list[Any]] = {
    "image": ["mailboat:1", "mailboat:2", BROKEN_IMAGE],
    "groups": [1, 2],
    "replicas": [1, 2, 3],
    "replication": [{}, {"mode": "Async"}, {"leaseSeconds": 12}],
    "config": [{}, {"flushDiskType": "SYNC_FLUSH"}],
    "storage": [{"size": "8Gi"}, {"size": "16Gi"}],
    "pvcRetention": [{"whenDeleted": "Delete"}, {}],
}
EXAMPLES = 25
KINDS = [
    "StatefulSet",
    "Service",
    "ConfigMap",
    "PodDisruptionBudget",
    "EndpointSlice",
    "Role",
    "RoleBinding",
    "Lease",
]
PODS = [f"orders-g{group}-{ordinal}" for group in range(2) for ordinal in range(3)]

changes = st.sampled_from(sorted(CHANGES)).flatmap(
    lambda field: st.tuples(st.just("change"), st.just(field), st.sampled_from(CHANGES[field]))
)
pods = st.sampled_from(PODS)
faults = st.one_of(
    st.tuples(st.just("evict"), pods, st.none()),
    st.tuples(st.just("restart"), pods, st.none()),
    st.tuples(st.just("reboot"), st.none(), st.none()),
    st.tuples(st.just("crash"), pods, st.booleans()),
    st.tuples(st.just("silent"), pods, st.booleans()),
    st.tuples(st.just("cut off"), pods, st.booleans()),
    st.tuples(st.just("remove"), st.sampled_from(KINDS), st.integers(0, 5)),
)
rounds = st.lists(
    st.tuples(st.one_of(changes, faults, st.none()), st.integers(0, 6), st.booleans()), max_size=12
)


@cache
def settled_cluster(replicas: int) -> ModelCluster:
    """Return a cluster at rest; to be copied."""
    cluster = ModelCluster(BROKER_SPEC | {"groups": 2, "replicas": replicas})
    cluster.has_endpoints = True
    settle(cluster, plan_broker)
    return cluster


def cause(cluster: ModelCluster, event: tuple[str, Any, Any] | None) -> None:
    """Let one thing happen to the cluster."""
    match event:
        case ("change", field, value):
            cluster.change(**{field: value})
        case ("evict", pod, _):
            cluster.evict(pod)
        case ("restart", pod, _):
            cluster.restart(pod)
        case ("reboot", _, _):
            cluster.reboot()
        case ("crash", pod, does):
            (cluster.crashing.add if does else cluster.crashing.discard)(pod)
        case ("silent", pod, does):
            (cluster.unreachable.add if does else cluster.unreachable.discard)(pod)
        case ("cut off", pod, does):
            cut_off = cluster.replicas.cut_off
            (cut_off.add if does else cut_off.discard)(pod)
        case ("remove", kind, number):
            found = sorted(name for item, name in cluster.objects if item == kind)
            if found:
                cluster.remove(kind, found[number % len(found)])


def assert_one_down(cluster: ModelCluster) -> None:
    """Assert that at most one pod that ever served, and is to serve again, is down by the operator.

    That whoever leads has all that was acknowledged, the model asserts itself.
    """
    wanted = {
        f"orders-g{group}-{ordinal}"
        for group in range(cluster.spec["groups"])
        for ordinal in range(cluster.spec["replicas"])
    }
    assert len(cluster.down_by_us & wanted) <= 1, cluster.down_by_us


@settings(max_examples=EXAMPLES)
@given(st.sampled_from([1, 3]), rounds)
def test_every_history_ends_in_the_state_that_the_spec_describes(replicas, history):
    """Spec changes, failures and an operator that dies between any two actions, or acts on an old
    view, always lead to the same end, and nobody leads who lacks an acknowledged message."""
    cluster = duplicate(settled_cluster(replicas))
    for event, actions, is_late in history:
        view = cluster.snapshot()
        cause(cluster, event)
        if is_late:
            cluster.step()
        else:
            view = cluster.snapshot()
        cluster.carry_out(plan_broker(view), actions=actions)
        assert_one_down(cluster)
        cluster.step()
    cluster.crashing.clear()
    cluster.unreachable.clear()
    cluster.replicas.cut_off.clear()
    if cluster.spec.get("image") == BROKEN_IMAGE:
        # A group that is to go cannot be read with the broken image, which nobody mends for it.
        cluster.change(image="mailboat:3", scaleDown={"whenUnread": "Proceed"})

    def decide(model: ModelCluster) -> None:
        assert_one_down(model)
        conditions = {item["type"]: item for item in model.status["conditions"]}
        if conditions.get("Replicated", {}).get("reason") == "LeaseMissing":
            for name in ("orders-g0", "orders-g1"):
                model.replicas.promote(name)

    settle(cluster, plan_broker, check=decide)
    assert_as_specified(cluster)


@pytest.mark.parametrize("change", [{"image": "mailboat:2"}, {"replicas": 3}, {"replicas": 1}])
@pytest.mark.parametrize("actions", range(1, 5))
def test_an_operator_that_dies_after_every_few_writes_restarts_nobody_twice(change, actions):
    """Roll, grow or shrink, each by operators that die after so many writes."""
    cluster = duplicate(settled_cluster(1 if change.get("replicas") == 3 else 3))
    cluster.taken_down.clear()

    def short_lives(snapshot: BrokerSnapshot) -> Plan:
        plan = plan_broker(snapshot)
        done = cluster.carry_out(plan, actions=actions)
        # The rest of the plan is lost with its operator; a whole plan has nothing left to lose.
        return Plan((), plan.status if done < actions else cluster.status)

    cluster.change(**change)
    settle(cluster, short_lives, check=assert_one_down)
    assert_as_specified(cluster)
    names = [name for name, _ in cluster.taken_down]
    assert len(names) == len(set(names))


def assert_as_specified(cluster: ModelCluster) -> None:
    """Assert that what is there is what the spec says, and nothing else."""
    spec = cluster.spec
    replicas = spec["replicas"]
    has_replicas = "replicaGroups" in cluster.status
    expected = {"ServiceAccount/orders", "Service/orders-brokers"}
    if has_replicas:
        expected |= {"Role/orders", "RoleBinding/orders"}
    else:
        expected |= {"PodDisruptionBudget/orders"}
    for group in range(spec["groups"]):
        name = f"orders-g{group}"
        expected |= {f"{kind}/{name}" for kind in ("StatefulSet", "Service", "ConfigMap")}
        expected |= {f"Pod/{name}-{ordinal}" for ordinal in range(replicas)}
        if has_replicas:
            expected |= {f"PodDisruptionBudget/{name}"}
    own = {"PersistentVolumeClaim", "Endpoints", "EndpointSlice", "Lease"}
    assert {name for name in cluster.names() if name.split("/")[0] not in own} == expected
    for group in range(spec["groups"]):
        name = f"orders-g{group}"
        stateful_set = cluster.objects["StatefulSet", name]
        for ordinal in range(replicas):
            pod = cluster.objects["Pod", f"{name}-{ordinal}"]
            assert pod_is_ready(pod)
            assert revision(pod) == stateful_set["status"]["updateRevision"]
            claim = cluster.objects["PersistentVolumeClaim", f"data-{name}-{ordinal}"]
            size = claim["spec"]["resources"]["requests"]["storage"]
            assert size in ("16Gi", str(16 << 30)) or spec["storage"]["size"] == "8Gi"
        lease = cluster.replicas.lease(name)
        if lease is None:
            assert replicas == 1
            continue
        assert sorted(lease.in_sync) == list(range(replicas))
        leader = cluster.objects["Pod", str(lease.holder)]["status"]["podIP"]
        endpoints = cluster.objects["EndpointSlice", f"{name}-leader"]["endpoints"]
        assert [item["addresses"] for item in endpoints] == [[leader]]
        assert "selector" not in cluster.objects["Service", name]["spec"]
        assert f"Endpoints/{name}" not in cluster.names()
    conditions = {item["type"]: item for item in cluster.status["conditions"]}
    assert conditions["Ready"]["reason"] == "AllGroupsServing"
    assert conditions["Progressing"]["reason"] == "Settled"
    assert conditions["ConfigApplied"]["reason"] == "Applied"
    if has_replicas:
        assert conditions["Replicated"]["reason"] == "AllInSync"
