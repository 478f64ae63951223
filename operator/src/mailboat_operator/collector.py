"""Asks every broker for its numbers, and keeps what they said with an hour of history.

While a broker does not answer, the kubelet's count of its volume is looked up instead (where the
operator may read the nodes' statistics); an old answer stays visible with its time, so that the
planner can call it unknown rather than fine.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mailboat_operator.broker_api import (
    BrokerApi,
    BrokerApiError,
    BrokerRefusedError,
    StrangerError,
    http_url,
)
from mailboat_operator.cache import ObjectCache
from mailboat_operator.identity import expected_broker
from mailboat_operator.kinds import POD, ResourceKey, owner_of
from mailboat_operator.kubelet_api import KubeletApi, KubeletApiError, KubeletRefusedError
from mailboat_operator.planner.fitness import SERVING, unregistered
from mailboat_operator.planner.pods import is_starting
from mailboat_operator.planner.replica_groups import is_replica
from mailboat_operator.planner.snapshot import (
    ConfigRefusal,
    Manifest,
    Observation,
    UseSample,
    VolumeNumbers,
)
from mailboat_operator.resources.labels import BROKER_LABEL

logger = logging.getLogger(__name__)

PodKey = tuple[str, str]
"""Namespace and name."""

HISTORY_S = 3600.0
_FINE_HISTORY_S = 600.0
_COARSE_STEP_S = 60.0
_AT_ONCE = 16
_NOTABLE_PART = 0.01
_STEP_PERCENT = 5
_AGAIN_S = 1.0
_LONGEST_WAIT_S = 60
"""So long a broker lets a request wait for its disk."""

_UNSETTLED_EVERY_S = 15.0
"""How often at least a broker is asked that is not yet as it should be."""

_JOINING_EVERY_S = 2.0
"""How often at least a replica is asked that neither leads nor follows: a group may wait for it."""

_KUBELET_REFUSED_S = 300.0
_VOLUME_NAME = "data"


@dataclass(slots=True)
class _Watched:
    """One broker pod that is asked."""

    observation: Observation
    task: asyncio.Task[None] | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the pod was asked, whether it answered or not."""

    told: tuple[Any, ...] = ()
    """What was notable when the owner was last marked."""

    start: tuple[Any, ...] | None = None
    """How far the broker's start was when it last said so."""


