"""Carries out the actions of a plan, one call each, guarded so that a repeat does no harm."""

import asyncio
import base64
import contextlib
import copy
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping

from mailboat.errors import MailboatError
from mailboat.replication.lease_manifest import MIN_IN_SYNC
from mailboat_operator.broker_api import BrokerApi, BrokerRefusedError, http_url
from mailboat_operator.cache import ObjectCache
from mailboat_operator.crds.quantity import format_quantity
from mailboat_operator.declarations import copy_declarations
from mailboat_operator.events import EventPoster
from mailboat_operator.identity import expected_broker
from mailboat_operator.kinds import (
    BY_NAME,
    CERTIFICATE,
    CLAIM,
    LEASE,
    POD,
    SECRET,
    Kind,
    ResourceKey,
    key_of,
)
from mailboat_operator.kube_api import ConflictError, KubeApi, KubeApiError, NotFoundError
from mailboat_operator.metrics import OperatorMetrics
from mailboat_operator.planner.actions import (
    Action,
    Apply,
    ConfigureBroker,
    CopyDeclarations,
    Create,
    CreateSecret,
    Delete,
    DeleteTopic,
    Evict,
    HandOver,
    Notify,
    Patch,
    PutSecret,
    PutTopic,
    ResizeClaim,
    SetFinalizers,
    SetLeaseMinimum,
    Step,
    TakeUpLease,
)
from mailboat_operator.planner.children import controller_of, foreign
from mailboat_operator.planner.snapshot import LiveCertificate, Manifest

logger = logging.getLogger(__name__)

_INVALID = 422
_LEASE_TRIES = 5
_SECRET_BYTES = 32
_AUTOGROW_RESULTS = {"VolumeGrowing": "grown", "VolumeGrowthRefused": "refused"}


class StaleError(MailboatError):
    """The object is not the one that the plan saw; plan again."""

    retriable = True


class NameTakenError(MailboatError):
    """An object of that name belongs to somebody else; it is left as it is."""

    def __init__(self, reason: str, live: Manifest) -> None:
        """Say whose it is; `live` is the object as it was read."""
        super().__init__(reason)
        self.live = live


class StoppingError(MailboatError):
    """The process is stopping: no further action is begun."""

    retriable = True


