"""The groups whose pods are replicas: how many pods each has now, and what is done about its Lease.

A group becomes one when `spec.replicas` is raised above 1, and stays one: its store has epochs from
then on, and no broker takes it that is no replica. Where a Broker is made again with one replica,
volumes of others tell of that. What is wanted is not done at once:

    what                          waits until
    pods that become replicas     the group's Service leads to no pod by its labels
    the first Lease               every replica has said what is in its store; beside one with
                                  messages not those that never ran, on volumes made for them
    fewer in sync than before     nothing
    more in sync than before      so many are; who served alone does so until then
    fewer pods                    one that stays leads, and enough of those that stay are in sync

A leader whose volume takes no more messages hands over to a replica in sync whose volume does.

A Lease that is missing although replicas have led is made up only where it is certain whose log has
everything (`lost_leases`). Else its leader writes it again, and then it gets its labels, without
which nobody sees it here; where nobody leads, a person decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mailboat_operator.crds.replication import REPLICAS_MAX
from mailboat_operator.planner.actions import (
    Action,
    Create,
    HandOver,
    SetLeaseMinimum,
    Step,
    TakeUpLease,
)
from mailboat_operator.planner.children import controller_of, removal
from mailboat_operator.planner.conditions import (
    IMAGE_TOO_OLD,
    LEASE_MISSING,
    LEASE_TAKEN,
    LEASE_UNREADABLE,
    MEMBERS_LOST,
    STORES_DIFFER,
    WAITING_FOR_REPLICAS,
)
from mailboat_operator.planner.fitness import fresh_observation
from mailboat_operator.planner.leases import GroupLease, read_lease
from mailboat_operator.planner.lost_leases import last_to_lead, newest_epoch
from mailboat_operator.planner.pods import has_run, is_ending, is_ready, seconds
from mailboat_operator.planner.snapshot import BrokerSnapshot, Manifest
from mailboat_operator.resources.broker_keys import ImageKeys
from mailboat_operator.resources.config_map import LEASE_KEY
from mailboat_operator.resources.names import (
    HA,
    claim_name,
    group_name,
    group_of,
    ordinal_of,
    pod_name,
)
from mailboat_operator.resources.replication import first_lease, lease_marks

RETRY_S: Final = 5.0
"""When to look again at what the replicas say: no event tells of that."""

SAME_TIME_S: Final = 60.0
"""A volume that is older than its pod by more has had another pod before."""


@dataclass(frozen=True, slots=True)
class ReplicaGroup:
    """One group whose pods are replicas, or are to be."""

    index: int
    name: str
    count: int
    """How many pods its StatefulSet should have now."""

    is_begun: bool
    """Whether its pods may be made as replicas; else its Service still selects its pod."""

    lease: GroupLease | None
    reports: Mapping[int, Manifest]
    """What each replica has said of itself lately, by ordinal."""

    reason: str | None = None
    """Why nobody can lead, of those of the condition Replicated; None: somebody may."""

    message: str = ""
    waits: str = ""
    """What holds up a change of the number of replicas; empty if nothing does."""

    actions: tuple[Action, ...] = ()
    """What is done about its Lease, and who holds it."""

    @property
    def pods(self) -> tuple[str, ...]:
        """Its pods' names, by ordinal."""
        return tuple(pod_name(self.name, ordinal) for ordinal in range(self.count))

    is_led: bool = False
    """Whether somebody leads by a Lease that can be believed, and its pod is ready."""

    def is_in_sync(self, ordinal: int) -> bool:
        """Tell whether a replica is in the recorded set, and has the volume that is meant there."""
        return self.lease is not None and _is_in_sync(self.lease, self.reports, ordinal)

    def in_sync_pods(self) -> tuple[str, ...]:
        """Return the pods of the recorded set, without those that have another volume by now."""
        in_sync = self.lease.in_sync if self.lease is not None else {}
        return tuple(pod_name(self.name, item) for item in in_sync if self.is_in_sync(item))

    def leader(self) -> str:
        """Return the pod that leads; the first one while none is known to."""
        return self.lease.holder if self.lease and self.lease.holder else pod_name(self.name)


