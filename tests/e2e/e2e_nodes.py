"""Nodes of the cluster: shells on them, who may get new pods, and what cuts them off.

MAILBOAT_E2E_NODE_SHELL is a command that runs another one as root on a node, with `{node}` where
the node's name belongs, or `{number}` for the number at its end: `docker exec {node}` with kind.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from e2e_api import read_object, read_objects
from e2e_kube import Manifest, kubectl, run

_CONTROL_PLANE: Final = "node-role.kubernetes.io/control-plane"
_NO_PODS: Final = ("NoSchedule", "NoExecute")
# Before any other rule sees a packet, and after the last one that changes an address.
_FIRST: Final = -300
_BEHIND_NAT: Final = 0


def node_shell(node: str) -> list[str]:
    """Return the command that runs another one as root on a node."""
    text = os.environ.get("MAILBOAT_E2E_NODE_SHELL")
    if not text:
        pytest.skip("MAILBOAT_E2E_NODE_SHELL does not name a command that runs others on a node")
    number = re.search(r"\d*$", node)
    assert number is not None
    return shlex.split(text.format(node=node, number=number[0]))


def control_plane() -> str:
    """Return the node of the API server."""
    [node, *_] = read_objects("", "nodes", labelSelector=_CONTROL_PLANE)
    return str(node["metadata"]["name"])


def any_node() -> str:
    """Return a node that takes pods, always the same one."""
    return _nodes_taking_pods()[0]


def home_and_others() -> tuple[str, list[str]]:
    """Return a node that is to stay as it is, and those that may be lost: two at least."""
    names = _nodes_taking_pods()
    if len(names) < 3:
        pytest.skip(f"three nodes must take pods; those that do: {', '.join(names)}")
    home = control_plane() if control_plane() in names else names[0]
    return home, [name for name in names if name != home]


def _nodes_taking_pods() -> list[str]:
    return [str(n["metadata"]["name"]) for n in read_objects("", "nodes") if _takes_pods(n)]


def is_ready(node: str) -> bool:
    """Tell whether the cluster hears of a node."""
    return _is_ready(read_object("", "node", node))


def takes_pods(node: str) -> bool:
    """Tell whether a node is well, and the cluster has noticed."""
    found = read_object("", "node", node)
    return _is_ready(found) and _takes_pods(found)


@contextmanager
def without_new_pods(nodes: list[str]) -> Iterator[None]:
    """Let nodes get no new pods."""
    kubectl("cordon", *nodes)
    try:
        yield
    finally:
        kubectl("uncordon", *nodes)


@contextmanager
def cut_off(node: str) -> Iterator[None]:
    """Let no packet from or to other machines pass."""
    with _rules(
        node,
        ("prerouting", _FIRST, 'iifname "eth0" drop'),
        ("postrouting", _FIRST, 'oifname "eth0" drop'),
    ):
        yield


@contextmanager
def cut_from_api_server(node: str) -> Iterator[None]:
    """Let nobody on a node, pods included, reach the API server."""
    drop = "tcp dport 6443 drop"
    with _rules(node, ("forward", _BEHIND_NAT, drop), ("output", _BEHIND_NAT, drop)):
        yield


@contextmanager
def frozen(node: str, program: str) -> Iterator[None]:
    """Stop a program of a node as SIGSTOP does, and let it go on."""
    shell = node_shell(node)
    run(*shell, "pkill", "-STOP", "-x", program)
    try:
        yield
    finally:
        run(*shell, "pkill", "-CONT", "-x", program)


@contextmanager
def _rules(node: str, *rules: tuple[str, int, str]) -> Iterator[None]:
    shell = node_shell(node)
    chains = "\n".join(
        f"chain {hook} {{\ntype filter hook {hook} priority {priority};\n{rule}\n}}"
        for hook, priority, rule in rules
    )
    run(*shell, "nft", f"table inet cut {{\n{chains}\n}}")
    try:
        yield
    finally:
        run(*shell, "nft", "delete", "table", "inet", "cut")


def _is_ready(node: Manifest) -> bool:
    conditions = {c["type"]: c["status"] for c in node["status"]["conditions"]}
    return conditions["Ready"] == "True"


def _takes_pods(node: Manifest) -> bool:
    return not any(taint["effect"] in _NO_PODS for taint in node["spec"].get("taints", ()))
