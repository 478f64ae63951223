"""The operator killed at bad moments, two of them at once, and at rest."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
from e2e_kube import Namespace, kubectl, run, wait_until
from e2e_nodes import node_shell
from e2e_operator import (
    audit_log,
    kill,
    leader,
    operator_pods,
    pod_address,
    pod_node,
    restarts,
    scale,
    wait_writes,
)
from e2e_resources import (
    BROKER,
    NAME_SERVER,
    REPLICAS,
    broker_spec,
    claim_size,
    start_broker,
    wait_config,
)

SELECTOR = f"mailboat.dev/broker={BROKER}"
# An operator that leads and writes nothing for so long has nothing to write. One that writes too
# little is killed all the same, after some such times.
_QUIET_S = 8.0
_LOOKS = 3
REST_S = float(os.environ.get("MAILBOAT_E2E_REST_S", "180"))


def _kill_after_every(
    namespace: str, writes: int, is_settled: Callable[[], bool], timeout_s: float
) -> int:
    """Kill the one operator after so many writes, again and again, until all is settled."""
    log, kills = audit_log(namespace), 0
    deadline = time.monotonic() + timeout_s
    while True:
        seen = 0
        for _ in range(_LOOKS):
            led = leader(namespace) in operator_pods(namespace)
            more = wait_writes(log, writes - seen, _QUIET_S)
            seen += more
            if seen >= writes:
                break
            if led and not more and is_settled():
                return kills
        assert time.monotonic() < deadline, f"not settled after {kills} kills"
        for pod in operator_pods(namespace):
            kill(namespace, pod)
            kills += 1
        # The dead operator's Lease would run out in 15 s; that it does is another test.
        kubectl("--namespace", namespace, "delete", "lease", "mailboat", "--ignore-not-found")


@pytest.mark.alone  # It kills the one operator.
@pytest.mark.timeout(1200 * REPLICAS)
@pytest.mark.parametrize("writes", [1, 3])
def test_killed_after_every_write_the_end_is_the_same(
    writes: int, namespace: Namespace, installed: str
) -> None:
    """Create, roll and resize come to their end, and no pod is restarted twice."""
    audit_log(installed)
    scale(installed, 1)
    try:
        requests = {"requests": {"cpu": "20m", "memory": "64Mi"}}
        namespace.create("NameServer", NAME_SERVER, {"replicas": 1, "resources": requests})
        namespace.create("Broker", BROKER, broker_spec())

        def ready() -> bool:
            return namespace.condition("broker", BROKER, "Ready").get("status") == "True"

        kills = _kill_after_every(installed, writes, ready, 420)
        first = namespace.pod_uids(SELECTOR)
        namespace.patch(
            "broker", BROKER, {"spec": {"podTemplate": {"annotations": {"rolled": "once"}}}}
        )
        seen = {name: {uid} for name, uid in first.items()}

        def rolled() -> bool:
            for name, uid in namespace.pod_uids(SELECTOR).items():
                seen[name].add(uid)
            return (
                all(len(uids) > 1 for uids in seen.values())
                and ready()
                and namespace.condition("broker", BROKER, "Progressing")["reason"] == "Settled"
            )

        kills += _kill_after_every(installed, writes, rolled, 240 * REPLICAS)
        assert {len(uids) for uids in seen.values()} == {2}, f"restarted more than once: {seen}"
        rolled_pods = namespace.pod_uids(SELECTOR)
        namespace.patch("broker", BROKER, {"spec": {"storage": {"size": "320Mi"}}})

        def resized() -> bool:
            template = namespace.find("statefulset", f"{BROKER}-g0")
            if template is None or claim_size(namespace) != ("320Mi", "320Mi"):
                return False
            claim = template["spec"]["volumeClaimTemplates"][0]["spec"]
            return ready() and claim["resources"]["requests"]["storage"] == "320Mi"

        kills += _kill_after_every(installed, writes, resized, 240 * REPLICAS)
        assert namespace.pod_uids(SELECTOR) == rolled_pods, "growing restarted the pod"
        assert kills > 5
    finally:
        scale(installed, 2)


@pytest.mark.timeout(600)
def test_at_rest_nothing_is_written(namespace: Namespace, installed: str) -> None:
    """With two groups and a topic and no change outside, the operator writes nothing for them.

    Nor in its own namespace; other tests may change what is theirs.
    """
    log = audit_log(installed)
    start_broker(namespace, groups=2)
    namespace.create("Topic", "quiet", {"brokerRef": BROKER, "queues": {"read": 4, "write": 4}})
    namespace.wait_ready("topic", "quiet", 60)
    # The first numbers of the disks come in and are rounded into the status.
    wait_writes(log, 1_000_000, 45)
    until = time.monotonic() + REST_S
    written = []
    while time.monotonic() < until:
        calls = [call for call in log.calls() if call.namespace in (namespace.name, installed)]
        written += [call for call in calls if call.is_write]
        time.sleep(1)
    assert written == []


@pytest.mark.alone  # It scales and kills the one operator.
def test_another_operator_takes_over_within_20_s(namespace: Namespace, installed: str) -> None:
    """The leader's pod is killed; the other one leads and works before 20 s are over."""
    scale(installed, 2)
    first = wait_until("a leader", lambda: leader(installed), 30)
    began = time.monotonic()
    kill(installed, first)
    second = wait_until(
        "another leader",
        lambda: (now := leader(installed)) not in ("", first) and now,
        25,
    )
    assert second != first
    assert time.monotonic() - began < 20
    start_broker(namespace)


@pytest.mark.alone  # It scales and deafens the one operator.
def test_a_deaf_watch_is_noticed(namespace: Namespace, installed: str) -> None:
    """Packets from the API server vanish; /livez fails within 90 s, and the pod is replaced."""
    scale(installed, 1)
    try:
        start_broker(namespace)
        pod = operator_pods(installed)[0]
        address = pod_address(installed, pod)
        shell = node_shell(pod_node(installed, pod))
        drop = f"ip daddr {address} tcp sport {{ 443, 6443 }} drop"
        chains = "\n".join(
            f"chain {hook} {{\ntype filter hook {hook} priority -300;\n{drop}\n}}"
            for hook in ("prerouting", "output")
        )
        run(*shell, "nft", f"table ip deaf {{\n{chains}\n}}")
        try:
            began = time.monotonic()
            wait_until("a restart of the container", lambda: restarts(installed, pod) > 0, 150)
            # The kubelet asks every 10 s and wants three failures; then the grace period passes.
            assert time.monotonic() - began < 90 + 30 + 20
        finally:
            run(*shell, "nft", "delete", "table", "ip", "deaf")
        wait_until("a leader again", lambda: leader(installed) in operator_pods(installed), 60)
        namespace.patch("broker", BROKER, {"spec": {"retention": {"hours": 24}}})
        wait_config(namespace, "fileReservedTime", "24")
    finally:
        scale(installed, 2)
