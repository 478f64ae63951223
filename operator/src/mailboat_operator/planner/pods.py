"""What a pod's manifest tells about it: ready, starting, broken, outdated.

Texts made here go into conditions, so they hold nothing that changes while nothing changes: no
counters and no waiting times.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from mailboat_operator.planner.snapshot import Manifest

_CRASHING: Final = "CrashLoopBackOff"
_BROKEN_WAITS: Final = frozenset(
    {
        _CRASHING,
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
"""Reasons of a container that waits for something that seldom comes by itself."""

_IMAGE_WAITS: Final = frozenset(
    {"ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff", "InvalidImageName"}
)
_MESSAGE_LENGTH: Final = 300
_SAME_MOMENT_S: Final = 5.0
"""A pod begins and becomes unready in one report of the kubelet, whose times are whole seconds."""


def is_ending(pod: Manifest) -> bool:
    """Return whether the pod has been told to end."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def is_ready(pod: Manifest) -> bool:
    """Return whether the pod serves and is to go on serving."""
    return not is_ending(pod) and _condition(pod, "Ready").get("status") == "True"


def is_starting(pod: Manifest) -> bool:
    """Return whether its container runs and has not finished its start, such as a recovery."""
    return any(
        "running" in (status.get("state") or {}) and not status.get("started")
        for status in _containers(pod)
    )


def runs_nothing(pod: Manifest) -> bool:
    """Return whether no container of the pod runs, so that nothing is lost with it."""
    return not any("running" in (status.get("state") or {}) for status in _containers(pod))


def is_being_made(pod: Manifest) -> bool:
    """Return whether a container of the pod waits for what it needs from its node."""
    return any(
        ((status.get("state") or {}).get("waiting") or {}).get("reason") == "ContainerCreating"
        for status in _containers(pod)
    )


def has_run(pod: Manifest) -> bool:
    """Return whether a container of the pod ever ran: its image and its settings were to be had."""
    return any(
        status.get("started")
        or int(status.get("restartCount") or 0) > 0
        or {"running", "terminated"} & {*(status.get("state") or {})}
        or "terminated" in (status.get("lastState") or {})
        for status in _containers(pod)
    )


def has_been_ready(pod: Manifest) -> bool:
    """Return whether the pod ever served, as far as can be told: else it did."""
    if is_ready(pod):
        return True
    began_s = seconds((pod.get("status") or {}).get("startTime"))
    since_s = changed_s(pod)
    return began_s is None or since_s is None or since_s > began_s + _SAME_MOMENT_S


def lacks_needs(pod: Manifest) -> bool:
    """Return whether a container's image, or what it is made of, is not to be had."""
    reasons = {
        ((status.get("state") or {}).get("waiting") or {}).get("reason")
        for status in _containers(pod)
    }
    return bool(reasons & (_BROKEN_WAITS - {_CRASHING}))


def has_failed(pod: Manifest) -> bool:
    """Return whether the pod is over: nobody runs its containers again."""
    return (pod.get("status") or {}).get("phase") == "Failed"


def restarts(pod: Manifest) -> int:
    """Return how often the kubelet has started the pod's containers again; the most of any."""
    return max((int(status.get("restartCount") or 0) for status in _containers(pod)), default=0)


def running_since_s(pod: Manifest) -> float | None:
    """Return since when its container runs that has not finished its start; None if none does."""
    times = [
        seconds((status.get("state") or {}).get("running", {}).get("startedAt"))
        for status in _containers(pod)
        if "running" in (status.get("state") or {}) and not status.get("started")
    ]
    return min((time for time in times if time is not None), default=None)


def changed_s(pod: Manifest) -> float | None:
    """Return when the pod became ready or stopped being so, in seconds since 1970."""
    return seconds(_condition(pod, "Ready").get("lastTransitionTime"))


def unready_since_s(pod: Manifest) -> float | None:
    """Return since when the pod is not ready; None if it is, or was until it was told to end."""
    if _condition(pod, "Ready").get("status") == "True":
        return None
    since_s = changed_s(pod)
    return seconds(pod["metadata"].get("creationTimestamp")) if since_s is None else since_s


def revision(pod: Manifest) -> str | None:
    """Return the revision of the template that the pod was made from."""
    value = (pod["metadata"].get("labels") or {}).get("controller-revision-hash")
    return str(value) if value else None


def trouble(pod: Manifest) -> str | None:
    """Return what keeps a pod from becoming ready; None if it only needs time."""
    if is_ready(pod) or is_ending(pod):
        return None
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return f"Unschedulable: {_short(scheduled.get('message'))}"
    status = pod.get("status") or {}
    if status.get("phase") == "Failed":
        return f"{status.get('reason') or 'Failed'}: {_short(status.get('message'))}"
    for container in _containers(pod):
        found = _container_trouble(pod, container)
        if found is not None:
            return found
    return None


def seconds(timestamp: object) -> float | None:
    """Return a timestamp of Kubernetes as seconds since 1970."""
    if not isinstance(timestamp, str):
        return None
    try:
        return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def _container_trouble(pod: Manifest, container: Mapping[str, Any]) -> str | None:
    state = container.get("state") or {}
    reason = (state.get("waiting") or {}).get("reason")
    last = state.get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
    if reason in _IMAGE_WAITS:
        return f"{reason}: {_image(pod, container)}"
    if last.get("exitCode"):
        why = last.get("reason") or "Error"
        return f"{reason or 'Crashed'}: the container ended with code {last['exitCode']} ({why})"
    if reason in _BROKEN_WAITS:
        return f"{reason}: {_short((state.get('waiting') or {}).get('message'))}"
    return None


def _containers(pod: Manifest) -> Iterator[Mapping[str, Any]]:
    status = pod.get("status") or {}
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _image(pod: Manifest, container: Mapping[str, Any]) -> str:
    for declared in (pod.get("spec") or {}).get("containers") or ():
        if declared.get("name") == container.get("name"):
            return str(declared.get("image"))
    return str(container.get("image"))


def _condition(pod: Manifest, name: str) -> Mapping[str, Any]:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == name:
            return dict(condition)
    return {}


def _short(text: object) -> str:
    line = " ".join(str(text or "no reason given").split())
    return line if len(line) <= _MESSAGE_LENGTH else line[: _MESSAGE_LENGTH - 3] + "..."
