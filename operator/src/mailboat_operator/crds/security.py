"""Who may connect, and how: TLS, users and HTTP, the same for brokers and for name servers.

What is secret stands in Secrets that are named here, and nowhere else.
"""

from typing import Annotated, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from mailboat_operator.crds.common import (
    AUDIENCE_PATTERN,
    KIND_PATTERN,
    RESOURCE_NAME_PATTERN,
    Rule,
)

__all__ = [
    "SECURITY_CONFIG",
    "AuthenticationSpec",
    "AuthorizationSpec",
    "ClientCaSpec",
    "HttpSpec",
    "IssuerRef",
    "SecretRef",
    "TlsSpec",
    "TokenReviewSpec",
]

_NO_CERTIFICATE: Final = "tls needs secretRef, the Secret with certificate and key"
_IDENTITY_NEEDS_CA: Final = "tls.clientIdentity needs clientCA, whose certificates are taken"
_NOWHERE: Final = "tls.issuerRef needs secretRef, the Secret that gets the certificate"
_CLIENTS_NEED_CA: Final = "tls.clientAuth needs clientCA, whose certificates are taken"

_USERS_NEED_SUPER: Final = (
    "authentication needs superUserSecretRef, the Secret of the user who may do everything"
)

SECURITY_CONFIG: Final = {
    "aclEnable": "use spec.authentication",
    "authUsersPath": "make User resources",
    "authenticationEnabled": "use spec.authentication.enabled",
    "authorizationEnabled": "use spec.authorization.enabled",
    "httpMetricsOpen": "use spec.http.metrics",
    "httpTokenReview": "use spec.http.tokenReview",
    "httpTokenReviewAudience": "use spec.http.tokenReview",
    "httpToken": "use spec.http.tokenSecretRef",
    "httpTokenFile": "use spec.http.tokenSecretRef",
    "initAuthenticationUser": "use spec.authentication.superUserSecretRef",
    "innerClientAuthenticationCredentials": "use spec.authentication.innerSecretRef",
    "httpTlsMode": "use spec.tls",
    "tls.client.certPath": "use spec.tls",
    "tls.client.keyPassword": "a key in a Secret has none; use spec.tls",
    "tls.client.keyPath": "use spec.tls",
    "tls.client.trustCertPath": "use spec.tls",
    "tls.enable": "use spec.tls",
    "tls.server.authClient": "use spec.tls.clientAuth",
    "tls.server.certPath": "use spec.tls",
    "tls.server.clientIdentity": "use spec.tls.clientIdentity",
    "tls.server.keyPassword": "a key in a Secret has none; use spec.tls",
    "tls.server.keyPath": "use spec.tls",
    "tls.server.mode": "use spec.tls.mode",
    "tls.server.need.client.auth": "use spec.tls.clientAuth",
    "tls.server.trustCertPath": "use spec.tls.clientCA",
}
"""Settings that spec.config must not hold: key -> what to do."""


class SecretRef(msgspec.Struct, frozen=True, rename="camel"):
    """A Secret in the same namespace."""

    name: Annotated[
        str,
        Meta(
            description="Name of the Secret.",
            min_length=1,
            max_length=253,
            pattern=RESOURCE_NAME_PATTERN,
        ),
    ]


class ClientCaSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Whose certificates clients may show."""

    secret_ref: Annotated[
        SecretRef,
        Meta(description="The Secret, whose key ca.crt holds the authorities."),
    ]


class IssuerRef(msgspec.Struct, frozen=True, rename="camel"):
    """Who makes the certificate: cert-manager's Issuer, or one like it."""

    name: Annotated[
        str,
        Meta(
            description="Name of the issuer.",
            min_length=1,
            max_length=253,
            pattern=RESOURCE_NAME_PATTERN,
        ),
    ]
    kind: Annotated[
        str,
        Meta(
            description="Issuer, ClusterIssuer, or the kind of another issuer.",
            min_length=1,
            max_length=63,
            pattern=KIND_PATTERN,
        ),
    ] = "Issuer"
    group: Annotated[
        str,
        Meta(
            description="API group of that kind.",
            min_length=1,
            max_length=253,
            pattern=RESOURCE_NAME_PATTERN,
        ),
    ] = "cert-manager.io"


