"""What the API server does not take: kept per resource and step, and put into words for the user.

An object that is refused (an invalid value, an admission rule, a quota, a missing right) is refused
again at every turn until somebody mends it, so its words belong where that somebody looks: into the
conditions, and into one event. What may pass by itself (a conflict, an overload, no answer) is
shown only once it has lasted for a minute: a webhook that does not answer looks like that too.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from mailboat.errors import MailboatError
from mailboat_operator.broker_api import BrokerRefusedError
from mailboat_operator.crds.status import BrokerStatus, status_manifest
from mailboat_operator.kinds import ResourceKey
from mailboat_operator.kube_api import EvictionRefusedError, KubeApiError, KubeUnreachableError
from mailboat_operator.planner.actions import (
    Action,
    Apply,
    ConfigureBroker,
    CopyDeclarations,
    DeleteTopic,
    Evict,
    Notify,
    PutTopic,
    ResizeClaim,
    Step,
)
from mailboat_operator.planner.conditions import (
    APPLY_REFUSED,
    NAME_TAKEN,
    PROGRESSING,
    READY,
    ROLL_STOPPED,
    ROLLING,
    Finding,
    build_conditions,
)
from mailboat_operator.planner.snapshot import EvictionRefusal, Manifest

PATIENCE_S: Final = 60.0
"""So long a failure that may pass by itself is not shown."""

_LONGEST_WORDS: Final = 1000
_SHOWN: Final = 10
"""So many failures are put into words, the rest is counted."""

_PASSING: Final = frozenset({401, 404, 408, 409, 429})
"""Client errors that a later turn may not meet again, without anybody mending anything."""

_TERMINATING: Final = "being terminated"
"""What a namespace that is going answers to every creation, as a 403; soon there is nothing."""

_Target: TypeAlias = tuple[str, tuple[str, ...]]
"""A step's name and what it is about: several steps of a plan may bear the same name."""


@dataclass(slots=True)
class _Failure:
    """One step that fails."""

    step: str
    words: str
    since_s: float
    is_final: bool
    is_told: bool = False
    claims: tuple[str, ...] = ()
    """The claims that it would resize; empty for anything else."""


