"""A group's lease as an object of Kubernetes: Lease, coordination.k8s.io/v1.

    field                                     of the lease
    metadata.resourceVersion                  version
    metadata.annotations, "mailboat.dev/" and
      epoch                                   epoch, "7"
      in-sync                                 in_sync, "0:<storeId>,2:<storeId>", by ordinal
      min-in-sync                             min_in_sync, "2"
      renewals                                renewals, "4711"
      sole                                    is_sole, "true" or "false"
    spec.holderIdentity                       holder, "<podName>/<podUid>/<boot>"; "" for nobody
    spec.leaseDurationSeconds                 lease_s, 6; any other one than 1 to 60 says nothing

The holder's ordinal is the number at the end of the pod's name, its store that of the in-sync set.
`Holder.boot` is the whole identity: what lies before its last "/" names the pod. Times and
transitions in `spec` are for people; nobody reads them.
"""

import copy
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from mailboat.errors import MailboatError
from mailboat.replication.lease import Holder, Lease, Member

API_VERSION: Final = "coordination.k8s.io/v1"
KIND: Final = "Lease"
EPOCH: Final = "mailboat.dev/epoch"
IN_SYNC: Final = "mailboat.dev/in-sync"
MIN_IN_SYNC: Final = "mailboat.dev/min-in-sync"
RENEWALS: Final = "mailboat.dev/renewals"
SOLE: Final = "mailboat.dev/sole"
LARGEST_NUMBER: Final = (1 << 53) - 1
"""Of an epoch or of renewals: every program that reads JSON keeps it as it is."""

LONGEST_LEASE_S: Final = 60
"""Of `leaseSeconds`: whoever says more has not written it by that."""

LARGEST_ORDINAL: Final = 999
MOST_MEMBERS: Final = 8

_INT32_MAX: Final = (1 << 31) - 1
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,15}", re.ASCII)
_MEMBER: Final = re.compile(r"(0|[1-9][0-9]{0,2}):([0-9A-Za-z-]{1,64})", re.ASCII)
_IDENTITY: Final = re.compile(
    r"(?=.{1,253}/)[a-z0-9]([a-z0-9.-]*[a-z0-9])?-(0|[1-9][0-9]{0,2})/[0-9A-Za-z-]{1,64}"
    r"/[0-9A-Za-z-]{1,64}",
    re.ASCII,
)
_RESOURCE_VERSION: Final = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)
# What the API server keeps by itself.
_SERVERS_OWN: Final = ("creationTimestamp", "generation", "managedFields", "selfLink")


class LeaseFormatError(MailboatError):
    """An object is no lease of a group; the text says where and why."""


def identity(pod_name: str, pod_uid: str, boot: str) -> str:
    """Return what names a run of the process in a pod, as `Holder.boot`.

    Raises:
        LeaseFormatError: it would be no identity.
    """
    text = f"{pod_name}/{pod_uid}/{boot}"
    if _IDENTITY.fullmatch(text) is None:
        raise LeaseFormatError(
            f"{text!r} cannot hold a lease: the pod's name has to end with - and its ordinal, and "
            "its uid with letters, digits and - only has to follow"
        )
    return text


def decode_lease(manifest: Mapping[str, Any]) -> Lease:
    """Read an object as the API server has it.

    Raises:
        LeaseFormatError: it is no lease of a group, or one that contradicts itself.
    """
    metadata = _mapping(manifest, "metadata")
    found = metadata.get("annotations")
    annotations = found if isinstance(found, dict) else {}
    spec = _mapping(manifest, "spec")
    version = metadata.get("resourceVersion")
    if not isinstance(version, str) or _RESOURCE_VERSION.fullmatch(version) is None:
        raise LeaseFormatError(f"metadata.resourceVersion is {version!r}, and must be a number")
    in_sync = _members(_text(annotations, IN_SYNC))
    return Lease(
        int(version),
        _holder(spec.get("holderIdentity"), in_sync),
        _number(annotations, EPOCH, 0, LARGEST_NUMBER),
        in_sync,
        _number(annotations, MIN_IN_SYNC, 1, MOST_MEMBERS),
        _number(annotations, RENEWALS, 0, LARGEST_NUMBER),
        _flag(annotations, SOLE),
        _duration_s(spec.get("leaseDurationSeconds")),
    )


