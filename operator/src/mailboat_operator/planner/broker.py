"""What has to be done for a Broker: every object, every volume, every setting, every pod.

Each part is a step of its own, so one that fails (a volume that cannot grow, a name that is taken)
holds up no other. Nothing is remembered between two plans: what was decided before shows in the
objects. A Broker that is being deleted plans nothing; Kubernetes removes what belongs to it.
"""

from collections.abc import Mapping
from typing import Final

from mailboat_operator.planner.actions import Plan, ResizeClaim, Step
from mailboat_operator.planner.broker_config import ConfigPlan, plan_config
from mailboat_operator.planner.broker_status import (
    broker_entry,
    broker_status,
    ready_finding,
    retained_entries,
)
from mailboat_operator.planner.certificates import certificate_plan, plan_certificates
from mailboat_operator.planner.children import ChildPlan, plan_child, plan_unwanted
from mailboat_operator.planner.claim_owners import plan_claim_owners
from mailboat_operator.planner.claims import claim_of
from mailboat_operator.planner.conditions import (
    DRAINING,
    IMAGE_TOO_OLD,
    PROGRESSING,
    RESIZING,
    SETTLED,
    UPDATING,
    Finding,
)
from mailboat_operator.planner.fitness import fresh_observation, registered, start_idle_s, unfit
from mailboat_operator.planner.groups import (
    Group,
    GroupPod,
    Leftovers,
    image_keys_of,
    plan_groups,
    plan_leftovers,
)
from mailboat_operator.planner.listeners import plan_listeners
from mailboat_operator.planner.new_groups import NewGroups, plan_new_groups
from mailboat_operator.planner.progress import (
    progress_finding,
    roll_notices,
    rollout_step,
    waits_since_s,
)
from mailboat_operator.planner.replica_groups import (
    RETRY_S,
    ReplicaGroup,
    is_replica,
    plan_replica_groups,
    replica_steps,
    unfit_replica,
)
from mailboat_operator.planner.replica_objects import (
    budget_plan,
    replica_rights,
    secret_steps,
    slice_plan,
    stray_endpoints,
    unwanted_plans,
)
from mailboat_operator.planner.replica_status import (
    replica_entries,
    replica_findings,
    replica_notices,
)
from mailboat_operator.planner.rollout import Member, Roll, plan_roll
from mailboat_operator.planner.snapshot import BrokerSnapshot
from mailboat_operator.planner.volumes import VolumePlan, plan_volumes
from mailboat_operator.resources.certificate import broker_certificate
from mailboat_operator.resources.config_map import UserConfig, user_config, with_security
from mailboat_operator.resources.disruption_budget import disruption_budget
from mailboat_operator.resources.labels import broker_labels
from mailboat_operator.resources.listeners import with_listeners
from mailboat_operator.resources.names import (
    broker_network_policy_name,
    broker_nodes_name,
    claim_name,
    name_server_addresses,
)
from mailboat_operator.resources.network_policy import network_policy
from mailboat_operator.resources.security import broker_security
from mailboat_operator.resources.service_account import service_account
from mailboat_operator.resources.services import (
    BROKER_PORTS,
    REPLICA_PORTS,
    broker_nodes_service,
)

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
    security = with_listeners(broker_security(broker, snapshot.name_server), broker)
    user = with_security(user_config(broker.spec, keys), security.settings, keys)
    wanted = plan_replica_groups(snapshot, keys)
    replicas = {name: group for name, group in wanted.items() if group.reason != IMAGE_TOO_OLD}
    volumes = plan_volumes(snapshot, {name: group.count for name, group in replicas.items()})
    groups = plan_groups(
        snapshot, name_servers, volumes.template_size_bytes, keys, user, replicas, security
    )
    config = plan_config(snapshot, groups, user, volumes.live_values)
    leftovers = plan_leftovers(snapshot)
    members = _members(snapshot, groups, volumes, replicas)
    by_name = {member.name: member for member in members}
    new = _new_groups(snapshot, groups, by_name)
    roll = _roll(snapshot, members)
    doors = plan_listeners(snapshot, list(by_name))
    certificates = plan_certificates(snapshot, members)
    shared, problems = _shared_steps(snapshot, groups, replicas)
    problems += [*doors.problems, *_problems(groups)]
    awaited = "; ".join(group.waits for group in replicas.values() if group.waits)
    progress = _progress(members, roll, snapshot, volumes, leftovers, new, awaited)
    steps = [
        *_set_steps(groups, restored=True),
        *shared,
        *doors.steps,
        *_group_steps(groups),
        *_set_steps(groups, restored=False),
        *secret_steps(snapshot, replicas),
        *replica_steps(replicas),
        *[step for name in replicas for step in stray_endpoints(snapshot, name)],
        *plan_claim_owners(snapshot, _resized(volumes)),
        *[Step("leftovers", actions) for actions in leftovers.actions],
        *volumes.steps,
        *config.steps,
        *new.steps,
        *rollout_step(roll, broker.status),
        *roll_notices(progress, broker.status),
        *replica_notices(snapshot, replicas),
        *certificates.steps,
    ]
    entries = tuple(
        broker_entry(snapshot, group, by_name, is_new=group.name in new.pending) for group in groups
    )
    ready = ready_finding(snapshot, members, problems, name_servers is not None)
    status = broker_status(
        snapshot,
        [
            *(ready, progress, volumes.storage_ready, volumes.disk_pressure, config.finding),
            *replica_findings(wanted),
            *doors.findings,
            *certificates.findings,
        ],
        entries,
        replica_entries(snapshot, replicas),
        (*volumes.storage, *retained_entries(snapshot)),
        disk=volumes.disk,
        retention=volumes.retention,
        listeners=doors.entries,
    )
    waits = [certificates.awaits, *(one.reason or one.waits for one in replicas.values())]
    is_draining = bool(leftovers.waits or new.pending)
    retry_s = _retry_s(problems, is_draining=is_draining, waiting=any(waits))
    again_s = _again(roll, volumes, config, retry_s)
    return Plan(tuple(steps), status, again_s, (*problems, *_sentences(user)))


