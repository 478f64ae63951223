"""One loss after another under Java traffic: the group goes on by itself, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

import e2e_losses
import e2e_node_losses
import pytest
from e2e_failover import Clients, start_replicas
from e2e_kube import Namespace
from e2e_losses import TURNS, lose_one_after_another
from e2e_nodes import home_and_others, without_new_pods
from e2e_resources import start_name_server
from e2e_traffic import TrafficPod

pytestmark = pytest.mark.alone

# docs/replication.md: the longest time without an acknowledged send. A pod whose node is away
# is as long as its lease; two lost replicas wait for one of their processes, or volumes.
_LIMITS_S: Final[dict[Callable[[Namespace], None], float]] = {
    e2e_losses.frozen_leader: 12,
    e2e_losses.deleted_leader: 2,
    e2e_losses.force_deleted_leader: 12,
    e2e_losses.evicted_leader: 2,
    e2e_losses.killed_follower: 2,
    e2e_losses.two_killed: 30,
    e2e_losses.wiped_follower: 2,
    e2e_losses.wiped_leader: 12,
    e2e_losses.deleted_lease: 2,
    e2e_losses.rolled: 2,
    e2e_losses.grown: 2,
    e2e_losses.api_server_away: 2,
    e2e_losses.etcd_away: 2,
}
# The same for what happens to the node of the leader.
_NODE_LIMITS_S: Final[dict[Callable[[Namespace], None], float]] = {
    e2e_node_losses.drained: 2,
    e2e_node_losses.cut_off: 12,
    e2e_node_losses.without_api_server: 2,
    e2e_node_losses.without_kubelet: 2,
}


@pytest.mark.timeout(600 + 900 * TURNS)
def test_whatever_is_lost_the_group_goes_on(namespace: Namespace, traffic: TrafficPod) -> None:
    """Sends go on after each loss, and no replica stays behind."""
    start_replicas(namespace)
    lose_one_after_another(namespace, Clients(namespace, traffic), _LIMITS_S)


@pytest.fixture
def elsewhere() -> Iterator[ExitStack]:
    """Only one node gets new pods, until this is closed."""
    _, others = home_and_others()
    with ExitStack() as stack:
        stack.enter_context(without_new_pods(others))
        yield stack


@pytest.mark.timeout(600 + 600 * TURNS)
def test_whatever_happens_to_its_node_the_group_goes_on(
    elsewhere: ExitStack, namespace: Namespace, traffic: TrafficPod
) -> None:
    """Clients and name server are on a node that stays; the replicas are one on each."""
    start_name_server(namespace)
    elsewhere.close()
    start_replicas(namespace)
    clients = Clients(namespace, traffic)
    lose_one_after_another(namespace, clients, _NODE_LIMITS_S, e2e_node_losses.lead_elsewhere)
