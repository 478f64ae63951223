"""Which pod may be taken down now, so that it comes back from the present template.

Kubernetes is told to replace no pod by itself (OnDelete). The order is:

1. A pod of an old template that never ran goes at once: it serves nobody and never did, so only a
   new one can mend it. This is all that is done while a roll is blocked.
2. A pod whose broker refuses messages until its file system grows at a start goes next: the others
   lose nothing by it. It waits for a roll that is blocked only if its own template is old.
3. A pod of the *present* template that cannot start, or hangs in its start, blocks everything else:
   whatever is wrong with the template takes one pod down, never a second one.
4. A pod of an old template that cannot go on (`_is_dead`) goes while no pod of the present template
   has yet to prove itself; one that hangs in its start, or runs, has started and has not been ready
   for a while, goes while no other one is on its way.
5. Then one pod at a time, and only while every other one is ready, fit and has been so for long
   enough that clients know about it. Its disruption budget has the last word (eviction). Of a group
   of replicas the followers go first and the leader last.

A container between two runs is not dead: the kubelet will have it back in a moment. A pod that is
starting is not taken while its start moves: it may be repairing its store for an hour, and would
begin anew. Nor is a pod whose loss would cost more than a restart (`Member.hold`). Nothing is
remembered from one decision to the next: who decided before, and how far it came, shows in the
revisions of the pods.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from mailboat_operator.planner.actions import Delete, Evict
from mailboat_operator.planner.pods import (
    changed_s,
    has_been_ready,
    has_failed,
    has_run,
    is_ending,
    is_ready,
    is_starting,
    lacks_needs,
    restarts,
    revision,
    running_since_s,
    runs_nothing,
    seconds,
    trouble,
)
from mailboat_operator.planner.snapshot import EvictionRefusal, Manifest

UNREADY_PATIENCE_S: Final = 30.0
"""How long a pod that has started may be unready before it counts as not serving."""

DEAD_RESTARTS: Final = 5
DEAD_S: Final = 300.0
"""A container that was ready once has to end so often, and its pod not to be ready for so long,
before the pod counts as one that cannot go on."""

START_IDLE_S: Final = 600.0
"""How long a start that tells of its progress may show none before it hangs."""

START_PATIENCE_S: Final = 7200.0
"""How long a start that tells nothing may take before it hangs."""

ROLL_PATIENCE_S: Final = 600.0
"""How long a roll may wait, while no pod changes, before that is told as a roll that is blocked."""

RETRY_S: Final = 5.0
"""When to look again at what shows no event, such as what a broker says of itself."""

_REFUSED_RETRY_S: Final = 15.0
_OVERLAP_RETRY_S: Final = 60.0
_JUST_BEGUN_S: Final = 120.0


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

    registered: frozenset[str] = frozenset()
    """The name servers that know its broker."""

    hold: str | None = None
    """Why this pod must not be taken down, whatever else is true of it."""

    is_urgent: bool = False
    """Whether it takes no messages until it is restarted."""

    start_idle_s: float | None = None
    """For how long its start has shown no progress; None: it tells nothing of that."""

    refusal: EvictionRefusal | None = None

    behind: frozenset[str] = frozenset()
    """The pods that are replaced before this one, if they are to be: a leader's followers."""

    awaits: str | None = None
    """The pod whose restart this one needs to become ready: with that one it becomes a replica."""


@dataclass(frozen=True, slots=True)
class Roll:
    """What to take down now, and how far the whole is."""

    deletions: tuple[Delete | Evict, ...] = ()
    outdated: tuple[str, ...] = ()
    """Pods that have yet to be replaced, those that are being taken down now included."""

    blocked: str | None = None
    """What keeps the roll from going on, and will not pass by itself."""

    waiting: str | None = None
    """What has to come first."""

    again_after_s: float | None = None

    has_many_budgets: bool = False
    """Whether it is blocked because more than one disruption budget selects a pod."""


