"""What is done for a Broker, decision by decision; its volume claims have a file of their own."""

from dataclasses import replace

import pytest
from broker_at_rest import actions_of, cluster_at_rest, condition
from model_cluster import BROKEN_IMAGE, ModelCluster, pod_is_ready, settle
from operator_samples import BROKER_SPEC, sample_name_server

from mailboat_operator.planner.actions import Apply, ConfigureBroker, Delete, Notify
from mailboat_operator.planner.broker import plan_broker
from mailboat_operator.planner.conditions import REASONS
from mailboat_operator.planner.snapshot import BrokerSnapshot, ConfigRefusal

BY_NAME = {"nameServers": {"ref": "ns"}}


def touched(cluster: ModelCluster) -> set[str]:
    """Return kind and name of every object that was written."""
    names = set()
    for action in cluster.writes:
        if isinstance(action, Apply):
            names.add(f"{action.manifest['kind']}/{action.manifest['metadata']['name']}")
        if isinstance(action, Delete):
            names.add(f"{action.kind}/{action.name}")
    return names


def test_a_broker_is_made_whole():
    """Every object is there, every pod ready, and the status says so."""
    cluster = cluster_at_rest(groups=2)
    groups = {
        f"{kind}/orders-g{group}"
        for kind in ("StatefulSet", "Service", "ConfigMap")
        for group in (0, 1)
    }
    assert cluster.names() == groups | {
        "Service/orders-brokers",
        "PodDisruptionBudget/orders",
        "ServiceAccount/orders",
        "Pod/orders-g0-0",
        "Pod/orders-g1-0",
        "PersistentVolumeClaim/data-orders-g0-0",
        "PersistentVolumeClaim/data-orders-g1-0",
    }
    status = cluster.status
    assert (status["ready"], status["groups"], status["version"]) == ("2/2", 2, "1.0")
    assert status["observedGeneration"] == 1
    assert condition(status, "Ready")["reason"] == "AllGroupsServing"
    assert condition(status, "Progressing")["reason"] == "Settled"
    assert condition(status, "ConfigApplied")["reason"] == "Applied"
    assert [entry["address"] for entry in status["brokers"]] == [
        "10.96.0.2:10911",
        "10.96.0.3:10911",
    ]
    assert cluster.taken_down == []


def test_at_rest_nothing_is_planned():
    """No action and the same status, now and an hour later."""
    cluster = cluster_at_rest(groups=2, config={"nonsense": "1"})
    for _ in range(3):
        plan = plan_broker(cluster.snapshot())
        assert actions_of(plan) == []
        assert plan.status == cluster.status
        cluster.clock.advance(1200.0)


def test_every_reason_is_in_the_list():
    """Conditions only use reasons that are explained."""
    cluster = ModelCluster(BROKER_SPEC | {"groups": 2})
    seen = set()

    def look(model: ModelCluster) -> None:
        seen.update((item["type"], item["reason"]) for item in model.status["conditions"])

    settle(cluster, plan_broker, check=look)
    cluster.change(image=BROKEN_IMAGE)
    settle(cluster, plan_broker, check=look)
    assert ("Progressing", "RollBlocked") in seen
    assert {reason for kind, reason in seen if reason not in REASONS[kind]} == set()


def test_the_pods_come_after_what_they_need():
    """No StatefulSet before the Service has an address and the file names it."""
    cluster = ModelCluster(BROKER_SPEC)
    first = plan_broker(cluster.snapshot())
    kinds = {action.manifest["kind"] for action in actions_of(first) if isinstance(action, Apply)}
    assert kinds == {"Service", "ServiceAccount", "PodDisruptionBudget"}
    cluster.carry_out(first)
    second = plan_broker(cluster.snapshot())
    kinds_in_order = [
        action.manifest["kind"] for action in actions_of(second) if isinstance(action, Apply)
    ]
    assert kinds_in_order == ["ConfigMap", "StatefulSet"]


