"""The groups of a Broker: what each should consist of, and what of it is there."""

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mailboat_operator.crds.broker import Broker
from mailboat_operator.crds.quantity import parse_quantity
from mailboat_operator.planner.actions import Action
from mailboat_operator.planner.children import ChildPlan, foreign, patch_of, plan_child, removal
from mailboat_operator.planner.claim_owners import is_owned
from mailboat_operator.planner.leases import read_lease
from mailboat_operator.planner.replica_groups import ReplicaGroup
from mailboat_operator.planner.scale_down import wait_of
from mailboat_operator.planner.snapshot import BrokerSnapshot, Manifest
from mailboat_operator.resources.broker_keys import (
    ImageKeys,
    config_file,
    file_head,
    keys_of_image,
    listed_keys,
    settings_that_fit,
)
from mailboat_operator.resources.config_map import (
    BROKER_CONF,
    REPLICA_CONF,
    REPLICATION_KEYS,
    UserConfig,
    address_in,
    broker_config_map,
    broker_settings,
)
from mailboat_operator.resources.names import (
    claim_name,
    group_index,
    group_name,
    group_of,
    group_of_leader_slice,
    leader_slice_name,
    ordinal_of,
    pod_name,
    pod_of_claim,
)
from mailboat_operator.resources.security import Security
from mailboat_operator.resources.services import group_service
from mailboat_operator.resources.stateful_set import broker_stateful_set


@dataclass(frozen=True, slots=True)
class GroupPod:
    """One pod of a group: its broker, or one replica of it."""

    ordinal: int
    name: str
    pod: Manifest | None


@dataclass(frozen=True, slots=True)
class Group:
    """One group that there should be."""

    index: int
    name: str
    pods: tuple[GroupPod, ...]
    """Those that there should be, by ordinal; one where the group has no replicas."""

    leader: GroupPod
    """The one that serves clients; the first one while that is not known."""

    stateful_set: Manifest | None
    address: str | None
    """What its broker announces; None until its Service has an address."""

    settings: Mapping[str, str]
    """What its broker should work with; empty without an address."""

    file_settings: Mapping[str, str]
    """What of that the file of its brokers says: the keys that its brokers are known to take."""

    service_plan: ChildPlan
    config_plan: ChildPlan
    set_plan: ChildPlan
    has_config: bool
    """Whether its ConfigMap is there, so that a pod could start."""


def plan_groups(
    snapshot: BrokerSnapshot,
    name_servers: tuple[str, ...] | None,
    volume_bytes: Mapping[str, int],
    image_keys: ImageKeys,
    user: UserConfig,
    replicas: Mapping[str, ReplicaGroup],
    security: Security,
) -> tuple[Group, ...]:
    """Compare every group with what is there of it.

    Args:
        snapshot: The Broker.
        name_servers: Where its brokers register; None while that is not known.
        volume_bytes: By group's name, the size that a new volume gets.
        image_keys: What is known of the keys that its brokers take.
        user: Its `spec.config`.
        replicas: By name, the groups that have replicas, or are to have some.
        security: What the Broker's security adds.
    """
    return tuple(
        _plan_group(
            snapshot,
            index,
            name_servers,
            volume_bytes,
            image_keys,
            user,
            replicas.get(group_name(snapshot.resource.name, index)),
            security,
        )
        for index in range(snapshot.resource.spec.groups)
    )


