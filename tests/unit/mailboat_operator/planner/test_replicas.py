"""A Broker with replicas: how a group of them is made, led, rolled and mended."""

import copy
from typing import Any

import pytest
from model_cluster import BROKEN_IMAGE, ModelCluster, pod_is_ready, settle
from operator_samples import BROKER_SPEC
from replicated_cluster import PODS, cluster_of, condition, events, forget, group, taken

from mailboat_operator.planner.actions import CreateSecret, Delete, Evict, Notify, TakeUpLease
from mailboat_operator.planner.broker import plan_broker


def test_a_group_of_replicas_is_made_whole():
    """Every object is there, one replica leads, all are in sync, and the status says so."""
    cluster = cluster_of()
    assert {name for name in cluster.names() if not name.startswith("PersistentVolumeClaim")} == {
        *(f"Pod/{pod}" for pod in PODS),
        "StatefulSet/orders-g0",
        "Service/orders-g0",
        "Service/orders-brokers",
        "ConfigMap/orders-g0",
        "PodDisruptionBudget/orders-g0",
        "ServiceAccount/orders",
        "Role/orders",
        "RoleBinding/orders",
        "Lease/orders-g0",
        "EndpointSlice/orders-g0-leader",
        # Kubernetes' own, of the headless Service.
        "Endpoints/orders-brokers",
        "EndpointSlice/orders-brokers-x7k2p",
    }
    assert cluster.secrets == {"orders-replication"}
    found = group(cluster)
    assert (found["leader"], found["epoch"], found["inSync"]) == (PODS[0], 1, PODS)
    assert [item["role"] for item in found["replicas"]] == ["leader", "follower", "follower"]
    assert condition(cluster, "Ready")["reason"] == "AllGroupsServing"
    assert condition(cluster, "Replicated")["reason"] == "AllInSync"
    assert condition(cluster, "FailoverPossible")["reason"] == "Possible"
    assert condition(cluster, "Progressing")["reason"] == "Settled"
    assert condition(cluster, "ConfigApplied")["reason"] == "Applied"
    assert cluster.status["ready"] == "1/1"
    assert [entry["pod"] for entry in cluster.status["storage"]] == PODS
    leader = cluster.objects["Pod", PODS[0]]["status"]["podIP"]
    slices = cluster.objects["EndpointSlice", "orders-g0-leader"]
    assert slices["endpoints"] == [{"addresses": [leader]}]
    assert "selector" not in cluster.objects["Service", "orders-g0"]["spec"]


def test_at_rest_nothing_is_planned():
    """No action and the same status, however often the Lease is renewed."""
    cluster = cluster_of()
    for _ in range(5):
        plan = plan_broker(cluster.snapshot())
        assert [action for step in plan.steps for action in step.actions] == []
        assert plan.status == cluster.status
        cluster.step()


def test_nobody_leads_before_every_replica_has_said_what_it_has():
    """The first Lease names one that has all messages, so it waits for the last of them."""
    cluster = ModelCluster(BROKER_SPEC | {"replicas": 3})
    cluster.crashing.add(PODS[2])
    for _ in range(20):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        cluster.step()
    assert ("Lease", "orders-g0") not in cluster.objects
    waiting = condition(cluster, "Replicated")
    assert waiting["reason"] == "WaitingForReplicas"
    assert PODS[2] in waiting["message"]
    cluster.crashing.clear()
    settle(cluster, plan_broker)
    assert group(cluster)["leader"] == PODS[0]


def test_the_one_replica_with_messages_leads_at_first():
    """Whatever its ordinal: an empty log must not be what counts."""
    cluster = ModelCluster(BROKER_SPEC | {"replicas": 3})
    cluster.crashing.update(PODS)
    for _ in range(5):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        cluster.step()
    cluster.replicas.store(PODS[1])["end"] = 4711
    cluster.crashing.clear()
    settle(cluster, plan_broker)
    assert cluster.replicas.leaders[0] == (PODS[1], 1)


def started_with(stores: dict[str, dict[str, Any]]) -> ModelCluster:
    """Return a cluster without a Lease whose replicas start with something in their stores."""
    cluster = ModelCluster(BROKER_SPEC | {"replicas": 3})
    cluster.has_endpoints = True
    cluster.crashing.update(PODS)
    for _ in range(5):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        cluster.step()
    for pod, found in stores.items():
        cluster.replicas.store(pod).update(found)
    cluster.crashing.clear()
    return cluster


