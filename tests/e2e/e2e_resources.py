"""The custom resources that the tests start from, and what the broker's HTTP API says of them."""

from __future__ import annotations

import json
from typing import Any

from e2e_kube import Manifest, Namespace, kubectl, wait_until
from prometheus_client.parser import text_string_to_metric_families

NAME_SERVER = "ns"
BROKER = "orders"
READY_S = 90.0


def broker_spec(**changes: Any) -> Manifest:
    """Return the spec of a small Broker; a change replaces the field of its name."""
    spec: Manifest = {
        "nameServers": {"ref": NAME_SERVER},
        "storage": {"size": "256Mi", "segmentSize": "16Mi"},
        "resources": {"requests": {"cpu": "50m", "memory": "96Mi"}},
        "shutdown": {"drainSeconds": 0, "graceSeconds": 30},
    }
    return {**spec, **changes}


def start_broker(namespace: Namespace, **changes: Any) -> Manifest:
    """Apply a NameServer and a Broker, wait until both are Ready, and return the Broker."""
    requests = {"requests": {"cpu": "20m", "memory": "64Mi"}}
    namespace.create("NameServer", NAME_SERVER, {"replicas": 1, "resources": requests})
    namespace.create("Broker", BROKER, broker_spec(**changes))
    namespace.wait_ready("nameserver", NAME_SERVER, READY_S)
    return namespace.wait_ready("broker", BROKER, READY_S)


def broker_api(namespace: Namespace, group: int, path: str) -> Any:
    """Ask the HTTP API of a group's broker, through the API server."""
    return json.loads(kubectl("get", "--raw", _broker_page(namespace, group, path)))


def broker_metric(namespace: Namespace, group: int, name: str, **labels: str) -> float:
    """Return the sum of a metric's samples of a group's broker."""
    return metric(_broker_page(namespace, group, "/metrics"), name, **labels)


def _broker_page(namespace: Namespace, group: int, path: str) -> str:
    """Return where the API server passes on a page of a group's broker."""
    return f"/api/v1/namespaces/{namespace.name}/services/{BROKER}-g{group}:http/proxy{path}"


def metric(path: str, name: str, **labels: str) -> float:
    """Return the sum of the samples with these labels on a page that the API server passes on."""
    families = text_string_to_metric_families(kubectl("get", "--raw", path))
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def wait_config(namespace: Namespace, key: str, value: str, *, group: int = 0) -> None:
    """Wait until a running broker has this value of a configuration key."""

    def has_value() -> bool:
        values = broker_api(namespace, group, "/api/v1/config")["values"]
        return bool(values.get(key) == value)

    wait_until(f"{key}={value}", has_value, 60)


def claim_size(namespace: Namespace, group: int = 0) -> tuple[str, str]:
    """Return what the volume of a group is asked to have, and what it has."""
    claim = namespace.get("pvc", f"data-{BROKER}-g{group}-0")
    requested = claim["spec"]["resources"]["requests"]["storage"]
    return requested, claim.get("status", {}).get("capacity", {}).get("storage", "")
