"""broker.conf: which settings a Broker's spec means, and the ConfigMap that carries them.

A *live* setting is sent to the running broker and stands in the file for its next start; any other
takes effect at a start only, so those go into the digest that makes a pod outdated. A setting that
the broker would not take is left out and reported: it must not keep a broker from starting. Which
keys a broker of another version takes is the matter of `broker_keys`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    BROKER_HA_PORT,
    BROKER_HTTP_PORT,
    BROKER_LEADER_PORT,
    BROKER_PORT,
    broker_nodes_name,
    group_name,
    join_addresses,
    pod_name,
)
from mailboat_operator.resources.replication import LINK_FILE

BROKER_CONF: Final = "broker.conf"
REPLICA_CONF: Final = "replica.conf"
"""What a replica starts with. The pod of before may start again until it becomes one, and cannot be
one: it keeps to a file that says nothing of that."""

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


LEASE_KEY: Final = "leaseName"
"""The setting without which a broker is no replica."""

REPLICATION_KEYS: Final = frozenset(
    {
        "brokerIP2",
        "brokerRole",
        "haListenPort",
        "haMasterAddress",
        "haSecretFile",
        "inSyncReplicas",
        "kubeApiFolder",
        "leaderListenPort",
        LEASE_KEY,
        "leaseSeconds",
        "maxHaTransferByteInSecond",
        "podName",
        "podUid",
        "totalReplicas",
    }
)
"""What the operator decides where there are replicas, and what means nothing where there are none:
a broker would wait for others."""

_LEASES: Final = frozenset({"haMasterAddress", "inSyncReplicas", "totalReplicas"})
"""What changes with the number of replicas, and concerns none that runs: the Lease says who is in
sync and how many have to be, and who is new connects to those with lower numbers."""

_REPLICAS_OWN: Final = frozenset({"haFlowControlEnable", "slaveReadEnable", "slaveTimeout"})
"""What the user decides, and means nothing without replicas."""


def user_config(spec: BrokerSpec, keys: ImageKeys | None = None) -> UserConfig:
    """Sort the user's settings into those that are taken, those that are wrong and the rest.

    Args:
        spec: The Broker's.
        keys: What is known of the keys that its brokers take: they may be of another version.
    """
    accepted, problems, without_effect, lacking = {}, [], [], []
    for key, text in sorted(spec.config.items()):
        taken = keys.takes(key) if keys is not None else None
        if key == "brokerRole":
            if text != _role(spec):
                sentence = (
                    f"config.{key} cannot be {text!r}: use spec.replicas and spec.replication"
                )
                problems.append(ConfigProblem(key, False, sentence))
            else:
                accepted[key] = text
        elif (
            key in REPLICATION_KEYS
            or (key in _REPLICAS_OWN and spec.replicas == 1)
            or (key in UNSUPPORTED_KEYS and key not in _KNOWN and not taken)
        ):
            without_effect.append(key)
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


def with_security(user: UserConfig, security: Mapping[str, str], keys: ImageKeys) -> UserConfig:
    """Add what of a Broker's security its brokers do not know: they serve without it.

    Args:
        user: Its `spec.config`, sorted.
        security: The settings of its security.
        keys: What is known of the keys that its brokers take.
    """
    lacking = tuple(key for key in security if keys.takes(key) is False)
    problems = tuple(
        ConfigProblem(
            key, True, f"a broker of {keys.image} knows no {key}, so it serves without it"
        )
        for key in lacking
    )
    return replace(user, problems=(*user.problems, *problems), lacking=(*user.lacking, *lacking))


def broker_settings(
    broker: Broker,
    group: int,
    *,
    address: str,
    name_servers: tuple[str, ...] | None,
    user: UserConfig | None = None,
    replicas: int | None = None,
) -> dict[str, str]:
    """Return everything that a group's broker should work with.

    Args:
        broker: The resource.
        group: Which group.
        address: What the broker tells its clients to connect to.
        name_servers: Where it registers; None while that is not known.
        user: Its `spec.config`, sorted; None sorts it as for a broker of this version.
        replicas: How many replicas the group has; None for a broker that is none.
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
    if replicas is not None:
        settings |= _replication_settings(broker, group, replicas)
    return dict(sorted(settings.items()))


def _replication_settings(broker: Broker, group: int, replicas: int) -> dict[str, str]:
    """Return what all replicas of a group have in common; the rest is in their environment."""
    spec, name = broker.spec.replication, group_name(broker.name, group)
    nodes = f"{broker_nodes_name(broker.name)}.{broker.namespace}.svc"
    return {
        "brokerRole": f"{spec.mode.upper()}_MASTER",
        "haListenPort": str(BROKER_HA_PORT),
        "haMasterAddress": join_addresses(
            f"{pod_name(name, ordinal)}.{nodes}:{BROKER_HA_PORT}" for ordinal in range(replicas)
        ),
        "haSecretFile": LINK_FILE,
        "inSyncReplicas": str(spec.minimum(replicas)),
        "leaderListenPort": str(BROKER_LEADER_PORT),
        LEASE_KEY: name,
        "leaseSeconds": str(spec.lease_seconds),
        "maxHaTransferByteInSecond": str(spec.catch_up_bytes_per_second),
        "totalReplicas": str(replicas),
    }


def _role(spec: BrokerSpec) -> str:
    return f"{spec.replication.mode.upper()}_MASTER" if spec.replicas > 1 else "ASYNC_MASTER"


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
    """Return the digest of the settings that take effect at a start only, and matter before."""
    without = LIVE_KEYS | _LEASES if LEASE_KEY in settings else LIVE_KEYS
    return digest({key: value for key, value in settings.items() if key not in without})


def broker_config_map(
    broker: Broker, group: int, settings: Mapping[str, str], head: str = ""
) -> dict[str, Any]:
    """Return the ConfigMap of a group; `head` are the comments that its files begin with."""
    name, labels = group_name(broker.name, group), group_labels(broker.name, group)
    if LEASE_KEY not in settings:
        return config_map(broker, name, labels, {BROKER_CONF: head + properties(settings)})
    alone = {key: value for key, value in settings.items() if key not in REPLICATION_KEYS}
    files = {BROKER_CONF: head + properties(alone), REPLICA_CONF: head + properties(settings)}
    return config_map(broker, name, labels, files)


def broker_file(settings: Mapping[str, str]) -> str:
    """Return the name of the file with all settings of a group's brokers."""
    return REPLICA_CONF if LEASE_KEY in settings else BROKER_CONF


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
