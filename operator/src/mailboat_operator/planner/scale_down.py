"""When a group that the spec has no more may go.

Nobody reads what a broker holds that is no more, so a group first takes no more messages
(`brokerPermission` without write, a live setting) and goes once every consumer group has read what
it holds, or that is older than the retention. `scaleDown.whenUnread: Proceed` skips both. A group
that has not served for long is not waited for where its volume is kept: its messages are out of
reach already, and come back with it. One whose pod is on its way (a drain, a restart) will serve in
a moment, and is waited for.
"""

from dataclasses import dataclass
from typing import Final

from mailboat_operator.planner.actions import Action, ConfigureBroker, Notify
from mailboat_operator.planner.claims import claim_of
from mailboat_operator.planner.fitness import fresh_observation
from mailboat_operator.planner.pods import has_run, is_ready, seconds, unready_since_s
from mailboat_operator.planner.replica_groups import (
    SAME_TIME_S,
    is_of_replicas,
    is_replica,
    own_lease,
)
from mailboat_operator.planner.snapshot import BrokerSnapshot, Manifest, Observation
from mailboat_operator.resources.names import claim_name, group_of, pod_name

UNREADY_S: Final = 600.0
"""How long the pod of a group that is to go may be unready before nobody waits for its messages."""

_PERMISSION_KEY: Final = "brokerPermission"
_WRITE: Final = 2


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a group does not go yet."""

    why: str
    actions: tuple[Action, ...] = ()


def wait_of(snapshot: BrokerSnapshot, name: str) -> Wait | None:
    """Return why a group that is to go has to wait; None if it may go now."""
    spec = snapshot.resource.spec
    if spec.scale_down.when_unread == "Proceed":
        return None
    is_replicated = _is_of_replicas(snapshot, name)
    # All replicas have the same messages; the one that leads says what is read.
    place = _leader(snapshot, name) if is_replicated else pod_name(name)
    if place is None:
        return _wait_for_leader(snapshot, name)
    pod = snapshot.children.pods.get(place)
    if pod is None:
        return Wait(f"{name} is to go and its pod is missing, so nobody can read what it holds")
    if not is_ready(pod):
        return _wait_for_pod(snapshot, name, pod)
    said = fresh_observation(snapshot, place, pod)
    if said is None or said.error is not None or said.config is None or said.retention is None:
        return Wait(f"{name} is to go and has not said whether what it holds is read")
    if is_replicated and (said.replica or {}).get("role") != "master":
        return Wait(f"{name} is to go and nobody leads it, so nobody can tell what is read")
    permission = _permission(said)
    if permission is None:
        return Wait(f"{name} is to go and does not say whether it takes messages")
    if permission & _WRITE:
        why = f"{name} is to go and takes no more messages"
        values = {_PERMISSION_KEY: str(permission & ~_WRITE)}
        notice = Notify("Normal", "GroupDraining", why, place)
        return Wait(why, (ConfigureBroker(place, values), notice))
    if said.is_retention_older or not (_is_read(said) or _is_expired(snapshot, said)):
        return Wait(f"{name} takes no more messages and goes when what it holds is read")
    return None


def _is_of_replicas(snapshot: BrokerSnapshot, name: str) -> bool:
    live, first = snapshot.children, snapshot.children.pods.get(pod_name(name))
    if name not in live.leases and first is not None and not is_replica(first):
        return False  # The pod of before has all messages; its replicas never began.
    is_made = is_of_replicas(live.stateful_sets.get(name)) or name in live.leases
    return is_made or any(is_replica(pod) for pod in _pods(snapshot, name))


def _pods(snapshot: BrokerSnapshot, name: str) -> list[Manifest]:
    return [pod for place, pod in snapshot.children.pods.items() if group_of(place) == name]


def _leader(snapshot: BrokerSnapshot, name: str) -> str | None:
    """Return the pod that leads by the Lease; None where that is another one, or nobody."""
    lease = own_lease(snapshot, name)
    pod = snapshot.children.pods.get(lease.holder or "") if lease is not None else None
    if lease is None or pod is None or pod["metadata"].get("uid") != lease.holder_uid:
        return None
    return lease.holder


def _wait_for_leader(snapshot: BrokerSnapshot, name: str) -> Wait | None:
    """Wait for somebody who leads; not where none of the replicas has served for long."""
    pods = _pods(snapshot, name)
    if pods and not any(is_ready(pod) for pod in pods):
        waits = [_wait_for_pod(snapshot, name, pod) for pod in pods]
        return next((wait for wait in waits if wait is not None), None)
    return Wait(f"{name} is to go and nobody leads it, so nobody can tell what it holds")


def _wait_for_pod(snapshot: BrokerSnapshot, name: str, pod: Manifest) -> Wait | None:
    since_s = unready_since_s(pod)
    is_late = since_s is not None and snapshot.now_s - since_s >= UNREADY_S
    is_kept = snapshot.resource.spec.pvc_retention.when_scaled == "Retain"
    if is_kept and (is_late or _never_served(snapshot, pod)):
        return None
    return Wait(f"{name} is to go and is not ready, so nobody can read what it holds")


def _never_served(snapshot: BrokerSnapshot, pod: Manifest) -> bool:
    """Whether the pod never ran, and no other one on its volume: there is nothing to be read."""
    claim = claim_of(snapshot.children.claims.get(claim_name(pod["metadata"]["name"])))
    made_s = seconds(pod["metadata"].get("creationTimestamp"))
    if has_run(pod) or claim is None or claim.created_s is None or made_s is None:
        return False
    return made_s - claim.created_s <= SAME_TIME_S


def _permission(said: Observation) -> int | None:
    """Return the broker's permission; None if it is no number.

    One that does not show it is not asked to change it.
    """
    try:
        return int((said.config or {}).get(_PERMISSION_KEY, "0"))
    except ValueError:
        return None


def _is_read(said: Observation) -> bool:
    return (said.retention or {}).get("unread_bytes") == 0


def _is_expired(snapshot: BrokerSnapshot, said: Observation) -> bool:
    """Whether the newest message is older than messages are kept."""
    retention = said.retention or {}
    newest_ms = max(
        (int(item.get("last_timestamp_ms") or -1) for item in retention.get("segments") or ()),
        default=-1,
    )
    kept_s = snapshot.resource.spec.retention.hours * 3600
    return newest_ms >= 0 and snapshot.now_s - newest_ms / 1000 > kept_s
