"""Every object that is made: legal for Kubernetes, restricted, labelled, and always the same."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes_validate import validate
from operator_samples import sample_broker, sample_name_server

from mailboat_operator.resources import name_server as ns
from mailboat_operator.resources.config_map import broker_config_map, broker_settings
from mailboat_operator.resources.disruption_budget import disruption_budget
from mailboat_operator.resources.labels import broker_labels
from mailboat_operator.resources.names import broker_nodes_name
from mailboat_operator.resources.service_account import service_account
from mailboat_operator.resources.services import (
    BROKER_PORTS,
    broker_nodes_service,
    group_service,
)
from mailboat_operator.resources.stateful_set import broker_stateful_set

EVERYTHING: dict[str, Any] = {
    "groups": 2,
    "image": "registry.example/mailboat:2",
    "imagePullPolicy": "IfNotPresent",
    "storage": {"size": "16Gi", "className": "fast"},
    "resources": {"requests": {"cpu": 0.5, "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
    "podTemplate": {
        "labels": {"team": "a"},
        "annotations": {"note": "x"},
        "env": [{"name": "TZ", "value": "CET"}],
        "tolerations": [{"key": "disk", "operator": "Exists"}],
        "nodeSelector": {"disk": "fast"},
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "imagePullSecrets": [{"name": "registry"}],
        "topologySpreadConstraints": [
            {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
        ],
    },
    "shutdown": {"drainSeconds": 10, "graceSeconds": 90},
    "pvcRetention": {"whenDeleted": "Delete", "whenScaled": "Delete"},
}
SPECS = {"least": {}, "everything": EVERYTHING}


def broker_objects(spec: dict[str, Any], address: str | None = "10.96.0.1") -> list[dict[str, Any]]:
    """Return all that a Broker's first group consists of."""
    broker = sample_broker(**spec)
    settings = broker_settings(broker, 0, address="10.96.0.1", name_servers=("a:1", "b:2"))
    labels = broker_labels(broker.name)
    return [
        broker_stateful_set(
            broker, 0, settings=settings, volume_bytes=8 << 30, default_image="mailboat:1"
        ),
        group_service(broker, 0, address),
        broker_nodes_service(broker, BROKER_PORTS),
        broker_config_map(broker, 0, settings),
        disruption_budget(broker, broker.name, labels),
        service_account(broker, broker.name, labels),
    ]


def name_server_objects(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all that a NameServer consists of."""
    shared = {
        key: value
        for key, value in spec.items()
        if key in ("image", "imagePullPolicy", "resources", "podTemplate")
    }
    resource = sample_name_server(**shared)
    return [
        ns.name_server_stateful_set(resource, "mailboat:1", has_volume=bool(spec)),
        ns.name_server_service(resource),
        ns.name_server_nodes_service(resource),
        ns.name_server_config_map(resource, has_volume=True),
        ns.name_server_service_account(resource),
        ns.name_server_disruption_budget(resource),
    ]


def all_objects(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every object of both kinds."""
    return [
        *broker_objects(spec), *broker_objects(spec, address=None), *name_server_objects(spec)
    ]  # fmt: skip


def templates(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the pod template of a broker and of a name server."""
    for item in all_objects(spec):
        if item["kind"] == "StatefulSet":
            yield item["spec"]["template"]


@pytest.mark.parametrize("version", ["1.29", "1.37"])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_every_object_is_legal_for_the_oldest_and_the_newest_kubernetes(spec, version):
    """The strict schemas of Kubernetes know every field."""
    for manifest in all_objects(spec):
        validate(manifest, version, strict=True)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_two_builds_are_the_same_text(spec):
    """Nothing depends on chance, on a clock or on the order of a mapping."""
    turned = dict(reversed(list(spec.items())))
    assert json.dumps(all_objects(spec)) == json.dumps(all_objects(turned))


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_pods_are_restricted(spec):
    """Pod Security "restricted" takes them, whatever the user's podTemplate says."""
    for template in templates(spec):
        pod = template["spec"]
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] == security["fsGroup"] == 10_001
        assert security["fsGroupChangePolicy"] == "OnRootMismatch"
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
        }
        kinds = {key for volume in pod["volumes"] for key in volume} - {"name"}
        assert kinds == {"configMap", "emptyDir"}


def test_probes_ask_over_http_and_the_start_has_a_day():
    """A store that is repaired for hours is not killed for it."""
    for template in templates({}):
        (container,) = template["spec"]["containers"]
        paths = {name: container[name]["httpGet"] for name in container if name.endswith("Probe")}
        assert paths == {
            "startupProbe": {"path": "/startupz", "port": "http"},
            "livenessProbe": {"path": "/livez", "port": "http"},
            "readinessProbe": {"path": "/readyz", "port": "http"},
        }
        startup = container["startupProbe"]
        assert startup["periodSeconds"] * startup["failureThreshold"] == 86_400
        liveness = container["livenessProbe"]
        assert (liveness["periodSeconds"], liveness["failureThreshold"]) == (20, 3)


