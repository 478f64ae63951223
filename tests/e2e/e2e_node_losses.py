"""What can happen to the node of a leader; it is well again when each function returns."""

from __future__ import annotations

import time
from typing import Final

import e2e_nodes
from e2e_failover import SELECTOR, epoch, holder, wait_another_leader
from e2e_kube import Namespace, kubectl, wait_until
from e2e_operator import pod_node
from e2e_resources import wait_replicated

_AWAY_S: Final = 30.0
_NOTICED_S: Final = 180.0


def lead_elsewhere(namespace: Namespace) -> None:
    """Have each replica on a node of its own, and one lead that is not where clients are.

    After a drain two replicas are on one node: Kubernetes moves none back.
    """
    home, others = e2e_nodes.home_and_others()
    _spread(namespace)
    for _ in others:
        if _leaders_node(namespace) != home:
            return
        before = epoch(namespace)
        namespace.kubectl("delete", "pod", holder(namespace))
        wait_another_leader(namespace, before)
        wait_replicated(namespace)
    raise AssertionError(f"the leader is on {home} again and again")


def _spread(namespace: Namespace) -> None:
    nodes: dict[str, str] = {}
    for pod in sorted(namespace.pod_uids(SELECTOR)):
        nodes.setdefault(pod_node(namespace.name, pod), pod)
    for pod in sorted(set(namespace.pod_uids(SELECTOR)) - set(nodes.values())):
        namespace.kubectl("delete", "pod", pod)
        wait_until(f"another {pod}", lambda pod=pod: namespace.find("pod", pod), _NOTICED_S)
        wait_replicated(namespace)


def drained(namespace: Namespace) -> None:
    """All pods are evicted from the node, as before it is maintained."""
    node, before = _leaders_node(namespace), epoch(namespace)
    try:
        kubectl(
            "drain",
            node,
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            "--force",
            f"--timeout={_NOTICED_S:.0f}s",
            timeout_s=_NOTICED_S + 30,
        )
        wait_another_leader(namespace, before)
    finally:
        kubectl("uncordon", node)


def cut_off(namespace: Namespace) -> None:
    """The node reaches nobody and nobody reaches it, until the cluster gives it up."""
    node, before = _leaders_node(namespace), epoch(namespace)
    with e2e_nodes.cut_off(node):
        wait_another_leader(namespace, before)
        _wait_given_up(node)
    _wait_back(node)


def without_api_server(namespace: Namespace) -> None:
    """Nobody on the node reaches the API server for half a minute."""
    node = _leaders_node(namespace)
    with e2e_nodes.cut_from_api_server(node):
        time.sleep(_AWAY_S)
    _wait_back(node)


def without_kubelet(namespace: Namespace) -> None:
    """The node's kubelet stands still until the cluster gives the node up; its pods live."""
    node = _leaders_node(namespace)
    with e2e_nodes.frozen(node, "kubelet"):
        _wait_given_up(node)
    _wait_back(node)


def _leaders_node(namespace: Namespace) -> str:
    return pod_node(namespace.name, holder(namespace))


def _wait_given_up(node: str) -> None:
    wait_until(f"{node} to be given up", lambda: not e2e_nodes.is_ready(node), _NOTICED_S)


def _wait_back(node: str) -> None:
    wait_until(f"{node} to be back", lambda: e2e_nodes.takes_pods(node), _NOTICED_S)
