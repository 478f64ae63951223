"""One operator process from start to end: standby, leader, and the orderly way out."""

import asyncio
import logging
import signal
import time
import uuid
from collections.abc import Collection, Coroutine
from typing import Any

import kopf
from kubernetes.aio.client import ApiClient

from mailboat.errors import MailboatError
from mailboat_operator.apply import Applier
from mailboat_operator.broker_api import BrokerApi
from mailboat_operator.cache import ObjectCache
from mailboat_operator.collector import Collector
from mailboat_operator.controller import Controller
from mailboat_operator.events import EventPoster
from mailboat_operator.health import Health, LoopLag
from mailboat_operator.http_server import HttpServer
from mailboat_operator.kinds import CUSTOM_KINDS, GROUP, watched_kinds
from mailboat_operator.kube_api import (
    KubeApi,
    KubeApiError,
    KubeUnreachableError,
    NotFoundError,
    load_configuration,
)
from mailboat_operator.kubelet_api import KubeletApi
from mailboat_operator.leader import KubeLeaseApi, LeaderElector, LeaseLostError
from mailboat_operator.metrics import OperatorMetrics
from mailboat_operator.planner.snapshot import fresh_for_s
from mailboat_operator.pod_access import PodAccess
from mailboat_operator.reconciler import Planners, Reconciler
from mailboat_operator.settings import OperatorSettings
from mailboat_operator.sight import Sight
from mailboat_operator.watch import (
    ChangeHub,
    Resync,
    WatchClock,
    kopf_registry,
    kopf_settings,
    watch_session,
)
from mailboat_operator.work_queue import WorkQueue

logger = logging.getLogger(__name__)

FINISH_S = 4.0
"""How long the actions that are under way may take to end after SIGTERM."""

_KOPF_END_S = 2.0
_AGAIN_S = 5.0
_FIRST_NUMBERS_S = 2.0


class TaskEndedError(MailboatError):
    """A task that must never end has ended."""


