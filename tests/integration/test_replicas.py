"""Groups of real brokers: what was acknowledged is on every replica in the set."""

import shutil
from pathlib import Path

import pytest
from replica_nodes import ReplicaNodes

from mailboat.client import Message, Producer
from mailboat.errors import MailboatError


async def _send(nodes: ReplicaNodes, count: int, name: str = "m") -> None:
    async with Producer("group", namesrv=nodes.namesrv) as producer:
        for number in range(count):
            await producer.send(Message("topic", f"{name}-{number}".encode()))


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_slave_has_what_was_acknowledged(tmp_path: Path, flush: str) -> None:
    """The log of the slave is that of the master, and its queues follow what is confirmed."""
    async with ReplicaNodes(tmp_path, 2, {"flushDiskType": flush}) as nodes:
        await nodes.in_sync()
        await _send(nodes, 50)
        assert nodes.log_bytes(1) == nodes.log_bytes(0) != b""
        if flush == "SYNC_FLUSH":
            slave_store = nodes.broker(1).store
            assert slave_store.flushed_offset == slave_store.commit_log.end
        master, slave = nodes.broker(0).store, nodes.broker(1).store
        ends = {key: master.max_offset(*key) for key in master.queue_keys()}
        assert sum(ends.values()) == 50
        await nodes.until(lambda: {key: slave.max_offset(*key) for key in ends} == ends)


async def test_without_enough_replicas_nothing_is_written(tmp_path: Path) -> None:
    """A send is refused before it is written while the only slave is away, and taken afterwards."""
    async with ReplicaNodes(tmp_path, 2) as nodes:
        await nodes.in_sync()
        await _send(nodes, 3)
        await nodes.stop(1)
        await nodes.until(lambda: bool(nodes.group(0).refusal()))
        end = nodes.broker(0).store.commit_log.end
        with pytest.raises(MailboatError, match="replica"):
            await _send(nodes, 1, "refused")
        assert nodes.broker(0).store.commit_log.end == end
        await nodes.start(1)
        await nodes.in_sync()
        await _send(nodes, 3, "later")
        assert nodes.log_bytes(1) == nodes.log_bytes(0)


async def test_one_slave_of_two_may_go(tmp_path: Path) -> None:
    """With three replicas and two in sync, a lost slave is dropped, and comes back by itself."""
    async with ReplicaNodes(tmp_path, 3) as nodes:
        await nodes.in_sync()
        await _send(nodes, 5)
        await nodes.stop(2)
        await nodes.in_sync()
        await _send(nodes, 5, "without")
        await nodes.start(2)
        await nodes.in_sync()
        await _send(nodes, 5, "again")
        logs = [nodes.log_bytes(ordinal) for ordinal in range(3)]
        assert logs[0] == logs[1] == logs[2]


async def test_a_slave_is_promoted_and_the_master_follows_it(tmp_path: Path) -> None:
    """After the master is gone the slave leads, has everything, and the master follows it."""
    async with ReplicaNodes(tmp_path, 2) as nodes:
        await nodes.in_sync()
        await _send(nodes, 20)
        sent = nodes.log_bytes(0)
        await nodes.stop(0)
        nodes.group(1).promote(accepts_loss=False)
        await nodes.until(lambda: nodes.group(1).is_leading)
        assert nodes.log_bytes(1) == sent
        await nodes.start(0)
        await nodes.in_sync()
        assert nodes.leader() == 1
        await _send(nodes, 20, "later")
        assert nodes.log_bytes(0) == nodes.log_bytes(1)
        store = nodes.broker(1).store
        assert sum(store.max_offset(*key) for key in store.queue_keys()) == 40


async def test_a_master_that_lives_is_not_replaced(tmp_path: Path) -> None:
    """A slave whose master lives is not promoted, and says why."""
    async with ReplicaNodes(tmp_path, 2) as nodes:
        await nodes.in_sync()
        nodes.group(1).promote(accepts_loss=False)
        await nodes.until(lambda: bool(nodes.group(1).promotion_refusal))
        assert "stop that one first" in nodes.group(1).promotion_refusal
        assert nodes.leader() == 0
        await _send(nodes, 3)


async def test_a_master_hands_over(tmp_path: Path) -> None:
    """The master lets a slave lead, starts anew below it, and nothing is lost."""
    async with ReplicaNodes(tmp_path, 3) as nodes:
        await nodes.in_sync()
        await _send(nodes, 10)
        nodes.group(0).hand_over(2)
        await nodes.until(lambda: nodes.group(2).is_leading)
        await nodes.in_sync()
        assert nodes.leader() == 2
        await _send(nodes, 10, "later")
        logs = [nodes.log_bytes(ordinal) for ordinal in range(3)]
        assert logs[0] == logs[1] == logs[2]


async def test_a_new_slave_gets_all_there_is(tmp_path: Path) -> None:
    """A slave that comes with an empty volume has several segments after a while."""
    async with ReplicaNodes(tmp_path, 3, {"mappedFileSizeCommitLog": "65536"}) as nodes:
        await nodes.in_sync()
        await nodes.stop(2)
        shutil.rmtree(tmp_path / "replica-2")
        await nodes.in_sync()
        await _send(nodes, 300)
        assert len(nodes.broker(0).store.commit_log.segments) > 1
        await nodes.start(2)
        await nodes.in_sync()
        assert nodes.log_bytes(2) == nodes.log_bytes(0)


async def test_a_foreign_log_gives_way_to_a_copy(tmp_path: Path) -> None:
    """A slave whose log is another's moves it aside, and comes back with the master's."""
    async with ReplicaNodes(tmp_path / "other", 2) as others:
        await others.in_sync()
        await _send(others, 7, "foreign")
    async with ReplicaNodes(tmp_path, 2, {"inSyncReplicas": "1"}) as nodes:
        await nodes.in_sync()
        await _send(nodes, 10)
        await nodes.stop(1)
        shutil.rmtree(tmp_path / "replica-1")
        shutil.copytree(tmp_path / "other" / "replica-1", tmp_path / "replica-1")
        await nodes.start(1)
        await nodes.in_sync()
        await nodes.until(lambda: nodes.log_bytes(1) == nodes.log_bytes(0))
        kept = list((tmp_path / "replica-1" / "mailboat" / "diverged").rglob("commitlog/*"))
        assert any(b"foreign-3" in path.read_bytes() for path in kept)


async def test_an_async_master_answers_by_itself(tmp_path: Path) -> None:
    """A slave of an ASYNC_MASTER follows it, and its going stops nobody."""
    options = {"inSyncReplicas": "1"}
    async with ReplicaNodes(tmp_path, 2, options, master_role="ASYNC_MASTER") as nodes:
        await nodes.in_sync()
        await _send(nodes, 20)
        await nodes.until(lambda: nodes.log_bytes(1) == nodes.log_bytes(0))
        await nodes.stop(1)
        await _send(nodes, 5, "alone")
        await nodes.start(1)
        await nodes.until(lambda: nodes.log_bytes(1) == nodes.log_bytes(0))
        store = nodes.broker(1).store
        await nodes.until(
            lambda: sum(store.max_offset(*key) for key in store.queue_keys()) == 25,
        )
