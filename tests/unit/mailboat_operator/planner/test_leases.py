"""What is read in a group's Lease."""

from typing import Any

import pytest
from operator_samples import sample_broker

from mailboat_operator.planner.leases import GroupLease, read_lease, serving_pods
from mailboat_operator.resources.replication import first_lease


def lease(holder: str = "orders-g0-1/u1/b", **annotations: str) -> dict[str, Any]:
    """Return a Lease as replicas write it."""
    told = {"epoch": "7", "in_sync": "0:a,1:b", "min_in_sync": "2", "renewals": "9"}
    told |= {"sole": "false"} | annotations
    return {
        "kind": "Lease",
        "metadata": {
            "name": "orders-g0",
            "uid": "l1",
            "resourceVersion": "5",
            "annotations": {
                f"mailboat.dev/{key.replace('_', '-')}": text for key, text in told.items()
            },
        },
        "spec": {"holderIdentity": holder},
    }


def test_who_leads_and_who_is_in_sync():
    """As pods of the group, by ordinal."""
    found = read_lease(lease())
    assert found == GroupLease(
        "orders-g0", "l1", 7, "orders-g0-1", "u1", {0: "a", 1: "b"}, 2, problem=None
    )
    assert found.leader == 1
    assert found.in_sync_pods() == ("orders-g0-0", "orders-g0-1")
    assert read_lease(None) is None


def test_the_first_one_can_be_read():
    """What the operator makes is what it reads."""
    made = first_lease(sample_broker(replicas=3), 0, 2, "c3")
    made["metadata"] |= {"uid": "l1", "resourceVersion": "5"}
    found = read_lease(made)
    assert found == GroupLease("orders-g0", "l1", in_sync={2: "c3"}, minimum=2)


@pytest.mark.parametrize(
    "broken",
    [
        lease(epoch="-1"),
        lease(epoch="x"),
        lease(in_sync=""),
        lease(in_sync="0:a,1"),
        lease(in_sync="0:a,,1:b"),
        lease(min_in_sync="two"),
        lease("orders-g0-2/u/b"),
        lease("orders-g0-1"),
        lease("orders-g0/u/b"),
        {"kind": "Lease", "metadata": {"name": "orders-g0", "uid": "l1"}, "spec": {}},
    ],
)
def test_what_contradicts_itself_is_not_believed(broken):
    """Nobody leads by it, and its problem names it."""
    found = read_lease(broken)
    assert found is not None
    assert "the Lease orders-g0 cannot be read" in (found.problem or "")
    assert (found.holder, dict(found.in_sync)) == (None, {})


def pod(*, ready: bool = True) -> dict[str, Any]:
    """Return a pod."""
    condition = {"type": "Ready", "status": str(ready)}
    return {"metadata": {}, "status": {"conditions": [condition]}}


def test_the_leaders_pod_serves_its_group():
    """Of a group without a Lease the only one; a pod that is not ready serves nobody."""
    pods = {
        "orders-g0-0": pod(),
        "orders-g0-1": {**pod(), "spec": "leader"},
        "orders-g1-0": pod(),
        "orders-g2-0": pod(ready=False),
    }
    found = serving_pods(pods, {"orders-g0": lease()})
    assert found == {"orders-g0": pods["orders-g0-1"], "orders-g1": pods["orders-g1-0"]}
