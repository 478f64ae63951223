"""A write fails in the middle, and the machine stops while the store wipes what it left."""

import errno
import logging
from random import Random

import pytest

from mailboat.store.message_inner import PutStatus
from mailboat.store.message_store import MessageStore
from mailboat.testing.disk_wrapper import DiskWrapper
from mailboat.testing.history import History
from mailboat.testing.simulated_disk import PowerCutError, SimulatedDisk
from mailboat.testing.store_reading import read_store
from mailboat.testing.store_simulator import HOST, make_message, small_config

_MESSAGES = 9
_BODY = b"x" * 500


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "mailboat")


class HalfWritingDisk(DiskWrapper):
    """A disk that takes half of each write when a test says so."""

    is_failing = False

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        """Write half of it, and fail."""
        if self.is_failing:
            self.disk.pwrite(fd, bytes(data)[: len(data) // 2], position)
            raise OSError(errno.EIO, "Input/output error")
        return self.disk.pwrite(fd, data, position)


def _put(store: MessageStore, number: int) -> PutStatus:
    message = make_message(History().send("orders", 0, _BODY), f"U{number}")
    store.put_messages([message])
    return message.status


@pytest.mark.parametrize("has_next", [True, False])
@pytest.mark.parametrize("changes", range(4))
def test_a_cut_while_a_failed_write_is_wiped_is_survived(changes: int, has_next: bool) -> None:
    """The file is shorter for a moment, and the next one may be there already."""
    disk = SimulatedDisk()
    failing = HalfWritingDisk(disk)
    store = MessageStore(small_config("SYNC_FLUSH"), failing, store_host=HOST)
    store.open()
    for number in range(_MESSAGES):
        assert _put(store, number) == PutStatus.PUT_OK
    job = store.begin_flush()
    assert job is not None
    job.run()
    store.finish_flush(job, None)
    if has_next:
        while not store.commit_log.is_prepared:
            store.background()
    failing.is_failing = True
    disk.cut_power_after(1 + changes)
    try:
        assert _put(store, _MESSAGES) != PutStatus.PUT_OK
    except PowerCutError:
        pass
    for after in (disk.kill(), *(disk.crash(Random(seed)) for seed in range(20))):
        again = MessageStore(small_config("SYNC_FLUSH"), after, store_host=HOST)
        again.open()
        assert len(read_store(again)["orders", 0].messages) == _MESSAGES
        assert _put(again, _MESSAGES) == PutStatus.PUT_OK
        again.close()
