"""What a person has done to a group: promotions, handovers, copies, until the outcome is known."""

from typing import Final

from mailboat.broker.replicas.group import ReplicaGroup

_PATIENCE_S: Final = 10.0
_ANSWER_WITHIN_S: Final = 2.0


async def promote(group: ReplicaGroup, *, accepts_loss: bool) -> str:
    """Let this replica lead; return why it does not, empty once it does.

    With `accepts_loss` the other replicas are not waited for: what only they have is lost.
    """
    if group.is_leading:
        return ""
    if group.by_hand is None and not accepts_loss:
        return "the Lease decides who leads: hand over at the leader"
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
        for member in leading.successors
        if group.is_linked(member.ordinal)
    }
    if ordinal is None and acked:
        ordinal = max(acked, key=lambda other: (acked[other], -other))
    if ordinal is None:
        return me, "no other replica is in the in-sync set and linked"
    if ordinal not in acked:
        names = ", ".join(map(str, sorted({me, *acked})))
        return me, f"replica {ordinal} is not in the in-sync set ({names}), or not linked"
    group.on_handing_over()
    try:
        group.hand_over(ordinal)
        if not leading.is_handing_over:
            return me, f"replica {ordinal} is not linked"
        # A Lease that is deleted meanwhile begins another epoch, in which nobody hands over.
        await group.until(
            lambda: group.replica.leading is not leading or not leading.is_handing_over,
            _PATIENCE_S,
        )
    finally:
        if group.is_leading:
            group.on_leading_on()
    if group.is_leading:
        return me, f"replica {ordinal} did not have everything in time, replica {me} leads on"
    return ordinal, ""


async def copy_anew(group: ReplicaGroup, *, accepts_loss: bool) -> str:
    """Let this replica begin with an empty log, and get all of it from its master.

    Its own log is kept aside. Until it has the copy there is one replica less that has what was
    acknowledged: with `accepts_loss` also where too few would be left.

    Returns:
        why it does not, empty once it does.
    """
    if group.replica.is_leading:
        return "it leads: let another one lead first"
    if not (group.is_following or group.is_halted):
        return "it follows nobody, so there is nobody who has the log"
    if not accepts_loss:
        replica = group.replica
        confirmed = max(replica.confirmed, replica.durable.confirmed)
        answers = await group.ask_others(_ANSWER_WITHIN_S)
        whole = [found for found in answers if found.is_whole and not found.is_suspect]
        left = sum(found.end >= confirmed for found in whole)
        if left < group.min_in_sync:
            return (
                f"only {left} of the others have all that is confirmed, and inSyncReplicas is "
                f"{group.min_in_sync}: a message could be lost with one of them"
            )
        if not (group.is_following or group.is_halted):
            return "it has just lost its master"
    group.begin_empty("a person wants a full copy")
    return ""
