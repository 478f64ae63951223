"""Calls of the Kubernetes API server: few verbs, plain manifests, short timeouts.

The `kubernetes` package's client signs, encrypts and sends; its generated models are left alone
(they would be most of the operator's memory).
"""

import asyncio
import contextlib
import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import config as kubernetes_config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.rest import RESTResponse

from mailboat.errors import MailboatError
from mailboat_operator.kinds import POD, Kind
from mailboat_operator.metrics import OperatorMetrics
from mailboat_operator.planner.snapshot import EvictionRefusal, Manifest

FIELD_MANAGER = "mailboat-operator"
_JSON = "application/json"
_MERGE_PATCH = "application/merge-patch+json"
_JSON_PATCH = "application/json-patch+json"
_APPLY_PATCH = "application/apply-patch+yaml"
_TOO_MANY_REQUESTS = 429
_INTERNAL_ERROR = 500
# What Kubernetes answers for such a pod (registry/core/pod/storage/eviction.go).
_MANY_BUDGETS = "more than one PodDisruptionBudget"
_MOST_TRIES = 4
_LONGEST_WAIT_S = 30.0


class KubeApiError(MailboatError):
    """The API server refused a call; `status` is the HTTP code."""

    def __init__(self, status: int, what: str, message: str) -> None:
        """Name the call and what the server said of it."""
        super().__init__(f"{what}: {message} (HTTP {status})")
        self.status = status
        self.message = message


class NotFoundError(KubeApiError):
    """There is no such object (404)."""


class ConflictError(KubeApiError):
    """The object is another one or has changed, or another manager owns a field (409)."""


class ForbiddenError(KubeApiError):
    """The operator has no right to do this (403)."""


class EvictionRefusedError(MailboatError):
    """A pod may not be evicted now: a disruption budget does not allow it, or there are several."""

    retriable = True

    def __init__(self, pod: str, refusal: EvictionRefusal) -> None:
        """Name the pod, and why it may not."""
        super().__init__(f"pod {pod} may not be evicted now: {refusal.words}")
        self.pod = pod
        self.refusal = refusal


class KubeUnreachableError(MailboatError):
    """The API server did not answer in time, so the outcome of the call is unknown."""

    retriable = True


_ERRORS: Mapping[int, type[KubeApiError]] = {
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
}


async def load_configuration() -> Configuration:
    """Where the API server is and how to speak to it: `KUBECONFIG`, else the pod's account.

    Raises:
        kubernetes.aio.config.ConfigException: neither is there.
    """
    configuration = Configuration()
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ
    if in_pod:
        kubernetes_config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    else:
        await kubernetes_config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    # The API server is never behind the proxy that a cluster has for the world outside.
    configuration.client_session_kwargs = {"trust_env": False}
    return configuration