def plan_replica_groups(snapshot: BrokerSnapshot, image_keys: ImageKeys) -> dict[str, ReplicaGroup]:
    """Return the groups that have replicas, or are to have some, by name."""
    found = {}
    for index in range(snapshot.resource.spec.groups):
        group = _plan_group(snapshot, index, image_keys)
        if group is not None:
            found[group.name] = group
    return found


def is_replica(pod: Manifest | None) -> bool:
    """Return whether a pod was made as a replica of a group."""
    return pod is not None and _has_replica_port(pod)


def is_of_replicas(stateful_set: Manifest | None) -> bool:
    """Return whether the pods of a StatefulSet are made as replicas."""
    template = ((stateful_set or {}).get("spec") or {}).get("template") or {}
    return _has_replica_port(template)


def replica_steps(groups: Mapping[str, ReplicaGroup]) -> list[Step]:
    """Return what is done about the groups' Leases; one that fails holds up no other."""
    return [
        Step("replicas", (action,), group.name)
        for group in groups.values()
        for action in group.actions
    ]


def unfit_replica(group: ReplicaGroup, ordinal: int) -> str | None:
    """Return why no other replica may be taken down because of this one; None if one may."""
    if group.reason is not None:
        return f"has no leader: {group.message}"
    if not group.is_led or group.lease is None:
        return "has no leader"
    if not group.is_in_sync(ordinal):
        return "is not in the in-sync set"
    alarm = group.reports.get(ordinal, {}).get("alarm")
    return f"needs a person: {alarm}" if alarm else None


def _plan_group(snapshot: BrokerSnapshot, index: int, image_keys: ImageKeys) -> ReplicaGroup | None:
    live, spec = snapshot.children, snapshot.resource.spec
    name = group_name(snapshot.resource.name, index)
    stateful_set = live.stateful_sets.get(name)
    lease = own_lease(snapshot, name)
    is_one = is_of_replicas(stateful_set) or lease is not None or _had_replicas(snapshot, name)
    if spec.replicas == 1 and not is_one:
        return None
    if not is_one and image_keys.takes(LEASE_KEY) is False:
        message = f"brokers of {image_keys.image} cannot be replicas: set a newer spec.image"
        return ReplicaGroup(index, name, 1, False, None, {}, IMAGE_TOO_OLD, message)
    selects = bool((live.services.get(name) or {}).get("spec", {}).get("selector"))
    is_begun = is_one or not selects
    reports = _reports(snapshot, name, REPLICAS_MAX)
    count, waits, actions = _count(snapshot, name, lease, reports)
    reports = {ordinal: report for ordinal, report in reports.items() if ordinal < count}
    reason, message = _trouble(snapshot, name, count, lease, reports)
    if lease is None and reason is None and is_begun:
        actions = (Create(_first_lease(snapshot, index, reports)),)
    elif lease is not None and reason is None and not actions:
        actions = _leave_full_volume(snapshot, name, lease, reports)
    elif reason == MEMBERS_LOST and _are_new(snapshot, reports):
        actions = (removal(live.leases[name], "it names volumes that are no more"),)
    elif reason == LEASE_MISSING and (anew := _lease_anew(snapshot, index, count, reports)):
        actions = (Create(anew),)
    elif reason == LEASE_MISSING:
        actions = (TakeUpLease(lease_marks(snapshot.resource, index)),)
    if lease is not None and reason is None and controller_of(live.leases[name]) is None:
        actions = (*actions, TakeUpLease(lease_marks(snapshot.resource, index)))
    is_led = reason is None and lease is not None and _leads(snapshot, lease)
    return ReplicaGroup(
        index, name, count, is_begun, lease, reports, reason, message, waits, actions, is_led
    )


def own_lease(snapshot: BrokerSnapshot, name: str) -> GroupLease | None:
    """Read a group's Lease; nothing is believed of one that belongs to somebody else."""
    manifest = snapshot.children.leases.get(name)
    owner = controller_of(manifest) if manifest is not None else None
    if owner is not None and owner.get("uid") != snapshot.resource.metadata.uid:
        whose = f"{owner.get('kind')} {owner.get('name')}"
        problem = f"the Lease {name} belongs to {whose}; rename or remove it"
        return GroupLease(name, "", problem=problem, is_foreign=True)
    return read_lease(manifest)


