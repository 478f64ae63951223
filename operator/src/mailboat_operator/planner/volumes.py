"""What is done about the volumes of a Broker, and what is shown of them.

Every volume is a case of its own (`mailboat_operator.planner.volume`): one that is refused a size
holds up no other.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mailboat_operator.crds.status import StorageStatusEntry
from mailboat_operator.planner.actions import Step
from mailboat_operator.planner.claims import claim_of
from mailboat_operator.planner.conditions import Finding
from mailboat_operator.planner.snapshot import BrokerSnapshot
from mailboat_operator.planner.volume import READ_HOURS_KEY, SELDOM_S, Volume
from mailboat_operator.planner.volume_status import (
    disk_pressure,
    pressure_notices,
    pressure_of,
    storage_ready,
)
from mailboat_operator.resources.names import claim_name, group_name, pod_name


@dataclass(frozen=True, slots=True)
class VolumePlan:
    """What to do about the volumes, and what to show."""

    steps: tuple[Step, ...]
    """One per volume and concern; each fails for itself."""

    storage: tuple[StorageStatusEntry, ...]
    """`status.storage`."""

    storage_ready: Finding
    disk_pressure: Finding
    disk: str | None
    """`status.disk`."""

    retention: str | None
    """`status.retention`."""

    live_values: Mapping[str, Mapping[str, str]]
    """Pod's name -> live settings that are decided here, and sent by the steps."""

    restarts: Mapping[str, str]
    """Pods that have to be restarted so that their file system grows -> why."""

    urgent_restarts: frozenset[str]
    """Those of them whose broker refuses messages until then."""

    template_size_bytes: Mapping[str, int]
    """Group's name -> the size that belongs into the StatefulSet's volumeClaimTemplates: never
    below the live template's, and following a claim only once that has grown."""

    again_after_s: float


def plan_volumes(snapshot: BrokerSnapshot, replicas: Mapping[str, int]) -> VolumePlan:
    """Decide about the volumes of all groups.

    Args:
        snapshot: The Broker.
        replicas: How many pods each group has whose pods are replicas, by its name.
    """
    volumes = _volumes(snapshot, replicas)
    for volume in volumes:
        volume.decide()
    found = [(volume.found.reason, volume.found.message) for volume in volumes]
    pressure = disk_pressure(
        [pressure_of(item.name, item.reading, has_pod=item.pod is not None) for item in volumes]
    )
    steps = [step for volume in volumes for step in volume.steps()]
    if notices := pressure_notices(snapshot.resource.status, pressure):
        steps.append(Step("disk pressure", notices))
    percents = [v.reading.numbers.used_percent for v in volumes if v.reading.numbers is not None]
    return VolumePlan(
        steps=tuple(steps),
        storage=tuple(volume.entry() for volume in volumes),
        storage_ready=storage_ready(found),
        disk_pressure=pressure,
        disk=f"{max(percents)}%" if percents else None,
        retention=f"{min(volume.kept_hours for volume in volumes)}h" if volumes else None,
        live_values={item.pod_name: {READ_HOURS_KEY: item.read_hours_text()} for item in volumes},
        restarts={item.pod_name: why for item in volumes if (why := item.restart_reason())},
        urgent_restarts=frozenset(
            item.pod_name for item in volumes if item.restart_reason() and item.is_refusing()
        ),
        template_size_bytes={
            group: max(item.template_bytes() for item in volumes if item.group == group)
            for group in {item.group for item in volumes}
        },
        again_after_s=min((volume.again_after_s() for volume in volumes), default=SELDOM_S),
    )


def _volumes(snapshot: BrokerSnapshot, replicas: Mapping[str, int]) -> list[Volume]:
    found = []
    for index in range(snapshot.resource.spec.groups):
        group = group_name(snapshot.resource.name, index)
        pods = [pod_name(group, ordinal) for ordinal in range(replicas.get(group, 1))]
        if group not in replicas:
            found.append(Volume(snapshot, pods[0]))
            continue
        # A log that the leader has room for has to fit into every follower's volume.
        floor_bytes = max(_asked_bytes(snapshot, pod) for pod in pods)
        found += [Volume(snapshot, pod, floor_bytes=floor_bytes, is_replica=True) for pod in pods]
    return found


def _asked_bytes(snapshot: BrokerSnapshot, pod: str) -> int:
    """Return the size that a volume has or may still get; 0 if there is none."""
    claim = claim_of(snapshot.children.claims.get(claim_name(pod)))
    if claim is None:
        return 0
    return claim.size_bytes if claim.infeasible_bytes is None else claim.capacity_bytes
