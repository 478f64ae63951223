"""A small API server for tests: the few paths and rules that the operator depends on.

What it keeps to, as the real one documents it: resourceVersions that only grow, 409 for a version
or uid that is not the present one, server-side apply with field conflicts, status as a part of its
own, label selectors, watches that continue from a version, bookmarks and 410 after compaction.
It knows no admission (but for a Service's address), no garbage collection and no controllers.
"""

import asyncio
import copy
import json
import re
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import web

Manifest = dict[str, Any]
Fault = Callable[[web.Request], Awaitable[web.StreamResponse | None]]

RESOURCES = {
    ("", "v1"): {
        "pods": "Pod",
        "persistentvolumeclaims": "PersistentVolumeClaim",
        "services": "Service",
        "configmaps": "ConfigMap",
        "serviceaccounts": "ServiceAccount",
        "endpoints": "Endpoints",
        "secrets": "Secret",
        "namespaces": "Namespace",
        "events": "Event",
    },
    ("apps", "v1"): {"statefulsets": "StatefulSet"},
    ("networking.k8s.io", "v1"): {"networkpolicies": "NetworkPolicy"},
    ("policy", "v1"): {"poddisruptionbudgets": "PodDisruptionBudget"},
    ("storage.k8s.io", "v1"): {"storageclasses": "StorageClass"},
    ("coordination.k8s.io", "v1"): {"leases": "Lease"},
    ("discovery.k8s.io", "v1"): {"endpointslices": "EndpointSlice"},
    ("rbac.authorization.k8s.io", "v1"): {"roles": "Role", "rolebindings": "RoleBinding"},
    ("events.k8s.io", "v1"): {"events": "Event"},
    ("apiextensions.k8s.io", "v1"): {"customresourcedefinitions": "CustomResourceDefinition"},
    ("mailboat.dev", "v1alpha1"): {
        "brokers": "Broker",
        "nameservers": "NameServer",
        "topics": "Topic",
        "users": "User",
    },
}
_CLUSTER_WIDE = {"namespaces", "storageclasses", "customresourcedefinitions"}


@dataclass(frozen=True)
class Call:
    """One request that was answered or is being answered."""

    verb: str
    path: str
    body: Any
    query: dict[str, str]