class Applier:
    """Carries out steps for custom resources."""

    def __init__(
        self,
        api: KubeApi,
        cache: ObjectCache,
        brokers: BrokerApi,
        events: EventPoster,
        metrics: OperatorMetrics,
        *,
        note_config: Callable[[str, str, Mapping[str, str]], None] = lambda *_: None,
        note_refusal: Callable[[str, str, Mapping[str, str], str], None] = lambda *_: None,
    ) -> None:
        """Begin with nothing under way.

        `note_config(namespace, pod, values)` is told what a broker answered to a change, and
        `note_refusal(namespace, pod, values, sentence)` what it would not take, and why.
        """
        self._api = api
        self._cache = cache
        self._brokers = brokers
        self._events = events
        self._metrics = metrics
        self._note_config = note_config
        self._note_refusal = note_refusal
        self._is_stopping = False
        self._was_cut_off = False

    def stop(self) -> None:
        """Begin no further action; the one that is under way ends by itself."""
        self._is_stopping = True

    @property
    def was_cut_off(self) -> bool:
        """Whether an action was given up before its outcome was known: it may still come about."""
        return self._was_cut_off

    @contextlib.contextmanager
    def _acting(self, what: object) -> Iterator[None]:
        """Guard one action: none is begun after `stop`, and one that is given up is noted."""
        if self._is_stopping:
            raise StoppingError(f"stopped before {what}")
        try:
            yield
        except asyncio.CancelledError:
            self._was_cut_off = True
            raise

    async def run(self, resource: Manifest, step: Step) -> bool:
        """Carry out the actions of one step in order; the first failure ends it.

        Returns:
            Whether anything changed that the next plan should see at once. The watch does not tell
            of it: the cache has the answer already.
        """
        has_changed = False
        for action in step.actions:
            with self._acting(f"{type(action).__name__} for {key_of(resource)}"):
                has_changed |= await self._act(resource, step, action)
        return has_changed

    async def write_status(self, resource: Manifest, status: Manifest) -> bool:
        """Write the status if it differs from the resource's; says whether it was written."""
        if (resource.get("status") or {}) == status:
            return False
        metadata = resource["metadata"]
        with self._acting(f"the status of {key_of(resource)} was written"):
            answer = await self._api.put_status(
                BY_NAME[resource["kind"]],
                metadata["namespace"],
                metadata["name"],
                status,
                metadata["resourceVersion"],
            )
        self._cache.update(answer)
        return True

    async def stranger(self, resource: Manifest, kind: str, name: str) -> Manifest | None:
        """Read an object that has a child's name; None unless it belongs to somebody else."""
        metadata = resource["metadata"]
        try:
            live = await self._api.get(BY_NAME[kind], metadata["namespace"], name)
        except NotFoundError:
            return None
        return live if foreign(live, str(metadata.get("uid"))) is not None else None

    async def label_claim(self, namespace: str, name: str, labels: Mapping[str, str]) -> None:
        """Give a claim our labels, by which it is found; one that is gone by now needs none."""
        patch = {"metadata": {"labels": dict(labels)}}
        try:
            with self._acting(f"claim {namespace}/{name} was labelled"):
                answer = await self._api.merge_patch(CLAIM, namespace, name, patch)
        except NotFoundError:
            return
        logger.info("labelled claim %s/%s, which was not made by us", namespace, name)
        self._cache.update(answer)

    async def is_gone(self, key: ResourceKey) -> bool:
        """Ask the API server itself whether a resource is no more; the cache may be behind."""
        found, _ = await self._api.list(BY_NAME[key.kind], key.namespace, None)
        return all(manifest["metadata"]["name"] != key.name for manifest in found)

    async def remove_ownerless(self, key: ResourceKey, removals: Iterable[Delete]) -> None:
        """Delete what a resource that is gone has left behind.

        Raises:
            MailboatError: one could not be deleted; a later turn may.
        """
        for removal in removals:
            with self._acting(f"{removal.name} of {key} was removed"):
                await self._delete(key.namespace, removal, "ownerless")

    async def _act(self, resource: Manifest, step: Step, action: Action) -> bool:
        namespace = resource["metadata"]["namespace"]
        match action:
            case Apply():
                return await self._apply(resource, action, step.name)
            case Delete():
                await self._delete(namespace, action, step.name)
            case Evict():
                await self._evict(namespace, action, step.name)
            case Create():
                return await self._create(
                    resource, BY_NAME[action.manifest["kind"]], action.manifest
                )
            case CreateSecret():
                return await self._create_secret(resource, action)
            case PutSecret():
                return await self._put_secret(resource, action)
            case TakeUpLease():
                return await self._take_up_lease(namespace, action)
            case SetLeaseMinimum():
                return await self._set_lease_minimum(namespace, action)
            case HandOver():
                await self._hand_over(namespace, action)
            case Patch():
                await self._patch(namespace, action)
            case ResizeClaim():
                await self._resize(namespace, action)
            case ConfigureBroker():
                await self._configure(namespace, action)
            case PutTopic():
                await self._brokers.put_topic(
                    action.url,
                    action.topic,
                    read_queue_nums=action.read_queue_nums,
                    write_queue_nums=action.write_queue_nums,
                    perm=action.perm,
                    within_s=self._api.time_to_write_s(),
                )
                logger.info("%s: put topic %s at %s", key_of(resource), action.topic, action.url)
            case DeleteTopic():
                await self._brokers.delete_topic(
                    action.url,
                    action.topic,
                    incarnation=action.incarnation,
                    within_s=self._api.time_to_write_s(),
                )
                logger.info(
                    "%s: deleted topic %s at %s", key_of(resource), action.topic, action.url
                )
            case CopyDeclarations():
                await self._copy_declarations(namespace, action)
            case SetFinalizers():
                await self._set_finalizers(resource, action)
            case Notify():
                await self._notify(resource, action)
                return False
        return True

    async def _apply(self, resource: Manifest, action: Apply, step: str) -> bool:
        kind = BY_NAME[action.manifest["kind"]]
        namespace = resource["metadata"]["namespace"]
        name = action.manifest["metadata"]["name"]
        known = self._cache.get(kind.kind, namespace, name)
        if known is None or foreign(known, str(resource["metadata"].get("uid"))) is not None:
            # The cache only has what carries our labels, and it may be behind.
            await self._check_is_ours(resource, kind, name)
        try:
            answer = await self._apply_manifest(resource, kind, action.manifest)
        except KubeApiError as error:
            if error.status != _INVALID or (action.fallback or action.in_the_way) is None:
                raise
            logger.warning("%s: giving way: %s", key_of(resource), error)
            if action.in_the_way is not None:
                await self._delete(namespace, action.in_the_way, step)
                return True
            assert action.fallback is not None
            answer = await self._apply_manifest(resource, kind, action.fallback)
        logger.info("applied %s %s/%s", kind.kind, namespace, name)
        # What is not watched is read anew for each plan.
        return kind == CERTIFICATE or self._cache.update(answer)

    async def _apply_manifest(self, resource: Manifest, kind: Kind, manifest: Manifest) -> Manifest:
        metadata = {"namespace": resource["metadata"]["namespace"], **manifest["metadata"]}
        whole = {**manifest, "metadata": metadata}
        try:
            return await self._api.apply(kind, whole, force=False)
        except ConflictError as error:
            await self._check_is_ours(resource, kind, metadata["name"])
            # Somebody else set a field that is ours by right of the resource's spec.
            logger.warning("taking fields back from another manager: %s", error)
            return await self._api.apply(kind, whole, force=True)

    async def _check_is_ours(self, resource: Manifest, kind: Kind, name: str) -> None:
        live = await self.stranger(resource, kind.kind, name)
        if live is not None:
            raise NameTakenError(str(foreign(live, str(resource["metadata"].get("uid")))), live)

    async def _delete(self, namespace: str, action: Delete, step: str) -> None:
        kind = BY_NAME[action.kind]
        if not await self._is_still_there(kind, namespace, action):
            return
        try:
            answer = await self._api.delete(
                kind,
                namespace,
                action.name,
                uid=action.uid,
                resource_version=action.resource_version,
                propagation="Orphan" if action.orphan else "Background",
            )
        except NotFoundError:
            return
        logger.info("deleted %s %s/%s: %s", kind.kind, namespace, action.name, action.reason)
        if kind == POD:
            self._metrics.pod_restarts_total.labels(step).inc()
        if (answer.get("metadata") or {}).get("deletionTimestamp"):
            # It ends slowly, and this is what it looks like until then; else the watch will tell.
            self._cache.update(answer)

    async def _evict(self, namespace: str, action: Evict, step: str) -> None:
        try:
            await self._api.evict(namespace, action.name, uid=action.uid)
        except NotFoundError:
            return
        logger.info("evicted pod %s/%s: %s", namespace, action.name, action.reason)
        self._metrics.pod_restarts_total.labels(step).inc()

    async def _create(self, resource: Manifest, kind: Kind, manifest: Manifest) -> bool:
        """Make an object; says whether it was not there."""
        metadata = manifest["metadata"]
        try:
            answer = await self._api.create(kind, metadata["namespace"], manifest)
        except ConflictError:
            if kind != SECRET:
                await self._check_is_ours(resource, kind, metadata["name"])
            return False
        logger.info("created %s %s/%s", kind.kind, metadata["namespace"], metadata["name"])
        # A Secret is not kept: nothing here has a use for what it holds.
        return kind == SECRET or self._cache.update(answer)

    async def _create_secret(self, resource: Manifest, action: CreateSecret) -> bool:
        held = {action.key: secrets.token_hex(_SECRET_BYTES)}
        return await self._create(resource, SECRET, {**action.manifest, "stringData": held})

    async def secret(self, namespace: str, name: str) -> Manifest | None:
        """Read a Secret by its name; None if there is none. It is not kept."""
        try:
            return await self._api.get(SECRET, namespace, name)
        except NotFoundError:
            return None

    async def certificate(self, namespace: str, name: str) -> LiveCertificate:
        """Read a Certificate by its name, and whether this cluster knows of such at all."""
        try:
            return LiveCertificate(True, await self._api.get(CERTIFICATE, namespace, name))
        except NotFoundError:
            pass
        try:
            await self._api.get_path(f"/apis/{CERTIFICATE.api_version}")
        except NotFoundError:
            return LiveCertificate(False)
        return LiveCertificate(True)

    async def _put_secret(self, resource: Manifest, action: PutSecret) -> bool:
        metadata = action.manifest["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        data = {
            key: None if value is None else base64.b64encode(value.encode()).decode()
            for key, value in action.values.items()
        }
        try:
            await self._api.merge_patch(SECRET, namespace, name, {"data": data})
        except NotFoundError:
            kept = {key: value for key, value in data.items() if value is not None}
            if kept and not await self._create(resource, SECRET, {**action.manifest, "data": kept}):
                raise StaleError(f"Secret {namespace}/{name} was made meanwhile") from None
        logger.info("changed %s of Secret %s/%s", ", ".join(sorted(data)), namespace, name)
        return True

    async def _take_up_lease(self, namespace: str, action: TakeUpLease) -> bool:
        marks = action.manifest["metadata"]

        def mark(metadata: Manifest) -> None:
            owner = controller_of({"metadata": metadata})
            if owner is not None and owner.get("uid") == marks["ownerReferences"][0]["uid"]:
                return  # The watch will tell of it.
            if metadata.get("ownerReferences"):
                raise StaleError(f"Lease {namespace}/{marks['name']} belongs to somebody else")
            metadata["labels"] = {**(metadata.get("labels") or {}), **marks["labels"]}
            metadata["ownerReferences"] = marks["ownerReferences"]

        try:
            return await self._change_lease(namespace, marks["name"], mark)
        except NotFoundError:
            return False

    async def _set_lease_minimum(self, namespace: str, action: SetLeaseMinimum) -> bool:
        def set_minimum(metadata: Manifest) -> None:
            if metadata.get("uid") != action.uid:
                raise StaleError(f"Lease {namespace}/{action.name} is another object by now")
            metadata.setdefault("annotations", {})[MIN_IN_SYNC] = str(action.minimum)

        return await self._change_lease(namespace, action.name, set_minimum)

    async def _change_lease(
        self, namespace: str, name: str, change: Callable[[Manifest], None]
    ) -> bool:
        """Change metadata of the Lease as it is now: its leader writes it all the time."""
        for _ in range(_LEASE_TRIES):
            found = await self._api.get(LEASE, namespace, name)
            wanted = copy.deepcopy(found)
            change(wanted["metadata"])
            if wanted == found:
                return self._cache.update(found)
            with contextlib.suppress(ConflictError):
                answer = await self._api.replace(LEASE, namespace, wanted)
                logger.info("changed Lease %s/%s", namespace, name)
                return self._cache.update(answer)
        raise StaleError(f"Lease {namespace}/{name} changes too fast to be written")

    async def _hand_over(self, namespace: str, action: HandOver) -> None:
        url = await self._address_of(namespace, action.pod)
        for ordinal in action.ordinals:
            try:
                await self._brokers.hand_over(url, ordinal, within_s=self._api.time_to_write_s())
            except BrokerRefusedError:
                if ordinal == action.ordinals[-1]:
                    raise
            else:
                logger.info("%s/%s let replica %d lead", namespace, action.pod, ordinal)
                return

    async def _is_still_there(self, kind: Kind, namespace: str, action: Delete) -> bool:
        """Whether what the plan saw is what there is; the cache may be behind."""
        try:
            found = await self._api.get(kind, namespace, action.name)
        except NotFoundError:
            return False
        metadata = found["metadata"]
        if metadata.get("uid") != action.uid:
            self._cache.update(found)
            raise StaleError(f"{kind.kind} {namespace}/{action.name} is another object by now")
        expected = action.resource_version
        if expected is not None and metadata.get("resourceVersion") != expected:
            self._cache.update(found)
            raise StaleError(f"{kind.kind} {namespace}/{action.name} has changed meanwhile")
        return not metadata.get("deletionTimestamp")

    async def _patch(self, namespace: str, action: Patch) -> None:
        kind = BY_NAME[action.kind]
        guard = {"uid": action.uid, "resourceVersion": action.resource_version}
        metadata = {**action.changes.get("metadata", {}), **guard}
        changes = {**action.changes, "metadata": metadata}
        answer = await self._api.merge_patch(kind, namespace, action.name, changes)
        logger.info("patched %s %s/%s: %s", kind.kind, namespace, action.name, action.reason)
        self._cache.update(answer)

    async def _resize(self, namespace: str, action: ResizeClaim) -> None:
        size = format_quantity(action.size_bytes)
        patch = {
            "metadata": {"uid": action.uid, "resourceVersion": action.resource_version},
            "spec": {"resources": {"requests": {"storage": size}}},
        }
        result = "failed"
        try:
            answer = await self._api.merge_patch(CLAIM, namespace, action.name, patch)
            result = "asked"
        finally:
            self._metrics.volume_resize_total.labels(result).inc()
        logger.info("asked for %s of claim %s/%s", size, namespace, action.name)
        self._cache.update(answer)

    async def _configure(self, namespace: str, action: ConfigureBroker) -> None:
        result = "failed"
        try:
            url = await self._address_of(namespace, action.pod)
            values = await self._brokers.patch_config(
                url, action.values, within_s=self._api.time_to_write_s()
            )
            result = "applied"
        except BrokerRefusedError as error:
            self._note_refusal(namespace, action.pod, action.values, str(error))
            raise
        finally:
            self._metrics.config_live_updates_total.labels(result).inc()
        changed = ", ".join(f"{key}={value}" for key, value in sorted(action.values.items()))
        logger.info("configured %s/%s: %s", namespace, action.pod, changed)
        self._note_config(namespace, action.pod, values)

    async def _copy_declarations(self, namespace: str, action: CopyDeclarations) -> None:
        self._api.time_to_write_s()
        sources = [await self._address_of(namespace, pod) for pod in action.sources]
        target = await self._address_of(namespace, action.pod)
        made = await copy_declarations(self._api, self._brokers, sources, target)
        logger.info("copied to %s/%s: %s", namespace, action.pod, made)

    async def _address_of(self, namespace: str, name: str) -> str:
        """Return the base URL of a pod's broker, which is the one that answers there."""
        pod = self._cache.get(POD.kind, namespace, name)
        url = http_url(pod) if pod is not None else None
        if url is None:
            raise StaleError(f"pod {namespace}/{name} has no address to reach its broker at")
        await self._brokers.broker(url, expected_broker(self._cache, namespace, name))
        return url

    async def _set_finalizers(self, resource: Manifest, action: SetFinalizers) -> None:
        metadata = resource["metadata"]
        patch = {
            "metadata": {
                "uid": metadata.get("uid"),
                "resourceVersion": action.resource_version,
                "finalizers": list(action.finalizers),
            }
        }
        kind = BY_NAME[resource["kind"]]
        answer = await self._api.merge_patch(kind, metadata["namespace"], metadata["name"], patch)
        self._cache.update(answer)

    async def _notify(self, resource: Manifest, action: Notify) -> None:
        is_posted = await self._events.post(resource, action)
        result = _AUTOGROW_RESULTS.get(action.reason)
        if is_posted and result is not None:
            self._metrics.autogrow_total.labels(result).inc()
