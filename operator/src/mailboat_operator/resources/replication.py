"""What a group with replicas has beside its pods.

    Lease          `<group>`               who leads, since when, and who may lead next
    EndpointSlice  `<group>-leader`        where the group's Service leads to
    Role, RoleBinding `<broker>`           what the pods may do with these two, and nothing else
    Secret         `<broker>-replication`  what the replicas know each other by

Lease and EndpointSlice are made here once and belong to the pods from then on: they go on without
an operator.
"""

import ipaddress
from collections.abc import Collection, Mapping
from typing import Any, Final

from mailboat.replication.lease import Lease, Member
from mailboat.replication.lease_manifest import EPOCH, lease_annotations
from mailboat_operator.crds.broker import Broker
from mailboat_operator.resources.kube_api import KUBE_API_FOLDER, kube_api_volume
from mailboat_operator.resources.labels import broker_labels, child, group_labels, selector_of
from mailboat_operator.resources.names import (
    group_name,
    leader_slice_name,
    replication_secret_name,
)

SERVICE_NAME_LABEL: Final = "kubernetes.io/service-name"
SLICE_MANAGER_LABEL: Final = "endpointslice.kubernetes.io/managed-by"
SLICE_MANAGER: Final = "mailboat.dev"

LINK_KEY: Final = "secret"
LINK_FOLDER: Final = "/etc/mailboat-secrets/replication"
LINK_FILE: Final = f"{LINK_FOLDER}/{LINK_KEY}"

_COORDINATION: Final = "coordination.k8s.io"
_DISCOVERY: Final = "discovery.k8s.io"
_RBAC: Final = "rbac.authorization.k8s.io"


def lease_marks(broker: Broker, group: int) -> dict[str, Any]:
    """Return what tells whose a group's Lease is, and nothing of what it says."""
    labels = group_labels(broker.name, group)
    lease = child(f"{_COORDINATION}/v1/Lease", broker, group_name(broker.name, group), labels)
    del lease["metadata"]["annotations"]
    return lease


def first_lease(
    broker: Broker,
    group: int,
    ordinal: int,
    store_id: str,
    *,
    epoch: int = 0,
    min_in_sync: int | None = None,
) -> dict[str, Any]:
    """Return the Lease of a group in which nobody leads.

    Args:
        broker: The resource.
        group: Which group.
        ordinal: The one replica that may lead at first, as it has all messages.
        store_id: Its volume's.
        epoch: The newest one that there has been; 0: nobody has led.
        min_in_sync: How many have to be in sync at first; None: as many as later.
    """
    spec = broker.spec
    lease = lease_marks(broker, group)
    lease["spec"] = {
        "holderIdentity": "",
        "leaseDurationSeconds": spec.replication.lease_seconds,
    }
    first = Lease(
        version=0,
        holder=None,
        epoch=epoch,
        in_sync=frozenset({Member(ordinal, store_id)}),
        min_in_sync=min_in_sync or spec.replication.minimum(spec.replicas),
        # Where nobody has led, nobody's authority has to run out.
        is_sole=not epoch,
    )
    lease["metadata"]["annotations"] = lease_annotations(first)
    return lease


def leader_slice(
    broker: Broker,
    group: int,
    ports: Mapping[str, int],
    *,
    address: str,
    pod_ip: str | None,
    epoch: int = 0,
) -> dict[str, Any]:
    """Return the EndpointSlice of a group before its leader has written it.

    Args:
        broker: The resource.
        group: Which group.
        ports: Of the group's Service.
        address: The Service's; the endpoint is of its family.
        pod_ip: Where the Service leads to; None: nowhere yet.
        epoch: Of the leader there; 0 before there was one.
    """
    name = group_name(broker.name, group)
    labels = group_labels(broker.name, group)
    labels |= {SERVICE_NAME_LABEL: name, SLICE_MANAGER_LABEL: SLICE_MANAGER}
    version = ipaddress.ip_address(address).version
    endpoint = {"addresses": [pod_ip], "conditions": {"ready": True}}
    made = child(
        f"{_DISCOVERY}/v1/EndpointSlice",
        broker,
        leader_slice_name(name),
        labels,
        addressType=f"IPv{version}",
        endpoints=[endpoint] if pod_ip is not None else [],
        ports=[{"name": name, "port": port, "protocol": "TCP"} for name, port in ports.items()],
    )
    # No digest: what the leader puts there is right.
    made["metadata"]["annotations"] = {EPOCH: str(epoch)}
    return made


def replicas_role(broker: Broker, groups: Collection[str]) -> dict[str, Any]:
    """Return what the pods of a Broker may do: change the Leases and EndpointSlices of its groups.

    A Lease that somebody deletes is made again by its leader, by an update: Kubernetes asks for
    `create` then, and knows the name.
    """
    names = sorted(groups)
    return child(
        f"{_RBAC}/v1/Role",
        broker,
        broker.name,
        broker_labels(broker.name),
        rules=[
            {
                "apiGroups": [_COORDINATION],
                "resources": ["leases"],
                "resourceNames": names,
                "verbs": ["get", "update", "create"],
            },
            {
                "apiGroups": [_DISCOVERY],
                "resources": ["endpointslices"],
                "resourceNames": [leader_slice_name(name) for name in names],
                "verbs": ["get", "update"],
            },
        ],
    )


def replicas_role_binding(broker: Broker) -> dict[str, Any]:
    """Return what gives the Role to the pods' account."""
    return child(
        f"{_RBAC}/v1/RoleBinding",
        broker,
        broker.name,
        broker_labels(broker.name),
        roleRef={"apiGroup": _RBAC, "kind": "Role", "name": broker.name},
        subjects=[{"kind": "ServiceAccount", "name": broker.name, "namespace": broker.namespace}],
    )


def replication_secret(broker: Broker) -> dict[str, Any]:
    """Return the Secret of a Broker, without what it is to hold."""
    name = replication_secret_name(broker.name)
    return child("v1/Secret", broker, name, broker_labels(broker.name), type="Opaque")


def replica_environment() -> list[dict[str, Any]]:
    """Return what is different in each replica's settings."""
    fields = {
        "MAILBOAT_BROKER_ID": "metadata.labels['apps.kubernetes.io/pod-index']",
        "MAILBOAT_BROKER_IP2": "status.podIP",
        "MAILBOAT_POD_NAME": "metadata.name",
        "MAILBOAT_POD_UID": "metadata.uid",
    }
    return [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in fields.items()
    ]


def replica_volumes(broker: Broker) -> dict[str, dict[str, Any]]:
    """Return by path what a replica reads: the secret, and its way to the API server."""
    secret = {"secretName": replication_secret_name(broker.name)}
    return {
        LINK_FOLDER: {"name": "replication", "secret": secret},
        KUBE_API_FOLDER: kube_api_volume(),
    }


def replica_affinity(labels: Mapping[str, str]) -> dict[str, Any]:
    """Return what keeps the replicas of a group on different nodes where that is possible."""
    term = {
        "labelSelector": {"matchLabels": selector_of(labels)},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 100, "podAffinityTerm": term}
            ]
        }
    }


def replica_spread(labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return what spreads the replicas of a group over zones where that is possible."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selector_of(labels)},
        }
    ]
