"""Groups of real brokers: what was acknowledged is on every replica in the set."""

import asyncio
import errno
import random
import shutil
from pathlib import Path

import pytest
from promises import promised
from replica_nodes import ReplicaNodes, same_log

from mailboat.broker.replicas.replica_file import ReplicaFile
from mailboat.client import Message, Producer
from mailboat.disk.real import RealDisk
from mailboat.errors import MailboatError
from mailboat.replication.actions import WriteLog
from mailboat.replication.durable import Durable


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
        assert same_log(nodes.log_bytes(1), nodes.log_bytes(0))
        assert nodes.log_bytes(0) != b""
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
        assert same_log(nodes.log_bytes(1), nodes.log_bytes(0))


async def test_what_nobody_expected_fails_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that cannot do what comes next does not stay linked and idle for ever."""
    async with ReplicaNodes(tmp_path, 2) as nodes:
        await nodes.in_sync()

        def follow(data: bytes, physical_offset: int) -> None:
            raise KeyError(physical_offset)

        monkeypatch.setattr(nodes.broker(1).store.replica, "follow", follow)
        with pytest.raises(MailboatError):
            await _send(nodes, 1)
        async with asyncio.timeout(10):
            assert "KeyError" in await nodes.failure(1)


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
        assert same_log(logs[0], logs[1])
        assert same_log(logs[0], logs[2])


async def test_a_slave_is_promoted_and_the_master_follows_it(tmp_path: Path) -> None:
    """After the master is gone the slave leads, has everything, and the master follows it."""
    async with ReplicaNodes(tmp_path, 2) as nodes:
        await nodes.in_sync()
        await _send(nodes, 20)
        sent = nodes.log_bytes(0)
        await nodes.stop(0)
        nodes.group(1).promote(accepts_loss=False)
        await nodes.until(lambda: nodes.group(1).is_leading)
        with promised("whoever leads has what was acknowledged"):
            assert nodes.log_bytes(1) == sent
        await nodes.start(0)
        await nodes.in_sync()
        assert nodes.leader() == 1
        await _send(nodes, 20, "later")
        assert same_log(nodes.log_bytes(0), nodes.log_bytes(1))
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


async def test_a_master_that_cannot_note_what_it_has_begins_anew(tmp_path: Path) -> None:
    """It takes no other one's messages for those whose senders wait here."""
    async with ReplicaNodes(tmp_path, 2) as nodes:
        await nodes.in_sync()
        before = nodes.broker(0)
        assert before.replicas is not None
        file = before.replicas._file
        write = file.write

        def fail_once(durable: Durable) -> None:
            file.write = write  # type: ignore[method-assign]
            raise OSError(errno.ENOSPC, "no room")

        file.write = fail_once  # type: ignore[method-assign]
        await _send(nodes, 1)
        await nodes.until(lambda: nodes.broker(0) is not before)
        assert not before.replicas.group.replica.is_leading
        await nodes.until(lambda: nodes.broker(0).phase == "serving")
        await nodes.in_sync()
        await _send(nodes, 1)


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
        assert same_log(logs[0], logs[1])
        assert same_log(logs[0], logs[2])


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
        assert same_log(nodes.log_bytes(2), nodes.log_bytes(0))


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


async def test_a_slave_that_may_not_write_takes_little_of_the_log(tmp_path: Path) -> None:
    """While the queues of a deleted topic go, what is stored stays with the master."""
    options = {"inSyncReplicas": "1"}
    async with ReplicaNodes(tmp_path, 2, options, master_role="ASYNC_MASTER") as nodes:
        await nodes.in_sync()
        group, replicas = nodes.group(1), nodes.broker(1).replicas
        assert replicas is not None
        await _send(nodes, 1)
        await nodes.until(lambda: nodes.log_bytes(1) == nodes.log_bytes(0))
        end = nodes.broker(1).store.commit_log.end
        replicas.tables._deleting += 1
        async with Producer("group", namesrv=nodes.namesrv) as producer:
            for _ in range(300):
                await producer.send(Message("topic", random.randbytes(100_000)))
        await nodes.until(lambda: bool(group._held._links))
        waiting = [a for a in group._todo if isinstance(a, WriteLog)]
        assert 0 < sum(len(a.records) for a in waiting if isinstance(a.records, bytes)) < 12 << 20
        assert nodes.broker(1).store.commit_log.end == end
        replicas.tables._deleting -= 1
        replicas.tables.on_deleted()
        await nodes.until(lambda: nodes.log_bytes(1) == nodes.log_bytes(0))
        assert not group._held._links


async def test_a_copy_keeps_to_its_rate_until_that_is_changed(tmp_path: Path) -> None:
    """12 MB for an empty slave at 1 MiB/s, all but the last 8 MiB, then as fast as it goes."""
    options = {"inSyncReplicas": "1", "maxHaTransferByteInSecond": str(1 << 20)}
    async with ReplicaNodes(tmp_path, 2, options, master_role="ASYNC_MASTER") as nodes:
        await nodes.in_sync()
        await _send(nodes, 1)
        await nodes.stop(1)
        async with Producer("group", namesrv=nodes.namesrv) as producer:
            for _ in range(120):
                await producer.send(Message("topic", random.randbytes(100_000)))
        await asyncio.sleep(1.1)  # What the log has grown in the last second is no bound any more.
        shutil.rmtree(tmp_path / "replica-1")
        await nodes.start(1)
        slave, loop = nodes.broker(1).store.commit_log, asyncio.get_running_loop()
        await nodes.until(lambda: slave.end > 0)
        began_s = loop.time()
        await nodes.until(lambda: slave.end > 2 << 20)
        assert loop.time() - began_s > 0.8
        assert slave.end < 12_000_000 - (8 << 20)
        nodes.broker(0).change_config({"maxHaTransferByteInSecond": str(1 << 30)})
        await nodes.until(lambda: nodes.log_bytes(1) == nodes.log_bytes(0))


