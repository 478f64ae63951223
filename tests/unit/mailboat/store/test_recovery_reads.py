"""How much a start reads where nothing was written."""

from pathlib import Path
from typing import Any

import pytest

from mailboat.disk.real import RealDisk
from mailboat.store import recovery
from mailboat.store.message_inner import PutStatus
from mailboat.store.message_store import MessageStore
from mailboat.testing.disk_wrapper import DiskWrapper
from mailboat.testing.history import History
from mailboat.testing.store_simulator import HOST, make_message, small_config

_SEGMENT_BYTES = 256 << 20


class _Counting(DiskWrapper):
    """Counts the bytes that are read."""

    read_bytes = 0

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Count and pass on."""
        self.read_bytes += size
        return super().pread(fd, size, position)


def test_a_start_after_a_kill_leaves_alone_what_was_only_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the kernel reads ahead: what it has read looks like what was written."""
    monkeypatch.setattr(recovery, "_SEARCH_BYTES", 1 << 16)
    config: Any = small_config(
        "ASYNC_FLUSH",
        store_path_root_dir=str(tmp_path),
        mapped_file_size_commit_log=_SEGMENT_BYTES,
    )
    store = MessageStore(config, RealDisk(), store_host=HOST)
    store.open()
    inner = make_message(History().send("orders", 0, b"a body"), "U1")
    store.put_messages([inner])
    assert inner.status == PutStatus.PUT_OK
    # As a process that is killed leaves it.
    assert store._release_lock is not None
    store._release_lock()
    disk = _Counting(RealDisk())
    again = MessageStore(config, disk, store_host=HOST)
    again.open()
    assert again.recovery.records == 1
    assert again.commit_log.end == store.commit_log.end
    fd = disk.open(again.commit_log.segments[0].path)
    knows_holes = disk.data_range(fd, _SEGMENT_BYTES - 1) is None
    disk.close(fd)
    if not knows_holes:
        pytest.skip("this file system does not tell what was only reserved")
    assert disk.read_bytes < _SEGMENT_BYTES // 4
