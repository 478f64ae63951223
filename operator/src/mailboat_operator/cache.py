"""The latest known state of every watched object: level-triggered, never older than it was.

Three sources feed it: watch events, whole lists, and the answers to the operator's own writes (so
that a plan sees what the plan before it did). They race; the resourceVersion decides which one is
newer. What was seen deleted does not come back by a state from before its end; a later one shows
that it had only left the watch, because somebody took the label off by which it is watched.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from mailboat_operator.kinds import ResourceKey, owner_of
from mailboat_operator.planner.snapshot import Manifest

_REMEMBERED_DELETIONS = 4096
_DELETION_REMEMBERED_S = 900.0

_NEVER = (0.0, -1)

_Place = tuple[str, str]
"""Namespace ("" for objects of the cluster) and name."""


class ObjectCache:
    """Objects by kind, namespace and name, and by the custom resource that they belong to."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Start empty."""
        self._monotonic = monotonic
        self._objects: dict[str, dict[_Place, Manifest]] = {}
        self._owned: dict[tuple[str, ResourceKey], dict[str, Manifest]] = {}
        self._deleted: OrderedDict[str | None, tuple[float, int]] = OrderedDict()
        """uid -> when its end was seen, and the version of that end."""

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """The object, or None."""
        return self._objects.get(kind, {}).get((namespace, name))

    def all_of(self, kind: str) -> Iterator[Manifest]:
        """Every object of a kind."""
        return iter(list(self._objects.get(kind, {}).values()))

    def owned_by(self, kind: str, owner: ResourceKey) -> dict[str, Manifest]:
        """The children of one kind that carry the owner's label, by name."""
        return dict(self._owned.get((kind, owner), {}))

    def count(self, kind: str) -> int:
        """How many objects of the kind are known."""
        return len(self._objects.get(kind, {}))

    def update(self, manifest: Manifest) -> bool:
        """Take a state in, unless a newer one is known; says whether anything changed."""
        metadata = manifest["metadata"]
        _, deleted_version = self._deleted.get(metadata.get("uid"), _NEVER)
        if version_of(manifest) <= deleted_version:
            return False
        kind, place = manifest["kind"], _place(manifest)
        known = self._objects.get(kind, {}).get(place)
        if known is not None and version_of(manifest) <= version_of(known):
            return False
        self._forget(kind, place)
        # Who owns which field is half of an object's bytes, and nothing here reads it.
        slim = {**manifest, "metadata": {k: v for k, v in metadata.items() if k != "managedFields"}}
        self._objects.setdefault(kind, {})[place] = slim
        owner = owner_of(slim)
        if owner is not None:
            self._owned.setdefault((kind, owner), {})[place[1]] = slim
        return True

    def remove(self, manifest: Manifest) -> bool:
        """Note that this very object is gone; one of the same name but another uid stays."""
        return self._remove(manifest, version_of(manifest))

    def _remove(self, manifest: Manifest, version: int) -> bool:
        uid = manifest["metadata"].get("uid")
        if uid:
            self._remember_deleted(uid, version)
        kind, place = manifest["kind"], _place(manifest)
        known = self._objects.get(kind, {}).get(place)
        if known is None or known["metadata"].get("uid") != uid or version_of(known) > version:
            return False
        self._forget(kind, place)
        return True

    def replace(
        self, kind: str, namespace: str | None, manifests: Iterable[Manifest], list_version: int
    ) -> list[Manifest]:
        """Take in a whole list of one kind, of one namespace or of all.

        What is known, not listed, and not newer than the list was deleted while nobody looked.

        Returns:
            The objects that changed, in their new or last state.
        """
        listed = {_place(manifest): manifest for manifest in manifests}
        changed = [manifest for manifest in listed.values() if self.update(manifest)]
        for place, known in list(self._objects.get(kind, {}).items()):
            is_in_scope = namespace is None or place[0] == namespace
            if is_in_scope and place not in listed and version_of(known) <= list_version:
                # What was on its way while the list was read is from before the end.
                self._remove(known, list_version)
                changed.append(known)
        return changed

    def _forget(self, kind: str, place: _Place) -> None:
        known = self._objects.get(kind, {}).pop(place, None)
        if known is None:
            return
        owner = owner_of(known)
        if owner is not None:
            children = self._owned.get((kind, owner), {})
            children.pop(place[1], None)
            if not children:
                self._owned.pop((kind, owner), None)

    def _remember_deleted(self, uid: str, version: int) -> None:
        now_s = self._monotonic()
        _, known_version = self._deleted.get(uid, _NEVER)
        self._deleted[uid] = (now_s, max(version, known_version))
        self._deleted.move_to_end(uid)
        while self._deleted:
            oldest = next(iter(self._deleted))
            is_old = now_s - self._deleted[oldest][0] > _DELETION_REMEMBERED_S
            if not is_old and len(self._deleted) <= _REMEMBERED_DELETIONS:
                break
            del self._deleted[oldest]


def version_of(manifest: Manifest) -> int:
    """The resourceVersion as the number that it is in every storage of Kubernetes; 0 if absent."""
    return int(manifest["metadata"].get("resourceVersion") or 0)


def _place(manifest: Manifest) -> _Place:
    metadata = manifest["metadata"]
    return metadata.get("namespace") or "", metadata["name"]