def _leads(snapshot: BrokerSnapshot, lease: GroupLease) -> bool:
    """Tell whether the pod that a Lease names is there, the same one, and ready."""
    pod = snapshot.children.pods.get(lease.holder or "")
    return pod is not None and pod["metadata"].get("uid") == lease.holder_uid and is_ready(pod)


def _is_in_sync(lease: GroupLease, reports: Mapping[int, Manifest], ordinal: int) -> bool:
    has_said = str(reports.get(ordinal, {}).get("store_id") or "")
    return ordinal in lease.in_sync and has_said in ("", lease.in_sync[ordinal])


def _count(
    snapshot: BrokerSnapshot,
    name: str,
    lease: GroupLease | None,
    reports: Mapping[int, Manifest],
) -> tuple[int, str, tuple[Action, ...]]:
    """Return how many pods there should be now, why not as many as wanted, and what is done."""
    spec = snapshot.resource.spec
    wanted, minimum = spec.replicas, spec.replication.minimum(spec.replicas)
    has = _has_pods(snapshot, name, lease)
    is_known = lease is not None and lease.problem is None
    if lease is None and _is_yet_to_begin(snapshot, name, reports):
        return wanted, "", ()
    if lease is None or not is_known:
        waits = f"{name} has no Lease that tells who has everything" if wanted < has else ""
        return max(has, wanted), waits, ()
    actions: tuple[Action, ...] = ()
    is_lower = minimum < lease.minimum
    if is_lower or lease.minimum < minimum <= len(lease.in_sync):
        actions = (SetLeaseMinimum(name, lease.uid, minimum),)
    if wanted >= has:
        return wanted, "", actions
    staying = [ordinal for ordinal in lease.in_sync if ordinal < wanted]
    staying = [item for item in staying if _serves(snapshot, lease, reports, item)]
    if is_lower:
        return has, f"{name} is to have {wanted} replicas: {minimum} have to be in sync", actions
    if len(staying) < minimum:
        waits = f"{len(staying)} of those that stay serve in sync, and {minimum} have to"
        return has, f"{name} is to have {wanted} replicas: {waits}", actions
    if lease.leader not in staying or not _leads(snapshot, lease):
        return (
            has,
            f"{name} is to have {wanted} replicas: one that stays has to lead",
            (
                *actions,
                *_handover(snapshot, lease, staying),
            ),
        )
    return wanted, "", actions


def _serves(
    snapshot: BrokerSnapshot, lease: GroupLease, reports: Mapping[int, Manifest], ordinal: int
) -> bool:
    """Tell whether a replica is ready, has said so lately, and is a member that needs nobody."""
    pod, report = snapshot.children.pods.get(pod_name(lease.name, ordinal)), reports.get(ordinal)
    if pod is None or report is None or not is_ready(pod):
        return False
    is_well = not report.get("alarm") and not report.get("write_trouble")
    return is_well and _is_in_sync(lease, reports, ordinal)


def _handover(snapshot: BrokerSnapshot, lease: GroupLease, able: list[int]) -> tuple[Action, ...]:
    """Let the first of those lead that can, those first whose volumes have room."""
    others = [ordinal for ordinal in able if ordinal != lease.leader]
    others.sort(key=lambda item: _has_room(snapshot, pod_name(lease.name, item)) is False)
    if lease.holder is None or not others:
        return ()
    return (HandOver(lease.holder, tuple(others)),)


def _leave_full_volume(
    snapshot: BrokerSnapshot, name: str, lease: GroupLease, reports: Mapping[int, Manifest]
) -> tuple[Action, ...]:
    """Let one lead that has room and is to stay, where the leader has none."""
    if lease.holder is None or _has_room(snapshot, lease.holder) is not False:
        return ()
    staying = [ordinal for ordinal in lease.in_sync if ordinal < snapshot.resource.spec.replicas]
    roomy = [
        ordinal
        for ordinal in staying
        if _has_room(snapshot, pod_name(name, ordinal))
        and _serves(snapshot, lease, reports, ordinal)
    ]
    return _handover(snapshot, lease, roomy)


def _has_room(snapshot: BrokerSnapshot, pod: str) -> bool | None:
    """Tell whether a broker's volume takes messages; None if it has not said so lately."""
    said = fresh_observation(snapshot, pod, snapshot.children.pods.get(pod))
    if said is None or said.error is not None or said.retention is None:
        return None
    active = said.retention.get("active") or {}
    return not (active.get("reject_writes") or said.retention.get("refusal"))


