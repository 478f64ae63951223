"""What a replica knows of itself and of the others of its group, for people and for metrics."""

import math

import msgspec

from mailboat.broker.replicas.group import ReplicaGroup
from mailboat.broker.replicas.java_master import JavaMaster
from mailboat.broker.replicas.java_slave import JavaSlaves
from mailboat.broker.replicas.java_tables import JavaTables
from mailboat.broker.replicas.peers import Peers
from mailboat.replication.leading import Leading
from mailboat.replication.lease import Member
from mailboat.replication.lease_manifest import member_text


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


class JavaMasterReport(msgspec.Struct):
    """A master of RocketMQ whose log comes here; offsets are physical ones."""

    address: str
    """Where it listens for slaves."""

    client_address: str
    is_followed: bool
    start: int | None
    """Where its log begins."""

    end: int | None
    """Where it ends, some seconds old."""

    lag_bytes: int | None
    silent_seconds: float | None
    unsaid_seconds: float | None
    bytes_per_second: int
    trouble: str
    """Why it is not followed, empty while it is."""

    tables_age_seconds: float | None
    """How long ago its tables were taken over; None where they have not been."""

    tables_trouble: str
    """Why they are not, empty while they are."""


class JavaSlaveReport(msgspec.Struct):
    """A slave of RocketMQ that follows; offsets are physical ones."""

    address: str
    acked_end: int
    lag_bytes: int
    sent_end: int
    bytes_per_second: int


class LeaseReport(msgspec.Struct):
    """The Lease that says who leads, as it was read or written last."""

    epoch: int | None
    """None where there is no lease, or it has not been read yet; so with what follows."""

    holder: str | None
    """`podName/podUid/boot` of who leads, empty for nobody."""

    in_sync: list[str] | None
    """`ordinal:storeId` of whoever may lead next, by ordinal."""

    trouble: str
    """Why the API server was of no use when it was asked last, empty where it was."""

    endpoints_trouble: str
    """Why clients of the group may not be led to this replica, which leads; else empty."""


class ReplicaReport(msgspec.Struct):
    """A replica; offsets are physical ones.

    `role` is master, slave, or joining while it is neither. `leader` is an ordinal, None while
    nobody is known to lead. `in_sync` are the ordinals of the in-sync set, None where another one
    leads, who knows it.
    """

    group: str
    client_address: str
    """Where this replica listens for clients."""

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

    write_trouble: str
    """Why this replica cannot store what it is sent, and what to do; empty if it can."""

    promotion_refusal: str
    """Why the last promotion was refused, empty while none was, and once this one leads."""

    promotion_refused_seconds_ago: float | None
    """When that was, None where none was."""

    damaged_ranges: int
    """Of the log, that are known to be damaged and not put back yet."""

    repaired_bytes: int
    """Of damaged records that were put back from other replicas since the start."""

    diverged_bytes: int
    """Of logs that others did not have, kept in `mailboat/diverged` until somebody removes them."""

    peers: list[PeerReport]
    troubles: list[str]
    """What is wrong at addresses that belong to no known replica."""

    java_master: JavaMasterReport | None = None
    """The master of RocketMQ in whose place this replica is to be, None without one."""

    java_slaves: list[JavaSlaveReport] = []
    store_id: str = ""
    """Which volume it is: another one in the same place is another replica."""

    keeps_all: bool = False
    """Whether the log certainly has all that was acknowledged with its help."""

    seen: int = 0
    """The newest epoch that it has led, or followed."""

    has_authority: bool = False
    """Whether it leads, and nobody else can believe to."""

    lease: LeaseReport | None = None
    """The lease, None where a person says who leads."""


def report_java_master(
    master: JavaMaster, tables: JavaTables, log_end: int
) -> JavaMasterReport | None:
    """Describe the master of RocketMQ that is followed, or is to be; None without one."""
    if not master.address:
        return None
    return JavaMasterReport(
        address=master.address,
        client_address=master.client_address,
        is_followed=master.is_followed,
        start=None if master.start < 0 else master.start,
        end=None if master.end < 0 else master.end,
        lag_bytes=None if master.end < 0 else max(master.end - log_end, 0),
        silent_seconds=_seconds(master.silent_s),
        unsaid_seconds=_seconds(master.unsaid_s),
        bytes_per_second=master.flow.bytes_per_second if master.is_followed else 0,
        trouble="" if master.is_followed else master.problem,
        tables_age_seconds=_seconds(tables.age_s),
        tables_trouble=tables.problem,
    )


