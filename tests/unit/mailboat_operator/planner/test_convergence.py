"""Whatever happens and whenever the operator dies, a Broker ends as its spec says."""

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
    "groups": [1, 2, 3],
    "config": [{}, {"flushDiskType": "SYNC_FLUSH"}, {"maxMessageSize": "1000"}, {"nonsense": "1"}],
    "resources": [{"requests": {"cpu": "0.5", "memory": "1024Mi"}}, {}],
    "podTemplate": [{"labels": {"team": "a"}}, {"env": [{"name": "TZ", "value": "CET"}]}, {}],
    "storage": [{"size": "8Gi"}, {"size": "16Gi"}],
    "pvcRetention": [{"whenDeleted": "Delete"}, {"whenScaled": "Delete"}, {}],
}
EXAMPLES = 25
KINDS = ["StatefulSet", "Service", "ConfigMap", "PodDisruptionBudget", "ServiceAccount"]

changes = st.sampled_from(sorted(CHANGES)).flatmap(
    lambda field: st.tuples(st.just("change"), st.just(field), st.sampled_from(CHANGES[field]))
)
faults = st.one_of(
    st.tuples(st.just("evict"), st.integers(0, 2), st.none()),
    st.tuples(st.just("restart"), st.integers(0, 2), st.none()),
    st.tuples(st.just("reboot"), st.none(), st.none()),
    st.tuples(st.just("crash"), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("silent"), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("remove"), st.sampled_from(KINDS), st.integers(0, 5)),
    st.tuples(st.just("unschedulable"), st.booleans(), st.none()),
)
rounds = st.lists(
    st.tuples(st.one_of(changes, faults, st.none()), st.integers(0, 4), st.booleans()), max_size=12
)


@cache
def settled_cluster() -> ModelCluster:
    """Return a cluster at rest; to be copied."""
    cluster = ModelCluster(BROKER_SPEC | {"groups": 2})
    settle(cluster, plan_broker)
    return cluster


def cause(cluster: ModelCluster, event: tuple[str, Any, Any] | None) -> None:
    """Let one thing happen to the cluster."""
    match event:
        case ("change", field, value):
            cluster.change(**{field: value})
        case ("evict", group, _):
            cluster.evict(f"orders-g{group}-0")
        case ("restart", group, _):
            cluster.restart(f"orders-g{group}-0")
        case ("reboot", _, _):
            cluster.reboot()
        case ("crash", group, does):
            (cluster.crashing.add if does else cluster.crashing.discard)(f"orders-g{group}-0")
        case ("silent", group, does):
            (cluster.unreachable.add if does else cluster.unreachable.discard)(f"orders-g{group}-0")
        case ("remove", kind, number):
            found = sorted(name for item, name in cluster.objects if item == kind)
            if found:
                cluster.remove(kind, found[number % len(found)])
        case ("unschedulable", does, _):
            cluster.unschedulable = does


def assert_one_down(cluster: ModelCluster) -> None:
    """Assert that at most one pod that ever served, and is to serve again, is down by the operator:
    whatever it was doing in the moment in which it was taken."""
    wanted = {f"orders-g{group}-0" for group in range(cluster.spec["groups"])}
    assert len(cluster.down_by_us & wanted) <= 1, cluster.down_by_us


@settings(max_examples=EXAMPLES)
@given(rounds)
def test_every_history_ends_in_the_state_that_the_spec_describes(history):
    """Spec changes, failures and an operator that dies between any two actions, or acts on an old
    view, always lead to the same end, with one serving pod down at a time."""
    cluster = duplicate(settled_cluster())
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
    cluster.unschedulable = False
    if cluster.spec.get("image") == BROKEN_IMAGE:
        # A group that is to go cannot be read with the broken image, which nobody mends for it.
        cluster.change(image="mailboat:3", scaleDown={"whenUnread": "Proceed"})
    settle(cluster, plan_broker, check=assert_one_down)
    assert_as_specified(cluster)


@pytest.mark.parametrize("change", [{"image": "mailboat:2"}, {"storage": {"size": "16Gi"}}])
@pytest.mark.parametrize("actions", range(1, 7))
def test_an_operator_that_dies_after_every_few_writes_restarts_nobody_twice(change, actions):
    """Create, then roll or resize, each by operators that die after so many writes."""
    cluster = ModelCluster(BROKER_SPEC | {"groups": 2})

    def short_lives(snapshot: BrokerSnapshot) -> Plan:
        plan = plan_broker(snapshot)
        done = cluster.carry_out(plan, actions=actions)
        # The rest of the plan is lost with its operator; a whole plan has nothing left to lose.
        return Plan((), plan.status if done < actions else cluster.status)

    settle(cluster, short_lives, check=assert_one_down)
    assert_as_specified(cluster)
    assert cluster.taken_down == []
    cluster.change(**change)
    settle(cluster, short_lives, check=assert_one_down)
    assert_as_specified(cluster)
    pods = ["orders-g0-0", "orders-g1-0"] if "image" in change else []
    assert [name for name, _ in cluster.taken_down] == pods


