"""When an object of ours counts as changed, and what mends it."""

from copy import deepcopy
from typing import Any

import pytest
from model_cluster import ModelCluster, settle
from operator_samples import BROKER_SPEC, sample_broker

from mailboat_operator.planner.actions import Apply, Delete, Patch
from mailboat_operator.planner.amounts import same_amount
from mailboat_operator.planner.broker import plan_broker
from mailboat_operator.planner.children import first_difference, foreign, plan_child
from mailboat_operator.resources.config_map import broker_config_map, broker_settings
from mailboat_operator.resources.services import group_service
from mailboat_operator.resources.stateful_set import broker_stateful_set

UID = "uid-of-orders"


def stateful_set(**spec: Any) -> dict[str, Any]:
    """Return a group's StatefulSet as we make it."""
    broker = sample_broker(**spec)
    settings = broker_settings(broker, 0, address="10.96.0.1", name_servers=("a:1",))
    return broker_stateful_set(
        broker, 0, settings=settings, volume_bytes=8 << 30, default_image="mailboat:1"
    )


def taken(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return an object as the API server keeps it: with defaults, a uid and a version."""
    cluster = ModelCluster(BROKER_SPEC)
    cluster.act(Apply(deepcopy(manifest)))
    (live,) = cluster.objects.values()
    return live


def test_what_the_api_server_adds_is_no_difference():
    """Defaults, status and metadata of the API server's do not lead to a write."""
    wanted = stateful_set(resources={"requests": {"cpu": 0.5, "memory": "1024Mi"}})
    live = taken(wanted)
    live["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"] = {
        "cpu": "500m",
        "memory": "1Gi",
    }
    assert plan_child(wanted, live, UID).is_settled


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1Gi", "1024Mi", True),
        ("0.5", "500m", True),
        (1, "1", True),
        ("1G", "1Gi", False),
        ("2", "2000m", True),
        ("100k", "100000", True),
        ("x", "x1", False),
        ("", "0", False),
    ],
)
def test_amounts_are_compared_by_value(one, other, same):
    """A quantity is the same however it is spelt."""
    assert same_amount(one, other) is same


def test_only_amounts_are_compared_by_value():
    """Elsewhere another spelling is another value: an annotation 1 is not 1000m."""
    assert first_difference({"a": "1"}, {"a": "1000m"}) == "a"
    assert first_difference({"limits": {"cpu": "1"}}, {"limits": {"cpu": "1000m"}}) is None


def test_a_value_that_was_edited_is_put_back():
    """An edited field of ours leads to an apply of the whole object."""
    wanted = stateful_set()
    live = taken(wanted)
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "other:1"
    assert plan_child(wanted, live, UID).actions == (Apply(wanted),)


def test_what_others_add_stays():
    """A sidecar's volume, a label or an annotation of somebody else's is not ours to remove."""
    wanted = stateful_set()
    live = taken(wanted)
    live["metadata"]["labels"]["team"] = "a"
    live["spec"]["template"]["spec"]["volumes"].insert(0, {"name": "proxy", "emptyDir": {}})
    live["spec"]["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"] = "x"
    assert plan_child(wanted, live, UID).is_settled


def test_the_order_of_variables_is_no_difference():
    """Lists that are merged by name are compared by name."""
    wanted = stateful_set(podTemplate={"env": [{"name": "A", "value": "1"}, {"name": "B"}]})
    live = taken(wanted)
    live["spec"]["template"]["spec"]["containers"][0]["env"].reverse()
    assert plan_child(wanted, live, UID).is_settled


def test_what_is_no_longer_wanted_is_noticed():
    """A variable that the spec has no more is a difference, although all that is left agrees."""
    live = taken(stateful_set(podTemplate={"env": [{"name": "A", "value": "1"}]}))
    wanted = stateful_set()
    assert plan_child(wanted, live, UID).actions == (Apply(wanted),)


def test_a_selector_with_an_addition_is_another_selector():
    """A Service that somebody narrowed finds its pods again."""
    wanted = group_service(sample_broker(), 0, None)
    live = taken(wanted)
    live["spec"]["selector"]["team"] = "a"
    assert plan_child(wanted, live, UID).actions == (Apply(wanted),)


