"""The kinds of objects that the operator knows, and where the API server keeps them."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from mailboat_operator.planner.snapshot import Manifest
from mailboat_operator.resources.labels import (
    BROKER_LABEL,
    MANAGED_BY_LABEL,
    MANAGER,
    NAME_SERVER_LABEL,
)

MANAGED_BY_SELECTOR = f"{MANAGED_BY_LABEL}={MANAGER}"
"""What children carry; only these are listed and watched."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of the API."""

    kind: str
    group: str
    version: str
    plural: str
    is_namespaced: bool = True

    @property
    def api_version(self) -> str:
        """As a manifest's `apiVersion` has it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(
        self, namespace: str | None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """The URL path of the collection, of one object, or of a part of it."""
        parts = [f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"]
        if self.is_namespaced and namespace is not None:
            parts.append(f"namespaces/{namespace}")
        parts.append(self.plural)
        parts.extend(part for part in (name, subresource) if part is not None)
        return "/".join(parts)


class ResourceKey(NamedTuple):
    """Names one custom resource; what the work queue holds."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        """`Broker/shop/orders`."""
        return f"{self.kind}/{self.namespace}/{self.name}"


GROUP = "mailboat.dev"
BROKER = Kind("Broker", GROUP, "v1alpha1", "brokers")
NAME_SERVER = Kind("NameServer", GROUP, "v1alpha1", "nameservers")
TOPIC = Kind("Topic", GROUP, "v1alpha1", "topics")
USER = Kind("User", GROUP, "v1alpha1", "users")

STATEFUL_SET = Kind("StatefulSet", "apps", "v1", "statefulsets")
POD = Kind("Pod", "", "v1", "pods")
CLAIM = Kind("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims")
SERVICE = Kind("Service", "", "v1", "services")
CONFIG_MAP = Kind("ConfigMap", "", "v1", "configmaps")
DISRUPTION_BUDGET = Kind("PodDisruptionBudget", "policy", "v1", "poddisruptionbudgets")
NETWORK_POLICY = Kind("NetworkPolicy", "networking.k8s.io", "v1", "networkpolicies")
SERVICE_ACCOUNT = Kind("ServiceAccount", "", "v1", "serviceaccounts")
LEASE = Kind("Lease", "coordination.k8s.io", "v1", "leases")
ENDPOINT_SLICE = Kind("EndpointSlice", "discovery.k8s.io", "v1", "endpointslices")
ENDPOINTS = Kind("Endpoints", "", "v1", "endpoints")
ROLE = Kind("Role", "rbac.authorization.k8s.io", "v1", "roles")
ROLE_BINDING = Kind("RoleBinding", "rbac.authorization.k8s.io", "v1", "rolebindings")
SECRET = Kind("Secret", "", "v1", "secrets")
CERTIFICATE = Kind("Certificate", "cert-manager.io", "v1", "certificates")
"""Of cert-manager, which comes sooner or later or never: it is not watched."""

STORAGE_CLASS = Kind("StorageClass", "storage.k8s.io", "v1", "storageclasses", is_namespaced=False)
EVENT = Kind("Event", "events.k8s.io", "v1", "events")

CUSTOM_KINDS = (BROKER, NAME_SERVER, TOPIC, USER)
CHILD_KINDS = (
    STATEFUL_SET,
    POD,
    CLAIM,
    SERVICE,
    CONFIG_MAP,
    DISRUPTION_BUDGET,
    NETWORK_POLICY,
    SERVICE_ACCOUNT,
    LEASE,
    ENDPOINT_SLICE,
    ENDPOINTS,
    ROLE,
    ROLE_BINDING,
)
BY_NAME = {kind.kind: kind for kind in (*CUSTOM_KINDS, *CHILD_KINDS, STORAGE_CLASS, CERTIFICATE)}


def watched_kinds(is_cluster_wide: bool) -> tuple[Kind, ...]:
    """What is listed and watched; storage classes need rights in the whole cluster."""
    classes = (STORAGE_CLASS,) if is_cluster_wide else ()
    return (*CUSTOM_KINDS, *CHILD_KINDS, *classes)


def label_selector(kind: Kind) -> str | None:
    """Children are watched by label, all else whole."""
    return MANAGED_BY_SELECTOR if kind in CHILD_KINDS else None


def micro_time(wall_s: float) -> str:
    """Write a wall time, seconds since 1970, as Leases and events want it: MicroTime."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def key_of(manifest: Manifest) -> ResourceKey:
    """The key of a custom resource."""
    metadata = manifest["metadata"]
    return ResourceKey(manifest["kind"], metadata["namespace"], metadata["name"])


def owner_of(manifest: Manifest) -> ResourceKey | None:
    """The custom resource that a child belongs to, by its labels."""
    metadata = manifest["metadata"]
    labels = metadata.get("labels") or {}
    for label, kind in ((BROKER_LABEL, BROKER), (NAME_SERVER_LABEL, NAME_SERVER)):
        if label in labels:
            return ResourceKey(kind.kind, metadata["namespace"], labels[label])
    return None
