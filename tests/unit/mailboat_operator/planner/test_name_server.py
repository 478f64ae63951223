"""What is done for a NameServer."""

from dataclasses import replace
from typing import Any

from model_cluster import START_S, ModelCluster, pod_is_ready
from operator_samples import BROKER_SPEC, sample_name_server

from mailboat_operator.crds.name_server import NameServer, parse_name_server
from mailboat_operator.planner.actions import Action, Apply, Delete, Evict, Plan
from mailboat_operator.planner.name_server import plan_name_server
from mailboat_operator.planner.snapshot import Children, NameServerSnapshot
from mailboat_operator.resources.labels import digest


class Site:
    """A NameServer on the model cluster."""

    def __init__(self, **spec: Any) -> None:
        """Begin with the NameServer alone."""
        self.cluster = ModelCluster(BROKER_SPEC)
        self.spec = spec
        self.status: dict[str, Any] = {}

    def resource(self) -> NameServer:
        """Return the NameServer."""
        sample = sample_name_server(**self.spec)
        metadata = {"name": "ns", "namespace": "shop", "uid": sample.metadata.uid, "generation": 1}
        return parse_name_server({"metadata": metadata, "spec": self.spec, "status": self.status})

    def snapshot(self) -> NameServerSnapshot:
        """Return what the operator sees."""
        seen: Children = self.cluster.snapshot().children
        return NameServerSnapshot(self.resource(), seen, "mailboat:1", self.cluster.now_s)

    def turn(self) -> list[Action]:
        """Plan and act once, and let the controllers act; returns what was done."""
        plan = plan_name_server(self.snapshot())
        self.cluster.carry_out(replace(plan, status=self.cluster.status))
        self.status = plan.status
        self.run_pods()
        return [action for step in plan.steps for action in step.actions]

    def run_pods(self) -> None:
        """Play the StatefulSet controller for several replicas.

        As the real one it makes no pod behind one that lacks the set's volume: that it tries to
        give it, which is refused.
        """
        self.cluster.clock.advance(5.0)
        stateful_set = self.cluster.objects.get(("StatefulSet", "ns"))
        if stateful_set is None:
            return
        if stateful_set["metadata"].get("deletionTimestamp"):
            self.cluster._finish_deletion(("StatefulSet", "ns"), stateful_set)
            return
        template = stateful_set["spec"]["template"]
        revision = f"ns-{digest(template)}"
        wants_volume = bool(stateful_set["spec"].get("volumeClaimTemplates"))
        generation = stateful_set["metadata"]["generation"]
        stateful_set["status"] = {"observedGeneration": generation, "updateRevision": revision}
        for name, pod in list(self.cluster.pods()):
            if pod["metadata"].get("deletionTimestamp"):
                self.cluster.evict(name)
            else:
                self.cluster._run_pod(name, pod)
        for ordinal in range(stateful_set["spec"]["replicas"]):
            key = ("Pod", f"ns-{ordinal}")
            if key not in self.cluster.objects:
                self.cluster._make_pod(key[1], template, revision)
                if not wants_volume:
                    self.cluster.objects[key]["spec"]["volumes"].pop()
            elif wants_volume and not has_volume(self.cluster.objects[key]):
                return

    def settle(self) -> None:
        """Take turns until nothing changes for longer than any pause."""
        for _ in range(60):
            self.turn()


def has_volume(pod: dict[str, Any]) -> bool:
    """Return whether a pod has the volume of its table."""
    return "data" in [volume["name"] for volume in pod["spec"]["volumes"]]


def config_of(site: Site) -> str:
    """Return what the name servers' file says."""
    return str(site.cluster.objects["ConfigMap", "ns-nodes"]["data"]["namesrv.conf"])


def without_volumes(**spec: Any) -> Site:
    """Return a NameServer that was made before name servers had volumes."""
    site = Site(storage={"enabled": False}, **spec)
    site.settle()
    site.spec = spec
    return site


