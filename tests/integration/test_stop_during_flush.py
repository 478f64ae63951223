"""A stop while the disk is slow: what is marked clean is flushed."""

import asyncio
import threading
from pathlib import Path

import pytest
from transaction_broker import PATIENCE_S, running, until

from mailboat.broker import controller
from mailboat.broker.controller import BrokerController
from mailboat.disk.real import RealDisk
from mailboat.store.checkpoint import read_progress


class HeldFlush(RealDisk):
    """A disk on which a flush of the log ends when a test lets it; other files are synced."""

    def __init__(self) -> None:
        """Begin with a fast one."""
        super().__init__()
        self.may_end = threading.Event()
        self.may_end.set()

    def fdatasync(self, fd: int) -> None:
        """Sync, and come back once that is allowed."""
        super().fdatasync(fd)
        if threading.current_thread().name.startswith("flush"):
            assert self.may_end.wait(PATIENCE_S)


async def _is_flushing(broker: BrokerController) -> bool:
    return broker.store.flusher.is_running


async def test_a_stop_waits_for_the_flush_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It covers what was there at its beginning: what came after it needs one more."""
    monkeypatch.setattr(controller, "_DRAIN_FLUSH_S", 0.01)
    disk = HeldFlush()
    async with running(tmp_path, disk=disk) as (broker, producer):
        await producer.send({})
        await broker.flush.flushed()
        disk.may_end.clear()
        await producer.send({})
        await until(lambda: _is_flushing(broker))
        await producer.send({})
        end = broker.store.commit_log.end
        stop = asyncio.create_task(broker.shutdown())
        done, _ = await asyncio.wait({stop}, timeout=0.5)
        assert not done
        disk.may_end.set()
        await stop
    assert broker.store.flushed_offset == end
    progress = read_progress(disk, str(tmp_path / "mailboat" / "progress.json"))
    assert progress is not None
    assert (progress.clean, progress.commit_log_offset) == (True, end)
