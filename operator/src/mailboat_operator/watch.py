"""Where changes come from: Kopf watches, and a list of everything from time to time.

Kopf is used for what it is good at, an event source that reconnects: its handlers put objects into
the cache and mark what they belong to. It keeps no state on the objects, adds no finalizer, posts
no events and needs no rights of its own (`standalone`, no scanning of definitions or namespaces).

Two things that Kopf does not give are added here. It does not tell of deletions that happened while
a watch was broken, so everything is listed again after such a gap and every few minutes. And it
hides whether a watch still lives; but each watch request ends after `watch_seconds` and the next
one follows, so the time of the last request that was answered tells it.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import aiohttp
import kopf
from kubernetes.aio.client import ApiClient

from mailboat_operator.cache import ObjectCache
from mailboat_operator.kinds import (
    BROKER,
    CUSTOM_KINDS,
    LEASE,
    NAME_SERVER,
    POD,
    STORAGE_CLASS,
    TOPIC,
    USER,
    Kind,
    ResourceKey,
    key_of,
    label_selector,
    owner_of,
    watched_kinds,
)
from mailboat_operator.kube_api import KubeApi, KubeApiError, KubeUnreachableError
from mailboat_operator.metrics import OperatorMetrics
from mailboat_operator.planner.leases import said_by
from mailboat_operator.planner.pods import is_ready
from mailboat_operator.planner.snapshot import Manifest
from mailboat_operator.settings import OperatorSettings
from mailboat_operator.sight import REFUSED, Sight

logger = logging.getLogger(__name__)

_CONNECT_S = 10.0
_RELIST_AGAIN_S = 5.0
_LONGEST_RELIST_S = 60.0

WatchKey = tuple[str, str | None]
"""Kind, and namespace or None for all."""


_BROKER_REF = ("spec", "brokerRef")
_NAME_SERVER_REF = ("spec", "nameServers", "ref")


class ChangeHub:
    """Takes changes in, keeps the cache, and marks the custom resources that they concern."""

    def __init__(
        self,
        cache: ObjectCache,
        mark: Callable[[ResourceKey], None],
        *,
        pod_changed: Callable[[Manifest], None] = lambda _: None,
        pod_gone: Callable[[Manifest], None] = lambda _: None,
    ) -> None:
        """`mark` is called with the key of each resource that has to be planned again."""
        self._cache = cache
        self._mark = mark
        self._pod_changed = pod_changed
        self._pod_gone = pod_gone

    def seen(self, manifest: Manifest) -> None:
        """An object was listed, made or changed."""
        before = self._cache.get(manifest["kind"], *_place(manifest))
        if self._cache.update(manifest):
            self._tell(manifest, before)

    def gone(self, manifest: Manifest) -> None:
        """An object was deleted, or has lost the label by which it is watched."""
        self._cache.remove(manifest)
        self._tell(manifest, None, is_gone=True)

    def listed(
        self, kind: Kind, namespace: str | None, manifests: list[Manifest], version: int
    ) -> None:
        """A whole list was read; what is missing in it is gone."""
        known = {_place(manifest): manifest for manifest in self._cache.all_of(kind.kind)}
        for manifest in self._cache.replace(kind.kind, namespace, manifests, version):
            now = self._cache.get(kind.kind, *_place(manifest))
            self._tell(manifest, known.get(_place(manifest)), is_gone=now is None)

    def mark_all(self) -> None:
        """Have every custom resource planned again."""
        for kind in CUSTOM_KINDS:
            for manifest in self._cache.all_of(kind.kind):
                self._mark(key_of(manifest))

    def _tell(self, manifest: Manifest, before: Manifest | None, *, is_gone: bool = False) -> None:
        kind = manifest["kind"]
        if kind == STORAGE_CLASS.kind:
            for broker in self._cache.all_of(BROKER.kind):
                self._mark(key_of(broker))
            return
        if any(kind == custom.kind for custom in CUSTOM_KINDS):
            key = key_of(manifest)
            self._mark(key)
            if is_gone or before is None or _intent(before) != _intent(manifest):
                self._mark_dependents(key)
            return
        owner = owner_of(manifest)
        owner_before = owner_of(before) if before is not None else None
        if owner_before is not None and owner_before != owner:
            # Its label was taken off or changed: who has lost it puts that right.
            self._mark(owner_before)
        if owner is None:
            return
        if kind == LEASE.kind and not is_gone and before is not None:
            if said_by(before) == said_by(manifest):
                return  # Every leader renews its Lease every few seconds.
            self._mark_dependents(owner)
        self._mark(owner)
        if kind == POD.kind and owner.kind == BROKER.kind:
            (self._pod_gone if is_gone else self._pod_changed)(manifest)
            if is_gone or before is None or is_ready(before) != is_ready(manifest):
                self._mark_dependents(owner)

    def _mark_dependents(self, key: ResourceKey) -> None:
        """Topics and Users look at their Broker, Brokers at the NameServer that they name, and so
        do the Users of these."""
        if key.kind == BROKER.kind:
            self._mark_naming(TOPIC, _BROKER_REF, key)
            self._mark_naming(USER, _BROKER_REF, key)
        elif key.kind == NAME_SERVER.kind:
            for broker in self._mark_naming(BROKER, _NAME_SERVER_REF, key):
                self._mark_naming(USER, _BROKER_REF, broker)

    def _mark_naming(
        self, kind: Kind, path: tuple[str, ...], key: ResourceKey
    ) -> list[ResourceKey]:
        """Mark the resources of a kind that name another one at a path; returns their keys."""
        found = []
        for manifest in self._cache.all_of(kind.kind):
            value: Any = manifest
            for member in path:
                value = value.get(member) if isinstance(value, dict) else None
            if value == key.name and manifest["metadata"]["namespace"] == key.namespace:
                found.append(key_of(manifest))
        for dependent in found:
            self._mark(dependent)
        return found


def _place(manifest: Manifest) -> tuple[str, str]:
    metadata = manifest["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


def _intent(manifest: Manifest) -> tuple[Any, ...]:
    """What of a resource others look at: its spec and that it stays, not its status."""
    metadata = manifest["metadata"]
    return metadata.get("uid"), manifest.get("spec"), metadata.get("deletionTimestamp")


class WatchClock:
    """When each watch last showed a sign of life."""

    def __init__(
        self,
        kinds: tuple[Kind, ...],
        namespaces: tuple[str, ...],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Expect a sign of life of each kind in each namespace from now on."""
        self._monotonic, self._wall = monotonic, wall
        self._by_path: dict[str, WatchKey] = {}
        scopes: tuple[str | None, ...] = namespaces or (None,)
        for kind in kinds:
            for namespace in scopes if kind.is_namespaced else (None,):
                self._by_path[kind.path(namespace)] = (kind.kind, namespace)
        self._alive_s: dict[WatchKey, float] = dict.fromkeys(self._by_path.values(), monotonic())
        self._wall_s: dict[str, float] = {}
        self._begun: set[WatchKey] = set()
        self.is_complete = asyncio.Event()
        """Set once every watch has begun, or has been refused and can be done without."""

    def key_of_path(self, path: str) -> WatchKey | None:
        """Which watch a URL path belongs to."""
        return self._by_path.get(path)

    def began(self, key: WatchKey) -> None:
        """A watch request was accepted."""
        self.alive(key)
        self._answered(key)

    def refused(self, key: WatchKey) -> None:
        """A list or watch that can be done without was refused: an answer, if a sad one."""
        self._alive_s[key] = self._monotonic()
        self._answered(key)

    def _answered(self, key: WatchKey) -> None:
        self._begun.add(key)
        if len(self._begun) == len(self._alive_s):
            self.is_complete.set()

    def alive(self, key: WatchKey) -> None:
        """Something arrived."""
        self._alive_s[key] = self._monotonic()
        self._wall_s[key[0]] = self._wall()

    def heard(self, kind: str, namespace: str | None) -> None:
        """An event arrived; it came from the watch of its namespace or of all."""
        for key in ((kind, namespace), (kind, None)):
            if key in self._alive_s:
                self.alive(key)

    def silences(self) -> Iterator[tuple[WatchKey, float]]:
        """How long each watch has been silent, in seconds."""
        now_s = self._monotonic()
        return ((key, now_s - alive_s) for key, alive_s in self._alive_s.items())

    def last_heard(self) -> list[tuple[tuple[str, ...], float]]:
        """The wall time of the last sign of life, per kind."""
        return [((kind,), wall_s) for kind, wall_s in self._wall_s.items()]


