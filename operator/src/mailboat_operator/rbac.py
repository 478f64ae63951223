"""Which calls of the API server the operator makes, exactly; the chart's roles are made of this.

Reading the API's discovery documents is allowed to everybody and not part of it.
"""

from dataclasses import dataclass

from mailboat_operator.kinds import (
    BROKER,
    CERTIFICATE,
    CLAIM,
    CONFIG_MAP,
    DISRUPTION_BUDGET,
    ENDPOINT_SLICE,
    ENDPOINTS,
    EVENT,
    LEASE,
    NAME_SERVER,
    NETWORK_POLICY,
    POD,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    STATEFUL_SET,
    STORAGE_CLASS,
    TOPIC,
    USER,
    Kind,
)


@dataclass(frozen=True, slots=True)
class Rule:
    """Some verbs on one resource of the API, and what they are for."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    purpose: str


def _rule(kind: Kind, verbs: str, purpose: str, subresource: str = "") -> Rule:
    resource = f"{kind.plural}/{subresource}" if subresource else kind.plural
    return Rule(kind.group, resource, tuple(verbs.split()), purpose)


_WATCHED = "list watch"
_APPLIED = "get list watch create patch"
_REMOVED = f"{_APPLIED} delete"

SECRET_RULE = _rule(
    SECRET,
    "get create patch",
    "by name: tokens and authorities that resources name, users and what they sign with; what"
    " the replicas of a Broker know each other by is made and never read",
)
"""Never listed: whoever lists Secrets has read them all."""

NAMESPACED_RULES: tuple[Rule, ...] = (
    _rule(BROKER, _WATCHED, "what is wanted"),
    _rule(BROKER, "patch", "status", "status"),
    _rule(NAME_SERVER, _WATCHED, "what is wanted"),
    _rule(NAME_SERVER, "patch", "status", "status"),
    _rule(TOPIC, f"{_WATCHED} patch", "what is wanted; its finalizer, for reclaimPolicy Delete"),
    _rule(TOPIC, "patch", "status", "status"),
    _rule(USER, f"{_WATCHED} patch", "what is wanted; its finalizer"),
    _rule(USER, "patch", "status", "status"),
    _rule(STATEFUL_SET, _REMOVED, "groups and name servers; made anew when a volume has grown"),
    _rule(
        POD, "get list watch delete", "readiness; one that serves nobody is deleted to start anew"
    ),
    _rule(POD, "create", "one at a time that serves is evicted to start anew", "eviction"),
    _rule(CLAIM, "list watch patch", "sizes, labels and owner; asked to grow, never deleted"),
    _rule(SERVICE, _REMOVED, "addresses"),
    _rule(CONFIG_MAP, _REMOVED, "configuration files"),
    _rule(DISRUPTION_BUDGET, _REMOVED, "node drains take one broker at a time"),
    _rule(NETWORK_POLICY, _REMOVED, "who may connect to brokers and name servers"),
    _rule(SERVICE_ACCOUNT, _APPLIED, "the pods' account, without a token"),
    _rule(
        LEASE,
        "get list watch create update delete",
        "who leads a group with replicas; its pods get a part of this right",
    ),
    _rule(
        ENDPOINT_SLICE,
        f"{_REMOVED} update",
        "where the leader of a group is; its pods get a part of this right",
    ),
    _rule(ENDPOINTS, "get list watch delete", "what a Service leaves behind that gets replicas"),
    _rule(ROLE, _REMOVED, "what the replicas of a Broker may do with these Leases and slices"),
    _rule(ROLE_BINDING, _REMOVED, "that their account may do it"),
    SECRET_RULE,
    _rule(CERTIFICATE, "get create patch", "what cert-manager is asked for (`tls.issuerRef`)"),
    _rule(EVENT, "create", "what the operator tells about a resource"),
)
"""In each namespace that is served."""

LEASE_RULES: tuple[Rule, ...] = (_rule(LEASE, "get create update", "one replica acts at a time"),)
"""In the operator's own namespace."""

KUBELET_RULE = Rule(
    "", "nodes/stats", ("get",), "the kubelet's count of a volume whose broker is down"
)
"""The kubelets themselves ask for it; it can be done without: `OperatorSettings.kubelet_stats`."""

CLUSTER_RULES: tuple[Rule, ...] = (
    _rule(STORAGE_CLASS, _WATCHED, "whether a volume can grow"),
    KUBELET_RULE,
)
"""In the whole cluster, and only where every namespace is served."""
