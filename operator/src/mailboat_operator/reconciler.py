"""One turn for one custom resource: look, plan, act, report.

The plan is made by pure functions from a snapshot; each of its steps is carried out by itself, so
that one that fails never stops another. What went wrong is one log line and a later turn, and
what the API server refuses is told in the status and by an event.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from mailboat.errors import MailboatError
from mailboat_operator.apply import Applier, NameTakenError, StoppingError
from mailboat_operator.broker_api import (
    BrokerApi,
    BrokerApiError,
    BrokerRefusedError,
    http_url,
)
from mailboat_operator.cache import ObjectCache
from mailboat_operator.crds.broker import parse_broker
from mailboat_operator.crds.name_server import NameServer, parse_name_server
from mailboat_operator.crds.security import TlsSpec, is_authenticated
from mailboat_operator.crds.topic import parse_topic, topic_name_of
from mailboat_operator.crds.user import access_key_of, parse_user
from mailboat_operator.errors import InvalidResourceError
from mailboat_operator.identity import expected_broker
from mailboat_operator.kinds import (
    BROKER,
    CLAIM,
    CONFIG_MAP,
    DISRUPTION_BUDGET,
    ENDPOINT_SLICE,
    ENDPOINTS,
    LEASE,
    NAME_SERVER,
    NETWORK_POLICY,
    POD,
    ROLE,
    ROLE_BINDING,
    SERVICE,
    SERVICE_ACCOUNT,
    STATEFUL_SET,
    STORAGE_CLASS,
    TOPIC,
    USER,
    Kind,
    ResourceKey,
)
from mailboat_operator.kube_api import KubeApiError, KubeUnreachableError, NotFoundError
from mailboat_operator.leader import NotLeaderError
from mailboat_operator.metrics import OperatorMetrics
from mailboat_operator.planner import new_groups
from mailboat_operator.planner.actions import Notify, Plan, Step
from mailboat_operator.planner.broker_status import invalid_status
from mailboat_operator.planner.leases import serving_pods
from mailboat_operator.planner.snapshot import (
    FRESH_S,
    BrokerSnapshot,
    Children,
    LiveCertificate,
    Manifest,
    NameServerSnapshot,
    Observation,
    TopicSnapshot,
    UserSnapshot,
)
from mailboat_operator.planner.topic import is_same_topic, release
from mailboat_operator.planner.user import is_same_user
from mailboat_operator.refusals import Refusals
from mailboat_operator.resources.names import (
    VOLUME,
    broker_certificate_name,
    broker_users_name,
    group_of,
    name_server_certificate_name,
    name_server_users_name,
    pod_name,
    pod_of_claim,
)
from mailboat_operator.resources.users import own_secret_name
from mailboat_operator.sight import Sight
from mailboat_operator.strays import ownerless_pods, unseen_claims

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

_FINALIZED = frozenset({TOPIC.kind, USER.kind})
"""What has something to do at its end."""

_CHANCE_BYTES = 32
"""Of a secret key."""

_SOON_S = 0.1
"""When to plan again after own changes; a fight about a field is slowed down by it."""


class StepsFailedError(MailboatError):
    """Some steps of a plan failed; each has been logged."""

    retriable = True

    def __init__(self, key: ResourceKey, steps: Sequence[str], again_after_s: float | None) -> None:
        """Name the steps; `again_after_s` is when the others want the next turn, if they do."""
        super().__init__(f"{key}: failed: {', '.join(steps)}")
        self.again_after_s = again_after_s


class Observations(Protocol):
    """Where the brokers' numbers come from."""

    def observations(self, namespace: str, pods: Mapping[str, Manifest]) -> dict[str, Observation]:
        """What the named pods last said, by name."""


@dataclass(frozen=True, slots=True)
class Planners:
    """The pure functions that decide."""

    broker: Callable[[BrokerSnapshot], Plan]
    name_server: Callable[[NameServerSnapshot], Plan]
    topic: Callable[[TopicSnapshot], Plan]
    user: Callable[[UserSnapshot], Plan]


