"""What the tests read of the cluster, over connections that stay.

With three tests at a time a kubectl for each look would take a fifth of two processors.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from kubernetes.client import ApiClient
from kubernetes.client.exceptions import ApiException
from kubernetes.config import new_client_from_config
from urllib3.exceptions import HTTPError

_VERSIONS = (
    "/api/v1",
    "/apis/apps/v1",
    "/apis/coordination.k8s.io/v1",
    "/apis/discovery.k8s.io/v1",
    "/apis/mailboat.dev/v1alpha1",
    "/apis/networking.k8s.io/v1",
    "/apis/policy/v1",
    "/apis/storage.k8s.io/v1",
)
_TIMEOUT_S = 60.0


class ReadError(AssertionError):
    """The API server did not return what was asked for.

    Attributes:
        code: its HTTP status, 0 if there was no answer.
    """

    def __init__(self, path: str, code: int, text: str) -> None:
        """Say what was asked."""
        super().__init__(f"GET {path} was answered with {code}: {text[:2000]}")
        self.code = code


def read(path: str, **query: str) -> str:
    """Return what the API server has at a path.

    Raises:
        ReadError: it refuses, or does not answer.
    """
    client = _client()
    request = client.param_serialize(
        method="GET",
        resource_path=path,
        query_params=list(query.items()),
        auth_settings=["BearerToken"],
    )
    try:
        answer = client.call_api(*request, _request_timeout=_TIMEOUT_S)
        text = answer.read().decode()
    except (HTTPError, ApiException) as error:
        raise ReadError(path, 0, str(error)) from error
    if answer.status != 200:
        raise ReadError(path, answer.status, text)
    return text


def read_object(namespace: str, kind: str, name: str) -> dict[str, Any]:
    """Return an object; a kind is called as kubectl takes it, such as `pvc` or `name.group`."""
    found: dict[str, Any] = json.loads(read(f"{_path(namespace, kind)}/{name}"))
    return found


def read_objects(namespace: str, kind: str, **query: str) -> list[dict[str, Any]]:
    """Return objects of a kind, of all namespaces if none is named; `query` may choose some."""
    items: list[dict[str, Any]] = json.loads(read(_path(namespace, kind), **query))["items"]
    return items


def _path(namespace: str, kind: str) -> str:
    name, _, group = kind.lower().partition(".")
    if group:
        found = json.loads(read(f"/apis/{group}"))["preferredVersion"]["groupVersion"]
        version = f"/apis/{found}"
    else:
        version, name = _kinds()[name]
    return f"{version}/namespaces/{namespace}/{name}" if namespace else f"{version}/{name}"


@functools.cache
def _client() -> ApiClient:
    client: ApiClient = new_client_from_config()
    return client


@functools.cache
def _kinds() -> Mapping[str, tuple[str, str]]:
    """Return version and name of each kind, by whatever kubectl calls it."""
    found = {}
    for version in _VERSIONS:
        for entry in json.loads(read(version))["resources"]:
            for called in (entry["name"], entry["singularName"], *entry.get("shortNames", ())):
                found[called] = (version, entry["name"])
    return found
