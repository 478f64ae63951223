"""A Broker gets replicas, more or fewer: it serves all the while, and keeps its messages."""

import pytest
from model_cluster import BROKER_KEYS, ModelCluster, pod_is_ready, settle
from operator_samples import BROKER_SPEC
from replicated_cluster import PODS, cluster_of, condition, forget, from_one_to, group, taken

from mailboat_operator.planner.actions import HandOver
from mailboat_operator.planner.broker import plan_broker


def test_a_broker_gets_replicas_and_keeps_its_messages():
    """Its pod is restarted once, when the others have said that they are empty, and leads."""
    cluster = from_one_to(3)
    claim = cluster.objects["PersistentVolumeClaim", f"data-{PODS[0]}"]["metadata"]["uid"]
    settle(cluster, plan_broker)
    assert taken(cluster) == [PODS[0]]
    assert cluster.replicas.leaders == [(PODS[0], 1)]
    assert group(cluster)["inSync"] == PODS
    after = cluster.objects["PersistentVolumeClaim", f"data-{PODS[0]}"]["metadata"]["uid"]
    assert after == claim
    assert condition(cluster, "Replicated")["reason"] == "AllInSync"
    names = cluster.names()
    assert "PodDisruptionBudget/orders" not in names
    assert "PodDisruptionBudget/orders-g0" in names
    # What Kubernetes made while the Service selected its pod would lead there for ever.
    assert not {"Endpoints/orders-g0", "EndpointSlice/orders-g0-x7k2p"} & names


@pytest.mark.parametrize("how", ["restart", "reboot"])
def test_the_pod_of_before_may_start_again_before_it_is_a_replica(how):
    """Its file is the one that is there by then, and it has no way to a Lease."""
    cluster = from_one_to(3)
    cluster.crashing.add(PODS[2])
    for _ in range(10):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        cluster.step()
    assert "MAILBOAT_POD_UID" not in str(cluster.objects["Pod", PODS[0]]["spec"])
    cluster.restart(PODS[0]) if how == "restart" else cluster.reboot()
    for _ in range(10):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        cluster.step()
    assert not cluster.running_config[PODS[0]].get("leaseName")
    assert pod_is_ready(cluster.objects["Pod", PODS[0]])
    assert taken(cluster) == []
    cluster.crashing.clear()
    settle(cluster, plan_broker)
    assert taken(cluster) == [PODS[0]]
    assert group(cluster)["inSync"] == PODS


@pytest.mark.parametrize("spec", [{}, {"replication": {"inSyncReplicas": 3}}])
def test_a_broker_takes_messages_while_its_new_replicas_copy(spec):
    """A leader refuses sends while fewer are in the set than it needs, and a copy takes hours."""
    cluster = from_one_to(3)
    cluster.change(**spec)
    cluster.replicas.cut_off |= {PODS[1], PODS[2]}

    def takes_messages(model: ModelCluster) -> None:
        lease = model.replicas.lease("orders-g0")
        assert lease is None or lease.minimum <= len(lease.in_sync)

    for _ in range(40):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        takes_messages(cluster)
        cluster.step()
    assert cluster.replicas.leaders == [(PODS[0], 1)]
    assert condition(cluster, "FailoverPossible")["reason"] == "TooFewInSync"
    cluster.replicas.cut_off.clear()
    settle(cluster, plan_broker, check=takes_messages)
    wanted = spec.get("replication", {}).get("inSyncReplicas", 2)
    assert cluster.replicas.lease("orders-g0").minimum == wanted


def test_clients_find_the_pod_that_serves_while_a_broker_gets_replicas():
    """The Service leads to the pod of before until there is a leader, and to no empty replica."""
    cluster = from_one_to(3)
    before = cluster.objects["Pod", PODS[0]]["status"]["podIP"]

    def leads_to_the_first(model: ModelCluster) -> None:
        service = model.objects["Service", "orders-g0"]
        slices = model.objects.get(("EndpointSlice", "orders-g0-leader"))
        pod = model.objects.get(("Pod", PODS[0]), {"status": {}})
        if "selector" in service["spec"]:
            assert ("Pod", PODS[1]) not in model.objects
        elif pod["status"].get("podIP") == before and pod_is_ready(pod):
            assert slices["endpoints"][0]["addresses"] == [before]

    settle(cluster, plan_broker, check=leads_to_the_first)


