"""What is done for a NameServer."""

from dataclasses import replace
from typing import Any

from model_cluster import START_S, ModelCluster, pod_is_ready
from operator_samples import BROKER_SPEC, sample_name_server

from mailboat_operator.crds.name_server import NameServer, parse_name_server
from mailboat_operator.planner.actions import Action, Apply, Delete, Plan
from mailboat_operator.planner.name_server import plan_name_server
from mailboat_operator.planner.snapshot import Children, NameServerSnapshot


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
        """Play the StatefulSet controller for several replicas of a set without volumes."""
        self.cluster.now_s += 5.0
        stateful_set = self.cluster.objects.get(("StatefulSet", "ns"))
        if stateful_set is None:
            return
        template = stateful_set["spec"]["template"]
        revision = f"ns-{template['spec']['containers'][0]['image']}"
        generation = stateful_set["metadata"]["generation"]
        stateful_set["status"] = {"observedGeneration": generation, "updateRevision": revision}
        for name, pod in list(self.cluster.pods()):
            if pod["metadata"].get("deletionTimestamp"):
                self.cluster.evict(name)
            else:
                self.cluster._run_pod(name, pod)
        for ordinal in range(stateful_set["spec"]["replicas"]):
            if ("Pod", f"ns-{ordinal}") not in self.cluster.objects:
                self.cluster._make_pod(f"ns-{ordinal}", template, revision)

    def settle(self) -> None:
        """Take turns until nothing changes for longer than any pause."""
        for _ in range(60):
            self.turn()


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
            if isinstance(action, Delete):
                times.append((action.name, site.cluster.now_s - START_S))
    assert [name for name, _ in times] == ["ns-0", "ns-1"]
    assert times[1][1] - times[0][1] >= 35.0
    assert all(pod_is_ready(pod) for _, pod in site.cluster.pods())


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