def _roll(snapshot: BrokerSnapshot, members: list[Member]) -> Roll:
    waits_s = waits_since_s(snapshot.resource.status)
    return plan_roll(members, now_s=snapshot.now_s, settle_s=SETTLE_S, waits_since_s=waits_s)


def _retry_s(problems: list[str], *, is_draining: bool, waiting: bool) -> float | None:
    """Return when to look again at what no event tells."""
    retries_s = [
        *[CONFLICT_RETRY_S] * bool(problems),
        *[DRAIN_RETRY_S] * is_draining,
        *[RETRY_S] * waiting,
    ]
    return min(retries_s, default=None)


def _new_groups(
    snapshot: BrokerSnapshot, groups: tuple[Group, ...], members: Mapping[str, Member]
) -> NewGroups:
    leaders = [members[group.leader.name] for group in groups]
    return plan_new_groups(snapshot, [group.name for group in groups], leaders)


def _sentences(user: UserConfig) -> tuple[str, ...]:
    return tuple(item.sentence for item in user.problems)


def name_servers_of(snapshot: BrokerSnapshot) -> tuple[str, ...] | None:
    """Return where the brokers register; None while the NameServer that is named is missing."""
    wanted = snapshot.resource.spec.name_servers
    if wanted.ref is None:
        return wanted.addresses
    found = snapshot.name_server
    if found is None or found.metadata.deletion_timestamp is not None:
        return None
    return name_server_addresses(found.name, found.namespace, found.spec.replicas)


def _shared_steps(
    snapshot: BrokerSnapshot, groups: tuple[Group, ...], replicas: Mapping[str, ReplicaGroup]
) -> tuple[list[Step], list[str]]:
    """Compare what the groups share with what is there of it."""
    broker, live = snapshot.resource, snapshot.children
    ports = REPLICA_PORTS if replicas else BROKER_PORTS
    labels, nodes = broker_labels(broker.name), broker_nodes_name(broker.name)
    plans = {
        "service account": plan_child(
            service_account(broker, broker.name, labels),
            live.service_accounts.get(broker.name),
            broker.metadata.uid,
        ),
        "budget": _budget_plan(snapshot, has_replicas=bool(replicas)),
        "services": plan_child(
            broker_nodes_service(broker, ports), live.services.get(nodes), broker.metadata.uid
        ),
    }
    plans["network policy"] = _network_policy_plan(snapshot, ports)
    tls = broker.spec.tls
    wanted = None if tls is None or tls.issuer_ref is None else broker_certificate(broker, tls)
    plans["certificate"] = certificate_plan(wanted, snapshot.certificate, broker.metadata.uid)
    found = [*plans.items(), *unwanted_plans(snapshot, groups, replicas)]
    if replicas:
        # A pod that two budgets select is evicted by nobody, so the one of all groups goes first.
        found += [("budget", budget_plan(snapshot, group)) for group in groups]
        found += replica_rights(snapshot, replicas).items()
        found += [
            ("leader", slice_plan(snapshot, group, replicas[group.name]))
            for group in groups
            if group.name in replicas
        ]
    steps = [Step(name, plan.actions) for name, plan in found if plan.actions]
    return steps, [plan.problem for _, plan in found if plan.problem]


def _budget_plan(snapshot: BrokerSnapshot, *, has_replicas: bool) -> ChildPlan:
    """Compare the budget over all groups with what is there; with replicas each has its own."""
    broker = snapshot.resource
    live = snapshot.children.disruption_budgets.get(broker.name)
    if has_replicas:
        return plan_unwanted(live, broker.metadata.uid, "each group has a budget of its own")
    wanted = disruption_budget(broker, broker.name, broker_labels(broker.name))
    return plan_child(wanted, live, broker.metadata.uid)


