"""Who may connect to the pods of a resource: RocketMQ's port is for clients, HTTP for few.

Replicas have a port for each other. Only what comes in is ruled. The kubelet's probes need no rule:
what comes from a pod's own node is always let in.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mailboat_operator.crds.common import Object
from mailboat_operator.crds.listeners import ListenerSpec
from mailboat_operator.crds.network_policy import NetworkPolicySpec
from mailboat_operator.resources.labels import child, selector_of
from mailboat_operator.resources.names import HA, HTTP

Peer = Mapping[str, Any]
"""A NetworkPolicyPeer of Kubernetes."""


def network_policy(
    owner: Object[Any],
    name: str,
    labels: dict[str, str],
    ports: Mapping[str, int],
    spec: NetworkPolicySpec,
    http_peers: Sequence[Peer],
    *,
    client_peers: Sequence[Peer] = (),
    listeners: Sequence[ListenerSpec] = (),
) -> dict[str, Any]:
    """Return the NetworkPolicy of a resource's pods.

    Args:
        owner: The resource.
        name: Of the policy.
        labels: Of the pods.
        ports: Each port of the pods, by name.
        spec: What the resource says.
        http_peers: Who may reach HTTP anyway: the operator, Prometheus.
        client_peers: Who may reach the other ports whatever `spec` lists.
        listeners: Further ports, each with who may reach it.
    """
    clients = [port for name, port in ports.items() if name not in (HA, HTTP)]
    selector = {"matchLabels": selector_of(labels)}
    peers = _from([{"podSelector": selector}])
    links = [{**peers, "ports": _tcp([port])} for name, port in ports.items() if name == HA]
    # Without a list everybody may, and a list of these alone would shut all others out.
    listed = [*client_peers, *spec.clients_from] if spec.clients_from else []
    return child(
        "networking.k8s.io/v1/NetworkPolicy",
        owner,
        name,
        labels,
        spec={
            "podSelector": selector,
            "policyTypes": ["Ingress"],
            "ingress": [
                {**_from(listed), "ports": _tcp(clients)},
                *_http_rule(ports[HTTP], [*http_peers, *spec.http_from]),
                *links,
                *_listener_rules(listeners, listed),
            ],
        },
    )


def _http_rule(port: int, peers: Sequence[Peer]) -> list[dict[str, Any]]:
    """Return the rule for HTTP; none if nobody may: a rule without peers lets everybody in."""
    return [{**_from(peers), "ports": _tcp([port])}] if peers else []


def _listener_rules(
    listeners: Sequence[ListenerSpec], listed: Sequence[Peer]
) -> list[dict[str, Any]]:
    """Return a rule for each listener: everybody may reach one that is there for those outside."""
    return [
        {
            **_from(listener.network_policy_peers or (() if listener.is_external else listed)),
            "ports": _tcp([listener.port]),
        }
        for listener in listeners
    ]


def _from(peers: Sequence[Peer]) -> dict[str, Any]:
    return {"from": [dict(peer) for peer in peers]} if peers else {}


def _tcp(ports: Sequence[int]) -> list[dict[str, Any]]:
    return [{"port": port, "protocol": "TCP"} for port in ports]
