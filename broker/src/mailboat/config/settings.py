"""The one typed object of all settings, and which keys each role takes."""

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from mailboat.config.broker import BrokerConfig
from mailboat.config.fields import Setting, settings_of, to_text
from mailboat.config.namesrv import NamesrvConfig
from mailboat.config.remoting import RemotingConfig
from mailboat.config.store import MessageStoreConfig, check_store
from mailboat.errors import ConfigError

Role: TypeAlias = Literal["standalone", "namesrv", "broker"]
"""Which process the settings are for."""

_SECTIONS: Final = {
    "broker": settings_of("broker", BrokerConfig),
    "store": settings_of("store", MessageStoreConfig),
    "namesrv": settings_of("namesrv", NamesrvConfig),
    "remoting": settings_of("remoting", RemotingConfig),
}
_ROLE_SECTIONS: Final[dict[Role, tuple[str, ...]]] = {
    "broker": ("broker", "store", "remoting"),
    "namesrv": ("namesrv", "remoting"),
    "standalone": ("broker", "store", "remoting", "namesrv"),
}

_SHARED_HTTP_PORT: Final = ("namesrv", "http_port")
"""In `standalone` the broker's HTTP port serves both."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be configured, each part for the component that needs it."""

    role: Role = "standalone"
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    store: MessageStoreConfig = field(default_factory=MessageStoreConfig)
    namesrv: NamesrvConfig = field(default_factory=NamesrvConfig)
    remoting: RemotingConfig = field(default_factory=RemotingConfig)
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
    if settings.role != "namesrv":
        check_store(settings.store)
        is_slave = settings.store.broker_role == "SLAVE"
        if is_slave != (settings.broker.broker_id > 0):
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


def effective_values(settings: Settings) -> list[EffectiveValue]:
    """List every setting of the role with its value and its source, in declaration order."""
    return [
        EffectiveValue(
            key=key,
            value=to_text(getattr(getattr(settings, item.section), item.name)),
            source=settings.sources.get(key, "default"),
        )
        for key, item in role_settings(settings.role).items()
    ]


def properties_of(settings: Settings) -> dict[str, str]:
    """Return the role's settings as RocketMQ's GET_BROKER_CONFIG and GET_NAMESRV_CONFIG show
    them."""
    return {item.key: item.value for item in effective_values(settings)}
