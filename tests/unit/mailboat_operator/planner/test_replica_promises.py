"""What a Broker's replicas are promised when people, nodes and volumes do odd things."""

from typing import Any

import pytest
from model_cluster import ModelCluster, pod_is_ready, settle
from replicated_cluster import (
    PODS,
    cluster_of,
    condition,
    events,
    forget,
    from_one_to,
    group,
    taken,
)

from mailboat.broker.replicas.kubernetes.leader_endpoints import _epoch_of, _ports
from mailboat_operator.planner.actions import Action, Apply, HandOver, Plan
from mailboat_operator.planner.broker import plan_broker
from mailboat_operator.resources.names import group_of

_IN_SYNC = "mailboat.dev/in-sync"


def turns(cluster: ModelCluster, count: int) -> None:
    """Plan and act so often, and let the cluster follow each time."""
    for _ in range(count):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        cluster.step()


def actions_of(cluster: ModelCluster) -> list[Action]:
    """Return what would be done now."""
    return [action for step in plan_broker(cluster.snapshot()).steps for action in step.actions]


def handovers(cluster: ModelCluster) -> list[Action]:
    """Return who would be asked to hand over now."""
    return [action for action in actions_of(cluster) if isinstance(action, HandOver)]


def are_members(cluster: ModelCluster, name: str, count: int) -> bool:
    """Tell whether every pod of a group is in its Lease, with the volume that it has."""
    lease = cluster.replicas.lease(name)
    assert lease is not None
    pods = [f"{name}-{ordinal}" for ordinal in range(count)]
    return [lease.in_sync.get(ordinal) for ordinal in range(count)] == [
        cluster.replicas.store(pod)["store_id"] for pod in pods
    ]


def is_whole(cluster: ModelCluster, name: str = "orders-g1") -> bool:
    """Tell whether a group has its StatefulSet with three replicas."""
    live = cluster.objects["StatefulSet", name]
    return live["spec"]["replicas"] == 3 and not live["metadata"].get("deletionTimestamp")


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
@pytest.mark.parametrize("how", ["holderless", "unreadable", "deleted"])
def test_only_the_leader_says_that_all_is_read(how: str, policy: str) -> None:
    """A follower with an empty volume has nothing unread, and knows nothing of what there is."""
    cluster = cluster_of(groups=2, pvcRetention={"whenScaled": policy})
    cluster.replicas.hand_over("orders-g1-0", 1)
    settle(cluster, plan_broker)
    cluster.unread = {"orders-g1-1": 10**9, "orders-g1-2": 10**9, "orders-g1-0": 0}
    lease = cluster.objects["Lease", "orders-g1"]
    notes = lease["metadata"]["annotations"]
    members = [item for item in notes[_IN_SYNC].split(",") if not item.startswith("0:")]
    notes[_IN_SYNC] = ",".join(members)
    cluster.replicas.step = lambda: None
    cluster.change(groups=1)
    turns(cluster, 10)
    assert is_whole(cluster)
    if how == "holderless":
        lease["spec"]["holderIdentity"] = ""
    elif how == "unreadable":
        notes[_IN_SYNC] = "x"
    else:
        cluster.objects.pop(("Lease", "orders-g1"))
    for _ in range(2):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        cluster.clock.advance(0.2)
    assert is_whole(cluster)


def test_a_group_that_drains_elects_as_before() -> None:
    """Its pods keep their right to the Lease until they are gone."""
    cluster = cluster_of(groups=2)
    cluster.unread = {f"orders-g1-{ordinal}": 10**9 for ordinal in range(3)}
    cluster.change(groups=1)
    turns(cluster, 30)
    write, serves = cluster.replicas._step_group, cluster.replicas.serves

    def write_by_right(name: str) -> None:
        if name in cluster.objects["Role", "orders"]["rules"][0]["resourceNames"]:
            write(name)

    def serves_by_lease(pod: str) -> bool:
        lease = cluster.replicas.lease(group_of(pod))
        return lease is not None and serves(pod) and cluster.replicas._leads_on(lease)

    cluster.replicas._step_group = write_by_right
    cluster.replicas.serves = serves_by_lease
    cluster.evict("orders-g1-0")
    turns(cluster, 160)
    assert ("StatefulSet", "orders-g1") in cluster.objects
    cluster.unread.clear()
    settle(cluster, plan_broker)
    assert ("StatefulSet", "orders-g1") not in cluster.objects
    assert cluster.objects["Role", "orders"]["rules"][0]["resourceNames"] == ["orders-g0"]