def _trouble(
    snapshot: BrokerSnapshot,
    name: str,
    count: int,
    lease: GroupLease | None,
    reports: Mapping[int, Manifest],
) -> tuple[str | None, str]:
    """Return why nobody can lead the group; None where the Lease is there, or may be made."""
    if lease is not None and lease.problem is not None:
        return (LEASE_TAKEN if lease.is_foreign else LEASE_UNREADABLE), lease.problem
    if lease is not None:
        return _lost_members(name, count, lease, reports)
    if strangers := _not_empty(snapshot, name, reports):
        claims = " and ".join(claim_name(pod_name(name, ordinal)) for ordinal in strangers)
        return STORES_DIFFER, (
            f"{claims} is not empty, and {pod_name(name)} serves messages of its own: to have"
            " replicas, delete that claim and its pod"
        )
    led = [ordinal for ordinal, report in reports.items() if report.get("epoch")]
    if led:
        return LEASE_MISSING, (
            f"{name} has had a leader and has no Lease: its leader writes it again; if there is"
            f" none, `mailboat replica promote --accept-loss` at the one with the longest log does"
            f"{_kept_text(snapshot, name, count)}"
        )
    filled = [ordinal for ordinal, report in reports.items() if report.get("end")]
    pods = {ordinal: pod_name(name, ordinal) for ordinal in range(count)}
    missing = [
        pod
        for ordinal, pod in pods.items()
        # Clients of the pod of before wait: one that never ran keeps it from leading no longer.
        if ordinal not in reports and not (filled and _has_nothing_yet(snapshot, pod))
    ]
    if missing:
        text = ", ".join(missing)
        return WAITING_FOR_REPLICAS, f"{text} has not said what is in its store"
    if len(filled) > 1:
        names = ", ".join(pod_name(name, ordinal) for ordinal in filled)
        return STORES_DIFFER, (
            f"{names} have messages that they did not get from each other: remove the volumes of"
            " all but one of them"
        )
    return None, ""


def _kept_text(snapshot: BrokerSnapshot, name: str, count: int) -> str:
    """Say which volumes may have everything that no replica has now; empty if there is none."""
    kept = _claims_from(snapshot, name, count)
    if not kept:
        return ""
    claims = " and ".join(kept.values())
    return f"; with spec.replicas: {max(kept) + 1}, or without {claims}, the operator may"


def _has_nothing_yet(snapshot: BrokerSnapshot, name: str) -> bool:
    """Tell whether a replica's claim has no volume, or was made for a pod that never ran."""
    pod, claim = snapshot.children.pods.get(name), snapshot.children.claims.get(claim_name(name))
    if claim is None:
        return False
    if (claim.get("status") or {}).get("phase") == "Pending":
        return True
    made_s = seconds(claim["metadata"].get("creationTimestamp"))
    if pod is None or made_s is None or has_run(pod):
        return False
    begun_s = seconds(pod["metadata"].get("creationTimestamp"))
    return begun_s is not None and begun_s - made_s <= SAME_TIME_S


def _first_lease(snapshot: BrokerSnapshot, index: int, reports: Mapping[int, Manifest]) -> Manifest:
    """Return the Lease in which the one replica with messages may lead; else the first one.

    The one with messages leads alone, as it served, until others have copied them: that may take
    hours.
    """
    filled = next((item for item, report in reports.items() if report.get("end")), None)
    store_id = str(reports[filled or 0]["store_id"])
    least = None if filled is None else 1
    return first_lease(snapshot.resource, index, filled or 0, store_id, min_in_sync=least)


def _lost_members(
    name: str, count: int, lease: GroupLease, reports: Mapping[int, Manifest]
) -> tuple[str | None, str]:
    """Say that none that there is may ever lead: those that may have had other volumes."""
    is_lost = set(reports) == set(range(count)) and not any(
        _is_in_sync(lease, reports, ordinal) for ordinal in lease.in_sync
    )
    if not is_lost or any(report.get("role") != "joining" for report in reports.values()):
        return None, ""
    return MEMBERS_LOST, (
        f"the Lease of {name} names volumes that are no more: delete the Lease, and what the"
        " replicas have now counts"
    )