@pytest.mark.parametrize(
    "name",
    [
        "StatefulSet/orders-g0",
        "Service/orders-g0",
        "Service/orders-brokers",
        "ConfigMap/orders-g0",
        "PodDisruptionBudget/orders",
        "ServiceAccount/orders",
    ],
)
def test_a_child_that_was_deleted_is_made_again_with_no_restart(name):
    """It comes back in the first plan, alone, and no pod notices."""
    cluster = cluster_at_rest()
    uid = cluster.objects["Pod", "orders-g0-0"]["metadata"]["uid"]
    cluster.remove(*name.split("/"))
    cluster.carry_out(plan_broker(cluster.snapshot()))
    assert touched(cluster) == {name}
    settle(cluster, plan_broker)
    assert touched(cluster) == {name}
    assert cluster.objects["Pod", "orders-g0-0"]["metadata"]["uid"] == uid


def test_a_stateful_set_that_is_missing_comes_before_anything_else():
    """After a crash between removing and making it, its pods have nobody until it is back."""
    cluster = cluster_at_rest()
    cluster.remove("StatefulSet", "orders-g0")
    cluster.remove("ServiceAccount", "orders")
    cluster.remove("PodDisruptionBudget", "orders")
    (first, *_) = plan_broker(cluster.snapshot()).steps
    assert first.name == "stateful sets"


def test_a_service_that_was_deleted_asks_for_its_address():
    """Clients know the address, so the new Service gets it, and no broker restarts."""
    cluster = cluster_at_rest()
    cluster.remove("Service", "orders-g0")
    settle(cluster, plan_broker)
    assert cluster.objects["Service", "orders-g0"]["spec"]["clusterIP"] == "10.96.0.2"
    assert cluster.taken_down == []


def test_an_address_that_is_taken_is_replaced_and_the_broker_told():
    """The Service falls back to any address; the broker restarts to announce it."""
    cluster = cluster_at_rest()
    cluster.remove("Service", "orders-g0")
    cluster.taken_addresses.add("10.96.0.2")
    settle(cluster, plan_broker)
    address = cluster.objects["Service", "orders-g0"]["spec"]["clusterIP"]
    assert address == "10.96.0.3"
    assert (
        f"brokerIP1={address}" in cluster.objects["ConfigMap", "orders-g0"]["data"]["broker.conf"]
    )
    assert [name for name, _ in cluster.taken_down] == ["orders-g0-0"]


def test_a_name_that_is_taken_holds_up_nothing_else():
    """Somebody's Service stays as it is; the rest is made, and the condition says what to do."""
    cluster = ModelCluster(BROKER_SPEC)
    theirs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "orders-brokers", "uid": "x", "resourceVersion": "1", "labels": {}},
        "spec": {"clusterIP": "10.0.0.1"},
    }
    cluster.objects["Service", "orders-brokers"] = theirs
    settle(cluster, plan_broker)
    assert cluster.objects["Service", "orders-brokers"] == theirs
    ready = condition(cluster.status, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "NameTaken")
    assert "Service orders-brokers" in ready["message"]
    assert ("StatefulSet", "orders-g0") in cluster.objects
    plan = plan_broker(cluster.snapshot())
    assert plan.failures
    assert plan.again_after_s is not None


def test_a_template_change_rolls_one_pod_at_a_time():
    """Both pods are replaced, one after the other with a pause, and the events tell."""
    cluster = cluster_at_rest(groups=2)
    times: list[float] = []
    cluster.change(image="mailboat:2")

    def look(model: ModelCluster) -> None:
        assert len(model.down_by_us) <= 1
        if len(model.taken_down) > len(times):
            times.append(model.now_s)

    settle(cluster, plan_broker, check=look)
    assert [name for name, _ in cluster.taken_down] == ["orders-g0-0", "orders-g1-0"]
    assert times[1] - times[0] >= 30.0
    assert [event.reason for event in cluster.events] == [
        "RollStarted",
        "PodRestarted",
        # The first pod of the new image lists the keys that it takes.
        "ConfigChanged",
        "PodRestarted",
        "RollFinished",
    ]


