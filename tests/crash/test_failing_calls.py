"""Every call of a store's life fails once, or from some point on until the disk is well again.

A short life that makes, fills, rolls, flushes, checkpoints, expires and closes is run once to count
its calls. Then it is run again for each call and each error. The sender gets a clear answer,
nothing half-written is ever served, and a full disk heals without a restart.
"""

import contextlib
import errno
import logging
from dataclasses import dataclass, field
from random import Random

import pytest
from promises import promised

from mailboat.errors import StoreError
from mailboat.store.message_inner import MessageInner, PutStatus
from mailboat.store.message_store import MessageStore
from mailboat.testing.faulty_disk import SHORT_WRITE, Fault, FaultyDisk
from mailboat.testing.history import Crash, History, Sent
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.store_reading import check_derived, read_store
from mailboat.testing.store_simulator import HOST, make_message, small_config

_KEYS = (("orders", 0), ("orders", 1), ("%RETRY%group", 0))
_REFUSALS = {PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.CREATE_MAPPED_FILE_FAILED}
_FULL_DISK = ("create", "pwrite", "fallocate", "make_dirs")


@dataclass
class _Life:
    """One store on a faulty disk, driven as the broker drives it."""

    flush_disk_type: str
    simulated: SimulatedDisk = field(default_factory=SimulatedDisk)
    history: History = field(default_factory=History)
    refused: int = 0
    waiting: list[tuple[Sent, MessageInner]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.disk = FaultyDisk(self.simulated)
        self.store = self.new_store()

    def new_store(self) -> MessageStore:
        return MessageStore(small_config(self.flush_disk_type), self.disk, store_host=HOST)

    def work(self) -> None:
        """Live; an error that `open` or `close` raises ends the life."""
        self.store.open()
        for turn in range(6):
            for count in (1, 3):
                self.put(count)
            self.flush()
            self.tick(0.3)
            if turn % 2:
                self.tick(11)
        self.tick(4000)
        self.tick(4000)
        self.put(2)
        self.flush()
        self.store.close()

    def put(self, count: int) -> list[int]:
        """Send messages and note the answers; returns their statuses."""
        batch = []
        for _ in range(count):
            number = len(self.history.sent)
            body = b"%04d " % number * (1 + number % 5 * 60)
            sent = self.history.send(*_KEYS[number % 3], body)
            batch.append((sent, make_message(sent, f"U{number}")))
        self.store.put_messages([inner for _, inner in batch])
        for sent, inner in batch:
            if inner.status == PutStatus.PUT_OK:
                self.waiting.append((sent, inner))
            elif inner.status == PutStatus.FLUSH_DISK_TIMEOUT:
                assert self.store.state().failed is not None
            else:
                assert inner.status in _REFUSALS
                assert self.store.state().refusal or self.disk.failures
                self.history.refuse(sent)
                self.refused += 1
        if self.flush_disk_type == "ASYNC_FLUSH":
            self.answer()
        return [inner.status for _, inner in batch]

    def answer(self) -> None:
        """Acknowledge what the flush type allows."""
        is_sync = self.flush_disk_type == "SYNC_FLUSH"
        flushed_offset = self.store.flushed_offset
        for sent, inner in self.waiting:
            if not is_sync or inner.physical_offset + inner.size_bytes <= flushed_offset:
                with promised("what is acknowledged has its own place"):
                    self.history.acknowledge(sent, inner.queue_offset, inner.physical_offset)
        self.waiting = [pair for pair in self.waiting if pair[0].queue_offset < 0]

    def flush(self) -> None:
        """Flush as the flush service does."""
        job = self.store.begin_flush()
        if job is None:
            return
        try:
            job.run()
        except OSError as exc:
            self.store.finish_flush(job, exc)
            return
        self.store.finish_flush(job, None)
        self.history.durable_below = job.target
        self.answer()

    def tick(self, seconds: float) -> None:
        """Let time pass, with enough background work in it."""
        self.simulated.advance(seconds)
        for _ in range(3):
            self.store.background()
        self.history.expired_below = self.store.commit_log.start

    @promised("what was promised is there after a call that failed")
    def check_reopened(self, disk: SimulatedDisk, crash: Crash) -> None:
        """Open the directory on a well disk and hold it against the history."""
        store = MessageStore(small_config(self.flush_disk_type), disk, store_host=HOST)
        store.open()
        queues = read_store(store)
        self.history.check(queues, crash)
        check_derived(store, queues, expired_below=self.history.expired_below)
        assert store.recovery.damaged == []
        store.close()

    def check_after(self) -> None:
        """Check what power cuts and the death of the process leave."""
        is_sync = self.flush_disk_type == "SYNC_FLUSH"
        power_cut = Crash.POWER_CUT_SYNC_FLUSH if is_sync else Crash.POWER_CUT_ASYNC_FLUSH
        for seed in range(2):
            self.check_reopened(self.simulated.crash(Random(seed)), power_cut)
        self.check_reopened(self.simulated.kill(), Crash.NONE)


def _count(call: str) -> int:
    life = _Life("SYNC_FLUSH")
    life.work()
    assert life.refused == 0
    life.check_after()
    return life.disk.calls[call]


def _run(flush_disk_type: str, fault: Fault) -> _Life:
    life = _Life(flush_disk_type)
    life.disk.inject(fault)
    # A start or a stop may fail; what it leaves must still be in order.
    with contextlib.suppress(OSError, StoreError):
        life.work()
    assert life.disk.failures
    return life


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "mailboat")


