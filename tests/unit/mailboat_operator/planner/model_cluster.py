"""A cluster in memory: an API server, the StatefulSet controller, a kubelet and brokers.

Only as much as a planner can tell: server-side apply by one field manager (what it no longer gives
goes), defaults, generations, preconditions, controllers that act on `step()`, and pods that start,
become ready or cannot. Whatever was done is counted. The API server itself is in `model_objects`.
"""

from collections.abc import Callable
from typing import Any

from model_api_server import RefusedError, duplicate
from model_objects import ModelObjects, pod_is_ready
from model_replicas import ModelReplicas

from mailboat.config import role_settings
from mailboat.config.fields import to_text
from mailboat.config.properties import parse_properties
from mailboat.testing.virtual_time import START_WALL_MS
from mailboat_operator.crds.broker import Broker, parse_broker
from mailboat_operator.crds.name_server import NameServer
from mailboat_operator.planner.actions import (
    Action,
    Apply,
    ConfigureBroker,
    CopyDeclarations,
    Create,
    CreateSecret,
    Delete,
    Evict,
    HandOver,
    Notify,
    Patch,
    Plan,
    ResizeClaim,
    SetLeaseMinimum,
    TakeUpLease,
)
from mailboat_operator.planner.snapshot import BrokerSnapshot, Children, Observation
from mailboat_operator.resources.labels import digest

STEP_S = 5.0
START_S = START_WALL_MS / 1000
BROKEN_IMAGE = "registry.example/broken:1"
REPLICATION_SECRET = "orders-replication"
STORAGE_CLASS = {"metadata": {"name": "standard"}, "allowVolumeExpansion": True}
LEASE_KEYS = {"leaseName": "", "leaseSeconds": "6", "podName": "", "podUid": ""}
BROKER_KEYS = LEASE_KEYS | {
    key: to_text(item.default) for key, item in role_settings("broker").items()
}
"""Every key of a broker of this version, with its default."""