def report_java_slaves(slaves: JavaSlaves, log_end: int) -> list[JavaSlaveReport]:
    """Describe the slaves of RocketMQ that follow."""
    return [
        JavaSlaveReport(
            address=slave.address,
            acked_end=slave.acked_offset,
            lag_bytes=max(log_end - slave.acked_offset, 0),
            sent_end=slave.physical_offset,
            bytes_per_second=slave.flow.bytes_per_second,
        )
        for slave in slaves.slaves
        if slave.physical_offset >= 0
    ]


def report(
    name: str,
    client_address: str,
    group: ReplicaGroup,
    peers: Peers,
    replicas: int,
    endpoints_trouble: str,
    java_master: JavaMasterReport | None,
    java_slaves: list[JavaSlaveReport],
) -> ReplicaReport:
    """Describe a replica of the group of that name, which has so many.

    `endpoints_trouble` says why clients may not be led here.
    """
    if group.is_leading or group.is_following:
        java_master = None  # The group has a master of ours.
    follows = group.is_following or (java_master is not None and java_master.is_followed)
    replica = group.replica
    leader = group.leader
    leading = replica.leading
    ordinals = [ordinal for ordinal in range(replicas) if ordinal != replica.me.ordinal]
    known = {peers.address_of(ordinal) for ordinal in ordinals}
    refused_s = group.promotion_refused_s_ago
    epoch = replica.last_epoch
    if leading is not None:
        epoch = leading.epoch
    return ReplicaReport(
        group=name,
        client_address=client_address,
        ordinal=replica.me.ordinal,
        role="master" if leading is not None else "slave" if follows else "joining",
        epoch=epoch,
        leader=None if leader is None else leader.ordinal,
        replicas=replicas,
        min_in_sync=group.min_in_sync,
        in_sync=None if leading is None else sorted(member.ordinal for member in leading.recorded),
        confirmed_offset=max(replica.confirmed, replica.durable.confirmed),
        end=replica.end,
        flushed_end=group.flushed_end,
        refusal=group.refusal(),
        alarm=group.alarm or ("" if group.keeper is None else group.keeper.alarm),
        write_trouble=group.write_trouble,
        promotion_refusal=group.promotion_refusal,
        promotion_refused_seconds_ago=None if refused_s is None else round(refused_s, 3),
        damaged_ranges=group.repair.damaged_ranges,
        repaired_bytes=group.repair.repaired_bytes,
        diverged_bytes=group.aside_bytes,
        peers=[_peer(ordinal, group, peers) for ordinal in ordinals],
        troubles=[
            f"{address}: {text}"
            for address, text in sorted(peers.troubles.items())
            if address not in known
        ],
        java_master=java_master,
        java_slaves=java_slaves,
        store_id=replica.me.store_id,
        keeps_all=replica.durable.is_whole and not replica.is_suspect,
        seen=replica.durable.seen,
        has_authority=replica.has_authority,
        lease=_lease(group, endpoints_trouble),
    )


def _lease(group: ReplicaGroup, endpoints_trouble: str) -> LeaseReport | None:
    if group.keeper is None:
        return None
    lease, trouble = group.lease, group.keeper.trouble
    if lease is None:
        return LeaseReport(None, None, None, trouble, endpoints_trouble)
    holder = "" if lease.holder is None else lease.holder.boot
    in_sync = [member_text(member) for member in sorted(lease.in_sync)]
    return LeaseReport(lease.epoch, holder, in_sync, trouble, endpoints_trouble)


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
        silent_seconds=None if silent_s is None else _seconds(silent_s),
        unsaid_seconds=None if link is None else _seconds(link.unsaid_s),
        sent_end=group.sent_end(ordinal),
        bytes_per_second=0 if link is None else link.flow.bytes_per_second,
        trouble="" if link is not None else peers.troubles.get(address, ""),
    )


def _seconds(seconds: float) -> float | None:
    return None if math.isinf(seconds) else round(seconds, 3)


def _is_in_sync(ordinal: int, leading: Leading) -> bool:
    return any(member.ordinal == ordinal for member in leading.recorded)
