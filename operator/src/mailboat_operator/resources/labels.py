"""Labels, annotations and the owner that every object of a resource carries.

The annotation `mailboat.dev/manifest-hash` says what an object was last made from. It is how a
value that is no longer wanted is noticed: comparing what is wanted with what there is cannot show
it, because Kubernetes and others add values of their own.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from mailboat_operator.crds.common import API_VERSION, Object

NAME_LABEL: Final = "app.kubernetes.io/name"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
BROKER_LABEL: Final = "mailboat.dev/broker"
NAME_SERVER_LABEL: Final = "mailboat.dev/name-server"
GROUP_LABEL: Final = "mailboat.dev/group"

MANAGER: Final = "mailboat-operator"
"""Value of the managed-by label, and the operator's field manager."""

CONFIG_HASH_ANNOTATION: Final = "mailboat.dev/config-hash"
"""On a pod: a digest of the settings that take effect only at a start."""

MANIFEST_HASH_ANNOTATION: Final = "mailboat.dev/manifest-hash"

_HASH_LENGTH: Final = 16
_OWN_LABELS: Final = (NAME_LABEL, COMPONENT_LABEL, BROKER_LABEL, NAME_SERVER_LABEL, GROUP_LABEL)


def any_broker() -> dict[str, str]:
    """Return the labels that the pods of every Broker have."""
    labels = _labels("broker", "")
    return {key: labels[key] for key in (NAME_LABEL, COMPONENT_LABEL)}


def broker_labels(broker: str) -> dict[str, str]:
    """Return the labels of what a Broker's groups share."""
    return _labels("broker", broker) | {BROKER_LABEL: broker}


def group_labels(broker: str, group: int) -> dict[str, str]:
    """Return the labels of what belongs to one group of a Broker."""
    return broker_labels(broker) | {GROUP_LABEL: str(group)}


def name_server_labels(name_server: str) -> dict[str, str]:
    """Return the labels of what belongs to a NameServer."""
    return _labels("name-server", name_server) | {NAME_SERVER_LABEL: name_server}


def selector_of(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels by which pods are found; they can never change."""
    return {key: labels[key] for key in _OWN_LABELS if key in labels}


def child(
    kind: str,
    owner: Object[Any],
    name: str,
    labels: Mapping[str, str],
    **parts: Any,
) -> dict[str, Any]:
    """Put an object together that belongs to a resource.

    Args:
        kind: What it is, such as `apps/v1/StatefulSet`.
        owner: Its resource; the object goes when that goes.
        name: Its name, in the owner's namespace.
        labels: Its labels.
        **parts: `spec`, `data` and the like.
    """
    api_version, _, kind = kind.rpartition("/")
    manifest: dict[str, Any] = {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": owner.namespace,
            "labels": dict(sorted(labels.items())),
            "ownerReferences": [owner_reference(owner)],
        },
        **parts,
    }
    manifest["metadata"]["annotations"] = {MANIFEST_HASH_ANNOTATION: digest(manifest)}
    return manifest


def owner_reference(owner: Object[Any]) -> dict[str, Any]:
    """Return the reference by which Kubernetes removes an object after its resource.

    It does not hold up the resource's own removal: on OpenShift that takes a right on finalizers.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": owner.KIND,
        "name": owner.name,
        "uid": owner.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def dependent_reference(owner: Object[Any]) -> dict[str, Any]:
    """Return the reference for an object that goes with a resource and is not run by it."""
    return {**owner_reference(owner), "controller": False}


def digest(value: object) -> str:
    """Return a short text that is the same for equal values, whatever their order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_LENGTH]


def _labels(component: str, instance: str) -> dict[str, str]:
    return {
        NAME_LABEL: "mailboat",
        COMPONENT_LABEL: component,
        INSTANCE_LABEL: instance,
        MANAGED_BY_LABEL: MANAGER,
    }