def image_keys_of(snapshot: BrokerSnapshot) -> ImageKeys:
    """Return what is known of the keys that brokers of the wanted image take."""
    spec, live = snapshot.resource.spec, snapshot.children
    listed = []
    for name, pod in live.pods.items():
        keys = _running_keys(snapshot, name)
        if keys is not None:
            listed.append((_image_of(pod), keys))
    files = [
        config_file(config_map, REPLICA_CONF) or config_file(config_map, BROKER_CONF)
        for config_map in live.config_maps.values()
        if not foreign(config_map, snapshot.resource.metadata.uid)
    ]
    image = spec.image or snapshot.default_image
    return keys_of_image(image, image == snapshot.default_image, listed, files)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What takes away the groups that the spec has no more."""

    actions: tuple[tuple[Action, ...], ...] = ()
    """One step for each group."""

    going: str = ""
    """Which group is on its way out; empty if none is."""

    waits: str = ""
    """Why a group does not go yet; empty if none waits."""


def plan_leftovers(snapshot: BrokerSnapshot) -> Leftovers:
    """Return what takes away each group that the spec has no more: one at a time, the last first.

    A group waits until what it holds is read (`scale_down`). Then the StatefulSet goes first and
    leaves all behind; then its pod, then the rest. On `whenScaled: Delete` the StatefulSet takes
    pod and claim away before it goes itself; that waits until the claim no longer belongs to the
    Broker (`claim_owners.py`). It can do that to the claim of a running pod only: one whose pod is
    missing stays, and so does one that was kept in an earlier life of the Broker.
    """
    broker, live = snapshot.resource, snapshot.children
    names = {*live.stateful_sets, *live.services, *live.config_maps, *live.leases}
    names |= {*live.disruption_budgets, *map(group_of_leader_slice, live.endpoint_slices)}
    names |= {group_of(name) for name in live.pods}
    found: list[tuple[Action, ...]] = []
    for name in sorted(names, key=lambda name: group_index(broker.name, name) or 0, reverse=True):
        if not _is_leftover(broker, name):
            continue
        stateful_set = live.stateful_sets.get(name)
        if stateful_set is not None and foreign(stateful_set, broker.metadata.uid) is not None:
            continue
        pods = pods_of(snapshot, name)
        if not _is_going(stateful_set, pods):
            wait = wait_of(snapshot, name)
            if wait is not None:
                steps = (*found, wait.actions) if wait.actions else tuple(found)
                return Leftovers(steps, waits=wait.why)
        if actions := _remove_group(snapshot, name):
            found.append(actions)
        if stateful_set is not None or pods:
            return Leftovers(tuple(found), going=f"{name} is being removed")
    return Leftovers(
        tuple(found), going="what is left of a group is being removed" if found else ""
    )


def kept_claims(snapshot: BrokerSnapshot) -> list[Manifest]:
    """Return the claims of groups, and of replicas, that are no more."""
    live = snapshot.children
    found = []
    for name, claim in sorted(live.claims.items()):
        pod = pod_of_claim(snapshot.resource.name, name)
        if pod is None or claim["metadata"].get("deletionTimestamp"):
            continue
        stateful_set, ordinal = live.stateful_sets.get(group_of(pod)), ordinal_of(pod) or 0
        if stateful_set is None:
            is_kept = _is_leftover(snapshot.resource, group_of(pod))
        else:
            replicas = max(1, int(stateful_set["spec"].get("replicas", 1)))
            is_kept = ordinal >= replicas and pod not in live.pods
        if is_kept:
            found.append(claim)
    return found


def pods_of(snapshot: BrokerSnapshot, group: str) -> dict[str, Manifest]:
    """Return the pods of a group that there are, by name."""
    return {
        name: pod for name, pod in sorted(snapshot.children.pods.items()) if group_of(name) == group
    }


def _plan_group(
    snapshot: BrokerSnapshot,
    index: int,
    name_servers: tuple[str, ...] | None,
    volume_bytes: Mapping[str, int],
    image_keys: ImageKeys,
    user: UserConfig,
    replicas: ReplicaGroup | None,
    security: Security,
) -> Group:
    broker, live = snapshot.resource, snapshot.children
    name, uid = group_name(broker.name, index), broker.metadata.uid
    count = replicas.count if replicas is not None and replicas.is_begun else None
    pods = _pods(snapshot, name, count or 1)
    service, stateful_set = live.services.get(name), live.stateful_sets.get(name)
    config_map = live.config_maps.get(name)
    # What is somebody else's says nothing about ours.
    current = _address_of(service) if service and not foreign(service, uid) else None
    is_told = config_map is not None and not foreign(config_map, uid)
    address = current or _valid(address_in(config_map) if config_map and is_told else None)
    # Its EndpointSlice comes before, and the pods that are replicas behind.
    has_slice = replicas is not None and leader_slice_name(name) in live.endpoint_slices
    is_leaders = has_slice or count is not None
    service_plan = plan_child(
        group_service(broker, index, address, has_replicas=is_leaders),
        service,
        uid,
        fallback=group_service(broker, index, None, has_replicas=is_leaders)
        if current is None and address
        else None,
    )
    settings: dict[str, str] = {}
    file_settings: Mapping[str, str] = {}
    config_plan = set_plan = ChildPlan(is_ending=True)
    if address is not None:
        settings = broker_settings(
            broker, index, address=address, name_servers=name_servers, user=user, replicas=count
        )
        settings |= security.settings
        asked = {*user.accepted, *security.settings}
        asked |= REPLICATION_KEYS if count is not None else set()
        running = _keys_of_all(snapshot, pods)
        file_settings = settings_that_fit(settings, asked, image_keys, running)
        head = file_head(image_keys, {*settings, *user.lacking})
        wanted = broker_config_map(broker, index, file_settings, head)
        config_plan = plan_child(wanted, config_map, uid)
        wanted = broker_stateful_set(
            broker,
            index,
            settings=file_settings,
            volume_bytes=_template_bytes(stateful_set, pods) or volume_bytes[name],
            default_image=snapshot.default_image,
            replicas=count,
            security=security,
        )
        set_plan = plan_child(wanted, stateful_set, uid)
    return Group(
        index=index,
        name=name,
        pods=pods,
        leader=_leader(pods, replicas),
        stateful_set=stateful_set,
        address=address,
        settings=settings,
        file_settings=file_settings,
        service_plan=service_plan,
        config_plan=config_plan,
        set_plan=set_plan,
        has_config=config_map is not None,
    )


def _pods(snapshot: BrokerSnapshot, name: str, count: int) -> tuple[GroupPod, ...]:
    names = [pod_name(name, ordinal) for ordinal in range(count)]
    live = snapshot.children.pods
    return tuple(GroupPod(ordinal, pod, live.get(pod)) for ordinal, pod in enumerate(names))


def _leader(pods: tuple[GroupPod, ...], replicas: ReplicaGroup | None) -> GroupPod:
    name = replicas.leader() if replicas is not None else None
    return next((item for item in pods if item.name == name), pods[0])


def _keys_of_all(snapshot: BrokerSnapshot, pods: tuple[GroupPod, ...]) -> frozenset[str] | None:
    """Return the keys that all brokers list of which that is known; None if it is of none."""
    listed = [_running_keys(snapshot, item.name) for item in pods]
    known = [keys for keys in listed if keys is not None]
    return frozenset.intersection(*known) if known else None


def _running_keys(snapshot: BrokerSnapshot, pod_name: str) -> frozenset[str] | None:
    """Return the keys that a pod's broker listed last, however long ago: its image stays."""
    pod, observation = snapshot.children.pods.get(pod_name), snapshot.observations.get(pod_name)
    if pod is None or observation is None or observation.pod_uid != pod["metadata"]["uid"]:
        return None
    return listed_keys(observation.config)