def test_a_broken_image_takes_one_pod_and_its_fix_needs_nobody():
    """The condition names pod and reason; a good image goes on; nobody is restarted twice."""
    cluster = cluster_at_rest(groups=2)
    cluster.change(image=BROKEN_IMAGE)
    settle(cluster, plan_broker)
    assert [name for name, _ in cluster.taken_down] == ["orders-g0-0"]
    progressing = condition(cluster.status, "Progressing")
    assert (progressing["status"], progressing["reason"]) == ("False", "RollBlocked")
    assert progressing["message"] == f"orders-g0-0: ImagePullBackOff: {BROKEN_IMAGE}"
    assert "orders-g0-0" in condition(cluster.status, "Ready")["message"]
    assert pod_is_ready(cluster.objects["Pod", "orders-g1-0"])
    cluster.change(image="mailboat:2")
    settle(cluster, plan_broker)
    assert [name for name, _ in cluster.taken_down] == ["orders-g0-0", "orders-g0-0", "orders-g1-0"]
    assert condition(cluster.status, "Ready")["status"] == "True"


def test_going_back_from_a_broken_image_leaves_the_healthy_pod_alone():
    """The pod that never left the old template is not restarted for the way back."""
    cluster = cluster_at_rest(groups=2, image="mailboat:1")
    uid = cluster.objects["Pod", "orders-g1-0"]["metadata"]["uid"]
    cluster.change(image=BROKEN_IMAGE)
    settle(cluster, plan_broker)
    cluster.change(image="mailboat:1")
    settle(cluster, plan_broker)
    assert cluster.objects["Pod", "orders-g1-0"]["metadata"]["uid"] == uid
    assert cluster.status["ready"] == "2/2"


def test_scaling_and_a_template_change_at_once_both_end():
    """One update with both: the new group is made, the old ones are rolled."""
    cluster = cluster_at_rest(groups=2)
    cluster.change(groups=3, image="mailboat:2")
    settle(cluster, plan_broker)
    images = {pod["spec"]["containers"][0]["image"] for _, pod in cluster.pods()}
    assert images == {"mailboat:2"}
    assert cluster.status["ready"] == "3/3"


def test_impossible_resources_are_named_and_a_fixed_spec_recovers():
    """A pod that no node takes is shown with the scheduler's words."""
    cluster = cluster_at_rest()
    cluster.unschedulable = True
    cluster.change(resources={"requests": {"cpu": "1000"}})
    settle(cluster, plan_broker)
    message = condition(cluster.status, "Progressing")["message"]
    assert message == "orders-g0-0: Unschedulable: 0/1 nodes are available"
    cluster.unschedulable = False
    cluster.change(resources={"requests": {"cpu": "1"}})
    settle(cluster, plan_broker)
    assert cluster.status["ready"] == "1/1"


@pytest.mark.parametrize("fault", ["unreachable", "unregistered"])
def test_a_broker_that_is_unfit_holds_up_the_others(fault):
    """Ready is not enough: the other broker must say that it serves and is registered."""
    cluster = cluster_at_rest(groups=2)
    getattr(cluster, fault).add("orders-g1-0")
    cluster.change(podTemplate={"labels": {"a": "b"}})
    settle(cluster, plan_broker)
    assert [name for name, _ in cluster.taken_down] == ["orders-g1-0"]
    assert "orders-g1-0" in condition(cluster.status, "Progressing")["message"]
    getattr(cluster, fault).clear()
    settle(cluster, plan_broker)
    assert [name for name, _ in cluster.taken_down] == ["orders-g1-0", "orders-g0-0"]


def test_a_live_setting_is_sent_and_restarts_nobody():
    """One call per broker with only the key that differs; the pod stays."""
    cluster = cluster_at_rest()
    uid = cluster.objects["Pod", "orders-g0-0"]["metadata"]["uid"]
    cluster.change(config={"maxMessageSize": "1000"})
    settle(cluster, plan_broker)
    calls = [item for item in cluster.writes if isinstance(item, ConfigureBroker)]
    assert [call.values for call in calls] == [{"maxMessageSize": "1000"}]
    assert cluster.objects["Pod", "orders-g0-0"]["metadata"]["uid"] == uid
    assert "maxMessageSize=1000" in cluster.objects["ConfigMap", "orders-g0"]["data"]["broker.conf"]
    assert [event.reason for event in cluster.events] == ["ConfigChanged"]
    assert touched(cluster) == {"ConfigMap/orders-g0"}
    cluster.change(config={})
    settle(cluster, plan_broker)
    assert cluster.running_config["orders-g0-0"]["maxMessageSize"] == "4194304"