_LOGS = {
    PODS[0]: {"end": 90, "epoch": 7, "seen": 9},
    PODS[1]: {"end": 60, "epoch": 8},
    PODS[2]: {"end": 70, "epoch": 8},
}


@pytest.mark.parametrize(
    ("change", "leader"),
    [
        ({}, PODS[2]),
        ({PODS[2]: {"end": 60}}, PODS[1]),
    ],
)
def test_a_broker_made_again_on_its_volumes_has_its_messages(change, leader):
    """Who has the latest epoch, and the most of it, leads after all epochs that there were."""
    cluster = started_with({pod: log | change.get(pod, {}) for pod, log in _LOGS.items()})
    settle(cluster, plan_broker)
    assert cluster.replicas.leaders[0] == (leader, 10)
    assert condition(cluster, "Replicated")["reason"] == "AllInSync"


@pytest.mark.parametrize(
    "change",
    [{"keeps_all": False}, {"end": 0, "epoch": 0}, {"role": "master"}, {"alarm": "lost a tail"}],
)
@pytest.mark.parametrize("pod", PODS)
def test_a_lease_that_is_gone_is_not_made_up(pod, change):
    """Where one that has everything may be missing, or leads."""
    cluster = started_with(_LOGS | {pod: _LOGS[pod] | change})
    for _ in range(20):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        cluster.step()
    assert ("Lease", "orders-g0") not in cluster.objects
    assert condition(cluster, "Replicated")["reason"] == "LeaseMissing"


@pytest.mark.parametrize("is_smaller", [False, True])
def test_a_broker_made_again_with_one_replica_is_one(is_smaller):
    """A broker that is no replica refuses such a volume, and its pod would end again and again."""
    former = cluster_of(3)
    if is_smaller:
        former.change(replicas=1)
        settle(former, plan_broker)
    cluster = ModelCluster(BROKER_SPEC | {"replicas": 1})
    cluster.has_endpoints = True
    claims = {key: item for key, item in former.objects.items() if key[0].endswith("Claim")}
    cluster.objects.update(claims)
    cluster.replicas.stores = former.replicas.stores
    for _ in range(20):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        cluster.step()
    assert cluster.replicas.is_replica(PODS[0])
    # The others may have what this one has not.
    assert condition(cluster, "Replicated")["reason"] == "LeaseMissing"
    assert "with spec.replicas: 3" in condition(cluster, "Replicated")["message"]
    cluster.change(replicas=3)
    settle(cluster, plan_broker)
    assert group(cluster)["inSync"] == PODS
    assert cluster.replicas.store(group(cluster)["leader"])["end"] >= 700


def test_the_lease_waits_for_replicas_beyond_those_wanted_now():
    """A volume of a replica that the Broker had before may be the one that has everything."""
    cluster = started_with(_LOGS)
    claim = cluster.objects["PersistentVolumeClaim", f"data-{PODS[2]}"]
    kept = copy.deepcopy(claim)
    kept["metadata"]["name"] = "data-orders-g0-4"
    cluster.objects["PersistentVolumeClaim", "data-orders-g0-4"] = kept
    for _ in range(20):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        cluster.step()
    assert condition(cluster, "Replicated")["reason"] == "LeaseMissing"


@pytest.mark.parametrize(
    ("stores", "reason"),
    [
        ({PODS[0]: {"end": 10}, PODS[2]: {"end": 20}}, "StoresDiffer"),
        ({PODS[0]: {"end": 10, "epoch": 7}}, "LeaseMissing"),
    ],
)
def test_no_lease_is_made_up_where_a_person_has_to_decide(stores, reason):
    """Two logs without a common history, or a Lease lost with those who had what counts."""
    cluster = started_with(stores)
    for _ in range(20):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        cluster.step()
    assert ("Lease", "orders-g0") not in cluster.objects
    assert condition(cluster, "Replicated")["reason"] == reason
    assert condition(cluster, "FailoverPossible")["reason"] == "NoLeader"


def test_followers_are_rolled_first_and_the_leader_last():
    """Each next one only when all are ready and in sync; then another one leads."""
    cluster = cluster_of()
    cluster.replicas.hand_over(PODS[0], 1)
    settle(cluster, plan_broker)
    forget(cluster)

    def all_others_are_in_sync(model: ModelCluster) -> None:
        for action in model.writes[-1:]:
            if isinstance(action, Evict | Delete) and action.name in PODS:
                lease = model.replicas.lease("orders-g0")
                assert len(lease.in_sync) == 3
                assert all(pod_is_ready(pod) for name, pod in model.pods() if name != action.name)

    cluster.change(image="mailboat:2")
    settle(cluster, plan_broker, check=all_others_are_in_sync)
    assert taken(cluster) == [PODS[0], PODS[2], PODS[1]]
    assert [leader for leader, _ in cluster.replicas.leaders] == [PODS[0]]
    assert "LeaderChanged" in events(cluster)
    assert group(cluster)["inSync"] == PODS


