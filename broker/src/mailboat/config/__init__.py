"""Every setting of mailboat as one typed object, read once at start.

What belongs here: the declarations (`broker`, `store`, `namesrv`, `remoting`), where values come
from (`loading`) and RocketMQ's properties format. Nothing else in mailboat reads the environment or
a configuration file; a component gets the part that it needs. May import `errors` only.
"""

from mailboat.config.broker import BrokerConfig
from mailboat.config.loading import (
    OPERATOR_MARK,
    TOKEN_ENVIRONMENT,
    change_settings,
    check_value,
    load_settings,
    nearest_key,
    parse_overrides,
)
from mailboat.config.namesrv import NamesrvConfig
from mailboat.config.remoting import RemotingConfig
from mailboat.config.security import SecurityConfig, check_token
from mailboat.config.settings import (
    EffectiveValue,
    Role,
    Settings,
    effective_values,
    live_keys,
    properties_of,
    role_settings,
)
from mailboat.config.store import MessageStoreConfig

__all__ = [
    "OPERATOR_MARK",
    "TOKEN_ENVIRONMENT",
    "BrokerConfig",
    "EffectiveValue",
    "MessageStoreConfig",
    "NamesrvConfig",
    "RemotingConfig",
    "Role",
    "SecurityConfig",
    "Settings",
    "change_settings",
    "check_token",
    "check_value",
    "effective_values",
    "live_keys",
    "load_settings",
    "nearest_key",
    "parse_overrides",
    "properties_of",
    "role_settings",
]