@pytest.mark.parametrize("step", ["leader", "services"])
def test_no_replica_is_made_while_the_service_selects_pods(step):
    """Whatever the API server refuses on the way: an empty replica must meet no client."""
    cluster = from_one_to(3)
    cluster.refused = (step,)
    for _ in range(5):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        cluster.step()
    assert "selector" in cluster.objects["Service", "orders-g0"]["spec"]
    assert [name for name, _ in cluster.pods()] == [PODS[0]]
    assert taken(cluster) == []
    cluster.refused = ()
    settle(cluster, plan_broker)
    assert group(cluster)["inSync"] == PODS


def test_the_pod_of_before_is_followed_to_its_new_address():
    """Until somebody leads the operator says where the Service leads to."""
    cluster = from_one_to(3)
    cluster.crashing.add(PODS[1])
    for _ in range(5):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        cluster.step()
    pod = cluster.objects["Pod", PODS[0]]
    slices = cluster.objects["EndpointSlice", "orders-g0-leader"]
    assert slices["endpoints"][0]["addresses"] == [pod["status"]["podIP"]]
    pod["status"]["podIP"] = "10.9.9.9"
    cluster.carry_out(plan_broker(cluster.snapshot()))
    found = cluster.objects["EndpointSlice", "orders-g0-leader"]["endpoints"]
    assert found[0]["addresses"] == ["10.9.9.9"]


def test_a_replica_that_cannot_start_costs_no_broker_that_serves():
    """The pod with the messages is not restarted before the others are there."""
    cluster = from_one_to(3)
    cluster.crashing.add(PODS[1])
    for _ in range(60):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        cluster.step()
    assert taken(cluster) == []
    assert pod_is_ready(cluster.objects["Pod", PODS[0]])
    cluster.crashing.clear()
    settle(cluster, plan_broker)
    assert taken(cluster) == [PODS[0]]


def test_replicas_that_are_given_up_before_they_began_leave_nothing_behind():
    """1 -> 3 -> 1 while the Service still selects its pod, or just does no more."""
    for step in ("services", "stateful sets"):
        cluster = from_one_to(3)
        before = cluster.names()
        cluster.refused = (step,)
        for _ in range(4):
            cluster.carry_out(plan_broker(cluster.snapshot()))
            cluster.step()
        assert "Role/orders" in cluster.names()
        cluster.refused = ()
        cluster.change(replicas=1)
        settle(cluster, plan_broker)
        assert cluster.names() == before
        assert taken(cluster) == []


def test_several_groups_get_replicas_one_after_the_other():
    """One pod of the Broker is down at a time."""
    cluster = from_one_to(2, groups=2)
    settle(cluster, plan_broker)
    assert taken(cluster) == ["orders-g0-0", "orders-g1-0"]
    assert group(cluster, "orders-g1")["inSync"] == ["orders-g1-0", "orders-g1-1"]


def test_an_image_that_knows_no_replicas_gets_none():
    """Nothing is changed, and the condition says what to do."""
    cluster = ModelCluster(BROKER_SPEC)
    cluster.keys_of_image["mailboat:1"] = frozenset(BROKER_KEYS.keys() - {"leaseName"})
    settle(cluster, plan_broker)
    forget(cluster)
    cluster.change(replicas=3)
    settle(cluster, plan_broker)
    assert [name for name, _ in cluster.pods()] == [PODS[0]]
    assert taken(cluster) == []
    assert condition(cluster, "Replicated")["reason"] == "ImageTooOld"
    assert "selector" in cluster.objects["Service", "orders-g0"]["spec"]