def test_a_replica_that_is_not_in_sync_holds_up_the_roll():
    """It may go itself; the others have all messages, and one less of them is one too few."""
    cluster = cluster_of()
    cluster.replicas.cut_off.add(PODS[1])
    cluster.step()
    cluster.change(image="mailboat:2")
    for _ in range(30):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        pod = cluster.objects["Pod", PODS[1]]
        cluster.step()
        cluster._set_ready(pod, True)
    assert taken(cluster) == [PODS[1]]
    assert "orders-g0-1 is not in the in-sync set" in condition(cluster, "Progressing")["message"]
    assert condition(cluster, "Replicated")["reason"] == "ReplicasBehind"
    assert condition(cluster, "FailoverPossible")["reason"] == "TooFewInSync"
    assert "ReplicaDropped" in events(cluster)
    cluster.replicas.cut_off.clear()
    settle(cluster, plan_broker)
    assert taken(cluster) == [PODS[1], PODS[2], PODS[0]]
    assert "ReplicaJoined" in events(cluster)


def test_a_log_that_has_diverged_is_told_once():
    """Also while its replica says nothing for a while; once somebody removed it, so says status."""
    cluster = cluster_of()
    store = cluster.replicas.store(PODS[1])
    store["diverged_bytes"] = 4096
    settle(cluster, plan_broker)
    assert events(cluster) == ["LogDiverged"]
    assert group(cluster)["replicas"][1]["divergedBytes"] == 4096
    cluster.change(image="mailboat:2")
    settle(cluster, plan_broker)
    assert events(cluster).count("LogDiverged") == 1
    store["diverged_bytes"] = 5000
    settle(cluster, plan_broker)
    assert cluster.events[-1].message.startswith("orders-g0-1 had 904 bytes in its log")
    del store["diverged_bytes"]
    settle(cluster, plan_broker)
    assert "divergedBytes" not in group(cluster)["replicas"][1]


def test_a_full_volume_of_a_replica_is_told():
    """What it cannot store is in the status beside it."""
    cluster = cluster_of()
    cluster.replicas.store(PODS[2])["write_trouble"] = "no space is left on the volume"
    settle(cluster, plan_broker)
    assert group(cluster)["replicas"][2]["message"] == "no space is left on the volume"


def test_a_leader_whose_volume_is_full_hands_over_to_one_that_has_room():
    """Once; and nobody is bothered where there is room nowhere."""
    cluster = cluster_of()
    cluster.full |= {PODS[0], PODS[1]}
    settle(cluster, plan_broker)
    assert [leader for leader, _ in cluster.replicas.leaders] == [PODS[2]]
    cluster.full.add(PODS[2])
    settle(cluster, plan_broker)
    assert group(cluster)["leader"] == PODS[2]
    cluster.full.remove(PODS[0])
    settle(cluster, plan_broker)
    assert group(cluster)["leader"] == PODS[0]


def test_pods_of_several_groups_go_one_at_a_time():
    """A roll takes one pod of the whole Broker, group after group."""
    cluster = cluster_of(groups=2)
    cluster.change(image="mailboat:2")
    settle(cluster, plan_broker)
    assert taken(cluster) == [
        *("orders-g0-1", "orders-g0-2", "orders-g0-0"),
        *("orders-g1-1", "orders-g1-2", "orders-g1-0"),
    ]


def test_a_bad_image_takes_one_follower_down():
    """The leader serves on, and the others are left alone."""
    cluster = cluster_of()
    cluster.change(image=BROKEN_IMAGE)
    settle(cluster, plan_broker)
    assert taken(cluster) == [PODS[1]]
    assert condition(cluster, "Progressing")["reason"] == "RollBlocked"
    assert group(cluster)["leader"] == PODS[0]
    assert cluster.replicas.leaders == []


def test_a_lost_leader_is_told_of():
    """Another one leads; the operator has done nothing for it."""
    cluster = cluster_of()
    cluster.evict(PODS[0])
    settle(cluster, plan_broker)
    changed = [event for event in cluster.events if event.reason == "LeaderChanged"]
    assert [event.message for event in changed] == [
        "orders-g0-1 leads orders-g0 in place of orders-g0-0, in epoch 2 after 1"
    ]
    assert group(cluster)["leader"] == PODS[1]
    assert {type(action) for action in cluster.writes} <= {str}
    assert cluster.status["brokers"][0]["pod"] == PODS[1]


