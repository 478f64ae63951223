"""The objects of a NameServer: pods with stable names, and no data to keep."""

from typing import Any, Final

from mailboat_operator.crds.name_server import NameServer
from mailboat_operator.resources.config_map import NAMESRV_CONF, config_map, properties
from mailboat_operator.resources.disruption_budget import disruption_budget
from mailboat_operator.resources.labels import (
    CONFIG_HASH_ANNOTATION,
    child,
    digest,
    name_server_labels,
    selector_of,
)
from mailboat_operator.resources.names import (
    HTTP,
    NAME_SERVER_HTTP_PORT,
    NAME_SERVER_PORT,
    REMOTING,
    name_server_nodes_name,
)
from mailboat_operator.resources.pod import Process, pod_template
from mailboat_operator.resources.service_account import service_account
from mailboat_operator.resources.services import headless_service, service_ports
from mailboat_operator.resources.stateful_set import stateful_set

GRACE_SECONDS: Final = 30

_PORTS: Final = {REMOTING: NAME_SERVER_PORT, HTTP: NAME_SERVER_HTTP_PORT}
_SETTINGS: Final = {"httpPort": str(NAME_SERVER_HTTP_PORT), "listenPort": str(NAME_SERVER_PORT)}


def name_server_stateful_set(name_server: NameServer, default_image: str) -> dict[str, Any]:
    """Return the StatefulSet of a NameServer."""
    spec, name = name_server.spec, name_server.name
    nodes, labels = name_server_nodes_name(name), name_server_labels(name)
    process = Process(
        name="namesrv",
        config_file=NAMESRV_CONF,
        config_map=nodes,
        ports=_PORTS,
        image=spec.image or default_image,
        image_pull_policy=spec.image_pull_policy,
        resources=spec.resources,
        service_account=nodes,
        grace_seconds=GRACE_SECONDS,
    )
    annotations = {CONFIG_HASH_ANNOTATION: digest(_SETTINGS)}
    return stateful_set(
        name_server,
        name,
        labels,
        service=nodes,
        replicas=spec.replicas,
        template=pod_template(process, labels, annotations, spec.pod_template),
        more={},
    )


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


def name_server_nodes_service(name_server: NameServer) -> dict[str, Any]:
    """Return the headless Service that gives the name servers their names."""
    name = name_server_nodes_name(name_server.name)
    return headless_service(name_server, name, name_server_labels(name_server.name), _PORTS)


def name_server_config_map(name_server: NameServer) -> dict[str, Any]:
    """Return the ConfigMap with namesrv.conf."""
    return config_map(
        name_server,
        name_server_nodes_name(name_server.name),
        name_server_labels(name_server.name),
        {NAMESRV_CONF: properties(_SETTINGS)},
    )


def name_server_service_account(name_server: NameServer) -> dict[str, Any]:
    """Return the ServiceAccount of the name servers."""
    name = name_server_nodes_name(name_server.name)
    return service_account(name_server, name, name_server_labels(name_server.name))


def name_server_disruption_budget(name_server: NameServer) -> dict[str, Any]:
    """Return the budget of the name servers."""
    name = name_server_nodes_name(name_server.name)
    return disruption_budget(name_server, name, name_server_labels(name_server.name))
