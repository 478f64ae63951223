"""The groups of a Broker: what each should consist of, and what of it is there."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from mailboat_operator.crds.broker import Broker
from mailboat_operator.crds.quantity import parse_quantity
from mailboat_operator.planner.actions import Action, Delete
from mailboat_operator.planner.children import ChildPlan, foreign, patch_of, plan_child
from mailboat_operator.planner.claim_owners import is_owned
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
    UserConfig,
    address_in,
    broker_config_map,
    broker_settings,
)
from mailboat_operator.resources.names import claim_name, group_index, group_name, pod_name
from mailboat_operator.resources.services import group_service
from mailboat_operator.resources.stateful_set import broker_stateful_set


@dataclass(frozen=True, slots=True)
class Group:
    """One group that there should be."""

    index: int
    name: str
    pod_name: str
    pod: Manifest | None
    stateful_set: Manifest | None
    address: str | None
    """What its broker announces; None until its Service has an address."""

    settings: Mapping[str, str]
    """What its broker should work with; empty without an address."""

    file_settings: Mapping[str, str]
    """What of that its broker.conf says: the keys that its brokers are known to take."""

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
) -> tuple[Group, ...]:
    """Compare every group with what is there of it.

    Args:
        snapshot: The Broker.
        name_servers: Where its brokers register; None while that is not known.
        volume_bytes: By group's name, the size that a new volume gets.
        image_keys: What is known of the keys that its brokers take.
        user: Its `spec.config`.
    """
    return tuple(
        _plan_group(snapshot, index, name_servers, volume_bytes, image_keys, user)
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
        config_file(config_map, BROKER_CONF)
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
    names = {*live.stateful_sets, *live.services, *live.config_maps}
    names |= {name.rpartition("-")[0] for name in live.pods}
    found: list[tuple[Action, ...]] = []
    for name in sorted(names, key=lambda name: group_index(broker.name, name) or 0, reverse=True):
        if not _is_leftover(broker, name):
            continue
        stateful_set = live.stateful_sets.get(name)
        if stateful_set is not None and foreign(stateful_set, broker.metadata.uid) is not None:
            continue
        if not _is_going(stateful_set, live.pods.get(pod_name(name))):
            wait = wait_of(snapshot, name)
            if wait is not None:
                steps = (*found, wait.actions) if wait.actions else tuple(found)
                return Leftovers(steps, waits=wait.why)
        if actions := _remove_group(snapshot, name):
            found.append(actions)
        if stateful_set is not None or pod_name(name) in live.pods:
            return Leftovers(tuple(found), going=f"{name} is being removed")
    return Leftovers(
        tuple(found), going="what is left of a group is being removed" if found else ""
    )


def kept_claims(snapshot: BrokerSnapshot) -> list[Manifest]:
    """Return the claims of groups that are no more."""
    live = snapshot.children
    found = []
    for name, claim in sorted(live.claims.items()):
        group = name.removeprefix("data-").rpartition("-")[0]
        if (
            name == claim_name(group)
            and _is_leftover(snapshot.resource, group)
            and group not in live.stateful_sets
            and not claim["metadata"].get("deletionTimestamp")
        ):
            found.append(claim)
    return found


def removal(live: Manifest, reason: str, *, orphan: bool = False) -> Delete:
    """Return the action that removes an object."""
    metadata = live["metadata"]
    is_pod = live["kind"] == "Pod"
    return Delete(
        kind=str(live["kind"]),
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version=None if is_pod else metadata["resourceVersion"],
        orphan=orphan,
        reason=reason,
    )


def _plan_group(
    snapshot: BrokerSnapshot,
    index: int,
    name_servers: tuple[str, ...] | None,
    volume_bytes: Mapping[str, int],
    image_keys: ImageKeys,
    user: UserConfig,
) -> Group:
    broker, live = snapshot.resource, snapshot.children
    name, uid = group_name(broker.name, index), broker.metadata.uid
    pod = live.pods.get(pod_name(name))
    service, stateful_set = live.services.get(name), live.stateful_sets.get(name)
    config_map = live.config_maps.get(name)
    # What is somebody else's says nothing about ours.
    current = _address_of(service) if service and not foreign(service, uid) else None
    is_told = config_map is not None and not foreign(config_map, uid)
    address = current or _valid(address_in(config_map) if config_map and is_told else None)
    service_plan = plan_child(
        group_service(broker, index, address),
        service,
        uid,
        fallback=group_service(broker, index, None) if current is None and address else None,
    )
    settings: Mapping[str, str] = {}
    file_settings: Mapping[str, str] = {}
    config_plan = set_plan = ChildPlan(is_ending=True)
    if address is not None:
        settings = broker_settings(
            broker, index, address=address, name_servers=name_servers, user=user
        )
        running = _running_keys(snapshot, pod_name(name))
        file_settings = settings_that_fit(settings, user.accepted, image_keys, running)
        head = file_head(image_keys, {*settings, *user.lacking})
        wanted = broker_config_map(broker, index, file_settings, head)
        config_plan = plan_child(wanted, config_map, uid)
        wanted = broker_stateful_set(
            broker,
            index,
            settings=file_settings,
            volume_bytes=_template_bytes(stateful_set, pod) or volume_bytes[name],
            default_image=snapshot.default_image,
        )
        set_plan = plan_child(wanted, stateful_set, uid)
    return Group(
        index=index,
        name=name,
        pod_name=pod_name(name),
        pod=pod,
        stateful_set=stateful_set,
        address=address,
        settings=settings,
        file_settings=file_settings,
        service_plan=service_plan,
        config_plan=config_plan,
        set_plan=set_plan,
        has_config=config_map is not None,
    )


def _running_keys(snapshot: BrokerSnapshot, pod_name: str) -> frozenset[str] | None:
    """Return the keys that a pod's broker listed last, however long ago: its image stays."""
    pod, observation = snapshot.children.pods.get(pod_name), snapshot.observations.get(pod_name)
    if pod is None or observation is None or observation.pod_uid != pod["metadata"]["uid"]:
        return None
    return listed_keys(observation.config)