def assert_as_specified(cluster: ModelCluster) -> None:
    """Assert that what is there is what the spec says, and nothing else."""
    spec = cluster.spec
    groups = range(spec.get("groups", 1))
    expected = {"PodDisruptionBudget/orders", "ServiceAccount/orders", "Service/orders-brokers"}
    for group in groups:
        name = f"orders-g{group}"
        expected |= {f"{kind}/{name}" for kind in ("StatefulSet", "Service", "ConfigMap")}
        expected |= {f"Pod/{name}-0"}
    claims = {name for name in cluster.names() if name.startswith("PersistentVolumeClaim/")}
    assert cluster.names() - claims == expected
    for group in groups:
        pod = cluster.objects["Pod", f"orders-g{group}-0"]
        stateful_set = cluster.objects["StatefulSet", f"orders-g{group}"]
        assert pod_is_ready(pod)
        assert revision(pod) == stateful_set["status"]["updateRevision"]
        container = pod["spec"]["containers"][0]
        assert container["image"] == spec.get("image", "mailboat:1")
        assert [item["name"] for item in container.get("env", [])] == [
            item["name"] for item in spec.get("podTemplate", {}).get("env", [])
        ]
        assert ("resources" in container) == (spec.get("resources") != {})
        flush = spec.get("config", {}).get("flushDiskType")
        text = cluster.objects["ConfigMap", f"orders-g{group}"]["data"]["broker.conf"]
        assert ("flushDiskType=SYNC_FLUSH" in text) == (flush == "SYNC_FLUSH")
        claim = cluster.objects["PersistentVolumeClaim", f"data-orders-g{group}-0"]
        owners = [item["kind"] for item in claim["metadata"].get("ownerReferences", [])]
        is_owned = spec.get("pvcRetention", {}).get("whenDeleted") == "Delete"
        assert owners == (["Broker"] if is_owned else [])
        running = cluster.running_config[f"orders-g{group}-0"]
        assert running["maxMessageSize"] == spec.get("config", {}).get("maxMessageSize", "4194304")
    conditions = {item["type"]: item for item in cluster.status["conditions"]}
    assert conditions["Ready"]["reason"] == "AllGroupsServing"
    assert conditions["Progressing"]["reason"] == "Settled"
    problem = "nonsense" in spec.get("config", {})
    assert conditions["ConfigApplied"]["reason"] == ("UnknownKey" if problem else "Applied")
    assert cluster.status["ready"] == f"{len(groups)}/{len(groups)}"


def bad_roll(spec: dict[str, Any]) -> ModelCluster:
    """Return three settled groups, then a change that no pod can start with."""
    cluster = ModelCluster(BROKER_SPEC | {"groups": 3})
    settle(cluster, plan_broker)
    cluster.change(**spec)
    settle(cluster, plan_broker, check=assert_one_down)
    return cluster


def ready_pods(cluster: ModelCluster) -> set[str]:
    """Return the names of the pods that serve."""
    return {name for name, pod in cluster.pods() if pod_is_ready(pod)}


@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "node reboot"])
def test_a_template_that_cannot_start_does_not_spread_with_restarts(at_once):
    """An image that cannot be pulled, and one restart of each container: one group is down."""
    cluster = bad_roll({"image": BROKEN_IMAGE})
    assert ready_pods(cluster) == {"orders-g1-0", "orders-g2-0"}
    names = [] if at_once else ["orders-g1-0", "orders-g2-0"]
    if at_once:
        cluster.reboot()
        settle(cluster, plan_broker, check=assert_one_down)
    for name in names:
        cluster.restart(name)
        settle(cluster, plan_broker, check=assert_one_down)
    assert ready_pods(cluster) == {"orders-g1-0", "orders-g2-0"}
    assert [name for name, _ in cluster.taken_down] == ["orders-g0-0"]


def test_resources_that_no_node_has_do_not_spread_with_restarts():
    """The first group has no node; the others come back from their restarts as they were."""
    cluster = ModelCluster(BROKER_SPEC | {"groups": 3})
    settle(cluster, plan_broker)
    cluster.unschedulable = True
    cluster.change(resources={"requests": {"cpu": "1000"}})
    settle(cluster, plan_broker, check=assert_one_down)
    cluster.reboot()
    settle(cluster, plan_broker, check=assert_one_down)
    assert ready_pods(cluster) == {"orders-g1-0", "orders-g2-0"}


def test_a_crash_loop_of_the_new_template_does_not_spread():
    """The first group crashes with the new template; restarts of the others cost none of them."""
    cluster = ModelCluster(BROKER_SPEC | {"groups": 3})
    settle(cluster, plan_broker)
    cluster.change(image="mailboat:2")
    cluster.carry_out(plan_broker(cluster.snapshot()))
    cluster.step()
    cluster.carry_out(plan_broker(cluster.snapshot()))
    cluster.crashing.add("orders-g0-0")
    settle(cluster, plan_broker, check=assert_one_down)
    for name in ("orders-g1-0", "orders-g2-0"):
        cluster.restart(name)
        settle(cluster, plan_broker, check=assert_one_down)
    assert ready_pods(cluster) == {"orders-g1-0", "orders-g2-0"}


def test_a_reboot_in_the_middle_of_a_roll_takes_no_second_pod():
    """All containers end while the first group is made anew: the others go in their turn."""
    cluster = ModelCluster(BROKER_SPEC | {"groups": 3})
    settle(cluster, plan_broker)
    cluster.change(image=BROKEN_IMAGE)
    for _ in range(2):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        assert_one_down(cluster)
    cluster.reboot()
    settle(cluster, plan_broker, check=assert_one_down)
    assert ready_pods(cluster) == {"orders-g1-0", "orders-g2-0"}