def condition(plan_status: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a condition."""
    (found,) = [item for item in plan_status["conditions"] if item["type"] == name]
    return found


def test_a_name_server_is_made_whole_and_then_left_alone():
    """All objects, ready pods, stable addresses; at rest no action and the same status."""
    site = Site(replicas=2)
    site.settle()
    assert {name for name in site.cluster.names() if not name.startswith("Pod/")} == {
        "StatefulSet/ns",
        "Service/ns",
        "Service/ns-nodes",
        "ConfigMap/ns-nodes",
        "ServiceAccount/ns-nodes",
        "PodDisruptionBudget/ns-nodes",
    }
    assert site.status["addresses"] == [
        "ns-0.ns-nodes.shop.svc:9876",
        "ns-1.ns-nodes.shop.svc:9876",
    ]
    assert (site.status["ready"], site.status["readyReplicas"]) == ("2/2", 2)
    assert condition(site.status, "Ready")["status"] == "True"
    assert condition(site.status, "Progressing")["reason"] == "Settled"
    before = site.status
    assert site.turn() == []
    assert site.status == before


def test_a_change_replaces_one_at_a_time_and_waits_for_the_brokers():
    """The next one goes after brokers had time to register at the first: it knows no topic else."""
    site = Site(replicas=2)
    site.settle()
    site.spec = site.spec | {"image": "mailboat:2"}
    times = []
    for _ in range(60):
        for action in site.turn():
            if isinstance(action, Evict):
                times.append((action.name, site.cluster.now_s - START_S))
    assert [name for name, _ in times] == ["ns-0", "ns-1"]
    assert times[1][1] - times[0][1] >= 35.0
    assert all(pod_is_ready(pod) for _, pod in site.cluster.pods())


def test_the_key_value_table_has_a_volume():
    """Each pod has one of its own; the table's file lies there, and goes with nobody but a pod that
    is scaled away."""
    site = Site(replicas=2, storage={"size": "2Gi", "className": "fast"})
    site.settle()
    spec = site.cluster.objects["StatefulSet", "ns"]["spec"]
    (claim,) = spec["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"] == {"storage": "2Gi"}
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert spec["persistentVolumeClaimRetentionPolicy"] == {
        "whenDeleted": "Retain",
        "whenScaled": "Delete",
    }
    (container,) = spec["template"]["spec"]["containers"]
    assert {"name": "data", "mountPath": "/var/lib/mailboat"} in container["volumeMounts"]
    assert "kvConfigPath=/var/lib/mailboat/namesrv/kvConfig.json\n" in config_of(site)
    assert site.turn() == []


def test_name_servers_of_before_keep_their_pods_until_a_volume_is_asked_for():
    """An upgrade of the operator alone asks no cluster for volumes; nor does a set that is gone."""
    site = without_volumes(replicas=2)
    assert site.turn() == []
    pods = {name for name, _ in site.cluster.pods()}
    site.cluster.remove("StatefulSet", "ns")
    site.settle()
    assert {name for name, _ in site.cluster.pods()} == pods
    assert not any(has_volume(pod) for _, pod in site.cluster.pods())
    assert "kvConfigPath" not in config_of(site)


def test_name_servers_of_before_get_a_volume_one_at_a_time():
    """The StatefulSet is made anew around its pods, which are then replaced one after the other."""
    site = without_volumes(replicas=3)
    site.spec = {"replicas": 3, "storage": {}}
    gone = []
    for _ in range(60):
        for action in site.turn():
            if isinstance(action, Evict):
                gone.append(("Pod", action.name))
            if isinstance(action, Delete):
                gone.append((action.kind, action.name))
                assert action.orphan
        assert sum(pod_is_ready(pod) for _, pod in site.cluster.pods()) >= 2
    assert gone == [("StatefulSet", "ns"), ("Pod", "ns-0"), ("Pod", "ns-1"), ("Pod", "ns-2")]
    assert all(has_volume(pod) for _, pod in site.cluster.pods())
    assert condition(site.status, "Ready")["status"] == "True"


def test_a_name_server_that_is_lost_on_the_way_to_volumes_comes_back():
    """A pod that Kubernetes cannot make behind an old one does not wait for ever."""
    site = without_volumes(replicas=2)
    site.spec = {"replicas": 2, "storage": {}}
    site.turn()
    site.cluster.evict("ns-1")
    site.settle()
    assert {name for name, _ in site.cluster.pods()} == {"ns-0", "ns-1"}
    assert all(has_volume(pod) and pod_is_ready(pod) for _, pod in site.cluster.pods())


def test_a_loss_on_the_way_to_volumes_takes_one_other_at_a_time():
    """A pod takes its time to end; the next one that is in the way goes once that one serves."""
    site = without_volumes(replicas=4)
    site.spec = {"replicas": 4, "storage": {}}
    site.turn()
    site.cluster.evict("ns-3")
    gone = []
    for _ in range(60):
        pods = list(site.cluster.pods())
        gone += [(item.kind, item.name) for item in site.turn() if isinstance(item, Delete)]
        assert sum(pod_is_ready(pod) for _, pod in site.cluster.pods()) >= 2
        for name, pod in pods:
            # It ends only after the operator has looked once more.
            if pod["metadata"].get("deletionTimestamp") and not pod.get("was_seen"):
                site.cluster.objects["Pod", name] = pod | {"was_seen": True}
    assert gone == [("Pod", "ns-0"), ("Pod", "ns-1"), ("Pod", "ns-2")]
    assert all(has_volume(pod) and pod_is_ready(pod) for _, pod in site.cluster.pods())


def test_volumes_that_are_not_to_be_had_take_one_name_server_down():
    """Nor does a drain of another one make room for a second that has no volume."""
    site = without_volumes(replicas=3)
    site.spec = {"replicas": 3, "storage": {}}
    site.cluster.unschedulable = True
    site.settle()
    site.cluster.evict("ns-2")
    site.settle()
    assert [name for name, pod in site.cluster.pods() if pod_is_ready(pod)] == ["ns-1"]
    assert condition(site.status, "Progressing")["reason"] == "RollBlocked"


def test_volumes_can_be_given_up():
    """Where a cluster has none to give; the pods are replaced as for any other change."""
    site = Site(replicas=2)
    site.settle()
    site.spec = {"replicas": 2, "storage": {"enabled": False}}
    site.settle()
    assert not any(has_volume(pod) for _, pod in site.cluster.pods())
    assert not site.cluster.objects["StatefulSet", "ns"]["spec"].get("volumeClaimTemplates")
    assert condition(site.status, "Ready")["status"] == "True"
    assert site.turn() == []


def test_a_child_that_was_deleted_comes_back():
    """Only what is missing is made."""
    site = Site()
    site.settle()
    site.cluster.remove("Service", "ns")
    (action,) = site.turn()
    assert isinstance(action, Apply)
    assert action.manifest["metadata"]["name"] == "ns"


def test_a_name_that_is_taken_is_reported():
    """Somebody's Service is left alone, and the rest is made."""
    site = Site()
    site.cluster.objects["Service", "ns"] = {
        "kind": "Service",
        "metadata": {"name": "ns", "uid": "x", "resourceVersion": "1"},
        "spec": {},
    }
    site.settle()
    assert condition(site.status, "Ready")["reason"] == "NameTaken"
    assert ("StatefulSet", "ns") in site.cluster.objects


def test_one_that_is_being_deleted_plans_nothing():
    """Kubernetes removes what belongs to it."""
    metadata = {"name": "ns", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    resource = parse_name_server({"metadata": metadata, "spec": {}, "status": {"ready": "1/1"}})
    plan = plan_name_server(NameServerSnapshot(resource, Children(), "mailboat:1", 0.0))
    assert plan == Plan((), {"ready": "1/1"})
