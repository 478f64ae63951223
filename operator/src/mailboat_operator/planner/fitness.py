"""Whether what a broker says of itself is fresh, and whether it serves its clients."""

from typing import Any, Final

from mailboat_operator.planner.snapshot import BrokerSnapshot, Manifest, Observation

SERVING: Final = "serving"


def fresh_observation(
    snapshot: BrokerSnapshot, pod_name: str, pod: Manifest | None
) -> Observation | None:
    """Return what a pod's broker said lately; None if it did not, or another pod said it.

    One call that failed since then does not make it stale: status would flicker.
    """
    observation = snapshot.observations.get(pod_name)
    if observation is None or pod is None or observation.pod_uid != pod["metadata"]["uid"]:
        return None
    seen_s = observation.seen_monotonic_s
    if seen_s is None:
        return None
    return observation if snapshot.monotonic_s - seen_s <= snapshot.fresh_s else None


def unfit(observation: Observation | None) -> str | None:
    """Return why clients may not get along with this broker alone; None if they may."""
    if observation is None or observation.broker is None:
        return "has not said how it is"
    if observation.error is not None:
        return "does not answer"
    phase = observation.broker.get("phase")
    if phase != SERVING:
        return f"is {phase}"
    if is_unknown_everywhere(observation.broker):
        return f"is registered at no name server ({', '.join(unregistered(observation.broker))})"
    return None


def registered(observation: Observation | None) -> frozenset[str]:
    """Return the name servers that know the broker, by its own word."""
    if observation is None or observation.broker is None:
        return frozenset()
    servers = _name_servers(observation.broker)
    return frozenset(str(item.get("address")) for item in servers if item["registered"])


def start_idle_s(snapshot: BrokerSnapshot, pod_name: str, pod: Manifest | None) -> float | None:
    """Return for how long a pod's start has not got on; None if it says nothing of that."""
    observation = snapshot.observations.get(pod_name)
    if observation is None or pod is None or observation.pod_uid != pod["metadata"]["uid"]:
        return None
    moved_s = observation.start_moved_monotonic_s
    return None if moved_s is None else max(0.0, snapshot.monotonic_s - moved_s)


def unregistered(broker: Manifest) -> list[str]:
    """Return the name servers that do not know the broker."""
    return [str(item.get("address")) for item in _name_servers(broker) if not item["registered"]]


def is_unknown_everywhere(broker: Manifest) -> bool:
    """Return whether the broker has name servers and none of them knows it."""
    name_servers = _name_servers(broker)
    return bool(name_servers) and not any(item["registered"] for item in name_servers)


def _name_servers(broker: Manifest) -> list[dict[str, Any]]:
    return [item | {"registered": bool(item.get("registered"))} for item in _items(broker)]


def _items(broker: Manifest) -> list[dict[str, Any]]:
    return list(broker.get("name_servers") or ())