@pytest.mark.parametrize("epoch", [0, 7])
def test_new_replicas_must_be_empty(epoch: int) -> None:
    """A claim of an earlier life takes the one that serves from nobody."""
    cluster = from_one_to(3)
    cluster.crashing.add(PODS[1])
    turns(cluster, 4)
    cluster.replicas.store(PODS[1]).update(end=10, epoch=epoch)
    cluster.crashing.clear()
    turns(cluster, 60)
    assert taken(cluster) == []
    assert pod_is_ready(cluster.objects["Pod", PODS[0]])
    assert condition(cluster, "Replicated")["reason"] == "StoresDiffer"
    assert "data-orders-g0-1 is not empty" in condition(cluster, "Replicated")["message"]


def test_a_group_goes_while_its_replicas_begin() -> None:
    """The pod of before says what is read; nobody would ever lead a group that is to go."""
    cluster = from_one_to(2, groups=2)
    cluster.unread = {"orders-g1-0": 10**9}
    cluster.unschedulable = True
    turns(cluster, 8)
    assert ("Pod", "orders-g1-1") in cluster.objects
    assert ("Lease", "orders-g1") not in cluster.objects
    cluster.change(groups=1)
    turns(cluster, 20)
    assert ("Pod", "orders-g1-0") in cluster.objects
    cluster.unread.clear()
    cluster.unschedulable = False
    settle(cluster, plan_broker)
    assert ("StatefulSet", "orders-g1") not in cluster.objects
    assert "orders-g1-0" not in dict(cluster.pods())


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
@pytest.mark.parametrize("actions", [1, 2, 3])
def test_nothing_is_left_of_a_group_by_an_operator_that_dies(actions: int, policy: str) -> None:
    """Whatever it took away last, and where no Lease tells of the group: the rest does."""
    cluster = cluster_of(groups=2, pvcRetention={"whenScaled": policy})
    cluster.change(groups=1)

    def short_lives(snapshot: Any) -> Plan:
        if not any(group_of(name) == "orders-g1" for name, _ in cluster.pods()):
            cluster.objects.pop(("Lease", "orders-g1"), None)
        plan = plan_broker(snapshot)
        done = cluster.carry_out(plan, actions=actions)
        return Plan((), plan.status if done < actions else cluster.status)

    settle(cluster, short_lives, rounds=60)
    left = {name for name in cluster.names() if "orders-g1" in name}
    kept = {"PersistentVolumeClaim", "Endpoints", "EndpointSlice", "Lease"}
    assert {name for name in left if name.split("/")[0] not in kept} == set()
    assert "EndpointSlice/orders-g1-leader" not in left


def test_a_group_that_comes_back_on_new_volumes_is_led() -> None:
    """Its Lease named volumes that went with it."""
    cluster = cluster_of(groups=2, pvcRetention={"whenScaled": "Delete"})
    for change in ({"replicas": 1}, {"groups": 1}):
        cluster.change(**change)
        settle(cluster, plan_broker)
    assert cluster.replicas.lease("orders-g1") is None
    cluster.change(groups=2)
    turns(cluster, 200)
    assert condition(cluster, "Ready")["status"] == "True"


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_group_that_comes_back_at_once_is_led(count: int) -> None:
    """It was on its way out, with its volumes, when somebody wanted it again."""
    cluster = cluster_of(groups=2, pvcRetention={"whenScaled": "Delete"})
    cluster.change(groups=1)
    turns(cluster, count)
    cluster.change(groups=2)
    del cluster.replicas.confirmed["orders-g1"]
    turns(cluster, 200)
    assert are_members(cluster, "orders-g1", 3)
    assert condition(cluster, "FailoverPossible")["status"] == "True"


