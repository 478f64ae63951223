"""What becomes of a Broker's volume claims when groups go, claims grow and things are deleted."""

import pytest
from broker_at_rest import actions_of, cluster_at_rest, condition
from model_cluster import ModelCluster, duplicate, settle

from mailboat_operator.planner.actions import Delete, Patch, ResizeClaim
from mailboat_operator.planner.broker import plan_broker


def test_scaling_down_takes_the_highest_group_and_keeps_its_volume():
    """StatefulSet, pod, Service and ConfigMap go; the claim stays and is shown."""
    cluster = cluster_at_rest(groups=3, pvcRetention={"whenDeleted": "Delete"})
    cluster.change(groups=2)
    settle(cluster, plan_broker)
    left = {name for name in cluster.names() if "orders-g2" in name}
    assert left == {"PersistentVolumeClaim/data-orders-g2-0"}
    (kept,) = [entry for entry in cluster.status["storage"] if entry["pod"] == "orders-g2-0"]
    assert (kept["claim"], kept["capacity"]) == ("data-orders-g2-0", "8Gi")
    (deletion,) = [
        item for item in cluster.writes if isinstance(item, Delete) and item.kind == "StatefulSet"
    ]
    assert deletion.orphan
    uid = cluster.objects["PersistentVolumeClaim", "data-orders-g2-0"]["metadata"]["uid"]
    cluster.change(groups=3)
    settle(cluster, plan_broker)
    claim = cluster.objects["PersistentVolumeClaim", "data-orders-g2-0"]
    assert claim["metadata"]["uid"] == uid
    assert cluster.status["ready"] == "3/3"


def test_scaling_down_removes_the_volume_only_where_that_is_said():
    """whenScaled: Delete takes the claim of the group that goes; the operator deletes none."""
    cluster = cluster_at_rest(groups=2, pvcRetention={"whenScaled": "Delete"})
    cluster.change(groups=1)
    settle(cluster, plan_broker)
    assert not {name for name in cluster.names() if "orders-g1" in name}
    assert "PersistentVolumeClaim/data-orders-g0-0" in cluster.names()
    deleted = {item.kind for item in cluster.writes if isinstance(item, Delete)}
    assert "PersistentVolumeClaim" not in deleted


def claim_owners(cluster: ModelCluster, group: int = 0) -> list[tuple[str, str]]:
    """Return kind and name of what a group's claim belongs to."""
    claim = cluster.objects["PersistentVolumeClaim", f"data-orders-g{group}-0"]
    owners = claim["metadata"].get("ownerReferences", [])
    return [(owner["kind"], owner.get("name", "")) for owner in owners]


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_a_stateful_set_deleted_by_hand_costs_no_volume(policy):
    """Its pod goes and comes back on the same claim, whatever becomes of that with the Broker."""
    cluster = cluster_at_rest(pvcRetention={"whenDeleted": policy})
    uid = cluster.objects["PersistentVolumeClaim", "data-orders-g0-0"]["metadata"]["uid"]
    cluster.remove_with_dependents("StatefulSet", "orders-g0")
    assert ("Pod", "orders-g0-0") not in cluster.objects
    settle(cluster, plan_broker)
    claim = cluster.objects["PersistentVolumeClaim", "data-orders-g0-0"]
    assert claim["metadata"]["uid"] == uid
    assert cluster.status["ready"] == "1/1"


@pytest.mark.parametrize(("policy", "left"), [("Retain", 2), ("Delete", 0)])
def test_the_volumes_go_with_the_broker_where_that_is_said(policy, left):
    """All of them, of scaled-away groups too, and without an operator; else they all stay."""
    cluster = cluster_at_rest(groups=2, pvcRetention={"whenDeleted": policy})
    cluster.change(groups=1)
    settle(cluster, plan_broker)
    assert len(list(cluster.of_kind("PersistentVolumeClaim"))) == 2
    cluster.remove_broker()
    assert len(list(cluster.of_kind("PersistentVolumeClaim"))) == left
    assert list(cluster.pods()) == []