def test_a_live_setting_changed_by_hand_is_put_back():
    """What a broker works with is what the spec says."""
    cluster = cluster_at_rest()
    cluster.running_config["orders-g0-0"]["fileReservedTime"] = "1"
    plan = plan_broker(cluster.snapshot())
    (call, notice) = actions_of(plan)
    assert call == ConfigureBroker("orders-g0-0", {"fileReservedTime": "72"})
    assert isinstance(notice, Notify)
    assert condition(plan.status, "ConfigApplied")["reason"] == "Pending"


def refusing(cluster: ModelCluster, age_s: float, **values: str) -> BrokerSnapshot:
    """Return what is seen after the first broker has refused some values."""
    snapshot = cluster.snapshot()
    refusal = ConfigRefusal(values, "fileReservedTime: too short", snapshot.monotonic_s - age_s)
    seen = replace(snapshot.observations["orders-g0-0"], config_refusals=(refusal,))
    return replace(snapshot, observations={**snapshot.observations, "orders-g0-0": seen})


def test_a_refused_setting_is_told_and_sent_once_a_minute():
    """The condition has the broker's words; other values are sent at once."""
    cluster = cluster_at_rest()
    cluster.running_config["orders-g0-0"]["fileReservedTime"] = "1"
    plan = plan_broker(refusing(cluster, 10.0, fileReservedTime="72"))
    assert actions_of(plan) == []
    found = condition(plan.status, "ConfigApplied")
    assert (found["status"], found["reason"]) == ("False", "Refused")
    assert found["message"] == (
        "orders-g0-0 refused fileReservedTime=72: fileReservedTime: too short"
    )
    assert plan.again_after_s is not None
    assert plan.again_after_s <= 50.0
    plan = plan_broker(refusing(cluster, 60.0, fileReservedTime="72"))
    assert actions_of(plan)[0] == ConfigureBroker("orders-g0-0", {"fileReservedTime": "72"})
    assert condition(plan.status, "ConfigApplied")["reason"] == "Refused"
    plan = plan_broker(refusing(cluster, 10.0, fileReservedTime="71"))
    assert actions_of(plan)[0] == ConfigureBroker("orders-g0-0", {"fileReservedTime": "72"})
    assert condition(plan.status, "ConfigApplied")["reason"] == "Pending"
    cluster.running_config["orders-g0-0"]["maxMessageSize"] = "1"
    plan = plan_broker(refusing(cluster, 10.0, fileReservedTime="72"))
    (call, _) = actions_of(plan)
    assert isinstance(call, ConfigureBroker)
    assert sorted(call.values) == ["fileReservedTime", "maxMessageSize"]
    cluster.running_config["orders-g0-0"] |= {"maxMessageSize": "4194304"}
    cluster.running_config["orders-g0-0"]["fileReservedTime"] = "72"
    plan = plan_broker(refusing(cluster, 10.0, fileReservedTime="72"))
    assert condition(plan.status, "ConfigApplied")["reason"] == "Applied"


def test_the_address_of_someone_elses_service_is_not_announced():
    """While a group's Service has another owner the group waits; the rest is made."""
    cluster = ModelCluster(BROKER_SPEC)
    cluster.objects["Service", "orders-g0"] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "orders-g0", "uid": "x", "resourceVersion": "1", "labels": {}},
        "spec": {"clusterIP": "10.0.0.1"},
    }
    settle(cluster, plan_broker)
    assert condition(cluster.status, "Ready")["reason"] == "NameTaken"
    assert ("ConfigMap", "orders-g0") not in cluster.objects
    assert ("StatefulSet", "orders-g0") not in cluster.objects
    assert ("ServiceAccount", "orders") in cluster.objects


