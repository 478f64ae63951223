"""Which broker should answer at a pod's address.

Its name alone does not tell: Brokers of one name in several namespaces have brokers of one name.
These announce different addresses, those of their Services.
"""

from collections.abc import Callable
from dataclasses import dataclass

from mailboat.config.properties import parse_properties
from mailboat.errors import ConfigError
from mailboat_operator.cache import ObjectCache
from mailboat_operator.kinds import CONFIG_MAP, SERVICE
from mailboat_operator.planner.snapshot import Manifest
from mailboat_operator.resources.config_map import BROKER_CONF
from mailboat_operator.resources.labels import BROKER_LABEL
from mailboat_operator.resources.names import group_of

_NAME_KEY = "brokerName"


@dataclass(frozen=True, slots=True)
class Expected:
    """The broker that should answer."""

    name: str
    is_anothers: Callable[[str], bool] = lambda _: False
    """Whether the host:port that a broker announces is known to be that of another one."""


def expected_broker(cache: ObjectCache, namespace: str, pod: str) -> Expected:
    """Return which broker should answer for a pod."""
    group = group_of(pod)

    def is_anothers(address: str) -> bool:
        host = address.rpartition(":")[0].strip("[]")
        own = cache.get(SERVICE.kind, namespace, group)
        # One whose Service was made anew announces the address of before until it is restarted.
        if not host or (own is not None and _address(own) == host):
            return False
        return any(
            _address(service) == host
            for service in cache.all_of(SERVICE.kind)
            if BROKER_LABEL in (service["metadata"].get("labels") or {})
        )

    return Expected(_broker_name(cache, namespace, group), is_anothers)


def _broker_name(cache: ObjectCache, namespace: str, group: str) -> str:
    """Return the name that a group's broker was given in its file; else that of its group."""
    config_map = cache.get(CONFIG_MAP.kind, namespace, group) or {}
    try:
        settings = parse_properties((config_map.get("data") or {}).get(BROKER_CONF, ""))
    except ConfigError:
        return group
    return next((item.value for item in settings if item.key == _NAME_KEY), group)


def _address(service: Manifest) -> str | None:
    address: str | None = (service.get("spec") or {}).get("clusterIP")
    return address
