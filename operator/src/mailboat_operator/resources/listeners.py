"""Listeners: the Services that lead to them, the addresses of them, and what pods need for both.

Each pod of a Broker has a Service of its own for each listener, because clients connect to the
broker that has the queue. Any name server answers, so all pods of a NameServer share one.

The addresses stand in one ConfigMap of the Broker, `<pod>.json` for each pod, which its broker
reads again and again: another address is no reason for a restart.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from mailboat.config.listeners import address_problem
from mailboat_operator.crds.broker import Broker
from mailboat_operator.crds.common import Object
from mailboat_operator.crds.listeners import ListenerSpec, node_port_of
from mailboat_operator.resources.labels import (
    MANIFEST_HASH_ANNOTATION,
    broker_labels,
    child,
    digest,
    group_labels,
)
from mailboat_operator.resources.names import (
    broker_addresses_name,
    broker_nodes_name,
    group_index,
    group_of,
    listener_service_name,
    ordinal_of,
)
from mailboat_operator.resources.security import Security

LISTENER_LABEL: Final = "mailboat.dev/listener"
ADDRESSES_FOLDER: Final = "/etc/mailboat-addresses"
NODE_IP: Final = "{nodeIP}"
_POD_LABEL: Final = "statefulset.kubernetes.io/pod-name"


def listener_settings(listeners: Sequence[ListenerSpec]) -> dict[str, str]:
    """Return the settings of listeners; none where there are none."""
    if not listeners:
        return {}
    documents = [
        {
            "name": listener.name,
            "port": listener.port,
            "tls": listener.tls.lower(),
            "clientAuth": listener.client_auth.lower(),
        }
        for listener in listeners
    ]
    return {"listeners": json.dumps(documents, separators=(",", ":"))}


def with_listeners(security: Security, broker: Broker) -> Security:
    """Return what a Broker's pods get beside what they need for its security."""
    if not broker.spec.listeners:
        return security
    env = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in (("POD_NAME", "metadata.name"), ("NODE_IP", "status.hostIP"))
    ]
    settings = {
        **listener_settings(broker.spec.listeners),
        "advertisedAddressesFile": f"{ADDRESSES_FOLDER}/{{podName}}.json",
    }
    config_map = {"name": broker_addresses_name(broker.name), "optional": True}
    return replace(
        security,
        settings={**security.settings, **settings},
        volumes={
            **security.volumes,
            ADDRESSES_FOLDER: {"name": "addresses", "configMap": config_map},
        },
        env=[*security.env, *env],
    )


def listener_ports(listeners: Sequence[ListenerSpec]) -> dict[str, int]:
    """Return the ports of listeners by the names that they have in pods."""
    return {listener.name: listener.port for listener in listeners}


def pod_service(broker: Broker, pod: str, listener: ListenerSpec) -> dict[str, Any]:
    """Return the Service that leads to a listener of one pod, also while that is not ready."""
    group, ordinal = group_index(broker.name, group_of(pod)) or 0, ordinal_of(pod) or 0
    labels = group_labels(broker.name, group) | {LISTENER_LABEL: listener.name}
    node_port = node_port_of(listener, group, ordinal)
    return listener_service(broker, pod, labels, {_POD_LABEL: pod}, listener, node_port)


def listener_service(
    owner: Object[Any],
    name: str,
    labels: Mapping[str, str],
    selector: Mapping[str, str],
    listener: ListenerSpec,
    node_port: int | None,
) -> dict[str, Any]:
    """Return the Service of a listener.

    Args:
        owner: The resource.
        name: Of what it leads to.
        labels: Of the Service.
        selector: Of the pods.
        listener: What it leads to.
        node_port: None where Kubernetes assigns one.
    """
    port = {"name": listener.name, "port": listener.port, "targetPort": listener.port}
    spec: dict[str, Any] = {
        "type": listener.type,
        "selector": dict(selector),
        "ports": [port | {"protocol": "TCP"} | ({"nodePort": node_port} if node_port else {})],
        "publishNotReadyAddresses": owner.KIND == "Broker",
    }
    if listener.is_external and listener.external_traffic_policy is not None:
        spec["externalTrafficPolicy"] = listener.external_traffic_policy
    if listener.type == "LoadBalancer":
        if listener.load_balancer_class is not None:
            spec["loadBalancerClass"] = listener.load_balancer_class
        if listener.load_balancer_source_ranges:
            spec["loadBalancerSourceRanges"] = list(listener.load_balancer_source_ranges)
    name = listener_service_name(name, listener.name)
    service = child("v1/Service", owner, name, labels, spec=spec)
    if listener.annotations:
        # One that is taken away has to show in the digest.
        mark = {MANIFEST_HASH_ANNOTATION: digest([spec, listener.annotations])}
        service["metadata"]["annotations"] = {**listener.annotations, **mark}
    return service


def pod_address(
    broker: Broker, pod: str, listener: ListenerSpec, service: Mapping[str, Any] | None
) -> str | None:
    """Return the HOST:PORT that clients of a listener are told; None while there is none to use.

    `{nodeIP}` stays in it: the broker knows on which node it runs.
    """
    host = listener.advertised.host
    port = listener.advertised.port or service_port(listener, service)
    host = host or service_host(listener, service, f"{pod}.{broker_nodes_name(broker.name)}")
    if host is None or port is None:
        return None
    values = {
        "pod": pod,
        "ordinal": str(ordinal_of(pod) or 0),
        "group": str(group_index(broker.name, group_of(pod)) or 0),
        "namespace": broker.namespace,
    }
    address = f"{with_values(host, values)}:{port}"
    # A broker that finds one that it does not take goes on with all as they were.
    return address if address_problem(address) is None else None


def with_values(template: str, values: Mapping[str, str]) -> str:
    """Return a template with the values of its {names}; what has none stays."""
    for name, value in values.items():
        template = template.replace(f"{{{name}}}", value)
    return template


def service_port(listener: ListenerSpec, service: Mapping[str, Any] | None) -> int | None:
    """Return the port at which clients reach a listener; None while it is not known."""
    if listener.type != "NodePort":
        return listener.port
    for port in ((service or {}).get("spec") or {}).get("ports") or ():
        if port.get("port") == listener.port and port.get("nodePort"):
            return int(port["nodePort"])
    return None


def service_host(listener: ListenerSpec, service: Mapping[str, Any] | None, pod: str) -> str | None:
    """Return the host at which clients reach a listener; None while it is not known.

    Args:
        listener: Which one.
        service: The live one that leads to it.
        pod: Name of the pod in the namespace's DNS.
    """
    if listener.type == "Internal":
        return f"{pod}.{{namespace}}.svc"
    if listener.type == "NodePort":
        return NODE_IP
    if service is None:
        return None
    if listener.type == "ClusterIP":
        return f"{service['metadata']['name']}.{{namespace}}.svc"
    ingress = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or [{}]
    return in_brackets(ingress[0].get("ip") or "") or ingress[0].get("hostname") or None


def in_brackets(ip: str) -> str:
    """Return an address as it stands before a port."""
    return f"[{ip}]" if ":" in ip else ip


def addresses_config_map(
    broker: Broker, addresses: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    """Return the ConfigMap with the addresses of all pods: pod -> listener -> HOST:PORT."""
    data = {
        f"{pod}.json": json.dumps(dict(sorted(of_pod.items())))
        for pod, of_pod in sorted(addresses.items())
    }
    name = broker_addresses_name(broker.name)
    return child("v1/ConfigMap", broker, name, broker_labels(broker.name), data=data)
