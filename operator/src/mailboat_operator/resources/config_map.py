"""broker.conf: which settings a Broker's spec means, and the ConfigMap that carries them.

A *live* setting is sent to the running broker and stands in the file for its next start; any other
takes effect at a start only, so those go into the digest that makes a pod outdated. A setting that
the broker would not take is left out and reported: it must not keep a broker from starting. Which
keys a broker of another version takes is the matter of `broker_keys`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from mailboat.config import check_value, live_keys, nearest_key, role_settings
from mailboat.config.fields import to_text
from mailboat.config.properties import parse_properties
from mailboat.config.unsupported import UNSUPPORTED_KEYS
from mailboat.errors import ConfigError
from mailboat_operator.crds.broker import (
    Broker,
    BrokerSpec,
    broker_name_of,
    cluster_name_of,
)
from mailboat_operator.crds.common import Object
from mailboat_operator.resources.broker_keys import ImageKeys, config_file
from mailboat_operator.resources.labels import child, digest, group_labels
from mailboat_operator.resources.names import (
    BROKER_HTTP_PORT,
    BROKER_PORT,
    group_name,
    join_addresses,
)

BROKER_CONF: Final = "broker.conf"
NAMESRV_CONF: Final = "namesrv.conf"
STORE_FOLDER: Final = "/var/lib/mailboat/store"
ADDRESS_KEY: Final = "brokerIP1"
NAME_SERVERS_KEY: Final = "namesrvAddr"

LIVE_KEYS: Final = live_keys("broker")
"""Settings that a running broker takes over."""

_ROUTE_KEPT_S: Final = 30
"""How long a pod may take to be back before its clients' next look at their routes misses it.

A pod is back in a few seconds. A group that is not stays in the routes for as long, without write
permission, and readers that want to hear of every queue wait for it: the Spark source for a minute.
"""

_INDEX_ENTRY_BYTES: Final = 20
_QUEUE_UNIT_BYTES: Final = 20

_KNOWN: Final = role_settings("broker")
_LIVE_DEFAULTS: Final = {key: to_text(_KNOWN[key].default) for key in sorted(LIVE_KEYS)}
_SPECIAL: Final = re.compile(r"^[ \t\f]|[\\]")


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One entry of `spec.config` that the Broker's brokers would not take."""

    key: str
    unknown: bool
    """Whether there is no such key; else it is the value that is wrong."""

    sentence: str


@dataclass(frozen=True, slots=True)
class UserConfig:
    """`spec.config`, sorted by what can be done with it."""

    accepted: Mapping[str, str]
    problems: tuple[ConfigProblem, ...]
    without_effect: tuple[str, ...]
    """RocketMQ's keys that mean nothing here."""

    lacking: tuple[str, ...] = ()
    """Keys of `problems` that brokers of the image are known not to take."""


# Each group has one broker: these would have it wait for others.
_REPLICA_KEYS: Final = frozenset(
    {
        "brokerIP2",
        "haListenPort",
        "haMasterAddress",
        "haSecretFile",
        "inSyncReplicas",
        "slaveReadEnable",
        "slaveTimeout",
        "totalReplicas",
    }
)


def user_config(spec: BrokerSpec, keys: ImageKeys | None = None) -> UserConfig:
    """Sort the user's settings into those that are taken, those that are wrong and the rest.

    Args:
        spec: The Broker's.
        keys: What is known of the keys that its brokers take: they may be of another version.
    """
    accepted, problems, without_effect, lacking = {}, [], [], []
    for key, text in sorted(spec.config.items()):
        taken = keys.takes(key) if keys is not None else None
        if key in _REPLICA_KEYS or (key in UNSUPPORTED_KEYS and key not in _KNOWN and not taken):
            without_effect.append(key)
        elif key == "brokerRole" and text != "ASYNC_MASTER":
            sentence = f"config.{key} cannot be {text!r}: replicas are not made here yet"
            problems.append(ConfigProblem(key, False, sentence))
        elif keys is not None and taken is False and (key in _KNOWN or not keys.is_own):
            sentence = f"config.{key} is not a setting that a broker of {keys.image} knows"
            problems.append(ConfigProblem(key, True, sentence))
            lacking.append(key)
        elif keys is not None and key not in _KNOWN and keys.may_take(key):
            accepted[key] = text
        elif key not in _KNOWN:
            nearest = nearest_key(key)
            sentence = f"config.{key} is not a setting; the nearest one is {nearest}"
            problems.append(ConfigProblem(key, True, sentence))
        else:
            try:
                check_value(key, text)
            except ConfigError as problem:
                sentence = f"config.{key} cannot be {text!r}: it {problem.reason}"
                problems.append(ConfigProblem(key, False, sentence))
            else:
                accepted[key] = text
    return UserConfig(accepted, tuple(problems), tuple(without_effect), tuple(lacking))


