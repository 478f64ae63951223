"""The API server, as a pod asks it for a few small objects that it may read and update.

Import it where it is needed only, and on a thread: it brings an HTTP client that a broker without
replicas on Kubernetes does without.
"""

import json
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import aiohttp

from mailboat.errors import ConfigError, MailboatError
from mailboat.security.api_server import ApiServer, read_credential

VERBS: Final = {"GET": "get", "PUT": "update"}
_KEPT_CHARACTERS: Final = 300


class ApiError(MailboatError):
    """There is no answer that can be used; what was asked may have been done."""

    retriable = True


class Address(NamedTuple):
    """A kind of objects in the API: `coordination.k8s.io/v1`, `leases`."""

    api_version: str
    plural: str


class Reply(NamedTuple):
    """What the API server answers: a status of HTTP, and the object or why there is none."""

    status: int
    body: dict[str, Any]


class KubeApi:
    """Asks the API server of the cluster in which this pod runs, with the token of the pod."""

    def __init__(self, folder: str, timeout_s: float) -> None:
        """Take `token`, `ca.crt` and `namespace` from a folder; on any thread.

        The token is read for each request: Kubernetes replaces it now and then.

        Raises:
            ConfigError: the folder lacks one of them, or this is no pod of a cluster.
        """
        self._folder = folder
        self.namespace = read_credential(folder, "namespace")
        self._api = ApiServer(folder, timeout_s, "leaseName")
        self.timeout_s = timeout_s
        """So long an answer is waited for."""

    async def get(self, kind: Address, name: str) -> Reply:
        """Read an object as it is now; without a resourceVersion that is no cached one.

        Raises:
            ApiError: there was no answer.
        """
        return await self._ask("GET", kind, name, None)

    async def put(self, kind: Address, name: str, manifest: dict[str, Any]) -> Reply:
        """Replace an object, where its resourceVersion is that of the manifest.

        Raises:
            ApiError: there was no answer: it may have been replaced, or may yet be.
        """
        return await self._ask("PUT", kind, name, manifest)

    async def close(self) -> None:
        """End the connections."""
        await self._api.close()

    def refusal(self, reply: Reply, method: str, kind: Address, name: str) -> str:
        """Say what is wrong where an answer is of no use, and what a person can do about it."""
        what = f"{VERBS[method]} {kind.plural}/{name} in namespace {self.namespace}"
        said = str(reply.body.get("message", ""))[:_KEPT_CHARACTERS]
        text = f"the API server answered {reply.status} to: {what}"
        match reply.status:
            case HTTPStatus.UNAUTHORIZED:
                text += f"; the token in {self._folder} is not valid"
            case HTTPStatus.FORBIDDEN:
                text += (
                    f'; the Role of the pod\'s ServiceAccount lacks the verb "{VERBS[method]}" for '
                    f"{kind.plural} named {name}"
                )
            case HTTPStatus.NOT_FOUND:
                text += "; it is not there"
        return f"{text}; {said}" if said else text

    async def _ask(
        self, method: str, kind: Address, name: str, manifest: dict[str, Any] | None
    ) -> Reply:
        what = f"{VERBS[method]} {kind.plural}/{name}"
        path = f"/apis/{kind.api_version}/namespaces/{self.namespace}/{kind.plural}/{name}"
        try:
            status, data = await self._api.ask(method, path, manifest)
            return Reply(status, _body(status, data, name))
        except TimeoutError as error:
            raise ApiError(
                f"there is no answer of the API server within {self.timeout_s:g} s to: {what}"
            ) from error
        except (aiohttp.ClientError, OSError, ConfigError, ValueError) as error:
            raise ApiError(f"there is no answer of the API server to: {what}: {error}") from error


def _body(status: int, data: bytes, name: str) -> dict[str, Any]:
    """Return what an answer says; nothing where a proxy has refused with something else.

    Raises:
        ValueError: it is to be the object of that name, and is none: no API server has said that.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if status < HTTPStatus.MULTIPLE_CHOICES and not _is_object(found, name):
        raise ValueError(f"what came with status {status} is not the object {name}")
    return found if isinstance(found, dict) else {}


def _is_object(found: Any, name: str) -> bool:
    """Tell whether an answer has the form that all that is read here has."""
    if not isinstance(found, dict) or not isinstance(found.get("metadata"), dict):
        return False
    metadata = found["metadata"]
    mappings = metadata.get("annotations"), metadata.get("labels"), found.get("spec")
    lists = found.get("endpoints"), found.get("ports")
    return (
        metadata.get("name") == name
        and all(item is None or isinstance(item, dict) for item in mappings)
        and all(isinstance(item, str) for item in (metadata.get("annotations") or {}).values())
        and all(item is None or _is_list_of_objects(item) for item in lists)
    )


def _is_list_of_objects(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(item, dict) for item in found)
