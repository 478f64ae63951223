"""The replicas of a model cluster: they elect by their Lease, follow, and are dropped when away.

Only what an operator can tell: who leads, who is in sync, and whether a pod is ready. A log is a
number, its end; whoever joins has the leader's at the next step.
"""

from typing import TYPE_CHECKING, Any

from mailboat_operator.planner.leases import GroupLease, read_lease
from mailboat_operator.resources.names import group_of, ordinal_of, pod_name

if TYPE_CHECKING:
    from model_cluster import ModelCluster

PREFIX = "mailboat.dev/"


class ModelReplicas:
    """What all replicas of a cluster do."""

    def __init__(self, cluster: "ModelCluster") -> None:
        """Begin with no store."""
        self._cluster = cluster
        self.stores: dict[str, dict[str, Any]] = {}
        """Pod's name -> what is on its volume: store_id, end, epoch."""

        self.cut_off: set[str] = set()
        """Pods that nobody reaches: they lead no more, and are dropped."""

        self.leaders: list[tuple[str, int]] = []
        """Who began to lead, in which epoch."""

        self.confirmed: dict[str, int] = {}
        """Group -> how far its log was acknowledged: whoever leads has all of it."""

        self.last: dict[str, dict[str, Any]] = {}
        """Group -> its Lease as it was written last."""

    def store(self, pod: str) -> dict[str, Any]:
        """Return what is on a pod's volume; an empty one gets a name of its own."""
        claim = self._cluster.objects.get(("PersistentVolumeClaim", f"data-{pod}"))
        uid = claim["metadata"]["uid"] if claim is not None else "lost"
        known = self.stores.get(pod)
        if known is None or known["store_id"] != uid:
            known = self.stores[pod] = {"store_id": uid, "end": 0, "epoch": 0}
        return known

    def is_up(self, pod: str) -> bool:
        """Return whether a pod runs a broker that is a replica."""
        live = self._cluster.objects.get(("Pod", pod))
        if live is None or live["metadata"].get("deletionTimestamp"):
            return False
        (entry,) = live["status"].get("containerStatuses") or [{}]
        is_running = "running" in entry.get("state", {}) and entry.get("started")
        return bool(is_running) and self.is_replica(pod)

    def is_replica(self, pod: str) -> bool:
        """Return whether a pod's broker was started as one."""
        return bool(self._cluster.running_config.get(pod, {}).get("leaseName"))

    def serves(self, pod: str) -> bool:
        """Return whether a replica leads, or follows one that does."""
        lease = self._known_lease(group_of(pod))
        if lease is None or lease.problem is not None or lease.holder is None:
            return False
        return pod not in self.cut_off and self._leads_on(lease)

    def _known_lease(self, group: str) -> GroupLease | None:
        """Return a group's Lease; one that was deleted while its leader leads on."""
        lease = self.lease(group)
        last = read_lease(self.last.get(group))
        is_led = lease is None and last is not None and last.holder is not None
        return last if is_led and self._leads_on(last) else lease

    def lease(self, group: str) -> GroupLease | None:
        """Return a group's Lease."""
        return read_lease(self._cluster.objects.get(("Lease", group)))

    def report(self, pod: str) -> dict[str, Any]:
        """Return GET /api/v1/replica of a replica."""
        lease, store = self._known_lease(group_of(pod)), self.store(pod)
        leads = lease is not None and lease.holder == pod and self._leads_on(lease)
        role = "master" if leads else "slave" if self.serves(pod) else "joining"
        peers = [{"ordinal": item, "lag_bytes": 0} for item in lease.in_sync] if lease else []
        said = {"ordinal": ordinal_of(pod), "role": role, "alarm": "", "peers": peers}
        return {**said, "keeps_all": bool(store["epoch"]), "seen": store["epoch"], **store}

    def step(self) -> None:
        """Let every group elect, drop who is away, and take in who is there."""
        for group in self.last:
            self._restore(group)
        for kind, group in list(self._cluster.objects):
            if kind == "Lease":
                self._step_group(group)

    def promote(self, group: str) -> None:
        """Let a person write a Lease that was lost while nobody led."""
        if ("Lease", group) not in self._cluster.objects and group in self.last:
            self._cluster.objects["Lease", group] = self.last[group]
            self._cluster.touch(self.last[group])

    def hand_over(self, pod: str, ordinal: int) -> bool:
        """Let another one lead; says whether it does."""
        lease, target = self.lease(group_of(pod)), pod_name(group_of(pod), ordinal)
        if lease is None or lease.holder != pod or ordinal not in lease.in_sync:
            return False
        if not self.is_up(target):
            return False
        self._lead(lease, target, dict(lease.in_sync))
        return True

    def _restore(self, group: str) -> None:
        """Let the leader write its Lease again."""
        lease = read_lease(self.last[group])
        if lease is not None and lease.holder is not None and self._leads_on(lease):
            self.promote(group)

    def _is_reached(self, pod: str) -> bool:
        return self.is_up(pod) and pod not in self.cut_off

    def _step_group(self, group: str) -> None:
        lease = self.lease(group)
        if lease is None or lease.problem is not None:
            return
        in_sync = dict(lease.in_sync)
        if lease.holder is None or not self._leads_on(lease):
            able = [
                pod
                for ordinal, store in in_sync.items()
                if self._is_reached(pod := pod_name(group, ordinal))
                and self.store(pod)["store_id"] == store
            ]
            if not able:
                return
            if lease.leader is not None and lease.holder != able[0]:
                in_sync = self._without(in_sync, lease.leader, lease.minimum)
            self._lead(lease, able[0], in_sync)
        else:
            self._renew(lease)

    def _leads_on(self, lease: GroupLease) -> bool:
        live = self._cluster.objects.get(("Pod", str(lease.holder)), {})
        uid = live.get("metadata", {}).get("uid")
        return uid == lease.holder_uid and self._is_reached(str(lease.holder))

    def _renew(self, lease: GroupLease) -> None:
        """Write who is in sync; whoever is there gets all that the leader has."""
        assert lease.holder is not None
        leader, group = self.store(lease.holder), lease.name
        leader["end"] += 100
        in_sync = dict(lease.in_sync)
        self.last[group] = self._cluster.objects["Lease", group]
        for ordinal in list(in_sync):
            is_same = self.store(pod_name(group, ordinal))["store_id"] == in_sync[ordinal]
            if not is_same or not self._is_reached(pod_name(group, ordinal)):
                in_sync = self._without(in_sync, ordinal, lease.minimum)
        for pod, _ in list(self._cluster.pods()):
            ordinal = ordinal_of(pod)
            if group_of(pod) == group and ordinal is not None and self._is_reached(pod):
                self.store(pod).update(end=leader["end"], epoch=lease.epoch)
                in_sync[ordinal] = self.store(pod)["store_id"]
        self._write(lease.name, in_sync, lease.holder, lease.epoch)
        # What a member lacks that is away is not acknowledged.
        members = [self.store(pod_name(group, ordinal)) for ordinal in in_sync]
        if len(in_sync) >= lease.minimum:
            self.confirmed[group] = max(
                self.confirmed.get(group, 0), min(store["end"] for store in members)
            )

    def _without(self, in_sync: dict[int, str], ordinal: int, minimum: int) -> dict[int, str]:
        left = {key: value for key, value in in_sync.items() if key != ordinal}
        return left if len(left) >= minimum else in_sync

    def _lead(self, lease: GroupLease, pod: str, in_sync: dict[int, str]) -> None:
        epoch = lease.epoch + 1
        self.leaders.append((pod, epoch))
        assert self.store(pod)["end"] >= self.confirmed.get(lease.name, 0), f"{pod} lacks messages"
        self.store(pod)["epoch"] = epoch
        self._write(lease.name, in_sync, pod, epoch)
        endpoints = self._cluster.objects.get(("EndpointSlice", f"{lease.name}-leader"))
        if endpoints is not None:
            address = self._cluster.objects["Pod", pod]["status"]["podIP"]
            endpoints["endpoints"] = [{"addresses": [address]}]
            endpoints["metadata"]["annotations"][f"{PREFIX}epoch"] = str(epoch)
            self._cluster.touch(endpoints)

    def _write(self, group: str, in_sync: dict[int, str], pod: str, epoch: int) -> None:
        lease = self._cluster.objects["Lease", group]
        uid = self._cluster.objects["Pod", pod]["metadata"]["uid"]
        lease["spec"]["holderIdentity"] = f"{pod}/{uid}/boot"
        annotations = lease["metadata"]["annotations"]
        annotations[f"{PREFIX}epoch"] = str(epoch)
        annotations[f"{PREFIX}renewals"] = str(int(annotations[f"{PREFIX}renewals"]) + 1)
        annotations[f"{PREFIX}in-sync"] = ",".join(
            f"{ordinal}:{store}" for ordinal, store in sorted(in_sync.items())
        )
        self._cluster.touch(lease)