def broker_settings(
    broker: Broker,
    group: int,
    *,
    address: str,
    name_servers: tuple[str, ...] | None,
    user: UserConfig | None = None,
) -> dict[str, str]:
    """Return everything that a group's broker should work with.

    Args:
        broker: The resource.
        group: Which group.
        address: What the broker tells its clients to connect to.
        name_servers: Where it registers; None while that is not known.
        user: Its `spec.config`, sorted; None sorts it as for a broker of this version.
    """
    settings = _derived_file_sizes(broker.spec.storage.segment_size_bytes)
    settings["routeKeptSeconds"] = str(_ROUTE_KEPT_S)
    settings |= (user or user_config(broker.spec)).accepted
    settings |= _retention_settings(broker.spec)
    settings |= {
        ADDRESS_KEY: address,
        "brokerClusterName": cluster_name_of(broker),
        "brokerId": "0",
        "brokerName": broker_name_of(broker, group),
        "httpPort": str(BROKER_HTTP_PORT),
        "listenPort": str(BROKER_PORT),
        "mappedFileSizeCommitLog": str(broker.spec.storage.segment_size_bytes),
        "shutdownDrainSeconds": str(broker.spec.shutdown.drain_seconds),
        "storePathRootDir": STORE_FOLDER,
    }
    if name_servers is not None:
        settings[NAME_SERVERS_KEY] = join_addresses(name_servers)
    return dict(sorted(settings.items()))


def _derived_file_sizes(segment_bytes: int) -> dict[str, str]:
    """Keep the files beside the CommitLog in proportion to its segments.

    An index file goes as a whole, when its last message does; with small segments one of the usual
    420 MB would outgrow the volume. The segment size never changes, so neither do these.
    """
    entries = segment_bytes // 2 // _INDEX_ENTRY_BYTES
    units = segment_bytes // 8 // _QUEUE_UNIT_BYTES
    wanted = {
        "maxIndexNum": entries,
        "maxHashSlotNum": entries // 4,
        "mappedFileSizeConsumeQueue": units * _QUEUE_UNIT_BYTES,
    }
    return {
        key: str(value) for key, value in wanted.items() if value < cast(int, _KNOWN[key].default)
    }


def live_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return what a running broker's live settings should be: the file's, else the defaults.

    Where the name servers are not known, the broker keeps those that it has.
    """
    wanted = {key: text for key, text in _LIVE_DEFAULTS.items() if key != NAME_SERVERS_KEY}
    wanted |= {key: value for key, value in settings.items() if key in LIVE_KEYS}
    return dict(sorted(wanted.items()))


def same_value(key: str, one: str, other: str) -> bool:
    """Return whether two texts mean the same value of a setting."""
    if one == other or key not in _KNOWN:
        return one == other
    try:
        return _KNOWN[key].parse(one, key) == _KNOWN[key].parse(other, key)
    except ConfigError:
        return False


def restart_hash(settings: Mapping[str, str]) -> str:
    """Return the digest of the settings that take effect at a start only."""
    return digest({key: value for key, value in settings.items() if key not in LIVE_KEYS})


def broker_config_map(
    broker: Broker, group: int, settings: Mapping[str, str], head: str = ""
) -> dict[str, Any]:
    """Return the ConfigMap of a group; `head` are the comments that its file begins with."""
    name, labels = group_name(broker.name, group), group_labels(broker.name, group)
    return config_map(broker, name, labels, {BROKER_CONF: head + properties(settings)})


def config_map(
    owner: Object[Any], name: str, labels: Mapping[str, str], data: Mapping[str, str]
) -> dict[str, Any]:
    """Return a ConfigMap with some files."""
    return child("v1/ConfigMap", owner, name, labels, data=dict(sorted(data.items())))


def properties(settings: Mapping[str, str]) -> str:
    """Spell settings as a properties file."""
    return "".join(f"{key}={_escape(value)}\n" for key, value in sorted(settings.items()))


def address_in(config_map: Mapping[str, Any]) -> str | None:
    """Return the address that a group's ConfigMap tells its broker to announce."""
    text = config_file(config_map, BROKER_CONF)
    try:
        found = {item.key: item.value for item in parse_properties(text)}
    except ConfigError:
        return None
    return found.get(ADDRESS_KEY) or None


def _retention_settings(spec: BrokerSpec) -> dict[str, str]:
    retention, thresholds = spec.retention, spec.retention.thresholds
    return {
        "deleteWhen": ";".join(f"{hour:02}" for hour in retention.delete_hours),
        "diskExpireFreeBytes": str(thresholds.expire.free_size_bytes),
        "diskForceCleanFreeBytes": str(thresholds.force_clean.free_size_bytes),
        "diskMaxUsedSpaceRatio": str(thresholds.expire.percent),
        "diskRejectFreeBytes": str(thresholds.reject_writes.free_size_bytes),
        "diskSpaceCleanForciblyRatio": str(thresholds.force_clean.percent),
        "diskSpaceWarningLevelRatio": str(thresholds.reject_writes.percent),
        "diskThresholdHysteresisPercent": str(thresholds.hysteresis_percent),
        "fileReservedTime": str(retention.hours),
        # Whether messages may go earlier is decided with the disk in view, and sent live.
        "readFileReservedTime": "-1",
    }


def _escape(value: str) -> str:
    return _SPECIAL.sub(lambda found: "\\" + found[0], value)
