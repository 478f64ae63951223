"""A group's Lease as the operator reads it: who leads, and whose logs have everything.

The replicas write it (`mailboat.replication.lease_manifest`). What contradicts itself is told in
`problem`, and believed in nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mailboat.replication.lease_manifest import (
    EPOCH,
    IN_SYNC,
    MIN_IN_SYNC,
    LeaseFormatError,
    decode_lease,
)
from mailboat_operator.planner.pods import is_ready
from mailboat_operator.planner.snapshot import Manifest
from mailboat_operator.resources.names import group_of, ordinal_of, pod_name


@dataclass(frozen=True, slots=True)
class GroupLease:
    """What a Lease says."""

    name: str
    uid: str
    epoch: int = 0
    holder: str | None = None
    """The pod that leads; None: nobody."""

    holder_uid: str | None = None
    in_sync: Mapping[int, str] = field(default_factory=dict)
    """Ordinal -> store of each replica of the recorded set."""

    minimum: int = 1
    problem: str | None = None
    """Why nobody can believe it; all else is empty then."""

    is_foreign: bool = False
    """Whether it belongs to somebody else."""

    def in_sync_pods(self) -> tuple[str, ...]:
        """Return the pods of the recorded set."""
        return tuple(pod_name(self.name, ordinal) for ordinal in self.in_sync)

    @property
    def leader(self) -> int | None:
        """The ordinal of the replica that leads; None: nobody's."""
        return None if self.holder is None else ordinal_of(self.holder)


def read_lease(manifest: Manifest | None) -> GroupLease | None:
    """Read a group's Lease; None if there is none."""
    if manifest is None:
        return None
    metadata = manifest["metadata"]
    name, uid = str(metadata["name"]), str(metadata.get("uid") or "")
    try:
        lease = decode_lease(manifest)
    except LeaseFormatError as error:
        return GroupLease(name, uid, problem=f"the Lease {name} cannot be read: {error}")
    pod, pod_uid = lease.holder.boot.split("/")[:2] if lease.holder is not None else (None, None)
    if pod is not None and group_of(pod) != name:
        return GroupLease(name, uid, problem=f"the Lease {name} names {pod} as its holder")
    in_sync = {member.ordinal: member.store_id for member in sorted(lease.in_sync)}
    return GroupLease(name, uid, lease.epoch, pod, pod_uid, in_sync, lease.min_in_sync)


def leader_of(lease: Manifest | None) -> str | None:
    """Return the pod that a Lease says leads; None if it says none."""
    found = read_lease(lease)
    return found.holder if found is not None else None


def serving_pods(
    pods: Mapping[str, Manifest], leases: Mapping[str, Manifest]
) -> dict[str, Manifest]:
    """Return by group the pod that serves its clients: the leader's, or the only one's."""
    found = {}
    for name, pod in pods.items():
        leader = leader_of(leases.get(group_of(name)))
        if is_ready(pod) and leader in (None, name):
            found[group_of(name)] = pod
    return found


def said_by(manifest: Manifest) -> tuple[object, ...]:
    """Return what of a Lease is worth a new plan; a renewal alone is not."""
    metadata = manifest["metadata"]
    annotations = metadata.get("annotations") or {}
    return (
        metadata.get("uid"),
        metadata.get("deletionTimestamp"),
        (manifest.get("spec") or {}).get("holderIdentity"),
        *(annotations.get(key) for key in (EPOCH, IN_SYNC, MIN_IN_SYNC)),
    )
