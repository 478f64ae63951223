"""The objects of groups with replicas, beside their pods: made once, and then the replicas' own."""

from collections.abc import Mapping, Sequence
from typing import Final

from mailboat.replication.lease_manifest import EPOCH
from mailboat_operator.planner.actions import Apply, CreateSecret, Step
from mailboat_operator.planner.children import (
    ChildPlan,
    controller_of,
    foreign,
    patch_of,
    plan_child,
    plan_unwanted,
    removal,
)
from mailboat_operator.planner.groups import Group
from mailboat_operator.planner.lost_leases import newest_epoch
from mailboat_operator.planner.pods import is_being_made, seconds
from mailboat_operator.planner.replica_groups import ReplicaGroup, is_of_replicas, is_replica
from mailboat_operator.planner.snapshot import BrokerSnapshot, Manifest
from mailboat_operator.resources.disruption_budget import disruption_budget
from mailboat_operator.resources.labels import group_labels
from mailboat_operator.resources.names import (
    FAST,
    REMOTING,
    group_index,
    group_of,
    leader_slice_name,
    pod_name,
)
from mailboat_operator.resources.replication import (
    LINK_KEY,
    SERVICE_NAME_LABEL,
    SLICE_MANAGER,
    SLICE_MANAGER_LABEL,
    leader_slice,
    replicas_role,
    replicas_role_binding,
    replication_secret,
)
from mailboat_operator.resources.services import BROKER_PORTS

# More than whom a person lets lead is ahead.
_EPOCHS_AHEAD: Final = 2000
_EPOCH_DIGITS: Final = 18
_MOUNT_S: Final = 30.0
"""So long a node may take to give a pod what it mounts."""


def replica_rights(
    snapshot: BrokerSnapshot, groups: Mapping[str, ReplicaGroup]
) -> dict[str, ChildPlan]:
    """Compare what the pods may do with what they should."""
    broker, live = snapshot.resource, snapshot.children
    uid = broker.metadata.uid
    names = {*groups, *going_groups(snapshot)}
    role, binding = replicas_role(broker, names), replicas_role_binding(broker)
    return {
        "role": plan_child(role, live.roles.get(broker.name), uid),
        "role binding": plan_child(binding, live.role_bindings.get(broker.name), uid),
    }


def going_groups(snapshot: BrokerSnapshot) -> set[str]:
    """Return the groups of replicas that the spec has no more: they go on until they are gone."""
    broker, live = snapshot.resource, snapshot.children
    made = [name for name, found in live.stateful_sets.items() if is_of_replicas(found)]
    made += [group_of(name) for name, pod in live.pods.items() if is_replica(pod)]
    indexes = {name: group_index(broker.name, name) for name in made}
    return {
        name for name, index in indexes.items() if index is not None and index >= broker.spec.groups
    }


def unwanted_plans(
    snapshot: BrokerSnapshot, groups: Sequence[Group], replicas: Mapping[str, ReplicaGroup]
) -> list[tuple[str, ChildPlan]]:
    """Return what takes away what was made for replicas that were given up before they began."""
    live, uid = snapshot.children, snapshot.resource.metadata.uid
    reason = "there are no replicas"
    found = []
    for group in groups:
        service = live.services.get(group.name)
        selects = bool(service is not None and (service.get("spec") or {}).get("selector"))
        if group.name not in replicas and selects:
            made = live.endpoint_slices.get(leader_slice_name(group.name))
            found.append(("leader", plan_unwanted(made, uid, reason)))
        if not replicas:
            budget = live.disruption_budgets.get(group.name)
            found.append(("budget", plan_unwanted(budget, uid, reason)))
    if not replicas and not going_groups(snapshot):
        name = snapshot.resource.name
        found.append(("role binding", plan_unwanted(live.role_bindings.get(name), uid, reason)))
        found.append(("role", plan_unwanted(live.roles.get(name), uid, reason)))
    return found


def secret_steps(snapshot: BrokerSnapshot, groups: Mapping[str, ReplicaGroup]) -> list[Step]:
    """Return what makes the replicas' secret, where it may be missing: nobody reads it here.

    It is made with the first pods that need it, which wait for it, and again where a pod lacks
    something that it mounts.
    """
    live = snapshot.children
    is_first = any(
        group.is_begun and not is_of_replicas(live.stateful_sets.get(group.name))
        for group in groups.values()
    )
    pods = [live.pods.get(pod) for group in groups.values() for pod in group.pods]
    if is_first or any(_lacks_volume(pod, snapshot.now_s) for pod in pods if pod is not None):
        secret = replication_secret(snapshot.resource)
        return [Step("secret", (CreateSecret(secret, LINK_KEY),))]
    return []


def budget_plan(snapshot: BrokerSnapshot, group: Group) -> ChildPlan:
    """Compare the group's own disruption budget with what is there of it."""
    broker = snapshot.resource
    wanted = disruption_budget(broker, group.name, group_labels(broker.name, group.index))
    live = snapshot.children.disruption_budgets.get(group.name)
    return plan_child(wanted, live, broker.metadata.uid)