def _image_of(pod: Manifest) -> str:
    return str((pod["spec"].get("containers") or [{}])[0].get("image", ""))


def _template_bytes(stateful_set: Manifest | None, pods: tuple[GroupPod, ...]) -> int | None:
    """Return the size that a StatefulSet has to keep; None if another one may be given.

    While a pod is missing, Kubernetes is about to make it; making the StatefulSet anew, which
    another size means, has time.
    """
    if stateful_set is None or all(_is_there(item.pod) for item in pods):
        return None
    templates = stateful_set["spec"].get("volumeClaimTemplates") or []
    if len(templates) != 1:
        return None
    try:
        return parse_quantity(templates[0]["spec"]["resources"]["requests"]["storage"])
    except (KeyError, TypeError, ValueError):
        return None


def _address_of(service: Manifest | None) -> str | None:
    return _valid((service or {}).get("spec", {}).get("clusterIP"))


def _valid(address: object) -> str | None:
    """Return an address if it is one; a headless Service has `None` there."""
    try:
        return str(ipaddress.ip_address(str(address)))
    except ValueError:
        return None


def _is_leftover(broker: Broker, name: str) -> bool:
    index = group_index(broker.name, name)
    return index is not None and index >= broker.spec.groups


def _remove_group(snapshot: BrokerSnapshot, name: str) -> tuple[Action, ...]:
    broker, live = snapshot.resource, snapshot.children
    stateful_set, pods = live.stateful_sets.get(name), pods_of(snapshot, name)
    reason = f"spec.groups is {broker.spec.groups}"
    if stateful_set is not None:
        if foreign(stateful_set, broker.metadata.uid) is not None:
            return ()
        if not _is_there(stateful_set):
            return ()
        if broker.spec.pvc_retention.when_scaled == "Delete" and pods:
            claims = [live.claims.get(claim_name(pod)) for pod in pods]
            if any(claim is not None and is_owned(snapshot, claim) for claim in claims):
                return ()
            return _scale_away(stateful_set, reason)
        return (removal(stateful_set, reason, orphan=True),)
    if pods:
        return tuple(removal(pod, reason) for pod in pods.values() if _is_there(pod))
    return tuple(
        removal(child, reason)
        for child in _rest_of_group(snapshot, name)
        if _is_there(child) and not foreign(child, broker.metadata.uid)
    )