class KubeApi:
    """The verbs that the operator needs, on plain manifests."""

    def __init__(
        self,
        client: ApiClient,
        metrics: OperatorMetrics,
        *,
        timeout_s: float,
        check_may_write: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`check_may_write` raises when this process must not write any more, and else says for how
        many seconds it may; None: without an end."""
        self._client = client
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._check_may_write = check_may_write

    def time_to_write_s(self) -> float:
        """For how many seconds this process may write, here and to brokers.

        Raises:
            MailboatError: it may not.
        """
        left_s = self._check_may_write()
        return math.inf if left_s is None else left_s

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest:
        """Read one object."""
        answer: Manifest = await self._call("get", "GET", kind.path(namespace, name))
        return answer

    async def list(
        self, kind: Kind, namespace: str | None, selector: str | None
    ) -> tuple[list[Manifest], int]:
        """Read all objects of a kind, with the resourceVersion that the list is true for."""
        query = {"labelSelector": selector} if selector else {}
        answer = await self._call("list", "GET", kind.path(namespace), query)
        try:
            items, version = answer.get("items") or [], int(answer["metadata"]["resourceVersion"])
        except (KeyError, TypeError, ValueError) as error:
            raise KubeUnreachableError(f"list {kind.plural}: the answer is no list") from error
        for item in items:
            # Members of a list come without their kind.
            item.setdefault("kind", kind.kind)
            item.setdefault("apiVersion", kind.api_version)
        return items, version

    async def get_path(self, path: str, *, verb: str = "get") -> Any:
        """Read any path of the API server: discovery, a node's statistics."""
        return await self._call(verb, "GET", path)

    async def apply(self, kind: Kind, manifest: Manifest, *, force: bool) -> Manifest:
        """Server-side apply: the fields of the manifest become so, and belong to the operator."""
        metadata = manifest["metadata"]
        path = kind.path(metadata.get("namespace"), metadata["name"])
        query = {"fieldManager": FIELD_MANAGER, "force": "true" if force else "false"}
        answer: Manifest = await self._call(
            "apply", "PATCH", path, query, manifest, content_type=_APPLY_PATCH, is_write=True
        )
        return answer

    async def merge_patch(
        self, kind: Kind, namespace: str | None, name: str, patch: Manifest
    ) -> Manifest:
        """Change some members; name the uid and the resourceVersion in it to guard it."""
        answer: Manifest = await self._call(
            "patch",
            "PATCH",
            kind.path(namespace, name),
            {"fieldManager": FIELD_MANAGER},
            patch,
            content_type=_MERGE_PATCH,
            is_write=True,
        )
        return answer

    async def put_status(
        self, kind: Kind, namespace: str, name: str, status: Manifest, resource_version: str
    ) -> Manifest:
        """Replace the whole status, if the object is still the version that it was made for."""
        # Writing the resourceVersion makes the API server compare it: 409 when it is another.
        operations = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": resource_version},
            {"op": "add", "path": "/status", "value": status},
        ]
        answer: Manifest = await self._call(
            "patch",
            "PATCH",
            kind.path(namespace, name, "status"),
            {"fieldManager": FIELD_MANAGER},
            operations,
            content_type=_JSON_PATCH,
            is_write=True,
        )
        return answer

    async def delete(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        *,
        uid: str,
        resource_version: str | None,
        propagation: str,
    ) -> Manifest:
        """Delete exactly the object of this uid, and this version where one is given."""
        preconditions = {"uid": uid}
        if resource_version is not None:
            preconditions["resourceVersion"] = resource_version
        options = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "preconditions": preconditions,
            "propagationPolicy": propagation,
        }
        answer: Manifest = await self._call(
            "delete", "DELETE", kind.path(namespace, name), body=options, is_write=True
        )
        return answer

    async def evict(self, namespace: str, name: str, *, uid: str) -> None:
        """Take down exactly the pod of this uid, if its disruption budget allows that now.

        Raises:
            EvictionRefusedError: not now; a later call may be allowed to.
        """
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        path = POD.path(namespace, name, "eviction")
        try:
            # Not tried again here: a budget allows it in seconds or in hours.
            await self._call("evict", "POST", path, body=eviction, is_write=True, tries=1)
        except KubeApiError as error:
            refusal = _eviction_refusal(error)
            if refusal is None:
                raise
            raise EvictionRefusedError(name, refusal) from error

    async def create(
        self, kind: Kind, namespace: str, manifest: Manifest, *, is_fenced: bool = True
    ) -> Manifest:
        """Make a new object; 409 if there is one of that name."""
        answer: Manifest = await self._call(
            "create", "POST", kind.path(namespace), body=manifest, is_write=is_fenced
        )
        return answer

    async def replace(
        self, kind: Kind, namespace: str, manifest: Manifest, *, is_fenced: bool = True
    ) -> Manifest:
        """Put a whole object in place of the version that it names; 409 if that is gone."""
        answer: Manifest = await self._call(
            "update",
            "PUT",
            kind.path(namespace, manifest["metadata"]["name"]),
            body=manifest,
            is_write=is_fenced,
        )
        return answer

    async def _call(
        self,
        verb: str,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        *,
        content_type: str = _JSON,
        is_write: bool = False,
        tries: int = _MOST_TRIES,
    ) -> Any:
        what = f"{verb} {path}"
        for tries_left in range(tries - 1, -1, -1):
            timeout_s = min(self._timeout_s, self.time_to_write_s() if is_write else math.inf)
            status, headers, text = await self._send(
                method, path, query, body, content_type, what, timeout_s
            )
            self._metrics.api_requests_total.labels(verb, str(status)).inc()
            if status < 300:
                return _answer(what, text)
            if status != _TOO_MANY_REQUESTS or not tries_left:
                break
            await asyncio.sleep(_wait_s(headers))
        raise _ERRORS.get(status, KubeApiError)(status, what, _message(text))

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any,
        content_type: str,
        what: str,
        timeout_s: float,
    ) -> tuple[int, Mapping[str, str], bytes]:
        headers = {"Accept": _JSON, "User-Agent": FIELD_MANAGER}
        if body is not None:
            headers["Content-Type"] = content_type
        await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = self._client.configuration.host + path
        if query:
            url += "?" + urlencode(query)
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(5.0, timeout_s))
        try:
            request = self._client.rest_client.request
            response: RESTResponse = await request(  # type: ignore[no-untyped-call]
                method, url, headers=headers, body=body, _request_timeout=timeout
            )
            text: bytes = await response.read()  # type: ignore[no-untyped-call]
            return response.status, response.headers, text
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._metrics.api_requests_total.labels(what.split()[0], "0").inc()
            raise KubeUnreachableError(
                f"{what}: no answer from the API server: {error or type(error).__name__}"
            ) from error


def _answer(what: str, text: bytes) -> Manifest:
    """Read what came with a success.

    What a proxy made of it, or what was cut on the way, tells as little of the outcome as silence.
    """
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        shown = text[:100].decode(errors="replace")
        raise KubeUnreachableError(f"{what}: the answer is no object of the API server: {shown!r}")
    return answer


def _eviction_refusal(error: KubeApiError) -> EvictionRefusal | None:
    """Why a pod was not evicted; None if that has nothing to do with budgets."""
    if error.status == _TOO_MANY_REQUESTS:
        return EvictionRefusal(error.message)
    if error.status == _INTERNAL_ERROR and _MANY_BUDGETS in error.message:
        return EvictionRefusal(
            "more than one PodDisruptionBudget selects the pod, and Kubernetes evicts no such pod;"
            " remove those that the operator has not made",
            has_many_budgets=True,
        )
    return None


def _wait_s(headers: Mapping[str, str]) -> float:
    wait_s = 1.0
    # The header may also be a date; Kubernetes sends seconds.
    with contextlib.suppress(ValueError):
        wait_s = float(headers.get("Retry-After") or 1.0)
    return min(max(wait_s, 0.0), _LONGEST_WAIT_S)


def _message(text: bytes) -> str:
    """What a Status object says; else the beginning of the body."""
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if isinstance(answer, dict) and answer.get("message"):
        return str(answer["message"])
    return text[:200].decode(errors="replace") or "no reason given"
