"""The end of the log is cut off while the segment behind it is being made on a thread."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from mailboat.store.commit_log import CommitLog
from mailboat.store.file_pool import FilePool
from mailboat.testing.disk_wrapper import DiskWrapper
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.store_simulator import HOST, small_config

_SEGMENT = 65_536
_FOLDER = "/store/commitlog"
# A cut that waits for nobody takes some microseconds.
_CUT_WITHIN_S = 0.2


class _Cutting(DiskWrapper):
    """Begins a cut when room is set aside for a file, and goes on once it is done, or waits."""

    def __init__(self, disk: SimulatedDisk) -> None:
        super().__init__(disk)
        self.cut: threading.Thread | None = None

    def fallocate(self, fd: int, size: int) -> None:
        """Pass on, after the cut."""
        if self.cut is not None and self.cut.ident is None:
            self.cut.start()
            self.cut.join(_CUT_WITHIN_S)
        self.disk.fallocate(fd, size)


def _log(disk: _Cutting, threads: list[threading.Thread]) -> CommitLog:
    """Return an empty log that makes segments ahead of need on a thread of its own."""
    disk.make_dirs(_FOLDER)

    def run(job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        def work() -> None:
            error: BaseException | None = None
            try:
                job()
            except Exception as found:
                error = found
            outcomes.append(error)

        outcomes: list[BaseException | None] = []
        thread = threading.Thread(target=work)
        thread.start()
        threads.append(thread)
        thread.join()
        done(None, outcomes[0])

    config = small_config("ASYNC_FLUSH", mapped_file_size_commit_log=_SEGMENT)
    return CommitLog(config, disk, FilePool(disk, 8), _FOLDER, HOST, run)


@pytest.mark.parametrize("cut_at", [0, 1000, _SEGMENT - 100])
def test_a_cut_leaves_nothing_behind_what_it_takes_off(cut_at: int) -> None:
    """The next segment is the one that follows the last one, and no file is left over."""
    disk = _Cutting(SimulatedDisk())
    threads: list[threading.Thread] = []
    log = _log(disk, threads)
    log.write_followed(b"x" * 40_000, _SEGMENT, 0)
    log.write_followed(b"y" * 40_000, _SEGMENT + 40_000, 0)
    assert len(log.segments) == 2
    cut = disk.cut = threading.Thread(target=log.cut, args=(cut_at,))
    log.prepare_next()
    cut.join()
    log.write_followed(b"z" * 100, _SEGMENT, 0)
    log.write_followed(b"z" * 100, _SEGMENT + 100, 0)
    assert [segment.start for segment in log.segments] == [0, _SEGMENT]
    assert sorted(disk.listdir(_FOLDER)) == [f"{start:020d}" for start in (0, _SEGMENT)]
