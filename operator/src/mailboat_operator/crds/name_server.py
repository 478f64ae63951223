"""The NameServer: a number of name servers, each knowing every broker's topics."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Meta

from mailboat_operator.crds.broker import CHILD_NAME_RULES, ImagePullPolicy
from mailboat_operator.crds.common import (
    IMAGE_PATTERN,
    RESOURCE_NAME_PATTERN,
    Object,
    Rule,
    check_child_name,
    parse_object,
)
from mailboat_operator.crds.listeners import Listeners, check_listeners, listener_rules
from mailboat_operator.crds.network_policy import NetworkPolicySpec
from mailboat_operator.crds.pod_template import PodTemplateSpec, Resources
from mailboat_operator.crds.quantity import QUANTITY_PATTERN
from mailboat_operator.crds.security import (
    AUTHORIZATION_RULE,
    IDENTITY_RULE,
    REVIEW_RULE,
    AuthenticationSpec,
    AuthorizationSpec,
    HttpSpec,
    TlsSpec,
    check_users,
)

_PORTS: Final = (8_079, 9_876)
"""Those that a name server has anyway."""


class NameServerStorageSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The volume of each name server, for its key-value table."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.size == oldSelf.size && has(self.className) == has(oldSelf.className)"
            " && (!has(self.className) || self.className == oldSelf.className)",
            message="storage.size and storage.className cannot be changed: the table needs no more"
            " room, and a volume stays in its class",
        ),
    )

    enabled: Annotated[
        bool,
        Meta(
            description="Whether there is one. Without it the table is gone when a pod is replaced."
        ),
    ] = True
    size: Annotated[
        str,
        Meta(
            description="Size of the volume. Cannot be changed.",
            max_length=24,
            pattern=QUANTITY_PATTERN,
        ),
    ] = "1Gi"
    class_name: Annotated[
        Annotated[str, Meta(min_length=1, max_length=253, pattern=RESOURCE_NAME_PATTERN)] | None,
        Meta(description="StorageClass. Default: the cluster's. Cannot be changed."),
    ] = None


class NameServerSpec(msgspec.Struct, frozen=True, rename="camel"):
    """What a NameServer should be."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        AUTHORIZATION_RULE,
        IDENTITY_RULE,
        REVIEW_RULE,
        *listener_rules(_PORTS),
    )

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
    storage: Annotated[
        NameServerStorageSpec | None,
        Meta(
            description="The volume of each name server, for its key-value table (the queues of"
            " ordered topics). Default: as if it were {}; only a NameServer whose pods were made"
            " without volumes stays so until this is set."
        ),
    ] = None
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

    def __post_init__(self) -> None:
        """Check what the API server checks, for manifests that did not come through it."""
        check_users(self.authentication, self.authorization, self.http, self.tls)
        check_listeners(self.listeners, self.tls, _PORTS)


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