def slice_plan(snapshot: BrokerSnapshot, group: Group, replicas: ReplicaGroup) -> ChildPlan:
    """Return what makes the EndpointSlice of the group's Service, until its leader has written it.

    It comes before the Service lets go of its pod: what connects finds the one that serves.
    """
    broker = snapshot.resource
    live = snapshot.children.endpoint_slices.get(leader_slice_name(group.name))
    if group.address is None:
        return ChildPlan(is_ending=True)
    wanted = leader_slice(
        broker,
        group.index,
        BROKER_PORTS,
        address=group.address,
        pod_ip=_serving_ip(snapshot, replicas),
        epoch=replicas.lease.epoch if replicas.lease is not None else 0,
    )
    if live is None:
        return ChildPlan((Apply(wanted),))
    problem = foreign(live, broker.metadata.uid)
    if problem is not None or live["metadata"].get("deletionTimestamp"):
        return ChildPlan(problem=problem, is_ending=problem is None)
    if _is_ahead(live, replicas):
        return ChildPlan((removal(live, "no leader has written its epoch"),))
    changes = _marks_to_mend(live, wanted)
    is_written = (live["metadata"].get("annotations") or {}).get(EPOCH) != "0"
    if not is_written and _addresses(live) != _addresses(wanted):
        changes["endpoints"] = wanted["endpoints"]
    if not changes:
        return ChildPlan()
    return ChildPlan((patch_of(live, changes, "it is not as it was made"),))


def _is_ahead(live: Manifest, replicas: ReplicaGroup) -> bool:
    """Tell whether it claims an epoch after the Lease's: then no leader would write it any more."""
    text = (live["metadata"].get("annotations") or {}).get(EPOCH) or ""
    lease = replicas.lease
    if not text.isascii() or not text.isdigit() or (lease is not None and lease.problem):
        return False
    if lease is not None:
        # The leader of an epoch that has just begun may be quicker than the watch of its Lease.
        newest = lease.epoch + _EPOCHS_AHEAD
    elif len(replicas.reports) == replicas.count:
        newest = newest_epoch(replicas.reports)
    else:
        return False
    return len(text) > _EPOCH_DIGITS or int(text) > newest


def _marks_to_mend(live: Manifest, wanted: Manifest) -> Manifest:
    """Return what of labels, owner and ports somebody has changed: nobody else writes these."""
    changes: Manifest = {}
    metadata: Manifest = {}
    labels = live["metadata"].get("labels") or {}
    if not wanted["metadata"]["labels"].items() <= labels.items():
        metadata["labels"] = wanted["metadata"]["labels"]
    if controller_of(live) is None:
        metadata["ownerReferences"] = wanted["metadata"]["ownerReferences"]
    if metadata:
        changes["metadata"] = metadata
    if _ports(live) != _ports(wanted):
        # The numbers of those for clients are the leader's to say, who does so within seconds.
        changes["ports"] = wanted["ports"]
    return changes


def _ports(endpoint_slice: Manifest) -> list[tuple[str, object, object]]:
    """Return each port, without the number that whoever leads has given it."""
    found = []
    for port in endpoint_slice.get("ports") or ():
        name = str(port.get("name"))
        number = None if name in (REMOTING, FAST) else port.get("port")
        found.append((name, number, port.get("protocol")))
    return sorted(found, key=str)


def stray_endpoints(snapshot: BrokerSnapshot, group: str) -> list[Step]:
    """Return what takes away where a group's Service led to while it selected its pods.

    Kubernetes leaves that behind, and makes slices of the Endpoints again and again.
    """
    live = snapshot.children
    service = live.services.get(group)
    if service is None or (service.get("spec") or {}).get("selector"):
        return []
    found = [live.endpoints[group]] if group in live.endpoints else []
    found += [
        item
        for _, item in sorted(live.endpoint_slices.items())
        if _label(item, SERVICE_NAME_LABEL) == group
        and _label(item, SLICE_MANAGER_LABEL) != SLICE_MANAGER
    ]
    reason = f"Service {group} leads to its group's leader"
    return [
        Step("endpoints", (removal(item, reason),), group)
        for item in found
        if not item["metadata"].get("deletionTimestamp")
    ]


def _lacks_volume(pod: Manifest, now_s: float) -> bool:
    made_s = seconds(pod["metadata"].get("creationTimestamp"))
    is_late = made_s is not None and now_s - made_s >= _MOUNT_S
    return is_late and is_replica(pod) and is_being_made(pod)


def _serving_ip(snapshot: BrokerSnapshot, group: ReplicaGroup) -> str | None:
    """Return the address of the pod that serves: the leader, or the one before there was any."""
    pods, lease = snapshot.children.pods, group.lease
    first = pods.get(pod_name(group.name))
    if lease is None or lease.holder is None:
        return None if is_replica(first) else _ip(first)
    leader = pods.get(lease.holder)
    is_same = leader is not None and leader["metadata"].get("uid") == lease.holder_uid
    return _ip(leader) if is_same else None


def _ip(pod: Manifest | None) -> str | None:
    return ((pod or {}).get("status") or {}).get("podIP")


def _addresses(endpoint_slice: Manifest) -> list[str]:
    endpoints = endpoint_slice.get("endpoints") or ()
    return [address for endpoint in endpoints for address in endpoint.get("addresses") or ()]


def _label(item: Manifest, key: str) -> str | None:
    return (item["metadata"].get("labels") or {}).get(key)
