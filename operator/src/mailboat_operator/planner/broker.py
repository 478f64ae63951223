"""What has to be done for a Broker: every object, every volume, every setting, every pod.

Each part is a step of its own, so one that fails (a volume that cannot grow, a name that is taken)
holds up no other. Nothing is remembered between two plans: what was decided before shows in the
objects. A Broker that is being deleted plans nothing; Kubernetes removes what belongs to it.
"""

from typing import Final

from mailboat_operator.crds.status import BrokerStatusEntry
from mailboat_operator.planner.actions import Plan, ResizeClaim, Step
from mailboat_operator.planner.broker_config import ConfigPlan, plan_config
from mailboat_operator.planner.broker_status import (
    broker_entry,
    broker_status,
    ready_finding,
    retained_entries,
)
from mailboat_operator.planner.children import ChildPlan, plan_child, plan_unwanted
from mailboat_operator.planner.claim_owners import plan_claim_owners
from mailboat_operator.planner.claims import claim_of
from mailboat_operator.planner.conditions import (
    DRAINING,
    PROGRESSING,
    RESIZING,
    SETTLED,
    UPDATING,
    Finding,
)
from mailboat_operator.planner.fitness import fresh_observation, registered, start_idle_s, unfit
from mailboat_operator.planner.groups import (
    Group,
    Leftovers,
    image_keys_of,
    plan_groups,
    plan_leftovers,
)
from mailboat_operator.planner.new_groups import NewGroups, plan_new_groups
from mailboat_operator.planner.progress import (
    progress_finding,
    roll_notices,
    rollout_step,
    waits_since_s,
)
from mailboat_operator.planner.rollout import Member, Roll, plan_roll
from mailboat_operator.planner.snapshot import BrokerSnapshot
from mailboat_operator.planner.volumes import VolumePlan, plan_volumes
from mailboat_operator.resources.config_map import user_config
from mailboat_operator.resources.disruption_budget import disruption_budget
from mailboat_operator.resources.labels import broker_labels
from mailboat_operator.resources.names import (
    broker_network_policy_name,
    broker_nodes_name,
    claim_name,
    name_server_addresses,
)
from mailboat_operator.resources.network_policy import network_policy
from mailboat_operator.resources.service_account import service_account
from mailboat_operator.resources.services import BROKER_PORTS, broker_nodes_service

SETTLE_S: Final = 30.0
"""How long each other broker must have been ready before the next one goes: clients ask for routes
every 30 s, and until then some still know one that was about to end."""

CONFLICT_RETRY_S: Final = 30.0
"""When to look again whether a name that someone else has is free: no event tells."""

DRAIN_RETRY_S: Final = 15.0
"""When to look again whether what a group holds that is to go has been read."""


def plan_broker(snapshot: BrokerSnapshot) -> Plan:
    """Decide what has to be done for a Broker, and what its status is."""
    broker = snapshot.resource
    if broker.metadata.deletion_timestamp is not None:
        return Plan((), broker.status)
    name_servers = name_servers_of(snapshot)
    keys = image_keys_of(snapshot)
    user = user_config(broker.spec, keys)
    volumes = plan_volumes(snapshot)
    groups = plan_groups(snapshot, name_servers, volumes.template_size_bytes, keys, user)
    config = plan_config(snapshot, groups, user, volumes.live_values)
    leftovers = plan_leftovers(snapshot)
    members = _members(snapshot, groups, volumes)
    new = plan_new_groups(snapshot, [group.name for group in groups], members)
    roll = plan_roll(
        members,
        now_s=snapshot.now_s,
        settle_s=SETTLE_S,
        waits_since_s=waits_since_s(broker.status),
    )
    shared, problems = _shared_steps(snapshot)
    problems += [plan.problem for group in groups for plan in _plans(group) if plan.problem]
    progress = _progress(members, roll, snapshot, volumes, leftovers, new)
    steps = [
        *_set_steps(groups, restored=True),
        *shared,
        *_group_steps(groups),
        *_set_steps(groups, restored=False),
        *plan_claim_owners(snapshot, _resized(volumes)),
        *[Step("leftovers", actions) for actions in leftovers.actions],
        *volumes.steps,
        *config.steps,
        *new.steps,
        *rollout_step(roll, broker.status),
        *roll_notices(progress, broker.status),
    ]
    entries = _entries(snapshot, groups, members, new)
    ready = ready_finding(snapshot, members, problems, name_servers is not None)
    status = broker_status(
        snapshot,
        [ready, progress, volumes.storage_ready, volumes.disk_pressure, config.finding],
        entries,
        (*volumes.storage, *retained_entries(snapshot)),
        disk=volumes.disk,
        retention=volumes.retention,
    )
    failures = (*problems, *(item.sentence for item in user.problems))
    retry_s = (
        CONFLICT_RETRY_S if problems else DRAIN_RETRY_S if leftovers.waits or new.pending else None
    )
    return Plan(tuple(steps), status, _again(roll, volumes, config, retry_s), failures)


def name_servers_of(snapshot: BrokerSnapshot) -> tuple[str, ...] | None:
    """Return where the brokers register; None while the NameServer that is named is missing."""
    wanted = snapshot.resource.spec.name_servers
    if wanted.ref is None:
        return wanted.addresses
    found = snapshot.name_server
    if found is None or found.metadata.deletion_timestamp is not None:
        return None
    return name_server_addresses(found.name, found.namespace, found.spec.replicas)


