"""The store of a replica that somebody else has written to meanwhile."""

import errno
import os
import shutil
import threading
from pathlib import Path

import pytest
from promises import promised
from replica_nodes import ReplicaNodes, same_log

from mailboat.client import Message, Producer
from mailboat.config import load_settings
from mailboat.errors import DamagedStoreError
from mailboat.node import Node
from mailboat.store.flush import FlushJob
from mailboat.testing.cluster import SMALL_STORE


async def _send(namesrv: str, body: bytes) -> None:
    async with Producer("P", namesrv=namesrv) as producer:
        await producer.send(Message("T", body))


def _alone(folder: Path) -> Node:
    """Return a broker without replicas, with a name server of its own."""
    options = {
        **SMALL_STORE,
        "bindAddress": "127.0.0.1",
        "listenPort": "0",
        "httpPort": "-1",
        "namesrvListenPort": "0",
        "brokerName": "broker-a",
        "storePathRootDir": str(folder),
    }
    return Node(load_settings("standalone", overrides=options))


async def _send_alone(folder: Path, body: bytes) -> None:
    node = _alone(folder)
    await node.start()
    try:
        await _send(node.addresses()["namesrv"], body)
    finally:
        await node.shutdown()


async def test_a_replica_is_no_broker_without_replicas(tmp_path: Path) -> None:
    """Whoever forgets its role writes nothing where a leader has written something else."""
    async with ReplicaNodes(tmp_path, 2) as nodes:
        await nodes.in_sync()
        await nodes.stop(0)
        with pytest.raises(DamagedStoreError, match="brokerRole"):
            await _send_alone(tmp_path / "replica-0", b"alone")
        await nodes.start(0)
        await nodes.in_sync()


async def test_a_log_that_rocketmq_has_written_to_gives_way_to_a_copy(tmp_path: Path) -> None:
    """No epoch tells what it has cut, or written in its place."""
    folder = tmp_path / "replica-0"
    async with ReplicaNodes(tmp_path, 3) as nodes:
        await nodes.in_sync()
        await _send(nodes.namesrv, b"first")
        await nodes.in_sync()
        await nodes.switch(1)
        await nodes.start(0)
        await nodes.in_sync()
        await nodes.stop(0)
        own = folder / "mailboat/replica.json"
        own.rename(tmp_path / "kept")
        await _send_alone(folder, b"plain")
        (tmp_path / "kept").rename(own)
        (folder / "lock").write_bytes(b"lock")  # As RocketMQ leaves it.
        await nodes.in_sync()
        await _send(nodes.namesrv, b"acked")
        await nodes.start(0)
        # It begins anew once it knows that its log is not the leader's.
        await nodes.until((folder / "mailboat/diverged").exists)
        await nodes.until(lambda: nodes.broker(0).phase == "serving")
        await nodes.in_sync()
        assert same_log(nodes.log_bytes(0), nodes.log_bytes(1))
        with promised("what was acknowledged is there"):
            assert b"acked" in nodes.log_bytes(0)


async def test_a_slave_whose_flush_failed_has_no_vote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it acknowledged may be missing once it is started again, with the kernel running on."""
    run = FlushJob.run
    fails = threading.Event()

    def run_or_fail(job: FlushJob) -> None:
        if fails.is_set() and "replica-1" in job.segments[0].path:
            raise OSError(errno.EIO, "the disk has lost what was to be written")
        run(job)

    monkeypatch.setattr(FlushJob, "run", run_or_fail)
    async with ReplicaNodes(tmp_path, 3) as nodes:
        await nodes.in_sync()
        await _send(nodes.namesrv, b"first")
        await nodes.in_sync()
        await nodes.stop(2)
        await nodes.in_sync()
        slave = nodes.broker(1).store
        flushed = slave.flushed_offset
        fails.set()
        await _send(nodes.namesrv, b"acknowledged")
        await nodes.until(lambda: slave.commit_log.failure is not None)
        await nodes.stop(0)
        await nodes.stop(1)
        fails.clear()
        segment = tmp_path / "replica-1/commitlog/00000000000000000000"
        size = segment.stat().st_size
        os.truncate(segment, flushed)
        os.truncate(segment, size)
        await nodes.start(1)
        await nodes.start(2)
        await nodes.until(lambda: 1 in nodes.broker(2).replicas.peers.links())
        for ordinal in (1, 2):
            assert await nodes.try_to_promote(ordinal)
        await nodes.start(0)
        await nodes.in_sync()
        with promised("what was acknowledged is there"):
            assert b"acknowledged" in nodes.log_bytes(1)


async def _lag_behind(nodes: ReplicaNodes) -> None:
    """Stop all, so that replica 1 has not what the others have acknowledged."""
    await nodes.in_sync()
    await _send(nodes.namesrv, b"first")
    await nodes.in_sync()
    await nodes.stop(1)
    await nodes.in_sync()
    await _send(nodes.namesrv, b"acknowledged")
    await nodes.stop(2)
    await nodes.stop(0)


async def test_a_copy_of_another_replica_has_no_vote(tmp_path: Path) -> None:
    """It has not what was acknowledged in its place, as an empty volume has not."""
    async with ReplicaNodes(tmp_path, 3) as nodes:
        await _lag_behind(nodes)
        shutil.rmtree(tmp_path / "replica-2")
        shutil.copytree(tmp_path / "replica-1", tmp_path / "replica-2")
        (tmp_path / "replica-2/mailboat/identity.json").unlink()
        await nodes.start(2)
        await nodes.start(1)
        await nodes.until(lambda: 1 in nodes.broker(2).replicas.peers.links())
        assert nodes.group(1).replica.me.store_id != nodes.group(2).replica.me.store_id
        for ordinal in (1, 2):
            assert "must answer" in await nodes.try_to_promote(ordinal)
        await nodes.start(0)
        await nodes.in_sync()
        with promised("what was acknowledged is there"):
            assert b"acknowledged" in nodes.log_bytes(2)


async def test_a_larger_set_makes_nobody_sure_of_what_was(tmp_path: Path) -> None:
    """With inSyncReplicas=3 one would be enough to lead, but not for what 2 have acknowledged."""
    options = {"inSyncReplicas": "2"}
    async with ReplicaNodes(tmp_path, 3, options) as nodes:
        await _lag_behind(nodes)
        nodes._options["inSyncReplicas"] = "3"
        await nodes.start(1)
        assert "must answer" in await nodes.try_to_promote(1)
        await nodes.start(0)
        await nodes.start(2)
        await nodes.in_sync()
        with promised("what was acknowledged is there"):
            assert b"acknowledged" in nodes.log_bytes(1)
