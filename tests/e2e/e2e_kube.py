"""kubectl and helm for the tests on a real cluster, as a user runs them; looks come by e2e_api."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar

import yaml
from e2e_api import ReadError, read_object, read_objects

Manifest = dict[str, Any]
_T = TypeVar("_T")

RESTRICTED: Manifest = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""The security context of a container that the pod security level `restricted` takes."""

_CALL_TIMEOUT_S = 120.0
_POLL_S = 0.5
# Beside other tests everything takes longer.
_STRETCH = 3.0 if "PYTEST_XDIST_WORKER" in os.environ else 1.0


class CommandError(AssertionError):
    """A command failed that a user would expect to work."""


def run(*command: str, text: str | None = None, timeout_s: float = _CALL_TIMEOUT_S) -> str:
    """Run a program and return what it prints.

    Raises:
        CommandError: it ended with another code than 0; the text has its output.
    """
    done = subprocess.run(command, input=text, text=True, capture_output=True, timeout=timeout_s)
    if done.returncode != 0:
        shown = " ".join(command)
        raise CommandError(f"{shown} ended with {done.returncode}: {done.stderr or done.stdout}")
    return done.stdout


def kubectl(*arguments: str, text: str | None = None, timeout_s: float = _CALL_TIMEOUT_S) -> str:
    """Run kubectl against the cluster of KUBECONFIG."""
    return run("kubectl", *arguments, text=text, timeout_s=timeout_s)


def helm(*arguments: str, timeout_s: float = 300.0) -> str:
    """Run helm against the cluster of KUBECONFIG."""
    return run("helm", *arguments, timeout_s=timeout_s)


def image_values(key: str, variable: str) -> list[str]:
    """Return helm's flags for an image that an environment variable names as repository:tag."""
    repository, _, tag = os.environ[variable].rpartition(":")
    return ["--set", f"{key}.repository={repository}", "--set-string", f"{key}.tag={tag}"]


def wait_until(what: str, probe: Callable[[], _T], timeout_s: float) -> _T:
    """Ask until the answer is true, and return it.

    Raises:
        AssertionError: it is still not after the time, which is three times as long beside other
            tests.
    """
    timeout_s *= _STRETCH
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            answer = probe()
            problem = repr(answer)
        except (CommandError, ReadError) as error:
            answer, problem = None, str(error)
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout_s:.0f} s still no {what}: {problem[:2000]}")
        time.sleep(_POLL_S)


class Namespace:
    """One namespace of one test, in which pods must keep the level `restricted`."""

    def __init__(self, name: str) -> None:
        """Make it."""
        self.name = name
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {
                    "name": name,
                    "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
                },
            }
        )

    def kubectl(self, *arguments: str, text: str | None = None, timeout_s: float = 120.0) -> str:
        """Run kubectl in this namespace."""
        return kubectl("--namespace", self.name, *arguments, text=text, timeout_s=timeout_s)

    def apply(self, *manifests: Manifest) -> None:
        """Apply objects as `kubectl apply` does."""
        kubectl("apply", "--filename", "-", text=yaml.safe_dump_all(manifests))

    def create(self, kind: str, name: str, spec: Manifest) -> None:
        """Apply a custom resource of mailboat."""
        self.apply(custom_resource(kind, name, self.name, spec))

    def get(self, kind: str, name: str) -> Manifest:
        """Return one object."""
        return read_object(self.name, kind, name)

    def find(self, kind: str, name: str) -> Manifest | None:
        """Return one object, or None if there is none."""
        try:
            return self.get(kind, name)
        except ReadError as error:
            if error.code == 404:
                return None
            raise

    def list(self, kind: str, selector: str = "") -> list[Manifest]:
        """Return all objects of a kind, by name."""
        items = read_objects(self.name, kind, labelSelector=selector)
        return sorted(items, key=lambda item: str(item["metadata"]["name"]))

    def patch(self, kind: str, name: str, patch: Manifest) -> None:
        """Merge a patch into an object."""
        self.kubectl("patch", kind, name, "--type=merge", f"--patch={json.dumps(patch)}")

    def wait_ready(self, kind: str, name: str, timeout_s: float = 120.0) -> Manifest:
        """Wait for the condition Ready as `kubectl wait` does, and return the object."""
        timeout_s *= _STRETCH
        self.kubectl(
            "wait",
            "--for=condition=Ready",
            f"{kind}/{name}",
            f"--timeout={timeout_s:.0f}s",
            timeout_s=timeout_s + 30,
        )
        return self.get(kind, name)

    def condition(self, kind: str, name: str, condition: str) -> Manifest:
        """Return a condition of an object, empty if it has none of that type yet."""
        found = self.find(kind, name) or {}
        conditions = found.get("status", {}).get("conditions", [])
        return next((entry for entry in conditions if entry["type"] == condition), {})

    def wait_condition(
        self, kind: str, name: str, condition: str, *, status: str, reason: str, timeout_s: float
    ) -> Manifest:
        """Wait until a condition has this status and reason, and return it."""

        def holds() -> Manifest | None:
            found = self.condition(kind, name, condition)
            matches = (found.get("status"), found.get("reason")) == (status, reason)
            return found if matches else None

        try:
            return wait_until(f"{condition}={status} {reason}", holds, timeout_s)
        except AssertionError as error:
            now = self.condition(kind, name, condition)
            raise AssertionError(f"{error}; it is {now}") from None

    def pod_uids(self, selector: str = "") -> dict[str, str]:
        """Return the uid of each pod by its name."""
        pods = self.list("pods", selector)
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}

    def events(self, reason: str) -> list[str]:
        """Return the texts of the events of a reason."""
        found = read_objects(self.name, "events", fieldSelector=f"reason={reason}")
        return [event.get("message") or event.get("note") or "" for event in found]

    def delete(self, *, wait_s: float = 0.0) -> None:
        """Delete the namespace with all that is in it; waits for its end if asked to."""
        arguments = ["delete", "namespace", self.name, "--ignore-not-found"]
        if wait_s:
            kubectl(*arguments, f"--timeout={wait_s:.0f}s", timeout_s=wait_s + 30)
        else:
            kubectl(*arguments, "--wait=false")


def custom_resource(kind: str, name: str, namespace: str, spec: Manifest) -> Manifest:
    """Return a custom resource of mailboat."""
    return {
        "apiVersion": "mailboat.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }
