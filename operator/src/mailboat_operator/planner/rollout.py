"""Which pod may be taken down now, so that it comes back from the present template.

Kubernetes is told to replace no pod by itself (OnDelete). The order is:

1. A pod of an old template in which nothing runs (a bad image, no node for it) goes at once: it
   serves nobody, and only a new one can mend it.
2. A pod of the *present* template that cannot start stops everything else: whatever is wrong with
   the template takes one pod down, never a second one.
3. A pod that runs, has started and has not been ready for a while goes next.
4. Then one pod at a time, and only while every other one is ready, fit and has been so for long
   enough that clients know about it.

A pod that is still starting is never taken: it may be repairing its store for an hour, and would
begin anew. Nor is a pod whose loss would cost more than a restart (`Member.hold`). Nothing is
remembered from one decision to the next: who decided before, and how far it came, shows in the
revisions of the pods.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mailboat_operator.planner.actions import Delete
from mailboat_operator.planner.pods import (
    changed_s,
    is_ending,
    is_ready,
    is_starting,
    revision,
    runs_nothing,
    trouble,
)
from mailboat_operator.planner.snapshot import Manifest

UNREADY_PATIENCE_S: Final = 30.0
"""How long a pod that has started may be unready before it counts as not serving."""

RETRY_S: Final = 5.0
"""When to look again at what shows no event, such as what a broker says of itself."""


@dataclass(frozen=True, slots=True)
class Member:
    """One pod that there should be."""

    name: str
    pod: Manifest | None
    stateful_set: Manifest | None
    is_steady: bool
    """Whether the StatefulSet is as it should be, with no change on its way."""

    restart_reason: str | None = None
    """Why the pod needs a restart although its template has not changed."""

    unfit: str | None = None
    """Why the others have to wait for this pod although it is ready."""

    hold: str | None = None
    """Why this pod must not be taken down, whatever else is true of it."""


@dataclass(frozen=True, slots=True)
class Roll:
    """What to take down now, and how far the whole is."""

    deletions: tuple[Delete, ...] = ()
    outdated: tuple[str, ...] = ()
    """Pods that have yet to be replaced, those that are being deleted now included."""

    blocked: str | None = None
    """The pod that cannot start, and why; nothing healthy is taken down until it does."""

    waiting: str | None = None
    """What has to come first."""

    again_after_s: float | None = None


def plan_roll(members: Sequence[Member], *, now_s: float, settle_s: float) -> Roll:
    """Decide which pods to take down.

    Args:
        members: Every pod that there should be, in order.
        now_s: Wall time.
        settle_s: How long each other pod must have been ready before the next one goes.
    """
    reasons = {member.name: reason for member in members if (reason := _outdated(member))}
    outdated = tuple(reasons)
    free = [member for member in members if member.name in reasons and member.hold is None]
    blocked = next(_blocked(members, reasons), None)
    dead = [member for member in free if _is_dead(member)]
    if dead:
        deletions = tuple(_delete(member, reasons[member.name]) for member in dead)
        return Roll(deletions, outdated, blocked)
    if blocked is not None or not outdated:
        return Roll((), outdated, blocked, next(_obstacles(members), None))
    if not free:
        # What they are held for ends with an event: there is nothing to look at again.
        return Roll((), outdated, None, next(_holds(members, reasons), None))
    for member in free:
        others = [other for other in members if other is not member]
        if _is_stuck(member, now_s) and not any(map(_moves, others)):
            return Roll((_delete(member, reasons[member.name]),), outdated)
    waiting = next(_obstacles(members), None)
    if waiting is not None:
        return Roll((), outdated, None, waiting, RETRY_S)
    return _plan_healthy(members, free, reasons, now_s, settle_s)


def is_fresh(stateful_set: Manifest) -> bool:
    """Return whether Kubernetes has seen the latest change of a StatefulSet."""
    status = stateful_set.get("status") or {}
    generation = stateful_set["metadata"].get("generation")
    return bool(status.get("updateRevision")) and status.get("observedGeneration") == generation


def is_outdated(pod: Manifest, stateful_set: Manifest) -> bool:
    """Return whether a pod was made from another template than the StatefulSet has now."""
    return is_fresh(stateful_set) and revision(pod) != stateful_set["status"]["updateRevision"]


def _plan_healthy(
    members: Sequence[Member],
    free: Sequence[Member],
    reasons: dict[str, str],
    now_s: float,
    settle_s: float,
) -> Roll:
    """Take the first of the free pods whose loss all others can bear."""
    outdated, waiting, again_after_s = tuple(reasons), None, RETRY_S
    for member in free:
        wait = _wait([other for other in members if other is not member], now_s, settle_s)
        if wait is None:
            return Roll((_delete(member, reasons[member.name]),), outdated)
        if waiting is None:
            waiting, again_after_s = wait
    return Roll((), outdated, None, waiting, again_after_s)


def _wait(others: Sequence[Member], now_s: float, settle_s: float) -> tuple[str, float] | None:
    for other in others:
        if other.unfit is not None:
            return f"{other.name} {other.unfit}", RETRY_S
        since_s = changed_s(other.pod) if other.pod is not None else None
        left_s = 0.0 if since_s is None else since_s + settle_s - now_s
        # A clock that is far ahead must not hold everything up.
        if 0.0 < left_s <= 2 * settle_s:
            return f"{other.name} has just become ready", left_s
    return None


def _outdated(member: Member) -> str | None:
    """Return why a pod has to be replaced; None if it need not, or that is not known yet."""
    pod, stateful_set = member.pod, member.stateful_set
    if pod is None or stateful_set is None or is_ending(pod) or not member.is_steady:
        return None
    if is_outdated(pod, stateful_set):
        return "its template has changed"
    return member.restart_reason


def _blocked(members: Sequence[Member], reasons: dict[str, str]) -> Iterator[str]:
    for member in members:
        found = trouble(member.pod) if member.pod is not None else None
        if found is not None and member.name not in reasons:
            yield f"{member.name}: {found}"


def _holds(members: Sequence[Member], reasons: dict[str, str]) -> Iterator[str]:
    for member in members:
        if member.name in reasons and member.hold is not None:
            yield f"{member.name} is not restarted: {member.hold}"


def _obstacles(members: Sequence[Member]) -> Iterator[str]:
    """Name what keeps any healthy pod from being taken."""
    for member in members:
        if member.stateful_set is None or not member.is_steady or not is_fresh(member.stateful_set):
            yield f"the StatefulSet of {member.name} is being changed"
        elif member.pod is None:
            yield f"{member.name} does not exist yet"
        elif is_ending(member.pod):
            yield f"{member.name} is ending"
        elif is_starting(member.pod):
            yield f"{member.name} is starting"
        elif not is_ready(member.pod):
            yield f"{member.name} is not ready"


def _is_dead(member: Member) -> bool:
    return member.pod is not None and not is_ready(member.pod) and runs_nothing(member.pod)


def _is_stuck(member: Member, now_s: float) -> bool:
    pod = member.pod
    if pod is None or is_ready(pod) or is_starting(pod):
        return False
    since_s = changed_s(pod)
    return since_s is not None and now_s - since_s >= UNREADY_PATIENCE_S


def _moves(member: Member) -> bool:
    """Return whether a pod is on its way down or up."""
    pod = member.pod
    return pod is None or is_ending(pod) or (not is_ready(pod) and is_starting(pod))


def _delete(member: Member, reason: str) -> Delete:
    assert member.pod is not None
    metadata: Any = member.pod["metadata"]
    return Delete(
        kind="Pod",
        name=member.name,
        uid=metadata["uid"],
        resource_version=None,
        orphan=False,
        reason=reason,
    )
