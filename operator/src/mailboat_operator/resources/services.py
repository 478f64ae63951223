"""The Services of a Broker.

Each group has one of its own, because clients are told its address: it outlives the pod, so a
broker that is started again is found where it was. One of a group with replicas selects no pod:
its EndpointSlice says where the leader is. The headless one gives the pods their names.
"""

from typing import Any, Final

from mailboat_operator.crds.broker import Broker
from mailboat_operator.resources.labels import broker_labels, child, group_labels, selector_of
from mailboat_operator.resources.names import (
    BROKER_FAST_PORT,
    BROKER_HA_PORT,
    BROKER_HTTP_PORT,
    BROKER_LEADER_PORT,
    BROKER_PORT,
    FAST,
    HA,
    HTTP,
    LEADER,
    REMOTING,
    broker_nodes_name,
    group_name,
)

BROKER_PORTS: Final = {REMOTING: BROKER_PORT, FAST: BROKER_FAST_PORT, HTTP: BROKER_HTTP_PORT}
REPLICA_PORTS: Final = BROKER_PORTS | {HA: BROKER_HA_PORT, LEADER: BROKER_LEADER_PORT}
"""What a broker that is a replica listens on."""


def group_service(
    broker: Broker, group: int, address: str | None, *, has_replicas: bool = False
) -> dict[str, Any]:
    """Return the Service of a group.

    A pod that is not ready stays behind it: a broker that ends goes on serving for a while, and one
    that starts is reached as soon as it listens.

    Args:
        broker: The resource.
        group: Which group.
        address: The address that clients know; None takes any.
        has_replicas: Whether its pods are replicas, of which one leads.
    """
    labels = group_labels(broker.name, group)
    spec: dict[str, Any] = {
        "type": "ClusterIP",
        "selector": selector_of(labels),
        "ports": service_ports(BROKER_PORTS),
        "publishNotReadyAddresses": True,
    }
    if has_replicas:
        del spec["selector"]
    service = child("v1/Service", broker, group_name(broker.name, group), labels, spec=spec)
    if address is not None:
        # Behind the digest: an address that was given is no change of what is wanted.
        spec["clusterIP"] = address
    return service


def broker_nodes_service(broker: Broker, ports: dict[str, int]) -> dict[str, Any]:
    """Return the headless Service that gives a Broker's pods their names."""
    return headless_service(
        broker, broker_nodes_name(broker.name), broker_labels(broker.name), ports
    )


def headless_service(
    owner: Any, name: str, labels: dict[str, str], ports: dict[str, int]
) -> dict[str, Any]:
    """Return a Service without an address; a pod has its name there before it is ready."""
    return child(
        "v1/Service",
        owner,
        name,
        labels,
        spec={
            "type": "ClusterIP",
            "clusterIP": "None",
            "selector": selector_of(labels),
            "ports": service_ports(ports),
            "publishNotReadyAddresses": True,
        },
    )


def service_ports(ports: dict[str, int]) -> list[dict[str, Any]]:
    """Return the ports of a Service, each leading to the container's port of its name."""
    return [
        {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}
        for name, port in ports.items()
    ]
