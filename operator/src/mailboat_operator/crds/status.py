"""What the operator shows in `status`.

No field is required, so that a status that knows little yet can always be written. Numbers are
rounded (whole per cent, whole Mi, whole hours) so that rest writes nothing.
"""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

ConditionStatus: TypeAlias = Literal["True", "False", "Unknown"]
ThresholdName: TypeAlias = Literal["expire", "forceClean", "rejectWrites"]
NumbersFrom: TypeAlias = Literal["broker", "kubelet", "stale", "none"]

_Text = Annotated[str, Meta(max_length=1024)]
_Name = Annotated[str, Meta(max_length=253)]
_Time = Annotated[str, Meta(max_length=40, extra_json_schema={"format": "date-time"})]
_Size = Annotated[str, Meta(max_length=40)]
_Percent = Annotated[int, Meta(ge=0, le=100)]
_Count = Annotated[int, Meta(ge=0)]

ObservedGeneration = Annotated[
    _Count | None, Meta(description="The metadata.generation that this status is about.")
]
Version = Annotated[
    _Name | None,
    Meta(description="Version of mailboat that runs; several, with commas, while it changes."),
]
Selector = Annotated[
    _Text | None,
    Meta(description="Label selector of the pods, for the scale subresource."),
]


class Condition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """One statement about the resource, as `kubectl wait --for=condition=` understands it."""

    type: Annotated[str, Meta(description="What the condition is about.", max_length=316)]
    status: Annotated[
        ConditionStatus | None, Meta(description="Whether it is so: True, False or Unknown.")
    ] = None
    reason: Annotated[
        Annotated[str, Meta(max_length=1024)] | None,
        Meta(description="Why, in one word from the list in docs/operator.md."),
    ] = None
    message: Annotated[
        Annotated[str, Meta(max_length=32_768)] | None,
        Meta(description="Why, in a sentence with numbers."),
    ] = None
    last_transition_time: Annotated[_Time | None, Meta(description="When status last changed.")] = (
        None
    )
    observed_generation: ObservedGeneration = None


Conditions = Annotated[
    tuple[Condition, ...],
    Meta(
        description="What is so and what is not; each type stands at most once.",
        max_length=16,
        extra={"list_map_keys": ("type",)},
    ),
]


class BrokerStatusEntry(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True
):
    """One broker: one group of the Broker."""

    name: Annotated[
        str,
        Meta(description="Name of the group's StatefulSet and Service.", max_length=253),
    ]
    broker_name: Annotated[_Name | None, Meta(description="RocketMQ's name of its broker.")] = None
    pod: Annotated[_Name | None, Meta(description="Name of its pod.")] = None
    address: Annotated[
        _Name | None, Meta(description="host:port that clients are told to use.")
    ] = None
    ready: Annotated[
        bool | None,
        Meta(
            description="Whether its pod is ready to serve. It may still be of an older template:"
            " see upToDate."
        ),
    ] = None
    up_to_date: Annotated[
        bool | None, Meta(description="Whether its pod was made from the present template.")
    ] = None
    registered: Annotated[
        bool | None, Meta(description="Whether it is registered at every name server.")
    ] = None
    version: Annotated[_Name | None, Meta(description="Version of mailboat that it runs.")] = None
    topics: Annotated[
        Literal["Pending"] | None,
        Meta(
            description="Pending: it is new, and the topics and consumer groups of the other"
            " groups are yet to be copied to it."
        ),
    ] = None
    message: Annotated[
        _Text | None, Meta(description="What is wrong with it, if something is.")
    ] = None