def test_another_kind_of_volume_is_a_difference():
    """`emptyDir: {}` says something although it is empty."""
    assert first_difference({"emptyDir": {}}, {"hostPath": {"path": "/"}}) == "emptyDir"
    assert first_difference({"nodeSelector": {}}, {}) is None


def test_false_and_zero_are_values():
    """A token that is mounted by default is not the same as one that is not."""
    assert first_difference({"automount": False}, {}) == "automount"
    assert first_difference({"replicas": 1}, {"replicas": True}) == "replicas"


def test_a_list_without_keys_is_compared_whole():
    """Arguments and access modes have an order and an end."""
    assert first_difference({"command": ["a", "b"]}, {"command": ["a"]}) == "command"
    assert first_difference({"command": ["a", "b"]}, {"command": ["b", "a"]}) == "command[0]"


def test_another_size_makes_the_stateful_set_anew_and_leaves_its_pods():
    """Kubernetes takes no edit of volumeClaimTemplates: delete with orphans, make again."""
    live = taken(stateful_set())
    broker = sample_broker()
    settings = broker_settings(broker, 0, address="10.96.0.1", name_servers=("a:1",))
    wanted = broker_stateful_set(
        broker, 0, settings=settings, volume_bytes=9 << 30, default_image="mailboat:1"
    )
    (delete,) = plan_child(wanted, live, UID).actions
    assert isinstance(delete, Delete)
    assert (delete.kind, delete.name, delete.orphan) == ("StatefulSet", "orders-g0", True)
    assert delete.uid == live["metadata"]["uid"]
    assert delete.resource_version == live["metadata"]["resourceVersion"]


def test_an_object_that_is_going_is_waited_for():
    """Applying to an object that is being deleted would be lost with it."""
    wanted = stateful_set()
    live = taken(wanted)
    live["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    plan = plan_child(wanted, live, UID)
    assert plan.actions == ()
    assert not plan.is_settled


def test_an_edited_port_number_is_mended_by_making_the_service_anew():
    """Our port beside the edited one would make two ports of one name, which is refused."""
    wanted = group_service(sample_broker(), 0, "10.96.0.1")
    live = taken(wanted)
    live["spec"]["ports"][0]["port"] = 10_912
    (delete,) = plan_child(wanted, live, UID).actions
    assert isinstance(delete, Delete)
    assert (delete.kind, delete.orphan) == ("Service", False)


def test_a_port_that_somebody_added_is_left_alone():
    """An additional port with a name of its own is no conflict."""
    wanted = group_service(sample_broker(), 0, "10.96.0.1")
    live = taken(wanted)
    live["spec"]["ports"].append({"name": "mine", "port": 1, "protocol": "TCP"})
    assert plan_child(wanted, live, UID).is_settled


def test_a_missing_object_is_made():
    """There is nothing to compare with."""
    wanted = stateful_set()
    assert plan_child(wanted, None, UID).actions == (Apply(wanted),)


@pytest.mark.parametrize(
    ("owners", "labels", "word"),
    [
        ([{"uid": "other", "kind": "Shop", "name": "x", "controller": True}], True, "Shop x"),
        ([], False, "not made by the operator"),
        ([{"uid": UID, "kind": "Broker", "name": "orders"}], False, "not made"),
    ],
)
def test_an_object_of_somebody_else_is_reported_and_not_touched(owners, labels, word):
    """A name that is taken is a sentence for the user, never an overwritten object."""
    wanted = stateful_set()
    live = taken(wanted)
    live["metadata"]["ownerReferences"] = owners
    if not labels:
        live["metadata"]["labels"] = {}
    plan = plan_child(wanted, live, UID)
    assert plan.actions == ()
    assert word in (plan.problem or "")


def test_an_object_that_lost_its_owner_is_taken_over():
    """After a deletion that left everything behind, a new Broker of that name takes it up."""
    wanted = stateful_set()
    live = taken(wanted)
    live["metadata"]["ownerReferences"] = []
    assert foreign(live, UID) is None
    assert plan_child(wanted, live, UID).actions == (Apply(wanted),)


def test_a_config_map_that_was_frozen_is_made_anew():
    """`immutable: true` by somebody else's hand does not stop a change for ever."""
    broker = sample_broker()
    live = taken(broker_config_map(broker, 0, {"a": "1"}))
    live["immutable"] = True
    (delete,) = plan_child(broker_config_map(broker, 0, {"a": "2"}), live, UID).actions
    assert isinstance(delete, Delete)


def edit_strategy(spec: dict[str, Any]) -> None:
    """Let Kubernetes replace the pods."""
    spec["updateStrategy"] = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}


