"""The custom resources that the tests start from, and what the broker's HTTP API says of them."""

from __future__ import annotations

import json
import os
from typing import Any, Final

from e2e_api import read
from e2e_kube import Manifest, Namespace, wait_until
from prometheus_client.parser import text_string_to_metric_families

NAME_SERVER = "ns"
BROKER = "orders"
REPLICAS: Final = int(os.environ.get("MAILBOAT_E2E_REPLICAS", "1"))
"""How many replicas each group of a Broker has where a test does not say it."""

# Replicas begin once all of them have said what they have.
READY_S = 90.0 * REPLICAS
_REPLICATED_S: Final = 120.0
_HTTP_PORT: Final = 8080
_NAME_SERVER_SPEC: Manifest = {
    "replicas": 1,
    "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}},
}


def broker_spec(**changes: Any) -> Manifest:
    """Return the spec of a small Broker; a change replaces the field of its name."""
    spec: Manifest = {
        "nameServers": {"ref": NAME_SERVER},
        "storage": {"size": "256Mi", "segmentSize": "16Mi"},
        "resources": {"requests": {"cpu": "50m", "memory": "96Mi"}},
        "shutdown": {"drainSeconds": 0, "graceSeconds": 30},
    }
    if REPLICAS > 1:
        spec["replicas"] = REPLICAS
    return {**spec, **changes}


def start_broker(namespace: Namespace, **changes: Any) -> Manifest:
    """Apply a NameServer and a Broker, and return the Broker once both are Ready, and in sync."""
    namespace.create("NameServer", NAME_SERVER, _NAME_SERVER_SPEC)
    namespace.create("Broker", BROKER, broker_spec(**changes))
    namespace.wait_ready("nameserver", NAME_SERVER, READY_S)
    broker = namespace.wait_ready("broker", BROKER, READY_S)
    if broker["spec"].get("replicas", 1) > 1:
        wait_replicated(namespace)
    return broker


def wait_replicated(namespace: Namespace, timeout_s: float = _REPLICATED_S) -> None:
    """Wait until every replica is ready and in the in-sync set; a lone one has no such set."""

    def is_replicated() -> bool:
        broker = namespace.get("broker", BROKER)
        # Just made, it has no status: the operator has not said anything yet.
        status = broker.get("status", {})
        found = {c["type"]: c["status"] for c in status.get("conditions", [])}
        is_lone = broker["spec"].get("replicas", 1) == 1
        ready = found.get("Ready") == found.get("Replicated", str(is_lone)) == "True"
        return ready and status.get("observedGeneration") == _generation(broker)

    wait_until("condition Replicated", is_replicated, timeout_s)


def _generation(broker: Manifest) -> int:
    return int(broker["metadata"]["generation"])


def start_name_server(namespace: Namespace) -> None:
    """Apply the NameServer of `start_broker` before it, and wait until it is Ready."""
    namespace.create("NameServer", NAME_SERVER, _NAME_SERVER_SPEC)
    namespace.wait_ready("nameserver", NAME_SERVER, READY_S)


def broker_api(namespace: Namespace, group: int, path: str) -> Any:
    """Ask the HTTP API of a group's broker, through the API server."""
    return json.loads(read(_broker_page(namespace, group, path)))


def broker_metric(namespace: Namespace, group: int, name: str, **labels: str) -> float:
    """Return the sum of a metric's samples of a group's broker."""
    return metric(_broker_page(namespace, group, "/metrics"), name, **labels)


def _broker_page(namespace: Namespace, group: int, path: str) -> str:
    """Return where the API server passes on a page of a group's broker, of the replica that leads.

    A Service leads clients to that one, and to no HTTP.
    """
    if (lease := namespace.find("lease", f"{BROKER}-g{group}")) is not None:
        leader = str(lease["spec"].get("holderIdentity") or "").partition("/")[0]
        return f"/api/v1/namespaces/{namespace.name}/pods/{leader}:{_HTTP_PORT}/proxy{path}"
    return f"/api/v1/namespaces/{namespace.name}/services/{BROKER}-g{group}:http/proxy{path}"


def metric(path: str, name: str, **labels: str) -> float:
    """Return the sum of the samples with these labels on a page that the API server passes on."""
    families = text_string_to_metric_families(read(path))
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def wait_config(
    namespace: Namespace, key: str, value: str, *, group: int = 0, timeout_s: float = 60
) -> None:
    """Wait until a running broker has this value of a configuration key."""

    def has_value() -> bool:
        values = broker_api(namespace, group, "/api/v1/config")["values"]
        return bool(values.get(key) == value)

    wait_until(f"{key}={value}", has_value, timeout_s)


def claim_size(namespace: Namespace, group: int = 0) -> tuple[str, str]:
    """Return what the volumes of a group are asked to have, and have; empty where they differ."""
    sizes = set()
    for replica in range(REPLICAS):
        claim = namespace.get("pvc", f"data-{BROKER}-g{group}-{replica}")
        requested = claim["spec"]["resources"]["requests"]["storage"]
        sizes.add((requested, claim.get("status", {}).get("capacity", {}).get("storage", "")))
    return sizes.pop() if len(sizes) == 1 else ("", "")