def test_volumes_that_were_to_stay_are_told_as_lost() -> None:
    """Nobody but a person says that what is there counts."""
    cluster = cluster_of()
    for pod in PODS:
        cluster.objects.pop(("PersistentVolumeClaim", f"data-{pod}"))
        cluster.objects.pop(("Pod", pod))
    turns(cluster, 60)
    assert condition(cluster, "Replicated")["reason"] == "MembersLost"
    assert ("Lease", "orders-g0") in cluster.objects


@pytest.mark.parametrize("how", ["scaled by hand", "deleted in the foreground"])
def test_members_that_are_needed_stay_while_fewer_wait(how: str) -> None:
    """Whoever makes them fewer by hand knows less of who is needed."""
    cluster = cluster_of(3)
    cluster.replicas.hand_over(PODS[0], 2)
    cluster.replicas.cut_off.add(PODS[0])
    turns(cluster, 3)
    cluster.change(replicas=1)
    turns(cluster, 10)
    live = cluster.objects["StatefulSet", "orders-g0"]
    lease = cluster.replicas.lease("orders-g0")
    assert lease is not None
    assert (live["spec"]["replicas"], sorted(lease.in_sync)) == (3, [1, 2])
    if how == "scaled by hand":
        live["spec"]["replicas"] = 1
        live["metadata"]["generation"] += 1
        cluster.touch(live)
    else:
        cluster.remove_with_dependents("StatefulSet", "orders-g0")
        for pod in PODS:
            cluster.objects.pop(("Pod", pod), None)
    cluster.carry_out(plan_broker(cluster.snapshot()))
    assert cluster.objects["StatefulSet", "orders-g0"]["spec"]["replicas"] == 3


@pytest.mark.parametrize("in_sync", ["0:a,1:b", "x"])
def test_somebody_elses_lease_is_left_alone(in_sync: str) -> None:
    """Whatever it says, nothing of it is believed or written."""
    cluster = cluster_of()
    lease = cluster.objects["Lease", "orders-g0"]
    owner = {"kind": "Thing", "name": "t", "uid": "theirs", "controller": True}
    lease["metadata"]["ownerReferences"] = [owner]
    lease["metadata"]["annotations"][_IN_SYNC] = in_sync
    cluster.replicas.step = lambda: None
    cluster.change(replication={"inSyncReplicas": 3})
    forget(cluster)
    turns(cluster, 10)
    assert condition(cluster, "Replicated")["reason"] == "LeaseTaken"
    assert "belongs to Thing t" in condition(cluster, "Replicated")["message"]
    assert lease["metadata"]["ownerReferences"] == [owner]
    assert lease["metadata"]["annotations"]["mailboat.dev/min-in-sync"] == "2"


@pytest.mark.parametrize("is_rolled", [False, True])
def test_a_volume_that_is_another_one_by_now_is_not_in_sync(is_rolled: bool) -> None:
    """The set names the lost one as long as it may not be smaller: its pod copies."""
    cluster = cluster_of(2)
    cluster.objects.pop(("PersistentVolumeClaim", f"data-{PODS[1]}"))
    cluster.objects.pop(("Pod", PODS[1]))
    cluster.replicas._renew = lambda lease: None
    turns(cluster, 20)
    assert condition(cluster, "Replicated")["reason"] == "ReplicasBehind"
    assert group(cluster)["inSync"] == [PODS[0]]
    if is_rolled:
        forget(cluster)
        cluster.change(image="mailboat:2")
        turns(cluster, 40)
        assert PODS[0] not in taken(cluster)


def test_a_dead_leader_leads_no_more() -> None:
    """Its name stays in the Lease where nobody is left who could replace it."""
    cluster = cluster_of(3)
    for pod in PODS:
        cluster.restart(pod)
        cluster.crashing.add(pod)
    turns(cluster, 60)
    assert condition(cluster, "FailoverPossible")["status"] == "False"
    assert condition(cluster, "Replicated")["reason"] == "NoLeader"


def test_replicas_stay_while_the_one_that_is_to_stay_is_down() -> None:
    """Its Lease names it for some seconds more."""
    cluster = cluster_of(3)
    cluster.replicas.step = lambda: None
    cluster.restart(PODS[0])
    cluster.crashing.add(PODS[0])
    cluster.change(replicas=1)
    for _ in range(2):
        cluster.carry_out(plan_broker(cluster.snapshot()))
    assert cluster.objects["StatefulSet", "orders-g0"]["spec"]["replicas"] == 3


