"""The User: who may do what at a Broker, and what it signs with."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from mailboat.security.quotas import QUOTA_MAX
from mailboat_operator.crds.common import (
    ACCESS_KEY_PATTERN,
    NAME_MAX_LENGTH,
    RESOURCE_NAME_PATTERN,
    SECRET_KEY_PATTERN,
    TOPIC_NAME_PATTERN,
    Object,
    Rule,
    invalid,
    parse_object,
)
from mailboat_operator.crds.quantity import DURATION_PATTERN, parse_duration

ACLS_MAX: Final = 200
"""Most rules of one User."""

USER_NAME_MAX_LENGTH: Final = 253 - NAME_MAX_LENGTH - len("..json")
"""A key of a Secret is `<broker>.<user>.json`."""

_NAME_TOO_LONG: Final = (
    f"must have at most {USER_NAME_MAX_LENGTH} characters, because keys of Secrets are named after"
    " it; give spec.authentication.accessKey what is longer"
)

_NAME_NEEDED: Final = "an acl's resource needs a name, unless its pattern is Any, which has none"


class SecretKeyRef(msgspec.Struct, frozen=True, rename="camel"):
    """A key of a Secret in the same namespace."""

    name: Annotated[
        str,
        Meta(
            description="Name of the Secret.",
            min_length=1,
            max_length=253,
            pattern=RESOURCE_NAME_PATTERN,
        ),
    ]
    key: Annotated[
        str,
        Meta(
            description="Its key with the secret key.",
            min_length=1,
            max_length=253,
            pattern=SECRET_KEY_PATTERN,
        ),
    ] = "secretKey"


class UserAuthenticationSpec(msgspec.Struct, frozen=True, rename="camel"):
    """What a user signs its requests with."""

    access_key: Annotated[
        Annotated[str, Meta(min_length=1, max_length=255, pattern=ACCESS_KEY_PATTERN)] | None,
        Meta(description="The name in signatures. Default: the User's name."),
    ] = None
    secret_ref: Annotated[
        SecretKeyRef | None,
        Meta(
            description="A Secret with the secret key. Default: the operator makes one, in the"
            " Secret that status.secretName names."
        ),
    ] = None
    rotate: Annotated[
        Annotated[str, Meta(max_length=253)] | None,
        Meta(
            description="Any text, such as a date; another one has the operator make another"
            " secret key. It stands in the Secret once every broker and name server takes it."
        ),
    ] = None
    overlap: Annotated[
        str,
        Meta(
            description="How long the secret key of before is still taken, once the new one is in"
            " the Secret.",
            min_length=1,
            max_length=32,
            pattern=DURATION_PATTERN,
        ),
    ] = "24h"

    @property
    def overlap_s(self) -> int:
        """The overlap in seconds."""
        return parse_duration(self.overlap)


class AclResourceSpec(msgspec.Struct, frozen=True, rename="camel"):
    """What a rule is about."""

    type: Annotated[Literal["Topic", "Group", "Cluster"], Meta(description="What it is.")]
    name: Annotated[
        Annotated[str, Meta(min_length=1, max_length=255, pattern=TOPIC_NAME_PATTERN)] | None,
        Meta(description="Its name, or with Prefix how it begins."),
    ] = None
    pattern: Annotated[
        Literal["Literal", "Prefix", "Any"],
        Meta(description="How the name is meant; Any: whatever it is."),
    ] = "Literal"


class AclSpec(msgspec.Struct, frozen=True, rename="camel"):
    """One rule."""

    resource: Annotated[AclResourceSpec, Meta(description="What it is about.")]
    actions: Annotated[
        tuple[
            Literal["All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List"],
            ...,
        ],
        Meta(
            description="What is done to it.",
            min_length=1,
            max_length=8,
            extra={"list_type": "set"},
        ),
    ]
    source_cidrs: Annotated[
        tuple[Annotated[str, Meta(max_length=64)], ...],
        Meta(
            description="Addresses that it counts for, such as 10.0.0.0/8. Default: all. Behind a"
            " proxy or a node port another address may arrive.",
            max_length=64,
        ),
    ] = msgspec.field(default=(), name="sourceCIDRs")
    decision: Annotated[
        Literal["Allow", "Deny"],
        Meta(description="What follows; of rules that are equally exact Deny wins."),
    ] = "Allow"


_Count: TypeAlias = Annotated[int, Meta(ge=1, le=QUOTA_MAX)]
_CountOrNone: TypeAlias = Annotated[int, Meta(ge=0, le=QUOTA_MAX)]


class QuotasSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How much of each broker a user may use; what is left out is not bounded."""

    connections: Annotated[_Count | None, Meta(description="Most connections at a time.")] = None
    publish_messages_per_second: Annotated[
        _Count | None,
        Meta(
            description="Messages that it may send in a second; those in a batch count one by one."
        ),
    ] = None
    publish_bytes_per_second: Annotated[
        _Count | None,
        Meta(description="Bytes of the bodies that it may send in a second."),
    ] = None
    fetch_messages_per_second: Annotated[
        _Count | None,
        Meta(description="Messages that its pulls get in a second."),
    ] = None
    fetch_bytes_per_second: Annotated[
        _Count | None,
        Meta(description="Bytes of the records that its pulls get in a second."),
    ] = None
    topics: Annotated[
        _CountOrNone | None,
        Meta(description="Topics that there may be because it sent to them."),
    ] = None
    groups: Annotated[
        _CountOrNone | None,
        Meta(description="Consumer groups that there may be because it used them."),
    ] = None
    held_pulls: Annotated[
        _Count | None,
        Meta(description="Pulls of it that may wait at a time."),
    ] = None
    queue_locks: Annotated[
        _CountOrNone | None,
        Meta(description="Queues that it may have locked at a time, for consumption in order."),
    ] = None