def _image_of(pod: Manifest) -> str:
    return str((pod["spec"].get("containers") or [{}])[0].get("image", ""))


def _template_bytes(stateful_set: Manifest | None, pod: Manifest | None) -> int | None:
    """Return the size that a StatefulSet has to keep; None if another one may be given.

    While its pod is missing, Kubernetes is about to make it; making the StatefulSet anew, which
    another size means, has time.
    """
    if stateful_set is None or _is_there(pod):
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
    stateful_set, pod = live.stateful_sets.get(name), live.pods.get(pod_name(name))
    reason = f"spec.groups is {broker.spec.groups}"
    if stateful_set is not None:
        if foreign(stateful_set, broker.metadata.uid) is not None:
            return ()
        if not _is_there(stateful_set):
            return ()
        if broker.spec.pvc_retention.when_scaled == "Delete" and pod is not None:
            claim = live.claims.get(claim_name(name))
            if claim is not None and is_owned(snapshot, claim):
                return ()
            return _scale_away(stateful_set, reason)
        return (removal(stateful_set, reason, orphan=True),)
    if pod is not None:
        return (removal(pod, reason),) if _is_there(pod) else ()
    actions: list[Action] = []
    for child in (live.services.get(name), live.config_maps.get(name)):
        if child is not None and _is_there(child) and not foreign(child, broker.metadata.uid):
            actions.append(removal(child, reason))
    return tuple(actions)


def _is_going(stateful_set: Manifest | None, pod: Manifest | None) -> bool:
    """Whether a group's end has begun: what its pod held is on its way out.

    A pod whose StatefulSet is missing is looked at once more: that may be for another reason.
    """
    if stateful_set is None:
        return not _is_there(pod)
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