def _are_new(snapshot: BrokerSnapshot, reports: Mapping[int, Manifest]) -> bool:
    """Tell whether volumes were to go with their group, and what is there now is empty."""
    goes = snapshot.resource.spec.pvc_retention.when_scaled == "Delete"
    return goes and not any(item.get("end") or item.get("epoch") for item in reports.values())


def _is_yet_to_begin(snapshot: BrokerSnapshot, name: str, reports: Mapping[int, Manifest]) -> bool:
    """Tell whether one that stays has all that there ever was, and none of the others was needed.

    That is the pod of before, while it serves alone, and once it has become a replica that nobody
    has led yet.
    """
    first = snapshot.children.pods.get(pod_name(name))
    if any(report.get("epoch") for report in reports.values()):
        return False
    is_before = first is not None and not is_replica(first)
    filled = [ordinal for ordinal, report in reports.items() if report.get("end")]
    wanted = snapshot.resource.spec.replicas
    return is_before or (len(filled) == 1 and filled[0] < wanted)


def _not_empty(snapshot: BrokerSnapshot, name: str, reports: Mapping[int, Manifest]) -> list[int]:
    """Return the new replicas that have something beside a pod that is none yet."""
    first = snapshot.children.pods.get(pod_name(name))
    if first is None or is_replica(first):
        return []
    return [item for item, report in reports.items() if report.get("end") or report.get("epoch")]


def _lease_anew(
    snapshot: BrokerSnapshot, index: int, count: int, reports: Mapping[int, Manifest]
) -> Manifest | None:
    """Return a Lease for replicas that have had one; None where a person has to say who leads."""
    name = group_name(snapshot.resource.name, index)
    if count != snapshot.resource.spec.replicas or _claims_from(snapshot, name, count):
        return None  # Who has everything may be among those that are not there.
    ordinal = last_to_lead(reports, count)
    if ordinal is None:
        return None
    store_id = str(reports[ordinal]["store_id"])
    epoch = newest_epoch(reports)
    return first_lease(snapshot.resource, index, ordinal, store_id, epoch=epoch)


def _had_replicas(snapshot: BrokerSnapshot, name: str) -> bool:
    """Tell whether a group of which nothing serves has a replica, or the volumes of some."""
    first = snapshot.children.pods.get(pod_name(name))
    if name in snapshot.children.stateful_sets or first is not None:
        return is_replica(first)
    claims = _claims_from(snapshot, name, 0)
    return 0 in claims and len(claims) > 1


def _claims_from(snapshot: BrokerSnapshot, name: str, least: int) -> dict[int, str]:
    """Return the claims of a group's replicas from an ordinal on, by ordinal."""
    names = {item: claim_name(pod_name(name, item)) for item in range(least, REPLICAS_MAX)}
    return {item: claim for item, claim in names.items() if claim in snapshot.children.claims}


def _reports(snapshot: BrokerSnapshot, name: str, count: int) -> dict[int, Manifest]:
    found = {}
    for ordinal in range(count):
        pod = snapshot.children.pods.get(pod_name(name, ordinal))
        said = fresh_observation(snapshot, pod_name(name, ordinal), pod)
        report = said.replica if said is not None else None
        # Another replica of the group may answer at an address that was this one's.
        if report is not None and report.get("store_id") and report.get("ordinal") == ordinal:
            found[ordinal] = report
    return found


def _has_pods(snapshot: BrokerSnapshot, name: str, lease: GroupLease | None) -> int:
    """Return how many pods the group has, or needs: somebody may have made them fewer by hand."""
    live = snapshot.children
    stateful_set = live.stateful_sets.get(name)
    has = [int(stateful_set["spec"].get("replicas", 1))] if stateful_set is not None else [0]
    for pod_name_, pod in live.pods.items():
        ordinal = ordinal_of(pod_name_)
        if group_of(pod_name_) == name and ordinal is not None and not is_ending(pod):
            has.append(ordinal + 1)
    has += [ordinal + 1 for ordinal in (lease.in_sync if lease is not None else ())]
    return min(max(has), REPLICAS_MAX)


def _has_replica_port(pod: Mapping[str, Any]) -> bool:
    return any(
        port.get("name") == HA
        for container in (pod.get("spec") or {}).get("containers") or ()
        for port in container.get("ports") or ()
    )
