"""The CustomResourceDefinitions themselves: names, columns, subresources, and the schema."""

from dataclasses import dataclass
from typing import Any, Final

from mailboat_operator.crds.broker import Broker, BrokerSpec
from mailboat_operator.crds.common import GROUP, VERSION
from mailboat_operator.crds.name_server import NameServer, NameServerSpec
from mailboat_operator.crds.schema import Schema, resource_schema
from mailboat_operator.crds.status import BrokerStatus, NameServerStatus, TopicStatus, UserStatus
from mailboat_operator.crds.topic import Topic, TopicSpec
from mailboat_operator.crds.user import User, UserSpec

CATEGORY: Final = "messaging"

_READY: Final = '.status.conditions[?(@.type=="Ready")]'


@dataclass(frozen=True, slots=True)
class Column:
    """One column of `kubectl get`."""

    name: str
    json_path: str
    description: str
    type: str = "string"
    wide: bool = False
    """Shown by `kubectl get -o wide` only."""


@dataclass(frozen=True, slots=True)
class Definition:
    """One kind."""

    resource: type[Any]
    spec: type[Any]
    status: type[Any]
    plural: str
    short_name: str
    columns: tuple[Column, ...]
    scale: tuple[str, str] | None
    """Fields of spec and status that `kubectl scale` writes and reads."""

    @property
    def kind(self) -> str:
        """The kind's name."""
        kind: str = self.resource.KIND
        return kind

    @property
    def name(self) -> str:
        """The CustomResourceDefinition's name."""
        return f"{self.plural}.{GROUP}"


_AGE: Final = Column("Age", ".metadata.creationTimestamp", "How old it is.", type="date")
_READY_COLUMN: Final = Column("Ready", f"{_READY}.status", "Whether all of it serves.")
_REASON: Final = Column("Reason", f"{_READY}.reason", "Why.", wide=True)

DEFINITIONS: Final = (
    Definition(
        resource=Broker,
        spec=BrokerSpec,
        status=BrokerStatus,
        plural="brokers",
        short_name="brk",
        columns=(
            _READY_COLUMN,
            Column("Groups", ".status.ready", "Ready groups of wanted ones."),
            Column("Version", ".status.version", "Version of mailboat that runs."),
            Column("Disk", ".status.disk", "Use of the fullest volume."),
            Column("Retention", ".status.retention", "Shortest effective retention."),
            _REASON,
            Column("Cluster", ".status.clusterName", "Name of the cluster.", wide=True),
            Column("Replicas", ".spec.replicas", "Wanted per group.", type="integer", wide=True),
            Column(
                "Failover",
                '.status.conditions[?(@.type=="FailoverPossible")].status',
                "Whether each group bears the loss of one replica.",
                wide=True,
            ),
            _AGE,
        ),
        scale=(".spec.groups", ".status.groups"),
    ),
    Definition(
        resource=NameServer,
        spec=NameServerSpec,
        status=NameServerStatus,
        plural="nameservers",
        short_name="mqns",
        columns=(
            _READY_COLUMN,
            Column("Servers", ".status.ready", "Ready name servers of wanted ones."),
            _REASON,
            _AGE,
        ),
        scale=(".spec.replicas", ".status.replicas"),
    ),
    Definition(
        resource=Topic,
        spec=TopicSpec,
        status=TopicStatus,
        plural="topics",
        short_name="mqt",
        columns=(
            _READY_COLUMN,
            Column("Broker", ".spec.brokerRef", "The Broker that it is on."),
            Column("Topic", ".status.topicName", "Name of the topic in RocketMQ."),
            Column("Read", ".spec.queues.read", "Queues that consumers read.", type="integer"),
            Column("Write", ".spec.queues.write", "Queues that producers write.", type="integer"),
            Column("Perm", ".spec.perm", "What clients may do."),
            _REASON,
            _AGE,
        ),
        scale=None,
    ),
    Definition(
        resource=User,
        spec=UserSpec,
        status=UserStatus,
        plural="users",
        short_name="mqu",
        columns=(
            Column("Ready", f"{_READY}.status", "Whether it counts at every broker."),
            Column("Broker", ".spec.brokerRef", "The Broker that it is of."),
            Column("Key", ".status.accessKey", "Its name in signatures."),
            Column("Type", ".spec.type", "Normal or Super."),
            Column("Disabled", ".spec.disabled", "Whether it is refused.", type="boolean"),
            Column("Applied", ".status.applied", "Brokers that have it, of all."),
            _REASON,
            Column("Secret", ".status.secretName", "What clients sign with.", wide=True),
            _AGE,
        ),
        scale=None,
    ),
)


def custom_resource_definitions() -> list[dict[str, Any]]:
    """Return the CustomResourceDefinitions, ready to apply."""
    return [custom_resource_definition(definition) for definition in DEFINITIONS]


def custom_resource_definition(definition: Definition) -> dict[str, Any]:
    """Return the CustomResourceDefinition of one kind."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": definition.name,
            "annotations": {"helm.sh/resource-policy": "keep"},
            "labels": {"app.kubernetes.io/name": "mailboat", "app.kubernetes.io/component": "crds"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": definition.kind,
                "listKind": f"{definition.kind}List",
                "plural": definition.plural,
                "singular": definition.kind.lower(),
                "shortNames": [definition.short_name],
                "categories": [CATEGORY],
            },
            "versions": [_version(definition)],
        },
    }


def _version(definition: Definition) -> Schema:
    subresources: dict[str, Any] = {"status": {}}
    if definition.scale is not None:
        spec_path, status_path = definition.scale
        subresources["scale"] = {
            "specReplicasPath": spec_path,
            "statusReplicasPath": status_path,
            "labelSelectorPath": ".status.selector",
        }
    schema = resource_schema(definition.resource, definition.spec, definition.status)
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [_column(column) for column in definition.columns],
        "subresources": subresources,
        "schema": {"openAPIV3Schema": schema},
    }


def _column(column: Column) -> dict[str, Any]:
    shown = {
        "name": column.name,
        "type": column.type,
        "jsonPath": column.json_path,
        "description": column.description,
    }
    return {**shown, "priority": 1} if column.wide else shown
