"""Live settings of running brokers: what differs from the spec, and what the user has to mend."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mailboat_operator.planner.actions import ConfigureBroker, Notify, Step
from mailboat_operator.planner.conditions import (
    APPLIED,
    CONFIG_APPLIED,
    INVALID_VALUE,
    PENDING,
    REFUSED,
    UNKNOWN_KEY,
    UNREACHABLE,
    Finding,
    previous_condition,
)
from mailboat_operator.planner.fitness import fresh_observation
from mailboat_operator.planner.groups import Group
from mailboat_operator.planner.pods import changed_s, is_ending, is_ready
from mailboat_operator.planner.progress import join_names
from mailboat_operator.planner.snapshot import BrokerSnapshot, ConfigRefusal, Manifest
from mailboat_operator.resources.config_map import (
    UserConfig,
    live_settings,
    restart_hash,
    same_value,
)
from mailboat_operator.resources.labels import CONFIG_HASH_ANNOTATION

ASK_AGAIN_S: Final = 60.0
"""How long values that a broker has refused are not sent to it again."""

UNREACHABLE_S: Final = 120.0
"""How long the broker of a pod that is ready may be silent before that is told."""


@dataclass(frozen=True, slots=True)
class ConfigPlan:
    """What to send to which broker, and how far the spec's settings have got."""

    steps: tuple[Step, ...]
    finding: Finding
    again_after_s: float | None = None
    """When a setting that was refused is due again."""


@dataclass(frozen=True, slots=True)
class _Broker:
    """One pod of a group, with what its broker should work with."""

    pod_name: str
    pod: Manifest | None
    settings: Mapping[str, str]
    file_settings: Mapping[str, str]


def plan_config(
    snapshot: BrokerSnapshot,
    groups: tuple[Group, ...],
    user: UserConfig,
    elsewhere: Mapping[str, Mapping[str, str]],
) -> ConfigPlan:
    """Compare what each broker works with to what it should.

    Args:
        snapshot: The Broker.
        groups: Its groups.
        user: Its `spec.config`.
        elsewhere: By pod's name, live settings that are decided and sent elsewhere, because they
            follow the disk.
    """
    steps, behind, silent, refused, unreachable, waits_s = [], [], [], [], [], []
    for broker in (broker for group in groups for broker in _brokers(group)):
        handled = elsewhere.get(broker.pod_name, {})
        changes = _changes(snapshot, broker, handled)
        refused += [
            f"{broker.pod_name} refused {_spelled(item.values)}: {item.sentence}"
            for item in _refusals(snapshot, broker, {**(changes or {}), **handled})
        ]
        if _needs_restart(broker):
            behind.append(f"{broker.pod_name} has yet to be restarted for a setting")
        elif changes:
            behind.append(f"{broker.pod_name} has yet to take over {', '.join(changes)}")
        elif (why := _unreachable(snapshot, broker)) is not None:
            unreachable.append(why)
        elif changes is None:
            silent.append(f"{broker.pod_name} has not said what it works with")
        wait_s = _wait_s(snapshot, broker, changes or {})
        if wait_s > 0:
            waits_s.append(wait_s)
        elif changes and _answers(snapshot, broker):
            steps.append(_step(broker, changes))
    finding = _finding(user, refused, behind, unreachable, silent)
    before = previous_condition(snapshot.resource.status, CONFIG_APPLIED)
    if finding.reason == UNREACHABLE and before.get("reason") != UNREACHABLE:
        notice = Notify("Warning", "BrokerUnreachable", finding.message)
        steps.append(Step("events", (notice,)))
    return ConfigPlan(tuple(steps), finding, min(waits_s, default=None))


def _brokers(group: Group) -> list[_Broker]:
    return [
        _Broker(item.name, item.pod, group.settings, group.file_settings) for item in group.pods
    ]


def _refusals(
    snapshot: BrokerSnapshot, broker: _Broker, wanted: Mapping[str, str]
) -> list[ConfigRefusal]:
    """Return what a broker refused and should still take over."""
    observation = fresh_observation(snapshot, broker.pod_name, broker.pod)
    if observation is None or observation.config is None:
        return []
    has = observation.config
    return [
        refusal
        for refusal in observation.config_refusals
        if refusal.values.items() <= wanted.items()
        and any(
            not same_value(key, has.get(key, ""), value) for key, value in refusal.values.items()
        )
    ]