def test_the_minimum_rises_only_when_enough_are_in_sync():
    """Raised at once it would stop the group; lowered it is at once."""
    cluster = cluster_of()
    cluster.replicas.cut_off.add(PODS[2])
    cluster.step()
    cluster.change(replication={"inSyncReplicas": 3})
    for _ in range(5):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        cluster.step()
    assert cluster.replicas.lease("orders-g0").minimum == 2
    cluster.replicas.cut_off.clear()
    settle(cluster, plan_broker)
    assert cluster.replicas.lease("orders-g0").minimum == 3
    cluster.change(replication={"inSyncReplicas": 1})
    cluster.carry_out(plan_broker(cluster.snapshot()))
    assert cluster.replicas.lease("orders-g0").minimum == 1


def test_a_lease_that_contradicts_itself_is_not_believed():
    """It is left as it is, and the condition says what is wrong with it."""
    cluster = cluster_of()
    lease = cluster.objects["Lease", "orders-g0"]
    lease["metadata"]["annotations"]["mailboat.dev/in-sync"] = "1:b,2"
    plan = plan_broker(cluster.snapshot())
    assert [action for step in plan.steps for action in step.actions] == []
    cluster.carry_out(plan)
    unreadable = condition(cluster, "Replicated")
    assert unreadable["reason"] == "LeaseUnreadable"
    assert "mailboat.dev/in-sync" in unreadable["message"]


def test_what_was_deleted_is_made_again():
    """The EndpointSlice with the leader in it, rights and budget; the Lease its leader writes."""
    cluster = cluster_of()
    for kind, name in (
        ("EndpointSlice", "orders-g0-leader"),
        ("Role", "orders"),
        ("RoleBinding", "orders"),
        ("PodDisruptionBudget", "orders-g0"),
    ):
        cluster.remove(kind, name)
    settle(cluster, plan_broker)
    leader = cluster.objects["Pod", PODS[0]]["status"]["podIP"]
    found = cluster.objects["EndpointSlice", "orders-g0-leader"]["endpoints"]
    assert found[0]["addresses"] == [leader]
    assert {"Role/orders", "RoleBinding/orders", "PodDisruptionBudget/orders-g0"} <= cluster.names()
    cluster.remove("Lease", "orders-g0")
    (step,) = plan_broker(cluster.snapshot()).steps
    assert [type(action) for action in step.actions] == [TakeUpLease]
    assert taken(cluster) == []


def test_a_secret_that_somebody_deleted_is_made_again():
    """Nobody reads whether it is there: a pod that lacks something it mounts shows it."""
    cluster = cluster_of()
    waiting = {"waiting": {"reason": "ContainerCreating"}}
    for _ in range(3):
        cluster._set_state(cluster.objects["Pod", PODS[1]], waiting, started=False)
        plan = plan_broker(cluster.snapshot())
        cluster.clock.advance(30.0)
    made = [action for step in plan.steps for action in step.actions]
    assert [action.key for action in made if isinstance(action, CreateSecret)] == ["secret"]


def test_a_group_that_is_scaled_away_takes_its_replicas_along():
    """All its pods go, and its Lease stays with its volumes."""
    cluster = cluster_of(groups=2)
    cluster.change(groups=1)
    settle(cluster, plan_broker)
    names = {name for name in cluster.names() if "orders-g1" in name}
    claims = {f"PersistentVolumeClaim/data-orders-g1-{ordinal}" for ordinal in range(3)}
    assert names == claims | {"Lease/orders-g1"}
    cluster.change(groups=2)
    settle(cluster, plan_broker)
    assert group(cluster, "orders-g1")["epoch"] == 2


def test_a_group_whose_volumes_go_takes_its_lease_along():
    """It would name stores that are no more."""
    cluster = cluster_of(groups=2, pvcRetention={"whenScaled": "Delete"})
    cluster.change(groups=1)
    settle(cluster, plan_broker)
    assert {name for name in cluster.names() if "orders-g1" in name} == set()


def test_every_event_is_told_once():
    """However often the same is planned."""
    cluster = cluster_of()
    cluster.evict(PODS[0])
    settle(cluster, plan_broker)
    told = [event for event in cluster.events if isinstance(event, Notify)]
    assert len({(event.reason, event.message) for event in told}) == len(told)
