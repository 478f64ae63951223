"""Names and addresses of the objects that belong to a resource; the one place that makes them up.

A Broker `orders` has one StatefulSet per group, `orders-g0`, with the pod `orders-g0-0` on the
volume `data-orders-g0-0`; a NameServer `ns` has one StatefulSet of its own name.
"""

import re
from collections.abc import Iterable
from typing import Final

VOLUME: Final = "data"
"""Name of a broker's volume, in its pod and as the beginning of the claim's name."""

BROKER_PORT: Final = 10_911
BROKER_FAST_PORT: Final = 10_909
BROKER_HTTP_PORT: Final = 8_080
NAME_SERVER_PORT: Final = 9_876
NAME_SERVER_HTTP_PORT: Final = 8_079

REMOTING: Final = "remoting"
"""Name of the port that RocketMQ clients use."""

FAST: Final = "remoting-fast"
"""Name of the port for clients with vipChannelEnabled."""

HTTP: Final = "http"
"""Name of the port for metrics, probes and the admin API."""

_GROUP: Final = re.compile(r"(?P<broker>.+)-g(?P<group>0|[1-9][0-9]{0,3})", re.ASCII | re.DOTALL)


def group_name(broker: str, group: int) -> str:
    """Return the name of a group's StatefulSet, Service and ConfigMap.

    Its broker is called so too, unless `spec.brokerNamePrefix` says otherwise.
    """
    return f"{broker}-g{group}"


def group_index(broker: str, name: str) -> int | None:
    """Return which group of a Broker a name stands for; None if it stands for none."""
    found = _GROUP.fullmatch(name)
    return int(found["group"]) if found and found["broker"] == broker else None


def pod_name(stateful_set: str, ordinal: int = 0) -> str:
    """Return the name of a StatefulSet's pod."""
    return f"{stateful_set}-{ordinal}"


def group_of(pod: str) -> str:
    """Return the name of the StatefulSet that made a pod: a broker's is also the broker's name."""
    return pod.rpartition("-")[0]


def claim_name(stateful_set: str) -> str:
    """Return the name of the claim of a group's broker."""
    return f"{VOLUME}-{pod_name(stateful_set)}"


def broker_nodes_name(broker: str) -> str:
    """Return the name of the headless Service that names a Broker's pods."""
    return f"{broker}-brokers"


def name_server_nodes_name(name_server: str) -> str:
    """Return the name of the headless Service that names a NameServer's pods.

    Its ConfigMap, ServiceAccount and disruption budget are called the same: those of a Broker, who
    may bear the NameServer's own name, are in the way otherwise.
    """
    return f"{name_server}-nodes"


def broker_network_policy_name(broker: str) -> str:
    """Return the name of the NetworkPolicy of a Broker's pods: not one that people would take."""
    return f"mailboat-broker-{broker}"


def name_server_network_policy_name(name_server: str) -> str:
    """Return the name of the NetworkPolicy of a NameServer's pods."""
    return f"mailboat-name-server-{name_server}"


def name_server_addresses(name_server: str, namespace: str, replicas: int) -> tuple[str, ...]:
    """Return host:port of each name server, in names that outlive its pod."""
    service = name_server_nodes_name(name_server)
    return tuple(
        f"{pod_name(name_server, ordinal)}.{service}.{namespace}.svc:{NAME_SERVER_PORT}"
        for ordinal in range(replicas)
    )


def join_addresses(addresses: Iterable[str]) -> str:
    """Spell addresses as namesrvAddr takes them."""
    return ";".join(addresses)