class Resync:
    """Lists everything: at the start, after a gap in a watch, and every few minutes."""

    def __init__(
        self,
        api: KubeApi,
        hub: ChangeHub,
        sight: Sight,
        kinds: tuple[Kind, ...],
        namespaces: tuple[str, ...],
        every_s: float,
    ) -> None:
        """Nothing is listed before `run_once` or `run`."""
        self._api, self._hub, self._sight, self._every_s = api, hub, sight, every_s
        scopes: tuple[str | None, ...] = namespaces or (None,)
        self._lists = [
            (kind, namespace)
            for kind in kinds
            for namespace in (scopes if kind.is_namespaced else (None,))
        ]
        self._gap = asyncio.Event()
        self._has_regained = False
        """Something could be listed again that had been refused: its resources were not planned."""

    def gap_seen(self) -> None:
        """A watch was begun anew: deletions may have been missed."""
        self._gap.set()

    async def run_once(self) -> None:
        """List every kind once.

        Raises:
            KubeApiError, KubeUnreachableError: one of the lists could not be read.
        """
        self._gap.clear()
        found = await asyncio.gather(
            *(self._list(kind, namespace) for kind, namespace in self._lists),
            return_exceptions=True,
        )
        for answer in found:
            if isinstance(answer, BaseException):
                raise answer

    async def run(self) -> None:
        """List again and again; after each, plan every resource anew."""
        pause_s = _RELIST_AGAIN_S
        while True:
            try:
                async with asyncio.timeout(self._every_s * random.uniform(0.9, 1.1)):
                    await self._gap.wait()
                is_after_gap = True
            except TimeoutError:
                is_after_gap = False
            try:
                await self.run_once()
            except (KubeApiError, KubeUnreachableError) as error:
                logger.warning("cannot list everything again: %s", error)
                self._gap.set()
                await asyncio.sleep(pause_s)
                pause_s = min(_LONGEST_RELIST_S, pause_s * 2)
                continue
            pause_s = _RELIST_AGAIN_S
            if self._has_regained or not is_after_gap:
                self._has_regained = False
                self._hub.mark_all()

    async def _list(self, kind: Kind, namespace: str | None) -> None:
        try:
            manifests, version = await self._api.list(kind, namespace, label_selector(kind))
        except KubeApiError as error:
            if error.status not in REFUSED or not self._sight.is_bearable(kind.kind, namespace):
                raise
            self._sight.refused(kind.kind, namespace, error.message)
            return
        self._hub.listed(kind, namespace, manifests, version)
        self._has_regained |= self._sight.granted(kind.kind, namespace)