@dataclass
class FakeKubernetes:
    """The server; start it, use `url`, close it."""

    calls: list[Call] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    """Asked before each request; one that returns a response (or raises) replaces the answer."""

    hearing: asyncio.Event = field(default_factory=asyncio.Event)
    """While it is cleared, watches stay open and silent, and new ones are not even accepted."""

    owned_by_others: set[tuple[str, str]] = field(default_factory=set)
    """(kind, name) whose fields another manager owns: apply conflicts unless it is forced."""

    objects: dict[tuple[str, str, str], Manifest] = field(default_factory=dict)
    """(plural, namespace, name) -> object."""

    history: list[tuple[int, str, str, Manifest]] = field(default_factory=list)
    """(version, plural, type, object) of every change."""

    compacted: int = 0
    """Watches from an older version are answered 410."""

    version: int = 100
    url: str = ""
    _runner: web.AppRunner | None = None
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def start(self) -> str:
        """Listen on a free port; returns the URL."""
        self.hearing.set()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self.url

    async def close(self) -> None:
        """Stop listening; open watches end."""
        if self._runner is not None:
            await self._runner.cleanup()

    def find(self, plural: str, namespace: str, name: str) -> Manifest | None:
        """An object as it is stored."""
        return self.objects.get((plural, namespace, name))

    def writes(self) -> list[Call]:
        """All calls that change something, but for the Lease."""
        verbs = ("POST", "PUT", "PATCH", "DELETE")
        return [call for call in self.calls if call.verb in verbs and "/leases" not in call.path]

    async def put(self, plural: str, manifest: Manifest) -> Manifest:
        """Store an object from outside, as a user or a controller does."""
        metadata = manifest["metadata"]
        key = (plural, metadata.get("namespace", ""), metadata["name"])
        return await self._store(key, copy.deepcopy(manifest), self.objects.get(key))

    async def remove(self, plural: str, namespace: str, name: str, *, is_told: bool = True) -> None:
        """Delete an object from outside; untold, no watch ever hears of it."""
        manifest = self.objects.pop((plural, namespace, name))
        self.version += 1
        manifest["metadata"]["resourceVersion"] = str(self.version)
        if is_told:
            self.history.append((self.version, plural, "DELETED", copy.deepcopy(manifest)))
        await self._tell()

    async def wait_until(self, condition: Callable[[], Any], timeout_s: float = 10.0) -> None:
        """Wait until something holds that a request or a change can bring about."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(lambda: bool(condition()))

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _store(
        self, key: tuple[str, str, str], manifest: Manifest, old: Manifest | None
    ) -> Manifest:
        self.version += 1
        metadata = manifest["metadata"]
        spec = manifest.get("spec") or {}
        if key[0] == "services" and not spec.get("clusterIP"):
            manifest["spec"] = {**spec, "clusterIP": f"10.0.0.{self.version % 250}"}
        metadata.setdefault("uid", old["metadata"]["uid"] if old else str(uuid.uuid4()))
        metadata["resourceVersion"] = str(self.version)
        generation = old["metadata"].get("generation", 1) if old else 1
        is_other = old is not None and old.get("spec") != manifest.get("spec")
        metadata["generation"] = generation + 1 if is_other else generation
        self.objects[key] = manifest
        kind = "MODIFIED" if old else "ADDED"
        self.history.append((self.version, key[0], kind, copy.deepcopy(manifest)))
        await self._tell()
        return manifest

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        body = json.loads(text) if text else None
        self.calls.append(Call(request.method, request.path, body, dict(request.query)))
        await self._tell()
        for fault in list(self.faults):
            answer = await fault(request)
            if answer is not None:
                return answer
        parts = request.path.strip("/").split("/")
        discovered = _discovery(parts)
        if discovered is not None:
            return web.json_response(discovered)
        group, version, rest = (
            (parts[1], parts[2], parts[3:]) if parts[0] == "apis" else ("", parts[1], parts[2:])
        )
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        plural = rest[0]
        if plural == "events" and request.method == "POST" and (why := _event_trouble(body)):
            return _status(422, why)
        if plural not in RESOURCES.get((group, version), {}):
            return _status(404, "the server could not find the requested resource")
        api_version = f"{group}/{version}" if group else version
        kind = RESOURCES[(group, version)][plural]
        if len(rest) == 1:
            return await self._collection(request, body, plural, namespace, kind, api_version)
        return await self._one(request, body, (plural, namespace, rest[1]), rest[2:])

    async def _collection(
        self,
        request: web.Request,
        body: Any,
        plural: str,
        namespace: str,
        kind: str,
        api_version: str,
    ) -> web.StreamResponse:
        if request.method == "POST":
            key = (plural, namespace, body["metadata"]["name"])
            if key in self.objects:
                return _status(409, f"{plural} {key[2]!r} already exists")
            return web.json_response(await self._store(key, body, None), status=201)
        if request.query.get("watch") == "true":
            return await self._watch(request, plural, namespace)
        items = [
            {k: v for k, v in manifest.items() if k not in ("kind", "apiVersion")}
            for (its_plural, its_namespace, _), manifest in self.objects.items()
            if its_plural == plural
            and namespace in ("", its_namespace)
            and _is_selected(manifest, request.query.get("labelSelector"))
        ]
        return web.json_response(
            {
                "kind": f"{kind}List",
                "apiVersion": api_version,
                "metadata": {"resourceVersion": str(self.version)},
                "items": items,
            }
        )

    async def _watch(self, request: web.Request, plural: str, namespace: str) -> web.StreamResponse:
        await self.hearing.wait()
        since = int(request.query.get("resourceVersion") or 0)
        response = web.StreamResponse()
        await response.prepare(request)
        if since < self.compacted:
            gone = {"kind": "Status", "code": 410, "message": "too old resource version"}
            await _send(response, {"type": "ERROR", "object": gone})
            return response
        selector = request.query.get("labelSelector")
        lasts_s = float(request.query.get("timeoutSeconds") or 300)
        ends_s = asyncio.get_running_loop().time() + lasts_s
        position = 0
        while True:
            while position < len(self.history) and self.hearing.is_set():
                version, its_plural, kind, manifest = self.history[position]
                position += 1
                in_namespace = namespace in ("", manifest["metadata"].get("namespace", ""))
                is_ours = its_plural == plural and version > since and in_namespace
                if is_ours and _is_selected(manifest, selector):
                    await _send(response, {"type": kind, "object": manifest})
            rest_s = ends_s - asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(max(0.0, rest_s)), self._changed:
                    await self._changed.wait_for(partial(self._has_more_than, position))
            except TimeoutError:
                if self.hearing.is_set():
                    break
            if not self.hearing.is_set():
                # A stream that was silent has lost what happened meanwhile: it ends without a mark.
                await self.hearing.wait()
                return response
        mark = {"metadata": {"resourceVersion": str(self.version)}}
        await _send(response, {"type": "BOOKMARK", "object": mark})
        return response

    def _has_more_than(self, changes: int) -> bool:
        return len(self.history) > changes

    async def _one(
        self, request: web.Request, body: Any, key: tuple[str, str, str], rest: list[str]
    ) -> web.StreamResponse:
        old = self.objects.get(key)
        is_apply = request.headers.get("Content-Type") == "application/apply-patch+yaml"
        if old is None and not is_apply:
            return _status(404, f"{key[0]} {key[2]!r} not found")
        if request.method == "GET":
            return web.json_response(old)
        if request.method == "DELETE":
            return await self._delete(key, body)
        if rest == ["eviction"]:
            return await self._delete(key, body.get("deleteOptions"))
        if request.method == "PATCH":
            return await self._patch(request, body, key, rest, is_apply=is_apply)
        assert old is not None
        if body["metadata"].get("resourceVersion") != old["metadata"]["resourceVersion"]:
            return _status(409, "the object has been modified")
        return web.json_response(await self._store(key, body, old))

    async def _delete(self, key: tuple[str, str, str], body: Any) -> web.StreamResponse:
        wanted = (body or {}).get("preconditions") or {}
        metadata = self.objects[key]["metadata"]
        for name, value in wanted.items():
            if metadata[name] != value:
                return _status(409, f"the {name} in the precondition ({value}) does not match")
        await self.remove(*key)
        return _status(200, "deleted")

    async def _patch(
        self,
        request: web.Request,
        body: Any,
        key: tuple[str, str, str],
        rest: list[str],
        *,
        is_apply: bool,
    ) -> web.StreamResponse:
        old = self.objects.get(key)
        new = copy.deepcopy(old) if old is not None else {}
        if is_apply:
            is_forced = request.query.get("force") == "true"
            if (body["kind"], key[2]) in self.owned_by_others and not is_forced:
                return _status(409, 'Apply failed with 1 conflict: conflict with "kubectl"')
            _merge(new, body)
            if new == old:
                return web.json_response(old)
        elif isinstance(body, list):
            for operation in body:
                target, members = new, operation["path"].strip("/").split("/")
                for member in members[:-1]:
                    target = target[member]
                target[members[-1]] = operation["value"]
        else:
            _merge(new, body)
        if old is not None and new["metadata"].get("uid") != old["metadata"]["uid"]:
            return _status(409, "the uid does not match")
        if old is not None and not is_apply:
            if new["metadata"].get("resourceVersion") != old["metadata"]["resourceVersion"]:
                return _status(409, "the object has been modified; please apply your changes")
            kept = ("spec", "metadata") if rest == ["status"] else ("status",)
            for member in kept:
                if member in old:
                    new[member] = copy.deepcopy(old[member])
        return web.json_response(await self._store(key, new, old), status=200 if old else 201)


def _merge(target: Manifest, patch: Manifest) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = copy.deepcopy(value)


def _is_selected(manifest: Manifest, selector: str | None) -> bool:
    labels = manifest["metadata"].get("labels") or {}
    wanted = [part.split("=", 1) for part in (selector or "").split(",") if part]
    return all(labels.get(key) == value for key, value in wanted)


_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def _event_trouble(event: Manifest) -> str | None:
    """What validation says of an event: both limits are of bytes."""
    if len(event["note"].encode()) > 1024:
        return "note: can have at most 1024 bytes"
    name = event["metadata"]["name"]
    if len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
        return f"metadata.name: {name} is no lowercase RFC 1123 subdomain"
    return None


def _discovery(parts: list[str]) -> Manifest | None:
    if parts == ["api"]:
        return {"versions": ["v1"]}
    if parts == ["apis"]:
        groups = [
            {
                "name": group,
                "versions": [{"version": version}],
                "preferredVersion": {"version": version},
            }
            for group, version in RESOURCES
            if group
        ]
        return {"groups": groups}
    is_group = (parts[0] == "apis" and len(parts) == 3) or parts == ["api", "v1"]
    if not is_group:
        return None
    key = (parts[1], parts[2]) if parts[0] == "apis" else ("", "v1")
    resources = [
        {
            "name": plural,
            "singularName": kind.lower(),
            "kind": kind,
            "namespaced": plural not in _CLUSTER_WIDE,
            "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
        }
        for plural, kind in RESOURCES.get(key, {}).items()
    ]
    return {"resources": resources}


def _status(code: int, message: str) -> web.Response:
    state = "Success" if code < 300 else "Failure"
    return web.json_response(
        {"kind": "Status", "status": state, "code": code, "message": message}, status=code
    )


async def _send(response: web.StreamResponse, event: Manifest) -> None:
    await response.write(json.dumps(event).encode() + b"\n")
