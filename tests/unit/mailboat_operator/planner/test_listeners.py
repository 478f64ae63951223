"""Listeners: each pod's Services, the addresses that clients are told, and who may connect."""

import json
from pathlib import Path
from typing import Any

import pytest
from kubernetes_validate import validate
from model_cluster import ModelCluster, settle
from operator_samples import BROKER_SPEC, sample_broker, sample_name_server

from mailboat.config import load_settings
from mailboat.config.listeners import address_problem
from mailboat.config.settings import listeners_of
from mailboat.errors import ConfigError
from mailboat.security.tls import ServerTls
from mailboat_operator.crds.broker import parse_broker
from mailboat_operator.errors import InvalidResourceError
from mailboat_operator.planner.broker import plan_broker
from mailboat_operator.resources import name_server as ns
from mailboat_operator.resources.listeners import ADDRESSES_FOLDER, pod_address, pod_service
from mailboat_operator.resources.names import listener_service_name
from mailboat_operator.resources.services import REPLICA_PORTS

OUTSIDE = {"name": "outside", "port": 10920, "type": "NodePort", "nodePortBase": 30100}
BALANCED = {"name": "outside", "port": 10920, "type": "LoadBalancer"}


def cluster_of(*listeners: dict[str, Any], **spec: Any) -> ModelCluster:
    """Return a settled cluster of a Broker with these listeners."""
    cluster = ModelCluster(BROKER_SPEC | {"listeners": list(listeners), **spec})
    settle(cluster, plan_broker)
    return cluster


def addresses_of(cluster: ModelCluster, pod: str = "orders-g0-0") -> Any:
    """Return what a pod reads of its addresses."""
    return json.loads(cluster.objects["ConfigMap", "orders-addresses"]["data"][f"{pod}.json"])


def test_each_pod_has_a_node_port_that_can_be_reckoned() -> None:
    """Base + group, 64 more for each replica; the node's address is the broker's to fill in."""
    cluster = cluster_of(OUTSIDE, groups=2)
    service = cluster.objects["Service", "orders-g1-0-outside"]
    validate(service, "1.29")
    assert service["spec"]["type"] == "NodePort"
    assert service["spec"]["selector"] == {"statefulset.kubernetes.io/pod-name": "orders-g1-0"}
    assert service["spec"]["ports"][0]["nodePort"] == 30101
    assert service["metadata"]["ownerReferences"][0]["name"] == "orders"
    assert addresses_of(cluster) == {"outside": "{nodeIP}:30100"}
    assert addresses_of(cluster, "orders-g1-0") == {"outside": "{nodeIP}:30101"}
    broker = sample_broker(listeners=[OUTSIDE])
    second = pod_service(broker, "orders-g0-1", broker.spec.listeners[0])
    assert second["spec"]["ports"][0]["nodePort"] == 30164