class _EndlessBackoff:
    """The pauses between the tries of one request of Kopf's: it may never give up by itself."""

    def __iter__(self) -> Iterator[float]:
        pause_s = 0.5
        while True:
            yield random.uniform(0.8, 1.2) * pause_s
            pause_s = min(10.0, pause_s * 2)


def kopf_settings(settings: OperatorSettings) -> kopf.OperatorSettings:
    """Kopf without any state, scanning or posting of its own, and with short timeouts."""
    ours = kopf.OperatorSettings()
    ours.posting.enabled = False
    ours.scanning.disabled = True
    ours.peering.standalone = True
    ours.process.ultimate_exiting_timeout = None
    ours.queueing.exit_timeout = 0.5
    ours.networking.request_timeout = settings.request_timeout_seconds
    ours.networking.connect_timeout = _CONNECT_S
    ours.networking.error_backoffs = _EndlessBackoff()
    ours.watching.connect_timeout = _CONNECT_S
    ours.watching.server_timeout = int(settings.watch_seconds)
    # The server ends a watch on time, so one that lasts longer is a connection that has died.
    ours.watching.inactivity_timeout = settings.watch_seconds + 5
    ours.watching.client_timeout = settings.watch_seconds + 10
    for kind in watched_kinds(settings.is_cluster_wide):
        selector = label_selector(kind)
        if selector is not None:
            ours.watching.label_selectors[(kind.group, kind.version, kind.plural)] = selector
    return ours


