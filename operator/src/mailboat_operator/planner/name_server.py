"""What has to be done for a NameServer: its objects, and one pod at a time when they change."""

from dataclasses import replace
from typing import Any, Final

from mailboat_operator.crds.listeners import ListenerSpec
from mailboat_operator.crds.name_server import NameServer
from mailboat_operator.crds.status import ListenerStatusEntry, NameServerStatus, status_manifest
from mailboat_operator.planner.actions import Plan, Step
from mailboat_operator.planner.certificates import certificate_plan, without_cert_manager
from mailboat_operator.planner.children import (
    ChildPlan,
    foreign,
    plan_child,
    plan_unwanted,
    removal,
)
from mailboat_operator.planner.conditions import (
    ALL_NAME_SERVERS_SERVING,
    NAME_TAKEN,
    PODS_NOT_READY,
    READY,
    Finding,
    build_conditions,
)
from mailboat_operator.planner.listeners import reachable, unwanted_services
from mailboat_operator.planner.pods import changed_s, is_ending, is_ready
from mailboat_operator.planner.progress import (
    describe_pod,
    progress_finding,
    roll_notices,
    rollout_step,
    selector_text,
    waits_since_s,
)
from mailboat_operator.planner.rollout import Member, Roll, plan_roll
from mailboat_operator.planner.snapshot import Manifest, NameServerSnapshot
from mailboat_operator.resources import name_server as build
from mailboat_operator.resources.certificate import name_server_certificate
from mailboat_operator.resources.labels import name_server_labels
from mailboat_operator.resources.listeners import (
    NODE_IP,
    in_brackets,
    service_host,
    service_port,
    with_values,
)
from mailboat_operator.resources.names import (
    VOLUME,
    listener_service_name,
    name_server_addresses,
    name_server_network_policy_name,
    name_server_nodes_name,
    pod_name,
)

SETTLE_S: Final = 35.0
"""How long a name server must have been ready before the next one goes: brokers register every
30 s, and until then a new name server knows no topic."""


def plan_name_server(snapshot: NameServerSnapshot) -> Plan:
    """Decide what has to be done for a NameServer, and what its status is."""
    resource = snapshot.resource
    if resource.metadata.deletion_timestamp is not None:
        return Plan((), resource.status)
    has_volume = _has_volume(snapshot)
    children = _children(snapshot, has_volume)
    members = _members(snapshot, children["stateful set"])
    roll = plan_roll(
        members,
        now_s=snapshot.now_s,
        settle_s=SETTLE_S,
        waits_since_s=waits_since_s(resource.status),
    )
    roll = _unstuck(snapshot, roll) if has_volume else roll
    problems = tuple(child.problem for child in children.values() if child.problem)
    findings = [_ready(members, problems), progress_finding(members, roll, resource.status)]
    findings += [*_reachable(snapshot), *without_cert_manager(snapshot.certificate)]
    steps = [Step(name, child.actions) for name, child in children.items() if child.actions]
    steps += rollout_step(roll, resource.status)
    steps += roll_notices(findings[1], resource.status)
    status = _status(snapshot, members, findings)
    waits = bool(problems or without_cert_manager(snapshot.certificate))
    again_s = 30.0 if waits else roll.again_after_s
    return Plan(tuple(steps), status, again_after_s=again_s, failures=problems)


def _has_volume(snapshot: NameServerSnapshot) -> bool:
    """Return whether the pods have volumes: what the spec says, else as they were made.

    So an operator that is upgraded asks nobody's cluster for volumes that it may not have.
    """
    resource, live = snapshot.resource, snapshot.children
    if resource.spec.storage is not None:
        return resource.spec.storage.enabled
    stateful_set = live.stateful_sets.get(resource.name)
    if stateful_set is not None and foreign(stateful_set, resource.metadata.uid) is None:
        return bool(stateful_set["spec"].get("volumeClaimTemplates"))
    return all(_mounts_volume(pod) for pod in live.pods.values())


def _mounts_volume(pod: Manifest) -> bool:
    volumes = pod["spec"].get("volumes") or ()
    return any(volume.get("name") == VOLUME for volume in volumes)


