"""Names and addresses of the objects that belong to a resource; the one place that makes them up.

A Broker `orders` has one StatefulSet per group, `orders-g0`, with the pod `orders-g0-0` on the
volume `data-orders-g0-0`, and `orders-g0-1` and so on where it has replicas; a NameServer `ns` has
one StatefulSet of its own name.
"""

import hashlib
import re
from collections.abc import Iterable
from typing import Final

VOLUME: Final = "data"
"""Name of a broker's volume, in its pod and as the beginning of the claim's name."""

BROKER_PORT: Final = 10_911
BROKER_FAST_PORT: Final = 10_909
BROKER_HTTP_PORT: Final = 8_080
BROKER_HA_PORT: Final = 10_912
BROKER_LEADER_PORT: Final = 10_913
NAME_SERVER_PORT: Final = 9_876
NAME_SERVER_HTTP_PORT: Final = 8_079

REMOTING: Final = "remoting"
"""Name of the port that RocketMQ clients use."""

FAST: Final = "remoting-fast"
"""Name of the port for clients with vipChannelEnabled."""

HA: Final = "ha"
"""Name of the port that the replicas of a group use among each other."""

LEADER: Final = "leader"
"""Name of the port on which only the leader of a group listens, for RocketMQ clients."""

HTTP: Final = "http"
"""Name of the port for metrics, probes and the admin API."""

_SERVICE_NAME_LENGTH: Final = 63
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


def ordinal_of(pod: str) -> int | None:
    """Return which of its StatefulSet's pods a pod is; None if its name tells none."""
    _, _, ordinal = pod.rpartition("-")
    is_one = ordinal.isascii() and ordinal.isdigit() and str(int(ordinal)) == ordinal
    return int(ordinal) if is_one else None


def claim_name(pod: str) -> str:
    """Return the name of the claim of a broker's pod."""
    return f"{VOLUME}-{pod}"


def pod_of_claim(broker: str, claim: str) -> str | None:
    """Return the pod of a Broker that a claim is for; None if it is for none."""
    pod = claim.removeprefix(f"{VOLUME}-")
    if claim != claim_name(pod) or ordinal_of(pod) is None:
        return None
    return pod if group_index(broker, group_of(pod)) is not None else None


def broker_nodes_name(broker: str) -> str:
    """Return the name of the headless Service that names a Broker's pods."""
    return f"{broker}-brokers"


def name_server_nodes_name(name_server: str) -> str:
    """Return the name of the headless Service that names a NameServer's pods.

    Its ConfigMap, ServiceAccount and disruption budget are called the same: those of a Broker, who
    may bear the NameServer's own name, are in the way otherwise.
    """
    return f"{name_server}-nodes"


def leader_slice_name(group: str) -> str:
    """Return the name of the EndpointSlice that says where a group's leader is."""
    return f"{group}-leader"


def group_of_leader_slice(name: str) -> str:
    """Return the group whose leader an EndpointSlice tells; any other one's name is no group's."""
    group = name.removesuffix("-leader")
    return group if name == leader_slice_name(group) else ""


def replication_secret_name(broker: str) -> str:
    """Return the name of the Secret that the replicas of a Broker know each other by."""
    return f"{broker}-replication"


def broker_users_name(broker: str) -> str:
    """Return the name of the Secret with the users of a Broker."""
    return f"mailboat-broker-users-{broker}"


def name_server_users_name(name_server: str) -> str:
    """Return the name of the Secret with the users whom a NameServer knows."""
    return f"mailboat-name-server-users-{name_server}"


def broker_certificate_name(broker: str) -> str:
    """Return the name of the Certificate of a Broker: not one that people would take."""
    return f"mailboat-broker-{broker}"


def name_server_certificate_name(name_server: str) -> str:
    """Return the name of the Certificate of a NameServer."""
    return f"mailboat-name-server-{name_server}"


def broker_network_policy_name(broker: str) -> str:
    """Return the name of the NetworkPolicy of a Broker's pods: not one that people would take."""
    return f"mailboat-broker-{broker}"


def name_server_network_policy_name(name_server: str) -> str:
    """Return the name of the NetworkPolicy of a NameServer's pods."""
    return f"mailboat-name-server-{name_server}"


def broker_addresses_name(broker: str) -> str:
    """Return the name of the ConfigMap with the addresses of a Broker's listeners."""
    return f"{broker}-addresses"


def listener_service_name(target: str, listener: str) -> str:
    """Return the name of the Service that leads to a listener of a pod, or of a NameServer.

    One that is too long for a Service is cut short, and ends with a digest of the whole.
    """
    name = f"{target}-{listener}"
    if len(name) <= _SERVICE_NAME_LENGTH:
        return name
    mark = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: _SERVICE_NAME_LENGTH - 9].rstrip('-')}-{mark}"


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
