"""What each process of `--brokers N` or `--replicas N` is to be, and which stores a folder holds.

    broker i   name             <brokerName>-<i>
               store            <storePathRootDir>/<i>, and <storePathCommitLog>/<i> where it is set
               port             listenPort + 10 i; 0 stays 0, a free one each
               HTTP port        httpPort + i; 0 and -1 stay
    name server (standalone)    namesrvListenPort, HTTP port httpPort - 1

Replicas have one name, the brokerIds 0 and on, and the port for each other behind the broker's.

Ports are ten apart because RocketMQ's clients also use the port two below, and its tools suppose
that the next one is taken by replication; RocketMQ's own examples of several brokers on a machine
are ten apart, too.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from mailboat.config import Role, Settings, role_settings
from mailboat.config.settings import check_settings
from mailboat.errors import ConfigError
from mailboat.store.layout import store_paths

SOURCE: Final = "--brokers"
"""Where `Settings.sources` says that what differs from broker to broker came from."""

REPLICAS_SOURCE: Final = "--replicas"
"""The same of replicas."""

NAME_SERVER: Final = "namesrv"
PORT_STRIDE: Final = 10
_FAST_PORT_DISTANCE: Final = 2
_HIGHEST_PORT: Final = 65_535


class Fleet(NamedTuple):
    """Settings by the name of the process, in the order of the numbers."""

    name_server: Settings | None
    brokers: dict[str, Settings]
    is_group: bool = False
    """Whether the brokers are replicas of one."""


def plan_fleet(settings: Settings, count: int) -> Fleet:
    """Derive the settings of every process from those of one.

    Raises:
        ConfigError: the ports do not fit, two processes would have the same one, or settings of one
            make no sense together.
    """
    name_server = _name_server(settings) if settings.role == "standalone" else None
    brokers = {
        f"{settings.broker.broker_name}-{number}": _broker(settings, number, count)
        for number in range(count)
    }
    fleet = Fleet(name_server, brokers)
    _check(fleet)
    return fleet


def plan_replicas(settings: Settings, count: int) -> Fleet:
    """Derive the settings of every replica of one broker, the first of which begins as master.

    Raises:
        ConfigError: the ports do not fit, more are to be in sync than there are, or settings of one
            make no sense together.
    """
    name_server = _name_server(settings) if settings.role == "standalone" else None
    brokers = {
        f"{settings.broker.broker_name}-{number}": _replica(settings, number, count)
        for number in range(count)
    }
    fleet = Fleet(name_server, brokers, is_group=True)
    _check(fleet)
    return fleet


def _replica(settings: Settings, number: int, count: int) -> Settings:
    store, sources = settings.store, settings.sources
    is_async = store.broker_role == "ASYNC_MASTER" and "brokerRole" in sources
    role = "ASYNC_MASTER" if is_async else "SYNC_MASTER"
    own: dict[str, Any] = {
        "brokerId": number,
        "brokerRole": "SLAVE" if number else role,
        "totalReplicas": count,
    }
    if "inSyncReplicas" not in sources:
        own["inSyncReplicas"] = 1 if is_async else min(2, count)
    elif store.in_sync_replicas > count:
        raise ConfigError(
            "inSyncReplicas",
            str(store.in_sync_replicas),
            f"must not be above {REPLICAS_SOURCE} {count}",
        )
    base = _broker(settings, number, count, settings.broker.broker_name)
    port = base.broker.listen_port
    own["haListenPort"] = _port("haListenPort", port + 1, count) if port else 0
    return with_values(base, own, REPLICAS_SOURCE)


def _broker(settings: Settings, number: int, count: int, name: str = "") -> Settings:
    """Return what one of several brokers has of its own; without a name, a name of its own too."""
    broker, store = settings.broker, settings.store
    own: dict[str, Any] = {
        "brokerName": name or f"{broker.broker_name}-{number}",
        "storePathRootDir": os.path.join(store.store_path_root_dir, str(number)),
    }
    if store.store_path_commit_log:
        own["storePathCommitLog"] = os.path.join(store.store_path_commit_log, str(number))
    if broker.listen_port:
        own["listenPort"] = _port("listenPort", broker.listen_port + PORT_STRIDE * number, count)
    if broker.http_port > 0:
        own["httpPort"] = _port("httpPort", broker.http_port + number, count)
    if "accessMessageInMemoryMaxRatio" not in settings.sources:
        # They share the memory that one would have to itself.
        own["accessMessageInMemoryMaxRatio"] = max(
            1, store.access_message_in_memory_max_ratio // count
        )
    return with_values(_as_role(settings, "broker"), own)


def _name_server(settings: Settings) -> Settings:
    own: dict[str, Any] = {}
    if settings.broker.http_port > 0:
        own["httpPort"] = settings.broker.http_port - 1
    else:
        own["httpPort"] = settings.broker.http_port
    if not settings.namesrv.kv_config_path:
        # Where it is without --brokers.
        own["kvConfigPath"] = os.path.join(
            settings.store.store_path_root_dir, "namesrv", "kvConfig.json"
        )
    return with_values(_as_role(settings, "namesrv"), own)


def with_values(settings: Settings, values: Mapping[str, Any], source: str = SOURCE) -> Settings:
    """Return settings with some keys of their role changed, marked as made by an option."""
    known = role_settings(settings.role)
    sections: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        sections.setdefault(known[key].section, {})[known[key].name] = value
    parts = {
        section: dataclasses.replace(getattr(settings, section), **fields)
        for section, fields in sections.items()
    }
    sources = {**settings.sources, **dict.fromkeys(values, source)}
    return dataclasses.replace(settings, sources=sources, **parts)


def _as_role(settings: Settings, role: Role) -> Settings:
    """Return the same values for a process of another role, whose keys may be spelt differently."""
    keys = {(item.section, item.name): key for key, item in role_settings(settings.role).items()}
    sources = {}
    for key, item in role_settings(role).items():
        source = settings.sources.get(keys.get((item.section, item.name), ""))
        if source is not None:
            sources[key] = source
    return dataclasses.replace(settings, role=role, sources=sources, warnings=())


def _port(key: str, port: int, count: int) -> int:
    if port > _HIGHEST_PORT:
        raise ConfigError(
            SOURCE, str(count), f"a broker would have {key} {port}, and ports end at 65535"
        )
    return port


def _check(fleet: Fleet) -> None:
    """Check what was made of settings that made sense, as these were."""
    _check_ports(fleet)
    for settings in fleet.brokers.values():
        check_settings(settings)


def _check_ports(fleet: Fleet) -> None:
    takers: dict[int, str] = {}

    def take(port: int, taker: str) -> None:
        if port <= 0:
            return
        if port in takers:
            raise ConfigError(
                REPLICAS_SOURCE if fleet.is_group else SOURCE,
                str(len(fleet.brokers)),
                f"port {port} would be {takers[port]} and {taker}; choose ports further apart",
            )
        takers[port] = taker

    if fleet.name_server is not None:
        take(fleet.name_server.namesrv.listen_port, "the name server's port")
        take(fleet.name_server.namesrv.http_port, "the name server's HTTP port")
    for name, settings in fleet.brokers.items():
        config = settings.broker
        take(config.listen_port, f"{name}'s port")
        if config.fast_listen_enable:
            take(config.listen_port - _FAST_PORT_DISTANCE, f"{name}'s port for vipChannelEnabled")
        if fleet.is_group:
            take(settings.store.ha_listen_port, f"{name}'s port for replicas")
        take(config.http_port, f"{name}'s HTTP port")


def check_no_single_store(settings: Settings, count: int, source: str = SOURCE) -> None:
    """Refuse to start several brokers in the folder of one, whose messages nobody would serve.

    Raises:
        ConfigError: the root folder itself is a store.
    """
    root = settings.store.root_dir
    if _holds_store(str(root)):
        raise ConfigError(
            source,
            str(count),
            f"{root} is the store of one broker, whose messages would not be served; start without "
            "--brokers and --replicas, or give another folder",
        )


def check_no_fleet_stores(settings: Settings) -> None:
    """Refuse to start one broker in the folder of several, whose messages nobody would serve.

    Raises:
        ConfigError: the root folder has stores of `--brokers` in it.
    """
    root = settings.store.root_dir
    numbers = _numbered_stores(str(root))
    if numbers:
        raise ConfigError(
            "storePathRootDir",
            str(root),
            f"holds the stores of several brokers ({_list(numbers)}), whose messages would not be "
            f"served; start with --brokers {numbers[-1] + 1} (or --replicas, if they are those of "
            "replicas), or give another folder",
        )


def check_no_other_replicas(settings: Settings, count: int) -> None:
    """Refuse to start fewer replicas than there were: those that are left may lack messages.

    Raises:
        ConfigError: the root folder has stores of more.
    """
    root = str(settings.store.root_dir)
    beyond = [number for number in _numbered_stores(root) if number >= count]
    if beyond:
        raise ConfigError(
            REPLICAS_SOURCE,
            str(count),
            f"{root} has stores of more replicas ({_list(beyond)}), where messages may be that no "
            f"other has; start with --replicas {beyond[-1] + 1}, or give another folder",
        )


def warn_of_stores_beyond(settings: Settings, count: int) -> str | None:
    """Return one sentence about stores of brokers that do not run with so many, or None."""
    root = str(settings.store.root_dir)
    beyond = [number for number in _numbered_stores(root) if number >= count]
    if not beyond:
        return None
    return (
        f"{root} has stores of brokers that do not run with --brokers {count} ({_list(beyond)}): "
        f"what they hold is not served before they run again, with --brokers {beyond[-1] + 1}"
    )


def _list(numbers: list[int]) -> str:
    return ("folder " if len(numbers) == 1 else "folders ") + ", ".join(map(str, numbers))


def _numbered_stores(root: str) -> list[int]:
    try:
        names = os.listdir(root)
    except OSError:
        # There is none yet, or it cannot be used: the broker's start says why.
        return []
    numbers = [int(name) for name in names if name.isascii() and name.isdigit()]
    # Not "007".
    return sorted(
        int(name)
        for name in {str(number) for number in numbers} & set(names)
        if _holds_store(os.path.join(root, name))
    )


def _holds_store(root: str) -> bool:
    """Tell whether a broker, RocketMQ's or ours, has ever used a folder as its root."""
    paths = store_paths(root)
    return any(map(os.path.isdir, (paths.commit_log, paths.consume_queue, paths.own)))