def _unstuck(snapshot: NameServerSnapshot, roll: Roll) -> Roll:
    """Replace a pod of before the volumes that keeps Kubernetes from making one that is missing.

    The StatefulSet controller tries to give an old pod the volume, which no pod can get, and goes
    no further than the lowest one of that kind; the roll waits for the one that is missing. Here,
    too, a pod goes only when none is on its way and those that have a volume serve.
    """
    if roll.deletions:
        return roll
    resource, live = snapshot.resource, snapshot.children
    stateful_set = live.stateful_sets.get(resource.name)
    if stateful_set is None or not stateful_set["spec"].get("volumeClaimTemplates"):
        return roll
    names = [pod_name(resource.name, ordinal) for ordinal in range(resource.spec.replicas)]
    missing = [name for name in names if name not in live.pods]
    pods = [live.pods[name] for name in names if name in live.pods]
    if not missing or not all(_lets_others_go(pod, snapshot.now_s) for pod in pods):
        return roll
    for name in names[: names.index(missing[-1])]:
        pod = live.pods.get(name)
        if pod is not None and not _mounts_volume(pod):
            reason = f"it has no volume, and {missing[-1]} cannot be made before it has"
            return replace(roll, deletions=(removal(pod, reason),))
    return roll


def _lets_others_go(pod: Manifest, now_s: float) -> bool:
    """Whether a pod is not on its way down, and not up to a volume or just there."""
    if is_ending(pod) or not _mounts_volume(pod):
        return not is_ending(pod)
    since_s = changed_s(pod)
    return is_ready(pod) and not (since_s is not None and 0.0 <= now_s - since_s < SETTLE_S)


def _children(snapshot: NameServerSnapshot, has_volume: bool) -> dict[str, ChildPlan]:
    """Compare each object with what is there, in the order in which they are needed."""
    resource, live = snapshot.resource, snapshot.children
    wanted: dict[str, tuple[Manifest, Any]] = {
        "service account": (build.name_server_service_account(resource), live.service_accounts),
        "config": (
            build.name_server_config_map(resource, has_volume=has_volume),
            live.config_maps,
        ),
        "nodes service": (build.name_server_nodes_service(resource), live.services),
        "service": (build.name_server_service(resource), live.services),
        "budget": (build.name_server_disruption_budget(resource), live.disruption_budgets),
        "stateful set": (
            build.name_server_stateful_set(resource, snapshot.default_image, has_volume=has_volume),
            live.stateful_sets,
        ),
    }
    tls, uid = resource.spec.tls, resource.metadata.uid
    asked = (
        None if tls is None or tls.issuer_ref is None else name_server_certificate(resource, tls)
    )
    plans = {
        "network policy": _network_policy_plan(snapshot),
        "certificate": certificate_plan(asked, snapshot.certificate, uid),
    }
    plans |= {
        step: plan_child(manifest, found.get(manifest["metadata"]["name"]), resource.metadata.uid)
        for step, (manifest, found) in wanted.items()
    }
    for listener in resource.spec.listeners:
        if listener.has_service:
            manifest = build.name_server_listener_service(resource, listener)
            found = live.services.get(manifest["metadata"]["name"])
            name = f"listener {listener.name}"
            plans[name] = plan_child(manifest, found, resource.metadata.uid)
    plans |= unwanted_services(
        live.services,
        {listener_service_name(resource.name, one.name) for one in _served(resource)},
        resource.metadata.uid,
    )
    stateful_set = live.stateful_sets.get(resource.name)
    claims = stateful_set is not None and stateful_set["spec"].get("volumeClaimTemplates")
    if stateful_set is not None and claims and not has_volume and plans["stateful set"].actions:
        # They can be taken away as little as given; it comes back around its pods without them.
        reason = "spec.storage.enabled is false"
        plans["stateful set"] = ChildPlan((removal(stateful_set, reason, orphan=True),))
    return plans


def _served(resource: NameServer) -> list[ListenerSpec]:
    return [listener for listener in resource.spec.listeners if listener.has_service]


