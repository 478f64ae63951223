"""Whether an object of ours is as it should be, and what mends it.

An object is compared only in what we give it: the API server adds defaults, controllers add status,
other people add labels and sidecars. What we no longer give it shows in the annotation with the
digest of the whole manifest, which is compared like everything else. Therefore an object that
differs is applied once and then no longer differs: at rest nothing is written. What somebody else
put there and ours cannot stand beside (`unions.py`) goes first, else every apply would be refused.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mailboat_operator.planner.actions import Action, Apply, Delete, Patch
from mailboat_operator.planner.amounts import same_amount
from mailboat_operator.planner.merging import entry_key, list_keys
from mailboat_operator.planner.snapshot import Manifest
from mailboat_operator.planner.unions import Path, leftovers
from mailboat_operator.resources.labels import MANAGED_BY_LABEL, MANAGER

_WHOLE_MAPS: Final = frozenset({"selector", "matchLabels", "nodeSelector"})
"""Maps that mean something else once anything is added to them."""

_AMOUNTS: Final = frozenset({"requests", "limits"})
_IMMUTABLE: Final[Mapping[str, tuple[str, ...]]] = {
    "StatefulSet": (
        "spec.podManagementPolicy",
        "spec.selector",
        "spec.serviceName",
        "spec.volumeClaimTemplates",
    ),
    "Service": ("spec.clusterIP", "spec.loadBalancerClass"),
}
_STRIPPED: Final = frozenset({"PodDisruptionBudget"})
"""Kinds that stand in nobody's way without the field that has to go, and so are not made anew. A
StatefulSet would get a default in its place, which stands in the way as well."""


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """What has to be done about one object."""

    actions: tuple[Action, ...] = ()
    problem: str | None = None
    """Why nothing can be done, for the user."""

    is_ending: bool = False
    """Whether the present object has to go before there can be another one."""

    @property
    def is_settled(self) -> bool:
        """Whether the object is as it should be."""
        return not self.actions and self.problem is None and not self.is_ending


def plan_child(
    wanted: Manifest,
    live: Manifest | None,
    owner_uid: str,
    *,
    fallback: Manifest | None = None,
) -> ChildPlan:
    """Decide what makes a live object what it should be.

    Args:
        wanted: The object as we would make it.
        live: The object of that name; None if there is none.
        owner_uid: The resource that it should belong to.
        fallback: What to apply when the API server refuses `wanted` as invalid.
    """
    if live is None:
        return ChildPlan((Apply(wanted, fallback),))
    problem = foreign(live, owner_uid)
    if problem is not None:
        return ChildPlan(problem=problem)
    if live["metadata"].get("deletionTimestamp"):
        # Its end is an event, after which it is missing.
        return ChildPlan(is_ending=True)
    difference = first_difference(wanted, live)
    if difference is None:
        return ChildPlan()
    rivals = list(leftovers(wanted, live))
    if rivals and live["kind"] in _STRIPPED:
        return ChildPlan((_strip(live, rivals), Apply(wanted, fallback)))
    if rivals and not needs_remaking(wanted, live):
        # Whose it is cannot be told: what was ours once goes by an apply, so that is tried first.
        rival = _removal(live, f"{_spelled(rivals[0])} stands in the way")
        return ChildPlan((Apply(wanted, fallback, in_the_way=rival),))
    if needs_remaking(wanted, live):
        return ChildPlan((_removal(live, f"{difference} cannot be changed in place"),))
    return ChildPlan((Apply(wanted, fallback),))


def plan_unwanted(live: Manifest | None, owner_uid: str, reason: str) -> ChildPlan:
    """Decide what takes away an object that there should not be; another one's stays."""
    if live is None or foreign(live, owner_uid) is not None:
        return ChildPlan()
    if live["metadata"].get("deletionTimestamp"):
        return ChildPlan(is_ending=True)
    return ChildPlan((_removal(live, reason),))


def foreign(live: Manifest, owner_uid: str) -> str | None:
    """Return why an object is not ours to change; None if it is ours.

    An object without an owner is taken over if it carries our mark, as after a deletion that left
    everything behind.
    """
    metadata = live["metadata"]
    owner = controller_of(live)
    if owner is not None and owner.get("uid") == owner_uid:
        return None
    name = f"{live.get('kind', 'object')} {metadata['name']}"
    if owner is not None:
        return f"{name} exists and belongs to {owner.get('kind')} {owner.get('name')}"
    if (metadata.get("labels") or {}).get(MANAGED_BY_LABEL) == MANAGER:
        return None
    return f"{name} exists and was not made by the operator; rename or remove it"


