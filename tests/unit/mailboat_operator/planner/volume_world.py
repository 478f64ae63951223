"""A Broker with its claims, pods and brokers' numbers, as plan_volumes sees them.

What a plan does is taken over by `carry_out`; what Kubernetes and the storage driver do is said by
the tests.
"""

import copy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from mailboat.testing.virtual_time import START_WALL_MS, VirtualTime
from mailboat_operator.crds.broker import parse_broker
from mailboat_operator.planner.actions import ConfigureBroker, Notify, ResizeClaim
from mailboat_operator.planner.conditions import build_conditions
from mailboat_operator.planner.snapshot import (
    BrokerSnapshot,
    Children,
    Observation,
    UseSample,
    VolumeNumbers,
)
from mailboat_operator.planner.volumes import VolumePlan, plan_volumes

MIB = 1 << 20
GIB = 1 << 30
HOUR_S = 3600
START_S = START_WALL_MS / 1000
OK_CLASS = {"metadata": {"name": "fast"}, "allowVolumeExpansion": True}


def time_text(time_s: float) -> str:
    """Spell a time as Kubernetes does."""
    return datetime.fromtimestamp(int(time_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class World:
    """One Broker `orders` whose volumes have 10 GiB, of which half is used."""

    def __init__(self, *, groups: int = 1, replicas: int = 0, **storage: Any) -> None:
        """Begin with volumes that have what the spec asks for; with replicas, each of a group."""
        self.clock = VirtualTime()
        self.spec: dict[str, Any] = {
            "nameServers": {"addresses": ["ns:9876"]},
            "groups": groups,
            "storage": {"size": "10Gi", "className": "fast"} | storage,
            "retention": {"hours": 72, "minHours": 12},
        }
        self.status: dict[str, Any] = {}
        self.classes: dict[str, Any] | None = {"fast": OK_CLASS}
        self.replicas = {f"orders-g{group}": replicas for group in range(groups) if replicas}
        names = [
            f"orders-g{group}-{ordinal}"
            for group in range(groups)
            for ordinal in range(replicas or 1)
        ]
        self.claims = {f"data-{name}": self._claim(f"data-{name}") for name in names}
        self.pods = {name: self._pod(name) for name in names}
        self.template_sizes = {f"orders-g{group}": "10Gi" for group in range(groups)}
        self.observations = {name: self._observation() for name in self.pods}
        self.refuses: set[str] = set()
        self.busy: set[str] = set()
        self.resizes: list[ResizeClaim] = []
        self.events: list[Notify] = []
        self.configured: list[ConfigureBroker] = []

    @property
    def claim(self) -> dict[str, Any]:
        """Return the first group's claim."""
        return self.claims["data-orders-g0-0"]

    @property
    def entry(self) -> dict[str, Any]:
        """Return what the status says of the first group's volume."""
        found: dict[str, Any] = self.status["storage"][0]
        return found

    def use(
        self, percent: float, *, per_s: float = 0.0, pod: str = "orders-g0-0", **more: Any
    ) -> None:
        """Let a broker say now how full its volume is, with an hour of history."""
        size = self.capacity(f"data-{pod}")
        used = int(size * percent / 100)
        config = self.observations[pod].config
        samples = tuple(
            UseSample(self.monotonic_s - 3600 + step * 60, used - int((60 - step) * 60 * per_s),
                      10**12 - int((60 - step) * 60 * per_s))
            for step in range(61)
        )  # fmt: skip
        retention = {
            "volume": {
                "capacity_bytes": size,
                "used_bytes": used,
                "available_bytes": size - used,
                "inodes_total": 1000,
                "inodes_used": 15,
            },
            "active": {"expire": percent > 75, "force_clean": percent > 85,
                       "reject_writes": percent > 90},
            "refusal": "full" if percent > 90 else None,
            "oldest_message_timestamp_ms": int(self.now_s * 1000) - 5000,
            "segments": [],
        } | more  # fmt: skip
        self.observations[pod] = Observation(
            pod_uid=f"uid-{pod}",
            seen_monotonic_s=self.monotonic_s,
            error=None,
            broker=None,
            config=config,
            retention=retention,
            kubelet=None,
            samples=samples,
        )

    def silence(self, *, kubelet_percent: float | None = None, pod: str = "orders-g0-0") -> None:
        """Let a broker not answer from now on."""
        kubelet = None
        if kubelet_percent is not None:
            size = self.capacity(f"data-{pod}")
            used = int(size * kubelet_percent / 100)
            kubelet = VolumeNumbers(size, used, size - used, "kubelet")
        self.observations[pod] = replace(self.observations[pod], error="refused", kubelet=kubelet)

    def capacity(self, claim: str) -> int:
        """Return what a volume really has."""
        return _bytes(self.claims[claim]["status"]["capacity"]["storage"])

    def request(self, claim: str = "data-orders-g0-0") -> int:
        """Return what a claim asks for."""
        return _bytes(self.claims[claim]["spec"]["resources"]["requests"]["storage"])

    def set_request(self, size: str) -> None:
        """Let a person change the first claim."""
        self.claim["spec"]["resources"]["requests"]["storage"] = size

    def finish_growth(self, claim: str = "data-orders-g0-0") -> None:
        """Let the driver and the kubelet do what a claim asks for."""
        live = self.claims[claim]
        size = live["spec"]["resources"]["requests"]["storage"]
        live["status"] = {"phase": "Bound", "capacity": {"storage": size}}

    def refuse_growth(self, words: str = "1 is above the limit") -> None:
        """Let the driver say that it cannot make what the first claim asks for."""
        size = self.claim["spec"]["resources"]["requests"]["storage"]
        self.claim["status"] |= {
            "allocatedResources": {"storage": size},
            "allocatedResourceStatuses": {"storage": "ControllerResizeInfeasible"},
            "conditions": [
                {"type": "ControllerResizeError", "status": "True", "message": words},
            ],
        }

    def wait_for_node(self, since_s: float, *, refused: bool = False) -> None:
        """Let the driver be done and the node's part be missing."""
        conditions = [{"type": "FileSystemResizePending", "status": "True",
                       "lastTransitionTime": time_text(since_s)}]  # fmt: skip
        if refused:
            conditions.append({"type": "NodeResizeError", "status": "True", "message": "in use"})
        self.claim["status"] |= {
            "allocatedResourceStatuses": {"storage": "NodeResizePending"},
            "conditions": conditions,
        }

    @property
    def now_s(self) -> float:
        """Return the wall clock, epoch seconds."""
        return self.clock.time()

    @property
    def monotonic_s(self) -> float:
        """Return the operator's own clock."""
        return self.clock.monotonic()

    def snapshot(self) -> BrokerSnapshot:
        """Return what the operator sees now."""
        metadata = {"name": "orders", "namespace": "shop", "uid": "u", "generation": 1,
                    "creationTimestamp": time_text(START_S - 86_400)}  # fmt: skip
        manifest = {"metadata": metadata, "spec": self.spec, "status": self.status}
        return BrokerSnapshot(
            resource=parse_broker(manifest),
            children=Children(
                stateful_sets={
                    name: {"metadata": {"name": name}, "spec": {"volumeClaimTemplates": [
                        {"metadata": {"name": "data"},
                         "spec": {"resources": {"requests": {"storage": size}}}}]}}
                    for name, size in self.template_sizes.items()
                },
                pods=copy.deepcopy(self.pods),
                claims=copy.deepcopy(self.claims),
            ),
            storage_classes=self.classes,
            name_server=None,
            observations=dict(self.observations),
            default_image="mailboat:1",
            now_s=self.now_s,
            monotonic_s=self.monotonic_s,
        )  # fmt: skip

    def plan(self) -> VolumePlan:
        """Plan without carrying anything out."""
        return plan_volumes(self.snapshot(), self.replicas)

    def turn(self, *, after_s: float = 0.0) -> VolumePlan:
        """Let time pass, plan, and carry the plan out."""
        self.clock.advance(after_s)
        plan = self.plan()
        self.carry_out(plan)
        return plan

    def carry_out(self, plan: VolumePlan) -> None:
        """Do what a plan says, each step for itself, and write the status."""
        for step in plan.steps:
            for action in step.actions:
                if isinstance(action, ResizeClaim):
                    self.resizes.append(action)
                    if action.name in self.refuses:
                        break
                    self.resize(action)
                elif isinstance(action, ConfigureBroker):
                    self.configured.append(action)
                    if action.pod in self.busy:
                        break
                    observation = self.observations[action.pod]
                    config = dict(observation.config or {}) | dict(action.values)
                    self.observations[action.pod] = replace(observation, config=config)
                elif isinstance(action, Notify):
                    self.events.append(action)
        conditions = build_conditions(
            [plan.storage_ready, plan.disk_pressure], self.status, generation=1, now_s=self.now_s
        )
        self.status = msgspec.to_builtins({"storage": plan.storage, "conditions": conditions})

    def resize(self, action: ResizeClaim) -> None:
        """Do what the API server does, and refuse what it refuses."""
        claim = self.claims[action.name]
        assert action.uid == claim["metadata"]["uid"]
        asked = _bytes(claim["spec"]["resources"]["requests"]["storage"])
        assert action.size_bytes != asked, "a write that changes nothing"
        if action.size_bytes < asked:
            assert action.size_bytes > self.capacity(action.name), "less than status.capacity"
        else:
            # The driver begins anew with it, whatever it said of another size.
            claim["status"].pop("allocatedResourceStatuses", None)
        claim["spec"]["resources"]["requests"]["storage"] = str(action.size_bytes)

    def reasons(self) -> list[str]:
        """Return the reasons of all events."""
        return [event.reason for event in self.events]

    def _claim(self, name: str) -> dict[str, Any]:
        return {
            "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "7",
                         "creationTimestamp": time_text(START_S - 86_000)},
            "spec": {"storageClassName": "fast",
                     "resources": {"requests": {"storage": "10Gi"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "10Gi"}},
        }  # fmt: skip

    def _pod(self, name: str) -> dict[str, Any]:
        return {
            "metadata": {"name": name, "uid": f"uid-{name}",
                         "creationTimestamp": time_text(START_S - 85_000)},
            "spec": {"volumes": [{"name": "data",
                                  "persistentVolumeClaim": {"claimName": f"data-{name}"}}]},
        }  # fmt: skip

    def _observation(self) -> Observation:
        return Observation(
            pod_uid="uid",
            seen_monotonic_s=None,
            error=None,
            broker=None,
            config={"readFileReservedTime": "-1"},
            retention=None,
            kubelet=None,
            samples=(),
        )


def _bytes(text: str) -> int:
    for unit, size in (("Gi", GIB), ("Mi", MIB)):
        if text.endswith(unit):
            return int(text.removesuffix(unit)) * size
    return int(text)
