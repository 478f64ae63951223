"""Who may connect to brokers and name servers: the NetworkPolicies, and when there are any."""

from dataclasses import replace
from typing import Any

from kubernetes_validate import validate
from model_cluster import ModelCluster, settle
from operator_samples import BROKER_SPEC, sample_name_server

from mailboat_operator.planner.actions import Apply, Delete
from mailboat_operator.planner.broker import plan_broker
from mailboat_operator.planner.name_server import plan_name_server
from mailboat_operator.planner.snapshot import Children, NameServerSnapshot
from mailboat_operator.resources.name_server import name_server_network_policy
from mailboat_operator.settings import OperatorSettings

PROMETHEUS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
GATEWAY = {"podSelector": {"matchLabels": {"app": "gateway"}}}
OPERATOR = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "system"}},
    "podSelector": {"matchLabels": {"app": "mailboat", "part": "operator"}},
}
PEERS = OperatorSettings(
    image="i",
    pod_name="p",
    pod_namespace="system",
    pod_selector=("part=operator", "app=mailboat"),
    http_peers=(PROMETHEUS,),
).all_http_peers()
POLICY = ("NetworkPolicy", "mailboat-broker-orders")


def cluster_with(**spec: Any) -> ModelCluster:
    """Return a settled cluster whose operator makes policies."""
    cluster = ModelCluster(BROKER_SPEC | spec)
    cluster.http_peers = PEERS
    settle(cluster, plan_broker)
    return cluster


def test_clients_come_from_anywhere_and_http_is_for_few() -> None:
    """Both client ports have no peers, which lets everybody in; 8080 is for operator and
    Prometheus."""
    policy = cluster_with().objects[POLICY]
    assert policy["spec"] == {
        "podSelector": {
            "matchLabels": {
                "app.kubernetes.io/name": "mailboat",
                "app.kubernetes.io/component": "broker",
                "mailboat.dev/broker": "orders",
            }
        },
        "policyTypes": ["Ingress"],
        "ingress": [
            {"ports": [{"port": 10911, "protocol": "TCP"}, {"port": 10909, "protocol": "TCP"}]},
            {"from": [OPERATOR, PROMETHEUS], "ports": [{"port": 8080, "protocol": "TCP"}]},
        ],
    }
    for version in ("1.29", "1.37"):
        validate(policy, version, strict=True)


def test_the_policy_is_for_every_pod_and_port_of_the_broker() -> None:
    """Its labels are on each group's pods, and each port of these stands in it."""
    cluster = cluster_with(groups=2)
    spec = cluster.objects[POLICY]["spec"]
    ruled = {port["port"] for rule in spec["ingress"] for port in rule["ports"]}
    for _, pod in cluster.pods():
        assert spec["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        ports = pod["spec"]["containers"][0]["ports"]
        assert {port["containerPort"] for port in ports} == ruled


def test_both_ports_can_be_for_listed_peers() -> None:
    """The resource's own peers stand beside the operator's."""
    chosen = {"clientsFrom": [GATEWAY, {"ipBlock": {"cidr": "10.0.0.0/8"}}], "httpFrom": [GATEWAY]}
    clients, http = cluster_with(networkPolicy=chosen).objects[POLICY]["spec"]["ingress"]
    assert clients["from"] == [GATEWAY, {"ipBlock": {"cidr": "10.0.0.0/8"}}]
    assert http["from"] == [OPERATOR, PROMETHEUS, GATEWAY]


def test_a_policy_that_is_not_wanted_any_more_goes() -> None:
    """By the resource, or by the operator; what somebody else made under the name stays."""
    cluster = cluster_with()
    cluster.change(networkPolicy={"enabled": False})
    settle(cluster, plan_broker)
    assert POLICY not in cluster.objects
    cluster.change(networkPolicy={"enabled": True})
    settle(cluster, plan_broker)
    assert POLICY in cluster.objects
    cluster.http_peers = None
    theirs = cluster.objects[POLICY]["metadata"].pop("labels")
    owners = cluster.objects[POLICY]["metadata"].pop("ownerReferences")
    settle(cluster, plan_broker)
    assert POLICY in cluster.objects
    cluster.objects[POLICY]["metadata"] |= {"labels": theirs, "ownerReferences": owners}
    settle(cluster, plan_broker)
    assert POLICY not in cluster.objects
    assert cluster.taken_down == []


def test_without_anybody_no_rule_lets_everybody_reach_http() -> None:
    """An empty list of peers would be everybody."""
    cluster = ModelCluster(BROKER_SPEC)
    cluster.http_peers = ()
    settle(cluster, plan_broker)
    (clients,) = cluster.objects[POLICY]["spec"]["ingress"]
    assert 8080 not in [port["port"] for port in clients["ports"]]


def test_name_servers_have_one_too() -> None:
    """9876 is for everybody, 8079 for operator and Prometheus."""
    resource = sample_name_server()
    snapshot = NameServerSnapshot(resource, Children(), "mailboat:1", 0.0, http_peers=PEERS)
    applied = [
        action.manifest
        for step in plan_name_server(snapshot).steps
        for action in step.actions
        if isinstance(action, Apply) and action.manifest["kind"] == "NetworkPolicy"
    ]
    (policy,) = applied
    assert policy["metadata"]["name"] == "mailboat-name-server-ns"
    clients, http = policy["spec"]["ingress"]
    assert clients == {"ports": [{"port": 9876, "protocol": "TCP"}]}
    assert http["from"] == [OPERATOR, PROMETHEUS]
    validate(policy, "1.29", strict=True)
    live = policy | {"metadata": policy["metadata"] | {"uid": "u", "resourceVersion": "1"}}
    children = Children(network_policies={"mailboat-name-server-ns": live})
    off = plan_name_server(replace(snapshot, children=children, http_peers=None))
    deleted = [action for step in off.steps for action in step.actions]
    assert [action.name for action in deleted if isinstance(action, Delete)] == [
        "mailboat-name-server-ns"
    ]


def test_a_name_server_lets_its_brokers_in_whoever_is_listed() -> None:
    """A list of clients that leaves the brokers out does not cut them off; without one everybody
    may come, not brokers alone."""
    cluster = cluster_with()
    for chosen, peers in (({"clientsFrom": [GATEWAY]}, 2), ({}, 0)):
        resource = sample_name_server(networkPolicy=chosen)
        policy = name_server_network_policy(resource, PEERS)
        listed = policy["spec"]["ingress"][0].get("from", [])
        assert len(listed) == peers
        validate(policy, "1.29", strict=True)
        if not peers:
            continue
        brokers, gateway = listed
        assert gateway == GATEWAY
        # No namespaceSelector: pods of the policy's own namespace.
        assert list(brokers) == ["podSelector"]
        wanted = brokers["podSelector"]["matchLabels"]
        for _, pod in cluster.pods():
            assert wanted.items() <= pod["metadata"]["labels"].items()
        assert not wanted.items() <= policy["metadata"]["labels"].items()


def test_an_operator_without_labels_lets_its_namespace_in() -> None:
    """One that was not installed by the chart; switched off, there are no policies at all."""
    settings = OperatorSettings(image="i", pod_name="p", pod_namespace="system")
    assert settings.all_http_peers() == ({"namespaceSelector": OPERATOR["namespaceSelector"]},)
    assert replace(settings, network_policies=False).all_http_peers() is None
