"""A Broker of three replicas under Java traffic: whatever is lost, the group goes on by itself."""

from __future__ import annotations

import os

import pytest
from e2e_failover import (
    GROUP,
    SELECTOR,
    Clients,
    Seen,
    epoch,
    events,
    holder,
    signal_process,
    start_replicas,
    told,
    wait_another_leader,
    wait_process_anew,
)
from e2e_kube import Namespace, wait_until
from e2e_operator import scale
from e2e_resources import BROKER, broker_spec, wait_replicated
from e2e_traffic import TrafficPod
from real_time import IS_TIMED, at_most_s

_KILLS = int(os.environ.get("MAILBOAT_TEST_FAILOVERS", "3"))
"""How often each thing happens."""

# docs/replication.md: the first acknowledged send after a killed leader, and in a handover.
_KILLED_MEDIAN_S, _KILLED_MOST_S = 2.0, 4.0
_HANDOVER_MOST_S = 2.0
# Who waits for the lease of a leader to run out waits for longer: a send is given up after 3 s.
_WAITED_S = 9.0
# Of thousands, where a machine that stands still lets a client's time run out, or the new leader
# waits for a follower for some seconds ("What is missing" in docs/replication.md).
_MOST_FAILED = 50


@pytest.mark.alone  # Its clients keep the machine busy.
def test_killed_leaders(namespace: Namespace, traffic: TrafficPod) -> None:
    """Each time another replica leads, within seconds, with all that was acknowledged."""
    start_replicas(namespace)
    clients = Clients(namespace, traffic)
    seen: list[Seen] = []
    for _ in range(_KILLS):
        leader, before = holder(namespace), epoch(namespace)
        pod = namespace.get("pod", leader)
        clients.start_sending()
        signal_process(namespace, leader, "SIGKILL")
        assert wait_another_leader(namespace, before) != ""
        clients.wait_sent(50)
        seen.append(clients.stop_sending())
        wait_process_anew(namespace, leader, pod, 60)
        if pod["status"]["containerStatuses"][0]["restartCount"]:
            # The node waits longer each time before it starts a container of this pod again.
            namespace.kubectl("delete", "pod", leader)
        wait_replicated(namespace)
    print(told(seen))
    gaps = sorted(one.longest_gap_s for one in seen)
    # Nobody has waited for the lease to run out.
    assert gaps[-1] < at_most_s(_KILLED_MOST_S, _WAITED_S), seen
    assert gaps[len(gaps) // 2] < at_most_s(_KILLED_MEDIAN_S, _WAITED_S), seen
    clients.check_received()
    assert GROUP in events(namespace, "LeaderChanged")[0]


@pytest.mark.alone  # Its clients keep the machine busy.
def test_a_roll_loses_no_send(namespace: Namespace, traffic: TrafficPod) -> None:
    """Followers first, the leader last, which hands over: no send fails."""
    start_replicas(namespace)
    clients = Clients(namespace, traffic)
    before = namespace.pod_uids(SELECTOR)
    leader = holder(namespace)
    clients.start_sending()
    namespace.patch(
        "broker", BROKER, {"spec": {"podTemplate": {"annotations": {"rolled": "once"}}}}
    )
    order: list[str] = []

    def is_rolled() -> bool:
        now = namespace.pod_uids(SELECTOR)
        for name, uid in now.items():
            if uid != before[name] and name not in order:
                order.append(name)
        done = namespace.condition("broker", BROKER, "Progressing").get("reason") == "Settled"
        return done and len(order) == len(before)

    wait_until("rolled pods", is_rolled, 240)
    wait_replicated(namespace)
    seen = clients.stop_sending()
    print(told([seen]))
    clients.check_received()
    assert order[-1] == leader, order
    assert seen.failed <= (0 if IS_TIMED else _MOST_FAILED), seen
    assert seen.longest_gap_s < at_most_s(_HANDOVER_MOST_S, _WAITED_S), seen


@pytest.mark.alone  # It scales the operator down.
def test_without_the_operator_a_deleted_leader_is_replaced(
    namespace: Namespace, traffic: TrafficPod, installed: str
) -> None:
    """Nobody but the replicas themselves is needed for that."""
    start_replicas(namespace)
    clients = Clients(namespace, traffic)
    scale(installed, 0)
    try:
        leader, before = holder(namespace), epoch(namespace)
        clients.start_sending()
        namespace.kubectl("delete", "pod", leader, "--force", "--grace-period=0")
        assert wait_another_leader(namespace, before) != leader
        clients.wait_sent(50)
        seen = clients.stop_sending()
        print(told([seen]))
        clients.check_received()
    finally:
        scale(installed, 2)
    wait_replicated(namespace)


def test_one_replica_becomes_three_and_one_again(namespace: Namespace, traffic: TrafficPod) -> None:
    """Pod 0 keeps its volume both ways, and whoever sends hardly notices."""
    start_replicas(namespace, replicas=1)
    clients = Clients(namespace, traffic)
    volume = namespace.get("pvc", f"data-{GROUP}-0")["spec"]["volumeName"]
    address = namespace.get("service", GROUP)["spec"]["clusterIP"]
    clients.start_sending()
    namespace.patch("broker", BROKER, {"spec": {"replicas": 3}})
    wait_until("three pods", lambda: len(namespace.pod_uids(SELECTOR)) == 3, 120)
    wait_replicated(namespace, 180)
    clients.wait_sent(50)
    namespace.patch("broker", BROKER, {"spec": {"replicas": 1}})
    wait_until("one pod", lambda: set(namespace.pod_uids(SELECTOR)) == {f"{GROUP}-0"}, 180)
    wait_replicated(namespace, 180)
    clients.wait_sent(50)
    clients.stop_sending()
    clients.check_received()
    assert namespace.get("pvc", f"data-{GROUP}-0")["spec"]["volumeName"] == volume
    assert namespace.get("service", GROUP)["spec"]["clusterIP"] == address


def test_the_lease_is_deleted(namespace: Namespace, traffic: TrafficPod) -> None:
    """The leader writes it again, and goes on."""
    start_replicas(namespace)
    clients = Clients(namespace, traffic)
    leader = holder(namespace)
    clients.start_sending()
    namespace.kubectl("delete", "lease", GROUP)
    namespace.kubectl("delete", "endpointslice", f"{GROUP}-leader")
    wait_until("the Lease again", lambda: holder(namespace), 60)
    clients.wait_sent(200)
    clients.stop_sending()
    clients.check_received()
    assert holder(namespace) == leader
    wait_replicated(namespace)


def test_a_broker_made_again_has_its_messages(namespace: Namespace, traffic: TrafficPod) -> None:
    """The Lease went with the Broker; the replicas find on their volumes who may lead."""
    start_replicas(namespace)
    clients = Clients(namespace, traffic)
    clients.start_sending()
    before = epoch(namespace)
    clients.stop_sending()
    namespace.kubectl("delete", "broker", BROKER, "--timeout=120s")
    wait_until("no pods", lambda: not namespace.list("pods", SELECTOR), 120)
    namespace.kubectl("delete", "lease", GROUP, "--ignore-not-found")
    namespace.create("Broker", BROKER, broker_spec(replicas=3))
    wait_replicated(namespace, 180)
    assert epoch(namespace) > before
    clients.start_sending()
    clients.stop_sending()
    clients.check_history()
