"""A Lease that went with its Broker is made again once the replicas run on their volumes."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lease_nodes import GROUP, KEY, LEASE_S, LeaseNodes

from mailboat.client import Message, Producer
from mailboat.replication.lease import Lease, Member
from mailboat.replication.lease_manifest import encode_lease
from mailboat_operator.broker_answers import read_replica
from mailboat_operator.planner.lost_leases import last_to_lead, newest_epoch

# They wait for leases of 6 s, which real brokers keep.
pytestmark = pytest.mark.slow


async def _send(nodes: LeaseNodes, count: int, name: str) -> None:
    async with Producer("group", namesrv=nodes.namesrv) as producer:
        for number in range(count):
            await producer.send(Message("topic", f"{name}-{number}".encode()))


def _said(nodes: LeaseNodes, ordinals: tuple[int, ...]) -> dict[int, Any]:
    """Return what the operator reads of replicas."""
    found = {}
    for ordinal in ordinals:
        replicas = nodes.broker(ordinal).replicas
        assert replicas is not None
        found[ordinal] = read_replica(msgspec.json.encode(replicas.report()))
    return found


@pytest.mark.parametrize("is_killed", [False, True])
async def test_who_has_everything_leads_by_the_lease_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_killed: bool
) -> None:
    """Neither the first one nor the one that was away for a while, but one that has it all."""
    async with LeaseNodes(tmp_path, 3, monkeypatch) as nodes:
        await nodes.begin()
        await _send(nodes, 5, "all have it")
        await nodes.kill(0)
        await nodes.until(lambda: nodes.leader() is not None, 30)
        await _send(nodes, 5, "two have it")
        log = nodes.log_bytes(1)
        for ordinal in (1, 2):
            await (nodes.kill(ordinal) if is_killed else nodes.stop(ordinal))
        seen = nodes.lease.epoch
        del nodes.kube.objects[KEY]
        for ordinal in range(3):
            await nodes.start(ordinal)
        assert last_to_lead(_said(nodes, (0, 1)), 3) is None
        said = _said(nodes, (0, 1, 2))
        assert {report["role"] for report in said.values()} == {"joining"}
        chosen = last_to_lead(said, 3)
        assert chosen in (1, 2)
        epoch = newest_epoch(said)
        assert epoch == seen
        member = Member(chosen, said[chosen]["store_id"])
        anew = Lease(0, None, epoch, frozenset({member}), 2, is_sole=False, lease_s=LEASE_S)
        now = datetime.now(UTC)
        nodes.kube.put(KEY, encode_lease(anew, GROUP, {}, now=now))
        await nodes.in_sync()
        assert nodes.leader() == chosen
        assert nodes.lease.epoch == seen + 1
        await _send(nodes, 1, "later")
        logs = [nodes.log_bytes(ordinal) for ordinal in range(3)]
        assert logs[0] == logs[1] == logs[2]
        assert logs[0].startswith(log)