class StorageStatusEntry(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True
):
    """One broker's volume."""

    pod: Annotated[str, Meta(description="Name of the pod that uses the volume.", max_length=253)]
    claim: Annotated[
        _Name | None, Meta(description="Name of the volume's PersistentVolumeClaim.")
    ] = None
    capacity: Annotated[
        _Size | None, Meta(description="Size that the volume has, by its claim's status.")
    ] = None
    requested_size: Annotated[_Size | None, Meta(description="Size that the claim asks for.")] = (
        None
    )
    desired_size: Annotated[
        _Size | None,
        Meta(description="Size that the operator wants: the spec's, or what it has grown to."),
    ] = None
    used_percent: Annotated[
        _Percent | None, Meta(description="Used part of the file system, rounded up.")
    ] = None
    inodes_used_percent: Annotated[
        _Percent | None, Meta(description="Used part of the file system's inodes, rounded up.")
    ] = None
    numbers_from: Annotated[
        NumbersFrom | None,
        Meta(
            description="Who counted: the broker, or the kubelet while the broker is down. stale:"
            " the numbers are old; none: there are none."
        ),
    ] = None
    active_thresholds: Annotated[
        tuple[ThresholdName, ...],
        Meta(
            description="Thresholds that are in force now, in the order of the spec.", max_length=3
        ),
    ] = ()
    oldest_message_time: Annotated[
        _Time | None, Meta(description="When the oldest message was stored, to the hour.")
    ] = None
    effective_retention: Annotated[
        _Size | None,
        Meta(
            description="How long messages that every group has read are kept now; shorter than"
            " spec.retention.hours when the volume is filling."
        ),
    ] = None
    time_to_full: Annotated[
        _Size | None,
        Meta(
            description="When forceClean is reached at the present rate, such as 5h. Missing when"
            " that is more than a week away or not known."
        ),
    ] = None
    last_growth_time: Annotated[
        _Time | None, Meta(description="When the operator last made the volume larger.")
    ] = None
    grown_from: Annotated[
        _Size | None, Meta(description="Size that the volume had before it last grew.")
    ] = None
    last_emergency_growth_time: Annotated[
        _Time | None,
        Meta(description="When it was last made larger at once, because writes were refused."),
    ] = None
    infeasible_size: Annotated[
        _Size | None, Meta(description="Size that the storage has refused; it is not asked again.")
    ] = None
    last_refusal_time: Annotated[
        _Time | None, Meta(description="When a size was last refused.")
    ] = None
    last_retention_change_time: Annotated[
        _Time | None, Meta(description="When the broker last took over a shortened retention.")
    ] = None
    message: Annotated[
        _Text | None, Meta(description="What is wrong with the volume, if something is.")
    ] = None


class ReplicaStatusEntry(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True
):
    """One replica of a group."""

    pod: Annotated[str, Meta(description="Name of its pod.", max_length=253)]
    role: Annotated[
        Literal["leader", "follower", "joining"] | None,
        Meta(description="leader, follower, or joining while it is neither."),
    ] = None
    in_sync: Annotated[
        bool | None, Meta(description="Whether it is in the recorded in-sync set.")
    ] = None
    ready: Annotated[bool | None, Meta(description="Whether its pod is ready.")] = None
    lag_bytes: Annotated[
        _Count | None,
        Meta(description="What it lacks of the leader's log, in whole MiB."),
    ] = None
    diverged_bytes: Annotated[
        _Count | None,
        Meta(
            description="What it had of the log and its leader had not, kept in mailboat/diverged"
            " on its volume until somebody removes it."
        ),
    ] = None
    message: Annotated[
        _Text | None, Meta(description="What is wrong with it, if something is.")
    ] = None


class ReplicaGroupStatusEntry(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True
):
    """The replicas of one group."""

    name: Annotated[
        str, Meta(description="Name of the group's StatefulSet, Service and Lease.", max_length=253)
    ]
    leader: Annotated[_Name | None, Meta(description="Name of the pod that leads.")] = None
    epoch: Annotated[
        _Count | None, Meta(description="How often the leader has changed; it never falls.")
    ] = None
    in_sync: Annotated[
        tuple[_Name, ...],
        Meta(description="Pods of the recorded in-sync set: only these may lead.", max_length=8),
    ] = ()
    lag_bytes: Annotated[
        _Count | None,
        Meta(description="What the furthest behind lacks of the leader's log, in whole MiB."),
    ] = None
    replicas: Annotated[
        tuple[ReplicaStatusEntry, ...],
        Meta(
            description="Each replica.",
            max_length=8,
            extra={"list_map_keys": ("pod",)},
        ),
    ] = ()
    message: Annotated[
        _Text | None, Meta(description="What is wrong with the group, if something is.")
    ] = None


class ListenerStatusEntry(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True
):
    """One listener, and where clients find it."""

    name: Annotated[str, Meta(description="Name of the listener.", max_length=253)]
    addresses: Annotated[
        tuple[_Name, ...],
        Meta(description="host:port of each pod, as far as it is known.", max_length=512),
    ] = ()


class BrokerStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What is known of a Broker."""

    observed_generation: ObservedGeneration = None
    conditions: Conditions = ()
    groups: Annotated[_Count | None, Meta(description="How many groups there are.")] = None
    ready_groups: Annotated[_Count | None, Meta(description="How many of them are ready.")] = None
    ready: Annotated[
        _Name | None, Meta(description="Ready groups of wanted ones, such as 2/3.")
    ] = None
    selector: Selector = None
    version: Version = None
    cluster_name: Annotated[
        _Name | None, Meta(description="Name of the RocketMQ cluster that the groups form.")
    ] = None
    disk: Annotated[_Name | None, Meta(description="Use of the fullest volume, such as 74%.")] = (
        None
    )
    retention: Annotated[
        _Name | None,
        Meta(description="The shortest effective retention of a group, such as 72h."),
    ] = None
    brokers: Annotated[
        tuple[BrokerStatusEntry, ...],
        Meta(
            description="Each group.",
            max_length=128,
            extra={"list_map_keys": ("name",)},
        ),
    ] = ()
    replica_groups: Annotated[
        tuple[ReplicaGroupStatusEntry, ...],
        Meta(
            description="The replicas of each group; nothing where there is one of each.",
            max_length=128,
            extra={"list_map_keys": ("name",)},
        ),
    ] = ()
    storage: Annotated[
        tuple[StorageStatusEntry, ...],
        Meta(
            description="Each broker's volume.",
            max_length=512,
            extra={"list_map_keys": ("pod",)},
        ),
    ] = ()
    listeners: Annotated[
        tuple[ListenerStatusEntry, ...],
        Meta(
            description="Where clients find each listener.",
            max_length=8,
            extra={"list_map_keys": ("name",)},
        ),
    ] = ()


class NameServerStatus(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True
):
    """What is known of a NameServer."""

    observed_generation: ObservedGeneration = None
    conditions: Conditions = ()
    replicas: Annotated[_Count | None, Meta(description="How many name servers there are.")] = None
    ready_replicas: Annotated[_Count | None, Meta(description="How many of them are ready.")] = None
    ready: Annotated[
        _Name | None, Meta(description="Ready name servers of wanted ones, such as 2/2.")
    ] = None
    selector: Selector = None
    addresses: Annotated[
        tuple[_Name, ...],
        Meta(description="host:port of each, for clients and brokers.", max_length=16),
    ] = ()
    listeners: Annotated[
        tuple[ListenerStatusEntry, ...],
        Meta(
            description="Where clients find each listener.",
            max_length=8,
            extra={"list_map_keys": ("name",)},
        ),
    ] = ()


class TopicStatusEntry(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True
):
    """The topic on one group."""

    name: Annotated[str, Meta(description="Name of the group's broker.", max_length=253)]
    read_queues: Annotated[_Count | None, Meta(description="Queues that consumers read.")] = None
    write_queues: Annotated[_Count | None, Meta(description="Queues that producers write.")] = None
    perm: Annotated[_Name | None, Meta(description="What clients may do there.")] = None


class TopicStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What is known of a Topic."""

    observed_generation: ObservedGeneration = None
    conditions: Conditions = ()
    topic_name: Annotated[_Name | None, Meta(description="Name of the topic in RocketMQ.")] = None
    ready: Annotated[
        _Name | None, Meta(description="Groups that have the topic as wanted, of all, such as 2/2.")
    ] = None
    brokers: Annotated[
        tuple[TopicStatusEntry, ...],
        Meta(
            description="The topic on each group.",
            max_length=128,
            extra={"list_map_keys": ("name",)},
        ),
    ] = ()


class UserStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What is known of a User."""

    observed_generation: ObservedGeneration = None
    conditions: Conditions = ()
    access_key: Annotated[_Name | None, Meta(description="Its name in signatures.")] = None
    secret_name: Annotated[
        _Name | None, Meta(description="The Secret with what clients sign with.")
    ] = None
    applied: Annotated[
        _Name | None,
        Meta(description="Brokers for which the User counts as it is, of all, such as 2/2."),
    ] = None
    applied_brokers: Annotated[
        tuple[_Name, ...],
        Meta(description="The pods of those.", max_length=512, extra={"list_type": "set"}),
    ] = ()
    previous_secret_until: Annotated[
        _Time | None,
        Meta(description="Until when the secret key of before is still taken."),
    ] = None


Status: TypeAlias = BrokerStatus | NameServerStatus | TopicStatus | UserStatus
"""The status of any of the kinds."""


def status_manifest(status: Status) -> dict[str, Any]:
    """Return a status as the API server's JSON has it; what is not known is left out."""
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(status))
    return document
