"""The operator's pods and their calls, seen from outside."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from e2e_api import read_object, read_objects
from e2e_kube import kubectl
from e2e_resources import metric

DEPLOYMENT = "deployment/mailboat"
SELECTOR = "app.kubernetes.io/component=operator"
_WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True)
class ApiCall:
    """One request of the operator, from the audit log of the API server."""

    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    code: int

    @property
    def is_write(self) -> bool:
        """Whether it changes something; the Lease of the leader is not counted."""
        return self.verb in _WRITES and self.resource != "leases"


class AuditLog:
    """The part of the API server's audit log that is about one ServiceAccount."""

    def __init__(self, path: Path, user: str) -> None:
        """Read from the end of the file on."""
        self._path = path
        self._user = user
        self._position = path.stat().st_size

    def rewind(self) -> None:
        """Read from the beginning of the file."""
        self._position = 0

    def calls(self) -> Iterator[ApiCall]:
        """Return the calls since the last time."""
        with self._path.open("rb") as file:
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._position += len(line)
                call = _call(json.loads(line), self._user)
                if call is not None:
                    yield call


def _call(entry: dict[str, object], user: str) -> ApiCall | None:
    who, what = entry.get("user"), entry.get("objectRef")
    if not isinstance(who, dict) or who.get("username") != user or not isinstance(what, dict):
        return None
    status = entry.get("responseStatus")
    resource = what.get("resource", "")
    if what.get("subresource"):
        resource = f"{resource}/{what['subresource']}"
    return ApiCall(
        verb=str(entry["verb"]),
        group=what.get("apiGroup", ""),
        resource=resource,
        namespace=what.get("namespace", ""),
        name=what.get("name", ""),
        code=status.get("code", 0) if isinstance(status, dict) else 0,
    )


def audit_log(operator_namespace: str) -> AuditLog:
    """Return the operator's part of the audit log that MAILBOAT_E2E_AUDIT_LOG names."""
    path = os.environ.get("MAILBOAT_E2E_AUDIT_LOG")
    if not path:
        pytest.skip("MAILBOAT_E2E_AUDIT_LOG does not name the API server's audit log")
    return AuditLog(Path(path), f"system:serviceaccount:{operator_namespace}:mailboat")


def operator_pods(namespace: str) -> list[str]:
    """Return the names of the operator's pods that are not on their way out."""
    return [
        pod["metadata"]["name"]
        for pod in read_objects(namespace, "pods", labelSelector=SELECTOR)
        if "deletionTimestamp" not in pod["metadata"]
    ]


def pod_address(namespace: str, name: str) -> str:
    """Return the IP address of a pod."""
    return str(read_object(namespace, "pod", name)["status"]["podIP"])


def restarts(namespace: str, name: str) -> int:
    """Return how often the containers of a pod were started again."""
    statuses = read_object(namespace, "pod", name)["status"]["containerStatuses"]
    return sum(status["restartCount"] for status in statuses)


def pod_node(namespace: str, name: str) -> str:
    """Return the name of the node on which a pod runs."""
    return str(read_object(namespace, "pod", name)["spec"]["nodeName"])


def leader(namespace: str) -> str:
    """Return the pod that holds the Lease, empty if nobody does."""
    leases = read_objects(namespace, "leases", fieldSelector="metadata.name=mailboat")
    holder = str(leases[0]["spec"].get("holderIdentity") or "") if leases else ""
    # Behind the pod's name stands what tells one process of that name from the next.
    return holder.rpartition("_")[0]


def operator_metric(namespace: str, name: str, **labels: str) -> float:
    """Return the sum of a metric's samples of the operator that leads."""
    pod = leader(namespace)
    return metric(f"/api/v1/namespaces/{namespace}/pods/{pod}:8090/proxy/metrics", name, **labels)


def kill(namespace: str, pod: str) -> None:
    """End a pod at once, as kill -9 does, and without a word to its Lease."""
    kubectl("--namespace", namespace, "delete", "pod", pod, "--force", "--grace-period=0")


def scale(namespace: str, replicas: int) -> None:
    """Run so many replicas of the operator, and wait until they are ready."""
    kubectl("--namespace", namespace, "scale", DEPLOYMENT, f"--replicas={replicas}")
    kubectl("--namespace", namespace, "rollout", "status", DEPLOYMENT, "--timeout=90s")


def wait_writes(log: AuditLog, count: int, timeout_s: float) -> int:
    """Wait until the operator has written so often, or the time is up; return how often."""
    deadline, seen = time.monotonic() + timeout_s, 0
    while seen < count and time.monotonic() < deadline:
        seen += sum(call.is_write for call in log.calls())
        time.sleep(0.05)
    return seen
