"""What a person has done to a group: promotions and handovers, until their outcome is known."""

from typing import Final

from mailboat.broker.replicas.group import ReplicaGroup

_PATIENCE_S: Final = 10.0


async def promote(group: ReplicaGroup, *, accepts_loss: bool) -> str:
    """Let this replica lead; return why it does not, empty once it does.

    With `accepts_loss` the other replicas are not waited for: what only they have is lost.
    """
    if group.is_leading:
        return ""
    if group.is_halted and not accepts_loss:
        return f"it waits for a person: {group.alarm}"
    group.promote(accepts_loss=accepts_loss)
    await group.until(lambda: group.is_leading or bool(group.promotion_refusal), _PATIENCE_S)
    if group.is_leading:
        return ""
    return group.promotion_refusal or (
        f"there was no decision within {_PATIENCE_S:g} s; its status tells what becomes of it"
    )


async def hand_over(group: ReplicaGroup, ordinal: int | None) -> tuple[int, str]:
    """Let another replica try to lead, without an ordinal the one that has most of the log.

    Returns:
        who is to lead now as far as it is known (-1: nobody), and why that is not the other one,
        empty if it is; this replica has stopped then.
    """
    me = group.replica.me.ordinal
    leading = group.replica.leading
    if leading is None:
        leader = group.leader
        who = "nobody is known to lead" if leader is None else f"replica {leader.ordinal} does"
        return (-1 if leader is None else leader.ordinal), f"it does not lead: {who}"
    if ordinal == me:
        return me, "it leads already"
    acked = {
        member.ordinal: leading.acked.get(member, -1)
        for member in leading.recorded
        if member.ordinal != me
    }
    if ordinal is None and acked:
        ordinal = max(acked, key=lambda other: (acked[other], -other))
    if ordinal is None:
        return me, "no other replica is in the in-sync set"
    if ordinal not in acked:
        names = ", ".join(map(str, sorted({me, *acked})))
        return me, f"replica {ordinal} is not in the in-sync set ({names})"
    group.hand_over(ordinal)
    if not leading.is_handing_over:
        return me, f"replica {ordinal} is not linked"
    await group.until(lambda: not group.is_leading or not leading.is_handing_over, _PATIENCE_S)
    if group.is_leading:
        return me, f"replica {ordinal} did not have everything in time, replica {me} leads on"
    return ordinal, ""
