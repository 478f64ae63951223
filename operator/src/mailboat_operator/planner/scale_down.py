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
from mailboat_operator.planner.snapshot import BrokerSnapshot, Manifest, Observation
from mailboat_operator.resources.names import claim_name, pod_name

UNREADY_S: Final = 600.0
"""How long the pod of a group that is to go may be unready before nobody waits for its messages."""

SAME_TIME_S: Final = 60.0
"""A volume that is older than its pod by more has had another pod before."""

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
    pod = snapshot.children.pods.get(pod_name(name))
    if spec.scale_down.when_unread == "Proceed":
        return None
    if pod is None:
        return Wait(f"{name} is to go and its pod is missing, so nobody can read what it holds")
    if not is_ready(pod):
        return _wait_for_pod(snapshot, name, pod)
    said = fresh_observation(snapshot, pod_name(name), pod)
    if said is None or said.error is not None or said.config is None or said.retention is None:
        return Wait(f"{name} is to go and has not said whether what it holds is read")
    permission = _permission(said)
    if permission is None:
        return Wait(f"{name} is to go and does not say whether it takes messages")
    if permission & _WRITE:
        why = f"{name} is to go and takes no more messages"
        values = {_PERMISSION_KEY: str(permission & ~_WRITE)}
        notice = Notify("Normal", "GroupDraining", why, pod_name(name))
        return Wait(why, (ConfigureBroker(pod_name(name), values), notice))
    if said.is_retention_older or not (_is_read(said) or _is_expired(snapshot, said)):
        return Wait(f"{name} takes no more messages and goes when what it holds is read")
    return None


def _wait_for_pod(snapshot: BrokerSnapshot, name: str, pod: Manifest) -> Wait | None:
    since_s = unready_since_s(pod)
    is_late = since_s is not None and snapshot.now_s - since_s >= UNREADY_S
    is_kept = snapshot.resource.spec.pvc_retention.when_scaled == "Retain"
    if is_kept and (is_late or _never_served(snapshot, name, pod)):
        return None
    return Wait(f"{name} is to go and is not ready, so nobody can read what it holds")


def _never_served(snapshot: BrokerSnapshot, name: str, pod: Manifest) -> bool:
    """Whether the pod never ran, and no other one on its volume: there is nothing to be read."""
    claim = claim_of(snapshot.children.claims.get(claim_name(name)))
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