class ModelCluster(ModelObjects):
    """One Broker `orders` in one namespace."""

    def __init__(self, spec: dict[str, Any]) -> None:
        """Begin with the Broker alone."""
        super().__init__()
        self.running_config: dict[str, dict[str, str]] = {}
        self.name_server: NameServer | None = None
        self.default_image = "mailboat:1"
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
        self.full: set[str] = set()
        """Pods whose volume takes no more messages."""

        self.unread: dict[str, int] = {}
        self.topics: dict[str, set[str]] = {}
        self.copied: set[str] = set()
        self.newest_s: float | None = None
        self.collect_s = 0.0
        self.collected: dict[str, tuple[float, Observation]] = {}
        self.writes: list[Action | str] = []
        self.events: list[Notify] = []
        self.spec = spec
        self.status: dict[str, Any] = {}
        self.replicas = ModelReplicas(self)
        self.files: dict[str, str] = {}
        """Pod's uid -> the file that its container was started with last."""

        self.secrets: set[str] = set()
        self.refused: tuple[str, ...] = ()
        """Steps that fail, by their names."""

        self.has_endpoints = False
        """Whether Kubernetes makes Endpoints and slices of each Service that selects pods."""

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
            "leases": "Lease",
            "endpoint_slices": "EndpointSlice",
            "endpoints": "Endpoints",
            "roles": "Role",
            "role_bindings": "RoleBinding",
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
            monotonic_s=self.clock.monotonic(),
            fresh_s=self.fresh_s,
            http_peers=self.http_peers,
            copied=self._forget_copied(),
        )

    def carry_out(self, plan: Plan, *, actions: int | None = None) -> int:
        """Do what a plan says; die after so many writes of objects. Returns how many were done."""
        done = 0
        for step in plan.steps:
            for action in () if step.name in self.refused else step.actions:
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
            case Create():
                self._create(action.manifest)
            case CreateSecret():
                self.secrets.add(action.manifest["metadata"]["name"])
            case TakeUpLease():
                # Every Lease is seen here, whatever its labels.
                marks = action.manifest["metadata"]
                lease = self.objects.get(("Lease", marks["name"]))
                if lease is not None:
                    lease["metadata"]["ownerReferences"] = marks["ownerReferences"]
                    self.touch(lease)
            case SetLeaseMinimum():
                lease = self.objects["Lease", action.name]
                assert lease["metadata"]["uid"] == action.uid
                annotations = lease["metadata"]["annotations"]
                annotations["mailboat.dev/min-in-sync"] = str(action.minimum)
                self.touch(lease)
            case HandOver():
                if not any(self.replicas.hand_over(action.pod, item) for item in action.ordinals):
                    raise RefusedError(f"none of {action.ordinals} can lead")
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
        self.clock.advance(STEP_S)
        for key, item in list(self.objects.items()):
            if item["metadata"].get("deletionTimestamp"):
                self._finish_deletion(key, item)
        for stateful_set in list(self.of_kind("StatefulSet")):
            self._run_stateful_set(stateful_set)
        if self.has_endpoints:
            self._run_endpoints()
        self.replicas.step()
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

    # --- the controllers, the kubelet and the brokers ------------------------------------------

    def _run_endpoints(self) -> None:
        """Make what a Service with a selector leads to; leave it behind when that is gone."""
        for service in list(self.of_kind("Service")):
            name = service["metadata"]["name"]
            labels = service["metadata"]["labels"] | {"kubernetes.io/service-name": name}
            for kind, made in (("Endpoints", name), ("EndpointSlice", f"{name}-x7k2p")):
                if service["spec"].get("selector") and (kind, made) not in self.objects:
                    metadata = {"name": made, "labels": labels, "uid": f"uid-{self._next()}"}
                    self.objects[kind, made] = {"kind": kind, "metadata": metadata}
                    self.touch(self.objects[kind, made])

    def _run_stateful_set(self, stateful_set: dict[str, Any]) -> None:
        metadata, spec = stateful_set["metadata"], stateful_set["spec"]
        if metadata.get("deletionTimestamp"):
            return
        revision = f"{metadata['name']}-{digest(spec['template'])}"
        stateful_set["status"] = {
            "observedGeneration": metadata["generation"],
            "updateRevision": revision,
        }
        for ordinal in range(spec["replicas"]):
            self._keep_pod(stateful_set, f"{metadata['name']}-{ordinal}", revision)
        for name, _ in list(self.pods()):
            group, _, ordinal = name.rpartition("-")
            if group == metadata["name"] and int(ordinal) >= spec["replicas"]:
                policy = spec["persistentVolumeClaimRetentionPolicy"]
                claim = ("PersistentVolumeClaim", f"data-{name}")
                self._condemn(name, claim, policy["whenScaled"])

    def _keep_pod(self, stateful_set: dict[str, Any], name: str, revision: str) -> None:
        """Make what is missing of one pod and its claim."""
        spec, claim = stateful_set["spec"], ("PersistentVolumeClaim", f"data-{name}")
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
                "podIP": f"10.1.{self.version // 200}.{self.version % 200 + 1}",
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
        elif is_new(pod) and self._lacks_mount(pod):
            self._set_state(pod, {"waiting": {"reason": "ContainerCreating"}}, started=False)
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
            if self.replicas.is_replica(name) and not self.replicas.serves(name):
                self._set_ready(pod, False)
                return
            self._set_ready(pod, True)
            self.down_by_us.discard(name)
            self.served.add(metadata["uid"])

    def _lacks_mount(self, pod: dict[str, Any]) -> bool:
        is_lost = any(
            ("ConfigMap", volume["configMap"]["name"]) not in self.objects
            for volume in pod["spec"]["volumes"]
            if "configMap" in volume
        )
        return is_lost or (mounts_secret(pod) and REPLICATION_SECRET not in self.secrets)

    def _start_broker(self, name: str, pod: dict[str, Any], image: str) -> None:
        """Start from the file: an unknown key is the end of an old broker, and no other one's."""
        config = self.objects.get(("ConfigMap", name.rpartition("-")[0]))
        uid = pod["metadata"]["uid"]
        # A file that is mounted stays when its ConfigMap goes.
        file = pod["spec"]["containers"][0]["command"][-1].rpartition("/")[2]
        if config is not None and file not in config["data"]:
            self._end_broker(pod)
            return
        text = config["data"][file] if config else self.files.get(uid, "")
        self.files[uid] = text
        in_file = {item.key: item.value for item in parse_properties(text)}
        known = self.keys_of_image.get(image, frozenset(BROKER_KEYS))
        if image in self.keys_of_image and in_file.keys() - known:
            self._end_broker(pod)
            return
        self._set_state(pod, {"running": {}}, started=False)
        values = BROKER_KEYS | in_file
        self.running_config[name] = {key: values.get(key, "") for key in known}

    def _end_broker(self, pod: dict[str, Any]) -> None:
        """Let it end with what it cannot start with."""
        self._set_state(pod, {"waiting": {"reason": "CrashLoopBackOff"}}, started=False)
        last = {"terminated": {"exitCode": 3, "reason": "Error"}}
        pod["status"]["containerStatuses"][0]["lastState"] = last

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
        is_up = self.replicas.is_up(name)
        serves = (pod_is_ready(pod) or is_up) and name not in self.unreachable
        registered = name not in self.unregistered
        if serves:
            self.silent_since_s.pop(name, None)
        else:
            self.silent_since_s.setdefault(name, self.clock.monotonic())
        addresses = self.running_config.get(name, {}).get("namesrvAddr", "")
        return Observation(
            pod_uid=pod["metadata"]["uid"],
            seen_monotonic_s=self.clock.monotonic() if serves else None,
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
            replica=self.replicas.report(name) if serves and is_up else None,
        )

    def _retention(self, name: str) -> dict[str, Any]:
        newest_ms = -1 if self.newest_s is None else int(self.newest_s * 1000)
        return {
            "unread_bytes": self.unread.get(name, 0),
            "active": {"reject_writes": name in self.full},
            "segments": [{"last_timestamp_ms": newest_ms}],
        }


def is_new(pod: dict[str, Any]) -> bool:
    """Return whether the pod's node has yet to make its container."""
    (entry,) = pod["status"].get("containerStatuses") or [{}]
    waiting = entry.get("state", {}).get("waiting", {})
    return not entry or waiting.get("reason") == "ContainerCreating"


def mounts_secret(pod: dict[str, Any]) -> bool:
    """Return whether a pod waits for the Secret of its replicas; those of users are all there."""
    mounted = [volume.get("secret", {}) for volume in pod["spec"]["volumes"]]
    return any(secret.get("secretName") == REPLICATION_SECRET for secret in mounted)


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
            cluster.clock.advance(60.0)
        if quiet > 4:
            return number
    raise AssertionError(f"no rest: the last writes were {cluster.writes[-5:]}")
