"""The NameServer: a number of name servers, each knowing every broker's topics."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from mailboat_operator.crds.broker import CHILD_NAME_RULES, ImagePullPolicy
from mailboat_operator.crds.common import (
    IMAGE_PATTERN,
    Object,
    Rule,
    check_child_name,
    parse_object,
)
from mailboat_operator.crds.pod_template import PodTemplateSpec, Resources


class NameServerSpec(msgspec.Struct, frozen=True, rename="camel"):
    """What a NameServer should be."""

    replicas: Annotated[
        int,
        Meta(
            description="How many name servers there are; each holds everything, so one that works"
            " is enough for the brokers and their clients.",
            ge=1,
            le=9,
        ),
    ] = 2
    image: Annotated[
        Annotated[str, Meta(min_length=1, max_length=512, pattern=IMAGE_PATTERN)] | None,
        Meta(description="Image of mailboat. Default: the one that the operator is set to."),
    ] = None
    image_pull_policy: Annotated[
        ImagePullPolicy | None,
        Meta(description="When a node pulls the image. Default: Kubernetes' rule."),
    ] = None
    resources: Resources | None = None
    pod_template: Annotated[
        PodTemplateSpec | None, Meta(description="What is added to each pod.")
    ] = None


class NameServer(Object[NameServerSpec], frozen=True):
    """A number of name servers: where brokers register, and where clients ask for routes."""

    KIND: ClassVar[str] = "NameServer"
    RULES: ClassVar[tuple[Rule, ...]] = CHILD_NAME_RULES


def parse_name_server(manifest: Mapping[str, Any]) -> NameServer:
    """Turn a manifest into a NameServer.

    Raises:
        InvalidResourceError: a field is missing, of a wrong type, or breaks a rule.
    """
    name_server = parse_object(NameServer, NameServerSpec, manifest)
    check_child_name(name_server)
    return name_server