def patch_of(live: Manifest, changes: Manifest, reason: str) -> Patch:
    """Return the action that changes exactly this state of an object."""
    metadata = live["metadata"]
    return Patch(
        kind=str(live["kind"]),
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        changes=changes,
        reason=reason,
    )


def removal(live: Manifest, reason: str, *, orphan: bool = False) -> Delete:
    """Return the action that removes an object."""
    metadata = live["metadata"]
    is_pod = live["kind"] == "Pod"
    return Delete(
        kind=str(live["kind"]),
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version=None if is_pod else metadata["resourceVersion"],
        orphan=orphan,
        reason=reason,
    )


def controller_of(live: Manifest) -> Mapping[str, Any] | None:
    """Return the reference to what controls an object."""
    for reference in live["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return dict(reference)
    return None


def needs_remaking(wanted: Manifest, live: Manifest) -> bool:
    """Return whether applying would be refused, so that the object must be made anew."""
    kind = str(wanted["kind"])
    for path in _IMMUTABLE.get(kind, ()):
        one, other = _at(wanted, path), _at(live, path)
        if one is not None and first_difference(one, other, path) is not None:
            return True
    if kind == "ConfigMap" and live.get("immutable"):
        return True
    return _has_rival(wanted, live)


def first_difference(wanted: Any, live: Any, path: str = "") -> str | None:
    """Return where a live value is not what is wanted; None if all that is wanted is there."""
    if isinstance(wanted, dict):
        return _map_difference(wanted, live, path)
    if isinstance(wanted, list | tuple):
        return _list_difference(wanted, live, path)
    if wanted == live and isinstance(wanted, bool) == isinstance(live, bool):
        return None
    if wanted in (None, "") and live in (None, ""):
        return None
    parent = path.rsplit(".", 2)[-2:-1]
    if parent and parent[0] in _AMOUNTS and same_amount(wanted, live):
        return None
    return path


def _map_difference(wanted: Mapping[str, Any], live: Any, path: str) -> str | None:
    if live is None:
        # The API server drops an empty map, but not one that says which kind of volume it is.
        return path if wanted or path.endswith("emptyDir") else None
    if not isinstance(live, dict):
        return path
    if path.rpartition(".")[2] in _WHOLE_MAPS and set(live) - set(wanted):
        return path
    for key in sorted(wanted):
        found = first_difference(wanted[key], live.get(key), f"{path}.{key}" if path else key)
        if found is not None:
            return found
    return None


def _list_difference(wanted: Any, live: Any, path: str) -> str | None:
    live = live or []
    if not isinstance(live, list | tuple):
        return path
    keys = list_keys(path, wanted)
    if keys is None:
        if len(wanted) != len(live):
            return path
        pairs: Iterator[tuple[Any, Any]] = iter(zip(wanted, live, strict=True))
    else:
        by_key = {entry_key(item, keys): item for item in live}
        pairs = iter([(item, by_key.get(entry_key(item, keys))) for item in wanted])
    for number, (item, other) in enumerate(pairs):
        name = number if keys is None else "/".join(map(str, entry_key(item, keys)))
        found = first_difference(item, other, f"{path}[{name}]")
        if found is not None:
            return found
    return None


def _has_rival(wanted: Any, live: Any, path: str = "") -> bool:
    """Return whether someone's entry bears the name of one of ours and another key.

    Such as a port whose number was edited: applying ours would add a second one of that name.
    """
    if isinstance(wanted, dict) and isinstance(live, dict):
        return any(
            _has_rival(wanted[key], live.get(key), f"{path}.{key}" if path else key)
            for key in wanted
        )
    if not isinstance(wanted, list) or not isinstance(live, list):
        return False
    keys = list_keys(path, wanted)
    if keys is None:
        return False
    ours = {entry_key(item, keys): item for item in wanted}
    names = {item.get("name") for item in wanted} if path.endswith("ports") else set()
    if any(entry_key(item, keys) not in ours and item.get("name") in names for item in live):
        return True
    return any(_has_rival(ours.get(entry_key(item, keys)), item, f"{path}[]") for item in live)


def _strip(live: Manifest, paths: list[Path]) -> Patch:
    """Return what takes fields off an object that has them in maps only."""
    changes: Manifest = {}
    for path in paths:
        place = changes
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = None
    return patch_of(live, changes, f"{_spelled(paths[0])} stands in the way")


def _spelled(path: Path) -> str:
    return ".".join(path).replace(".[", "[")


def _removal(live: Manifest, reason: str) -> Delete:
    metadata = live["metadata"]
    return Delete(
        kind=str(live["kind"]),
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        orphan=live["kind"] == "StatefulSet",
        reason=reason,
    )


def _at(manifest: Manifest, path: str) -> Any:
    value: Any = manifest
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
