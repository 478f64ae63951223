"""A file of one queue cannot be written: its messages wait in memory, and all others go on."""

import errno
import logging

import pytest

from mailboat.store.message_inner import PutStatus
from mailboat.store.message_store import MessageStore
from mailboat.testing.disk_wrapper import DiskWrapper
from mailboat.testing.history import Sent
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.store_reading import read_store
from mailboat.testing.store_simulator import HOST, make_message, small_config

_BAD, _GOOD = ("orders", 0), ("idle", 0)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "mailboat")


class BadPage(DiskWrapper):
    """A disk that takes nothing for one file as long as a test says so."""

    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        """Begin with a good one."""
        super().__init__(disk)
        self._path = path
        self._paths: dict[int, str] = {}
        self.is_bad = False

    def open(self, path: str, *, create: bool = False, is_private: bool = False) -> int:
        """Remember which file it is."""
        fd = self.disk.open(path, create=create, is_private=is_private)
        self._paths[fd] = path
        return fd

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        """Fail for the one file."""
        if self.is_bad and self._paths[fd].startswith(self._path):
            raise OSError(errno.EIO, "Input/output error")
        return self.disk.pwrite(fd, data, position)


def _open(disk: DiskWrapper) -> MessageStore:
    store = MessageStore(small_config("ASYNC_FLUSH"), disk, store_host=HOST)
    store.open()
    return store


def _put(store: MessageStore, key: tuple[str, int], numbers: range) -> None:
    for number in numbers:
        message = make_message(Sent(number, key, b"%d" % number), f"U{number}")
        store.put_messages([message])
        assert message.status == PutStatus.PUT_OK


def _work(disk: SimulatedDisk, store: MessageStore, seconds: int) -> None:
    for _ in range(seconds):
        job = store.begin_flush()
        if job is not None:
            job.run()
            store.finish_flush(job, None)
        store.background()
        disk.advance(1)


@pytest.mark.parametrize("ends", ["well", "at a stop", "with a kill"])
def test_one_file_that_cannot_be_written_stops_nobody_else(ends: str) -> None:
    """Everybody sends and reads on; nothing counts as saved before all of it is."""
    simulated = SimulatedDisk()
    disk = BadPage(simulated, "/store/consumequeue/orders")
    store = _open(disk)
    for key in (_BAD, _GOOD):
        _put(store, key, range(10))
    _work(simulated, store, 15)
    saved = store.checkpoints.saved_offset
    assert saved == store.commit_log.end
    disk.is_bad = True
    for begin in range(10, 100, 10):
        for key in (_BAD, _GOOD):
            _put(store, key, range(begin, begin + 10))
        _work(simulated, store, 3)
        assert store.refusal() is None
    assert {key: len(view.messages) for key, view in read_store(store).items()} == {
        _BAD: 100,
        _GOOD: 100,
    }
    assert store.checkpoints.saved_offset == saved
    if ends == "at a stop":
        with pytest.raises(OSError, match="Input/output"):
            store.close()
    elif ends == "well":
        disk.is_bad = False
        _work(simulated, store, 30)
        assert store.checkpoints.saved_offset == store.commit_log.end
        store.close()
    disk = BadPage(simulated.kill() if ends == "with a kill" else simulated, "/store/none")
    store = _open(disk)
    assert (store.recovery.records == 0) == (ends == "well")
    assert [len(view.messages) for view in read_store(store).values()] == [100, 100]
    store.close()


def test_a_file_in_the_place_of_a_folder_stops_nobody_else() -> None:
    """Also at a start; once it is gone, the queue has its files."""
    simulated = SimulatedDisk()
    store = _open(DiskWrapper(simulated))
    _put(store, _GOOD, range(10))
    simulated.close(simulated.open("/store/consumequeue/orders", create=True))
    _put(store, _BAD, range(10))
    _work(simulated, store, 15)
    _put(store, _GOOD, range(10, 20))
    assert len(read_store(store)[_BAD].messages) == 10
    after = simulated.kill()
    store = _open(DiskWrapper(after))
    _work(after, store, 15)
    _put(store, _GOOD, range(20, 30))
    assert len(read_store(store)[_BAD].messages) == 10
    after.unlink("/store/consumequeue/orders")
    _work(after, store, 20)
    assert store.checkpoints.saved_offset == store.commit_log.end
    store.close()