def test_a_setting_that_follows_the_disk_is_not_fought_over():
    """readFileReservedTime is decided with the volumes; the spec's file does not send it."""
    cluster = cluster_at_rest(retention={"hours": 72, "minHours": 1})
    cluster.running_config["orders-g0-0"]["readFileReservedTime"] = "12"
    calls = [
        action
        for step in plan_broker(cluster.snapshot()).steps
        for action in step.actions
        if isinstance(action, ConfigureBroker) and step.name == "config live"
    ]
    assert calls == []


def test_a_key_that_an_older_broker_does_not_have_is_not_sent():
    """A refused call would stop the settings beside it."""
    cluster = cluster_at_rest()
    del cluster.running_config["orders-g0-0"]["syncFlushTimeout"]
    assert actions_of(plan_broker(cluster.snapshot())) == []


def test_nothing_is_sent_on_old_knowledge():
    """A broker that has not answered for a minute may have been changed or replaced since."""
    cluster = cluster_at_rest()
    cluster.running_config["orders-g0-0"]["fileReservedTime"] = "1"
    snapshot = cluster.snapshot()
    late = replace(snapshot, monotonic_s=snapshot.monotonic_s + 61.0)
    plan = plan_broker(late)
    assert actions_of(plan) == []
    assert condition(plan.status, "ConfigApplied")["status"] == "Unknown"


def test_what_an_earlier_pod_said_does_not_count():
    """A pod of the same name with another uid has to speak for itself."""
    cluster = cluster_at_rest()
    cluster.running_config["orders-g0-0"]["fileReservedTime"] = "1"
    snapshot = cluster.snapshot()
    earlier = {
        name: replace(item, pod_uid="earlier") for name, item in snapshot.observations.items()
    }
    plan = plan_broker(replace(snapshot, observations=earlier))
    assert actions_of(plan) == []
    assert "version" not in plan.status


def test_one_call_that_failed_changes_no_status_and_stops_every_write():
    """A timeout is no news about the broker; but nothing is sent and nobody else goes down."""
    cluster = cluster_at_rest(groups=2)
    snapshot = cluster.snapshot()
    silent = {name: replace(item, error="timeout") for name, item in snapshot.observations.items()}
    assert plan_broker(replace(snapshot, observations=silent)).status == cluster.status
    cluster.running_config["orders-g0-0"]["fileReservedTime"] = "1"
    snapshot = cluster.snapshot()
    silent = {name: replace(item, error="timeout") for name, item in snapshot.observations.items()}
    assert actions_of(plan_broker(replace(snapshot, observations=silent))) == []


def test_a_restart_setting_rolls():
    """It is in the file, in the digest, and pending until the pod is new."""
    cluster = cluster_at_rest()
    cluster.change(config={"flushDiskType": "SYNC_FLUSH"})
    seen = set()

    def look(model: ModelCluster) -> None:
        seen.add(condition(model.status, "ConfigApplied")["reason"])

    settle(cluster, plan_broker, check=look)
    assert seen == {"Pending", "Applied"}
    assert [name for name, _ in cluster.taken_down] == ["orders-g0-0"]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"flushDiskTyp": "SYNC_FLUSH"}, "UnknownKey"),
        ({"maxMessageSize": "big"}, "InvalidValue"),
    ],
)
def test_a_bad_setting_is_a_condition_and_nothing_else(config, reason):
    """No pod restarts, and the rest of the same change is carried out."""
    cluster = cluster_at_rest()
    cluster.change(config=config, podTemplate={"labels": {"team": "a"}})
    settle(cluster, plan_broker)
    applied = condition(cluster.status, "ConfigApplied")
    assert (applied["status"], applied["reason"]) == ("False", reason)
    assert next(iter(config)) in applied["message"]
    assert cluster.objects["Pod", "orders-g0-0"]["metadata"]["labels"]["team"] == "a"
    assert condition(cluster.status, "Ready")["status"] == "True"
    (key,) = config
    assert key not in cluster.objects["ConfigMap", "orders-g0"]["data"]["broker.conf"]