def member_text(member: Member) -> str:
    """Return a replica as the annotation of the in-sync set has it: "2:<storeId>"."""
    return f"{member.ordinal}:{member.store_id}"


def lease_annotations(lease: Lease) -> dict[str, str]:
    """Return all that a lease says beside its holder and its version."""
    return {
        EPOCH: str(lease.epoch),
        IN_SYNC: ",".join(map(member_text, sorted(lease.in_sync))),
        MIN_IN_SYNC: str(lease.min_in_sync),
        RENEWALS: str(lease.renewals),
        SOLE: "true" if lease.is_sole else "false",
    }


def encode_lease(
    lease: Lease, name: str, before: Mapping[str, Any], *, now: datetime
) -> dict[str, Any]:
    """Write a lease over an object, or as the first one.

    Args:
        lease: what it is to say, with a `lease_s` of whole seconds; its version is left out.
        name: the object's name.
        before: what is there, or was last: labels, owners and all that is not the lease's stay, and
            with `metadata.resourceVersion` and `uid` it replaces that object and no other one.
            Empty for none.
        now: for people.
    """
    metadata = {
        key: copy.deepcopy(value)
        for key, value in before.get("metadata", {}).items()
        if key not in _SERVERS_OWN
    }
    metadata["name"] = name
    metadata["annotations"] = (metadata.get("annotations") or {}) | lease_annotations(lease)
    holder = "" if lease.holder is None else lease.holder.boot
    former = before.get("spec") or {}
    time = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    is_acquired_now = former.get("holderIdentity") != holder or "acquireTime" not in former
    spec = {
        "holderIdentity": holder,
        "leaseDurationSeconds": int(lease.lease_s),
        "acquireTime": time if is_acquired_now else former["acquireTime"],
        "renewTime": time,
        "leaseTransitions": min(lease.epoch, _INT32_MAX),
    }
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def _mapping(manifest: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = manifest.get(key)
    if not isinstance(found, dict):
        raise LeaseFormatError(f"{key} is missing")
    return found


def _text(annotations: Mapping[str, Any], key: str) -> str:
    text = annotations.get(key)
    if not isinstance(text, str):
        raise LeaseFormatError(f"the annotation {key} is missing")
    return text


def _odd(key: str, text: str, wanted: str) -> LeaseFormatError:
    return LeaseFormatError(f"the annotation {key} is {text!r}: {wanted}")


def _number(annotations: Mapping[str, Any], key: str, least: int, most: int) -> int:
    text = _text(annotations, key)
    if _NUMBER.fullmatch(text) is None or not least <= int(text) <= most:
        raise _odd(key, text, f"it must be a number from {least} to {most}")
    return int(text)


def _flag(annotations: Mapping[str, Any], key: str) -> bool:
    text = _text(annotations, key)
    if text not in ("true", "false"):
        raise _odd(key, text, "it must be true or false")
    return text == "true"


def _duration_s(found: object) -> int:
    if not isinstance(found, int) or isinstance(found, bool):
        return 0
    return found if 1 <= found <= LONGEST_LEASE_S else 0


def _members(text: str) -> frozenset[Member]:
    found = [_MEMBER.fullmatch(part) for part in text.split(",")]
    members = [Member(int(match[1]), match[2]) for match in found if match is not None]
    ordinals = [member.ordinal for member in members]
    if len(members) < len(found) or ordinals != sorted(set(ordinals)):
        raise _odd(IN_SYNC, text, "it must be ordinal:storeId, by ordinal, joined by commas")
    if len(members) > MOST_MEMBERS:
        raise _odd(IN_SYNC, text, f"it must not have more than {MOST_MEMBERS} members")
    return frozenset(members)


def _holder(text: object, in_sync: frozenset[Member]) -> Holder | None:
    if text is None or text == "":
        return None
    match = _IDENTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise LeaseFormatError(
            f"spec.holderIdentity is {text!r}: it must be podName/podUid/boot, or empty"
        )
    ordinal = int(match[2])
    for member in in_sync:
        if member.ordinal == ordinal:
            return Holder(ordinal, member.store_id, match[0])
    raise LeaseFormatError(
        f"spec.holderIdentity is {text!r}, and {IN_SYNC} has no replica {ordinal}"
    )