def test_the_owner_of_the_volumes_follows_the_spec():
    """Delete makes them the Broker's, Retain takes them off it; owners of others stay."""
    cluster = cluster_at_rest()
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "backup", "uid": "uid-of-backup"}
    claim = cluster.objects["PersistentVolumeClaim", "data-orders-g0-0"]
    claim["metadata"]["ownerReferences"] = [other]
    cluster.change(pvcRetention={"whenDeleted": "Delete"})
    settle(cluster, plan_broker)
    assert claim_owners(cluster) == [("ConfigMap", "backup"), ("Broker", "orders")]
    reference = cluster.objects["PersistentVolumeClaim", "data-orders-g0-0"]["metadata"][
        "ownerReferences"
    ][1]
    assert (reference["controller"], reference["blockOwnerDeletion"]) == (False, False)
    cluster.change(pvcRetention={"whenDeleted": "Retain"})
    settle(cluster, plan_broker)
    assert claim_owners(cluster) == [("ConfigMap", "backup")]


def test_a_volume_that_goes_with_its_pod_belongs_to_nobody_else():
    """Both Delete: the claim of a group that is scaled away goes, and no other one."""
    policy = {"whenDeleted": "Delete", "whenScaled": "Delete"}
    for steps in range(12):
        cluster = cluster_at_rest(groups=2, pvcRetention=policy)
        assert claim_owners(cluster, 1) == [("Broker", "orders")]
        cluster.change(groups=1)
        for _ in range(steps):
            cluster.carry_out(plan_broker(cluster.snapshot()))
            cluster.step()
        back = duplicate(cluster)
        settle(cluster, plan_broker)
        assert not {name for name in cluster.names() if "orders-g1" in name}
        assert claim_owners(cluster) == [("Broker", "orders")]
        back.change(groups=2)
        settle(back, plan_broker)
        assert back.status["ready"] == "2/2"
        assert claim_owners(back, 1) == [("Broker", "orders")]


def test_a_claim_that_grows_is_given_its_owner_afterwards():
    """One write per claim and plan: the second would name a version that is gone."""
    cluster = cluster_at_rest()
    cluster.change(storage={"size": "16Gi"}, pvcRetention={"whenDeleted": "Delete"})
    actions = actions_of(plan_broker(cluster.snapshot()))
    assert [type(action) for action in actions if isinstance(action, ResizeClaim | Patch)] == [
        ResizeClaim
    ]
    settle(cluster, plan_broker)
    assert claim_owners(cluster) == [("Broker", "orders")]


def test_a_claim_of_another_name_or_on_its_way_out_is_left_alone():
    """A person's claim with the Broker's labels is not the Broker's, nor is one that goes."""
    cluster = cluster_at_rest()
    own = cluster.objects["PersistentVolumeClaim", "data-orders-g0-0"]
    cluster.objects["PersistentVolumeClaim", "backup"] = duplicate(own)
    cluster.objects["PersistentVolumeClaim", "backup"]["metadata"]["name"] = "backup"
    own["metadata"]["deletionTimestamp"] = cluster.time()
    cluster.change(pvcRetention={"whenDeleted": "Delete"})
    settle(cluster, plan_broker)
    assert [action for action in cluster.writes if isinstance(action, Patch)] == []


def test_whenever_a_group_is_wanted_again_it_comes_back():
    """Scaled away with its volume and, after any number of steps of that, wanted again."""
    for steps in range(12):
        cluster = cluster_at_rest(groups=2, pvcRetention={"whenScaled": "Delete"})
        cluster.change(groups=1)
        for _ in range(steps):
            cluster.carry_out(plan_broker(cluster.snapshot()))
            cluster.step()
        cluster.change(groups=2)
        settle(cluster, plan_broker)
        assert cluster.status["ready"] == "2/2"
        assert cluster.objects["StatefulSet", "orders-g1"]["spec"]["replicas"] == 1


def test_the_volume_of_a_missing_pod_stays():
    """Only a pod that is there can take its claim along; a user who waits for nothing keeps it."""
    cluster = cluster_at_rest(
        groups=2, pvcRetention={"whenScaled": "Delete"}, scaleDown={"whenUnread": "Proceed"}
    )
    cluster.change(groups=1)
    cluster.evict("orders-g1-0")
    cluster.carry_out(plan_broker(cluster.snapshot()))
    settle(cluster, plan_broker)
    left = {name for name in cluster.names() if "orders-g1" in name}
    assert left == {"PersistentVolumeClaim/data-orders-g1-0"}