def _rest_of_group(snapshot: BrokerSnapshot, name: str) -> Iterator[Manifest]:
    """Yield what there is of a group beside its pods.

    Its Lease is kept with its volumes: it says whose log has everything. Without them it would name
    stores that are no more.
    """
    live = snapshot.children
    keeps_volumes = _keeps_members(snapshot, name)
    for found in (
        live.services.get(name),
        live.config_maps.get(name),
        live.disruption_budgets.get(name),
        live.endpoint_slices.get(leader_slice_name(name)),
        None if keeps_volumes else live.leases.get(name),
    ):
        if found is not None:
            yield found


def _keeps_members(snapshot: BrokerSnapshot, name: str) -> bool:
    """Tell whether a volume stays of those that the group's Lease names."""
    lease = read_lease(snapshot.children.leases.get(name))
    if lease is None or lease.problem is not None:
        return lease is not None
    claims = [claim_name(pod) for pod in lease.in_sync_pods()]
    return any(_is_there(snapshot.children.claims.get(claim)) for claim in claims)


def _is_going(stateful_set: Manifest | None, pods: Mapping[str, Manifest]) -> bool:
    """Whether a group's end has begun: what its pod held is on its way out.

    Pods whose StatefulSet is missing are looked at once more: that may be for another reason.
    """
    if stateful_set is None:
        return not any(_is_there(pod) for pod in pods.values())
    return not _is_there(stateful_set) or stateful_set["spec"].get("replicas") == 0


def _scale_away(stateful_set: Manifest, reason: str) -> tuple[Action, ...]:
    """Let a StatefulSet take away its pod and then the pod's claim; nothing once it is at that.

    Kubernetes deletes the claim; the operator itself has no right to.
    """
    spec = stateful_set["spec"]
    policy = spec.get("persistentVolumeClaimRetentionPolicy") or {}
    if spec.get("replicas") == 0 and policy.get("whenScaled") == "Delete":
        return ()
    changes = {
        "spec": {"replicas": 0, "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"}}
    }
    reason = f"{reason}, and pvcRetention.whenScaled is Delete"
    return (patch_of(stateful_set, changes, reason),)


def _is_there(child: Manifest | None) -> bool:
    return child is not None and not child["metadata"].get("deletionTimestamp")
