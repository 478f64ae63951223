"""A replica that cuts what its new leader does not have, whatever else goes on just then."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from replica_nodes import ReplicaNodes, same_log

from mailboat.broker.replicas import by_hand
from mailboat.broker.replicas.group import ReplicaGroup
from mailboat.client import Message, Producer
from mailboat.replication.frames import Ack, Frame
from mailboat.store.flush import FlushJob
from mailboat.store.replica_log import ReplicaLog


async def _send(nodes: ReplicaNodes, body: bytes) -> None:
    async with Producer("P", namesrv=nodes.namesrv) as producer:
        await producer.send(Message("T", body))


@asynccontextmanager
async def _replica_with_a_tail(
    root: Path, before: Callable[[], None] = lambda: None
) -> AsyncIterator[ReplicaNodes]:
    """Have replica 2 hold a message that nobody was answered, and replica 1 not know of it."""
    async with ReplicaNodes(root, 3) as nodes:
        await nodes.in_sync()
        await _send(nodes, b"kept")
        await nodes.in_sync()
        await nodes.stop(1)
        await nodes.in_sync()
        replicas = nodes.broker(2).replicas
        assert replicas is not None
        send = replicas.peers.send

        def send_no_ack(ordinal: int, frame: Frame) -> None:
            if not isinstance(frame, Ack):
                send(ordinal, frame)

        replicas.peers.send = send_no_ack  # type: ignore[method-assign]
        end = nodes.group(2).replica.end
        before()
        sending = asyncio.create_task(_send(nodes, b"never answered"))
        await nodes.until(lambda: nodes.broker(2).store.commit_log.end > end)
        replicas.peers.send = send  # type: ignore[method-assign]
        sending.cancel()
        await nodes.stop(0)
        yield nodes


async def _lead_without_the_tail(nodes: ReplicaNodes) -> None:
    await nodes.start(1)
    while refusal := await by_hand.promote(nodes.group(1), accepts_loss=True):
        assert "hears from" in refusal, refusal
    await nodes.broker(1).registration.register_now()


async def _have_equal_logs(nodes: ReplicaNodes) -> bool:
    await nodes.in_sync()
    await _send(nodes, b"new")
    await nodes.in_sync()
    await nodes.until(lambda: len(nodes.log_bytes(2)) == len(nodes.log_bytes(1)))
    return same_log(nodes.log_bytes(2), nodes.log_bytes(1))


async def test_a_cut_waits_for_a_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever cannot cut yet does not take its log for the leader's either."""
    is_cutting = threading.Event()
    held = threading.Event()
    run, keep_aside = FlushJob.run, ReplicaLog.keep_aside

    def run_slowly(job: FlushJob) -> None:
        if held.is_set() and "replica-2" in job.segments[0].path:
            assert is_cutting.wait(20)
            time.sleep(0.5)
        run(job)

    def note_cut(log: ReplicaLog, physical_offset: int, directory: str) -> None:
        keep_aside(log, physical_offset, directory)
        is_cutting.set()

    monkeypatch.setattr(FlushJob, "run", run_slowly)
    monkeypatch.setattr(ReplicaLog, "keep_aside", note_cut)
    async with _replica_with_a_tail(tmp_path, held.set) as nodes:
        await nodes.until(lambda: nodes.broker(2).store.flusher.is_running)
        await _lead_without_the_tail(nodes)
        assert await _have_equal_logs(nodes)
        assert is_cutting.is_set()
        replicas = nodes.broker(2).replicas
        assert replicas is not None
        aside = list((tmp_path / "replica-2" / "mailboat" / "diverged").iterdir())
        assert replicas.report().diverged_bytes == sum(path.stat().st_size for path in aside) > 0
        assert not nodes.broker(2).supervisor.failure


async def test_who_ends_before_a_cut_cuts_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not done yet is not noted as done when the process ends in order."""
    is_cutting, is_ending = threading.Event(), threading.Event()
    keep_aside, end = ReplicaLog.keep_aside, ReplicaGroup.end

    def note_end(group: ReplicaGroup) -> None:
        end(group)
        is_ending.set()

    def keep_slowly(log: ReplicaLog, physical_offset: int, directory: str) -> None:
        is_cutting.set()
        assert is_ending.wait(20)
        keep_aside(log, physical_offset, directory)

    async with _replica_with_a_tail(tmp_path) as nodes:
        monkeypatch.setattr(ReplicaLog, "keep_aside", keep_slowly)
        monkeypatch.setattr(ReplicaGroup, "end", note_end)
        await _lead_without_the_tail(nodes)
        await nodes.until(is_cutting.is_set)
        await nodes.stop(2)
        await nodes.start(0)
        await nodes.in_sync()
        await _send(nodes, b"another answer")
        await nodes.start(2)
        assert await _have_equal_logs(nodes)