def plan_roll(
    members: Sequence[Member], *, now_s: float, settle_s: float, waits_since_s: float | None = None
) -> Roll:
    """Decide which pods to take down.

    Args:
        members: Every pod that there should be, in order.
        now_s: Wall time.
        settle_s: How long each other pod must have been ready before the next one goes.
        waits_since_s: Since when the status says that a roll is under way or blocked; None: it does
            not say so.
    """
    reasons = {member.name: reason for member in members if (reason := _outdated(member))}
    outdated = tuple(reasons)
    free = [member for member in members if member.name in reasons and member.hold is None]
    blocked = next(_blocked(members, reasons, now_s), None)
    unborn = [member for member in free if _never_ran(member)]
    if unborn:
        deletions = tuple(_delete(member, reasons[member.name]) for member in unborn)
        return Roll(deletions, outdated, blocked)
    for member in free:
        if _may_hurry(member, members, now_s, is_blocked=blocked is not None):
            return Roll((_delete(member, reasons[member.name]),), outdated, blocked)
    if blocked is not None or not outdated:
        again_after_s = RETRY_S if blocked is not None and outdated else None
        return Roll((), outdated, blocked, next(_obstacles(members), None), again_after_s)
    if not free:
        # What they are held for ends with an event: there is nothing to look at again.
        return Roll((), outdated, None, next(_holds(members, reasons), None))
    for member in free:
        if _may_give_up(member, members, reasons, now_s):
            return Roll((_delete(member, reasons[member.name]),), outdated)
    awaited = next((item for item in free if _is_awaited(item, members)), None)
    waiting = next(_obstacles(members), None)
    if awaited is not None:
        roll = _plan_awaited(awaited, members, reasons, now_s, settle_s)
    elif waiting is not None:
        roll = Roll((), outdated, None, waiting, RETRY_S)
    else:
        roll = _plan_healthy(members, free, reasons, now_s, settle_s)
    may_go_on = roll.blocked is None and roll.waiting is not None
    if may_go_on and _is_stalled(members, now_s, waits_since_s):
        return Roll(roll.deletions, outdated, roll.waiting, roll.waiting, roll.again_after_s)
    return roll


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
        first = sorted(member.behind & set(reasons))
        if first:
            waiting = waiting or f"{member.name} goes behind {first[0]}"
            continue
        others = [other for other in members if other is not member]
        wait = _wait(member, others, now_s, settle_s)
        if wait is None:
            return _eviction(member, reasons)
        if waiting is None:
            waiting, again_after_s = wait
    return Roll((), outdated, None, waiting, again_after_s)


def _is_awaited(member: Member, members: Sequence[Member]) -> bool:
    return any(other.awaits == member.name for other in members)


def _plan_awaited(
    member: Member,
    members: Sequence[Member],
    reasons: dict[str, str],
    now_s: float,
    settle_s: float,
) -> Roll:
    """Take a pod that others await, so that they become its replicas.

    Its budget is not asked: it counts those that await it as lost.
    """
    outdated = tuple(reasons)
    at_work = [other for other in members if other.awaits is None]
    waiting = next(_obstacles(at_work), None)
    if waiting is not None:
        return Roll((), outdated, None, waiting, RETRY_S)
    others = [other for other in at_work if other is not member]
    wait = _wait(member, others, now_s, settle_s)
    if wait is not None:
        return Roll((), outdated, None, *wait)
    return Roll((_delete(member, reasons[member.name]),), outdated)


def _wait(
    member: Member, others: Sequence[Member], now_s: float, settle_s: float
) -> tuple[str, float] | None:
    for other in others:
        if other.unfit is not None:
            return f"{other.name} {other.unfit}", RETRY_S
        # Whoever asks this name server finds the pod that is to go, and would find nothing else.
        missing = sorted(member.registered - other.registered)
        if missing:
            return f"{other.name} is not registered at {missing[0]}", RETRY_S
        since_s = changed_s(other.pod) if other.pod is not None else None
        left_s = 0.0 if since_s is None else since_s + settle_s - now_s
        # A clock that is far ahead must not hold everything up.
        if 0.0 < left_s <= 2 * settle_s:
            return f"{other.name} has just become ready", left_s
    return None


def _eviction(member: Member, reasons: dict[str, str]) -> Roll:
    """Ask for one pod's eviction, also where it was refused: nothing tells when it is allowed."""
    deletions, outdated = (_evict(member, reasons[member.name]),), tuple(reasons)
    refusal = member.refusal
    if refusal is None:
        return Roll(deletions, outdated, again_after_s=RETRY_S)
    words = f"{member.name} may not go now: {refusal.words}"
    if refusal.has_many_budgets:
        return Roll(deletions, outdated, words, words, _OVERLAP_RETRY_S, has_many_budgets=True)
    return Roll(deletions, outdated, None, words, _REFUSED_RETRY_S)


def _outdated(member: Member) -> str | None:
    """Return why a pod has to be replaced; None if it need not, or that is not known yet."""
    pod, stateful_set = member.pod, member.stateful_set
    if pod is None or stateful_set is None or is_ending(pod) or not member.is_steady:
        return None
    if is_outdated(pod, stateful_set):
        return "its template has changed"
    return member.restart_reason


def _blocked(members: Sequence[Member], reasons: dict[str, str], now_s: float) -> Iterator[str]:
    for member in members:
        if member.pod is None or member.name in reasons or member.awaits is not None:
            continue
        found = trouble(member.pod)
        if found is not None:
            yield f"{member.name}: {found}"
        elif _hangs(member, now_s):
            yield f"{member.name} {_hanging_text(member)}"


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


def _never_ran(member: Member) -> bool:
    return member.pod is not None and not is_ready(member.pod) and not has_run(member.pod)