def test_the_stateful_set_leaves_replacing_pods_to_the_operator():
    """Parallel and OnDelete: Kubernetes neither orders nor rolls."""
    stateful_set = broker_objects(EVERYTHING)[0]
    spec = stateful_set["spec"]
    assert stateful_set["metadata"]["name"] == "orders-g0"
    assert spec["replicas"] == 1
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    assert spec["serviceName"] == "orders-brokers"
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 90
    assert spec["persistentVolumeClaimRetentionPolicy"] == {
        "whenDeleted": "Retain",
        "whenScaled": "Retain",
    }
    (claim,) = spec["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "data"
    assert claim["metadata"]["labels"] == stateful_set["metadata"]["labels"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"]["requests"]["storage"] == "8Gi"


def test_the_broker_is_started_with_its_file_on_its_volume():
    """The container runs `mailboat broker` and writes to the volume and /tmp alone."""
    (container,) = broker_objects({})[0]["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["mailboat", "broker", "-c", "/etc/mailboat/broker.conf"]
    mounts = {item["mountPath"]: item for item in container["volumeMounts"]}
    assert mounts["/var/lib/mailboat"]["name"] == "data"
    assert {path for path, item in mounts.items() if not item.get("readOnly")} == {
        "/tmp",
        "/var/lib/mailboat",
    }
    assert {item["name"]: item["containerPort"] for item in container["ports"]} == {
        "remoting": 10_911,
        "remoting-fast": 10_909,
        "http": 8_080,
    }


def test_what_the_user_adds_reaches_the_pod_and_no_more():
    """Additions are taken over; the operator's labels win."""
    template = broker_objects(EVERYTHING)[0]["spec"]["template"]
    pod = template["spec"]
    assert template["metadata"]["labels"]["team"] == "a"
    assert template["metadata"]["labels"]["mailboat.dev/broker"] == "orders"
    assert template["metadata"]["annotations"]["note"] == "x"
    assert pod["containers"][0]["env"] == [{"name": "TZ", "value": "CET"}]
    assert pod["nodeSelector"] == {"disk": "fast"}
    assert pod["priorityClassName"] == "high"
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["tolerations"] == [{"key": "disk", "operator": "Exists"}]
    assert pod["topologySpreadConstraints"][0]["topologyKey"] == "zone"
    assert pod["containers"][0]["resources"]["requests"] == {"cpu": "0.5", "memory": "1Gi"}


def test_pods_of_one_resource_spread_over_nodes_where_that_is_possible():
    """The groups of a Broker count together, and a single node still takes all of them."""
    (spread,) = broker_objects({})[0]["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
    assert spread["labelSelector"]["matchLabels"]["mailboat.dev/broker"] == "orders"
    assert "mailboat.dev/group" not in spread["labelSelector"]["matchLabels"]


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_every_object_is_labelled_and_owned(spec):
    """Children are found by label, and go with their resource without holding it up."""
    for manifest in all_objects(spec):
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "mailboat-operator"
        owner = "broker" if "mailboat.dev/broker" in labels else "name-server"
        assert labels[f"mailboat.dev/{owner}"] == labels["app.kubernetes.io/instance"]
        assert labels["app.kubernetes.io/component"] == owner
        (reference,) = manifest["metadata"]["ownerReferences"]
        assert reference["uid"] == f"uid-of-{labels['app.kubernetes.io/instance']}"
        assert reference["controller"] is True
        assert reference["blockOwnerDeletion"] is False


def test_selectors_find_the_pods_and_only_those():
    """Each selector is part of the labels of the pods that it is for."""
    for objects in (broker_objects(EVERYTHING), name_server_objects(EVERYTHING)):
        pod_labels = objects[0]["spec"]["template"]["metadata"]["labels"].items()
        for manifest in objects:
            selector = manifest.get("spec", {}).get("selector")
            if selector is not None:
                assert selector.get("matchLabels", selector).items() <= pod_labels
    other = sample_broker()
    second = group_service(other, 1, None)["spec"]["selector"]
    assert second["mailboat.dev/group"] == "1"


def test_services_reach_pods_that_are_not_ready():
    """A broker that drains is still reached, and a name has its address before it is ready."""
    _, service, nodes, *_ = broker_objects({})
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["clusterIP"] == "10.96.0.1"
    assert nodes["spec"]["publishNotReadyAddresses"] is True
    assert nodes["spec"]["clusterIP"] == "None"
    _, any_ready, *_ = name_server_objects({})
    assert "publishNotReadyAddresses" not in any_ready["spec"]


def test_the_budget_lets_a_broken_pod_go():
    """One pod at a time over all groups; a pod that does not serve never keeps a node up."""
    budget = broker_objects({})[4]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert "mailboat.dev/group" not in budget["selector"]["matchLabels"]


def test_a_broker_and_a_name_server_of_one_name_do_not_meet():
    """No two of their objects share kind and name."""
    broker = {(item["kind"], item["metadata"]["name"]) for item in broker_objects({})}
    resource = sample_name_server("orders")
    name_server = {
        (item["kind"], item["metadata"]["name"])
        for item in (
            ns.name_server_stateful_set(resource, "m", has_volume=True),
            ns.name_server_service(resource),
            ns.name_server_nodes_service(resource),
            ns.name_server_config_map(resource, has_volume=True),
            ns.name_server_service_account(resource),
            ns.name_server_disruption_budget(resource),
        )
    }
    assert not broker & name_server
    assert ("Service", broker_nodes_name("orders")) in broker


def test_no_pod_is_best_effort_unless_that_is_asked_for():
    """A resource that says nothing gets requests and a limit of memory; {} gets neither."""
    for template in templates({}):
        (container,) = template["spec"]["containers"]
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
        assert set(container["resources"]["limits"]) == {"memory"}
    for template in templates({"resources": {}}):
        assert "resources" not in template["spec"]["containers"][0]
    for template in templates({"resources": {"requests": {"cpu": "2"}}}):
        (container,) = template["spec"]["containers"]
        assert container["resources"] == {"requests": {"cpu": "2"}}