def test_another_broker_of_the_name_is_a_condition():
    """The message says who has the name where, and what to do; it passes when that one goes."""
    cluster = cluster_at_rest(groups=2)
    cluster.rivals["orders-g1-0"] = "10.9.9.9:10911"
    settle(cluster, plan_broker)
    ready = condition(cluster.status, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "BrokerNameTaken")
    assert (
        "10.9.9.9:10911 has the name of orders-g1-0 at name server ns.example:9876"
        in (ready["message"])
    )
    assert "spec.brokerNamePrefix" in ready["message"]
    assert cluster.taken_down == []
    cluster.rivals.clear()
    settle(cluster, plan_broker)
    assert condition(cluster.status, "Ready")["status"] == "True"


def test_a_missing_name_server_is_a_condition_and_everything_else_is_made():
    """Brokers start without name servers and take them over live once they are there."""
    cluster = ModelCluster(BROKER_SPEC | BY_NAME)
    settle(cluster, plan_broker)
    ready = condition(cluster.status, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "WaitingForNameServers")
    assert pod_is_ready(cluster.objects["Pod", "orders-g0-0"])
    cluster.name_server = sample_name_server(replicas=2)
    settle(cluster, plan_broker)
    assert cluster.running_config["orders-g0-0"]["namesrvAddr"] == (
        "ns-0.ns-nodes.shop.svc:9876;ns-1.ns-nodes.shop.svc:9876"
    )
    assert condition(cluster.status, "Ready")["status"] == "True"
    assert cluster.taken_down == []
    cluster.name_server = sample_name_server(replicas=3)
    settle(cluster, plan_broker)
    assert "ns-2.ns-nodes.shop.svc:9876" in cluster.running_config["orders-g0-0"]["namesrvAddr"]
    assert cluster.taken_down == []


def test_a_name_server_that_vanishes_does_not_cut_off_the_brokers():
    """Brokers keep the addresses that they have; only the condition tells."""
    cluster = ModelCluster(BROKER_SPEC | BY_NAME)
    cluster.name_server = sample_name_server(replicas=1)
    settle(cluster, plan_broker)
    cluster.name_server = None
    settle(cluster, plan_broker)
    assert cluster.running_config["orders-g0-0"]["namesrvAddr"] == "ns-0.ns-nodes.shop.svc:9876"
    assert cluster.taken_down == []


def test_pods_that_no_name_server_knows_do_not_count_as_serving():
    """Ready pods that clients cannot find are not ready for clients."""
    cluster = cluster_at_rest()
    cluster.unregistered.add("orders-g0-0")
    plan = plan_broker(cluster.snapshot())
    assert condition(plan.status, "Ready")["reason"] == "WaitingForNameServers"


def test_a_broker_that_is_being_deleted_plans_nothing():
    """Kubernetes removes what belongs to it; anything made now would be in the way."""
    cluster = cluster_at_rest()
    cluster.deleted = True
    cluster.remove("Service", "orders-g0")
    plan = plan_broker(cluster.snapshot())
    assert plan.steps == ()
    assert plan.status == cluster.status


def test_children_of_an_earlier_broker_are_waited_out():
    """What still belongs to a deleted Broker of the name is not touched; its claim is taken up."""
    cluster = cluster_at_rest()
    cluster.broker_uid = "uid-of-the-second"
    cluster.status = {}
    plan = plan_broker(cluster.snapshot())
    assert actions_of(plan) == []
    assert condition(plan.status, "Ready")["reason"] == "NameTaken"
    for kind, name in list(cluster.objects):
        if kind != "PersistentVolumeClaim":
            cluster.remove(kind, name)
    claim = cluster.objects["PersistentVolumeClaim", "data-orders-g0-0"]["metadata"]["uid"]
    settle(cluster, plan_broker)
    found = cluster.objects["PersistentVolumeClaim", "data-orders-g0-0"]["metadata"]["uid"]
    assert found == claim
    assert cluster.status["ready"] == "1/1"


def test_an_upgrade_of_the_operator_that_renders_the_same_restarts_nobody():
    """Another default image is for Brokers that name none; one that names its image stays."""
    cluster = cluster_at_rest(image="mailboat:1")
    cluster.default_image = "mailboat:9"
    assert actions_of(plan_broker(cluster.snapshot())) == []