def full_one_leads() -> ModelCluster:
    """Return a cluster whose first replica is full, and leads once the others are to go."""
    cluster = cluster_of(3)
    cluster.full.add(PODS[0])
    cluster.replicas.hand_over(PODS[0], 2)
    settle(cluster, plan_broker)
    forget(cluster)
    cluster.change(replicas=1)
    return cluster


def test_nobody_is_to_lead_who_is_about_to_go() -> None:
    """A full leader hands over to one that stays, or to nobody."""
    cluster = full_one_leads()
    for _ in range(12):
        found = actions_of(cluster)
        is_less = any(
            isinstance(action, Apply) and action.manifest["kind"] == "StatefulSet"
            for action in found
        )
        assert not (is_less and handovers(cluster))
        turns(cluster, 1)


def test_the_lead_does_not_go_to_and_fro() -> None:
    """Although what was to follow a handover is refused."""
    cluster = full_one_leads()
    cluster.refused = ("stateful sets",)
    turns(cluster, 60)
    assert len(cluster.replicas.leaders) == 1


@pytest.mark.parametrize("why", ["full", "fewer"])
def test_whoever_can_lead_is_asked(why: str) -> None:
    """Where the first one of them refuses, the next one."""
    cluster = cluster_of(3)
    real, refused = cluster.replicas.hand_over, 1
    if why == "full":
        cluster.full.add(PODS[0])
    else:
        cluster.replicas.hand_over(PODS[0], 2)
        settle(cluster, plan_broker)
        refused = 0
        cluster.change(replicas=2)
    cluster.replicas.hand_over = lambda pod, to: to != refused and real(pod, to)
    turns(cluster, 60)
    assert group(cluster)["leader"] == (PODS[2] if why == "full" else PODS[1])


@pytest.mark.parametrize("trouble", ["alarm", "write_trouble"])
def test_one_in_trouble_is_not_asked(trouble: str) -> None:
    """It would lead into the same."""
    cluster = cluster_of(3)
    cluster.full.add(PODS[0])
    cluster.replicas.store(PODS[1])[trouble] = "its log is damaged"
    assert handovers(cluster) == [HandOver(PODS[0], (2,))]


@pytest.mark.parametrize("edit", ["label", "ports", "a port", "protocol", "epoch", "owner"])
def test_an_edited_slice_is_put_right(edit: str) -> None:
    """Where its leader does not see to it: clients would be led nowhere."""
    cluster = cluster_of(3)
    live = cluster.objects["EndpointSlice", "orders-g0-leader"]
    if edit == "label":
        del live["metadata"]["labels"]["kubernetes.io/service-name"]
    elif edit == "ports":
        live["ports"] = []
        assert _ports(live, 10913) == []
    elif edit == "a port":
        next(port for port in live["ports"] if port["name"] == "http")["port"] = 1
    elif edit == "protocol":
        live["ports"][-1]["protocol"] = "UDP"
    elif edit == "owner":
        live["metadata"]["ownerReferences"] = []
    else:
        lease = cluster.replicas.lease("orders-g0")
        live["metadata"]["annotations"]["mailboat.dev/epoch"] = "999999999"
        live["endpoints"] = [{"addresses": ["10.9.9.9"]}]
        assert lease is not None
        assert _epoch_of(live) > lease.epoch
    cluster.touch(live)
    settle(cluster, plan_broker)
    anew = cluster.objects["EndpointSlice", "orders-g0-leader"]
    assert anew["metadata"]["labels"]["kubernetes.io/service-name"] == "orders-g0"
    assert {(port["name"], port["port"], port["protocol"]) for port in anew["ports"]} >= {
        ("remoting", 10911, "TCP"),
        ("remoting-fast", 10909, "TCP"),
        ("http", 8080, "TCP"),
    }
    assert anew["endpoints"][0]["addresses"] != ["10.9.9.9"]
    assert anew["metadata"]["ownerReferences"][0]["uid"] == cluster.broker_uid