def _network_policy_plan(snapshot: BrokerSnapshot, ports: Mapping[str, int]) -> ChildPlan:
    broker, uid = snapshot.resource, snapshot.resource.metadata.uid
    name = broker_network_policy_name(broker.name)
    live = snapshot.children.network_policies.get(name)
    spec, peers = broker.spec.network_policy, snapshot.http_peers
    if peers is None or not spec.enabled:
        return plan_unwanted(live, uid, "no NetworkPolicy is wanted")
    labels, listeners = broker_labels(broker.name), broker.spec.listeners
    wanted = network_policy(broker, name, labels, ports, spec, peers, listeners=listeners)
    return plan_child(wanted, live, uid)


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


def _problems(groups: tuple[Group, ...]) -> list[str]:
    return [plan.problem for group in groups for plan in _plans(group) if plan.problem]


def _plans(group: Group) -> tuple[ChildPlan, ...]:
    return (group.service_plan, group.config_plan, group.set_plan)


def _members(
    snapshot: BrokerSnapshot,
    groups: tuple[Group, ...],
    volumes: VolumePlan,
    replicas: Mapping[str, ReplicaGroup],
) -> list[Member]:
    """Return every pod in the order in which they are replaced: a leader behind its followers."""
    return [
        _member(snapshot, group, item, volumes, replicas.get(group.name))
        for group in groups
        for item in sorted(group.pods, key=lambda item: item is group.leader)
    ]


def _member(
    snapshot: BrokerSnapshot,
    group: Group,
    item: GroupPod,
    volumes: VolumePlan,
    replicas: ReplicaGroup | None,
) -> Member:
    said = fresh_observation(snapshot, item.name, item.pod)
    others = frozenset(other.name for other in group.pods if other is not item)
    return Member(
        name=item.name,
        pod=item.pod,
        stateful_set=group.stateful_set,
        is_steady=group.set_plan.is_settled and group.config_plan.is_settled,
        restart_reason=volumes.restarts.get(item.name),
        unfit=unfit(said) or _unfit_replica(item, replicas),
        registered=registered(said),
        hold=_hold(snapshot, item),
        is_urgent=item.name in volumes.urgent_restarts,
        start_idle_s=start_idle_s(snapshot, item.name, item.pod),
        refusal=snapshot.refused_evictions.get(item.name),
        behind=others if item is group.leader else frozenset(),
        awaits=_awaits(group, item, replicas),
    )


def _unfit_replica(item: GroupPod, replicas: ReplicaGroup | None) -> str | None:
    # The one of before serves alone until it is restarted as a replica.
    is_one = replicas is not None and is_replica(item.pod)
    return unfit_replica(replicas, item.ordinal) if replicas is not None and is_one else None


def _awaits(group: Group, item: GroupPod, replicas: ReplicaGroup | None) -> str | None:
    """Return the pod that has all messages and is no replica yet, where this one waits for it."""
    first = group.pods[0]
    if replicas is None or replicas.lease is not None or item is first or first.pod is None:
        return None
    if item.pod is None or is_replica(first.pod):
        return None
    report = replicas.reports.get(item.ordinal)
    is_empty = report is not None and not report.get("end") and not report.get("epoch")
    return first.name if is_empty else None


def _resized(volumes: VolumePlan) -> set[str]:
    """Return the claims that are asked for another size."""
    actions = [action for step in volumes.steps for action in step.actions]
    return {action.name for action in actions if isinstance(action, ResizeClaim)}


def _hold(snapshot: BrokerSnapshot, item: GroupPod) -> str | None:
    """Return why a pod must not be restarted: Kubernetes would then remove its volume."""
    claim = claim_of(snapshot.children.claims.get(claim_name(item.name)))
    return f"{claim.name} is being deleted" if claim is not None and claim.is_ending else None


def _progress(
    members: list[Member],
    roll: Roll,
    snapshot: BrokerSnapshot,
    volumes: VolumePlan,
    leftovers: Leftovers,
    new: NewGroups,
    waits: str,
) -> Finding:
    finding = progress_finding(members, roll, snapshot.resource.status, removing=leftovers.going)
    if finding.reason == SETTLED and new.pending:
        return Finding(PROGRESSING, True, UPDATING, new.text)
    if finding.reason == SETTLED and waits:
        return Finding(PROGRESSING, True, UPDATING, waits)
    if finding.reason == SETTLED and leftovers.waits:
        return Finding(PROGRESSING, True, DRAINING, leftovers.waits)
    if finding.reason == SETTLED and volumes.storage_ready.reason == RESIZING:
        return Finding(PROGRESSING, True, RESIZING, volumes.storage_ready.message)
    return finding


def _again(roll: Roll, volumes: VolumePlan, config: ConfigPlan, retry_s: float | None) -> float:
    times = [roll.again_after_s, volumes.again_after_s, config.again_after_s, retry_s]
    return min(time for time in times if time is not None)
