"""The Certificate that cert-manager is asked for: one for all names of a resource's servers.

Source: cert-manager.io/docs/reference/api-docs (cert-manager.io/v1, CertificateSpec)
"""

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any, Final

from mailboat_operator.crds.broker import Broker
from mailboat_operator.crds.common import Object
from mailboat_operator.crds.listeners import ListenerSpec
from mailboat_operator.crds.name_server import NameServer
from mailboat_operator.crds.security import TlsSpec
from mailboat_operator.resources.labels import broker_labels, child, name_server_labels
from mailboat_operator.resources.names import (
    broker_certificate_name,
    broker_nodes_name,
    group_name,
    listener_service_name,
    name_server_certificate_name,
    name_server_nodes_name,
    pod_name,
)

# Its handshakes cost a fraction of RSA's.
_KEY: Final = {
    "algorithm": "ECDSA",
    "size": 256,
    "encoding": "PKCS8",
    "rotationPolicy": "Always",
}


def broker_certificate(broker: Broker, tls: TlsSpec) -> dict[str, Any]:
    """Return the Certificate of a Broker: its pods, each by its name, and its Services."""
    groups = [group_name(broker.name, group) for group in range(broker.spec.groups)]
    pods = [pod_name(group, ordinal) for group in groups for ordinal in range(broker.spec.replicas)]
    names = [f"*.{broker_nodes_name(broker.name)}", *groups]
    names += [name for pod in pods for name in _services(pod, broker.spec.listeners)]
    hosts = _hosts(broker.spec.listeners)
    name, labels = broker_certificate_name(broker.name), broker_labels(broker.name)
    return _certificate(broker, name, labels, tls, names, hosts)


def name_server_certificate(name_server: NameServer, tls: TlsSpec) -> dict[str, Any]:
    """Return the Certificate of a NameServer: its pods, and its Service."""
    names = [f"*.{name_server_nodes_name(name_server.name)}", name_server.name]
    names += _services(name_server.name, name_server.spec.listeners)
    hosts = _hosts(name_server.spec.listeners)
    name = name_server_certificate_name(name_server.name)
    labels = name_server_labels(name_server.name)
    return _certificate(name_server, name, labels, tls, names, hosts)


def _services(target: str, listeners: Iterable[ListenerSpec]) -> list[str]:
    """Return the Services by whose names clients by TLS come to a pod, or to a NameServer."""
    return [
        listener_service_name(target, one.name)
        for one in listeners
        if one.speaks_tls and one.type == "ClusterIP"
    ]


def _hosts(listeners: Iterable[ListenerSpec]) -> list[str]:
    """Return what clients of listeners by TLS are told, as far as it is known before."""
    return [one.advertised.host for one in listeners if one.speaks_tls and one.advertised.host]


def _names(hosts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the names of templates, and the addresses among them.

    What differs from pod to pod has to be the first label, of which a certificate has them all.
    """
    names, addresses = [], []
    for host in hosts:
        first, _, rest = host.partition(".")
        if _is_address(host):
            addresses.append(host)
        elif "{" not in host:
            names.append(host)
        elif rest and "{" not in rest and "{nodeIP}" not in first:
            names.append(f"*.{rest}")
    return names, addresses


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _certificate(
    owner: Object[Any],
    name: str,
    labels: Mapping[str, str],
    tls: TlsSpec,
    services: list[str],
    hosts: list[str],
) -> dict[str, Any]:
    assert tls.secret_ref is not None
    assert tls.issuer_ref is not None
    issuer = tls.issuer_ref
    inside = [f"{service}.{owner.namespace}.svc" for service in services]
    outside, addresses = _names(hosts)
    spec: dict[str, Any] = {
        "secretName": tls.secret_ref.name,
        "issuerRef": {"name": issuer.name, "kind": issuer.kind, "group": issuer.group},
        # Some issuers take no name twice.
        "dnsNames": list(
            dict.fromkeys([*inside, *(f"{host}.cluster.local" for host in inside), *outside])
        ),
        "privateKey": dict(_KEY),
        # Servers are clients of each other.
        "usages": ["digital signature", "server auth", "client auth"],
    }
    if addresses:
        spec["ipAddresses"] = list(dict.fromkeys(addresses))
    return child("cert-manager.io/v1/Certificate", owner, name, labels, spec=spec)