def _wait_s(snapshot: BrokerSnapshot, broker: _Broker, changes: Mapping[str, str]) -> float:
    """Return how long these changes, which were refused, are not sent; 0 if they were not."""
    found = [item for item in _refusals(snapshot, broker, changes) if item.values == changes]
    passed_s = min((snapshot.monotonic_s - item.monotonic_s for item in found), default=ASK_AGAIN_S)
    return max(0.0, ASK_AGAIN_S - passed_s)


def _changes(
    snapshot: BrokerSnapshot, broker: _Broker, elsewhere: Mapping[str, str]
) -> dict[str, str] | None:
    """Return the live settings that a broker has to take over; None if it does not say.

    A key that the broker does not show is one of a newer version than it runs.
    """
    observation = fresh_observation(snapshot, broker.pod_name, broker.pod)
    if broker.pod is None or is_ending(broker.pod) or not broker.settings:
        return None
    if observation is None or observation.config is None:
        return None
    has = {key: value for key, value in observation.config.items() if key not in elsewhere}
    return {
        key: value
        for key, value in live_settings(broker.settings).items()
        if key in has and not same_value(key, has[key], value)
    }


def _unreachable(snapshot: BrokerSnapshot, broker: _Broker) -> str | None:
    """Return how it shows that the operator cannot reach a broker that serves, if it cannot."""
    pod, observation = broker.pod, snapshot.observations.get(broker.pod_name)
    if pod is None or not is_ready(pod) or observation is None:
        return None
    if fresh_observation(snapshot, broker.pod_name, pod) is not None:
        return None
    if observation.stranger is not None:
        return f"broker {observation.stranger} answers at the address of {broker.pod_name}"
    silent_s, ready_s = observation.silent_since_monotonic_s, changed_s(pod)
    if silent_s is None or snapshot.monotonic_s - silent_s < UNREACHABLE_S:
        return None
    if ready_s is not None and 0.0 <= snapshot.now_s - ready_s < UNREACHABLE_S:
        return None
    return f"{broker.pod_name} is ready and does not answer the operator at its HTTP port"


def _answers(snapshot: BrokerSnapshot, broker: _Broker) -> bool:
    return snapshot.observations[broker.pod_name].error is None


def _needs_restart(broker: _Broker) -> bool:
    """Return whether a pod was made for other settings than the spec has now."""
    if broker.pod is None or not broker.settings:
        return False
    return _config_hash(broker.pod) != restart_hash(broker.file_settings)


def _config_hash(pod: Manifest) -> str | None:
    annotations = pod["metadata"].get("annotations") or {}
    value = annotations.get(CONFIG_HASH_ANNOTATION)
    return None if value is None else str(value)


def _step(broker: _Broker, changes: Mapping[str, str]) -> Step:
    message = f"{broker.pod_name} works with {_spelled(changes)}"
    return Step(
        "config live",
        (
            ConfigureBroker(broker.pod_name, changes),
            Notify("Normal", "ConfigChanged", message, broker.pod_name),
        ),
    )


def _spelled(values: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _finding(
    user: UserConfig,
    refused: list[str],
    behind: list[str],
    unreachable: list[str],
    silent: list[str],
) -> Finding:
    if user.problems:
        is_unknown = any(problem.unknown for problem in user.problems)
        message = "; ".join(problem.sentence for problem in user.problems)
        reason = UNKNOWN_KEY if is_unknown else INVALID_VALUE
        return Finding(CONFIG_APPLIED, False, reason, f"{message} (left out)")
    if refused:
        return Finding(CONFIG_APPLIED, False, REFUSED, join_names(refused))
    if behind:
        return Finding(CONFIG_APPLIED, False, PENDING, join_names(behind))
    if unreachable:
        return Finding(CONFIG_APPLIED, None, UNREACHABLE, join_names(unreachable))
    if silent:
        return Finding(CONFIG_APPLIED, None, PENDING, join_names(silent))
    message = "every broker works with the settings of the spec"
    if user.without_effect:
        message += f"; without effect here: {', '.join(user.without_effect)}"
    return Finding(CONFIG_APPLIED, True, APPLIED, message)
