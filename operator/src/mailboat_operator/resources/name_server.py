"""The objects of a NameServer: pods with stable names, and a volume for the key-value table.

Routes are in memory alone, since the brokers bring them. What people store in the key-value table
(the queues of ordered topics) nobody brings again.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mailboat.config import OPERATOR_MARK
from mailboat_operator.crds.listeners import ListenerSpec, node_port_of
from mailboat_operator.crds.name_server import NameServer, NameServerStorageSpec
from mailboat_operator.resources.config_map import NAMESRV_CONF, config_map, properties
from mailboat_operator.resources.disruption_budget import disruption_budget
from mailboat_operator.resources.labels import (
    CONFIG_HASH_ANNOTATION,
    any_broker,
    child,
    digest,
    name_server_labels,
    selector_of,
)
from mailboat_operator.resources.listeners import (
    LISTENER_LABEL,
    listener_ports,
    listener_service,
    listener_settings,
)
from mailboat_operator.resources.names import (
    HTTP,
    NAME_SERVER_HTTP_PORT,
    NAME_SERVER_PORT,
    REMOTING,
    VOLUME,
    name_server_network_policy_name,
    name_server_nodes_name,
)
from mailboat_operator.resources.network_policy import Peer, network_policy
from mailboat_operator.resources.pod import Process, pod_template
from mailboat_operator.resources.security import name_server_security
from mailboat_operator.resources.service_account import service_account
from mailboat_operator.resources.services import headless_service, service_ports
from mailboat_operator.resources.stateful_set import (
    DATA_FOLDER,
    claim_template,
    stateful_set,
)

GRACE_SECONDS: Final = 30

NAME_SERVER_RESOURCES: Final[Mapping[str, Any]] = {
    "requests": {"cpu": "20m", "memory": "64Mi"},
    "limits": {"memory": "1Gi"},
}
"""What a name server gets whose resource says nothing."""

_PORTS: Final = {REMOTING: NAME_SERVER_PORT, HTTP: NAME_SERVER_HTTP_PORT}
_SETTINGS: Final = {"httpPort": str(NAME_SERVER_HTTP_PORT), "listenPort": str(NAME_SERVER_PORT)}
_KV_CONFIG: Final = {"kvConfigPath": f"{DATA_FOLDER}/namesrv/kvConfig.json"}


def name_server_stateful_set(
    name_server: NameServer, default_image: str, *, has_volume: bool
) -> dict[str, Any]:
    """Return the StatefulSet of a NameServer.

    Args:
        name_server: The resource.
        default_image: The image of one that names none.
        has_volume: Whether its pods have volumes.
    """
    spec, name = name_server.spec, name_server.name
    nodes, labels = name_server_nodes_name(name), name_server_labels(name)
    security = name_server_security(name_server)
    process = Process(
        name="namesrv",
        config_file=NAMESRV_CONF,
        config_map=nodes,
        ports=_PORTS | listener_ports(spec.listeners),
        image=spec.image or default_image,
        image_pull_policy=spec.image_pull_policy,
        resources=NAME_SERVER_RESOURCES if spec.resources is None else spec.resources,
        service_account=nodes,
        grace_seconds=GRACE_SECONDS,
        volumes={VOLUME: DATA_FOLDER} if has_volume else {},
        env=security.env,
        mounted=security.volumes,
        probe_scheme=security.probe_scheme,
    )
    annotations = {CONFIG_HASH_ANNOTATION: digest(_settings(name_server, has_volume))}
    return stateful_set(
        name_server,
        name,
        labels,
        service=nodes,
        replicas=spec.replicas,
        template=pod_template(process, labels, annotations, spec.pod_template),
        more=_claims(name_server) if has_volume else {},
    )


def _settings(name_server: NameServer, has_volume: bool) -> dict[str, str]:
    own = _SETTINGS | (_KV_CONFIG if has_volume else {})
    own |= dict(name_server_security(name_server).settings)
    return own | listener_settings(name_server.spec.listeners)


def _claims(name_server: NameServer) -> dict[str, Any]:
    storage = name_server.spec.storage or NameServerStorageSpec()
    labels = name_server_labels(name_server.name)
    return {
        # One that comes back after a while must not bring a table of long ago.
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Delete"},
        "volumeClaimTemplates": [claim_template(labels, storage.size, storage.class_name)],
    }


def name_server_service(name_server: NameServer) -> dict[str, Any]:
    """Return the Service that leads clients to any name server that is ready."""
    labels = name_server_labels(name_server.name)
    return child(
        "v1/Service",
        name_server,
        name_server.name,
        labels,
        spec={
            "type": "ClusterIP",
            "selector": selector_of(labels),
            "ports": service_ports(_PORTS),
        },
    )


def name_server_listener_service(name_server: NameServer, listener: ListenerSpec) -> dict[str, Any]:
    """Return the Service that leads to a listener of any name server that is ready."""
    labels = name_server_labels(name_server.name)
    selector, marked = selector_of(labels), labels | {LISTENER_LABEL: listener.name}
    port = node_port_of(listener)
    return listener_service(name_server, name_server.name, marked, selector, listener, port)


def name_server_nodes_service(name_server: NameServer) -> dict[str, Any]:
    """Return the headless Service that gives the name servers their names."""
    name = name_server_nodes_name(name_server.name)
    return headless_service(name_server, name, name_server_labels(name_server.name), _PORTS)


def name_server_config_map(name_server: NameServer, *, has_volume: bool) -> dict[str, Any]:
    """Return the ConfigMap with namesrv.conf."""
    return config_map(
        name_server,
        name_server_nodes_name(name_server.name),
        name_server_labels(name_server.name),
        {NAMESRV_CONF: f"{OPERATOR_MARK}\n{properties(_settings(name_server, has_volume))}"},
    )


def name_server_service_account(name_server: NameServer) -> dict[str, Any]:
    """Return the ServiceAccount of the name servers."""
    name = name_server_nodes_name(name_server.name)
    return service_account(name_server, name, name_server_labels(name_server.name))


def name_server_network_policy(
    name_server: NameServer, http_peers: Sequence[Peer]
) -> dict[str, Any]:
    """Return the NetworkPolicy of the name servers."""
    return network_policy(
        name_server,
        name_server_network_policy_name(name_server.name),
        name_server_labels(name_server.name),
        _PORTS,
        name_server.spec.network_policy,
        http_peers,
        # Those of its own namespace: a `nameServers.ref` leads nowhere else. Of others its owner
        # decides, not whoever makes a Broker there.
        client_peers=[{"podSelector": {"matchLabels": any_broker()}}],
        listeners=name_server.spec.listeners,
    )


def name_server_disruption_budget(name_server: NameServer) -> dict[str, Any]:
    """Return the budget of the name servers."""
    name = name_server_nodes_name(name_server.name)
    return disruption_budget(name_server, name, name_server_labels(name_server.name))