def kopf_registry(
    hub: ChangeHub,
    clock: WatchClock,
    kinds: tuple[Kind, ...],
    open_session: Callable[[], kopf.AiohttpSession],
) -> kopf.OperatorRegistry:
    """One event handler per kind, and the way to the API server."""
    registry = kopf.OperatorRegistry()

    async def seen(event: Mapping[str, Any], **_: Any) -> None:
        manifest: Manifest = dict(event["object"])
        clock.heard(manifest["kind"], manifest["metadata"].get("namespace"))
        if event["type"] == "DELETED":
            hub.gone(manifest)
        else:
            hub.seen(manifest)

    async def login(**_: Any) -> kopf.AiohttpSession:
        return open_session()

    kopf.on.login(registry=registry)(login)
    for kind in kinds:
        kopf.on.event(
            kind.group, kind.version, kind.plural, id=f"seen-{kind.plural}", registry=registry
        )(seen)
    return registry


class _Ear:
    """Hears how each of Kopf's requests was answered."""

    def __init__(
        self, clock: WatchClock, resync: Resync, sight: Sight, metrics: OperatorMetrics
    ) -> None:
        self._clock, self._resync, self._sight, self._metrics = clock, resync, sight, metrics
        self._listed: set[WatchKey] = set()
        self._failing: set[str] = set()

    def answered(self, request: aiohttp.ClientRequest, status: int, said: str) -> None:
        path, is_watch = request.url.path, request.url.query.get("watch") == "true"
        verb = "watch" if is_watch else "list"
        self._metrics.api_requests_total.labels(verb, str(status)).inc()
        key = self._clock.key_of_path(path)
        if key is not None and status in REFUSED and self._sight.is_bearable(*key):
            self._sight.refused(*key, said)
            self._clock.refused(key)
            return
        if status != 200:
            if path not in self._failing:
                logger.warning("cannot %s %s, trying again and again: %s", verb, path, said)
            self._failing.add(path)
            return
        if path in self._failing:
            logger.info("can %s %s again", verb, path)
            self._failing.discard(path)
        if key is None:
            return
        self._metrics.watch_requests_total.labels(key[0], verb).inc()
        is_repeated = not is_watch and key in self._listed
        if is_watch:
            self._clock.began(key)
        else:
            self._listed.add(key)
        if is_repeated or not self._sight.sees(*key):
            self._resync.gap_seen()


def watch_session(
    client: ApiClient, clock: WatchClock, resync: Resync, sight: Sight, metrics: OperatorMetrics
) -> kopf.AiohttpSession:
    """The session that Kopf calls the API server with: signed, counted, and listened to."""
    ear = _Ear(clock, resync, sight, metrics)

    async def listen(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        await client.update_params_for_auth(
            request.headers, [], ["BearerToken"], request.url.path, request.method, None
        )
        try:
            response = await handler(request)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            ear.answered(request, 0, str(error) or type(error).__name__)
            raise
        ear.answered(request, response.status, f"HTTP {response.status}")
        return response

    connector = aiohttp.TCPConnector(limit=0, ssl=client.rest_client.ssl_context)
    session = aiohttp.ClientSession(
        connector=connector, trust_env=False, middlewares=(listen,), read_bufsize=1 << 20
    )
    return kopf.AiohttpSession(server=client.configuration.host, aiohttp_session=session)