def edit_probe(spec: dict[str, Any]) -> None:
    """Ask the port instead of the page."""
    probe = spec["template"]["spec"]["containers"][0]["livenessProbe"]
    del probe["httpGet"]
    probe["tcpSocket"] = {"port": 10_911}


def edit_variable(spec: dict[str, Any]) -> None:
    """Take a variable from a Secret."""
    (variable,) = spec["template"]["spec"]["containers"][0]["env"]
    del variable["value"]
    variable["valueFrom"] = {"secretKeyRef": {"name": "s", "key": "k"}}


def edit_volume(spec: dict[str, Any]) -> None:
    """Take the file from elsewhere."""
    (volume,) = [item for item in spec["template"]["spec"]["volumes"] if item["name"] == "config"]
    del volume["configMap"]
    volume["secret"] = {"secretName": "s"}


def edit_profile(spec: dict[str, Any]) -> None:
    """Name a profile of the node."""
    spec["template"]["spec"]["securityContext"]["seccompProfile"] = {
        "type": "Localhost",
        "localhostProfile": "x",
    }


@pytest.mark.parametrize(
    "edit",
    [edit_strategy, edit_probe, edit_variable, edit_volume, edit_profile],
)
def test_an_edit_that_ours_cannot_stand_beside_is_undone(edit):
    """The StatefulSet is made anew around its pod, as no apply would be taken any more."""
    spec = BROKER_SPEC | {
        "resources": {"requests": {"cpu": "2"}},
        "podTemplate": {"env": [{"name": "TZ", "value": "CET"}]},
    }
    cluster = ModelCluster(spec)
    settle(cluster, plan_broker)
    live = cluster.objects["StatefulSet", "orders-g0"]
    wanted, uid = deepcopy(live["spec"]), live["metadata"]["uid"]
    pod = cluster.objects["Pod", "orders-g0-0"]["metadata"]["uid"]
    edit(live["spec"])
    live["metadata"]["generation"] += 1
    settle(cluster, plan_broker)
    remade = cluster.objects["StatefulSet", "orders-g0"]
    assert remade["spec"] == wanted
    assert remade["metadata"]["uid"] != uid
    assert cluster.objects["Pod", "orders-g0-0"]["metadata"]["uid"] == pod
    cluster.change(image="mailboat:2")
    settle(cluster, plan_broker)
    (container,) = cluster.objects["Pod", "orders-g0-0"]["spec"]["containers"]
    assert container["image"] == "mailboat:2"


def test_a_budget_that_was_turned_round_is_turned_back():
    """minAvailable in place of maxUnavailable: it is taken off, and the budget stays the same."""
    cluster = ModelCluster(BROKER_SPEC)
    settle(cluster, plan_broker)
    live = cluster.objects["PodDisruptionBudget", "orders"]
    wanted, uid = deepcopy(live["spec"]), live["metadata"]["uid"]
    del live["spec"]["maxUnavailable"]
    live["spec"]["minAvailable"] = 1
    cluster.writes.clear()
    cluster.carry_out(plan_broker(cluster.snapshot()))
    budget = cluster.objects["PodDisruptionBudget", "orders"]
    assert (budget["spec"], budget["metadata"]["uid"]) == (wanted, uid)
    patch, apply = cluster.writes[:2]
    assert isinstance(patch, Patch)
    assert (patch.kind, patch.changes) == ("PodDisruptionBudget", {"spec": {"minAvailable": None}})
    assert isinstance(apply, Apply)


def test_a_source_that_the_spec_changes_needs_no_second_hand():
    """A variable of ours that comes from a Secret from now on reaches the pod."""
    cluster = ModelCluster(BROKER_SPEC | {"podTemplate": {"env": [{"name": "TZ", "value": "CET"}]}})
    settle(cluster, plan_broker)
    source = {"secretKeyRef": {"name": "s", "key": "k"}}
    cluster.change(podTemplate={"env": [{"name": "TZ", "valueFrom": source}]})
    settle(cluster, plan_broker)
    (container,) = cluster.objects["Pod", "orders-g0-0"]["spec"]["containers"]
    assert container["env"] == [{"name": "TZ", "valueFrom": source}]