class TlsSpec(msgspec.Struct, frozen=True, rename="camel"):
    """What the ports for RocketMQ clients speak."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.mode == 'Disabled' || has(self.secretRef)",
            message=_NO_CERTIFICATE,
            field=".secretRef",
        ),
        Rule(
            cel="self.clientIdentity == 'None' || has(self.clientCA)",
            message=_IDENTITY_NEEDS_CA,
            field=".clientCA",
        ),
        Rule(
            cel="!has(self.issuerRef) || has(self.secretRef)",
            message=_NOWHERE,
            field=".secretRef",
        ),
        Rule(
            cel="self.mode == 'Disabled' || self.clientAuth == 'None' || has(self.clientCA)",
            message=_CLIENTS_NEED_CA,
            field=".clientCA",
        ),
    )

    secret_ref: Annotated[
        SecretRef | None,
        Meta(
            description="The Secret with tls.crt (the chain), tls.key and ca.crt (its authority),"
            " such as cert-manager makes. Another certificate in it is taken up within two minutes"
            " without a restart."
        ),
    ] = None
    issuer_ref: Annotated[
        IssuerRef | None,
        Meta(
            description="Has cert-manager put the certificate into that Secret, for all names of"
            " the pods and Services, and renew it. Default: the Secret is yours."
        ),
    ] = None
    client_ca: Annotated[
        ClientCaSpec | None,
        Meta(description="Whose certificates clients may show, where clientAuth asks for one."),
    ] = msgspec.field(default=None, name="clientCA")
    mode: Annotated[
        Literal["Disabled", "Permissive", "Enforcing"],
        Meta(
            description="Disabled: no TLS. Permissive: the ports take both. Enforcing: TLS only,"
            " also over HTTP and in connections of the servers among each other."
        ),
    ] = "Enforcing"
    client_auth: Annotated[
        Literal["None", "Optional", "Required"],
        Meta(
            description="Whether RocketMQ clients show a certificate of clientCA. HTTP never asks"
            " for one."
        ),
    ] = "None"

    client_identity: Annotated[
        Literal["None", "CN", "DNS", "URI"],
        Meta(
            description="What of a client's certificate of clientCA names the User whose requests"
            " then need no signature: its common name, or its one alternative name that is a host"
            " or a URI. HTTP takes certificates then, too."
        ),
    ] = "None"

    def __post_init__(self) -> None:
        """Check what the API server checks, for manifests that did not come through it."""
        if self.client_identity != "None" and self.client_ca is None:
            raise ValueError(_IDENTITY_NEEDS_CA)
        if self.issuer_ref is not None and self.secret_ref is None:
            raise ValueError(_NOWHERE)
        if self.mode == "Disabled":
            return
        if self.secret_ref is None:
            raise ValueError(_NO_CERTIFICATE)
        if self.client_auth != "None" and self.client_ca is None:
            raise ValueError(_CLIENTS_NEED_CA)

    @property
    def is_on(self) -> bool:
        """Whether TLS is spoken at all."""
        return self.mode != "Disabled"

    @property
    def is_enforcing(self) -> bool:
        """Whether nothing but TLS is spoken."""
        return self.mode == "Enforcing"


class AuthenticationSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Whether clients have to say who they are."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!self.enabled || has(self.superUserSecretRef)",
            message=_USERS_NEED_SUPER,
            field=".superUserSecretRef",
        ),
    )

    enabled: Annotated[
        bool, Meta(description="Whether every request has to be signed by a user.")
    ] = True
    super_user_secret_ref: Annotated[
        SecretRef | None,
        Meta(
            description="The Secret with username and password of the user who may do everything"
            " (type kubernetes.io/basic-auth), without quotation marks and backslashes. A change"
            " counts for pods that start after it."
        ),
    ] = None
    inner_secret_ref: Annotated[
        SecretRef | None,
        Meta(
            description="Such a Secret of the user that the servers are to each other: brokers and"
            " their name servers name the same one. Default: superUserSecretRef."
        ),
    ] = None

    def __post_init__(self) -> None:
        """Check what the API server checks, for manifests that did not come through it."""
        if self.enabled and self.super_user_secret_ref is None:
            raise ValueError(_USERS_NEED_SUPER)


class AuthorizationSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Whether users need rules for what they do."""

    enabled: Annotated[
        bool,
        Meta(description="Whether a User may do only what its acls allow. Needs authentication."),
    ] = True


class TokenReviewSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Tokens of ServiceAccounts, which the API server is asked about."""

    audience: Annotated[
        str,
        Meta(
            description="For whom a token has to be made, as of a projected volume or by `kubectl"
            " create token --audience`.",
            min_length=1,
            max_length=253,
            pattern=AUDIENCE_PATTERN,
        ),
    ] = "mailboat"


class HttpSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Who may use the HTTP port, which also changes settings and topics."""

    token_secret_ref: Annotated[
        SecretRef | None,
        Meta(
            description="The Secret whose key token holds the bearer tokens that may do everything,"
            " one in a line; the operator uses the first one. With it HTTP is locked, but for the"
            " probes."
        ),
    ] = None
    token_review: Annotated[
        TokenReviewSpec | None,
        Meta(
            description="Takes tokens of ServiceAccounts: that of `dashboard` in the namespace"
            " `shop` is the user `system.serviceaccount.shop.dashboard`. The ServiceAccount of the"
            " pods needs the ClusterRole system:auth-delegator. Default: none is taken."
        ),
    ] = None
    metrics: Annotated[
        Literal["Authenticated", "Open"],
        Meta(description="Whether /metrics is for everybody who reaches a locked HTTP port."),
    ] = "Authenticated"


AUTHORIZATION_RULE: Final = Rule(
    cel="!has(self.authorization) || !self.authorization.enabled"
    " || (has(self.authentication) && self.authentication.enabled)",
    message="spec.authorization needs spec.authentication: without signatures anybody could say to"
    " be anybody",
    field=".authorization",
)

TOKEN_RULE: Final = Rule(
    cel="!has(self.authentication) || !self.authentication.enabled"
    " || (has(self.http) && has(self.http.tokenSecretRef))",
    message="spec.authentication needs spec.http.tokenSecretRef, with which the operator asks the"
    " brokers",
    field=".http",
)


REVIEW_RULE: Final = Rule(
    cel="!has(self.http) || !has(self.http.tokenReview)"
    " || (has(self.authentication) && self.authentication.enabled)",
    message="spec.http.tokenReview needs spec.authentication: whom a token stands for has to be a"
    " user",
    field=".http",
)


IDENTITY_RULE: Final = Rule(
    cel="!has(self.tls) || self.tls.clientIdentity == 'None'"
    " || (has(self.authentication) && self.authentication.enabled)",
    message="spec.tls.clientIdentity needs spec.authentication: whom a certificate names has to be"
    " a user",
    field=".tls",
)


def is_authenticated(authentication: AuthenticationSpec | None) -> bool:
    """Return whether requests have to be signed."""
    return authentication is not None and authentication.enabled


def check_users(
    authentication: AuthenticationSpec | None,
    authorization: AuthorizationSpec | None,
    http: HttpSpec | None,
    tls: TlsSpec | None,
) -> None:
    """Refuse what is about users where there are none.

    Raises:
        ValueError: as `AUTHORIZATION_RULE`, `REVIEW_RULE` and `IDENTITY_RULE`.
    """
    if tls is not None and tls.client_identity != "None" and not is_authenticated(authentication):
        raise ValueError(IDENTITY_RULE.message)
    reviews = http is not None and http.token_review is not None
    if reviews and not is_authenticated(authentication):
        raise ValueError(REVIEW_RULE.message)
    if authorization is not None and authorization.enabled and not is_authenticated(authentication):
        raise ValueError(AUTHORIZATION_RULE.message)
