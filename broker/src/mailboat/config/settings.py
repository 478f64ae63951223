"""The one typed object of all settings, and which keys each role takes."""

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from mailboat.config.broker import BrokerConfig
from mailboat.config.fields import HIDDEN, Setting, Value, settings_of, to_text
from mailboat.config.listeners import (
    KEY,
    ListenerConfig,
    check_ports,
    parse_listeners,
    silent_about_tls,
)
from mailboat.config.namesrv import NamesrvConfig
from mailboat.config.remoting import RemotingConfig
from mailboat.config.security import SecurityConfig
from mailboat.config.store import MessageStoreConfig, check_store
from mailboat.config.tls import TlsConfig
from mailboat.errors import ConfigError

Role: TypeAlias = Literal["standalone", "namesrv", "broker"]
"""Which process the settings are for."""

_SECTIONS: Final = {
    "broker": settings_of("broker", BrokerConfig),
    "store": settings_of("store", MessageStoreConfig),
    "namesrv": settings_of("namesrv", NamesrvConfig),
    "remoting": settings_of("remoting", RemotingConfig),
    "security": settings_of("security", SecurityConfig),
    "tls": settings_of("tls", TlsConfig),
}
_ROLE_SECTIONS: Final[dict[Role, tuple[str, ...]]] = {
    "broker": ("broker", "store", "remoting", "security", "tls"),
    "namesrv": ("namesrv", "remoting", "security", "tls"),
    "standalone": ("broker", "store", "remoting", "security", "tls", "namesrv"),
}

# Of RocketMQ's keys without effect: those that say who passes, and the endings of the values that
# say what is done here anyway.
_OPENS_OR_SHUTS: Final = {
    "authenticationWhitelist": (),
    "authorizationWhitelist": (),
    "authenticationProvider": (".DefaultAuthenticationProvider",),
    "authorizationProvider": (".DefaultAuthorizationProvider",),
}

_SHARED_HTTP_PORT: Final = ("namesrv", "http_port")
"""In `standalone` the broker's HTTP port serves both."""


