"""What can be done to a cluster: each action is one call that can be repeated without harm."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from mailboat_operator.planner.snapshot import Manifest


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove exactly the object that the plan saw: another one of the same name stays."""

    kind: str
    name: str
    uid: str
    resource_version: str | None
    """Refused when the object has changed since; None for a pod, whose status always changes."""

    orphan: bool
    """Leave what the object owns behind (a StatefulSet's pods go on running)."""

    reason: str
    """For the log: why."""


@dataclass(frozen=True, slots=True)
class Evict:
    """Take down a pod that serves, if its disruption budget allows that now (policy/v1)."""

    name: str
    uid: str
    reason: str
    """For the log: why."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of a child; creates it if it is missing."""

    manifest: Manifest
    fallback: Manifest | None = None
    """What to apply instead when the API server refuses `manifest` as invalid (422): a Service
    that asks for an address which another one has."""

    in_the_way: Delete | None = None
    """What to remove when `manifest` is refused so: the live object has something that excludes
    ours, which no apply takes away. It is missing then, and made anew."""


@dataclass(frozen=True, slots=True)
class Create:
    """Make an object that others change from then on; one that is there stays as it is."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class CreateSecret:
    """Make a Secret of chance; one that is there stays as it is, and is not read."""

    manifest: Manifest
    """Without what it holds."""

    key: str
    """The one that it is to hold."""


@dataclass(frozen=True, slots=True)
class PutSecret:
    """Put values into a Secret and leave all others of it; it is made if it is missing."""

    manifest: Manifest
    """Without what it holds."""

    values: Mapping[str, str | None] = field(repr=False)
    """By key; None takes one out."""


@dataclass(frozen=True, slots=True)
class TakeUpLease:
    """Give a Lease that its leader has made anew the labels and the owner that it should have."""

    manifest: Manifest
    """With nothing else."""


@dataclass(frozen=True, slots=True)
class SetLeaseMinimum:
    """Change in a group's Lease how many replicas have to be in sync, and nothing else."""

    name: str
    uid: str
    minimum: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """Let another replica lead: POST /api/v1/replica/handover at the one that does."""

    pod: str
    ordinals: tuple[int, ...]
    """Who is asked for, one after another, until one can."""


@dataclass(frozen=True, slots=True)
class Patch:
    """Change exactly the object that the plan saw, in what server-side apply cannot."""

    kind: str
    name: str
    uid: str
    resource_version: str
    changes: Manifest
    """A JSON merge patch: null removes a field, a list is put there whole."""

    reason: str
    """For the log: why."""


@dataclass(frozen=True, slots=True)
class ResizeClaim:
    """Ask for another size of a volume."""

    name: str
    uid: str
    resource_version: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ConfigureBroker:
    """Change live settings of a running broker: PATCH /api/v1/config."""

    pod: str
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PutTopic:
    """Make or change a topic on one broker."""

    url: str
    topic: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Remove from one broker exactly the topic that the plan saw."""

    url: str
    topic: str
    incarnation: str | None = None
    """Tells it from a later topic of its name; None: the broker does not say."""


@dataclass(frozen=True, slots=True)
class CopyDeclarations:
    """Make on one broker the topics and consumer groups that others have and it has not."""

    pod: str
    sources: tuple[str, ...]
    """The pods of the brokers that have them."""


@dataclass(frozen=True, slots=True)
class SetFinalizers:
    """Replace the finalizers of the resource itself."""

    finalizers: tuple[str, ...]
    resource_version: str


@dataclass(frozen=True, slots=True)
class Notify:
    """A Kubernetes event on the resource; posted only if the actions before it succeeded."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    related_pod: str | None = None


Action: TypeAlias = (
    Apply
    | Delete
    | Evict
    | Create
    | CreateSecret
    | PutSecret
    | TakeUpLease
    | SetLeaseMinimum
    | HandOver
    | Patch
    | ResizeClaim
    | ConfigureBroker
    | CopyDeclarations
    | PutTopic
    | DeleteTopic
    | SetFinalizers
    | Notify
)


@dataclass(frozen=True, slots=True)
class Step:
    """Actions that belong together: the first that fails ends this step, never another one."""

    name: str
    """For logs and metrics, from a short list: `services`, `volume`, `rollout` and so on."""

    actions: tuple[Action, ...]
    subject: str = ""
    """For logs: which of several of that name, such as a group."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, and what to show."""

    steps: tuple[Step, ...]
    status: Manifest
    """The whole status; written only if it differs from the resource's."""

    again_after_s: float | None = None
    """When to plan again although nothing changes; None: at the next change or resync."""

    failures: tuple[str, ...] = field(default=())
    """Sentences about what the user must mend; already part of the conditions."""
