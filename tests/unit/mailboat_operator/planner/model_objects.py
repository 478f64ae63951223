"""The objects of a model cluster: applied, changed and deleted as an API server does it."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from model_api_server import (
    RefusedError,
    duplicate,
    merge,
    merge_patch,
    refuse_another_class,
    refuse_invalid,
    set_defaults,
)

from mailboat.testing.virtual_time import VirtualTime
from mailboat_operator.planner.actions import Apply, Delete, Evict, Patch

IMMUTABLE = {"serviceName", "selector", "podManagementPolicy", "volumeClaimTemplates"}


class ModelObjects:
    """What an API server keeps of the Broker `orders` and of all that belongs to it."""

    def __init__(self) -> None:
        """Begin with the Broker alone."""
        self.clock = VirtualTime()
        self.version = 1
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.applied: dict[str, dict[str, Any]] = {}
        self.taken_addresses: set[str] = set()
        self.taken_down: list[tuple[str, int]] = []
        self.down_by_us: set[str] = set()
        self.served: set[str] = set()
        self.generation = 1
        self.broker_uid = "uid-of-orders"
        self.deleted = False
        self._last_address = 0

    @property
    def now_s(self) -> float:
        """Return the wall clock, epoch seconds."""
        return self.clock.time()

    def touch(self, item: dict[str, Any]) -> None:
        """Give an object that was changed another version."""
        item["metadata"]["resourceVersion"] = self._next()

    def pods(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each pod with its name."""
        for (kind, name), item in list(self.objects.items()):
            if kind == "Pod":
                yield name, item

    def of_kind(self, kind: str) -> Iterator[dict[str, Any]]:
        """Yield each object of a kind."""
        for (found, _), item in list(self.objects.items()):
            if found == kind:
                yield item

    def names(self) -> set[str]:
        """Return kind and name of everything there is."""
        return {f"{kind}/{name}" for kind, name in self.objects}

    def time(self) -> str:
        """Return the present time as Kubernetes writes it."""
        return datetime.fromtimestamp(int(self.now_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _apply_or_fall_back(self, action: Apply) -> None:
        try:
            self._apply(action.manifest)
        except RefusedError:
            if action.in_the_way is not None:
                self._delete(action.in_the_way)
                return
            if action.fallback is None:
                raise
            self._apply(action.fallback)

    def _apply(self, manifest: dict[str, Any]) -> None:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        key, live = f"{kind}/{name}", self.objects.get((kind, name))
        wanted = duplicate(manifest)
        merged = merge(duplicate(live or {}), self.applied.get(key, {}), wanted, "")
        set_defaults(merged)
        refuse_invalid(merged)
        if kind == "Service":
            refuse_another_class(merged, live)
            self._give_address(merged, live)
        if live is not None and kind == "StatefulSet":
            for field in IMMUTABLE:
                if live["spec"].get(field) != merged["spec"].get(field):
                    raise RefusedError(f"{key}: {field} cannot be changed")
        self.applied[key] = wanted
        if live is None:
            merged["metadata"] |= {"uid": f"uid-{self._next()}", "creationTimestamp": self.time()}
            merged["metadata"]["generation"] = 1
        elif merged["metadata"] == live["metadata"] and all(
            merged.get(part) == live.get(part) for part in ("spec", "data")
        ):
            return
        elif merged.get("spec") != live.get("spec"):
            merged["metadata"]["generation"] += 1
        merged["metadata"]["resourceVersion"] = self._next()
        self.objects[kind, name] = merged

    def _give_address(self, service: dict[str, Any], live: dict[str, Any] | None) -> None:
        asked = service["spec"].get("clusterIP")
        if live is not None:
            service["spec"].setdefault("clusterIP", live["spec"]["clusterIP"])
        elif asked in self.taken_addresses:
            raise RefusedError(f"{asked} is taken")
        elif asked is None:
            self._last_address += 1
            service["spec"]["clusterIP"] = (
                f"10.96.{self._last_address // 200}.{self._last_address % 200 + 1}"
            )

    def _create(self, manifest: dict[str, Any]) -> None:
        key = manifest["kind"], manifest["metadata"]["name"]
        if key not in self.objects:
            made = duplicate(manifest)
            made["metadata"] |= {"uid": f"uid-{self._next()}", "creationTimestamp": self.time()}
            self.touch(made)
            self.objects[key] = made

    def _delete(self, action: Delete) -> None:
        live = self.objects.get((action.kind, action.name))
        if live is None:
            return
        metadata = live["metadata"]
        if metadata["uid"] != action.uid:
            raise RefusedError("another uid")
        if action.resource_version not in (None, metadata["resourceVersion"]):
            raise RefusedError("another resourceVersion")
        if metadata.get("deletionTimestamp"):
            return
        if action.kind == "Pod":
            self._note_restart(live)
        metadata["deletionTimestamp"] = self.time()
        metadata["resourceVersion"] = self._next()
        live["orphan"] = action.orphan

    def _evict_by_budget(self, action: Evict) -> None:
        """Delete a pod unless the budget (maxUnavailable 1, AlwaysAllow) keeps it."""
        pod = self.objects.get(("Pod", action.name))
        budgets = [item for item in self.of_kind("PodDisruptionBudget") if selects(item, pod)]
        if len(budgets) > 1:
            raise RefusedError("more than one PodDisruptionBudget")
        wanted = [
            f"{item['metadata']['name']}-{ordinal}"
            for item in self.of_kind("StatefulSet")
            for ordinal in range(item["spec"]["replicas"])
            if not budgets or selects(budgets[0], item["spec"]["template"])
        ]
        ready = [name for name, item in self.pods() if name in wanted and pod_is_ready(item)]
        if pod is not None and pod_is_ready(pod) and len(ready) < len(wanted):
            raise RefusedError("the pod's disruption budget does not allow it")
        self._delete(Delete("Pod", action.name, action.uid, None, False, action.reason))

    def _patch(self, action: Patch) -> None:
        live = self.objects[action.kind, action.name]
        metadata = live["metadata"]
        if (metadata["uid"], metadata["resourceVersion"]) != (action.uid, action.resource_version):
            raise RefusedError("another uid or resourceVersion")
        patched = merge_patch(duplicate(live), action.changes)
        refuse_invalid(patched)
        patched["metadata"]["resourceVersion"] = self._next()
        if patched.get("spec") != live.get("spec"):
            patched["metadata"]["generation"] = metadata.get("generation", 1) + 1
        self.objects[action.kind, action.name] = patched

    def _note_restart(self, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        self.taken_down.append((name, self.generation))
        if pod["metadata"]["uid"] in self.served:
            # Also one that was between two runs: it would have served again.
            self.down_by_us.add(name)

    def _collect_garbage(self) -> None:
        """Remove what has owners of which none exists any more, until there is nothing."""
        while True:
            uids = {item["metadata"].get("uid") for item in self.objects.values()}
            uids |= set() if self.deleted else {self.broker_uid}
            lost = [
                key
                for key, item in self.objects.items()
                if (owners := item["metadata"].get("ownerReferences"))
                and not uids & {owner["uid"] for owner in owners}
            ]
            if not lost:
                return
            for kind, name in lost:
                self._forget(kind, name)

    def _forget(self, kind: str, name: str) -> dict[str, Any]:
        self.applied.pop(f"{kind}/{name}", None)
        return self.objects.pop((kind, name), {})

    def _finish_deletion(self, key: tuple[str, str], item: dict[str, Any]) -> None:
        kind, name = key
        if kind == "PersistentVolumeClaim" and ("Pod", name.removeprefix("data-")) in self.objects:
            return
        del self.objects[key]
        self.applied.pop(f"{kind}/{name}", None)
        if kind == "Pod":
            self._collect_garbage()
        if kind == "StatefulSet" and not item.get("orphan"):
            self._collect_garbage()
        elif kind == "StatefulSet":
            for other in self.objects.values():
                self._disown(other, item)

    def _disown(self, item: dict[str, Any], owner: dict[str, Any]) -> None:
        metadata, uid = item["metadata"], owner["metadata"]["uid"]
        owners = metadata.get("ownerReferences", [])
        left = [reference for reference in owners if reference["uid"] != uid]
        if left != owners:
            metadata["ownerReferences"] = left

    def _own(self, item: dict[str, Any], owner: dict[str, Any]) -> None:
        metadata = item["metadata"]
        reference = {"kind": owner["kind"], "uid": owner["metadata"]["uid"]}
        if reference not in metadata.get("ownerReferences", []):
            metadata["ownerReferences"] = [*metadata.get("ownerReferences", []), reference]
            if item["kind"] == "PersistentVolumeClaim":
                metadata["resourceVersion"] = self._next()

    def _next(self) -> str:
        self.version += 1
        return str(self.version)


def selects(budget: dict[str, Any], pod: dict[str, Any] | None) -> bool:
    """Return whether a disruption budget is about a pod."""
    labels = ((pod or {}).get("metadata") or {}).get("labels") or {}
    return budget["spec"]["selector"]["matchLabels"].items() <= labels.items()


def pod_is_ready(pod: dict[str, Any]) -> bool:
    """Return whether the pod's Ready condition is true."""
    return any(
        item["type"] == "Ready" and item["status"] == "True"
        for item in pod["status"].get("conditions", [])
    )
