"""The Broker: a number of brokers that form one cluster, each with a volume of its own."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from mailboat_operator.crds.common import (
    ADDRESS_PATTERN,
    IMAGE_PATTERN,
    NAME_MAX_LENGTH,
    ONE_LINE_PATTERN,
    RESOURCE_NAME_PATTERN,
    TOPIC_NAME_PATTERN,
    Object,
    Rule,
    check_child_name,
    parse_object,
)
from mailboat_operator.crds.listeners import (
    LISTENER_CONFIG,
    NODE_PORT_MAX,
    NODE_PORTS_RULE,
    Listeners,
    check_listeners,
    listener_rules,
    node_port_of,
)
from mailboat_operator.crds.network_policy import NetworkPolicySpec
from mailboat_operator.crds.pod_template import PodTemplateSpec, Resources
from mailboat_operator.crds.replication import REPLICAS_MAX, ReplicationSpec
from mailboat_operator.crds.retention import (
    ExpireLevel,
    ForceCleanLevel,
    RejectWritesLevel,
    RetentionSpec,
    ThresholdsSpec,
)
from mailboat_operator.crds.security import (
    AUTHORIZATION_RULE,
    IDENTITY_RULE,
    REVIEW_RULE,
    SECURITY_CONFIG,
    TOKEN_RULE,
    AuthenticationSpec,
    AuthorizationSpec,
    HttpSpec,
    TlsSpec,
    check_users,
    is_authenticated,
)
from mailboat_operator.crds.storage import AutoGrowSpec, StorageSpec

__all__ = [
    "CHILD_NAME_RULES",
    "OWNED_CONFIG",
    "AutoGrowSpec",
    "Broker",
    "BrokerSpec",
    "ExpireLevel",
    "ForceCleanLevel",
    "ImagePullPolicy",
    "NameServersSpec",
    "PodTemplateSpec",
    "PvcRetentionSpec",
    "RejectWritesLevel",
    "ReplicationSpec",
    "RetentionSpec",
    "ScaleDownSpec",
    "ShutdownSpec",
    "StorageSpec",
    "ThresholdsSpec",
    "TlsSpec",
    "broker_name_of",
    "cluster_name_of",
    "parse_broker",
]

GROUPS_MAX: Final = 64
_PORTS: Final = (8_080, 10_909, 10_911, 10_912, 10_913)
"""Those that a broker has anyway."""

SHUTDOWN_RESERVE_S: Final = 15
"""Seconds of graceSeconds that are left to close the store after the drain."""

ImagePullPolicy = Literal["Always", "IfNotPresent", "Never"]

OWNED_CONFIG: Final[Mapping[str, str]] = {
    "brokerName": "use spec.brokerNamePrefix",
    "brokerClusterName": "use spec.clusterName",
    "brokerId": "the operator sets it",
    "brokerIP1": "the operator sets it to the address of the group's Service",
    "listenPort": "the operator sets it",
    "bindAddress": "the operator sets it",
    "httpPort": "the operator sets it",
    "namesrvAddr": "use spec.nameServers",
    "storePathRootDir": "the operator sets it to the volume",
    "storePathCommitLog": "the operator sets it to the volume",
    "mappedFileSizeCommitLog": "use spec.storage.segmentSize",
    "fileReservedTime": "use spec.retention.hours",
    "readFileReservedTime": "use spec.retention.minHours",
    "deleteWhen": "use spec.retention.deleteWindow",
    "diskMaxUsedSpaceRatio": "use spec.retention.thresholds.expire.percent",
    "diskSpaceCleanForciblyRatio": "use spec.retention.thresholds.forceClean.percent",
    "diskSpaceWarningLevelRatio": "use spec.retention.thresholds.rejectWrites.percent",
    "diskExpireFreeBytes": "use spec.retention.thresholds.expire.freeBytes",
    "diskForceCleanFreeBytes": "use spec.retention.thresholds.forceClean.freeBytes",
    "diskRejectFreeBytes": "use spec.retention.thresholds.rejectWrites.freeBytes",
    "diskThresholdHysteresisPercent": "use spec.retention.thresholds.hysteresisPercent",
    "shutdownDrainSeconds": "use spec.shutdown.drainSeconds",
    **LISTENER_CONFIG,
    **SECURITY_CONFIG,
}
"""Settings that spec.config must not hold, because the operator writes them: key -> what to do."""

CHILD_NAME_RULES: Final = (
    Rule(
        cel=f"self.metadata.name.size() <= {NAME_MAX_LENGTH}",
        message=f"metadata.name must have at most {NAME_MAX_LENGTH} characters, because Services"
        " and StatefulSets are named after it",
        field=".metadata.name",
    ),
    Rule(
        cel="self.metadata.name.matches('^[a-z][-a-z0-9]*$')",
        message="metadata.name must start with a letter and hold a-z 0-9 - only, because Services"
        " are named after it",
        field=".metadata.name",
    ),
)


class NameServersSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Where the brokers register; one of the two."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.ref) != (has(self.addresses) && self.addresses.size() > 0)",
            message="spec.nameServers needs either ref or addresses, and not both",
        ),
    )

    ref: Annotated[
        Annotated[str, Meta(min_length=1, max_length=253, pattern=RESOURCE_NAME_PATTERN)] | None,
        Meta(description="Name of a NameServer in the same namespace."),
    ] = None
    addresses: Annotated[
        tuple[Annotated[str, Meta(max_length=260, pattern=ADDRESS_PATTERN)], ...],
        Meta(
            description="host:port of name servers that are run elsewhere.",
            max_length=16,
            extra={"list_type": "set"},
        ),
    ] = ()

    def __post_init__(self) -> None:
        """Check what the API server checks, for manifests that did not come through it."""
        if (self.ref is not None) == bool(self.addresses):
            raise ValueError("nameServers needs either ref or addresses, and not both")


class ShutdownSpec(msgspec.Struct, frozen=True, rename="camel"):
    """How a broker ends."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=f"self.graceSeconds >= self.drainSeconds + {SHUTDOWN_RESERVE_S}",
            message=f"shutdown.graceSeconds must be at least drainSeconds + {SHUTDOWN_RESERVE_S},"
            " so that the store can be closed",
            field=".graceSeconds",
        ),
    )

    drain_seconds: Annotated[
        int,
        Meta(
            description="How long a broker that ends goes on serving after it told the name"
            " servers that it takes no more messages.",
            ge=0,
            le=600,
        ),
    ] = 5
    grace_seconds: Annotated[
        int,
        Meta(
            description="How long a broker may take to end before it is killed. At least"
            f" drainSeconds + {SHUTDOWN_RESERVE_S}.",
            ge=SHUTDOWN_RESERVE_S,
            le=3_600,
        ),
    ] = 60

    def __post_init__(self) -> None:
        """Check what the API server checks, for manifests that did not come through it."""
        if self.grace_seconds < self.drain_seconds + SHUTDOWN_RESERVE_S:
            raise ValueError(f"graceSeconds must be at least drainSeconds + {SHUTDOWN_RESERVE_S}")