class Collector:
    """One task per broker pod, a bounded number of calls at once."""

    def __init__(
        self,
        kubelets: KubeletApi | None,
        brokers: BrokerApi,
        cache: ObjectCache,
        mark: Callable[[ResourceKey], None],
        *,
        every_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`mark` is told the Broker whose numbers moved; without `kubelets` none is asked."""
        self._kubelets = kubelets
        self._brokers = brokers
        self._cache = cache
        self._mark = mark
        self._every_s = every_s
        self._kubelet_refused_until_s = -math.inf
        self._monotonic = monotonic
        self._pods: dict[PodKey, _Watched] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)

    def observations(self, namespace: str, pods: Mapping[str, Manifest]) -> dict[str, Observation]:
        """What the named pods last said, by name."""
        known = ((name, self._pods.get((namespace, name))) for name in pods)
        return {name: watched.observation for name, watched in known if watched is not None}

    def pod_changed(self, pod: Manifest) -> None:
        """Begin to ask a broker's pod, or ask it at once because it has changed."""
        if BROKER_LABEL not in (pod["metadata"].get("labels") or {}):
            return
        key, uid = _pod_key(pod), str(pod["metadata"].get("uid"))
        watched = self._pods.get(key)
        if watched is None:
            watched = self._pods[key] = _Watched(_nothing_known(uid))
            watched.task = asyncio.create_task(self._ask_for_ever(key), name=f"collect {key}")
        elif watched.observation.pod_uid != uid:
            # Another pod on the same volume: its answers are new, the volume's history goes on.
            samples = watched.observation.samples
            watched.observation = replace(_nothing_known(uid), samples=samples)
            watched.start = None
        watched.wake.set()

    def pod_gone(self, pod: Manifest) -> None:
        """Ask no more once the resource is gone too; a pod that only restarts keeps its history."""
        watched = self._pods.get(_pod_key(pod))
        if watched is not None and watched.observation.pod_uid == pod["metadata"].get("uid"):
            watched.wake.set()

    def note_config(self, namespace: str, pod: str, values: Mapping[str, str]) -> None:
        """Take in what a broker answered to a change of its settings."""
        watched = self._pods.get((namespace, pod))
        if watched is not None:
            watched.observation = replace(
                watched.observation, config=dict(values), is_retention_older=True
            )
            watched.wake.set()

    def note_refusal(
        self, namespace: str, pod: str, values: Mapping[str, str], sentence: str
    ) -> None:
        """Take in that a broker refused a change of its settings, in place of older refusals."""
        watched = self._pods.get((namespace, pod))
        if watched is None:
            return
        refusal = ConfigRefusal(dict(values), sentence, self._monotonic())
        before = watched.observation.config_refusals
        others = [item for item in before if not item.values.keys() & values.keys()]
        watched.observation = replace(watched.observation, config_refusals=(*others, refusal))

    async def first_round(self, timeout_s: float) -> None:
        """Wait until every known pod was asked once, but no longer than it is worth.

        A new leader that plans without numbers would call them unknown, and a moment later known.
        """
        waiting = [asyncio.create_task(watched.asked.wait()) for watched in self._pods.values()]
        try:
            if waiting:
                await asyncio.wait(waiting, timeout=timeout_s)
        finally:
            for task in waiting:
                task.cancel()

    async def close(self) -> None:
        """End all tasks."""
        tasks = [watched.task for watched in self._pods.values() if watched.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pods.clear()

    async def _ask_for_ever(self, key: PodKey) -> None:
        watched = self._pods[key]
        missing_since_s: float | None = None
        while True:
            watched.wake.clear()
            pod = self._cache.get(POD.kind, *key)
            if pod is None:
                missing_since_s = missing_since_s or self._monotonic()
                if self._monotonic() - missing_since_s > HISTORY_S:
                    del self._pods[key]
                    return
            else:
                missing_since_s = None
                async with self._places:
                    try:
                        await self._ask(pod, watched)
                    except Exception:
                        # Whatever one round meets, the next one may not.
                        logger.exception("asking %s failed", "/".join(key))
            watched.asked.set()
            await self._pause(pod, watched)

    async def _pause(self, pod: Manifest | None, watched: _Watched) -> None:
        """Wait for the next turn, for a change of the pod, or for a disk that fills fast.

        It never asks twice a second.
        """
        every_s = self._every_s * random.uniform(0.9, 1.1)
        if _is_joining(watched.observation):
            every_s = min(every_s, _JOINING_EVERY_S)
        elif not _is_settled(watched.observation):
            every_s = min(every_s, _UNSETTLED_EVERY_S)
        shortest_s = min(1.0, every_s)
        await asyncio.sleep(shortest_s)
        waiting: list[asyncio.Task[Any]] = [asyncio.create_task(watched.wake.wait())]
        if pod is not None:
            waiting.append(asyncio.create_task(self._wait_for_disk(pod, watched, every_s)))
        try:
            await asyncio.wait(
                waiting, timeout=every_s - shortest_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _wait_for_disk(self, pod: Manifest, watched: _Watched, every_s: float) -> None:
        """Return when the disk's pressure has moved a notable step since the last numbers."""
        url = http_url(pod)
        percent = (watched.observation.retention or {}).get("pressure_percent")
        if url is not None and percent is not None and watched.observation.error is None:
            wait_s = min(int(every_s) + 1, _LONGEST_WAIT_S)
            try:
                while True:
                    if await self._brokers.pressure_moved(
                        url, from_percent=percent, by_percent=_STEP_PERCENT, timeout_s=wait_s
                    ):
                        return
                    # Also where a broker answers sooner than it was asked to.
                    await asyncio.sleep(_AGAIN_S)
            except (BrokerApiError, BrokerRefusedError) as error:
                logger.debug("the disk of %s is not waited for: %s", _pod_key(pod), error)
        await asyncio.Event().wait()

    async def _ask(self, pod: Manifest, watched: _Watched) -> None:
        """Ask one pod, keep the answer, and mark its Broker if there is something to see."""
        before = watched.observation
        url = http_url(pod)
        try:
            if url is None:
                raise BrokerApiError("the pod has no address yet")
            broker = await self._brokers.broker(url, expected_broker(self._cache, *_pod_key(pod)))
            config = await self._brokers.config(url)
            retention = await self._brokers.retention(url)
            replica = await self._brokers.replica(url) if is_replica(pod) else None
        except (BrokerApiError, BrokerRefusedError) as error:
            await self._ask_start(pod, url, watched)
            kubelet = await self._ask_kubelet(pod)
            since_s = watched.observation.silent_since_monotonic_s
            after = replace(
                watched.observation,
                error=str(error),
                kubelet=kubelet,
                silent_since_monotonic_s=self._monotonic() if since_s is None else since_s,
                stranger=error.name if isinstance(error, StrangerError) else None,
            )
        else:
            now_s = self._monotonic()
            after = replace(
                watched.observation,
                seen_monotonic_s=now_s,
                error=None,
                broker=broker,
                config=config,
                retention=retention,
                replica=replica,
                is_retention_older=False,
                kubelet=None,
                samples=_with_sample(before.samples, _sample(now_s, retention)),
                silent_since_monotonic_s=None,
                stranger=None,
                start_moved_monotonic_s=None,
            )
        if watched.observation.pod_uid != pod["metadata"].get("uid"):
            return  # The pod was replaced while it was asked: the answer is another one's.
        if bool(before.error) != bool(after.error) and after.error:
            logger.info("broker %s does not answer: %s", "/".join(_pod_key(pod)), after.error)
        watched.observation = after
        self._tell(pod, watched)

    async def _ask_start(self, pod: Manifest, url: str | None, watched: _Watched) -> None:
        """Note when the start of a broker that does not serve yet was last seen to get on."""
        if url is None or not is_starting(pod):
            return
        try:
            said = await self._brokers.startup(url)
        except (BrokerApiError, BrokerRefusedError) as error:
            logger.debug("%s does not say how far its start is: %s", _pod_key(pod), error)
            return
        position = said.get("recovered_physical_offset")
        start = (said.get("phase"), position)
        if position is None or start == watched.start:
            return  # An older broker, which does not say; or nothing has moved.
        watched.start = start
        watched.observation = replace(
            watched.observation, start_moved_monotonic_s=self._monotonic()
        )

    def _tell(self, pod: Manifest, watched: _Watched) -> None:
        notable = _notable(watched.observation, watched.told)
        owner = owner_of(pod)
        if notable != watched.told and owner is not None:
            watched.told = notable
            self._mark(owner)

    async def _ask_kubelet(self, pod: Manifest) -> VolumeNumbers | None:
        node_address = (pod.get("status") or {}).get("hostIP")
        if self._kubelets is None or not node_address:
            return None
        if self._monotonic() < self._kubelet_refused_until_s:
            return None
        try:
            summary = await self._kubelets.summary(node_address)
        except KubeletRefusedError as error:
            self._kubelet_refused_until_s = self._monotonic() + _KUBELET_REFUSED_S
            logger.info("the kubelets are not asked for a while, only brokers are: %s", error)
            return None
        except KubeletApiError as error:
            logger.debug("the kubelet has no numbers: %s", error)
            return None
        try:
            return kubelet_numbers(summary, *_pod_key(pod))
        except (AttributeError, TypeError, ValueError) as error:
            logger.info("the kubelet at %s has no numbers as agreed: %r", node_address, error)
            return None


def kubelet_numbers(summary: Manifest, namespace: str, pod: str) -> VolumeNumbers | None:
    """A pod's data volume in a kubelet's /stats/summary; None if it is not there."""
    for entry in summary.get("pods") or []:
        reference = entry.get("podRef") or {}
        if (reference.get("namespace"), reference.get("name")) != (namespace, pod):
            continue
        for volume in entry.get("volume") or []:
            if volume.get("name") == _VOLUME_NAME and "capacityBytes" in volume:
                return VolumeNumbers(
                    capacity_bytes=int(volume["capacityBytes"]),
                    used_bytes=int(volume.get("usedBytes", 0)),
                    available_bytes=int(volume.get("availableBytes", 0)),
                    source="kubelet",
                )
    return None


def _pod_key(pod: Manifest) -> PodKey:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def _is_settled(observation: Observation) -> bool:
    """Whether a broker answers, serves, and is registered everywhere."""
    broker = observation.broker
    if broker is None or observation.error is not None:
        return False
    return broker.get("phase") == SERVING and not unregistered(broker)


def _is_joining(observation: Observation) -> bool:
    """Whether a replica neither leads nor follows."""
    replica = observation.replica
    return replica is not None and replica.get("role") not in ("master", "slave")


def _nothing_known(uid: str) -> Observation:
    return Observation(
        pod_uid=uid,
        seen_monotonic_s=None,
        error=None,
        broker=None,
        config=None,
        retention=None,
        kubelet=None,
        samples=(),
    )


def _sample(now_s: float, retention: Manifest) -> UseSample | None:
    volume = retention.get("volume")
    if not volume:
        return None
    return UseSample(now_s, int(volume["used_bytes"]), int(retention["max_physical_offset"]))


def _with_sample(samples: tuple[UseSample, ...], sample: UseSample | None) -> tuple[UseSample, ...]:
    """The history with one more point: all of the last ten minutes, older ones a minute apart."""
    if sample is None:
        return samples
    if samples and sample.written_bytes < samples[-1].written_bytes:
        return (sample,)  # The log only grows: this is another volume.
    kept: list[UseSample] = []
    for old in samples:
        age_s = sample.monotonic_s - old.monotonic_s
        if age_s > HISTORY_S:
            continue
        is_fine = age_s <= _FINE_HISTORY_S
        if is_fine or not kept or old.monotonic_s - kept[-1].monotonic_s >= _COARSE_STEP_S:
            kept.append(old)
    return (*kept, sample)


def _notable(observation: Observation, told: tuple[Any, ...]) -> tuple[Any, ...]:
    """What of an observation is worth a new plan; equal to `told` if nothing is."""
    retention = observation.retention or {}
    volume = retention.get("volume") or {}
    used, capacity = int(volume.get("used_bytes", 0)), int(volume.get("capacity_bytes", 0))
    # The first member is the number itself; it only moves once it moved by a notable part.
    told_used = told[0] if told else -1
    is_near = told_used >= 0 and abs(used - told_used) < max(1, capacity * _NOTABLE_PART)
    broker = observation.broker or {}
    kubelet = observation.kubelet
    return (
        told_used if is_near else used,
        observation.pod_uid,
        observation.error is None,
        observation.stranger,
        kubelet.used_percent if kubelet is not None else None,
        observation.config,
        broker.get("version"),
        broker.get("phase"),
        tuple(
            (server.get("address"), server.get("registered"), server.get("held_by"))
            for server in broker.get("name_servers") or []
        ),
        volume.get("used_percent"),
        capacity,
        volume.get("inodes_total"),
        *(retention.get(name) for name in ("thresholds", "active", "refusal", "retention")),
        bool(retention.get("unconsumed_deleted")),
        _notable_replica(observation.replica),
    )


def _notable_replica(replica: Manifest | None) -> tuple[Any, ...]:
    """What of a replica is worth a new plan: not how far its log goes."""
    if replica is None:
        return ()
    lags = tuple(int(peer.get("lag_bytes") or 0) >> 20 for peer in replica.get("peers") or ())
    names = (
        "store_id",
        "role",
        "epoch",
        "alarm",
        "write_trouble",
        "diverged_bytes",
        "lease",
        "keeps_all",
    )
    return (*(replica.get(name) for name in names), bool(replica.get("end")), lags)