class Runtime:
    """Holds the parts of one process together."""

    def __init__(self, settings: OperatorSettings, planners: Planners, client: ApiClient) -> None:
        """Nothing runs before `run`."""
        self._settings = settings
        self._client = client
        self._stop = asyncio.Event()
        self._metrics = OperatorMetrics()
        self._api = KubeApi(
            client,
            self._metrics,
            timeout_s=settings.request_timeout_seconds,
            check_may_write=lambda: self._elector.check_may_write(),
        )
        # The suffix tells two processes of one name apart: neither takes the other's Lease for its.
        self._elector = LeaderElector(
            KubeLeaseApi(self._api, settings.pod_namespace, settings.lease_name),
            f"{settings.pod_name}_{uuid.uuid4().hex[:8]}",
        )
        self._lag = LoopLag()
        self._health = Health(self._elector, self._lag, deaf_s=settings.deaf_seconds)
        self._server = HttpServer(self._health, self._metrics, self._refresh_gauges)
        self._queue = WorkQueue()
        self._cache = ObjectCache()
        self._sight = Sight()
        access = PodAccess(self._api.get, self._cache)
        self._brokers = BrokerApi(
            self._metrics, token_file=settings.broker_token_file, access=access.of
        )
        self._kubelets = _kubelets(settings, client)
        self._collector = Collector(
            self._kubelets,
            self._brokers,
            self._cache,
            self._queue.add,
            every_s=settings.collect_seconds,
        )
        self._applier = Applier(
            self._api,
            self._cache,
            self._brokers,
            EventPoster(self._api, self._metrics, settings.pod_name),
            self._metrics,
            note_config=self._collector.note_config,
            note_refusal=self._collector.note_refusal,
        )
        self._reconciler = Reconciler(
            self._cache,
            self._applier,
            self._brokers,
            self._collector,
            planners,
            self._metrics,
            self._sight,
            default_image=settings.image,
            reads_storage_classes=settings.is_cluster_wide,
            fresh_s=fresh_for_s(settings.collect_seconds),
            http_peers=settings.all_http_peers(),
        )
        self._controller = Controller(
            self._queue, self._reconciler.reconcile, self._metrics, workers=settings.workers
        )
        self._background: dict[asyncio.Task[Any], str] = {}
        self._kopf_tasks: Collection[asyncio.Task[Any]] = ()
        self._stop_kopf = asyncio.Event()
        self._serve_gauges()

    async def run(self) -> int:
        """Run until SIGTERM or until something breaks; returns the exit code."""
        self._take_signals()
        await self._server.start(self._settings.http_host, self._settings.http_port)
        self._start("loop lag", self._lag.run())
        try:
            is_leader = await self._before_stop("election", self._elector.acquire())
            if is_leader:
                await self._lead()
            return 0
        except (LeaseLostError, TaskEndedError) as error:
            logger.error("exiting: %s", error)
            return 1
        finally:
            await self._end()

    async def _lead(self) -> None:
        """Watch and work as the holder of the Lease, until SIGTERM."""
        self._start("lease", self._elector.hold())
        kinds = watched_kinds(self._settings.is_cluster_wide)
        namespaces = self._settings.namespaces
        if not await self._before_stop("definitions", self._wait_for_definitions()):
            return
        clock = WatchClock(kinds, namespaces)
        hub = ChangeHub(
            self._cache,
            self._queue.add,
            pod_changed=self._collector.pod_changed,
            pod_gone=self._collector.pod_gone,
        )
        resync = Resync(
            self._api, hub, self._sight, kinds, namespaces, self._settings.resync_seconds
        )
        self._metrics.serve(
            "watch_last_event_timestamp_seconds",
            "When each watch last showed a sign of life.",
            ["kind"],
            clock.last_heard,
        )
        self._health.leads(clock, self._queue)
        if not await self._before_stop("first lists", self._list_all(resync)):
            return
        await self._start_kopf(hub, clock, resync)
        numbers = self._collector.first_round(_FIRST_NUMBERS_S)
        if not await self._before_stop("first numbers", numbers):
            return
        if not await self._before_stop("first watches", _waited(clock.is_complete)):
            return
        self._health.synced()
        self._start("resync", resync.run())
        workers = self._start("workers", self._controller.run())
        logger.info("leading; serving %s", ", ".join(namespaces) or "all namespaces")
        await self._before_stop("stop", _waited(asyncio.Event()))
        await self._finish(workers)

    async def _finish(self, workers: asyncio.Task[None]) -> None:
        """Take no more keys and let what was begun end; only then may the Lease be given back."""
        self._background.pop(workers)
        self._queue.close()
        self._applier.stop()
        done, _ = await asyncio.wait([workers], timeout=FINISH_S)
        if not done:
            logger.warning("an action did not end in %g s; its outcome is unknown", FINISH_S)
            workers.cancel()
        await asyncio.gather(workers, return_exceptions=True)

    async def _wait_for_definitions(self) -> None:
        """Wait until the API server knows our kinds: an empty cluster is no reason to crash."""
        wanted = {kind.plural for kind in CUSTOM_KINDS}
        is_told = False
        while True:
            try:
                found = await self._api.get_path(f"/apis/{GROUP}/v1alpha1")
                wanted -= {resource["name"] for resource in found.get("resources") or []}
            except NotFoundError:
                pass
            except (KubeApiError, KubeUnreachableError) as error:
                logger.warning("cannot look for the custom resources' definitions: %s", error)
            if not wanted:
                return
            if not is_told:
                logger.warning(
                    "waiting for the definitions of %s (chart mailboat-crds)",
                    ", ".join(f"{plural}.{GROUP}" for plural in sorted(wanted)),
                )
                self._health.waits("the custom resources' definitions")
                is_told = True
            await asyncio.sleep(_AGAIN_S)

    async def _list_all(self, resync: Resync) -> None:
        while True:
            try:
                await resync.run_once()
                return
            except (KubeApiError, KubeUnreachableError) as error:
                logger.warning("cannot list everything, trying again: %s", error)
                await asyncio.sleep(_AGAIN_S)

    async def _start_kopf(self, hub: ChangeHub, clock: WatchClock, resync: Resync) -> None:
        kinds = watched_kinds(self._settings.is_cluster_wide)
        registry = kopf_registry(
            hub,
            clock,
            kinds,
            lambda: watch_session(self._client, clock, resync, self._sight, self._metrics),
        )
        self._kopf_tasks = await kopf.spawn_tasks(
            registry=registry,
            settings=kopf_settings(self._settings),
            standalone=True,
            clusterwide=self._settings.is_cluster_wide,
            namespaces=self._settings.namespaces,
            stop_flag=self._stop_kopf,
        )
        # Kopf has put its own signal handlers in place of ours.
        self._take_signals()
        for task in self._kopf_tasks:
            self._background[task] = f"kopf: {task.get_name()}"

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something that must not end while the process lives."""
        task = asyncio.create_task(work)
        self._background[task] = name
        return task

    async def _before_stop(self, name: str, work: Coroutine[Any, Any, None]) -> bool:
        """Wait for some work; False if SIGTERM came first.

        Raises:
            TaskEndedError, LeaseLostError: something that must not end has ended.
        """
        stop = asyncio.create_task(self._stop.wait())
        task = asyncio.create_task(work)
        try:
            await asyncio.wait([task, stop, *self._background], return_when=asyncio.FIRST_COMPLETED)
            self._check_background()
            if task.done():
                task.result()
                return not self._stop.is_set()
            logger.info("stopping (%s)", name)
            return False
        finally:
            for waiting in (task, stop):
                waiting.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    def _check_background(self) -> None:
        for task, name in self._background.items():
            if not task.done():
                continue
            self._health.task_died(name)
            error = None if task.cancelled() else task.exception()
            if isinstance(error, LeaseLostError):
                raise error
            raise TaskEndedError(f"the task `{name}` has ended: {error!r}") from error

    async def _end(self) -> None:
        """Stop everything; the Lease goes only after the last write."""
        self._queue.close()
        self._applier.stop()
        ours = [task for task in self._background if task not in self._kopf_tasks]
        for task in ours:
            task.cancel()
        await asyncio.gather(*ours, return_exceptions=True)
        if self._applier.was_cut_off:
            # What was sent may still come about, and nobody else must write before it has.
            logger.warning("the Lease is not released and runs out by itself: an action was cut")
        else:
            await self._elector.release()
        await self._collector.close()
        await self._brokers.close()
        if self._kubelets is not None:
            await self._kubelets.close()
        await self._server.close()
        if self._kopf_tasks:
            await self._end_kopf()

    async def _end_kopf(self) -> None:
        """Let Kopf close its connections; nothing is lost if it does not manage in time."""
        self._stop_kopf.set()
        ending = asyncio.create_task(kopf.run_tasks(self._kopf_tasks, ignored=asyncio.all_tasks()))
        await asyncio.wait([ending], timeout=_KOPF_END_S)
        ending.cancel()
        await asyncio.wait([ending], timeout=_KOPF_END_S / 2)
        if ending.done() and not ending.cancelled() and ending.exception() is not None:
            logger.info("Kopf ended with %r", ending.exception())

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)

    def _refresh_gauges(self) -> None:
        self._metrics.leader.set(1 if self._elector.is_leader else 0)
        self._metrics.queue_depth.set(self._queue.depth)
        self._metrics.loop_lag.set(self._lag.seconds)

    def _serve_gauges(self) -> None:
        self._metrics.serve(
            "lists_refused",
            "1 for each kind that may not be read in a namespace; that one is not served.",
            ["kind", "namespace"],
            self._sight.refusals,
        )

        # The queue knows monotonic times; what is shown is wall time, as Prometheus compares it.
        def in_progress() -> list[tuple[tuple[str, ...], float]]:
            ahead_s = time.time() - time.monotonic()
            return [
                ((key.kind, key.namespace, key.name), began_s + ahead_s)
                for key, began_s in self._queue.in_progress.items()
            ]

        self._metrics.serve(
            "reconcile_in_progress_start_time_seconds",
            "When the work on a resource began that has not ended yet.",
            ["kind", "namespace", "name"],
            in_progress,
        )
        self._metrics.serve(
            "resources",
            "Custom resources known.",
            ["kind"],
            lambda: [((kind.kind,), float(self._cache.count(kind.kind))) for kind in CUSTOM_KINDS],
        )


def _kubelets(settings: OperatorSettings, client: ApiClient) -> KubeletApi | None:
    """Return the way to the kubelets; None where they are not to be asked."""
    if not settings.is_cluster_wide or not settings.kubelet_stats:
        return None
    return KubeletApi(
        client,
        timeout_s=settings.request_timeout_seconds,
        ca_file=settings.kubelet_ca,
        is_verified=settings.kubelet_verify,
    )


async def run_operator(settings: OperatorSettings, planners: Planners) -> int:
    """Run one operator process; returns its exit code."""
    async with ApiClient(await load_configuration()) as client:
        return await Runtime(settings, planners, client).run()


async def _waited(event: asyncio.Event) -> None:
    await event.wait()
