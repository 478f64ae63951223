"""The parts of a pod that a user may set, and its resources; taken over as they are written."""

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from mailboat_operator.crds import pod_schema
from mailboat_operator.crds.common import RESOURCE_NAME_PATTERN, Rule

Resources = Annotated[
    dict[str, Any],
    Meta(
        description="Processor time and memory of the container: what is reserved, and the limit."
        " Default: see docs/operator.md; {} is none of either.",
        extra={"schema": pod_schema.RESOURCES},
    ),
]
"""Kubernetes' ResourceRequirements."""


class PodTemplateSpec(msgspec.Struct, frozen=True, rename="camel"):
    """What is added to each pod; a change restarts the pods, one at a time."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.env) || self.env.all(e, !e.name.startsWith('MAILBOAT_')"
            " && e.name != 'NAMESRV_ADDR')",
            message="MAILBOAT_* and NAMESRV_ADDR are settings: write them in spec.config",
            field=".env",
        ),
        Rule(
            cel="!has(self.labels) || self.labels.all(key, !key.startsWith('mailboat.dev/')"
            " && !key.startsWith('app.kubernetes.io/'))",
            message="labels under mailboat.dev/ and app.kubernetes.io/ belong to the operator",
            field=".labels",
        ),
    )

    labels: Annotated[
        dict[str, Annotated[str, Meta(max_length=63)]],
        Meta(
            description="Labels of the pods, besides the operator's own.",
            max_length=32,
        ),
    ] = {}
    annotations: Annotated[
        dict[str, Annotated[str, Meta(max_length=4096)]],
        Meta(description="Annotations of the pods, besides the operator's own.", max_length=32),
    ] = {}
    env: Annotated[
        list[dict[str, Any]],
        Meta(
            description="Environment variables of the container, such as TZ. Settings of mailboat"
            " do not belong here.",
            max_length=64,
            extra={"schema": pod_schema.ENV},
        ),
    ] = []
    tolerations: Annotated[
        list[dict[str, Any]],
        Meta(
            description="Taints of nodes that the pods put up with.",
            max_length=32,
            extra={"schema": pod_schema.TOLERATIONS},
        ),
    ] = []
    node_selector: Annotated[
        dict[str, Annotated[str, Meta(max_length=63)]],
        Meta(description="Labels that a node must have to run the pods.", max_length=32),
    ] = {}
    affinity: Annotated[
        dict[str, Any] | None,
        Meta(
            description="Which nodes and which neighbours the pods want or avoid.",
            extra={"schema": pod_schema.AFFINITY},
        ),
    ] = None
    priority_class_name: Annotated[
        Annotated[str, Meta(max_length=253, pattern=RESOURCE_NAME_PATTERN)] | None,
        Meta(description="PriorityClass of the pods. Default: that of the cluster."),
    ] = None
    topology_spread_constraints: Annotated[
        list[dict[str, Any]],
        Meta(
            description="How the pods spread over zones or nodes.",
            max_length=16,
            extra={"schema": pod_schema.TOPOLOGY_SPREAD_CONSTRAINTS},
        ),
    ] = []
    image_pull_secrets: Annotated[
        list[dict[str, Any]],
        Meta(
            description="Secrets of the same namespace with which the image is pulled.",
            max_length=16,
            extra={"schema": pod_schema.IMAGE_PULL_SECRETS},
        ),
    ] = []

    def __post_init__(self) -> None:
        """Check what the API server checks, for manifests that did not come through it."""
        for variable in self.env:
            name = str(variable.get("name", ""))
            if name.startswith("MAILBOAT_") or name == "NAMESRV_ADDR":
                raise ValueError(f"env {name} is a setting: write it in spec.config")
        for key in self.labels:
            if key.startswith(("mailboat.dev/", "app.kubernetes.io/")):
                raise ValueError(f"label {key} belongs to the operator: take another key")
