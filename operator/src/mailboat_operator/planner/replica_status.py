"""What is shown of the replicas: `status.replicaGroups`, Replicated, FailoverPossible, events."""

from collections.abc import Mapping
from typing import Any, Final

from mailboat_operator.crds.status import ReplicaGroupStatusEntry, ReplicaStatusEntry
from mailboat_operator.planner.actions import Notify, Step
from mailboat_operator.planner.conditions import (
    ALL_IN_SYNC,
    FAILOVER_POSSIBLE,
    NO_LEADER,
    POSSIBLE,
    REPLICAS_BEHIND,
    REPLICATED,
    TOO_FEW_IN_SYNC,
    Finding,
)
from mailboat_operator.planner.pods import is_ready
from mailboat_operator.planner.progress import join_names
from mailboat_operator.planner.replica_groups import ReplicaGroup
from mailboat_operator.planner.snapshot import BrokerSnapshot
from mailboat_operator.resources.names import ordinal_of

_MEBIBYTE: Final = 1 << 20
_ROLES: Final[Mapping[str, Any]] = {"master": "leader", "slave": "follower", "joining": "joining"}
"""The replicas' own words and those of the status."""


def replica_findings(groups: Mapping[str, ReplicaGroup]) -> list[Finding]:
    """Return the conditions Replicated and FailoverPossible; none where nothing is replicated."""
    if not groups:
        return []
    return [_replicated(groups), _failover_possible(groups)]


def replica_entries(
    snapshot: BrokerSnapshot, groups: Mapping[str, ReplicaGroup]
) -> tuple[ReplicaGroupStatusEntry, ...]:
    """Return `status.replicaGroups`."""
    return tuple(_entry(snapshot, group) for group in groups.values())


def replica_notices(snapshot: BrokerSnapshot, groups: Mapping[str, ReplicaGroup]) -> list[Step]:
    """Return the events about who leads and who is in sync, each told once."""
    notices = [notice for group in groups.values() for notice in _notices(snapshot, group)]
    return [Step("events", (notice,)) for notice in notices]


def _replicated(groups: Mapping[str, ReplicaGroup]) -> Finding:
    for group in groups.values():
        if group.reason is not None:
            return Finding(REPLICATED, False, group.reason, group.message)
    leaderless = [group.name for group in groups.values() if not group.is_led]
    if leaderless:
        return Finding(REPLICATED, False, NO_LEADER, f"nobody leads {join_names(leaderless)}")
    behind = [pod for group in groups.values() for pod in _behind(group)]
    if behind:
        message = f"not in the in-sync set: {join_names(behind)}"
        return Finding(REPLICATED, False, REPLICAS_BEHIND, message)
    return Finding(REPLICATED, True, ALL_IN_SYNC, "every replica is in the in-sync set")


def _failover_possible(groups: Mapping[str, ReplicaGroup]) -> Finding:
    leaderless = [group.name for group in groups.values() if not group.is_led]
    if leaderless:
        return Finding(
            FAILOVER_POSSIBLE, False, NO_LEADER, f"nobody leads {join_names(leaderless)}"
        )
    few = [text for group in groups.values() if (text := _too_few(group))]
    if few:
        return Finding(FAILOVER_POSSIBLE, False, TOO_FEW_IN_SYNC, join_names(few))
    message = "each group takes messages on when one of its replicas is lost"
    return Finding(FAILOVER_POSSIBLE, True, POSSIBLE, message)


def _too_few(group: ReplicaGroup) -> str:
    """Say that the loss of one replica would stop a group; empty if it would not."""
    assert group.lease is not None
    in_sync, minimum = len(group.in_sync_pods()), group.lease.minimum
    if in_sync > max(minimum, 1):
        return ""
    return f"{group.name} has {in_sync} in sync and needs {minimum}"


def _behind(group: ReplicaGroup) -> list[str]:
    assert group.lease is not None
    in_sync = group.in_sync_pods()
    return [pod for pod in group.pods if pod not in in_sync]


def _entry(snapshot: BrokerSnapshot, group: ReplicaGroup) -> ReplicaGroupStatusEntry:
    lease = group.lease if group.reason is None else None
    before = _before(snapshot, group.name)
    replicas = tuple(_replica(snapshot, group, pod) for pod in group.pods)
    lags = [replica.lag_bytes for replica in replicas if replica.lag_bytes is not None]
    return ReplicaGroupStatusEntry(
        name=group.name,
        leader=lease.holder if lease is not None else None,
        epoch=lease.epoch if lease is not None else before.get("epoch"),
        in_sync=group.in_sync_pods() if lease is not None else (),
        lag_bytes=max(lags, default=None),
        replicas=replicas,
        message=group.message[:1024] or None,
    )


