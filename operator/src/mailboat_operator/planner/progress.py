"""How far a change is: the Progressing condition, the events of a roll, and words about pods."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mailboat_operator.planner.actions import Action, Notify, Step
from mailboat_operator.planner.conditions import (
    APPLY_REFUSED,
    BUDGETS_OVERLAP,
    CREATING,
    DRAINING,
    PROGRESSING,
    RESIZING,
    ROLL_BLOCKED,
    ROLL_STOPPED,
    ROLLING,
    SETTLED,
    UPDATING,
    Finding,
    previous_condition,
)
from mailboat_operator.planner.pods import (
    has_been_ready,
    is_ending,
    is_ready,
    is_starting,
    seconds,
    trouble,
)
from mailboat_operator.planner.rollout import Member, Roll, is_fresh
from mailboat_operator.resources.labels import selector_of

NAMED: Final = 5
"""So many pods are named in one message; the rest is counted."""

_UNDER_WAY: Final = frozenset({CREATING, ROLLING})
_AT_REST: Final = frozenset({SETTLED, DRAINING, RESIZING})


def progress_finding(
    members: Sequence[Member], roll: Roll, previous: Mapping[str, Any], *, removing: str = ""
) -> Finding:
    """Return the Progressing condition.

    Args:
        members: Every pod that there should be.
        roll: What is planned for them.
        previous: The status that was written last.
        removing: What is still being taken away; empty if nothing is.
    """
    before = previous_condition(previous, PROGRESSING).get("reason")
    if roll.blocked is not None and (roll.outdated or before not in _AT_REST or _is_new(members)):
        reason = BUDGETS_OVERLAP if roll.has_many_budgets else ROLL_BLOCKED
        return Finding(PROGRESSING, False, reason, roll.blocked)
    if roll.outdated:
        names = join_names(roll.outdated)
        going = ", ".join(deletion.name for deletion in roll.deletions)
        now = f"; {roll.waiting}" if roll.waiting else f"; restarting {going}" if going else ""
        return Finding(PROGRESSING, True, ROLLING, f"to be replaced: {names}{now}")
    unready = [describe_pod(item) for item in members if item.pod is None or not is_ready(item.pod)]
    unsteady = [item.name for item in members if not _is_steady(item)]
    if unready and (before is None or any(item.stateful_set is None for item in members)):
        return Finding(PROGRESSING, True, CREATING, join_names(unready))
    if unready and before in (*_UNDER_WAY, *ROLL_STOPPED, APPLY_REFUSED):
        reason = ROLLING if before in (ROLLING, *ROLL_STOPPED) else CREATING
        return Finding(PROGRESSING, True, reason, join_names(unready))
    if unsteady:
        message = f"objects of {join_names(unsteady)} are being changed"
        return Finding(PROGRESSING, True, CREATING if before is None else UPDATING, message)
    if removing:
        return Finding(PROGRESSING, True, UPDATING, removing)
    return Finding(PROGRESSING, False, SETTLED, "nothing is being changed")


def waits_since_s(previous: Mapping[str, Any]) -> float | None:
    """Return since when the status says that a roll is under way; 0 if it is blocked, None if the
    status speaks of no roll."""
    before = previous_condition(previous, PROGRESSING)
    if before.get("reason") in ROLL_STOPPED:
        return 0.0
    return seconds(before.get("lastTransitionTime")) if before.get("reason") == ROLLING else None


def rollout_step(roll: Roll, previous: Mapping[str, Any]) -> list[Step]:
    """Return the step that takes pods down; empty if none is to be."""
    if not roll.deletions:
        return []
    before = previous_condition(previous, PROGRESSING).get("reason")
    actions: list[Action] = []
    for deletion in roll.deletions:
        message = f"Restarting {deletion.name}: {deletion.reason}"
        actions += [deletion, Notify("Normal", "PodRestarted", message, deletion.name)]
    if before not in (ROLLING, *ROLL_STOPPED):
        message = f"Pods to be replaced, one at a time: {join_names(roll.outdated)}"
        # Behind the deletion: an event is told of what was done.
        actions.insert(1, Notify("Normal", "RollStarted", message))
    return [Step("rollout", tuple(actions))]


def roll_notices(finding: Finding, previous: Mapping[str, Any]) -> list[Step]:
    """Return the event that a roll has ended or cannot go on; each is told once."""
    before = previous_condition(previous, PROGRESSING)
    if finding.reason == SETTLED and before.get("reason") in (ROLLING, *ROLL_STOPPED):
        notice = Notify("Normal", "RollFinished", "Every pod runs the present template")
    elif finding.reason in ROLL_STOPPED and before.get("reason") != finding.reason:
        notice = Notify("Warning", finding.reason, finding.message)
    else:
        return []
    return [Step("events", (notice,))]


def describe_pod(member: Member) -> str:
    """Say what is with a pod that is not ready."""
    pod = member.pod
    if pod is None:
        return f"{member.name} does not exist yet"
    found = trouble(pod)
    if found is not None:
        return f"{member.name}: {found}"
    if is_ending(pod):
        return f"{member.name} is ending"
    return f"{member.name} is {'starting' if is_starting(pod) else 'not ready'}"


def join_names(names: Sequence[str]) -> str:
    """Name some and count the rest."""
    more = len(names) - NAMED
    return "; ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def selector_text(labels: Mapping[str, str]) -> str:
    """Spell the selector of the pods as the scale subresource wants it."""
    return ",".join(f"{key}={value}" for key, value in sorted(selector_of(labels).items()))


def _is_new(members: Sequence[Member]) -> bool:
    """Whether a pod has yet to show that it can start; one that was ready has lost its container
    for another reason than its template, and no roll is told for that."""
    return any(item.pod is not None and not has_been_ready(item.pod) for item in members)


def _is_steady(member: Member) -> bool:
    return member.is_steady and member.stateful_set is not None and is_fresh(member.stateful_set)