def _is_dead(pod: Manifest, now_s: float) -> bool:
    """Return whether a pod cannot go on: what runs in it now and then ends at once, or nothing can.

    One that was ready once gets its time: most containers that end are back within a minute.
    """
    if is_ready(pod) or not runs_nothing(pod):
        return False
    if has_failed(pod) or lacks_needs(pod) or not has_run(pod):
        return True
    if not has_been_ready(pod):
        return trouble(pod) is not None
    since_s = changed_s(pod)
    is_late = since_s is not None and now_s - since_s >= DEAD_S
    return is_late and restarts(pod) >= DEAD_RESTARTS


def _may_hurry(
    member: Member, members: Sequence[Member], now_s: float, *, is_blocked: bool
) -> bool:
    """Return whether a restart that a full volume waits for may pass the gate now."""
    pod, stateful_set = member.pod, member.stateful_set
    if not member.is_urgent or pod is None or stateful_set is None or not is_ready(pod):
        return False
    if is_blocked and is_outdated(pod, stateful_set):
        return False
    return not any(other is not member and _has_just_gone(other, now_s) for other in members)


def _has_just_gone(member: Member, now_s: float) -> bool:
    pod = member.pod
    if pod is None or is_ending(pod):
        return True
    return not is_ready(pod) and now_s - (_began_s(pod) or 0.0) < _JUST_BEGUN_S


def _may_give_up(
    member: Member, members: Sequence[Member], reasons: dict[str, str], now_s: float
) -> bool:
    """Return whether a pod that does not serve may be replaced now."""
    if member.pod is None or is_ready(member.pod):
        return False
    others = [other for other in members if other is not member]
    if _is_dead(member.pod, now_s):
        return not any(_is_unproven(other, reasons) for other in others)
    if _is_stuck(member.pod, now_s) or _hangs(member, now_s):
        return not any(
            _moves(other) and not (other.name in reasons and _hangs(other, now_s))
            for other in others
        )
    return False


def _is_unproven(member: Member, reasons: dict[str, str]) -> bool:
    """Return whether a pod of the present template is to come, or is there and not ready."""
    pod = member.pod
    if pod is None or is_ending(pod):
        return True
    return member.name not in reasons and not is_ready(pod)


def _is_stuck(pod: Manifest, now_s: float) -> bool:
    if is_ready(pod) or is_starting(pod) or runs_nothing(pod):
        return False
    since_s = changed_s(pod)
    return since_s is not None and now_s - since_s >= UNREADY_PATIENCE_S


def _hangs(member: Member, now_s: float) -> bool:
    """Return whether a pod's start goes on no more, as far as can be told."""
    pod = member.pod
    if pod is None or is_ready(pod) or is_ending(pod) or not is_starting(pod):
        return False
    if member.start_idle_s is not None:
        return member.start_idle_s >= START_IDLE_S
    since_s = _began_s(pod)
    return since_s is not None and now_s - since_s >= START_PATIENCE_S


def _hanging_text(member: Member) -> str:
    if member.start_idle_s is not None:
        return f"is starting and has made no progress for {START_IDLE_S / 60:.0f} minutes"
    return f"has been starting for more than {START_PATIENCE_S / 3600:.0f} hours"


def _began_s(pod: Manifest) -> float | None:
    """Return since when a pod's container runs; else since when the pod is there."""
    running_s = running_since_s(pod)
    return seconds(pod["metadata"].get("creationTimestamp")) if running_s is None else running_s


def _moves(member: Member) -> bool:
    """Return whether a pod is on its way down or up."""
    pod = member.pod
    return pod is None or is_ending(pod) or (not is_ready(pod) and is_starting(pod))


def _is_stalled(members: Sequence[Member], now_s: float, waits_since_s: float | None) -> bool:
    """Return whether a roll has been waiting for long while nothing has happened to any pod.

    A start that moves is no reason to say so, however long it takes.
    """
    if waits_since_s is None:
        return False
    pods = [member.pod for member in members if member.pod is not None]
    if any(not is_ready(pod) and is_starting(pod) for pod in pods):
        return False
    times = [
        time
        for pod in pods
        for time in (changed_s(pod), seconds(pod["metadata"].get("creationTimestamp")))
        if time is not None and time <= now_s
    ]
    return now_s - max([waits_since_s, *times]) >= ROLL_PATIENCE_S


def _delete(member: Member, reason: str) -> Delete:
    return Delete(
        kind="Pod",
        name=member.name,
        uid=_uid(member),
        resource_version=None,
        orphan=False,
        reason=reason,
    )


def _evict(member: Member, reason: str) -> Evict:
    return Evict(name=member.name, uid=_uid(member), reason=reason)


def _uid(member: Member) -> str:
    assert member.pod is not None
    return str(member.pod["metadata"]["uid"])