def _replica(snapshot: BrokerSnapshot, group: ReplicaGroup, pod: str) -> ReplicaStatusEntry:
    ordinal = ordinal_of(pod)
    assert ordinal is not None
    report, lease = group.reports.get(ordinal, {}), group.lease
    leads = lease is not None and lease.holder == pod
    live = snapshot.children.pods.get(pod)
    role: Any = "leader" if leads else _ROLES.get(str(report.get("role")))
    return ReplicaStatusEntry(
        pod=pod,
        # Who led until a moment ago says so for a while.
        role="joining" if role == "leader" and not leads else role,
        in_sync=group.is_in_sync(ordinal) if lease is not None else None,
        ready=live is not None and is_ready(live),
        lag_bytes=_lag(group, ordinal),
        diverged_bytes=_diverged_bytes(group, _before(snapshot, group.name), pod) or None,
        message=_trouble(report)[:1024] or None,
    )


def _trouble(report: Mapping[str, Any]) -> str:
    lease = report.get("lease") or {}
    own = (report.get("alarm"), report.get("write_trouble"))
    found = (*own, lease.get("trouble"), lease.get("endpoints_trouble"))
    return "; ".join(str(text) for text in found if text)


def _lag(group: ReplicaGroup, ordinal: int) -> int | None:
    """Return what a replica lacks, as its leader counts it, in whole MiB: at rest it stays."""
    leader = group.lease.leader if group.lease is not None else None
    report = group.reports.get(leader, {}) if leader is not None else {}
    for peer in report.get("peers") or ():
        if peer.get("ordinal") == ordinal and peer.get("lag_bytes") is not None:
            return int(peer["lag_bytes"]) // _MEBIBYTE * _MEBIBYTE
    return None


def _notices(snapshot: BrokerSnapshot, group: ReplicaGroup) -> list[Notify]:
    lease, before = group.lease, _before(snapshot, group.name)
    if lease is None or lease.problem is not None:
        return _diverged(group, before)
    found = []
    epoch = int(before.get("epoch") or 0)
    if lease.holder is not None and lease.epoch > epoch:
        former = before.get("leader")
        place = f" in place of {former}" if former and former != lease.holder else ""
        text = f"{lease.holder} leads {group.name}{place}, in epoch {lease.epoch} after {epoch}"
        found.append(Notify("Normal", "LeaderChanged", text, lease.holder))
    known, now = set(before.get("inSync") or ()), set(group.in_sync_pods())
    for pod in sorted((known - now) & set(group.pods)):
        text = f"{pod} is no longer in the in-sync set of {group.name}"
        found.append(Notify("Warning", "ReplicaDropped", text, pod))
    for pod in sorted(now - known) if known else ():
        text = f"{pod} is in the in-sync set of {group.name}"
        found.append(Notify("Normal", "ReplicaJoined", text, pod))
    return found + _diverged(group, before)


def _diverged(group: ReplicaGroup, before: Mapping[str, Any]) -> list[Notify]:
    found = []
    for pod in group.pods:
        known = _known_diverged_bytes(before, pod)
        if known is None:
            continue
        new_bytes = _diverged_bytes(group, before, pod) - known
        if new_bytes > 0:
            text = (
                f"{pod} had {new_bytes} bytes in its log that the leader of {group.name} has not, "
                "and keeps them in mailboat/diverged"
            )
            found.append(Notify("Warning", "LogDiverged", text, pod))
    return found


def _diverged_bytes(group: ReplicaGroup, before: Mapping[str, Any], pod: str) -> int:
    """Return what a replica keeps aside, or was known to while it says nothing."""
    ordinal = ordinal_of(pod)
    assert ordinal is not None
    report = group.reports.get(ordinal)
    known = _known_diverged_bytes(before, pod) or 0
    return known if report is None else int(report.get("diverged_bytes") or 0)


def _known_diverged_bytes(before: Mapping[str, Any], pod: str) -> int | None:
    """Return what the status says of that, None where it does not have the pod yet."""
    for entry in before.get("replicas") or ():
        if entry.get("pod") == pod:
            return int(entry.get("divergedBytes") or 0)
    return None


def _before(snapshot: BrokerSnapshot, name: str) -> Mapping[str, Any]:
    for entry in snapshot.resource.status.get("replicaGroups") or ():
        if entry.get("name") == name:
            return dict(entry)
    return {}
