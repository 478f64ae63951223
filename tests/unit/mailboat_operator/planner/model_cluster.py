"""A cluster in memory: an API server, the StatefulSet controller, a kubelet and brokers.

Only as much as a planner can tell: server-side apply by one field manager (what it no longer gives
goes), defaults, generations, preconditions, controllers that act on `step()`, and pods that start,
become ready or cannot. Whatever was done is counted.
"""

import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from mailboat.config import role_settings
from mailboat.config.fields import to_text
from mailboat.config.properties import parse_properties
from mailboat_operator.crds.broker import Broker, parse_broker
from mailboat_operator.crds.name_server import NameServer
from mailboat_operator.crds.quantity import parse_quantity
from mailboat_operator.planner.actions import (
    Action,
    Apply,
    ConfigureBroker,
    CopyDeclarations,
    Delete,
    Evict,
    Notify,
    Patch,
    Plan,
    ResizeClaim,
)
from mailboat_operator.planner.snapshot import BrokerSnapshot, Children, Observation
from mailboat_operator.resources.labels import digest

STEP_S = 5.0
START_S = 1_700_000_000.0
BROKEN_IMAGE = "registry.example/broken:1"
STORAGE_CLASS = {"metadata": {"name": "standard"}, "allowVolumeExpansion": True}
KEYS = {
    "containers": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "ownerReferences": "uid",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
BROKER_KEYS = {key: to_text(item.default) for key, item in role_settings("broker").items()}
"""Every key of a broker of this version, with its default."""

AMOUNTS = {"1024Mi": "1Gi", "0.5": "500m", "8192Mi": "8Gi"}
IMMUTABLE = {"serviceName", "selector", "podManagementPolicy", "volumeClaimTemplates"}


class RefusedError(Exception):
    """The API server does not do it."""


class ModelCluster:
    """One Broker `orders` in one namespace."""

    def __init__(self, spec: dict[str, Any]) -> None:
        """Begin with the Broker alone."""
        self.now_s = START_S
        self.version = 1
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.applied: dict[str, dict[str, Any]] = {}
        self.running_config: dict[str, dict[str, str]] = {}
        self.name_server: NameServer | None = None
        self.default_image = "mailboat:1"
        self.taken_addresses: set[str] = set()
        self.unreachable: set[str] = set()
        self.silent_since_s: dict[str, float] = {}
        self.unregistered: set[str] = set()
        self.lost_name_servers: set[tuple[str, str]] = set()
        self.rivals: dict[str, str] = {}
        """Pod's name -> address of the broker that has its name."""

        self.crashing: set[str] = set()
        self.unschedulable = False
        self.http_peers: tuple[dict[str, Any], ...] | None = None
        self.keys_of_image: dict[str, frozenset[str]] = {}
        """Image of old brokers -> the keys that they take; with any other one they end."""

        self.fresh_s = 60.0
        self.unread: dict[str, int] = {}
        self.topics: dict[str, set[str]] = {}
        self.copied: set[str] = set()
        self.newest_s: float | None = None
        self.collect_s = 0.0
        self.collected: dict[str, tuple[float, Observation]] = {}
        self.writes: list[Action | str] = []
        self.events: list[Notify] = []
        self.taken_down: list[tuple[str, int]] = []
        self.down_by_us: set[str] = set()
        self.served: set[str] = set()
        self.spec = spec
        self.generation = 1
        self.status: dict[str, Any] = {}
        self.broker_uid = "uid-of-orders"
        self.deleted = False
        self._last_address = 0

    # --- what the operator sees and does -------------------------------------------------------

    def broker(self) -> Broker:
        """Return the Broker as the API server has it."""
        metadata: dict[str, Any] = {
            "name": "orders",
            "namespace": "shop",
            "uid": self.broker_uid,
            "generation": self.generation,
            "resourceVersion": str(self.version),
        }
        if self.deleted:
            metadata["deletionTimestamp"] = self.time()
        return parse_broker({"metadata": metadata, "spec": self.spec, "status": self.status})

    def snapshot(self) -> BrokerSnapshot:
        """Return what the operator knows now; later changes do not show in it."""
        kinds = {
            "stateful_sets": "StatefulSet",
            "pods": "Pod",
            "claims": "PersistentVolumeClaim",
            "services": "Service",
            "config_maps": "ConfigMap",
            "disruption_budgets": "PodDisruptionBudget",
            "service_accounts": "ServiceAccount",
            "network_policies": "NetworkPolicy",
        }
        children = {
            field: {
                name: duplicate(item)
                for (kind, name), item in self.objects.items()
                if kind == wanted
            }
            for field, wanted in kinds.items()
        }
        return BrokerSnapshot(
            resource=self.broker(),
            children=Children(**children),
            storage_classes={"standard": STORAGE_CLASS},
            name_server=self.name_server,
            observations={name: self._collected(name, pod) for name, pod in self.pods()},
            default_image=self.default_image,
            now_s=self.now_s,
            monotonic_s=self.now_s - START_S,
            fresh_s=self.fresh_s,
            http_peers=self.http_peers,
            copied=self._forget_copied(),
        )

    def carry_out(self, plan: Plan, *, actions: int | None = None) -> int:
        """Do what a plan says; die after so many writes of objects. Returns how many were done."""
        done = 0
        for step in plan.steps:
            for action in step.actions:
                if actions is not None and done >= actions:
                    return done
                done += not isinstance(action, Notify)
                try:
                    self.act(action)
                except RefusedError:
                    break
        if (actions is None or done < actions) and plan.status != self.status:
            self.status = duplicate(plan.status)
            self.writes.append("status")
        return done

    def act(self, action: Action) -> None:
        """Do one thing."""
        if isinstance(action, Notify):
            self.events.append(action)
            return
        self.writes.append(action)
        match action:
            case Apply():
                self._apply_or_fall_back(action)
            case Delete():
                self._delete(action)
            case Evict():
                self._evict_by_budget(action)
            case Patch():
                self._patch(action)
            case ConfigureBroker():
                self.running_config[action.pod] |= action.values
            case CopyDeclarations():
                known = [self.topics.get(pod, set()) for pod in action.sources]
                self.topics.setdefault(action.pod, set()).update(set.intersection(*known))
                self.copied.add(action.pod.rpartition("-")[0])
            case ResizeClaim():
                claim = self.objects["PersistentVolumeClaim", action.name]
                size = str(action.size_bytes)
                claim["spec"]["resources"]["requests"]["storage"] = size
                claim["status"]["capacity"]["storage"] = size
            case _:
                raise AssertionError(f"a Broker plans no {action}")

    # --- what happens without it ---------------------------------------------------------------

    def change(self, **spec: Any) -> None:
        """Let the user change the spec."""
        if any(self.spec.get(key) != value for key, value in spec.items()):
            self.spec = self.spec | spec
            self.generation += 1

    def step(self) -> None:
        """Let every controller act once, and time pass."""
        self.now_s += STEP_S
        for key, item in list(self.objects.items()):
            if item["metadata"].get("deletionTimestamp"):
                self._finish_deletion(key, item)
        for stateful_set in list(self.of_kind("StatefulSet")):
            self._run_stateful_set(stateful_set)
        for name, pod in list(self.pods()):
            self._run_pod(name, pod)

    def evict(self, name: str) -> None:
        """Let a node's drain take a pod."""
        self.objects.pop(("Pod", name), None)

    def restart(self, name: str, *, code: int = 137, reason: str = "OOMKilled") -> None:
        """Let a pod's container end; the kubelet has it back at the next step."""
        pod = self.objects.get(("Pod", name))
        (entry,) = (pod or {}).get("status", {}).get("containerStatuses") or [{}]
        if pod is not None and "running" in entry.get("state", {}):
            last = {"terminated": {"exitCode": code, "reason": reason}}
            self._set_state(pod, {"waiting": {"reason": "CrashLoopBackOff"}}, started=False)
            entry = pod["status"]["containerStatuses"][0]
            entry |= {"lastState": last, "restartCount": entry["restartCount"] + 1}

    def reboot(self) -> None:
        """Let the node that all pods run on begin anew."""
        for name, _ in list(self.pods()):
            self.restart(name, code=255, reason="Unknown")

    def remove(self, kind: str, name: str) -> None:
        """Let a person delete an object and leave what belonged to it (`--cascade=orphan`)."""
        item = self._forget(kind, name)
        for other in self.objects.values() if item else ():
            self._disown(other, item)

    def remove_with_dependents(self, kind: str, name: str) -> None:
        """Let a person delete an object, and Kubernetes what belonged to nobody else."""
        self._forget(kind, name)
        self._collect_garbage()

    def remove_broker(self) -> None:
        """Let a person delete the Broker, with no operator about."""
        self.deleted = True
        self._collect_garbage()

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

    # --- the API server ------------------------------------------------------------------------

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
        wanted = [
            f"{item['metadata']['name']}-{ordinal}"
            for item in self.of_kind("StatefulSet")
            for ordinal in range(item["spec"]["replicas"])
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

    # --- the StatefulSet controller, the kubelet and the brokers -------------------------------

    def _run_stateful_set(self, stateful_set: dict[str, Any]) -> None:
        metadata, spec = stateful_set["metadata"], stateful_set["spec"]
        if metadata.get("deletionTimestamp"):
            return
        revision = f"{metadata['name']}-{digest(spec['template'])}"
        stateful_set["status"] = {
            "observedGeneration": metadata["generation"],
            "updateRevision": revision,
        }
        name = f"{metadata['name']}-0"
        claim = ("PersistentVolumeClaim", f"data-{name}")
        if spec["replicas"] == 0:
            self._condemn(name, claim, spec["persistentVolumeClaimRetentionPolicy"]["whenScaled"])
            return
        if claim not in self.objects:
            template = duplicate(spec["volumeClaimTemplates"][0])
            size = template["spec"]["resources"]["requests"]["storage"]
            template["metadata"] |= {
                "name": claim[1],
                "uid": f"uid-{self._next()}",
                "resourceVersion": self._next(),
                "creationTimestamp": self.time(),
            }
            template["spec"]["storageClassName"] = "standard"
            template["status"] = {"phase": "Bound", "capacity": {"storage": size}}
            self.objects[claim] = template
        if ("Pod", name) not in self.objects:
            self._make_pod(name, spec["template"], revision)
        self._own(self.objects["Pod", name], stateful_set)
        if spec["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Delete":
            self._own(self.objects[claim], stateful_set)
        else:
            self._disown(self.objects[claim], stateful_set)

    def _condemn(self, name: str, claim: tuple[str, str], when_scaled: str) -> None:
        """Take away a pod beyond the replicas, which then owns its claim if that is to go."""
        pod = self.objects.get(("Pod", name))
        if pod is None or pod["metadata"].get("deletionTimestamp"):
            return
        if when_scaled == "Delete" and claim in self.objects:
            self._own(self.objects[claim], pod)
        pod["metadata"]["deletionTimestamp"] = self.time()

    def _make_pod(self, name: str, template: dict[str, Any], revision: str) -> None:
        pod = duplicate(template)
        pod["spec"]["volumes"].append(
            {"name": "data", "persistentVolumeClaim": {"claimName": f"data-{name}"}}
        )
        labels = pod["metadata"]["labels"] | {"controller-revision-hash": revision}
        pod["metadata"] |= {
            "name": name,
            "uid": f"uid-{self._next()}",
            "resourceVersion": self._next(),
            "labels": labels,
            "creationTimestamp": self.time(),
        }
        self.objects["Pod", name] = {
            "kind": "Pod",
            **pod,
            "status": {
                "phase": "Pending",
                "startTime": self.time(),
                "conditions": [self._condition("Ready", "False")],
            },
        }

    def _run_pod(self, name: str, pod: dict[str, Any]) -> None:
        """Take a pod one step on: Pending, starting, ready; or into its trouble."""
        metadata, status = pod["metadata"], pod["status"]
        if metadata.get("deletionTimestamp"):
            self._set_ready(pod, False)
            return
        container = pod["spec"]["containers"][0]
        if self.unschedulable and not status.get("containerStatuses"):
            status["conditions"] = [
                self._condition("Ready", "False"),
                self._condition("PodScheduled", "False")
                | {
                    "reason": "Unschedulable",
                    "message": "0/1 nodes are available",
                },
            ]
        elif container["image"] == BROKEN_IMAGE:
            self._set_state(pod, {"waiting": {"reason": "ImagePullBackOff"}}, started=False)
        elif name in self.crashing:
            waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
            self._set_state(pod, waiting, started=False)
            last = {"terminated": {"exitCode": 1, "reason": "Error"}}
            entry = status["containerStatuses"][0]
            entry |= {"lastState": last, "restartCount": entry["restartCount"] + 1}
        elif "running" not in (status.get("containerStatuses") or [{}])[0].get("state", {}):
            self._start_broker(name, pod, container["image"])
        else:
            self._set_state(pod, {"running": {}}, started=True)
            self._set_ready(pod, True)
            self.down_by_us.discard(name)
            self.served.add(metadata["uid"])

    def _start_broker(self, name: str, pod: dict[str, Any], image: str) -> None:
        """Start from the file: an unknown key is the end of an old broker, and no other one's."""
        config = self.objects.get(("ConfigMap", name.rpartition("-")[0]))
        text = config["data"]["broker.conf"] if config else ""
        in_file = {item.key: item.value for item in parse_properties(text)}
        known = self.keys_of_image.get(image, frozenset(BROKER_KEYS))
        if image in self.keys_of_image and in_file.keys() - known:
            self._set_state(pod, {"waiting": {"reason": "CrashLoopBackOff"}}, started=False)
            last = {"terminated": {"exitCode": 3, "reason": "Error"}}
            pod["status"]["containerStatuses"][0]["lastState"] = last
            return
        self._set_state(pod, {"running": {}}, started=False)
        values = BROKER_KEYS | in_file
        self.running_config[name] = {key: values.get(key, "") for key in known}

    def _set_state(self, pod: dict[str, Any], state: dict[str, Any], *, started: bool) -> None:
        name = pod["spec"]["containers"][0]["name"]
        (before,) = pod["status"].get("containerStatuses") or [{}]
        kept = {"restartCount": 0} | {
            key: before[key] for key in ("restartCount", "lastState") if key in before
        }
        entry = kept | {"name": name, "state": state, "started": started}
        pod["status"]["containerStatuses"] = [entry]
        if not started:
            self._set_ready(pod, False)

    def _set_ready(self, pod: dict[str, Any], is_ready: bool) -> None:
        if pod_is_ready(pod) != is_ready:
            condition = self._condition("Ready", "True" if is_ready else "False")
            pod["status"]["conditions"] = [condition]

    def _condition(self, name: str, status: str) -> dict[str, Any]:
        return {"type": name, "status": status, "lastTransitionTime": self.time()}

    def _forget_copied(self) -> frozenset[str]:
        """Return what was copied and is not in the status yet, as the reconciler keeps it."""
        entries = self.status.get("brokers", [])
        self.copied &= {entry["name"] for entry in entries if entry.get("topics")}
        return frozenset(self.copied)

    def _collected(self, name: str, pod: dict[str, Any]) -> Observation:
        """Return what the broker said when it was last asked: now, unless that is seldom."""
        seen_s, known = self.collected.get(name, (-1e9, None))
        is_same = known is not None and known.pod_uid == pod["metadata"]["uid"]
        if known is None or not is_same or self.now_s - seen_s >= self.collect_s:
            known = self._observe(name, pod)
            # The real one asks again soon where something is not as it should be.
            self.collected[name] = (self.now_s if known.error is None else -1e9, known)
        return known

    def _observe(self, name: str, pod: dict[str, Any]) -> Observation:
        serves = pod_is_ready(pod) and name not in self.unreachable
        registered = name not in self.unregistered
        if serves:
            self.silent_since_s.pop(name, None)
        else:
            self.silent_since_s.setdefault(name, self.now_s - START_S)
        addresses = self.running_config.get(name, {}).get("namesrvAddr", "")
        return Observation(
            pod_uid=pod["metadata"]["uid"],
            seen_monotonic_s=self.now_s - START_S if serves else None,
            error=None if serves else "connection refused",
            broker={
                "phase": "serving",
                "version": "1.0",
                "name_servers": [
                    {
                        "address": address,
                        "registered": registered
                        and name not in self.rivals
                        and not {("*", address), (name, address)} & self.lost_name_servers,
                        "held_by": self.rivals.get(name),
                    }
                    for address in addresses.split(";")
                    if address
                ],
            }
            if serves
            else None,
            config=dict(self.running_config[name]) if serves else None,
            retention=self._retention(name) if serves else None,
            kubelet=None,
            samples=(),
            silent_since_monotonic_s=self.silent_since_s.get(name),
        )

    def _retention(self, name: str) -> dict[str, Any]:
        newest_ms = -1 if self.newest_s is None else int(self.newest_s * 1000)
        return {
            "unread_bytes": self.unread.get(name, 0),
            "segments": [{"last_timestamp_ms": newest_ms}],
        }


def duplicate(value: Any) -> Any:
    """Copy a manifest with all that is in it."""
    return pickle.loads(pickle.dumps(value))


def pod_is_ready(pod: dict[str, Any]) -> bool:
    """Return whether the pod's Ready condition is true."""
    return any(
        item["type"] == "Ready" and item["status"] == "True"
        for item in pod["status"].get("conditions", [])
    )


def merge(live: Any, before: Any, wanted: Any, name: str) -> Any:
    """Merge as server-side apply does for the one manager: what it gave before and not now goes."""
    if isinstance(wanted, dict):
        live = live if isinstance(live, dict) else {}
        before = before if isinstance(before, dict) else {}
        for key in set(before) - set(wanted):
            live.pop(key, None)
        for key, value in wanted.items():
            live[key] = merge(live.get(key), before.get(key), value, key)
        return live
    key = KEYS.get(name) or (
        "containerPort"
        if name == "ports" and wanted and "containerPort" in wanted[0]
        else "port"
        if name == "ports"
        else None
    )
    if not isinstance(wanted, list) or key is None:
        return AMOUNTS.get(wanted, wanted) if isinstance(wanted, str) else wanted
    old = {item[key]: item for item in before or []}
    rest = {item[key]: item for item in live or [] if isinstance(item, dict)}
    merged = [merge(rest.pop(item[key], None), old.get(item[key]), item, "") for item in wanted]
    return merged + [item for found, item in rest.items() if found not in old]


def merge_patch(live: Any, patch: Any) -> Any:
    """Change a value as a JSON merge patch (RFC 7386) says."""
    if not isinstance(patch, dict):
        return duplicate(patch)
    merged = dict(live) if isinstance(live, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def refuse_invalid(manifest: dict[str, Any]) -> None:
    """Refuse what the API server's validation refuses: fields that exclude each other."""
    spec = manifest.get("spec", {})
    if {"minAvailable", "maxUnavailable"} <= set(spec):
        raise RefusedError("minAvailable and maxUnavailable cannot both be set")
    if manifest["kind"] != "StatefulSet":
        return
    if spec["updateStrategy"]["type"] == "OnDelete" and "rollingUpdate" in spec["updateStrategy"]:
        raise RefusedError("rollingUpdate is only allowed for updateStrategy RollingUpdate")
    pod = spec["template"]["spec"]
    seccomp = pod["securityContext"]["seccompProfile"]
    if seccomp["type"] != "Localhost" and "localhostProfile" in seccomp:
        raise RefusedError("localhostProfile is for the type Localhost")
    for volume in pod["volumes"]:
        if len(volume) > 2:
            raise RefusedError(f"volume {volume['name']} has more than one source")
    for container in pod["containers"]:
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            if len({"exec", "grpc", "httpGet", "tcpSocket"} & set(container[name])) != 1:
                raise RefusedError(f"{name} needs one handler")
        for variable in container.get("env", []):
            if variable.get("value") and "valueFrom" in variable:
                raise RefusedError(f"env {variable['name']} has value and valueFrom")
        resources = container.get("resources", {})
        for name, limit in resources.get("limits", {}).items():
            asked = resources.get("requests", {}).get(name)
            if asked is not None and parse_quantity(asked) > parse_quantity(limit):
                raise RefusedError(f"the request of {name} is above its limit")


def set_defaults(manifest: dict[str, Any]) -> None:
    """Add what the API server adds."""
    spec = manifest.get("spec", {})
    if manifest["kind"] == "Service":
        spec |= {"sessionAffinity": "None", "internalTrafficPolicy": "Cluster"}
    if manifest["kind"] != "StatefulSet":
        return
    for claim in spec.get("volumeClaimTemplates", []):
        claim["spec"]["volumeMode"] = "Filesystem"
        claim["status"] = {"phase": "Pending"}
        amounts = claim["spec"]["resources"]["requests"]
        amounts["storage"] = AMOUNTS.get(amounts["storage"], amounts["storage"])
    pod = spec["template"]["spec"]
    pod |= {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst"}
    for container in pod["containers"]:
        container["terminationMessagePath"] = "/dev/termination-log"
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            container[probe]["successThreshold"] = 1
            container[probe]["httpGet"]["scheme"] = "HTTP"
    for volume in pod["volumes"]:
        if "configMap" in volume:
            volume["configMap"]["defaultMode"] = 420


def settle(
    cluster: ModelCluster,
    plan: Callable[[BrokerSnapshot], Plan],
    *,
    check: Callable[[ModelCluster], None] = lambda _: None,
    rounds: int = 200,
) -> int:
    """Let operator and controllers work until neither changes anything; returns the rounds."""
    quiet = 0
    for number in range(rounds):
        before = len(cluster.writes)
        cluster.carry_out(plan(cluster.snapshot()))
        check(cluster)
        cluster.step()
        quiet = quiet + 1 if len(cluster.writes) == before else 0
        if quiet == 2:
            # Longer than any pause that the planner makes on purpose.
            cluster.now_s += 60.0
        if quiet > 4:
            return number
    raise AssertionError(f"no rest: the last writes were {cluster.writes[-5:]}")
