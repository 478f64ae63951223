"""What has to be done for a NameServer: its objects, and one pod at a time when they change."""

from typing import Any, Final

from mailboat_operator.crds.name_server import NameServer
from mailboat_operator.crds.status import NameServerStatus, status_manifest
from mailboat_operator.planner.actions import Plan, Step
from mailboat_operator.planner.children import ChildPlan, plan_child
from mailboat_operator.planner.conditions import (
    ALL_NAME_SERVERS_SERVING,
    NAME_TAKEN,
    PODS_NOT_READY,
    READY,
    Finding,
    build_conditions,
)
from mailboat_operator.planner.pods import is_ready
from mailboat_operator.planner.progress import (
    describe_pod,
    progress_finding,
    roll_notices,
    rollout_step,
    selector_text,
)
from mailboat_operator.planner.rollout import Member, Roll, plan_roll
from mailboat_operator.planner.snapshot import Manifest, NameServerSnapshot
from mailboat_operator.resources import name_server as build
from mailboat_operator.resources.labels import name_server_labels
from mailboat_operator.resources.names import name_server_addresses, pod_name

SETTLE_S: Final = 35.0
"""How long a name server must have been ready before the next one goes: brokers register every
30 s, and until then a new name server knows no topic."""


def plan_name_server(snapshot: NameServerSnapshot) -> Plan:
    """Decide what has to be done for a NameServer, and what its status is."""
    resource = snapshot.resource
    if resource.metadata.deletion_timestamp is not None:
        return Plan((), resource.status)
    children = _children(snapshot)
    members = _members(snapshot, children["stateful set"])
    roll = plan_roll(members, now_s=snapshot.now_s, settle_s=SETTLE_S)
    problems = tuple(child.problem for child in children.values() if child.problem)
    findings = [_ready(members, problems), progress_finding(members, roll, resource.status)]
    steps = [Step(name, child.actions) for name, child in children.items() if child.actions]
    steps += rollout_step(roll, resource.status)
    steps += roll_notices(findings[1], resource.status)
    status = _status(snapshot, members, findings)
    return Plan(tuple(steps), status, again_after_s=_again(roll, problems), failures=problems)


def _children(snapshot: NameServerSnapshot) -> dict[str, ChildPlan]:
    """Compare each object with what is there, in the order in which they are needed."""
    resource, live = snapshot.resource, snapshot.children
    wanted: dict[str, tuple[Manifest, Any]] = {
        "service account": (build.name_server_service_account(resource), live.service_accounts),
        "config": (build.name_server_config_map(resource), live.config_maps),
        "nodes service": (build.name_server_nodes_service(resource), live.services),
        "service": (build.name_server_service(resource), live.services),
        "budget": (build.name_server_disruption_budget(resource), live.disruption_budgets),
        "stateful set": (
            build.name_server_stateful_set(resource, snapshot.default_image),
            live.stateful_sets,
        ),
    }
    return {
        step: plan_child(manifest, found.get(manifest["metadata"]["name"]), resource.metadata.uid)
        for step, (manifest, found) in wanted.items()
    }


def _members(snapshot: NameServerSnapshot, plan: ChildPlan) -> list[Member]:
    resource, live = snapshot.resource, snapshot.children
    stateful_set = live.stateful_sets.get(resource.name)
    names = [pod_name(resource.name, ordinal) for ordinal in range(resource.spec.replicas)]
    return [Member(name, live.pods.get(name), stateful_set, plan.is_settled) for name in names]


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


def _again(roll: Roll, problems: tuple[str, ...]) -> float | None:
    return 30.0 if problems else roll.again_after_s


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
        )
    )