class PvcRetentionSpec(msgspec.Struct, frozen=True, rename="camel"):
    """What becomes of volumes that are no longer used."""

    when_deleted: Annotated[
        Literal["Retain", "Delete"],
        Meta(
            description="What becomes of the volumes when the Broker is deleted. Retain: a Broker"
            " of the same name takes them up again. Delete: all go, also those that were kept of"
            " groups that had been scaled away."
        ),
    ] = "Retain"
    when_scaled: Annotated[
        Literal["Retain", "Delete"],
        Meta(
            description="What becomes of the volume of a group that is scaled away. Retain: the"
            " group takes it up again when it comes back."
        ),
    ] = "Retain"


class ScaleDownSpec(msgspec.Struct, frozen=True, rename="camel"):
    """How groups go when `groups` is lowered: one at a time, the last first."""

    when_unread: Annotated[
        Literal["Wait", "Proceed"],
        Meta(
            description="What becomes of a group that holds messages which a consumer group has"
            " not read. Wait: it takes no more messages, and goes when all that it holds are read"
            " or expired. Proceed: it goes at once; with pvcRetention.whenScaled Delete its unread"
            " messages are lost."
        ),
    ] = "Wait"


class BrokerSpec(msgspec.Struct, frozen=True, rename="camel"):
    """What a Broker should be."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.clusterName) == has(oldSelf.clusterName)"
            " && (!has(self.clusterName) || self.clusterName == oldSelf.clusterName)",
            message="spec.clusterName cannot be changed, added or removed: clients and routes"
            " know the cluster by it",
            field=".clusterName",
        ),
        Rule(
            cel="has(self.brokerNamePrefix) == has(oldSelf.brokerNamePrefix)"
            " && (!has(self.brokerNamePrefix)"
            " || self.brokerNamePrefix == oldSelf.brokerNamePrefix)",
            message="spec.brokerNamePrefix cannot be changed, added or removed: a store belongs to"
            " the name of its broker",
            field=".brokerNamePrefix",
        ),
        Rule(
            cel="!self.storage.autoGrow.enabled || self.storage.autoGrow.whenUsedPercent"
            " < self.retention.thresholds.forceClean.percent",
            message="spec.storage.autoGrow.whenUsedPercent must be below"
            " spec.retention.thresholds.forceClean.percent, so that a volume grows before"
            " messages are deleted",
            field=".storage.autoGrow.whenUsedPercent",
        ),
        Rule(
            cel="!has(self.replication.inSyncReplicas)"
            " || self.replication.inSyncReplicas <= self.replicas",
            message="spec.replication.inSyncReplicas must not be above spec.replicas",
            field=".replication.inSyncReplicas",
        ),
        *(
            Rule(
                cel=f"!has(self.retention.thresholds.{level}.freeBytes)"
                f" || quantity(self.retention.thresholds.{level}.freeBytes)"
                ".compareTo(quantity(self.storage.size)) < 0",
                message=f"spec.retention.thresholds.{level}.freeBytes must be below"
                " spec.storage.size, of which never so much is free",
                field=f".retention.thresholds.{level}.freeBytes",
            )
            for level in ("expire", "forceClean", "rejectWrites")
        ),
        AUTHORIZATION_RULE,
        IDENTITY_RULE,
        REVIEW_RULE,
        TOKEN_RULE,
        *listener_rules(_PORTS),
        NODE_PORTS_RULE,
    )

    name_servers: Annotated[
        NameServersSpec, Meta(description="Where the brokers register: ref or addresses.")
    ]
    storage: Annotated[StorageSpec, Meta(description="The volume of each broker.")]
    cluster_name: Annotated[
        Annotated[str, Meta(min_length=1, max_length=127, pattern=TOPIC_NAME_PATTERN)] | None,
        Meta(
            description="Name of the RocketMQ cluster. Default: the Broker's name. Cannot be"
            " changed."
        ),
    ] = None
    broker_name_prefix: Annotated[
        Annotated[str, Meta(min_length=1, max_length=100, pattern=TOPIC_NAME_PATTERN)] | None,
        Meta(
            description="What the brokers' names begin with: <brokerNamePrefix>-g0, -g1 and so on."
            " No two brokers at the same name servers may have one name, whatever namespace or"
            " Kubernetes cluster they are in. Default: the Broker's name. Cannot be changed."
        ),
    ] = None
    groups: Annotated[
        int,
        Meta(
            description="How many brokers there are; each takes a part of every topic's messages."
            " `kubectl scale` changes it.",
            ge=1,
            le=GROUPS_MAX,
        ),
    ] = 1
    replicas: Annotated[
        int,
        Meta(
            description="How many brokers have each group's messages: one leads, the others follow"
            " and take its place when it is lost. Each has a volume of its own.",
            ge=1,
            le=REPLICAS_MAX,
        ),
    ] = 1
    replication: Annotated[
        ReplicationSpec, Meta(description="How the replicas of a group work together.")
    ] = ReplicationSpec()
    image: Annotated[
        Annotated[str, Meta(min_length=1, max_length=512, pattern=IMAGE_PATTERN)] | None,
        Meta(description="Image of mailboat. Default: the one that the operator is set to."),
    ] = None
    image_pull_policy: Annotated[
        ImagePullPolicy | None,
        Meta(description="When a node pulls the image. Default: Kubernetes' rule."),
    ] = None
    retention: Annotated[
        RetentionSpec,
        Meta(description="How long messages are kept, and what happens as the disk fills."),
    ] = RetentionSpec()
    config: Annotated[
        dict[str, Annotated[str, Meta(max_length=1024, pattern=ONE_LINE_PATTERN)]],
        Meta(
            description="Settings of the broker by RocketMQ's names, such as flushDiskType."
            " Settings that have a field of their own do not belong here.",
            max_length=100,
            extra={
                "rules": tuple(
                    Rule(cel=f"!('{key}' in self)", message=f"{key} cannot be set here: {remedy}")
                    for key, remedy in OWNED_CONFIG.items()
                )
            },
        ),
    ] = {}
    resources: Resources | None = None
    pod_template: Annotated[
        PodTemplateSpec | None, Meta(description="What is added to each pod.")
    ] = None
    network_policy: Annotated[
        NetworkPolicySpec, Meta(description="Who may connect to the pods.")
    ] = NetworkPolicySpec()
    tls: Annotated[TlsSpec | None, Meta(description="What the ports speak. Default: no TLS.")] = (
        None
    )
    authentication: Annotated[
        AuthenticationSpec | None,
        Meta(description="Whether clients have to say who they are. Default: no."),
    ] = None
    authorization: Annotated[
        AuthorizationSpec | None,
        Meta(description="Whether users need rules for what they do. Default: no."),
    ] = None
    http: Annotated[
        HttpSpec | None,
        Meta(
            description="Who may use the HTTP port. Default: everybody whom the network lets,"
            " without authentication."
        ),
    ] = None
    listeners: Listeners = ()
    shutdown: Annotated[ShutdownSpec, Meta(description="How a broker ends.")] = ShutdownSpec()
    pvc_retention: Annotated[
        PvcRetentionSpec, Meta(description="What becomes of volumes that are no longer used.")
    ] = PvcRetentionSpec()
    scale_down: Annotated[
        ScaleDownSpec, Meta(description="How groups go when `groups` is lowered.")
    ] = ScaleDownSpec()

    def __post_init__(self) -> None:
        """Check what the API server checks, for manifests that did not come through it."""
        for key, remedy in OWNED_CONFIG.items():
            if key in self.config:
                raise ValueError(f"config.{key} cannot be set here: {remedy}")
        check_users(self.authentication, self.authorization, self.http, self.tls)
        check_listeners(self.listeners, self.tls, _PORTS)
        last = [node_port_of(one, self.groups - 1, self.replicas - 1) for one in self.listeners]
        if any(port is not None and port > NODE_PORT_MAX for port in last):
            raise ValueError(NODE_PORTS_RULE.message)
        has_token = self.http is not None and self.http.token_secret_ref is not None
        if is_authenticated(self.authentication) and not has_token:
            raise ValueError(TOKEN_RULE.message)
        in_sync_replicas = self.replication.in_sync_replicas
        if in_sync_replicas is not None and in_sync_replicas > self.replicas:
            raise ValueError(
                f"replication.inSyncReplicas ({in_sync_replicas}) must not be above replicas"
                f" ({self.replicas})"
            )
        when_used_percent = self.storage.auto_grow.when_used_percent
        force_clean_percent = self.retention.thresholds.force_clean.percent
        if self.storage.auto_grow.enabled and when_used_percent >= force_clean_percent:
            raise ValueError(
                f"storage.autoGrow.whenUsedPercent ({when_used_percent}) must be below"
                f" retention.thresholds.forceClean.percent ({force_clean_percent}), so that a"
                " volume grows before messages are deleted"
            )
        thresholds = self.retention.thresholds
        levels = (thresholds.expire, thresholds.force_clean, thresholds.reject_writes)
        size_bytes = self.storage.size_bytes
        if any(level.free_size_bytes >= size_bytes for level in levels):
            raise ValueError(
                f"retention.thresholds: freeBytes must be below storage.size ({self.storage.size}),"
                " of which never so much is free"
            )


class Broker(Object[BrokerSpec], frozen=True):
    """A number of brokers that form one RocketMQ cluster, each with a volume of its own."""

    KIND: ClassVar[str] = "Broker"
    RULES: ClassVar[tuple[Rule, ...]] = CHILD_NAME_RULES


def parse_broker(manifest: Mapping[str, Any]) -> Broker:
    """Turn a manifest into a Broker.

    Raises:
        InvalidResourceError: a field is missing, of a wrong type, or breaks a rule.
    """
    broker = parse_object(Broker, BrokerSpec, manifest)
    check_child_name(broker)
    return broker


def broker_name_of(broker: Broker, group: int) -> str:
    """Return the RocketMQ name of a group's broker."""
    return f"{broker.spec.broker_name_prefix or broker.metadata.name}-g{group}"


def cluster_name_of(broker: Broker) -> str:
    """Return the name of the RocketMQ cluster that the Broker's groups form."""
    return broker.spec.cluster_name or broker.metadata.name
