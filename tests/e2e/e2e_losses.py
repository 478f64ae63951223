"""What can be lost of a group of replicas: processes, pods, volumes, and parts of Kubernetes.

Each function does it and returns once the group should be whole again by itself.
`lose_one_after_another` takes the times.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Final

from e2e_failover import (
    GROUP,
    SELECTOR,
    Clients,
    Seen,
    epoch,
    holder,
    signal_process,
    told,
    wait_another_leader,
    wait_process_anew,
)
from e2e_kube import Namespace, wait_until
from e2e_nodes import control_plane, frozen
from e2e_resources import BROKER, wait_replicated
from real_time import IS_TIMED

TURNS: Final = int(os.environ.get("MAILBOAT_TEST_LOSSES", "1"))
"""How often everything happens."""

_CHOSEN: Final = frozenset(os.environ.get("MAILBOAT_TEST_LOSS", "").split())
"""The only ones that happen, where there are any."""

_AWAY_S: Final = 30.0
_HEAL_S: Final = 180.0


def lose_one_after_another(
    namespace: Namespace,
    clients: Clients,
    limits_s: Mapping[Callable[[Namespace], None], float],
    prepare: Callable[[Namespace], None] = lambda _: None,
) -> None:
    """Lose one thing after another under traffic; the group is whole again each time.

    `prepare` comes before each.

    Nothing that was acknowledged is missing in the end. Where times count, no send waited for
    longer than the limit of what was lost.
    """
    seen: dict[str, list[Seen]] = {}
    for _ in range(TURNS):
        for lose in limits_s:
            if _CHOSEN and lose.__name__ not in _CHOSEN:
                continue
            prepare(namespace)
            clients.start_sending()
            lose(namespace)
            clients.wait_sent(50)
            one = clients.stop_sending()
            print(told([one], lose.__name__), one.failures, flush=True)
            seen.setdefault(lose.__name__, []).append(one)
            wait_replicated(namespace, _HEAL_S)
            forget_restarts(namespace)
            wait_replicated(namespace, _HEAL_S)
    clients.check_history()
    for name, all_of_one in seen.items():
        print(told(all_of_one, name), flush=True)
    late = {
        lose.__name__: one.longest_gap_s
        for lose, limit_s in limits_s.items()
        for one in seen.get(lose.__name__, ())
        if one.longest_gap_s > limit_s
    }
    assert not (IS_TIMED and late), late


def killed_leader(namespace: Namespace) -> None:
    """The leader's process dies: kill -9."""
    _with_leader(namespace, lambda pod: signal_process(namespace, pod, "SIGKILL"))


def frozen_leader(namespace: Namespace) -> None:
    """The leader says nothing for longer than its lease, as one on a silent node, and goes on."""
    former, before = holder(namespace), epoch(namespace)
    signal_process(namespace, former, "SIGSTOP")
    wait_another_leader(namespace, before)
    signal_process(namespace, former, "SIGCONT")
    _wait_ready(namespace, former)


def deleted_leader(namespace: Namespace) -> None:
    """The leader's pod is deleted."""
    _replaced(namespace, lambda pod: namespace.kubectl("delete", "pod", pod))


def force_deleted_leader(namespace: Namespace) -> None:
    """The leader's pod is deleted by force, as one on a lost node is."""
    force = ("--force", "--grace-period=0")
    _replaced(namespace, lambda pod: namespace.kubectl("delete", "pod", pod, *force))


def evicted_leader(namespace: Namespace) -> None:
    """The leader's pod is evicted, as the drain of its node does."""
    _replaced(namespace, lambda pod: _evict(namespace, pod))


def killed_follower(namespace: Namespace) -> None:
    """The process of a replica that follows dies."""
    follower = _followers(namespace)[0]
    pod = namespace.get("pod", follower)
    signal_process(namespace, follower, "SIGKILL")
    wait_process_anew(namespace, follower, pod, _HEAL_S)


def two_killed(namespace: Namespace) -> None:
    """The leader and a follower die at the same moment: nothing is taken until one is back."""
    killed = [holder(namespace), _followers(namespace)[0]]
    pods = {name: namespace.get("pod", name) for name in killed}
    for name in killed:
        signal_process(namespace, name, "SIGKILL")
    for name, pod in pods.items():
        wait_process_anew(namespace, name, pod, _HEAL_S)


def wiped_follower(namespace: Namespace) -> None:
    """The volume of a replica that follows is gone, with its pod."""
    _wipe(namespace, _followers(namespace)[-1])


def wiped_leader(namespace: Namespace) -> None:
    """The volume of the leader is gone, with its pod."""
    _wipe(namespace, holder(namespace))