_COUNT_WITH: Final = {
    "authUsersPath": "authenticationEnabled",
    "initAuthenticationUser": "authenticationEnabled",
    "plainAclFile": "aclEnable",
    "tls.server.certPath": "tls.server.mode",
    "tls.server.need.client.auth": "tls.server.mode",
}
"""Keys that shut no door without another one, which somebody may have forgotten."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be configured, each part for the component that needs it."""

    role: Role = "standalone"
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    store: MessageStoreConfig = field(default_factory=MessageStoreConfig)
    namesrv: NamesrvConfig = field(default_factory=NamesrvConfig)
    remoting: RemotingConfig = field(default_factory=RemotingConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    without_effect: dict[str, str] = field(default_factory=dict)
    """RocketMQ's keys that were set and have no effect, and their values."""

    sources: dict[str, str] = field(default_factory=dict)
    """Key to where its value came from; a key that is not here has its default."""

    warnings: tuple[str, ...] = ()
    """What should be said to the user once, such as keys that have no effect."""


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """One line of `--print-config`."""

    key: str
    value: str
    source: str


def role_settings(role: Role) -> dict[str, Setting]:
    """Return the settings of a role by key.

    A name server's key that the broker has too gets a prefix in `standalone`: `namesrvListenPort`.
    """
    table: dict[str, Setting] = {}
    for section in _ROLE_SECTIONS[role]:
        for item in _SECTIONS[section]:
            if role == "standalone" and (section, item.name) == _SHARED_HTTP_PORT:
                continue
            clashes = item.key in table
            table[section + item.key[0].upper() + item.key[1:] if clashes else item.key] = item
    return table


def live_keys(role: Role = "broker") -> frozenset[str]:
    """Return the keys whose change takes effect in a running broker; all others need a restart.

    In `standalone` the broker's first name server is that of its own process, so there namesrvAddr
    is not among them.
    """
    own = {"namesrvAddr"} if role == "standalone" else set()
    live = {key for key, item in role_settings(role).items() if item.rules.live}
    return frozenset(live - own)


def check_settings(settings: Settings) -> None:
    """Refuse settings that are legal one by one and make no sense together.

    Raises:
        ConfigError: names one of the keys and what it must not exceed.
    """
    _check_security(settings)
    check_ports(listeners_of(settings), _other_ports(settings))
    if settings.role != "namesrv":
        check_store(settings.store)
        _check_tls_of_replica(settings)
        _check_link(settings)
        is_slave = settings.store.broker_role == "SLAVE"
        if settings.store.lease_name:
            _check_lease(settings)
        elif is_slave != (settings.broker.broker_id > 0):
            wanted = "above 0 for a SLAVE" if is_slave else "0 unless brokerRole=SLAVE"
            raise ConfigError("brokerId", str(settings.broker.broker_id), f"must be {wanted}")
        replicas = settings.store.total_replicas
        if settings.broker.broker_id >= replicas:
            raise ConfigError(
                "brokerId",
                str(settings.broker.broker_id),
                f"must be below totalReplicas={replicas}",
            )
        if settings.store.in_sync_replicas > replicas:
            raise ConfigError(
                "inSyncReplicas",
                str(settings.store.in_sync_replicas),
                f"must not be above totalReplicas={replicas}",
            )


def listeners_of(settings: Settings) -> tuple[ListenerConfig, ...]:
    """Return the further ports of all parts of a process."""
    texts = _listener_texts(settings).values()
    return tuple(listener for text in texts for listener in parse_listeners(text))


def _listener_texts(settings: Settings) -> dict[str, str]:
    """Return what says the further ports of each part of a process, by its setting."""
    texts = {}
    if settings.role != "namesrv":
        texts[KEY] = settings.broker.listeners
    if settings.role != "broker":
        key = KEY if settings.role == "namesrv" else "namesrvListeners"
        texts[key] = settings.namesrv.listeners
    return texts


def _other_ports(settings: Settings) -> dict[str, int]:
    """Return the ports of a process that are no listeners, by their settings."""
    broker, store, namesrv = settings.broker, settings.store, settings.namesrv
    ports = {}
    if settings.role != "broker":
        ports["the name server's listenPort"] = namesrv.listen_port
    if settings.role == "namesrv":
        return ports | {"httpPort": namesrv.http_port}
    fast_port = broker.listen_port - 2 if broker.fast_listen_enable else 0
    replicas_port = store.ha_listen_port
    if replicas_port < 0 and store.broker_role != "ASYNC_MASTER":
        replicas_port = broker.listen_port + 1
    return ports | {
        "listenPort": broker.listen_port,
        "listenPort - 2 (fastListenEnable)": fast_port,
        "haListenPort": replicas_port,
        "leaderListenPort": store.leader_listen_port,
        "httpPort": broker.http_port,
    }


def _check_security(settings: Settings) -> None:
    """Refuse what would leave a door open that looks shut."""
    security = settings.security
    if security.authorization_enabled and not security.is_guarded:
        reason = (
            "needs authenticationEnabled=true: without signatures anybody could say to be anybody"
        )
        raise ConfigError("authorizationEnabled", "true", reason)
    if security.http_token_review and not security.is_guarded:
        reason = "needs authenticationEnabled=true: whom a token stands for has to be a user"
        raise ConfigError("httpTokenReview", "true", reason)
    _check_client_identity(settings)
    _check_forgotten(settings)
    _check_plain(settings)
    if not security.is_guarded:
        return
    for key, text in settings.without_effect.items():
        if key in _OPENS_OR_SHUTS and not text.endswith(_OPENS_OR_SHUTS[key]):
            reason = "is not supported, and would decide who is let in: take it out"
            raise ConfigError(key, text, reason)


def _check_forgotten(settings: Settings) -> None:
    """Refuse keys that have no effect where nobody said that they are to have none.

    Raises:
        ConfigError: names the key, and the one that it needs.
    """
    tls, table = settings.tls, role_settings(settings.role)
    by_tls = any(listener.speaks_tls for listener in listeners_of(settings))
    is_on = {
        "authenticationEnabled": settings.security.is_guarded,
        "aclEnable": settings.security.acl_enable,
        "tls.server.mode": by_tls or not tls.server_mode == tls.http_mode == "disabled",
    }
    for key, switch in _COUNT_WITH.items():
        if key not in settings.sources or switch in settings.sources or is_on[switch]:
            continue
        item = table[key]
        value = getattr(getattr(settings, item.section), item.name)
        if value != item.default:
            reason = f"has no effect without {switch}, which is not set: set that as well"
            raise ConfigError(key, _shown(item, value), reason)


def _check_plain(settings: Settings) -> None:
    """Refuse ports in plain text that somebody may think speak TLS.

    Raises:
        ConfigError: names the setting, and the one that says what is meant.
    """
    tls = settings.tls
    if tls.server_mode == "enforcing":
        for key, text in _listener_texts(settings).items():
            name = silent_about_tls(text)
            if name is not None:
                reason = (
                    f"{name} would take plain text only, with tls.server.mode=enforcing: say its "
                    "tls, enforcing or disabled"
                )
                raise ConfigError(key, text, reason)
    is_said = {"tls.server.mode", "httpTlsMode"} & settings.sources.keys()
    # In the environment it may be that of client commands.
    is_typed = not settings.sources.get("tls.enable", "environment").startswith("environment")
    by_tls = any(listener.speaks_tls for listener in listeners_of(settings))
    if settings.role == "standalone" and tls.enable and is_typed and not (is_said or by_tls):
        reason = (
            "is about the connections that this process makes, and none of its ports speaks TLS: "
            "set tls.server.mode"
        )
        raise ConfigError("tls.enable", "true", reason)


def _check_client_identity(settings: Settings) -> None:
    """Refuse certificates that are to name users where there are none of either.

    Raises:
        ConfigError: says what is missing.
    """
    tls, key = settings.tls, "tls.server.clientIdentity"
    if tls.server_client_identity == "none":
        return
    if not settings.security.is_guarded:
        reason = "needs authenticationEnabled=true: without it nobody is asked who he is"
        raise ConfigError(key, tls.server_client_identity, reason)
    by_tls = any(listener.speaks_tls for listener in listeners_of(settings))
    if tls.server_mode == tls.http_mode == "disabled" and not by_tls:
        reason = "needs a port that speaks TLS: tls.server.mode, a listener or httpTlsMode"
        raise ConfigError(key, tls.server_client_identity, reason)


def _check_link(settings: Settings) -> None:
    """Refuse a port for replicas that gives all messages to anybody, beside others that are shut.

    Raises:
        ConfigError: it has no secret, nor do replicas show certificates there.
    """
    store, tls = settings.store, settings.tls
    shows_who = tls.server_mode == "enforcing" and tls.server_need_client_auth == "require"
    if (
        store.is_replica
        and settings.security.is_guarded
        and not (store.ha_secret_file or shows_who)
    ):
        key = "authenticationEnabled" if settings.security.authentication_enabled else "aclEnable"
        reason = (
            f"must be set with {key}=true: whoever reaches haListenPort gets all messages there "
            "without a signature; or ask for certificates, tls.server.mode=enforcing with "
            "tls.server.need.client.auth=require"
        )
        raise ConfigError("haSecretFile", "", reason)


def _check_tls_of_replica(settings: Settings) -> None:
    """Refuse a replica that asks others for TLS and does not speak it to them."""
    store, tls = settings.store, settings.tls
    connects = store.broker_role == "SLAVE" or bool(store.lease_name)
    if connects and tls.server_mode == "enforcing" and not tls.enable:
        reason = "must be true with tls.server.mode=enforcing: replicas connect to each other"
        raise ConfigError("tls.enable", "false", reason)


def _check_lease(settings: Settings) -> None:
    """Refuse what makes no sense where a Lease says which replica leads."""
    store, ordinal = settings.store, settings.broker.broker_id
    if store.broker_role == "SLAVE":
        reason = "must be SYNC_MASTER or ASYNC_MASTER with leaseName: the Lease says who follows"
        raise ConfigError("brokerRole", store.broker_role, reason)
    if not store.pod_name.endswith(f"-{ordinal}"):
        reason = f"must end with -{ordinal}, as brokerId says, with leaseName"
        raise ConfigError("podName", store.pod_name, reason)
    if not store.pod_uid:
        raise ConfigError("podUid", "", "must be set with leaseName")


def effective_values(settings: Settings) -> list[EffectiveValue]:
    """List every setting of the role with its value and its source, in declaration order."""
    return [
        EffectiveValue(
            key=key,
            value=_shown(item, getattr(getattr(settings, item.section), item.name)),
            source=settings.sources.get(key, "default"),
        )
        for key, item in role_settings(settings.role).items()
    ]


def _shown(item: Setting, value: Value) -> str:
    text = to_text(value)
    return HIDDEN if item.rules.is_secret and text else text


def properties_of(settings: Settings) -> dict[str, str]:
    """Return the role's settings as RocketMQ's GET_BROKER_CONFIG and GET_NAMESRV_CONFIG show
    them."""
    return {item.key: item.value for item in effective_values(settings)}