def _shared_steps(snapshot: BrokerSnapshot) -> tuple[list[Step], list[str]]:
    """Compare what the groups share with what is there of it."""
    broker, live = snapshot.resource, snapshot.children
    labels, nodes = broker_labels(broker.name), broker_nodes_name(broker.name)
    plans = {
        "service account": plan_child(
            service_account(broker, broker.name, labels),
            live.service_accounts.get(broker.name),
            broker.metadata.uid,
        ),
        "budget": plan_child(
            disruption_budget(broker, broker.name, labels),
            live.disruption_budgets.get(broker.name),
            broker.metadata.uid,
        ),
        "services": plan_child(
            broker_nodes_service(broker), live.services.get(nodes), broker.metadata.uid
        ),
    }
    plans["network policy"] = _network_policy_plan(snapshot)
    steps = [Step(name, plan.actions) for name, plan in plans.items() if plan.actions]
    return steps, [plan.problem for plan in plans.values() if plan.problem]


def _network_policy_plan(snapshot: BrokerSnapshot) -> ChildPlan:
    broker, uid = snapshot.resource, snapshot.resource.metadata.uid
    name = broker_network_policy_name(broker.name)
    live = snapshot.children.network_policies.get(name)
    spec, peers = broker.spec.network_policy, snapshot.http_peers
    if peers is None or not spec.enabled:
        return plan_unwanted(live, uid, "no NetworkPolicy is wanted")
    labels = broker_labels(broker.name)
    return plan_child(network_policy(broker, name, labels, BROKER_PORTS, spec, peers), live, uid)


def _group_steps(groups: tuple[Group, ...]) -> list[Step]:
    steps = []
    for group in groups:
        for name, plan in (("services", group.service_plan), ("config", group.config_plan)):
            if plan.actions:
                steps.append(Step(name, plan.actions))
    return steps


def _set_steps(groups: tuple[Group, ...], *, restored: bool) -> list[Step]:
    """Return the steps of the StatefulSets.

    One that is missing while the rest of its group is there comes before anything else: its pods
    run on without anyone to replace them. On creation it comes behind its ConfigMap.
    """
    return [
        Step("stateful sets", group.set_plan.actions)
        for group in groups
        if group.set_plan.actions and restored == (group.stateful_set is None and group.has_config)
    ]


def _plans(group: Group) -> tuple[ChildPlan, ...]:
    return (group.service_plan, group.config_plan, group.set_plan)


def _members(
    snapshot: BrokerSnapshot, groups: tuple[Group, ...], volumes: VolumePlan
) -> list[Member]:
    return [_member(snapshot, group, volumes) for group in groups]


def _member(snapshot: BrokerSnapshot, group: Group, volumes: VolumePlan) -> Member:
    said = fresh_observation(snapshot, group.pod_name, group.pod)
    return Member(
        name=group.pod_name,
        pod=group.pod,
        stateful_set=group.stateful_set,
        is_steady=group.set_plan.is_settled and group.config_plan.is_settled,
        restart_reason=volumes.restarts.get(group.pod_name),
        unfit=unfit(said),
        registered=registered(said),
        hold=_hold(snapshot, group),
        is_urgent=group.pod_name in volumes.urgent_restarts,
        start_idle_s=start_idle_s(snapshot, group.pod_name, group.pod),
        refusal=snapshot.refused_evictions.get(group.pod_name),
    )


def _resized(volumes: VolumePlan) -> set[str]:
    """Return the claims that are asked for another size."""
    actions = [action for step in volumes.steps for action in step.actions]
    return {action.name for action in actions if isinstance(action, ResizeClaim)}


def _hold(snapshot: BrokerSnapshot, group: Group) -> str | None:
    """Return why a group's pod must not be restarted: Kubernetes would then remove its volume."""
    claim = claim_of(snapshot.children.claims.get(claim_name(group.name)))
    return f"{claim.name} is being deleted" if claim is not None and claim.is_ending else None


def _progress(
    members: list[Member],
    roll: Roll,
    snapshot: BrokerSnapshot,
    volumes: VolumePlan,
    leftovers: Leftovers,
    new: NewGroups,
) -> Finding:
    finding = progress_finding(members, roll, snapshot.resource.status, removing=leftovers.going)
    if finding.reason == SETTLED and new.pending:
        return Finding(PROGRESSING, True, UPDATING, new.text)
    if finding.reason == SETTLED and leftovers.waits:
        return Finding(PROGRESSING, True, DRAINING, leftovers.waits)
    if finding.reason == SETTLED and volumes.storage_ready.reason == RESIZING:
        return Finding(PROGRESSING, True, RESIZING, volumes.storage_ready.message)
    return finding


def _entries(
    snapshot: BrokerSnapshot, groups: tuple[Group, ...], members: list[Member], new: NewGroups
) -> tuple[BrokerStatusEntry, ...]:
    return tuple(
        broker_entry(snapshot, group.name, group.address, member, is_new=group.name in new.pending)
        for group, member in zip(groups, members, strict=True)
    )


def _again(roll: Roll, volumes: VolumePlan, config: ConfigPlan, retry_s: float | None) -> float:
    times = [roll.again_after_s, volumes.again_after_s, config.again_after_s, retry_s]
    return min(time for time in times if time is not None)