class Refusals:
    """The steps that failed at the last try, by the resource that they are of."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Nothing has failed yet."""
        self._monotonic = monotonic
        self._failures: dict[ResourceKey, dict[_Target, _Failure]] = {}
        self._evictions: dict[ResourceKey, dict[str, EvictionRefusal]] = {}

    def forget(self, key: ResourceKey) -> None:
        """The resource is gone."""
        self._failures.pop(key, None)
        self._evictions.pop(key, None)

    def planned(self, key: ResourceKey, steps: Iterable[Step]) -> None:
        """Forget the steps that a new plan no longer has.

        A size that was refused is kept: it is asked for at long intervals, and in between the plan
        has no step for it.
        """
        steps = list(steps)
        targets = {_target(step) for step in steps}
        evicted = {act.name for step in steps for act in step.actions if isinstance(act, Evict)}
        refused = self._evictions.pop(key, {})
        if kept := {name: refusal for name, refusal in refused.items() if name in evicted}:
            self._evictions[key] = kept
        for target, failure in list(self._of(key).items()):
            if target not in targets and not failure.claims:
                self._drop(key, target)

    def succeeded(self, key: ResourceKey, step: Step) -> None:
        """The step was carried out."""
        self._drop(key, _target(step))
        for action in step.actions:
            if isinstance(action, Evict):
                self._evictions.get(key, {}).pop(action.name, None)

    def failed(self, key: ResourceKey, step: Step, error: MailboatError) -> None:
        """The step failed; what has words or a place of its own in the status is not kept."""
        target = _target(step)
        if isinstance(error, EvictionRefusedError):
            refusal = replace(error.refusal, words=error.refusal.words[:_LONGEST_WORDS])
            self._evictions.setdefault(key, {})[error.pod] = refusal
        is_known = isinstance(error, KubeApiError | KubeUnreachableError) or (
            isinstance(error, BrokerRefusedError) and any(map(_is_about_topic, step.actions))
        )
        if not is_known or all(isinstance(action, ConfigureBroker) for action in _deeds(step)):
            self._drop(key, target)
            return
        words = " ".join(str(error).split())[:_LONGEST_WORDS]
        before = self._of(key).get(target)
        self._failures.setdefault(key, {})[target] = _Failure(
            step.name,
            words,
            since_s=before.since_s if before is not None else self._monotonic(),
            is_final=_is_final(error),
            is_told=before is not None and before.is_told and before.words == words,
            claims=tuple(act.name for act in step.actions if isinstance(act, ResizeClaim)),
        )

    def of_claims(self, key: ResourceKey) -> dict[str, str]:
        """The words about each claim that was refused a size, by its name."""
        return {name: failure.words for failure in self._shown(key) for name in failure.claims}

    def of_evictions(self, key: ResourceKey) -> dict[str, EvictionRefusal]:
        """What is known of each pod that may not be evicted now, by its name."""
        return dict(self._evictions.get(key, {}))

    def notices(self, key: ResourceKey) -> list[Notify]:
        """What has not been told yet; each words once.

        Of a refused size the planner tells itself, with the reason why the volume should grow.
        """
        found = []
        for failure in self._shown(key):
            if not failure.is_told and not failure.claims:
                failure.is_told = True
                found.append(Notify("Warning", APPLY_REFUSED, failure.words))
        return found

    def holds_back(self, key: ResourceKey, resource: Manifest, status: Manifest) -> bool:
        """Whether a status claims too much for now: a new spec that is not yet carried out.

        The failure may pass within a second, and is shown if it does not; but who waits for Ready
        must not see it in between.
        """
        is_new = (resource.get("status") or {}).get("observedGeneration") != status.get(
            "observedGeneration"
        )
        return is_new and _is_ready(status) and any(not it.claims for it in self._of(key).values())

    def shown_in(
        self, key: ResourceKey, resource: Manifest, status: Manifest, now_s: float
    ) -> Manifest:
        """Put what is refused into the conditions of a status.

        A size that is refused is left out: `StorageReady` tells of it, and the broker serves. A
        roll that goes on, or is blocked by a pod, stays what Progressing says: the next plan takes
        up from there.
        """
        shown = [failure for failure in self._shown(key) if not failure.claims]
        if not shown:
            return status
        words = _some_of([failure.words for failure in shown])
        has_roll = all(failure.step != "rollout" for failure in shown)
        kept = {READY: {NAME_TAKEN}, PROGRESSING: {ROLLING, *ROLL_STOPPED} if has_roll else {}}
        conditions = []
        for condition in status.get("conditions") or ():
            kind = condition["type"]
            if kind in kept and condition["reason"] not in kept[kind]:
                made = build_conditions(
                    [Finding(kind, False, APPLY_REFUSED, words)],
                    resource.get("status") or {},
                    generation=int(resource["metadata"].get("generation") or 0),
                    now_s=now_s,
                )
                conditions += status_manifest(BrokerStatus(conditions=made))["conditions"]
            else:
                conditions.append(condition)
        return {**status, "conditions": conditions}

    def _of(self, key: ResourceKey) -> Mapping[_Target, _Failure]:
        return self._failures.get(key, {})

    def _shown(self, key: ResourceKey) -> Iterator[_Failure]:
        now_s = self._monotonic()
        for failure in self._of(key).values():
            if failure.is_final or now_s - failure.since_s >= PATIENCE_S:
                yield failure

    def _drop(self, key: ResourceKey, target: _Target) -> None:
        failures = self._failures.get(key, {})
        failures.pop(target, None)
        if not failures:
            self._failures.pop(key, None)


def _is_final(error: MailboatError) -> bool:
    """Whether the answer stays the same until somebody mends something."""
    if isinstance(error, KubeApiError):
        is_refusal = 400 <= error.status < 500 and error.status not in _PASSING
        return is_refusal and _TERMINATING not in error.message
    return isinstance(error, BrokerRefusedError)


def _some_of(sentences: list[str]) -> str:
    """Join sentences, as many as a condition's message has room for."""
    distinct = list(dict.fromkeys(sentences))
    more = f"; and {len(distinct) - _SHOWN} more" if len(distinct) > _SHOWN else ""
    return "; ".join(distinct[:_SHOWN]) + more


def _is_ready(status: Manifest) -> bool:
    return any(
        condition["type"] == READY and condition["status"] == "True"
        for condition in status.get("conditions") or ()
    )


def _deeds(step: Step) -> list[Action]:
    return [action for action in step.actions if not isinstance(action, Notify)]


def _is_about_topic(action: Action) -> bool:
    return isinstance(action, PutTopic | DeleteTopic | CopyDeclarations)


def _target(step: Step) -> _Target:
    return step.name, (step.subject, *(_name(action) for action in _deeds(step)))


def _name(action: Action) -> str:
    match action:
        case Apply():
            return f"{action.manifest['kind']}/{action.manifest['metadata']['name']}"
        case PutTopic() | DeleteTopic():
            return action.url
        case _:
            return str(getattr(action, "name", type(action).__name__))