def deleted_lease(namespace: Namespace) -> None:
    """Lease and EndpointSlice are deleted."""
    namespace.kubectl("delete", "lease", GROUP)
    namespace.kubectl("delete", "endpointslice", f"{GROUP}-leader")
    wait_until("the Lease again", lambda: holder(namespace), _HEAL_S)
    wait_until(
        "the EndpointSlice again",
        lambda: (namespace.find("endpointslice", f"{GROUP}-leader") or {}).get("endpoints"),
        _HEAL_S,
    )


def rolled(namespace: Namespace) -> None:
    """All pods are replaced, for a change of what they are made from."""
    before = namespace.pod_uids(SELECTOR)
    change = {"podTemplate": {"annotations": {"rolled": str(time.time_ns())}}}
    namespace.patch("broker", BROKER, {"spec": change})

    def is_rolled() -> bool:
        now = namespace.pod_uids(SELECTOR)
        return now.keys() == before.keys() and not set(now.values()) & set(before.values())

    wait_until("other pods", is_rolled, _HEAL_S)


def grown(namespace: Namespace) -> None:
    """All volumes grow by 64 MiB."""
    claims = [f"data-{pod}" for pod in namespace.pod_uids(SELECTOR)]
    size = namespace.get("broker", BROKER)["spec"]["storage"]["size"]
    wanted = f"{int(size.removesuffix('Mi')) + 64}Mi"
    namespace.patch("broker", BROKER, {"spec": {"storage": {"size": wanted}}})

    def is_grown() -> bool:
        sizes = [namespace.get("pvc", name)["status"]["capacity"]["storage"] for name in claims]
        return set(sizes) == {wanted}

    wait_until("larger volumes", is_grown, _HEAL_S)


def forget_restarts(namespace: Namespace) -> None:
    """Replace pods that had a restart: their node waits longer before each further one."""
    for pod in _followers(namespace):
        if namespace.get("pod", pod)["status"]["containerStatuses"][0]["restartCount"]:
            uid = namespace.pod_uids(SELECTOR)[pod]
            namespace.kubectl("delete", "pod", pod)
            _wait_new_pod(namespace, pod, uid)


def api_server_away(namespace: Namespace) -> None:
    """The API server answers nobody for half a minute."""
    del namespace
    with frozen(control_plane(), "kube-apiserver"):
        time.sleep(_AWAY_S)


def etcd_away(namespace: Namespace) -> None:
    """The API server has no store for half a minute."""
    del namespace
    with frozen(control_plane(), "etcd"):
        time.sleep(_AWAY_S)


def _with_leader(namespace: Namespace, lose: Callable[[str], object]) -> None:
    former, before = holder(namespace), epoch(namespace)
    pod = namespace.get("pod", former)
    lose(former)
    wait_another_leader(namespace, before)
    wait_process_anew(namespace, former, pod, _HEAL_S)


def _replaced(namespace: Namespace, lose: Callable[[str], object]) -> None:
    former, before = holder(namespace), epoch(namespace)
    uid = namespace.pod_uids(SELECTOR)[former]
    lose(former)
    wait_another_leader(namespace, before)
    _wait_new_pod(namespace, former, uid)


def _wipe(namespace: Namespace, pod: str) -> None:
    uid = namespace.pod_uids(SELECTOR)[pod]
    namespace.kubectl("delete", "pvc", f"data-{pod}", "--wait=false")
    namespace.kubectl("delete", "pod", pod, "--force", "--grace-period=0")
    _wait_new_pod(namespace, pod, uid)


def _wait_new_pod(namespace: Namespace, pod: str, former_uid: str) -> None:
    wait_until(
        f"another pod {pod}",
        lambda: namespace.pod_uids(SELECTOR).get(pod, former_uid) != former_uid,
        _HEAL_S,
    )


def _wait_ready(namespace: Namespace, pod: str) -> None:
    def is_ready() -> bool:
        statuses = namespace.get("pod", pod)["status"].get("containerStatuses") or [{}]
        return bool(statuses[0].get("ready"))

    wait_until(f"{pod} ready", is_ready, _HEAL_S)


def _followers(namespace: Namespace) -> list[str]:
    return sorted(set(namespace.pod_uids(SELECTOR)) - {holder(namespace)})


def _evict(namespace: Namespace, pod: str) -> None:
    wish = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": namespace.name},
    }
    path = f"/api/v1/namespaces/{namespace.name}/pods/{pod}/eviction"
    namespace.kubectl("create", "--raw", path, "--filename=-", text=json.dumps(wish))