class Reconciler:
    """Takes turns for resources of all kinds."""

    def __init__(
        self,
        cache: ObjectCache,
        applier: Applier,
        brokers: BrokerApi,
        observations: Observations,
        planners: Planners,
        metrics: OperatorMetrics,
        sight: Sight,
        *,
        default_image: str,
        reads_storage_classes: bool,
        fresh_s: float = FRESH_S,
        http_peers: tuple[Manifest, ...] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Everything that is looked at or acted through is given."""
        self._cache = cache
        self._applier = applier
        self._brokers = brokers
        self._observations = observations
        self._planners = planners
        self._metrics = metrics
        self._sight = sight
        self._default_image = default_image
        self._reads_storage_classes = reads_storage_classes
        self._fresh_s = fresh_s
        self._http_peers = http_peers
        self._monotonic = monotonic
        self._wall = wall
        self._taken: dict[ResourceKey, dict[tuple[str, str], Manifest]] = {}
        """Kind and name of what should be a child and is somebody else's: no watch tells of it."""
        self._copied: dict[ResourceKey, set[str]] = {}
        """Groups that got the others' topics and whose status does not say so yet."""
        self._refusals = Refusals(monotonic)

    async def reconcile(self, key: ResourceKey) -> float | None:
        """Take one turn; returns after how many seconds the next one is due, if one is.

        Raises:
            MailboatError: something failed that a later turn may do.
        """
        if not self._sight.sees_all_of(key.namespace):
            return None  # Once everything is seen again, every resource is planned anew.
        resource = self._cache.get(*key)
        if resource is None:
            self._taken.pop(key, None)
            self._refusals.forget(key)
            self._copied.pop(key, None)
            await self._remove_ownerless(key)
            return None
        if resource["metadata"].get("deletionTimestamp") and key.kind not in _FINALIZED:
            # What belongs to it is removed by Kubernetes: making it anew would only be in the way.
            return None
        await self._look_again(key, resource)
        try:
            plan = await self._plan(key, resource)
        except InvalidResourceError as error:
            await self._report_invalid(key, resource, error)
            return None
        failed, has_changed = await self._carry_out(key, resource, plan)
        await self._tell_refusals(key, resource)
        status = self._refusals.shown_in(key, resource, plan.status, self._wall())
        if not self._refusals.holds_back(key, resource, status):
            await self._report(key, resource, status)
        if failed:
            raise StepsFailedError(key, failed, plan.again_after_s)
        return _SOON_S if has_changed else plan.again_after_s

    async def _remove_ownerless(self, key: ResourceKey) -> None:
        """Take away the pods that nobody would ever take away: their resource was deleted."""
        removals = ownerless_pods(key, self._cache.owned_by(POD.kind, key).values())
        if removals and await self._applier.is_gone(key):
            await self._applier.remove_ownerless(key, removals)

    async def _plan(self, key: ResourceKey, resource: Manifest) -> Plan:
        if key.kind == BROKER.kind:
            await self._label_claims(key)
            snapshot = self._broker_snapshot(key, resource)
            certificate = await self._certificate(
                snapshot.resource.spec.tls, key.namespace, broker_certificate_name(key.name)
            )
            return self._planners.broker(replace(snapshot, certificate=certificate))
        if key.kind == NAME_SERVER.kind:
            name_server = parse_name_server(resource)
            return self._planners.name_server(
                NameServerSnapshot(
                    resource=name_server,
                    children=self._children(key),
                    default_image=self._default_image,
                    now_s=self._wall(),
                    refused_evictions=self._refusals.of_evictions(key),
                    http_peers=self._http_peers,
                    certificate=await self._certificate(
                        name_server.spec.tls,
                        key.namespace,
                        name_server_certificate_name(key.name),
                    ),
                )
            )
        if key.kind == USER.kind:
            return self._planners.user(await self._user_snapshot(key, resource))
        return self._planners.topic(await self._topic_snapshot(key, resource))

    async def _certificate(
        self, tls: TlsSpec | None, namespace: str, name: str
    ) -> LiveCertificate | None:
        """Read the Certificate that cert-manager is to make; None where it is to make none."""
        if tls is None or tls.issuer_ref is None:
            return None
        return await self._applier.certificate(namespace, name)

    async def _carry_out(
        self, key: ResourceKey, resource: Manifest, plan: Plan
    ) -> tuple[list[str], bool]:
        """Run every step; returns the names of those that failed, and whether anything changed."""
        failed = []
        has_changed = False
        self._refusals.planned(key, plan.steps)
        for step in plan.steps:
            try:
                has_changed |= await self._applier.run(resource, step)
                self._refusals.succeeded(key, step)
                if step.name == new_groups.STEP:
                    self._copied.setdefault(key, set()).add(step.subject)
            except (StoppingError, NotLeaderError):
                raise
            except MailboatError as error:
                self._metrics.step_failures_total.labels(key.kind, key.namespace, step.name).inc()
                logger.warning("%s: step %s: %s", key, _spelled(step), error)
                if isinstance(error, NameTakenError):
                    self._take_note(key, error.live)
                self._refusals.failed(key, step, error)
                failed.append(_spelled(step))
        return failed, has_changed

    async def _tell_refusals(self, key: ResourceKey, resource: Manifest) -> None:
        notices = self._refusals.notices(key)
        if notices:
            await self._applier.run(resource, Step("report", tuple(notices)))

    async def _report(self, key: ResourceKey, resource: Manifest, status: Manifest) -> None:
        """Write the status onto the resource as the plan saw it, or as this turn left it."""
        current = self._cache.get(*key)
        if current is None:
            return
        before, after = resource["metadata"], current["metadata"]
        if before.get("uid") != after.get("uid") or before.get("generation") != after.get(
            "generation"
        ):
            return  # Changed meanwhile; the key is marked, and the next turn reports.
        try:
            await self._applier.write_status(current, status)
        except NotFoundError:
            logger.debug("%s is gone; its status is not written", key)

    async def _report_invalid(
        self, key: ResourceKey, resource: Manifest, error: InvalidResourceError
    ) -> None:
        """A resource that cannot be read at all: the CRD's rules were by-passed."""
        logger.warning("%s", error)
        notice = Notify(type="Warning", reason="InvalidSpec", message=str(error))
        await self._applier.run(resource, Step("report", (notice,)))
        if resource["metadata"].get("deletionTimestamp"):
            if _is_about(error, key):
                await self._applier.run(resource, Step("finalizer", release(resource)))
            return
        status = invalid_status(
            resource.get("status") or {},
            error,
            generation=int(resource["metadata"].get("generation") or 0),
            now_s=self._wall(),
        )
        await self._report(key, resource, status)

    async def _label_claims(self, key: ResourceKey) -> None:
        """Let the watch see the claims that were made by hand."""
        live = self._children(key)
        for name, labels in unseen_claims(live.pods, live.claims, live.stateful_sets).items():
            try:
                await self._applier.label_claim(key.namespace, name, labels)
            except (KubeApiError, KubeUnreachableError) as error:
                logger.warning("%s: cannot label claim %s: %s", key, name, error)

    def _take_note(self, key: ResourceKey, live: Manifest) -> None:
        name = live["metadata"]["name"]
        self._taken.setdefault(key, {})[live["kind"], name] = live

    async def _look_again(self, key: ResourceKey, resource: Manifest) -> None:
        """Read anew what stood in the way in an earlier turn."""
        found = {}
        for kind, name in self._taken.get(key, {}):
            live = await self._applier.stranger(resource, kind, name)
            if live is not None:
                found[kind, name] = live
        self._taken.pop(key, None)
        if found:
            self._taken[key] = found

    def _children(self, key: ResourceKey) -> Children:
        taken = self._taken.get(key, {})

        def owned(kind: Kind) -> dict[str, Manifest]:
            ours = self._cache.owned_by(kind.kind, key)
            return ours | {name: live for (its, name), live in taken.items() if its == kind.kind}

        return Children(
            stateful_sets=owned(STATEFUL_SET),
            pods=owned(POD),
            claims=owned(CLAIM),
            services=owned(SERVICE),
            config_maps=owned(CONFIG_MAP),
            disruption_budgets=owned(DISRUPTION_BUDGET),
            service_accounts=owned(SERVICE_ACCOUNT),
            network_policies=owned(NETWORK_POLICY),
            leases=owned(LEASE),
            endpoint_slices=owned(ENDPOINT_SLICE),
            endpoints=owned(ENDPOINTS),
            roles=owned(ROLE),
            role_bindings=owned(ROLE_BINDING),
        )

    def _broker_snapshot(self, key: ResourceKey, resource: Manifest) -> BrokerSnapshot:
        # Once the status has it, it is not to be remembered: the group may go and come again.
        entries = (resource.get("status") or {}).get("brokers") or ()
        pending = {entry["name"] for entry in entries if entry.get("topics") == new_groups.PENDING}
        self._copied[key] = self._copied.get(key, set()) & pending
        broker = parse_broker(resource)
        children = self._children(key)
        classes: Mapping[str, Manifest] | None = None
        if self._reads_storage_classes and self._sight.sees(STORAGE_CLASS.kind, None):
            found = self._cache.all_of(STORAGE_CLASS.kind)
            classes = {manifest["metadata"]["name"]: manifest for manifest in found}
        return BrokerSnapshot(
            resource=broker,
            children=children,
            storage_classes=classes,
            name_server=self._name_server(key.namespace, broker.spec.name_servers.ref),
            observations=self._observations.observations(key.namespace, children.pods),
            default_image=self._default_image,
            now_s=self._wall(),
            monotonic_s=self._monotonic(),
            refused_sizes=self._refusals.of_claims(key),
            refused_evictions=self._refusals.of_evictions(key),
            copied=frozenset(self._copied.get(key, ())),
            fresh_s=self._fresh_s,
            http_peers=self._http_peers,
        )

    def _name_server(self, namespace: str, name: str | None) -> NameServer | None:
        manifest = self._cache.get(NAME_SERVER.kind, namespace, name) if name else None
        return parse_name_server(manifest) if manifest is not None else None

    async def _topic_snapshot(self, key: ResourceKey, resource: Manifest) -> TopicSnapshot:
        topic = parse_topic(resource)
        broker_key = ResourceKey(BROKER.kind, key.namespace, topic.spec.broker_ref)
        manifest = self._cache.get(*broker_key)
        leases = self._cache.owned_by(LEASE.kind, broker_key)
        pods = serving_pods(self._cache.owned_by(POD.kind, broker_key), leases)
        endpoints = {
            group: url for group, pod in pods.items() if (url := http_url(pod)) is not None
        }
        name = topic_name_of(topic)
        return TopicSnapshot(
            resource=topic,
            broker=parse_broker(manifest) if manifest is not None else None,
            endpoints=endpoints,
            topics=await self._said(
                key,
                {
                    group: self._read_topic(key, group, url, name)
                    for group, url in endpoints.items()
                },
            ),
            volumes=self._volumes(broker_key),
            now_s=self._wall(),
            rivals=tuple(
                other for other in self._cache.all_of(TOPIC.kind) if is_same_topic(other, resource)
            ),
        )

    def _volumes(self, broker: ResourceKey) -> dict[str, str]:
        """The claims of a Broker's groups, by the group's name."""
        found = {}
        for name in self._cache.owned_by(CLAIM.kind, broker):
            group = group_of(name.removeprefix(f"{VOLUME}-"))
            if pod_of_claim(broker.name, name) is not None:
                found[group] = name
        return found

    async def _said(self, key: ResourceKey, asked: Mapping[str, Awaitable[_T]]) -> dict[str, _T]:
        """Return what servers said, by name; the log names those that could not say it."""
        answers = await asyncio.gather(*asked.values(), return_exceptions=True)
        said: dict[str, _T] = {}
        for name, answer in zip(asked, answers, strict=True):
            if isinstance(answer, BrokerApiError | BrokerRefusedError):
                logger.info("%s: %s cannot say what it knows: %s", key, name, answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                said[name] = answer
        return said

    async def _user_snapshot(self, key: ResourceKey, resource: Manifest) -> UserSnapshot:
        user = parse_user(resource)
        broker_key = ResourceKey(BROKER.kind, key.namespace, user.spec.broker_ref)
        manifest = self._cache.get(*broker_key)
        broker = parse_broker(manifest) if manifest is not None else None
        reference = broker.spec.name_servers.ref if broker is not None else None
        name_server = self._name_server(key.namespace, reference)
        given = user.spec.authentication.secret_ref
        access_key = access_key_of(user)
        brokers = self._urls(broker_key)
        name_servers: dict[str, str] = {}
        if name_server is not None and is_authenticated(name_server.spec.authentication):
            owner = ResourceKey(NAME_SERVER.kind, key.namespace, name_server.name)
            name_servers = self._urls(owner)

        async def secret(name: str | None) -> Manifest | None:
            return await self._applier.secret(key.namespace, name) if name is not None else None

        others = [
            await secret(name_server_users_name(other["metadata"]["name"]))
            for other in self._cache.all_of(NAME_SERVER.kind)
            if other["metadata"].get("namespace") == key.namespace
            and (name_server is None or other["metadata"]["name"] != name_server.name)
        ]
        return UserSnapshot(
            resource=user,
            broker=broker,
            name_server=name_server,
            broker_users=await secret(broker_users_name(broker.name) if broker else None),
            name_server_users=await secret(
                name_server_users_name(name_server.name) if name_server else None
            ),
            own_secret=await secret(own_secret_name(user.name) if given is None else None),
            given_secret=await secret(given.name if given is not None else None),
            chance=secrets.token_urlsafe(_CHANCE_BYTES),
            servers=tuple(sorted(brokers)),
            name_server_pods=tuple(sorted(name_servers)),
            said=await self._said(
                key,
                {
                    pod: self._read_revision(key, pod, url, access_key)
                    for pod, url in brokers.items()
                }
                | {
                    pod: self._brokers.user_revision(url, access_key)
                    for pod, url in name_servers.items()
                },
            ),
            now_s=self._wall(),
            rivals=tuple(
                other for other in self._cache.all_of(USER.kind) if is_same_user(other, resource)
            ),
            other_users=tuple(other for other in others if other is not None),
        )

    def _urls(self, owner: ResourceKey) -> dict[str, str]:
        """Return where the pods of a custom resource answer HTTP, by their names."""
        pods = self._cache.owned_by(POD.kind, owner)
        return {name: url for name, pod in pods.items() if (url := http_url(pod)) is not None}

    async def _read_revision(
        self, key: ResourceKey, pod: str, url: str, access_key: str
    ) -> str | None:
        await self._brokers.broker(url, expected_broker(self._cache, key.namespace, pod))
        return await self._brokers.user_revision(url, access_key)

    async def _read_topic(
        self, key: ResourceKey, group: str, url: str, topic: str
    ) -> Manifest | None:
        expected = expected_broker(self._cache, key.namespace, pod_name(group))
        await self._brokers.broker(url, expected)
        return await self._brokers.topic(url, topic)


def _spelled(step: Step) -> str:
    return f"{step.name} {step.subject}" if step.subject else step.name


def _is_about(error: InvalidResourceError, key: ResourceKey) -> bool:
    """Whether it is this resource that cannot be read, and not one that it names."""
    return error.resource == f"{key.kind} {key.namespace}/{key.name}"