def _entries(snapshot: NameServerSnapshot) -> tuple[ListenerStatusEntry, ...]:
    """Return where clients find each listener: at every node that a pod runs on, or one address."""
    resource, live = snapshot.resource, snapshot.children
    entries = []
    for listener in resource.spec.listeners:
        service = _service_of(snapshot, listener)
        port = listener.advertised.port or service_port(listener, service)
        nodes = f"{{pod}}.{name_server_nodes_name(resource.name)}"
        host = listener.advertised.host or service_host(listener, service, nodes)
        found: set[str] = set()
        for ordinal in range(resource.spec.replicas) if host and port else ():
            pod = pod_name(resource.name, ordinal)
            node_ip = ((live.pods.get(pod) or {}).get("status") or {}).get("hostIP")
            if NODE_IP in str(host) and not node_ip:
                continue
            values = {
                "pod": pod,
                "ordinal": str(ordinal),
                "group": "0",
                "nodeIP": in_brackets(str(node_ip)),
            }
            values["namespace"] = resource.namespace
            found.add(f"{with_values(str(host), values)}:{port}")
        entries.append(ListenerStatusEntry(name=listener.name, addresses=tuple(sorted(found))))
    return tuple(entries)


def _reachable(snapshot: NameServerSnapshot) -> tuple[Finding, ...]:
    resource = snapshot.resource
    missing = [
        listener_service_name(resource.name, listener.name)
        for listener in resource.spec.listeners
        if listener.is_external
        and not (
            (
                listener.advertised.host
                or service_host(listener, _service_of(snapshot, listener), "")
            )
            and (
                listener.advertised.port or service_port(listener, _service_of(snapshot, listener))
            )
        )
    ]
    return reachable(resource.spec.listeners, missing)


def _service_of(snapshot: NameServerSnapshot, listener: ListenerSpec) -> Manifest | None:
    """Return the live Service of a listener; None if there is none of ours."""
    resource, live = snapshot.resource, snapshot.children.services
    service = live.get(listener_service_name(resource.name, listener.name))
    is_ours = service is not None and not foreign(service, resource.metadata.uid)
    return service if is_ours else None


def _network_policy_plan(snapshot: NameServerSnapshot) -> ChildPlan:
    resource, peers = snapshot.resource, snapshot.http_peers
    name, uid = name_server_network_policy_name(resource.name), resource.metadata.uid
    live = snapshot.children.network_policies.get(name)
    if peers is None or not resource.spec.network_policy.enabled:
        return plan_unwanted(live, uid, "no NetworkPolicy is wanted")
    return plan_child(build.name_server_network_policy(resource, peers), live, uid)


def _members(snapshot: NameServerSnapshot, plan: ChildPlan) -> list[Member]:
    resource, live = snapshot.resource, snapshot.children
    stateful_set = live.stateful_sets.get(resource.name)
    names = [pod_name(resource.name, ordinal) for ordinal in range(resource.spec.replicas)]
    return [
        Member(
            name,
            live.pods.get(name),
            stateful_set,
            plan.is_settled,
            refusal=snapshot.refused_evictions.get(name),
        )
        for name in names
    ]


def _ready(members: list[Member], problems: tuple[str, ...]) -> Finding:
    if problems:
        return Finding(READY, False, NAME_TAKEN, "; ".join(problems))
    unready = [describe_pod(member) for member in members if _is_unready(member)]
    if unready:
        return Finding(READY, False, PODS_NOT_READY, "; ".join(unready))
    message = f"{len(members)} name servers serve"
    return Finding(READY, True, ALL_NAME_SERVERS_SERVING, message)


def _is_unready(member: Member) -> bool:
    return member.pod is None or not is_ready(member.pod)


def _status(
    snapshot: NameServerSnapshot, members: list[Member], findings: list[Finding]
) -> Manifest:
    resource: NameServer = snapshot.resource
    metadata = resource.metadata
    ready = sum(not _is_unready(member) for member in members)
    return status_manifest(
        NameServerStatus(
            observed_generation=metadata.generation,
            conditions=build_conditions(
                findings, resource.status, generation=metadata.generation, now_s=snapshot.now_s
            ),
            replicas=len(members),
            ready_replicas=ready,
            ready=f"{ready}/{len(members)}",
            selector=selector_text(name_server_labels(resource.name)),
            addresses=name_server_addresses(
                resource.name, resource.namespace, resource.spec.replicas
            ),
            listeners=_entries(snapshot),
        )
    )
