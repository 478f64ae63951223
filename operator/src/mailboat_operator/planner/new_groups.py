"""Topics and consumer groups for a group that is new beside others.

Whoever made a topic or set up a consumer group did so on the brokers that there were. A group that
is added gets what the others have: the topics and consumer groups that all of the asked ones know,
and nothing that is there already is changed. That it is yet to be done stands in the status
(`brokers[].topics: Pending`), from the first plan of the group on until it is done once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mailboat_operator.planner.actions import CopyDeclarations, Notify, Step
from mailboat_operator.planner.fitness import SERVING, fresh_observation
from mailboat_operator.planner.pods import is_ready
from mailboat_operator.planner.rollout import Member
from mailboat_operator.planner.snapshot import BrokerSnapshot

STEP: Final = "declarations"
PENDING: Final = "Pending"
_ASKED: Final = 3
"""So many groups are asked what they have, the first ones."""


@dataclass(frozen=True, slots=True)
class NewGroups:
    """Which groups have yet to get topics, and the steps that give them."""

    pending: frozenset[str]
    steps: tuple[Step, ...] = ()

    @property
    def text(self) -> str:
        """What there is to say of it; empty if there is nothing."""
        names = ", ".join(sorted(self.pending))
        return f"topics and consumer groups are yet to be copied to {names}" if names else ""


def pending_groups(snapshot: BrokerSnapshot) -> frozenset[str]:
    """Return the groups whose entry in the status says that they have yet to get topics."""
    entries = snapshot.resource.status.get("brokers") or ()
    return frozenset(entry["name"] for entry in entries if entry.get("topics") == PENDING)


def plan_new_groups(
    snapshot: BrokerSnapshot, names: Sequence[str], members: Sequence[Member]
) -> NewGroups:
    """Find the groups that are new, and copy to those that serve.

    Args:
        snapshot: The Broker.
        names: The groups that there should be.
        members: Their pods, in the same order.
    """
    known = {entry["name"] for entry in snapshot.resource.status.get("brokers") or ()}
    if not known:
        return NewGroups(frozenset())  # All are new: there is nobody to copy from.
    pending = (pending_groups(snapshot) | (set(names) - known)) & set(names) - snapshot.copied
    serving = {
        name: member.name
        for name, member in zip(names, members, strict=True)
        if _serves(snapshot, member)
    }
    sources = [pod for name, pod in serving.items() if name not in pending][:_ASKED]
    steps = []
    for name in sorted(pending & serving.keys()) if sources else ():
        text = f"{name} has got the topics and consumer groups that the other groups have"
        notice = Notify("Normal", "TopicsCopied", text, serving[name])
        copy = CopyDeclarations(serving[name], tuple(sources))
        steps.append(Step(STEP, (copy, notice), name))
    return NewGroups(frozenset(pending), tuple(steps))


def _serves(snapshot: BrokerSnapshot, member: Member) -> bool:
    pod = member.pod
    said = fresh_observation(snapshot, member.name, pod)
    if pod is None or not is_ready(pod) or said is None or said.broker is None:
        return False
    return said.error is None and said.broker.get("phase") == SERVING
