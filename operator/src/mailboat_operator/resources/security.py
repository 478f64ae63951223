"""TLS, users and the HTTP token in the pods of brokers and name servers.

What is secret comes from Secrets that Kubernetes mounts; the files of settings name those files.
Nothing is mounted by `subPath`: such a file never changes, and a certificate has to.

    /etc/mailboat-secrets/tls         tls.crt, tls.key, ca.crt    spec.tls.secretRef
    /etc/mailboat-secrets/client-ca   ca.crt                      spec.tls.clientCA.secretRef
    /etc/mailboat-secrets/http        token                       spec.http.tokenSecretRef
    /etc/mailboat-secrets/users       one JSON file for each User

Two users are settings of RocketMQ's that are JSON texts: these are put together in the environment,
from keys of a Secret, by Kubernetes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mailboat_operator.crds.broker import Broker, BrokerSpec
from mailboat_operator.crds.name_server import NameServer, NameServerSpec
from mailboat_operator.crds.security import SecretRef, TlsSpec, is_authenticated
from mailboat_operator.resources.kube_api import KUBE_API_FOLDER, kube_api_volume
from mailboat_operator.resources.names import broker_users_name, name_server_users_name

SECRETS_FOLDER: Final = "/etc/mailboat-secrets"
TLS_FOLDER: Final = f"{SECRETS_FOLDER}/tls"
CLIENT_CA_FOLDER: Final = f"{SECRETS_FOLDER}/client-ca"
HTTP_FOLDER: Final = f"{SECRETS_FOLDER}/http"
USERS_FOLDER: Final = f"{SECRETS_FOLDER}/users"
TLS_VOLUME: Final = "tls"
HTTP_VOLUME: Final = "http-token"
TOKEN: Final = "token"  # noqa: S105 - the key of a Secret
USERNAME: Final = "username"
PASSWORD: Final = "password"  # noqa: S105 - the key of a Secret
CERTIFICATE: Final = "tls.crt"
PRIVATE_KEY: Final = "tls.key"
AUTHORITY: Final = "ca.crt"

SECRET_MODE: Final = 0o440
"""The process reads them as its group (fsGroup), and nobody writes them."""

_INNER_SETTING: Final = "MAILBOAT_INNER_CLIENT_AUTHENTICATION_CREDENTIALS"
_INITIAL_SETTING: Final = "MAILBOAT_INIT_AUTHENTICATION_USER"
_MODES: Final = {"Disabled": "disabled", "Permissive": "permissive", "Enforcing": "enforcing"}
_CLIENT_AUTH: Final = {"None": "none", "Optional": "optional", "Required": "require"}


@dataclass(frozen=True, slots=True)
class Security:
    """What a resource's security adds to its pods; nothing where none is asked for."""

    settings: Mapping[str, str] = field(default_factory=dict)
    volumes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Path -> volume that is mounted there to be read."""

    env: Sequence[Mapping[str, Any]] = ()
    probe_scheme: str | None = None
    """How the kubelet asks; None: as Kubernetes does by default."""


def broker_security(broker: Broker, name_server: NameServer | None) -> Security:
    """Return what a Broker's pods get.

    Args:
        broker: The resource.
        name_server: The NameServer that `nameServers.ref` names, if there is one.
    """
    other = name_server.spec.tls if name_server is not None else None
    return _security(broker.spec, other, broker_users_name(broker.name))


def name_server_security(name_server: NameServer) -> Security:
    """Return what a NameServer's pods get: they connect to brokers as these ask for it."""
    return _security(name_server.spec, None, name_server_users_name(name_server.name))


def secret_volume(
    name: str, secret: str, keys: tuple[str, ...] = (), *, is_optional: bool = False
) -> dict[str, Any]:
    """Return a volume with a Secret.

    Args:
        name: Of the volume.
        secret: The Secret's.
        keys: What is mounted of it; a pod waits for what is missing, with an event. Empty: all.
        is_optional: Whether a pod starts without the Secret, which is there once it is made.
    """
    source: dict[str, Any] = {"secretName": secret, "defaultMode": SECRET_MODE}
    if keys:
        source["items"] = [{"key": key, "path": key} for key in keys]
    if is_optional:
        source["optional"] = True
    return {"name": name, "secret": source}


def _security(
    spec: BrokerSpec | NameServerSpec, other: TlsSpec | None, users_secret: str
) -> Security:
    settings: dict[str, str] = {}
    volumes: dict[str, dict[str, Any]] = {}
    tls = spec.tls if spec.tls is not None and spec.tls.is_on else None
    certified = spec.tls if any(one.speaks_tls for one in spec.listeners) else tls
    if certified is not None:
        _put_server_tls(certified, settings, volumes, is_asked=_asks_certificates(spec))
    partners = [one for one in (tls, other) if one is not None and one.is_enforcing]
    if partners:
        secret = spec.tls.secret_ref if spec.tls is not None else None
        if secret is not None:
            volumes[TLS_FOLDER] = _certificate_volume(secret)
        settings |= _own_connections(partners, has_certificate=secret is not None)
    env = _put_users(spec, users_secret, settings, volumes)
    _put_http(spec, settings, volumes)
    scheme = "HTTPS" if tls is not None and tls.is_enforcing else None
    return Security(dict(sorted(settings.items())), volumes, env, scheme)


