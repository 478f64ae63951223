"""What a claim and the objects beside it say about a volume's size.

A growth passes through two hands: the storage driver makes the device larger, the kubelet the file
system. What either of them could not do stands in the claim's conditions, in the driver's words;
a size that can never be made shows in `allocatedResourceStatuses`.
"""

import math
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Final

from mailboat_operator.crds.quantity import parse_quantity
from mailboat_operator.planner.autopilot import MEBIBYTE
from mailboat_operator.planner.pods import seconds
from mailboat_operator.planner.snapshot import Manifest
from mailboat_operator.resources.names import VOLUME

_WORDS_LENGTH: Final = 300


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim as Kubernetes has it."""

    name: str
    uid: str
    resource_version: str
    request_bytes: int
    capacity_bytes: int
    is_usable: bool
    """Bound, and not about to go."""

    is_ending: bool
    """Told to go, which Kubernetes puts off for as long as a pod uses it."""

    class_name: str
    volume_name: str
    created_s: float | None
    node_pending_s: float | None
    """Since when only the node's part of a growth is missing."""

    node_refused: bool
    """The node has tried its part and could not."""

    infeasible_bytes: int | None
    """The size that the driver has just said it cannot make."""

    problem: str | None
    """What the driver said."""

    @property
    def size_bytes(self) -> int:
        """What it has or will have."""
        return max(self.request_bytes, self.capacity_bytes)

    @property
    def lowest_bytes(self) -> int:
        """The least that it may ask for: Kubernetes wants more than the capacity there."""
        return (self.capacity_bytes // MEBIBYTE + 1) * MEBIBYTE

    @property
    def is_growing(self) -> bool:
        """A growth is under way that may still succeed."""
        return self.request_bytes > self.capacity_bytes and self.infeasible_bytes is None


def claim_of(manifest: Manifest | None) -> Claim | None:
    """Read a claim; None if there is none."""
    if manifest is None:
        return None
    metadata, spec = manifest["metadata"], manifest.get("spec") or {}
    status = manifest.get("status") or {}
    requests = (spec.get("resources") or {}).get("requests") or {}
    request_bytes = size_of(requests.get("storage"))
    capacity_bytes = size_of((status.get("capacity") or {}).get("storage"))
    state = (status.get("allocatedResourceStatuses") or {}).get("storage") or ""
    tried_bytes = size_of((status.get("allocatedResources") or {}).get("storage"))
    conditions = {
        condition.get("type"): condition
        for condition in status.get("conditions") or ()
        if condition.get("status") == "True"
    }
    failed = conditions.get("ControllerResizeError") or conditions.get("NodeResizeError")
    pending = conditions.get("FileSystemResizePending")
    # While the size that was tried is another one, the driver has yet to hear of this one.
    is_infeasible = (
        state == "ControllerResizeInfeasible"
        and request_bytes > capacity_bytes
        and tried_bytes in (0, request_bytes)
    )
    return Claim(
        name=metadata["name"],
        uid=str(metadata.get("uid") or ""),
        resource_version=str(metadata.get("resourceVersion") or ""),
        request_bytes=request_bytes,
        capacity_bytes=capacity_bytes,
        is_usable=status.get("phase") == "Bound" and not metadata.get("deletionTimestamp"),
        is_ending=bool(metadata.get("deletionTimestamp")),
        class_name=str(spec.get("storageClassName") or ""),
        volume_name=str(spec.get("volumeName") or ""),
        created_s=seconds(metadata.get("creationTimestamp")),
        node_pending_s=seconds(pending.get("lastTransitionTime")) if pending else None,
        node_refused="NodeResizeError" in conditions or state == "NodeResizeInfeasible",
        infeasible_bytes=request_bytes if is_infeasible else None,
        problem=str(failed.get("message") or failed.get("reason") or "") if failed else None,
    )


def pending_text(claim: Claim | None) -> str:
    """Say why a claim cannot be worked with yet."""
    if claim is None:
        return "does not exist yet"
    return "is not bound to a volume, or is being removed"


def ending_text(claim: Claim, pod: str) -> str:
    """Say what comes of a claim that is deleted while its pod runs, and how to be spared it."""
    volume = f"PersistentVolume {claim.volume_name}" if claim.volume_name else "its volume"
    return (
        f"{claim.name} is being deleted, and its messages go with it as soon as {pod} ends, so the"
        f" operator does not restart {pod}: to keep them, set persistentVolumeReclaimPolicy of"
        f" {volume} to Retain; then, or once they have been read, delete {pod} by hand, and the"
        " group goes on with a new volume"
    )


def words_of(claim: Claim) -> str:
    """Return what the storage driver said."""
    words = " ".join((claim.problem or "").split())
    return words[:_WORDS_LENGTH] or "the storage driver gives no reason"


def size_of(text: object) -> int:
    """Return the bytes of a quantity as the API server spells it; 0 if there is none."""
    if text is None:
        return 0
    try:
        return parse_quantity(str(text))
    except ValueError:
        pass
    try:
        return math.ceil(Decimal(str(text)))
    except (InvalidOperation, OverflowError, ValueError):
        return 0


def template_bytes_of(stateful_set: Manifest | None) -> int:
    """Return the size in a StatefulSet's volumeClaimTemplates; 0 if there is none."""
    templates = ((stateful_set or {}).get("spec") or {}).get("volumeClaimTemplates") or ()
    for template in templates:
        if template["metadata"]["name"] == VOLUME:
            resources = (template.get("spec") or {}).get("resources") or {}
            return size_of((resources.get("requests") or {}).get("storage"))
    return 0
