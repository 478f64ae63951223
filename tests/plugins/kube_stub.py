"""A small API server of Kubernetes: real HTTPS, optimistic locking, and whatever may go wrong.

It does with Leases and EndpointSlices what the real one does: a PUT replaces the object whose
resourceVersion and uid it names (409 otherwise, 422 without a version), one without both makes an
object that is not there, if its verb "create" is allowed.
"""

import asyncio
import copy
import json
import ssl
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import trustme
from aiohttp import web

from mailboat.testing.kept_ports import KeptPorts

NAMESPACE = "mq"


class KubeStub:
    """Objects by `plural/name`; each pod is known by its token."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Keep credentials of pods below `root`; pods of this process find it once it runs."""
        self._root = root
        self._monkeypatch = monkeypatch
        self._ca = trustme.CA()
        self._kept_ports = KeptPorts()
        self._port = 0
        self._runner: web.AppRunner | None = None
        self._version = 100
        self._tokens: set[str] = set()
        self._late: set[asyncio.Task[None]] = set()
        self.objects: dict[str, dict[str, Any]] = {}
        self.denied_verbs: set[str] = set()
        self.cut_off: set[str] = set()
        """Tokens of pods whose requests are not answered, and do nothing."""

        self.answers = 0
        """A status with which every request is answered, 0 for the true answer."""

        self.loses_answers = False
        """Whether writes are done, and their connections end without an answer."""

        self.late_s = 0.0
        """After so many seconds writes are done that got no answer; 0 for at once, with one."""

        self.bearers: dict[str, tuple[str, list[str]]] = {}
        """By token, what reviews of it say: who has it, and for whom it was made."""

        self.reviewed: list[str] = []
        """The tokens that were reviewed."""

        self.says: bytes | None = None
        """What every review is answered with instead of the truth."""

        self.knows_no_audiences = False
        self.review_waits: asyncio.Event | None = None
        """What reviews wait for."""

        self.requests: list[tuple[str, str, str]] = []
        """Token, method and object of each request."""

        self.in_flight: dict[tuple[str, str, str], int] = {}
        self.most_in_flight = 0
        """Requests of one kind of one pod at a time."""

    async def __aenter__(self) -> Self:
        """Begin to serve."""
        self._port = self._kept_ports.take()
        await self.come_back()
        self._monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        self._monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(self._port))
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Serve no more."""
        await self.go_away()
        for task in self._late:
            task.cancel()
        self._kept_ports.close()

    # -- pods -----------------------------------------------------------------------------------

    def pod(self, name: str) -> str:
        """Return the folder with the token of a pod."""
        folder = self._root / f"kube-api-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        self._ca.cert_pem.write_to_path(str(folder / "ca.crt"))
        (folder / "namespace").write_text(NAMESPACE)
        self.give_token(name, f"token-of-{name}")
        return str(folder)

    def give_token(self, name: str, token: str) -> None:
        """Replace a pod's token: the former one is not valid any more."""
        path = self._root / f"kube-api-{name}" / "token"
        if path.exists():
            self._tokens.discard(path.read_text().strip())
        self._tokens.add(token)
        path.write_text(token + "\n")

    # -- objects --------------------------------------------------------------------------------

    def put(self, key: str, manifest: Mapping[str, Any]) -> None:
        """Put an object there, whatever was there before, as somebody else's write."""
        self._version += 1
        stored = copy.deepcopy(dict(manifest))
        before = self.objects.get(key, {}).get("metadata", {})
        metadata = stored.setdefault("metadata", {})
        metadata["resourceVersion"] = str(self._version)
        metadata["uid"] = before.get("uid") or str(uuid.uuid4())
        self.objects[key] = stored

    # -- being away -----------------------------------------------------------------------------

    async def go_away(self) -> None:
        """Accept no connections, and end those that there are."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def come_back(self) -> None:
        """Serve again, at the same port."""
        application = web.Application()
        route = "/apis/{group}/{version}/namespaces/{namespace}/{plural}/{name}"
        application.router.add_get(route, self._serve)
        application.router.add_put(route, self._serve)
        reviews = "/apis/authentication.k8s.io/v1/tokenreviews"
        application.router.add_post(reviews, self._serve_review)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._ca.issue_cert("127.0.0.1").configure_cert(tls)
        # Who is away does not wait for what it has not answered.
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=tls).start()

    # -- requests -------------------------------------------------------------------------------

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        key = f"{request.match_info['plural']}/{request.match_info['name']}"
        kind = token, request.method, key
        self.requests.append(kind)
        self.in_flight[kind] = self.in_flight.get(kind, 0) + 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight[kind])
        try:
            return await self._answer(request, token, key)
        finally:
            self.in_flight[kind] -= 1

    async def _answer(self, request: web.Request, token: str, key: str) -> web.StreamResponse:
        body = await request.read()
        if token in self.cut_off:
            await asyncio.Event().wait()
        if token not in self._tokens:
            return _refusal(401, "Unauthorized")
        if request.match_info["namespace"] != NAMESPACE:
            return _refusal(403, "another namespace")
        if self.answers:
            return _refusal(self.answers, "as the test wants it")
        if request.method == "GET":
            if "get" in self.denied_verbs:
                return _refusal(403, "forbidden")
            found = self.objects.get(key)
            return _refusal(404, "not found") if found is None else web.json_response(found)
        if self.late_s:
            self._apply_late(key, json.loads(body), self.late_s)
            await asyncio.Event().wait()
        status, answer = self._replace(key, json.loads(body))
        if self.loses_answers:
            assert request.transport is not None
            request.transport.abort()
        return web.json_response(answer, status=status)

    async def _serve_review(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization", "").removeprefix("Bearer ") not in self._tokens:
            return _refusal(401, "Unauthorized")
        spec = (await request.json())["spec"]
        self.reviewed.append(spec["token"])
        if self.review_waits is not None:
            await self.review_waits.wait()
        if self.answers:
            return _refusal(self.answers, "as the test wants it")
        if self.says is not None:
            return web.Response(body=self.says, status=201, content_type="application/json")
        user, made_for = self.bearers.get(spec["token"], ("", []))
        fitting = [audience for audience in spec["audiences"] if audience in made_for]
        # Who judges tokens may know no audiences, and then takes them for any.
        is_valid = bool(fitting) or self.knows_no_audiences
        status: dict[str, Any] = {"authenticated": is_valid}
        if is_valid:
            status |= {"user": {"username": user, "uid": "u"}, "audiences": fitting}
        answer = {"kind": "TokenReview", "spec": spec, "status": status}
        return web.json_response(answer, status=201)

    def _apply_late(self, key: str, manifest: dict[str, Any], late_s: float) -> None:
        async def apply() -> None:
            await asyncio.sleep(late_s)
            self._replace(key, manifest)

        task = asyncio.get_running_loop().create_task(apply())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    def _replace(self, key: str, manifest: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        found = self.objects.get(key)
        named = manifest.get("metadata", {})
        if "update" in self.denied_verbs or (found is None and "create" in self.denied_verbs):
            return 403, {"message": "forbidden"}
        has = {} if found is None else found["metadata"]
        if named.get("uid") and named["uid"] != has.get("uid"):
            return 409, {"message": "the UID in the precondition differs"}
        if found is not None and not named.get("resourceVersion"):
            return 422, {"message": "metadata.resourceVersion must be specified for an update"}
        if found is not None and named["resourceVersion"] != has["resourceVersion"]:
            return 409, {"message": "the object has been modified"}
        self.put(key, manifest)
        return (201 if found is None else 200), self.objects[key]


def _refusal(status: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "message": message}, status=status)