class UserSpec(msgspec.Struct, frozen=True, rename="camel"):
    """What a User should be."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.brokerRef == oldSelf.brokerRef",
            message="spec.brokerRef cannot be changed: make a new User for another Broker",
            field=".brokerRef",
        ),
        Rule(
            cel="!has(self.acls) || self.acls.all(acl,"
            " has(acl.resource.name) == (acl.resource.pattern != 'Any'))",
            message=_NAME_NEEDED,
            field=".acls",
        ),
    )

    broker_ref: Annotated[
        str,
        Meta(
            description="Name of the Broker, in the same namespace, that the user is of. Cannot be"
            " changed.",
            min_length=1,
            max_length=253,
            pattern=RESOURCE_NAME_PATTERN,
        ),
    ]
    type: Annotated[
        Literal["Normal", "Super"],
        Meta(description="Super: may do everything. Normal: what acls allow."),
    ] = "Normal"
    disabled: Annotated[
        bool, Meta(description="Whether the user is refused, as if there were none.")
    ] = False
    authentication: Annotated[
        UserAuthenticationSpec, Meta(description="What the user signs its requests with.")
    ] = UserAuthenticationSpec()
    acls: Annotated[
        tuple[AclSpec, ...],
        Meta(
            description="What a Normal user may do, where the Broker has authorization.",
            max_length=ACLS_MAX,
        ),
    ] = ()
    quotas: Annotated[
        QuotasSpec | None,
        Meta(
            description="How much of each broker the user may use. A broker that is older than"
            " quotas refuses a user with any, and does not start: let it run a newer image first."
        ),
    ] = None

    def __post_init__(self) -> None:
        """Check what the API server checks, for manifests that did not come through it."""
        for acl in self.acls:
            if (acl.resource.name is None) != (acl.resource.pattern == "Any"):
                raise ValueError(_NAME_NEEDED)


class User(Object[UserSpec], frozen=True):
    """Who may do what at a Broker, and what it signs with."""

    KIND: ClassVar[str] = "User"
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=f"self.metadata.name.size() <= {USER_NAME_MAX_LENGTH}",
            message=f"metadata.name {_NAME_TOO_LONG}",
            field=".metadata.name",
        ),
    )


def parse_user(manifest: Mapping[str, Any]) -> User:
    """Turn a manifest into a User.

    Raises:
        InvalidResourceError: a field is missing, of a wrong type, or breaks a rule.
    """
    user = parse_object(User, UserSpec, manifest)
    if len(user.name) > USER_NAME_MAX_LENGTH:
        raise invalid(user, "metadata.name", _NAME_TOO_LONG)
    return user


def access_key_of(user: User) -> str:
    """Return the user's name in signatures."""
    return user.spec.authentication.access_key or user.metadata.name