_SITES = [
    *[(call, errno.EIO) for call in ("pwrite", "fdatasync", "fallocate", "ftruncate", "rename",
                                     "unlink", "fsync_dir", "create", "open", "make_dirs")],
    *[(call, errno.ENOSPC) for call in ("pwrite", "fdatasync", "fallocate", "create", "make_dirs",
                                        "rename", "fsync_dir")],
    *[(call, errno.EMFILE) for call in ("create", "open")],
    ("usage", errno.EIO),
]  # fmt: skip


@pytest.mark.parametrize(
    "flush_disk_type", ["ASYNC_FLUSH", pytest.param("SYNC_FLUSH", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("call", "error"), _SITES, ids=[f"{call}-{errno.errorcode[error]}" for call, error in _SITES]
)
def test_any_call_may_fail(call: str, error: int, flush_disk_type: str) -> None:
    """Acknowledged messages stay, refused ones never appear, and the next open finds the truth."""
    total = _count(call)
    assert total
    for number in range(1, total + 1):
        _run(flush_disk_type, Fault((call,), number, error)).check_after()


@pytest.mark.parametrize(
    ("call", "error"),
    [("pwrite", SHORT_WRITE), ("pwrite", errno.EINTR), ("fdatasync", errno.EINTR)],
    ids=["short-write", "pwrite-EINTR", "fdatasync-EINTR"],
)
def test_short_and_interrupted_calls_are_nothing_to_speak_of(call: str, error: int) -> None:
    """No message is refused, nothing is poisoned, the store closes cleanly."""
    for number in range(1, _count(call) + 1):
        life = _Life("SYNC_FLUSH")
        life.disk.inject(Fault((call,), number, error))
        life.work()
        assert life.disk.failures == 1
        assert life.refused == 0
        life.check_after()


@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_full_disk_heals_without_a_restart(flush_disk_type: str) -> None:
    """From any call on there is no room; once there is, messages are taken again."""
    total = sum(_count(call) for call in _FULL_DISK)
    for number in range(1, total + 1):
        life = _Life(flush_disk_type)
        try:
            life.store.open()
        except OSError:
            pytest.fail("the clean disk refused")
        seen = sum(life.disk.calls[call] for call in _FULL_DISK)
        if number <= seen:
            continue
        life.disk.inject(Fault(_FULL_DISK, number - seen, errno.ENOSPC, sticky=True))
        for _ in range(8):
            life.put(2)
            life.flush()
            life.tick(0.3)
        life.tick(11)
        assert life.store.state().failed is None
        life.disk.heal()
        life.tick(11)
        assert set(life.put(2)) == {PutStatus.PUT_OK}
        life.flush()
        life.store.close()
        life.check_after()


def test_a_failed_flush_ends_the_store_until_it_is_reopened() -> None:
    """Nothing is acknowledged any more, the reason is told, and what was read stays readable."""
    life = _Life("SYNC_FLUSH")
    life.store.open()
    life.put(2)
    life.flush()
    life.put(1)
    life.disk.inject(Fault(("fdatasync",), 1, errno.EIO))
    life.flush()
    state = life.store.state()
    assert state.failed is not None
    assert "Input/output error" in state.failed
    assert "restart" in state.failed
    assert life.put(1) == [PutStatus.SERVICE_NOT_AVAILABLE]
    assert life.store.begin_flush() is None
    with promised("what was stored is seen"):
        assert sum(len(view.messages) for view in read_store(life.store).values()) == 2
    life.store.close()
    life.check_reopened(life.simulated.crash(Random(5)), Crash.POWER_CUT_SYNC_FLUSH)


@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_a_failed_flush_dropped_is_written_again(flush_disk_type: str) -> None:
    """After a restart the kernel shows bytes that it will not write: visible must mean durable."""
    life = _Life(flush_disk_type)
    life.store.open()
    life.put(2)
    life.flush()
    life.put(3)
    life.disk.inject(Fault(("fdatasync",), 1, errno.EIO))
    life.flush()
    assert life.store.state().failed is not None
    again = life.simulated.kill()
    store = MessageStore(small_config(flush_disk_type), again, store_host=HOST)
    store.open()
    seen = read_store(store)
    with promised("what was stored is seen"):
        assert sum(len(view.messages) for view in seen.values()) == 5
    for seed in range(5):
        with promised("what was stored is seen"):
            life.history.adopt(seen, Crash.NONE)
        life.check_reopened(again.crash(Random(seed)), Crash.POWER_CUT_SYNC_FLUSH)


def test_an_open_that_failed_can_be_repeated() -> None:
    """Whichever call fails while a crashed directory is opened, the next open succeeds."""
    life = _Life("ASYNC_FLUSH")
    life.store.open()
    for _ in range(6):
        life.put(3)
        life.tick(4)
    image = life.simulated.crash(Random(1))
    for call in ("open", "create", "pwrite", "fdatasync", "fallocate", "rename", "fsync_dir",
                 "pread", "listdir", "size"):  # fmt: skip
        number = 0
        while True:
            number += 1
            simulated = image.crash(Random(0))
            disk = FaultyDisk(simulated, Fault((call,), number, errno.EIO))
            store = MessageStore(small_config("ASYNC_FLUSH"), disk, store_host=HOST)
            try:
                store.open()
            except (OSError, StoreError):
                pass
            else:
                disk.heal()
                store.close()
            if not disk.failures:
                break
            life.check_reopened(simulated.kill(), Crash.POWER_CUT_ASYNC_FLUSH)
        assert number > 1