async def test_a_former_async_master_follows_with_what_it_had_alone_put_aside(
    tmp_path: Path,
) -> None:
    """What it had acknowledged alone is lost, and shown by nobody; it needs no person."""
    options = {"inSyncReplicas": "1"}
    async with ReplicaNodes(tmp_path, 2, options, master_role="ASYNC_MASTER") as nodes:
        await nodes.in_sync()
        await _send(nodes, 5)
        await nodes.stop(1)
        await _send(nodes, 5, "alone")
        await nodes.stop(0)
        await nodes.start(1)
        nodes.group(1).promote(accepts_loss=True)
        await nodes.until(lambda: nodes.group(1).is_leading)
        await nodes.start(0)
        await nodes.in_sync()
        await _send(nodes, 5, "later")
        await nodes.until(lambda: nodes.log_bytes(0) == nodes.log_bytes(1))
        store = nodes.broker(0).store
        await nodes.until(lambda: sum(store.max_offset(*key) for key in store.queue_keys()) == 10)
    assert list((tmp_path / "replica-0").glob("**/diverged/*/commitlog/*"))


async def test_a_former_async_master_hears_of_its_successor_before_that_one_connects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whom it connects to itself has said enough, though another link is the one that counts."""
    options = {"inSyncReplicas": "1"}
    async with ReplicaNodes(tmp_path, 2, options, master_role="ASYNC_MASTER") as nodes:
        await nodes.in_sync()
        await nodes.stop(1)
        await nodes.stop(0)
        monkeypatch.setattr("mailboat.broker.replicas.peers._CONNECT_EVERY_S", 60)
        await nodes.start(1)
        successor = nodes.group(1)
        successor.promote(accepts_loss=True)
        await nodes.until(lambda: successor.is_leading)
        await nodes.start(0)
        former = nodes.group(0)
        await nodes.until(lambda: former.leader == successor.replica.me or former.has_led)
        # Longer than it waits for answers of others when it may lead.
        await asyncio.sleep(1)
        assert not former.has_led
        assert not successor.is_linked(0)


async def test_very_much_that_was_held_back_is_shown_in_turns(tmp_path: Path) -> None:
    """As after a slave died that had taken in much since it last noted what is confirmed."""
    options = {"inSyncReplicas": "1"}
    async with ReplicaNodes(tmp_path, 2, options, master_role="ASYNC_MASTER") as nodes:
        await nodes.in_sync()
        async with Producer("group", namesrv=nodes.namesrv) as producer:
            for _ in range(100):
                await producer.send_batch([Message("topic", b"x") for _ in range(1000)])
        await nodes.until(lambda: nodes.log_bytes(1) == nodes.log_bytes(0))
        await nodes.stop(1)
        file = ReplicaFile(RealDisk(), f"{tmp_path}/replica-1/mailboat/replica.json")
        noted = file.read()
        assert noted is not None
        file.write(noted._replace(confirmed=0))
        shutil.rmtree(tmp_path / "replica-1/consumequeue")
        await nodes.start(1)
        store = nodes.broker(1).store
        await nodes.until(
            lambda: sum(store.max_offset(*key) for key in store.queue_keys()) == 100_000
        )


async def test_a_slave_that_ends_in_order_holds_up_nobody(tmp_path: Path) -> None:
    """It is out of the set before it is gone: a send a moment later is answered at once."""
    async with ReplicaNodes(tmp_path, 3) as nodes:
        await nodes.in_sync()
        await _send(nodes, 1)
        leading = nodes.group(0).replica.leading
        assert leading is not None
        async with Producer("group", namesrv=nodes.namesrv, retries=0) as producer:
            ending = asyncio.create_task(nodes.stop(2))
            await nodes.until(lambda: len(leading.recorded) == 2, timeout_s=1)
            async with asyncio.timeout(0.9):
                await producer.send(Message("topic", b"x"))
            await ending


@pytest.mark.parametrize("role", ["SYNC_MASTER", "ASYNC_MASTER"])
async def test_a_single_master_takes_messages_once_it_has_started(
    tmp_path: Path, role: str
) -> None:
    """At the first start, and at the next one."""
    options = {"inSyncReplicas": "1"}
    async with ReplicaNodes(tmp_path, 1, options, master_role=role) as nodes:
        assert nodes.group(0).refusal() == ""
        await nodes.stop(0)
        await nodes.start(0)
        assert nodes.group(0).refusal() == ""


async def test_a_master_that_needs_no_slave_takes_messages_once_it_has_started_again(
    tmp_path: Path,
) -> None:
    """Its slave is away, and need not come for it."""
    options = {"inSyncReplicas": "1"}
    async with ReplicaNodes(tmp_path, 2, options, master_role="ASYNC_MASTER") as nodes:
        await nodes.in_sync()
        await nodes.stop(1)
        await nodes.stop(0)
        await nodes.start(0)
        assert nodes.group(0).refusal() == ""