def _asks_certificates(spec: BrokerSpec | NameServerSpec) -> bool:
    """Tell whether any port asks clients for certificates, if only over HTTP."""
    if spec.tls is not None and spec.tls.client_identity != "None":
        return True
    of_all = spec.tls is not None and spec.tls.is_on and spec.tls.client_auth != "None"
    return of_all or any(one.client_auth != "None" for one in spec.listeners)


def _put_server_tls(
    tls: TlsSpec,
    settings: dict[str, str],
    volumes: dict[str, dict[str, Any]],
    *,
    is_asked: bool,
) -> None:
    assert tls.secret_ref is not None
    volumes[TLS_FOLDER] = _certificate_volume(tls.secret_ref)
    settings |= {
        "tls.server.mode": _MODES[tls.mode],
        "tls.server.certPath": f"{TLS_FOLDER}/{CERTIFICATE}",
        "tls.server.keyPath": f"{TLS_FOLDER}/{PRIVATE_KEY}",
        # Of the ports that there are anyway; listeners have their own.
        "tls.server.need.client.auth": _CLIENT_AUTH[tls.client_auth if tls.is_on else "None"],
    }
    if tls.is_enforcing:
        settings["httpTlsMode"] = "enforcing"
    if tls.client_identity != "None":
        settings["tls.server.clientIdentity"] = tls.client_identity
    if is_asked and tls.client_ca is not None:
        secret = tls.client_ca.secret_ref.name
        volumes[CLIENT_CA_FOLDER] = secret_volume("client-ca", secret, (AUTHORITY,))
        settings["tls.server.trustCertPath"] = f"{CLIENT_CA_FOLDER}/{AUTHORITY}"


def _certificate_volume(secret: SecretRef) -> dict[str, Any]:
    return secret_volume(TLS_VOLUME, secret.name, (CERTIFICATE, PRIVATE_KEY, AUTHORITY))


def _put_users(
    spec: BrokerSpec | NameServerSpec,
    users_secret: str,
    settings: dict[str, str],
    volumes: dict[str, dict[str, Any]],
) -> list[dict[str, Any]]:
    """Put what makes requests need a user; return what is in the environment for it."""
    authentication = spec.authentication
    if authentication is None or not is_authenticated(authentication):
        return []
    settings |= {"authenticationEnabled": "true", "authUsersPath": USERS_FOLDER}
    if spec.authorization is not None and spec.authorization.enabled:
        settings["authorizationEnabled"] = "true"
    # It is there once there is a User.
    volumes[USERS_FOLDER] = secret_volume("users", users_secret, is_optional=True)
    super_user, inner = authentication.super_user_secret_ref, authentication.inner_secret_ref
    assert super_user is not None
    env = _secret_json(
        "INNER", (inner or super_user).name, _INNER_SETTING, ("accessKey", "secretKey")
    )
    if inner is not None and inner != super_user:
        env += _secret_json("SUPER", super_user.name, _INITIAL_SETTING, ("username", "password"))
    return env


def _secret_json(
    prefix: str, secret: str, setting: str, names: tuple[str, str]
) -> list[dict[str, Any]]:
    """Return variables that make a JSON text with name and password out of a Secret's keys."""
    user, password = f"{prefix}_{USERNAME.upper()}", f"{prefix}_{PASSWORD.upper()}"
    found: list[dict[str, Any]] = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for name, key in ((user, USERNAME), (password, PASSWORD))
    ]
    text = f'{{"{names[0]}":"$({user})","{names[1]}":"$({password})"}}'
    return [*found, {"name": setting, "value": text}]


def _put_http(
    spec: BrokerSpec | NameServerSpec,
    settings: dict[str, str],
    volumes: dict[str, dict[str, Any]],
) -> None:
    http = spec.http
    if http is None:
        return
    if http.token_secret_ref is not None:
        settings["httpTokenFile"] = f"{HTTP_FOLDER}/{TOKEN}"
        volumes[HTTP_FOLDER] = secret_volume(HTTP_VOLUME, http.token_secret_ref.name, (TOKEN,))
    if http.token_review is not None:
        settings["httpTokenReview"] = "true"
        settings["httpTokenReviewAudience"] = http.token_review.audience
        volumes[KUBE_API_FOLDER] = kube_api_volume()
    if http.metrics == "Open" and (http.token_secret_ref or is_authenticated(spec.authentication)):
        settings["httpMetricsOpen"] = "true"


def _own_connections(partners: list[TlsSpec], *, has_certificate: bool) -> dict[str, str]:
    """Return how a server connects to others, of which some take nothing but TLS.

    Without a Secret of its own, whatever its ports speak, it trusts what the image does.
    """
    settings = {"tls.enable": "true"}
    if has_certificate:
        settings["tls.client.trustCertPath"] = f"{TLS_FOLDER}/{AUTHORITY}"
        if any(partner.client_auth != "None" for partner in partners):
            settings["tls.client.certPath"] = f"{TLS_FOLDER}/{CERTIFICATE}"
            settings["tls.client.keyPath"] = f"{TLS_FOLDER}/{PRIVATE_KEY}"
    return settings