def test_more_replicas_join_and_none_is_restarted():
    """2 -> 3: the new one connects to the others, and is in sync once it has everything."""
    cluster = cluster_of(2)
    cluster.change(replicas=3)
    settle(cluster, plan_broker)
    assert taken(cluster) == []
    assert cluster.replicas.leaders == []
    assert group(cluster)["inSync"] == PODS
    conf = cluster.objects["ConfigMap", "orders-g0"]["data"]["replica.conf"]
    assert "totalReplicas=3" in conf
    assert "orders-g0-2.orders-brokers.shop.svc" in conf
    assert cluster.replicas.lease("orders-g0").minimum == 2


def test_a_leader_that_is_to_go_hands_over_first():
    """3 -> 1: one that stays leads, fewer have to be in sync, and only then the others go."""
    cluster = cluster_of()
    cluster.replicas.hand_over(PODS[0], 2)
    settle(cluster, plan_broker)
    forget(cluster)
    cluster.change(replicas=1)

    def nobody_goes_who_is_needed(model: ModelCluster) -> None:
        lease = model.replicas.lease("orders-g0")
        if model.objects["StatefulSet", "orders-g0"]["spec"]["replicas"] == 1:
            assert (lease.leader, lease.minimum) == (0, 1)

    settle(cluster, plan_broker, check=nobody_goes_who_is_needed)
    assert [action for action in cluster.writes if isinstance(action, HandOver)] == [
        HandOver(PODS[2], (0,))
    ]
    assert [name for name, _ in cluster.pods()] == [PODS[0]]
    assert taken(cluster) == []
    assert group(cluster)["inSync"] == [PODS[0]]
    assert condition(cluster, "Replicated")["reason"] == "AllInSync"
    kept = [entry for entry in cluster.status["storage"] if entry["pod"] != PODS[0]]
    assert [entry["claim"] for entry in kept] == [f"data-{PODS[1]}", f"data-{PODS[2]}"]
    assert all("replica was scaled away" in entry["message"] for entry in kept)


def test_nobody_goes_before_fewer_have_to_be_in_sync():
    """Else the leader could drop nobody, and would refuse every message."""
    cluster = cluster_of()
    cluster.refused = ("replicas",)
    cluster.change(replicas=1)
    for _ in range(5):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        cluster.step()
    assert cluster.objects["StatefulSet", "orders-g0"]["spec"]["replicas"] == 3
    assert condition(cluster, "Progressing")["reason"] == "Updating"
    cluster.refused = ()
    settle(cluster, plan_broker)
    assert [name for name, _ in cluster.pods()] == [PODS[0]]


def test_a_group_is_not_made_smaller_while_too_few_that_stay_are_in_sync():
    """3 -> 2 with one of the two away: the third is needed, and Progressing says so."""
    cluster = cluster_of()
    cluster.crashing.add(PODS[1])
    cluster.restart(PODS[1])
    for _ in range(3):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        cluster.step()
    cluster.change(replicas=2)
    for _ in range(20):
        cluster.carry_out(plan_broker(cluster.snapshot()))
        cluster.step()
    assert cluster.objects["StatefulSet", "orders-g0"]["spec"]["replicas"] == 3
    assert ("Pod", PODS[2]) in cluster.objects
    cluster.crashing.clear()
    settle(cluster, plan_broker)
    assert ("Pod", PODS[2]) not in cluster.objects
    assert group(cluster)["inSync"] == PODS[:2]


def test_there_and_back_again():
    """1 -> 3 -> 2 -> 1 -> 3: nothing is lost of what the first one had."""
    cluster = from_one_to(3)
    for replicas in (3, 2, 1, 3):
        cluster.change(replicas=replicas)
        settle(cluster, plan_broker)
        assert group(cluster)["inSync"] == PODS[:replicas]
        assert len(list(cluster.pods())) == replicas
    assert cluster.replicas.store(PODS[0])["end"] >= 1000