def test_a_pod_reads_its_own_addresses_and_knows_its_node() -> None:
    """One ConfigMap, never by subPath, and the downward API."""
    cluster = cluster_of(OUTSIDE)
    pod = cluster.objects["StatefulSet", "orders-g0"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    env = {item["name"]: item.get("valueFrom") for item in container["env"]}
    assert env["NODE_IP"] == {"fieldRef": {"fieldPath": "status.hostIP"}}
    assert env["POD_NAME"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    text = cluster.objects["ConfigMap", "orders-g0"]["data"]["broker.conf"]
    path = f"{ADDRESSES_FOLDER}/{{podName}}.json"
    assert f"advertisedAddressesFile={path}\n" in text
    assert '"name":"outside","port":10920' in text
    mount = next(item for item in container["volumeMounts"] if item["name"] == "addresses")
    assert mount["mountPath"] == ADDRESSES_FOLDER
    assert "subPath" not in mount
    assert {"name": "outside", "containerPort": 10920, "protocol": "TCP"} in container["ports"]


def test_a_load_balancers_address_is_waited_for_and_restarts_nobody() -> None:
    """Reachable names the Service; the address comes by the ConfigMap, the template stays."""
    cluster = cluster_of(BALANCED)
    conditions = {item["type"]: item for item in cluster.status["conditions"]}
    assert conditions["Reachable"]["status"] == "False"
    assert "orders-g0-0-outside" in conditions["Reachable"]["message"]
    assert addresses_of(cluster) == {}
    before = cluster.objects["StatefulSet", "orders-g0"]["spec"]["template"]
    service = cluster.objects["Service", "orders-g0-0-outside"]
    service["status"] = {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}}
    settle(cluster, plan_broker)
    conditions = {item["type"]: item for item in cluster.status["conditions"]}
    assert conditions["Reachable"]["status"] == "True"
    assert addresses_of(cluster) == {"outside": "192.0.2.7:10920"}
    assert cluster.status["listeners"] == [{"name": "outside", "addresses": ["192.0.2.7:10920"]}]
    assert cluster.objects["StatefulSet", "orders-g0"]["spec"]["template"] == before


@pytest.mark.parametrize(
    ("before", "after"), [("a.example/lb", None), (None, "b.example/lb"), ("a.example/lb", "b/lb")]
)
def test_another_class_of_load_balancers_makes_their_services_anew(before, after) -> None:
    """The API server takes no such change, whichever way it goes."""
    classes = [{"loadBalancerClass": one} if one else {} for one in (before, after)]
    cluster = cluster_of(BALANCED | classes[0])
    cluster.change(listeners=[BALANCED | classes[1]])
    settle(cluster, plan_broker)
    service = cluster.objects["Service", "orders-g0-0-outside"]
    assert service["spec"].get("loadBalancerClass") == after


def test_a_class_that_the_cloud_gives_stays() -> None:
    """Its webhook would give it again."""
    cluster = cluster_of(BALANCED)
    service = cluster.objects["Service", "orders-g0-0-outside"]
    service["spec"]["loadBalancerClass"] = "cloud.example/lb"
    uid = service["metadata"]["uid"]
    cluster.change(listeners=[BALANCED | {"externalTrafficPolicy": "Local"}])
    settle(cluster, plan_broker)
    service = cluster.objects["Service", "orders-g0-0-outside"]
    assert service["metadata"]["uid"] == uid
    assert service["spec"]["externalTrafficPolicy"] == "Local"


def test_without_listeners_nothing_is_left_of_them() -> None:
    """Services and addresses go, and there is no condition."""
    cluster = cluster_of(OUTSIDE)
    cluster.change(listeners=[])
    settle(cluster, plan_broker)
    assert ("Service", "orders-g0-0-outside") not in cluster.objects
    assert ("ConfigMap", "orders-addresses") not in cluster.objects
    assert "Reachable" not in {item["type"] for item in cluster.status["conditions"]}


def test_what_the_user_says_is_told_to_clients() -> None:
    """Names in the host are those of the pod."""
    host = "{pod}.{group}.{ordinal}.{namespace}.example"
    told = {"name": "proxy", "port": 10921, "type": "Internal"}
    broker = sample_broker(listeners=[told | {"advertised": {"host": host, "port": 443}}])
    address = pod_address(broker, "orders-g3-1", broker.spec.listeners[0], None)
    assert address == f"orders-g3-1.3.1.{broker.namespace}.example:443"


def test_the_names_of_own_ports_are_nobody_elses() -> None:
    """A pod of such a listener had its probes and Services at the listener's port."""
    service = ns.name_server_nodes_service(sample_name_server())
    own = {*REPLICA_PORTS, *(port["name"] for port in service["spec"]["ports"]), "nodes"}
    for name in sorted(own):
        with pytest.raises(InvalidResourceError, match="there anyway"):
            sample_broker(listeners=[OUTSIDE | {"name": name}])


@pytest.mark.parametrize(
    ("host", "hostname"),
    [("{pod}." * 40 + "eu", None), (None, "lb_1.example."), (None, "a b")],
)
def test_an_address_that_brokers_refuse_keeps_no_other_from_them(host, hostname) -> None:
    """They take a file as a whole, or nothing of it."""
    long = BALANCED | ({"advertised": {"host": host}} if host else {})
    inside = {"name": "inside", "port": 10921, "type": "Internal"}
    cluster = cluster_of(long, inside)
    if hostname:
        balancer = {"loadBalancer": {"ingress": [{"hostname": hostname}]}}
        cluster.objects["Service", "orders-g0-0-outside"]["status"] = balancer
        settle(cluster, plan_broker)
    assert list(addresses_of(cluster)) == ["inside"]
    conditions = {item["type"]: item for item in cluster.status["conditions"]}
    assert "orders-g0-0-outside" in conditions["Reachable"]["message"]


def test_long_names_are_cut_short_and_stay_apart() -> None:
    """63 characters are what a Service's name may have."""
    names = {listener_service_name("b" * 54, name) for name in ("outside-one", "outside-two")}
    assert len(names) == 2
    assert all(len(name) <= 63 for name in names)


def test_name_servers_share_a_service() -> None:
    """One node port for all."""
    name_server = sample_name_server(listeners=[OUTSIDE | {"port": 9900}])
    service = ns.name_server_listener_service(name_server, name_server.spec.listeners[0])
    validate(service, "1.29")
    assert service["spec"]["ports"][0]["nodePort"] == 30100
    assert service["spec"]["publishNotReadyAddresses"] is False
    text = ns.name_server_config_map(name_server, has_volume=False)["data"]["namesrv.conf"]
    assert '"name":"outside","port":9900' in text


@pytest.mark.parametrize(
    "wrong",
    [
        [OUTSIDE | {"name": "internal"}],
        [OUTSIDE | {"port": 10911}],
        [OUTSIDE, OUTSIDE | {"port": 10999}],
        [OUTSIDE, OUTSIDE | {"name": "other"}],
        [OUTSIDE | {"tls": "Enforcing"}],
        [OUTSIDE | {"clientAuth": "Required"}],
        [OUTSIDE | {"nodePortBase": 29999}],
        [BALANCED | {"nodePortBase": 30100}],
        [OUTSIDE | {"advertised": {"host": "{node}.example"}}],
    ],
)
def test_what_cannot_work_is_refused(wrong: list[dict[str, Any]]) -> None:
    """Each of them by one sentence."""
    manifest = {"metadata": {"name": "orders"}, "spec": BROKER_SPEC | {"listeners": wrong}}
    with pytest.raises(InvalidResourceError):
        parse_broker(manifest)


@pytest.mark.parametrize("mode", ["Disabled", "Permissive", "Enforcing"])
@pytest.mark.parametrize("client_auth", ["None", "Optional", "Required"])
@pytest.mark.parametrize("of_listener", ["None", "Required"])
def test_brokers_start_with_what_is_written(
    tmp_path: Path, mode: str, client_auth: str, of_listener: str
) -> None:
    """Whatever the ports that there are anyway ask for: only the files are missing here."""
    tls = {
        "secretRef": {"name": "orders-tls"},
        "clientCA": {"secretRef": {"name": "people"}},
        "mode": mode,
        "clientAuth": client_auth,
    }
    listener = OUTSIDE | {"tls": "Enforcing", "clientAuth": of_listener}
    cluster = cluster_of(listener, tls=tls)
    file = tmp_path / "broker.conf"
    file.write_text(cluster.objects["ConfigMap", "orders-g0"]["data"]["broker.conf"])
    settings = load_settings("broker", file=file, environ={"POD_NAME": "orders-g0-0"})
    assert settings.warnings == ()
    with pytest.raises(ConfigError, match="cannot be read"):
        ServerTls.of(settings.tls, listeners_of(settings))


def test_addresses_of_ipv6_are_those_that_a_broker_takes() -> None:
    """One that it cannot read would leave all of a pod's as they were."""
    cluster = cluster_of(BALANCED)
    service = cluster.objects["Service", "orders-g0-0-outside"]
    service["status"] = {"loadBalancer": {"ingress": [{"ip": "2001:db8::7"}]}}
    settle(cluster, plan_broker)
    address = addresses_of(cluster)["outside"]
    assert address == "[2001:db8::7]:10920"
    assert address_problem(address) is None
    nodes = cluster_of(OUTSIDE)
    for (kind, _), item in nodes.objects.items():
        if kind == "Pod":
            item["status"]["hostIP"] = "2001:db8::9"
    settle(nodes, plan_broker)
    assert nodes.status["listeners"][0]["addresses"] == ["[2001:db8::9]:30100"]