def test_what_was_left_behind_gets_its_owner_again() -> None:
    """As after `kubectl delete --cascade=orphan`; else it would outlive the next deletion."""
    cluster = cluster_of(3)
    for item in cluster.objects.values():
        owners: list[dict[str, Any]] = item["metadata"].get("ownerReferences", [])
        kept = [owner for owner in owners if owner["uid"] != cluster.broker_uid]
        item["metadata"]["ownerReferences"] = kept
    cluster.broker_uid, cluster.status = "uid-of-the-next", {}
    settle(cluster, plan_broker)
    for key in (("Lease", "orders-g0"), ("EndpointSlice", "orders-g0-leader")):
        owners = cluster.objects[key]["metadata"]["ownerReferences"]
        assert [owner["uid"] for owner in owners] == [cluster.broker_uid]


def test_a_log_that_diverged_is_told_although_there_is_no_lease() -> None:
    """Around a promotion by a person logs diverge most."""
    cluster = cluster_of(3)
    lease = cluster.objects.pop(("Lease", "orders-g0"))
    cluster.replicas.last.clear()
    cluster.replicas.store(PODS[1]).update(diverged_bytes=4096, keeps_all=False)
    turns(cluster, 3)
    assert group(cluster)["replicas"][1]["divergedBytes"] == 4096
    cluster.objects["Lease", "orders-g0"] = lease
    settle(cluster, plan_broker)
    assert events(cluster).count("LogDiverged") == 1


def test_replicas_that_cannot_start_can_be_given_up() -> None:
    """Nothing is in them, and the pod of before serves alone."""
    cluster = from_one_to(3)
    cluster.unschedulable = True
    turns(cluster, 10)
    cluster.change(replicas=1)
    turns(cluster, 200)
    assert cluster.objects["StatefulSet", "orders-g0"]["spec"]["replicas"] == 1


def test_pods_have_no_right_that_they_do_not_use() -> None:
    """They ask for their Lease, and never watch it."""
    cluster = cluster_of(3)
    verbs = [rule["verbs"] for rule in cluster.objects["Role", "orders"]["rules"]]
    assert verbs == [["get", "update", "create"], ["get", "update"]]


def test_a_pod_of_before_that_is_drained_meanwhile_leads() -> None:
    """A replica that never ran has nothing: the one with all messages does not wait for it."""
    cluster = from_one_to(3)
    cluster.unschedulable = True
    turns(cluster, 10)
    assert [name for name, _ in cluster.pods()] == PODS
    cluster.evict(PODS[0])
    cluster.unschedulable = False
    keep = cluster._run_pod

    def run_pod(name: str, pod: dict[str, Any]) -> None:
        if name == PODS[0]:
            keep(name, pod)

    cluster._run_pod = run_pod
    turns(cluster, 60)
    assert cluster.replicas.leaders == [(PODS[0], 1)]
    assert pod_is_ready(cluster.objects["Pod", PODS[0]])
    cluster._run_pod = keep
    settle(cluster, plan_broker)
    assert group(cluster)["inSync"] == PODS


@pytest.mark.parametrize("wanted", [1, 2])
def test_replicas_that_fail_can_be_given_up_after_the_pod_of_before_has_gone(wanted: int) -> None:
    """It comes back as a replica, and nobody has led yet: what fails was never needed."""
    cluster = from_one_to(3)
    cluster.crashing.add(PODS[2])
    turns(cluster, 10)
    cluster.evict(PODS[0])
    turns(cluster, 60)
    assert condition(cluster, "Replicated")["reason"] == "WaitingForReplicas"
    cluster.change(replicas=wanted)
    turns(cluster, 200)
    assert cluster.replicas.leaders == [(PODS[0], 1)]
    assert group(cluster)["inSync"] == PODS[:wanted]
    assert condition(cluster, "Ready")["status"] == "True"


def test_those_with_messages_are_not_given_up() -> None:
    """Whoever wants fewer does not know which volume has them."""
    cluster = from_one_to(3)
    cluster.crashing.add(PODS[2])
    turns(cluster, 10)
    cluster.evict(PODS[0])
    turns(cluster, 10)
    cluster.replicas.store(PODS[0])["end"] = 0
    cluster.replicas.store(PODS[1])["end"] = 1000
    cluster.change(replicas=1)
    turns(cluster, 60)
    assert cluster.objects["StatefulSet", "orders-g0"]["spec"]["replicas"] == 3
