"""The StatefulSet of a broker's group: one pod on one volume, or several that are replicas.

It follows from the resource, the size of the volume and the address of the group's Service alone.
So it can be taken away and made again at any time, which is how its volume's size is changed:
Kubernetes does not let `volumeClaimTemplates` be edited.

Pods are replaced by the operator, one at a time (OnDelete), and never wait for each other
(Parallel): an ordered StatefulSet waits for ever for a pod that a bad image keeps from starting.
"""

from collections.abc import Mapping
from typing import Any, Final

from mailboat_operator.crds.broker import Broker
from mailboat_operator.crds.quantity import format_quantity
from mailboat_operator.resources.config_map import broker_file, restart_hash
from mailboat_operator.resources.labels import (
    CONFIG_HASH_ANNOTATION,
    child,
    group_labels,
    selector_of,
)
from mailboat_operator.resources.listeners import listener_ports
from mailboat_operator.resources.names import VOLUME, broker_nodes_name, group_name
from mailboat_operator.resources.pod import Process, pod_template
from mailboat_operator.resources.replication import (
    replica_affinity,
    replica_environment,
    replica_spread,
    replica_volumes,
)
from mailboat_operator.resources.security import Security
from mailboat_operator.resources.services import BROKER_PORTS, REPLICA_PORTS

DATA_FOLDER: Final = "/var/lib/mailboat"
REVISION_HISTORY_LIMIT: Final = 5
BROKER_RESOURCES: Final[Mapping[str, Any]] = {
    "requests": {"cpu": "100m", "memory": "256Mi"},
    "limits": {"memory": "2Gi"},
}
"""What a broker gets whose resource says nothing: one without requests is the first that a node in
need evicts. What it reads of its log counts for the limit as well, and is given back at need."""


def broker_stateful_set(
    broker: Broker,
    group: int,
    *,
    settings: Mapping[str, str],
    volume_bytes: int,
    default_image: str,
    replicas: int | None = None,
    security: Security | None = None,
) -> dict[str, Any]:
    """Return the StatefulSet of a group.

    Args:
        broker: The resource.
        group: Which group.
        settings: What its broker.conf, or that of its replicas, says.
        volume_bytes: Size of the volume, never below that of a volume that exists.
        default_image: The image of a Broker that names none.
        replicas: How many replicas it has; None for a broker that is none.
        security: What the Broker's security adds.
    """
    security = security or Security()
    spec = broker.spec
    name, labels = group_name(broker.name, group), group_labels(broker.name, group)
    process = Process(
        name="broker",
        config_file=broker_file(settings),
        config_map=name,
        ports=(BROKER_PORTS if replicas is None else REPLICA_PORTS)
        | listener_ports(spec.listeners),
        image=spec.image or default_image,
        image_pull_policy=spec.image_pull_policy,
        resources=BROKER_RESOURCES if spec.resources is None else spec.resources,
        service_account=broker.name,
        grace_seconds=spec.shutdown.grace_seconds,
        volumes={VOLUME: DATA_FOLDER},
        env=[*(replica_environment() if replicas is not None else ()), *security.env],
        mounted=(replica_volumes(broker) if replicas is not None else {}) | dict(security.volumes),
        affinity=replica_affinity(labels) if replicas is not None else None,
        spread=replica_spread(labels) if replicas is not None else (),
        probe_scheme=security.probe_scheme,
    )
    annotations = {CONFIG_HASH_ANNOTATION: restart_hash(settings)}
    return stateful_set(
        broker,
        name,
        labels,
        service=broker_nodes_name(broker.name),
        replicas=1 if replicas is None else replicas,
        template=pod_template(process, labels, annotations, spec.pod_template),
        more={
            # A StatefulSet that somebody deletes comes back, and so must its volume: the claims are
            # the Broker's own where they are to go with it. A group that is scaled away loses its
            # StatefulSet and not a replica; the operator sets whenScaled in that moment only, so
            # that no other change of replicas costs a volume.
            "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": "Retain",
                "whenScaled": "Retain",
            },
            "volumeClaimTemplates": [
                claim_template(
                    labels, format_quantity(volume_bytes), broker.spec.storage.class_name
                )
            ],
        },
    )


def stateful_set(
    owner: Any,
    name: str,
    labels: Mapping[str, str],
    *,
    service: str,
    replicas: int,
    template: Mapping[str, Any],
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a StatefulSet whose pods are replaced by the operator."""
    return child(
        "apps/v1/StatefulSet",
        owner,
        name,
        labels,
        spec={
            "replicas": replicas,
            "serviceName": service,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": REVISION_HISTORY_LIMIT,
            "selector": {"matchLabels": selector_of(labels)},
            "template": template,
            **more,
        },
    )


def claim_template(labels: Mapping[str, str], size: str, class_name: str | None) -> dict[str, Any]:
    """Return the template of the claims for the volume `data`."""
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size}},
    }
    if class_name is not None:
        spec["storageClassName"] = class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": VOLUME, "labels": dict(sorted(labels.items()))},
        "spec": spec,
    }