def test_a_volume_kept_from_an_earlier_life_is_never_removed():
    """A claim without a StatefulSet was kept on purpose, whatever whenScaled says now."""
    cluster = cluster_at_rest(groups=2)
    cluster.change(groups=1)
    settle(cluster, plan_broker)
    cluster.change(pvcRetention={"whenScaled": "Delete"})
    settle(cluster, plan_broker)
    assert "PersistentVolumeClaim/data-orders-g1-0" in cluster.names()


@pytest.mark.parametrize(
    "change", [{"image": "mailboat:2"}, {"config": {"flushDiskType": "SYNC_FLUSH"}}]
)
def test_no_pod_is_restarted_whose_claim_is_being_deleted(change):
    """Its end would take the volume along: the others roll, and the conditions say what to do."""
    cluster = cluster_at_rest(groups=2)
    claim = cluster.objects["PersistentVolumeClaim", "data-orders-g0-0"]
    claim["metadata"]["deletionTimestamp"] = cluster.time()
    claim["spec"]["volumeName"] = "pv-7"
    cluster.change(**change)
    settle(cluster, plan_broker)
    assert [name for name, _ in cluster.taken_down] == ["orders-g1-0"]
    assert cluster.objects["PersistentVolumeClaim", "data-orders-g0-0"] is claim
    progressing = condition(cluster.status, "Progressing")
    assert (progressing["status"], progressing["reason"]) == ("True", "Rolling")
    assert "data-orders-g0-0 is being deleted" in progressing["message"]
    storage = condition(cluster.status, "StorageReady")
    assert (storage["status"], storage["reason"]) == ("False", "ClaimDeleted")
    assert "PersistentVolume pv-7 to Retain" in storage["message"]
    (warning,) = [event for event in cluster.events if event.type == "Warning"]
    assert (warning.reason, warning.message) == ("ClaimDeleted", storage["message"])
    # A person does what it says.
    cluster.evict("orders-g0-0")
    settle(cluster, plan_broker)
    assert condition(cluster.status, "StorageReady")["reason"] == "VolumesReady"
    assert cluster.status["ready"] == "2/2"


def test_a_group_with_a_claim_that_is_being_deleted_can_be_scaled_away():
    """That the group goes was said by the user; its pod and the claim end."""
    cluster = cluster_at_rest(groups=2)
    claim = cluster.objects["PersistentVolumeClaim", "data-orders-g1-0"]
    claim["metadata"]["deletionTimestamp"] = cluster.time()
    cluster.change(groups=1)
    settle(cluster, plan_broker)
    assert not {name for name in cluster.names() if "orders-g1" in name}


def test_a_larger_volume_leaves_the_pod_and_renews_the_stateful_set():
    """The claim grows; then the StatefulSet is made anew with that size around the same pod."""
    cluster = cluster_at_rest()
    uid = cluster.objects["Pod", "orders-g0-0"]["metadata"]["uid"]
    before = cluster.objects["StatefulSet", "orders-g0"]["metadata"]["uid"]
    cluster.change(storage={"size": "16Gi"})
    settle(cluster, plan_broker)
    stateful_set = cluster.objects["StatefulSet", "orders-g0"]
    (template,) = stateful_set["spec"]["volumeClaimTemplates"]
    assert template["spec"]["resources"]["requests"]["storage"] == "16Gi"
    assert stateful_set["metadata"]["uid"] != before
    assert cluster.objects["Pod", "orders-g0-0"]["metadata"]["uid"] == uid


def test_the_stateful_set_is_not_renewed_while_its_pod_is_missing():
    """Kubernetes is about to make the pod: its StatefulSet is left to do that."""
    cluster = cluster_at_rest()
    claim = cluster.objects["PersistentVolumeClaim", "data-orders-g0-0"]
    claim["spec"]["resources"]["requests"]["storage"] = "16Gi"
    claim["status"]["capacity"]["storage"] = "16Gi"
    cluster.evict("orders-g0-0")
    assert not [
        action
        for action in actions_of(plan_broker(cluster.snapshot()))
        if isinstance(action, Delete)
    ]
