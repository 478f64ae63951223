"""What a replica knows of itself and of the others of its group, for people and for metrics."""

import msgspec

from mailboat.broker.replicas.group import ReplicaGroup
from mailboat.broker.replicas.peers import Peers
from mailboat.replication.leading import Leading
from mailboat.replication.lease import Member


class PeerReport(msgspec.Struct):
    """Another replica, as this one sees it.

    `is_in_sync`, `acked_end` (a physical offset) and `lag_bytes` are known where this one leads,
    `lag_bytes` also of who leads: by so much this one is behind.
    """

    ordinal: int
    leads: bool
    is_linked: bool
    address: str
    """Where it listens for other replicas; empty where that is not known."""

    client_address: str
    """Where it listens for clients; empty without a link."""

    is_in_sync: bool | None
    acked_end: int | None
    lag_bytes: int | None
    silent_seconds: float | None
    """How long nothing was heard of it; None where nothing was since the start."""

    unsaid_seconds: float | None
    """How long nothing was sent to it; None without a link."""

    sent_end: int | None
    """The physical offset up to which this one, which leads, has sent the log."""

    bytes_per_second: int
    """Of the log, over the last second, in either direction."""

    trouble: str
    """Why there is no link, empty where there is one or nothing is known."""


class ReplicaReport(msgspec.Struct):
    """A replica; offsets are physical ones.

    `role` is master, slave, or joining while it is neither. `leader` is an ordinal, None while
    nobody is known to lead. `in_sync` are the ordinals of the in-sync set, None where another one
    leads, who knows it.
    """

    group: str
    ordinal: int
    role: str
    epoch: int
    leader: int | None
    replicas: int
    min_in_sync: int
    in_sync: list[int] | None
    confirmed_offset: int
    end: int
    flushed_end: int
    refusal: str
    """Why no message may be stored here now, empty if it may."""

    alarm: str
    """Why a person is needed, empty while none is."""

    promotion_refusal: str
    """Why the last promotion was refused, empty while none was."""

    peers: list[PeerReport]
    troubles: list[str]
    """What is wrong at addresses that belong to no known replica."""


def report(name: str, group: ReplicaGroup, peers: Peers) -> ReplicaReport:
    """Describe a replica of the group of that name."""
    replica, by_hand = group.replica, group.by_hand
    leader = group.leader
    leading = replica.leading
    ordinals = [ordinal for ordinal in range(by_hand.replicas) if ordinal != replica.me.ordinal]
    known = {peers.address_of(ordinal) for ordinal in ordinals}
    epoch = replica.last_epoch
    if leading is not None:
        epoch = leading.epoch
    return ReplicaReport(
        group=name,
        ordinal=replica.me.ordinal,
        role="master" if leading is not None else "slave" if group.is_following else "joining",
        epoch=epoch,
        leader=None if leader is None else leader.ordinal,
        replicas=by_hand.replicas,
        min_in_sync=by_hand.min_in_sync,
        in_sync=None if leading is None else sorted(member.ordinal for member in leading.recorded),
        confirmed_offset=max(replica.confirmed, replica.durable.confirmed),
        end=replica.end,
        flushed_end=group.flushed_end,
        refusal=group.refusal(),
        alarm=group.alarm,
        promotion_refusal=group.promotion_refusal,
        peers=[_peer(ordinal, group, peers) for ordinal in ordinals],
        troubles=[
            f"{address}: {text}"
            for address, text in sorted(peers.troubles.items())
            if address not in known
        ],
    )


def _peer(ordinal: int, group: ReplicaGroup, peers: Peers) -> PeerReport:
    replica = group.replica
    link = peers.link_to(ordinal)
    said = None if link is None else link.peer
    leads = group.leader is not None and group.leader.ordinal == ordinal
    address = peers.address_of(ordinal)
    acked_end = lag_bytes = None
    is_in_sync = None
    if replica.leading is not None:
        member = None if said is None else Member(ordinal, said.store_id)
        acked_end = None if member is None else replica.leading.acked.get(member)
        lag_bytes = None if acked_end is None else replica.end - acked_end
        is_in_sync = _is_in_sync(ordinal, replica.leading)
    elif leads and replica.following is not None and replica.following.is_joined:
        lag_bytes = max(0, replica.following.leader_end - replica.end)
    silent_s = peers.silent_s(ordinal)
    return PeerReport(
        ordinal=ordinal,
        leads=leads,
        is_linked=link is not None,
        address=address,
        client_address="" if said is None else said.client_address,
        is_in_sync=is_in_sync,
        acked_end=acked_end,
        lag_bytes=lag_bytes,
        silent_seconds=None if silent_s is None else round(silent_s, 3),
        unsaid_seconds=None if link is None else round(link.unsaid_s, 3),
        sent_end=group.sent_end(ordinal),
        bytes_per_second=0 if link is None else link.flow.bytes_per_second,
        trouble="" if link is not None else peers.troubles.get(address, ""),
    )


def _is_in_sync(ordinal: int, leading: Leading) -> bool:
    return any(member.ordinal == ordinal for member in leading.recorded)
